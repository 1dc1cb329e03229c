"""`sparkbook weights`: the model store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from sparkbook.cli.options import Json, RecipeId
from sparkbook.cli.output import answer, exit_with, folder, say, wants_bar
from sparkbook.cli.verbs import group, verb

if TYPE_CHECKING:
    from sparkbook.weights import WeightsError

app = group("weights", "Fetch, verify and prune weights in the model store.")

Store = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="The model store [default: HF_HOME's, or ~/vllm]."),
]


@verb(
    app,
    "fetch",
    done="All files are there.",
    bad="Refused, or failed.",
    interrupted="Interrupted; the next fetch resumes.",
)
def fetch(
    name: RecipeId,
    store: Store = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Files at a time.")] = 8,
    unpinned: Annotated[
        bool, typer.Option("--unpinned", help="Also fetch code without a known checksum; note it.")
    ] = False,
    allow_outside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH", help="Let the recipe write to PATH, outside the store. Repeatable."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a recipe's weights. Resumes interrupted downloads."""
    from pathlib import Path

    from sparkbook import recipes, weights
    from sparkbook.weights import text

    recipe = recipes.load(name)
    try:
        fetched = weights.fetch(
            recipe,
            folder(store),
            workers=workers,
            unpinned=unpinned,
            allow_outside=[Path(path) for path in allow_outside or ()],
            progress=wants_bar(as_json),
        )
    except weights.WeightsError as error:
        _failed(error, as_json)
    except KeyboardInterrupt:
        say("sparkbook: Stopped. The next fetch resumes here", err=True)
        raise typer.Exit(130) from None
    answer(as_json, text.fetched_dict(fetched), text.fetched(fetched))
    if fetched.findings:
        raise typer.Exit(1)


def _failed(error: WeightsError, as_json: bool) -> NoReturn:
    from sparkbook.findings import Findings

    findings = Findings([error.finding])
    answer(as_json, findings.to_dict(), [findings])
    raise typer.Exit(1) from None


@verb(
    app,
    "verify",
    done="All files are whole.",
    bad="A file is damaged or missing.",
    interrupted="Interrupted.",
)
def verify(name: RecipeId, store: Store = None, as_json: Json = False) -> None:
    """Hash every file of a recipe's weights. Needs no network."""
    from sparkbook import recipes, weights
    from sparkbook.weights import text

    try:
        checked = weights.verify(recipes.load(name), folder(store), progress=wants_bar(as_json))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    answer(as_json, text.verified_dict(checked), text.verified(checked))
    exit_with(checked.findings)


@verb(app, "prune", bad="A file could not be removed.")
def prune(
    store: Store = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete them. Without it, only list.")] = False,
    as_json: Json = False,
) -> None:
    """List files that can be deleted.

    These are partial downloads and superseded commits.
    """
    from sparkbook import recipes, weights
    from sparkbook.weights import text

    spare = weights.prune(recipes.all(), folder(store))
    if yes:
        try:
            spare.remove()
        except weights.WeightsError as error:
            _failed(error, as_json)
    answer(as_json, text.spare_dict(spare, removed=yes), text.spare(spare, removed=yes))
