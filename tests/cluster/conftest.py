"""Two nodes on one machine: two network namespaces joined by a veth pair, and this process inside
the first one.
"""

import ctypes
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from sparkbook import cluster

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _ip(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def enter(file):
    """Move this thread, and what it starts, into a network namespace."""
    with Path(file).open() as space:
        if _libc.setns(space.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns {file}")


@dataclass
class TwoNodes:
    """Names of the two namespaces and of the link's ends in them."""

    a: str
    b: str
    left: str
    right: str

    def inventory(self, **second):
        """An inventory of the two; `second` are fields of the second node."""
        nodes = [
            {"host": "spark-a", "address": "10.97.0.1"},
            {"host": "spark-b", "address": "10.97.0.2", "via": self.via} | second,
        ]
        return cluster.Inventory(name="two", link_gbit=10, nodes=nodes)

    @property
    def via(self):
        return ["nsenter", f"--net=/run/netns/{self.b}"]

    def cut(self):
        """Pull the cable."""
        _ip("link", "set", self.left, "down")

    def slow(self):
        """Limit what the first node sends to 100 Mbit/s, with 20 ms of delay where the kernel has
        netem; whether it has.
        """
        add = ["tc", "qdisc", "add", "dev", self.left, "root"]
        if (
            subprocess.run(
                [*add, "netem", "delay", "20ms", "rate", "100mbit"], capture_output=True
            ).returncode
            == 0
        ):
            return True
        subprocess.run(
            [*add, "tbf", "rate", "100mbit", "burst", "32kb", "latency", "50ms"],
            check=True,
            capture_output=True,
        )
        return False

    def processes(self):
        """Ids of the processes in the second namespace, and of those in the first that are not this
        one's.
        """
        found = []
        for name in (self.a, self.b):
            told = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True
            ).stdout.split()
            # The command that was asked is in the first namespace itself, and gone by now.
            found += [
                int(pid)
                for pid in told
                if int(pid) != os.getpid() and Path(f"/proc/{pid}").exists()
            ]
        return found


@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    """The two nodes; both namespaces are gone afterwards, with all that ran in them."""
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    tag = f"{os.getpid() % 100000}"
    nodes = TwoNodes(f"sbk{tag}a", f"sbk{tag}b", f"sa{tag}", f"sb{tag}")
    home = f"/proc/self/task/{os.getpid()}/ns/net"
    before = os.open(home, os.O_RDONLY)
    try:
        _ip("netns", "add", nodes.a)
        _ip("netns", "add", nodes.b)
        _ip(
            "link",
            "add",
            nodes.left,
            "netns",
            nodes.a,
            "type",
            "veth",
            "peer",
            "name",
            nodes.right,
            "netns",
            nodes.b,
        )
        for name, end, address in (
            (nodes.a, nodes.left, "10.97.0.1"),
            (nodes.b, nodes.right, "10.97.0.2"),
        ):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for device in ("lo", end):
                _ip("-n", name, "link", "set", device, "up")
        enter(f"/run/netns/{nodes.a}")
        yield nodes
    finally:
        if _libc.setns(before, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns back")
        os.close(before)
        for pid in nodes.processes():
            os.kill(pid, 9)
        for name in (nodes.a, nodes.b):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
