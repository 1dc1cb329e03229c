"""Checkpoints from what is written down, without a download and without a network.

From the surest to the widest: the checkpoint's own configuration (`configs.json`); formats by class
of tensors (`known.yaml`); the configuration of the model that its name says it was made of; the
size that its name or its card states. `Checkpoint.source` and `Checkpoint.unknown` say which.
"""

from __future__ import annotations

import difflib
import functools
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sparkbook.checkpoint import configs, formats, gguf, guess, naming
from sparkbook.checkpoint.bandwidth import BITS_PER_WEIGHT
from sparkbook.checkpoint.config import (
    Config,
    draft_layers,
    dtype_bytes,
    geometry,
    layer_kinds,
    text_config,
)
from sparkbook.checkpoint.configs import Card, ConfigFacts
from sparkbook.checkpoint.modules import loaded, parameters
from sparkbook.checkpoint.tensors import quantization
from sparkbook.checkpoint.values import Checkpoint, Quantization, Range, TensorClass, Weights
from sparkbook.errors import SparkbookError
from sparkbook.util import own_yaml

FILE = Path(__file__).with_name("known.yaml")


@dataclass(frozen=True)
class Stated:
    """What a recipe says of the checkpoint that it serves; None: nothing.

    Attributes:
        size_gb: size of the weights, GB (10^9 bytes).
        params_b: 10^9 parameters.
        format: format of the weights.
        context: tokens.
        active_b: 10^9 parameters that take part in one token.
    """

    size_gb: float | None = None
    params_b: float | None = None
    format: str | None = None
    context: int | None = None
    active_b: float | None = None


@functools.cache
def facts() -> dict[str, Any]:
    """The file `known.yaml`."""
    return own_yaml.read(FILE)


def names() -> list[str]:
    """Handles of checkpoints of which more is known than a name says, sorted."""
    return sorted({*_shapes(), *facts()["checkpoints"]}, key=str.lower)


def _shapes() -> list[str]:
    """Handles of models with a known shape."""
    return [*configs.names(), *configs.stated_names(), *facts()["shapes"]]


DUMMIES = {"8b": "Qwen/Qwen3-8B", "30b": "Qwen/Qwen3-30B-A3B"}
"""Models with the shape of which a whole vLLM was measured on GPUs, with dummy weights: by the name
in recordings and in `tools/make_nvfp4_models.py`.
"""


def stated_context(name: str) -> int | None:
    """`max_position_embeddings` of a checkpoint's config, tokens; None where it is not known."""
    found = _certain(name)
    return found.geometry.context if found and found.geometry else None


def stated_quantization(name: str) -> Quantization | None:
    """How a checkpoint's config says that it is quantized; None where it is not known."""
    own = configs.find(name)
    return quantization(own.config, own.quantization) if own else None


def mtp(name: str) -> bool | None:
    """Whether a checkpoint's config states a layer that predicts further tokens; None where it is
    not known.
    """
    own = configs.find(name)
    return bool(draft_layers(text_config(own.config))) if own else None


def shape(handle: str) -> dict[str, Any]:
    """A model's config as far as it is known, with its list of layers written out.

    Args:
        handle: of the table of configurations, or of the shapes of `known.yaml`.
    """
    if found := configs.find(handle) or configs.stated(handle):
        return found.config
    config = dict(facts()["shapes"][handle]["config"])
    if counts := config.pop("layer_counts", None):
        config["layer_types"] = [kind for kind, count in counts.items() for _ in range(count)]
    return config


def of_shape(handle: str) -> dict[str, Any]:
    """The language model's keys of a checkpoint's config, and its layers by kind as
    `layers.KIND`.

    Raises:
        SparkbookError: nothing is known of the checkpoint.
    """
    if handle not in names():
        raise SparkbookError(f"the library has no facts about the checkpoint '{handle}'")
    entry = facts()["checkpoints"].get(handle)
    text = text_config(shape(entry["shape"] if entry else handle))
    counts = Counter(layer_kinds(text))
    return {**text, **{f"layers.{kind}": count for kind, count in counts.items()}}


def load(name: str, stated: Stated | None = None) -> Checkpoint:
    """The facts about a checkpoint.

    Args:
        name: handle, or a path that ends in one's name.
        stated: what a recipe says of it, which completes what is known.

    Raises:
        SparkbookError: nothing says how large it is.
    """
    stated = stated or Stated()
    found = _certain(name) or _derived(name, stated) or _guessed(name, stated)
    if found is None:
        close = difflib.get_close_matches(name, names(), n=3, cutoff=0.6)
        hint = (
            f"did you mean {', '.join(close)}?"
            if close
            else "give a local folder, or add --hub to read its headers"
        )
        raise SparkbookError(
            f"nothing is known of the checkpoint '{name}', and its name states no size; {hint}"
        )
    return replace(found, card_bytes=stated.size_gb * 1e9 if stated.size_gb else found.card_bytes)


