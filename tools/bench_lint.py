"""How fast the linter is: recipes a second, warm, on one core; and the processor time (user and
system) of `import sparkbook.cli`, of `sparkbook lint FILE` and of a look into the table of
releases as processes.

    .venv/bin/python tools/bench_lint.py [--json]

The goals are 500 recipes a second and 0.30 s of processor time. All figures are medians; the
machine and its load are printed next to them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

GOAL_PER_SECOND, GOAL_S = 500, 0.30
RELEASES = "from sparkbook import releases; releases.get('0.32.0').accepts('max-model-len')"
LINE = """\
docker run -d --name chat --gpus all --ipc=host --restart unless-stopped \\
  -p 8000:8000 -v ~/vllm:/models -e VLLM_ATTENTION_BACKEND=FLASHINFER \\
  vllm/vllm-openai:v0.28.0 vllm serve /models/Qwen3.6-35B-A3B-NVFP4 \\
    --max_model_len 131072 --max_num_seqs 8 --enable-auto-tool-choice --port 8080
"""


def warm(seconds: float = 3.0) -> list[float]:
    """Seconds for one recipe, from rounds over the whole catalogue, recipes loaded before."""
    from sparkbook import lint, recipes

    catalogue = recipes.all()
    for recipe in catalogue:
        lint.lint(recipe)
    rounds = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for recipe in catalogue:
            lint.lint(recipe)
        rounds.append((time.perf_counter() - start) / len(catalogue))
    return rounds


def processor(code: str, *words: str, times: int = 10) -> list[float]:
    """Seconds of processor time of a Python process, its start included, once for each run."""
    # As in any installation, the byte code is on disk: the first run writes it.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    used = []
    for _ in range(times + 1):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return used[1:]


def lint_file() -> list[float]:
    """Seconds of processor time of `sparkbook lint FILE`."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write(LINE)
        file.flush()
        return processor("from sparkbook.cli import main; main()", "lint", file.name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    result: dict[str, Any] = {
        "recipes_per_second": round(1 / statistics.median(warm())),
        "goal_recipes_per_second": GOAL_PER_SECOND,
        "import_cpu_s": round(statistics.median(processor("import sparkbook.cli")), 3),
        "lint_cpu_s": round(statistics.median(lint_file()), 3),
        "goal_cpu_s": GOAL_S,
        "releases_cpu_s": round(statistics.median(processor(RELEASES)), 3),
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python"
            f" {platform.python_version()}"
        ),
    }
    if given.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['recipes_per_second']} recipes a second, warm (goal {GOAL_PER_SECOND})")
    print(f"{result['import_cpu_s']} s of processor time: import sparkbook.cli (goal {GOAL_S})")
    print(f"{result['lint_cpu_s']} s of processor time: sparkbook lint FILE (goal {GOAL_S})")
    print(
        f"{result['releases_cpu_s']} s of processor time: what a release accepts, Python included"
    )
    print(result["machine"])


if __name__ == "__main__":
    main()
