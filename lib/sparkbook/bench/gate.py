"""The gate: whether a number may be believed. Pure functions from what was seen to findings, and
from findings to a verdict.

`error` makes a cell invalid, `warning` suspect; `info` only remarks. What was not seen is not
judged, and is said to be unknown. The thresholds are the project's own choice; each stands beside
its reason.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from sparkbook.bench import stats
from sparkbook.bench.results import Cell, Report, Verdict
from sparkbook.bench.telemetry import Trace, known
from sparkbook.findings import Finding, Findings, Severity
from sparkbook.util import own_yaml


@dataclass(frozen=True)
class Seen:
    """All that a cell is judged by.

    Attributes:
        cell: requests, figures, warm-up, client and the engine's own counters.
        trace: the machine around it; None where there was no telemetry.
        prompts: the texts that were sent; earlier: those of earlier rows, for repetitions.
        restarted: the engine's counters fell, so it was started anew meanwhile.
    """

    cell: Cell
    trace: Trace | None = None
    prompts: tuple[str, ...] = ()
    earlier: frozenset[str] = frozenset()
    restarted: bool = False


@dataclass(frozen=True)
class Rule:
    """One rule of the gate.

    Attributes:
        code: stable, such as BENCH101. name: short, in words.
        text: what it catches, and why a number is worth nothing then.
        example: what it would say.
        reason: why its threshold is where it is, with the source.
    """

    code: str
    name: str
    text: str
    example: str
    reason: str = ""
    judge: Callable[[Seen], Answer | None] | None = None

    @property
    def address(self) -> str:
        """Where its section stands in the site."""
        return f"rules/bench.html#{self.code.lower()}"

    @property
    def source(self) -> str:
        """The links of its reason; without one it is the project's own choice."""
        return (
            ", ".join(re.findall(r"\[[^\]]+\]\(https?://[^)]+\)", self.reason))
            or "This project's own choice."
        )


INTRO = (
    "What `sparkbook bench` says of a measurement. Each example is one sound measurement (16"
    " requests, 4 at a time; a look at the machine each second: two before the load, eight during"
    " it, two after it) with what is changed about it, and below it what the gate said when this"
    " page was built. The thresholds are the project's own choice; each stands with its reason."
)


def page(rule: Rule) -> str:
    """The section of one rule, in Markdown: text, the reason of its threshold, the two examples and
    what the gate says of them now.
    """
    from sparkbook.bench import examples
    from sparkbook.rules import section_page

    shown, severities = [], []
    for title, example in zip(("Fails", "Passes"), examples.CASES[rule.code], strict=True):
        found = examples.findings(example)
        severities += [f.severity for f in found if f.rule == rule.code]
        told = [
            replace(f, message=f"{f.message} ({f.evidence})" if f.evidence else f.message)
            for f in found
        ]
        shown.append((title, f"```text\n{examples.show(example)}\n```", told))
    text = rule.text.strip() + (f"\n\n**Threshold:** {rule.reason.strip()}" if rule.reason else "")
    return section_page(
        rule.code, rule.name, ("Measurements", *dict.fromkeys(severities)), text, shown, rule.source
    )


Answer = tuple[Severity, str, str]
"""Severity, message and evidence."""

_JUDGES: dict[str, Callable[[Seen], Answer | None]] = {}


def _rule(
    code: str,
) -> Callable[[Callable[[Seen], Answer | None]], Callable[[Seen], Answer | None]]:
    def add(judge: Callable[[Seen], Answer | None]) -> Callable[[Seen], Answer | None]:
        _JUDGES[code] = judge
        return judge

    return add


_STUCK_SHARE, _STUCK_MHZ = 0.5, 1000.0
_HARD = 0x8 | 0x20 | 0x40 | 0x80
_DRIFT, _SPREAD, _AGREE = 0.05, 0.05, 0.02
_LOW_GIB = 2.0
_LOAD, _HITS, _MANY_HITS, _TEMPLATE_TOKENS = 0.25, 0.10, 0.5, 64
_LAG_S = 0.005
_RISE, _LEAP = 1.10, 1.30
_FEW = 5
_SHORT = 16


