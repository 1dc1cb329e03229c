"""What the kernels should take on a Spark, before one has measured them: the bytes of the
weights at its memory's rate, and what a launch took besides on another card.

A product of few tokens waits for its weights. On the H100, NVFP4 products of 9 to 132 MB take 5 to
6 us more than the reading of their bytes. GB10's memory is thirteen times slower, and instructions
are not the limit there either (`instruction_share`). A product of many tokens waits for the tensor
cores: for it there is a bound (`prefill_floor_us`), and no prediction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sparkbook.host import spark
from sparkbook.kernels.records import Report

MULTIPROCESSORS, CLOCK_GHZ = 48, 2.418
"""Of GB10, by its deviceQuery: https://blog.kubesimplify.com/blog/day-3-the-dgx-spark-unpacked-gb10-unified-memory-sm-121-and-the-one-reason-this-hardware-exists,
read 2026-11-29.
"""
HOPPER_GHZ = 1.98
"""Highest clock of the multiprocessors of an H100 or H200 SXM, by `nvidia-smi -q -d CLOCK`."""
_OURS = (
    "fp4_gemv",
    "marlin_gemv",
    "sparse_gemv",
    "fp8_gemv",
    "lm_head",
    "moe_decode",
    "marlin_moe",
)


@dataclass(frozen=True)
class Predicted:
    """A launch on a Spark (for experts, both). Times in microseconds.

    Attributes:
        what, shape, tokens: as in a benchmark's row.
        mb: of the weights, 10^6 bytes.
        floor_us: at the memory's specified rate, 273 GB/s; nothing can be faster.
        low_us, high_us: between 234 GB/s, what a program that only reads gets, with a launch that
            costs nothing, and 231 GB/s with what it costs on the other card.
    """

    what: str
    shape: str
    tokens: int
    mb: float
    floor_us: float
    low_us: float
    high_us: float


def predict(report: Report) -> Iterator[Predicted]:
    """Yield a prediction for each product of ours that the report of another card has."""
    slow, fast = spark.READ_GB_S
    for row in report.rows:
        if not row["what"].startswith(_OURS):
            continue
        besides = max(0.0, row["us"] - 1e3 * row["mb"] / report.ceilings_gb_s["read"])
        floor, low, high = (1e3 * row["mb"] / rate for rate in (spark.BANDWIDTH_GB_S, fast, slow))
        what, shape, tokens = row["what"], row["shape"], row["tokens"]
        yield Predicted(what, shape, tokens, row["mb"], floor, low, high + besides)


def instruction_share(us: float, report: Report, mb: float) -> float:
    """Return the share of the reading time that GB10 needs for the instructions of a product.

    Args:
        us: they take on the report's card, an H100 or H200.
        report: of that card, for its number of multiprocessors.
        mb: of the weights.
    """
    there = us * report.machine["multiprocessors"] * HOPPER_GHZ / (MULTIPROCESSORS * CLOCK_GHZ)
    return there / (1e3 * mb / spark.READ_GB_S[1])


def prefill_floor_us(m: int, n: int, k: int, bits: int) -> float:
    """Return the least time of a product of m tokens with operands of so many bits (4, 8, 16) on
    the tensor cores of a Spark, by its specification; or that of reading NVFP4 weights, if longer.
    """
    compute = 2 * m * n * k / (spark.PEAK_FLOP_S * 4 / bits) * 1e6
    return max(compute, n * k * 9 / 16 / (spark.BANDWIDTH_GB_S * 1e3))