# ---- its own configuration


@functools.lru_cache(maxsize=64)
def _certain(name: str) -> Checkpoint | None:
    """The checkpoint, where its own configuration or the formats of its tensors are known."""
    if own := configs.find(name) or configs.stated(name):
        source = f"{own.source} ({own.date})"
        found = _read(own, source)
        if found is None:
            return None
        card = configs.card(name)
        # Some of the table's copies state a shorter context than the model's card.
        if found.geometry and card and (card.context or 0) > (found.geometry.context or 0):
            return replace(found, geometry=replace(found.geometry, context=card.context))
        return found
    if name in facts()["shapes"]:
        source = facts()["sources"][facts()["shapes"][name]["source"]]
        return of_config(name, shape(name), None, source)
    entry = facts()["checkpoints"].get(name)
    return _of_entry(name, entry) if entry else None


def _read(own: ConfigFacts, source: str) -> Checkpoint | None:
    """A checkpoint of the table; None where this library can't count what its config describes."""
    if "audio_config" in own.config and not configs.find(own.name):
        return None
    try:
        return of_config(own.name, own.config, own.quantization, source)
    except SparkbookError:
        if configs.find(own.name):
            raise
        return None


def of_config(
    name: str, config: Config, hf_quant: dict[str, Any] | None, source: str
) -> Checkpoint:
    """A checkpoint from its configuration alone.

    Raises:
        SparkbookError: the config lacks what a decoder's config says.
    """
    how = formats.read(config, hf_quant)
    architectures = config.get("architectures")
    unknown: tuple[str, ...] = ()
    if not how.complete:
        unknown = (f"which modules are left in wider formats than {how.main.name}",)
    return Checkpoint(
        name=name,
        architecture=architectures[0] if architectures else None,
        model_type=config.get("model_type"),
        geometry=geometry(config),
        weights=formats.weights(config, how),
        quantization=_quantization(how, config, hf_quant),
        dtype_bytes=dtype_bytes(config),
        loaded_bytes=loaded(config),
        kv_dtype=formats.kv_dtype(config, hf_quant),
        source=source,
        unknown=unknown,
    )


def sized(checkpoint: Checkpoint, size: int, revision: str) -> Checkpoint:
    """A checkpoint with the size of its files, in bytes."""
    return replace(checkpoint, card_bytes=size, revision=revision)


def _quantization(
    how: formats.Formats, config: Config, hf_quant: dict[str, Any] | None
) -> Quantization:
    """How it is quantized; of mixed formats the narrowest."""
    said = quantization(config, hf_quant)
    experts = [how.experts] if how.experts else []
    narrow = min([how.main, *experts, *(how.listed or {}).values()], key=lambda form: form.bits)
    return replace(said, format="none" if narrow == formats.BF16 else narrow.name)


def _of_entry(name: str, entry: dict[str, Any]) -> Checkpoint:
    """A checkpoint of which the formats by class of tensors are written down."""
    config = shape(entry["shape"])
    weights = counted(parameters(config), entry["formats"])
    if tower := entry.get("tower"):
        weights += (Weights("vision", "bf16", Range(*tower), Range(*tower) * 2),)
    narrow = sorted(
        {form for forms in entry["formats"].values() for form in forms.split(" or ")},
        key=lambda form: BITS_PER_WEIGHT[form],
    )
    return Checkpoint(
        name=name,
        architecture=None,
        model_type=config["model_type"],
        geometry=geometry(config),
        weights=weights,
        quantization=Quantization(
            narrow[0] if narrow[0] != "bf16" else "none", entry.get("producer")
        ),
        dtype_bytes=dtype_bytes(config),
        loaded_bytes=loaded({**config, "quantization_config": None}),
        source=_source(entry["shape"]),
        unknown=tuple(entry.get("unknown", ())),
    )


def bits(form: str) -> Range:
    """Bits of one weight with its share of the scales; of `a or b` the range between them."""
    return Range.hull(BITS_PER_WEIGHT[name] for name in form.split(" or "))


def counted(counts: dict[TensorClass, int], formats: dict[str, str]) -> tuple[Weights, ...]:
    """Weights from parameters and formats by class of tensors."""
    found = []
    for kind, count in counts.items():
        form = formats.get(kind, formats["other"])
        found.append(Weights(kind, form, Range.of(count), bits(form) * (count / 8)))
    return tuple(found)


def _source(handle: str) -> str:
    if found := configs.find(handle) or configs.stated(handle):
        return f"{found.source} ({found.date})"
    return str(facts()["sources"][facts()["shapes"][handle]["source"]])