@_rule("BENCH101")
def _clock_stuck(seen: Seen) -> Answer | None:
    if not seen.trace:
        return None
    clocks, tops = known(seen.trace.during, "clock_mhz"), known(seen.trace.samples, "clock_max_mhz")
    if not clocks:
        return None
    clock, limit = statistics.median(clocks), max(_STUCK_MHZ, _STUCK_SHARE * max(tops, default=0.0))
    if clock >= limit or any((s.reasons or 0) & _HARD for s in seen.trace.during):
        return None
    power = known(seen.trace.during, "power_w")
    watts = f", {statistics.fmean(power):.0f} W" if power else ""
    return (
        "error",
        f"The SM clock stood at {clock:g} MHz under load",
        f"median of {len(clocks)} samples{watts}; below {limit:g} MHz",
    )


@_rule("BENCH102")
def _throttled(seen: Seen) -> Answer | None:
    during = seen.trace.during if seen.trace else ()
    hit = [s for s in during if (s.reasons or 0) & _HARD]
    if not hit:
        return None
    names = [n for n in seen.trace.summary().throttle if n != "software power cap"]  # type: ignore[union-attr]
    return (
        "error",
        f"The GPU was throttled: {', '.join(names)}",
        f"{len(hit)} of {len(during)} samples",
    )


@_rule("BENCH103")
def _power_cap(seen: Seen) -> Answer | None:
    during = seen.trace.during if seen.trace else ()
    hit = [s for s in during if (s.reasons or 0) & 0x4]
    if len(hit) * 4 < len(during) or not hit:
        return None
    return (
        "warning",
        "The GPU ran into its power limit",
        f"software power cap in {len(hit)} of {len(during)} samples",
    )


@_rule("BENCH104")
def _clock_drift(seen: Seen) -> Answer | None:
    clocks = known(seen.trace.during, "clock_mhz") if seen.trace else []
    if len(clocks) < 6:
        return None
    half = len(clocks) // 2
    first, second = statistics.median(clocks[:half]), statistics.median(clocks[half:])
    if abs(second - first) <= _DRIFT * first:
        return None
    return (
        "warning",
        f"The SM clock went from {first:g} to {second:g} MHz",
        f"medians of the two halves of {len(clocks)} samples",
    )


@_rule("BENCH105")
def _hot(seen: Seen) -> Answer | None:
    heat = known(seen.trace.during, "temperature_c") if seen.trace else []
    if not heat or max(heat) < 85:
        return None
    return (
        "warning",
        f"The GPU was {max(heat):g} °C hot",
        "85 °C or more: the next run may be throttled, and differ from this one",
    )


@_rule("BENCH111")
def _busy(seen: Seen) -> Answer | None:
    if not seen.trace:
        return None
    for name, what in (("cpu_busy", "CPU"), ("gpu_busy", "GPU")):
        for when, samples in (("before", seen.trace.before), ("after", seen.trace.after)):
            # A share counts since the sample before it: the first one still holds some of the
            # warm-up or of the load.
            values = known(samples[1:], name)
            if values and statistics.fmean(values) > _LOAD:
                share = statistics.fmean(values)
                return (
                    "warning",
                    f"Something else kept the {what} {share:.0%} busy {when} the load",
                    f"{len(values)} samples, over {_LOAD:.0%}",
                )
    return None


@_rule("BENCH112")
def _memory(seen: Seen) -> Answer | None:
    left = known(seen.trace.samples, "available_gib") if seen.trace else []
    if not left or min(left) >= _LOW_GIB:
        return None
    return (
        "warning",
        f"Only {min(left):.1f} GiB of memory were available",
        f"MemAvailable; below {_LOW_GIB:g} GiB a Spark begins to swap",
    )


@_rule("BENCH113")
def _swap(seen: Seen) -> Answer | None:
    pages = (
        known((*seen.trace.before[-1:], *seen.trace.during, *seen.trace.after[:1]), "swapped_mib")
        if seen.trace
        else []
    )
    if len(pages) < 2 or pages[-1] - pages[0] < 1:
        return None
    return (
        "error",
        f"The machine swapped {pages[-1] - pages[0]:.0f} MiB during the load",
        "pswpin + pswpout of /proc/vmstat",
    )


@_rule("BENCH201")
def _others(seen: Seen) -> Answer | None:
    if not seen.trace:
        return None
    for when, samples in (("before", seen.trace.before), ("after", seen.trace.after[1:])):
        counts = [(s.running or 0) + (s.waiting or 0) for s in samples if s.running is not None]
        if any(counts):
            return (
                "error",
                f"The engine had {max(counts):g} other requests {when} the load",
                "num_requests_running + num_requests_waiting",
            )
    limit = seen.cell.concurrency
    most = max(
        ((s.running or 0) + (s.waiting or 0) for s in seen.trace.during if s.running is not None),
        default=0,
    )
    if limit and most > limit:
        return (
            "error",
            f"The engine had {most:g} requests while {limit} were sent",
            "num_requests_running + num_requests_waiting",
        )
    return None


