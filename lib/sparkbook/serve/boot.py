"""A systemd unit that serves at boot, with the watchdog for as long as the server runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.formats import file_of
from sparkbook.serve import launcher
from sparkbook.serve.stack import FIRST_RESTARTS

_PLAIN = re.compile(r"[\w@+=:,./-]+", re.ASCII)


def unit(wish: launcher.Wish, command: Sequence[str], *, user: str, folder: Path) -> str:
    """Return the text of a unit.

    systemd starts a server that failed a few times a day again, and then no more: each failed start
    can cost memory that does not come back. What can't be used is not tried again.

    Args:
        wish: what is to be served; it has to be usable now.
        command: `sparkbook serve` with its options. user, folder: who runs it, and where.

    Raises:
        SparkbookError: it can't be served, or systemd can't hold the line.
    """
    source = wish.source or ""
    file = file_of(source)
    if not file.is_file() if file else source == "-" or re.search(r"\s", source):
        raise SparkbookError("--unit takes a recipe ID or a file: put the launch line into a file")
    if wish.restart_always:
        raise SparkbookError("--unit can't be used with --restart-always: either restarts it")
    if set(command[0]) & set("'\"\\"):
        raise SparkbookError(
            f"systemd starts no program with a quote or a backslash in its path: {command[0]}"
        )
    stack, target = launcher.wanted(wish)
    docker = target == "docker"
    # The colon: no word is read for variables. (`$$` would stay as it is in the program's path.)
    words = [f":{command[0]}", *command[1:], *(["--watch"] if docker and not wish.watch else [])]
    after = "network-online.target docker.service" if docker else "network-online.target"
    return f"""[Unit]
Description=Serve {_escaped(stack.name)}
Wants={after}
After={after}
StartLimitIntervalSec=1d
StartLimitBurst={1 + FIRST_RESTARTS}

[Service]
User={user}
WorkingDirectory={_escaped(str(folder))}
ExecStart={" ".join(map(_word, words))}
Restart=on-failure
RestartSec=30
RestartPreventExitStatus=2
SuccessExitStatus=143
KillMode=mixed
TimeoutStopSec=5min

[Install]
WantedBy=multi-user.target
"""


def _word(text: str) -> str:
    """Return a word of `ExecStart` (systemd.service(5), "Command lines")."""
    text = _escaped(text)
    if _PLAIN.fullmatch(text):
        return text
    inside = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{inside}"'


def _escaped(text: str) -> str:
    """Return a value without specifiers (systemd.unit(5), "Specifiers")."""
    if not text.isprintable():
        raise SparkbookError(f"{text!r} holds a letter that can't be in a unit")
    return text.replace("%", "%%")
