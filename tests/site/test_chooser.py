"""The start page's chooser says what the command says, for every recipe: its data, and the page
that shows them.
"""

from __future__ import annotations

import functools
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from chromium import browser
from click.testing import CliRunner
from sparkbook import recipes
from sparkbook.cli import app
from sparkbook.formats.lines import of_launch
from sparkbook.lint.case import Case
from sparkbook.plan import request
from sparkbook.site import chooser
from typer.main import get_command

STATIC = Path(__file__).resolve().parents[2] / "book" / "_static"
COMMAND = get_command(app)
FOR_A_SPARK = [recipe.id for recipe in recipes.all() if recipe.family != "embedded"]


@functools.cache
def known() -> dict[str, Any]:
    """The chooser's data for the whole catalogue."""
    return chooser.data(recipes.ids())


def said(line: str) -> str:
    """Standard output of the command."""
    done = CliRunner().invoke(COMMAND, shlex.split(line))
    assert done.exit_code in (0, 1), (line, done.output)
    return done.stdout


def findings(numbers: list[int]) -> list[list[Any]]:
    return [known()["findings"][number] for number in numbers]


def told(answer: dict[str, Any]) -> list[list[Any]]:
    return [
        [f[key] for key in ("severity", "message", "fix", "rule", "why")]
        for f in answer["findings"]
    ]


@pytest.mark.slow
def test_every_recipe_for_a_spark_can_be_chosen() -> None:
    assert [recipe["id"] for recipe in known()["recipes"]] == FOR_A_SPARK


@pytest.mark.slow
@pytest.mark.parametrize("place", range(len(FOR_A_SPARK)), ids=FOR_A_SPARK)
def test_the_answer_is_the_commands(place: int) -> None:
    data = known()
    recipe = data["recipes"][place]
    assert "\n".join(data["lines"][n] for n in recipe["lines"][0]) + "\n" == said(
        f"recipes show {recipe['id']} --as docker"
    )
    assert findings(recipe["lint"][0]) == told(json.loads(said(f"lint {recipe['id']} --json")))
    # Each use and each memory once, and the last ones together; the options are those that the page
    # itself names.
    for use, memory in ((0, 0), (1, 0), (2, 1), (3, 2), (0, 3)):
        options = data["uses"][use]["options"] + data["memories"][memory]["options"]
        answer = json.loads(said(f"plan {recipe['id']}{options} --json"))
        plan, summary = recipe["plans"][use][memory], answer["summary"]
        assert plan["verdict"] == summary["verdict"]
        assert (plan["context"], plan["sequences"], plan["kv"]) == (
            summary["context"],
            summary["sequences"],
            summary["kv_tokens"],
        )
        assert data["speeds"][plan["speed"]] == [
            [speed["requests"], *speed["tok_s"]] for speed in summary["decode"] or ()
        ]
        assert {speed["context"] for speed in summary["decode"] or ()} == (
            {plan["behind"]} - {None}
        )
        assert findings(plan["said"]) == told(answer)


def test_a_fraction_that_is_only_doubtful_is_not_told_as_a_question_of_size() -> None:
    shown = [plan for recipe in known()["recipes"] for plan in recipe["plans"][0]]
    named = [plan for plan in shown if plan["fit"] != plan["verdict"]]
    assert {plan["verdict"] for plan in named} == {
        "may fit",
        "does not fit",
        "fits with less context",
    }
    first = known()["recipes"][FOR_A_SPARK.index("gpt-oss-20b")]["plans"][0][0]
    assert first["fit"] == "fits with --gpu-memory-utilization 0.83; may not fit at 0.85"
    assert request_plan("gpt-oss-20b", 0.83) == "fits"


