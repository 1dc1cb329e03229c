"""Recipes of spark-pulse, version 2.

Fields: the JSON Schema recipe-v2 that spark-pulse 1.35 publishes in its wheel on the Python package
index (seen 2026-11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError
from sparkbook.formats.command import (
    PARAMETERS,
    fill,
    host_container,
    image_of,
    read_command,
    read_env,
    serve_command,
    stated_env,
)
from sparkbook.formats.conversion import Notes
from sparkbook.formats.eugr import facts
from sparkbook.formats.reading import Reading
from sparkbook.recipes.launch import Launch
from sparkbook.util.documents import dump, mapping, optional, parse, scalar, sequence
from sparkbook.util.shell_text import script_line

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe

_READ = {
    "recipe_version",
    "name",
    "model",
    "description",
    "engine",
    "engines",
    "params",
    "command",
    "constraints",
}


def detect(text: str, document: Any) -> bool:
    """Return whether a document is such a recipe."""
    return (
        isinstance(document, dict)
        and str(document.get("recipe_version")) == "2"
        and bool({"engines", "params"} & set(document))
    )


def read(text: str, notes: Notes) -> tuple[Launch, dict[str, Any]]:
    """Return the launch, and what else the recipe says. Of several engines the one named by
    `engine` is taken, else the first.

    Raises:
        SparkbookError: it is none.
    """
    data = mapping(parse(text), "the recipe")
    if data.get("model") is None:
        raise SparkbookError("this spark-pulse recipe names no model")
    engines = mapping(data.get("engines"), "engines")
    name = optional(data.get("engine"), "engine")
    if name is None:
        name = next((key for key in engines if "vllm" in key), None) or next(iter(engines), "vllm")
    if engines and name not in engines:
        raise SparkbookError(f"engine: unknown engine {name}; the recipe has {', '.join(engines)}")
    engine = mapping(engines.get(name), f"engines.{name}")
    if len(engines) > 1:
        notes.add(
            "CONV205",
            f"Of {len(engines)} engines, {name} was taken.",
            f"others: {', '.join(key for key in engines if key != name)}",
        )
    reading = Reading(notes)
    read_env(reading, engine.get("env"), f"engines.{name}.env")
    params = mapping(data.get("params"), "params")
    template = optional(engine.get("command"), f"engines.{name}.command") or optional(
        data.get("command"), "command"
    )
    model = scalar(data["model"], "model")
    used: set[str] = set()
    if template is None:
        options = {parameter: option for option, parameter in PARAMETERS.items()}
        words = [f"--{options.get(key, key.replace('_', '-'))} {{{key}}}" for key in params]
        extra = engine.get(
            "args"
        )  # a list is joined as it is, without quoting: so does spark-pulse
        more = (
            extra
            if isinstance(extra, str)
            else " ".join(scalar(word, "args") for word in sequence(extra, f"engines.{name}.args"))
        )
        template = " ".join([script_line("vllm", "serve", model), *words, more]).strip()
        used = set(params)
        notes.guess("serve.args", "made of params and args")
    elif engine.get("args"):
        notes.foreign["args"] = engine["args"]
        notes.add("CONV203", f"engines.{name}.args is kept under foreign: the command replaces it.")
    image = optional(engine.get("image"), f"engines.{name}.image")
    read_command(reading, image, fill(template, {"model": model, **params}, notes, doubled=False))
    if image is not None:
        host_container(reading, "spark-pulse", gpus="all", ipc="host", network="host")
    notes.keep({key: value for key, value in data.items() if key not in _READ}, {"serves"})
    notes.keep(
        {
            key: value
            for key, value in engine.items()
            if key not in ("image", "env", "args", "command")
        },
        {"mods"},
        f"engines.{name}",
        notes.foreign.setdefault("engine", {}),
    )
    if name != "vllm":
        notes.foreign["name"] = name
    if unused := {
        key: value
        for key, value in params.items()
        if f"{{{key}}}" not in template and key not in used
    }:
        notes.add(
            "CONV203",
            "The params that the command does not use are kept under foreign.",
            ", ".join(unused),
        )
        notes.foreign["params"] = unused
    constraints = mapping(data.get("constraints"), "constraints")
    fields = facts(data)
    nodes = constraints.pop("min_nodes", None)
    if isinstance(nodes, int) and not isinstance(nodes, bool) and nodes > 1:
        fields["topology"] = {"nodes": nodes}
    if constraints:
        notes.keep(
            constraints,
            {"solo_only", "cluster_only"},
            "constraints",
            notes.foreign.setdefault("constraints", {}),
        )
    notes.foreign = {key: value for key, value in notes.foreign.items() if value != {}}
    return reading.launch(), fields


def write(recipe: Recipe) -> str:
    """Return the recipe for spark-pulse.

    Raises:
        SparkbookError: it has no image, or no command line can say what it asks for.
    """
    launch = recipe.launch
    foreign = dict(recipe.foreign.get("spark-pulse") or {})
    command, params = serve_command(launch, parameters=True)
    name = foreign.pop("name", "vllm")
    engine = {
        "image": image_of(launch, "spark-pulse recipe"),
        "env": stated_env(launch.env),
        **dict(foreign.pop("engine", {})),
    }
    if "args" in foreign:
        engine["args"] = foreign.pop("args")
    engine["command"] = command
    nodes = recipe.topology.nodes
    data: dict[str, Any] = {
        "recipe_version": "2",
        "name": recipe.title,
        "description": recipe.summary,
        "model": recipe.model.repo,
        "engine": name,
        "constraints": (
            ({"min_nodes": nodes} if nodes > 1 else {}) | dict(foreign.pop("constraints", {}))
        ),
        "params": params | dict(foreign.pop("params", {})),
        **foreign,
        "engines": {name: {key: value for key, value in engine.items() if value != {}}},
    }
    return dump({key: value for key, value in data.items() if value != {}})
