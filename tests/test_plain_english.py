"""Words that a fast reader, or one whose first language is not English, has to read twice are in no
text for users: messages, rules, recipes, pages, chapters. `BANNED` says what to write instead.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "lib" / "sparkbook"

BANNED = {
    r"\b[Aa]new\b": "again",
    r"\bfor ever\b": "forever, or: it never ends",
    r"\bin vain\b": "without effect",
    r"\bof late\b": "recently",
    r"\bbeside\b": "next to, with, in addition to",
    r"\b(?:where|there)(?:of|in|upon)\b": "of it, in it",
    r"\bthat which\b": "what",
    r"\bspeaks? (?:of|against|for)\b": "mentions, argues against",
    r"\bspoken? (?:of|against)\b": "mentioned",
    r"\b(?:stands?|stood) (?:in|on|at|there|below|above|before|behind|under|alone)\b": "is, appears",
    r"\b(?:lies|lay) (?:in|on|at|there|below|above|behind|under|with)\b": "is",
    r"\b(?:tells|told)\b": "shows, reports, configured",
    r"\b(?:was|were|is|are|been|be) begun\b": "started",
    r"\bgo(?:es|ne)? on with\b": "resumes",
    r"\bha(?:s|ve) it that\b": "says",
    r"\bnobody here\b": "unknown",
    r"\breckon": "compute",
    r"\bgrave(?:st|r)?\b": "serious",
    r"\bwhat is (?:judged|asked|given|shown|meant|sent|said)\b": "name the thing",
    r"\bbe silent about\b": "ignore",
    r"\bnot surely\b": "may not",
}
_WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_PATTERN = re.compile("|".join(BANNED))


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
    lines = []
    for place, text in texts():
        for match in _PATTERN.finditer(text):
            around = " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())
            instead = next(word for word in BANNED if re.search(word, match[0]))
            lines.append(f"{place}: …{around}… ({BANNED[instead]})")
    assert lines == []


def test_the_list_catches_what_it_is_made_for() -> None:
    assert _PATTERN.search("A finding that tells of two causes.")
    assert _PATTERN.search("The port beside it stands in the file.")
    assert not _PATTERN.search("The limit is None. A stand-alone tool lies.")
