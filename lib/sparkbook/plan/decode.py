"""How fast decode will be: what a step reads and computes, over what the machine delivers, as an
interval.

One step of the engine makes one token for each running sequence, or with speculative decoding a
few. Its time is a sum:

    step = max(weights read / bandwidth, arithmetic / peak) + KV cache and states / bandwidth +
    draft + overhead * layers

Four numbers describe the machine and the engine (`Machine`). The bandwidth is a published probe's
and the arithmetic follows from NVIDIA's specification; overhead, and the speed of attention while
verifying, are fitted to the calibration half of published measurements (`sparkbook.plan.evidence`),
which also gives the width of the interval. Everything else is counted in bytes.

Pure: no clock, no files, no network. Times in seconds, sizes in bytes, speeds in tokens a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from sparkbook.checkpoint.bandwidth import distinct_experts
from sparkbook.checkpoint.values import ZERO
from sparkbook.errors import SparkbookError
from sparkbook.host import spark
from sparkbook.units import GB

if TYPE_CHECKING:
    from sparkbook.checkpoint.values import Checkpoint, Range

CONCURRENCIES = (1, 4, 8, 16)
"""Requests at once that a plan answers for."""


@dataclass(frozen=True)
class Machine:
    """What sets the pace of a step on one DGX Spark.

    Attributes:
        read_gb_s: GB/s (10^9 bytes) that a kernel which only reads gets out of memory; the middle
            of the probe's 231 to 234 GB/s (https://github.com/antirez/ds4/issues/773; nominal are
            273).
        peak_flop_s: multiply-adds count as two. The specification's 1 PFLOP/s is FP4 with sparsity;
            dense halves it, and FP8 and BF16 each halve it again (NVIDIA DGX Spark data sheet; GEMM
            kernels that unpack 4-bit weights compute in BF16).
        overhead_s: seconds a layer beyond reading: kernel starts, norms, routing, sampling. Fitted.
        verify_kv_gb_s: GB/s at which attention reads the KV cache when a sequence brings several
            tokens to verify. Fitted to one build's three context lengths; decode with one token a
            sequence is taken at `read_gb_s`.
        scatter: what builds and kernels differ by. The interval runs from the estimate divided by
            `1 + scatter` to the estimate times it.
        nodes: Sparks that share every layer by tensor parallelism.
        reduce_s: seconds of an all-reduce of up to 8 KiB between two of them.
    """

    read_gb_s: float = sum(spark.READ_GB_S) / 2
    peak_flop_s: float = spark.PEAK_FLOP_S / 4
    overhead_s: float = 0.19e-3
    verify_kv_gb_s: float = 20.0
    scatter: float = 0.20
    nodes: int = 1
    reduce_s: float = 35e-6

    def all_reduces(self, layers: int, size: float) -> float:
        """Seconds of the two all-reduces of each layer, after attention and after the MLP, of so
        many bytes each. Every further node is one more step of the ring.
        """
        beyond = max(size - SMALL, 0) / (SMALL_LINK_GB_S * GB) * 2 / self.nodes
        return 2 * layers * (self.nodes - 1) * (self.reduce_s + beyond)


SPARK = Machine()
SMALL = 8192
"""Bytes up to which an all-reduce takes `Machine.reduce_s`: NCCL over both halves of one 200 Gb/s
port of two Sparks, 30 to 40 µs (https://github.com/NVIDIA/dgx-spark-playbooks/pull/103).
"""
SMALL_LINK_GB_S = 1.6
"""GB/s of what goes beyond, up to some tens of KiB: 65 µs for 64 KiB there."""
LINK_GB_S = 22.0
"""GB/s of an all-reduce of large messages, as in prefill
(https://github.com/NVIDIA/dgx-spark-playbooks/issues/25).
"""


@dataclass(frozen=True)
class Reads:
    """What one decode step of a model reads, and the arithmetic for one token.

    Attributes:
        every_step: bytes of weights read once a step, whatever the batch: attention, dense and
            shared MLPs, norms, the output head. Not the input embedding (one row a token) and not a
            vision tower.
        routed: bytes of the routed experts that one token goes through, all layers together; 0 for
            a dense model.
        experts: routed experts in a layer; 0 for a dense model.
        active_experts: experts that one token goes through in a layer.
        layers: layers of the model, each costing its overhead.
        active_params: parameters that multiply in one token.
        kv_token: bytes of KV cache that one token of context adds in layers that attend to
            everything.
        kv_window: the same of layers that attend to a window.
        window: tokens of that window.
        state: bytes of recurrent state of one sequence (Mamba-2, Gated DeltaNet); 0 without such
            layers.
        head: bytes of the output head; a draft that shares it reads it again.
        attention_width: query heads times head size, summed over the layers that attend to
            everything; prefill's quadratic part.
        hidden: width of the residual stream, which several nodes add up; 0 where it is not known.
        active_routed: parameters of routed experts among `active_params`.
        active_narrow: parameters of the others that are multiplied in 8 or 4 bits.
    """

    every_step: float
    layers: int
    active_params: float
    routed: float = 0.0
    experts: int = 0
    active_experts: int = 0
    kv_token: float = 0.0
    kv_window: float = 0.0
    window: int = 0
    state: float = 0.0
    head: float = 0.0
    attention_width: float = 0.0
    hidden: int = 0
    active_routed: float = 0.0
    active_narrow: float = 0.0

    def weights(self, tokens: float) -> float:
        """Bytes of weights that a step with so many tokens reads. Experts are counted as touched by
        a router that spreads evenly.
        """
        return self.every_step + self.routed * self.touched(tokens)

    def touched(self, tokens: float) -> float:
        """How many times the experts of one token so many tokens touch together."""
        if not self.experts:
            return 1.0
        return distinct_experts(self.experts, self.active_experts, tokens) / self.active_experts

    def kv(self, context: int) -> float:
        """Bytes of KV cache that one sequence of so many tokens reads."""
        return self.kv_token * context + self.kv_window * min(context, self.window)

    def scaled(self, factor: float) -> Reads:
        """The same with every weight wider or narrower: for a checkpoint whose size is known in
        bounds only.
        """
        return replace(
            self,
            every_step=self.every_step * factor,
            routed=self.routed * factor,
            head=self.head * factor,
        )


def of_checkpoint(
    checkpoint: Checkpoint, kv_width: float = 2.0
) -> tuple[Reads, Reads, Reads] | None:
    """What a step reads of a checkpoint: least, likely (halfway) and most; None where its tensors
    or its shape are not known.

    Args:
        checkpoint: with what is known of it, bounds included.
        kv_width: bytes of an element of the KV cache: 2 for BF16, 1 for FP8.
    """
    reads, shape = checkpoint.reads, checkpoint.geometry
    if reads is None or shape is None:
        return None
    caches = [cache for cache in shape.caches if not cache.draft]
    windows = [cache for cache in caches if cache.kind == "window"]

    def one(of: Callable[[Range], float]) -> Reads:
        return Reads(
            every_step=of(reads.dense + reads.shared + reads.head),
            layers=shape.layers,
            active_params=of(reads.active),
            routed=of(reads.expert) * reads.active_experts,
            experts=reads.experts,
            active_experts=reads.active_experts,
            kv_token=sum(
                cache.layers * cache.token_bytes(kv_width)
                for cache in caches
                if cache.kind in ("full", "mla")
            ),
            kv_window=sum(cache.layers * cache.token_bytes(kv_width) for cache in windows),
            window=max((cache.window for cache in windows), default=0),
            state=sum(
                cache.layers * cache.sequence_bytes(checkpoint.dtype_bytes)
                for cache in caches
                if cache.recurrent
            ),
            head=of(reads.head),
            attention_width=shape.attention_width,
            hidden=shape.hidden,
            active_routed=sum(
                (w.params for w in checkpoint.weights if w.kind == "experts"), ZERO
            ).middle
            * (reads.active_experts / reads.experts if reads.experts else 0.0),
            active_narrow=sum(
                (w.params for w in checkpoint.weights if w.kind in MULTIPLIED and narrow(w.format)),
                ZERO,
            ).middle,
        )

    return (
        one(lambda value: value.low),
        one(lambda value: value.middle),
        one(lambda value: value.high),
    )


MULTIPLIED = ("attention", "linear", "mlp", "shared expert", "head")
"""Classes of weights that every token goes through, besides routed experts."""


def narrow(format_: str) -> bool:
    """Whether the GPU multiplies weights of a format in 8 or 4 bits. Integers are unpacked to 16
    bits first.
    """
    return format_ in ("fp8", "nvfp4")


@dataclass(frozen=True)
class Drafting:
    """Speculative decoding as it enters a step.

    Attributes:
        tokens: drafted tokens a step.
        passes: how often the draft reads its weights for them: once for a block draft (DFlash,
            DSpark), once a token for MTP, EAGLE and draft models, never for n-gram.
        weights: bytes of the draft's own weights that every pass reads, without the output head.
        layers: its layers.
        shares_head: it reads the target's output head in each pass.
        length: mean accepted length, tokens a step with the target's own included: likely value and
            bounds.
    """

    tokens: int
    passes: int
    weights: float
    layers: int
    length: tuple[float, float, float]
    shares_head: bool = True
    routed: float = 0.0

    def __post_init__(self) -> None:
        low, likely, high = self.length
        if not 1 <= low <= likely <= high <= self.tokens + 1:
            raise SparkbookError(
                f"mean accepted lengths {self.length} for {self.tokens} drafted tokens: low, likely"
                f" and high go from 1 to {self.tokens + 1}"
            )


def mean_length(per_position: Iterable[float]) -> float:
    """Mean accepted length out of acceptance by position, as vLLM logs it: tokens a step, the
    target's own included.

    Position i's rate is the share of *all* drafts whose i-th token was accepted, so the mean is 1
    plus their sum (vLLM, `v1/spec_decode/metrics.py`: "Mean acceptance length", "Per-position
    acceptance rate").

    Raises:
        SparkbookError: a rate is no share, or rises: a token counts only if all before it were
            accepted.
    """
    rates = list(per_position)
    if any(not 0 <= rate <= 1 for rate in rates) or any(b > a + 1e-9 for a, b in pairwise(rates)):
        raise SparkbookError(f"acceptance by position {rates}: shares from 0 to 1 that never rise")
    return 1 + sum(rates)


def geometric_length(rate: float, tokens: int) -> float:
    """Mean accepted length if each drafted token is accepted with the same probability, given that
    all before it were.
    """
    return mean_length(rate**position for position in range(1, tokens + 1))


ACCEPTANCE: dict[str, tuple[float, float, float]] = {
    "code": (0.82, 0.86, 0.90),
    "reasoning": (0.75, 0.81, 0.87),
    "dialogue": (0.70, 0.75, 0.80),
    "prose": (0.60, 0.667, 0.72),
    "mixed": (0.60, 0.75, 0.87),
}
"""Chance that the next drafted token is accepted, by kind of text: low, likely, high.

The likely values of code, dialogue and prose give the lengths of a block draft that
https://github.com/AEON-7/vllm-dflash states (5.5, 3 and 2 of 15 drafted tokens accepted); reasoning
is put between code and dialogue; mixed spans from prose to code. On your own text, measure it:
`vllm:spec_decode_num_accepted_tokens_per_pos_total`.
"""


OWN_HEAD = (0.70, 0.83, 0.90)
"""The same for mixed text and the model's own prediction head, which drafts few tokens. The likely
value is fitted (`sparkbook.plan.speeds.calibrate`).
"""


def expected_length(
    tokens: int, text: str = "mixed", own_head: bool = False
) -> tuple[float, float, float]:
    """Mean accepted length to expect where nothing was measured: low, likely, high.

    Raises:
        SparkbookError: the kind of text is not one of `ACCEPTANCE`.
    """
    if own_head and text == "mixed":
        low, likely, high = (geometric_length(rate, tokens) for rate in OWN_HEAD)
        return low, likely, high
    if text not in ACCEPTANCE:
        raise SparkbookError(
            f"no acceptance is known for '{text}'; known are {', '.join(ACCEPTANCE)}"
        )
    low, likely, high = (geometric_length(rate, tokens) for rate in ACCEPTANCE[text])
    return low, likely, high


@dataclass(frozen=True)
class Step:
    """Where the time of one step goes, in seconds."""

    weights_s: float
    kv_s: float
    state_s: float
    draft_s: float
    overhead_s: float
    limit: Literal["memory", "arithmetic"]
    network_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of the step."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, float]:
        """Seconds by name, in the order of the formula; the network where there is one."""
        parts = {
            "weights": self.weights_s,
            "KV cache": self.kv_s,
            "recurrent state": self.state_s,
            "draft": self.draft_s,
            "overhead": self.overhead_s,
        }
        return parts | ({"network": self.network_s} if self.network_s else {})


def step(
    reads: Reads,
    concurrency: int,
    context: int,
    draft: Drafting | None = None,
    machine: Machine = SPARK,
) -> Step:
    """One decode step of `concurrency` sequences, each with `context` tokens behind it.

    A verifying step carries `draft.tokens + 1` tokens a sequence. Its weights are read once for all
    of them, except that more tokens touch more experts. Recurrent layers read the state once and
    write it after every token, because a rejected draft has to be taken back (vLLM's
    `fused_recurrent_gated_delta_rule` stores the state inside its loop over tokens).

    Raises:
        SparkbookError: fewer than one sequence, or a negative context.
    """
    if concurrency < 1 or context < 0:
        raise SparkbookError(
            f"{concurrency} sequences of {context} tokens: a step has at least one, with 0 tokens"
            " or more behind it"
        )
    bandwidth = machine.read_gb_s * machine.nodes * GB
    rows = 1 + (draft.tokens if draft else 0)
    reading = reads.weights(concurrency * rows) / bandwidth
    computing = 2 * reads.active_params * concurrency * rows / (machine.peak_flop_s * machine.nodes)
    attention = bandwidth if rows == 1 else machine.verify_kv_gb_s * machine.nodes * GB
    network = machine.all_reduces(reads.layers, concurrency * rows * reads.hidden * 2)
    drafting = 0.0
    if draft:
        head = reads.head if draft.shares_head else 0.0
        drafting = draft.passes * (
            (draft.weights + draft.routed * reads.touched(concurrency) + head) / bandwidth
            + draft.layers * machine.overhead_s
        )
    return Step(
        weights_s=max(reading, computing),
        kv_s=concurrency * reads.kv(context) / attention,
        state_s=concurrency * reads.state * (1 + rows) / bandwidth,
        draft_s=drafting,
        overhead_s=reads.layers * machine.overhead_s,
        network_s=network,
        limit="memory" if reading >= computing else "arithmetic",
    )


@dataclass(frozen=True)
class Speed:
    """Estimated decode speed: tokens a second, all sequences together, with its interval.

    Attributes:
        concurrency: sequences at once.
        context: tokens behind each of them.
        low, tok_s, high: bounds and likely value of the aggregate.
        step: where the likely step's time goes.
        length: tokens a step and sequence: 1, or the likely mean accepted length.
    """

    concurrency: int
    context: int
    low: float
    tok_s: float
    high: float
    step: Step
    length: float = 1.0

    @property
    def per_request(self) -> tuple[float, float, float]:
        """Low, likely and high tokens a second for one of the sequences."""
        return (
            self.low / self.concurrency,
            self.tok_s / self.concurrency,
            self.high / self.concurrency,
        )

    def holds(self, measured: float) -> bool:
        """Whether a measured aggregate lies in the interval."""
        return self.low <= measured <= self.high

    def __str__(self) -> str:
        return f"{self.tok_s:.3g} tok/s (estimate; {self.low:.3g} to {self.high:.3g})"


def speed(
    reads: Reads | tuple[Reads, Reads, Reads],
    concurrency: int = 1,
    context: int = 1024,
    draft: Drafting | None = None,
    machine: Machine = SPARK,
) -> Speed:
    """Estimated decode speed and its interval.

    The bounds join what is not known of the input (a checkpoint's bytes, acceptance, attention
    while verifying) with `machine.scatter`. The upper one is no higher than memory allows at its
    specified bandwidth, with nothing lost between steps.

    Args:
        reads: of the model; three of them (least, likely, most bytes) where the checkpoint is known
            in bounds only.
        concurrency: sequences at once.
        context: tokens behind each of them.
        draft: speculative decoding.
        machine: what sets the pace.
    """
    least, likely, most = reads if isinstance(reads, tuple) else (reads, reads, reads)
    low_length, length, high_length = draft.length if draft else (1.0, 1.0, 1.0)
    quickest = replace(machine, verify_kv_gb_s=machine.read_gb_s)
    nominal = max(spark.BANDWIDTH_GB_S, machine.read_gb_s)
    ideal = step(
        least,
        concurrency,
        context,
        draft,
        replace(machine, read_gb_s=nominal, verify_kv_gb_s=nominal, overhead_s=0.0, reduce_s=0.0),
    )
    middle = step(likely, concurrency, context, draft, machine)
    slow, fast = (
        step(most, concurrency, context, draft, machine),
        step(least, concurrency, context, draft, quickest),
    )
    margin = 1 + machine.scatter
    return Speed(
        concurrency=concurrency,
        context=context,
        low=concurrency * low_length / slow.total_s / margin,
        tok_s=concurrency * length / middle.total_s,
        high=concurrency * high_length / max(fast.total_s / margin, ideal.total_s),
        step=middle,
        length=length,
    )


def speeds(
    reads: Reads | tuple[Reads, Reads, Reads],
    context: int = 1024,
    draft: Drafting | None = None,
    machine: Machine = SPARK,
    concurrencies: Sequence[int] = CONCURRENCIES,
) -> list[Speed]:
    """`speed` for each number of requests at once."""
    return [speed(reads, concurrency, context, draft, machine) for concurrency in concurrencies]


def staged(
    reads: Reads | tuple[Reads, Reads, Reads],
    stages: int,
    concurrency: int,
    context: int = 1024,
    draft: Drafting | None = None,
    machine: Machine = SPARK,
) -> Speed:
    """`speed` where so many Sparks hold the layers one after another. A step takes what it takes on
    one Spark, but with several requests every stage has one of so many groups in hand.
    """
    groups = min(stages, concurrency)
    one = speed(reads, -(-concurrency // groups), context, draft, machine)
    gain = concurrency / one.concurrency
    return replace(
        one,
        concurrency=concurrency,
        low=one.low * gain,
        tok_s=one.tok_s * gain,
        high=one.high * gain,
    )
