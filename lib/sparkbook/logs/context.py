"""What a judgement of a signature may look at."""

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
        count: in how many events it was found; `event` is the first.
        last: the last event it was found in.
        row: of the event's lines, the one that holds it, from 0.
    """

    signature: Signature
    event: Event
    groups: dict[str, str]
    count: int = 1
    last: Event | None = None
    row: int = 0


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


def group_of(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text, re.IGNORECASE)
    return match[1] if match else None


def text_of(value: Any) -> str | None:
    return None if value is None else str(value)
