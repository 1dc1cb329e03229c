"""A checkpoint of which only its name and its card's figures are known: wide ranges, marked as
such.
"""

from __future__ import annotations

from dataclasses import replace

from sparkbook.checkpoint import gguf
from sparkbook.checkpoint.configs import Card
from sparkbook.checkpoint.naming import Parts
from sparkbook.checkpoint.values import (
    Cache,
    Checkpoint,
    Geometry,
    Quantization,
    Range,
    TensorClass,
    Weights,
)
from sparkbook.units import GIB

BITS = {
    "bf16": 16.0,
    "fp8": 8.0,
    "int8": 8.0,
    "mxfp8": 8.25,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
    "int4": 4.125,
}
"""Bits of one weight with its share of the scales, at the least."""

_LEFT_OUT = 0.3
"""The largest share of the parameters that a quantized checkpoint keeps in BF16. Of the table's 39
quantized configurations none keeps more, except the smallest models, whose embedding weighs much.
"""
_LEFT_OUT_SPARSE, _SPARSE = 0.15, 0.2
"""The same of a mixture of experts in which a token uses less than a fifth of the parameters: its
experts are what is quantized.
"""
_SMALL_B = 4.0
"""10^9 parameters below which the embedding may be half of the model."""

_WIDEST: tuple[tuple[float, Cache], ...] = (
    (9, Cache("full", 40, 8, 128, 128)),
    (45, Cache("full", 64, 8, 128, 128)),
    (150, Cache("full", 88, 8, 128, 128)),
    (float("inf"), Cache("full", 128, 8, 128, 128)),
)
"""By 10^9 parameters, what the attention of a model keeps at the most: every layer full attention
with 8 KV heads of 128. No configuration of the table keeps more for its size.
"""
_NARROWEST = Cache("mla", 3, 1, 576, 0)
"""At the least: 3.4 KiB a token in BF16. The least of the table is DeepSeek V4 Flash with 3.8."""


def guess(
    name: str, parts: Parts, card: Card | None, size_gb: float | None = None
) -> Checkpoint | None:
    """Return what can be said of a checkpoint; None where nothing states a size.

    Args:
        name: handle.
        parts: the name taken apart.
        card: the card's figures.
        size_gb: size that a recipe states, in GB (10^9 bytes).
    """
    params = (card.params_b if card else None) or parts.params_b
    if params is None and not size_gb:
        return None
    form = parts.format or (card.format if card else None)
    files = form is None and "gguf" in parts.words and not parts.gguf
    form = "int4" if files or (form and form not in BITS) else form or "bf16"
    weights = _weights(params, form, card, 1.0 if files else None)
    if parts.gguf:
        form, bits = "gguf", parts.gguf * (1 / 8)
        weights = tuple(replace(part, format=form, bytes=part.params * bits) for part in weights)
    decoder = card is None or card.context != 0
    said = "its name" if card is None else f"its name and its card ({card.source})"
    unknown = ["shape of the model: weights and KV cache are wide ranges"]
    if not decoder:
        unknown = ["what it keeps for a request: it is no decoder of text"]
    if files:
        unknown.append("which of its GGUF files, and so how many bits, is served")
    if parts.gguf:
        unknown.append(gguf.SPEED)
    return Checkpoint(
        name,
        None,
        None,
        shape(params or 0, card.context if card else None) if decoder and params else None,
        weights,
        Quantization("none" if form == "bf16" else form),
        card_bytes=size_gb * 1e9 if size_gb else None,
        source=f"estimated from {said}",
        certain=False,
        unknown=tuple(unknown),
    )


def _weights(
    params: float | None, form: str, card: Card | None, left: float | None
) -> tuple[Weights, ...]:
    """The weights in one class, and apart from it a table that can stay on the disk. Where a token
    needs a part of them only, they are experts, of which nobody says how many there are.

    Args:
        left: the largest share of them that may be in BF16; None: what is usual.
    """
    if params is None:
        return ()
    kind: TensorClass = "experts" if card and 0 < (card.active_b or 0) < 0.9 * params else "mlp"
    table = card.table_b if card else 0
    ends = {BITS[card.table_format], BITS["bf16"] if not card.gib else 0} - {0} if card else {0}
    held = Range.hull(ends) * (table * 1e9 / 8)
    tables: tuple[Weights, ...] = ()
    if table and card:
        tables = (Weights("table", card.table_format, Range.of(table * 1e9), held),)
    spread = 0.0 if card and card.gib else 0.07
    count = Range((params - table) * (1 - spread) * 1e9, (params - table) * (1 + spread) * 1e9)
    if card and card.gib:
        whole = Range(card.gib * 0.99, card.gib * 1.01) * GIB
        return (Weights(kind, form, count, whole - held), *tables)
    sparse = bool(card and card.active_b and card.active_b < params * _SPARSE)
    if left is None:
        left = 0.5 if params < _SMALL_B else _LEFT_OUT_SPARSE if sparse else _LEFT_OUT
    bits = Range(BITS[form], BITS[form] + (BITS["bf16"] - BITS[form]) * left)
    return (Weights(kind, form, count, count * bits * (1 / 8)), *tables)


def shape(params_b: float, context: int | None) -> Geometry:
    """The two ends of what a decoder of so many parameters (10^9) may keep."""
    widest = next(cache for most, cache in _WIDEST if params_b <= most)
    return Geometry(
        layers=widest.layers,
        hidden=0,
        vocabulary=0,
        caches=(widest,),
        or_caches=((_NARROWEST,),),
        context=context,
    )
