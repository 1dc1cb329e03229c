"""What changed between two scrapes of an engine's `/metrics`."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from sparkbook.errors import SparkbookError
from sparkbook.metrics import Histogram, Metrics


@dataclass(frozen=True)
class Deltas:
    """What changed between two scrapes; None where a metric is not there.

    Attributes:
        seconds: between the scrapes.
        generation_tokens, prompt_tokens: tokens made and read.
        running, waiting: requests now.
        kv_use: share of the KV cache in use now, 0 to 1.
        preemptions: requests thrown out of the KV cache and computed again.
        prefix_hits: share of looked-up prompt tokens that were cached.
        drafts, drafted, accepted: speculation; `per_position` is the acceptance of each draft
            position.
        queue_s: mean seconds that requests waited before they ran.
        steps: steps after the first token, summed over requests (observations of
            `inter_token_latency_seconds`): the engine counts them where it makes them, so events
            that it merges later are distinguished here.
        first_tokens: requests that got their first token. ttft_s: mean seconds until then, from
            when the request was parsed.
        decode_s: seconds from first to last token, summed over the requests that ended.
    """

    seconds: float
    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_use: float | None = None
    preemptions: float | None = None
    prefix_hits: float | None = None
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    per_position: tuple[float, ...] = ()
    queue_s: float | None = None
    steps: float | None = None
    first_tokens: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted tokens."""
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None

    @property
    def mean_length(self) -> float | None:
        """Tokens from one step of the target: 1 + accepted / drafts."""
        return (
            1 + self.accepted / self.drafts if self.drafts and self.accepted is not None else None
        )

    @property
    def generation_tok_s(self) -> float | None:
        """Tokens generated per second, over all requests."""
        return (
            self.generation_tokens / self.seconds
            if self.generation_tokens is not None and self.seconds
            else None
        )


def deltas(before: Metrics, after: Metrics, seconds: float) -> Deltas:
    """Work out what changed.

    Raises:
        SparkbookError: seconds is not positive, or a counter fell, so the engine restarted
            between the scrapes.
    """
    if not seconds > 0:
        raise SparkbookError(
            f"the scrapes are {seconds} s apart: give the seconds between them, more than 0"
        )

    def grown(name: str) -> float | None:
        later, earlier = _value(after, name), _value(before, name)
        if later is None:
            return None
        if earlier is not None and later < earlier:
            raise SparkbookError(
                f"{name} fell from {earlier:g} to {later:g}: the engine restarted; scrape it twice"
                " again"
            )
        return later - (earlier or 0.0)

    drafts = grown("spec_decode_num_drafts")
    queries, hits = grown("prefix_cache_queries"), grown("prefix_cache_hits")

    def observed(*names: str) -> Histogram | None:
        return _grown_histogram(before, after, names)

    queue, decode = observed("request_queue_time_seconds"), observed("request_decode_time_seconds")
    steps = observed("inter_token_latency_seconds", "time_per_output_token_seconds")
    ttft = observed("time_to_first_token_seconds")
    return Deltas(
        seconds,
        grown("generation_tokens"),
        grown("prompt_tokens"),
        _value(after, "num_requests_running"),
        _value(after, "num_requests_waiting"),
        _value(after, "kv_cache_usage_perc"),
        grown("num_preemptions"),
        hits / queries if queries and hits is not None else None,
        drafts,
        grown("spec_decode_num_draft_tokens"),
        grown("spec_decode_num_accepted_tokens"),
        _by_position(before, after, drafts),
        queue.mean if queue else None,
        steps.count if steps else None,
        ttft.count if ttft else None,
        ttft.mean if ttft else None,
        decode.total if decode else None,
    )


def _value(metrics: Metrics, name: str) -> float | None:
    # A scrape that lost its TYPE lines (pasted, filtered by grep) keeps the counters' ending in
    # their names.
    for full in (name, f"{name}_total"):
        with contextlib.suppress(SparkbookError):
            return None if math.isnan(value := metrics.value(full)) else value
    return None


def _by_position(before: Metrics, after: Metrics, drafts: float | None) -> tuple[float, ...]:
    """Return the share of `drafts` accepted at each position; empty without drafts."""
    if not drafts:
        return ()
    now, then = _accepted(after), _accepted(before)
    positions = sorted(filter(str.isdigit, now), key=int)
    return tuple((now[p] - then.get(p, 0.0)) / drafts for p in positions)


def _accepted(metrics: Metrics) -> dict[str, float]:
    name = "spec_decode_num_accepted_tokens_per_pos"
    for full in (name, f"{name}_total"):
        with contextlib.suppress(SparkbookError):
            if counts := metrics.by_label(full, "position"):
                return counts
    return {}


def _grown_histogram(before: Metrics, after: Metrics, names: Sequence[str]) -> Histogram | None:
    """Return what the first of these histograms that `after` has gained since `before`."""
    for name in names:
        with contextlib.suppress(SparkbookError):
            later = after.histogram(name)
            try:
                return later.minus(before.histogram(name))
            except SparkbookError:  # not there yet, or other buckets
                return None
    return None
