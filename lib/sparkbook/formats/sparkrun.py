"""Recipes of sparkrun, version 2.

Fields: https://github.com/spark-arena/sparkrun/blob/main/RECIPES.md and the keys that sparkrun
0.4.2 knows (seen 2026-11). Its version 1 is eugr's. Here a placeholder without a value stays as it
is, and a brace is not doubled.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError
from sparkbook.formats.command import PARAMETERS as PARAMETER_OPTIONS
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
from sparkbook.formats.eugr import facts, topology
from sparkbook.formats.reading import Reading
from sparkbook.recipes.launch import Launch
from sparkbook.util.documents import dump, mapping, optional, parse, scalar
from sparkbook.util.shell_text import script_line

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe

_READ = {
    "recipe_version",
    "name",
    "description",
    "model",
    "model_revision",
    "runtime",
    "container",
    "defaults",
    "env",
    "command",
    "executor_config",
    "metadata",
    "min_nodes",
}
_KEPT = {
    "sparkrun_version",
    "min_sparkrun_version",
    "runtime_version",
    "mode",
    "max_nodes",
    "containers",
    "runtime_config",
    "cluster_only",
    "solo_only",
    "benchmark",
    "pre_exec",
    "post_exec",
    "post_commands",
    "mods",
    "build_args",
    "stop_after_post",
    "builder",
    "builder_config",
    "executor",
    "scheduler",
    "distribution_config",
    "layout",
    "cluster_config",
    "runtime_cache",
    "readiness",
    "capabilities",
    "unsupported_capabilities",
    "include",
    "overrides",
}
_EXECUTOR = {
    "restart_policy": "restart",
    "gpus": "gpus",
    "ipc": "ipc",
    "shm_size": "shm_size",
    "network": "network",
    "entrypoint": "entrypoint",
}
_METADATA = {
    "description",
    "maintainer",
    "category",
    "model_params",
    "model_dtype",
    "kv_dtype",
    "num_layers",
    "num_kv_heads",
    "head_dim",
    "model_vram",
    "kv_vram_per_token",
    "quantization",
    "quant_bits",
}
_RUNTIMES = ("vllm", "vllm-distributed", "vllm-ray", "eugr-vllm")
_FORMATS = ("nvfp4", "mxfp4", "fp8", "bf16", "awq", "gptq", "fp32")


def detect(text: str, document: Any) -> bool:
    """Return whether a document is such a recipe: a missing version means 2."""
    if (
        not isinstance(document, dict)
        or str(document.get("recipe_version", "2")) != "2"
        or {"engines", "params", "services"} & set(document)
    ):
        return False
    return bool({"container", "containers"} & set(document)) and bool(
        {"command", "runtime"} & set(document)
    )


def read(text: str, notes: Notes) -> tuple[Launch, dict[str, Any]]:
    """Return the launch, and what else the recipe says.

    Raises:
        SparkbookError: it is none, or serves with another engine than vLLM.
    """
    data = mapping(parse(text), "the recipe")
    runtime = optional(data.get("runtime"), "runtime") or "vllm-distributed"
    if runtime not in _RUNTIMES:
        raise SparkbookError(
            f"this recipe runs {runtime}, and sparkbook reads recipes for vLLM only"
        )
    reading = Reading(notes)
    defaults = mapping(data.get("defaults"), "defaults")
    template = optional(data.get("command"), "command")
    if data.get("container") is None:
        raise SparkbookError("this sparkrun recipe names no container: add the image")
    if template is None:
        template = _template(data, defaults)
        notes.guess("serve.args", "made of defaults, as the runtime does without a command")
    read_env(reading, data.get("env"), "env")
    executor = mapping(data.get("executor_config"), "executor_config")
    for key, name in _EXECUTOR.items():
        if executor.get(key) is not None:
            reading.container[name] = scalar(executor[key], f"executor_config.{key}")
    model = optional(data.get("model"), "model")
    values = ({"model": model} if model else {}) | defaults
    read_command(
        reading,
        scalar(data["container"], "container"),
        fill(template, values, notes, doubled=False),
    )
    host_container(reading, "sparkrun", gpus="all", ipc="host", network="host")
    notes.keep({key: value for key, value in data.items() if key not in _READ}, _KEPT)
    if rest := {key: value for key, value in executor.items() if key not in _EXECUTOR}:
        notes.keep(
            rest,
            {"auto_remove", "privileged"},
            "executor_config",
            notes.foreign.setdefault("executor_config", {}),
        )
    if unused := {key: value for key, value in defaults.items() if f"{{{key}}}" not in template}:
        notes.add(
            "CONV203",
            "The defaults that the command does not use are kept under foreign.",
            ", ".join(unused),
        )
        notes.foreign["defaults"] = unused
    launch = reading.launch()
    return launch, _facts(data, notes) | topology(data, launch.serve.args)


def _template(data: dict[str, Any], defaults: dict[str, Any]) -> str:
    """Return the command that sparkrun makes of a recipe without one.

    Raises:
        SparkbookError: the recipe names no model.
    """
    if data.get("model") is None:
        raise SparkbookError("this sparkrun recipe has neither a command nor a model")
    options = {name: option for option, name in PARAMETER_OPTIONS.items()}
    words = [f"--{options.get(name, name.replace('_', '-'))} {{{name}}}" for name in defaults]
    return " ".join([script_line("vllm", "serve", scalar(data["model"], "model")), *words])


def _facts(data: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Return the fields of a recipe that the data state, and keep the other metadata."""
    fields = facts(data)
    if (revision := optional(data.get("model_revision"), "model_revision")) is not None:
        fields.setdefault("model", {})["revision"] = revision
    metadata = mapping(data.get("metadata"), "metadata")
    aside = {}
    for key, value in metadata.items():
        if key == "quantization" and str(value).lower() in _FORMATS:
            fields.setdefault("model", {})["quantization"] = {"format": str(value).lower()}
        elif (
            key == "model_params"
            and (match := re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)[bB]", str(value)))
            and float(match[1]) > 0
        ):
            fields.setdefault("model", {})["total_params_b"] = float(match[1])
        elif key == "description" and not fields.get("summary") and isinstance(value, str):
            fields["summary"] = value
        else:
            aside[key] = value
    if aside:
        notes.keep(aside, _METADATA, "metadata", notes.foreign.setdefault("metadata", {}))
    return fields


