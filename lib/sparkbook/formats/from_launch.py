"""A recipe made of a launch: what the input does not state is guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.formats.conversion import Conversion, Notes
from sparkbook.recipes.launch import Launch, Value
from sparkbook.recipes.names import entrypoint_of
from sparkbook.recipes.schema import Recipe
from sparkbook.util import invalid
from sparkbook.util.secret import without_secrets

_FAMILIES = (
    ("gpt-oss", "openai"),
    ("nemotron", "nvidia"),
    ("qwen", "qwen"),
    ("qwq", "qwen"),
    ("gemma", "gemma"),
    ("mistral", "mistral"),
    ("mixtral", "mistral"),
    ("ministral", "mistral"),
    ("devstral", "mistral"),
    ("magistral", "mistral"),
    ("llama", "meta"),
    ("muse-", "meta"),
    ("phi-", "microsoft"),
    ("laguna", "poolside"),
)
_QUANTIZATIONS = ("nvfp4", "mxfp4", "fp8", "awq", "gptq", "bf16", "fp32")


def slug(text: str) -> str:
    """Return a recipe's id made of any text."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "recipe"


def _family(repo: str) -> str:
    return next((family for part, family in _FAMILIES if part in repo.lower()), "other")


def _quantization(repo: str, args: Mapping[str, Value]) -> str:
    names = f"{args.get('quantization', '')} {repo}".lower()
    if "gpt-oss" in names:
        return "mxfp4"
    if "modelopt_fp4" in names:
        return "nvfp4"
    return next((name for name in _QUANTIZATIONS if name in names), "unknown")


def draft_of(args: Mapping[str, Value]) -> dict[str, Any] | None:
    """Return the draft that `--speculative-config` describes, where it says enough."""
    config = args.get("speculative-config")
    if not isinstance(config, dict):
        return None
    method, tokens, model = (
        config.get("method"),
        config.get("num_speculative_tokens"),
        config.get("model"),
    )
    if method is None and model is not None:
        method = "draft_model"
    methods = ("mtp", "dflash", "ngram", "draft_model", "eagle3", "suffix")
    if (
        method not in methods
        or not isinstance(tokens, int)
        or isinstance(tokens, bool)
        or tokens < 1
    ):
        return None
    return {
        "method": method,
        "tokens": tokens,
        **({"model": model} if isinstance(model, str) else {}),
    }


def build(
    source: tuple[str, str],
    text: str,
    launch: Launch,
    notes: Notes,
    facts: Mapping[str, Any] | None = None,
) -> Conversion:
    """Return a conversion made of a launch and of what else the input says.

    Args:
        source: the format's name, and its title for the recipe's source.
        text: what was read.
        launch: what is started.
        notes: the reader's notes; guesses are added.
        facts: fields of the recipe that the input states: they go before guesses. Nested:
            `{"model": {"repo": …}}`.

    Raises:
        SparkbookError: no valid recipe can be made of it.
    """
    name, title = source
    if launch.serve.command == [] and re.search(
        r"(^|/)(ba)?sh$", launch.container.entrypoint or ""
    ):
        raise SparkbookError(
            "this starts a container with a shell that waits, and no server: add the vllm serve"
            " line that is typed there"
        )
    fields = dict(facts or {})
    model = _model(launch, dict(fields.pop("model", None) or {}), notes)
    if re.search(r"\$\{\w+\}", str(model["repo"])):
        raise SparkbookError(
            f"the model is {model['repo']}: this {title} is a template, so fill it in first"
            " (NAME=VALUE envsubst < FILE)"
        )
    image = _image(launch, fields.pop("image", None) or {})
    _guess(fields, model["repo"], title, launch.serve.args, notes)
    serve = launch.serve.model_dump()
    if launch.serve.model == model["repo"]:
        serve["model"] = None
    foreign = without_secrets(notes.foreign)
    if foreign != notes.foreign:
        notes.add("CONV206", "A secret that the recipe has no field for was left out.")
    data = {
        **fields,
        "model": model,
        "image": image,
        "serve": serve,
        "env": launch.env,
        "container": launch.container.model_dump(),
        "foreign": {name: foreign} if foreign else {},
    }
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise SparkbookError(
            f"this {title} makes no valid recipe: {invalid.reason(error)}"
        ) from None
    guesses = [f"{place}: {value}" for place, value in notes.guessed.items() if value]
    if guesses:
        notes.add(
            "CONV201",
            f"{len(guesses)} facts that the input does not state were guessed.",
            "; ".join(guesses),
            "Correct what is wrong in the recipe.",
        )
    return Conversion(name, recipe, Findings(notes.entries), text, tuple(notes.guessed))


