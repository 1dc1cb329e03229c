"""How fast the linter is: recipes a second, warm, on one core; and the wall time of
`sparkbook lint FILE` as a process.

    .venv/bin/python tools/bench_lint.py [--json]

The goals are 500 recipes a second and 0.35 s. Both figures are medians; the machine and its load
are printed beside them.
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
from pathlib import Path

GOAL_PER_SECOND, GOAL_S = 500, 0.35
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


def process(times: int = 15) -> tuple[list[float], float]:
    """Seconds of `sparkbook lint FILE`, start of Python included, by the clock; and the processor's
    seconds of one.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "line.txt"
        file.write_text(LINE, "utf-8")
        command = [
            sys.executable,
            "-c",
            "from sparkbook.cli import main; main()",
            "lint",
            str(file),
        ]
        # As in any installation, the byte code is on disk: the first run writes it.
        env = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        subprocess.run(command, stdout=subprocess.DEVNULL, env=env)
        found = []
        used = _processor()
        for _ in range(times):
            start = time.perf_counter()
            done = subprocess.run(command, stdout=subprocess.DEVNULL, env=env)
            found.append(time.perf_counter() - start)
            assert done.returncode == 1, "the line has errors"
        return found, (_processor() - used) / times


def _processor() -> float:
    """Seconds of processor time that processes started from here have used."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    per_second = 1 / statistics.median(warm())
    wall, processor = process()
    result = {
        "recipes_per_second": round(per_second),
        "goal_recipes_per_second": GOAL_PER_SECOND,
        "process_s": round(statistics.median(wall), 3),
        "process_min_s": round(min(wall), 3),
        "process_processor_s": round(processor, 3),
        "goal_process_s": GOAL_S,
        "machine": (
            f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python"
            f" {platform.python_version()}"
        ),
    }
    if given.json:
        print(json.dumps(result, indent=2))
        return
    print(f"{result['recipes_per_second']} recipes a second, warm (goal {GOAL_PER_SECOND})")
    print(f"{result['process_s']} s for sparkbook lint FILE (goal {GOAL_S})")
    print(
        f"fastest {result['process_min_s']} s, of the processor {result['process_processor_s']} s"
    )
    print(result["machine"])


if __name__ == "__main__":
    main()
