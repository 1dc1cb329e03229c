"""Record what chapter 13 says of options that claim to change nothing: each against the embedded
engine without it.

    PYTHONPATH=lib .venv/bin/python tools/record_lossless.py

Two engines at a time, about five minutes in all. Speeds play no part, so other work may run
meanwhile.
"""

import datetime
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sparkbook import recipes
from sparkbook.bench import load, lossless
from sparkbook.bench.sweep import with_args
from sparkbook.serve import embedded

OUT = Path(lossless.__file__).with_name("recorded") / "lossless.jsonl"
BASE = recipes.load("embedded/smollm2-135m")
OPTIONS = {
    "n-gram drafts, K = 4": recipes.load("embedded/smollm2-135m-ngram"),
    "no prefix caching": with_args(BASE, {"no-enable-prefix-caching": True}),
    "torch.compile (not eager)": with_args(BASE, {"enforce-eager": None}),
    "KV cache in fp8": with_args(BASE, {"kv-cache-dtype": "fp8"}),
    "float16 for bfloat16": with_args(BASE, {"dtype": "float16"}),
}
NO_CLAIM = {"float16 for bfloat16"}


def seen(engine) -> str:
    """What the engine itself tells of the options."""
    text, log = (
        engine.endpoint.metrics_text(),
        engine.log_file.read_text(encoding="utf-8", errors="replace"),
    )

    def counted(name: str) -> float:
        return sum(
            float(value)
            for value in re.findall(rf"^vllm:{name}_total(?:{{.*}})? (\S+)$", text, re.M)
        )

    return (
        f"drafts {counted('spec_decode_num_drafts'):.0f}; tokens found in the prefix cache"
        f" {counted('prefix_cache_hits'):.0f}; " + of_log(log)
    )


def of_log(log: str) -> str:
    """What its log tells: the type of the KV cache where it is not the model's own, and whether
    torch.compile was left out.
    """
    cache = re.search(r"Using (\S+) data type to store kv cache", log)
    return (
        f"KV cache {cache.group(1) if cache else 'as the model'}; torch.compile"
        f" {'off' if 'disabling torch.compile' in log else 'on'}"
    )


def asked(recipe, *temperatures: float):
    """Start an engine, ask it once for each temperature, stop it: the answers, what it told, its
    version and the machine.
    """
    with embedded.start(recipe, requests=False) as engine:
        answers = [
            lossless.ask(engine.endpoint, each=3, temperature=temperature)
            for temperature in temperatures
        ]
        return (
            answers,
            seen(engine),
            load.engine_name(engine.endpoint),
            load.machine_name(engine.endpoint),
        )


def main() -> None:
    """Record all options, two engines at a time."""
    with ThreadPoolExecutor(2) as pool:
        base = pool.submit(asked, BASE, 0.0, 0.0, 0.7)
        running = {option: pool.submit(asked, recipe, 0.0) for option, recipe in OPTIONS.items()}
        (without, again, hot), plain, version, machine = base.result()
        trials = []
        for option, job in running.items():
            (answers,), told, _, _ = job.result()
            trials.append(
                lossless.trial(
                    option, without, again, answers, claims=option not in NO_CLAIM, engine=told
                )
            )
    trials.append(
        lossless.trial("temperature 0.7", without, again, hot, claims=False, engine=plain)
    )
    for trial in trials:
        print(
            f"{trial.option}: {trial.verdict}: {trial.equality}; {trial.scores}; {trial.moved};"
            f" {trial.engine}"
        )
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {
        "model": BASE.model.repo,
        "engine": version,
        "machine": machine,
        "date": date,
        "without": plain,
    }
    lossless.Record(about, tuple(trials)).write(OUT)


if __name__ == "__main__":
    main()
