"""Recipes of vllm-project/recipes: the YAML of a model, and the JSON that its site has for each
hardware.

Fields: https://github.com/vllm-project/recipes (models/, scripts/build-recipes-api.mjs, seen
2026-11). Of a model's YAML the profile for `dgx_spark_gb10` is read: its variant, the features that
are on by default, and the overrides for this hardware.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError
from sparkbook.formats import docker_run
from sparkbook.formats.command import host_container, image_of, read_env, serve_command, stated_env
from sparkbook.formats.conversion import Notes
from sparkbook.formats.eugr import topology
from sparkbook.formats.reading import Reading
from sparkbook.formats.words import serve_groups
from sparkbook.launch.lexer import lex
from sparkbook.launch.line import Line, Word
from sparkbook.launch.release import release_of
from sparkbook.launch.server import run_in
from sparkbook.recipes.launch import Launch
from sparkbook.recipes.names import entrypoint_of
from sparkbook.util.documents import dump, mapping, optional, parse, parse_json, scalar, sequence
from sparkbook.util.shell_text import HOME, mark_home

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe

HARDWARE = "dgx_spark_gb10"
_NEAREST = (HARDWARE, "blackwell", "nvidia", "default")
"""Keys under which a setting for this hardware may stand, the most special first."""
_TOP = {
    "compatible_strategies",
    "strategy_overrides",
    "dependencies",
    "opt_in_features",
    "guide",
    "default_strategy",
    "strategy_hardware",
    "strategy_min_gpus",
    "kv_cache_strategy_hardware",
}
_META = {
    "slug",
    "date_added",
    "date_updated",
    "difficulty",
    "tasks",
    "performance_headline",
    "related_recipes",
    "hardware",
    "default_hardware",
    "platforms",
}
_MODEL = {"nightly_required", "install", "supports_dcp"}
_BY_THE_SITE = "recipes.vllm.ai's docker line"


# ---- the YAML of a model


def detect(text: str, document: Any) -> bool:
    """Return whether a document is a model's YAML."""
    return (
        isinstance(document, dict)
        and isinstance(document.get("model"), dict)
        and "model_id" in document["model"]
    )


def read(text: str, notes: Notes) -> tuple[Launch, dict[str, Any]]:
    """Return the launch on a Spark, and what else the recipe says.

    Raises:
        SparkbookError: it is none.
    """
    data = mapping(parse(text), "the recipe")
    meta, model = mapping(data.get("meta"), "meta"), mapping(data.get("model"), "model")
    reading = Reading(notes)
    name, variant = _variant(mapping(data.get("variants"), "variants"), notes)
    repo = scalar(variant.get("model_id") or model.get("model_id"), "model.model_id")
    overrides = [_nearest(mapping(data.get("hardware_overrides"), "hardware_overrides"))]
    overrides.append(
        _nearest(mapping(variant.get("hardware_overrides"), f"variants.{name}.hardware_overrides"))
    )
    lists = [("model.base_args", model.get("base_args"))]
    lists += _features(data, name, mapping(variant.get("default_modes"), "default_modes"), notes)
    lists += [(f"variants.{name}.extra_args", variant.get("extra_args"))]
    lists += [
        ("hardware_overrides.extra_args", override.get("extra_args")) for override in overrides
    ]
    for place, value in (
        ("model.base_env", model.get("base_env")),
        (f"variants.{name}.extra_env", variant.get("extra_env")),
        *(("hardware_overrides.extra_env", override.get("extra_env")) for override in overrides),
    ):
        read_env(reading, value, place)
    image = next(
        (
            value
            for part in (*reversed(overrides), variant, model)
            if (value := _image(part.get("docker_image")))
        ),
        None,
    )
    if image is None:
        image = "vllm/vllm-openai:latest"
        notes.guess("image.ref", f"{image}, the site's default")
    reading.image = scalar(image, "docker_image")
    reading.entrypoint = entrypoint_of(reading.image)
    args: dict[str, Any] = {}
    release = release_of(Line(image=reading.image))[0]
    for place, value in lists:
        # Later lists go before earlier ones, as the site merges them.
        part = Reading(notes)
        words = [Word(mark_home(word)) for word in _words(value, place)]
        part.arguments(words, release)
        for option in part.serve["args"]:
            args.pop(option, None)
        args |= part.serve["args"]
        reading.env |= part.env
    tensor = _nearest(variant["tp"]) if isinstance(variant.get("tp"), dict) else variant.get("tp")
    if isinstance(tensor, int) and not isinstance(tensor, bool) and tensor > 1:
        args.setdefault("tensor-parallel-size", tensor)
    reading.serve = {"model": repo, "args": args}
    if reading.entrypoint == "wrapper":
        raise SparkbookError(
            f"{reading.image} starts its own script, and this recipe does not give that script's"
            " arguments"
        )
    host_container(reading, _BY_THE_SITE, gpus="all", ipc="host")
    _keep(data, meta, model, variant, name, notes)
    launch = reading.launch()
    return launch, _facts(meta, model, variant, repo) | topology({}, launch.serve.args)


