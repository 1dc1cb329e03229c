"""Advice and trials for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparkbook.bench.lossless import Trial


@dataclass(frozen=True)
class Expected:
    """The speed-up to expect from a running server's acceptance.

    Attributes:
        rows: K, tokens per step and speed-up.
        basis: what they rest on.
        draft_cost, verify_cost: assumed, of one token, as shares of a step without speculation.
    """

    rows: Sequence[tuple[int, float, float]]
    basis: str
    draft_cost: float
    verify_cost: float

    @property
    def best(self) -> int:
        """The K with the largest speed-up."""
        return max(self.rows, key=lambda row: row[2])[0]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("k", "tokens_per_step", "speed_up")
        rows = [dict(zip(names, row, strict=True)) for row in self.rows]
        summary = {"basis": self.basis, "expected": rows, "best": self.best}
        return {"findings": [], "summary": summary}

    def lines(self) -> Iterator[RenderableType]:
        """Yield a line for each K, with the best one marked."""
        yield self.basis
        for k, tokens, gain in self.rows:
            mark = "   <" if k == self.best else ""
            yield f"  K = {k:<2}  {tokens:5.2f} tokens a step  {gain:5.2f} times as fast{mark}"
        yield (
            f"An estimate: a draft token is assumed to cost {self.draft_cost:g} of a step, a"
            f" checked token {self.verify_cost:g}. To be sure, measure without and with"
            " speculation."
        )


def trial(result: Trial, option: str) -> Iterator[RenderableType]:
    """Yield what an option changed."""
    yield f"{option}: {result.verdict}"
    yield f"replies: {result.equality}"
    yield f"tasks:   {result.scores}"
    yield f"moved:   {result.moved}"
