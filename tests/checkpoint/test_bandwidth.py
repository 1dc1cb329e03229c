"""Decode ceilings, and the published figures beside them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkbook import recipes
from sparkbook.checkpoint.bandwidth import (
    BITS_PER_WEIGHT,
    bytes_per_token,
    ceiling_tok_s,
    distinct_experts,
    published_points,
)
from sparkbook.errors import SparkbookError
from sparkbook.host.spark import BANDWIDTH_GB_S
from sparkbook.recipes.schema import Recipe


def test_a_dense_model_in_bf16():
    # 30.7e9 parameters of two bytes: 61.4 GB a token, 273 / 61.4.
    assert bytes_per_token(30.7, "bf16") == 61.4e9
    assert round(ceiling_tok_s(61.4e9, BANDWIDTH_GB_S), 2) == 4.45


def test_the_scales_count():
    assert BITS_PER_WEIGHT["nvfp4"] == 4.5
    assert BITS_PER_WEIGHT["mxfp4"] == 4.25
    assert BITS_PER_WEIGHT["awq"] == 4.15625


def test_several_tokens_a_step_raise_the_ceiling_in_proportion():
    assert ceiling_tok_s(1e9, 100, tokens_per_step=2.5) == 2.5 * ceiling_tok_s(1e9, 100)


def test_an_unknown_format_is_refused_with_the_known_ones():
    with pytest.raises(SparkbookError, match="nvfp4"):
        bytes_per_token(3, "int3")


@pytest.mark.parametrize("bytes_read", [0, -1])
def test_a_step_that_reads_nothing_is_refused(bytes_read):
    with pytest.raises(SparkbookError, match="above 0"):
        ceiling_tok_s(bytes_read, BANDWIDTH_GB_S)


@given(experts=st.integers(2, 512), tokens=st.integers(1, 64), data=st.data())
def test_experts_touched_grow_with_tokens_and_never_exceed_what_there_is(experts, tokens, data):
    active = data.draw(st.integers(1, experts))
    now, more = (
        distinct_experts(experts, active, tokens),
        distinct_experts(experts, active, tokens + 1),
    )
    assert active - 1e-9 <= now <= more + 1e-9
    assert more <= min(experts, active * (tokens + 1)) + 1e-9


@pytest.mark.parametrize(("experts", "active"), [(8, 0), (8, 9)])
def test_a_router_that_cannot_be_is_refused(experts, active):
    with pytest.raises(SparkbookError):
        distinct_experts(experts, active, 1)


def _recipe(*, draft=None, design=None, fmt="nvfp4", active=27, **speed):
    return Recipe.model_validate(
        {
            "id": "test",
            "title": "Test",
            "summary": "A test.",
            "family": "qwen",
            "model": {
                "repo": "a/b",
                "total_params_b": 27,
                "active_params_b": active,
                "design": design,
                "quantization": {"format": fmt},
            },
            "draft": draft,
            "benchmarks": {
                "speed": [{"decode_tok_s": 10.0, "machine": "DGX Spark", "source": "s", **speed}]
            },
            "sources": [{"id": "s", "title": "Source"}],
        }
    )


MTP = {"method": "mtp", "tokens": 3}


@pytest.mark.parametrize(
    ("recipe", "kind", "fmt"),
    [
        (_recipe(), "one token a step", "nvfp4"),
        (_recipe(draft=MTP), "several tokens a step", "nvfp4"),
        (_recipe(draft=MTP, configuration="without the draft"), "one token a step", "nvfp4"),
        (
            _recipe(configuration="vLLM 0.28.0, MTP with 5 tokens, FP8 KV cache"),
            "several tokens a step",
            "nvfp4",
        ),
        (_recipe(configuration="0.70, FP8 KV cache"), "one token a step", "nvfp4"),
        (_recipe(configuration="BF16 weights, no quantization"), "one token a step", "bf16"),
        (_recipe(configuration="AWQ INT8 weights"), "one token a step", "int8"),
        (_recipe(configuration="AWQ INT4, NVIDIA's official image"), "one token a step", "awq"),
        (_recipe(configuration="whether MTP was on is not said"), "not stated", "nvfp4"),
        (_recipe(design="diffusion MoE"), "several tokens a step", "nvfp4"),
        (_recipe(acceptance_length=2.4), "several tokens a step", "nvfp4"),
    ],
)
def test_what_a_step_makes_and_which_weights_were_served(recipe, kind, fmt):
    (point,) = published_points([recipe], BANDWIDTH_GB_S)
    assert (point.kind, point.weight_format) == (kind, fmt)


@pytest.mark.parametrize(
    "recipe",
    [
        _recipe(active=None),
        _recipe(machine="H100"),
        _recipe(concurrency=4),
        _recipe(decode_tok_s=None, aggregate_tok_s=9.0),
    ],
)
def test_what_cannot_be_compared_is_left_out(recipe):
    assert published_points([recipe], BANDWIDTH_GB_S) == []


def test_of_a_range_the_upper_end_counts_and_of_a_peak_the_average():
    (ranged,) = published_points([_recipe(decode_tok_s_max=12.0)], BANDWIDTH_GB_S)
    (peak,) = published_points(
        [_recipe(decode_tok_s_max=12.0, note="Average and peak.")], BANDWIDTH_GB_S
    )
    assert (ranged.published, peak.published) == (12.0, 10.0)


def test_a_figure_that_two_recipes_quote_stands_once():
    assert len(published_points([_recipe(), _recipe()], BANDWIDTH_GB_S)) == 1


def test_no_published_figure_of_the_catalogue_beats_memory_one_token_at_a_time():
    points = published_points(recipes.all(), BANDWIDTH_GB_S)
    above = [point for point in points if point.share > 1]
    assert len(points) > 10
    assert above
    assert {point.kind for point in above} == {"several tokens a step"}
