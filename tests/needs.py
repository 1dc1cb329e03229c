"""What tests need of the machine, by their marker, and what is said of those that did not run.

A plugin of pytest, which conftest.py names. Where a need is missing a test is skipped; in CI it
fails, since .ci/run installs what this program prints:

    python3 tests/needs.py        the Debian packages that are missing here
"""

from __future__ import annotations

import collections
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest

_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


@dataclass(frozen=True)
class Need:
    """What the tests with one marker need.

    Attributes:
        programs: each with the Debian package that has it; one of several names suffices.
        root: whether they need to be root.
    """

    programs: Mapping[str, str]
    root: bool = False

    def missing(self) -> dict[str, str]:
        """The programs that are not here, with their packages."""
        return {
            names.split()[0]: package
            for names, package in self.programs.items()
            if not any(shutil.which(name, path=_PATH) for name in names.split())
        }

    def why_not(self) -> str | None:
        """Why the tests can't run here; None where they can."""
        if self.root and os.geteuid():
            return "needs root"
        if missing := self.missing():
            packages = " ".join(sorted(set(missing.values())))
            return f"no {', '.join(missing)} here; to install: apt-get install {packages}"
        return None


NEEDS = {
    "browser": Need({"chromium chromium-browser google-chrome": "chromium"}),
    "client": Need({"docker": "docker.io"}),
    "clients": Need({"npm": "npm", "node": "nodejs", "curl": "curl"}),
    "cluster": Need(
        {
            "ip": "iproute2",
            "nsenter": "util-linux",
            "ssh": "openssh-client",
            "sshd": "openssh-server",
        },
        root=True,
    ),
    "docker": Need(
        {
            "dockerd": "docker.io",
            "containerd": "containerd",
            "runc": "runc",
            "iptables": "iptables",
            "ip": "iproute2",
            "busybox": "busybox-static",
            "unshare": "util-linux",
            "setpriv": "util-linux",
            "docker-registry": "docker-registry",
            "ssh": "openssh-client",
            "sshd": "openssh-server",
        },
        root=True,
    ),
    "monitor": Need({"prometheus": "prometheus", "promtool": "prometheus"}),
    "nvcc": Need({"g++": "g++"}),
    "proxies": Need({"caddy": "caddy", "nginx": "nginx-light", "openssl": "openssl"}),
    "root": Need({}, root=True),
    "systemd": Need({"systemd-analyze": "systemd"}),
}


_LEFT_OUT: collections.Counter[str] = collections.Counter()
"""How many tests `-m` left out, by their markers."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what can't run here, before a fixture is made for it."""
    import pytest

    for marker in item.iter_markers():
        if marker.name == "native" and os.environ.get("EMULATED"):
            pytest.skip(f"not on an emulated processor: {marker.args[0]}")
        need = NEEDS.get(marker.name)
        if need and (why := need.why_not()):
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{marker.name}: {why}")


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what `-m` leaves out."""
    for item in items:
        markers = {marker.name for marker in item.iter_markers()} - {
            "parametrize",
            "filterwarnings",
        }
        if markers:  # else it was `-k` that left it out
            _LEFT_OUT[" and ".join(sorted(markers))] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A process of `-n 2` hands its count to the one that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(_LEFT_OUT)


def pytest_testnodedown(node: Any) -> None:
    """That one takes it; every process counted the same tests."""
    if hasattr(node, "workeroutput"):  # else it crashed
        _LEFT_OUT.clear()
        _LEFT_OUT.update(node.workeroutput["left_out"])


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what did not run, how many, and why; pytest's own line comes after it."""
    skipped = collections.Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple)
    )
    for title, counts in (("skipped", skipped), ("left out by -m", _LEFT_OUT)):
        if counts:
            terminalreporter.section(f"{counts.total():,} {title}", sep="-")
            for why, count in counts.most_common():
                terminalreporter.line(f"{count:5,}  {why}")


if __name__ == "__main__":
    wanted = [package for need in NEEDS.values() for package in need.missing().values()]
    print(*sorted(set(wanted)))
