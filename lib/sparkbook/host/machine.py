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
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from sparkbook.checks import Family, Hit
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
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


def example_spark(**changes: Any) -> Machine:
    """A Spark as it should be, with what is to be different about it: for the examples of the checks."""
    from sparkbook.host.examples import EXAMPLES

    sound = Machine(
        architecture="aarch64",
        kernel="6.17.0-1031-nvidia",
        memory=parse_meminfo(EXAMPLES["headless"].text),
        gpus=("NVIDIA GB10",),
        driver="580.173.02",
        docker_client="28.2.2",
        docker_server="28.2.2",
        docker_runtimes=("io.containerd.runc.v2", "nvidia", "runc"),
        user="spark",
    )
    return replace(sound, **changes)


def describe(machine: Machine) -> str:
    """A machine as lines of text; what is unknown is said to be."""
    rows = {item.name: getattr(machine, item.name) for item in fields(machine) if item.name != "memory"}
    if machine.memory:
        rows["memory_free_gib"] = f"{machine.memory.free / GIB:.1f}"
        rows["memory_available_gib"] = f"{machine.memory.available / GIB:.1f}"
    return "\n".join(f"{name}: {', '.join(value) if isinstance(value, tuple) else value or 'none'}" for name, value in rows.items())


def judge(machine: Machine) -> Findings:
    """What stands in the way of serving on this machine, and what to do about it.

    A machine that is no Spark is no fault: one note says so, and the book's own engine runs there.
    """
    return Findings(not_a_spark.findings(machine)) or HOST.judge(machine)


HOST = Family("HOST", "The machine", "What `sparkbook check` looks for on a Spark.", describe, judge)


@HOST.check(
    "HOST001", "not-a-spark", "info", source="https://docs.nvidia.com/dgx/dgx-spark/hardware.html",
    bad=lambda: example_spark(architecture="x86_64", gpus=()), good=example_spark,
)  # fmt: skip
def not_a_spark(machine: Machine) -> Iterator[Hit]:
    """A machine without a GB10 is no fault: the book's own small engine runs there. Nothing else about it is judged, as every other check
    speaks of a Spark."""
    if not machine.is_spark:
        gpu = f"its GPU is {', '.join(machine.gpus)}" if machine.gpus else "no NVIDIA GPU answers"
        yield Hit(
            f"This machine is not a Spark: it is {machine.architecture}, and {gpu}.",
            fix="Nothing to do: chapters that need an engine use the small one that comes with the book.",
        )


def _branch(machine: Machine) -> int | None:
    """Branch of the NVIDIA driver: 580 of 580.173.02; None where it is not known."""
    first = (machine.driver or "").split(".")[0]
    return int(first) if first.isdigit() else None


@HOST.check(
    "HOST002", "driver-too-old", "error", kind="driver", source="https://docs.nvidia.com/dgx/dgx-spark/release-notes.html",
    bad=lambda: example_spark(driver="570.86.10"), good=example_spark,
)  # fmt: skip
def driver_too_old(machine: Machine) -> Iterator[Hit]:
    """Images with CUDA 13 need a driver of the branch that DGX OS ships, or a later one. With an older one the container does not start, or
    CUDA answers that the driver is insufficient."""
    branch = _branch(machine)
    if branch is not None and branch < MINIMUM_DRIVER:
        yield Hit(
            f"The NVIDIA driver {machine.driver} is too old for CUDA 13 images.",
            evidence=f"branch {branch}, needed {MINIMUM_DRIVER}", fix="Update DGX OS (Dashboard, or sudo apt full-upgrade) and restart.",
        )  # fmt: skip


@HOST.check(
    "HOST003", "driver-in-doubt", "warning", kind="driver", confidence="medium", source=DOUBTFUL_DRIVERS[590],
    bad=lambda: example_spark(driver="590.44.01"), good=example_spark,
)  # fmt: skip
def driver_in_doubt(machine: Machine) -> Iterator[Hit]:
    """A branch against which there is a public report: with 590, capturing CUDA graphs was seen to hang. One report is no proof; a machine
    that works need not be changed."""
    branch = _branch(machine)
    if branch in DOUBTFUL_DRIVERS:
        yield Hit(
            f"The NVIDIA driver {machine.driver} is of a branch that was seen to hang while CUDA graphs are captured.",
            fix=f"Stay on the {MINIMUM_DRIVER} branch that DGX OS ships.", source=DOUBTFUL_DRIVERS[branch],
        )  # fmt: skip


