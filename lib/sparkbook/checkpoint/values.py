"""Facts about a checkpoint as values: a number known in bounds, bytes by class of tensors, and the
geometry of what a sequence keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sparkbook.errors import SparkbookError

Number = int | float


@dataclass(frozen=True)
class Range:
    """A number that is known to lie between two bounds; an exact one has equal bounds.

    Arithmetic carries the bounds through, so that what is unknown at the start is still seen as
    unknown at the end and never counts as zero. Differences and quotients take the worst pairing:
    nothing is assumed about how two unknowns hang together.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise SparkbookError(
                f"a range goes from its lower to its upper bound, not from {self.low} to"
                f" {self.high}"
            )

    @classmethod
    def of(cls, value: Range | Number) -> Range:
        """A range as it is, a number as an exact range."""
        return value if isinstance(value, Range) else cls(value, value)

    @classmethod
    def hull(cls, values: Iterable[Range | Number]) -> Range:
        """The smallest range that holds all of them."""
        ranges = [cls.of(value) for value in values]
        return cls(min(r.low for r in ranges), max(r.high for r in ranges))

    @property
    def exact(self) -> bool:
        """Whether the number is known."""
        return self.low == self.high

    @property
    def known(self) -> bool:
        """Whether it has an upper bound at all."""
        return math.isfinite(self.high)

    @property
    def middle(self) -> float:
        """Halfway between the bounds; the lower bound where there is no upper one."""
        return (self.low + self.high) / 2 if self.known else self.low

    def __contains__(self, value: Number) -> bool:
        return self.low <= value <= self.high

    def __add__(self, other: Range | Number) -> Range:
        other = Range.of(other)
        return Range(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Range | Number) -> Range:
        other = Range.of(other)
        return Range(self.low - other.high, self.high - other.low)

    def __rsub__(self, other: Number) -> Range:
        return Range.of(other) - self

    def __mul__(self, other: Range | Number) -> Range:
        other = Range.of(other)
        # 0 times an unbounded number is 0 here: none of something, however large each of it is.
        pairs = [(a, b) for a in (self.low, self.high) for b in (other.low, other.high)]
        products = [0.0 if a == 0 or b == 0 else a * b for a, b in pairs]
        return Range(min(products), max(products))

    def __truediv__(self, other: Range | Number) -> Range:
        other = Range.of(other)
        if other.low <= 0 <= other.high:
            raise SparkbookError("a number that may be zero divides nothing")
        quotients = [a / b for a in (self.low, self.high) for b in (other.low, other.high)]
        return Range(min(quotients), max(quotients))

    __radd__, __rmul__ = __add__, __mul__

    def __format__(self, spec: str) -> str:
        if self.exact:
            return format(self.low, spec)
        if not self.known:
            return f"at least {self.low:{spec}}"
        low, high = format(self.low, spec), format(self.high, spec)
        return low if low == high else f"{low} to {high}"

    def __str__(self) -> str:
        return format(self, ".4g")


ZERO = Range(0, 0)
UNKNOWN = Range(0, math.inf)
"""Nothing is known but that it is not negative."""

TensorClass = Literal[
    "attention",
    "linear",
    "mlp",
    "shared expert",
    "experts",
    "router",
    "latent",
    "embedding",
    "head",
    "vision",
    "table",
    "draft",
    "norms",
    "scales",
]
"""Classes of tensors: `linear` are recurrent mixers (Mamba-2, Gated DeltaNet), `experts` the routed
ones, `latent` the projections around them, `vision` towers for images and sound, `table` a lookup
table that can stay on the disk, `draft` a multi-token-prediction head, `scales` what quantized
tensors carry.
"""

NOT_READ: frozenset[str] = frozenset({"embedding", "vision", "table", "draft"})
"""Classes that decoding one token does not read as a whole: of the embedding one row, of the towers
nothing; the draft in its own steps.
"""


@dataclass(frozen=True)
class Weights:
    """One class of tensors in one format.

    Attributes:
        kind: class of tensors.
        format: `nvfp4`, `mxfp4`, `fp8`, `int8`, `awq`, `gptq`, `bf16`, `fp32`; or several, where it
            is not known: `bf16 or nvfp4`.
        params: parameters.
        bytes: bytes on disk, the scales included where the class carries its own.
    """

    kind: TensorClass
    format: str
    params: Range
    bytes: Range


