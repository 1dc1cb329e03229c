"""What a machine and a model allow at most: no measurement is faster than memory and arithmetic.

A roof is no estimate. Whatever could make a figure lower is left out (KV cache, overhead, experts
that differ between requests, drafts that are rejected), so that only the impossible lies above it.
Pure; sizes in bytes, speeds in tokens a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkbook.checkpoint.bandwidth import ceiling_tok_s
from sparkbook.host import spark

if TYPE_CHECKING:
    from sparkbook.plan.memory import Setup


@dataclass(frozen=True, kw_only=True)
class Roof:
    """The most that one model can do on one kind of machine.

    Attributes:
        step_bytes: bytes of weights that a step reads at least: those of one token, however many
            requests share the step.
        token_flops: FLOPs of one prompt token at least.
        drafted: draft tokens of a step; 0 without speculative decoding.
        bandwidth_gb_s: memory bandwidth in GB/s (10^9 bytes), by specification.
        peak_flop_s: FLOP/s in the narrowest format.
    """

    step_bytes: float
    token_flops: float
    drafted: int = 0
    bandwidth_gb_s: float = spark.BANDWIDTH_GB_S
    peak_flop_s: float = spark.PEAK_FLOP_S

    def decode_tok_s(self, requests: int = 1) -> float:
        """Return tokens a second of so many requests together: each gets one token a step and all
        of its drafts.
        """
        return requests * ceiling_tok_s(self.step_bytes, self.bandwidth_gb_s, 1 + self.drafted)

    def __str__(self) -> str:
        return (
            f"{self.step_bytes / 1e9:g} GB a step, {self.bandwidth_gb_s:g} GB/s, tokens of a step:"
            f" {1 + self.drafted}; {self.token_flops / 1e9:g} GFLOP a prompt token,"
            f" {self.peak_flop_s / 1e12:g} TFLOP/s"
        )

    @property
    def prefill_tok_s(self) -> float:
        """Prompt tokens a second."""
        return self.peak_flop_s / self.token_flops


def of(setup: Setup, machine: str | None) -> Roof | None:
    """Return the roof of what is served on a machine; None where it is not known.

    Known are Sparks by their GPU's name, and models as `plan.evidence.of_setup` knows them: not
    below 1 GB, which a GPU's cache may hold, and no diffusion models, which fill in whole blocks.

    Args:
        setup: the launch line, as `plan.request.read` reads it.
        machine: the machine's GPU, as nvidia-smi names it.
    """
    from sparkbook.plan.evidence import of_setup

    served = of_setup(setup) if "GB10" in (machine or "") else None
    if served is None:
        return None
    least = served.reads[0]
    # What is quantized while loading is read at half of what the checkpoint holds.
    narrower = 0.5 if setup.load_format else 1.0
    return Roof(
        step_bytes=(least.every_step + least.routed) * narrower,
        token_flops=2 * least.active_params,
        drafted=setup.drafted,
        bandwidth_gb_s=spark.BANDWIDTH_GB_S * setup.shards,
        peak_flop_s=spark.PEAK_FLOP_S * setup.shards,
    )
