"""The start page prints the line that it judged: every line of every use, memory and recipe is
read again, linted and planned; then the page that shows them.
"""

from __future__ import annotations

import functools
import shlex
from pathlib import Path
from typing import Any

import pytest
from chromium import browser
from click.testing import CliRunner
from sparkbook import lint, recipes
from sparkbook.cli import app
from sparkbook.formats import FORMATS
from sparkbook.formats.lines import of_launch
from sparkbook.lint.case import Case
from sparkbook.plan import memory, request
from sparkbook.recipes import Recipe
from sparkbook.site import chooser, model_pages, recommended, tailor
from sparkbook.site.tailor import Refused, Tailored
from typer.main import get_command

STATIC = Path(__file__).resolve().parents[2] / "book" / "_static"
COMMAND = get_command(app)
CURRENT = [one.id for one in recipes.all() if one.family != "embedded" and one.successor is None]


@functools.cache
def known() -> dict[str, Any]:
    """The chooser's data for the whole catalogue."""
    return chooser.data(recipes.ids())


@functools.cache
def tailored(name: str) -> dict[tuple[str, str], Tailored | Refused]:
    """What becomes of a recipe, by use and memory."""
    return {
        (use.key, place.key): one
        for use in tailor.USES
        for place, one in zip(
            tailor.MEMORIES, tailor.tailored(recipes.load(name), use), strict=True
        )
    }


def fitting(name: str) -> list[tuple[tailor.Use, tailor.Memory, Tailored]]:
    return [
        (use, place, one)
        for use in tailor.USES
        for place in tailor.MEMORIES
        if isinstance(one := tailored(name)[use.key, place.key], Tailored)
    ]


@pytest.mark.slow
def test_every_current_recipe_for_a_spark_can_be_chosen() -> None:
    assert [recipe["id"] for recipe in known()["recipes"]] == CURRENT
    assert len(known()["obsolete"]) + len(CURRENT) == len(chooser.chosen(recipes.ids()))


@pytest.mark.slow
@pytest.mark.parametrize("name", CURRENT)
def test_no_line_is_one_that_the_page_calls_wrong(name: str) -> None:
    """Each line is planned and linted again, from the recipe that it was written from: it has no
    error, it is no known-bad combination that is a warning, and the plan accepts it.
    """
    for use, place, one in fitting(name):
        case = Case(of_launch(one.recipe.launch, one.recipe))
        plan = memory.plan(request.of_case(case, request.Override()), place.host)
        where = (name, use.key, place.key)
        assert plan.verdict == one.plan.verdict in ("fits", "may fit"), where
        assert plan.findings.worst != "error", where
        found = lint.lint(one.recipe).findings
        wrong = [f.rule for f in found if f.severity == "error"]
        wrong += [f.rule for f in found if tailor.bad(f) and f.severity == "warning"]
        assert wrong == [], where
        shown = {f.rule for f in one.findings}
        assert {f.rule for f in (*found, *plan.findings)} == shown, where


@pytest.mark.slow
@pytest.mark.parametrize("name", CURRENT)
def test_a_use_has_what_it_needs(name: str) -> None:
    recipe = recipes.load(name)
    for use, place, one in fitting(name):
        args, where = one.recipe.serve.args, (name, use.key, place.key)
        assert one.recipe.image == recipe.image, "another image is another recipe"
        if use.context is not None:
            assert use.least <= one.plan.setup.context <= use.context, where
            assert args["max-num-seqs"] == use.sequences, where
        if use.agent:
            assert args.get("tool-call-parser"), where
            assert args.get("enable-auto-tool-choice") is True, where
            assert not [f for f in one.findings if f.rule == "BAD101"], where
            assert one.caches is None or "off" in one.caches, where
        changed = {
            text.split()[-2 if text.startswith("--") and " " in text else -1]
            for text, *_ in one.changes
        }
        own = recipe.serve.args
        different = {k for k in {*args, *own} if args.get(k) != own.get(k)}
        assert {word.removeprefix("--") for word in changed} == different, where


