"""Recipes of NVIDIA/local-ai-inference-recipes, versions 3 and 4 (`recipe.yaml`).

Fields: https://github.com/NVIDIA/local-ai-inference-recipes (seen 2026-11). A recipe has two texts
for a shell: `runtime.setup_command` starts a container with a shell in it, and `serve.command`
starts the server there. Together they are one launch here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from sparkbook.errors import SparkbookError
from sparkbook.formats import docker_run
from sparkbook.formats.command import host_container, read_command, serve_command
from sparkbook.formats.conversion import Notes
from sparkbook.formats.from_launch import slug
from sparkbook.formats.reading import Reading
from sparkbook.launch.reader import starts_container
from sparkbook.recipes.launch import Launch, Serve
from sparkbook.util.documents import dump, mapping, optional, parse, scalar, sequence
from sparkbook.util.shell_text import export_line

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe

_READ = {
    "schema_version",
    "title",
    "model",
    "hardware",
    "platform",
    "backend",
    "backend_version",
    "precision",
    "checkpoint",
    "topology",
    "spec_dec",
    "mtp",
    "runtime",
    "serve",
    "notes",
    "limitations",
    "security",
    "validation",
}
_KEPT = {
    "backend_min_version",
    "status",
    "variant",
    "min_vidmem_gb",
    "prerequisites",
    "concurrency",
    "sampling",
    "launch",
    "clients",
}
_RUNTIME = {"label", "image_url", "setup_label", "setup_target", "setup_instructions"}
_SERVE = {"label", "target", "instructions", "additional_commands"}
_HARDWARE = {1: "dgx-spark", 2: "dgx-spark-2gpu", 4: "dgx-spark-4gpu"}
_FORMATS = ("nvfp4", "mxfp4", "fp8", "bf16", "awq", "gptq", "fp32")
_SOURCE = {
    "id": "nvidia",
    "title": "NVIDIA local-ai-inference-recipes",
    "url": "https://github.com/NVIDIA/local-ai-inference-recipes",
}


def detect(text: str, document: Any) -> bool:
    """Return whether a document is such a recipe."""
    return (
        isinstance(document, dict)
        and "schema_version" in document
        and {"backend", "runtime", "serve"} <= set(document)
    )


def read(text: str, notes: Notes) -> tuple[Launch, dict[str, Any]]:
    """Return the launch, and what else the recipe says.

    Raises:
        SparkbookError: it is none, of a version that is not known, or serves with another engine
            than vLLM.
    """
    data = mapping(parse(text), "the recipe")
    version = data.get("schema_version")
    if version not in (3, 4):
        raise SparkbookError(
            f"schema_version {version} of NVIDIA's recipes is unknown: expected 3 or 4"
        )
    if data.get("backend") != "vllm":
        raise SparkbookError(
            f"this recipe runs {data.get('backend')}, and sparkbook reads recipes for vLLM only"
        )
    runtime, serve = mapping(data.get("runtime"), "runtime"), mapping(data.get("serve"), "serve")
    launch = _launch(runtime, serve, notes)
    checkpoint, topology = (
        mapping(data.get("checkpoint"), "checkpoint"),
        mapping(data.get("topology"), "topology"),
    )
    facts: dict[str, Any] = {"model": {}, "sources": [{**_SOURCE, **_date(data)}]}
    if (title := optional(data.get("title"), "title")) is not None:
        facts["title"] = title
    if (target := optional(checkpoint.get("target_label"), "checkpoint.target_label")) is not None:
        facts["model"]["repo"] = target
    label = str(mapping(data.get("precision"), "precision").get("label")).lower()
    if label in _FORMATS:
        facts["model"]["quantization"] = {"format": label}
    nodes = topology.get("node_count")
    sizes = {"nodes": nodes, "tensor_parallel": topology.get("tensor_parallel_size")}
    facts["topology"] = {
        key: value
        for key, value in sizes.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 1
    }
    if (backend := optional(data.get("backend_version"), "backend_version")) is not None:
        try:
            SpecifierSet(f"=={backend}")
            facts["image"] = {"vllm": f"=={backend}"}
        except InvalidSpecifier:
            notes.add("CONV210", f"backend_version was left out: {backend} is not a version.")
    texts = [("warning", text_) for text_ in sequence(data.get("limitations"), "limitations")]
    texts += [
        (level, data[key])
        for key, level in (("security", "caution"), ("notes", "note"))
        if data.get(key) is not None
    ]
    facts["remarks"] = [
        {"text": scalar(item, "remarks"), "level": level, "source": "nvidia"}
        for level, item in texts
    ]
    rest = {
        key: value
        for key, value in data.items()
        if key not in _READ and value not in ({}, [], None)
    }
    if rest.get("status") == "experimental":
        del rest["status"]
    notes.keep(rest, _KEPT)
    for name, part, used, known in (
        ("runtime", runtime, {"kind", "image", "setup_command"}, _RUNTIME),
        ("serve", serve, {"command", "port", "api_model"}, _SERVE),
        (
            "validation",
            mapping(data.get("validation"), "validation"),
            {"validated_at"},
            {"validated_by", "tested_stack"},
        ),
    ):
        rest = {
            key: value
            for key, value in part.items()
            if key not in used and value not in ({}, [], None, "Launch", "single-node")
        }
        notes.keep(rest, known, name, notes.foreign.setdefault(name, {}))
    notes.foreign = {key: value for key, value in notes.foreign.items() if value != {}}
    return launch, {key: value for key, value in facts.items() if value not in ({}, [])}


def _date(data: dict[str, Any]) -> dict[str, str]:
    """Return the day on which it was validated, where it is one."""
    import datetime

    try:
        return {
            "date": (
                datetime.date.fromisoformat(
                    str(mapping(data.get("validation"), "validation").get("validated_at"))
                ).isoformat()
            )
        }
    except ValueError:
        return {}


def _launch(runtime: dict[str, Any], serve: dict[str, Any], notes: Notes) -> Launch:
    """Return container and server out of the two texts."""
    command = scalar(serve.get("command"), "serve.command")
    if starts_container(command):
        launch = docker_run.read(command, notes)
        notes.foreign = {"docker": dict(notes.foreign)} if notes.foreign else {}
        return launch
    image = optional(runtime.get("image"), "runtime.image")
    setup = optional(runtime.get("setup_command"), "runtime.setup_command")
    reading = Reading(notes)
    if setup is not None and starts_container(setup):
        outer = docker_run.read(setup, notes)
        notes.foreign = {"docker": dict(notes.foreign)} if notes.foreign else {}
        reading.container = outer.container.model_dump(exclude_defaults=True)
        # The shell that waits in it gives way to the server.
        if re.search(r"(^|/)(ba)?sh$", reading.container.get("entrypoint") or ""):
            del reading.container["entrypoint"]
        reading.env = dict(outer.env)
        if image is not None and outer.image != image:
            notes.add(
                "CONV205",
                f"The setup command's {outer.image} was taken; runtime.image is {image}.",
            )
        image = outer.image
    elif setup is not None:
        notes.add(
            "CONV209", "runtime.setup_command was left out: it starts no container.", setup[:60]
        )
    elif image is not None:
        host_container(
            reading, "these recipes' setup command mostly", gpus="all", ipc="host", network="host"
        )
    read_command(reading, image, command)
    return reading.launch()


def write(recipe: Recipe) -> str:
    """Return the `recipe.yaml`, version 4.

    Raises:
        SparkbookError: no command line can say what the recipe asks for, or it takes a number of
            machines that there is no hardware id for.
    """
    launch = recipe.launch
    foreign = dict(recipe.foreign.get("nvidia") or {})
    nodes, model, draft = recipe.topology.nodes, recipe.model, recipe.draft
    if nodes not in _HARDWARE:
        raise SparkbookError(
            f"topology.nodes: NVIDIA's recipes are for one, two or four Sparks, not for {nodes}"
        )
    command, _ = serve_command(launch)
    runtime: dict[str, Any] = {"kind": "native", "setup_command": None}
    if launch.image is not None:
        outer = launch.model_copy(
            update={
                "container": launch.container.model_copy(update={"entrypoint": "/bin/bash"}),
                "entrypoint": "wrapper",
                "serve": Serve(command=[]),
            }
        )
        setup = docker_run.write(outer, foreign.pop("docker", None)).replace(
            "docker run -d", "docker run -it", 1
        )
        runtime = {
            "kind": "container",
            "image": launch.image,
            "setup_target": "single-node",
            "setup_command": setup,
        }
    else:
        exports = [
            export_line(name, value) + "\n"
            for name, value in launch.env.items()
            if value is not None
        ]
        command = "".join(exports) + command
    validation = dict(foreign.pop("validation", {}))
    if day := next(
        (source.date for source in recipe.sources if source.id == "nvidia" and source.date), None
    ):
        validation = {"validated_at": day.isoformat(), **validation}
    vllm = recipe.image.vllm if recipe.image else None
    remarks = {
        level: [remark.text for remark in recipe.remarks if remark.level == level]
        for level in ("warning", "caution", "note")
    }
    data: dict[str, Any] = {
        "schema_version": 4,
        "title": recipe.title,
        "model": f"{slug(model.repo.split('/')[0])}/{slug(model.repo.rsplit('/', 1)[-1])}",
        "hardware": _HARDWARE[nodes],
        "platform": {"os": "linux", "execution": runtime["kind"]},
        "backend": "vllm",
        "backend_version": vllm[2:] if vllm and vllm.startswith("==") else None,
        "status": "experimental",
        "validation": validation,
        "precision": {
            "label": (
                "unknown"
                if model.quantization.format == "unknown"
                else model.quantization.format.upper()
            )
        },
        "checkpoint": {
            "target": f"https://huggingface.co/{model.repo}",
            "target_label": model.repo,
            "draft": f"https://huggingface.co/{draft.model}" if draft and draft.model else None,
            "draft_label": draft.model if draft else None,
        },
        "spec_dec": f"{draft.method.upper()}={draft.tokens}" if draft else None,
        "topology": {
            "summary": f"{nodes}× DGX Spark",
            "gpu_count": nodes,
            "node_count": nodes,
            "tensor_parallel_size": (
                recipe.topology.tensor_parallel if recipe.topology.tensor_parallel > 1 else None
            ),
        },
        "limitations": remarks["warning"],
        "security": " ".join(remarks["caution"]) or None,
        "runtime": {**runtime, **dict(foreign.pop("runtime", {}))},
        "serve": {
            "label": "Launch",
            "target": "single-node",
            "command": command,
            "port": launch.port,
            "api_model": recipe.served_name,
            **dict(foreign.pop("serve", {})),
        },
        "notes": "\n".join(remarks["note"]) or None,
        **foreign,
    }
    return dump({key: value for key, value in data.items() if value not in (None, [], {})})
