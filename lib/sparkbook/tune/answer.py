"""What a tuning came to: the winner, if there is one, what each of its changes gave, its recipe."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkbook.bench import compare, lossless, stats
from sparkbook.bench.compare import Comparison
from sparkbook.bench.lossless import Trial
from sparkbook.bench.results import Report
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.recipes import Recipe
from sparkbook.recipes.schema import Image, Remark, Source
from sparkbook.serve import tool_calls
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.engine import Engine
from sparkbook.tune.halving import FIGURE, Tuning, above, compared, start_noise
from sparkbook.tune.journal import Outcome
from sparkbook.tune.measuring import Measure, Plans
from sparkbook.tune.space import BASELINE, Candidate, shown

_EACH = 3
"""Texts of each kind that a finalist is asked."""
_TURNS = 10
"""Turns of the agent with which tool calls are checked."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        candidate: which. ratio: its speed over the baseline's; None for the baseline.
        tok_s: tokens of a reply / its whole time, mean over prompts; interval: 95 % of the mean.
        speeds: tokens a second of all requests together, by requests at a time.
        first_s: seconds to the first token of a prompt of `first_tokens` tokens.
        kv_tokens: that the KV cache holds.
        trial: its replies against the baseline's. refused: why it may not win; None: it may.
    """

    candidate: Candidate
    ratio: Comparison | None
    tok_s: float
    interval: tuple[float, float] | None
    speeds: Mapping[int, float | None]
    first_s: float | None
    first_tokens: int | None
    kv_tokens: int | None
    trial: Trial | None = None
    refused: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "candidate": self.candidate.key,
            "ratio": self.ratio and self.ratio.ratio,
            "ratio_interval": self.ratio and self.ratio.interval,
            "tok_s": self.tok_s,
            "tok_s_interval": self.interval,
            "speeds_tok_s": {str(load): speed for load, speed in self.speeds.items()},
            "first_token_s": self.first_s,
            "first_token_prompt": self.first_tokens,
            "kv_tokens": self.kv_tokens,
            "answers": self.trial and self.trial.verdict,
            "refused": self.refused,
        }


@dataclass
class Answer:
    """What a tuning came to.

    Attributes:
        rows: the baseline, then the finalists, the fastest first.
        winner: the fastest that is faster by more than the noise and may win; None: there is none.
        short: by candidate, its speed over the baseline's in the short runs.
        parts: of a winner with several changes, by change, its speed over the same without it.
        loading: if loaders were tried: by candidate, seconds of its starts in the final, those of
            the baseline too.
        died, rejected: sentences about starts and measurements.
        unstarted: by candidate, why it was never started.
        starts: how many. spent_s: seconds of all of them.
        about: engine, machine, node and date of the baseline's measurement; digest of the winner's
            image.
        margin: factor up to which equal servers may differ, each started twice (95 %).
    """

    rows: list[Row]
    winner: Candidate | None = None
    short: dict[str, Comparison] = field(default_factory=dict)
    parts: dict[str, Comparison] = field(default_factory=dict)
    loading: dict[str, list[float]] = field(default_factory=dict)
    died: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    unstarted: dict[str, str] = field(default_factory=dict)
    starts: int = 0
    spent_s: float = 0.0
    about: dict[str, str | None] = field(default_factory=dict)
    margin: float | None = None

    @property
    def row(self) -> Row | None:
        """The winner's row."""
        return next((one for one in self.rows if one.candidate is self.winner), None)

    @property
    def loader(self) -> str | None:
        """The loader with the fastest starts, if each was faster than each of the recipe's."""
        base = self.loading.get(BASELINE)
        slowest = {key: max(some) for key, some in self.loading.items() if len(some) > 1}
        best = min(slowest, key=lambda key: slowest[key], default=None)
        return best if best and base and slowest[best] < min(base) else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "winner": self.winner.key if self.winner else None,
            "rows": [row.to_dict() for row in self.rows],
            "short": _plain(self.short),
            "parts": _plain(self.parts),
            "loading_s": self.loading,
            "loader": self.loader,
            "died": self.died,
            "rejected": self.rejected,
            "unstarted": self.unstarted,
            "starts": self.starts,
            "spent_s": self.spent_s,
            "about": self.about,
            "margin": self.margin,
        }


def _plain(ratios: Mapping[str, Comparison]) -> dict[str, Any]:
    return {key: {"ratio": one.ratio, "interval": one.interval} for key, one in ratios.items()}


