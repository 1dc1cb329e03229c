"""Run a chapter's code cells in this process: no kernel and no engine, so a run takes a fraction of
a second, and for another parameter only the cells that depend on it run again.
"""

from __future__ import annotations

import ast
import contextlib
import io
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from IPython.lib.pretty import pretty
from sparkbook.runner import notebooks


@dataclass
class Cell:
    """One code cell.

    Attributes:
        number: its place among all cells, as the committed file has it.
        reads, writes: names that it uses; names that it binds, or has an object changed under.
        before: the names and values that it found when it ran with the defaults.
        shown: what it printed, and the value of its last expression as text.
    """

    number: int
    source: str
    tags: list[str]
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    before: dict[str, Any] = field(default_factory=dict)
    shown: str = ""

    def __post_init__(self) -> None:
        for node in ast.walk(ast.parse(self.source)):
            if isinstance(node, ast.Name):
                (self.reads if isinstance(node.ctx, ast.Load) else self.writes).add(node.id)
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.writes.add(node.name)
            elif isinstance(node, ast.alias):
                self.writes.add((node.asname or node.name).partition(".")[0])
            elif changed := _changed(node):
                self.writes.add(changed)


def _changed(node: ast.AST) -> str | None:
    """The name with an object that the statement changes: `x.append(1)`, `x[0] = 1`, `x.y = 1`."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        node = node.value.func
    elif not (isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store)):
        return None
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


class Chapter:
    """A notebook, run once with its defaults and without the cells that need an engine.

    Args:
        path: the notebook.
        without: names; cells that use one of them are left out too.
    """

    def __init__(self, path: Path, without: Iterable[str] = ()) -> None:
        self.parameters = notebooks.parameters(path)
        cells = [
            Cell(number, cell["source"], notebooks.tags(cell))
            for number, cell in enumerate(notebooks.read(path)["cells"])
            if cell["cell_type"] == "code" and "engine" not in notebooks.tags(cell)
        ]
        self.cells = [cell for cell in cells if not cell.reads & set(without)]
        self._names: dict[str, Any] = {"__name__": "__main__"}
        for cell in self.cells:
            cell.before = dict(self._names)
            cell.shown = self._run(cell)
            if "target" in self.parameters:
                self._names["target"] = "plan"

    def depend_on(self, name: str) -> list[Cell]:
        """The cells that use a parameter, by way of others too."""
        dirty, found = {name}, []
        for cell in self.cells[1:]:
            if cell.reads & dirty:
                found.append(cell)
                dirty |= cell.writes
            else:
                dirty -= cell.writes
        return found

    def run(self, name: str, value: Any) -> None:
        """Run the cells that depend on a parameter with another value.

        Raises:
            Exception: whatever a cell raises, with a note that names cell and value.
        """
        changed = {name: value}
        for cell in self.depend_on(name):
            self._names.clear()  # functions of the chapter keep this very dictionary
            self._names.update(cell.before | changed)
            try:
                self._run(cell)
            except Exception as error:
                error.add_note(f"cell {cell.number}, {name} = {value!r}:\n{cell.source}")
                raise
            changed |= {key: self._names[key] for key in cell.writes if key in self._names}

    def _run(self, cell: Cell) -> str:
        tree = ast.parse(cell.source)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, f"<cell {cell.number}>", "exec"), self._names)
            if isinstance(last, ast.Expr):
                code = compile(ast.Expression(last.value), f"<cell {cell.number}>", "eval")
                printed.write(_text(eval(code, self._names)))
        return printed.getvalue()


def _text(value: Any) -> str:
    """What a reader sees of a value."""
    if value is None:
        return ""
    for form in ("_repr_markdown_", "_repr_html_"):
        if render := getattr(value, form, None):
            return str(render())
    return pretty(value)
