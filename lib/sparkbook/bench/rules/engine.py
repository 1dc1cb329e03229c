"""2xx: what the engine did besides what was measured."""

from __future__ import annotations

import statistics

from sparkbook.bench.examples import (
    drafts,
    engine,
    request,
    seen,
    speculating,
    trace,
)
from sparkbook.bench.family import BENCH, OWN
from sparkbook.bench.seen import Seen
from sparkbook.bench.telemetry import known
from sparkbook.findings import Severity
from sparkbook.rules import Hit

_AGREE = 0.02
_HITS, _MANY_HITS, _TEMPLATE_TOKENS = 0.10, 0.5, 64


@BENCH.rule(
    "BENCH201",
    "other-requests",
    "error",
    source=OWN,
    fails=lambda: seen(trace_=trace(before={"running": 3.0})),
    passes=lambda: seen(trace_=trace({"running": 4.0})),
)
def others(seen: Seen) -> Hit | None:
    """The engine served somebody else before, after or during the load."""
    if not seen.trace:
        return None
    for when, samples in (("before", seen.trace.before), ("after", seen.trace.after[1:])):
        counts = [(s.running or 0) + (s.waiting or 0) for s in samples if s.running is not None]
        if any(counts):
            return Hit(
                f"The engine had {max(counts):g} other requests {when} the load.",
                "num_requests_running + num_requests_waiting",
            )
    limit = seen.cell.concurrency
    most = max(
        ((s.running or 0) + (s.waiting or 0) for s in seen.trace.during if s.running is not None),
        default=0,
    )
    if limit and most > limit:
        return Hit(
            f"The engine had {most:g} requests while {limit} were sent.",
            "num_requests_running + num_requests_waiting",
        )
    return None


@BENCH.rule(
    "BENCH202",
    "queueing",
    "warning",
    source=OWN,
    fails=lambda: seen(trace_=trace({"waiting": 3.0, "running": 1.0})),
    passes=lambda: seen(trace_=trace({"waiting": lambda t: 1.0 * (t == 2), "running": 3.0})),
)
def queued(seen: Seen) -> Hit | None:
    """Requests waited in the engine's queue most of the time, so TTFT is a waiting time and more
    concurrency changes nothing.

    **Threshold:** half of the looks, so that a burst's first moment does not count.
    """
    waits = known(seen.trace.during, "waiting") if seen.trace else []
    if len(waits) < 3 or sum(w > 0 for w in waits) * 2 < len(waits):
        return None
    return Hit(
        f"Requests waited for the engine ({statistics.fmean(waits):.1f} on average).",
        f"num_requests_waiting > 0 in {sum(w > 0 for w in waits)} of {len(waits)} samples",
    )


@BENCH.rule(
    "BENCH203",
    "preemption",
    "warning",
    source=OWN,
    fails=lambda: seen(cell=engine(preemptions=4)),
    passes=lambda: seen(cell=engine(preemptions=0)),
)
def preempted(seen: Seen) -> Hit | None:
    """The KV cache was too small: requests were thrown out and computed a second time."""
    count = seen.cell.engine.preemptions if seen.cell.engine else None
    return (
        Hit(
            f"{count:g} requests were thrown out of the KV cache and computed again.",
            "num_preemptions_total",
        )
        if count
        else None
    )


