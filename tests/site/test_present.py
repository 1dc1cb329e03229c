"""Recipes as pieces of a page: escaped, complete, and the same figures as the data."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from sparkbook import plan, recipes
from sparkbook.checkpoint.bandwidth import published_points
from sparkbook.checkpoint.store import download_lines
from sparkbook.formats import FORMATS
from sparkbook.host import spark
from sparkbook.plots import published as plots
from sparkbook.recipes import Recipe
from sparkbook.site import present

ALL = recipes.all()


@pytest.fixture(params=ALL, ids=lambda recipe: recipe.id)
def recipe(request: pytest.FixtureRequest) -> Recipe:
    return request.param


def hostile() -> Recipe:
    """A recipe whose texts would be markup if they were not escaped."""
    data = recipes.load("gemma-4-31b-it-nvfp4").model_dump(mode="json")
    nasty = "<script>alert(1)</script> & `a<b` ::: ```"
    data["summary"] = nasty
    data["remarks"] = [{"text": nasty, "level": "warning", "source": data["sources"][0]["id"]}]
    data["sources"][0]["title"] = nasty
    data["model"]["license"] = nasty
    data["benchmarks"]["speed"][0]["note"] = nasty
    return Recipe.model_validate(data)


@pytest.mark.parametrize(
    "make",
    [
        present.facts,
        present.remarks,
        present.sources,
        present.speed_table,
        lambda r: present.overview([r]),
        lambda r: present.summary(r, "auto"),
    ],
)
def test_texts_are_escaped(make: object) -> None:
    html = make(hostile())._repr_html_()  # type: ignore[operator]
    assert "<script>" not in html
    if "sb-overview" not in html:  # its only text of this kind is the title, which can hold none
        assert "&lt;script&gt;" in html
        assert "<code>a&lt;b</code>" in html


def test_a_fence_in_the_code_does_not_end_the_tab() -> None:
    text = present.Tabs("x", [("one", "bash", "echo '```'\n::: end")])._repr_markdown_()
    assert "````bash\necho '```'\n::: end\n````" in text


def test_the_tabs_are_what_the_formats_write(recipe: Recipe) -> None:
    tabs = present.launch_tabs(recipe).tabs
    assert [code for _, _, code in tabs] == [
        FORMATS[name].write(recipe) for name in present.forms(recipe)
    ]
    assert ("docker" in present.forms(recipe)) is (recipe.image is not None)


def test_prepare_steps_are_lines_that_bash_accepts(recipe: Recipe) -> None:
    shown = present.prepare(recipe)
    if recipe.image is None:
        assert "Nothing to prepare" in shown._repr_html_()
        return
    assert isinstance(shown, present.Tabs)
    others = [step for step in recipe.prepare if step.do != "download"]
    assert len(shown.tabs) == 1 + bool(download_lines(recipe)) + len(others)
    for _, _, code in shown.tabs:
        assert subprocess.run(["bash", "-n"], input=code, text=True, check=False).returncode == 0, (
            code
        )


def test_prepare_says_how_the_library_starts_it_and_what_is_downloaded(recipe: Recipe) -> None:
    """As chapter 3: the download before the first start, into the one folder, the pinned revision
    too.
    """
    shown = present.prepare(recipe)
    if recipe.image is None:
        return
    assert isinstance(shown, present.Tabs)
    commands, *by_hand = (code for _, _, code in shown.tabs)
    if recipe.topology.nodes > 1:
        assert f"sparkbook cluster serve pair.yaml {recipe.id}" in commands.splitlines()
        return
    assert all(
        f"sparkbook {verb} {recipe.id}" in commands.splitlines()
        for verb in ("check", "weights fetch", "serve")
    )
    assert (f"{recipe.id}@lint-clean" in commands) is (
        recipe.variants.get("lint-clean") is not None
    )
    assert all(
        f"HF_HOME=~/vllm {line}" in by_hand[0].splitlines() for line in download_lines(recipe)
    )


def test_gpt_oss_warns_of_the_file_that_is_not_in_its_repository() -> None:
    for name in ("gpt-oss-20b", "gpt-oss-120b"):
        assert "TIKTOKEN_ENCODINGS_BASE" in present.remarks(recipes.load(name)).html


def test_what_to_expect_is_what_the_plan_says() -> None:
    """One figure on the recipe's page, in the chooser and in the planner, with the tokens behind
    it.
    """
    for name, behind in (("gpt-oss-20b", "8,192"), ("gemma-4-12b-coder-nvfp4", "4,096")):
        html = present.expected(recipes.load(name)).html
        assert f"{behind} tokens of context each)" in html
        assert all(f"<td>{speed.tok_s:.3g}</td>" in html for speed in plan.of(name).decode)


def test_request_bodies_are_json_and_python(recipe: Recipe) -> None:
    shown = present.request_tabs(recipe)
    if not recipe.request:
        assert "own defaults apply" in shown._repr_html_()
        return
    assert isinstance(shown, present.Tabs)
    for defaults, (_, _, body), (_, _, call) in zip(
        recipe.request, shown.tabs[::2], shown.tabs[1::2], strict=True
    ):
        sent = json.loads(body)
        assert sent["model"] == recipe.served_name
        assert {name: sent[name] for name in defaults.body()} == defaults.body()
        compile(call, "tab", "exec")


def test_every_citation_leads_to_a_source(recipe: Recipe) -> None:
    pieces = [
        present.remarks(recipe),
        present.corrections(recipe),
        present.speed_table(recipe),
        present.claims(recipe),
    ]
    pieces += [present.accuracy_table(table) for table in recipe.benchmarks.accuracy]
    cited = {name for piece in pieces for name in re.findall(r'href="#source-([^"]+)"', piece.html)}
    listed = set(re.findall(r'id="source-([^"]+)"', present.sources(recipe).html))
    assert cited <= listed
    assert listed == {source.id for source in recipe.sources}


def test_the_accuracy_chart_has_the_figures_of_the_data() -> None:
    for one in ALL:
        for table in one.benchmarks.accuracy:
            axis = plots.accuracy(table).figure.axes[0]
            values = [value for row in table.rows for value in row.values if value is not None]
            assert sorted(bar.get_width() for bar in axis.patches) == sorted(values)
            assert sorted(text.get_text() for text in axis.texts) == sorted(
                f"{value:g}" for value in values
            )


def test_the_speed_chart_leaves_out_what_is_not_published() -> None:
    figures = recipes.load("gemma-4-31b-it-nvfp4").benchmarks.speed
    chart = plots.speed(figures)
    shown = [figure for figure in figures if figure.decode_tok_s or figure.decode_tok_s_max]
    assert chart is not None
    assert len(chart.figure.axes[0].patches) == len(shown)
    assert plots.speed([]) is None


def test_the_ceiling_is_bandwidth_over_weights() -> None:
    axis = plots.weights_and_speed(ALL, 273.0).figure.axes[0]
    (line,) = axis.lines
    assert [x * y for x, y in zip(*line.get_data(), strict=True)] == pytest.approx([273.0, 273.0])


def test_a_chart_is_a_picture_with_a_text() -> None:
    table = recipes.load("gemma-4-31b-it-nvfp4").benchmarks.accuracy[0]
    data, metadata = plots.accuracy(table)._repr_svg_()
    assert data.startswith("<svg ")
    assert table.title in metadata["alt"]


def test_the_overview_never_shows_unknown_as_zero() -> None:
    html = present.overview(ALL).html
    assert html.count("<tr>") == len(ALL) + 1
    assert "<td>0</td>" not in html
    assert "<td>None</td>" not in html
    assert "<td>–</td>" in html


def test_the_best_rate_is_a_sparks() -> None:
    """DiffusionGemma's vendor publishes 1,100 tok/s on an H100, which says nothing about a Spark."""
    recipe = recipes.load("diffusiongemma-26b-a4b-nvfp4")
    assert any(
        not figure.on_spark and (figure.decode_tok_s or 0) > 1000
        for figure in recipe.benchmarks.speed
    )
    best = plots.best_single(recipe)
    assert best is not None
    assert best < 200


def test_the_best_rate_is_the_one_that_stands_beside_the_ceiling() -> None:
    """Chapters 2 and 7 show the same figure of a recipe: a peak (111.9 of Qwen3-Next with MTP) in
    neither.
    """
    points = published_points(recipes.all(), spark.BANDWIDTH_GB_S)
    assert {"qwen3-next-80b-a3b-nvfp4-mtp", "qwen3.5-35b-a3b", "nemotron-3-nano-30b-a3b-nvfp4"} <= {
        point.recipe for point in points
    }
    for recipe in {point.recipe for point in points}:
        best = plots.best_single(recipes.load(recipe))
        assert best is not None and best >= max(
            point.published for point in points if point.recipe == recipe
        )
    assert plots.best_single(recipes.load("qwen3-next-80b-a3b-nvfp4-mtp")) == 67
    assert plots.best_single(recipes.load("nemotron-3-nano-30b-a3b-nvfp4")) == 65
    assert [
        point.published for point in points if point.recipe == "nemotron-3-nano-30b-a3b-nvfp4"
    ] == [65]
