"""A real vLLM: n-gram drafts against none, by prompt class; what the client sees is what the engine tells."""

import pytest
from sparkbook import bench
from sparkbook.bench.telemetry import Live
from sparkbook.serve import embedded

pytestmark = pytest.mark.engine

PLAN = bench.Plan(classes=("code", "prose", "random"), concurrency=(2,), requests=10, max_tokens=96, salt="engine", waves=2)

MERGED = 1.15
"""Tokens an event may seem to hold more than a step made, on two busy cores."""


def measured(recipe):
    with embedded.start(recipe, requests=False) as engine:
        return bench.measure(engine.endpoint, PLAN, source=Live(engine.endpoint, 0.25))


def test_client_and_engine_agree_with_and_without_drafts():
    dense, drafting = measured("embedded/tiny-dense"), measured("embedded/tiny-dense-ngram")
    for plain, spec in zip(dense.cells, drafting.cells, strict=True):
        assert plain.prompt_class == spec.prompt_class and not plain.figures.failed and not spec.figures.failed
        assert plain.engine.generation_tokens == plain.figures.output_tokens == 960
        # The engine runs in the server's own process here: while it computes, the server can't send, and now and then two steps leave in
        # one event. So the client counts no more steps than there were, and a few less; without drafts that alone makes it more than 1.
        assert 0.999 < plain.figures.tok_per_step < MERGED
        # Every accepted token saved a step. (1 + accepted / drafts speaks of the steps that had a draft alone.)
        later = spec.figures.output_tokens - spec.figures.completed
        told = later / (later - spec.engine.accepted)
        assert 0.98 * told < spec.figures.tok_per_step < MERGED * told
        assert spec.figures.tok_per_step > 1
        rules = {finding.rule for finding in (*plain.findings, *spec.findings)}
        assert not rules & {"BENCH201", "BENCH204", "BENCH205", "BENCH206", "BENCH207", "BENCH208", "BENCH210", "BENCH307"}