def _words(value: Any, place: str) -> Iterator[str]:
    """Yield the words of a list of arguments; an option and its value may be one string."""
    for item in sequence(value, place):
        word = scalar(item, place)
        option = re.fullmatch(r"(--[\w.-]+)\s+(\S+)\s*", word)
        yield from option.groups() if option else (word,)


def _image(value: Any) -> Any:
    """Return an image, of a mapping the one for this hardware, and of its builds that for CUDA 13
    or the first; None for other hardware alone.
    """
    if isinstance(value, dict):
        value = next((value[key] for key in _NEAREST if key in value), None)
    if isinstance(value, dict):
        value = value.get("cu130") or next(iter(value.values()), None)
    return value


def _nearest(settings: dict[str, Any]) -> Any:
    return next((settings[key] or {} for key in _NEAREST if key in settings), {})


def _variant(variants: dict[str, Any], notes: Notes) -> tuple[str, dict[str, Any]]:
    """Return the variant for a Spark: one tuned for it, else the default one."""
    cases = {name: mapping(variant, f"variants.{name}") for name, variant in variants.items()} or {
        "default": {}
    }
    tuned = [
        name
        for name, variant in cases.items()
        if HARDWARE in mapping(variant.get("hardware_overrides"), f"variants.{name}")
    ]
    name = tuned[0] if tuned else "default" if "default" in cases else next(iter(cases))
    if len(cases) > 1:
        why = f"it is tuned for {HARDWARE}" if tuned else "it is the default"
        notes.add(
            "CONV205",
            f"Of {len(cases)} variants, {name} was taken: {why}.",
            f"others: {', '.join(other for other in cases if other != name)}",
        )
    return name, cases[name]


def _features(
    data: dict[str, Any], variant: str, chosen: dict[str, Any], notes: Notes
) -> list[tuple[str, Any]]:
    """Return the arguments of the features that are on by default."""
    opt_in = {
        scalar(name, "opt_in_features")
        for name in sequence(data.get("opt_in_features"), "opt_in_features")
    }
    lists: list[tuple[str, Any]] = []
    for name, value in mapping(data.get("features"), "features").items():
        place = f"features.{name}"
        feature = mapping(value, place)
        if name in opt_in:
            notes.add("CONV205", f"The feature {name} is off by default and was left off.")
            continue
        modes = mapping(feature.get("modes"), f"{place}.modes")
        if modes:
            mode = optional(
                chosen.get(name) or feature.get("default_mode"), f"{place}.default_mode"
            ) or next(iter(modes))
            if len(modes) > 1:
                notes.add(
                    "CONV205",
                    f"Of {len(modes)} modes of {name}, {mode} was taken.",
                    f"others: {', '.join(m for m in modes if m != mode)}",
                )
            place, feature = (
                f"{place}.modes.{mode}",
                mapping(modes.get(mode), f"{place}.modes.{mode}"),
            )
        override = _nearest(
            mapping(feature.get("hardware_overrides"), f"{place}.hardware_overrides")
        )
        lists.append(
            (
                f"{place}.args",
                (
                    override.get("args", feature.get("args"))
                    if isinstance(override, dict)
                    else feature.get("args")
                ),
            )
        )
    return lists


def _keep(
    data: dict[str, Any],
    meta: dict[str, Any],
    model: dict[str, Any],
    variant: dict[str, Any],
    name: str,
    notes: Notes,
) -> None:
    read_ = {"meta", "model", "variants", "features", "opt_in_features", "hardware_overrides"}
    plain: tuple[Any, ...] = ({}, [], None, ["single_node_tp"])
    notes.keep(
        {key: value for key, value in data.items() if key not in read_ and value not in plain}, _TOP
    )
    rest = {
        key: value
        for key, value in meta.items()
        if key not in ("title", "provider", "description", "slug")
    }
    if rest.get("hardware") == {HARDWARE: "supported"}:
        del rest["hardware"]
    notes.keep(rest, _META, "meta", notes.foreign.setdefault("meta", {}))
    used = {
        "model_id",
        "min_vllm_version",
        "docker_image",
        "architecture",
        "parameter_count",
        "active_parameters",
        "context_length",
        "base_args",
        "base_env",
    }
    notes.keep(
        {k: v for k, v in model.items() if k not in used},
        _MODEL,
        "model",
        notes.foreign.setdefault("model", {}),
    )
    used = {
        "model_id",
        "precision",
        "tp",
        "extra_args",
        "extra_env",
        "hardware_overrides",
        "docker_image",
        "min_vllm_version",
        "default_modes",
    }
    known = {"precision_hardware", "vram_minimum_gb", "label", "description", "json"}
    notes.keep(
        {k: v for k, v in variant.items() if k not in used},
        known,
        f"variants.{name}",
        notes.foreign.setdefault("variant", {}),
    )
    notes.foreign = {key: value for key, value in notes.foreign.items() if value != {}}


