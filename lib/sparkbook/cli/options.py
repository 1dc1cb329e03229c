"""Options that several verbs share, and the check of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from sparkbook.errors import SparkbookError

INPUT = "A recipe ID, a file in any known format, a launch line, or - for standard input."

Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Input = Annotated[str, typer.Argument(metavar="INPUT", help=INPUT)]
RecipeId = Annotated[str, typer.Argument(metavar="ID", help="A recipe ID, or a recipe file.")]
DockerHost = Annotated[
    str | None, typer.Option(help="A Docker engine elsewhere, such as ssh://user@spark-2.")
]
ServerName = Annotated[
    str, typer.Argument(metavar="NAME|ID", help="The name of a server, or its recipe ID.")
]
ClusterFile = Annotated[
    str | None, typer.Option("--cluster", metavar="FILE", help="Old form.", hidden=True)
]
"""`--cluster FILE`, which `sparkbook cluster` has replaced."""


def between(low: float, high: float) -> Callable[[typer.CallbackParam, float | None], float | None]:
    """Return the check of an option that is a number: typer's bounds let "not a number" pass."""

    def check(param: typer.CallbackParam, value: float | None) -> float | None:
        if value is not None and not low <= value <= high:
            raise SparkbookError(
                f"{param.opts[0]} is {value:g}: write a number from {low:g} to {high:g}"
            )
        return value

    return check


WAIT = between(0, 1e6)
"""The check of a time in seconds."""
