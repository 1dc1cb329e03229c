"""The planner's arithmetic next to what vLLM itself built, for each checkpoint that it was asked
about. Where they differ, vLLM's figure is the plan's.
"""

import pytest
from sparkbook import checkpoint
from sparkbook.checkpoint import built
from sparkbook.checkpoint.values import Checkpoint
from sparkbook.plan.kv import Paging, as_built, cut
from sparkbook.plan.setup import Setup
from sparkbook.releases import known

TIB = 2**40

DIFFER = {
    "deepseek-ai/DeepSeek-V4-Flash": "pages of different sizes, packed",
    "deepseek-ai/DeepSeek-V4-Pro": "pages of different sizes, packed",
    "nvidia/DeepSeek-V4-Flash-NVFP4": "pages of different sizes, packed",
    "nvidia/DeepSeek-V4-Pro-NVFP4": "pages of different sizes, packed",
    "nvidia/MiniMax-M3-NVFP4": "the keys of its index are not counted",
}
"""Checkpoints of which the arithmetic gives other tokens than vLLM, and why."""

HEAVIER = {"meta-models/Muse-Glimmer-30B": "its tower for images is not counted"}
"""Checkpoints of which the arithmetic gives other weights than vLLM, and why."""

NAMES = [name for name in built.names() if checkpoint.load(name).certain]
CASES = [(name, *variant) for name in NAMES for variant in built.find(name).caches]


def setup_of(found: Checkpoint, kv: str, drafted: int, context: int, batched: int) -> Setup:
    return Setup(
        found, context=context, kv_dtype=kv, release="0.32.0", batched=batched,
        method="mtp" if drafted else None, drafted=drafted,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "kv", "drafted"), CASES)
def test_a_plan_has_vllms_own_tokens(name, kv, drafted):
    one = built.find(name).caches[kv, drafted]
    setup = setup_of(checkpoint.load(name), kv, drafted, one.context, one.batched)
    (pages,) = setup.pages
    assert pages.tokens(TIB) == one.tokens
    states = any(cache.recurrent for cache in setup.caches)
    assert pages.built or (states and setup.kv_dtype == "fp8")


@pytest.mark.parametrize(("name", "kv", "drafted"), CASES)
def test_the_arithmetic_agrees_but_where_it_is_known_not_to(name, kv, drafted):
    one = built.find(name).caches[kv, drafted]
    setup = setup_of(checkpoint.load(name), kv, drafted, one.context, one.batched)
    found = setup.checkpoint
    paging = Paging(
        context=one.context, width=setup.kv_width, dtype_bytes=found.dtype_bytes,
        release="0.32.0", batched=one.batched, drafted=drafted,
    )  # fmt: skip
    assert (cut(setup.caches, paging).tokens(TIB) == one.tokens) == (name not in DIFFER)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_vllms_own_and_the_arithmetic_is_near(name):
    found, own = checkpoint.load(name), built.find(name)
    planned = setup_of(found, "auto", 0, 4096, 2048).weights
    if found.unknown:
        assert planned.low * 0.99 <= own.weights_bytes <= planned.high * 1.01
        return
    assert planned.exact and planned.low == own.weights_bytes
    counted = sum(part.bytes.middle for part in found.weights if part.kind != "draft")
    near = counted + found.loaded_bytes == pytest.approx(own.weights_bytes, rel=0.02)
    assert near == (name not in HEAVIER)


def test_another_context_follows_from_vllms_groups():
    """The groups say what a sequence of any length takes."""
    one = built.find("openai/gpt-oss-120b").caches["auto", 0]
    for context in (1000, 32768, 131072):
        found = checkpoint.load("openai/gpt-oss-120b")
        paging = Paging(context=context, release="0.32.0", batched=2048)
        theirs, ours = as_built(one, paging), cut(found.geometry.caches, paging)
        assert theirs is not None
        assert theirs.tokens(TIB) == ours.tokens(TIB)
        assert theirs.longest(2**33) == ours.longest(2**33)


def test_the_table_is_of_a_known_release():
    assert built.find("openai/gpt-oss-120b").vllm in known()
    assert built.find("nobody/Nothing-7B") is None
