"""The port, the user's limits and the clock."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.host.family import Unknown, check, spark_only
from sparkbook.host.machine import Limits, Machine
from sparkbook.rules import Hit
from sparkbook.units import GIB, format_bytes, parse_size
from sparkbook.util.shell_text import command_line

_MIN_SHM, _MIN_NOFILE, _MAX_SKEW_S = GIB, 4096, 60


@check("port", probe="port")
def port(machine: Machine) -> str:
    if machine.port is None:
        raise Unknown("it was not asked")
    if machine.port.owner is None:
        return f"{machine.port.number} is free"
    return f"{machine.port.number}: {machine.port.owner}"


@port.rule(
    "HOST060",
    "port-taken",
    "error",
    kind="port-in-use",
    source="https://github.com/NVIDIA/NemoClaw/issues/8685",
    fails={"port": {"owner": "python3 (pid 4242)"}},
)
def port_taken(machine: Machine) -> Iterator[Hit]:
    """A taken port ends `docker run` with exit code 125 and leaves the container behind. It is
    known beforehand, and so is who has it.
    """
    taken = machine.port
    if taken and taken.owner is not None:
        yield Hit(
            f"Port {taken.number} is taken by {taken.owner}.",
            fix=(
                f"Stop it, or publish another port: -p 127.0.0.1:{taken.number + 1}:{taken.number}."
            ),
        )


def _limits(machine: Machine) -> Limits:
    if machine.limits is None:
        raise Unknown("they were not read")
    return machine.limits


def _free_shm(machine: Machine) -> int:
    limits = _limits(machine)
    if limits.shm_bytes is None:
        raise Unknown("there is no /dev/shm")
    return limits.shm_bytes if limits.shm_free_bytes is None else limits.shm_free_bytes


@check("shared memory", probe="limits")
def shared_memory(machine: Machine) -> str:
    free = _free_shm(machine)
    wanted = machine.wanted.shm_size
    seen = f"{free / GIB:.1f} of {(_limits(machine).shm_bytes or 0) / GIB:.1f} GiB free"
    if free >= _MIN_SHM and machine.is_spark and wanted and parse_size(wanted) > 16 * GIB:
        return f"{seen}; the recipe asks for {wanted}"
    return seen


@shared_memory.rule(
    "HOST061",
    "shm-small",
    "warning",
    kind="host-ipc",
    source="https://docs.vllm.ai/en/latest/deployment/docker.html",
    fix="Remove what is left over in /dev/shm, or use --shm-size 16g without --ipc=host.",
    fails={"limits": {"shm_free_bytes": 67108864}},
)
def shm_small(machine: Machine) -> Iterator[Hit]:
    """vLLM's processes pass messages through `/dev/shm`; Docker gives a container 64 MB unless
    `--ipc=host` or `--shm-size` is set. It is memory: what it holds is missing elsewhere.
    """
    if _free_shm(machine) < _MIN_SHM:
        yield Hit(
            f"/dev/shm has only {_free_shm(machine) / GIB:.1f} GiB free: vLLM's processes talk"
            " through it.",
            shared_memory.look(machine),
        )


def _memlock(limits: Limits) -> str:
    if limits.memlock_bytes is None:
        return "not known"
    return "unlimited" if limits.memlock_bytes < 0 else format_bytes(limits.memlock_bytes)


@check("limits", probe="limits")
def limits(machine: Machine) -> str:
    found = _limits(machine)
    files = f"{found.nofile:,}" if found.nofile else "unknown"
    return f"memlock {_memlock(found)}, {files} files"


@limits.rule(
    "HOST062",
    "memlock",
    "warning",
    kind="multi-node-docker",
    source="https://corti.com/serving-nemotron-super-120b-with-a-1m-token-context-on-a-2-node-dgx-spark-cluster/",
    fix="Add --ulimit memlock=-1 to the recipe.",
    fails={"wanted": {"nodes": 2}, "limits": {"memlock_bytes": 8388608}},
    passes={"wanted": {"nodes": 2, "memlock": True}, "limits": {"memlock_bytes": 8388608}},
)
def memlock(machine: Machine) -> Iterator[Hit]:
    """RDMA pins memory. A container for several Sparks needs `--ulimit memlock=-1`, `--cap-add
    IPC_LOCK` and `--device /dev/infiniband`.
    """
    found, wanted = _limits(machine), machine.wanted
    if wanted.nodes > 1 and (found.memlock_bytes or 0) >= 0 and not wanted.memlock:
        yield Hit(
            "RDMA has to lock memory, and neither this user's limit nor the recipe's --ulimit"
            " memlock allows it.",
            f"memlock {_memlock(found)}",
        )


@limits.rule(
    "HOST065",
    "few-open-files",
    "warning",
    source="https://www.freedesktop.org/software/systemd/man/latest/systemd.exec.html",
    fix="Run `ulimit -n 65536`, or set LimitNOFILE of the service.",
    fails={"limits": {"nofile": 1024}},
)
def few_open_files(machine: Machine) -> Iterator[Hit]:
    """Every connection and every shard is an open file, and a server under load has hundreds of
    both.
    """
    nofile = _limits(machine).nofile
    if nofile is not None and nofile < _MIN_NOFILE:
        yield Hit(f"Only {nofile} files may be open at once.", f"nofile {nofile}")


@check("logind", probe="limits")
def logind(machine: Machine) -> str:
    found = _limits(machine)
    if found.remove_ipc is None:
        raise Unknown("there is no logind")
    linger = {True: "on", False: "off", None: "unknown"}[found.linger]
    return f"RemoveIPC={'yes' if found.remove_ipc else 'no'}, linger {linger}"


@logind.rule(
    "HOST063",
    "remove-ipc",
    "warning",
    kind="host-ipc",
    source="https://github.com/eugr/spark-vllm-docker/issues/352",
    fails={"wanted": {"ipc_host": True}, "limits": {"linger": False}},
    passes={"wanted": {"ipc_host": True}},
)
def remove_ipc(machine: Machine) -> Iterator[Hit]:
    """systemd-logind removes a user's objects in `/dev/shm` when the last session ends
    (`RemoveIPC=yes`). A server started over SSH with the host's IPC then fails with
    `SemLock._rebuild … FileNotFoundError`.
    """
    found = _limits(machine)
    person = (machine.system.uid or 0) >= 1000
    if found.remove_ipc and found.linger is False and person and machine.wanted.ipc_host:
        yield Hit(
            "At the end of your session logind removes the shared memory that your processes use.",
            logind.look(machine),
            f"Run `{command_line('sudo', 'loginctl', 'enable-linger', machine.system.user)}`.",
        )


@check("earlyoom", probe="limits")
def earlyoom(machine: Machine) -> str:
    spark_only(machine, "there the GPU's memory is the host's")
    found = _limits(machine)
    return "does not run" if found.earlyoom is None else found.earlyoom or "runs"


@earlyoom.rule(
    "HOST064",
    "no-earlyoom",
    "info",
    kind="host-freeze",
    source="https://github.com/vllm-project/vllm/issues/46307",
    fix=(
        "Run `sudo apt install earlyoom`; its threshold has to be below what is available in"
        " normal operation."
    ),
    fails={"limits": {"earlyoom": None}},
)
def no_earlyoom(machine: Machine) -> Iterator[Hit]:
    """On a Spark the whole machine runs out of memory with its GPU, and only the power switch
    helps. earlyoom, or the watchdog of `sparkbook serve`, ends the server before that. A limit on
    the container does not: what CUDA allocates is not counted in it.
    """
    if _limits(machine).earlyoom is None:
        yield Hit("Nothing ends a program before the whole machine is out of memory.")


@check("clock", probe="time")
def clock(machine: Machine) -> str:
    skew = machine.hub.skew_s if machine.hub else None
    kept = machine.time.synchronized if machine.time else None
    if skew is None and kept is None:
        raise Unknown("no time service and no server to compare with")
    against = None if skew is None else f"{skew:+.0f} s against the hub"
    service = None if kept is None else "kept by a server" if kept else "not kept"
    return ", ".join(filter(None, [against, service]))


@clock.rule(
    "HOST066",
    "clock-wrong",
    "warning",
    source="https://www.freedesktop.org/software/systemd/man/latest/timedatectl.html",
    fix="Run `sudo timedatectl set-ntp true`.",
    fails={"hub": {"skew_s": -7200}},
)
def clock_wrong(machine: Machine) -> Iterator[Hit]:
    """A clock that is minutes off makes certificates invalid, and logs of several nodes impossible
    to lay side by side.
    """
    skew = machine.hub.skew_s if machine.hub else None
    if skew is not None and abs(skew) > _MAX_SKEW_S:
        yield Hit(
            f"The clock is wrong by {abs(skew):.0f} s: certificates and tokens are refused.",
            f"{skew:+.0f} s",
        )
