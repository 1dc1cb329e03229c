"""Notebooks that tests write."""

from __future__ import annotations

from pathlib import Path

import nbformat

Cell = str | tuple[str, list[str]]
"""A code cell: its source, alone or with its tags."""


def write_notebook(
    path: Path,
    cells: list[Cell],
    parameters: str = 'target: str = "auto"  # which engine',
    engine: str = "none",
) -> Path:
    """Write a notebook: a parameters cell, and code cells with or without tags."""
    nodes = [nbformat.v4.new_markdown_cell(f"# {path.stem}\n\nWhat comes first:")]
    for source, tags in [
        (parameters, ["parameters"]),
        *(cell if isinstance(cell, tuple) else (cell, []) for cell in cells),
    ]:
        nodes += [
            nbformat.v4.new_code_cell(source, metadata={"tags": tags} if tags else {}),
            nbformat.v4.new_markdown_cell("And then:"),
        ]
    metadata = {
        "sparkbook": {"engine": engine},
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=nodes[:-1], metadata=metadata), path)
    return path
