"""What is known of a checkpoint without its files: from its configuration, its name or its card."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from sparkbook import checkpoint
from sparkbook.checkpoint import configs, formats, guess, known, modules, naming
from sparkbook.checkpoint.look import look
from sparkbook.checkpoint.store import write_cache
from sparkbook.errors import SparkbookError

from ..hub import Hub

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-8B", 8.19),
        ("Qwen/Qwen3-235B-A22B", 235.1),
        ("openai/gpt-oss-120b", 116.8),
        ("moonshotai/Kimi-K2-Instruct", 1026),
        ("moonshotai/Kimi-K3", 2780),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31.6),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1", 49.9),
        ("XiaomiMiMo/MiMo-V2-Flash", 309),
        ("deepseek-ai/DeepSeek-V4-Flash", 284),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 107.8),
    ],
)
def test_parameters_are_those_that_the_publishers_state(name, billions):
    counts = modules.parameters(configs.find(name).config)
    total = sum(count for kind, count in counts.items() if kind != "draft")
    assert total / 1e9 == pytest.approx(billions, rel=0.012)


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        # vLLM 0.32.0 builds these on a pretended GB10, language model and towers, without MTP.
        ("Qwen/Qwen3-30B-A3B-FP8", 29.04),
        ("Qwen/Qwen3-VL-2B-Instruct", 4.03),
        ("openai/gpt-oss-120b", 65.93),
        ("nvidia/Qwen3.6-27B-NVFP4", 19.66),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", 20.26),
        ("nvidia/Qwen3.5-122B-A10B-NVFP4", 73.07),
        ("nvidia/Gemma-4-31B-IT-NVFP4", 30.97),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 18.01),
        ("nvidia/MiniMax-M3-NVFP4", 233.04),
        ("nvidia/DeepSeek-V4-Flash-NVFP4", 153.86),
        ("deepseek-ai/DeepSeek-V4-Flash", 145.79),
        ("moonshotai/Kimi-K2.5", 554.34),
        ("zai-org/GLM-5.3-FP8", 694.52),
    ],
)
def test_weights_are_those_that_vllm_allocates(name, gib):
    found = checkpoint.load(name)
    size = found.bytes - found.of("draft") + found.loaded_bytes
    assert size.exact
    assert size.low / GIB == pytest.approx(gib, rel=0.005)


def test_a_shape_written_down_has_the_parameters_of_its_card():
    found = checkpoint.load("mistralai/Mistral-Nemo-Instruct-2407")
    assert found.bytes.exact and found.bytes.low / 2e9 == pytest.approx(12.2, rel=0.01)


def test_a_gguf_repository_holds_files_of_any_width():
    found = checkpoint.load("unsloth/Qwen3.6-35B-A3B-GGUF")
    assert found.bytes.low / GIB < 20 and found.bytes.high / GIB > 60
    assert "GGUF" in found.unknown[-1]


@pytest.mark.parametrize(
    ("name", "gb"),
    [
        # Sizes in llama.cpp's tools/quantize/README.md, as GB.
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M", 4.92),
        ("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF/Meta-Llama-3.1-8B-Instruct-Q8_0.gguf", 8.54),
        ("/models/Meta-Llama-3.1-8B-Instruct.IQ3_XXS.gguf", 3.27),
        ("Meta-Llama-3.1-70B-Instruct-Q4_K_M-00001-of-00002.gguf", 43.1),
    ],
)
def test_a_gguf_file_has_the_size_that_its_name_states(name, gb):
    found = checkpoint.load(name)
    assert found.quantization.format == "gguf" and "GGUF" in found.unknown[-1]
    assert found.bytes.low < gb * 1e9 < found.bytes.high < 1.5 * gb * 1e9


def test_a_gguf_file_has_the_shape_of_its_base():
    usual, larger = (
        checkpoint.load(f"unsloth/Qwen3-8B-GGUF:{form}") for form in ("Q4_K_M", "UD-Q4_K_XL")
    )
    assert usual.geometry == larger.geometry == checkpoint.load("Qwen/Qwen3-8B").geometry
    assert usual.bytes.high < larger.bytes.high


@pytest.mark.parametrize(
    "name", ["openai/whisper-large-v3-turbo", "nomic-ai/nomic-embed-text-v1.5"]
)
def test_what_is_no_decoder_has_weights_and_no_shape(name):
    found = checkpoint.load(name)
    assert found.geometry is None and found.bytes.high / GIB < 2


def test_a_list_without_its_exclusions_leaves_a_range():
    """The copy of this file names a format and no modules that are left out."""
    found = checkpoint.load("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4")
    assert not found.bytes.exact
    assert found.unknown == ("which modules are left in wider formats than nvfp4",)


@pytest.mark.parametrize(
    ("name", "base", "form"),
    [
        ("unsloth/Qwen3.8-27B-NVFP4", "Qwen/Qwen3.8-27B", "nvfp4"),
        ("Intel/Qwen3.5-122B-A10B-int4-AutoRound", "Qwen/Qwen3.5-122B-A10B", "int4"),
        ("RedHatAI/Qwen3-30B-A3B-Instruct-2507-FP8-dynamic", "Qwen/Qwen3-30B-A3B", "fp8"),
        ("cyankiwi/MiniMax-M2.5-AWQ-4bit", "MiniMaxAI/MiniMax-M2.5", "int4"),
        ("me/Qwen3.5-27B-GPTQ-Int8", "Qwen/Qwen3.5-27B", "int8"),
        # 410 GB, github.com/ciprianveg/gb10-vllm, 2026-08-20: most of it has four bits
        ("QuantTrio/GLM-5.2-Int4-Int8", "zai-org/GLM-5.2", "int4"),
        ("deepseek-ai/DeepSeek-V4-Flash-0731", "deepseek-ai/DeepSeek-V4-Flash", None),
        ("Qwen/Qwen3-VL-Embedding-8B", "Qwen/Qwen3-VL-8B-Instruct", None),
        ("Qwen/Qwen3.8-Flash-Next", None, None),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-70B", None, None),
        ("z-lab/Qwen3.5-27B-DFlash", None, None),
        ("Qwen/Qwen3-4B", None, None),
    ],
)
def test_a_name_says_what_it_was_made_of(name, base, form):
    bases = [*configs.names(), *known.facts()["same"]]
    assert naming.base_of(name, bases) == base
    assert naming.read(name).format == form


def test_a_derived_checkpoint_is_a_range_and_says_so():
    found = checkpoint.load("somebody/Qwen3.5-122B-A10B-NVFP4-mixed")
    published = checkpoint.load("nvidia/Qwen3.5-122B-A10B-NVFP4")
    assert not found.certain
    assert found.bytes.low < published.bytes.low <= found.bytes.high
    assert found.geometry == published.geometry
    assert "whether its shape is that of" in found.unknown[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in configs.names() if naming.read(n).format])
def test_a_derived_range_holds_the_real_checkpoint(name):
    """What would be said of a published checkpoint by its name alone."""
    own = configs.find(name)
    how = formats.read(own.config, own.quantization)
    if not how.complete or how.main.name == "mxfp4" or naming.read(name).format == "bf16":
        pytest.skip("its own list is not complete, or its format is its base's")
    dense = not modules.parameters(own.config).get("experts")
    guessed = formats.weights(own.config, formats.by_name(naming.read(name).format, dense))
    low, high = (
        sum(getattr(part.bytes, end) for part in guessed if part.kind != "draft")
        for end in ("low", "high")
    )
    real = sum(p.bytes.low for p in formats.weights(own.config, how) if p.kind != "draft")
    assert low * 0.93 <= real <= high * 1.01


@pytest.mark.slow
@pytest.mark.parametrize("name", configs.names())
def test_a_guess_from_a_size_holds_the_real_checkpoint(name):
    """Every known checkpoint lies in what would be guessed from its size alone."""
    found = checkpoint.load(name)
    params = found.params.middle / 1e9
    form = found.quantization.format
    if not found.bytes.exact:
        pytest.skip("its own size is a range")
    alone = guess.guess(
        name, naming.read("x"), configs.Card(params, format=form.replace("none", "bf16"))
    )
    assert alone.bytes.low <= found.bytes.low <= alone.bytes.high * 1.02
    context = 32768
    widest, narrowest = alone.geometry.possible

    def kept(caches):
        tokens = [c for c in caches if not c.recurrent and not c.draft]
        return sum(
            c.layers * c.token_bytes(2) * (min(c.window, context) if c.window else context)
            for c in tokens
        )

    assert kept(narrowest) <= kept(found.geometry.caches) * 1.02
    assert kept(found.geometry.caches) <= kept(widest)


def test_a_size_in_the_name_is_enough():
    found = checkpoint.load("nobody/Thing-27B-A3B-NVFP4")
    assert 13 < found.bytes.low / GIB < found.bytes.high / GIB < 30
    assert not found.certain
    assert len(found.geometry.possible) == 2


def test_a_name_without_a_size_is_refused_and_a_recipe_helps():
    with pytest.raises(SparkbookError, match="states no size"):
        checkpoint.load("nobody/Thing")
    helped = checkpoint.load("nobody/Thing", stated=checkpoint.Stated(params_b=7))
    assert 12 < helped.bytes.low / GIB < 15


def test_a_table_that_stays_on_the_disk_is_apart():
    found = checkpoint.load("nvidia/Qwen3.8-Flash-Next-NVFP4")
    assert found.of("table").low / GIB == pytest.approx(47.5, abs=0.1)
    assert found.bytes.middle / GIB == pytest.approx(123.5, abs=0.1)


def test_reduced_experts_follow_the_size_in_the_name():
    found = checkpoint.load("somebody/MiniMax-M2.7-REAP-139B-A10B-NVFP4")
    assert found.params.middle / 1e9 == pytest.approx(139, rel=0.03)


# ---- on a Spark: its own files come first

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}


def test_the_cache_of_this_host_is_looked_at(tmp_path: Path):
    files = {"config.json": json.dumps(CONFIG).encode()}
    write_cache(tmp_path / ".cache/huggingface/hub", "org/thing", {"a" * 40: files}, "a" * 40)
    found = look("org/thing", environ={}, home=tmp_path, hub=False)
    assert found.geometry.layers == 2
    assert found.certain and "config.json in" in found.source
    assert look("org/other", environ={}, home=tmp_path, hub=False) is None
    assert look("/models/thing", environ={}, home=tmp_path, hub=False) is None


def test_the_hub_is_asked_for_its_small_files(tmp_path: Path):
    """No byte of the weights is read, and `--offline` or HF_HUB_OFFLINE asks nothing."""
    weights = b"\0" * 100_000
    files = {"config.json": json.dumps(CONFIG).encode(), "model.safetensors": weights}
    with Hub() as hub:
        hub.add("org/thing", files)
        api = HfApi(endpoint=hub.url)
        for off in ({"hub": False}, {"environ": {"HF_HUB_OFFLINE": "1"}}):
            options = {"environ": {}, "home": tmp_path, "api": api, **off}
            assert look("org/thing", **options) is None
        assert hub.seen == []
        found = look("org/thing", environ={}, home=tmp_path, api=api)
        assert found.card_bytes == len(weights)
        assert found.geometry.layers == 2
        assert not hub.requests("model.safetensors")
        assert look("org/missing", environ={}, home=tmp_path, api=api) is None
