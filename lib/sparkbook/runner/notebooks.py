"""One notebook: its parameters, its run, and the form in which it is committed."""

from __future__ import annotations

import ast
import json
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkbook.errors import SparkbookError

Engine = Literal["attach", "own", "none"]
"""What a chapter needs: the book's one shared engine, an engine that it starts itself, or none at
all.
"""

ENGINES: tuple[Engine, ...] = ("attach", "own", "none")
CELL_TIMEOUT_S = 600
NOT_RUN = "Not run: this book was built with `TARGET=plan`."

_CELL_LINE = re.compile(r"Cell In\[\d+\], line (\d+)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# ipykernel warns at each start that its messages are not encrypted; they do not leave this machine.
_KERNEL_ARGUMENTS = ["--log-level=CRITICAL"]
_KERNEL_STARTS = 3
"""A kernel is given ports that were free a moment ago; where another program has taken one of them
since, it ends before it answers.
"""
_PARAMETER = re.compile(
    r"(?P<name>\w+): (?P<type>[\w\[\]|., ]+) = (?P<default>.+?)  # (?P<help>.+)"
)
_WIDGET = "application/vnd.jupyter.widget-view+json"


class Abandoned(Exception):
    """A run that was ordered to stop."""


@dataclass(frozen=True)
class Parameter:
    """One line of the parameters cell: `name: type = default  # help`."""

    name: str
    type: str
    default: Any
    help: str


@dataclass(frozen=True)
class Failure:
    """Why a notebook did not run to its end.

    Attributes:
        cell: number of the code cell, counted from 1 as its execution count is; 0 where no cell
            ran.
        line: the cell's line that failed.
        error: the traceback's last line.
    """

    cell: int
    line: str
    error: str

    def __str__(self) -> str:
        return f"cell {self.cell} ({self.line}): {self.error}" if self.cell else self.error


def read(path: Path) -> dict[str, Any]:
    """Return a notebook as plain data, each cell's source as one string.

    Raises:
        SparkbookError: the file is not a notebook of format 4.
    """
    try:
        notebook = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise SparkbookError(f"{path.name} is not a notebook: {error}") from None
    if not isinstance(notebook, dict) or notebook.get("nbformat") != 4:
        raise SparkbookError(
            f"{path.name} is not a notebook of format 4: open it in JupyterLab and save it again"
        )
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def tags(cell: dict[str, Any]) -> list[str]:
    """Return the cell's tags."""
    return list(cell["metadata"].get("tags", []))


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells with code, in order."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def engine_of(path: Path) -> Engine:
    """Return what the notebook's metadata says about the engine (`{"sparkbook": {"engine": …}}`).

    Raises:
        SparkbookError: it says nothing, or something else.
    """
    engine = read(path)["metadata"].get("sparkbook", {}).get("engine")
    if engine not in ENGINES:
        raise SparkbookError(
            f"{path.name}: metadata sparkbook.engine is {engine!r}; allowed are"
            f" {', '.join(ENGINES)}"
        )
    return engine


def measures(path: Path) -> bool:
    """Return whether the notebook's numbers are taken on its engine, so that nothing else may run.

    A notebook with an engine measures unless its metadata says
    `{"sparkbook": {"measures": false}}`: it only shows that something works.
    """
    return (
        engine_of(path) != "none"
        and read(path)["metadata"]["sparkbook"].get("measures", True) is not False
    )


def parameters(path: Path) -> dict[str, Parameter]:
    """Return the notebook's parameters by name.

    Raises:
        SparkbookError: the first code cell is not the one parameters cell, or a line of it is not
            `name: type = default  # help`.
    """
    cells = code_cells(read(path))
    if [i for i, cell in enumerate(cells) if "parameters" in tags(cell)] != [0]:
        raise SparkbookError(
            f"{path.name}: only the first code cell must have the tag 'parameters'"
        )
    found = {}
    for line in cells[0]["source"].splitlines():
        match = _PARAMETER.fullmatch(line)
        if not match:
            raise SparkbookError(
                f"{path.name}: '{line}' in the parameters cell does not have the form 'name: type ="
                " default  # what it is'"
            )
        try:
            default = ast.literal_eval(match["default"])
        except (ValueError, SyntaxError):
            raise SparkbookError(
                f"{path.name}: the default of '{match['name']}' is not a plain literal:"
                f" {match['default']}"
            ) from None
        found[match["name"]] = Parameter(match["name"], match["type"], default, match["help"])
    return found


def require_known(path: Path, values: dict[str, Any]) -> None:
    """Refuse a parameter that the notebook does not have; papermill itself would only log it and
    use the default.

    Raises:
        SparkbookError: naming the unknown ones and those that there are.
    """
    known = parameters(path)
    if unknown := sorted(set(values) - set(known)):
        others = f" and {len(unknown) - 5:,} others" if len(unknown) > 5 else ""
        raise SparkbookError(
            f"{path.name} has no parameter {', '.join(unknown[:5])}{others}; it has"
            f" {', '.join(known) or 'none'}"
        )


def without_engine(notebook: dict[str, Any]) -> None:
    """Put what a cell would have done in the place of each cell tagged `engine`, so that nothing is
    run and nothing is pretended.
    """
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code" and "engine" in tags(cell):
            cell["cell_type"] = "markdown"
            cell["source"] = f"```python\n{cell['source']}\n```\n\n*{NOT_RUN}*"
            for key in ("outputs", "execution_count"):
                cell.pop(key, None)


def execute(
    source: Path,
    out: Path,
    values: dict[str, Any] | None = None,
    *,
    plan: bool = False,
    progress: bool = False,
    stop: threading.Event | None = None,
) -> Failure | None:
    """Run a notebook through papermill and write the normalised result.

    The result appears under its name only when it is complete. Where a cell fails, what was reached
    is written with a note at the top, and the failure is returned; a notebook that was to be
    replaced by its own run is then left as it is.

    Args:
        source: the notebook.
        out: where the executed notebook goes; may be the source itself.
        values: parameters that differ from the defaults.
        plan: leave out the cells tagged `engine`.
        progress: show papermill's own bar on standard error.
        stop: once set, the run counts as abandoned and nothing is written.

    Raises:
        SparkbookError: a parameter that the notebook does not have.
        Abandoned: `stop` was set.
    """
    require_known(source, values or {})
    import nbformat
    import papermill
    from jupyter_core.utils import ensure_event_loop
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    notebook = read(source)
    if plan:
        without_engine(notebook)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.stem}.running.ipynb")
    failure = None
    try:
        # The working directory goes to the kernel alone: papermill's own `cwd` would move this
        # process, with its other threads.
        node = nbformat.from_dict(notebook)
        client = {
            "resources": {"metadata": {"path": str(source.parent)}},
            "extra_arguments": _KERNEL_ARGUMENTS,
        }
        for left in reversed(range(_KERNEL_STARTS)):
            try:
                papermill.execute_notebook(
                    node,
                    temporary,
                    values or {},
                    kernel_name="python3",
                    language="python",
                    progress_bar=progress,
                    execution_timeout=CELL_TIMEOUT_S,
                    # it would write and check the whole notebook twice for each cell
                    request_save_on_cell_execute=False,
                    **client,
                )
            except PapermillExecutionError as error:
                failure = Failure(*_place(temporary), _last_line(f"{error.ename}: {error.evalue}"))
            except (DeadKernelError, TimeoutError) as error:
                failure = Failure(0, "", _last_line(f"{type(error).__name__}: {error}"))
            except RuntimeError as error:  # jupyter_client's: the kernel never answered
                if left and not (stop and stop.is_set()):
                    continue
                failure = Failure(0, "", _last_line(f"{type(error).__name__}: {error}"))
            break
        if stop and stop.is_set():
            raise Abandoned(source.name)
        if failure and out == source:
            return failure
        result = nbformat.read(temporary, 4) if temporary.exists() else without_outputs(node)
        result.cells = [cell for cell in result.cells if not _is_banner(cell)]
        if failure:
            result.cells.insert(1, nbformat.v4.new_markdown_cell(failure_note(failure)))
        normalise(result)
        temporary.write_text(nbformat.writes(result).rstrip("\n") + "\n", "utf-8")
        temporary.replace(out)
    finally:
        temporary.unlink(missing_ok=True)
        # The client makes an event loop for the thread and leaves it open.
        if not (loop := ensure_event_loop()).is_running():
            loop.close()
    return failure


