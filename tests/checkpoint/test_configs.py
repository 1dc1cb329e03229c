"""Configurations of public checkpoints, and the short form in which the table holds them."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from sparkbook.checkpoint import configs, folding

TOOLS = Path(__file__).parents[2] / "tools"


def test_finds_a_config_and_its_quantization():
    facts = configs.find("nvidia/nvidia-nemotron-3-super-120b-a12b-nvfp4")
    assert facts.name == "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
    assert facts.config["num_hidden_layers"] == 88
    assert "quantization_config" not in facts.config
    assert facts.quantization == {
        "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}
    }
    assert facts.source.startswith("https://github.com/ai-dynamo/aiconfigurator")
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


@pytest.fixture
def tool():
    """The script that makes the table."""
    sys.path.insert(0, str(TOOLS))
    import build_checkpoints

    yield build_checkpoints
    sys.path.remove(str(TOOLS))


def test_the_table_is_what_the_script_makes(tool, tmp_path):
    """A wheel with two of the table's files gives their entries again."""
    name = "nvidia/Qwen3.6-35B-A3B-NVFP4"
    own = configs.find(name)
    wheel, stem = tmp_path / "x.whl", f"model_configs/{name.replace('/', '--')}"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{stem}_config.json", json.dumps({**own.config, "use_cache": True}))
        archive.writestr(f"{stem}_hf_quant_config.json", json.dumps(own.quantization))
    made = tool.build(wheel)
    line = tool.text({"checkpoints": made}).splitlines()[2]
    committed = configs.FILE.read_text("utf-8")
    assert line.rstrip(",") in committed
    assert made["source"] == json.loads(committed)["checkpoints"]["source"]


def test_cards_are_read_from_recipes(tool, tmp_path):
    recipe = tmp_path / "models" / "org" / "thing.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(
        "model: {model_id: org/Thing-7B, parameter_count: 7B, active_parameters: 0.9B,"
        " context_length: 4096}\nvariants:\n  default: {precision: bf16}\n"
        "  small: {model_id: org/Thing-3B, precision: bf16}\n"
        "  fp8: {model_id: org/Thing-7B-FP8, precision: fp8}\n"
    )
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        who = ["-c", "user.name=x", "-c", "user.email=x@example.com"]
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True)
    found = tool.cards(tmp_path)["entries"]
    assert found == {
        "org/Thing-7B": [7.0, 0.9, 4096, "bf16"],
        "org/Thing-7B-FP8": [7.0, 0.9, 4096, "fp8"],
    }


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
