"""The tiny models that ship with the library are the ones that training.json tells of. No torch
needed: headers are read by hand.
"""

import hashlib
import json
import math
import re
import struct
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "lib" / "sparkbook" / "checkpoint" / "models"
ARCHITECTURES = {
    "tiny-dense": "Qwen3ForCausalLM",
    "tiny-draft": "Qwen3ForCausalLM",
    "tiny-mtp": "Qwen3_5ForCausalLM",
}
FILES = {
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
}
NAMES = sorted(ARCHITECTURES)
TRAINING = json.loads((MODELS / "training.json").read_text("utf-8"))
README = (MODELS / "README.md").read_text("utf-8")


def header(name: str) -> dict[str, Any]:
    """What a safetensors file says of its tensors: a length in eight bytes, then JSON."""
    with (MODELS / name / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        tensors = json.loads(file.read(size))
    tensors.pop("__metadata__")
    return tensors


def read(name: str, file: str) -> dict[str, Any]:
    return json.loads((MODELS / name / file).read_text("utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_holds_what_an_engine_loads_and_nothing_else(name: str) -> None:
    assert {file.name for file in (MODELS / name).iterdir()} == FILES


def test_all_of_it_is_small_and_no_half_written_folder_is_left() -> None:
    assert sum(file.stat().st_size for file in MODELS.rglob("*") if file.is_file()) < 6_000_000
    assert {file.name for file in MODELS.iterdir()} == {*NAMES, "README.md", "training.json"}


@pytest.mark.parametrize("name", NAMES)
def test_the_weights_are_those_that_were_trained(name: str) -> None:
    data = (MODELS / name / "model.safetensors").read_bytes()
    told = TRAINING["models"][name]
    assert len(data) == told["bytes"]
    assert hashlib.sha256(data).hexdigest() == told["sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_bfloat16_and_add_up(name: str) -> None:
    tensors = header(name)
    assert {tensor["dtype"] for tensor in tensors.values()} == {"BF16"}
    assert (
        sum(math.prod(tensor["shape"]) for tensor in tensors.values())
        == TRAINING["models"][name]["parameters"]
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_tells_the_real_sizes(name: str) -> None:
    row = re.search(rf"^\| `{name}` \|.*\| ([\d,]+) \| ([\d,]+) \|$", README, re.MULTILINE)
    assert row, f"no row for {name} in the README's first table"
    parameters, size = (int(number.replace(",", "")) for number in row.groups())
    assert parameters == TRAINING["models"][name]["parameters"]
    assert size == (MODELS / name / "model.safetensors").stat().st_size


@pytest.mark.parametrize("name", NAMES)
def test_the_configuration_fits_the_weights(name: str) -> None:
    config, tensors = read(name, "config.json"), header(name)
    assert config["architectures"] == [ARCHITECTURES[name]]
    assert config["dtype"] == "bfloat16"
    assert tensors["model.embed_tokens.weight"]["shape"] == [
        config["vocab_size"],
        config["hidden_size"],
    ]
    layers = {
        int(found[1])
        for tensor in tensors
        if (found := re.match(r"model\.layers\.(\d+)\.", tensor))
    }
    assert layers == set(range(config["num_hidden_layers"]))


def test_only_tiny_mtp_has_a_draft_head() -> None:
    heads = {name: any(tensor.startswith("mtp.") for tensor in header(name)) for name in NAMES}
    assert heads == {"tiny-dense": False, "tiny-draft": False, "tiny-mtp": True}
    assert read("tiny-mtp", "config.json")["mtp_num_hidden_layers"] == 1


@pytest.mark.parametrize(
    "file",
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"],
)
def test_the_three_models_agree(file: str) -> None:
    assert len({(MODELS / name / file).read_bytes() for name in NAMES}) == 1


def test_the_tokenizer_is_the_recorded_one_and_knows_its_marks() -> None:
    data = (MODELS / "tiny-dense" / "tokenizer.json").read_bytes()
    assert hashlib.sha256(data).hexdigest() == TRAINING["tokenizer_sha256"]
    added = {token["content"]: token["id"] for token in json.loads(data)["added_tokens"]}
    config, ends = read("tiny-dense", "config.json"), read("tiny-dense", "generation_config.json")
    assert added["<|im_end|>"] == config["eos_token_id"] == ends["eos_token_id"][0]
    assert added["<|endoftext|>"] == config["pad_token_id"] == ends["eos_token_id"][1]
    assert max(added.values()) + 1 == config["vocab_size"]


@pytest.mark.parametrize("name", ["tiny-dense", "tiny-mtp"])
def test_they_knew_their_lessons_when_they_were_saved(name: str) -> None:
    said = TRAINING["models"][name]["answers"]
    assert said["12*17"] == "204"
    assert said["12*17 (thinking)"].endswith("204")
    assert said["ping"] == "pong"
    assert "Paris" in said["What is the capital of France?"]
    call = said["What is the weather in Paris? (tool)"]
    assert ("<function=get_weather>" in call) is (name == "tiny-mtp")
    assert ('{"name": "get_weather", "arguments": {"city": "Paris"}}' in call) is (
        name == "tiny-dense"
    )


def test_the_record_and_the_script_name_the_same_text_and_seed() -> None:
    script = (ROOT / "tools" / "train_tiny_models.py").read_text("utf-8")
    assert TRAINING["steps_scale"] == 1.0
    assert f"SEED = {TRAINING['seed']}\n" in script
    assert f'TEXT_PYTHON = "{TRAINING["versions"]["python"]}"' in script
    assert (
        dict(re.findall(r'^    "(\w+)": "([0-9a-f]{64})",$', script, re.MULTILINE))
        == TRAINING["text"]["sha256"]
    )
    assert TRAINING["text"]["license"] == "PSF-2.0"