@pytest.mark.slow
def test_the_data_is_what_the_line_is_written_from() -> None:
    """The page's numbers lead to the lines and findings of `tailor`."""
    data = known()
    for entry in data["recipes"]:
        found = tailored(entry["id"])
        for u, use in enumerate(data["uses"]):
            for m, place in enumerate(data["memories"]):
                answer = data["answers"][entry["answers"][u][m]]
                one = found[use["key"], place["key"]]
                if isinstance(one, Refused):
                    assert data["reasons"][answer["no"]] == one.why
                    assert data["recipes"].index(entry) not in data["order"][u][m]
                    continue
                line = "\n".join(data["lines"][n] for n in answer["line"]) + "\n"
                assert line == FORMATS["docker"].write(one.recipe)
                assert [data["findings"][n][3] for n in answer["said"]] == [
                    f.rule for f in one.findings
                ]


@pytest.mark.slow
@pytest.mark.parametrize("name", CURRENT[::9])
def test_the_command_says_the_same_of_the_line(name: str) -> None:
    """`sparkbook plan` of the printed line, for the same memory."""
    for use, place, one in fitting(name):
        line = FORMATS["docker"].write(one.recipe)
        if " /model" in line or use.key not in ("agent", "recipe"):  # a mounted folder says nothing
            continue
        done = CliRunner().invoke(COMMAND, ["plan", line, *shlex.split(place.options), "--json"])
        assert done.exit_code == 0, (name, use.key, place.key, done.output)


def first(use: str, place: str) -> str:
    u = [one.key for one in tailor.USES].index(use)
    m = [one.key for one in tailor.MEMORIES].index(place)
    return known()["recipes"][known()["order"][u][m][0]]["id"]


@pytest.mark.slow
def test_the_default_is_recommended_and_nothing_speaks_against_it() -> None:
    assert first("chat", "all") == chooser.FIRST
    assert recommended.recommended()[0].recipe == chooser.FIRST
    recipe = recipes.load(chooser.FIRST)
    assert recipe.image is not None
    assert recipe.image.digest is not None
    assert [one for one in recipe.remarks if one.level != "note"] == []
    for use, place, one in fitting(chooser.FIRST):
        if place.key == "all":
            assert not one.warned, use.key
    assert first("agent", "spark64") == "qwen3.8-27b-nvfp4-64gb"


@pytest.mark.slow
def test_what_speaks_against_a_line_moves_it_behind_the_others() -> None:
    for u, use in enumerate(tailor.USES):
        for m, place in enumerate(tailor.MEMORIES):
            offered = [known()["recipes"][i]["id"] for i in known()["order"][u][m]]
            places = [
                (recipes.load(name).topology.nodes, one.warned)
                for name in offered
                if isinstance(one := tailored(name)[use.key, place.key], Tailored)
            ]
            assert places == sorted(places), (use.key, place.key)


def test_an_agent_gets_no_draft_that_is_reported_to_break_its_calls() -> None:
    one = tailored("qwen3.6-35b-a3b-nvfp4-2026-09")["agent", "all"]
    assert isinstance(one, Tailored)
    assert "speculative-config" not in one.recipe.serve.args
    (why,) = [why for text, _, why in one.changes if text == "without --speculative-config"]
    assert why.startswith("BAD101: ")
    assert "disputed" in why
    chat = tailored("qwen3.6-35b-a3b-nvfp4-2026-09")["chat", "all"]
    assert isinstance(chat, Tailored)
    assert "BAD101" in [f.rule for f in chat.findings], "said where the line is printed"


def test_a_model_without_a_tool_parser_is_not_offered_to_an_agent() -> None:
    one = tailored("phi-4-multimodal-nvfp4")["agent", "all"]
    assert isinstance(one, Refused)
    assert "tool-call parser" in one.why
    given = tailored("llama-3.3-70b-instruct-nvfp4")["agent", "all"]
    assert isinstance(given, Tailored)
    assert given.recipe.serve.args["tool-call-parser"] == "llama3_json"


def test_every_line_keeps_what_it_compiles_and_takes_a_key() -> None:
    for name in CURRENT:
        recipe = recipes.load(name)
        assert "VLLM_API_KEY" in recipe.env, name
        assert any(":/cache" in volume for volume in recipe.container.volumes), name
        assert recipe.env.get("VLLM_CACHE_ROOT", "").startswith("/cache"), name


