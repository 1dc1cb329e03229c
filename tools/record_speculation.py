"""Record what chapter 13 compares: sweeps over K on the embedded engine, kept in
lib/sparkbook/bench/recorded.

    PYTHONPATH=lib .venv/bin/python tools/record_speculation.py mtp draft ngram smollm2-ngram

Nothing else should run meanwhile; a sweep takes three to eight minutes. Run again, the speeds
differ as the machine does.
"""

import sys
from contextlib import contextmanager
from pathlib import Path

from sparkbook import recipes
from sparkbook.bench import load, prompts, sweep, telemetry
from sparkbook.serve import embedded

OUT = Path(sweep.__file__).with_name("recorded")
SERIES = {
    "mtp": ("embedded/tiny-mtp-k3", (1, 2, 3, 4, 5), (1, 8)),
    "draft": ("embedded/tiny-dense-draft", (1, 3), (1,)),
    "ngram": ("embedded/tiny-dense-ngram", (2, 4), (1,)),
}


SIDE_BY_SIDE = {"smollm2-ngram": ("embedded/smollm2-135m-ngram", (2, 4))}
"""Series whose engines run at the same time: only where the machine has room for all of them."""


@contextmanager
def start(recipe):
    """The engine, and its endpoint."""
    with embedded.start(recipe) as engine:
        yield engine.endpoint


def measure(endpoint, plan):
    """Measure with a look at the machine four times a second."""
    return load.measure(endpoint, plan, source=telemetry.Live(endpoint, interval_s=0.25))


def say(line):
    """Print at once."""
    print(line, flush=True)


def main(names: list[str], say=say) -> None:
    """Record the named series."""
    OUT.mkdir(exist_ok=True)
    for name in names:
        if name in SIDE_BY_SIDE:
            recipe, ks = SIDE_BY_SIDE[name]
            plan = load.BenchPlan(
                classes=("edit", "code", "prose", "random"),
                texts={"edit": prompts.edits()},
                concurrency=(1,),
                requests=16,
                max_tokens=48,
                caching=True,
                ignore_eos=False,
                waves=3,
            )
            # The same prompts are sent again and again: no arm may find them in a cache.
            arms = {
                k: sweep.with_args(
                    sweep.with_k(recipes.load(recipe), k), {"no-enable-prefix-caching": True}
                )
                for k in (0, *ks)
            }
            with embedded.together(list(arms.values())) as engines:
                endpoints = {k: engine.endpoint for k, engine in zip(arms, engines, strict=True)}
                found = sweep.by_turns(
                    endpoints, plan, measure=measure, say=say, compare=16, compare_tokens=48
                )
        else:
            recipe, ks, loads = SERIES[name]
            plan = load.BenchPlan(
                classes=("chat", "code", "random"),
                texts=prompts.familiar(),
                concurrency=loads,
                requests=16,
                max_tokens=48,
                caching=True,
                ignore_eos=False,
                waves=3,
            )
            found = sweep.sweep(
                recipes.load(recipe), ks, plan, start, say=say, compare_tokens=32, measure=measure
            )
        found.write(OUT / f"{name}.jsonl")
        print(found.advice().findings())


if __name__ == "__main__":
    main(sys.argv[1:] or [*SERIES, *SIDE_BY_SIDE])
