"""Which candidates are started, in which order, and how often: short runs for all that promise
something, longer ones for the better half, and at the end the best two and the baseline by turns.

The order is by expected gain per minute. Of a single change nothing is known before its start, so
the options come in turn. A combination is expected to give the product of what its single changes
gave; it is started only if each of these helped by more than the noise, and the product is above
the best so far.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkbook.bench import compare
from sparkbook.bench.compare import Comparison
from sparkbook.errors import SparkbookError
from sparkbook.serve.engine import Engine
from sparkbook.tune.journal import Journal, Outcome
from sparkbook.tune.measuring import Plans, Starter
from sparkbook.tune.space import Candidate

FIGURE = "req_tok_s"
"""What is compared: tokens of a reply / its whole time, from the request to the last byte. So it
counts the first token and waiting, and under a steady number of requests it follows throughput.
"""
SHORT = ("short", "short again")
"""Stages of the short runs; the second is of the baseline alone, after the single changes."""
FINALISTS = 2
_FINAL_STARTS = 6


def compared(a: Iterable[Outcome], b: Iterable[Outcome]) -> Comparison | None:
    """Return B over A in `FIGURE`, prompt by prompt, all classes together; None: one of them has no
    measurement that counts.
    """
    left, right = (
        [cell for one in arm if one.counts and one.report for cell in one.report.cells]
        for arm in (a, b)
    )
    if not left or not right:
        return None
    return compare.paired(compare.values(left, FIGURE), compare.values(right, FIGURE))


def above(comparison: Comparison | None) -> bool:
    """Return whether B is faster by more than its prompts differ."""
    return bool(comparison and comparison.interval and comparison.interval[0] > 1)


@dataclass
class Tuning:
    """A run over candidates.

    Attributes:
        candidates: the baseline first.
        plans: what is measured.
        journal: what was measured, before an interruption too.
        starter: how a server is started and measured.
        budget_s: for all starts and measurements together.
        finalist: called with the running server of the baseline's and of each finalist's first
            turn of the final, to ask it more.
        loaders: candidates that differ in their start alone. They do not compete; the final starts
            them by turns with the others, and their starts are timed.
        unstarted: by candidate, why it was never started.
        best: the candidates of the final, the best by then first.
    """

    candidates: Sequence[Candidate]
    plans: Plans
    journal: Journal
    starter: Starter
    budget_s: float = math.inf
    finalist: Callable[[Engine, Outcome], None] | None = None
    loaders: Sequence[Candidate] = ()
    unstarted: dict[str, str] = field(default_factory=dict)
    best: list[Candidate] = field(default_factory=list)

    @property
    def baseline(self) -> Candidate:
        """The recipe as it is."""
        return self.candidates[0]

    @property
    def _single(self) -> list[Candidate]:
        return [one for one in self.candidates if len(one.changes) == 1]

    def run(self) -> None:
        """Measure until the final is done or the budget is spent.

        Raises:
            SparkbookError: the baseline does not start, or can't be measured here.
            KeyboardInterrupt: Ctrl-C; what was measured is in the journal, and no server is left.
        """
        ratios = _hopeful(self._short())
        rung = 1
        while len(ratios) > FINALISTS:
            rest = _better_half(ratios)
            if len(rest) == FINALISTS or not self._affords(len(rest) + 1, 2**rung):
                ratios = dict(list(rest.items())[:FINALISTS])
                break
            ratios = _hopeful(self._rung(rest, f"longer {rung}", rung))
            rung += 1
        named = {one.key: one for one in self.candidates}
        self.best = [named[key] for key in sorted(ratios, key=lambda k: -ratios[k].ratio)]
        loaders = self.loaders if self._affords(0, 0) else ()
        self._leave_out((one.key for one in self.loaders if one not in loaders), "the time is up")
        if self.best or loaders:
            self._final(loaders)

    def final(self, candidate: Candidate) -> list[Outcome]:
        """Return a candidate's turns of the final."""
        return [
            outcome
            for turn in range(2)
            if (outcome := self.journal.get(candidate.key, f"final {turn}"))
        ]

    def measured(self, candidate: Candidate, stage: str, size: int | None) -> Outcome:
        """Return an outcome: from the journal, or from a start now. Without a size it is started
        and not measured.
        """
        if kept := self.journal.get(candidate.key, stage):
            return kept
        more = self.finalist if stage == "final 0" else None
        self.starter.say(f"{stage}: {candidate.key}")
        plan = None if size is None else self.plans.run(size)
        outcome = self.starter.once(candidate, stage, plan, more)
        self.journal.add(outcome)
        return outcome

    def _base(self, stage: str, size: int) -> Outcome:
        outcome = self.measured(self.baseline, stage, size)
        if not outcome.counts:
            self.journal.drop(outcome)
            raise SparkbookError(
                f"the baseline can't be measured: {outcome.died or outcome.rejected}"
            )
        return outcome

    def _short(self) -> dict[str, Comparison]:
        """Measure shortly what promises something; the comparisons with the baseline, which is
        measured before the single changes and after them.
        """
        base = [self._base(SHORT[0], 0)]
        measured: dict[str, Outcome] = {}
        waiting = {one.key: one for one in self.candidates[1:]}
        while waiting:
            single = [one for one in waiting.values() if len(one.changes) == 1]
            if not single and len(base) == 1:
                base.append(self._base(SHORT[1], 0))
            candidate = self._turn(single) if single else self._next(waiting, base, measured)
            if candidate is None:
                why = "what its changes gave alone promises no more than the best"
                self._leave_out(waiting, why)
                break
            if not self.journal.get(candidate.key, SHORT[0]) and not self._affords(1, 1):
                self._leave_out(waiting, "the time is up")
                break
            del waiting[candidate.key]
            outcome = measured[candidate.key] = self.measured(candidate, SHORT[0], 0)
            if outcome.died:
                # What contains it would die too.
                dead = [key for key, one in waiting.items() if one.contains(candidate)]
                self._leave_out(dead, outcome.died)
                waiting = {key: one for key, one in waiting.items() if key not in dead}
        return _ratios(base, measured)

    def _turn(self, single: Sequence[Candidate]) -> Candidate:
        """Return the next single change: the first value of every option, then the second ones."""
        every = Counter(next(iter(one.changes)) for one in self._single)
        left = Counter(next(iter(one.changes)) for one in single)
        return min(single, key=lambda one: (every - left)[next(iter(one.changes))])

    def _next(
        self,
        waiting: Mapping[str, Candidate],
        base: Sequence[Outcome],
        measured: Mapping[str, Outcome],
    ) -> Candidate | None:
        """Return the combination with the most expected gain per minute; None: none promises more
        than the best so far.
        """
        ratios = _ratios(base, measured)
        sure = {
            key: ratio.ratio
            for key, ratio in ratios.items()
            if all(above(compared([one], [measured[key]])) for one in base)
        }
        best = max((ratio.ratio for ratio in ratios.values()), default=1.0)
        rates = {}
        for candidate in waiting.values():
            parts = [one.key for one in self._single if candidate.contains(one)]
            if len(parts) == len(candidate.changes) and all(key in sure for key in parts):
                cost = max(measured[key].seconds for key in parts)
                gain = math.prod(sure[key] for key in parts) / best - 1
                rates[candidate.key] = gain / max(cost, 1e-9)
        first = max(rates, key=lambda key: rates[key], default=None)
        return waiting[first] if first and rates[first] > 0 else None

    def _leave_out(self, keys: Iterable[str], why: str) -> None:
        self.unstarted |= dict.fromkeys(keys, why)

    def _affords(self, starts: int, longer: float) -> bool:
        """Return whether there is time for so many starts, with runs so many times as long as the
        shortest, and the final after them.
        """
        one = self.journal.get(self.baseline.key, SHORT[0])
        if one is None or one.start_s is None:
            return True
        run = one.seconds - one.start_s
        final = _FINAL_STARTS * (one.start_s + 4 * run) + 2 * len(self.loaders) * one.start_s
        return self.journal.spent_s + starts * (one.start_s + longer * run) + final <= self.budget_s

    def _rung(self, ratios: dict[str, Comparison], stage: str, size: int) -> dict[str, Comparison]:
        base = self._base(stage, size)
        again = [one for one in self.candidates if one.key in ratios]
        return _ratios([base], {one.key: self.measured(one, stage, size) for one in again})

    def _final(self, loaders: Sequence[Candidate]) -> None:
        """Measure the baseline and the finalists by turns, there and back; the way back leaves out
        who is surely behind the best, and a loader with which nothing started.
        """
        turns = [self.baseline, *self.best, *loaders]
        for turn in range(2):
            if turn:
                behind = self._behind()
                turns = [one for one in turns[::-1] if one.key not in behind]
            for candidate in turns:
                if candidate is self.baseline:
                    self._base(f"final {turn}", 1)
                else:
                    size = None if candidate in loaders else 1
                    self.measured(candidate, f"final {turn}", size)

    def _behind(self) -> set[str]:
        """Return finalists that are surely behind the best of the final so far, and what died."""
        outcomes = {one.key: self.final(one) for one in (*self.best, *self.loaders)}
        base = self.final(self.baseline)
        ratios = {key: compared(base, some) for key, some in outcomes.items()}
        sure = {key: one for key, one in ratios.items() if one and one.interval}
        best = max(sure, key=lambda key: sure[key].ratio, default=None)
        behind = {key for key in sure if best and above(compared(outcomes[key], outcomes[best]))}
        return behind | {key for key, some in outcomes.items() if some and some[0].died}


def _ratios(base: Sequence[Outcome], measured: Mapping[str, Outcome]) -> dict[str, Comparison]:
    """Return the comparisons of those that count."""
    found = {key: compared(base, [outcome]) for key, outcome in measured.items()}
    return {key: ratio for key, ratio in found.items() if ratio}


def _hopeful(ratios: dict[str, Comparison]) -> dict[str, Comparison]:
    """Return those that are not surely slower than the baseline."""
    return {key: one for key, one in ratios.items() if not one.interval or one.interval[1] > 1}


def _better_half(ratios: dict[str, Comparison]) -> dict[str, Comparison]:
    """Return the better half, the best first, without those that are surely behind the best; two at
    least, of three or more.
    """
    ranked = sorted(ratios.items(), key=lambda one: -one[1].ratio)
    best = ranked[0][1]
    half = ranked[: math.ceil(len(ranked) / 2)]
    return {
        key: one
        for place, (key, one) in enumerate(half)
        if place < FINALISTS
        or not (best.interval and one.interval)
        or one.interval[1] >= best.interval[0]
    }
