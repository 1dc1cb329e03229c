"""The checks: what each makes of the values that the probes read. Pure: a machine in, results out.

A check says what it saw, and which rules of `rules.yaml` are broken; or that it cannot judge, and
why. `check` runs them all on one machine, `check_nodes` on several, which adds what has to be the
same on all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkbook.findings import Finding, Findings
from sparkbook.host.machine import Machine, Process
from sparkbook.host.memory import Memory, start_check
from sparkbook.host.rules import RULES
from sparkbook.units import GB, GIB, MIB, format_bytes, parse_size
from sparkbook.util.shell_text import USER, command_line, export_line, mark_home

Verdict = Literal["ready", "slow", "blocked", "not judged"]

MINIMUM_DRIVER = 580
"""Branch of the NVIDIA driver that DGX OS ships for CUDA 13
(https://docs.nvidia.com/dgx/dgx-spark/release-notes.html).
"""

DOUBTFUL_DRIVERS = (590,)
"""Branches with a public report against them: 590 was seen to hang while CUDA graphs are captured."""

BAD_RDMA_KERNELS = {
    "7.0.0-1019": "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/14",
    "7.0.0-31": "https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259",
}
"""Kernels on which registering memory for RDMA fails, with the report of each."""

GPU_API = (1, 40)
"""The first version of Docker's API with device requests, which `--gpus` is (Docker Engine API
version history, v1.40).
"""

NEWEST_CLIENT_API = (1, 44)
"""The API version that a client must reach at least where the engine sets its own minimum, as
engine 29 does.
"""

STUCK_MHZ = 900
"""An SM clock that a loaded GB10 should be far above: reports of stuck machines show 513, 721 and
800 MHz, healthy ones about 2400.
"""

_BUSY, _IDLE_W, _HOT_C = 80, 25, 85
_SMALL_GAP_S = 240
_FAST_MBIT = 100_000
_DOCKER_ROOM_GB, _STORE_SPARE = 40, 1.1
_MIN_SHM, _MIN_NOFILE, _MAX_SKEW_S = GIB, 4096, 60
_MANY_RESTARTS = 3
_NO_GPU = (
    "could not select device driver",
    "failed to discover GPU vendor",
    "unknown or invalid runtime name",
    "Unknown runtime specified",
)


@dataclass(frozen=True)
class Result:
    """What one check found.

    Attributes:
        name: of the check.
        saw: what it looked at, in a few words; of a check that could not judge, why.
        judged: whether it could.
        seconds: how long its probe took; checks of the same probe show the same time. None: the
            machine was read from a file without it.
        node: whose, where there are several.
    """

    name: str
    saw: str
    findings: tuple[Finding, ...] = ()
    judged: bool = True
    seconds: float | None = None
    node: str | None = None

    @property
    def verdict(self) -> Verdict:
        """`blocked`: serving will fail; `slow`: it works worse than it could, or by luck; `ready`;
        or `not judged`.
        """
        if not self.judged:
            return "not judged"
        return verdict(self.findings)

    @property
    def todo(self) -> str | None:
        """What to do, in one line."""
        return (
            "; ".join(
                finding.fix
                for finding in self.findings
                if finding.fix and finding.severity != "info"
            )
            or None
        )


@dataclass(frozen=True)
class Report:
    """All checks of one machine or of several."""

    machines: tuple[Machine, ...]
    results: tuple[Result, ...]

    @property
    def findings(self) -> Findings:
        """Of all checks, errors first."""
        return Findings(finding for result in self.results for finding in result.findings)

    @property
    def verdict(self) -> Verdict:
        """Of the worst check."""
        return verdict(self.findings)

    @property
    def exit_code(self) -> int:
        """0 ready or slow, 1 blocked; 2 is for input that cannot be used, as with every verb."""
        return 1 if self.verdict == "blocked" else 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON answer. `facts` is what `diagnose --facts` reads; `probes` is what
        `sparkbook check --probes` judges again.
        """
        checks = [
            {
                "name": r.name,
                "node": r.node,
                "verdict": r.verdict,
                "saw": r.saw,
                "todo": r.todo,
                "rules": [finding.rule for finding in r.findings],
                "seconds": r.seconds,
            }
            for r in self.results
        ]
        first = self.machines[0]
        probes = [machine.model_dump(mode="json", exclude_none=True) for machine in self.machines]
        return {
            **self.findings.to_dict(verdict=self.verdict),
            "checks": checks,
            "facts": facts(first),
            "probes": probes[0] if len(probes) == 1 else probes,
        }


def verdict(findings: Iterable[Finding]) -> Verdict:
    """An error blocks, a warning slows; notes leave it ready."""
    worst = {finding.severity for finding in findings}
    return "blocked" if "error" in worst else "slow" if "warning" in worst else "ready"


def facts(machine: Machine) -> dict[str, Any]:
    """What a log does not say about its host, for `sparkbook diagnose --facts`. Sizes are GiB."""
    found: dict[str, Any] = {}
    if machine.memory:
        memory = machine.memory.memory
        found |= {
            "total_gib": round(memory.total / GIB, 2),
            "available_gib": round(memory.available / GIB, 2),
            "free_gib": round(memory.free / GIB, 2),
        }
    if machine.wanted.utilization is not None:
        found["gpu_memory_utilization"] = machine.wanted.utilization
    found["engines"] = [
        {
            "pid": p.pid,
            "name": p.name,
            "holds": f"{p.gpu_mib:.0f} MiB" if p.gpu_mib is not None else "not known",
        }
        for p in machine.processes
        if p.name.startswith("VLLM::")
    ]
    return found


class _Unknown(Exception):
    """The check cannot judge; the text says why."""


_Seen = tuple[str, list[Finding]]
_CHECKS: list[tuple[str, str, Callable[[Machine], _Seen]]] = []


def _check(
    name: str, probe: str
) -> Callable[[Callable[[Machine], _Seen]], Callable[[Machine], _Seen]]:
    """Makes a check of a function, in the order in which they stand here."""

    def register(judge: Callable[[Machine], _Seen]) -> Callable[[Machine], _Seen]:
        _CHECKS.append((name, probe, judge))
        return judge

    return register