_PRECISIONS = ("nvfp4", "mxfp4", "fp8", "bf16", "awq", "gptq", "fp32")


def _facts(
    meta: dict[str, Any], model: dict[str, Any], variant: dict[str, Any], repo: str
) -> dict[str, Any]:
    about: dict[str, Any] = {"repo": repo}
    for key, field in (
        ("parameter_count", "total_params_b"),
        ("active_parameters", "active_params_b"),
    ):
        if (
            match := re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)\s*[bB]", str(model.get(key)))
        ) and float(match[1]) > 0:
            about[field] = float(match[1])
    if (
        isinstance(length := model.get("context_length"), int)
        and not isinstance(length, bool)
        and length > 0
    ):
        about["context"] = {"native": length}
    if model.get("architecture") in ("dense", "moe"):
        about["mixture_of_experts"] = model["architecture"] == "moe"
    if str(variant.get("precision")).lower() in _PRECISIONS:
        about["quantization"] = {"format": str(variant["precision"]).lower()}
    facts: dict[str, Any] = {"model": about}
    for key, field in (("title", "title"), ("description", "summary")):
        if isinstance(meta.get(key), str) and meta[key]:
            facts[field] = meta[key]
    if isinstance(meta.get("provider"), str):
        about["publisher"] = meta["provider"]
    least = variant.get("min_vllm_version") or model.get("min_vllm_version")
    if isinstance(least, str) and re.fullmatch(r"\d+(\.\d+)*", least):
        facts["image"] = {"vllm": f">={least}"}
    return facts


def write(recipe: Recipe) -> str:
    """Return a model's YAML with one variant, whose arguments are the recipe's.

    Raises:
        SparkbookError: the recipe has no image, an image with a script of its own, or what no
            argument can say.
    """
    launch = recipe.launch
    if launch.entrypoint == "wrapper" or launch.serve.command is not None:
        raise SparkbookError(
            f"{launch.image} starts a script of its own: a vLLM recipe holds arguments of vllm"
            " serve; write it as docker"
        )
    foreign = dict(recipe.foreign.get("vllm-recipes") or {})
    model, serve = recipe.model, launch.serve.model_copy(update={"model": None})
    # No shell reads these: a home is written as the recipe has it, also inside JSON.
    words = [word.replace(HOME, "~") for group in serve_groups(serve) for word in group]
    least = re.fullmatch(r">=([\d.]+)", recipe.image.vllm or "") if recipe.image else None
    params = {"parameter_count": model.total_params_b, "active_parameters": model.active_params_b}
    data: dict[str, Any] = {
        "meta": {
            "title": recipe.title,
            "slug": recipe.slug,
            "provider": model.publisher,
            "description": recipe.summary,
            "hardware": {HARDWARE: "verified" if recipe.status == "run" else "supported"},
            **dict(foreign.pop("meta", {})),
        },
        "model": {
            "model_id": launch.serve.model or model.repo,
            "min_vllm_version": least and least[1],
            "docker_image": image_of(launch, "vLLM recipe"),
            "architecture": (
                None
                if model.mixture_of_experts is None
                else "moe"
                if model.mixture_of_experts
                else "dense"
            ),
            **{key: f"{value:g}B" for key, value in params.items() if value},
            "context_length": model.context.native,
            **dict(foreign.pop("model", {})),
            "base_args": words,
            "base_env": stated_env(launch.env),
        },
        "features": {},
        "variants": {
            "default": {
                "precision": (
                    None if model.quantization.format == "unknown" else model.quantization.format
                ),
                **dict(foreign.pop("variant", {})),
            }
        },
        **(
            {}
            if "compatible_strategies" in foreign
            else {"compatible_strategies": ["single_node_tp"]}
        ),
        **foreign,
    }
    for part in (data["meta"], data["model"], data["variants"]["default"]):
        for key in [key for key, value in part.items() if value is None]:
            del part[key]
    return dump(data)


