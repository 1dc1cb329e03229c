"""The network between two nodes, as an all-reduce sees it: of two Sparks in good order, of a fabric
that was measured, by size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sparkbook.checkpoint.values import Range
from sparkbook.errors import SparkbookError
from sparkbook.units import GB
from sparkbook.util import limits
from sparkbook.util.invalid import reason


@dataclass(frozen=True)
class Link:
    """The network between two nodes, as an all-reduce sees it.

    Attributes:
        latency_s: seconds of an all-reduce of 8 KiB.
        gb_s: GB/s (10^9 bytes) that each byte beyond costs: from what small messages get to what
            large ones do.
        source: where the figures are from.
        measured: whether on the reader's own nodes.
        table: (bytes, seconds) of an all-reduce between two nodes as measured, by size; it counts
            where there is one, for between 8 KiB and large messages neither latency nor rate
            decides alone.
    """

    latency_s: Range
    gb_s: Range
    source: str
    measured: bool = False
    table: tuple[tuple[float, float], ...] = ()

    def all_reduce(self, size: float, nodes: int = 2) -> Range:
        """Return seconds of an all-reduce over a ring: n−1 times what two nodes take for 2/n of
        the bytes.
        """
        rounds, piece = max(nodes - 1, 1), 2 * size / max(nodes, 2)
        if self.table:
            spent = between(self.table, piece)
            return Range(spent, spent * SPREAD) * rounds
        beyond = max(size - SMALL, 0) * 2 / max(nodes, 2)
        each = Range(beyond / (self.gb_s.high * GB), beyond / (self.gb_s.low * GB))
        return (self.latency_s + each) * rounds

    def with_latency(self, latency_s: float) -> Link:
        """Return the same with another latency, by latency and rate alone."""
        return replace(self, latency_s=Range.of(latency_s), table=())


def between(table: Sequence[Sequence[float]], size: float) -> float:
    """Return the value for a size: on a straight line between the two sizes around it, as the
    smallest has it below, and on the line through the last two beyond.

    Args:
        table: (size, value), by size.
    """
    if size <= table[0][0] or len(table) == 1:
        return table[0][1]
    at = next((n for n in range(1, len(table)) if table[n][0] >= size), len(table) - 1)
    (low, left), (high, right) = table[at - 1], table[at]
    return left + (right - left) * (size - low) / (high - low)


SMALL = 8192
"""Bytes of the small message whose time is taken for the latency."""

SPREAD = 1.15
"""How much longer than measured an all-reduce may take inside a step."""

NOMINAL = Link(
    Range(30e-6, 40e-6),
    Range(1.6, 22.0),
    "NCCL over both halves of one 200 Gb/s port of two Sparks: 30 to 35 µs for 8 KiB, 65 µs for 64"
    " KiB (https://github.com/NVIDIA/dgx-spark-playbooks/pull/103), about 22 GB/s for large"
    " messages (https://github.com/NVIDIA/dgx-spark-playbooks/issues/25)",
)
"""A healthy link where nothing was measured."""

_SMALL_SHARE = 1.6 / 22.0
"""Share of a large message's rate that one of some tens of KiB reaches (pull request 103)."""


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Measured(BaseModel):
    """What counts here of a pair of nodes (`fabric.Pair`)."""

    model_config = ConfigDict(extra="ignore", strict=True)

    a: str = "one node"
    b: str = "another"
    problem: str | None = None
    reduce_problem: str | None = None
    reduce_us: _Positive | None = None
    reduce_gbit: _Positive | None = None
    reduce_table: list[Annotated[list[_Positive], Field(min_length=2, max_length=2)]] | None = None

    @field_validator("reduce_table")
    @classmethod
    def _by_size(cls, table: list[list[float]] | None) -> list[list[float]] | None:
        sizes = [size for size, _ in table or ()]
        if sizes != sorted(set(sizes)):
            raise ValueError("every size once, the smallest first")
        return table


def link_of(fabric: Any) -> Link:
    """Return the slowest pair of a fabric check, as `Pair`s or as their JSON: one pair, a list, or
    an object with `pairs`.

    Raises:
        SparkbookError: it is none, or holds no all-reduce.
    """
    found = fabric.get("pairs", fabric) if isinstance(fabric, dict) else fabric
    listed = found if isinstance(found, list | tuple) else [found]
    plain = [one.model_dump() if isinstance(one, BaseModel) else one for one in listed]
    try:
        pairs = [_Measured.model_validate(one) for one in plain]
    except ValidationError as error:
        raise SparkbookError(f"the measured network: {reason(error)}") from error
    timed = [(pair.reduce_us, pair.reduce_gbit, pair) for pair in pairs]
    complete = [(us, gbit, pair) for us, gbit, pair in timed if us and gbit]
    if not complete or len(complete) < len(timed):
        why = next((p.problem or p.reduce_problem for p in pairs if not p.reduce_us), None)
        raise SparkbookError(
            f"the fabric has no measured all-reduce for every pair ({why or 'nothing said why'}):"
            " measure it with an image"
        )
    us, _, slow = max(complete, key=lambda one: one[0])
    large = min(gbit for _, gbit, _ in complete) / 8
    source = (
        f"measured between {slow.a} and {slow.b}: {us:g} µs for 8 KiB, {large * 8:g} Gbit/s for"
        " large messages"
    )
    return Link(
        Range(us * 1e-6, us * 1e-6 * SPREAD),
        Range(large * _SMALL_SHARE, large),
        source,
        measured=True,
        table=tuple((size, spent * 1e-6) for size, spent in slow.reduce_table or ()),
    )


def read_link(file: Path) -> Link:
    """`link_of` a file of JSON.

    Raises:
        SparkbookError: it can't be read, is no JSON, or holds no all-reduce.
    """
    return link_of(limits.read_json(file, "the measured network"))
