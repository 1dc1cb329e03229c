"""Checkpoints of the catalogue from written-down facts (`known.yaml`), without a download and
without a network.
"""

from __future__ import annotations

import difflib
import functools
from pathlib import Path
from typing import Any

from sparkbook.checkpoint.bandwidth import BITS_PER_WEIGHT
from sparkbook.checkpoint.config import dtype_bytes, geometry, parameters
from sparkbook.checkpoint.values import Checkpoint, Quantization, Range, TensorClass, Weights
from sparkbook.errors import SparkbookError
from sparkbook.util import own_yaml

FILE = Path(__file__).with_name("known.yaml")


@functools.cache
def facts() -> dict[str, Any]:
    """The file `known.yaml`."""
    return own_yaml.read(FILE)


def names() -> list[str]:
    """Handles that are known, sorted."""
    return sorted(facts()["checkpoints"], key=str.lower)


def stated_context(name: str) -> int | None:
    """`max_position_embeddings` of a checkpoint's config, tokens; None where nothing is written
    down of it.
    """
    entry = facts()["checkpoints"].get(name)
    return (
        facts()["shapes"][entry["shape"]]["config"].get("max_position_embeddings")
        if entry
        else None
    )


def shape(name: str) -> dict[str, Any]:
    """A model's config as far as it is known, with its list of layers written out."""
    entry = facts()["shapes"][name]
    config = dict(entry["config"])
    if counts := config.pop("layer_counts", None):
        key = "layers_block_type" if config["model_type"] == "nemotron_h" else "layer_types"
        config[key] = [kind for kind, count in counts.items() for _ in range(count)]
    return {**config, "vision_config": entry["vision"]} if "vision" in entry else config


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


def load(name: str, card_gb: float | None = None) -> Checkpoint:
    """The facts about a checkpoint of the catalogue.

    Args:
        name: handle.
        card_gb: size that its card states, in GB (10^9 bytes).

    Raises:
        SparkbookError: nothing is written down of it.
    """
    entries = facts()["checkpoints"]
    if name not in entries:
        close = difflib.get_close_matches(name, names(), n=3, cutoff=0.6)
        hint = (
            f"did you mean {', '.join(close)}?"
            if close
            else "give a local folder, or read it from the hub"
        )
        raise SparkbookError(f"nothing is written down of the checkpoint '{name}'; {hint}")
    entry = entries[name]
    config = shape(entry["shape"])
    counts = parameters(config)
    weights = counted(counts, entry["formats"])
    if tower := entry.get("tower"):
        weights += (Weights("vision", "bf16", Range(*tower), Range(*tower) * 2),)
    narrow = sorted(
        {form for forms in entry["formats"].values() for form in forms.split(" or ")},
        key=lambda form: BITS_PER_WEIGHT[form],
    )
    source = facts()["sources"][facts()["shapes"][entry["shape"]]["source"]]
    return Checkpoint(
        name=name,
        architecture=None,
        model_type=config["model_type"],
        geometry=geometry(config),
        weights=weights,
        quantization=Quantization(
            narrow[0] if narrow[0] != "bf16" else "none", entry.get("producer")
        ),
        card_bytes=card_gb * 1e9 if card_gb else None,
        dtype_bytes=dtype_bytes(config),
        source=source,
        unknown=tuple(entry.get("unknown", ())),
    )


def unwritten(
    name: str, card_gb: float | None = None, params_b: float | None = None, form: str | None = None
) -> Checkpoint:
    """A checkpoint of which only a card's figures are known: its cache is unknown, and so is what
    it keeps for a sequence.

    Args:
        name: handle.
        card_gb: size in GB (10^9 bytes).
        params_b: 10^9 parameters.
        form: format of the weights; most of them, for sizes not stated.
    """
    card = card_gb * 1e9 if card_gb else None
    known: tuple[Weights, ...] = ()
    if card is None and params_b:
        # Between all weights in this format and half of them left in BF16.
        low, high = (
            BITS_PER_WEIGHT[form or "bf16"] / 8 * params_b * 1e9,
            BITS_PER_WEIGHT["bf16"] / 8 * params_b * 1e9,
        )
        known = (
            Weights("mlp", form or "bf16", Range.of(params_b * 1e9), Range(low, (low + high) / 2)),
        )
    return Checkpoint(
        name,
        None,
        None,
        None,
        known,
        Quantization(form or "none"),
        card_bytes=card,
        unknown=("shape of the model: its KV cache",),
    )
