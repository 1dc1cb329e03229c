"""Memory, and who holds it."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.host.family import Unknown, check
from sparkbook.host.machine import Container, Machine, Process
from sparkbook.host.meminfo import Memory, StartCheck, start_check
from sparkbook.rules import Hit
from sparkbook.units import GIB, MIB, format_bytes
from sparkbook.util.shell_text import command_line

_SMALL_GAP_S = 240
_REAPERS = ("systemd", "init", "containerd-shim", "docker-init", "tini", "dumb-init")


def _memory(machine: Machine) -> Memory:
    if machine.memory is None:
        raise Unknown("there is no /proc/meminfo")
    return machine.memory.memory


@check("memory", probe="memory")
def memory(machine: Machine) -> str:
    now = _memory(machine)
    return f"{now.available / GIB:.1f} of {now.total / GIB:.1f} GiB available"


@memory.rule(
    "HOST021",
    "min-free-raised",
    "warning",
    kind="oom-startup-check",
    source="https://github.com/tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark/pull/19",
    fix="Set it after the server is ready, or lower the fraction.",
    fails={"memory": {"min_free_kbytes": 2097152}},
)
def min_free_raised(machine: Machine) -> Iterator[Hit]:
    """What `vm.min_free_kbytes` reserves is missing from MemAvailable, which is what vLLM's start
    check reads. Set before the start, it made 98.9 GiB of 102.
    """
    kbytes = machine.memory.min_free_kbytes if machine.memory else None
    if kbytes is not None and kbytes * 1024 > GIB:
        size = f"{kbytes * 1024 / GIB:.1f} GiB"
        yield Hit(
            f"vm.min_free_kbytes is raised: vLLM's start check sees {size} less.",
            f"vm.min_free_kbytes = {kbytes} ({size})",
        )


def _failing_start(machine: Machine) -> StartCheck | None:
    fraction = machine.wanted.utilization
    if not machine.is_spark or fraction is None:
        return None
    start = start_check(_memory(machine), fraction)
    return None if start.passes else start


def _just_stopped(machine: Machine) -> Container | None:
    for container in machine.docker.containers:
        if container.stopped_s is not None and container.stopped_s < _SMALL_GAP_S:
            return container
    return None


@memory.rule(
    "HOST020",
    "start-check-fails",
    "error",
    kind="oom-startup-check",
    source="https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47",
    fails={"wanted": {"utilization": 0.87}},
    passes={"wanted": {"utilization": 0.83}},
)
def start_check_fails(machine: Machine) -> Iterator[Hit]:
    """vLLM takes `--gpu-memory-utilization` of all memory and compares it with what is available. A
    clean headless Spark has about 102 of 121.7 GiB available, so 0.83 passes and 0.87 never does.
    """
    start = _failing_start(machine)
    if start and not _just_stopped(machine):
        largest = max(start.largest_utilization - 0.01, 0.01)
        yield Hit(
            f"vLLM's start check will fail: the fraction {machine.wanted.utilization:g} is more"
            " than this host has.",
            str(start),
            f"Free memory, or set --gpu-memory-utilization {largest:.2f}.",
        )


@memory.rule(
    "HOST027",
    "memory-not-back-yet",
    "error",
    kind="orphan-memory",
    source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/memory/81-stopped-container-has-not-released-memory.md",
    fix=(
        "Wait until MemAvailable has risen (up to 4 minutes), then start again; leave the"
        " fraction alone."
    ),
    fails={
        "memory": {
            "meminfo": (
                "MemTotal:       127601664 kB\nMemFree:         20971520 kB\nMemAvailable:   "
                " 22020096 kB\n"
            )
        },
        "docker": {
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm/vllm-openai:v0.28.0",
                    "state": "exited",
                    "restart": "on-failure",
                    "stopped_s": 40,
                }
            ]
        },
    },
)
def memory_not_back_yet(machine: Machine) -> Iterator[Hit]:
    """The end of a container and the return of its memory are two events: the driver takes up to
    some minutes. The same start works a minute later, with the same fraction.
    """
    start, stopped = _failing_start(machine), _just_stopped(machine)
    if start and stopped:
        yield Hit(
            f"The container {stopped.name} stopped {stopped.stopped_s:.0f} s ago, and the"
            " driver has not given"
            " all of its memory back yet.",
            str(start),
        )


def _free(now: Memory) -> str:
    return f"{now.reclaimable / GIB:.1f} GiB reclaimable, {now.free / GIB:.1f} GiB free"


@check("page cache", probe="memory")
def page_cache(machine: Machine) -> str:
    now = _memory(machine)
    blocks = machine.memory.blocks_2mib if machine.memory else None
    return _free(now) + ("" if blocks is None else f", {blocks} free blocks of 2 MiB")


@page_cache.rule(
    "HOST008",
    "page-cache",
    "warning",
    kind="page-cache",
    source="https://docs.nvidia.com/dgx/dgx-spark/known-issues.html",
    fix="Run `sync; echo 3 | sudo tee /proc/sys/vm/drop_caches` right before the launch.",
    fails={
        "memory": {
            "meminfo": (
                "MemTotal:       127601664 kB\nMemFree:         10066432 kB\nMemAvailable:  "
                " 106010624 kB\n"
            )
        }
    },
)
def page_cache_full(machine: Machine) -> Iterator[Hit]:
    """After a download or a copy most memory holds file contents. The kernel gives it back on
    demand, but the driver wants pages at once and in one piece, and may not get them in time.
    """
    now = _memory(machine)
    if machine.is_spark and now.free < now.reclaimable:
        yield Hit(
            f"The page cache holds more memory ({now.reclaimable / GIB:.1f} GiB) than is free"
            f" ({now.free / GIB:.1f} GiB).",
            _free(now),
        )


@page_cache.rule(
    "HOST022",
    "no-memory-in-one-piece",
    "warning",
    kind="page-cache",
    source="https://github.com/tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark/pull/19",
    fix=(
        "Run `sync; echo 3 | sudo tee /proc/sys/vm/drop_caches; echo 1 | sudo tee"
        " /proc/sys/vm/compact_memory`."
    ),
    fails={"memory": {"blocks_2mib": 12}},
)
def no_memory_in_one_piece(machine: Machine) -> Iterator[Hit]:
    """`/proc/buddyinfo` shows how much memory is free in blocks of 2 MiB, which the driver needs.
    After reading a large checkpoint there may be none, and the start ends with `NV_ERR_NO_MEMORY`
    although gigabytes are free.
    """
    blocks = machine.memory.blocks_2mib if machine.memory else None
    if machine.is_spark and blocks is not None and blocks * 2 * MIB < GIB:
        yield Hit(
            f"Only {blocks} blocks of 2 MiB are free in one piece: the driver may fail although"
            " gigabytes are free.",
            page_cache.look(machine),
        )


@check("swap", probe="memory")
def swap(machine: Machine) -> str:
    now = _memory(machine)
    if now.swap_total is None or now.swap_free is None:
        raise Unknown("/proc/meminfo does not say")
    used = now.swap_total - now.swap_free
    return f"{used / GIB:.1f} of {now.swap_total / GIB:.1f} GiB used"


@swap.rule(
    "HOST023",
    "swapping",
    "warning",
    kind="host-freeze",
    confidence="medium",
    source="https://github.com/vllm-project/vllm/issues/46307",
    fix="Stop what is not needed, then run `sudo swapoff -a && sudo swapon -a`.",
    fails={
        "memory": {
            "meminfo": (
                "MemTotal:       127601664 kB\nMemFree:        105801216 kB\nMemAvailable:  "
                " 106744832 kB\nSwapTotal:       16777212 kB\nSwapFree:         6291456 kB\n"
            )
        }
    },
)
def swapping(machine: Machine) -> Iterator[Hit]:
    """Swap does not extend what the GPU can use. A host that already swaps several gigabytes will
    stand still during a start instead of failing.
    """
    now = _memory(machine)
    used = (now.swap_total or 0) - (now.swap_free or 0)
    if machine.is_spark and used > 4 * GIB:
        yield Hit(
            f"The host has swapped {used / GIB:.1f} GiB: a start will make it grind.",
            swap.look(machine),
        )


@check("contiguous memory", probe="memory")
def contiguous(machine: Machine) -> str:
    now = _memory(machine)
    if now.cma_total is None:
        raise Unknown("/proc/meminfo does not say")
    return f"CMA {format_bytes(now.cma_free or 0)} free of {format_bytes(now.cma_total)}"


def _is_orphan(process: Process) -> bool:
    """Return whether it is an engine process whose server has gone: adopted by the system, or by
    the first process of the container.
    """
    if not process.name.startswith("VLLM::"):
        return False
    if process.name.startswith(("VLLM::APIServer", "VLLM::DPCoordinator")):
        return False
    return process.parent in (None, 1) or (process.parent_name or "").startswith(_REAPERS)


def _others(machine: Machine) -> list[Process]:
    return [p for p in machine.processes if not _is_orphan(p) and (p.gpu_mib or 0) >= 1024]


@check("processes on the GPU", probe="processes")
def processes(machine: Machine) -> str:
    names = ", ".join(process.name for process in machine.processes)
    found = bool(_others(machine)) or any(map(_is_orphan, machine.processes))
    if not machine.gpu.names and not machine.gpu.error and not found:
        return "no GPU"
    return names or "none"


@processes.rule(
    "HOST025",
    "orphan-engine",
    "error",
    kind="orphan-memory",
    source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/runtime/123-vllm-v1-enginecore-orphan-holds-gpu-memory.md",
    fails={
        "processes": [
            {
                "pid": 4711,
                "name": "VLLM::EngineCore",
                "parent": 1,
                "parent_name": "systemd",
                "gpu_mib": 104277,
            }
        ]
    },
    passes={
        "processes": [
            {"pid": 4700, "name": "vllm", "parent": 1, "parent_name": "systemd"},
            {
                "pid": 4711,
                "name": "VLLM::EngineCore",
                "parent": 4700,
                "parent_name": "vllm",
                "gpu_mib": 900,
            },
        ]
    },
)
def orphan_engine(machine: Machine) -> Iterator[Hit]:
    """vLLM is several processes. When its API server is killed, `VLLM::EngineCore` may live on and
    keep all the memory; the next start finds too little. Ending it is the cure, not a smaller
    fraction.
    """
    for process in filter(_is_orphan, machine.processes):
        held = "an unknown share"
        if process.gpu_mib is not None:
            held = f"{process.gpu_mib / 1024:.1f} GiB"
        yield Hit(
            f"{process.name} (pid {process.pid}) has lost its server and still holds {held} of the"
            " memory.",
            f"pid {process.pid}, parent {process.parent}, {process.gpu_mib or 0:.0f} MiB",
            f"End it: `{command_line('sudo', 'kill', process.pid)}`.",
        )


@processes.rule(
    "HOST026",
    "co-tenants",
    "warning",
    kind="multi-tenant",
    source="https://github.com/rwlove/home-ops/pull/13221",
    fix="Stop them, or lower the fraction by what they hold.",
    fails={
        "processes": [
            {"pid": 815, "name": "python3", "parent": 700, "parent_name": "bash", "gpu_mib": 32768}
        ]
    },
)
def co_tenants(machine: Machine) -> Iterator[Hit]:
    """A fraction is of all memory, whoever else uses it. What other servers, desktops and notebooks
    hold on the GPU has to be left out of it.
    """
    others = _others(machine)
    if others:
        held = sum(process.gpu_mib or 0 for process in others) / 1024
        yield Hit(
            f"Other programs hold {held:.1f} GiB of the one pool of memory.",
            ", ".join(f"{p.name} (pid {p.pid}) {(p.gpu_mib or 0) / 1024:.1f} GiB" for p in others),
        )
