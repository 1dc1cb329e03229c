"""From what a user names to the launch line that is judged: `lint` and `plan` read through here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sparkbook import recipes
from sparkbook.formats import detect, read
from sparkbook.formats.source import naming, text_of
from sparkbook.formats.words import serve_groups
from sparkbook.launch import reader
from sparkbook.launch.lexer import show
from sparkbook.launch.line import Line, Word
from sparkbook.launch.server import container as container_words
from sparkbook.recipes.names import entrypoint_of
from sparkbook.util.shell_text import HOME

if TYPE_CHECKING:
    from sparkbook.recipes.launch import Launch
    from sparkbook.recipes.schema import Recipe


def of_launch(launch: Launch, recipe: Recipe | None = None) -> Line:
    """Return a launch as a line, as if it had been written out."""
    container, serve = launch.container, launch.serve
    pairs: list[tuple[str, str | None]] = [
        ("name", container.name),
        ("gpus", container.gpus),
        ("runtime", container.runtime),
        ("ipc", container.ipc),
        ("shm-size", container.shm_size),
        ("network", container.network),
        ("restart", container.restart),
        ("user", container.user),
        *(("publish", port) for port in container.ports),
        *(("volume", volume) for volume in container.volumes),
        *(("ulimit", f"{name}={limit}") for name, limit in container.ulimits.items()),
    ]
    line = Line(
        form="docker" if launch.image else "shell",
        image=launch.image,
        env=dict(launch.env),
        entry=container.entrypoint,
        runs=launch.entrypoint,
        setup=[Word(command) for command in serve.before],
        recipe=recipe,
    )
    for name, value in pairs:
        if value is not None:
            line.add_option(name, Word(value))
    if serve.command is not None:
        container_words(line, [Word(word) for word in serve.command])
        line.runs = launch.entrypoint
        return line
    if launch.entrypoint == "wrapper":
        return line
    line.serve = []
    for group in serve_groups(serve):
        line.serve += [Word(show(word.replace(HOME, "~"))) for word in group]
    plain = launch.image and launch.entrypoint == "command" and not container.entrypoint
    if plain and entrypoint_of(launch.image or "") == "vllm-serve":
        line.doubled = (Word("vllm"), Word("serve"))
    return line


def given(source: str) -> tuple[Line, str]:
    """Return the line that a user names: a recipe's id, a file in any format that
    `sparkbook.formats` knows, `-` for standard input, or the text itself.

    A launch line and a compose file are read with their mistakes; any other format becomes a recipe
    first, and the findings of its reader join the line's.

    Returns:
        The line, and the text that suppressions are searched for in.

    Raises:
        SparkbookError: it is none of these, or cannot be read.
    """
    name, text = text_of(source)
    if name is not None:
        return _recipe(name)
    assert text is not None
    with naming(source):
        return of_text(text), text


def of_text(text: str) -> Line:
    """Return the line of a text, of whatever format.

    Raises:
        SparkbookError: it is of no known format, or cannot be read.
    """
    format_ = detect(text)
    if format_ == "compose":
        return reader.read(text)
    if format_ in ("docker", "shell"):
        return reader.read_script(text)
    conversion = read(text, format_)
    line = of_launch(conversion.launch)
    line.stated, line.nodes = conversion.recipe.model, conversion.recipe.topology.nodes
    line.findings = [entry for entry in conversion.findings if entry.severity != "info"]
    return line


def _recipe(source: str) -> tuple[Line, str]:
    from sparkbook.recipes.catalogue import CATALOGUE  # a launch line needs no catalogue

    recipe = recipes.load(source)
    path = (
        Path(source)
        if source.endswith((".yaml", ".yml"))
        else CATALOGUE / f"{source.partition('@')[0]}.yaml"
    )
    return of_launch(recipe.launch, recipe), path.read_text("utf-8")
