"""Each promise of the threat model names the tests that try it, and these tests exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "book/reference/threats.md"
HOSTILE = (
    "a recipe", "an image", "a hub", "a server", "a node", "a log", "a web page", "a neighbor", "another user",
)  # fmt: skip


def promises() -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in PAGE.read_text("utf-8").splitlines()]
    return [[cell.strip() for cell in row] for row in rows if len(row) == 3][2:]


def functions_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_promise_has_its_tests() -> None:
    assert len(promises()) >= 20
    for _, promise, cell in promises():
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", cell)
        assert named and cell.count("`") == 2 * len(named), f"no test: {promise}"
        for file, test in named:
            assert test in functions_in(file), f"{file} has no {test}"


def test_everybody_who_may_be_hostile_is_there() -> None:
    who = [row[0] for row in promises()]
    assert [one for one in HOSTILE if not any(name.startswith(one) for name in who)] == []
