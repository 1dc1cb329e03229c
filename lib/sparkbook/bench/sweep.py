"""Every K against no speculation, on an engine that is restarted for each; and the advice that
follows.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook.bench import advise, equality, load, recording
from sparkbook.bench.advise import Advice
from sparkbook.bench.equality import Answer, Equality
from sparkbook.bench.prompts import Prompt
from sparkbook.bench.results import Report
from sparkbook.errors import SparkbookError
from sparkbook.recipes import Recipe
from sparkbook.serve.endpoint import Endpoint

Start = Callable[[Recipe], AbstractContextManager[Endpoint]]
"""Starts a recipe's engine and gives its endpoint; leaving the context stops it."""


@dataclass(frozen=True)
class Sweep:
    """What a sweep over K left.

    Attributes:
        off: the two blocks without speculation, before and after all others. arms: a block for each
            K.
        answers: greedy replies without (0) and with each K, for the comparison of outputs.
    """

    off: tuple[Report, Report]
    arms: Mapping[int, tuple[Report, ...]]
    answers: Mapping[int, Sequence[Answer]]
    equality: Mapping[int, Equality]

    def advice(self) -> Advice:
        """Return what to do."""
        return advise.advise(self.off, self.arms, equality=self.equality)

    def steps(self, prompt_class: str, concurrency: int = 1) -> dict[int, float]:
        """Return median time of a step, in seconds, by K; what `advise.fit` makes costs of."""
        medians: dict[int, list[float]] = {}
        for k, reports in {0: self.off, **self.arms}.items():
            for cell in (cell for report in reports for cell in report.cells):
                if (cell.prompt_class, cell.concurrency) == (
                    prompt_class,
                    concurrency,
                ) and cell.figures.step_gap_s:
                    medians.setdefault(k, []).append(cell.figures.step_gap_s.median)
        return {k: statistics.fmean(values) for k, values in medians.items()}

    def write(self, file: str | Path) -> None:
        """Write as JSON, one line an arm. Of a request's stamps only the first and the last are
        kept, and of its replies nothing: speeds, comparisons and advice come out the same.

        Raises:
            SparkbookError: the file can't be written.
        """
        rows = [
            (0, self.off[0]),
            *((k, report) for k, reports in self.arms.items() for report in reports),
            (0, self.off[1]),
        ]
        equal = {k: [_plain(found), _plain(found.control)] for k, found in self.equality.items()}
        recording.write(
            file,
            {"equality": equal},
            ({"k": k, "report": thin(report).to_dict()} for k, report in rows),
        )

    @classmethod
    def read(cls, file: str | Path) -> Sweep:
        """Read what `write` wrote.

        Raises:
            SparkbookError: it can't be read, or is not such a file.
        """
        return recording.read(file, "a recorded sweep", cls._of)

    @classmethod
    def _of(cls, head: dict[str, Any], rest: list[dict[str, Any]]) -> Sweep:
        reports = [(row["k"], Report.model_validate(row["report"])) for row in rest]
        equal = {
            int(k): dataclasses.replace(_parsed(mine), control=_parsed(other))
            for k, (mine, other) in head["equality"].items()
        }
        first, last = (report for k, report in reports if k == 0)
        arms = {
            k: tuple(r for other, r in reports if other == k)
            for k in dict.fromkeys(k for k, _ in reports if k)
        }
        return cls((first, last), arms, {}, equal)


def _plain(found: Equality | None) -> list[dict[str, object]]:
    return [dataclasses.asdict(d) for d in found.differences] if found else []


def _parsed(rows: Sequence[dict[str, Any]]) -> Equality:
    return Equality(tuple(equality.Difference(**row) for row in rows))


def thin(report: Report) -> Report:
    """Return a report with only the first and the last stamp of each request, and no replies."""
    thin = report.model_copy(deep=True)
    for request in (r for cell in thin.cells for r in cell.requests):
        request.stamps_s = (
            [request.stamps_s[0], request.stamps_s[-1]] if len(request.stamps_s) > 1 else []
        )
        request.chunk_tokens = request.chunk_tokens[:1] if request.chunk_tokens else None
        request.text = request.text_bytes = None
    return thin


def recorded(name: str) -> Sweep:
    """Return a sweep that was taken with `tools/record_speculation.py` and comes with the project:
    `mtp`, `draft`, `ngram` or `smollm2-ngram`.

    Raises:
        SparkbookError: there is no such recording.
    """
    return Sweep.read(Path(__file__).with_name("recorded") / f"{name}.jsonl")


def with_k(recipe: Recipe, k: int) -> Recipe:
    """Return the same recipe with K drafts a step; 0 is without speculation.

    Raises:
        SparkbookError: the recipe has no speculation whose K could be changed.
    """
    config = recipe.serve.args.get("speculative-config")
    if not isinstance(config, dict):
        raise SparkbookError(
            f"{recipe.id} has no speculative-config, so there is no K to change: name the recipe"
            " with the draft"
        )
    return with_args(
        recipe, {"speculative-config": {**config, "num_speculative_tokens": k} if k else None}
    )


