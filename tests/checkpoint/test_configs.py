"""Configurations of public checkpoints, and the short form in which the table holds them."""

from __future__ import annotations

import json

from sparkbook.checkpoint import configs, folding


def test_finds_a_config_and_its_quantization():
    facts = configs.find("nvidia/nvidia-nemotron-3-super-120b-a12b-nvfp4")
    assert facts.name == "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
    assert facts.config["num_hidden_layers"] == 88
    assert "quantization_config" not in facts.config
    assert facts.quantization == {
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    }
    assert facts.source.startswith("https://github.com/ai-dynamo/")
    assert facts.date == "2026-09-18"


def test_an_unknown_checkpoint_is_none():
    assert configs.find("nobody/Nothing-7B") is None


def test_modules_of_mixed_quantization_are_written_out():
    facts = configs.find("nvidia/Qwen3.6-35B-A3B-NVFP4")
    layers = facts.config["quantization_config"]["quantized_layers"]
    assert len(layers) == 291
    assert layers["model.language_model.layers.39.mlp.experts"] == {
        "quant_algo": "W4A16_NVFP4",
        "group_size": 16,
    }


def test_every_entry_unfolds_to_a_config():
    for name in configs.names():
        facts = configs.find(name)
        assert facts.config["architectures"], name
        assert _sorted(folding.unfold(folding.fold(facts.config))) == _sorted(facts.config), name


def test_folding_keeps_each_name_once():
    names = [f"a.{i}.b.{j}.c" for i in range(4) for j in (0, 1, 5)] + ["a.7.b.0.c", "lm_head"]
    short = folding.fold_names(names)
    assert short == ["a.7.b.0.c", "a.<0-3>.b.<0-1,5>.c", "lm_head"]
    assert sorted(folding.unfold_names(short)) == sorted(names)


def test_numbers_inside_a_word_are_left_alone():
    names = ["h.0.w1", "h.0.w2", "h.01.w1", "re:.*layers.[0-9].*"]
    assert sorted(folding.unfold_names(folding.fold_names(names))) == sorted(names)


def test_a_name_with_the_mark_is_not_folded():
    names = [f"a.<{i}>" for i in range(20)]
    assert folding.unfold(folding.fold(names)) == names


def _sorted(value):
    """JSON with lists of names in one order."""
    if isinstance(value, dict):
        return {key: _sorted(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return sorted((_sorted(inner) for inner in value), key=json.dumps)
    return value
