"""No text for users has a banned word: messages, rules, recipes, pages, chapters. What is built from
them is searched in `tests/site/test_site.py`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

from plain_english import PATTERN, stiff_words
from sparkbook import rules

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "lib" / "sparkbook"

_WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def strings(path: Path) -> Iterator[str]:
    """Yield the texts of a module that can reach a user: its strings, but not its docstrings, names
    and scripts.
    """
    tree = ast.parse(path.read_text("utf-8"))
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, _WITH_DOCSTRINGS)]
    docstrings = {id(one.value) for body in bodies for one in body if isinstance(one, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            script = "\n    " in node.value or "\\b" in node.value
            if id(node) not in docstrings and " " in node.value and not script:
                yield node.value


def chapter(path: Path) -> Iterator[str]:
    """Yield the prose of a notebook."""
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            yield "".join(cell["source"])


def texts() -> Iterator[tuple[str, str]]:
    """Yield where a text is, and the text."""
    for path in sorted(LIBRARY.rglob("*.py")):
        yield from ((path.relative_to(ROOT).as_posix(), text) for text in strings(path))
    yield from ((rule.code, f"{rule.name}\n{rule.text}") for rule in rules.every())
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        yield from ((path.name, text) for text in chapter(path))
    pages = [*LIBRARY.rglob("*.yaml"), *(ROOT / "book").rglob("*.yaml")]
    pages += [*(ROOT / "book").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for path in sorted(pages):
        if (
            "recorded" not in path.parts and path.name != "prompts.yaml"
        ):  # prompts speak as people do
            yield path.relative_to(ROOT).as_posix(), path.read_text("utf-8")


def test_no_text_for_users_has_a_banned_word() -> None:
    lines = [f"{place}: {word}" for place, text in texts() for word in stiff_words(text)]
    assert lines == []


def test_the_list_catches_what_it_is_made_for() -> None:
    assert PATTERN.search("A finding that tells of two causes.")
    assert PATTERN.search("The port beside it stands in the file.")
    assert PATTERN.search("Accept its Licence.") and PATTERN.search("not quantised")
    assert not PATTERN.search("The limit is None. A stand-alone tool lies.")