@dataclass(frozen=True)
class Cache:
    """Layers of one kind and what each keeps for a sequence.

    Attributes:
        kind: `full` attention; `window` attends to the last tokens only; `mla` keeps one latent
            vector a token; `mamba2` and `gdn` (Gated DeltaNet) keep a state of fixed size.
        layers: layers that have a cache of their own; layers that read another's are not counted.
        heads, size, size_v: KV heads, size of a key and of a value; of `mla` 1 head of the latent
            and rope width, and no value.
        window: tokens of the window.
        conv: channels and taps of the short convolution before a state.
        state: elements of the recurrent state.
        state_bytes: bytes of one element of it; None: as wide as the model's dtype.
        chunk: tokens of a Mamba-2 chunk, to which old releases align blocks; of `window`, tokens of
            the chunks that attention stays inside of (Llama 4).
        checkpointed: the release since which one more state is held for the end of a prefill chunk,
            with prefix caching; empty: none.
        draft: whether the layers belong to a multi-token-prediction head, and exist only while it
            drafts.
        fixed: bytes of one token, where no `--kv-cache-dtype` changes them; 0: heads and sizes
            count.
        block: tokens of a block, where the layers have one of their own; 0: the engine's.
    """

    kind: Literal["full", "window", "mla", "mamba2", "gdn"]
    layers: int
    heads: int = 0
    size: int = 0
    size_v: int = 0
    window: int = 0
    conv: tuple[int, int] = (0, 0)
    state: int = 0
    state_bytes: int | None = None
    chunk: int = 0
    checkpointed: str = ""
    draft: bool = False
    fixed: float = 0
    block: int = 0

    @property
    def recurrent(self) -> bool:
        """Whether a state is kept instead of tokens."""
        return self.kind in ("mamba2", "gdn")

    def token_bytes(self, width: float) -> float:
        """Bytes of one token in one layer; 0 for a state. `width`: bytes of an element of the KV
        cache.
        """
        if self.recurrent:
            return 0
        return self.fixed or self.heads * (self.size + self.size_v) * width

    def sequence_bytes(self, width: int = 2, drafted: int = 0) -> int:
        """Bytes of one state in one layer.

        The convolution's last inputs, one more for each drafted token, and the recurrent state
        (vLLM 0.32.0, `model_executor/layers/mamba/mamba_utils.py`: `mamba2_state_shape`,
        `gated_delta_net_state_shape`).

        Args:
            width: bytes of the model's dtype.
            drafted: drafted tokens a step.
        """
        channels, taps = self.conv
        return channels * (taps - 1 + drafted) * width + self.state * (self.state_bytes or width)


@dataclass(frozen=True)
class Geometry:
    """Shape of the model as far as memory and speed need it. None is unknown.

    Attributes:
        or_caches: what the layers may keep instead of `caches`, where the shape is only estimated.
    """

    layers: int
    hidden: int
    vocabulary: int
    caches: tuple[Cache, ...]
    tied: bool = False
    experts: int = 0
    active_experts: int = 0
    attention_width: int = 0
    context: int | None = None
    intermediate: int = 0
    or_caches: tuple[tuple[Cache, ...], ...] = ()

    @property
    def possible(self) -> tuple[tuple[Cache, ...], ...]:
        """The caches, in each way that is possible; one where the shape is known."""
        return (self.caches, *self.or_caches)


@dataclass(frozen=True)
class Quantization:
    """How the weights are quantized, as the checkpoint says.

    Attributes:
        format: the narrowest: `nvfp4`, `mxfp4`, `fp8`, `int8`, `awq`, `gptq`, `gguf`; `none`.
        producer: `modelopt`, `compressed-tensors`, `openai`, or the quantizer's name; None unknown.
        flag: what `--quantization` has to be; None: vLLM reads it out of the checkpoint, and it is
            best left out.
        ignored: patterns of modules that are left unquantized.
    """

    format: str = "none"
    producer: str | None = None
    flag: str | None = None
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenReads:
    """Bytes that decoding reads, each known in bounds.

    Attributes:
        dense: once a step, whatever the batch: attention, recurrent layers, dense MLPs, router,
            norms.
        shared: shared experts, once a step.
        expert: one routed expert in every layer, all layers together: times `active_experts` for
            one token.
        head: output head, once a step.
        active: parameters that multiply in one token, the head's included.
    """

    dense: Range
    shared: Range
    expert: Range
    head: Range
    active: Range
    experts: int
    active_experts: int

    @property
    def one_token(self) -> Range:
        """Bytes of weights read for one token of one sequence."""
        return self.dense + self.shared + self.head + self.expert * self.active_experts


