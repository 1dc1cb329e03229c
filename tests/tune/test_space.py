"""What may be tried, and the candidates of a recipe."""

from __future__ import annotations

from pathlib import Path

import pytest
from sparkbook import recipes, releases
from sparkbook.errors import SparkbookError
from sparkbook.tune import space as spaces
from sparkbook.tune.space import Space

SPACE = spaces.read()
MTP = "embedded/tiny-mtp-k3"
LOAD = {"classes": ["code"], "concurrency": 1, "max_tokens": 64}


def small(text: str) -> Space:
    """Return the project's space with other options."""
    source = {"url": "https://example.org/", "date": "2026-11-29"}
    option = {"why": "w", "source": source}
    return Space.model_validate(
        {"uses": {"chat": {"text": "t", "changes": 2, "load": LOAD}}}
        | {
            "options": {
                text: option | {"values": [{text: 1}, {text: 2}]},
                "seed": option | {"values": [{"seed": 7}]},
            }
        }
    )


def test_every_option_is_one_that_the_newest_release_knows() -> None:
    newest = releases.get(releases.known()[-1])
    for option in SPACE.options.values():
        for value in option.values:
            for name in value.keys() - {"image"}:
                assert newest.accepts(name.partition(".")[0]), name


def test_candidates_are_the_baseline_and_all_changes_up_to_the_limit() -> None:
    found, left_out = spaces.candidates(small("max-num-seqs"), recipes.load(MTP), "chat")
    assert [one.key for one in found] == [
        "baseline",
        "--max-num-seqs 1",
        "--max-num-seqs 2",
        "--seed 7",
        "--max-num-seqs 1 --seed 7",
        "--max-num-seqs 2 --seed 7",
    ]
    assert found[4].recipe.serve.args["max-num-seqs"] == 1
    assert found[4].recipe.serve.args["seed"] == 7
    assert left_out == {}


def test_what_the_recipe_says_already_is_no_candidate() -> None:
    recipe = recipes.load(MTP)  # with 3 drafts and 8 sequences
    keys = [one.key for one in spaces.candidates(SPACE, recipe, "users")[0]]
    assert "--speculative-config.num_speculative_tokens 3" not in keys
    assert "--max-num-seqs 8" not in keys
    assert len(keys) == len(set(keys))


def test_a_key_of_a_json_option_is_changed_and_the_others_stay() -> None:
    found, _ = spaces.candidates(SPACE, recipes.load(MTP), "chat")
    (one,) = (c for c in found if c.key == "--speculative-config.num_speculative_tokens 1")
    expected = {"method": "mtp", "num_speculative_tokens": 1}
    assert one.recipe.serve.args["speculative-config"] == expected
    (off,) = (c for c in found if c.key == "without --speculative-config")
    assert "speculative-config" not in off.recipe.serve.args


def test_options_that_do_not_apply_are_left_out_with_the_reason() -> None:
    _, left_out = spaces.candidates(SPACE, recipes.load("embedded/tiny-mtp"), "chat")
    assert left_out["drafts"] == "the recipe has no speculative-config"
    assert left_out["sequences"] == "not for the use 'chat'"
    assert left_out["attention"] == "the embedded engine has no GPU"
    recipe = recipes.load("gpt-oss-120b")
    found, left_out = spaces.candidates(SPACE, recipe, "chat")
    assert "quality near" in left_out["kv-cache"]
    assert not any("kv-cache" in one.changes for one in found)
    found, left_out = spaces.candidates(SPACE, recipe, "chat", lossy=True)
    assert "kv-cache" not in left_out
    assert any("kv-cache" in one.changes for one in found)


def test_images_are_those_of_one_known_release_and_a_tag_that_stays() -> None:
    recipe = recipes.load("gpt-oss-120b")
    found, _ = spaces.candidates(SPACE, recipe, "chat")
    single = {one.image: one for one in found if one.image and len(one.changes) == 1}
    assert "vllm/vllm-openai:v0.28.0" in single
    assert recipe.image
    assert not {recipe.image.ref, "vllm/vllm-openai:nightly", "eugr/spark-vllm:latest"} & set(
        single
    )
    other = single["vllm/vllm-openai:v0.28.0"]
    assert other.key == "image vllm/vllm-openai:v0.28.0"
    assert (other.recipe.launch.image or "").startswith("vllm/vllm-openai:v0.28.0@sha256:")
    assert other.recipe.serve == recipe.serve
    assert not any(one.image for one in spaces.candidates(SPACE, recipes.load(MTP), "chat")[0])


def test_loaders_are_not_combined() -> None:
    found, _ = spaces.candidates(SPACE, recipes.load("gpt-oss-120b"), "chat")
    loaders = [one for one in found if SPACE.of_start(one)]
    assert loaders
    assert all(len(one.changes) == 1 for one in loaders)
    keys = {one.key for one in loaders}
    assert "--load-format safetensors" not in keys, "that is what vLLM does anyway"
    other = recipes.load("qwen3.8-flash-next-nvfp4")
    assert (
        spaces.candidates(SPACE, other, "chat")[1]["loader"] == "the recipe has --load-format b12x"
    )


def test_a_candidate_contains_those_with_fewer_of_its_changes() -> None:
    found, _ = spaces.candidates(small("max-num-seqs"), recipes.load(MTP), "chat")
    one, other, seed, both = (found[i] for i in (1, 2, 3, 4))
    assert both.contains(one)
    assert both.contains(seed)
    assert not both.contains(other)
    assert not one.contains(one)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("changes: 2", "changes: 0"), "uses.chat.changes"),
        (("uses: [users, batch]", "uses: [users, nobody]"), "sequences is for nobody"),
        (("https://", "http://"), "options.drafts.source.url"),
        (("lossless: false", "loss: false"), "options.kv-cache.loss"),
        (("catalogue: true", "catalogue: false"), "options.image: .*no values"),
    ],
)
def test_a_space_of_ones_own_is_checked(
    tmp_path: Path, change: tuple[str, str], words: str
) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(spaces.FILE.read_text("utf-8").replace(*change), "utf-8")
    with pytest.raises(SparkbookError, match=words):
        spaces.read(file)


def test_an_unknown_use_is_said_with_those_that_there_are() -> None:
    with pytest.raises(SparkbookError, match="chat, agent, users, batch"):
        SPACE.use("gaming")


def test_a_recipe_whose_image_has_a_script_of_its_own_is_not_tuned() -> None:
    with pytest.raises(SparkbookError, match="own script"):
        spaces.candidates(SPACE, recipes.load("qwen3-next-80b-a3b-nvfp4"), "chat")