@dataclass(frozen=True)
class Asking:
    """What the baseline and the finalists are asked besides the measurement.

    Attributes:
        plans: what is measured. measure: how. tools: check tool calls.
    """

    plans: Plans
    measure: Measure
    tools: bool

    def __call__(self, engine: Engine, outcome: Outcome) -> None:
        """Add answers, the check of tool calls and other speeds to an outcome."""
        endpoint = engine.endpoint
        rounds = 2 if outcome.candidate == BASELINE else 1
        outcome.answers = [lossless.ask(endpoint, each=_EACH) for _ in range(rounds)]
        if self.tools:
            outcome.tools = list(tool_calls.check(endpoint, turns=_TURNS).findings)
        outcome.shape = self._shape(endpoint)

    def _shape(self, endpoint: Endpoint) -> Report:
        reports = []
        for plan in self.plans.shape():
            report = self.measure(endpoint, plan, self.plans.recipe)
            if report.interrupted:
                raise KeyboardInterrupt
            reports.append(report)
        cells = [cell for report in reports for cell in report.cells]
        for cell in cells:
            cell.requests = []
        return reports[0].model_copy(update={"cells": cells})


def finish(tuning: Tuning, *, lossy: Mapping[str, bool], near: bool = False) -> Answer:
    """Judge the finalists of a tuning that has run, and measure what each change of the winner
    gave.

    Args:
        lossy: by option, whether it may change answers.
        near: let such an option win if the server solves no fewer tasks with it.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    base = tuning.final(tuning.baseline)
    _judge_answers(tuning, lossy)
    finalists = [
        _row(tuning, one, _refused(tuning, one, lossy, near))
        for one in tuning.best
        if any(outcome.counts for outcome in tuning.final(one))
    ]
    finalists.sort(key=lambda row: -(row.ratio.ratio if row.ratio else 0))
    rows = [_row(tuning, tuning.baseline, None), *finalists] if base else []
    winner = pick(tuning, [row.candidate for row in finalists if row.refused is None])
    about = {}
    usual = tuning.based()
    if usual and usual[0].report:
        report = usual[0].report
        about = {"engine": report.engine, "machine": report.machine, "date": report.date[:10]}
        about["node"] = usual[0].node
        about["digest"] = (tuning.final(winner) if winner else usual)[0].digest
    parts = dict(_parts(tuning, winner)) if winner and len(winner.changes) > 1 else {}
    outcomes = list(tuning.journal)
    return Answer(
        rows,
        winner,
        short=tuning.short(),
        parts=parts,
        loading=_loading(tuning),
        died=[one.died for one in outcomes if one.died],
        rejected=[f"{one.candidate}: {one.rejected}" for one in outcomes if one.rejected],
        unstarted=tuning.unstarted,
        starts=len(outcomes),
        spent_s=tuning.journal.spent_s,
        about=about,
        margin=start_noise(tuning.journal).margin(2, 2) if finalists else None,
    )


def pick(tuning: Tuning, ranked: Sequence[Candidate]) -> Candidate | None:
    """Return the winner of those that may win, the fastest first: the first one, or a part of it
    that is not surely slower.
    """
    winner = ranked[0] if ranked else None
    for one in ranked[1:]:
        if winner and winner.contains(one):
            ratio = compared(tuning.final(one), tuning.final(winner))
            winner = winner if above(ratio) else one
    return winner


def _judge_answers(tuning: Tuning, lossy: Mapping[str, bool]) -> None:
    """Turn the finalists' replies in the journal into verdicts."""
    base = tuning.journal.get(tuning.baseline.key, "final 0")
    if base is None or len(base.answers) < 2:
        return
    without, again = base.answers
    for one in tuning.best:
        outcome = tuning.journal.get(one.key, "final 0")
        if outcome and outcome.answers:
            claims = not any(lossy.get(name) for name in one.changes)
            (replies,) = outcome.answers
            trial = lossless.trial(one.key, without, again, replies, claims=claims)
            tuning.journal.add(outcome.model_copy(update={"trial": trial.to_dict(), "answers": []}))


