"""How near does `sparkbook tune` come to the best of its space, and in which share of the time?

    PYTHONPATH=lib .venv/bin/python tools/bench_tune.py JOURNAL [SEEDS]

First every candidate of the recording's space is started on the embedded engine and measured with
the longest run (JOURNAL keeps them; an interrupted run resumes). Then the tuner runs over the same
candidates, once a seed: a start costs what it cost, and a measurement draws its requests from those
that were measured. So many seeds cost seconds. What differs between two starts of one candidate is
not in it.
"""

import contextlib
import math
import random
import sys
from types import SimpleNamespace

import record_tuning
from sparkbook.bench import compare
from sparkbook.bench.results import Cell, Report, figures
from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import Endpoint
from sparkbook.tune.halving import FIGURE, Tuning, above, compared
from sparkbook.tune.journal import Journal
from sparkbook.tune.measuring import Starter

STAGE, LONGEST = "all", 2
WITHIN, SHARE = 0.97, 1 / 3


def speed(outcome):
    """Return the geometric mean over prompts, tokens a second."""
    values = compare.values(outcome.report.cells, FIGURE).values()
    logs = [math.log(value) for each in values for value in each]
    return math.exp(math.fsum(logs) / len(logs))


class Replay:
    """Servers whose speeds are drawn from what was measured."""

    def __init__(self, outcomes, seed):
        self.outcomes, self.rng, self.now = outcomes, random.Random(seed), 0.0

    @contextlib.contextmanager
    def start(self, recipe):
        """Take as long as the start took."""
        outcome = next(one for args, one in self.outcomes if args == recipe.serve.args)
        self.now += outcome.start_s
        yield SimpleNamespace(
            endpoint=Endpoint("http://127.0.0.1:9", outcome.candidate), running=True
        )

    def measure(self, endpoint, plan, _recipe):
        """Draw a measured request for each that would be sent."""
        outcome = next(one for _, one in self.outcomes if one.candidate == endpoint.model)
        cells = []
        for measured in outcome.report.cells:
            count = plan.requests or len(measured.requests)
            requests = [self.rng.choice(measured.requests) for _ in range(count)]
            cells.append(
                Cell(
                    prompt_class=measured.prompt_class,
                    concurrency=measured.concurrency,
                    figures=figures(requests),
                    requests=requests,
                )
            )
        whole = sum(len(cell.requests) for cell in outcome.report.cells)
        run_s = outcome.seconds - outcome.start_s
        self.now += run_s * sum(len(cell.requests) for cell in cells) / whole
        return Report(date="", tool="replay", model=endpoint.model, cells=cells)


def exhaustive(run):
    """Return every candidate's outcome, by its arguments; those that do not count are left out."""
    found = []
    for candidate in run.candidates:
        outcome = run.measured(candidate, STAGE, LONGEST)
        if outcome.counts:
            found.append((candidate, outcome))
        else:
            print(f"left out: {candidate.key}: {outcome.died or outcome.rejected}")
    return found


def winner(run):
    """Return the candidate that the tuner takes."""
    base = run.final(run.baseline)
    for one in run.best:
        if all(above(compared([turn], run.final(one))) for turn in base):
            return one
    return run.baseline


def main(journal, seeds="10"):
    """Measure, replay, and print a row for each seed."""
    run, _ = record_tuning.tuning(journal)
    found = exhaustive(run)
    if found[0][0] is not run.baseline:
        raise SparkbookError("the baseline was not measured")
    truth = {candidate.key: speed(outcome) for candidate, outcome in found}
    best = max(truth.values())
    whole_s = sum(outcome.seconds for _, outcome in found)
    print(f"{len(found)} candidates, {whole_s:.0f} s; the best: {max(truth, key=truth.get)}")
    good = 0
    for seed in range(int(seeds)):
        replay = Replay([(one.recipe.serve.args, outcome) for one, outcome in found], seed)
        starter = Starter(replay.start, replay.measure, clock=lambda replay=replay: replay.now)
        tuning = Tuning([one for one, _ in found], run.plans, Journal(None, {}), starter)
        tuning.run()
        taken = winner(tuning)
        near, share = truth[taken.key] / best, replay.now / whole_s
        good += near >= WITHIN and share <= SHARE
        starts = len(list(tuning.journal))
        print(
            f"seed {seed}: {near:.3f} of the best, {share:.0%} of the time, {starts} starts,"
            f" {taken.key}"
        )
    print(f"{good} of {seeds}: within {1 - WITHIN:.0%} of the best in a third of the time")


if __name__ == "__main__":
    main(*sys.argv[1:])
