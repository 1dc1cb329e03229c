"""The `sparkbook` command as tests call it: in this process, in one of its own, in a terminal."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from unittest import mock

import pytest
from sparkbook import cli

COMMAND = Path(sys.executable).with_name("sparkbook")
ENV = {
    key: value
    for key, value in os.environ.items()
    if key
    not in (
        "COLUMNS",
        "LINES",
        "FORCE_COLOR",
        "NO_COLOR",
        "TTY_COMPATIBLE",
        "TTY_INTERACTIVE",
    )
}


def installed(*arguments: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, which takes half a second to start."""
    return checked(
        subprocess.run(
            [COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, env=ENV
        ),
        check,
    )


def run(*arguments: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """The same, in this process: what the installed program calls."""
    out, err, words = io.StringIO(), io.StringIO(), [str(COMMAND), *arguments]
    world = mock.patch.dict(os.environ, ENV, clear=True), mock.patch.object(sys, "argv", words)
    with (
        world[0],
        world[1],
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        cli.main()
    return checked(
        subprocess.CompletedProcess(
            words, int(end.value.code or 0), out.getvalue(), err.getvalue()
        ),
        check,
    )


def checked(
    result: subprocess.CompletedProcess[str], status: int
) -> subprocess.CompletedProcess[str]:
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr and "\x1b" not in result.stdout + result.stderr
    return result


def in_terminal(width: int, *arguments: str) -> tuple[str, str]:
    """What the command shows in a terminal of this width: raw, and without escape codes."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    process = subprocess.Popen(
        [COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave, env={**ENV, "TERM": "xterm"}
    )
    os.close(slave)
    raw = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # how a terminal's end of output reads on Linux
            break
        if not chunk:
            break
        raw += chunk
    os.close(master)
    assert process.wait(timeout=60) == 0
    text = raw.decode()
    return text, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r", "")