@HOST.check(
    "HOST004", "no-docker", "error", source="https://docs.nvidia.com/dgx/dgx-spark/nvidia-container-runtime-for-docker.html",
    bad=lambda: example_spark(docker_client=None, docker_server=None, docker_runtimes=()), good=example_spark,
)  # fmt: skip
def no_docker(machine: Machine) -> Iterator[Hit]:
    """The recipes start containers, and DGX OS ships with Docker. Without the command none of their lines can be run."""
    if machine.docker_client is None:
        yield Hit("There is no docker command.", fix="Install Docker; DGX OS brings it.")


def _denied(machine: Machine) -> bool:
    return "permission denied" in (machine.docker_error or "")


@HOST.check(
    "HOST005", "docker-permission", "error", kind="docker-permission",
    source="https://docs.docker.com/engine/install/linux-postinstall/",
    bad=lambda: example_spark(docker_server=None, docker_error="permission denied … unix:///var/run/docker.sock"), good=example_spark,
)  # fmt: skip
def docker_permission(machine: Machine) -> Iterator[Hit]:
    """The engine's socket belongs to the group docker. A user joins it once; shells and notebooks that were open before keep their old
    groups until they are started anew."""
    if machine.docker_client is not None and machine.docker_server is None and _denied(machine):
        yield Hit(
            f"{machine.user} may not talk to the Docker engine.", evidence=machine.docker_error,
            fix=f"sudo usermod -aG docker {machine.user}, then log in again; a notebook needs Jupyter restarted too",
        )  # fmt: skip


@HOST.check(
    "HOST006", "docker-silent", "error", source="https://docs.docker.com/engine/daemon/troubleshoot/",
    bad=lambda: example_spark(docker_server=None, docker_error="Cannot connect to the Docker daemon"), good=example_spark,
)  # fmt: skip
def docker_silent(machine: Machine) -> Iterator[Hit]:
    """The command is there, and no engine answers it: it is not started, or has ended."""
    if machine.docker_client is not None and machine.docker_server is None and not _denied(machine):
        yield Hit("The Docker engine does not answer.", evidence=machine.docker_error, fix="sudo systemctl start docker")


@HOST.check(
    "HOST007", "no-nvidia-runtime", "warning", kind="nvidia-runtime",
    source="https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
    bad=lambda: example_spark(docker_runtimes=("runc",)), good=example_spark,
)  # fmt: skip
def no_nvidia_runtime(machine: Machine) -> Iterator[Hit]:
    """`docker info` lists the runtimes that are configured; without `nvidia` among them `--gpus all` may have nothing to hand a GPU in.
    A warning, as the engine can find the GPU by another way (CDI)."""
    if machine.docker_server is not None and "nvidia" not in machine.docker_runtimes:
        yield Hit(
            "Docker does not list the runtime nvidia.", evidence=f"runtimes: {', '.join(machine.docker_runtimes) or 'none'}", fix=_TOOLKIT,
        )  # fmt: skip


def _after_download() -> Machine:
    from sparkbook.host.examples import EXAMPLES

    return example_spark(memory=parse_meminfo(EXAMPLES["after-download"].text))


@HOST.check(
    "HOST008", "page-cache-full", "warning", kind="page-cache", source="https://docs.nvidia.com/dgx/dgx-spark/known-issues.html",
    bad=_after_download, good=example_spark,
)  # fmt: skip
def page_cache_full(machine: Machine) -> Iterator[Hit]:
    """GPU and CPU share one memory. Pages of files that were read lie in it until somebody needs the room, and CUDA does not always make
    the kernel give them back in time: a start right after a large download then fails with memory to spare."""
    if machine.memory and machine.memory.free < machine.memory.reclaimable:
        yield Hit(
            "The page cache holds more memory than is free.",
            evidence=f"{machine.memory.reclaimable / GIB:.1f} GiB reclaimable, {machine.memory.free / GIB:.1f} GiB free",
            fix="sync; echo 3 | sudo tee /proc/sys/vm/drop_caches, right before the launch",
        )  # fmt: skip
