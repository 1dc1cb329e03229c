"""Record what chapter 13 compares: sweeps over K on the embedded engine, kept in lib/sparkbook/bench/recorded.

    PYTHONPATH=lib .venv/bin/python tools/record_speculation.py mtp draft ngram

Nothing else should run meanwhile; a sweep takes three to eight minutes. Run again, the speeds differ as the machine does.
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


@contextmanager
def start(recipe):
    """The engine, and its endpoint."""
    with embedded.start(recipe) as engine:
        yield engine.endpoint


def main(names: list[str]) -> None:
    """Record the named series."""
    OUT.mkdir(exist_ok=True)
    for name in names:
        recipe, ks, loads = SERIES[name]
        plan = load.Plan(classes=("chat", "code", "random"), texts=prompts.familiar(), concurrency=loads, requests=16, max_tokens=48,
                         caching=True, ignore_eos=False, waves=3)  # fmt: skip
        found = sweep.sweep(
            recipes.load(recipe), ks, plan, start, say=lambda line: print(line, flush=True), compare_tokens=32,
            measure=lambda endpoint, plan: load.measure(endpoint, plan, source=telemetry.Live(endpoint, interval_s=0.25)),
        )  # fmt: skip
        found.write(OUT / f"{name}.jsonl")
        print(found.advice().findings())


if __name__ == "__main__":
    main(sys.argv[1:] or list(SERIES))
