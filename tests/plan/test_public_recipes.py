"""Public recipes, from facts about them: none is refused for what is right, and nearly all are
planned without a network.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml
from sparkbook import lint
from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import of_launch
from sparkbook.launch.line import Line
from sparkbook.lint.case import Case
from sparkbook.plan import memory, request
from sparkbook.recipes.launch import Launch
from sparkbook.recipes.names import entrypoint_of

FILE = Path(__file__).parents[1] / "data" / "public_recipes.yaml"


@functools.cache
def recipes() -> list[dict[str, Any]]:
    return yaml.load(FILE.read_text("utf-8"), yaml.CSafeLoader)["recipes"]


def line_of(recipe: dict[str, Any]) -> Line:
    """The recipe's line, as its reader gives it."""
    launch = Launch.model_validate(
        {
            "image": recipe["image"],
            "entrypoint": entrypoint_of(recipe["image"]),
            "container": {"gpus": "all", "ipc": "host"},
            "env": recipe.get("env", {}),
            "serve": {"model": recipe["model"], "args": recipe.get("options", {})},
        }
    )
    line = of_launch(launch)
    line.nodes = recipe.get("nodes", 1)
    return line


def test_no_public_recipe_is_refused_for_what_is_right() -> None:
    wrong = {}
    for recipe in recipes():
        found = lint.lint(line_of(recipe)).findings
        codes = sorted({f.rule for f in found if f.severity == "error"})
        if codes != recipe.get("wrong", []):
            wrong[recipe["file"]] = codes
    assert wrong == {}


@pytest.mark.slow
def test_nearly_all_public_recipes_are_planned_offline() -> None:
    planned, sizes_known = [], []
    for recipe in recipes():
        try:
            case = Case(line_of(recipe), None)
            plan = memory.plan(request.of_case(case, request.Override()), request.host())
        except SparkbookError:
            continue
        planned.append(recipe["file"])
        assert plan.weights.known and plan.weights.low > 0, recipe["file"]
        assert plan.verdict and plan.to_dict()["summary"]["source"]
        if plan.setup.checkpoint.certain:
            sizes_known.append(recipe["file"])
    assert len(planned) >= 0.98 * len(recipes()), f"{len(planned)} of {len(recipes())}"
    assert len(sizes_known) >= 0.3 * len(recipes()), f"{len(sizes_known)} of {len(recipes())}"
