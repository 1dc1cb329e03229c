"""How long until the first token: prefill computes, so arithmetic sets its pace, and a prefix cache
saves what it has seen before.

A prompt of n tokens behind c cached ones costs

    FLOPs = 2 * active parameters * n  +  4 * (query heads * head size, over full-attention layers)
    * n * (c + n / 2)

multiply-adds counted as two: the matrix products (Kaplan et al., "Scaling Laws for Neural Language
Models", arXiv 2001.08361, section 2.1), and scores and values of attention over everything before.
Its time is a sum:

    time = arithmetic / rate, for routed experts, for other products in 8 or 4 bits, and for what is
    left (16 bits, and attention) + weights read / bandwidth, once a chunk of
    `--max-num-batched-tokens`

Pure; seconds, bytes, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sparkbook.errors import SparkbookError
from sparkbook.plan.decode import LINK_GB_S, SPARK, Machine, Reads
from sparkbook.units import GB


@dataclass(frozen=True)
class Rates:
    """FLOP/s that vLLM reaches in prefill on one Spark. Fitted to the calibration half of published
    prefill speeds and first tokens (`sparkbook.plan.speeds`).

    Attributes:
        wide: of products in 16 bits, and of attention itself.
        narrow: of products in 8 or 4 bits, of layers that every token goes through.
        routed: of routed experts, whose products are small and unequal.
        scatter: what builds and formats differ by: the interval runs from the estimate divided by
            `1 + scatter` to the estimate times it.
    """

    wide: float = 50e12
    narrow: float = 90e12
    routed: float = 35e12
    scatter: float = 0.50


PREFILL = Rates()


@dataclass(frozen=True)
class FirstToken:
    """Estimated time to first token, in seconds, with bounds.

    Attributes:
        prompt: tokens of the prompt.
        cached: tokens of it that the prefix cache holds.
        low_s, seconds, high_s: bounds and likely value.
        flops: arithmetic of the tokens that are computed.
    """

    prompt: int
    cached: int
    low_s: float
    seconds: float
    high_s: float
    flops: float

    @property
    def tok_s(self) -> float:
        """Likely prefill speed over the tokens that are computed, tokens a second."""
        return (self.prompt - self.cached) / self.seconds

    def __str__(self) -> str:
        return f"{self.seconds:.3g} s (estimate; {self.low_s:.3g} to {self.high_s:.3g})"


def flops(reads: Reads, new: int, cached: int = 0) -> float:
    """FLOPs of `new` tokens behind `cached` ones. The output head counts for every token, though
    only the last needs it: a few per cent.
    """
    return 2 * reads.active_params * new + 4 * reads.attention_width * new * (cached + new / 2)


def first_token(
    reads: Reads,
    prompt: int,
    cached: int = 0,
    *,
    block: int = 16,
    chunk: int = 8192,
    machine: Machine = SPARK,
    rates: Rates = PREFILL,
) -> FirstToken:
    """Time to first token of one prompt on an idle engine.

    Args:
        reads: of the model.
        prompt: tokens of the prompt.
        cached: tokens at its front that an earlier request left in the prefix cache. Whole blocks
            only count, and the last token is always computed.
        block: tokens in a block of the KV cache: 16, and hundreds to thousands in hybrid models
            (the plan's memory part says how many).
        chunk: tokens computed in one step, `--max-num-batched-tokens`.
        machine: for the weights that each chunk reads, and the Sparks that share the work.
        rates: FLOP/s in prefill.

    Raises:
        SparkbookError: no prompt, or more cached than the prompt has.
    """
    if prompt < 1 or not 0 <= cached <= prompt:
        raise SparkbookError(
            f"a prompt of {prompt} tokens {cached} of them cached: give at least one, and cache no"
            " more than that"
        )
    kept = min(cached, prompt - 1) // block * block
    new = prompt - kept
    work = flops(reads, new, kept)
    routed, narrow = 2 * reads.active_routed * new, 2 * reads.active_narrow * new
    read = sum(reads.weights(min(chunk, new - i * chunk)) for i in range(ceil(new / chunk)))
    shared = (
        routed / rates.routed
        + narrow / rates.narrow
        + (work - routed - narrow) / rates.wide
        + read / (machine.read_gb_s * GB)
    )
    sent = 2 * reads.layers * (machine.nodes - 1) * new * reads.hidden * 2 * 2 / machine.nodes
    seconds = shared / machine.nodes + sent / (LINK_GB_S * GB)
    margin = 1 + rates.scatter
    return FirstToken(prompt, kept, seconds / margin, seconds, seconds * margin, work)
