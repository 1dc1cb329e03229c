"""The house is laid out as CONTRIBUTING.md says: no arrow goes up, no two files import each other."""

from __future__ import annotations

import ast
import functools
import graphlib
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "lib" / "sparkbook"
TABLE = re.findall(
    r"^\| (\d) \| ([^|]+)", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE
)

SAME_STEM = {
    "__init__": "a package",
    "commands": "what the verbs of a room do, called by cli/",
    "compose": "launch/ reads a service's line, formats/ the whole file",
    "reader": "launch/ reads launch lines, logs/ reads logs",
    "server": "launch/ reads the server's part of a line, cluster/ runs one on several nodes",
    "dashboard": "a module of plots/ is named after what it draws",
    "family": "the rules' family of a room, apart from the rules that register with it",
    "rules": "the one kind of rule, and a room's own rules",
    "samples": "what the examples of a room's rules are made of",
    "text": "a room's values as text for people",
}
"""Stems that several modules may have, with the reason."""


def name_of(path: Path) -> str:
    """Return a file's name as an import has it: `sparkbook.plan`, `sparkbook.plan.kv`."""
    parts = path.relative_to(LIBRARY.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(LIBRARY.rglob("*.py"))}


@functools.cache
def tree_of(name: str) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse(MODULES[name].read_text("utf-8"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports, also inside functions, but not for a type alone."""
    if isinstance(tree, ast.If) and ast.unparse(tree.test) == "TYPE_CHECKING":
        return
    if isinstance(tree, ast.Import):
        yield from (alias.name for alias in tree.names)
    elif isinstance(tree, ast.ImportFrom):
        assert not tree.level, "imports are absolute"
        for alias in tree.names:
            whole = f"{tree.module}.{alias.name}"
            yield whole if whole in MODULES else str(tree.module)
    for child in ast.iter_child_nodes(tree):
        yield from imports(child)


@functools.cache
def graph() -> dict[str, set[str]]:
    """Return for each module of the library those that it imports."""
    return {
        name: {
            target
            for target in imports(tree_of(name))
            if target in MODULES and target not in (name, "sparkbook")
        }
        for name in MODULES
    }


def test_no_files_import_each_other() -> None:
    try:
        graphlib.TopologicalSorter(graph()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"these files import each other in a circle: {' ← '.join(error.args[1])}")


def test_no_import_goes_up() -> None:
    places = {}
    for floor, rooms in TABLE:
        for place, room in enumerate(re.findall(r"`(\w+)", rooms)):
            places[room] = (int(floor), place)
    up = []
    for name, targets in graph().items():
        room = name.split(".")[1] if "." in name else ""
        for target in targets:
            other = target.split(".")[1]
            top = places[room][0] == places[other][0] == 6 if room else False
            if room and room != other and not top and places[other] > places[room]:
                up.append(f"{name} imports {target}")
    assert up == []


def test_no_two_modules_have_one_stem() -> None:
    by_stem = defaultdict(list)
    for path in MODULES.values():
        if path.parent.name == "rules" and path.stem != "__init__":
            continue  # the rules of one subject are in a module named after the subject
        by_stem[path.stem].append(path.relative_to(LIBRARY).as_posix())
    same = {stem: files for stem, files in by_stem.items() if len(files) > 1}
    assert {stem: files for stem, files in same.items() if stem not in SAME_STEM} == {}
    assert set(SAME_STEM) <= set(same), "an exception that nothing needs"


@pytest.mark.parametrize("word", ["Checkpoint", "Finding", "Host", "Plan", "Rule"])
def test_a_word_of_the_house_names_one_class(word: str) -> None:
    named = [
        name
        for name in MODULES
        for node in tree_of(name).body
        if isinstance(node, ast.ClassDef) and node.name == word
    ]
    assert len(named) <= 1


MOST_LINES = 500
"""Lines of code in one module, without blanks, comments and docstrings."""

LONGER: dict[str, str] = {}
"""Modules that may be longer, each with the reason."""

NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER),
    *(tokenize.INDENT, tokenize.DEDENT),
}


def lines_of_code(text: str) -> int:
    """Count the lines of a module without blanks, comments and docstrings."""
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def test_lines_of_code_are_counted() -> None:
    text = '"""A module."""\n\n# a comment\nA = [\n    1,\n]\n"""Its meaning."""\n'
    assert lines_of_code(text) == 3


def test_no_module_is_longer_than_the_limit() -> None:
    counts = {
        path.relative_to(LIBRARY).as_posix(): lines_of_code(path.read_text("utf-8"))
        for path in MODULES.values()
    }
    longer = {name: count for name, count in counts.items() if count > MOST_LINES}
    assert {name: count for name, count in longer.items() if name not in LONGER} == {}
    assert set(LONGER) <= set(longer), "an exception that nothing needs"
