"""Ranges, names of tensors, configs, folders, and the written-down facts against what the models'
cards say.
"""

import json
import math
from pathlib import Path

import pytest
from sparkbook import checkpoint, recipes
from sparkbook.checkpoint.config import geometry
from sparkbook.checkpoint.modules import parameters
from sparkbook.checkpoint.tensors import classify, is_scale, parse_header, quantization, weights
from sparkbook.checkpoint.values import UNKNOWN, Range
from sparkbook.errors import SparkbookError

from .conftest import CONFIG, LAYER, PLAIN, safetensors


def write(folder, config=CONFIG, tensors=PLAIN, **files):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


# ---- ranges


def test_unknown_stays_unknown_through_arithmetic():
    assert Range(10, math.inf) == (UNKNOWN + 5) * 2
    assert Range(1, 2) - Range(0, 1) == Range(0, 2)
    assert 10 - Range(1, 2) == Range(8, 9)
    assert (100 - UNKNOWN).low == -math.inf
    assert Range(0, 0) == UNKNOWN * 0
    assert Range(-1, 2) * Range(-3, 4) == Range(-6, 8)
    assert Range(4, 8) / Range(2, 4) == Range(1, 4)
    assert f"{Range(1.04, 2):.1f} {UNKNOWN:.1f} {Range(3, 3):.0f}" == "1.0 to 2.0 at least 0.0 3"
    with pytest.raises(SparkbookError, match="divides nothing"):
        Range(1, 2) / Range(-1, 1)
    with pytest.raises(SparkbookError, match="lower to its upper"):
        Range(2, 1)


# ---- names of tensors


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layers.0.self_attn.q_proj.weight", "attention"),
        ("model.layers.0.self_attn.q_norm.weight", "norms"),
        ("model.language_model.layers.3.linear_attn.in_proj_qkv.weight", "linear"),
        ("model.layers.3.mlp.experts.17.down_proj.weight", "experts"),
        ("model.layers.3.mlp.experts.gate_up_proj_blocks", "experts"),
        ("model.layers.3.mlp.shared_expert.up_proj.weight", "shared expert"),
        ("model.layers.3.mlp.shared_expert_gate.weight", "router"),
        ("model.layers.3.mlp.gate.weight", "router"),
        ("model.layers.3.mlp.gate_proj.weight", "mlp"),
        ("model.layers.3.mlp.router.weight", "router"),
        ("backbone.layers.1.mixer.experts.4.up_proj.weight", "experts"),
        ("backbone.layers.0.mixer.in_proj.weight", "linear"),
        ("backbone.layers.0.mixer.A_log", "linear"),
        ("model.embed_tokens.weight", "embedding"),
        ("lm_head.weight", "head"),
        ("mtp.layers.0.self_attn.q_proj.weight", "draft"),
        ("model.visual.blocks.0.attn.qkv.weight", "vision"),
        ("vision_tower.encoder.layers.99.mlp.fc1.weight", "vision"),
        ("model.layers.61.self_attn.q_proj.weight", "draft"),
    ],
)
def test_a_tensors_class_is_told_by_its_name(name, kind):
    assert classify(name, layers=61) == kind


