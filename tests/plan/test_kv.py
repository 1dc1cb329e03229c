"""Token counts against what engines have logged. A log rounds memory to two decimals, so a count is
exact to that rounding.
"""

import pytest
from sparkbook import checkpoint
from sparkbook.checkpoint.values import Cache
from sparkbook.errors import SparkbookError
from sparkbook.plan.kv import Paging, cut

GIB = 2**30


def bounds(pages, gib):
    """Tokens that the logged GiB allow: the figure is rounded to a hundredth."""
    return pages.tokens((gib - 0.005) * GIB), pages.tokens((gib + 0.005) * GIB)


def test_a_hybrid_with_gated_deltanet_as_logged_on_a_spark():
    """Qwen3.6-35B-A3B, FP8 cache, 0.24: https://github.com/noonghunna/club-3090/issues/612."""
    caches = checkpoint.load("nvidia/Qwen3.6-35B-A3B-NVFP4").geometry.caches
    pages = cut(caches, Paging(131072, width=1, release="0.24.0"))
    assert (pages.groups[0].block, pages.sequence_blocks(), pages.pool(5.98 * GIB)) == (
        2096,
        69,
        299,
    )
    assert pages.tokens(5.98 * GIB) == 567_978
    assert round(pages.concurrency(5.98 * GIB), 2) == 4.33


def test_a_hybrid_with_mamba_and_a_prediction_head_as_logged_on_a_spark():
    """NVIDIA developer forum, "PSA: State of FP4/NVFP4 Support for DGX Spark", 0.19: nine attention
    layers, five of padding.
    """
    caches = checkpoint.load("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4").geometry.caches
    pages = cut(caches, Paging(262144, width=1, release="0.19.0", drafted=5, states="all"))
    assert pages.padding == 5
    assert (pages.groups[0].block, pages.pool(18.04 * GIB)) == (8576, 490)
    assert pages.tokens(18.04 * GIB) == 694_656
    assert round(pages.concurrency(18.04 * GIB), 2) == 2.63


def test_a_moe_with_an_fp8_cache_as_captured_on_an_h100():
    pages = cut([Cache("full", 48, 4, 128, 128)], Paging(16384, width=1, release="0.24.0"))
    low, high = bounds(pages, 41.09)
    assert low <= 897_664 <= high
    assert (high - low) / 897_664 < 0.0003
    assert pages.tokens(56104 * pages.block_bytes) == 897_664
    assert round(pages.concurrency(41.09 * GIB), 2) == 54.79


def test_a_tiny_dense_model_as_captured_on_an_h100():
    pages = cut([Cache("full", 3, 2, 32, 32)], Paging(2048, release="0.24.0"))
    low, high = bounds(pages, 31.34)
    assert low <= 43_818_592 <= high
    assert pages.concurrency(2738662 * pages.block_bytes) == pytest.approx(21395.80, abs=0.005)


def test_a_refused_start_names_the_memory_it_needs_and_the_length_that_fits():
    """captures: 5.62 GiB needed for 40,960 tokens, 0.93 available, estimated maximum 6,768; a
    Qwen3-8B-shaped model.
    """
    pages = cut([Cache("full", 36, 8, 128, 128)], Paging(40960, release="0.24.0"))
    assert f"{pages.sequence_bytes() / GIB:.2f}" == "5.62"
    assert pages.longest(1e9) == 6768


def test_minimax_on_two_sparks_needs_23_25_gib():
    """https://github.com/eugr/spark-vllm-docker/issues/396: half of 8 KV heads each; the log's 22.5
    is rounded.
    """
    pages = cut([Cache("full", 62, 4, 128, 128)], Paging(196608, release="0.24.0"))
    assert pages.sequence_bytes() == 23.25 * GIB
    assert pages.longest(22.5 * GIB) == 190_256
    assert pages.longest(22.505 * GIB) >= 190_272 >= pages.longest(22.5 * GIB)


@pytest.mark.parametrize(
    ("layers", "width", "drafted", "tokens", "gib"),
    [
        (3, 2, 0, 1_398_016, 1),  # tiny-dense
        (3, 1, 0, 2_796_160, 1),  # the same with an FP8 cache, before the CPU refused it
    ],
)
def test_the_embedded_engines_captures(layers, width, drafted, tokens, gib):
    pages = cut(
        [Cache("full", layers, 2, 32, 32)], Paging(1024, width=width, block=128, drafted=drafted)
    )
    assert pages.tokens(gib * GIB) == tokens


def test_a_prediction_head_takes_its_share():
    caches = [Cache("full", 3, 2, 32, 32), Cache("full", 1, 2, 32, 32, draft=True)]
    assert cut(caches, Paging(1024, block=128, drafted=3)).tokens(GIB) == 1_048_576
    assert cut(caches, Paging(1024, block=128, drafted=3)).tokens(64 * 2**20) == 65_536
    assert cut(caches, Paging(1024, block=128)).tokens(GIB) == 1_398_016, (
        "without drafting its cache is not there"
    )


def test_windows_and_global_layers_of_different_width_share_one_page_size():
    """Gemma 4 31B: the window's page is the larger one, so a block of the global layers holds twice
    as many tokens.
    """
    pages = cut(checkpoint.load("google/gemma-4-31B-it").geometry.caches, Paging(65536))
    blocks = {group.cache.kind: (group.block, group.groups) for group in pages.groups}
    assert blocks == {"full": (32, 1), "window": (16, 5)}
    full = 65536 // 32
    window = -(-(1023 + 16384) // 16) + 1
    assert pages.sequence_blocks() == full + 5 * window


def test_states_cost_a_sequence_the_same_at_any_length():
    pages = cut(checkpoint.load("Qwen/Qwen3.5-35B-A3B").geometry.caches, Paging(131072))
    one, two = (
        pages.sequence_blocks(pages.groups[0].block),
        pages.sequence_blocks(2 * pages.groups[0].block),
    )
    assert two - one == 1
    assert one == 1 + 3 * 2
    drafted = cut(
        checkpoint.load("Qwen/Qwen3.5-35B-A3B").geometry.caches, Paging(131072, drafted=3)
    )
    assert drafted.sequence_blocks(1) > pages.sequence_blocks(1), (
        "each drafted token keeps a state of its own"
    )
    none = cut(
        checkpoint.load("Qwen/Qwen3.5-35B-A3B").geometry.caches, Paging(131072, states="none")
    )
    assert none.sequence_blocks(1) == pages.sequence_blocks(1) - 3


def test_the_longest_sequence_fits_and_one_token_more_does_not():
    for name in (
        "Qwen/Qwen3.5-35B-A3B",
        "openai/gpt-oss-120b",
        "mistralai/Mistral-Small-4-119B-2603-NVFP4",
        "google/gemma-4-31B-it",
    ):
        pages = cut(checkpoint.load(name).geometry.caches, Paging(1 << 20))
        for sequences in (1, 4):
            longest = pages.longest(20 * GIB, sequences)
            assert sequences * pages.sequence_bytes(longest) <= 20 * GIB
            assert longest == 1 << 20 or sequences * pages.sequence_bytes(longest + 1) > 20 * GIB


def test_a_model_that_keeps_nothing_is_refused():
    with pytest.raises(SparkbookError, match="no KV cache to plan"):
        cut([], Paging(1024))
