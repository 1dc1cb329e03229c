"""The flags' pages and the links between recipes, rules, flags, signatures and chapters: both ways,
and each to something that is there.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from sparkbook import cli, lint, recipes, releases, rules
from sparkbook.formats import lines
from sparkbook.lint.case import Case
from sparkbook.logs.signatures import signatures
from sparkbook.site import badges, flag_reference, flags
from sparkbook.site.links import Linker, addresses
from sparkbook.site.rule_pages import rule_pages
from sparkbook.site.variants import triggered_rules

ROOT = Path(__file__).resolve().parents[2]
MODELS = {recipe.id: recipe.slug for recipe in recipes.all()}
CHAPTER = (
    "notebooks/06_launch",
    "A baseline",
    "we give `--max_model_len 64k` and --no-enable-chunked-prefill",
)


@functools.cache
def known() -> dict[str, flags.Flag]:
    return flags.flags(MODELS)


@functools.cache
def site() -> dict[str, str]:
    """Every flag's and every rule's page, by its address, with the links put in."""
    linker = Linker(addresses(known(), MODELS))
    written = [("flags", flags.pages(known(), [CHAPTER])), ("rules", rule_pages(known(), MODELS))]
    return {
        f"{folder}/{name}.html": linker.markdown(text, f"{folder}/{name}.html")
        for folder, pages in written
        for name, text in pages
    }


@pytest.mark.slow
@pytest.mark.parametrize("recipe", recipes.all(), ids=lambda recipe: recipe.id)
def test_every_option_of_a_recipe_has_a_page_that_names_the_recipe(recipe: recipes.Recipe) -> None:
    release = releases.get(releases.newest())
    for given in recipe.launch.serve.args:
        option, _ = release.resolve(given.partition(".")[0]) or (None, None)
        if option is None:
            assert Case(lines.given(recipe.id)[0]).forked, (
                given
            )  # only a fork has options of its own
            continue
        page = site()[f"flags/{option.name}.html"]
        assert f'<a href="../models/{recipe.slug}.html">' in page, given
        assert f"[`--{option.name}`]({option.name})" in site()["flags/index.html"]


def test_a_recipes_page_names_its_flags_and_its_rules() -> None:
    for recipe in recipes.all():
        text = flags.of_recipe(recipe, known())
        for name, flag in known().items():
            assert (f"`--{name}`" in text) is any(user.id == recipe.id for user, _ in flag.uses), (
                recipe.id,
                name,
            )
        for finding in lint.lint(recipe).findings:
            assert finding.rule in text, recipe.id


def test_rule_and_flag_name_each_other() -> None:
    for name, flag in known().items():
        for code in flag.rules:
            address = lint.RULES[code].address
            assert f'<a href="../{address}">{code}</a>' in site()[f"flags/{name}.html"]
            assert f'<a href="../flags/{name}.html">' in section(address)


def test_signature_and_flag_name_each_other() -> None:
    told = 0
    for name, flag in known().items():
        for code in flag.signatures:
            address = rules.find(code).address
            assert f'<a href="../{address}">{code}</a>' in site()[f"flags/{name}.html"]
            assert f'<a href="../flags/{name}.html">' in section(address)
            told += 1
    assert told > 20


def test_a_rule_names_the_recipes_that_it_speaks_of() -> None:
    for recipe in recipes.all():
        for code in triggered_rules(recipe):
            assert f'<a href="../models/{recipe.slug}.html">' in section(
                lint.RULES[code].address
            ), (recipe.id, code)


def section(address: str) -> str:
    """The part of a page that an address names."""
    page, label = address.split("#")
    return re.split(
        r"^\(\w+\)=$", site()[page].partition(f"({label})=\n")[2], maxsplit=1, flags=re.MULTILINE
    )[0]


def test_every_link_of_a_generated_page_leads_to_a_generated_page() -> None:
    there = {*site(), *(f"models/{slug}.html" for slug in MODELS.values())}
    anchors = {
        address: set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
        for address, text in site().items()
    }
    for page, text in site().items():
        for link in re.findall(r'href="\.\./([^"]+)"', text):
            address, _, anchor = link.partition("#")
            assert address in there, (page, link)
            assert not anchor or anchor in anchors[address], (page, link)


def test_a_chapter_that_speaks_of_a_flag_is_named_whatever_the_spelling() -> None:
    for name in ("max-model-len", "enable-chunked-prefill"):
        assert "{doc}`A baseline <../notebooks/06_launch>`" in site()[f"flags/{name}.html"]
    assert "06_launch" not in site()["flags/moe-backend.html"]


def test_facts_are_the_releases_tables() -> None:
    page = site()["flags/gpu-memory-utilization.html"]
    option = releases.get(releases.newest()).option("gpu-memory-utilization")
    assert f'<th scope="row">Default</th><td>{option.default}</td>' in page
    assert "default 0.9, now 0.92" in page, "what moved"
    gone = site()["flags/speculative-disable-by-batch-size.html"]
    assert "in no release" in gone
    assert "No recipe of this book uses it." in gone


def test_every_flag_is_explained() -> None:
    assert set(known()) == set(flag_reference.TEXTS), "a sentence for each, and none left over"
    for signature in signatures():
        assert section(signature.address)


def own_options(command: Any) -> Iterator[str]:
    """The long options of `sparkbook`, of all its verbs."""
    for name in command.list_commands(None) if hasattr(command, "list_commands") else ():
        yield from own_options(command.get_command(None, name))
    for parameter in command.params:
        yield from (name for name in parameter.opts if name.startswith("--"))


@pytest.mark.parametrize(
    "page",
    [*ROOT.glob("notebooks/*.ipynb"), *ROOT.glob("notebooks/*.md"), *ROOT.rglob("book/**/*.md")],
    ids=lambda page: page.name,
)
def test_no_option_of_our_own_leads_to_vllms_page(page: Path) -> None:
    """`client --model` is code that leads nowhere; `--model` alone leads to vLLM's option."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = (one for one in json.loads(text)["cells"] if one["cell_type"] == "markdown")
        text = "\n\n".join("".join(cell["source"]) for cell in cells)
    own = set(own_options(typer.main.get_command(cli.app)))
    vllms = {f"--{name}" for name in known()}
    for paragraph in re.split(r"\n\s*\n|\n(?=[|-])", text):
        named = set(re.findall(r"`(--[a-z][\w-]*)", paragraph))
        assert not (named & own & vllms and named & own - vllms), paragraph