@_rule("BENCH202")
def _queued(seen: Seen) -> Answer | None:
    waits = known(seen.trace.during, "waiting") if seen.trace else []
    if len(waits) < 3 or sum(w > 0 for w in waits) * 2 < len(waits):
        return None
    return (
        "warning",
        f"Requests waited for the engine ({statistics.fmean(waits):.1f} on average)",
        f"num_requests_waiting > 0 in {sum(w > 0 for w in waits)} of {len(waits)} samples",
    )


@_rule("BENCH203")
def _preempted(seen: Seen) -> Answer | None:
    count = seen.cell.engine.preemptions if seen.cell.engine else None
    return (
        (
            "warning",
            f"{count:g} requests were thrown out of the KV cache and computed again",
            "num_preemptions_total",
        )
        if count
        else None
    )


@_rule("BENCH204")
def _cached(seen: Seen) -> Answer | None:
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
    return (
        severity,
        f"{engine.prefix_hits:.1%} of the prompt tokens came from the prefix cache",
        "prefix_cache_hits_total / prefix_cache_queries_total",
    )


@_rule("BENCH205")
def _restarted(seen: Seen) -> Answer | None:
    return (
        ("error", "The engine was started anew during the load", "a counter of /metrics fell")
        if seen.restarted
        else None
    )


@_rule("BENCH206")
def _server_count(seen: Seen) -> Answer | None:
    told = seen.cell.engine.generation_tokens if seen.cell.engine else None
    mine = seen.cell.figures.output_tokens
    if told is None or not mine or seen.cell.figures.failed or seen.cell.interrupted:
        return None
    # vLLM counts a token when it is made, usage when the text is cut: one a request may differ.
    if abs(told - mine) <= max(_AGREE * mine, seen.cell.figures.completed):
        return None
    return (
        "error",
        f"The engine made {told:g} tokens and the replies hold {mine}",
        "generation_tokens_total against usage",
    )


@_rule("BENCH207")
def _id_count(seen: Seen) -> Answer | None:
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
    return (
        "error",
        f"In {len(wrong)} replies `usage` and the token ids disagree",
        f"{one.prompt}: usage {one.output_tokens}, ids {one.id_tokens}",
    )


@_rule("BENCH208")
def _no_count(seen: Seen) -> Answer | None:
    missing = [r for r in seen.cell.requests if r.error is None and r.output_tokens is None]
    if not missing:
        return None
    return (
        "error",
        f"{len(missing)} replies came without a number of tokens",
        "neither `usage` nor token ids: chunks are not tokens",
    )


@_rule("BENCH209")
def _acceptance(seen: Seen) -> Answer | None:
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
        return (
            "warning",
            f"The client sees {mine:.2f} tokens a step, the engine tells {made / steps:.2f}",
            (
                f"{events} events against {steps:g} steps (inter_token_latency_seconds_count): some"
                " came in one event, so step_gap is no step"
            ),
        )
    # An n-gram draft is not made in every step, so 1 + accepted / drafts is not the mean of all
    # steps; 1 + accepted / steps is. The last step of a reply may have more accepted than the reply
    # took: up to K.
    told, cut = (
        1 + engine.accepted / steps,
        len(requests) * (engine.drafted or 0) / (engine.drafts or 1) / steps,
    )
    if made / steps * (1 - _AGREE) <= told <= (made / steps + cut) * (1 + _AGREE):
        return None
    return (
        "warning",
        f"The client sees {made / steps:.2f} tokens a step, the engine tells {told:.2f}",
        f"{made:g} tokens after the first in {steps:g} steps, against 1 + accepted / steps",
    )


@_rule("BENCH210")
def _no_metrics(seen: Seen) -> Answer | None:
    if seen.cell.engine is not None or seen.restarted:
        return None
    return (
        "warning",
        "The engine's own counters are unknown",
        "no vLLM metrics at /metrics: other requests and cached prompts would go unseen",
    )


@_rule("BENCH211")
def _no_telemetry(seen: Seen) -> Answer | None:
    if seen.trace and seen.trace.during and known(seen.trace.during, "clock_mhz"):
        return None
    what = (
        "clocks, power and temperature"
        if seen.trace and seen.trace.during
        else "clocks, power, temperature, memory and load"
    )
    return (
        "info",
        f"The machine's {what} are unknown",
        "no nvidia-smi, an engine on another machine, or a run shorter than a sample",
    )


