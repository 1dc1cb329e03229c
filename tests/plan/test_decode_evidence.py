"""The shapes that are written down, their bytes, and the collection of published figures."""

from dataclasses import replace

import pytest
from sparkbook.plan import evidence, request

DATA = evidence.measured()


def test_what_is_left_out_says_why():
    reasons = {row.left_out for row in DATA.rows if row.left_out}
    assert reasons == {
        "llama.cpp",
        "two Sparks",
        "a momentary peak",
        "quantizer in Python",
        "TensorRT-LLM",
    }
    assert len(DATA.rows) == 76
    assert len(DATA.covered) == 59


def test_rows_are_complete_and_cited():
    ids = [row.id for row in (*DATA.rows, *DATA.further)]
    assert len(ids) == len(set(ids))
    for row in (*DATA.covered, *DATA.further):
        assert row.weights in DATA.models[row.model].weights
        if row.draft:
            assert row.draft.use in DATA.models[row.model].drafts
    for figure in (*DATA.rows, *DATA.further, *DATA.prefills):
        assert DATA.source(figure).url
    for prefill in DATA.prefills:
        assert prefill.weights in DATA.models[prefill.model].weights
    assert {figure.source for figure in (*DATA.rows, *DATA.further, *DATA.prefills)} | {
        "config",
        "e2b",
    } == set(DATA.sources)


@pytest.mark.parametrize(
    ("model", "active_b"),
    # Active parameters that the models' cards state; heads count, input embeddings do not.
    [
        ("gemma-4-31b", 30.7),
        ("gemma-4-26b-a4b", 3.8),
        ("nemotron-3-super-120b-a12b", 12),
        ("gpt-oss-120b", 5.1),
        ("llama-3.3-70b", 69.5),
        ("qwen3.5-27b", 25.6),
        ("qwen3.5-35b-a3b", 3),
        ("qwen3-next-80b-a3b", 3.4),
        ("nemotron-3-nano-30b-a3b", 3.2),
        ("gemma-4-e2b", 2.3),
    ],
)
def test_shapes_add_up_to_the_active_parameters(model, active_b):
    assert sum(DATA.models[model].params().values()) / 1e9 == pytest.approx(active_b, rel=0.05)


def test_bytes_of_a_checked_checkpoint():
    # https://github.com/NVIDIA/dgx-spark-playbooks/pull/91 counts 40.61 GB a token for Llama 3.3
    # 70B in NVFP4.
    _, reads, _ = DATA.models["llama-3.3-70b"].reads("nvfp4")
    assert reads.every_step / 1e9 == pytest.approx(40.61, abs=0.01)


def test_a_model_drafts_with_its_own_head_if_it_has_one():
    with_head = evidence.with_mtp(request.read("qwen3.6-27b-nvfp4"), 2)
    assert with_head.draft.tokens == with_head.draft.passes == 2
    # A drafter of its own is not the target's head.
    assert evidence.with_mtp(request.read("laguna-xs.2-dflash"), 2) is None
    assert evidence.with_mtp(request.read("gpt-oss-20b"), 2) is None


def test_a_step_reads_the_cache_in_the_type_that_is_asked_for():
    setup = request.read("qwen3.6-27b-nvfp4")
    wide, narrow = (
        evidence.of_setup(replace(setup, kv_dtype=kv)).reads[1].kv_token for kv in ("auto", "nvfp4")
    )
    assert narrow / wide == pytest.approx(4.5 / 16)
