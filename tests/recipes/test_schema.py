"""What a recipe may say, and what its author is told where it says something else."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from sparkbook import recipes
from sparkbook.recipes import RecipeError
from sparkbook.recipes.catalogue import SCHEMA_FILE, json_schema
from sparkbook.recipes.schema import PrepareStep, RequestDefaults

MINIMAL: dict[str, Any] = {
    "id": "mine",
    "title": "Mine",
    "summary": "A recipe of my own.",
    "family": "qwen",
    "model": {"repo": "org/model", "quantization": {"format": "nvfp4"}},
    "image": {"ref": "vllm/vllm-openai:v0.19.0"},
    "sources": [{"id": "card", "title": "Model card"}],
}


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({**MINIMAL, **changes}, allow_unicode=True), "utf-8")
    return path


def complaint(path: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        recipes.load(path)
    return str(caught.value)


def test_the_least_a_recipe_can_say(tmp_path: Path) -> None:
    recipe = recipes.load(written(tmp_path))
    assert recipe.launch.serve.model == "org/model" and recipe.launch.entrypoint == "vllm-serve"
    assert (
        recipe.status == "published"
        and recipe.model.weights_gb is None
        and recipe.model.weights_gib is None
    )
    assert (
        recipe.container.ports == [] and recipe.served_name == "org/model" and recipe.slug == "mine"
    )
    assert recipe.source("card").title == "Model card"


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"sumary": "x"}, ["sumary: no such key", "did you mean 'summary'"]),
        (
            {"model": {**MINIMAL["model"], "quantisation": {}}},
            ["model.quantisation", "did you mean 'quantization'"],
        ),
        ({"container": {"zzzz": 1}}, ["container.zzzz: no such key", "allowed here:", "shm_size"]),
        (
            {"benchmarks": {"speed": [{"machine": "x", "source": "card", "decode_toks": 1}]}},
            ["benchmarks.speed[0].decode_toks", "'decode_tok_s'"],
        ),
        ({"model": {"repo": "a/b"}}, ["model.quantization: is missing"]),
        ({"family": "llama"}, ["family: must be", "'qwen'", "'meta'", "(got 'llama')"]),
        (
            {"model": {"repo": "a/b", "quantization": {"format": "int3"}}},
            ["model.quantization.format", "'int3'", "'nvfp4'"],
        ),
        ({"container": {"ports": ["8000"]}}, ["container.ports", "127.0.0.1:8000:8000", "'8000'"]),
        ({"container": {"volumes": ["/data"]}}, ["container.volumes", "HOST:CONTAINER"]),
        ({"container": {"ulimits": {"memlock": "many"}}}, ["container.ulimits", "SOFT:HARD"]),
        ({"container": {"shm_size": "huge"}}, ["container.shm_size", "is not a size"]),
        (
            {"container": {"network": "host", "ports": ["8000:8000"]}},
            ["container", "nothing to publish"],
        ),
        ({"serve": {"args": {"enable-x": False}}}, ["serve.args", "no-enable-x"]),
        (
            {"remarks": [{"text": "x", "source": "blog"}]},
            ["remarks[0]", "'blog'", "listed are card"],
        ),
        (
            {"sources": [{"id": "card", "title": "a"}, {"id": "card", "title": "b"}]},
            ["card is listed twice"],
        ),
        ({"sources": []}, ["sources"]),
        ({"sources": [{"id": "card", "title": "a", "url": "ftp://x"}]}, ["sources[0].url"]),
        (
            {
                "benchmarks": {
                    "accuracy": [
                        {
                            "title": "t",
                            "series": ["a", "b"],
                            "rows": [{"label": "MMLU", "values": [1]}],
                            "source": "card",
                        }
                    ]
                }
            },
            ["benchmarks.accuracy[0]", "'MMLU' has 1 values for 2 series"],
        ),
        ({"image": {"ref": "x", "vllm": "newest"}}, ["image.vllm", "version range"]),
        ({"image": {"ref": "x", "digest": "sha256:12"}}, ["image.digest"]),
        (
            {"prepare": [{"do": "fetch", "why": "w", "url": "https://x"}]},
            ["prepare[0]", "needs to, sha256"],
        ),
        ({"schema_version": 2}, ["schema_version"]),
        ({"id": "Not An Id"}, ["id"]),
        ({"model": {**MINIMAL["model"], "weights_gb": 0}}, ["model.weights_gb", "greater than 0"]),
    ],
)
def test_the_author_is_told_the_key_and_the_remedy(
    tmp_path: Path, changes: dict[str, Any], parts: list[str]
) -> None:
    message = complaint(written(tmp_path, **changes))
    assert "mine.yaml is not a valid recipe" in message
    for part in parts:
        assert part in message


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    message = complaint(written(tmp_path, family="x", status="y", titel="z"))
    assert all(key in message for key in ("family", "status", "titel"))


@pytest.mark.parametrize("value", ["hf_abcdefgh", 12345678])
def test_a_secret_is_refused_and_not_repeated(tmp_path: Path, value: object) -> None:
    message = complaint(written(tmp_path, env={"HF_TOKEN": value}))
    assert "HF_TOKEN" in message and str(value) not in message
    message = complaint(written(tmp_path, serve={"args": {"api-key": value}}))
    assert "api-key is a secret" in message and str(value) not in message


def test_an_unreasonable_value_is_shown_shortened(tmp_path: Path) -> None:
    assert len(complaint(written(tmp_path, guide_section=["x" * 10_000]))) < 500


def test_a_prepare_step_says_what_it_needs() -> None:
    assert (
        PrepareStep(do="fetch", why="w", url="https://x/y", to="~/y", sha256="unknown").sha256
        == "unknown"
    )
    with pytest.raises(ValueError, match="64 hex digits"):
        PrepareStep(do="fetch", why="w", url="https://x/y", to="~/y", sha256="12")


def test_request_defaults_as_a_body() -> None:
    defaults = RequestDefaults(
        use="reasoning",
        temperature=0,
        chat_template_kwargs={"enable_thinking": True},
        system_prompt="x",
        source="card",
    )
    assert defaults.body() == {"temperature": 0, "chat_template_kwargs": {"enable_thinking": True}}
    assert RequestDefaults().body() == {}


def test_a_digest_is_what_gets_pulled(tmp_path: Path) -> None:
    digest = "sha256:" + "a" * 64
    assert (
        recipes.load(written(tmp_path, image={"ref": "x/y:1", "digest": digest})).launch.image
        == f"x/y:1@{digest}"
    )
    assert recipes.load(written(tmp_path, image=None)).launch.image is None


def test_a_wrapper_takes_its_model_from_the_environment(tmp_path: Path) -> None:
    recipe = recipes.load(
        written(
            tmp_path,
            image={"ref": "ghcr.io/aeon-7/vllm-dflash:latest"},
            env={"SERVED_MODEL_NAME": "short"},
        )
    )
    assert (
        recipe.launch.serve.model is None
        and recipe.launch.serve.command == []
        and recipe.served_name == "short"
    )


def test_the_published_schema_is_up_to_date() -> None:
    assert SCHEMA_FILE.read_text("utf-8") == json_schema(), (
        "run: sparkbook recipes schema > lib/sparkbook/recipes/recipe.schema.json"
    )


def test_the_published_schema_judges_recipes(tmp_path: Path) -> None:
    schema = json.loads(json_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for name in recipes.ids():
        # As JSON, as another tool would see it: dates are strings there.
        validator.validate(recipes.load(name).model_dump(mode="json"))
    validator.validate(MINIMAL)
    for wrong in (
        {**MINIMAL, "sumary": "x"},
        {**MINIMAL, "family": "x"},
        {key: value for key, value in MINIMAL.items() if key != "sources"},
    ):
        assert not validator.is_valid(wrong)
