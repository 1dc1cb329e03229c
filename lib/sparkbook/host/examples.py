"""Memory of real Sparks, from public reports: to judge before one has a Spark, and to compare one's
own with.

Nothing here was measured by this project. Each entry says which of its numbers a report gives, and
which are made up to fill a text out.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from sparkbook.host.memory import Memory
from sparkbook.units import GIB


@dataclass(frozen=True)
class ReportedHost:
    """One host in a public report, at the moment of the report.

    Attributes:
        state: what the host was doing.
        total_gib: memory that vLLM or the kernel showed as the total, in GiB.
        available_gib: memory that was available then, in GiB; of a range, its lower end.
        source: address of the report.
        date: of the report.
    """

    state: str
    total_gib: float
    available_gib: float
    source: str
    date: datetime.date

    @property
    def memory(self) -> Memory:
        """As a `Memory`, to the precision of the report; free memory is not reported and taken as
        what is available.
        """
        available = round(self.available_gib * GIB)
        return Memory(total=round(self.total_gib * GIB), free=available, available=available)


REPORTED: tuple[ReportedHost, ...] = (
    ReportedHost(
        "idle after a model was unloaded (total less 7.97 GiB in use)",
        121.69,
        113.72,
        "https://github.com/Syllo/nvtop/issues/449",
        datetime.date(2026, 8, 7),
    ),
    ReportedHost(
        "headless, freshly booted, caches dropped",
        121.69,
        101.3,
        "https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47",
        datetime.date(2026, 8, 30),
    ),
    ReportedHost(
        "vm.min_free_kbytes raised before the launch",
        121.69,
        98.89,
        "https://github.com/tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark/pull/19",
        datetime.date(2026, 9, 3),
    ),
    ReportedHost(
        "other programs running",
        119.56,
        55.87,
        "https://github.com/vllm-project/vllm/issues/48140",
        datetime.date(2026, 7, 9),
    ),
    ReportedHost(
        "another engine and embedding servers running",
        121.63,
        38.74,
        "https://github.com/rwlove/home-ops/pull/13221",
        datetime.date(2026, 7, 23),
    ),
    ReportedHost(
        "after some 35 restarts of a failing server",
        121.63,
        36.75,
        "https://github.com/eugr/spark-vllm-docker/issues/257",
        datetime.date(2026, 5, 23),
    ),
)
"""Hosts with a GB10 in public reports."""


@dataclass(frozen=True)
class MeminfoExample:
    """A text of `/proc/meminfo` to practise on.

    Attributes:
        text: as the file would read.
        what: the situation.
        reported: which numbers the report gives. All others are made up, consistent with those.
        source: address of the report; None for a text that no report stands behind.
    """

    text: str
    what: str
    reported: str
    source: str | None


EXAMPLES: dict[str, MeminfoExample] = {
    "headless": MeminfoExample(
        text="""\
MemTotal:       127601664 kB
MemFree:        105801216 kB
MemAvailable:   106744832 kB
Buffers:           90112 kB
Cached:          2031616 kB
Shmem:             24576 kB
SwapTotal:      16777212 kB
SwapFree:       16777212 kB
""",
        what="a headless Spark, freshly booted, caches dropped",
        reported="MemTotal (121.69 GiB) and MemAvailable (within 101.3 to 102.2 GiB)",
        source="https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47",
    ),
    "after-download": MeminfoExample(
        text="""\
MemTotal:       127601664 kB
MemFree:         10066432 kB
MemAvailable:   106010624 kB
Buffers:          331776 kB
Cached:         97937408 kB
Shmem:             24576 kB
SwapTotal:      16777212 kB
SwapFree:       16777212 kB
""",
        what="the same Spark after a download of 100 GB: the page cache holds most of it",
        reported="none: an illustration that carries the first example on",
        source=None,
    ),
    "shared": MeminfoExample(
        text="""\
MemTotal:       125367744 kB
MemFree:         27812140 kB
MemAvailable:    59063644 kB
""",
        what="a Spark with other programs running, at the moment vLLM refused to start",
        reported="MemFree and MemAvailable; MemTotal is the 119.56 GiB of vLLM's message",
        source="https://github.com/vllm-project/vllm/issues/48140",
    ),
}
"""Examples by name."""
