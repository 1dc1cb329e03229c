"""The engine's own account of a measurement, from its counters."""

from __future__ import annotations

from sparkbook.bench.results import Engine
from sparkbook.errors import SparkbookError
from sparkbook.metrics import Metrics
from sparkbook.metrics.deltas import Deltas, deltas


def engine_delta(
    before: Metrics | None, after: Metrics | None, seconds: float
) -> tuple[Engine | None, bool]:
    """Return how far the engine's counters grew, and whether the engine restarted meanwhile."""
    if before is None or after is None:
        return None, before is not None
    try:
        change = deltas(before, after, seconds)
    except SparkbookError:
        return None, True
    return (engine_account(change) if change.generation_tokens is not None else None), False


def engine_account(change: Deltas) -> Engine:
    """Return the part of two scrapes' difference that a result stores."""
    return Engine(
        generation_tokens=change.generation_tokens,
        prompt_tokens=change.prompt_tokens,
        preemptions=change.preemptions,
        prefix_hits=change.prefix_hits,
        drafts=change.drafts,
        drafted=change.drafted,
        accepted=change.accepted,
        acceptance=change.acceptance,
        mean_length=change.mean_length,
        per_position=list(change.per_position),
        queue_s=change.queue_s,
        steps=change.steps,
        first_tokens=change.first_tokens,
        ttft_s=change.ttft_s,
        decode_s=change.decode_s,
    )