def test_formats_by_producer():
    tensors = {
        # ModelOpt NVFP4: two values a byte, a scale for 16
        LAYER + "mlp.up_proj.weight": ("U8", (32, 16)),
        LAYER + "mlp.up_proj.weight_scale": ("F8_E4M3", (32, 2)),
        LAYER + "mlp.up_proj.weight_scale_2": ("F32", ()),
        LAYER + "mlp.up_proj.input_scale": ("F32", ()),
        # compressed-tensors NVFP4
        LAYER + "self_attn.o_proj.weight_packed": ("U8", (32, 16)),
        LAYER + "self_attn.o_proj.weight_scale": ("F8_E4M3", (32, 2)),
        LAYER + "self_attn.o_proj.weight_global_scale": ("F32", (1,)),
        # MXFP4 as gpt-oss has it
        LAYER + "mlp.experts.down_proj_blocks": ("U8", (2, 32, 1, 16)),
        LAYER + "mlp.experts.down_proj_scales": ("U8", (2, 32, 1)),
        # FP8, AWQ and GPTQ
        LAYER + "self_attn.q_proj.weight": ("F8_E4M3", (32, 32)),
        LAYER + "self_attn.q_proj.weight_scale_inv": ("F32", (1, 1)),
        LAYER + "self_attn.k_proj.qweight": ("I32", (32, 4)),
        LAYER + "self_attn.k_proj.qzeros": ("I32", (1, 4)),
        LAYER + "self_attn.k_proj.scales": ("F16", (1, 32)),
        LAYER + "self_attn.v_proj.qweight": ("I32", (4, 32)),
        LAYER + "self_attn.v_proj.g_idx": ("I32", (32,)),
        "lm_head.weight": ("BF16", (64, 32)),
    }
    data = safetensors(tensors)
    found = {
        (w.kind, w.format): (w.params.low, w.bytes.low) for w in weights([parse_header(data, "x")])
    }
    assert found[("mlp", "nvfp4")] == (1024, 512)
    assert found[("attention", "nvfp4")] == (1024, 512)
    assert found[("experts", "mxfp4")] == (2048, 1024)
    assert found[("attention", "fp8")] == (1024, 1024)
    assert found[("attention", "awq")] == (1024, 512)
    assert found[("attention", "gptq")] == (1024, 512)
    assert found[("head", "bf16")] == (2048, 4096)
    assert all(params == 0 for (kind, _), (params, _) in found.items() if kind == "scales")
    header = parse_header(data, "x")
    assert sum(size for _, size in found.values()) == max(
        entry["data_offsets"][1] for entry in header.values()
    )


def _compressed(**more):
    return {"quantization_config": {"quant_method": "compressed-tensors", **more}}


def test_scales_are_told_from_weights():
    assert is_scale(LAYER + "self_attn.k_proj.k_scale")
    assert not is_scale(LAYER + "self_attn.k_proj.weight")


@pytest.mark.parametrize(
    ("config", "extra", "expected"),
    [
        ({}, None, ("none", None)),
        (
            {},
            {"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["lm_head"]}},
            ("nvfp4", "modelopt"),
        ),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}},
            None,
            ("fp8", "modelopt"),
        ),
        (_compressed(format="nvfp4-pack-quantized"), None, ("nvfp4", "compressed-tensors")),
        (
            _compressed(config_groups={"a": {"weights": {"num_bits": 8, "type": "float"}}}),
            None,
            ("fp8", "compressed-tensors"),
        ),
        ({"quantization_config": {"quant_method": "mxfp4"}}, None, ("mxfp4", "openai")),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, None, ("awq", "awq")),
        (
            {"text_config": {"quantization_config": {"quant_method": "gptq"}}},
            None,
            ("gptq", "gptq"),
        ),
        ({"quantization_config": {"quant_method": "fp8"}}, None, ("fp8", "fp8")),
        (
            {"text_config": "x"},
            {"quantization": {"quant_algo": "NVFP4"}},
            ("nvfp4", "modelopt"),
        ),
    ],
)
def test_how_a_checkpoint_is_quantized(config, extra, expected):
    found = quantization(config, extra)
    assert (found.format, found.producer, found.flag) == (*expected, None)


# ---- folders