def _model(launch: Launch, model: dict[str, Any], notes: Notes) -> dict[str, Any]:
    """Return the model's facts: those that the input states, the rest guessed.

    Raises:
        SparkbookError: no model is named.
    """
    serve = launch.serve
    given = serve.model or launch.env.get("MODEL") or launch.env.get("VLLM_MODEL")
    repo = model.get("repo") or given
    if repo is None:
        if serve.command is None and launch.entrypoint != "wrapper":
            raise SparkbookError(
                "no model is named: vLLM would serve a default of its own; name the one that is"
                " meant"
            )
        repo = "unknown"
        notes.guess("model.repo", "not named by the input")
    elif not model.get("repo") and (given or "").startswith(("/", "~", ".")):
        # A recipe names a model in plain characters; what is served keeps the path as it is.
        last = repo.rstrip("/").rsplit("/", 1)[-1]
        repo = re.sub(r"[^A-Za-z0-9_.@+=-]+", "-", last).strip("-~") or "unknown"
        notes.guess("model.repo", f"{repo}, the last part of the path {given}")
    if "quantization" not in model:
        guess = _quantization(f"{repo} {given or ''}", serve.args)
        model["quantization"] = {"format": guess}
        notes.guess("model.quantization", f"{guess}, from the name and --quantization")
    return {**model, "repo": repo}


def _image(launch: Launch, facts: Mapping[str, Any]) -> dict[str, Any] | None:
    if launch.image is None:
        return None
    ref, _, digest = launch.image.partition("@")
    image = {"ref": ref, **({"digest": digest} if digest else {}), **facts}
    if re.search(r":(latest|nightly)$|^[^:]*$", ref) and not digest:
        image["moving"] = True
    if entrypoint_of(ref) != launch.entrypoint:
        image["entrypoint"] = launch.entrypoint
    return image


def _guess(
    fields: dict[str, Any], repo: str, title: str, args: Mapping[str, Value], notes: Notes
) -> None:
    """Fill in the fields of a recipe that the input does not state."""
    last = repo.rstrip("/").rsplit("/", 1)[-1]
    for key, guess in (
        ("id", slug(fields.get("title") or last)),
        ("title", last),
        ("family", _family(repo)),
        ("summary", f"Read from a {title}."),
    ):
        if not fields.get(key):
            fields[key] = guess
            notes.guess(key, guess)
    for key, value in (
        ("draft", draft_of(args)),
        ("capabilities", _capabilities(args)),
        ("topology", _topology(args)),
    ):
        if value and key not in fields:
            fields[key] = value
            notes.guess(key, "from the options of vllm serve")
    if "sources" not in fields:
        fields["sources"] = [{"id": "input", "title": f"{title[:1].upper()}{title[1:]}, as given"}]
        notes.guessed.setdefault("sources", "")


def _capabilities(args: Mapping[str, Value]) -> dict[str, bool]:
    able = {"tools": "enable-auto-tool-choice" in args, "reasoning": "reasoning-parser" in args}
    return {name: True for name, value in able.items() if value}


def _topology(args: Mapping[str, Value]) -> dict[str, int]:
    sizes = {}
    for name, option in (
        ("nodes", "nnodes"),
        ("tensor_parallel", "tensor-parallel-size"),
        ("pipeline_parallel", "pipeline-parallel-size"),
    ):
        value = args.get(option)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            sizes[name] = value
    return sizes