def check(machine: Machine) -> Report:
    """Every check on one machine."""
    return Report((machine,), tuple(_results(machine, None)))


def check_nodes(machines: Sequence[Machine]) -> Report:
    """Every check on every node, and those that compare the nodes."""
    own = [result for machine in machines for result in _results(machine, machine.name)]
    return Report(tuple(machines), (*own, *_between(machines)))


def judge(machine: Machine) -> Findings:
    """The findings alone."""
    return check(machine).findings


def _results(machine: Machine, node: str | None) -> Iterable[Result]:
    for name, probe, function in _CHECKS:
        seconds = machine.seconds.get(probe)
        try:
            if probe in machine.unread:
                raise _Unknown(machine.unread[probe])
            saw, findings = function(machine)
        except _Unknown as reason:
            yield Result(name, str(reason), judged=False, seconds=seconds, node=node)
        else:
            yield Result(name, saw, tuple(findings), seconds=seconds, node=node)


def _found(
    code: str, message: str, evidence: str | None = None, fix: str | None = None, **other: Any
) -> Finding:
    rule = RULES[code]
    return Finding(
        **{
            "rule": code,
            "kind": rule.kind,
            "severity": rule.severity,
            "message": message,
            "evidence": evidence,
            "fix": fix or rule.fix,
            "why": rule.address,
            "source": rule.source,
            "confidence": rule.confidence,
            **other,
        }
    )


def _spark_only(machine: Machine, what: str) -> None:
    if not machine.is_spark:
        raise _Unknown(f"not a Spark: {what}")


def _version(text: str | None) -> tuple[int, ...] | None:
    found = re.search(r"\d+(?:\.\d+)*", text or "")
    return tuple(int(part) for part in found[0].split(".")) if found else None


# ---- the machine


@_check("machine", "system")
def _machine(machine: Machine) -> _Seen:
    system = machine.system
    gpu = ", ".join(machine.gpu.names) or "no NVIDIA GPU"
    saw = ", ".join(filter(None, [gpu, system.architecture, system.os]))
    if machine.is_spark or machine.gpu.error:
        return saw, []
    told = (
        f"its GPU is {', '.join(machine.gpu.names)}"
        if machine.gpu.names
        else "no NVIDIA GPU answers"
    )
    return saw, [
        _found("HOST001", f"This machine is not a Spark: it is {system.architecture}, and {told}.")
    ]


@_check("kernel", "system")
def _kernel(machine: Machine) -> _Seen:
    _spark_only(machine, "known faults are of the Spark's kernels")
    kernel, found = machine.system.kernel, []
    if (_version(kernel) or (99,))[:2] <= (6, 11):
        found.append(
            _found(
                "HOST010",
                f"Kernel {kernel} maps files into memory slowly: loading weights takes minutes"
                " longer.",
            )
        )
    for bad, source in BAD_RDMA_KERNELS.items():
        if re.match(rf"{re.escape(bad)}(?!\d)", kernel):
            how = {} if machine.wanted.nodes > 1 else {"severity": "info"}
            found.append(
                _found(
                    "HOST011",
                    f"On kernel {kernel} memory cannot be registered for RDMA: several Sparks do"
                    " not come up together.",
                    source=source,
                    **how,
                )
            )
    return kernel, found


@_check("kernel log", "kernel_log")
def _kernel_log(machine: Machine) -> _Seen:
    lines = machine.system.kernel_messages
    if lines is None:
        raise _Unknown(
            "the kernel's log may only be read by root here: sudo dmesg | grep -E 'NVRM|Xid'"
        )
    if not lines:
        return "no fault of the GPU's driver in it", []
    memory = any("NV_ERR_NO_MEMORY" in line or "out of memory" in line.lower() for line in lines)
    message = (
        "The driver ran out of memory since the last boot."
        if memory
        else "The driver reported a fault of the GPU since the last boot."
    )
    return f"{len(lines)} lines", [
        _found(
            "HOST019", message, lines[-1][:200], kind="cuda-init" if memory else "illegal-memory"
        )
    ]


@_check("driver", "gpu")
def _driver(machine: Machine) -> _Seen:
    gpu = machine.gpu
    if gpu.error:
        return "no answer", [_found("HOST013", "The NVIDIA driver does not answer.", gpu.error)]
    branch = (_version(gpu.driver) or (None,))[0]
    if branch is None:
        raise _Unknown("no NVIDIA driver" if not gpu.names else f"its version is '{gpu.driver}'")
    saw, found = f"{gpu.driver}, runs CUDA up to {gpu.cuda or 'an unknown version'}", []
    if machine.is_spark and branch < MINIMUM_DRIVER:
        found.append(
            _found(
                "HOST002",
                f"The NVIDIA driver {gpu.driver} is too old for CUDA 13 images.",
                f"branch {branch}, needed {MINIMUM_DRIVER}",
            )
        )
    elif machine.is_spark and branch in DOUBTFUL_DRIVERS:
        found.append(
            _found(
                "HOST003",
                f"The NVIDIA driver {gpu.driver} is of a branch that was seen to hang while CUDA"
                " graphs are captured.",
            )
        )
    image, driver = _version(machine.image.cuda if machine.image else None), _version(gpu.cuda)
    if image and driver and image[:2] > driver[:2]:
        found.append(
            _found(
                "HOST014",
                "The image's CUDA is newer than the driver's: kernels that are compiled on the spot"
                " are refused.",
                f"image CUDA {'.'.join(map(str, image[:2]))}, driver CUDA {gpu.cuda}",
            )
        )
    return saw, found


@_check("compute capability", "gpu")
def _capability(machine: Machine) -> _Seen:
    if not machine.gpu.names:
        raise _Unknown("no NVIDIA GPU answers")
    return f"{machine.gpu.capability or 'not told'} ({', '.join(machine.gpu.names)})", []