@pytest.mark.slow
def test_the_line_for_a_smaller_memory_fits_it() -> None:
    """What the page shows for a Spark with less memory is planned again: it fits, or may
    fit where a size is a range.
    """
    changed = 0
    for recipe in known()["recipes"]:
        for place in range(1, len(chooser.MEMORIES)):
            fitted = recipe["fitted"][0][place]
            if fitted is None:
                continue
            changed += 1
            line = "\n".join(known()["lines"][n] for n in fitted[0])
            if " /model" in line:  # a mounted folder, of which the line says nothing
                continue
            options = shlex.split(chooser.MEMORIES[place].options)
            done = CliRunner().invoke(COMMAND, ["plan", line, *options, "--json"])
            assert done.exit_code == 0, (recipe["id"], place, done.exception)
            assert json.loads(done.stdout)["summary"]["verdict"] in ("fits", "may fit"), (
                recipe["id"],
                place,
            )
    assert changed > len(known()["recipes"])


def request_plan(name: str, fraction: float) -> str:
    """What the command says with this fraction."""
    return json.loads(said(f"plan {name} --fraction {fraction} --json"))["summary"]["verdict"]


@pytest.mark.slow
def test_the_line_for_a_use_asks_for_what_was_planned() -> None:
    for recipe in filter(chooser.adjustable, chooser.chosen(recipes.ids())):
        for use in chooser.USES:
            changed = chooser.for_use(recipe, use)
            planned = request.read(recipe.id, request.Override(use.context, use.sequences))
            asked = request.of_case(
                Case(of_launch(changed.launch, changed), None), request.Override()
            )
            assert (asked.context, asked.sequences) == (planned.context, planned.sequences), (
                recipe.id,
                use.key,
            )


@pytest.mark.browser
def test_the_page_shows_the_answer_for_every_recipe(tmp_path: Path) -> None:
    block = chooser.page(known()).removeprefix("```{raw} html\n").removesuffix("```\n")
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><meta"
        f' charset="utf-8">{block}<script>{(STATIC / "chooser.js").read_text("utf-8")}</script>',
        "utf-8",
    )
    with browser(tmp_path / "profile") as tab:
        tab.open(page.as_uri(), 1000, "light")
        assert tab.complaints() == []
        first = tab.evaluate(
            "document.querySelector('#sb-choose-model').selectedOptions[0].textContent"
        )
        assert first == recipes.load(chooser.FIRST).title
        shown = tab.evaluate(SHOW_ALL)
    data = known()
    assert len(shown) == len(data["recipes"]) * len(chooser.USES) * len(chooser.MEMORIES)
    for answer in shown:
        recipe = data["recipes"][answer["recipe"]]
        plan = recipe["plans"][answer["use"]][answer["memory"]]
        lines, judged = recipe["fitted"][answer["use"]][answer["memory"]] or (
            recipe["lines"][answer["use"]],
            recipe["lint"][answer["use"]],
        )
        assert answer["line"] == "\n".join(data["lines"][n] for n in lines)
        assert answer["facts"][0].startswith(
            f"{plan['fit']} ({plan['context']:,} tokens for each of {plan['sequences']} "
        )
        wanted = {data["findings"][n][3] for n in plan["said"] + judged}
        assert set(answer["rules"]) == wanted
        rates = data["speeds"][plan["speed"]]
        assert ("no estimate" in answer["facts"][2]) == (not rates)
        commands = answer["same"]
        assert (
            "sparkbook plan"
            f" {recipe['id']}{data['uses'][answer['use']]['options']}{data['memories'][answer['memory']]['options']}"
            in commands
        )


SHOW_ALL = """(() => {
  const shown = [];
  const [model, use, memory] = ['model', 'use', 'memory'].map((name) => document.getElementById('sb-choose-' + name));
  for (let r = 0; r < model.options.length; r++) for (let u = 0; u < use.options.length; u++)
  for (let m = 0; m < memory.options.length; m++) {
    model.value = r; use.value = u; memory.value = m;
    memory.dispatchEvent(new Event('change'));
    const all = (css) => [...document.querySelectorAll('#sb-choose-answer ' + css)].map((e) => e.textContent);
    shown.push({recipe: r, use: u, memory: m, line: all('pre')[0], facts: all('td'), rules: all('.finding a'),
      same: all('.sb-choose-same code')});
  }
  return shown;
})()"""
"""What the page shows for each choice."""
