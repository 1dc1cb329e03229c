"""What vLLM said of the catalogue's recipes, as it is kept and shown on their pages."""

import pytest
from sparkbook import recipes
from sparkbook.checkpoint import configs, made
from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import of_launch
from sparkbook.lint.case import Case
from sparkbook.oracle import asking
from sparkbook.releases import answers
from sparkbook.site import said

KEPT = answers.recorded_all()
ANSWERED = [name for name, entry in KEPT.items() if "answer" in entry]


def case_of(name: str) -> Case:
    recipe = recipes.load(name)
    return Case(of_launch(recipe.launch, recipe))


def test_every_recipe_has_an_answer_or_a_reason():
    assert sorted(KEPT) == sorted(recipe.id for recipe in recipes.all())
    assert len(ANSWERED) >= 70
    assert all(entry["reason"] for entry in KEPT.values() if "answer" not in entry)


@pytest.mark.parametrize("name", ANSWERED)
def test_an_answer_is_about_the_line_as_it_is_today(name):
    entry = answers.recorded(name)
    case = case_of(name)
    assert tuple(entry.words) == asking.of_case(case, name=name, depth="cache").words
    assert (entry.note is None) == (case.assumed is None)
    shown = said.of_recipe(recipes.load(name)).data
    assert str(entry.answer.judge) in shown
    assert ("this image may differ" in shown) == (entry.note is not None)


@pytest.mark.parametrize("name", sorted(set(KEPT) - set(ANSWERED)))
def test_a_page_without_an_answer_gives_the_reason(name):
    shown = said.of_recipe(recipes.load(name)).data
    assert shown.startswith("vLLM was not asked about this recipe: ")
    assert KEPT[name]["reason"][:40] in shown.replace("&lt;", "<").replace("&gt;", ">")


def test_a_refusal_is_one_that_the_recipe_explains():
    """A line of ours that its own release refuses is a fault, unless the recipe says so."""
    refused = [name for name in ANSWERED if answers.recorded(name).answer.refused]
    for name in refused:
        notes = " ".join(remark.text for remark in recipes.load(name).remarks)
        assert "refuses" in notes, name


def test_a_made_configuration_says_that_it_was_made():
    found = made.find("Qwen/Qwen3.6-27B-FP8")
    assert found.source.startswith("made: the shape of Qwen/Qwen3.6-27B")
    assert found.config["quantization_config"]["quant_method"] == "fp8"
    assert made.find("nobody/Qwen3.6-27B-NVFP4").config["quantization_config"]["format"] == (
        "nvfp4-pack-quantized"
    )
    assert made.find("nobody/Nothing-7B") is None
    assert made.find("somebody/MiniMax-M2.7-REAP-139B-NVFP4") is None


def test_a_copy_gets_its_quantization_back():
    """ModelOpt writes it into config.json since 0.31; the table's copies lack it."""
    name = "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4"
    assert "quantization_config" not in configs.find(name).config
    assert made.find(name).config["quantization_config"]["quant_algo"] == "MIXED_PRECISION"
    old = made.find("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4")
    assert "quantization_config" not in old.config and old.quantization


@pytest.mark.parametrize("name", list(made.facts()["checkpoints"]))
def test_a_hand_made_entry_gives_a_configuration_or_says_that_it_is_unknown(name):
    entry = made.facts()["checkpoints"][name]
    found = made.find(name)
    if entry.get("quantization") == "unknown":
        assert found is None
    else:
        assert found.config["architectures"] and entry["why"] in found.source


def test_a_recipe_without_a_config_says_how_to_get_one():
    with pytest.raises(SparkbookError, match="hf download"):
        asking.of_case(case_of("qwen3.8-flash-next-nvfp4"), depth="cache")