@_check("GPU memory query", "gpu")
def _nvml(machine: Machine) -> _Seen:
    _spark_only(machine, "only there does the GPU have no memory of its own")
    text = machine.gpu.memory or "nothing"
    if not re.search(r"N/A|not supported", text, re.IGNORECASE):
        return text, []
    return text, [
        _found(
            "HOST015",
            "nvidia-smi cannot tell the memory of a GB10, and nothing is broken: read"
            " /proc/meminfo.",
            text,
        )
    ]


@_check("temperature", "gpu")
def _temperature(machine: Machine) -> _Seen:
    seen = [
        t
        for t in (machine.gpu.temperature_c, machine.load and machine.load.temperature_c)
        if t is not None
    ]
    if not seen:
        raise _Unknown("no GPU tells its temperature")
    hot = max(seen) >= _HOT_C
    return f"{max(seen):.0f} °C", (
        [_found("HOST016", "The GPU is hot: it slows itself down.", f"{max(seen):.0f} °C")]
        if hot
        else []
    )


@_check("clocks and power", "load")
def _clocks(machine: Machine) -> _Seen:
    _spark_only(machine, "the stuck states are the GB10's")
    load = machine.load
    if load is None or load.utilization < _BUSY or load.clock_mhz is None:
        raise _Unknown(
            "an idle GPU may clock low: give --run to put a short load on it, or check while a"
            " server answers"
        )
    power = "power not told" if load.power_w is None else f"{load.power_w:.0f} W"
    saw = f"{load.clock_mhz:.0f} MHz, {power} at {load.utilization:.0f} % under {load.by}"
    if load.clock_mhz < STUCK_MHZ:
        return saw, [
            _found(
                "HOST017",
                f"The GPU is stuck at {load.clock_mhz:.0f} MHz under load, far below its speed.",
                saw,
            )
        ]
    if load.power_w is not None and load.power_w < _IDLE_W:
        return saw, [
            _found(
                "HOST018",
                "The GPU is busy and takes hardly any power: it waits, or its power is capped.",
                saw,
            )
        ]
    return saw, []


# ---- memory


def _memory(machine: Machine) -> Memory:
    if machine.memory is None:
        raise _Unknown("there is no /proc/meminfo")
    return machine.memory.memory


@_check("memory", "memory")
def _start(machine: Machine) -> _Seen:
    memory, wanted, seen = _memory(machine), machine.wanted, machine.memory
    saw, found = f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB available", []
    if seen and seen.min_free_kbytes is not None and seen.min_free_kbytes * 1024 > GIB:
        found.append(
            _found(
                "HOST021",
                "vm.min_free_kbytes is raised: that much is missing from what vLLM's start check"
                " sees.",
                f"vm.min_free_kbytes = {seen.min_free_kbytes}"
                f" ({seen.min_free_kbytes * 1024 / GIB:.1f} GiB)",
            )
        )
    if machine.is_spark and wanted.utilization is not None:
        start = start_check(memory, wanted.utilization)
        if not start.passes:
            fresh = next(
                (
                    c
                    for c in machine.docker.containers
                    if c.stopped_s is not None and c.stopped_s < _SMALL_GAP_S
                ),
                None,
            )
            if fresh:
                message = (
                    f"{fresh.name} stopped {fresh.stopped_s:.0f} s ago, and the driver has not"
                    " given all of its memory back yet."
                )
                found.append(_found("HOST027", message, str(start)))
            else:
                fix = (
                    "free memory, or --gpu-memory-utilization"
                    f" {max(start.largest_utilization - 0.01, 0.01):.2f}"
                )
                found.append(
                    _found(
                        "HOST020",
                        "vLLM's start check will fail: the fraction is more than this host has.",
                        str(start),
                        fix,
                    )
                )
    return saw, found


@_check("page cache", "memory")
def _page_cache(machine: Machine) -> _Seen:
    memory, blocks = _memory(machine), machine.memory.blocks_2mib if machine.memory else None
    free = f"{memory.reclaimable / GIB:.1f} GiB reclaimable, {memory.free / GIB:.1f} GiB free"
    saw = free + ("" if blocks is None else f", {blocks} free blocks of 2 MiB")
    found = []
    if machine.is_spark and memory.free < memory.reclaimable:
        found.append(_found("HOST008", "The page cache holds more memory than is free.", free))
    if machine.is_spark and blocks is not None and blocks * 2 * MIB < GIB:
        found.append(
            _found(
                "HOST022",
                "Hardly any memory is free in one piece: the driver may fail although gigabytes are"
                " free.",
                saw,
            )
        )
    return saw, found


@_check("swap", "memory")
def _swap(machine: Machine) -> _Seen:
    memory = _memory(machine)
    if memory.swap_total is None or memory.swap_free is None:
        raise _Unknown("/proc/meminfo does not say")
    used = memory.swap_total - memory.swap_free
    saw = f"{used / GIB:.1f} of {memory.swap_total / GIB:.1f} GiB used"
    return saw, (
        [_found("HOST023", "The host is swapping: a start will make it grind.", saw)]
        if machine.is_spark and used > 4 * GIB
        else []
    )


@_check("contiguous memory", "memory")
def _cma(machine: Machine) -> _Seen:
    memory = _memory(machine)
    if memory.cma_total is None:
        raise _Unknown("/proc/meminfo does not say")
    return f"CMA {format_bytes(memory.cma_free or 0)} free of {format_bytes(memory.cma_total)}", []


def _orphans(machine: Machine) -> list[Process]:
    """Engine processes whose server has gone: adopted by the system, or by the first process of the
    container.
    """
    reapers = ("systemd", "init", "containerd-shim", "docker-init", "tini", "dumb-init")
    found = []
    for process in machine.processes:
        if not process.name.startswith("VLLM::") or process.name.startswith(
            ("VLLM::APIServer", "VLLM::DPCoordinator")
        ):
            continue
        if process.parent in (None, 1) or (process.parent_name or "").startswith(reapers):
            found.append(process)
    return found


