"""The examples of CONTRIBUTING.md work as they stand."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sparkbook import lint, recipes
from sparkbook.cli import app
from sparkbook.host.rules import CHECKS, HOST
from sparkbook.lint.rules.run import RUN
from sparkbook.logs.signatures import load
from sparkbook.rules import Family, Rule
from sparkbook.runner import notebooks
from sparkbook.site import flag_reference
from sparkbook.site.rule_pages import section
from typer.main import get_command

PAGE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text("utf-8")


def example(name: str) -> str:
    """The block of code below the mark of this name."""
    (found,) = re.findall(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """The rooms that a module imports, but not those that it names for a type alone."""
    if (
        isinstance(tree, ast.If)
        and isinstance(tree.test, ast.Name)
        and tree.test.id == "TYPE_CHECKING"
    ):
        return
    if isinstance(tree, ast.ImportFrom) and tree.module == "sparkbook":
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom | ast.Import):
        names = (
            [tree.module or ""]
            if isinstance(tree, ast.ImportFrom)
            else [alias.name for alias in tree.names]
        )
        yield from (name.split(".")[1] for name in names if name.startswith("sparkbook."))
    for inside in ast.iter_child_nodes(tree):
        yield from imported(inside)


def test_the_house_is_as_its_table_says() -> None:
    rows = {
        int(floor): re.findall(r"`(\w+)", rooms)
        for floor, rooms in re.findall(r"^\| (\d) \| ([^|]+)", PAGE, re.MULTILINE)
    }
    order = [room for floor in sorted(rows) for room in rows[floor]]
    library = Path(recipes.__file__).parents[1]
    there = {
        path.stem
        for path in library.iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and path.stem != "__init__"
    }
    assert set(order) == there | {"notebooks"}
    wrong = [
        f"{path.relative_to(library)} imports {name}"
        for room in order
        if room not in rows[6]
        for path in sorted([*(library / room).rglob("*.py"), *library.glob(f"{room}.py")])
        for name in imported(ast.parse(path.read_text("utf-8")))
        if name in order[order.index(room) + 1 :]
    ]
    assert wrong == []


def test_every_example_is_executed_here() -> None:
    assert re.findall(r"<!-- example: (\w+) -->", PAGE) == [
        "recipe",
        "rule",
        "host",
        "signature",
        "chapter",
        "figure",
        "record",
    ]


def test_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "example-1b.yaml"
    file.write_text(
        example("recipe").replace(
            "extends: _spark", f"extends: {Path(recipes.__file__).parent}/catalogue/_spark"
        ),
        "utf-8",
    )
    recipe = recipes.load(file)
    assert lint.lint(recipe).findings.worst != "error"
    assert set(recipe.serve.args) <= set(flag_reference.TEXTS)


def held(family: Family, example: str) -> tuple[Rule, str]:
    """The rule that an example adds to a family, with its section; its own examples are judged."""
    before = dict(family.rules)
    exec(compile(example, "CONTRIBUTING.md", "exec"), {"__name__": "example"})
    try:
        (code,) = set(family.rules) - set(before)
        rule = family[code]
        assert code in {one.rule for one in family.examine(rule.example("fails"))}
        assert code not in {one.rule for one in family.examine(rule.example("passes"))}
        return rule, section(family, rule)
    finally:
        for code in set(family.rules) - set(before):
            del family.rules[code]


def test_the_rule() -> None:
    _, page = held(RUN, example("rule"))
    assert "The container has no name." in page


def test_the_host_check() -> None:
    checks = list(CHECKS)
    try:
        _, page = held(HOST, example("host"))
        assert (
            "Only 64 files may be open at once." in page and "Fix: Run `ulimit -n 65536`." in page
        )
    finally:
        CHECKS[:] = checks


def test_the_signature(tmp_path: Path) -> None:
    file = tmp_path / "signatures.yaml"
    file.write_text(example("signature"), "utf-8")
    (signature,) = load(file)
    assert signature.match(signature.fails)
    assert not signature.match(signature.passes)


def test_the_chapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path)
    exec(compile(example("chapter"), "CONTRIBUTING.md", "exec"), {})
    source = tmp_path / "notebooks/99_example.ipynb"
    assert list(notebooks.parameters(source)) == ["rate"]
    assert notebooks.engine_of(source) == "none"
    assert notebooks.execute(source, tmp_path / "out.ipynb", {"rate": 25.0}) is None
    assert "40 ms" in (tmp_path / "out.ipynb").read_text("utf-8")


def test_the_figure() -> None:
    given: dict[str, Any] = {}
    exec(compile(example("figure"), "CONTRIBUTING.md", "exec"), given)
    chart = given["rates"]({"mine": 50.0})
    assert chart.svg.startswith("<svg ") and "mine 50.0" in chart.alt


def test_the_recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line as it stands, but for the server, which is not there, and the probes of this
    machine, which other tests run.
    """
    monkeypatch.chdir(tmp_path)
    Path("vllm.log").write_text("ERROR: MY-COMPANY has no GPU\n", "utf-8")
    line = example("record").splitlines()[1].replace("--url http://127.0.0.1:8000", "--no-host")
    done = CliRunner().invoke(get_command(app), shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    assert Path("my-spark.tar.gz").is_file()
