"""What every committed notebook of the book keeps to."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from sparkbook.runner import notebooks
from sparkbook.runner.project import TEMPLATE, here

PROJECT = here()
ALL = sorted((PROJECT.root / "notebooks").glob("[!.]*.ipynb"))
MOST_LINES = 15


@pytest.fixture(params=ALL, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


def sources(path: Path) -> list[str]:
    return [cell["source"] for cell in notebooks.code_cells(notebooks.read(path))]


def tree(source: str) -> ast.Module:
    """A cell's code; lines of IPython's own (`%`, `!`) are left out."""
    return ast.parse(
        "\n".join(
            "" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()
        )
    )


def test_the_table_of_contents_names_every_notebook() -> None:
    assert set(PROJECT.chapters()) == {path for path in ALL if path.stem != TEMPLATE}


def test_parameters_are_typed_and_commented(path: Path) -> None:
    assert notebooks.parameters(path), "the parameters cell is empty"


def test_parameters_are_read_and_never_overwritten(path: Path) -> None:
    names = [
        node
        for source in sources(path)[1:]
        for node in ast.walk(tree(source))
        if isinstance(node, ast.Name)
    ]
    for parameter in notebooks.parameters(path):
        assert any(node.id == parameter and isinstance(node.ctx, ast.Load) for node in names), (
            f"{parameter} is never read"
        )
        assert not any(
            node.id == parameter and isinstance(node.ctx, ast.Store | ast.Del) for node in names
        ), f"{parameter} is overwritten"


def test_the_engine_is_declared(path: Path) -> None:
    assert notebooks.engine_of(path) in notebooks.ENGINES


def test_only_one_with_an_engine_of_its_own_may_say_that_it_measures_nothing(path: Path) -> None:
    said = notebooks.read(path)["metadata"]["sparkbook"]
    assert set(said) <= {"engine", "measures", "taken_on"}
    assert "measures" not in said or (said["engine"], said["measures"]) == ("own", False)


def test_a_notebook_that_attaches_marks_the_cells_that_do(path: Path) -> None:
    tagged = [
        cell
        for cell in notebooks.code_cells(notebooks.read(path))
        if "engine" in notebooks.tags(cell)
    ]
    assert bool(tagged) is (notebooks.engine_of(path) != "none")


def test_cells_are_short(path: Path) -> None:
    assert not [source for source in sources(path) if len(source.splitlines()) > MOST_LINES]


def test_no_cell_ends_in_a_semicolon(path: Path) -> None:
    """nbval runs cells without history, where IPython does not honour it: the output would differ
    (nbval issue 194).
    """
    assert not [source for source in sources(path) if source.rstrip().endswith(";")]


def test_prose_stands_before_every_code_cell(path: Path) -> None:
    kinds = [cell["cell_type"] for cell in notebooks.read(path)["cells"]]
    assert kinds[0] == "markdown"
    assert "code code" not in " ".join(kinds)


def test_it_opens_with_what_you_will_have(path: Path) -> None:
    opening = notebooks.read(path)["cells"][0]["source"]
    assert opening.startswith("# "), "the first cell is the title"
    assert re.search(r"\b(end|finish|will have|you have|afterwards)\b", opening, re.IGNORECASE), (
        opening
    )


def test_it_ends_with_a_check(path: Path) -> None:
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree(sources(path)[-1]))), sources(
        path
    )[-1]


def test_outputs_are_committed_in_order(path: Path) -> None:
    counts = [cell["execution_count"] for cell in notebooks.code_cells(notebooks.read(path))]
    assert counts == list(range(1, len(counts) + 1)), "run: make refresh"


def test_no_committed_output_is_an_error(path: Path) -> None:
    assert not [
        out
        for cell in notebooks.code_cells(notebooks.read(path))
        for out in cell["outputs"]
        if out["output_type"] == "error"
    ]


def test_it_is_normalised(path: Path) -> None:
    assert notebooks.is_normalised(path), "run: make refresh"


def test_it_leaks_no_local_path(path: Path) -> None:
    found = re.search(r"(?<![\w.~])/(home|root|tmp|Users|work)/\w+", path.read_text("utf-8"))
    assert not found, found
    assert str(PROJECT.root) not in path.read_text("utf-8")


def test_its_code_holds_no_secret(path: Path) -> None:
    assert not re.search(
        r"\b(hf_[A-Za-z0-9]{20,}|nvapi-[\w-]{20,}|sk-[A-Za-z0-9]{20,})", path.read_text("utf-8")
    )
