"""The ways to a machine: commands, files, Docker and web addresses. Every probe takes them as an
argument, so that a test hands it recorded answers.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkbook.util import limits, origins
from sparkbook.util.limits import Ran

TIMEOUT_S, _HUB_TIMEOUT_S = 20, 6


def run(command: Sequence[str]) -> Ran:
    """Run a command that only asks, and wait for it."""
    ran = limits.run(command, timeout_s=TIMEOUT_S)
    return ran._replace(out=ran.out.strip())


def connect() -> Any:
    """Return a client of the Docker engine that DOCKER_HOST names, or of the local one; the API's
    version is negotiated.
    """
    import docker

    return docker.from_env(timeout=TIMEOUT_S)


def get(url: str, token: str | None) -> tuple[int, Mapping[str, str]]:
    """Return status and headers of a web address; the token goes to its origin only."""
    import httpx

    with (
        httpx.Client(timeout=_HUB_TIMEOUT_S) as client,
        origins.get(client, url, home=url, token=token, headers={}) as answer,
    ):
        return answer.status_code, answer.headers


@dataclass(frozen=True)
class Access:
    """The ways to a machine.

    Attributes:
        runner: runs a command.
        docker: connects to the Docker engine.
        get: asks a web address for its status and headers.
        root: where `/proc`, `/sys` and `/etc` lie.
        home: the user's.
        clock, now, sleep: seconds that only go forward, seconds since 1970, and waiting.
    """

    runner: Callable[[Sequence[str]], Ran] = run
    docker: Callable[[], Any] = connect
    get: Callable[[str, str | None], tuple[int, Mapping[str, str]]] = get
    root: Path = Path("/")
    home: Path = field(default_factory=Path.home)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def text(self, path: str) -> str | None:
        """Return a file's contents, without the blanks around them; None where it can't be read."""
        try:
            return (self.root / path).read_text("utf-8", errors="replace").strip()
        except OSError:
            return None


def last_line(text: str) -> str:
    return next(reversed(text.strip().splitlines()), "it gave no reason")


def version_in(text: str) -> str | None:
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else None


def number_in(text: str) -> float | None:
    found = re.match(r"\s*(-?\d+(\.\d+)?)", text)
    return float(found[1]) if found else None
