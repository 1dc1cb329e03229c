"""How fast decode can be: bytes read per token against the bytes a second that memory delivers.

To make one token for one request, the engine reads every weight that takes part in it once. No
kernel can be faster than

    tokens per second = memory bandwidth / bytes read per token

which is the ceiling worked out here. It is generous on purpose: only the active parameters count,
all of them in the recipe's format, and neither the KV cache nor layers kept in a wider format are
added. A published figure above it needs an explanation, and there is one: speculative decoding and
diffusion make several tokens out of one pass over the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sparkbook.errors import SparkbookError
from sparkbook.units import GB

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe, Speed

BITS_PER_WEIGHT: dict[str, float] = {
    "fp32": 32,
    "bf16": 16,
    "fp8": 8,
    "int8": 8,
    "nvfp4": 4 + 8 / 16,
    "mxfp4": 4 + 8 / 32,
    "awq": 4 + (16 + 4) / 128,
    "gptq": 4 + (16 + 4) / 128,
}
"""Bits that one weight takes with its share of the scales. NVFP4: an 8-bit scale for 16 weights
(NVIDIA, "Introducing NVFP4"); MXFP4: 32 (OCP Microscaling Formats specification 1.0); AWQ and GPTQ
at the usual group of 128: a 16-bit scale and a 4-bit zero point.
"""

Kind = Literal["one token a step", "several tokens a step", "not stated"]

_NOT_STATED = re.compile(r"\bnot (said|stated|given)\b")
_WITHOUT = re.compile(r"\bwithout the draft\b|\bno draft\b", re.IGNORECASE)
_DRAFTED = re.compile(r"\bMTP\b|\bdraft|\bDFlash\b|\bspeculat", re.IGNORECASE)
_FORMAT = re.compile(r"\b(BF16|FP8|INT8|AWQ INT8|AWQ INT4|NVFP4|MXFP4)\b(?! KV)")


def bytes_per_token(active_params_b: float, weight_format: str) -> float:
    """Bytes of weights read to make one token for one request.

    Args:
        active_params_b: 10^9 parameters that take part in one token.
        weight_format: a key of `BITS_PER_WEIGHT`.

    Raises:
        SparkbookError: the format is not known.
    """
    if weight_format not in BITS_PER_WEIGHT:
        raise SparkbookError(
            f"'{weight_format}' is no weight format; known are {', '.join(BITS_PER_WEIGHT)}"
        )
    return active_params_b * 1e9 * BITS_PER_WEIGHT[weight_format] / 8


def ceiling_tok_s(bytes_read: float, bandwidth_gb_s: float, tokens_per_step: float = 1.0) -> float:
    """Tokens a second that memory allows to one request.

    Args:
        bytes_read: bytes read in one step, as `bytes_per_token` gives.
        bandwidth_gb_s: memory bandwidth in GB/s (10^9 bytes).
        tokens_per_step: tokens that one step yields: 1, or the mean acceptance length of
            speculative decoding.

    Raises:
        SparkbookError: nothing is read.
    """
    if bytes_read <= 0:
        raise SparkbookError("a step reads some bytes: give a number above 0")
    return bandwidth_gb_s * GB / bytes_read * tokens_per_step


def distinct_experts(experts: int, active: int, tokens: float) -> float:
    """How many experts of a layer a step with several tokens touches on average.

    With a router that spreads tokens evenly an expert is missed by one token with probability
    `1 - active/experts`, and by all of them with that to the power of `tokens`. A real router is
    less even and touches somewhat fewer.

    Args:
        experts: experts in a layer.
        active: experts that one token goes through.
        tokens: tokens in the step: concurrent requests, times the drafted tokens and one with
            speculative decoding.
    """
    if not 0 < active <= experts:
        raise SparkbookError(
            f"{active} of {experts} experts: a token goes through at least one and at most all of"
            " them"
        )
    return experts * (1 - (1 - active / experts) ** tokens)


@dataclass(frozen=True)
class Point:
    """A published speed of one request next to the ceiling of its model.

    Attributes:
        recipe: id of the recipe that holds the figure.
        title: the recipe's title.
        weight_format: format of the weights that were served.
        ceiling: tokens a second that memory allows, one token a step.
        published: tokens a second; of a range the upper end, peaks aside, so that the comparison is
            a hard one.
        kind: how many tokens one step made.
        source: title of the source.
    """

    recipe: str
    title: str
    weight_format: str
    ceiling: float
    published: float
    kind: Kind
    source: str

    @property
    def share(self) -> float:
        """Published speed as a share of the ceiling."""
        return self.published / self.ceiling


def published_points(recipes: Iterable[Recipe], bandwidth_gb_s: float) -> list[Point]:
    """The published speeds of single requests on one Spark, each next to the ceiling of its model,
    sorted by ceiling.

    Left out is what cannot be compared: other machines, several requests at once, and models whose
        active parameters no source gives.
    A figure that several recipes quote from the same source stands once.
    """
    found: dict[tuple[object, ...], Point] = {}
    for recipe in recipes:
        active = recipe.model.active_params_b
        if active is None or recipe.topology.nodes > 1:
            continue
        for speed in recipe.benchmarks.speed:
            published = speed.best_tok_s
            if not speed.on_spark or speed.concurrency > 1 or published is None:
                continue
            weights = _weights_served(recipe, speed)
            kind = _kind(recipe, speed)
            ceiling = ceiling_tok_s(bytes_per_token(active, weights), bandwidth_gb_s)
            point = Point(
                recipe.id,
                recipe.title,
                weights,
                ceiling,
                published,
                kind,
                recipe.source(speed.source).title,
            )
            found.setdefault((recipe.model.total_params_b, active, weights, published, kind), point)
    return sorted(found.values(), key=lambda point: (point.ceiling, point.published, point.recipe))


def _weights_served(recipe: Recipe, speed: Speed) -> str:
    """The weights' format: what the figure's configuration says, else the recipe's."""
    said = _FORMAT.search(speed.configuration or "")
    if not said:
        return recipe.model.quantization.format
    return {"awq int4": "awq", "awq int8": "int8"}.get(said[1].lower(), said[1].lower())


def _kind(recipe: Recipe, speed: Speed) -> Kind:
    text = speed.configuration or ""
    if _WITHOUT.search(text):
        return "one token a step"
    if _NOT_STATED.search(text):
        return "not stated"
    diffusion = "diffusion" in (recipe.model.design or "").lower()
    if (
        speed.acceptance
        or speed.acceptance_length
        or recipe.draft
        or diffusion
        or _DRAFTED.search(text)
    ):
        return "several tokens a step"
    return "one token a step"