def write(recipe: Recipe) -> str:
    """Return the recipe for `sparkrun run`.

    Raises:
        SparkbookError: it has no image, or no command line can say what it asks for.
    """
    launch = recipe.launch
    foreign = dict(recipe.foreign.get("sparkrun") or {})
    command, defaults = serve_command(launch, parameters=True)
    container = launch.container
    executor = {
        key: value
        for key, name in _EXECUTOR.items()
        if (value := getattr(container, name)) is not None
    }
    metadata: dict[str, Any] = {}
    if recipe.model.quantization.format != "unknown":
        metadata["quantization"] = recipe.model.quantization.format
    if recipe.model.total_params_b:
        metadata["model_params"] = f"{recipe.model.total_params_b:g}B"
    nodes = recipe.topology.nodes
    data: dict[str, Any] = {
        "recipe_version": "2",
        "name": recipe.title,
        "description": recipe.summary,
        "model": recipe.model.repo,
        "model_revision": recipe.model.revision,
        "runtime": "vllm-distributed",
        "min_nodes": nodes if nodes > 1 else None,
        "container": image_of(launch, "sparkrun recipe"),
        "defaults": defaults | dict(foreign.pop("defaults", {})),
        "env": stated_env(launch.env),
        "executor_config": executor | dict(foreign.pop("executor_config", {})),
        "metadata": metadata | dict(foreign.pop("metadata", {})),
        **foreign,
        "command": command,
    }
    return dump({key: value for key, value in data.items() if value not in ({}, None)})
