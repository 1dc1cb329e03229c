"""The machine of a plan, in bytes, and the bounds of what is not known before a start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparkbook.checkpoint.values import Range
from sparkbook.units import GIB

TOTAL = round(121.63 * GIB)
"""What vLLM shows as the total of a DGX Spark of "128 GB" in most public reports
(`sparkbook.host.REPORTED`).
"""

SYSTEM = Range(7.9 * GIB, 20.4 * GIB)
"""What an idle host has in use: total less available in the two reports of idle Sparks
(`sparkbook.host.REPORTED`: 7.97 of 121.69 GiB on one, 20.39 on a freshly booted one).
"""

CUDA_CONTEXT = Range(0.5 * GIB, 2.0 * GIB)
"""CUDA context and libraries. On an H100, context and activations of a small model together took
1.0 GiB.
"""

ACTIVATION_PER_1K = Range(0.02 * GIB, 0.65 * GIB)
"""Peak of activations for each 1,024 of `--max-num-batched-tokens`. The upper end: 5.30 GiB at
8,224 tokens against 1.39 at 2,048 on one GB10 with a large MoE (DeepSeek-V4-Flash); small models
are far below.
"""

GRAPHS = Range(0.05 * GIB, 1.0 * GIB)
"""CUDA graphs without a draft: 0.06 GiB (12 graphs, H100), 0.33 and 0.62 (GB10)."""

GRAPHS_DRAFTED = Range(0.3 * GIB, 6.3 * GIB)
"""CUDA graphs with a draft of its own: up to 6.24 GiB with 38 + 22 graphs (Qwen3.6-35B-A3B with
DFlash on GB10).
"""

RESERVE = 4 * GIB
"""What should stay free for the host when all is running. MemAvailable has read 22 GiB when the
driver was out of memory (https://github.com/vllm-project/vllm/issues/54200), so more is better; at
less the host stops answering.
"""


@dataclass(frozen=True)
class CoTenant:
    """Something else that holds memory: an engine with a fraction, or so many bytes.

    Attributes:
        name: in words.
        fraction: `--gpu-memory-utilization` of another engine; it holds that share of all memory.
        size: bytes, where there is no fraction.
    """

    name: str
    fraction: float | None = None
    size: int = 0

    def held(self, total: int) -> int:
        """Bytes of a machine with so many in total."""
        return math.ceil(self.fraction * total) if self.fraction is not None else self.size


@dataclass(frozen=True)
class Host:
    """The machine, in bytes.

    Attributes:
        total: what vLLM shows as total.
        available: MemAvailable before anything of this plan runs.
        cotenants: what else runs beside; taken off what is available.
        free: MemFree, without what the page cache would give back; None where it is not known.
    """

    total: int = TOTAL
    available: Range | None = None
    cotenants: tuple[CoTenant, ...] = ()
    free: int | None = None

    @property
    def held(self) -> int:
        """Bytes that the co-tenants hold."""
        return sum(tenant.held(self.total) for tenant in self.cotenants)

    @property
    def free_for_engine(self) -> Range:
        """What an engine finds available when it starts."""
        return (self.available or Range.of(self.total) - SYSTEM) - self.held


def together(engines: Sequence[CoTenant], total: int = TOTAL) -> tuple[int, int]:
    """What engines and programs side by side hold, and what is left of the machine; negative: they
    do not fit. Bytes.
    """
    held = sum(tenant.held(total) for tenant in engines)
    return held, total - held
