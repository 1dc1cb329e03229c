"""Starts of real engines whose logs are public, next to what the plan makes of their lines."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from sparkbook.checkpoint.values import Range
from sparkbook.plan import memory, request
from sparkbook.units import GIB
from sparkbook.util import own_yaml

FILE = Path(__file__).with_name("starts.yaml")
_ROUNDED = 0.005 * GIB
"""A log rounds GiB to hundredths."""
_CLOSE = 0.01
"""The share by which weights may differ."""


class Start(BaseModel):
    """One start: its line, and what the engine logged, of one machine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    line: str
    release: str
    machine: str
    source: str
    weights_gib: float | None = None
    kv_gib: float | None = None
    tokens: int | None = None
    longest: int | None = None
    note: str | None = None


@dataclass(frozen=True)
class Outcome:
    """A start and what the plan says of it.

    Attributes:
        start: what was logged.
        weights: bytes of the weights.
        tokens: KV tokens, or the longest context, that the logged memory gives; None where the log
            has none.
    """

    start: Start
    weights: Range
    tokens: Range | None

    @property
    def weights_hold(self) -> bool | None:
        """Whether the logged weights are within 1 % of the plan's; None without any."""
        if self.start.weights_gib is None:
            return None
        logged = self.start.weights_gib * GIB
        return self.weights.low * (1 - _CLOSE) <= logged <= self.weights.high * (1 + _CLOSE)

    @property
    def tokens_hold(self) -> bool | None:
        """Whether the logged tokens are what the logged memory, rounded as it is, gives."""
        logged = self.start.tokens or self.start.longest
        if logged is None or self.tokens is None:
            return None
        return self.tokens.low <= logged <= self.tokens.high

    @property
    def holds(self) -> bool:
        """Whether nothing that was logged differs."""
        return self.weights_hold is not False and self.tokens_hold is not False


@functools.cache
def starts() -> tuple[Start, ...]:
    """The starts of `starts.yaml`."""
    return tuple(Start.model_validate(entry) for entry in own_yaml.read(FILE)["starts"])


def outcome(start: Start) -> Outcome:
    """Return what the plan says of a start."""
    setup = request.read(start.line, request.Override(release=start.release))
    tokens = None
    if start.kv_gib is not None:
        ends = (start.kv_gib * GIB - _ROUNDED, start.kv_gib * GIB + _ROUNDED)
        limit = memory.plan(setup).limit
        tokens = Range.hull(
            pages.longest(end, 1, limit) if start.longest else pages.tokens(end)
            for pages in setup.pages
            for end in ends
        )
    return Outcome(start, setup.weights, tokens)


def outcomes() -> list[Outcome]:
    """What the plan says of every start."""
    return [outcome(start) for start in starts()]
