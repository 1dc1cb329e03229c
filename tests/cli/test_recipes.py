"""`sparkbook recipes`: what it prints, in a terminal and in a pipe."""

import json
import re
from pathlib import Path

import pytest
from command_line import in_terminal, installed, run
from sparkbook import recipes
from sparkbook.formats import FORMATS


def test_list_in_a_pipe_has_one_line_for_each_recipe() -> None:
    lines = installed("recipes", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:]] == recipes.ids()
    [line] = [line for line in lines if line.startswith("gpt-oss-120b ")]
    assert line.split() == [
        "gpt-oss-120b",
        "openai/gpt-oss-120b",
        "mxfp4",
        "65",
        "nvcr.io/nvidia/vllm:26.04-py3",
        recipes.load("gpt-oss-120b").status,
    ]


def test_list_as_json_and_by_family() -> None:
    everything = json.loads(run("recipes", "list", "--json").stdout)
    assert [row["id"] for row in everything] == recipes.ids()
    openai = json.loads(run("recipes", "list", "--family", "openai", "--json").stdout)
    assert openai == [row for row in everything if row["family"] == "openai"] != []
    assert "--family accepts: " in run("recipes", "list", "--family", "x", check=2).stderr


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80, 120, 240])
def test_list_in_a_terminal(width: int) -> None:
    _, text = in_terminal(width, "recipes", "list")
    # A name that is too long stays whole: a broken one can't be copied.
    wider = [line for line in text.splitlines() if len(line) > width]
    assert all(re.match(r"  (model|image)  \S+$", line) for line in wider)
    whole = re.sub(r"\s", "", text)
    for row in json.loads(run("recipes", "list", "--json").stdout):
        assert row["id"] in whole and row["model"] in whole and (row["image"] or "none") in whole
    assert ("Quantization" in text) == (width == 240)
    assert "none GB" not in text


@pytest.mark.parametrize("width", [60, 100])
def test_facts_in_a_terminal(width: int) -> None:
    raw, text = in_terminal(width, "recipes", "show", "gpt-oss-120b")
    assert "\x1b[1m" in raw and max(map(len, text.splitlines())) <= width
    for word in ("openai/gpt-oss-120b", "Remarks", "Sources", "https://vlaicu.io/posts/dgx-vllm/"):
        assert word in text


def test_facts_of_every_recipe() -> None:
    for name in ("gpt-oss-120b", *recipes.ids()[:2], recipes.ids()[-1]):
        recipe, text = recipes.load(name), run("recipes", "show", name).stdout
        shown = [
            recipe.id,
            recipe.model.repo,
            *(r.text for r in recipe.remarks),
            *(c.now for c in recipe.corrections),
            *(s.title for s in recipe.sources),
        ]
        assert all(part in text for part in shown)


@pytest.mark.parametrize("form", FORMATS)
def test_a_launch_line_is_printed_alone(form: str) -> None:
    assert run("recipes", "show", "gpt-oss-120b", "--as", form).stdout == FORMATS[form].write(
        recipes.load("gpt-oss-120b")
    )


def test_a_recipe_as_json() -> None:
    data = json.loads(run("recipes", "show", "gpt-oss-120b", "--as", "json").stdout)
    assert data == json.loads(run("recipes", "show", "gpt-oss-120b", "--json").stdout)
    assert recipes.Recipe.model_validate(data) == recipes.load("gpt-oss-120b")


def test_a_recipe_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("extends: gpt-oss-120b\nid: mine\nserve: {args: {port: 9999}}\n")
    assert "--port 9999" in run("recipes", "show", str(path), "--as", "docker").stdout


def test_validate(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("extends: gpt-oss-120b\nid: good\n")
    bad.write_text("extends: gpt-oss-120b\nid: bad\nfamliy: qwen\n")
    assert run("recipes", "validate", str(good)).stdout == f"{good} is a valid recipe\n"
    result = run("recipes", "validate", str(good), str(bad), str(tmp_path / "none.yaml"), check=2)
    assert "good.yaml is a valid recipe" in result.stdout
    assert "did you mean 'family'" in result.stderr and "there is no recipe file" in result.stderr
    answer = json.loads(
        installed("recipes", "validate", "--json", str(good), str(bad), check=2).stdout
    )
    assert [row["valid"] for row in answer] == [True, False] and "famliy" in answer[1]["problem"]


def test_schema_is_the_published_one() -> None:
    assert run("recipes", "schema").stdout == recipes.json_schema()


def test_show_as_text_and_as_json_is_refused() -> None:
    assert (
        "leave one of them out"
        in run("recipes", "show", "gpt-oss-120b", "--as", "docker", "--json", check=2).stderr
    )
