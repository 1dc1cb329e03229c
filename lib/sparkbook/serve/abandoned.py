"""The container of a start whose starter was killed is removed: nothing guards it any more.

Run as a program next to a start, until the start is over:

    python -m sparkbook.serve.abandoned MARK

Standard input is a pipe whose writing end only the starter holds. A byte says that the start is
over. Its end without a byte says that the starter is gone: the container with the label
`sparkbook.start=MARK` is removed.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkbook.serve.docker_host import DockerHost

_TRIES, _BETWEEN_S = 30, 2.0


@contextlib.contextmanager
def guarded(host: DockerHost) -> Iterator[str]:
    """Guard a start: yield the mark for its container, which is removed if this process dies inside
    the block.
    """
    mark = secrets.token_hex(8)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if host.address:
        environment["DOCKER_HOST"] = host.address
    with subprocess.Popen(
        [sys.executable, "-m", __name__, mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=environment,
    ) as process:
        try:
            yield mark
        finally:
            process.communicate(b".")


def remove_marked(host: DockerHost, mark: str) -> None:
    """Remove the container of a start that failed, known by its mark: the answer with its id may
    never have arrived.

    Raises:
        ServeFault: the engine does not answer.
    """
    from sparkbook.serve import containers
    from sparkbook.serve.docker_host import mapped
    from sparkbook.serve.interrupts import held_back

    with held_back():
        for _ in range(3):
            with mapped():
                left = host.client.api.containers(
                    all=True, filters={"label": f"{containers.LABEL}.start={mark}"}
                )
            for entry in left:
                containers.remove(host, entry["Id"], grace_s=2)
                containers.forget(entry["Names"][0].lstrip("/"), entry["Id"])
            if left:
                return
            time.sleep(0.2)  # an interrupted request may still be under way inside the engine


def main(mark: str) -> None:
    """Wait for the end of a start, and remove the container of one that was abandoned."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the start, and no sooner
    if sys.stdin.buffer.read(1):
        return
    from sparkbook.serve import docker_host
    from sparkbook.serve.faults import ServeFault

    for _ in range(_TRIES):
        with contextlib.suppress(ServeFault):
            host = docker_host.reach()
            try:
                return remove_marked(host, mark)
            finally:
                host.close()
        time.sleep(_BETWEEN_S)


if __name__ == "__main__":
    main(sys.argv[1])
