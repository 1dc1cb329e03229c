"""Runs `inside/` in a Python that has vLLM, on this machine or in an image, and reads its reply.

Whatever runs there is bounded: in time, in memory, in processes, in what it may write; it has no
network; and nothing of it is left when the reply has been read, or when whoever asked is gone.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sparkbook.errors import SparkbookError
from sparkbook.serve.paths import PACKAGE
from sparkbook.util.shell_text import command_line

INSIDE = Path(__file__).with_name("inside")
START = INSIDE / "answering.py"
GUARD = PACKAGE / "serve" / "_guard.py"
MOST_BYTES = 32 * 2**20
"""Of a reply, and of a log. The longest reply, the catalogue's recipes in one call, has 2 MiB."""

_UNPACK = (
    "import base64,runpy,sys,tempfile,pathlib;"
    "at=pathlib.Path(tempfile.mkdtemp())/'inside.zip';"
    "at.write_bytes(base64.b64decode(sys.argv[1]));"
    "runpy.run_path(str(at),run_name='__main__')"
)
"""Run in a container: the program comes as an argument, so that nothing of the host is mounted."""


@dataclass(frozen=True)
class Limits:
    """What one call may take.

    Attributes:
        start_s: seconds until vLLM is imported.
        seconds, cpu_seconds: of one question, by the clock and of a processor.
        bytes: memory that a question's process may take.
    """

    start_s: float = 300.0
    seconds: float = 300.0
    cpu_seconds: float = 120.0
    bytes: int = 12 * 2**30

    def whole(self, questions: int) -> float:
        """Seconds that so many questions may take together."""
        return self.start_s + questions * self.seconds

    def to_dict(self) -> dict[str, float]:
        """The part that the program inside keeps."""
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds, "bytes": self.bytes}


@dataclass(frozen=True)
class Reply:
    """What a call gave.

    Attributes:
        lines: the lines of its reply that are JSON objects.
        last_words: the last lines of its log.
        late: whether its time was over.
    """

    lines: list[dict[str, Any]]
    last_words: list[str]
    late: bool


def in_python(
    python: Path, folders: Sequence[Path], request: dict[str, Any], limits: Limits
) -> Reply:
    """Ask in an environment of this machine.

    Args:
        python: its interpreter.
        folders: put before its packages, such as another release of vLLM.
    """
    with tempfile.TemporaryDirectory(prefix="sparkbook-ask-") as home:
        kept = {
            name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ
        }
        env = kept | {
            "HOME": home,
            "TMPDIR": home,
            "LANG": "C.UTF-8",
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return _call([str(python), str(START)], request, limits, env)


def in_image(image: str, request: dict[str, Any], limits: Limits, *, gpu: bool) -> Reply:
    """Ask in a container of an image that is on this host; nothing is pulled.

    Raises:
        SparkbookError: there is no `docker`, or no such image.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise SparkbookError("'docker' is not installed, so no image can be asked")
    shown = subprocess.run(
        [docker, "image", "inspect", "--format", "{{.Id}}", "--", image],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if shown.returncode:
        last = (shown.stderr.strip().splitlines() or ["no reason given"])[-1]
        line = command_line("docker", "pull", image)
        raise SparkbookError(f"{image} can't be asked: {last[:200]}. Fetch it: {line}")
    name = f"sparkbook-ask-{secrets.token_hex(6)}"
    memory = f"{limits.bytes >> 20}m"
    command = [
        docker, "run", "--rm", "--interactive", "--pull", "never", "--name", name,
        "--network", "none", "--read-only", "--tmpfs", "/tmp:exec,size=1g", "--cap-drop", "ALL",
        "--security-opt", "no-new-privileges", "--memory", memory, "--memory-swap", memory,
        "--pids-limit", "512", "--env", "HOME=/tmp", "--env", "TMPDIR=/tmp", "--workdir", "/tmp",
        *(("--gpus", "all") if gpu else ()),
        "--entrypoint", "python3", "--", image, "-c", _UNPACK, packed(),
    ]  # fmt: skip
    try:
        return _call(command, request, limits, dict(os.environ))
    finally:
        # The client may be gone while the container runs on.
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([docker, "rm", "--force", name], capture_output=True, timeout=60)


def packed() -> str:
    """The program as one word: a zip archive in base64."""
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(INSIDE.glob("*.py")):
            archive.write(file, "__main__.py" if file == START else file.name)
    return base64.b64encode(data.getvalue()).decode()


def _call(
    command: list[str], request: dict[str, Any], limits: Limits, env: dict[str, str]
) -> Reply:
    """Run a command under the guard, which ends all of it when this process lets go."""
    reading, writing = os.pipe()
    with (
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as log,
    ):
        given.write(json.dumps({**request, "limits": limits.to_dict()}).encode())
        given.seek(0)
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD), str(reading), "0.2", *command],
            stdin=given,
            stdout=out,
            stderr=log,
            env=env,
            pass_fds=[reading],
        )
        os.close(reading)
        try:
            late = not _ended(guard, limits.whole(len(request["questions"])), (out, log))
        finally:
            os.close(writing)
            guard.wait()
        return Reply(list(_objects(_text(out))), _last(_text(log)), late)


def _ended(guard: subprocess.Popen[bytes], seconds: float, files: Sequence[IO[bytes]]) -> bool:
    """Wait for the end; whether it came in time, and with no more written than is allowed."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            guard.wait(timeout=0.5)
            return True
        if any(os.fstat(file.fileno()).st_size > MOST_BYTES for file in files):
            return False
    return False


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read(MOST_BYTES).decode("utf-8", "replace")


def _objects(text: str) -> Sequence[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                found.append(value)
    return found


def _last(text: str, lines: int = 5) -> list[str]:
    kept = [line.strip() for line in text.splitlines() if line.strip()]
    return ["".join(c for c in line[:400] if c.isprintable()) for line in kept[-lines:]]
