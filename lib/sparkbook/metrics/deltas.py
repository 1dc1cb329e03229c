"""What changed between two scrapes of `/metrics`.

Counters only ever grow, so ratios come from the change between two scrapes, never from a counter's
whole life: an engine that was warmed up with other text an hour ago would color every figure.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

from sparkbook.errors import SparkbookError
from sparkbook.metrics import Histogram, Metrics


@dataclass(frozen=True)
class Telemetry:
    """What the GPU reported in the same period; None is unknown.

    Attributes:
        power_w: drawn power in watts.
        clock_mhz: SM clock in MHz.
        utilization: share of time with a kernel resident, 0 to 1: on GB10 it does not tell work
            from waiting.
        performance_state: `P0` is the highest.
        throttled: whether a throttle reason was active.
    """

    power_w: float | None = None
    clock_mhz: float | None = None
    utilization: float | None = None
    performance_state: str | None = None
    throttled: bool | None = None


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
            that it merges later are told apart here.
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
        SparkbookError: seconds is not positive, or a counter fell, so the engine was restarted
            between the scrapes.
    """
    if not seconds > 0:
        raise SparkbookError(
            f"the scrapes are {seconds} s apart: give the seconds between them, more than 0"
        )
    pair = _Pair(before, after)
    drafts = pair.grown("spec_decode_num_drafts")
    queries, hits = pair.grown("prefix_cache_queries"), pair.grown("prefix_cache_hits")
    steps = pair.observed("inter_token_latency_seconds", "time_per_output_token_seconds")
    queue = pair.observed("request_queue_time_seconds")
    ttft = pair.observed("time_to_first_token_seconds")
    decode = pair.observed("request_decode_time_seconds")
    return Deltas(
        seconds=seconds,
        generation_tokens=pair.grown("generation_tokens"),
        prompt_tokens=pair.grown("prompt_tokens"),
        running=_value(after, "num_requests_running"),
        waiting=_value(after, "num_requests_waiting"),
        kv_use=_value(after, "kv_cache_usage_perc"),
        preemptions=pair.grown("num_preemptions"),
        prefix_hits=hits / queries if queries and hits is not None else None,
        drafts=drafts,
        drafted=pair.grown("spec_decode_num_draft_tokens"),
        accepted=pair.grown("spec_decode_num_accepted_tokens"),
        per_position=pair.per_position(drafts),
        queue_s=queue.mean if queue else None,
        steps=steps.count if steps else None,
        first_tokens=ttft.count if ttft else None,
        ttft_s=ttft.mean if ttft else None,
        decode_s=decode.total if decode else None,
    )


def _value(metrics: Metrics, name: str) -> float | None:
    # A scrape that lost its TYPE lines (pasted, filtered by grep) keeps the counters' ending in
    # their names.
    for full in (name, f"{name}_total"):
        with contextlib.suppress(SparkbookError):
            value = metrics.value(full)
            return None if math.isnan(value) else value
    return None


def _by_position(metrics: Metrics) -> dict[str, float]:
    """Accepted draft tokens by their position."""
    name = "spec_decode_num_accepted_tokens_per_pos"
    for full in (name, f"{name}_total"):
        with contextlib.suppress(SparkbookError):
            if found := metrics.by_label(full, "position"):
                return found
    return {}


@dataclass(frozen=True)
class _Pair:
    """Two scrapes of one engine."""

    before: Metrics
    after: Metrics

    def grown(self, name: str) -> float | None:
        """What a counter grew by; None if the later scrape does not have it."""
        later, earlier = _value(self.after, name), _value(self.before, name)
        if later is None:
            return None
        if earlier is not None and later < earlier:
            raise SparkbookError(
                f"{name} fell from {earlier:g} to {later:g}: the engine was restarted; scrape it"
                " twice again"
            )
        return later - (earlier or 0.0)

    def per_position(self, drafts: float | None) -> tuple[float, ...]:
        """The acceptance of each draft position."""
        if not drafts:
            return ()
        now, then = _by_position(self.after), _by_position(self.before)
        positions = sorted(filter(str.isdigit, now), key=int)
        return tuple((now[place] - then.get(place, 0.0)) / drafts for place in positions)

    def observed(self, *names: str) -> Histogram | None:
        """What the first of these histograms observed between the scrapes."""
        for name in names:
            with contextlib.suppress(SparkbookError):
                later = self.after.histogram(name)
                try:
                    return later.minus(self.before.histogram(name))
                except SparkbookError:  # not there yet, or other buckets
                    return None
        return None
