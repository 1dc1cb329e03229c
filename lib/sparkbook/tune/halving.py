"""Which candidates are started, in which order, and how often: short runs for all that promise
something, longer ones for the better half, and at the end the best two and the baseline by turns.

The order is by expected gain per minute. Of a single change nothing is known before its start, so
the options come in turn. A combination is expected to give the product of what its single changes
gave; it is started only if each of these helped and the product is above the best so far, or if it
adds one change to the best that two starts may have hidden.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkbook.bench import compare, stats
from sparkbook.bench.compare import Comparison
from sparkbook.errors import SparkbookError
from sparkbook.serve.engine import Engine
from sparkbook.tune.crew import Alone, Crew, Job
from sparkbook.tune.journal import Journal, Outcome
from sparkbook.tune.measuring import Plans, Starter
from sparkbook.tune.space import BASELINE, Candidate

FIGURE = "req_tok_s"
"""What is compared: tokens of a reply / its whole time, from the request to the last byte. So it
counts the first token and waiting, and under a steady number of requests it follows throughput.
"""
SHORT = ("short", "short again")
"""Stages of the short runs; the second is of the baseline alone, after the single changes."""
FINALISTS = 2
_FINAL_STARTS = 6
_STARTS = 0.05
"""How far two starts of one server may be apart: two turns of the baseline that are further apart
were disturbed, and are not averaged.
"""
_WORTH = 0.01
"""What a combination has to promise over the best so far, and to give over its parts."""


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


def above(comparison: Comparison | None, by: float = 0.0) -> bool:
    """Return whether B is faster by more than its prompts differ, and by more than a share."""
    return bool(comparison and comparison.interval and comparison.interval[0] > 1 + by)


@dataclass(frozen=True)
class StartNoise:
    """How far starts of one server are apart.

    Attributes:
        deviation: standard deviation of the logarithm of the speed of a start.
        freedom: degrees of freedom of that estimate: starts beyond the first, of each server.
    """

    deviation: float
    freedom: int

    def margin(self, a: int, b: int) -> float:
        """Return by which factor the means of so many starts of equal servers may differ (95 %)."""
        t = stats.t_quantile(0.975, self.freedom) if self.freedom else math.inf
        return math.exp(min(t * self.deviation * math.sqrt(1 / a + 1 / b), 700.0))


def start_noise(outcomes: Iterable[Outcome]) -> StartNoise:
    """Return the noise of all servers that were started more than once, each on its own node."""
    starts: dict[tuple[str, str | None], list[Outcome]] = {}
    for one in outcomes:
        if one.counts and one.report:
            starts.setdefault((one.candidate, one.node), []).append(one)
    squares, freedom = 0.0, 0
    for first, *others in starts.values():
        ratios = [found.ratio for one in others if (found := compared([first], [one]))]
        logs = [0.0, *map(math.log, ratios)]
        squares += sum((one - sum(logs) / len(logs)) ** 2 for one in logs)
        freedom += len(ratios)
    return StartNoise(math.sqrt(squares / freedom) if freedom else math.inf, freedom)


@dataclass
class Tuning:
    """A run over candidates.

    Attributes:
        candidates: the baseline first.
        plans: what is measured.
        journal: what was measured, before an interruption too.
        starter: how a server is started and measured on this machine.
        crew: the nodes that measure instead of this machine. Each candidate is measured on one of
            them, against the baseline there; the final is on the first.
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
    crew: Crew | None = None
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
        ratios = self._simplest(_hopeful(self._short()))
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
        if not loaders:
            self.unstarted |= {one.key: "the time is up" for one in self.loaders}
        if self.best or loaders:
            self._final(loaders)

    def _simplest(self, ratios: dict[str, Comparison]) -> dict[str, Comparison]:
        """Leave out what is not faster than a part of it: a change that does nothing is none. The
        best combination may look slower, by as much as two starts of one server differ.
        """
        named = {one.key: one for one in self.candidates}
        parts = {
            key: [other.ratio for part, other in ratios.items() if named[key].contains(named[part])]
            for key in ratios
        }
        wholes = [key for key in ratios if parts[key]]
        best = max(wholes, key=lambda key: ratios[key].ratio, default=None)
        return {
            key: one
            for key, one in ratios.items()
            if one.ratio > (1 - _STARTS if key == best else 1 + _WORTH) * max(parts[key], default=0)
        }

    def final(self, candidate: Candidate) -> list[Outcome]:
        """Return a candidate's turns of the final."""
        return [
            outcome
            for turn in range(2)
            if (outcome := self.journal.get(candidate.key, f"final {turn}"))
        ]

    def why_not_faster(self, candidate: Candidate) -> str | None:
        """Return why a finalist does not count as faster than the baseline; None: it does."""
        base, own = (
            [turn for turn in self.final(one) if turn.counts] for one in (self.baseline, candidate)
        )
        found = compared(base, own)
        if not found or not above(found):
            return "not faster than the recipe by more than its prompts differ"
        margin = start_noise(self.journal).margin(len(base), len(own))
        if found.ratio > margin:
            return None
        apart = f"up to {margin - 1:.0%}" if margin < 2 else "too few were measured to tell"
        return f"not faster by more than starts of one server differ ({apart})"

    def based(self, stages: Sequence[str] = SHORT, node: str | None = None) -> list[Outcome]:
        """Return the baseline's outcomes of some stages on a node; None: this machine, or the
        first.
        """
        where = node or self._nodes[0]
        found = (self.journal.get(BASELINE, stage, where) for stage in stages)
        return [one for one in found if one]

    def short(self) -> dict[str, Comparison]:
        """Return what the short runs gave, over the baseline of the same node."""
        short = {one.candidate: one for one in self.journal if one.stage == SHORT[0]}
        short.pop(BASELINE, None)
        return self._ratios(short)

    def measured(self, candidate: Candidate, stage: str, size: int | None) -> Outcome:
        """Return an outcome on this machine, or on the first node: from the journal, or from a
        start now. Without a size it is started and not measured.
        """
        jobs, outcomes = [Job(candidate, stage, size)], list[Outcome]()
        first = self._nodes[0]
        self._each(lambda node: jobs.pop() if jobs and node == first else None, outcomes.append)
        return outcomes[0]

    @property
    def _nodes(self) -> Sequence[str | None]:
        return self.crew.nodes if self.crew else (None,)

    def _each(
        self, choose: Callable[[str | None], Job | None], done: Callable[[Outcome], None]
    ) -> None:
        """Let every node take one job after another, until there is none for any of them.

        Args:
            choose: the next job of a node. done: called with each outcome.

        Raises:
            SparkbookError: the baseline does not start, or can't be measured on a node.
        """
        crew = self.crew or Alone(self.starter, self.plans, self.finalist)
        busy: set[str | None] = set()
        while True:
            for node in (one for one in crew.nodes if one not in busy):
                while job := choose(node):
                    where = node if job.candidate is self.baseline else None
                    if kept := self.journal.get(job.candidate.key, job.stage, where):
                        done(kept)
                        continue
                    self.starter.say(f"{node or ''} {job.stage}: {job.candidate.key}".lstrip())
                    crew.send(node, job)
                    busy.add(node)
                    break
            if not busy:
                return
            outcome = crew.receive()
            busy.remove(outcome.node)
            if outcome.candidate == BASELINE and not outcome.counts:
                on = f" on {outcome.node}" if outcome.node else ""
                why = outcome.died or outcome.rejected
                raise SparkbookError(f"the baseline can't be measured{on}: {why}")
            self.journal.add(outcome)
            done(outcome)

    def _short(self) -> dict[str, Comparison]:
        """Measure shortly what promises something; the comparisons with the baseline, which each
        node measures before the single changes and after them.
        """
        measured: dict[str, Outcome] = {}
        waiting = {one.key: one for one in self.candidates[1:]}

        def choose(node: str | None) -> Job | None:
            single = [one for one in waiting.values() if len(one.changes) == 1]
            again = waiting and not single
            for stage in SHORT if again else SHORT[:1]:
                if not self.based((stage,), node):
                    return Job(self.baseline, stage, 0)
            candidate = self._turn(single) if single else self._next(waiting, measured)
            if candidate is None:
                return None
            if not self.journal.get(candidate.key, SHORT[0]) and not self._affords(1, 1):
                leave_out(waiting, "the time is up")
                return None
            return Job(waiting.pop(candidate.key), SHORT[0], 0)

        def leave_out(keys: Iterable[str], why: str) -> None:
            for key in list(keys):
                self.unstarted[key] = why
                del waiting[key]

        def done(outcome: Outcome) -> None:
            if outcome.candidate == BASELINE:
                return
            measured[outcome.candidate] = outcome
            if outcome.died:
                # What contains it would die too.
                (dead,) = (one for one in self.candidates if one.key == outcome.candidate)
                leave_out([key for key in waiting if waiting[key].contains(dead)], outcome.died)

        self._each(choose, done)
        leave_out(waiting, "what its changes gave alone promises no more than the best")
        return self._ratios(measured)

    def _turn(self, single: Sequence[Candidate]) -> Candidate:
        """Return the next single change: the first value of every option, then the second ones."""
        every = Counter(next(iter(one.changes)) for one in self._single)
        left = Counter(next(iter(one.changes)) for one in single)
        return min(single, key=lambda one: (every - left)[next(iter(one.changes))])

    def _next(
        self, waiting: Mapping[str, Candidate], measured: Mapping[str, Outcome]
    ) -> Candidate | None:
        """Return the combination with the most expected gain per minute; None: none promises more
        than the best so far.
        """
        outcomes = {key: one for key, one in measured.items() if one.counts}
        gains = {key: self._gain(one) for key, one in outcomes.items()}
        best = max(gains.values(), default=1.0)
        if best <= 1 + _WORTH:
            return None
        sure = {key for key, ratio in self._ratios(outcomes).items() if above(ratio)}
        rates = {}
        for candidate in waiting.values():
            parts = [one.key for one in self._single if candidate.contains(one)]
            if len(parts) < len(candidate.changes) or not gains.keys() >= set(parts):
                continue
            promised = math.prod(gains[key] for key in parts) / best - 1
            if (sure >= set(parts) and promised > _WORTH) or self._may_help(candidate, gains):
                cost = max(outcomes[key].seconds for key in parts)
                rates[candidate.key] = promised / max(cost, 1e-9)
        first = max(rates, key=lambda key: rates[key], default=None)
        return waiting[first] if first else None

    def _may_help(self, candidate: Candidate, gains: Mapping[str, float]) -> bool:
        """Return whether a candidate is the best so far with fewer changes, if no better one is
        known for sure, and one change more: the best of its option, which may have helped by as
        much as two starts of one server differ.
        """
        fewer = len(candidate.changes) - 1
        known = [one for one in self.candidates if one.key in gains and len(one.changes) == fewer]
        best = max(known, key=lambda one: gains[one.key], default=self.baseline)
        near = gains.get(best.key, 0) >= (1 - _STARTS) * max(gains.values())
        if not near or not candidate.contains(best):
            return False
        (added,) = candidate.changes.keys() - best.changes.keys()
        values = [one for one in self._single if added in one.changes and one.key in gains]
        first = max(values, key=lambda one: gains[one.key])
        return candidate.contains(first) and gains[first.key] > 1 - _STARTS

    def _gain(self, outcome: Outcome) -> float:
        """Return its speed over the baseline of its node; over the faster of two turns that are far
        apart.
        """
        base = self.based(node=outcome.node)
        ratios = [one.ratio for turn in base if (one := compared([turn], [outcome]))]
        pooled = compared(base, [outcome])
        apart = max(ratios) > (1 + _STARTS) * min(ratios)
        return min(ratios) if apart or not pooled else pooled.ratio

    def _affords(self, starts: int, longer: float) -> bool:
        """Return whether there is time for so many starts, with runs so many times as long as the
        shortest, and the final after them.
        """
        one = self.journal.get(BASELINE, SHORT[0])
        if one is None or one.start_s is None:
            return True
        run = one.seconds - one.start_s
        final = _FINAL_STARTS * (one.start_s + 4 * run) + 2 * len(self.loaders) * one.start_s
        return self.journal.spent_s + starts * (one.start_s + longer * run) + final <= self.budget_s

    def _rung(self, ratios: dict[str, Comparison], stage: str, size: int) -> dict[str, Comparison]:
        waiting = [one for one in self.candidates if one.key in ratios]
        measured: dict[str, Outcome] = {}

        def choose(node: str | None) -> Job | None:
            if waiting and not self.based((stage,), node):
                return Job(self.baseline, stage, size)
            return Job(waiting.pop(0), stage, size) if waiting else None

        def done(outcome: Outcome) -> None:
            if outcome.candidate != BASELINE:
                measured[outcome.candidate] = outcome

        self._each(choose, done)
        return self._ratios(measured, (stage,))

    def _ratios(
        self, measured: Mapping[str, Outcome], stages: Sequence[str] = SHORT
    ) -> dict[str, Comparison]:
        """Return the comparisons of those that count, each with the baseline of its own node."""
        found = {
            key: compared(self.based(stages, outcome.node), [outcome])
            for key, outcome in measured.items()
        }
        return {key: ratio for key, ratio in found.items() if ratio}

    def _final(self, loaders: Sequence[Candidate]) -> None:
        """Measure the baseline and the finalists by turns, there and back; the way back leaves out
        who is surely behind the best, also with another start of both, and a loader with which
        nothing started.
        """
        turns = [self.baseline, *self.best, *loaders]
        for turn in range(2):
            if turn:
                behind = self._behind()
                turns = [one for one in turns[::-1] if one.key not in behind]
            for candidate in turns:
                self.measured(candidate, f"final {turn}", None if candidate in loaders else 1)

    def _behind(self) -> set[str]:
        """Return what died, and finalists that are behind the best of the final so far by more than
        their prompts differ and two starts of one server may be apart.
        """
        outcomes = {one.key: self.final(one) for one in (*self.best, *self.loaders)}
        base = self.final(self.baseline)
        ratios = {key: compared(base, some) for key, some in outcomes.items()}
        sure = {key: one for key, one in ratios.items() if one and one.interval}
        best = max(sure, key=lambda key: sure[key].ratio, default=None)
        behind = {
            key for key in sure if best and above(compared(outcomes[key], outcomes[best]), _STARTS)
        }
        return behind | {key for key, some in outcomes.items() if some and some[0].died}


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