def _plain(word: str) -> str:
    return word.replace(HOME, "~") if word.startswith(HOME) else word.replace(HOME, "$HOME")


# ---- the JSON of the site


def detect_json(text: str, document: Any) -> bool:
    """Tell whether a document is what the site has for one model on one hardware, or for a model as
    a whole.
    """
    if not isinstance(document, dict):
        return False
    return "recommended_command" in document or (
        "hardware" in document and "strategy" in document and "docker_image" in document
    )


def read_json(text: str, notes: Notes) -> tuple[Launch, dict[str, Any]]:
    """Return the launch of the rendered command.

    Raises:
        SparkbookError: it holds none, or one for other hardware than NVIDIA's.
    """
    data = mapping(parse_json(text) if text.lstrip().startswith("{") else parse(text), "the file")
    facts: dict[str, Any] = {}
    if "recommended_command" in data:
        meta = mapping(data.get("meta"), "meta")
        facts = _facts(
            meta, mapping(data.get("model"), "model"), {}, scalar(data.get("hf_id"), "hf_id")
        )
        facts.pop("image", None)
        data = mapping(data["recommended_command"], "recommended_command")
        notes.add(
            "CONV205",
            f"The command for {data.get('hardware')} was taken.",
            "the site has one for each hardware: /<model>/hw/<hardware>.json",
        )
    hardware = optional(data.get("hardware"), "hardware")
    if hardware != HARDWARE:
        notes.add("CONV205", f"The command is for {hardware}, not for {HARDWARE}.")
    head = "head_" if data.get("head_command") is not None else ""
    if head:
        notes.add(
            "CONV205",
            f"Of {data.get('node_count')} nodes, the first one's command was taken.",
            "others: the workers'",
        )
    docker, bare = data.get(f"{head}docker_command"), data.get(f"{head}command")
    if docker is not None:
        launch = docker_run.read(scalar(docker, f"{head}docker_command"), notes)
        notes.foreign = {"docker": dict(notes.foreign)} if notes.foreign else {}
    elif bare is not None:
        reading = Reading(notes, image=optional(data.get("docker_image"), "docker_image"))
        inner = Reading(notes)
        inner.take(run_in(None, scalar(bare, f"{head}command")))
        reading.serve, reading.env = inner.serve, inner.env
        if reading.image is not None:
            reading.entrypoint = entrypoint_of(reading.image)
            host_container(reading, _BY_THE_SITE, gpus="all", ipc="host")
        read_env(reading, data.get("env"), "env")
        launch = reading.launch()
    else:
        raise SparkbookError("this file has no command: expected docker_command or command")
    known = {
        "deploy_type",
        "companions",
        "alternatives",
        "by_hardware",
        "strategy_spec",
        "hardware_profile",
        "env",
    }
    used = (
        "docker_command",
        "command",
        "argv",
        "docker_argv",
        "docker_image",
        "hardware",
        "strategy",
        "variant",
        "node_count",
        "env",
        "deploy_type",
    )
    rest = {
        key: value
        for key, value in data.items()
        if not key.startswith(("head_", "worker_")) and key not in used
    }
    notes.keep(rest, known)
    if (
        isinstance(nodes := data.get("node_count"), int)
        and not isinstance(nodes, bool)
        and nodes > 1
    ):
        facts["topology"] = {"nodes": nodes}
    return launch, facts


def write_json(recipe: Recipe) -> str:
    """Return what the site has for one model on a Spark.

    Raises:
        SparkbookError: the recipe has no image, or an image with a script of its own.
    """
    launch = recipe.launch
    if launch.entrypoint == "wrapper" or launch.serve.command is not None:
        raise SparkbookError(
            f"{launch.image} starts a script of its own: the file holds a vllm serve command; write"
            " it as docker"
        )
    foreign = dict(recipe.foreign.get("vllm-recipes-json") or {})
    image = image_of(launch, "vLLM recipe")
    command, _ = serve_command(launch)
    docker = docker_run.write(launch, foreign.pop("docker", None))
    nodes = recipe.topology.nodes
    data = {
        "hardware": HARDWARE,
        "strategy": "single_node_tp" if nodes == 1 else "multi_node_tp",
        "variant": "default",
        "node_count": nodes,
        "deploy_type": "single_node" if nodes == 1 else "multi_node",
        "env": stated_env(launch.env),
        "docker_image": image,
        "command": command,
        "argv": _argv(command),
        "docker_command": docker,
        "docker_argv": _argv(docker),
        **foreign,
    }
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _argv(text: str) -> list[str]:
    return [_plain(token.text).replace("\0", "") for token in lex(text) if not token.operator]
