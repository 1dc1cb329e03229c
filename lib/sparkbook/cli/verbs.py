"""The frame of the command: which module has a verb, and how a verb reads its words and shows its
help.
"""

from __future__ import annotations

import copy
import functools
import importlib
from collections.abc import Callable
from typing import Any

import typer
import typer.core
import typer.main

VERBS = {
    "start": "agents",
    "recipes": "recipes",
    "releases": "releases",
    "lint": "lint",
    "convert": "lint",
    "plan": "planning",
    "ask": "ask",
    "engines": "askable",
    "check": "checking",
    "weights": "model_store",
    "serve": "serve",
    "status": "serve",
    "logs": "serve",
    "stop": "serve",
    "client": "agents",
    "check-tools": "agents",
    "proxy": "sharing",
    "cluster": "several",
    "diagnose": "diagnosis",
    "metrics": "diagnosis",
    "bench": "measure",
    "advise": "measure",
    "equal": "measure",
    "tune": "tuning",
    "monitor": "monitoring",
    "lock": "stack_lock",
    "upgrade": "upgrading",
    "kernels": "cuda",
    "record": "checking",
    "rules": "codes",
    "book": "chapters",
}
"""Every verb, in the order of the help, and the module of this package that has it."""

UNUSABLE = "The input cannot be used."
READER_GONE = 141
"""Exit code if the reader of a pipe ends first, as a shell gives it for SIGPIPE."""
EVERY_EXIT = (
    f"0 Done, or nothing is wrong.\n1 The answer is bad: see the verb's help.\n2 {UNUSABLE}\n"
    f"130 Interrupted with Ctrl-C.\n{READER_GONE} The reader of its output ended first."
)


class Quick:
    """A command that starts at once, with a table of its exit codes at the end of its help."""

    epilog: str | None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words. typer checks each value with a validator of pydantic, whose import and
        making take longer than most verbs: text, and options that were left out, need none.
        """
        for parameter in self.get_params(ctx):  # type: ignore[attr-defined]
            parameter.process_value = functools.partial(_value, parameter, parameter.process_value)
        return super().parse_args(ctx, args)  # type: ignore[misc]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the table of exit codes."""
        rows = [tuple(line.split(" ", 1)) for line in (self.epilog or "").splitlines()]
        if rows:
            with formatter.section("Exit codes"):
                formatter.write_dl(rows)


class Verb(Quick, typer.core.TyperCommand):
    """One verb."""


class Group(Quick, typer.core.TyperGroup):
    """Verbs that share a first word."""


class Verbs(Group):
    """All verbs; a verb's module is imported when the verb is called or listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in the order of the help."""
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of one verb; None if there is no such verb."""
        if cmd_name not in VERBS:
            return None
        app = importlib.import_module(f"{__package__}.{VERBS[cmd_name]}").app
        if app.info.name == cmd_name:
            return typer.main.get_command(app)
        one = copy.copy(app)
        one.registered_commands = [
            command for command in app.registered_commands if command.name == cmd_name
        ]
        return typer.main.get_command(one)


def verb(
    app: typer.Typer,
    name: str,
    *,
    done: str = "Done.",
    bad: str | None = None,
    unusable: str = UNUSABLE,
    interrupted: str | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to an app as a verb.

    Args:
        name: what the user types.
        done, bad, unusable, interrupted: the meaning of exit codes 0, 1, 2 and 130, for the table
            at the end of its help; None: it never exits so.
    """
    codes = {0: done, 1: bad, 2: unusable, 130: interrupted}
    table = "\n".join(f"{code} {meaning}" for code, meaning in codes.items() if meaning)
    return app.command(name, cls=Verb, epilog=table)


def group(name: str, summary: str, cls: type[Group] | None = None) -> typer.Typer:
    """Return an app for verbs that share a first word."""
    return typer.Typer(
        name=name,
        cls=cls or Group,
        help=summary,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
    )


def alone() -> typer.Typer:
    """Return an app for verbs of one word."""
    return typer.Typer(add_completion=False, rich_markup_mode=None)


def _value(parameter: Any, validated: Callable[[Any, Any], Any], ctx: Any, value: Any) -> Any:
    """Return a parameter's value: as it is if there is nothing to validate, else by typer."""
    several = parameter.multiple or parameter.nargs == -1
    text = parameter.type_descriptor.annotation is str and isinstance(value, str) and not several
    if not text and (value is not None or parameter.required):
        return validated(ctx, value)
    value = () if several else value
    return parameter.callback(ctx, parameter, value) if parameter.callback else value
