"""The machine, its kernel and the kernel's log."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkbook.host.family import Unknown, check, spark_only, version
from sparkbook.host.machine import Machine
from sparkbook.rules import Hit

BAD_RDMA_KERNELS = {
    "7.0.0-1019": "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/14",
    "7.0.0-31": "https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259",
}
"""Kernels on which registering memory for RDMA fails, with the report of each."""


@check("machine", probe="system")
def machine(machine: Machine) -> str:
    gpu = ", ".join(machine.gpu.names) or "no NVIDIA GPU"
    return ", ".join(filter(None, [gpu, machine.system.architecture, machine.system.os]))


@machine.rule(
    "HOST001",
    "not-a-spark",
    "info",
    source="https://docs.nvidia.com/dgx/dgx-spark/hardware.html",
    fix="Continue: chapters that need an engine use the small one that comes with the book.",
    fails={"gpu": {"names": []}},
)
def not_a_spark(machine: Machine) -> Iterator[Hit]:
    """No GB10 answers. That is not a fault: everything that does not depend on the Spark is judged
    as usual, and the chapters use the small engine that comes with the book.
    """
    if machine.is_spark or machine.gpu.error:
        return
    gpu = "no NVIDIA GPU answers"
    if machine.gpu.names:
        gpu = f"its GPU is {', '.join(machine.gpu.names)}"
    yield Hit(f"This machine is not a Spark: it is {machine.system.architecture}, and {gpu}.")


@check("kernel", probe="system")
def kernel(machine: Machine) -> str:
    spark_only(machine, "known faults are of the Spark's kernels")
    return machine.system.kernel


@kernel.rule(
    "HOST010",
    "kernel-loads-slowly",
    "warning",
    kind="slow-load",
    confidence="medium",
    source="https://github.com/lmstudio-ai/lms/issues/366",
    fix="Update DGX OS to kernel 6.17 or newer; until then --safetensors-load-strategy eager.",
    fails={"system": {"kernel": "6.11.0-1016-nvidia"}},
    passes={"system": {"kernel": "6.17.0-1014-nvidia"}},
)
def kernel_loads_slowly(machine: Machine) -> Iterator[Hit]:
    """The Spark's first kernel, 6.11, reads memory-mapped files slowly, and weights are
    memory-mapped. 6.17 is much faster. Until then a loader that does not map helps:
    `--safetensors-load-strategy eager`.
    """
    name = machine.system.kernel
    if (version(name) or (99,))[:2] <= (6, 11):
        yield Hit(
            f"Kernel {name} maps files into memory slowly: loading weights takes minutes longer."
        )


@kernel.rule(
    "HOST011",
    "kernel-breaks-rdma",
    "error",
    kind="multi-node-rdma",
    source="https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/14",
    fix=(
        "Start the kernel from before it (6.17.0-1032-nvidia) from the boot menu, and hold it back."
    ),
    fails={"system": {"kernel": "7.0.0-1019-nvidia"}, "wanted": {"nodes": 2}},
    passes={"system": {"kernel": "7.0.0-1020-nvidia"}, "wanted": {"nodes": 2}},
)
def kernel_breaks_rdma(machine: Machine) -> Iterator[Hit]:
    """On the kernels 7.0.0-1019-nvidia and 7.0.0-31-generic NCCL ends with
    `ibv_reg_mr_iova2 failed with error Cannot allocate memory`, with the same driver and images
    that work on 6.17.0-1032 and 7.0.0-30. It does not affect a single Spark: there it is a note.
    """
    name = machine.system.kernel
    for bad, source in BAD_RDMA_KERNELS.items():
        if re.match(rf"{re.escape(bad)}(?!\d)", name):
            yield Hit(
                f"Kernel {name} cannot register memory for RDMA: several Sparks do not come up"
                " together.",
                source=source,
                severity=None if machine.wanted.nodes > 1 else "info",
            )


@check("kernel log", probe="kernel_log")
def kernel_log(machine: Machine) -> str:
    lines = machine.system.kernel_messages
    if lines is None:
        raise Unknown(
            "the kernel's log may only be read by root here: sudo dmesg | grep -E 'NVRM|Xid'"
        )
    return f"{len(lines)} lines" if lines else "no fault of the GPU's driver in it"


@kernel_log.rule(
    "HOST019",
    "driver-faults",
    "warning",
    kind="cuda-init",
    confidence="medium",
    source="https://github.com/NVIDIA/NemoClaw/issues/4658",
    fix="Restart the machine before the next start; keep the lines for a report.",
    fails={
        "system": {
            "kernel_messages": [
                "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY]"
                " (0x00000051)"
            ]
        }
    },
)
def driver_faults(machine: Machine) -> Iterator[Hit]:
    """After the driver has run out of memory once (`NVRM … NV_ERR_NO_MEMORY`), later starts can end
    with `CUDA unknown error`. An `Xid` is a fault of a program on the GPU, such as an illegal
    access to memory.
    """
    lines = machine.system.kernel_messages
    if not lines:
        return
    last = lines[-1][:200]
    if any("NV_ERR_NO_MEMORY" in line or "out of memory" in line.lower() for line in lines):
        yield Hit("The driver ran out of memory since the last boot.", last)
    else:
        message = "The driver reported a fault of the GPU since the last boot."
        yield Hit(message, last, kind="illegal-memory")
