"""One notebook: parameters, run, plan mode, failure, normal form."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from sparkbook.errors import SparkbookError
from sparkbook.runner import notebooks

pytestmark = pytest.mark.kernel

Make = Callable[..., Path]


def outputs(path: Path) -> list[str]:
    return [
        "".join(out.get("text", out.get("data", {}).get("text/plain", "")))
        for cell in notebooks.code_cells(notebooks.read(path))
        for out in cell["outputs"]
    ]


def test_parameters_say_type_default_and_help(notebook: Make) -> None:
    path = notebook(
        "print(port)",
        parameters='port: int = 8000  # host port\nname: str | None = "a # b"  # served as',
    )
    port, name = notebooks.parameters(path).values()
    assert (port.type, port.default, port.help) == ("int", 8000, "host port")
    assert (name.type, name.default, name.help) == ("str | None", "a # b", "served as")


@pytest.mark.parametrize(
    "line",
    ["port = 8000  # untyped", "port: int = 8000", "import os", "port: int = other  # no literal"],
)
def test_a_parameter_of_another_form_is_refused(notebook: Make, line: str) -> None:
    with pytest.raises(SparkbookError, match=r"one\.ipynb"):
        notebooks.parameters(notebook("print(1)", parameters=line))


def test_a_second_parameters_cell_is_refused(notebook: Make) -> None:
    with pytest.raises(SparkbookError, match="first code cell"):
        notebooks.parameters(notebook(("port: int = 1  # again", ["parameters"])))


@pytest.mark.parametrize("engine", ["", "attached", None])
def test_an_engine_that_is_none_of_the_three_is_refused(notebook: Make, engine: object) -> None:
    with pytest.raises(SparkbookError, match="attach, own, none"):
        notebooks.engine_of(notebook("print(1)", engine=engine))


@pytest.mark.parametrize("text", ["", "[]", '{"nbformat": 3}', "not json"])
def test_a_file_that_is_no_notebook_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.ipynb").write_text(text, "utf-8")
    with pytest.raises(SparkbookError, match=r"bad\.ipynb"):
        notebooks.read(tmp_path / "bad.ipynb")


def test_an_unknown_parameter_is_refused_before_anything_runs(
    notebook: Make, tmp_path: Path
) -> None:
    path = notebook("print(port)", parameters="port: int = 8000  # host port")
    with pytest.raises(SparkbookError, match="no parameter prot; it has port"):
        notebooks.execute(path, tmp_path / "out" / "one.ipynb", {"prot": 1})
    assert not (tmp_path / "out").exists()


def test_values_reach_the_notebook_and_the_result_is_normalised(
    notebook: Make, tmp_path: Path
) -> None:
    path = notebook(
        "import os\nprint(port + 1)\nprint(os.path.basename(os.getcwd()))",
        parameters="port: int = 8000  # host port",
    )
    out = tmp_path / "out" / "one.ipynb"
    assert notebooks.execute(path, out, {"port": 9000}) is None
    assert outputs(out) == [f"9001\n{tmp_path.name}\n"], "cells run in the notebook's own folder"
    assert notebooks.is_normalised(out)
    assert [file.name for file in out.parent.iterdir()] == ["one.ipynb"], (
        "nothing temporary is left"
    )


def test_a_failure_names_cell_line_and_last_line(notebook: Make, tmp_path: Path) -> None:
    path = notebook("good = 1", "# divide\nprint(good)\ngood / 0", "print('never')")
    out = tmp_path / "out" / "one.ipynb"
    failure = notebooks.execute(path, out)
    assert failure == notebooks.Failure(3, "good / 0", "ZeroDivisionError: division by zero")
    assert str(failure) == "cell 3 (good / 0): ZeroDivisionError: division by zero"
    cells = notebooks.read(out)["cells"]
    assert cells[0]["source"].startswith("# one"), "the title stays first"
    assert "failed when the book was built" in cells[1]["source"]
    assert not [cell for cell in cells if "papermill-error" in str(cell["metadata"])]
    assert [cell["execution_count"] for cell in notebooks.code_cells({"cells": cells})] == [
        1,
        2,
        3,
        None,
    ]


def test_a_failure_is_told_from_the_number_the_reader_sees(notebook: Make, tmp_path: Path) -> None:
    """With a value given, papermill puts a cell in; the counts on the page include it."""
    path = notebook("assert port == 8000, 'other port'", parameters="port: int = 8000  # host port")
    failure = notebooks.execute(path, tmp_path / "out.ipynb", {"port": 1})
    assert failure is not None
    assert (failure.cell, failure.error) == (3, "AssertionError: other port")


def test_a_kernel_that_dies_is_a_failure(notebook: Make, tmp_path: Path) -> None:
    failure = notebooks.execute(notebook("import os\nos._exit(1)", "1"), tmp_path / "out.ipynb")
    assert failure is not None
    assert "DeadKernelError" in failure.error
    shown = notebooks.read(tmp_path / "out.ipynb")["cells"]
    assert "failed when the book was built" in shown[1]["source"]
    assert not any(cell["outputs"] for cell in notebooks.code_cells({"cells": shown})), (
        "nothing is shown that this run did not give"
    )


@pytest.mark.parametrize(("deaths", "failed"), [(1, False), (9, True)])
def test_a_kernel_that_dies_before_it_answers_is_started_again(
    notebook: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int, failed: bool
) -> None:
    """As one does that finds its port taken: it is tried again, and in the end it is a failure of
    this page, not of the whole run.
    """
    spec = tmp_path / "kernels" / "python3"
    spec.mkdir(parents=True)
    starts = tmp_path / "starts"
    run = f'echo >> {starts}; test $(wc -l < {starts}) -gt {deaths} && exec "$@"'
    words = ["sh", "-c", run, "sh", sys.executable, "-m", "ipykernel_launcher"]
    kernel = {"argv": [*words, "-f", "{connection_file}"], "display_name": "", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(kernel), "utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    failure = notebooks.execute(notebook("print(6 * 7)"), tmp_path / "out.ipynb")
    assert (failure is not None) == failed
    assert ("42" in (tmp_path / "out.ipynb").read_text("utf-8")) != failed
    if failure:
        assert "Kernel died before replying" in failure.error
        assert len(starts.read_text().splitlines()) == 3


def test_plan_shows_the_engine_cells_and_runs_the_others(notebook: Make, tmp_path: Path) -> None:
    path = notebook(
        ("raise SystemError('an engine was asked')", ["engine"]), "print('ran', target)"
    )
    assert notebooks.execute(path, tmp_path / "out.ipynb", {"target": "plan"}, plan=True) is None
    texts = [
        cell["source"]
        for cell in notebooks.read(tmp_path / "out.ipynb")["cells"]
        if cell["cell_type"] == "markdown"
    ]
    shown = next(text for text in texts if "SystemError" in text)
    assert shown.startswith("```python\n")
    assert "Not run: this book was built with `TARGET=plan`" in shown
    assert outputs(tmp_path / "out.ipynb") == ["ran plan\n"]


def test_two_runs_give_the_same_bytes(notebook: Make, tmp_path: Path) -> None:
    path = notebook(
        "import ipywidgets\nipywidgets.HBox([ipywidgets.IntSlider(3), ipywidgets.Text('a')])",
        "import sys\nfor i in range(30):\n    print(i)\n    sys.stdout.flush()",
    )
    for name in ("a.ipynb", "b.ipynb"):
        assert notebooks.execute(path, tmp_path / name) is None
    assert (tmp_path / "a.ipynb").read_bytes() == (tmp_path / "b.ipynb").read_bytes()


def test_normalising_drops_what_changes_and_keeps_the_rest() -> None:
    cell = nbformat.v4.new_code_cell(
        "1", metadata={"papermill": {"duration": 1.5}, "execution": {}, "tags": []}
    )
    cell.outputs = [
        nbformat.v4.new_output("stream", name="stdout", text=text) for text in ("a", "b")
    ]
    book = nbformat.v4.new_notebook(
        cells=[cell], metadata={"papermill": {}, "sparkbook": {"engine": "none"}}
    )
    notebooks.normalise(book)
    assert dict(book.cells[0].metadata) == {}
    assert [out.text for out in book.cells[0].outputs] == ["ab"]
    assert book.metadata["sparkbook"] == {"engine": "none"}
    before = json.dumps(book)
    notebooks.normalise(book)
    assert json.dumps(book) == before


def test_a_widget_is_committed_as_its_text_alone(notebook: Make) -> None:
    path = notebook("import ipywidgets\nipywidgets.HBox([ipywidgets.IntSlider(3)])")
    assert notebooks.execute(path, path) is None
    committed = notebooks.read(path)
    assert "widgets" not in committed["metadata"]
    (shown,) = notebooks.code_cells(committed)[-1]["outputs"]
    assert list(shown["data"]) == ["text/plain"]
    assert "IntSlider(value=3)" in "".join(shown["data"]["text/plain"])


def test_a_failed_refresh_leaves_the_committed_notebook_as_it_was(notebook: Make) -> None:
    path = notebook("print('fine')", "raise ValueError('not today')")
    before = path.read_bytes()
    failure = notebooks.execute(path, path)
    assert failure is not None
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir() if file.name.startswith(".")] == []
