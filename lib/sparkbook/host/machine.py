"""What machine this is, and whether it is ready to serve.

`look` asks the machine and changes nothing; `judge` is pure. What cannot be found out is None: unknown is not zero,
and no error either.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.host.memory import Memory, parse_meminfo
from sparkbook.units import GIB

MINIMUM_DRIVER = 580
"""Branch of the NVIDIA driver that DGX OS ships for CUDA 13 (https://docs.nvidia.com/dgx/dgx-spark/release-notes.html)."""

DOUBTFUL_DRIVERS = {590: "https://conselara.dev/notes/vllm-dgx-spark-sm121-gotchas/"}
"""Branches with a public report against them: 590 was seen to hang while CUDA graphs are captured."""

_TIMEOUT_S = 20
_TOOLKIT = "sudo apt install nvidia-container-toolkit; sudo nvidia-ctk runtime configure --runtime=docker; sudo systemctl restart docker"


class Ran(NamedTuple):
    """How a command ended; code 127 where there is no such command, 124 where it did not end in time."""

    code: int
    out: str
    err: str


Runner = Callable[[Sequence[str]], Ran]


def run(command: Sequence[str]) -> Ran:
    """Run a command that only asks, and wait for it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except (FileNotFoundError, PermissionError):
        return Ran(127, "", f"{command[0]}: not found")
    except subprocess.TimeoutExpired:
        return Ran(124, "", f"{command[0]} gave no answer in {_TIMEOUT_S} s")
    return Ran(done.returncode, done.stdout.strip(), done.stderr.strip())


@dataclass(frozen=True)
class Machine:
    """What was found.

    Attributes:
        architecture: as `uname -m` says: `aarch64` on a Spark.
        kernel: release of the kernel.
        memory: from /proc/meminfo; None where there is none.
        gpus: names of the NVIDIA GPUs that the driver shows.
        driver: version of the NVIDIA driver.
        docker_client: version of the `docker` command; None where there is none.
        docker_server: version of the engine that it talks to; None where none answers.
        docker_error: why none answers.
        docker_runtimes: names of the runtimes that the engine knows.
        user: who would run docker.
    """

    architecture: str
    kernel: str
    memory: Memory | None = None
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    docker_client: str | None = None
    docker_server: str | None = None
    docker_error: str | None = None
    docker_runtimes: tuple[str, ...] = ()
    user: str = "$USER"

    @property
    def is_spark(self) -> bool:
        """Whether a GB10 is in it."""
        return any("GB10" in gpu for gpu in self.gpus)


def look(runner: Runner = run, meminfo: Path = Path("/proc/meminfo")) -> Machine:
    """Ask this machine what it is. Nothing is started, changed or sent anywhere."""
    gpus, driver = _gpus(runner(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]))
    client = runner(["docker", "--version"])
    docker_client = _version(client.out) if client.code == 0 else None
    server = runner(["docker", "version", "--format", "{{.Server.Version}}"]) if docker_client else None
    answered = server is not None and server.code == 0 and bool(server.out)
    return Machine(
        architecture=platform.machine(),
        kernel=platform.release(),
        memory=_memory(meminfo),
        gpus=gpus,
        driver=driver,
        docker_client=docker_client,
        docker_server=server.out if server and answered else None,
        docker_error=_last_line(server.err) if server and not answered else None,
        docker_runtimes=_runtimes(runner(["docker", "info", "--format", "{{json .Runtimes}}"])) if answered else (),
        user=os.environ.get("USER") or getpass.getuser(),
    )


def _memory(meminfo: Path) -> Memory | None:
    try:
        return parse_meminfo(meminfo.read_text("utf-8"))
    except (OSError, SparkbookError):
        return None


def _gpus(asked: Ran) -> tuple[tuple[str, ...], str | None]:
    rows = [line.rsplit(",", 1) for line in asked.out.splitlines() if "," in line] if asked.code == 0 else []
    return tuple(name.strip() for name, _ in rows), rows[0][1].strip() if rows else None


def _version(text: str) -> str | None:
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else None


def _runtimes(asked: Ran) -> tuple[str, ...]:
    try:
        return tuple(sorted(json.loads(asked.out))) if asked.code == 0 else ()
    except (ValueError, TypeError):
        return ()


def _last_line(text: str) -> str:
    return next(reversed(text.splitlines()), "it gave no reason")


def judge(machine: Machine) -> Findings:
    """What stands in the way of serving on this machine, and what to do about it.

    A machine that is no Spark is no fault: one note says so, and the book's own engine runs there.
    """
    if not machine.is_spark:
        gpu = f"its GPU is {', '.join(machine.gpus)}" if machine.gpus else "no NVIDIA GPU answers"
        return Findings([
            Finding(
                rule="HOST001", severity="info", message=f"This machine is not a Spark: it is {machine.architecture}, and {gpu}.",
                fix="Nothing to do: chapters that need an engine use the small one that comes with the book.",
            )
        ])  # fmt: skip
    return Findings([*_driver(machine), *_docker(machine), *_memory_findings(machine)])


def _driver(machine: Machine) -> Iterator[Finding]:
    branch = int(machine.driver.split(".")[0]) if machine.driver and machine.driver.split(".")[0].isdigit() else None
    if branch is None:
        return
    if branch < MINIMUM_DRIVER:
        yield Finding(
            rule="HOST002", kind="driver", severity="error", message=f"The NVIDIA driver {machine.driver} is too old for CUDA 13 images.",
            evidence=f"branch {branch}, needed {MINIMUM_DRIVER}", fix="Update DGX OS (Dashboard, or sudo apt full-upgrade) and restart.",
            source="https://docs.nvidia.com/dgx/dgx-spark/release-notes.html",
        )  # fmt: skip
    elif branch in DOUBTFUL_DRIVERS:
        yield Finding(
            rule="HOST003", kind="driver", severity="warning", confidence="medium",
            message=f"The NVIDIA driver {machine.driver} is of a branch that was seen to hang while CUDA graphs are captured.",
            fix=f"Stay on the {MINIMUM_DRIVER} branch that DGX OS ships.", source=DOUBTFUL_DRIVERS[branch],
        )  # fmt: skip


def _docker(machine: Machine) -> Iterator[Finding]:
    if machine.docker_client is None:
        yield Finding(rule="HOST004", severity="error", message="There is no docker command.", fix="Install Docker; DGX OS brings it.")
    elif machine.docker_server is None and "permission denied" in (machine.docker_error or ""):
        yield Finding(
            rule="HOST005", kind="docker-permission", severity="error", message=f"{machine.user} may not talk to the Docker engine.",
            evidence=machine.docker_error,
            fix=f"sudo usermod -aG docker {machine.user}, then log in again; a notebook needs Jupyter restarted too",
        )  # fmt: skip
    elif machine.docker_server is None:
        yield Finding(
            rule="HOST006", severity="error", message="The Docker engine does not answer.", evidence=machine.docker_error,
            fix="sudo systemctl start docker",
        )  # fmt: skip
    elif "nvidia" not in machine.docker_runtimes:
        yield Finding(
            rule="HOST007", kind="nvidia-runtime", severity="warning", message="Docker does not list the runtime nvidia.",
            evidence=f"runtimes: {', '.join(machine.docker_runtimes) or 'none'}", fix=_TOOLKIT,
        )  # fmt: skip


def _memory_findings(machine: Machine) -> Iterator[Finding]:
    if machine.memory and machine.memory.free < machine.memory.reclaimable:
        yield Finding(
            rule="HOST008", kind="page-cache", severity="warning", message="The page cache holds more memory than is free.",
            evidence=f"{machine.memory.reclaimable / GIB:.1f} GiB reclaimable, {machine.memory.free / GIB:.1f} GiB free",
            fix="sync; echo 3 | sudo tee /proc/sys/vm/drop_caches, right before the launch",
            source="https://docs.nvidia.com/dgx/dgx-spark/known-issues.html",
        )  # fmt: skip
