"""The examples of CONTRIBUTING.md work as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sparkbook import lint, recipes
from sparkbook.book import flags, notebooks
from sparkbook.cli import app
from sparkbook.lint.rule import RULES
from sparkbook.logs.signatures import load
from typer.main import get_command

PAGE = (Path(__file__).resolve().parents[2] / "CONTRIBUTING.md").read_text("utf-8")


def example(name: str) -> str:
    """The block of code below the mark of this name."""
    (found,) = re.findall(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    return found


def test_every_example_is_executed_here() -> None:
    assert re.findall(r"<!-- example: (\w+) -->", PAGE) == ["recipe", "rule", "signature", "chapter", "figure", "record"]


def test_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "example-1b.yaml"
    file.write_text(example("recipe").replace("extends: _spark", f"extends: {Path(recipes.__file__).parent}/catalogue/_spark"), "utf-8")
    recipe = recipes.load(file)
    assert lint.lint(recipe).findings.worst != "error"
    assert set(recipe.serve.args) <= set(flags.MEANS)


def test_the_rule() -> None:
    before = dict(RULES)
    try:
        exec(compile(example("rule"), "CONTRIBUTING.md", "exec"), {"__name__": "example"})
        (code,) = set(RULES) - set(before)
        rule = RULES[code]
        assert code in {finding.rule for finding in lint.lint(rule.bad).findings}
        assert code not in {finding.rule for finding in lint.lint(rule.good).findings}
        assert "The container has no name." in lint.page(rule)
    finally:
        RULES.clear()
        RULES.update(before)


def test_the_signature(tmp_path: Path) -> None:
    file = tmp_path / "signatures.yaml"
    file.write_text(example("signature"), "utf-8")
    (signature,) = load(file)
    assert signature.search(signature.example)
    assert not signature.search(signature.passing)


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
    """The line as it stands, but for the server, which is not there, and the probes of this machine, which other tests run."""
    monkeypatch.chdir(tmp_path)
    Path("vllm.log").write_text("ERROR: MY-COMPANY has no GPU\n", "utf-8")
    line = example("record").splitlines()[1].replace("--url http://127.0.0.1:8000", "--no-host")
    done = CliRunner().invoke(get_command(app), shlex.split(line)[1:])
    assert done.exit_code == 0, done.output
    assert Path("my-spark.tar.gz").is_file()
