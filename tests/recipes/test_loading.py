"""Finding recipes, and laying one over another."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkbook import recipes
from sparkbook.recipes import RecipeError
from sparkbook.recipes.catalogue import CATALOGUE, merge

BASE = """
title: Base
summary: s
family: qwen
model: {repo: a/b, weights_gb: 10, quantization: {format: nvfp4}}
container: {gpus: all, ports: ["127.0.0.1:8000:8000"]}
env: {A: "1", B: "2"}
sources: [{id: card, title: Card}]
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text, "utf-8")
    return path


def complaint(name: str | Path) -> str:
    with pytest.raises(RecipeError) as caught:
        recipes.load(name)
    return str(caught.value)


def test_what_extending_does(tmp_path: Path) -> None:
    write(tmp_path, "_base", BASE)
    recipe = recipes.load(
        write(
            tmp_path,
            "x",
            "extends: _base\nid: x\nmodel: {weights_gb: 20}\ncontainer: {ports: null, ipc:"
            " host}\nenv: {A: null, C: null, B: '3'}",
        )
    )
    assert recipe.model.weights_gb == 20 and recipe.model.repo == "a/b", "mappings merge"
    assert (
        recipe.container.ports == []
        and recipe.container.gpus == "all"
        and recipe.container.ipc == "host"
    ), "null takes out"
    assert recipe.env == {"B": "3", "C": None}, "a null that takes nothing out is a value"


def test_the_old_spelling_of_the_license_is_read(tmp_path: Path) -> None:
    write(tmp_path, "_base", BASE.replace("a/b", "a/b, license: MIT"))
    old = "extends: _base\nid: x\nmodel: {licence: Apache-2.0}"
    assert recipes.load(write(tmp_path, "x", old)).model.license == "Apache-2.0"
    both = write(tmp_path, "y", old.replace("id: x", "id: y").replace("{", "{license: MIT, "))
    assert "model.licence" in complaint(both)


def test_a_list_replaces(tmp_path: Path) -> None:
    write(tmp_path, "_base", BASE)
    recipe = recipes.load(
        write(tmp_path, "x", "extends: _base\nid: x\nsources: [{id: other, title: Other}]")
    )
    assert [source.id for source in recipe.sources] == ["other"]


def test_extending_over_several_files_and_into_the_catalogue(tmp_path: Path) -> None:
    write(tmp_path, "_base", "extends: gpt-oss-120b\ntitle: T")
    recipe = recipes.load(write(tmp_path, "x", "extends: _base\nid: x"))
    assert recipe.title == "T" and recipe.model.repo == "openai/gpt-oss-120b"


nested = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=2)),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
mappings = st.dictionaries(st.sampled_from("abc"), nested, max_size=3)


@settings(deadline=None, derandomize=True, database=None)
@given(base=mappings, over=mappings)
def test_merging_changes_neither_side_and_keeps_the_rest(base: dict, over: dict) -> None:
    before = (repr(base), repr(over))
    result = merge(base, over)
    assert (repr(base), repr(over)) == before
    assert merge(base, {}) == base
    for key in {*base, *over}:
        if key not in over:
            assert result[key] == base[key]
        elif over[key] is None and key in base:
            assert key not in result
        elif not isinstance(over[key], dict):
            assert result[key] == over[key]


def test_an_unknown_id_names_the_closest() -> None:
    assert "did you mean gpt-oss-120b" in complaint("gpt-oss-12b")
    assert "recipes list" in complaint("????")


@pytest.mark.parametrize("name", ["_spark", "../recipes/catalogue/gpt-oss-120b", "/etc/passwd", ""])
def test_what_is_no_id_is_no_recipe(name: str) -> None:
    assert ("there is no file" if name.startswith("..") else "there is no recipe") in complaint(
        name
    )


def test_ids() -> None:
    ids = recipes.ids()
    assert "gpt-oss-120b" in ids and not any(name.rsplit("/")[-1].startswith("_") for name in ids)
    plain = [name for name in ids if not name.startswith("embedded/")]
    assert ids == sorted(plain) + sorted(set(ids) - set(plain))


def test_a_recipe_can_be_loaded_by_path(tmp_path: Path) -> None:
    write(tmp_path, "_base", BASE)
    path = write(tmp_path, "x", "extends: _base\nid: x")
    assert recipes.load(path) == recipes.load(str(path))
    assert recipes.load(CATALOGUE / "gpt-oss-120b.yaml") == recipes.load("gpt-oss-120b")
    assert "there is no recipe file" in complaint(tmp_path / "y.yaml")