@BENCH.rule(
    "BENCH204",
    "cached-prompts",
    "error",
    source=OWN,
    fails=lambda: seen(cell=engine(prefix_hits=0.887)),
    passes=lambda: seen(cell=engine(prefix_hits=0.25)),
)
def cached(seen: Seen) -> Hit | None:
    """Prompts were found in the prefix cache although caching is not what is measured: TTFT and
    prefill are then those of a look-up.

    **Threshold:** 10 % of the prompt tokens is a warning, 50 % an error. The chat template in front
    is the same in every request and is cached rightly: up to 64 tokens a prompt are let pass below
    50 %.
    """
    engine = seen.cell.engine
    if (
        seen.cell.caching
        or engine is None
        or engine.prefix_hits is None
        or engine.prefix_hits <= _HITS
    ):
        return None
    each = engine.prefix_hits * (engine.prompt_tokens or 0) / max(seen.cell.figures.completed, 1)
    # The chat template in front of the first word is the same in every request.
    if each <= _TEMPLATE_TOKENS and engine.prefix_hits <= _MANY_HITS:
        return None
    severity: Severity = "error" if engine.prefix_hits > _MANY_HITS else "warning"
    return Hit(
        f"{engine.prefix_hits:.1%} of the prompt tokens came from the prefix cache.",
        "prefix_cache_hits_total / prefix_cache_queries_total",
        severity=severity,
    )


@BENCH.rule(
    "BENCH205",
    "restart",
    "error",
    source=OWN,
    fails=lambda: seen(cell={"engine": None}, restarted=True),
    passes=lambda: seen(),
)
def restarted(seen: Seen) -> Hit | None:
    """A counter fell, so the engine died and came back."""
    return (
        Hit("The engine restarted during the load.", "a counter of /metrics fell")
        if seen.restarted
        else None
    )


@BENCH.rule(
    "BENCH206",
    "token-counts-differ",
    "error",
    source="https://docs.vllm.ai/en/latest/usage/metrics/",
    fails=lambda: seen(cell=engine(generation_tokens=1300)),
    passes=lambda: seen(cell=engine(generation_tokens=1036)),
)
def server_count(seen: Seen) -> Hit | None:
    """The engine made another number of tokens than the replies hold: somebody else was served, or
    a counter does not count tokens.

    **Threshold:** 2 %, and one token a request: [vLLM
    counts](https://docs.vllm.ai/en/latest/usage/metrics/) a token when it is made, and a request
    that was just cut may differ by one.
    """
    generated = seen.cell.engine.generation_tokens if seen.cell.engine else None
    mine = seen.cell.figures.output_tokens
    if generated is None or mine is None or seen.cell.figures.failed or seen.cell.interrupted:
        return None
    # vLLM counts a token when it is made, usage when the text is cut: one a request may differ.
    if abs(generated - mine) <= max(_AGREE * mine, seen.cell.figures.completed):
        return None
    return Hit(
        f"The engine made {generated:g} tokens and the replies hold {mine}.",
        "generation_tokens_total against usage",
    )


@BENCH.rule(
    "BENCH207",
    "usage-against-ids",
    "error",
    source=OWN,
    fails=lambda: seen([request(n, id_tokens=60) for n in range(16)]),
    passes=lambda: seen([request(n, id_tokens=63) for n in range(16)]),
)
def id_count(seen: Seen) -> Hit | None:
    """`usage` and the token ids of the same reply disagree by more than one."""
    wrong = [
        r
        for r in seen.cell.requests
        if r.id_tokens is not None
        and r.output_tokens is not None
        and abs(r.id_tokens - r.output_tokens) > 1
    ]
    if not wrong:
        return None
    one = wrong[0]
    return Hit(
        f"In {len(wrong)} replies `usage` and the token ids disagree.",
        f"{one.prompt}: usage {one.output_tokens}, ids {one.id_tokens}",
    )


@BENCH.rule(
    "BENCH208",
    "no-token-count",
    "error",
    source=OWN,
    fails=lambda: seen(
        [
            request(n, output_tokens=None, id_tokens=None, chunk_tokens=None, count_from="unknown")
            for n in range(16)
        ]
    ),
    passes=lambda: seen([request(n, id_tokens=None, chunk_tokens=None) for n in range(16)]),
)
def no_count(seen: Seen) -> Hit | None:
    """Without `usage` or token ids the number of tokens is unknown. A chunk holds several tokens
    under speculation, so chunks cannot replace them.
    """
    missing = [r for r in seen.cell.requests if r.error is None and r.output_tokens is None]
    if not missing:
        return None
    return Hit(
        f"{len(missing)} replies came without a number of tokens.",
        "neither `usage` nor token ids: chunks are not tokens",
    )


