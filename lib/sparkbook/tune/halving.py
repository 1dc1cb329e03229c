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
from collections.abc import Callable, Collection, Iterable, Sequence
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
        unstarted: by candidate, why it was never started.
        best: the candidates of the final, the best by then first.
    """

    candidates: Sequence[Candidate]
    plans: Plans
    journal: Journal
    starter: Starter
    budget_s: float = math.inf
    finalist: Callable[[Engine, Outcome], None] | None = None
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
        if self.best:
            self._final()

    def final(self, candidate: Candidate) -> list[Outcome]:
        """Return a candidate's turns of the final."""
        return [
            outcome
            for turn in range(2)
            if (outcome := self.journal.get(candidate.key, f"final {turn}"))
        ]

    def measured(self, candidate: Candidate, stage: str, size: int) -> Outcome:
        """Return an outcome: from the journal, or from a start now."""
        if kept := self.journal.get(candidate.key, stage):
            return kept
        more = self.finalist if stage == "final 0" else None
        self.starter.say(f"{stage}: {candidate.key}")
        outcome = self.starter.once(candidate, stage, self.plans.run(size), more)
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
        """Measure shortly what promises something; the comparisons with the baseline."""
        stage = "short"
        base = self._base(stage, 0)
        ratios: dict[str, Comparison] = {}
        waiting = {one.key: one for one in self.candidates[1:]}
        while (candidate := self._next(waiting.values(), ratios)) is not None:
            if not self.journal.get(candidate.key, stage) and not self._affords(1, 1):
                self._leave_out(waiting, "the time is up")
                break
            del waiting[candidate.key]
            outcome = self.measured(candidate, stage, 0)
            if outcome.died:
                # What contains it would die too.
                dead = [key for key, one in waiting.items() if one.contains(candidate)]
                self._leave_out(dead, outcome.died)
                waiting = {key: one for key, one in waiting.items() if key not in dead}
            elif ratio := compared([base], [outcome]):
                ratios[candidate.key] = ratio
        else:
            self._leave_out(waiting, "what its changes gave alone promises no more than the best")
        return ratios

    def _next(
        self, waiting: Collection[Candidate], ratios: dict[str, Comparison]
    ) -> Candidate | None:
        """Return the candidate with the most expected gain per minute; None: none promises more."""
        single = [one for one in waiting if len(one.changes) == 1]
        if single:
            # The first value of every option, then the second ones.
            every = Counter(next(iter(one.changes)) for one in self._single)
            left = Counter(next(iter(one.changes)) for one in single)
            return min(single, key=lambda one: (every - left)[next(iter(one.changes))])
        best = max((ratio.ratio for ratio in ratios.values()), default=1.0)
        rates = [(self._rate(one, ratios, best), one) for one in waiting]
        rate, first = max(rates, key=lambda pair: pair[0], default=(0.0, None))
        return first if rate > 0 else None

    def _rate(self, candidate: Candidate, ratios: dict[str, Comparison], best: float) -> float:
        """Return the gain over the best that a combination is expected to bring, per second."""
        single = [one for one in self._single if candidate.contains(one)]
        gains = [ratios.get(one.key) for one in single]
        if len(single) < len(candidate.changes) or not all(above(gain) for gain in gains):
            return 0.0
        expected = math.prod(gain.ratio for gain in gains if gain)
        outcomes = [self.journal.get(one.key, "short") for one in single]
        cost = max(one.seconds for one in outcomes if one)
        return max(expected / best - 1, 0.0) / max(cost, 1e-9)

    def _leave_out(self, keys: Iterable[str], why: str) -> None:
        self.unstarted |= dict.fromkeys(keys, why)

    def _affords(self, starts: int, longer: float) -> bool:
        """Return whether there is time for so many starts, with runs so many times as long as the
        shortest, and the final after them.
        """
        one = self.journal.get(self.baseline.key, "short")
        if one is None or one.start_s is None:
            return True
        run = one.seconds - one.start_s
        final = _FINAL_STARTS * (one.start_s + 4 * run)
        return self.journal.spent_s + starts * (one.start_s + longer * run) + final <= self.budget_s

    def _rung(self, ratios: dict[str, Comparison], stage: str, size: int) -> dict[str, Comparison]:
        base = self._base(stage, size)
        found = {}
        for candidate in self.candidates:
            if candidate.key in ratios:
                outcome = self.measured(candidate, stage, size)
                if ratio := compared([base], [outcome]):
                    found[candidate.key] = ratio
        return found

    def _final(self) -> None:
        """Measure the baseline and the finalists by turns, there and back."""
        turns = [self.baseline, *self.best]
        for turn, order in enumerate((turns, turns[::-1])):
            for candidate in order:
                if candidate is self.baseline:
                    self._base(f"final {turn}", 1)
                else:
                    self.measured(candidate, f"final {turn}", 1)


def _hopeful(ratios: dict[str, Comparison]) -> dict[str, Comparison]:
    """Return those that are not surely slower than the baseline."""
    return {key: one for key, one in ratios.items() if not one.interval or one.interval[1] > 1}


def _better_half(ratios: dict[str, Comparison]) -> dict[str, Comparison]:
    """Return the better half, the best first, without those that are surely behind the best; two at
    least.
    """
    ranked = sorted(ratios.items(), key=lambda one: -one[1].ratio)
    best = ranked[0][1]
    half = [
        (key, one)
        for place, (key, one) in enumerate(ranked[: math.ceil(len(ranked) / 2)])
        if place < FINALISTS
        or not best.interval
        or not one.interval
        or one.interval[1] >= best.interval[0]
    ]
    return dict(half if len(half) >= FINALISTS else ranked[:FINALISTS])
