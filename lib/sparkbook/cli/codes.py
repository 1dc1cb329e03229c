"""`sparkbook rules`: what a code in an answer means."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import answer
from sparkbook.cli.verbs import group, verb

app = group("rules", "Explain the codes of findings, such as HOST006.")


@verb(app, "list")
def list_(as_json: Json = False) -> None:
    """List all codes."""
    from sparkbook import rules

    every = list(rules.every())
    rows = [{"code": rule.code, "name": rule.name, "source": rule.source} for rule in every]
    answer(as_json, {"rules": rows}, (f"{rule.code:<8} {rule.name}" for rule in every))


@verb(app, "show")
def show_(
    code: Annotated[str, typer.Argument(metavar="CODE", help="A code such as HOST006.")],
    as_json: Json = False,
) -> None:
    """Show a rule: what it catches, why, two examples, its source."""
    from sparkbook import rules
    from sparkbook.cli.output import terminal
    from sparkbook.site import rule_pages

    rule = rules.find(code.upper())
    page = rule_pages.section(rules.family(rule.prefix), rule)
    shown: Any = page.rstrip("\n")
    if not as_json and terminal().is_terminal:
        from rich.markdown import Markdown

        shown = Markdown(page)
    answer(as_json, {"code": code.upper(), "page": page}, [shown])