@BENCH.rule(
    "BENCH209",
    "acceptance-differs",
    "warning",
    source=OWN,
    fails=lambda: seen(speculating(3), cell=drafts(3.6)),
    passes=lambda: seen(speculating(3), cell=drafts(3.01)),
)
def acceptance(seen: Seen) -> Hit | None:
    """Client and engine see different numbers of tokens a step by more than 2 %. Either the server
    sends several steps as one event (`inter_token_latency_seconds_count` has more steps than the
    client events), so the time between events is not a step's; or the counters of accepted drafts
    do not belong to these replies.

    **Threshold:** 2 %, from 200 drafts on. On vLLM 0.32 counts agree exactly when no events are
    merged; a draft accepted behind a reply's end is allowed for.
    """
    engine = seen.cell.engine
    requests = [r for r in seen.cell.requests if r.error is None and r.output_tokens and r.stamps_s]
    events = sum(len(r.stamps_s) - 1 for r in requests)
    if (
        engine is None
        or not engine.accepted
        or (engine.drafts or 0) < 200
        or not events
        or seen.cell.interrupted
    ):
        return None
    later = sum((r.output_tokens or 0) - r.first_tokens for r in requests)
    mine = later / events
    # Where the engine does not tell its steps, the events stand in for them, and only the accepted
    # drafts are left to compare.
    steps = engine.steps or events
    made = (
        sum(r.output_tokens or 0 for r in requests) - (engine.first_tokens or len(requests))
        if engine.steps
        else later
    )
    if abs(mine / (made / steps) - 1) > _AGREE:
        return Hit(
            f"The client sees {mine:.2f} tokens a step, the engine counts {made / steps:.2f}.",
            f"{events} events against {steps:g} steps (inter_token_latency_seconds_count): some"
            " came in one event, so step_gap is no step",
        )
    # An n-gram draft is not made in every step, so 1 + accepted / drafts is not the mean of all
    # steps; 1 + accepted / steps is. The last step of a reply may have more accepted than the reply
    # took: up to K.
    reported, cut = (
        1 + engine.accepted / steps,
        len(requests) * (engine.drafted or 0) / (engine.drafts or 1) / steps,
    )
    if made / steps * (1 - _AGREE) <= reported <= (made / steps + cut) * (1 + _AGREE):
        return None
    return Hit(
        f"The client sees {made / steps:.2f} tokens a step, the engine reports {reported:.2f}.",
        f"{made:g} tokens after the first in {steps:g} steps, against 1 + accepted / steps",
    )


@BENCH.rule(
    "BENCH210",
    "engine-unknown",
    "warning",
    source=OWN,
    fails=lambda: seen(cell={"engine": None}),
    passes=lambda: seen(),
)
def no_metrics(seen: Seen) -> Hit | None:
    """Without the engine's counters it is unknown whether it was alone or cached."""
    if seen.cell.engine is not None or seen.restarted:
        return None
    return Hit(
        "The engine's own counters are unknown.",
        "no vLLM metrics at /metrics: other requests and cached prompts would go unseen",
    )


@BENCH.rule(
    "BENCH211",
    "machine-unknown",
    "info",
    source=OWN,
    fails=lambda: seen(trace_=trace(all_={"clock_mhz": None}, during={"clock_mhz": None})),
    passes=lambda: seen(),
)
def no_telemetry(seen: Seen) -> Hit | None:
    """No telemetry of the GPU: what this gate would have seen, it has not."""
    if seen.trace and seen.trace.during and known(seen.trace.during, "clock_mhz"):
        return None
    what = (
        "clocks, power and temperature"
        if seen.trace and seen.trace.during
        else "clocks, power, temperature, memory and load"
    )
    return Hit(
        f"The machine's {what} are unknown.",
        "no nvidia-smi, an engine on another machine, or a run shorter than a sample",
    )
