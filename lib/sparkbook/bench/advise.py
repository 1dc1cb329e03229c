"""Is speculative decoding worth it here, with which K, up to which concurrency? "Leave it off" is
an answer.

Two ways lead to one. Measured: the same prompts without speculation and with each K (`advise`).
Expected: from the acceptance of each draft position and the costs of a step (`expected`), where
only a running server can be asked.

A step with K drafts makes 1 + a tokens, where a is the mean number of accepted drafts: the sum over
positions of the share of steps in which that position was accepted (vLLM counts them in
`spec_decode_num_accepted_tokens_per_pos`). It costs more than a step without: the drafts have to be
made, and K + 1 tokens to be checked.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparkbook import releases
from sparkbook.bench import compare
from sparkbook.bench.compare import Comparison
from sparkbook.bench.equality import Answer, Equality
from sparkbook.bench.equality import compare as equal
from sparkbook.bench.results import Cell, Figures, Report, Request
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.rules import Family, Hit

WORTH = 1.05
"""Speculation is kept if even the lower end of the interval gains 5 %: an engine with one moving
part less is worth that.
"""

SCHEDULE_KEY = "speculative-config.num_speculative_tokens_per_batch_size"
_COLLAPSE = "https://github.com/vllm-project/vllm/issues/49548"
_VLLM = "https://docs.vllm.ai/en/latest/features/speculative_decoding/"


@dataclass(frozen=True)
class Case:
    """One K under one class and load, against no speculation."""

    k: int
    prompt_class: str
    concurrency: int
    comparison: Comparison
    per_position: tuple[float, ...] = ()
    step_ratio: float | None = None

    @property
    def worth(self) -> bool:
        """Whether even the lower end of the interval is a gain."""
        low = self.comparison.interval[0] if self.comparison.interval else 0.0
        return low > WORTH


@dataclass(frozen=True)
class Advice:
    """What to do, and why.

    Attributes:
        cases: every K under every class and load.
        best: K for each class and concurrency; 0 is off.
        schedule: `[from, to, K]` for batch sizes, over all classes together, in vLLM's form; None
            where one K serves all.
        equality: of each K's output with that of no speculation, where it was asked.
        release: vLLM release that was measured; None where it is not known.
        rejected: measurements that the gate found invalid.
    """

    cases: tuple[Case, ...]
    best: Mapping[tuple[str, int], int]
    schedule: tuple[tuple[int, int, int], ...] | None = None
    equality: Mapping[int, Equality] = field(default_factory=dict)
    release: str | None = None
    rejected: tuple[str, ...] = ()

    @property
    def classes(self) -> list[str]:
        """Prompt classes, in the order in which they were measured."""
        return list(dict.fromkeys(name for name, _ in self.best))

    def case(self, k: int, prompt_class: str, concurrency: int) -> Case | None:
        """Return one of the cases."""
        key = (k, prompt_class, concurrency)
        return next((c for c in self.cases if (c.k, c.prompt_class, c.concurrency) == key), None)

    def findings(self) -> Findings:
        """Return the advice in sentences, most serious first."""
        return ADV.judge(self)


def advise(
    off: Sequence[Report],
    arms: Mapping[int, Sequence[Report]],
    *,
    equality: Mapping[int, Equality] | None = None,
    release: str | None = None,
    most: int = 256,
) -> Advice:
    """Decide from measurements.

    Args:
        off: blocks without speculation; two of them (before and after) show whether the machine
            changed.
        arms: the blocks of each K.
        equality: for each K, its output against that of no speculation.
        release: vLLM release, for what it accepts; None takes it from the reports.
        most: largest batch size a schedule has to cover (`--max-num-seqs`).

    Raises:
        SparkbookError: nothing can be compared.
    """
    if not arms:
        raise SparkbookError(
            "there is nothing to advise on: give the measurement without speculation and that of"
            " at least one K"
        )
    cases = []
    for k in sorted(arms):
        if k < 1:
            raise SparkbookError(
                f"K is the number of drafts, 1 or more, not {k}; the measurement without any is the"
                " other arm"
            )
        for row in compare.arms(off, arms[k]):
            if not row.load.startswith("c="):
                continue
            c = int(row.load[2:])
            mine, plain = (_cells(reports, row.prompt_class, c) for reports in (arms[k], off))
            cases.append(
                Case(
                    k,
                    row.prompt_class,
                    c,
                    row.comparison,
                    _positions(mine),
                    _ratio(_step(mine), _step(plain)),
                )
            )
    if not cases:
        raise SparkbookError(
            "the measurements have no closed loop in common: measure with --concurrency, not with"
            " --rate"
        )
    fails = {k for k, found in (equality or {}).items() if not found.passed}
    groups: dict[tuple[str, int], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.prompt_class, case.concurrency), []).append(case)
    best = {
        key: _best([case for case in group if case.k not in fails]) for key, group in groups.items()
    }
    every = [*off, *(report for reports in arms.values() for report in reports)]
    rejected = tuple(
        f"{report.label or 'without a label'} of {report.date}"
        for report in every
        if report.verdict == "invalid"
    )
    return Advice(
        tuple(cases),
        best,
        _schedule(cases, fails, most),
        dict(equality or {}),
        release or _release(every),
        rejected,
    )


def _best(cases: Sequence[Case]) -> int:
    """Return the smallest K among those that are worth it and not clearly slower than the fastest:
    its interval reaches that one's ratio.
    """
    worth = [case for case in cases if case.worth]
    if not worth:
        return 0
    top = max(case.comparison.ratio for case in worth)
    return min(
        case.k for case in worth if case.comparison.interval and case.comparison.interval[1] >= top
    )


def _schedule(
    cases: Sequence[Case], fails: set[int], most: int
) -> tuple[tuple[int, int, int], ...] | None:
    """Return one K for each range of batch sizes, by the geometric mean over all classes. None
    where a single K, or none, is best throughout.

    A measured concurrency speaks for the batch sizes from it up to just below the next one.
    """
    loads = sorted({case.concurrency for case in cases})
    chosen = []
    for load in loads:
        ratios = {}
        for k in sorted({case.k for case in cases} - fails):
            mine = [case for case in cases if case.k == k and case.concurrency == load]
            if mine:
                ratios[k] = math.exp(
                    math.fsum(math.log(case.comparison.ratio) for case in mine) / len(mine)
                )
        top = max(ratios, key=lambda k: ratios[k], default=0)
        chosen.append(top if ratios and ratios[top] > WORTH else 0)
    if len(set(chosen)) == 1:
        return None
    ranges: list[tuple[int, int, int]] = []
    for place, k in enumerate(chosen):
        start = 1 if place == 0 else loads[place]
        end = loads[place + 1] - 1 if place + 1 < len(loads) else max(most, loads[place])
        if ranges and ranges[-1][2] == k:
            ranges[-1] = (ranges[-1][0], end, k)
        else:
            ranges.append((start, end, k))
    return tuple(ranges)


def _cells(reports: Sequence[Report], name: str, concurrency: int) -> list[Cell]:
    return [
        cell
        for r in reports
        for cell in r.cells
        if cell.prompt_class == name and cell.concurrency == concurrency
    ]


def _positions(cells: Sequence[Cell]) -> tuple[float, ...]:
    """Return acceptance of each position over several cells, weighted by their drafts."""
    shares = [
        (cell.engine.drafts or 0.0, cell.engine.per_position)
        for cell in cells
        if cell.engine and cell.engine.per_position
    ]
    drafts = math.fsum(weight for weight, _ in shares)
    if not drafts:
        return ()
    return tuple(
        math.fsum(w * p[i] for w, p in shares if i < len(p)) / drafts
        for i in range(max(len(p) for _, p in shares))
    )


def _step(cells: Sequence[Cell]) -> float | None:
    gaps = [cell.figures.step_gap_s.median for cell in cells if cell.figures.step_gap_s]
    return math.fsum(gaps) / len(gaps) if gaps else None


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def _release(reports: Sequence[Report]) -> str | None:
    name = next((report.engine for report in reports if report.engine), None)
    return name.removeprefix("vLLM ") if name and name.startswith("vLLM ") else None


def sort(reports: Sequence[Report]) -> tuple[list[Report], dict[int, list[Report]]]:
    """Tell measurements without speculation from those with K drafts, by what the engine counted.

    Raises:
        SparkbookError: there is none without speculation, or an engine's counters are missing.
    """
    off: list[Report] = []
    arms: dict[int, list[Report]] = {}
    for report in reports:
        engines = [cell.engine for cell in report.cells if cell.engine]
        if not engines:
            raise SparkbookError(
                f"the measurement {report.label or report.date} holds no counters of the engine, so"
                " it does not show whether the engine speculated: measure a server that answers"
                " /metrics"
            )
        k = max(len(engine.per_position) for engine in engines)
        (arms.setdefault(k, []) if k else off).append(report)
    if not off:
        raise SparkbookError(
            "none of the measurements is without speculation: measure once more with"
            " --speculative-config left out"
        )
    return off, arms


# ---- expected, from acceptance and costs


@dataclass(frozen=True)
class Costs:
    """What a decode step costs, as a share of one without speculation.

    Attributes:
        draft: making one draft token. A draft model or an MTP head makes them one after the other;
            DFlash and n-gram make all K in one go, so their cost goes into `once`.
        verify: checking one more token in the same step. Near 0 while the weights are what a step
            reads; more with a mixture of experts, where further tokens touch further experts, and
            at high concurrency, where arithmetic becomes the limit.
        once: what any speculating step costs in addition.
    """

    draft: float = 0.05
    verify: float = 0.02
    once: float = 0.0

    def step(self, k: int) -> float:
        """Return a step with K drafts; 1 is a step without any."""
        return 1.0 if k == 0 else 1.0 + self.once + k * (self.draft + self.verify)


def tokens_per_step(per_position: Sequence[float], k: int) -> float:
    """Return mean tokens of a step with K drafts: 1 + the sum of the first K positions' acceptance.

    Beyond the last known position the acceptance is continued as a geometric series with its mean
    decay.

    Raises:
        SparkbookError: an acceptance is not between 0 and 1, or grows with the position.
    """
    if wrong := [p for p in per_position if not 0 <= p <= 1]:
        raise SparkbookError(f"an acceptance lies between 0 and 1; there is {wrong[0]}")
    if any(later > earlier + 1e-9 for earlier, later in itertools.pairwise(per_position)):
        raise SparkbookError(
            "acceptance can't grow with the position: a draft counts only if all before it were"
            " accepted"
        )
    known = list(per_position[:k])
    if len(known) < k and per_position and per_position[-1] > 0:
        decay = per_position[-1] ** (1 / len(per_position))
        known += [per_position[-1] * decay ** (i + 1) for i in range(k - len(known))]
    return 1.0 + math.fsum(known)


def expected(
    per_position: Sequence[float], costs: Costs, most: int = 15
) -> list[tuple[int, float, float]]:
    """Return for K = 0 to `most`: K, tokens per step, and speed-up over no speculation."""
    return [
        (k, tokens := tokens_per_step(per_position, k), tokens / costs.step(k))
        for k in range(most + 1)
    ]


def fit(steps: Mapping[int, float]) -> Costs:
    """Fit costs to measured step times by K (any unit; K = 0 is without speculation): a line
    through those with K >= 1.

    With a single K above 0 all its cost counts per draft. A slope that comes out below 0 is taken
    as 0.

    Raises:
        SparkbookError: the time without speculation, or any with it, is missing.
    """
    if not steps.get(0) or len(steps) < 2:
        raise SparkbookError(
            "costs need the step time without speculation (K = 0) and with at least one K"
        )
    points = [(k, value / steps[0] - 1) for k, value in sorted(steps.items()) if k > 0]
    if len(points) == 1:
        return Costs(draft=max(points[0][1], 0.0) / points[0][0], verify=0.0)
    mean_k, mean_v = (math.fsum(column) / len(points) for column in zip(*points, strict=True))
    slope = math.fsum((k - mean_k) * (v - mean_v) for k, v in points) / math.fsum(
        (k - mean_k) ** 2 for k, _ in points
    )
    slope = max(slope, 0.0)
    return Costs(draft=slope, verify=0.0, once=max(mean_v - slope * mean_k, 0.0))


# ---- the advice in sentences


def _shown(advice: Advice) -> str:
    rows = [f"{c.prompt_class} c={c.concurrency} K={c.k}: {c.comparison}" for c in advice.cases]
    return "\n".join(
        [
            *rows,
            *(f"K={k}: {found}" for k, found in advice.equality.items()),
            *(f"rejected: {r}" for r in advice.rejected),
        ]
    )


ADV = Family(
    "ADV",
    "Advice on speculative decoding",
    "The advice of `sparkbook advise` on measurements with and without speculation. The examples"
    " are invented measurements, judged by the same function.",
    describe=_shown,
)


def _report(
    tok_s: float,
    k: int = 0,
    c: int = 1,
    n: int = 16,
    name: str = "code",
    positions: Sequence[float] = (),
) -> Report:
    """Return an invented measurement: each prompt decodes at its own speed, about `tok_s`."""
    from sparkbook.bench.results import Engine

    requests = []
    for i in range(n):
        span = 100 / (tok_s * (1 + 0.2 * math.sin(i)) * (1 + 0.01 * math.cos(7 * i + k)))
        requests.append(
            Request(
                prompt=f"{name}-{i:03}",
                ttft_s=0.1,
                latency_s=0.1 + span,
                stamps_s=[0.1, 0.1 + span],
                output_tokens=101,
            )
        )
    engine = Engine(drafts=1000.0, per_position=list(positions)) if positions else None
    cell = Cell(
        prompt_class=name,
        concurrency=c,
        figures=Figures(completed=n),
        requests=requests,
        engine=engine,
    )
    return Report(
        date="2026-11-28T00:00:00Z", tool="sparkbook", model="m", engine="vLLM 0.32.0", cells=[cell]
    )


def _example(
    gain: float, c: int = 1, n: int = 16, rejected: bool = False, **more: object
) -> Advice:
    off = [_report(20, c=c, n=n), _report(20, c=c, n=n)]
    off[0].cells[0].verdict = "invalid" if rejected else "valid"
    return advise(off, {3: [_report(20 * gain, 3, c, n, positions=(0.8, 0.6, 0.4))]}, **more)  # type: ignore[arg-type]


def _two_loads(low: float, high: float) -> Advice:
    off = [_report(20), _report(20, c=8)]
    return advise(off, {3: [_report(20 * low, 3), _report(20 * high, 3, c=8)]})


def _unequal(real: int) -> Equality:
    a = [Answer(f"p{i}", ("1", "2"), ({"1": -0.1}, {"2": -0.1, "3": -3.0})) for i in range(12)]
    return equal(
        a,
        [Answer(x.prompt, ("1", "3") if i < real else x.tokens, x.tops) for i, x in enumerate(a)],
        a,
    )


@ADV.rule(
    "ADV101",
    "keep-it",
    "info",
    source=_VLLM,
    fails=lambda: _example(1.8),
    passes=lambda: _example(1.0),
)
def _keep(advice: Advice) -> Iterator[Hit]:
    """For this class of prompts speculation pays: even the lower end of the interval gains more
    than 5 %. The K that is named is the smallest one that is not clearly slower than the
    fastest, since each further draft costs a little in every step.
    """
    for (name, c), k in advice.best.items():
        if k and (case := advice.case(k, name, c)):
            positions = ", ".join(f"{p:.0%}" for p in case.per_position)
            evidence = f"{case.comparison}" + (
                f"; acceptance by position {positions}" if positions else ""
            )
            yield Hit(
                f"Class {name}, {c} at a time: K = {k} makes it {case.comparison.ratio:.2f} times"
                " as fast.",
                evidence,
                f'Set "num_speculative_tokens": {k} in --speculative-config for this workload.',
            )


@ADV.rule(
    "ADV102",
    "leave-it-off",
    "warning",
    source=_VLLM,
    fails=lambda: _example(0.9),
    passes=lambda: _example(1.8),
)
def _leave(advice: Advice) -> Iterator[Hit]:
    """No K that was measured gains 5 % for sure with this class and load. An engine without a draft
    has one part less that can fail, and its memory is free for the KV cache.
    """
    for (name, c), k in advice.best.items():
        if not k:
            tried = [
                case for case in advice.cases if (case.prompt_class, case.concurrency) == (name, c)
            ]
            top = max(tried, key=lambda case: case.comparison.ratio)
            yield Hit(
                f"Class {name}, {c} at a time: leave speculation off.",
                evidence=f"the best was K = {top.k}: {top.comparison}",
                fix="Start without --speculative-config for this workload.",
            )


@ADV.rule(
    "ADV103",
    "stops-paying",
    "info",
    source=_VLLM,
    fails=lambda: _two_loads(1.8, 0.8),
    passes=lambda: _two_loads(1.8, 1.7),
)
def _stops(advice: Advice) -> Iterator[Hit]:
    """With more requests at a time a step has more to compute, and tokens that are thrown away cost
    what others could have used. From this concurrency on the gain is gone.
    """
    for name in advice.classes:
        loads = sorted(c for other, c in advice.best if other == name)
        paying = [c for c in loads if advice.best[name, c]]
        over = [c for c in loads if paying and c > paying[-1]]
        if over:
            yield Hit(
                f"Class {name}: speculation pays up to {paying[-1]} requests at a time, and no"
                f" longer at {over[0]}.",
                fix=(
                    f"Leave it on only where at most {paying[-1]} run at a time: see"
                    " --max-num-seqs, or a schedule by batch size."
                ),
            )


@ADV.rule(
    "ADV104",
    "schedule",
    "info",
    source=_COLLAPSE,
    fails=lambda: _two_loads(1.8, 0.8),
    passes=lambda: _two_loads(1.8, 1.7),
)
def _by_batch(advice: Advice) -> Iterator[Hit]:
    """K can follow the batch size: `num_speculative_tokens_per_batch_size` in
    `--speculative-config` takes ranges `[from, to, K]` (vLLM 0.24 and later). It is what took the
    place of `--speculative-disable-by-batch-size`, which no release since 0.10 has. Watch it under
    load: a collapse of throughput where the batch crosses a threshold has been reported.
    """
    if not advice.schedule:
        return
    version = advice.release
    known = version is not None and releases.normal(version) in releases.known()
    if known and not releases.get(version).has("config_keys", SCHEDULE_KEY):  # type: ignore[arg-type]
        yield Hit(
            f"The best K changes with the batch size, and vLLM {version} has no schedule for it.",
            fix="Choose K for the load that you have most of the time.",
        )
        return
    text = ", ".join(f"[{low}, {high}, {k}]" for low, high, k in advice.schedule)
    yield Hit(
        "The best K changes with the batch size.",
        evidence=(
            "over all classes together; a collapse of throughput at a threshold has been reported,"
            " so measure with the schedule on"
        ),
        fix=f'Add "num_speculative_tokens_per_batch_size": [{text}] to --speculative-config.',
        confidence="high" if known else "medium",
    )


@ADV.rule(
    "ADV201",
    "not-sure",
    "warning",
    source="statistics as in `sparkbook.bench.compare`",
    fails=lambda: _example(1.8, n=5),
    passes=lambda: _example(1.8),
)
def _unsure(advice: Advice) -> Iterator[Hit]:
    """Fewer than 12 prompts a class, or a machine that changed between the two blocks without
    speculation: the ratio may be luck.
    """
    for case in advice.cases:
        if not case.comparison.steady:
            yield Hit(
                f"Class {case.prompt_class}, {case.concurrency} at a time, K = {case.k}: the"
                " machine changed while it was measured.",
                str(case.comparison),
                "Measure again in the order off, on, on, off; look at clock and temperature.",
            )
        elif case.comparison.n < compare.ENOUGH:
            yield Hit(
                f"Class {case.prompt_class}, {case.concurrency} at a time, K = {case.k}:"
                f" {case.comparison.n} prompts are too few.",
                str(case.comparison),
                f"Measure at least {compare.ENOUGH} prompts of each class.",
            )


@ADV.rule(
    "ADV204",
    "rejected-measurement",
    "error",
    source=_VLLM,
    fails=lambda: _example(1.8, rejected=True),
    passes=lambda: _example(1.8),
)
def _rejected(advice: Advice) -> Iterator[Hit]:
    """A number that the gate rejects is no ground for advice: see the findings stored with the
    measurement.
    """
    for label in advice.rejected:
        yield Hit(
            f"The measurement {label} is invalid.",
            fix="Look at its findings, mend the cause, and measure again.",
        )


@ADV.rule(
    "ADV202",
    "changes-the-output",
    "error",
    source="https://github.com/vllm-project/vllm/issues/54506",
    fails=lambda: _example(1.8, equality={3: _unequal(4)}),
    passes=lambda: _example(1.8, equality={3: _unequal(0)}),
)
def _changes(advice: Advice) -> Iterator[Hit]:
    """Speculation must not change what a greedy model says. More replies differ, and not by a
    near-tie, than when the server without it is asked twice. This K is not advised, however fast it
    is.
    """
    for k, found in advice.equality.items():
        if not found.passed:
            yield Hit(
                f"K = {k} changes the output.",
                str(found),
                "Leave it off, and report it with the first differing prompt.",
            )


@ADV.rule(
    "ADV203",
    "output-not-compared",
    "info",
    source=_VLLM,
    fails=lambda: _example(1.8),
    passes=lambda: _example(1.8, equality={3: _unequal(0)}),
)
def _uncompared(advice: Advice) -> Iterator[Hit]:
    """Speed was measured, and whether the output stays the same was not. Speculation claims to be
    lossless; a wrong pairing or a kernel's fault shows only in the text.
    """
    missing = sorted({case.k for case in advice.cases} - set(advice.equality))
    if missing:
        yield Hit(
            f"The output of K = {', '.join(map(str, missing))} was not compared with that of no"
            " speculation.",
            fix="Compare it once: chapter 13 of the book shows how.",
        )
