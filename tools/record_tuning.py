"""Record what the chapter about tuning shows: a run of `sparkbook tune` on the embedded engine,
kept in lib/sparkbook/tune/recorded.

    PYTHONPATH=lib .venv/bin/python tools/record_tuning.py JOURNAL [busy]

Half an hour at most. Nothing else should run meanwhile: each measurement waits
until the machine is quiet, and what the gate rejects is left out. With `busy`, other load is waited
for and then let pass: the recording says so, and so does the chapter. An interrupted recording
resumes with the same JOURNAL.
"""

import dataclasses
import sys
import time
from functools import partial
from pathlib import Path

import psutil
from sparkbook import recipes
from sparkbook.tune import commands, measuring, text, without_start
from sparkbook.tune import space as spaces
from sparkbook.tune.halving import Tuning
from sparkbook.tune.journal import Journal
from sparkbook.tune.measuring import Plans, Starter
from sparkbook.tune.space import Load, Space

OUT = Path(commands.__file__).with_name("recorded") / "tiny-mtp.jsonl"
RECIPE, USE, SEED = "embedded/tiny-mtp-k1", "users", 1
VALUES = {"drafts": (0, 2, 3), "batched-tokens": (0, 1), "sequences": (0, 2, 3)}
"""Of some options only these values, so that a run takes minutes."""
LOAD = Load(classes=("dialogue", "code"), concurrency=16, max_tokens=48)
QUIET, WAIT_S, TRIES = 20.0, 15, 3
BUSY, BUDGET_S = "BENCH111", 1900


def space() -> Space:
    """Return the project's space, smaller, with a load for a tiny model."""
    whole = spaces.read()
    use = whole.use(USE).model_copy(update={"load": LOAD})
    options = {
        name: option.model_copy(
            update={"values": tuple(option.values[i] for i in VALUES[name])}
            if name in VALUES
            else {}
        )
        for name, option in whole.options.items()
    }
    return Space(uses={**whole.uses, USE: use}, options=options)


def quiet():
    """Wait until the machine is idle, a while at most: the gate judges what remains."""
    end = time.monotonic() + WAIT_S
    while psutil.cpu_percent(1) > QUIET and time.monotonic() < end:
        pass


def measure(endpoint, plan, recipe):
    """Measure when it is quiet; several times if it was not, each time with other prompts."""
    for attempt in range(TRIES):
        quiet()
        salt = f"{plan.salt} {attempt}" if plan.salt else None
        report = measuring.measure(endpoint, dataclasses.replace(plan, salt=salt), recipe)
        found = {finding.rule for cell in report.cells for finding in cell.findings}
        if BUSY not in found:
            break
    return report


def say(line):
    """Print at once."""
    print(line, flush=True)


def tuning(journal_file, seed=SEED, busy=False):
    """Return the tuning, and the space that it is over."""
    if busy:
        measuring.UNLIKE -= {BUSY}
    small, recipe = space(), recipes.load(RECIPE)
    found, left_out = spaces.candidates(small, recipe, USE)
    pruned = without_start.prune(found, without_start.asker(found[0], say=say))
    pruned.options = left_out
    about = {"recipe": RECIPE, "use": USE, "seed": seed, "space": small.model_dump(mode="json")}
    about |= {"let_pass": [BUSY] if busy else [], "budget_s": BUDGET_S}
    journal = Journal(journal_file, {**about, "pruned": pruned.to_dict()})
    starter = Starter(partial(measuring.start, say=lambda _line: None), measure, say)
    return Tuning(pruned.left, Plans(recipe, LOAD, seed), journal, starter, BUDGET_S), small


def main(journal_file, busy=""):
    """Record."""
    run, small = tuning(journal_file, busy=busy == "busy")
    found = commands.measured(run, small)
    for outcome in list(run.journal):  # the verdicts are kept, the replies are not
        run.journal.add(outcome.model_copy(update={"answers": []}))
    run.journal.about |= {"best": [one.key for one in run.best], "unstarted": run.unstarted}
    OUT.parent.mkdir(exist_ok=True)
    run.journal.write(OUT)
    print("\n".join(text.answer(found)))


if __name__ == "__main__":
    main(*sys.argv[1:])
