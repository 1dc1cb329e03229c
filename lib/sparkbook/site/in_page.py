"""The command in a reader's browser: what the planner on a page asks, inside Pyodide
(`_static/planner-python.mjs`).

The page hands over the command (`sparkbook.cli.main`), which is called as a shell would. So a page
shows only what the command prints, and a bad input gets the command's own error.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import sys
from collections.abc import Callable

os.environ.setdefault(
    "TYPER_USE_RICH", "0"
)  # a usage error as plain lines, and not in a box as wide as a terminal


def answer(line: str, main: Callable[[], object]) -> str:
    """Return what a command line prints.

    Args:
        line: such as `sparkbook plan gpt-oss-120b --context 32768`, as it would be typed.
        main: the command, which takes its words from `sys.argv`.

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
                "text": f"sparkbook: the line can't be split into words: {error}",
                "told": None,
            }
        )
    code, text = run(words[1:], main)
    reply = {"line": line, "exit": code, "text": text.rstrip(), "told": None}
    if code != 2:
        # ValueError: no JSON, or with NaN or Infinity in it, which a page can't read.
        with contextlib.suppress(ValueError):
            answer = json.loads(run([*words[1:], "--json"], main)[1])
            return json.dumps(
                reply | {"told": answer if isinstance(answer, dict) else None}, allow_nan=False
            )
    return json.dumps(reply)


def run(words: list[str], main: Callable[[], object]) -> tuple[int, str]:
    """Return the command's exit code and what it prints with these words: the answer, or with exit
    code 2 the error.
    """
    out, wrong = io.StringIO(), io.StringIO()
    before = sys.argv, sys.stdin
    sys.argv, sys.stdin = ["sparkbook", *words], io.TextIOWrapper(io.BytesIO())
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(wrong):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 2
    except ImportError as error:
        code = 2
        wrong.write(
            f"sparkbook: this line needs more than the page has ({error}): run it where"
            " sparkbook is installed"
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, the page goes on
        code = 2
        wrong.write(
            "sparkbook: the command failed, and the line is not the cause"
            f" ({type(error).__name__}: {error}); please report it"
        )
    finally:
        sys.argv, sys.stdin = before
    return code, wrong.getvalue() if code == 2 else out.getvalue()