@_rule("BENCH301")
def _cold(seen: Seen) -> Answer | None:
    if seen.cell.warm_up is None or not seen.cell.warm_up.ttfts_s:
        return (
            "warning",
            "No warm-up of this shape",
            "the first requests of a batch size or a prompt length can pay for compilation",
        )
    return None


@_rule("BENCH302")
def _unsettled(seen: Seen) -> Answer | None:
    warmth = seen.cell.warm_up
    if not warmth or not warmth.ttfts_s or warmth.settled:
        return None
    return (
        "warning",
        "The warm-up did not settle",
        "TTFT by wave: " + ", ".join(f"{t * 1000:.0f} ms" for t in warmth.ttfts_s),
    )


@_rule("BENCH303")
def _late_compile(seen: Seen) -> Answer | None:
    ttfts = [
        (r.ttft_s, r.start_s)
        for r in seen.cell.requests
        if r.error is None and r.ttft_s is not None
    ]
    if len(ttfts) < 4:
        return None
    middle = statistics.median(t for t, _ in ttfts)
    worst = max(t for t, _ in ttfts)
    if worst < 1.0 or worst < 10 * middle:
        return None
    return (
        "error",
        f"A request waited {worst:.1f} s for its first token, ten times the median",
        f"median {middle * 1000:.0f} ms: something was compiled or loaded inside the measurement",
    )


@_rule("BENCH304")
def _spread(seen: Seen) -> Answer | None:
    # Under speculation the tokens of a step differ from text to text; the time of a step does not.
    values = [
        statistics.fmean(gaps)
        for r in seen.cell.requests
        if r.error is None and (gaps := r.step_gaps_s)
    ]
    if len(values) < 4:
        return None
    middle = stats.quantile(values, 0.5)
    if not middle:
        told = "something between the engine and the client collects the stream"
        return "error", "The replies came in one piece, so no step could be timed", told
    share = (stats.quantile(values, 0.75) - stats.quantile(values, 0.25)) / middle
    if share <= _SPREAD:
        return None
    return (
        "warning",
        f"The step time differs by {share:.0%} between requests",
        f"IQR / median of {len(values)} requests' mean step_gap, over {_SPREAD:.0%}",
    )


@_rule("BENCH305")
def _few(seen: Seen) -> Answer | None:
    count, least = seen.cell.figures.completed, max(_FEW, 2 * (seen.cell.concurrency or 1))
    if count >= least:
        return None
    return (
        "warning",
        f"Only {count} requests",
        f"under this load at least {least} are needed to see more than the first wave",
    )


@_rule("BENCH306")
def _short(seen: Seen) -> Answer | None:
    lengths = [r.output_tokens for r in seen.cell.requests if r.error is None and r.output_tokens]
    if not lengths or statistics.median(lengths) >= _SHORT:
        return None
    return (
        "warning",
        f"Half of the replies have at most {statistics.median(lengths):g} tokens",
        f"a decode speed from fewer than {_SHORT} tokens is noise",
    )


@_rule("BENCH307")
def _repeated(seen: Seen) -> Answer | None:
    if seen.cell.caching:
        return None
    repeated = sum(
        count if prompt in seen.earlier else count - 1
        for prompt, count in Counter(seen.prompts).items()
    )
    if not repeated:
        return None
    return (
        "warning",
        f"{repeated} of {len(seen.prompts)} prompts had been sent before",
        "a repeated prompt is answered from the prefix cache",
    )


@_rule("BENCH309")
def _failed(seen: Seen) -> Answer | None:
    broken = [r for r in seen.cell.requests if r.error is not None]
    if not broken:
        return None
    total = len(seen.cell.requests)
    severity: Severity = "error" if len(broken) * 20 > total else "warning"
    return severity, f"{len(broken)} of {total} requests failed", (broken[0].error or "")[:200]


@_rule("BENCH310")
def _lag(seen: Seen) -> Answer | None:
    lag = seen.cell.client.lag_p99_s
    if lag is None or lag <= _LAG_S:
        return None
    return (
        "warning",
        f"The measuring client was late by up to {lag * 1000:.0f} ms",
        f"p99 of its loop's delay, over {_LAG_S * 1000:g} ms: the machine had no CPU left for it",
    )


