"""Two nodes on one machine: two network namespaces joined by a virtual cable, and this process
inside the first one. For tests and recordings; needs root and iproute2.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sparkbook import cluster

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)
HOSTS = ("spark-a", "spark-b")
ADDRESSES = ("10.97.0.1", "10.97.0.2")


def ip(*words: str) -> str:
    """Run `ip`, and return what it prints."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def enter(file: str | int) -> None:
    """Move this thread, and what it starts, into a network namespace."""
    space = os.open(file, os.O_RDONLY) if isinstance(file, str) else file
    try:
        if _libc.setns(space, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {file}")
    finally:
        if isinstance(file, str):
            os.close(space)


@dataclass
class TwoNodes:
    """Names of the two namespaces and of the cable's ends in them."""

    a: str
    b: str
    left: str
    right: str
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    @property
    def ends(self) -> tuple[tuple[str, str], ...]:
        """Each namespace with its end of the cable."""
        return (self.a, self.left), (self.b, self.right)

    def inventory(self, **second) -> cluster.Inventory:
        """Return an inventory of the two; `second` are fields of the second node."""
        nodes = [
            {"host": HOSTS[0], "address": ADDRESSES[0]},
            {"host": HOSTS[1], "address": ADDRESSES[1], "via": self.via} | second,
        ]
        return cluster.Inventory(name="two", link_gbit=10, nodes=nodes)

    @property
    def via(self) -> list[str]:
        """Words before a command of the second node."""
        return ["nsenter", f"--net=/run/netns/{self.b}"]

    def cut(self) -> None:
        """Pull the cable."""
        ip("link", "set", self.left, "down")

    def mend(self) -> None:
        """Put the cable back."""
        ip("link", "set", self.left, "up")

    def shape(self, gbit: float, delay_us: int = 0) -> None:
        """Hold both ends to a rate, and what goes through to a delay in each direction: by netem
        where the kernel has it, else by `delay_line.c`.

        Raises:
            CalledProcessError: neither can be had.
            FileNotFoundError: the kernel has no netem, and there is no compiler `cc`.
        """
        rate = f"{gbit * 1000:.0f}mbit"
        # Enough for one tick of the timer, and for the largest segment that is sent in one piece.
        burst = max(int(gbit * 1e9 / 8 / 250), 128_000)
        tbf = ["tbf", "rate", rate, "burst", str(burst), "latency", "50ms"]
        netem = ["netem", "delay", f"{delay_us}us", "rate", rate, "limit", "100000"]
        if not delay_us or any(self._discipline(*end, netem).returncode for end in self.ends):
            for end in self._delayed(delay_us) if delay_us else self.ends:
                self._discipline(*end, tbf).check_returncode()

    @staticmethod
    def _discipline(name: str, end: str, words: list[str]) -> subprocess.CompletedProcess[bytes]:
        add = ["tc", "-n", name, "qdisc", "replace", "dev", end, "root"]
        return subprocess.run([*add, *words], capture_output=True)

    def _delayed(self, delay_us: int) -> list[tuple[str, str]]:
        """Lead the two addresses through a delay line, also those of open connections, until
        `unshape`; return its ends.
        """
        ends = [(name, f"{end}d") for name, end in self.ends]
        words = [word for name, end in ends for word in (f"/run/netns/{name}", end)]
        source = Path(__file__).with_name("delay_line.c")
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder, "delay_line")
            subprocess.run(["cc", "-O2", "-pthread", "-o", program, source], check=True)
            line = self._held.enter_context(
                subprocess.Popen(
                    [program, str(delay_us), *words], stdout=subprocess.PIPE, text=True
                )
            )
            self._held.callback(line.kill)
            assert line.stdout is not None
            if line.stdout.readline() != "up\n":
                raise subprocess.CalledProcessError(line.wait(), "delay_line")
        mtu = json.loads(ip("-n", self.a, "-j", "link", "show", self.left))[0]["mtu"]
        for (name, end), own, other in zip(ends, ADDRESSES, reversed(ADDRESSES), strict=True):
            ip("-n", name, "link", "set", end, "mtu", str(mtu), "up")
            ip("-n", name, "route", "replace", other, "dev", end, "src", own)
        return ends

    def unshape(self) -> None:
        """Take the limits off."""
        self._held.close()
        for name, end in self.ends:
            words = ["tc", "-n", name, "qdisc", "del", "dev", end, "root"]
            subprocess.run(words, capture_output=True)

    def drop(self, *match: str) -> None:
        """Drop what comes to the first node and matches (words of iptables)."""
        self._tables("-A", *match)

    def pass_again(self, *match: str) -> None:
        """End a `drop`."""
        self._tables("-D", *match)

    def _tables(self, how: str, *match: str) -> None:
        words = ["ip", "netns", "exec", self.a, "iptables", how, "INPUT", *match, "-j", "DROP"]
        subprocess.run(words, check=True, capture_output=True)

    def processes(self) -> list[int]:
        """Return ids of the processes in both namespaces; not this one's."""
        found = []
        for name in (self.a, self.b):
            words = ["ip", "netns", "pids", name]
            listed = subprocess.run(words, capture_output=True, text=True).stdout.split()
            # The command that was asked is in the first namespace itself, and gone by now.
            found += [
                int(pid)
                for pid in listed
                if int(pid) != os.getpid() and Path(f"/proc/{pid}").exists()
            ]
        return found

    def listening(self) -> list[str]:
        """Return the ports on which something listens, with their namespace's node."""
        found = []
        for host, name in zip(HOSTS, (self.a, self.b), strict=True):
            words = ["ip", "netns", "exec", name, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
            for line in subprocess.run(words, capture_output=True, text=True).stdout.splitlines():
                parts = line.split()
                if len(parts) > 3 and parts[3] == "0A":
                    found.append(f"{host}:{int(parts[1].rpartition(':')[2], 16)}")
        return sorted(found)


@contextlib.contextmanager
def two_nodes(mtu: int | None = None) -> Iterator[TwoNodes]:
    """Make the two nodes; both namespaces are gone afterwards, with all that ran in them."""
    tag = f"{os.getpid() % 100000}"
    nodes = TwoNodes(f"sbk{tag}a", f"sbk{tag}b", f"sa{tag}", f"sb{tag}")
    home = os.open(f"/proc/self/task/{os.getpid()}/ns/net", os.O_RDONLY)
    try:
        ip("netns", "add", nodes.a)
        ip("netns", "add", nodes.b)
        words = ["link", "add", nodes.left, "netns", nodes.a, "type", "veth"]
        ip(*words, "peer", "name", nodes.right, "netns", nodes.b)
        for name, end, address in (
            (nodes.a, nodes.left, ADDRESSES[0]),
            (nodes.b, nodes.right, ADDRESSES[1]),
        ):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            if mtu:
                ip("-n", name, "link", "set", end, "mtu", str(mtu))
            for device in ("lo", end):
                ip("-n", name, "link", "set", device, "up")
        _wait_up(nodes)
        enter(f"/run/netns/{nodes.a}")
        yield nodes
    finally:
        nodes.unshape()
        enter(home)
        os.close(home)
        for pid in nodes.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        for name in (nodes.a, nodes.b):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _wait_up(nodes: TwoNodes) -> None:
    """Wait until the ends are up: seen earlier, one is taken for a cable that hangs loose."""
    for _ in range(50):
        words = ["ip", "-n", nodes.b, "link", "show", nodes.right]
        if "state UP" in subprocess.run(words, capture_output=True, text=True).stdout:
            return
        time.sleep(0.1)
