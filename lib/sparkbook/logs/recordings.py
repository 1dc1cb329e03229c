"""Recorded logs that come with the library."""

from __future__ import annotations

from pathlib import Path

from sparkbook.errors import SparkbookError


def recorded(name: str) -> str:
    """Return a recorded log: `h100-moe`, `h100-kv-small` or `gb10-fragment`.

    Raises:
        SparkbookError: there is none of that name.
    """
    folder = Path(__file__).with_name("recorded")
    file = folder / f"{name}.log"
    if file.parent != folder or not file.is_file():
        known = ", ".join(sorted(path.stem for path in folder.glob("*.log")))
        raise SparkbookError(f"there is no recorded log '{name}'; there are {known}")
    return file.read_text(encoding="utf-8")
