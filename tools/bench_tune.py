"""How near does `sparkbook tune` come to the best of its space, and in which share of the time?

    PYTHONPATH=lib .venv/bin/python tools/bench_tune.py JOURNAL [SEEDS] [busy]

First every candidate of the recording's space is started twice on the embedded engine, there and
back, and measured as in a final: so much it takes to know the best as surely as the tuner knows its
winner. JOURNAL keeps what was measured, and an interrupted run resumes. Then the tuner runs over
the same candidates, once a seed: a start is one of the two that were made, costs what it cost, and
a measurement draws its requests from those of that start. So many seeds cost seconds. Answers are
not compared. Sixty starts take half an hour on a quiet machine. With `busy`, nobody waits for a
quiet machine: to try the script, not to judge by.

Two starts of every candidate are no exact truth, and the best of many noisy speeds is too good by
luck. So the output also says below which ratio two candidates are told apart, and compares each
winner with what one start of every candidate would have chosen, by the speeds of the other starts
("crossed"; above 1, the tuner chose better). That still flatters the tuner a little: it has seen
all starts. The result is kept in lib/sparkbook/tune/recorded.
"""

import contextlib
import math
import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import record_tuning
from sparkbook.bench import compare, recording, stats
from sparkbook.bench.results import Cell, Report, figures
from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import Endpoint
from sparkbook.tune import answer, measuring
from sparkbook.tune.halving import FIGURE, Tuning, above, compared
from sparkbook.tune.journal import Journal
from sparkbook.tune.measuring import Starter

TURNS, SIZE = 2, 1
"""As in the tuner's final."""
WITHIN, SHARE = 0.97, 1 / 3
OUT = record_tuning.OUT.with_name("benchmark.jsonl")


def speed(outcomes):
    """Return the geometric mean over prompts, tokens a second."""
    cells = [cell for outcome in outcomes for cell in outcome.report.cells]
    logs = [math.log(value) for each in compare.values(cells, FIGURE).values() for value in each]
    return math.exp(math.fsum(logs) / len(logs))


class Replay:
    """Servers whose speeds are drawn from what was measured; `measured` is by arguments."""

    def __init__(self, measured, seed):
        self.measured, self.rng, self.now = measured, random.Random(seed), 0.0
        self.running = None

    @contextlib.contextmanager
    def start(self, recipe):
        """Take as long as one of the starts took."""
        outcomes = next(some for args, some in self.measured if args == recipe.serve.args)
        self.running = self.rng.choice(outcomes)
        self.now += self.running.start_s
        yield SimpleNamespace(endpoint=Endpoint("http://127.0.0.1:9", "replay"), running=True)

    def measure(self, _endpoint, plan, _recipe):
        """Draw a measured request for each that would be sent."""
        outcome, cells = self.running, []
        for measured in outcome.report.cells:
            requests = [self.rng.choice(measured.requests) for _ in range(plan.requests)]
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
        return Report(date="", tool="replay", model="replay", cells=cells)


def exhaustive(run):
    """Return every candidate with its outcomes; one with a start that does not count is left
    out.
    """
    found = {candidate.key: [] for candidate in run.candidates}
    for turn in range(TURNS):
        for candidate in run.candidates[:: -1 if turn % 2 else 1]:
            outcome = run.measured(candidate, f"all {turn}", SIZE)
            if outcome.counts:
                found[candidate.key].append(outcome)
            else:
                print(f"left out: {candidate.key}: {outcome.died or outcome.rejected}")
    return [(one, found[one.key]) for one in run.candidates if len(found[one.key]) == TURNS]


def winner(run):
    """Return the candidate that the tuner takes."""
    base = run.final(run.baseline)
    fast = [
        one for one in run.best if all(above(compared([turn], run.final(one))) for turn in base)
    ]
    fast.sort(key=lambda one: -compared(base, run.final(one)).ratio)
    return answer.pick(run, fast) or run.baseline


def told_apart(starts):
    """Return the ratio of two candidates' speeds below which their starts don't tell them apart (95
    %).
    """
    logs = [math.log(second / first) for first, second in starts.values()]
    of_one = math.sqrt(math.fsum(log * log for log in logs) / 2 / len(logs))
    return math.exp(-stats.t_quantile(0.975, len(logs)) * of_one * math.sqrt(2 / TURNS))


def crossed(starts, taken):
    """Return the speed of a candidate over that of the best by one start, in the other start; the
    geometric mean of both ways.
    """
    found = 1.0
    for chosen_by, valued_by in ((0, 1), (1, 0)):
        best = max(starts, key=lambda key: starts[key][chosen_by])
        found *= starts[taken][valued_by] / starts[best][valued_by]
    return math.sqrt(found)


def main(journal, seeds="10", busy=""):
    """Measure, replay, and print a row for each seed."""
    run, _ = record_tuning.tuning(journal, busy=bool(busy))
    if busy:
        run.starter = replace(run.starter, measure=measuring.measure)
    found = exhaustive(run)
    if not found or found[0][0] is not run.baseline:
        raise SparkbookError("the baseline was not measured")
    starts = {candidate.key: [speed([one]) for one in outcomes] for candidate, outcomes in found}
    truth = {candidate.key: speed(outcomes) for candidate, outcomes in found}
    best = max(truth, key=truth.get)
    whole_s = sum(outcome.seconds for _, outcomes in found for outcome in outcomes)
    about = {
        "date": found[0][1][0].report.date[:10],
        "candidates": len(found),
        "starts": TURNS * len(found),
        "seconds": round(whole_s),
        "best": best,
        "gain": round(truth[best] / truth[run.baseline.key], 3),
        "apart": round(told_apart(starts), 3),
    }
    print("\n".join(f"{name}: {value}" for name, value in about.items()))
    print(f"{'seed':>4} {'of best':>8} {'crossed':>8} {'of time':>8} {'starts':>7}  winner")
    rows = []
    for seed in range(int(seeds)):
        replay = Replay([(one.recipe.serve.args, outcomes) for one, outcomes in found], seed)
        starter = Starter(replay.start, replay.measure, clock=lambda replay=replay: replay.now)
        budget_s = whole_s * SHARE
        candidates = [one for one, _ in found]
        tuning = Tuning(candidates, run.plans, Journal(None, {}), starter, budget_s)
        tuning.run()
        taken = winner(tuning).key
        row = {
            "of_best": round(truth[taken] / truth[best], 3),
            "crossed": round(crossed(starts, taken), 3),
            "of_time": round(replay.now / whole_s, 3),
            "starts": len(list(tuning.journal)),
            "winner": taken,
        }
        rows.append(row)
        print("{:>4} {:>8.3f} {:>8.3f} {:>8.0%} {:>7}  {}".format(seed, *row.values()), flush=True)
    in_time = [row for row in rows if row["of_time"] <= SHARE]
    near = sum(row["of_best"] >= WITHIN for row in in_time)
    same = sum(row["of_best"] >= about["apart"] for row in in_time)
    fair = sum(row["crossed"] >= WITHIN for row in in_time)
    print(f"in a third of the time, of {seeds}: {near} within {1 - WITHIN:.0%} of the best; {same}")
    print(f"not told from it by two starts; {fair} within {1 - WITHIN:.0%} by the crossed starts")
    if not busy:
        recording.write(OUT, about, rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