def _refused(tuning: Tuning, one: Candidate, lossy: Mapping[str, bool], near: bool) -> str | None:
    """Return why a finalist may not win; None: it may."""
    if slow := tuning.why_not_faster(one):
        return slow
    outcome = tuning.journal.get(one.key, "final 0")
    base = tuning.journal.get(tuning.baseline.key, "final 0")
    if outcome is None or base is None or outcome.trial is None:
        return "its answers were not compared"
    if worse := Findings(outcome.tools or ()).errors_since(base.tools or ()):
        return f"tool calls fail with it: {worse[0]}"
    trial = Trial.from_dict(outcome.trial)
    _, _, high = trial.scores.difference
    if near and any(lossy.get(name) for name in one.changes):
        return None if high >= 0 else f"it solves fewer tasks: {trial.scores}"
    return None if trial.verdict != "changed" else f"it changes answers: {trial.equality}"


def _row(tuning: Tuning, one: Candidate, refused: str | None) -> Row:
    outcomes = [turn for turn in tuning.final(one) if turn.counts]
    cells = [cell for turn in outcomes if turn.report for cell in turn.report.cells]
    means = [sum(each) / len(each) for each in compare.values(cells, FIGURE).values()]
    shape = next((turn.shape.cells for turn in outcomes if turn.shape), [])
    long = next((cell for cell in shape if cell.context), None)
    first = outcomes[0]
    return Row(
        one,
        compared(tuning.final(tuning.baseline), outcomes) if one.changes else None,
        tok_s=sum(means) / len(means),
        interval=stats.mean_interval(means),
        speeds={
            cell.concurrency: cell.figures.out_tok_s if cell.verdict != "invalid" else None
            for cell in shape
            if cell.concurrency and not cell.context
        },
        first_s=long.figures.ttft_s.median if long and long.figures.ttft_s else None,
        first_tokens=long.context if long else None,
        kv_tokens=first.kv_tokens,
        trial=Trial.from_dict(first.trial) if first.trial else None,
        refused=refused,
    )


def _parts(tuning: Tuning, winner: Candidate) -> Iterator[tuple[str, Comparison]]:
    """Yield each change of the winner and its speed over the same without this change."""
    for name, change in winner.changes.items():
        rest = {other: value for other, value in winner.changes.items() if other != name}
        for one in tuning.candidates:
            if one.changes == rest:
                outcomes = tuning.final(one) or [tuning.measured(one, "back", 1)]
                if ratio := compared(outcomes, tuning.final(winner)):
                    yield shown(change), ratio


def _loading(tuning: Tuning) -> dict[str, list[float]]:
    if not tuning.loaders:
        return {}
    return {
        one.key: [turn.start_s for turn in tuning.final(one) if turn.start_s is not None]
        for one in (tuning.baseline, *tuning.loaders)
    }


def recipe(answer: Answer, use: str) -> Recipe:
    """Return the winner as a recipe that says where its settings come from.

    Raises:
        SparkbookError: there is no winner.
    """
    row = answer.row
    if row is None or row.ratio is None:
        raise SparkbookError("there is no winner to write: the recipe stays as it is")
    tuned = row.candidate.recipe
    low, high = row.ratio.interval or (row.ratio.ratio, row.ratio.ratio)
    machine, engine = answer.about.get("machine"), answer.about.get("engine")
    verdict = row.trial.verdict if row.trial else "not compared"
    text = (
        f"{row.candidate.key}: {row.ratio.ratio:.3f} times as fast as {tuned.id} (95 %: {low:.3f}"
        f" to {high:.3f}) for the use '{use}', measured by turns on {machine}, {engine}. Answers:"
        f" {verdict}."
    )
    if answer.loader:
        text += f" The unchanged recipe starts faster with {answer.loader}."
    source = Source(
        id="tune",
        title=f"tuned from {tuned.id} for the use '{use}', on {machine}",
        date=datetime.date.fromisoformat(str(answer.about["date"])),
    )
    config = tuned.serve.args.get("speculative-config")
    drafts = config.get("num_speculative_tokens") if isinstance(config, dict) else None
    draft = tuned.draft and (tuned.draft.model_copy(update={"tokens": drafts}) if drafts else None)
    digest = answer.about.get("digest")
    image: Image | None = tuned.image
    if image and digest:
        image = image.model_copy(update={"digest": digest})
    return tuned.model_copy(
        update={
            "id": f"{tuned.id.partition('@')[0]}-tuned-{use}",
            "title": f"{tuned.title}, tuned for {use}"[:120],
            "draft": draft,
            "image": image,
            "variants": {},
            "successor": None,
            "remarks": [*tuned.remarks, Remark(text=text, source="tune")],
            "sources": [*(one for one in tuned.sources if one.id != "tune"), source],
        }
    )
