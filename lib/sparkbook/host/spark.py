"""The figures of a DGX Spark, and of the engine that ships with this project, once each. Whatever
plans, judges or draws takes them from here; a test looks for second copies.
"""

from __future__ import annotations

import math

from sparkbook.units import GIB

TOTAL_GIB = 121.63
"""What vLLM shows as the total of a DGX Spark of "128 GB", GiB, in most public reports
(`sparkbook.host.REPORTED`: 119.56 to 121.69).
"""

TOTAL = round(TOTAL_GIB * GIB)
"""`TOTAL_GIB` in bytes."""

USABLE_GIB = 101.5
"""Memory that a freshly booted headless Spark has available, GiB: 101 to 102 in public reports
(`sparkbook.host.REPORTED`).
"""

REACHABLE = math.floor(100 * USABLE_GIB / TOTAL_GIB) / 100
"""The largest `--gpu-memory-utilization` that such a Spark can meet: 0.83."""

BANDWIDTH_GB_S = 273.0
"""Memory bandwidth of GB10 in GB/s (10^9 bytes), by its specification: DGX Spark User Guide,
https://docs.nvidia.com/dgx/dgx-spark/.
"""

READ_GB_S = (231.0, 234.0)
"""What a program that only reads has reached on GB10, GB/s:
https://github.com/antirez/ds4/issues/773.
"""

PEAK_FLOP_S = 500e12
"""FLOP/s of GB10 in dense FP4, the most that any kernel can reach: the specification's 1 PFLOP/s is
FP4 with sparsity (NVIDIA DGX Spark data sheet). FP8 halves it, and BF16 halves it again.
"""

STUCK_MHZ = 900.0
"""An SM clock below this under load is a fault of the power supply, unless a throttle reason is
shown: reports of stuck machines show 513, 721 and 800 MHz, healthy ones about 2400
(https://github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/1).
"""

ENGINE_RELEASE = "0.32.0"
"""The vLLM release of the embedded engine (`requirements-engine.txt`), which recipes without an
image run on. Plans assume it if nothing names a release.
"""
