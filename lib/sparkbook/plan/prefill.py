"""How long until the first token: prefill computes, so arithmetic sets its pace, and a prefix cache
saves what it has seen before.

A prompt of n tokens behind c cached ones costs

    FLOPs = 2 * active parameters * n  +  4 * (query heads * head size, over full-attention layers)
    * n * (c + n / 2)

multiply-adds counted as two: the matrix products (Kaplan et al., "Scaling Laws for Neural Language
Models", arXiv 2001.08361, section 2.1), and scores and values of attention over everything before.
Each chunk of `--max-num-batched-tokens` also reads the weights once, all experts included. Pure;
seconds, bytes, tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from sparkbook.errors import SparkbookError
from sparkbook.plan.decode import SPARK, Machine, Reads
from sparkbook.units import GB

PREFILL_FLOP_S = (24e12, 59e12, 96e12)
"""FLOP/s that vLLM reaches in prefill on a Spark: least, median and most of the published prefill
speeds.

They are in `measured.yaml`; each is multiplied by the FLOPs of one of its tokens
(`evidence.prefill_rates`). Builds differ by four: even the same flags gave 6,265 and 12,276
tokens/s within a week (vLLM recipes PR 918; NVIDIA local-ai-inference-recipes).
"""


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
    block: int = 16,
    chunk: int = 8192,
    machine: Machine = SPARK,
    flop_s: tuple[float, float, float] = PREFILL_FLOP_S,
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
        machine: for the weights that each chunk reads.
        flop_s: FLOP/s in prefill: least, likely, most.

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
    read_s = sum(reads.weights(min(chunk, new - i * chunk)) for i in range(ceil(new / chunk))) / (
        machine.read_gb_s * GB
    )
    slow, likely, fast = (max(work / rate, read_s) for rate in flop_s)
    return FirstToken(prompt, kept, fast, likely, slow, work)