class TestLinker:
    linker = Linker(
        {
            "--max-num-seqs": "flags/max-num-seqs.html",
            "FLAG101": "rules/flag.html#flag101",
            "gpt-oss-20b": "models/gpt-oss-20b.html",
        }
    )

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                "give `--max-num-seqs 4`",
                'give <a href="../flags/max-num-seqs.html"><code>--max-num-seqs 4</code></a>',
            ),
            ("see FLAG101.", 'see <a href="../rules/flag.html#flag101">FLAG101</a>.'),
            (
                "the recipe `gpt-oss-20b`",
                'the recipe <a href="../models/gpt-oss-20b.html"><code>gpt-oss-20b</code></a>',
            ),
            (
                "| give --max-num-seqs 4 |",
                '| give <a href="../flags/max-num-seqs.html"><code>--max-num-seqs</code></a> 4 |',
            ),
            (
                "`--no-max-num-seqs`",
                '<a href="../flags/max-num-seqs.html"><code>--no-max-num-seqs</code></a>',
            ),
        ],
    )
    def test_a_name_becomes_a_link(self, text: str, expected: str) -> None:
        assert self.linker.markdown(text, "notebooks/x.html") == expected

    @pytest.mark.parametrize(
        "text",
        [
            "`--max-num-batched-tokens`",
            "## `--max-num-seqs`",
            "[`--max-num-seqs`](x)",
            '<a href="x">FLAG101</a>',
            "```\n--max-num-seqs FLAG101\n`--max-num-seqs`\n```",
            "````text\n```\n`--max-num-seqs`\n```\n````",
            "(flag101)=",
            "--no-such-flag and x--max-num-seqs",
            "| --- | --: |",
            "XFLAG101 FLAG1011 x/FLAG101 a#FLAG101",
        ],
    )
    def test_what_is_no_name_or_is_a_link_already_stays(self, text: str) -> None:
        assert self.linker.markdown(text, "notebooks/x.html") == text

    def test_a_page_is_not_linked_to_itself(self) -> None:
        assert (
            self.linker.markdown("`--max-num-seqs`", "flags/max-num-seqs.html")
            == "`--max-num-seqs`"
        )

    def test_tables_that_a_cell_wrote(self) -> None:
        assert (
            self.linker.html("<td>--max-num-seqs 4 --other</td>", "notebooks/x.html")
            == '<td><code><a href="../flags/max-num-seqs.html">--max-num-seqs</a></code> 4'
            " --other</td>"
        )
        text = (
            "<td><code>--max-num-seqs</code> FLAG101</td><pre>FLAG101</pre><a"
            ' href="FLAG101">FLAG101</a><script>FLAG101</script>'
        )
        expected = (
            '<td><code><a href="../flags/max-num-seqs.html">--max-num-seqs</a></code> <a'
            ' href="../rules/flag.html#flag101">FLAG101</a></td><pre>FLAG101</pre><a'
            ' href="FLAG101">FLAG101</a><script>FLAG101</script>'
        )
        assert self.linker.html(text, "notebooks/x.html") == expected

    def test_a_text_that_the_file_holds_as_lines(self) -> None:
        data = {
            "text/markdown": ["| rule |\n", "|---|\n", "| FLAG101 |\n"],
            "text/html": ["<p>FLAG101\n", "</p>"],
        }
        self.linker.notebook(
            {"cells": [{"cell_type": "code", "outputs": [{"data": data}]}]}, "notebooks/x.html"
        )
        link = '<a href="../rules/flag.html#flag101">FLAG101</a>'
        assert data == {
            "text/markdown": f"| rule |\n|---|\n| {link} |\n",
            "text/html": f"<p>{link}\n</p>",
        }

    def test_a_finding_has_links_and_code(self) -> None:
        from sparkbook.findings import Finding

        found = Finding(
            rule="FLAG101",
            severity="error",
            message="give `x` or --max-num-seqs",
            why="rules/flag.html#flag101",
            source="https://example.org/a, b",
        )
        shown = self.linker.html(found._repr_html_(), "notebooks/x.html")
        assert (
            "give <code>x</code> or <code><a"
            " href='../flags/max-num-seqs.html'>--max-num-seqs</a></code>"
            in shown.replace('"', "'")
        )
        assert (
            '<dt>why</dt><dd><a href="../rules/flag.html#flag101">FLAG101: what it catches, with'
            " examples</a></dd>" in shown
        )
        assert '<dd><a href="https://example.org/a">https://example.org/a</a>, b</dd>' in shown


def test_every_page_says_what_it_rests_on() -> None:
    for page, text in site().items():
        if page.endswith("index.html"):
            continue
        heading, line = text.split("\n\n")[:2]
        assert heading.startswith("# ") and line.startswith('<ul class="sb-badges"'), page
        assert badges.MADE in line
    page = site()["flags/gpu-memory-utilization.html"]
    uses = len({recipe.id for recipe, _ in known()["gpu-memory-utilization"].uses})
    assert f"<li><span>recipes</span> {uses}</li>" in page
    assert f"{releases.known()[0]} to {releases.newest()}" in page
    memory = [rule for rule in lint.RULES.values() if rule.prefix == "MEM"]
    assert (
        f"<li><span>figures</span> {2 * len(memory)} examples, judged in this build</li>"
        in site()["rules/mem.html"]
    )
