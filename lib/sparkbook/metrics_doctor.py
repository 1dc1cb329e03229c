"""What two scrapes of `/metrics` say about an engine: healthy, waiting, dead behind a living port, or held at low power.

Counters only ever grow, so ratios come from the change between two scrapes, never from a counter's whole life: an engine that was warmed up
with other text an hour ago would colour every figure. Everything here is pure; whoever scrapes gives texts and seconds.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.metrics import Metrics

RENAMED = {
    "gpu_cache_usage_perc": ("kv_cache_usage_perc", "0.11.0"),
    "gpu_prefix_cache_hit_rate": ("prefix_cache_hits_total / prefix_cache_queries_total", "0.8.0"),
    "gpu_prefix_cache_queries": ("prefix_cache_queries_total", "0.11.0"),
    "gpu_prefix_cache_hits": ("prefix_cache_hits_total", "0.11.0"),
    "cpu_cache_usage_perc": ("nothing: the V1 engine has no swap space", "0.8.0"),
    "num_requests_swapped": ("nothing: the V1 engine has no swap space", "0.8.0"),
    "time_per_output_token_seconds": ("inter_token_latency_seconds, or request_time_per_output_token_seconds", "0.11.0"),
    "spec_decode_draft_acceptance_rate": ("spec_decode_num_accepted_tokens_total / spec_decode_num_draft_tokens_total", "0.10.0"),
    "spec_decode_efficiency": ("1 + spec_decode_num_accepted_tokens_total / spec_decode_num_drafts_total", "0.10.0"),
}
"""Names that dashboards still ask for: what took their place, and since about which release."""

_SOURCE = "https://docs.vllm.ai/en/latest/usage/metrics/"
_STUCK_MHZ, _BUSY_W, _DEADLOCK_S = 1000.0, 35.0, 60.0
_FEW_DRAFTS = 200


@dataclass(frozen=True)
class Telemetry:
    """What the GPU reported in the same period; None is unknown.

    Attributes:
        power_w: drawn power in watts.
        clock_mhz: SM clock in MHz.
        utilization: share of time with a kernel resident, 0 to 1: on GB10 it does not tell work from waiting.
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
        drafts, drafted, accepted: speculation; `per_position` is the acceptance of each draft position.
        queue_s: mean seconds that requests waited before they ran.
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

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted tokens."""
        return self.accepted / self.drafted if self.drafted and self.accepted is not None else None

    @property
    def mean_length(self) -> float | None:
        """Tokens from one step of the target: 1 + accepted / drafts."""
        return 1 + self.accepted / self.drafts if self.drafts and self.accepted is not None else None

    @property
    def generation_tok_s(self) -> float | None:
        """Tokens generated per second, over all requests."""
        return self.generation_tokens / self.seconds if self.generation_tokens is not None and self.seconds else None


def deltas(before: Metrics, after: Metrics, seconds: float) -> Deltas:
    """Work out what changed.

    Raises:
        SparkbookError: seconds is not positive, or a counter fell, so the engine was started anew between the scrapes.
    """
    if not seconds > 0:
        raise SparkbookError(f"the scrapes are {seconds} s apart: give the seconds between them, more than 0")

    def value(metrics: Metrics, name: str) -> float | None:
        # A scrape that lost its TYPE lines (pasted, filtered by grep) keeps the counters' ending in their names.
        for full in (name, f"{name}_total"):
            with contextlib.suppress(SparkbookError):
                return metrics.value(full)
        return None

    def by_position(metrics: Metrics) -> dict[str, float]:
        for full in ("spec_decode_num_accepted_tokens_per_pos", "spec_decode_num_accepted_tokens_per_pos_total"):
            with contextlib.suppress(SparkbookError):
                if found := metrics.by_label(full, "position"):
                    return found
        return {}

    def grown(name: str) -> float | None:
        later, earlier = value(after, name), value(before, name)
        if later is None:
            return None
        if earlier is not None and later < earlier:
            raise SparkbookError(f"{name} fell from {earlier:g} to {later:g}: the engine was started anew; scrape it twice again")
        return later - (earlier or 0.0)

    drafts = grown("spec_decode_num_drafts")
    now, then = by_position(after), by_position(before)
    positions = [(now[p] - then.get(p, 0.0)) / drafts for p in sorted(filter(str.isdigit, now), key=int)] if drafts else []
    queries, hits = grown("prefix_cache_queries"), grown("prefix_cache_hits")
    queue = None
    with contextlib.suppress(SparkbookError):
        queue = after.histogram("request_queue_time_seconds").minus(before.histogram("request_queue_time_seconds")).mean
    return Deltas(
        seconds,
        grown("generation_tokens"),
        grown("prompt_tokens"),
        value(after, "num_requests_running"),
        value(after, "num_requests_waiting"),
        value(after, "kv_cache_usage_perc"),
        grown("num_preemptions"),
        hits / queries if queries and hits is not None else None,
        drafts,
        grown("spec_decode_num_draft_tokens"),
        grown("spec_decode_num_accepted_tokens"),
        tuple(positions),
        queue,
    )


def diagnose_metrics(
    before: Metrics, after: Metrics, seconds: float, telemetry: Telemetry | None = None, queries: tuple[str, ...] = ()
) -> tuple[Deltas, Findings]:
    """Judge an engine by two scrapes.

    Args:
        before, after: the scrapes.
        seconds: between them.
        telemetry: the GPU's in the same period, where it is known.
        queries: metric names that somebody asked for in vain, as in a dashboard.

    Returns:
        The changes, and the findings; no finding of severity `error` or `warning` means healthy.

    Raises:
        SparkbookError: see `deltas`.
    """
    change = deltas(before, after, seconds)
    findings = [*_life(change, telemetry or Telemetry()), *_speculation(change), *_memory(change), *_names(queries, after)]
    return change, Findings(findings)


def _life(change: Deltas, gpu: Telemetry) -> list[Finding]:
    """Working, deadlocked, or slow for lack of power."""
    tokens, running = change.generation_tokens, change.running
    seen = ", ".join(
        text
        for text in (
            f"{gpu.power_w:g} W" if gpu.power_w is not None else "",
            f"{gpu.clock_mhz:g} MHz" if gpu.clock_mhz is not None else "",
            f"utilization {gpu.utilization:.0%}" if gpu.utilization is not None else "",
        )
        if text
    )
    if tokens == 0 and running and change.prompt_tokens in (0, None):
        # Power alone over-fires in a long prefill, and so does a short stretch without a token: a prompt may take a minute.
        long = change.seconds >= _DEADLOCK_S
        idle = gpu.power_w is not None and gpu.power_w < _BUSY_W
        if long or idle:
            sure = long and (idle or gpu.power_w is None)
            return [
                Finding(
                    rule="MET101",
                    kind="hang-health-ok",
                    severity="error",
                    confidence="high" if long and idle else "medium" if sure else "low",
                    message=f"{running:g} requests run and not one token came in {change.seconds:g} s: the engine is "
                    f"deadlocked, whatever /health says",
                    evidence=f"generation_tokens_total unchanged, num_requests_running {running:g}" + (f"; {seen}" if seen else ""),
                    fix="Restart the engine; the host and its power supply are not at fault. Collect first: the log's last "
                    "line of every rank. Against "
                    'a repetition: --compilation-config \'{"cudagraph_mode":"PIECEWISE"}\'.',
                    source="https://github.com/eugr/spark-vllm-docker/issues/260",
                )
            ]
        return [
            Finding(
                rule="MET103",
                kind="hang-health-ok",
                severity="info",
                confidence="low",
                source="https://github.com/eugr/spark-vllm-docker/issues/260",
                message=f"No token in {change.seconds:g} s with {running:g} requests running: a long prompt, or the beginning of a hang",
                evidence="generation_tokens_total unchanged",
                fix="Scrape again after a minute, with the GPU's power beside it.",
            )
        ]
    low = gpu.clock_mhz is not None and gpu.clock_mhz < _STUCK_MHZ and gpu.throttled is not True
    if tokens and low and (gpu.power_w is None or gpu.power_w < _BUSY_W) and (gpu.utilization is None or gpu.utilization > 0.5):
        return [
            Finding(
                rule="MET102",
                kind="power-throttle",
                severity="error",
                evidence=f"{tokens:g} tokens in {change.seconds:g} s; {seen}",
                message=f"Tokens advance, but the GPU is stuck at low power ({gpu.clock_mhz:g} MHz without a throttle reason)",
                fix="Shut down, take the AC plug out for a minute, start again; figures taken in this period are invalid.",
                source="https://github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/1",
            )
        ]
    if gpu.throttled:
        return [
            Finding(
                rule="MET104",
                kind="thermal-throttle",
                severity="warning",
                evidence=seen or "throttle reason active",
                message="The GPU is throttled",
                fix="Give it air, and throw away figures of this period.",
                source="https://github.com/ollama/ollama/issues/13552",
            )
        ]
    return []


def _speculation(change: Deltas) -> list[Finding]:
    if change.acceptance is None or change.mean_length is None or not change.drafts:
        return []
    shape = " / ".join(f"{p:.2f}" for p in change.per_position)
    figures = f"acceptance {change.acceptance:.1%}, {change.mean_length:.2f} tokens a step" + (f", by position {shape}" if shape else "")
    evidence = f"{change.drafts:g} drafts, {change.drafted:g} drafted, {change.accepted:g} accepted in {change.seconds:g} s"
    first = change.per_position[0] if change.per_position else change.acceptance
    if first < 0.05 and change.drafts >= _FEW_DRAFTS:
        return [
            Finding(
                rule="MET201",
                kind="spec-decode-acceptance",
                severity="error",
                message=f"Speculation does not work at all ({figures})",
                evidence=evidence,
                fix="This is a broken pair, not a matter of tuning: check the draft's revision and patches against the target's, and try "
                "--kv-cache-dtype auto; else switch speculation off.",
                source="https://github.com/vllm-project/vllm/issues/41789",
            )
        ]
    found = []
    if change.drafts < _FEW_DRAFTS:
        fix = f"Few drafts ({change.drafts:g}): measure longer before you choose a draft length."
    elif change.per_position and change.per_position[-1] < 0.4 and len(change.per_position) > 1:
        count = len(change.per_position)
        fix = (
            f"The last position is accepted {change.per_position[-1]:.2f} of the time: measure {count - 1} against "
            f"{count} draft tokens with the "
            "text you serve."
        )
    else:
        fix = "Nothing to repair."
    rising = any(later > earlier + 0.02 for earlier, later in zip(change.per_position, change.per_position[1:], strict=False))
    if rising and change.drafts >= _FEW_DRAFTS:
        found.append(
            Finding(
                rule="MET203",
                kind="spec-decode-metrics",
                severity="warning",
                confidence="medium",
                evidence=shape,
                source=_SOURCE,
                message="A later draft position is accepted more often than an earlier one, which cannot be: a position counts "
                "only if all before it do",
                fix="Check that both scrapes are of the same engine and that counters of several engines are not mixed.",
            )
        )
    found.append(
        Finding(
            rule="MET202",
            kind="spec-decode-tuning",
            severity="info",
            message=f"The draft works ({figures})",
            evidence=evidence,
            fix=fix,
            source=_SOURCE,
        )
    )
    return found


def _memory(change: Deltas) -> list[Finding]:
    found = []
    if change.preemptions:
        use = f" at {change.kv_use:.0%} KV use" if change.kv_use is not None else ""
        found.append(
            Finding(
                rule="MET301",
                kind="kv-too-small",
                severity="warning",
                evidence=f"num_preemptions_total + {change.preemptions:g} in {change.seconds:g} s",
                message=f"{change.preemptions:g} requests were thrown out of the KV cache and computed again{use}",
                fix="Lower --max-num-seqs or --max-model-len, or give the KV cache more memory.",
                source=_SOURCE,
            )
        )
    elif change.kv_use is not None:
        found.append(
            Finding(
                rule="MET302",
                kind="metrics-interpretation",
                severity="info",
                evidence=f"kv_cache_usage_perc {change.kv_use:.2f}, no preemption",
                message=f"The KV cache is {change.kv_use:.0%} full and nothing was thrown out: that is fine, also when it "
                f"climbs (cached prefixes stay)",
                fix="Alert on preemptions and waiting requests instead.",
                source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/memory/106-kv-occupancy-ceiling-is-not-a-leak.md",
            )
        )
    if change.waiting and change.running and change.waiting > change.running:
        found.append(
            Finding(
                rule="MET303",
                severity="warning",
                evidence=f"num_requests_waiting {change.waiting:g}, num_requests_running {change.running:g}",
                message=f"More requests wait ({change.waiting:g}) than run ({change.running:g})",
                fix="Raise --max-num-seqs if the KV cache has room, or send less at once.",
                source=_SOURCE,
            )
        )
    if change.prefix_hits is not None:
        found.append(
            Finding(
                rule="MET304",
                kind="metrics-interpretation",
                severity="info",
                evidence="prefix_cache_hits_total / prefix_cache_queries_total",
                message=f"{change.prefix_hits:.1%} of the prompt tokens came from the prefix cache",
                fix="In a benchmark, a high share means that prompts repeat: its prefill figures are then those of the cache."
                if change.prefix_hits > 0.5
                else "Nothing to repair.",
                source=_SOURCE,
            )
        )
    return found


def _names(queries: tuple[str, ...], after: Metrics) -> list[Finding]:
    found = []
    for query in queries:
        for name in re.findall(r"(?:vllm:)?([a-z_]{4,})", query):
            short = name.removesuffix("_total")
            if short in RENAMED and short not in after.names():
                new, since = RENAMED[short]
                found.append(
                    Finding(
                        rule="MET401",
                        kind="metrics-renamed",
                        severity="warning",
                        message=f"{name} does not exist any more",
                        evidence=query,
                        since=since,
                        fix=f"Ask for {new}.",
                        source="https://github.com/GoogleCloudPlatform/monitoring-dashboard-samples/pull/1188",
                    )
                )
    return found
