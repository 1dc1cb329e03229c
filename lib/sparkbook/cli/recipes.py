"""`sparkbook recipes`: the catalogue."""

from __future__ import annotations

import enum
from typing import Annotated

import typer

from sparkbook.cli.options import Json, RecipeId
from sparkbook.cli.output import print_json, say, show, terminal
from sparkbook.cli.verbs import group, verb
from sparkbook.errors import SparkbookError

app = group("recipes", "List, show and validate recipes.")


class As(enum.StrEnum):
    """How `recipes show` shows a recipe."""

    facts = "facts"
    docker = "docker"
    compose = "compose"
    shell = "shell"
    recipe = "recipe"
    eugr = "eugr"
    sparkrun = "sparkrun"
    spark_pulse = "spark-pulse"
    nvidia = "nvidia"
    vllm_recipes = "vllm-recipes"
    vllm_recipes_json = "vllm-recipes-json"
    kubernetes = "kubernetes"
    json = "json"


@verb(app, "list")
def list_(
    family: Annotated[
        str | None, typer.Option(help="Only this family, such as qwen or gemma.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the recipes."""
    from sparkbook import recipes
    from sparkbook.recipes import text

    everything = recipes.all()
    if family is not None:
        families = sorted({recipe.family for recipe in everything})
        if family not in families:
            raise SparkbookError(
                f"Unknown family '{family}'. --family accepts: {', '.join(families)}"
            )
    rows = [text.row(recipe) for recipe in everything if family in (None, recipe.family)]
    if as_json:
        print_json(rows)
    else:
        console = terminal()
        show(*text.listing(rows, console), console=console)


@verb(app, "sets")
def sets_(as_json: Json = False) -> None:
    """List the sets of servers that run side by side on one Spark."""
    from sparkbook.recipes import sets

    found = sets.all()
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    for one in found:
        say(f"{one.id}: {one.title}")
        for server in one.servers:
            say(f"  {server.fraction:<4g}  {server.recipe}")


@verb(app, "show")
def show_(
    name: RecipeId,
    as_: Annotated[As, typer.Option("--as", help="The form to show it in.")] = As.facts,
    as_json: Json = False,
) -> None:
    """Show one recipe: its facts, or its launch line in another form."""
    from sparkbook import recipes

    if as_json and as_ not in (As.facts, As.json):
        raise SparkbookError(
            f"--as {as_.value} prints text and --json prints JSON: leave one of them out"
        )
    recipe = recipes.load(name)
    if as_json or as_ is As.json:
        print_json(recipe.model_dump(mode="json"))
    elif as_ is As.facts:
        from sparkbook.recipes import text

        console = terminal()
        show(*text.facts(recipe, hanging=console.is_terminal), console=console)
    else:
        from sparkbook.formats import FORMATS

        say(FORMATS[as_.value].write(recipe), nl=False)


@verb(app, "validate", done="Every file is a valid recipe.", unusable="A file is not.")
def validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Recipe files.")],
    as_json: Json = False,
) -> None:
    """Check that recipe files are valid."""
    from pathlib import Path

    from sparkbook import recipes

    problems: dict[str, str | None] = {}
    for file in files:
        try:
            recipes.load(Path(file))
            problems[file] = None
        except recipes.RecipeError as error:
            problems[file] = str(error)
    if as_json:
        print_json(
            [
                {"file": file, "valid": problem is None, "problem": problem}
                for file, problem in problems.items()
            ]
        )
    else:
        for file, problem in problems.items():
            say(problem or f"{file} is a valid recipe", err=problem is not None)
    if any(problems.values()):
        raise typer.Exit(2)


@verb(
    app,
    "update",
    done="Nothing is new or changed, or what was named is taken over.",
    bad="Something is new, changed, or not accepted.",
    unusable="A place can't be read.",
    interrupted="Interrupted; nothing was written.",
)
def update(
    place: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="PLACE", help="A folder or repository [default: the peers']."
        ),
    ] = None,
    take: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Write this recipe, by id or path, into your folder."),
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="FOLDER", help="Your folder of recipes.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare with others' recipes, and take over those you name."""
    from pathlib import Path

    from sparkbook import upstream
    from sparkbook.serve.paths import state_dir
    from sparkbook.util.shell_text import command_line

    folder = Path(into).expanduser() if into else state_dir() / "recipes"
    ours = upstream.ours(folder)
    found = [
        one
        for each in ([place] if place else upstream.PEERS)
        for one in upstream.compare(each, ours)
    ]
    written = [str(upstream.take(upstream.named(found, name), folder)) for name in take or ()]
    moved = [one for one in found if one.state != "same" or one.errors]
    if as_json:
        print_json({"recipes": [one.to_dict() for one in found], "written": written})
    else:
        for one in moved:
            for line in one.lines():
                say(line)
        say(f"{len(found)} recipes, {len(found) - len(moved)} as they were")
        for path in written:
            say(f"Written: {path}. Plan it with: {command_line('sparkbook', 'plan', path)}")
    if moved and not written:
        raise typer.Exit(1)


@verb(app, "schema")
def schema() -> None:
    """Print the JSON Schema of a recipe."""
    from sparkbook import recipes

    say(recipes.json_schema(), nl=False)
