"""The examples of the linter's rules: how a page shows one, and what the linter finds in it."""

from __future__ import annotations

import re
from pathlib import Path

from sparkbook import lint
from sparkbook.findings import Findings
from sparkbook.lint.family import Example
from sparkbook.util.markup import fenced

FOLDER = Path(__file__).parent / "examples"
"""Recipes that fail a rule which judges a recipe's facts."""

_FILE = "EXAMPLE:"


def source(example: Example) -> str:
    """Return what `lint` is given: the path of an example recipe, or the line itself."""
    if example.line.startswith(_FILE):
        return str(FOLDER / f"{example.line.removeprefix(_FILE)}.yaml")
    return example.line


def show(example: Example) -> str:
    """Return an example as Markdown."""
    if example.line.startswith(_FILE):
        return fenced(Path(source(example)).read_text("utf-8"), "yaml")
    if re.search(r"\s", example.line):
        return fenced(example.line, "bash")
    return f"The recipe `{example.line}`."


def examine(example: Example) -> Findings:
    """Return what the linter finds in an example."""
    return lint.lint(source(example), release=example.release).findings