def test_a_folder_is_read_to_the_byte(tmp_path):
    found = checkpoint.load(str(write(tmp_path / "m")))
    assert found.bytes == Range.of(2 * (2 * 64 * 32 + 32 * 32 + 32 * 64 + 32))
    assert found.of("head") == Range.of(2 * 64 * 32)
    assert found.geometry.caches[0].token_bytes(2) == 2 * 2 * 8 * 2
    assert found.architecture == "Qwen3ForCausalLM"


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-draft", "tiny-mtp"])
def test_the_shipped_models(name):
    folder = Path(checkpoint.__file__).parent / "models" / name
    found = checkpoint.load(str(folder))
    assert found.bytes.exact
    told = json.loads((folder / "config.json").read_text())
    counted = sum(parameters(told).values())
    assert found.params.low == pytest.approx(counted, rel=0.03)
    assert bool(found.of("draft").low) == (name == "tiny-mtp")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "not readable JSON"),
        (lambda f: (f / "model.safetensors").unlink(), "no safetensors"),
        (lambda f: (f / "model.safetensors").write_bytes(safetensors(PLAIN)[:-10]), "cut off"),
        (lambda f: (f / "model.safetensors").write_bytes(b"1234"), "no safetensors file"),
        (
            lambda f: (f / "model.safetensors").write_bytes(b"version https://git-lfs"),
            "LFS pointer",
        ),
        (
            lambda f: (f / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "b.safetensors"}}'
            ),
            "files are missing",
        ),
    ],
)
def test_a_spoiled_folder_says_what_is_wrong(tmp_path, spoil, message):
    folder = write(tmp_path / "m")
    spoil(folder)
    with pytest.raises(SparkbookError, match=message):
        checkpoint.load(str(folder))


def test_an_unknown_shape_is_named_and_not_fatal(tmp_path):
    found = checkpoint.load(str(write(tmp_path / "m", {"model_type": "other"})))
    assert found.geometry is None
    assert found.bytes.exact
    assert "shape of the model" in found.unknown[0]


def test_a_name_that_is_not_known_gets_a_hint():
    with pytest.raises(SparkbookError, match=r"did you mean MiniMaxAI/MiniMax-M2\.7"):
        checkpoint.load("MiniMaxAI/MiniMax-M7")


# ---- configs


def test_layers_that_read_anothers_cache_are_not_counted_twice():
    config = {
        "model_type": "gemma4_text",
        "hidden_size": 64,
        "vocab_size": 100,
        "num_hidden_layers": 10,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "sliding_window": 32,
        "sliding_window_pattern": 5,
        "num_kv_shared_layers": 4,
        "intermediate_size": 8,
    }
    assert {cache.kind: cache.layers for cache in geometry(config).caches} == {
        "full": 1,
        "window": 5,
    }
    assert geometry(config).tied, "Gemma ties its embedding without saying so"


# ---- written down


@pytest.mark.parametrize("recipe", recipes.all(), ids=lambda recipe: recipe.slug)
def test_counted_parameters_are_the_cards(recipe):
    found = checkpoint.of_recipe(recipe)
    model = recipe.model
    assert found.params.middle / 1e9 == pytest.approx(model.total_params_b, rel=0.06)
    assert found.bytes.known
    if model.weights_gb and model.quantization.producer != "vllm":
        assert found.bytes.low <= model.weights_gb * 1.03e9
        assert found.bytes.high >= model.weights_gb * 0.95e9
    if model.weights_gb and model.weights_counted:
        counted = checkpoint.load(model.repo).bytes
        assert model.weights_gb == pytest.approx(counted.middle / 1e9, abs=0.06)
        assert found.bytes == counted, "a counted size does not narrow the plan's bounds"
    # Two cards count more as active: the towers of Phi-4, the draft head of the tiny model.
    if not found.certain and found.reads is None:
        return  # a checkpoint known by its size alone: nobody says what a token reads
    if model.active_params_b and not model.repo.startswith(("nvidia/Phi-4", "tiny-mtp")):
        assert found.reads
        assert found.reads.active.middle / 1e9 == pytest.approx(model.active_params_b, rel=0.2)


def test_nvfp4_is_not_all_four_bit():
    found = checkpoint.load("nvidia/Gemma-4-31B-IT-NVFP4")
    assert found.four_bit_share.middle == pytest.approx(2 / 3, abs=0.01), (
        "attention was left in BF16"
    )
    assert 29.5 < found.bytes.middle / 2**30 < 31.5, "31 GiB, as who loaded it counts"
    share = checkpoint.load("nvidia/Gemma-4-26B-A4B-NVFP4").four_bit_share
    assert share.exact and share.low == pytest.approx(0.886, abs=0.001), (
        "attention, routers and dense MLPs are left in BF16, as its list says"
    )
    assert checkpoint.load("google/gemma-4-31B-it").four_bit_share == Range(0, 0)
