"""What a conversion reports: what was lost, guessed or left out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sparkbook.rules import Family, Rule


class Example(NamedTuple):
    """An input, and the format that it is written in; None: it is only read."""

    text: str
    to: str | None


@dataclass(frozen=True, kw_only=True, eq=False)
class ConversionRule(Rule):
    """One kind of entry in a loss report.

    Attributes:
        to: for a writer's entry, the format that both examples are written in.
    """

    to: str | None = None

    def example(self, which: Literal["fails", "passes"]) -> Any:
        """The input and the target format."""
        return Example(super().example(which), self.to)


CONV = Family(
    "CONV",
    "conversions",
    "What `sparkbook convert` reports about a conversion: what the target has no place for, what"
    " was guessed, what was left out. Each example was converted when this page was built; the"
    " findings are what the report contained.",
    type=ConversionRule,
    samples="sparkbook.formats.samples",
)
CONV.load(Path(__file__).with_name("rules.yaml"))
