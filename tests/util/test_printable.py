"""Only printable text reaches a terminal, at one place, and no password in an address does."""

import ast
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table
from sparkbook.cli import output
from sparkbook.util.printable import CONTROL, printable, printable_json

ROOT = Path(__file__).parents[2]
HOSTILE = "a\x1b[2J\x1b]0;title\x07b\x9bc\u202ed\u2066e\rf\x00g\u2028h"


def test_control_characters_are_written_out() -> None:
    assert printable("plain\n\ttext, größer 你好") == "plain\n\ttext, größer 你好"
    assert printable("a\x1b[2Jb\u202ec\r") == "a\\x1b[2Jb\\u202ec\\r"
    assert not CONTROL.search(printable(HOSTILE))


def test_json_stays_the_same_value() -> None:
    text = printable_json(json.dumps({HOSTILE: [HOSTILE]}, ensure_ascii=False))
    assert json.loads(text) == {HOSTILE: [HOSTILE]} and not CONTROL.search(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("tcp://u:secret@h:2375 does not answer", "tcp://u:***@h:2375 does not answer"),
        ("'ssh://u:se@cret@h'", "'ssh://u:***@h'"),
        ("http://127.0.0.1:8000/v1 user@host", "http://127.0.0.1:8000/v1 user@host"),
    ],
)
def test_a_password_in_an_address_is_not_shown(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize("in_color", [False, True])
def test_what_the_command_prints(monkeypatch, capsys, in_color) -> None:
    table = Table("head")
    table.add_row(HOSTILE)
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=in_color, width=200)
    console.push_render_hook(output.PrintableText())
    output.show(HOSTILE, table, console=console)
    output.say(HOSTILE, err=True)
    output.say(HOSTILE)
    output.print_json([HOSTILE])
    captured = capsys.readouterr()
    plain = output.without_colors(shown.getvalue())
    for text in (plain, captured.out, captured.err):
        assert "a\\x1b[2J" in text or "a\\u001b[2J" in text
        assert not CONTROL.search(text)


def test_a_log_in_a_terminal_and_in_a_pipe(monkeypatch, capfdbinary) -> None:
    output.print_bytes(b"\x1b[31mred\x1b[0m \x1b[2J\r\n")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.print_bytes(b"\x1b[31mred\x1b[0m \x1b[2J\r\n")
    assert capfdbinary.readouterr().out == b"\x1b[31mred\x1b[0m \x1b[2J\r\nred \\x1b[2J\n"


def test_the_command_prints_at_one_place() -> None:
    for file in sorted((ROOT / "lib/sparkbook/cli").glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or file.name == "output.py":
                continue
            called = ast.unparse(node.func)
            assert called not in ("print", "typer.echo", "typer.secho", "Console"), (
                f"{file.name}:{node.lineno} prints by itself: use output.say or output.show"
            )
            assert not re.match(r"sys\.std(out|err)\.(write|buffer)", called), node.lineno
