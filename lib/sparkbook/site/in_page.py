"""The command in a reader's browser: what the planner on a page asks, inside Pyodide
(`_static/planner-python.mjs`).

It calls `sparkbook.cli` as a shell would, so a page can say nothing but what the command says, and
a bad input gets the command's words.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys

os.environ.setdefault(
    "TYPER_USE_RICH", "0"
)  # a usage error as plain lines, and not in a box as wide as a terminal


def answer(line: str) -> str:
    """What a command line says.

    Args:
        line: such as `sparkbook plan gpt-oss-120b --context 32768`, as it would be typed.

    Returns:
        JSON: the `line`, its `exit` code, the `text` that it prints, and `told`: its `--json`
            answer, null where it has none, as an error.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        return json.dumps(
            {
                "line": line,
                "exit": 2,
                "text": f"sparkbook: the line can't be taken apart into words: {error}",
                "told": None,
            }
        )
    code, text = run(words[1:])
    said = {"line": line, "exit": code, "text": text.rstrip(), "told": None}
    if code != 2:
        # ValueError: no JSON, or with NaN or Infinity in it, which a page can't read.
        with contextlib.suppress(ValueError):
            told = json.loads(run([*words[1:], "--json"])[1])
            return json.dumps(
                said | {"told": told if isinstance(told, dict) else None}, allow_nan=False
            )
    return json.dumps(said)


def run(words: list[str]) -> tuple[int, str]:
    """Exit code of the command with these words, and what it prints: the answer, or with exit code
    2 the error.
    """
    out, wrong = io.StringIO(), io.StringIO()
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["sparkbook", *words], io.TextIOWrapper(io.BytesIO())
    code = 0
    try:
        from sparkbook import cli

        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
            cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 2
    except ImportError as error:
        code = 2
        wrong.write(
            f"sparkbook: this takes more than the page holds ({error}): run the line where"
            " sparkbook is installed"
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the page goes on
        code = 2
        wrong.write(
            "sparkbook: this is a fault of the command and not of the line"
            f" ({type(error).__name__}: {error}); please report it"
        )
    finally:
        sys.argv, sys.stdin = before
    return code, wrong.getvalue() if code == 2 else out.getvalue()