@dataclass(frozen=True)
class Checkpoint:
    """What is known of a checkpoint without loading it.

    Attributes:
        name: handle or folder.
        architecture: class name in its config; None unknown.
        model_type: the config's.
        geometry: shape; None where the config does not say enough.
        weights: tensors by class and format; the bounds of those that are only known in bounds.
        quantization: how it is quantized.
        revision: commit that was read; None where nothing was pinned.
        files: safetensors files with their bytes; empty where only the config is known.
        card_bytes: size that the model's card states, where it does.
        dtype_bytes: bytes of the model's own dtype (2 for BF16).
        loaded_bytes: bytes that it takes in memory beyond its tensors on disk.
        kv_dtype: type of the KV cache that `auto` means; None: the model's own dtype.
        source: where the facts are from.
        certain: whether the facts are this checkpoint's own, and not those of another or a guess.
        unknown: what is not known, in words; each makes one of the numbers a range.
    """

    name: str
    architecture: str | None
    model_type: str | None
    geometry: Geometry | None
    weights: tuple[Weights, ...]
    quantization: Quantization = Quantization()
    revision: str | None = None
    files: tuple[tuple[str, int], ...] = ()
    card_bytes: float | None = None
    dtype_bytes: int = 2
    loaded_bytes: int = 0
    kv_dtype: str | None = None
    source: str = ""
    certain: bool = True
    unknown: tuple[str, ...] = ()

    @property
    def bytes(self) -> Range:
        """Bytes of all tensors: exact where their headers were read, else what shapes and formats
        allow, cut down to what the card says.
        """
        if not self.weights:
            return (
                Range(self.card_bytes * 0.98, self.card_bytes * 1.02)
                if self.card_bytes
                else UNKNOWN
            )
        counted = sum((part.bytes for part in self.weights), ZERO)
        if self.files or not self.card_bytes:
            return counted
        # A card rounds to two digits, and counts tokenizer and figures too.
        stated = Range(self.card_bytes * 0.95, self.card_bytes * 1.03)
        low, high = max(counted.low, stated.low), min(counted.high, stated.high)
        return Range(low, high) if low <= high else Range.hull((counted, stated))

    @property
    def params(self) -> Range:
        """Parameters, draft head and towers included, scales not."""
        return (
            sum((part.params for part in self.weights if part.kind != "scales"), ZERO)
            if self.weights
            else UNKNOWN
        )

    def of(self, *kinds: TensorClass) -> Range:
        """Bytes of these classes."""
        return sum((part.bytes for part in self.weights if part.kind in kinds), ZERO)

    @property
    def four_bit_share(self) -> Range:
        """Share of the parameters that is stored in 4 bits. A checkpoint called NVFP4 may have much
        of itself in wider formats.
        """
        if not self.weights:
            return Range(0, 1)
        four = ("nvfp4", "mxfp4", "int4", "awq", "gptq")
        yes = no = maybe = 0.0
        for part in self.weights:
            if part.kind == "scales":
                continue
            formats = part.format.split(" or ")
            narrow = [name in four for name in formats]
            count = part.params.middle
            yes, no, maybe = (
                yes + count * all(narrow),
                no + count * (not any(narrow)),
                maybe + count * (any(narrow) and not all(narrow)),
            )
        total = yes + no + maybe
        return Range(yes / total, (yes + maybe) / total) if total else Range(0, 1)

    @property
    def reads(self) -> TokenReads | None:
        """What decoding reads; None where tensors or shape are not known, or how many experts there
        are.
        """
        g = self.geometry
        if not self.weights or g is None:
            return None
        if not g.experts and any(part.kind == "experts" for part in self.weights):
            return None
        scales = self.of("scales")
        head = self.of("embedding") if g.tied else self.of("head")
        dense = self.of("attention", "linear", "mlp", "router", "latent", "norms") + scales
        routed, count = self.of("experts"), max(g.experts, 1)
        active = sum(
            (
                p.params
                for p in self.weights
                if p.kind not in NOT_READ | {"experts", "scales", "head"}
            ),
            ZERO,
        )
        active += sum(
            (p.params for p in self.weights if p.kind == ("embedding" if g.tied else "head")), ZERO
        )
        active += sum((p.params for p in self.weights if p.kind == "experts"), ZERO) * (
            g.active_experts / count
        )
        return TokenReads(
            dense,
            self.of("shared expert"),
            routed / count,
            head,
            active,
            g.experts,
            g.active_experts,
        )
