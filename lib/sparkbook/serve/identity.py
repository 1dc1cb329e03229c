"""Who a process is, and whose socket answers at an address, as the kernel knows it.

A process id is given out again, a clock can be set, and any program can listen on a port. So a
process is known by its id together with its start in clock ticks and the boot, and a server by the
inode of its listening socket. Source of the formats: proc(5).
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sparkbook.errors import SparkbookError

_LISTEN = "0A"
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Stranger(SparkbookError):
    """Another program listens at the address of a server that was started here."""


@dataclass(frozen=True)
class ProcessId:
    """One process, distinct from a later one with the same id.

    Attributes:
        pid: process id.
        ticks: start of the process in clock ticks since boot, which no step of the clock moves; the
            same in every time namespace.
        boot: id of the boot.
    """

    pid: int
    ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """Return the identity of the process with this id; None if it has ended."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
            boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        except OSError:
            return None
        # The second field, the program's name in parentheses, can contain both.
        state, *fields = stat.rpartition(")")[2].split()
        return None if state in "ZX" else cls(pid, int(fields[18]) - _ticks_ahead(), boot)

    @property
    def alive(self) -> bool:
        """Whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def signal(self, number: int) -> None:
        """Send a signal to this very process; one that has ended gets none."""
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                if self.alive:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)

    def tree(self) -> list[int]:
        """Return the ids of this process and its descendants."""
        pids, waiting = [], [self.pid] if self.alive else []
        while waiting:
            pids.append(pid := waiting.pop())
            for thread in Path(f"/proc/{pid}/task").glob("*"):
                with contextlib.suppress(OSError):
                    waiting += map(int, (thread / "children").read_text("ascii").split())
        return pids

    def kill_descendants(self) -> None:
        """Kill all descendants of this process."""
        for pid in self.tree()[1:]:
            if one := ProcessId.of(pid):
                one.signal(signal.SIGKILL)

    @property
    def name(self) -> str:
        """The name that the process has given itself; empty if it has ended."""
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{self.pid}/comm").read_text("utf-8", "replace").strip()
            return name if self.alive else ""
        return ""

    def sockets(self) -> set[int]:
        """Return the inodes of the sockets that this process and its descendants hold open."""
        return sockets_of(self.tree())


def _ticks_ahead() -> int:
    """Return by how much the time since boot is ahead in this process's time namespace
    (time_namespaces(7)).
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/timens_offsets").read_text("ascii").splitlines():
            clock, seconds, nanoseconds = line.split()
            if clock == "boottime":
                ahead = int(seconds) * 10**9 + int(nanoseconds)
                return ahead * os.sysconf("SC_CLK_TCK") // 10**9
    return 0


@dataclass(frozen=True)
class Listener:
    """A TCP socket that accepts connections: its address and port, the id of the user who made it,
    and its inode.
    """

    address: Address
    port: int
    uid: int
    inode: int


def sockets_of(pids: Iterable[int]) -> set[int]:
    """Return the inodes of the sockets that these processes hold open. Those of a process that this
    user may not read are missing.
    """
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    kind, _, inode = str(descriptor.readlink()).partition(":")
                    if kind == "socket":
                        inodes.add(int(inode.strip("[]")))
    return inodes


def holders(listener: Listener) -> dict[int, str]:
    """Return the processes that hold a socket, as far as this user may read them: names by id."""
    names = {}
    for folder in Path("/proc").glob("[0-9]*"):
        if listener.inode in sockets_of([int(folder.name)]):
            with contextlib.suppress(OSError):
                names[int(folder.name)] = (folder / "comm").read_text("utf-8", "replace").strip()
    return names


def listening(url: str, tables: str | None = None) -> list[Listener]:
    """Return the sockets that a connection to an address reaches.

    Args:
        url: such as `http://127.0.0.1:8000`.
        tables: text of `/proc/net/tcp` and `tcp6`; None reads those of the network that the calling
            thread is in.

    Raises:
        SparkbookError: the address has no port, or its host's name is unknown.
    """
    try:
        parts = urlsplit(url)
        found = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        raise SparkbookError(f"{url} is no address to listen on: {error}") from None
    if tables is None:
        tables = ""
        for table in ("tcp", "tcp6"):
            with contextlib.suppress(OSError):
                tables += Path(f"/proc/thread-self/net/{table}").read_text("ascii")
    known = [listener for listener in _parse(tables) if listener.port == parts.port]
    reached: list[Listener] = []
    for address in {ipaddress.ip_address(entry[4][0]) for entry in found}:
        # The kernel prefers the very address, then any address of the family, then any at all.
        wider = [ipaddress.IPv4Address(0)] if address.version == 4 else []
        for bound in (address, *wider, ipaddress.IPv6Address(0)):
            if taken := [listener for listener in known if listener.address == bound]:
                reached += taken
                break
    return reached


def listens(url: str, own: Callable[[], set[int]], tables: str | None = None) -> bool:
    """Return whether only our own sockets answer at an address; False if none does.

    Args:
        url: the address.
        own: returns the inodes of our sockets.
        tables: as for `listening`.

    Raises:
        Stranger: the socket of another program answers.
    """
    before = listening(url, tables)
    if not before:
        return False
    inodes = own()
    others = [listener for listener in before if listener.inode not in inodes]
    # A socket of ours that was closed in between is no stranger's.
    if others and (still := set(others) & set(listening(url, tables))):
        raise Stranger(
            f"{_described(still.pop())} listens on {urlsplit(url).netloc}, not the server that was"
            " started here: stop it, or choose another port"
        )
    return not others


def _described(listener: Listener) -> str:
    for pid, name in holders(listener).items():
        return f"process {pid} ({''.join(c if c.isprintable() else '?' for c in name)})"
    return f"a process of user {listener.uid}"


def _parse(tables: str) -> Iterator[Listener]:
    for line in tables.splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTEN:
            number, _, port = fields[1].partition(":")
            yield Listener(_address(number), int(port, 16), int(fields[7]), int(fields[9]))


def _address(number: str) -> Address:
    """Read an address that the kernel prints as 32-bit words in the machine's byte order."""
    words = [int(number[at : at + 8], 16) for at in range(0, len(number), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    return getattr(address, "ipv4_mapped", None) or address
