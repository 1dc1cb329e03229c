"""Facts about a checkpoint, without loading or downloading its weights: bytes by class of tensors,
formats, and what a sequence keeps.

    >>> from sparkbook import checkpoint
    >>> checkpoint.load("openai/gpt-oss-120b").geometry.active_experts
    4

`load` takes what is written down (`known`), a folder, or with `hub=True` the hub's config
files and safetensors headers.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from sparkbook.checkpoint import gguf_file
from sparkbook.checkpoint.known import Stated, names
from sparkbook.checkpoint.values import (
    UNKNOWN,
    Cache,
    Checkpoint,
    Geometry,
    Quantization,
    Range,
    TokenReads,
    Weights,
)
from sparkbook.errors import SparkbookError

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe


MODELS = Path(__file__).with_name("models")
"""The tiny models that come with the library."""


def shipped(name: str) -> Path | None:
    """Return the folder of a model that comes with the library; None where it is no such model."""
    folder = MODELS / name
    return folder if name and folder.is_dir() else None


def load(
    name: str, *, hub: bool = False, revision: str | None = None, stated: Stated | None = None
) -> Checkpoint:
    """The facts about a checkpoint.

    Args:
        name: handle of a checkpoint, a folder, or a GGUF file.
        hub: read the handle's headers from the Hugging Face hub.
        revision: branch, tag or commit, for the hub.
        stated: what a recipe says of it, for one that is not read.

    Raises:
        SparkbookError: it cannot be read, or nothing is known of it; the message says what to do.
    """
    path = Path(os.path.expanduser(name))  # noqa: PTH111 (leaves alone what it can't expand)
    if hub:
        from sparkbook.checkpoint import hub as hub_

        return hub_.read(name, revision)
    if os.path.isdir(path):  # noqa: PTH112 (never raises)
        from sparkbook.checkpoint import local

        return local.read(path)
    file = gguf_file.is_file(name)
    if not file and name.startswith(("./", "../", "~")):
        raise SparkbookError(f"there is no folder or GGUF file {name}")
    from sparkbook.checkpoint import known

    if file:
        with contextlib.suppress(SparkbookError):
            return gguf_file.read(path, known.load(name, stated))
        return gguf_file.read(path)
    return known.load(name, stated)


def of_recipe(recipe: Recipe) -> Checkpoint:
    """The checkpoint that a recipe serves: a folder that ships with the package, or what is known
    of it, completed by what the recipe says.

    Raises:
        SparkbookError: nothing is known of it.
    """
    model = recipe.model
    if model.publisher is None or recipe.family == "embedded":
        own = shipped(model.repo)
        if own is not None:
            from sparkbook.checkpoint import local

            return local.read(own)
    # A size stated for a checkpoint that is quantized while loading is that of other files; a
    # counted one is no second source.
    on_load = model.quantization.producer == "vllm"
    size = None if on_load or model.weights_counted else model.weights_gb
    form = None if on_load or model.quantization.format == "unknown" else model.quantization.format
    stated = Stated(
        size, model.total_params_b, form, model.context.native, active_b=model.active_params_b
    )
    return load(model.repo, stated=stated)


__all__ = [
    "MODELS",
    "UNKNOWN",
    "Cache",
    "Checkpoint",
    "Geometry",
    "Quantization",
    "Range",
    "Stated",
    "TokenReads",
    "Weights",
    "load",
    "names",
    "of_recipe",
    "shipped",
]