@_rule("BENCH311")
def _looping(seen: Seen) -> Answer | None:
    texts = [r.text for r in seen.cell.requests if r.error is None and r.text]
    bad = [text for text in texts if loops(text)]
    if not bad or len(bad) * 5 < len(texts):
        return None
    severity: Severity = "error" if len(bad) * 2 > len(texts) else "warning"
    return (
        severity,
        f"{len(bad)} of {len(texts)} replies repeat themselves",
        f"“…{bad[0][-60:]}”: repetition is what speculation guesses best",
    )


def loops(text: str) -> bool:
    """Whether a text's last part says the same over and over: over half of the 4-word sequences in
    its last 120 words are repetitions.
    """
    words = re.findall(r"\S+", text)[-120:]
    grams = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    if len(grams) >= 24:
        return len(set(grams)) < 0.5 * len(grams)
    # One endless word, or a script without blanks: the same by letters.
    letters = text[-400:]
    pieces = [letters[i : i + 12] for i in range(len(letters) - 11)]
    return len(pieces) >= 120 and len(set(pieces)) < 0.4 * len(pieces)


@_rule("BENCH312")
def _interrupted(seen: Seen) -> Answer | None:
    return (
        (
            "info",
            "The measurement was interrupted; what had been answered until then counts",
            "Ctrl-C",
        )
        if seen.cell.interrupted
        else None
    )


def _load() -> dict[str, Rule]:
    texts = own_yaml.read(Path(__file__).with_name("rules.yaml"))
    return {code: Rule(code, **fields, judge=_JUDGES.get(code)) for code, fields in texts.items()}


RULES: dict[str, Rule] = _load()
"""The gate's rules by code. 1xx: the machine. 2xx: the engine. 3xx: the method."""


def judge(seen: Seen) -> Findings:
    """Everything that is to be said against a cell, gravest first."""
    found = []
    for rule in RULES.values():
        if rule.judge and (answer := rule.judge(seen)):
            severity, message, evidence = answer
            found.append(
                Finding(
                    rule=rule.code,
                    severity=severity,
                    message=message,
                    evidence=evidence,
                    why=rule.address,
                )
            )
    return Findings(found)


def verdict(findings: Iterable[Finding]) -> Verdict:
    """`invalid` with an error, `suspect` with a warning, else `valid`."""
    severities = {finding.severity for finding in findings}
    return "invalid" if "error" in severities else "suspect" if "warning" in severities else "valid"


def stamp(cell: Cell, findings: Iterable[Finding]) -> Cell:
    """The cell with these findings added, and its verdict renewed. A code that it has already is
    not said twice.
    """
    had = {(f.rule, f.message) for f in cell.findings}
    cell.findings = list(
        Findings([*cell.findings, *(f for f in findings if (f.rule, f.message) not in had)])
    )
    cell.verdict = verdict(cell.findings)
    return cell


def compare_rows(report: Report) -> None:
    """Judge the rows of a report against each other, and stamp those that cannot both be true
    (BENCH308).
    """
    rows = [
        c
        for c in report.cells
        if c.concurrency and c.rate is None and (c.figures.decode_tok_s or c.figures.req_tok_s)
    ]
    for low in rows:
        for high in rows:
            alike = (low.prompt_class, low.label, low.max_tokens, low.context) == (
                high.prompt_class,
                high.label,
                high.max_tokens,
                high.context,
            )
            if not alike or (low.concurrency or 0) >= (high.concurrency or 0):
                continue
            slow, fast = _speed(low), _speed(high)
            # The tokens of a step depend on the texts; what load cannot do is make the step itself
            # faster.
            if fast <= _RISE * slow:
                continue
            message = (
                f"A request decodes at {fast:.0f} tok/s at c={high.concurrency} and at {slow:.0f}"
                f" tok/s at c={low.concurrency}"
            )
            severity: Severity = "error" if fast > _LEAP * slow else "warning"
            evidence = "median of the requests' speeds; load makes none faster"
            finding = Finding(
                rule="BENCH308",
                severity=severity,
                message=message,
                evidence=evidence,
                why=RULES["BENCH308"].address,
            )
            stamp(low, [finding])
            stamp(high, [finding])


def _speed(cell: Cell) -> float:
    """Median speed of a request at one token a step, in steps per second: comparable between texts
    under speculation.
    """
    summary = cell.figures.decode_tok_s or cell.figures.req_tok_s
    return (summary.median if summary else 0.0) / max(cell.figures.tok_per_step or 1.0, 1.0)
