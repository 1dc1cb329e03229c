"""A real vLLM: n-gram drafts against none, by prompt class; what the client measures is what the
engine's own counters say.
"""

import json
import statistics

import pytest
from sparkbook import bench, recipes
from sparkbook.bench import BENCH
from sparkbook.bench.results import agreement
from sparkbook.bench.telemetry import Live
from sparkbook.cli import app
from sparkbook.serve import embedded
from typer.testing import CliRunner

pytestmark = pytest.mark.engine

PLAN = bench.BenchPlan(
    classes=("code", "random"),
    concurrency=(2,),
    requests=10,
    max_tokens=96,
    salt="engine",
    waves=2,
)
LIKE_VLLM = ("--concurrency", "2", "--requests", "10", "--max-tokens", "96")


def measured(name, then=lambda _: None):
    """The report of an engine that runs two requests at a time, and what `then` makes of it."""
    recipe = recipes.load(name)
    serve = recipe.serve.model_copy(update={"args": {**recipe.serve.args, "max-num-seqs": 2}})
    with embedded.start(recipe.model_copy(update={"serve": serve}), requests=False) as engine:
        report = bench.measure(engine.endpoint, PLAN, source=Live(engine.endpoint, 0.25))
        return report, then(engine.endpoint)


def with_vllm(endpoint):
    """`sparkbook bench URL --with vllm`: the real `vllm bench serve`, and what its file says when
    it is imported.
    """
    told = CliRunner().invoke(
        app,
        ["bench", endpoint.url, "--with", "vllm", *LIKE_VLLM, "--json"],
        env={"VLLM_API_KEY": endpoint.api_key, "SPARKBOOK_KEY_FILE": ""},
    )
    assert told.exit_code == 0, (told.output, told.exception)
    return json.loads(told.output)["report"]


def test_client_and_engine_agree_with_and_without_drafts():
    """In what they count. By how much their times differ, benchmark_client.py --engine prints."""
    dense, theirs = measured("embedded/tiny-dense", with_vllm)
    drafting, _ = measured("embedded/tiny-dense-ngram")
    for plain, spec in zip(dense.cells, drafting.cells, strict=True):
        assert (
            plain.prompt_class == spec.prompt_class
            and not plain.figures.failed
            and not spec.figures.failed
        )
        rules = {finding.rule for finding in (*plain.findings, *spec.findings)}
        assert not rules & {
            *(code for code in BENCH.rules if code > "BENCH400"),
            "BENCH201",
            "BENCH204",
            "BENCH205",
            "BENCH206",
            "BENCH207",
            "BENCH208",
            "BENCH210",
            "BENCH307",
        }
        for cell in (plain, spec):
            found = agreement(cell)
            assert found["tokens"].client == found["tokens"].engine == 960
            # Events can be fewer than steps, since a server that is late sends two in one, the more
            # the busier it is; they are never more.
            assert found["tokens a step"].apart > -1e-9
        assert agreement(plain)["tokens a step"].engine == 1
        # Tokens by `usage` against accepted drafts: exact but for what the last step of a reply
        # accepts in vain.
        both = agreement(spec).get("acceptance")
        assert (both is None) == (not spec.engine.accepted)
        assert both is None or (both.client > 1 and -0.02 < both.apart <= 1e-9)
    assert any(cell.engine.accepted for cell in drafting.cells)  # (random text has none to repeat)
    every = [agreement(cell) for cell in (*dense.cells, *drafting.cells)]
    # The client's clock starts before the server's and stops after it.
    assert statistics.median(found["ttft_s"].client - found["ttft_s"].engine for found in every) > 0
    # vLLM's own client of the same load: as many tokens, and a speed in the same unit (one in
    # milliseconds would be a thousand times off).
    (row,) = theirs["cells"]
    mine = next(cell for cell in dense.cells if cell.prompt_class == "random").figures
    assert theirs["tool"] == "vllm bench serve" and row["prompt_class"] == "random"
    assert (row["figures"]["completed"], row["figures"]["output_tokens"]) == (10, 960)
    assert 0.03 < row["figures"]["tpot_s"]["median"] / mine.tpot_s.median < 30
    assert row["verdict"] != "valid"  # it says nothing about the machine, the warm-up and the cache