def without_outputs(notebook: Any) -> Any:
    """Drop all outputs: those of a dead kernel are lost."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return notebook


def _is_banner(cell: Any) -> bool:
    """Return whether papermill put the cell in to say that another one failed."""
    return any(tag.startswith("papermill-error") for tag in cell.metadata.get("tags", []))


def failure_note(failure: Failure) -> str:
    """Return the note that heads a page whose notebook failed."""
    return (
        f":::{{error}}\nThis page's notebook failed when the book was built.\n\n    {failure}\n:::"
    )


def _place(executed: Path) -> tuple[int, str]:
    """Return the number among the code cells of the cell that failed, and its line that failed."""
    cells = [
        cell for cell in code_cells(read(executed)) if "papermill-error-cell-tag" not in tags(cell)
    ]
    for number, cell in enumerate(cells, 1):
        for output in cell["outputs"]:
            if output["output_type"] == "error":
                return number, _failing_line(cell["source"], "\n".join(output["traceback"]))
    return 0, ""


def _failing_line(source: str, traceback: str) -> str:
    """Return the line of a cell at which its traceback enters the code; the first line if the
    traceback names none.
    """
    lines = source.splitlines()
    place = _CELL_LINE.search(_COLOUR.sub("", traceback))
    if place and int(place[1]) <= len(lines):
        return lines[int(place[1]) - 1].strip()
    return (source.strip().splitlines() or [""])[0]


def _last_line(text: str) -> str:
    """Return the last line with something on it, without colours."""
    plain = _COLOUR.sub("", text)
    return ([line.strip() for line in plain.splitlines() if line.strip()] or ["no message"])[-1]


def normalise(notebook: Any) -> None:
    """Drop what changes from run to run, in place: timings, papermill's metadata, random ids, live
    widgets, the way a stream was cut into pieces.
    """
    notebook.metadata.pop("papermill", None)
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.metadata["kernelspec"] = {
        "display_name": "Python 3",
        "language": "python",
        "name": "python3",
    }
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index:02d}"
        for key in ("papermill", "execution"):
            cell.metadata.pop(key, None)
        if not cell.metadata.get("tags", True):
            del cell.metadata["tags"]
        if cell.cell_type == "code":
            cell.outputs = _joined(cell.outputs)
    _without_widgets(notebook)


def _joined(outputs: list[Any]) -> list[Any]:
    """Join neighboring pieces of one stream into one output."""
    joined: list[Any] = []
    for output in outputs:
        if (
            output.output_type == "stream"
            and joined
            and joined[-1].output_type == "stream"
            and joined[-1].name == output.name
        ):
            joined[-1].text += output.text
        else:
            joined.append(output)
    return joined


def _without_widgets(notebook: Any) -> None:
    """Drop live widgets, in place.

    Their state has random ids and may hold whole pictures; without a kernel they can't move. Each
    output keeps its other forms, at the least its text.
    """
    notebook.metadata.pop("widgets", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(_WIDGET, None)


def is_normalised(path: Path) -> bool:
    """Return whether the file is what `normalise` would write."""
    import nbformat

    notebook = nbformat.read(path, 4)
    normalise(notebook)
    return path.read_text("utf-8") == nbformat.writes(notebook).rstrip("\n") + "\n"


def in_ci() -> bool:
    """Return whether this runs unattended: progress bars would only fill the log."""
    return bool(os.environ.get("CI"))