@_check("processes on the GPU", "processes")
def _processes(machine: Machine) -> _Seen:
    orphans, found = _orphans(machine), []
    for process in orphans:
        held = (
            "an unknown share" if process.gpu_mib is None else f"{process.gpu_mib / 1024:.1f} GiB"
        )
        found.append(
            _found(
                "HOST025",
                f"{process.name} (pid {process.pid}) has lost its server and still holds {held} of"
                " the memory.",
                f"pid {process.pid}, parent {process.parent}, {process.gpu_mib or 0:.0f} MiB",
                command_line("sudo", "kill", process.pid),
            )
        )
    others = [p for p in machine.processes if p not in orphans and (p.gpu_mib or 0) >= 1024]
    if others:
        held = ", ".join(
            f"{p.name} (pid {p.pid}) {(p.gpu_mib or 0) / 1024:.1f} GiB" for p in others
        )
        found.append(_found("HOST026", "Other programs hold memory of the one pool.", held))
    names = ", ".join(p.name for p in machine.processes)
    no_gpu = not machine.gpu.names and not machine.gpu.error and not found
    return "no GPU" if no_gpu else names or "none", found


# ---- docker


def _needs_docker(machine: Machine) -> dict[str, Any]:
    """Extra fields of a finding about Docker: where nothing asks for a container, it is a note."""
    if machine.wanted.recipe is not None and machine.wanted.image is None:
        raise _Unknown(f"{machine.wanted.recipe} runs without a container")
    return (
        {}
        if machine.is_spark or machine.wanted.image or machine.gpu.error
        else {"severity": "info"}
    )


def _engine(machine: Machine) -> None:
    _needs_docker(machine)
    if machine.docker.version is None:
        raise _Unknown("the Docker engine does not answer")


@_check("docker engine", "docker")
def _docker(machine: Machine) -> _Seen:
    docker, how = machine.docker, _needs_docker(machine)
    if docker.version:
        return f"engine {docker.version}", []
    if docker.client is None:
        return "no docker command", [_found("HOST004", "There is no docker command.", **how)]
    if "permission denied" in (docker.error or "").lower():
        fix = (
            f"{command_line('sudo', 'usermod', '-aG', 'docker', machine.system.user)}, then log in"
            " again; a notebook needs Jupyter restarted too"
        )
        return "no permission", [
            _found(
                "HOST005",
                f"{machine.system.user} may not talk to the Docker engine.",
                docker.error,
                fix,
                **how,
            )
        ]
    return "no answer" + (", and nothing here asks for it" if how else ""), [
        _found("HOST006", "The Docker engine does not answer.", docker.error, **how)
    ]


@_check("docker group", "docker")
def _group(machine: Machine) -> _Seen:
    _engine(machine)
    groups = machine.system.groups
    member = "docker" in groups
    return (
        (
            "in the group"
            if member
            else (
                "root"
                if machine.system.uid == 0
                else "reached without the group (rootless, ssh or a socket of its own)"
            )
        ),
        [],
    )


@_check("docker API", "docker")
def _api(machine: Machine) -> _Seen:
    _engine(machine)
    docker = machine.docker
    newest, oldest = _version(docker.api), _version(docker.api_min)
    if newest is None:
        raise _Unknown("the engine does not tell its API version")
    saw = f"{docker.api_min or '?'} to {docker.api}"
    if newest < GPU_API:
        return saw, [
            _found(
                "HOST030",
                "This Docker engine is too old to be asked for a GPU.",
                f"API {docker.api}, needed 1.40",
            )
        ]
    if oldest and oldest > NEWEST_CLIENT_API:
        return saw, [
            _found(
                "HOST030",
                "This Docker engine refuses older clients.",
                f"API {docker.api_min} at least",
                severity="info",
            )
        ]
    return saw, []


@_check("GPU runtime", "docker")
def _runtime(machine: Machine) -> _Seen:
    _engine(machine)
    docker = machine.docker
    if not machine.gpu.names:
        raise _Unknown("no NVIDIA GPU answers")
    saw = ", ".join([*docker.runtimes, *docker.cdi]) or "none"
    if machine.wanted.runtime and machine.wanted.runtime not in docker.runtimes:
        message = (
            f"The recipe asks for the runtime {machine.wanted.runtime}, which Docker does not know."
        )
        return saw, [_found("HOST034", message, f"runtimes: {saw}")]
    if "nvidia" not in docker.runtimes and not any("nvidia" in device for device in docker.cdi):
        return saw, [
            _found(
                "HOST007",
                "Docker lists neither the runtime nvidia nor a CDI device of NVIDIA's.",
                f"runtimes: {saw}",
            )
        ]
    return saw, []


@_check("a container on the GPU", "smoke")
def _smoke(machine: Machine) -> _Seen:
    _engine(machine)
    smoke = machine.smoke
    if not machine.gpu.names:
        raise _Unknown("no NVIDIA GPU answers")
    if smoke is None:
        raise _Unknown("no container was started: give --run, with the image pulled")
    if smoke.ok:
        return smoke.output.splitlines()[-1] if smoke.output else "it ran", []
    runtime = any(text in smoke.output for text in _NO_GPU)
    format_error = "exec format error" in smoke.output
    kind = "arch-image" if format_error else "nvidia-runtime" if runtime else "cuda-init"
    message = (
        "The image is of another architecture and cannot be run here."
        if format_error
        else (
            "Docker cannot give a container the GPU."
            if runtime
            else "A container on the GPU ends with an error."
        )
    )
    last = (
        smoke.output.strip().splitlines()[-1][:300] if smoke.output.strip() else "it wrote nothing"
    )
    fix = (
        "pull the arm64 image"
        if format_error
        else (
            None
            if runtime
            else "sudo dmesg | grep NVRM; restart the machine if it is out of memory"
        )
    )
    return last, [_found("HOST035", message, last, fix, kind=kind)]


