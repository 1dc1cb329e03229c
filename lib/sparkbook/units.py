"""Sizes that know their unit.

Memory on a Spark is quoted in two units that differ by 7 %: a model card's "19 GB" is 19 x 10^9
bytes, vLLM's logs and flags count in GiB (2^30 bytes). Numbers in this library are bytes or GiB; a
name that ends in `_gb` is the only place where 10^9 is meant.
"""

from __future__ import annotations

import math
import re

from sparkbook.errors import SparkbookError

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
GB = 10**9
_MOST_DIGITS = 30

_FACTORS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": GB,
    "tb": 10**12,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
    "k": KIB,
    "m": MIB,
    "g": GIB,
    "t": TIB,
}


def gb_to_gib(gb: float) -> float:
    """Gigabytes (10^9 bytes, as model cards and disk makers count) in GiB (2^30 bytes)."""
    return gb * GB / GIB


def parse_size(text: str | int) -> int:
    """A size such as `64M`, `16gb`, `1.5 GiB` or `4096` in bytes.

    A bare letter means a power of two, as Docker's `--shm-size` and vLLM's
    `--kv-cache-memory-bytes` read it; `GB` is 10^9, `GiB` 2^30.

    Raises:
        SparkbookError: the text is not a number with a known unit.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    if not match or match[2].lower() not in _FACTORS:
        raise SparkbookError(
            f"'{str(text)[:40]}' is not a size: write a number and a unit, such as 64M, 16GiB or"
            " 19 GB"
        )
    if len(match[1]) > _MOST_DIGITS:
        raise SparkbookError(
            f"'{match[1][:12]}…' is no size: it has {len(match[1])} digits, more than any memory or"
            " disk needs"
        )
    return round(float(match[1]) * _FACTORS[match[2].lower()])


def format_bytes(size: float) -> str:
    """Bytes for people, in the largest binary unit that leaves at least one: `1.50 GiB`; `unknown`
    for what is no finite number.
    """
    if not math.isfinite(size):
        return "unknown"
    for factor, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        # Asked after rounding in the next smaller unit, so that 1024.00 MiB is never shown.
        if round(abs(size) / (factor / 1024), 2) >= 1024:
            return f"{size / factor:.2f} {name}"
    return f"{size:.0f} B"


def format_seconds(seconds: float) -> str:
    """Seconds for people: `850 ms`, `12.3 s`, `3 min 05 s`; `unknown` for what is no number, and
    `forever` without end.
    """
    if not math.isfinite(seconds):
        return "unknown" if math.isnan(seconds) else "forever"
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"