def test_what_is_there_and_no_file(tmp_path: Path) -> None:
    assert complaint(tmp_path) == f"{tmp_path} is a folder: name a file, or a recipe's id"
    other = "can't be read: it is a device, a pipe or a socket"
    assert complaint(Path("/dev/null")) == f"/dev/null {other}"
    os.mkfifo(tmp_path / "pipe.yaml")
    assert complaint(tmp_path / "pipe.yaml").endswith(other)
    (tmp_path / "link.yaml").symlink_to(tmp_path / "nowhere")
    assert "link.yaml can't be read: it is a link to nothing" in complaint(tmp_path / "link.yaml")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\xff")
    assert complaint(tmp_path / "binary").endswith("binary is not UTF-8 text")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path, "x", BASE)
    path.chmod(0)
    assert "can't be read: Permission denied" in complaint(path)


def test_a_loaded_recipe_is_the_callers_own() -> None:
    recipe = recipes.load("gpt-oss-120b")
    recipe.env["X"] = "1"
    assert "X" not in recipes.load("gpt-oss-120b").env


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("title: a\ntitle: b", "line 2, column 1: the key 'title' is given twice"),
        ("env: {A: '1', A: '2'}", "the key 'A' is given twice"),
        ("a: &x 1\nb: *x", "aliases are not read"),
        ("a: [", "is not valid YAML: line"),
        ("a: !!python/object:os.system 1", "is not valid YAML"),
        ("sources: [{date: 2026-99-99}]", "is not valid YAML"),
        ("- a", "holds a list"),
        ("", "holds nothing"),
        ("just words", "holds a text"),
        ("extends: nope", "extends: there is no recipe 'nope'"),
        ("extends: x", "extends itself: x -> x"),
        ("a: " + "[" * 200_000, "is not valid YAML"),
        ("extends: " + "\U0001f600" * 90, "there is no recipe"),
        ("extends: " + "x" * 300, "there is no recipe"),
        ("a: " + "x" * 1_000_001, "has more than 1 MB"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, text: str, part: str) -> None:
    message = complaint(write(tmp_path, "x", text))
    assert part in message and "x.yaml" in message


def test_an_ampersand_is_no_alias(tmp_path: Path) -> None:
    write(tmp_path, "_base", BASE)
    assert (
        recipes.load(write(tmp_path, "x", "extends: _base\nid: x\ntitle: salt & pepper *x")).title
        == "salt & pepper *x"
    )


def test_a_circle_of_files(tmp_path: Path) -> None:
    write(tmp_path, "a", "extends: b")
    write(tmp_path, "b", "extends: a")
    assert "extends itself: a -> b -> a" in complaint(tmp_path / "a.yaml")


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"title: \xff\xfe")
    assert "is not UTF-8" in complaint(path)


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("weights_gb: 65", "weights_gb: .nan", "NaN or infinite"),
        ("weights_gb: 65", "weights_gb: .inf", "NaN or infinite"),
        ("gpu-memory-utilization: 0.85", "gpu-memory-utilization: .nan", "NaN or infinite"),
        ("port: 8000", "port: 99999", "1 to 65535"),
        ("port: 8000", "port: eight", "1 to 65535"),
        ("container: {name: gptoss}", "container: {ports: ['0:8000']}", "1 to 65535"),
        ("container: {name: gptoss}", "container: {ports: ['127.0.0.1:8000:70000']}", "1 to 65535"),
        ("container: {name: gptoss}", "container: {ports: ['٣:8000']}", "not a published port"),
        ("modalities: [text]", "modalities: !!set {text}", "tag"),
        ("title: gpt-oss-120b", "title: !!binary Z3B0", "tag"),
        ("title: gpt-oss-120b", 'title: "gpt\\e[2J"', r"control character U\+001B"),
        ("title: gpt-oss-120b", 'title: "gpt\\u202e"', r"control character U\+202E"),
    ],
)
def test_what_no_recipe_should_hold_is_refused(tmp_path, old, new, complaint):
    text = (CATALOGUE / "gpt-oss-120b.yaml").read_text("utf-8")
    assert old in text
    file = tmp_path / "recipe.yaml"
    file.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(RecipeError, match=complaint):
        recipes.load(file)


def test_a_variant_is_the_recipe_with_what_differs():
    clean = recipes.load("gpt-oss-120b@lint-clean")
    assert (
        clean.id == "gpt-oss-120b@lint-clean"
        and clean.serve.args["gpu-memory-utilization"] == 0.8
        and not clean.variants
    )
    assert recipes.load("gpt-oss-120b@as-published").container.ports == ["8000:8000"]
    assert "gpt-oss-120b@lint-clean" not in recipes.ids()
    with pytest.raises(RecipeError, match="has no variant 'fast'; it has"):
        recipes.load("gpt-oss-120b@fast")
    with pytest.raises(RecipeError, match="has no variant"):
        recipes.load("qwen3.5-27b-dflash@lint-clean")