@_check("GPU code in the image", "smoke")
def _torch(machine: Machine) -> _Seen:
    _engine(machine)
    _spark_only(machine, "it matters for the GB10's instructions")
    smoke = machine.smoke
    if smoke is None or smoke.torch_cuda is None:
        raise _Unknown("the image's torch was not asked: give --run, with the image pulled")
    saw = f"torch for CUDA {smoke.torch_cuda}: {', '.join(smoke.archs) or 'targets not told'}"
    old = (_version(smoke.torch_cuda) or (99,)) < (13,)
    lacking = bool(smoke.archs) and not any(
        arch.startswith(("sm_12", "compute_12")) for arch in smoke.archs
    )
    if old or lacking:
        return saw, [_found("HOST036", "The image's torch has no code for the GB10.", saw)]
    return saw, []


@_check("ptxas in the image", "smoke")
def _ptxas(machine: Machine) -> _Seen:
    _engine(machine)
    _spark_only(machine, "it matters for the GB10's instructions")
    version = _version(machine.smoke.ptxas if machine.smoke else None)
    if version is None:
        raise _Unknown("the image was not looked into: give --run, with the image pulled")
    saw = machine.smoke.ptxas if machine.smoke and machine.smoke.ptxas else ""
    return saw, (
        [
            _found(
                "HOST037",
                "The ptxas in the image does not know the GB10: Triton's kernels fail.",
                f"ptxas {saw}",
            )
        ]
        if version < (13,)
        else []
    )


@_check("image", "image")
def _image(machine: Machine) -> _Seen:
    _engine(machine)
    wanted, image = machine.wanted, machine.image
    if wanted.image is None or image is None:
        raise _Unknown("no recipe with an image was named")
    if not image.present:
        pin = (
            f"{wanted.image}@{wanted.digest}"
            if wanted.digest and "@" not in wanted.image
            else wanted.image
        )
        return "not here", [
            _found(
                "HOST040",
                f"The image {wanted.image} is not on this host.",
                fix=command_line("docker", "pull", pin),
            )
        ]
    found, saw = (
        [],
        ", ".join(
            filter(
                None,
                [
                    image.architecture,
                    image.digests[0].split("@")[-1][:19] if image.digests else None,
                ],
            )
        ),
    )
    host = {"aarch64": "arm64", "x86_64": "amd64"}.get(
        machine.docker.architecture or machine.system.architecture
    )
    if image.architecture and host and image.architecture != host:
        found.append(
            _found(
                "HOST041",
                f"The image {wanted.image} is for {image.architecture}, and this host is {host}.",
                f"docker image inspect: {saw}",
            )
        )
    if (
        wanted.digest
        and image.digests
        and not any(digest.endswith(wanted.digest) for digest in image.digests)
    ):
        found.append(
            _found(
                "HOST042",
                "The image on this host is not the one that the recipe pins.",
                f"here {image.digests[0].split('@')[-1]}, pinned {wanted.digest}",
            )
        )
    return saw, found


@_check("registry login", "registry")
def _registry(machine: Machine) -> _Seen:
    registry, image = machine.registry, machine.wanted.image
    if registry is None or image is None:
        raise _Unknown("no recipe with an image was named")
    if not image.startswith("nvcr.io/"):
        return f"{image.split('/')[0]} needs none", []
    if "nvcr.io" in registry.logins:
        return "logged in to nvcr.io", []
    if machine.image is None:
        raise _Unknown("no login to nvcr.io; whether the image is here is not known")
    if machine.image.present:
        return "no login, and the image is here", []
    if registry.store:
        raise _Unknown("logins are in a credential store, which is not asked")
    return "no login to nvcr.io", [
        _found("HOST043", "There is no login to nvcr.io, and the image has still to be pulled.")
    ]


@_check("servers in Docker", "docker")
def _containers(machine: Machine) -> _Seen:
    _engine(machine)
    found = []
    for one in machine.docker.containers:
        if one.state == "restarting" or one.restarts >= _MANY_RESTARTS:
            found.append(
                _found(
                    "HOST032",
                    f"{one.name} was restarted {one.restarts} times: each failed start can cost"
                    " memory that stays away.",
                    f"restart policy {one.restart}, exit code {one.exit_code}",
                    f"{command_line('docker', 'update', '--restart', 'no', one.name)};"
                    f" {command_line('docker', 'stop', one.name)}",
                )
            )
        elif one.state == "created" and one.error:
            found.append(
                _found(
                    "HOST033",
                    f"A failed start left the container {one.name} behind.",
                    one.error[:200],
                    command_line("docker", "rm", one.name),
                )
            )
        elif one.state == "running" and one.restart == "no":
            found.append(
                _found(
                    "HOST031",
                    f"{one.name} has no restart policy: it is gone after a restart of the machine.",
                    fix=(
                        "once it has proven itself: "
                        + command_line("docker", "update", "--restart", "unless-stopped", one.name)
                    ),
                )
            )
    return (
        ", ".join(f"{one.name} {one.state}" for one in machine.docker.containers) or "none",
        found,
    )


# ---- weights


@_check("Hugging Face", "hub")
def _hub(machine: Machine) -> _Seen:
    hub, wanted, store = machine.hub, machine.wanted, machine.store
    if hub is None:
        raise _Unknown("no recipe with weights to download was named")
    token = f"token from {hub.token}" if hub.token else "no token"
    staged = store is not None and all(repo in store.revisions for repo in wanted.repos)
    if hub.offline and not hub.access:
        if not hub.token and wanted.gated and not staged:
            return f"{token}, {hub.offline}", [
                _gate("HOST044", "no token", next(iter(wanted.repos), "the model"), staged)
            ]
        raise _Unknown(f"{token}, {hub.offline}")
    found = []
    if hub.valid is False:
        found.append(
            _found(
                "HOST045",
                "The hub does not know this token.",
                token,
                severity="warning" if staged else "error",
            )
        )
    for repo, status in hub.access.items():
        if status == 401 and not hub.token:
            found.append(_gate("HOST044", "HTTP 401", repo, staged))
        elif status == 403:
            found.append(_gate("HOST046", "HTTP 403", repo, staged))
        elif status in (401, 404) and hub.valid is not False:
            found.append(_gate("HOST047", f"HTTP {status}", repo, staged))
    seen = ", ".join(f"{repo} {status}" for repo, status in hub.access.items())
    return ", ".join(filter(None, [token, seen])), found


