"""Tables for notebooks: one form in JupyterLab and on the site."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from IPython.display import Markdown


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Markdown:
    """Return a Markdown table. Numbers stand to the right, whole ones from 10,000 on in groups;
    None is a dash, since unknown is not zero.

    Raises:
        ValueError: a row has another number of cells than the header, or a column has no name: a
            screen reader would announce nothing.
    """
    if not all(name.strip() for name in header):
        raise ValueError(f"a column has no name: {list(header)}")
    kept = [list(row) for row in rows]
    for row in kept:
        if len(row) != len(header):
            raise ValueError(f"a row has {len(row)} cells, the header {len(header)}: {row}")
    lines = [[_cell(value) for value in row] for row in kept]
    numeric = [bool(kept) and all(_is_number(row[i]) for row in kept) for i in range(len(header))]
    rule = ["--:" if right else "---" for right in numeric]
    return Markdown(
        "\n".join("| " + " | ".join(row) + " |" for row in [list(header), rule, *lines])
    )


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    # A bar would end the cell, also inside code.
    return str(value).replace("|", "\\|").replace("\n", " ")
