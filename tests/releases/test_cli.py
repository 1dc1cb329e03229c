"""`sparkbook releases`, as a user meets it."""

import json

import pytest
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.releases import Change, changelog
from typer.testing import CliRunner


def run(*words):
    return CliRunner().invoke(app, ["releases", *words])


def test_show_counts_what_there_is():
    shown = run("show", "0.32.0").output
    assert "316 options of vllm serve" in shown and "torch ==2.13.0" in shown


def test_show_json_holds_every_category():
    shown = json.loads(run("show", "v0.32", "--json").output)
    assert shown["version"] == "0.32.0"
    assert shown["options"]["gpu-memory-utilization"]["default"] == 0.92


def test_show_one_category():
    lines = run("show", "0.32.0", "--category", "metrics").output.splitlines()
    assert "kv_cache_usage_perc: gauge" in lines


def test_diff_is_a_changelog():
    text = run("diff", "0.19.0", "0.32.0").output
    assert "--gpu-memory-utilization: default 0.9, now 0.92" in text
    assert "options of vllm serve: added" in text
    removed = text.split("environment variables: removed")[1].split(
        "environment variables: changed"
    )[0]
    assert "VLLM_NVFP4_GEMM_BACKEND" in removed


def test_diff_json_is_a_list_of_changes():
    changes = json.loads(run("diff", "0.31.0", "0.32.0", "--json").output)
    assert {"category", "name", "change", "before", "after"} == set(changes[0])


def test_nothing_changed():
    assert run("diff", "0.32.0", "0.32.0").output == "vLLM 0.32.0 accepts what 0.32.0 does.\n"


@pytest.mark.parametrize(
    "words",
    [("show", "0.99.0"), ("diff", "0.19.0", "x"), ("show", "0.32.0", "--category", "nonsense")],
)
def test_what_cannot_be_answered_is_one_error(words):
    error = run(*words).exception
    assert isinstance(error, SparkbookError)


def test_changes_in_words():
    before = {"type": "str", "choices": ["a", "b"], "default": "a"}
    after = {"type": "str", "choices": ["b", "c"], "default": "b", "deprecated": "use --y"}
    assert (
        changelog.explain(Change("options", "x", "changed", before, after))
        == "--x: now accepts c; no longer accepts a; default a, now b; deprecated: use --y"
    )
    assert (
        changelog.explain(Change("architectures", "A", "changed", "old", "new"))
        == "A: old, now new"
    )