# ---- the model that it was made of


def made_of(name: str) -> str | None:
    """Return the handle of the known model that a checkpoint was made of, as its name says."""
    same = facts()["same"]
    if name in same:
        return name
    return naming.base_of(name, [*_shapes(), *same])


def _counted(base: str) -> bool:
    """Whether this library can count what a known model's config describes."""
    return base not in configs.stated_names() or _certain(base) is not None


def shape_of(base: str) -> str:
    """Return the handle of the model whose shape a known model has."""
    same = facts()["same"].get(base)
    return str(same["shape"]) if same else base


def _derived(name: str, stated: Stated) -> Checkpoint | None:
    """The checkpoint, where its name says which known model it was made of."""
    base = made_of(name)
    if base is None or not _counted(base):
        return None
    same = facts()["same"]
    parts, card = naming.read(name), configs.card(name)
    handle = shape_of(base)
    config = shape(handle)
    form = stated.format or parts.format or (card.format if card else None)
    form = "bf16" if parts.gguf else form
    how = _formats(handle, config, form)
    kept = {key: value for key, value in config.items() if key != "quantization_config"}
    # A name that is written down is more than a likeness.
    certain = base == name and how.complete
    why = same[base]["why"] if base == name else f"by its name made of {base}"
    found = of_config(name, config, None, f"{_source(handle)}, {why}")
    unknown = [] if certain else [f"whether its shape is that of {base}, as its name says"]
    weights = formats.weights(config, how)
    quantized = Quantization("none" if how.main == formats.BF16 else how.main.name)
    if parts.gguf:
        bits = parts.gguf * (1 / 8)
        weights = tuple(replace(part, format="gguf", bytes=part.params * bits) for part in weights)
        quantized = Quantization("gguf")
        unknown.append(gguf.SPEED)
    if parts.reduced:
        weights = _reduced(weights, parts)
        unknown.append("how many experts were taken out")
    if not how.complete:
        unknown.append(f"which modules are left in wider formats than {how.main.name}")
    context = (card.context if card else None) or stated.context
    assert found.geometry
    return replace(
        found,
        certain=certain,
        weights=weights,
        quantization=quantized,
        kv_dtype=None,
        loaded_bytes=loaded(config if how.main.name == "mxfp4" else kept),
        geometry=replace(found.geometry, context=context or found.geometry.context),
        unknown=tuple(unknown),
    )


def _formats(handle: str, config: Config, form: str | None) -> formats.Formats:
    """The formats of a checkpoint made of a known model, from the format that its name states."""
    native = formats.read(config)
    if naming.read(handle).format is not None:
        native = formats.Formats()  # the known checkpoint is a quantized one itself
    if form in (None, native.main.name, native.experts and native.experts.name):
        return native
    if form == "bf16":
        return formats.Formats()
    return formats.by_name(form or "", dense=not geometry(config).experts)


def _reduced(weights: tuple[Weights, ...], parts: naming.Parts) -> tuple[Weights, ...]:
    """Weights of a model from which experts were taken out: as many as its name's size leaves
    room for, else between half of them and all.
    """
    total = sum(part.params.middle for part in weights)
    experts = sum(part.params.middle for part in weights if part.kind == "experts")
    share = Range(0.5, 1.0)
    if parts.params_b and experts and parts.params_b * 1e9 < total:
        left = min(max(1 - (total - parts.params_b * 1e9) / experts, 0.1), 1.0)
        share = Range(left * 0.97, min(left * 1.03, 1.0))
    return tuple(
        replace(part, params=part.params * share, bytes=part.bytes * share)
        if part.kind == "experts"
        else part
        for part in weights
    )


# ---- its size alone


def _guessed(name: str, stated: Stated) -> Checkpoint | None:
    """The checkpoint, where a name, a card or a recipe states its size."""
    card = _card(name)
    if card is None:
        parts = naming.read(name)
        base = naming.base_of(name, [*facts()["cards"], *configs.cards()])
        if base and parts.same_shape(naming.read(base)) and (found := _card(base)):
            native = found.format if parts.format is None else parts.format
            narrow = min(found.table_format, native or "bf16", key=lambda form: guess.BITS[form])
            card = replace(found, format=native, gib=None, table_format=narrow)
    if card is None and (stated.params_b or stated.size_gb):
        card = Card(stated.params_b, None, stated.context, None, source="the recipe")
    if card is not None and card.active_b is None and stated.active_b:
        card = replace(card, active_b=stated.active_b)
    if card is not None and stated.format:
        card = replace(card, format=stated.format)
    return guess.guess(name, naming.read(name), card, stated.size_gb)


def _card(name: str) -> Card | None:
    if written := facts()["cards"].get(name):
        return Card(**written)
    return configs.card(name)
