"""The command in a reader's browser: what a page asks, inside Pyodide (`_static/page-python.mjs`).

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
from dataclasses import dataclass
from typing import Any

os.environ.setdefault(
    "TYPER_USE_RICH", "0"
)  # a usage error as plain lines, and not in a box as wide as a terminal


@dataclass(frozen=True)
class Command:
    """The command, as a page has it.

    Attributes:
        main: the command, which takes its words from `sys.argv`.
        listeners: it calls each of these with the `--json` of its answer, whatever it prints
            (`sparkbook.cli.output.listeners`).
    """

    main: Callable[[], object]
    listeners: list[Callable[[dict[str, Any]], object]]

    def answer(self, line: str) -> str:
        """Return `reply` as JSON, which a page can read."""
        return json.dumps(self.reply(line))

    def given(self, names: list[str]) -> str:
        """Return what files are, and the answers of the command to them, as JSON."""
        from sparkbook.site import pasted

        found = pasted.recognize(names)
        answers = [self.reply(line) for line in found.lines]
        return json.dumps({"what": pasted.said(found, answers), "answers": answers})

    def reply(self, line: str) -> dict[str, Any]:
        """Return what a command line prints.

        Args:
            line: such as `sparkbook plan gpt-oss-120b --context 32768`, as it would be typed.

        Returns:
            The `line`, its `exit` code, the `text` that it prints, and `told`: its `--json` answer,
            None where it has none, as an error.
        """
        try:
            words = shlex.split(line)
        except ValueError as error:
            text = f"sparkbook: the line can't be split into words: {error}"
            return {"line": line, "exit": 2, "text": text, "told": None}
        heard: list[dict[str, Any]] = []
        self.listeners.append(heard.append)
        try:
            code, text = run(words[1:], self.main)
        finally:
            self.listeners.remove(heard.append)
        told = None
        if code != 2 and heard:
            # ValueError: NaN or Infinity, which a page can't read.
            with contextlib.suppress(ValueError):
                told = json.loads(json.dumps(heard[-1], allow_nan=False))
        return {"line": line, "exit": code, "text": text.rstrip(), "told": told}


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