def _gate(code: str, evidence: str, repo: str, staged: bool) -> Finding:
    message = {
        "HOST044": f"{repo} is gated, and there is no token.",
        "HOST046": (
            f"The token may not read {repo}: the licence is not accepted, or the token lacks the"
            " right to gated repositories."
        ),
        "HOST047": f"The hub has no repository {repo} that this account may see.",
    }[code]
    fix = (
        f"open https://huggingface.co/{repo} with the token's account and accept the licence"
        if code == "HOST046"
        else None
    )
    return _found(code, message, evidence, fix, severity="info" if staged else "error")


@_check("model store", "store")
def _store(machine: Machine) -> _Seen:
    store = machine.store
    if store is None:
        raise _Unknown("it was not looked at")
    if not store.exists:
        how = {} if machine.is_spark else {"severity": "info"}
        message = f"{store.path} does not exist: Docker would make it, for root."
        return f"{store.path} does not exist", [
            _found(
                "HOST050", message, fix=command_line("mkdir", "-p", mark_home(store.path)), **how
            )
        ]
    found, owner = [], command_line("sudo", "chown", "-R", USER, mark_home(store.path))
    if store.writable is False:
        message = f"{machine.system.user} may not write to {store.path}."
        found.append(_found("HOST051", message, "[Errno 13] Permission denied", owner))
    if store.foreign:
        message = (
            f"{store.foreign} files in {store.path} belong to somebody else, as after a download by"
            " a container."
        )
        found.append(_found("HOST052", message, store.example, owner))
    if store.unfinished:
        found.append(
            _found(
                "HOST056",
                f"{store.unfinished} downloads in {store.path} were not finished; they are resumed"
                " by the next fetch.",
            )
        )
    return store.path, found


@_check("weights", "store")
def _weights(machine: Machine) -> _Seen:
    store, wanted = machine.store, machine.wanted
    if store is None or not wanted.repos:
        raise _Unknown("no recipe with weights was named")
    if store.broken:
        message = (
            f"{store.broken[0]} is damaged: its size contradicts its own header, or its hash is"
            " wrong."
        )
        verify = command_line("sparkbook", "weights", "verify", wanted.recipe)
        fix = f"{verify}; remove what it names and fetch again"
        return f"{len(store.broken)} broken files", [
            _found("HOST055", message, ", ".join(store.broken[:3]), fix)
        ]
    missing = [repo for repo in wanted.repos if repo not in store.revisions]
    if missing:
        return f"not staged: {', '.join(missing)}", [
            _found(
                "HOST057",
                f"{missing[0]} is not in the store: the first start would download it.",
                fix=command_line("sparkbook", "weights", "fetch", wanted.recipe),
            )
        ]
    return ", ".join(f"{repo} at {commit[:8]}" for repo, commit in store.revisions.items()), []


@_check("disk", "store")
def _disk(machine: Machine) -> _Seen:
    store, wanted = machine.store, machine.wanted
    if store is None or store.free_bytes is None:
        raise _Unknown("the free space is not known")
    saw, found = f"{store.free_bytes / GB:.0f} GB free for the store", []
    missing = max((wanted.weights_gb or 0) - store.staged_gb, 0) * _STORE_SPARE * GB
    if missing > store.free_bytes:
        found.append(
            _found(
                "HOST053",
                "The disk has no room for the weights.",
                f"{missing / GB:.0f} GB needed, {store.free_bytes / GB:.0f} GB free",
            )
        )
    if store.docker_free_bytes is not None:
        saw += f", {store.docker_free_bytes / GB:.0f} GB for images"
        absent = machine.image is not None and not machine.image.present
        if store.docker_free_bytes < (_DOCKER_ROOM_GB if absent else 5) * GB:
            found.append(
                _found(
                    "HOST054",
                    "The disk has no room for an image.",
                    f"{store.docker_free_bytes / GB:.0f} GB free at"
                    f" {machine.docker.root or 'the Docker root'}",
                    severity="error" if absent else "warning",
                )
            )
    return saw, found


# ---- the port and the user's limits


@_check("port", "port")
def _port(machine: Machine) -> _Seen:
    port = machine.port
    if port is None:
        raise _Unknown("it was not asked")
    if port.owner is None:
        return f"{port.number} is free", []
    return f"{port.number}: {port.owner}", [
        _found(
            "HOST060",
            f"Port {port.number} is taken by {port.owner}.",
            fix=f"stop it, or publish another port: -p 127.0.0.1:{port.number + 1}:{port.number}",
        )
    ]


def _limits(machine: Machine) -> Any:
    if machine.limits is None:
        raise _Unknown("they were not read")
    return machine.limits


@_check("shared memory", "limits")
def _shm(machine: Machine) -> _Seen:
    limits, wanted = _limits(machine), machine.wanted
    if limits.shm_bytes is None:
        raise _Unknown("there is no /dev/shm")
    free = limits.shm_bytes if limits.shm_free_bytes is None else limits.shm_free_bytes
    saw = f"{free / GIB:.1f} of {limits.shm_bytes / GIB:.1f} GiB free"
    if free < _MIN_SHM:
        return saw, [
            _found(
                "HOST061",
                "/dev/shm has less than 1 GiB free: vLLM's processes talk through it.",
                saw,
            )
        ]
    if machine.is_spark and wanted.shm_size and parse_size(wanted.shm_size) > 16 * GIB:
        return f"{saw}; the recipe asks for {wanted.shm_size}", []
    return saw, []


