"""Memory of the host, and what `--gpu-memory-utilization` asks of it.

On a Spark the GPU has no memory of its own: `/proc/meminfo` describes the one pool that weights, KV
cache, operating system and page cache share. Everything here is pure: text and numbers in, values
out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sparkbook.errors import SparkbookError
from sparkbook.units import GIB, KIB

VLLM_DEFAULT_UTILIZATION = 0.92
"""Default of `--gpu-memory-utilization` (vLLM 0.32.0, `vllm/config/cache.py`; formerly 0.9)."""

_LINE = re.compile(r"^(\w+(?:\(\w+\))?):\s+(\d{1,18})(?: kB)?\s*$", re.MULTILINE)
_NEEDED = ("MemTotal", "MemFree", "MemAvailable")


@dataclass(frozen=True)
class Memory:
    """What `/proc/meminfo` says, in bytes.

    Attributes:
        total: what the kernel manages; less than what is soldered in, by what firmware and kernel
            keep for themselves.
        free: not used for anything.
        available: the kernel's estimate of what a program could get without swapping: free memory
            plus most of the page cache, less a reserve (`MemAvailable`, Linux
            Documentation/filesystems/proc.rst).
        page_cache: file contents kept in memory (`Cached` + `Buffers`, without `Shmem`, which
            cannot be dropped).
        swap_total, swap_free: swap space.
        cma_total, cma_free: memory kept together for devices (`CMA`). All from `page_cache` on are
            None where the text does not say.
    """

    total: int
    free: int
    available: int
    page_cache: int | None = None
    swap_total: int | None = None
    swap_free: int | None = None
    cma_total: int | None = None
    cma_free: int | None = None

    @property
    def reclaimable(self) -> int:
        """What the kernel would give back on demand, in bytes: available less free, mostly page
        cache.
        """
        return max(self.available - self.free, 0)

    @property
    def used(self) -> int:
        """What programs and the kernel hold and would not give back: total less available, in
        bytes.
        """
        return self.total - self.available


def parse_meminfo(text: str) -> Memory:
    """Read the text of `/proc/meminfo`. The kernel's `kB` are 1024 bytes.

    Raises:
        SparkbookError: MemTotal, MemFree or MemAvailable is missing, so this is not such a text.
    """
    found = {name: int(number) * KIB for name, number in _LINE.findall(text)}
    if missing := [name for name in _NEEDED if name not in found]:
        raise SparkbookError(
            f"this is not the text of /proc/meminfo: {', '.join(missing)} missing; give it the"
            " whole file of a Linux host"
        )
    cache = None
    if "Cached" in found:
        cache = max(found["Cached"] + found.get("Buffers", 0) - found.get("Shmem", 0), 0)
    return Memory(
        total=found["MemTotal"],
        free=found["MemFree"],
        available=found["MemAvailable"],
        page_cache=cache,
        swap_total=found.get("SwapTotal"),
        swap_free=found.get("SwapFree"),
        cma_total=found.get("CmaTotal"),
        cma_free=found.get("CmaFree"),
    )


@dataclass(frozen=True)
class StartCheck:
    """vLLM's admission check, worked out beforehand. Sizes are bytes.

    Attributes:
        utilization: the fraction that was asked for.
        requested: that fraction of the total.
        available: what the host could give.
    """

    utilization: float
    requested: int
    available: int
    total: int

    @property
    def passes(self) -> bool:
        """Whether vLLM would go on."""
        return self.available >= self.requested

    @property
    def missing(self) -> int:
        """Bytes that are short; 0 where the check passes."""
        return max(self.requested - self.available, 0)

    @property
    def left_to_host(self) -> int:
        """Bytes of the available memory that the engine does not ask for; negative where the check
        fails.
        """
        return self.available - self.requested

    @property
    def largest_utilization(self) -> float:
        """The largest fraction, in steps of a hundredth, that would pass. It leaves nothing to
        spare: stay below it.
        """
        # A tiny nudge: 0.83 x total computed in floats may come out a hair above what is available.
        return math.floor(self.available / self.total * 100 + 1e-9) / 100

    def __str__(self) -> str:
        verdict = "passes" if self.passes else f"fails, {self.missing / GIB:.2f} GiB short"
        return (
            f"{self.utilization:.2f} asks for {self.requested / GIB:.2f} GiB,"
            f" {self.available / GIB:.2f} GiB are available: {verdict}"
        )


def start_check(memory: Memory, utilization: float = VLLM_DEFAULT_UTILIZATION) -> StartCheck:
    """Return what vLLM's start-up check will say on a host with unified memory.

    The fraction is taken of the total, rounded up to a byte, and compared with `MemAvailable` (vLLM
    0.32.0: `request_memory` in `vllm/v1/worker/utils.py`, `MemorySnapshot.measure` in
        `vllm/utils/mem_utils.py`; MemAvailable is read on integrated GPUs since
    https://github.com/vllm-project/vllm/pull/35356).

    On GB10 in public reports (`sparkbook.host.REPORTED`): the total is 119.56 to 121.69 GiB. A
    freshly booted headless host that has 101.3 of 121.69 GiB available fails at the default of 0.92
    and passes at 0.83; an idle host that has 113.72 passes at both. So the fraction that a host can
    give has to be measured on that host.

    Raises:
        SparkbookError: the fraction is not above 0 and at most 1.
    """
    if not 0 < utilization <= 1:
        raise SparkbookError(
            f"gpu-memory-utilization is {utilization}: it is a fraction of all memory, above 0 and"
            " at most 1, such as 0.8"
        )
    return StartCheck(
        utilization, math.ceil(memory.total * utilization), memory.available, memory.total
    )