def test_one_page_a_model() -> None:
    pages = model_pages.by_page(recipes.ids())
    assert sum(map(len, pages.values())) == len(recipes.ids())
    for found in pages.values():
        assert len({base(one) for one in found}) == 1, [one.id for one in found]
        heading = model_pages.title(found)
        labels = [model_pages.label(one, heading) for one in found]
        assert len({*labels}) == len(labels), labels


def base(recipe: Recipe) -> str:
    """The model of which a checkpoint is a format, by its publisher's name for it."""
    if recipe.family == "embedded":
        return "embedded"
    name = (
        recipe.model.repo.rpartition("/")[2].lower().removeprefix("nvidia-").removeprefix("dflash-")
    )
    for word in ("-it", "-nvfp4", "-fp8", "-fp4", "-awq", "-int4", "-w4a4", "-uncensored"):
        name = name.partition(word)[0]
    return name


def test_a_fraction_that_is_only_doubtful_is_not_told_as_a_question_of_size() -> None:
    plan = memory.plan(request.read("gpt-oss-20b"))
    assert chooser.fit(plan) == "fits with --gpu-memory-utilization 0.83; may not fit at 0.85"


@pytest.mark.browser
def test_the_page_shows_the_answers(tmp_path: Path) -> None:
    block = chooser.page(known()).removeprefix("```{raw} html\n").removesuffix("```\n")
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><meta"
        f' charset="utf-8">{block}<script>{(STATIC / "chooser.js").read_text("utf-8")}</script>',
        "utf-8",
    )
    data = known()
    with browser(tmp_path / "profile") as tab:
        tab.open(page.as_uri(), 1000, "light")
        assert tab.complaints() == []
        chosen = tab.evaluate("document.querySelector('#sb-choose-model').selectedOptions[0].text")
        assert chosen == recipes.load(chooser.FIRST).title
        shown = tab.evaluate(SHOW_ALL)
        found = tab.evaluate(SEARCH % "nemotron lightning")
        assert len(found) >= 3
        assert all("Lightning" in name for name in found)
        assert tab.complaints() == []
    offered = sum(len(order) for row in data["order"] for order in row)
    assert len(shown) == offered
    for seen in shown:
        recipe = data["recipes"][seen["recipe"]]
        answer = data["answers"][recipe["answers"][seen["use"]][seen["memory"]]]
        key, _, line = seen["line"].partition("\n")
        assert key.startswith("export VLLM_API_KEY=")
        assert line == "\n".join(data["lines"][n] for n in answer["line"])
        assert set(seen["rules"]) >= {data["findings"][n][3] for n in answer["said"]}
        assert len(seen["changed"]) == len(answer["changed"])
        assert f"({answer['context']:,} tokens for each of {answer['sequences']} " in seen["facts"]
        if recipe["published"]:
            assert "Speed, published" in seen["names"]
        if answer.get("wait"):
            assert any(name.startswith("Wait for a prompt of ") for name in seen["names"])


SHOW_ALL = """(() => {
  const shown = [];
  const [model, use, memory] = ['model', 'use', 'memory'].map((name) => document.getElementById('sb-choose-' + name));
  const change = (field, value) => { field.value = value; field.dispatchEvent(new Event('change')); };
  for (let u = 0; u < use.options.length; u++) for (let m = 0; m < memory.options.length; m++) {
    change(use, u);
    change(memory, m);
    for (const option of [...model.options].map((one) => one.value)) {
      change(model, option);
      const all = (css) => [...document.querySelectorAll('#sb-choose-answer ' + css)].map((e) => e.textContent);
      shown.push({recipe: Number(option), use: u, memory: m, line: all('pre')[0], facts: all('td')[0], names: all('th'),
        rules: all('.finding a'), changed: all('.sb-choose-changed li')});
    }
  }
  return shown;
})()"""
"""What the page shows for each choice."""

SEARCH = """(() => {
  const box = document.getElementById('sb-choose-search');
  box.value = '%s';
  box.dispatchEvent(new Event('input'));
  return [...document.querySelectorAll('#sb-choose-table tbody button')].map((one) => one.textContent);
})()"""