@_check("limits", "limits")
def _ulimits(machine: Machine) -> _Seen:
    limits, found = _limits(machine), []
    memlock = (
        "not known"
        if limits.memlock_bytes is None
        else "unlimited"
        if limits.memlock_bytes < 0
        else format_bytes(limits.memlock_bytes)
    )
    saw = f"memlock {memlock}, {f'{limits.nofile:,}' if limits.nofile else 'unknown'} files"
    if machine.wanted.nodes > 1 and (limits.memlock_bytes or 0) >= 0 and not machine.wanted.memlock:
        message = (
            "RDMA has to lock memory, and neither this user's limit nor the recipe's --ulimit"
            " memlock lets it."
        )
        found.append(_found("HOST062", message, f"memlock {memlock}"))
    if limits.nofile is not None and limits.nofile < _MIN_NOFILE:
        found.append(_found("HOST065", "Few files may be open at once.", f"nofile {limits.nofile}"))
    return saw, found


@_check("logind", "limits")
def _logind(machine: Machine) -> _Seen:
    limits = _limits(machine)
    if limits.remove_ipc is None:
        raise _Unknown("there is no logind")
    linger = {True: "on", False: "off", None: "unknown"}[limits.linger]
    saw = f"RemoveIPC={'yes' if limits.remove_ipc else 'no'}, linger {linger}"
    if (
        limits.remove_ipc
        and limits.linger is False
        and (machine.system.uid or 0) >= 1000
        and machine.wanted.ipc_host
    ):
        fix = command_line("sudo", "loginctl", "enable-linger", machine.system.user)
        return saw, [
            _found(
                "HOST063",
                "At the end of your session logind removes the shared memory that your processes"
                " use.",
                saw,
                fix,
            )
        ]
    return saw, []


@_check("earlyoom", "limits")
def _earlyoom(machine: Machine) -> _Seen:
    _spark_only(machine, "there the GPU's memory is the host's")
    limits = _limits(machine)
    if limits.earlyoom is None:
        return "does not run", [
            _found("HOST064", "Nothing ends a program before the whole machine is out of memory.")
        ]
    return limits.earlyoom or "runs", []


@_check("clock", "time")
def _time(machine: Machine) -> _Seen:
    skew = machine.hub.skew_s if machine.hub else None
    kept = machine.time.synchronized if machine.time else None
    if skew is None and kept is None:
        raise _Unknown("no time service and no server to compare with")
    saw = ", ".join(
        filter(
            None,
            [
                None if skew is None else f"{skew:+.0f} s against the hub",
                None if kept is None else "kept by a server" if kept else "not kept",
            ],
        )
    )
    if skew is not None and abs(skew) > _MAX_SKEW_S:
        return saw, [
            _found(
                "HOST066",
                "The clock is wrong: certificates and tokens are refused.",
                f"{skew:+.0f} s",
            )
        ]
    return saw, []


# ---- vLLM without a container


@_check("vLLM on the host", "python")
def _python(machine: Machine) -> _Seen:
    python = machine.python
    if python is None or (python.vllm is None and python.import_error is None):
        raise _Unknown("vLLM is not installed outside a container")
    found, packages = [], python.packages
    twelve = sorted(
        name for name in packages if name.startswith("nvidia-") and name.endswith("-cu12")
    )
    thirteen = sorted(
        name for name in packages if name.startswith("nvidia-") and name.endswith("-cu13")
    )
    torch = re.search(r"\+cu(\d{2})(\d)", packages.get("torch", ""))
    if python.import_error:
        mixed = "libcudart" in python.import_error or bool(twelve and thirteen)
        message = (
            "vLLM cannot be imported: its libraries are of two CUDA versions."
            if mixed
            else "vLLM cannot be imported."
        )
        found.append(_found("HOST073", message, python.import_error[:200]))
    elif twelve and thirteen:
        found.append(
            _found(
                "HOST071",
                "Libraries of CUDA 12 and of CUDA 13 are installed side by side.",
                f"{twelve[0]}, {thirteen[0]}",
            )
        )
    if machine.is_spark and torch and int(torch[1]) < 13:
        found.append(
            _found("HOST072", "This torch has no code for the GB10.", f"torch {packages['torch']}")
        )
    if machine.gpu.names and python.nvcc is None and not python.import_error:
        found.append(
            _found("HOST070", "There is no nvcc: kernels that are compiled at first use cannot be.")
        )
    return (
        (
            f"vLLM {python.vllm or 'not importable'}, torch {packages.get('torch', 'unknown')},"
            f" nvcc {python.nvcc or 'none'}"
        ),
        found,
    )


# ---- the network between Sparks


def _fabric(machine: Machine) -> Any:
    network = machine.network
    if network is None:
        raise _Unknown("it was not read")
    if machine.wanted.nodes < 2 and not network.env:
        raise _Unknown("one Spark needs no other: name a recipe for several")
    return network


@_check("interfaces", "network")
def _interfaces(machine: Machine) -> _Seen:
    network, found = _fabric(machine), []
    links = {link.name: link for link in network.links}
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        for link in filter(None, network.env.get(name, "").lstrip("=^").split(",")):
            # NCCL takes the names as beginnings: enp1 means enp1s0f0np0 as well.
            there = [
                one
                for one in links.values()
                if one.name == link or (name.startswith("NCCL") and one.name.startswith(link))
            ]
            if network.env[name].startswith("^") or any(one.up for one in there):
                continue
            state = "is down" if there else "does not exist"
            found.append(
                _found(
                    "HOST080",
                    f"{name} names {link}, which {state} on {machine.name}.",
                    f"here: {', '.join(sorted(links))}",
                )
            )
    address = network.env.get("VLLM_HOST_IP")
    fast = {
        address
        for link in network.links
        if (link.speed or 0) >= _FAST_MBIT
        for address in link.addresses
    }
    default = links.get(network.default or "")
    if (
        fast
        and address not in fast
        and (address or (default and (default.speed or 0) < _FAST_MBIT))
    ):
        taken = address or ", ".join(default.addresses if default else [])
        found.append(
            _found(
                "HOST081",
                f"{machine.name} is known to the others as {taken}, an address of the slow"
                " network.",
                f"fast: {', '.join(sorted(fast))}",
                f"{export_line('VLLM_HOST_IP', sorted(fast)[0])} (Ray: --node-ip-address)",
            )
        )
    return (
        ", ".join(f"{link.name} {link.speed or '?'} Mbit/s" for link in network.links if link.up)
        or "none is up",
        found,
    )


