"""What two scrapes of `/metrics` say about an engine: healthy, waiting, dead behind a living port,
or held at low power.

Counters only ever grow, so ratios come from the change between two scrapes, never from a counter's
whole life: an engine that was warmed up with other text an hour ago would colour every figure.
Everything here is pure; whoever scrapes gives texts and seconds.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from sparkbook.findings import Findings
from sparkbook.host.spark import STUCK_MHZ
from sparkbook.metrics import Metrics
from sparkbook.metrics.deltas import Deltas, deltas
from sparkbook.rules import Family, Hit

SUCCESSORS = {
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_prefix_cache_hit_rate": "prefix_cache_hits_total / prefix_cache_queries_total",
    "gpu_prefix_cache_queries": "prefix_cache_queries_total",
    "gpu_prefix_cache_hits": "prefix_cache_hits_total",
    "cpu_cache_usage_perc": "nothing: the V1 engine has no swap space",
    "num_requests_swapped": "nothing: the V1 engine has no swap space",
    "time_per_output_token_seconds": (
        "inter_token_latency_seconds, or request_time_per_output_token_seconds"
    ),
    "spec_decode_draft_acceptance_rate": (
        "spec_decode_num_accepted_tokens_total / spec_decode_num_draft_tokens_total"
    ),
    "spec_decode_efficiency": (
        "1 + spec_decode_num_accepted_tokens_total / spec_decode_num_drafts_total"
    ),
}
"""What took the place of a name that dashboards still ask for. Which release has which name is in
the table of releases.
"""

_SOURCE = "https://docs.vllm.ai/en/latest/usage/metrics/"
_BUSY_W, _DEADLOCK_S = 35.0, 60.0
_FEW_DRAFTS = 200


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


def diagnose_metrics(
    before: Metrics,
    after: Metrics,
    seconds: float,
    telemetry: Telemetry | None = None,
    queries: tuple[str, ...] = (),
    release: str | None = None,
) -> tuple[Deltas, Findings]:
    """Judge an engine by two scrapes.

    Args:
        before, after: the scrapes.
        seconds: between them.
        telemetry: the GPU's in the same period, where it is known.
        queries: metric names that somebody asked for without an answer, as in a dashboard.
        release: the engine's vLLM release, for the life of these names; left out, the newest known.

    Returns:
        The changes, and the findings; no finding of severity `error` or `warning` means healthy.

    Raises:
        SparkbookError: see `deltas`.
    """
    change = deltas(before, after, seconds)
    asked = Situation(change, telemetry or Telemetry(), queries, frozenset(after.names()), release)
    return change, MET.judge(asked)


@dataclass(frozen=True)
class Situation:
    """All that the checks look at.

    Attributes:
        change: what changed between the scrapes.
        gpu: its telemetry in the same period.
        queries: metric names that somebody asked for without an answer.
        served: names of the later scrape, without the prefix and `_total`.
        release: the engine's release, where it is known.
    """

    change: Deltas
    gpu: Telemetry = Telemetry()
    queries: tuple[str, ...] = ()
    served: frozenset[str] = frozenset()
    release: str | None = None


def describe(situation: Situation) -> str:
    """A situation as lines of text; what is unknown is left out."""
    rows = []
    for part in (situation.change, situation.gpu):
        for item in fields(part):
            value = getattr(part, item.name)
            if value not in (None, ()):
                rows.append(
                    f"{item.name}:"
                    f" {' / '.join(f'{v:g}' for v in value) if isinstance(value, tuple) else value}"
                )
    rows += [f"asked for: {query}" for query in situation.queries]
    return "\n".join(rows)


MET = Family(
    "MET",
    "two scrapes of /metrics",
    "What `sparkbook metrics` judges. Counters only grow, so each figure is a change between two"
    " scrapes; the examples show the changes.",
    describe=describe,
)


def _at_work(**changes: Any) -> Situation:
    """An engine at work for a minute with a draft of three tokens, and what is to be different
    about it: for the examples.
    """
    gpu = {item.name for item in fields(Telemetry)}
    sound = Deltas(
        60.0, 3324.0, 9000.0, 1.0, 0.0, 0.41, 0.0, 0.2, 1200.0, 3600.0, 2124.0, (0.85, 0.59, 0.33)
    )
    telemetry = Telemetry(power_w=70.0, clock_mhz=2500.0, utilization=0.96, throttled=False)
    return Situation(
        replace(sound, **{name: value for name, value in changes.items() if name not in gpu}),
        replace(telemetry, **{name: value for name, value in changes.items() if name in gpu}),
    )


def _still(seconds: float, power_w: float | None) -> Situation:
    """Requests run and no token comes."""
    return _at_work(
        seconds=seconds,
        generation_tokens=0.0,
        prompt_tokens=0.0,
        power_w=power_w,
        drafts=0.0,
        drafted=0.0,
        accepted=0.0,
        per_position=(),
    )


def _seen(gpu: Telemetry) -> str:
    texts = (
        f"{gpu.power_w:g} W" if gpu.power_w is not None else "",
        f"{gpu.clock_mhz:g} MHz" if gpu.clock_mhz is not None else "",
        f"utilization {gpu.utilization:.0%}" if gpu.utilization is not None else "",
    )
    return ", ".join(filter(None, texts))


def _silent(situation: Situation) -> bool:
    """Whether requests run and neither a prompt token nor a generated one came."""
    change = situation.change
    return (
        change.generation_tokens == 0 and bool(change.running) and change.prompt_tokens in (0, None)
    )


def _long_or_idle(situation: Situation) -> tuple[bool, bool]:
    """Power alone over-fires in a long prefill, and so does a short stretch without a token: a
    prompt may take a minute.
    """
    power = situation.gpu.power_w
    return situation.change.seconds >= _DEADLOCK_S, power is not None and power < _BUSY_W


@MET.rule(
    "MET101",
    "deadlock",
    "error",
    kind="hang-health-ok",
    source="https://github.com/eugr/spark-vllm-docker/issues/260",
    fails=lambda: _still(120.0, 21.0),
    passes=_at_work,
)
def deadlock(situation: Situation) -> Iterator[Hit]:
    """Requests run, and for a minute no token comes, or the GPU draws too little power to be
    working. `/health` answers from another process and proves nothing. The confidence is high only
    where silence and low power agree.
    """
    long, idle = _long_or_idle(situation)
    if not _silent(situation) or not (long or idle):
        return
    change, seen = situation.change, _seen(situation.gpu)
    yield Hit(
        f"{change.running:g} requests run and not one token came in {change.seconds:g} s: the"
        " engine is deadlocked, whatever /health says.",
        evidence=f"generation_tokens_total unchanged, num_requests_running {change.running:g}"
        + (f"; {seen}" if seen else ""),
        confidence=(
            "high"
            if long and idle
            else "medium"
            if long and situation.gpu.power_w is None
            else "low"
        ),
        fix=(
            "Restart the engine; the host and its power supply are not at fault. Collect first: the"
            " log's last line of every rank. Against a repetition: --compilation-config"
            ' \'{"cudagraph_mode":"PIECEWISE"}\'.'
        ),
    )


@MET.rule(
    "MET102",
    "stuck-at-low-power",
    "error",
    kind="power-throttle",
    source="https://github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/1",
    fails=lambda: _at_work(power_w=20.0, clock_mhz=799.0),
    passes=_at_work,
)
def stuck_at_low_power(situation: Situation) -> Iterator[Hit]:
    """Tokens advance, slowly: the clock stays below 900 MHz at little power, busy by its own
    account, and no throttle reason is active. Seen on Sparks whose power supply was negotiated
    wrongly. Figures measured in such a period say nothing about the recipe.
    """
    tokens, gpu = situation.change.generation_tokens, situation.gpu
    low = gpu.clock_mhz is not None and gpu.clock_mhz < STUCK_MHZ and gpu.throttled is not True
    if (
        tokens
        and low
        and (gpu.power_w is None or gpu.power_w < _BUSY_W)
        and (gpu.utilization is None or gpu.utilization > 0.5)
    ):
        yield Hit(
            f"Tokens advance, but the GPU is stuck at low power ({gpu.clock_mhz:g} MHz without a"
            " throttle reason).",
            evidence=f"{tokens:g} tokens in {situation.change.seconds:g} s; {_seen(gpu)}",
            fix=(
                "Shut down, take the AC plug out for a minute, start again; figures taken in this"
                " period are invalid."
            ),
        )


@MET.rule(
    "MET103",
    "short-silence",
    "info",
    kind="hang-health-ok",
    confidence="low",
    source="https://github.com/eugr/spark-vllm-docker/issues/260",
    fails=lambda: _still(10.0, None),
    passes=_at_work,
)
def short_silence(situation: Situation) -> Iterator[Hit]:
    """No token within less than a minute, at a power that is not known to be low: too short to tell
    a long prompt from a hang.
    """
    if _silent(situation) and not any(_long_or_idle(situation)):
        change = situation.change
        yield Hit(
            f"No token in {change.seconds:g} s with {change.running:g} requests running: a long"
            " prompt, or the beginning of a hang.",
            evidence="generation_tokens_total unchanged",
            fix="Scrape again after a minute, and read the GPU's power at the same time.",
        )


@MET.rule(
    "MET104",
    "throttled",
    "warning",
    kind="thermal-throttle",
    source="https://github.com/ollama/ollama/issues/13552",
    fails=lambda: _at_work(throttled=True, clock_mhz=1400.0),
    passes=_at_work,
)
def throttled(situation: Situation) -> Iterator[Hit]:
    """The driver reports an active throttle reason: the GPU runs slower than it could, and figures
    of this period are not the recipe's.
    """
    if situation.gpu.throttled and not _silent(situation):
        yield Hit(
            "The GPU is throttled.",
            evidence=_seen(situation.gpu) or "throttle reason active",
            fix="Give it air, and throw away figures of this period.",
        )


def _shape(change: Deltas) -> str:
    return " / ".join(f"{p:.2f}" for p in change.per_position)


def _figures(change: Deltas) -> str:
    by_position = f", by position {_shape(change)}" if change.per_position else ""
    return (
        f"acceptance {change.acceptance:.1%}, {change.mean_length:.2f} tokens a step{by_position}"
    )


def _drafts(change: Deltas) -> str:
    return (
        f"{change.drafts:g} drafts, {change.drafted:g} drafted, {change.accepted:g} accepted in"
        f" {change.seconds:g} s"
    )


def _broken(change: Deltas) -> bool:
    """Whether even the first draft token is almost never accepted, over enough drafts to say so."""
    first = change.per_position[0] if change.per_position else change.acceptance
    return first is not None and first < 0.05 and (change.drafts or 0) >= _FEW_DRAFTS


@MET.rule(
    "MET201",
    "broken-draft-pair",
    "error",
    kind="spec-decode-acceptance",
    source="https://github.com/vllm-project/vllm/issues/41789",
    fails=lambda: _at_work(accepted=12.0, per_position=(0.01, 0.0, 0.0)),
    passes=_at_work,
)
def broken_draft_pair(situation: Situation) -> Iterator[Hit]:
    """Even the first draft token is accepted less than one time in twenty. No tuning brings that
    back: draft and target do not belong together, or the KV cache's data type spoils what the draft
        reads.
    """
    change = situation.change
    if change.acceptance is not None and _broken(change):
        yield Hit(
            f"Speculation does not work at all ({_figures(change)}).",
            evidence=_drafts(change),
            fix=(
                "Check the draft's revision and patches against the target's, and try"
                " --kv-cache-dtype auto; else switch speculation off. This is a broken pair, not a"
                " matter of tuning."
            ),
        )


@MET.rule(
    "MET203",
    "positions-out-of-order",
    "warning",
    kind="spec-decode-metrics",
    confidence="medium",
    source=_SOURCE,
    fails=lambda: _at_work(per_position=(0.4, 0.6, 0.33)),
    passes=_at_work,
)
def positions_out_of_order(situation: Situation) -> Iterator[Hit]:
    """A draft token counts as accepted only if all before it were, so acceptance falls from
    position to position. Where it rises, the two scrapes are not of one engine, or counters of
    several engines are mixed.
    """
    change = situation.change
    rising = any(
        later > earlier + 0.02
        for earlier, later in zip(change.per_position, change.per_position[1:], strict=False)
    )
    if rising and (change.drafts or 0) >= _FEW_DRAFTS and not _broken(change):
        yield Hit(
            "A later draft position is accepted more often than an earlier one, which cannot be:"
            " one counts only if all before it do.",
            evidence=_shape(change),
            fix=(
                "Check that both scrapes are of the same engine and that counters of several"
                " engines are not mixed."
            ),
        )


@MET.rule(
    "MET202",
    "draft-works",
    "info",
    kind="spec-decode-tuning",
    source=_SOURCE,
    fails=_at_work,
    passes=lambda: _at_work(drafts=0.0, drafted=0.0, accepted=0.0, per_position=()),
)
def draft_works(situation: Situation) -> Iterator[Hit]:
    """The draft is accepted: how often, how many tokens a step yields, and whether the last
    position still earns its cost.
    """
    change = situation.change
    if change.acceptance is None or not change.drafts or _broken(change):
        return
    count = len(change.per_position)
    fix = "Keep it."
    if change.drafts < _FEW_DRAFTS:
        fix = f"Measure longer before you choose a draft length: {change.drafts:g} drafts are few."
    elif count > 1 and change.per_position[-1] < 0.4:
        fix = (
            f"Measure {count - 1} against {count} draft tokens with the text you serve: the last"
            f" position is accepted {change.per_position[-1]:.2f} of the time."
        )
    yield Hit(f"The draft works ({_figures(change)}).", evidence=_drafts(change), fix=fix)


@MET.rule(
    "MET301",
    "preemptions",
    "warning",
    kind="kv-too-small",
    source=_SOURCE,
    fails=lambda: _at_work(preemptions=7.0, kv_use=0.99),
    passes=_at_work,
)
def preemptions(situation: Situation) -> Iterator[Hit]:
    """The KV cache was full, and running requests were thrown out to be computed again later: they
    wait, and the work is done twice.
    """
    change = situation.change
    if change.preemptions:
        use = f" at {change.kv_use:.0%} KV use" if change.kv_use is not None else ""
        yield Hit(
            f"{change.preemptions:g} requests were thrown out of the KV cache and computed"
            f" again{use}.",
            evidence=f"num_preemptions_total + {change.preemptions:g} in {change.seconds:g} s",
            fix="Lower --max-num-seqs or --max-model-len, or give the KV cache more memory.",
        )


@MET.rule(
    "MET302",
    "kv-use",
    "info",
    kind="metrics-interpretation",
    source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/memory/106-kv-occupancy-ceiling-is-not-a-leak.md",
    fails=_at_work,
    passes=lambda: _at_work(kv_use=None),
)
def kv_use(situation: Situation) -> Iterator[Hit]:
    """The KV cache fills up and stays full, as prefixes are kept for whoever asks again. That is no
    leak; preemptions are what hurts.
    """
    change = situation.change
    if change.kv_use is not None and not change.preemptions:
        yield Hit(
            f"The KV cache is {change.kv_use:.0%} full and nothing was thrown out: that is fine,"
            " even as it climbs (cached prefixes stay).",
            evidence=f"kv_cache_usage_perc {change.kv_use:.2f}, no preemption",
            fix="Alert on preemptions and waiting requests instead.",
        )


@MET.rule(
    "MET303",
    "queue",
    "warning",
    source=_SOURCE,
    fails=lambda: _at_work(running=4.0, waiting=9.0),
    passes=_at_work,
)
def queue(situation: Situation) -> Iterator[Hit]:
    """More requests wait than run: whoever comes now waits for at least one whole generation of
    others.
    """
    change = situation.change
    if change.waiting and change.running and change.waiting > change.running:
        yield Hit(
            f"More requests wait ({change.waiting:g}) than run ({change.running:g}).",
            evidence=(
                f"num_requests_waiting {change.waiting:g}, num_requests_running {change.running:g}"
            ),
            fix="Raise --max-num-seqs if the KV cache has room, or send less at once.",
        )


@MET.rule(
    "MET304",
    "prefix-cache-hits",
    "info",
    kind="metrics-interpretation",
    source=_SOURCE,
    fails=lambda: _at_work(prefix_hits=0.9),
    passes=lambda: _at_work(prefix_hits=None),
)
def prefix_cache_hits(situation: Situation) -> Iterator[Hit]:
    """Share of the prompt tokens that did not have to be computed. In a benchmark a high share
    means that prompts repeat.
    """
    hits = situation.change.prefix_hits
    if hits is not None:
        yield Hit(
            f"{hits:.1%} of the prompt tokens came from the prefix cache.",
            evidence="prefix_cache_hits_total / prefix_cache_queries_total",
            fix=(
                "Use other prompts in a benchmark: a high share means that prompts repeat, and the"
                " prefill figures are then those of the cache."
                if hits > 0.5
                else "Keep it."
            ),
        )


@MET.rule(
    "MET401",
    "name-not-served",
    "warning",
    kind="metrics-renamed",
    source="https://github.com/GoogleCloudPlatform/monitoring-dashboard-samples/pull/1188",
    fails=lambda: replace(
        _at_work(),
        queries=("vllm:gpu_cache_usage_perc",),
        served=frozenset({"kv_cache_usage_perc"}),
    ),
    passes=lambda: replace(
        _at_work(), queries=("vllm:kv_cache_usage_perc",), served=frozenset({"kv_cache_usage_perc"})
    ),
)
def name_not_served(situation: Situation) -> Iterator[Hit]:
    """A dashboard asks for a name that the engine does not serve. Names change between releases,
    and an empty panel reads like a quiet server. Which release has which name comes from the table
    of releases, read out of vLLM's own source.
    """
    from sparkbook import releases

    version = situation.release or releases.newest()
    ever = {name.removesuffix("_total") for name in releases.names_ever("metrics")}
    for query in situation.queries:
        for name in re.findall(r"vllm:([a-z_][a-z0-9_]{3,})|^([a-z_][a-z0-9_]{3,})$", query):
            word = "".join(name)
            short = re.sub(r"_(total|bucket|count|sum|created)$", "", word)
            if short in situation.served or word in situation.served:
                continue
            spans = releases.presence("metrics", short) or releases.presence("metrics", word)
            last = spans[-1][1] if spans else None
            since = next(
                (
                    known
                    for known in releases.known()
                    if last and not releases.at_least(last, known)
                ),
                None,
            )
            near = difflib.get_close_matches(
                short, sorted(situation.served or ever), n=1, cutoff=0.75
            )
            if short in SUCCESSORS:
                instead = f"Ask for {SUCCESSORS[short]}."
            elif spans and last is None and releases.at_least(version, spans[-1][0]):
                # It exists, and is served only while what it counts is switched on, as
                # speculation's are.
                instead = (
                    f"Switch on what it counts: releases have it {releases.said(spans)}, and"
                    " serve it only while that is in use."
                )
            elif near:
                instead = f"Ask for {near[0]}."
            else:
                instead = "Look at the names that this engine serves: `curl -s URL/metrics`."
            yield Hit(
                f"{word} is not served by this engine: {releases.said(spans)}.",
                evidence=query,
                fix=instead,
                since=since,
            )
