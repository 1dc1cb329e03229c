"""What the doctor found in a log, and what a judgement of it may look at."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

from sparkbook.logs.facts import Facts
from sparkbook.logs.reader import Event
from sparkbook.logs.signatures import Signature
from sparkbook.logs.story import Story

Changes = dict[str, Any]


@dataclass
class Found:
    """A signature found in an event.

    Attributes:
        groups: the named groups that took part.
        count: in how many lines or tracebacks it was found; `event` is the first.
        last: the last event it was found in.
        row: of the event's lines, the one that holds it, from 0.
    """

    signature: Signature
    event: Event
    groups: dict[str, str]
    last: Event | None = None
    row: int = 0
    _alike: dict[int, int] = field(default_factory=dict)
    _single: int = 0

    def __post_init__(self) -> None:
        self._count(self.event)

    def again(self, event: Event) -> None:
        """Take note of another event that holds the signature."""
        self._count(event)
        if self.last is None or event.number > self.last.number:
            self.last = event

    def _count(self, event: Event) -> None:
        # Of lines that are alike the reader passes some over, and says how many came before.
        if event.shape is None:
            self._single += 1
        elif len(self._alike) < 10_000 or event.shape in self._alike:
            self._alike[event.shape] = max(self._alike.get(event.shape, 0), event.repeats + 1)

    @property
    def count(self) -> int:
        """In how many lines or tracebacks it was found."""
        return sum(self._alike.values()) + self._single

    @property
    def end(self) -> int:
        """Number of the last line that holds it."""
        return max(self.event.number, self.last.number if self.last else 0)


@dataclass
class Context:
    """What a judgement may look at besides its own line."""

    story: Story
    facts: Facts
    found: dict[str, Found] = field(default_factory=dict)
    bars: dict[str, int] = field(default_factory=dict)

    def has(self, *codes: str) -> bool:
        """Whether one of these signatures was found."""
        return any(code in self.found for code in codes)

    @property
    def total(self) -> float | None:
        """All memory in GiB, from the facts or from the start-up check's line."""
        if self.facts.total_gib is not None:
            return self.facts.total_gib
        check = self.found.get("LOG101")
        return number(check.groups.get("total")) if check else None

    @property
    def stop(self) -> Found | None:
        """The order to stop, if the log has one."""
        return next((one for one in self.found.values() if one.signature.stops), None)

    @property
    def fraction(self) -> float | None:
        """The fraction asked for, from the log or the facts."""
        value = self.story.args.get("gpu_memory_utilization")
        return float(value) if isinstance(value, int | float) else self.facts.fraction


def number(text: str | None) -> float | None:
    """A figure as printed, or None."""
    try:
        value = None if text is None else float(text.replace(",", "").rstrip("."))
    except ValueError:
        return None
    return value if value is not None and math.isfinite(value) else None


def group(pattern: str, text: str) -> str | None:
    """Return the first group of a pattern in a text, letters of either case; None without it."""
    match = re.search(pattern, text, re.IGNORECASE)
    return match[1] if match else None