@_check("fast link", "network")
def _fast_link(machine: Machine) -> _Seen:
    network = _fabric(machine)
    if machine.wanted.nodes < 2:
        raise _Unknown("one Spark needs no other")
    names = [port.link for port in network.rdma]
    fast = [link for link in network.links if link.up and (link.speed or 0) >= _FAST_MBIT]
    saw = ", ".join(f"{link.name} {(link.speed or 0) / 1000:.0f} Gbit/s" for link in fast) or "none"
    if not fast:
        seen = ", ".join(
            f"{link.name} {'up' if link.up else 'down'} {link.speed or '?'} Mbit/s"
            for link in network.links
            if link.name in names
        )
        return saw, [
            _found(
                "HOST085", f"{machine.name} has no fast link that is up.", seen or "no RDMA port"
            )
        ]
    return saw, []


@_check("RDMA ports", "network")
def _rdma(machine: Machine) -> _Seen:
    network, found = _fabric(machine), []
    ports = {port.name: port for port in network.rdma}
    # ^name: all but it; =name: exactly; a number after a colon is the port.
    asked = network.env.get("NCCL_IB_HCA", "")
    for name in (
        []
        if asked.startswith("^")
        else [word.split(":")[0] for word in asked.lstrip("=").split(",") if word]
    ):
        there = [
            p
            for p in ports.values()
            if p.name == name or (not asked.startswith("=") and p.name.startswith(name))
        ]
        if not any(port.active for port in there):
            state = "is down" if there else "does not exist"
            active = ", ".join(sorted(p.name for p in ports.values() if p.active)) or "none"
            found.append(
                _found(
                    "HOST082",
                    f"NCCL_IB_HCA names {name}, which {state} on {machine.name}.",
                    f"active: {active}",
                )
            )
    index = network.env.get("NCCL_IB_GID_INDEX", "")
    if index.isdigit():
        for port in (p for p in network.rdma if p.active):
            gid = port.gids.get(int(index), "empty")
            if not (gid.startswith("RoCE v2") and "." in gid):
                right = [
                    str(number)
                    for number, text in sorted(port.gids.items())
                    if text.startswith("RoCE v2") and "." in text
                ]
                found.append(
                    _found(
                        "HOST083",
                        f"NCCL_IB_GID_INDEX={index} is not a RoCE v2 address of {port.name} on"
                        f" {machine.name}.",
                        f"index {index}: {gid}; usable: {', '.join(right) or 'none'}",
                    )
                )
    saw = ", ".join(
        f"{p.name} ==> {p.link or '?'} ({'up' if p.active else 'down'})" for p in network.rdma
    )
    return saw or "none", found


@_check("MTU", "network")
def _mtu(machine: Machine) -> _Seen:
    network = _fabric(machine)
    links = {link.name: link for link in network.links}
    active = [port for port in network.rdma if port.active]
    if not active:
        raise _Unknown("no RDMA port is active")
    small = []
    for port in active:
        link = links.get(port.link or "")
        if (port.mtu is not None and port.mtu < 4096) or (
            link and link.mtu is not None and link.mtu < 9000
        ):
            small.append(
                f"{port.name}: active_mtu {port.mtu}, {port.link}: mtu {link.mtu if link else '?'}"
            )
    saw = ", ".join(f"{port.name} {port.mtu}" for port in active)
    if small:
        device = next(port.link for port in active) or "DEVICE"
        return saw, [
            _found(
                "HOST084",
                f"The fast link of {machine.name} carries small packets.",
                "; ".join(small),
                command_line("sudo", "ip", "link", "set", device, "mtu", 9000) + ", on both ends",
            )
        ]
    return saw, []


def _between(machines: Sequence[Machine]) -> Iterable[Result]:
    """What has to be the same on all nodes."""
    yield _same(
        "image on every node",
        machines,
        "HOST090",
        "The nodes have different images.",
        lambda m: (
            sorted(d.split("@")[-1] for d in m.image.digests)[0][:19]
            if m.image and m.image.digests
            else None
        ),
    )
    yield _same(
        "weights on every node",
        machines,
        "HOST091",
        "The nodes have different model files.",
        lambda m: m.store.digest if m.store else None,
    )
    yield _same(
        "driver on every node",
        machines,
        "HOST092",
        "The nodes have different drivers.",
        lambda m: m.gpu.driver,
    )
    yield _same(
        "kernel on every node",
        machines,
        "HOST092",
        "The nodes have different kernels.",
        lambda m: m.system.kernel,
    )
    yield _same(
        "MTU on every node",
        machines,
        "HOST093",
        "The ends of the fast link have different MTUs.",
        lambda m: (
            "/".join(str(n) for n in sorted({p.mtu for p in m.network.rdma if p.active and p.mtu}))
            or None
            if m.network
            else None
        ),
    )
    yield _same(
        "interface names",
        machines,
        "HOST094",
        "The fast links have different names: set the variables for each node, not once for all.",
        lambda m: (
            "/".join(p.link for p in m.network.rdma if p.active and p.link) or None
            if m.network
            else None
        ),
    )


def _same(
    name: str,
    machines: Sequence[Machine],
    code: str,
    message: str,
    value: Callable[[Machine], str | None],
) -> Result:
    seen = {machine.name: value(machine) for machine in machines}
    unknown = [node for node, one in seen.items() if one is None]
    if unknown:
        return Result(name, f"not known of {', '.join(unknown)}", judged=False, node="all")
    told = ", ".join(f"{node}: {one}" for node, one in seen.items())
    if len(set(seen.values())) == 1:
        return Result(name, f"{next(iter(seen.values()))}", node="all")
    return Result(name, told, (_found(code, message, told),), node="all")