def with_args(recipe: Recipe, changed: Mapping[str, Any]) -> Recipe:
    """Return the same recipe with other arguments of `vllm serve`; None takes one away."""
    args = {name: value for name, value in recipe.serve.args.items() if name not in changed}
    args |= {name: value for name, value in changed.items() if value is not None}
    return recipe.model_copy(update={"serve": recipe.serve.model_copy(update={"args": args})})


def sweep(  # noqa: PLR0913 - four are options with defaults, by name only
    recipe: Recipe,
    ks: Sequence[int],
    plan: load.BenchPlan,
    start: Start,
    *,
    compare: int = 12,
    compare_tokens: int = 48,
    measure: Callable[[Endpoint, load.BenchPlan], Report] = load.measure,
    say: Callable[[str], None] = lambda line: None,
) -> Sweep:
    """Measure without speculation, with each K, and without once more: the two blocks without it
    show whether the machine changed.

    Args:
        recipe: with the draft.
        ks: numbers of drafts, 1 or more.
        plan: classes, concurrencies and lengths; the same prompts for every arm.
        start: how an engine is started.
        compare: prompts whose outputs are compared (the unsalted ones of each class in turn); 0
            compares none.
        compare_tokens: length of those replies.
        say: called with a line before each block.

    Raises:
        SparkbookError: a start or a measurement fails.
    """
    if not ks or min(ks) < 1:
        raise SparkbookError("give the numbers of drafts to try, 1 or more each, such as 1,2,3")
    asked = _asked(plan, compare)
    off: list[Report] = []
    arms: dict[int, tuple[Report, ...]] = {}
    answers: dict[int, Sequence[Answer]] = {}
    again: Sequence[Answer] | None = None
    for k in [0, *dict.fromkeys(ks), 0]:
        say(f"K = {k}" if k else "without speculation")
        with start(with_k(recipe, k)) as endpoint:
            report = measure(endpoint, plan)
            report.label = f"K={k}"
            if asked and (k not in answers or again is None):
                found = equality.ask(endpoint, asked, max_tokens=compare_tokens)
                if k in answers:
                    again = found
                else:
                    answers[k] = found
        if k:
            arms[k] = (report,)
        else:
            off.append(report)
        if report.interrupted:
            raise KeyboardInterrupt
        if report.ended:
            raise SparkbookError(report.ended)
    equal = {k: equality.compare(answers[0], answers[k], again) for k in arms} if asked else {}
    return Sweep((off[0], off[1]), arms, answers, equal)


def by_turns(
    endpoints: Mapping[int, Endpoint],
    plan: load.BenchPlan,
    *,
    compare: int = 12,
    compare_tokens: int = 48,
    measure: Callable[[Endpoint, load.BenchPlan], Report] = load.measure,
    say: Callable[[str], None] = lambda line: None,
) -> Sweep:
    """Return the same over servers that run side by side, each idle while another is measured:
    class by class, without drafts, each K, and without once more. A machine that changes over
    minutes changes all arms of a class alike.

    Args:
        endpoints: a running server for each K; 0 is the one without speculation.
        plan, compare, compare_tokens, say: as for `sweep`; `say` is told each class.

    Raises:
        SparkbookError: there is no server without speculation, or none with; or a measurement
            fails.
    """
    ks = sorted(k for k in endpoints if k > 0)
    if 0 not in endpoints or not ks:
        raise SparkbookError("give a server without speculation, as K = 0, and at least one with")
    turns = [0, *ks, 0]
    reports: list[Report | None] = [None] * len(turns)
    for name in plan.classes:
        say(name)
        for turn, k in enumerate(turns):
            report = measure(
                endpoints[k], dataclasses.replace(plan, classes=(name,), label=f"K={k}")
            )
            if report.interrupted:
                raise KeyboardInterrupt
            if report.ended:
                raise SparkbookError(report.ended)
            earlier = reports[turn]
            reports[turn] = (
                earlier.model_copy(update={"cells": [*earlier.cells, *report.cells]})
                if earlier
                else report
            )
    first, *middle, last = (
        report.model_copy(update={"label": f"K={k}"})
        for k, report in zip(turns, reports, strict=True)
        if report
    )
    asked = _asked(plan, compare)
    answers = (
        {k: equality.ask(endpoints[k], asked, max_tokens=compare_tokens) for k in (0, *ks)}
        if asked
        else {}
    )
    equal = {}
    if asked:
        again = equality.ask(endpoints[0], asked, max_tokens=compare_tokens)
        equal = {k: equality.compare(answers[0], answers[k], again) for k in ks}
    return Sweep(
        (first, last), {k: (report,) for k, report in zip(ks, middle, strict=True)}, answers, equal
    )


def _asked(plan: load.BenchPlan, count: int) -> list[Prompt]:
    """Return unsalted prompts of each class in turn, to compare outputs."""
    each = -(-count // max(len(plan.classes), 1))
    return [prompt for name in plan.classes for prompt in plan.prompts(name, each, salt=None)][
        :count
    ]
