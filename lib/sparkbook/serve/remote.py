"""A Docker engine on another host, reached over SSH: one connection of the user's own `ssh` carries
the socket and the servers' ports.

Docker's socket there becomes a socket here, and a port that a server publishes on the other host's
loopback becomes a port of this host's loopback. Nothing is opened to the network on either side.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from sparkbook.serve.faults import DOCK, ServeFault
from sparkbook.serve.process import free_port

_CONNECT_S = 30


class Tunnel:
    """An SSH connection to another host, open until `close`.

    Attributes:
        destination: as ssh wants it: `user@host`.
        socket: the local end of Docker's socket.
        home: the home folder there.
    """

    def __init__(self, destination: str, port: int | None):
        self.destination = destination
        self._folder = Path(
            tempfile.mkdtemp(prefix="sbk-")
        )  # short: paths of sockets hold about 100 letters
        self.socket = self._folder / "docker.sock"
        self._control = self._folder / "ssh"
        self._forwards: dict[int, str] = {}
        options = [
            "-o",
            "BatchMode=yes",
            "-o",
            f"ConnectTimeout={_CONNECT_S}",
            *(["-p", str(port)] if port else []),
        ]
        self._ssh = ["ssh", *options, "-S", str(self._control)]
        try:
            self._run(
                [*self._ssh, "-M", "-f", "-N", destination]
            )  # the master: it goes to the background, and ends with `-O exit`
            asked = self._run(
                [
                    *self._ssh,
                    destination,
                    'printf "%s\\n%s" "$HOME" "${DOCKER_HOST:-unix:///var/run/docker.sock}"',
                ]
            )
            self.home, _, engine = asked.partition("\n")
            if not engine.startswith("unix://"):
                raise ServeFault(
                    DOCK["DOCK117"].finding(
                        evidence=f"DOCKER_HOST is {engine} there, and not a socket",
                        host=destination,
                    )
                )
            self._run(
                [
                    *self._ssh,
                    "-O",
                    "forward",
                    "-L",
                    f"{self.socket}:{engine.removeprefix('unix://')}",
                    destination,
                ]
            )
        except BaseException:
            self.close()
            raise

    def forward(self, port: int) -> str:
        """Return the address here of a port on the other host's loopback."""
        if port not in self._forwards:
            local = free_port()
            self._run(
                [
                    *self._ssh,
                    "-O",
                    "forward",
                    "-L",
                    f"127.0.0.1:{local}:127.0.0.1:{port}",
                    self.destination,
                ]
            )
            self._forwards[port] = f"http://127.0.0.1:{local}"
        return self._forwards[port]

    def close(self) -> None:
        """End the connection. Calling it again does nothing."""
        if self._folder.exists():
            if self._control.exists():
                with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                    subprocess.run(
                        [*self._ssh, "-O", "exit", self.destination],
                        capture_output=True,
                        timeout=10,
                        check=False,
                    )
            deadline = time.monotonic() + 2
            while self._control.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, command: list[str]) -> str:
        host = self.destination.rsplit("@", 1)[-1]
        # A file for its words: the master that goes to the background would keep a pipe open for
        # ever.
        with tempfile.TemporaryFile() as output:
            try:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if "-f" not in command else output,
                    stderr=output,
                    timeout=_CONNECT_S + 15,
                    check=False,
                )
            except FileNotFoundError:
                raise ServeFault(
                    DOCK["DOCK117"].finding(evidence="there is no ssh command here", host=host)
                ) from None
            except subprocess.TimeoutExpired:
                raise ServeFault(
                    DOCK["DOCK117"].finding(evidence=f"no answer in {_CONNECT_S} s", host=host)
                ) from None
            output.seek(0)
            words = output.read().decode("utf-8", "replace").strip()
        if done.returncode:
            raise ServeFault(
                DOCK["DOCK117"].finding(
                    evidence=" ".join(words.split()) or f"ssh ended with status {done.returncode}",
                    host=host,
                )
            )
        return done.stdout.decode("utf-8", "replace").strip() if done.stdout else ""


def open_tunnel(address: str) -> Tunnel:
    """Connect to the Docker engine of `ssh://[user@]host[:port]`.

    Raises:
        ServeFault: the address is none, or the host can't be reached without a password.
    """
    match = re.fullmatch(r"ssh://((?:[\w.-]+@)?[A-Za-z0-9][\w.-]*)(?::(\d+))?/?", address)
    if not match:
        raise ServeFault(
            DOCK["DOCK117"].finding(evidence=f"'{address}' is not ssh://user@host", host="HOST")
        )
    return Tunnel(match[1], int(match[2]) if match[2] else None)
