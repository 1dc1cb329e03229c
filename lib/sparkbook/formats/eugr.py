"""Recipes of eugr/spark-vllm-docker, version 1, which sparkrun and spark-pulse read as their
version 1 as well.

Fields: https://github.com/eugr/spark-vllm-docker/blob/main/recipes/README.md (seen 2026-11).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError
from sparkbook.formats.command import (
    fill,
    host_container,
    image_of,
    read_command,
    read_env,
    serve_command,
    stated_env,
)
from sparkbook.formats.conversion import Notes
from sparkbook.formats.reading import Reading
from sparkbook.recipes.launch import Launch
from sparkbook.util.documents import dump, mapping, optional, parse, scalar

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe

_READ = {
    "name",
    "recipe_version",
    "description",
    "model",
    "container",
    "defaults",
    "env",
    "command",
}
_KEPT = {"mods", "build_args", "cluster_only", "solo_only"}


def detect(text: str, document: Any) -> bool:
    """Return whether a document is such a recipe."""
    return (
        isinstance(document, dict)
        and "command" in document
        and str(document.get("recipe_version")) == "1"
    )


def read(text: str, notes: Notes) -> tuple[Launch, dict[str, Any]]:
    """Return the launch, and what else the recipe says.

    Raises:
        SparkbookError: it is none.
    """
    data = mapping(parse(text), "the recipe")
    if missing := [key for key in ("name", "container", "command") if data.get(key) is None]:
        raise SparkbookError(f"this eugr recipe lacks {', '.join(missing)}")
    reading = Reading(notes)
    template = scalar(data["command"], "command")
    defaults = mapping(data.get("defaults"), "defaults")
    read_env(reading, data.get("env"), "env")
    read_command(
        reading,
        scalar(data["container"], "container"),
        fill(template, defaults, notes, doubled=True),
    )
    host_container(
        reading,
        "eugr's launcher",
        gpus="all",
        ipc="host",
        network="host",
        volumes=["~/.cache/huggingface:/root/.cache/huggingface"],
    )
    notes.keep({key: value for key, value in data.items() if key not in _READ}, _KEPT)
    unused = {key: value for key, value in defaults.items() if f"{{{key}}}" not in template}
    if unused:
        notes.add(
            "CONV203",
            "The defaults that the command does not use are kept under foreign.",
            ", ".join(unused),
        )
        notes.foreign["defaults"] = unused
    launch = reading.launch()
    return launch, facts(data) | topology(data, launch.serve.args)


def topology(data: dict[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many machines a recipe is spread over: each has one GPU, so the launchers start as
    many as the parallel sizes ask for.
    """
    sizes = {
        name: value
        for name, option in (
            ("tensor_parallel", "tensor-parallel-size"),
            ("pipeline_parallel", "pipeline-parallel-size"),
        )
        if isinstance(value := args.get(option), int) and value > 1
    }
    least = data.get("min_nodes")
    least = least if isinstance(least, int) and not isinstance(least, bool) else 1
    if data.get("cluster_only") is True:
        least = max(least, 2)
    nodes = max(math.prod(sizes.values()), least)
    return {"topology": {"nodes": nodes, **sizes}} if nodes > 1 else {}


def facts(data: dict[str, Any]) -> dict[str, Any]:
    """Name, description and model."""
    fields: dict[str, Any] = (
        {"title": scalar(data["name"], "name")} if data.get("name") is not None else {}
    )
    if (description := optional(data.get("description"), "description")) is not None:
        fields["summary"] = description
    if (repo := optional(data.get("model"), "model")) is not None:
        fields["model"] = {"repo": repo}
    return fields


def write(recipe: Recipe) -> str:
    """Return the recipe for eugr's `run-recipe.sh`.

    Raises:
        SparkbookError: it has no image, or no command line can say what it asks for.
    """
    launch = recipe.launch
    foreign = dict(recipe.foreign.get("eugr") or {})
    command, defaults = serve_command(launch, parameters=True, doubled=True)
    data: dict[str, Any] = {
        "recipe_version": "1",
        "name": recipe.title,
        "description": recipe.summary,
        "model": recipe.model.repo,
        "container": image_of(launch, "eugr recipe"),
        "defaults": defaults | dict(foreign.pop("defaults", {})),
        "env": stated_env(launch.env),
        **foreign,
        "command": command,
    }
    return dump({key: value for key, value in data.items() if value != {}})
