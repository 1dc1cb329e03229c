"""A `sparkbook tune --worker` whose servers are real, and whose speeds are made up: K = 3 gives a
third more, and the second node is twice as fast.

    python tune_worker.py NODE
"""

import sys
from pathlib import Path

from sparkbook.bench.results import Cell, Report, Request, figures
from sparkbook.tune import measuring, worker


def measure(endpoint, plan, recipe):
    """Ask the server that runs on this node, and say where that was."""
    assert (recipe.env.get("OF_NODE") == "b") == (sys.argv[1] == "spark-b")
    assert "generation_tokens" in endpoint.metrics_text()
    drafts = recipe.serve.args["speculative-config"]["num_speculative_tokens"]
    speed = (100 if sys.argv[1] == "spark-a" else 200) * (1.3 if drafts == 3 else 1)
    requests = [
        Request(
            prompt=f"p-{number}",
            stamps_s=[0.1, 64 / speed * (1 + number / 1000)],
            latency_s=64 / speed * (1 + number / 1000),
            output_tokens=64,
        )
        for number in range(plan.requests)
    ]
    cell = Cell(prompt_class="code", concurrency=1, figures=figures(requests), requests=requests)
    place = str(Path("/proc/self/ns/net").readlink())
    return Report(date="2026-11-29", tool="test", model="m", machine=place, cells=[cell])


measuring.measure = measure
worker.Asking = lambda *_: None
worker.work(sys.stdin, sys.stdout)
