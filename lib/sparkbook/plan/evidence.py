"""What a step of a model reads, from shapes that are written down where a checkpoint is not known.

The shapes, and published speeds of them, are in `measured.yaml`, each with its source.
`sparkbook.plan.speeds` compares the speeds with the estimates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sparkbook.checkpoint.bandwidth import BITS_PER_WEIGHT
from sparkbook.checkpoint.values import ZERO
from sparkbook.plan.decode import (
    CONCURRENCIES,
    SPARK,
    Drafting,
    Machine,
    Reads,
    Speed,
    expected_length,
    narrow,
    of_checkpoint,
    staged,
)
from sparkbook.recipes.launch import Strict
from sparkbook.recipes.schema import Source
from sparkbook.units import GB
from sparkbook.util import own_yaml

if TYPE_CHECKING:
    from sparkbook.plan.setup import Setup

Heads = tuple[int, int]
"""Number of heads and the size of one."""


class Attention(Strict):
    """Attention layers of one kind."""

    layers: int
    queries: Heads
    keys: Heads
    gated: bool = False
    kv_shared: bool = False
    window: int | None = None

    def params(self, hidden: int) -> float:
        """Parameters of the projections, all layers."""
        query, key = self.queries[0] * self.queries[1], self.keys[0] * self.keys[1]
        return (
            self.layers
            * hidden
            * (query * (2 if self.gated else 1) + key * (1 if self.kv_shared else 2) + query)
        )

    @property
    def kv_bytes(self) -> float:
        """Bytes of KV cache a token in BF16, all layers."""
        return self.layers * 2 * self.keys[0] * self.keys[1] * 2


class Linear(Strict):
    """Recurrent layers: `gdn` is given by key and value heads, `mamba2` by heads, groups and state
    size.
    """

    kind: Literal["gdn", "mamba2"]
    layers: int
    keys: Heads = (0, 0)
    values: Heads = (0, 0)
    heads: Heads = (0, 0)
    groups: int = 0
    state: int = 0

    def params(self, hidden: int) -> float:
        """Parameters of the projections, all layers, without the short convolution (it is tiny)."""
        if self.kind == "gdn":
            key, value = self.keys[0] * self.keys[1], self.values[0] * self.values[1]
            return self.layers * hidden * (2 * key + 2 * value + 2 * self.values[0] + value)
        inner = self.heads[0] * self.heads[1]
        return (
            self.layers
            * hidden
            * (2 * inner + 2 * self.groups * self.state + self.heads[0] + inner)
        )

    @property
    def state_bytes(self) -> float:
        """Bytes of one sequence's state in float32, all layers."""
        if self.kind == "gdn":
            return self.layers * self.values[0] * self.values[1] * self.keys[1] * 4
        return self.layers * self.heads[0] * self.heads[1] * self.state * 4


class Mlp(Strict):
    """Dense MLPs."""

    layers: int
    inner: int


class Experts(Strict):
    """Layers of routed experts. With `latent` they work in a narrower space, between two
    projections.
    """

    layers: int
    count: int
    active: int
    inner: int
    shared: int = 0
    matrices: int = 3
    latent: int | None = None


class Draft(Strict):
    """What a draft reads."""

    passes: int
    weights_gb: float
    layers: int
    routed_gb: float = 0.0


class Formats(Strict, extra="allow"):
    """Format by class of weights; `other` for the classes not named."""

    other: str
    least: dict[str, str] | None = None
    most: dict[str, str] | None = None


class Shape(Strict):
    """A model: what has to be known of it to count its bytes."""

    source: str
    hidden: int
    vocabulary: int
    attention: Attention
    windowed: Attention | None = None
    linear: Linear | None = None
    mlp: Mlp | None = None
    experts: Experts | None = None
    weights: dict[str, Formats]
    drafts: dict[str, Draft] = Field(default_factory=dict)

    @property
    def layers(self) -> int:
        """Layers, as the model's config counts them."""
        blocks = (self.attention, self.windowed, self.linear)
        mixers = sum(block.layers for block in blocks if block)
        separate = (
            self.linear is not None and self.linear.kind == "mamba2"
        )  # there an expert layer counts as a layer of its own
        return mixers + (self.experts.layers if separate and self.experts else 0)

    def params(self) -> dict[str, float]:
        """Parameters that one token goes through, by class of weights."""
        h = self.hidden
        counts = {
            "attention": (
                self.attention.params(h) + (self.windowed.params(h) if self.windowed else 0)
            ),
            "head": self.vocabulary * h,
        }
        if self.linear:
            counts["linear"] = self.linear.params(h)
        if self.mlp:
            counts["mlp"] = self.mlp.layers * 3 * h * self.mlp.inner
        if self.experts:
            e = self.experts
            counts["experts"] = e.layers * e.active * e.matrices * (e.latent or h) * e.inner
            counts["shared"] = e.layers * e.matrices * h * e.shared
            counts["latent"] = e.layers * 2 * h * e.latent if e.latent else 0
            counts["router"] = e.layers * h * e.count
        return counts

    def reads(self, weights: str, kv_factor: float = 1.0) -> tuple[Reads, Reads, Reads]:
        """What a step reads with these weights: least, likely, most. `kv_factor`: how many times
        smaller than BF16 the KV cache is.
        """
        formats = self.weights[weights]
        likely = {
            name: value for name, value in formats.model_dump().items() if isinstance(value, str)
        }
        return (
            self._reads(formats.least or likely, kv_factor),
            self._reads(likely, kv_factor),
            self._reads(formats.most or likely, kv_factor),
        )

    def _reads(self, formats: dict[str, str], kv_factor: float) -> Reads:
        params = self.params()
        sizes = {
            name: (
                count
                * BITS_PER_WEIGHT[
                    "bf16" if name == "router" else formats.get(name, formats["other"])
                ]
                / 8
            )
            for name, count in params.items()
        }
        routed = sizes.pop("experts", 0.0)
        shown = {name: formats.get(name, formats["other"]) for name in params}
        return Reads(
            every_step=sum(sizes.values()),
            layers=self.layers,
            active_params=sum(params.values()),
            routed=routed,
            experts=self.experts.count if self.experts else 0,
            active_experts=self.experts.active if self.experts else 0,
            kv_token=self.attention.kv_bytes / kv_factor,
            kv_window=self.windowed.kv_bytes / kv_factor if self.windowed else 0.0,
            window=self.windowed.window or 0 if self.windowed else 0,
            state=self.linear.state_bytes if self.linear else 0.0,
            head=sizes["head"],
            attention_width=self.attention.layers
            * self.attention.queries[0]
            * self.attention.queries[1],
            hidden=self.hidden,
            active_routed=params.get("experts", 0.0),
            active_narrow=sum(
                count
                for name, count in params.items()
                if name not in ("experts", "router") and narrow(shown[name])
            ),
        )


class Speculation(Strict):
    """Speculative decoding of a row. `length`: mean accepted length that the source states; else it
    is expected from the kind of text.
    """

    use: str
    tokens: int
    text: str = "mixed"
    passes: int | None = None
    length: float | None = None


class Row(Strict):
    """One published figure: tokens a second, all requests together."""

    id: str
    model: str
    weights: str | None = None
    tok_s: float
    concurrency: int = 1
    context: int | None = None
    draft: Speculation | None = None
    perhaps: Speculation | None = Field(
        None, description="a draft that the source neither states nor rules out"
    )
    kv_factor: float = 1.0
    setup: str
    left_out: str | None = None
    note: str | None = None
    source: str


class Prefill(Strict):
    """A published prefill speed of one prompt, tokens a second."""

    model: str
    weights: str
    tok_s: float
    prompt: int
    setup: str
    source: str


class Measured(Strict):
    """`measured.yaml`."""

    unstated_context: int
    models: dict[str, Shape]
    serves: dict[str, tuple[str, str]]
    rows: list[Row]
    further: list[Row]
    prefills: list[Prefill]
    notes: dict[str, str]
    sources: dict[str, dict[str, object]]

    def source(self, row: Row | Prefill) -> Source:
        """Where a figure comes from."""
        return Source.model_validate({"id": row.source, **self.sources[row.source]})

    @property
    def covered(self) -> list[Row]:
        """Rows that the model covers."""
        return [row for row in self.rows if row.left_out is None]


@cache
def measured() -> Measured:
    """The published figures, validated."""
    return Measured.model_validate(own_yaml.read(Path(__file__).with_name("measured.yaml")))


@dataclass(frozen=True)
class Served:
    """A model as it is served, as the decode model needs it.

    Attributes:
        reads: least, likely and most bytes of a step, with the KV cache type that is served.
        draft: speculative decoding, acceptance as expected from mixed text; None without.
        shards, stages: Sparks that share every layer, and that hold the layers one after another.
    """

    reads: tuple[Reads, Reads, Reads]
    draft: Drafting | None
    shards: int = 1
    stages: int = 1

    def on(self, machine: Machine = SPARK) -> Machine:
        """Return the Sparks that take a step together."""
        return replace(machine, nodes=self.shards)

    def speed(self, concurrency: int, context: int, machine: Machine = SPARK) -> Speed:
        """Estimated decode speed of so many requests with so many tokens behind each."""
        return staged(self.reads, self.stages, concurrency, context, self.draft, self.on(machine))

    def speeds(self, context: int) -> list[Speed]:
        """`speed` for each number of requests of `decode.CONCURRENCIES`."""
        return [self.speed(concurrency, context) for concurrency in CONCURRENCIES]


def of_setup(setup: Setup) -> Served | None:
    """What is known of the model of a launch line; None where its bytes, or those of its draft, are
    not.

    A shape of `measured.yaml` comes first: there, what is likely has been thought about where a
        checkpoint only gives bounds. Left out are
    models below 1 GB, whose steps are all overhead with no published figure near them, and
    diffusion models, which fill in whole blocks.
    """
    data, checkpoint = measured(), setup.checkpoint
    if "diffusion" in f"{checkpoint.architecture} {checkpoint.name}".lower():
        return None
    shape: Shape | None = None
    reads: tuple[Reads, Reads, Reads] | None
    if checkpoint.name in data.serves:
        name, weights = data.serves[checkpoint.name]
        shape = data.models[name]
        reads = shape.reads(
            setup.load_format if setup.load_format in shape.weights else weights, 2 / setup.kv_width
        )
    else:
        reads = (
            of_checkpoint(checkpoint, setup.kv_width)
            if checkpoint.bytes.known and checkpoint.bytes.high > GB
            else None
        )
    if reads is None:
        return None
    spread = {"shards": setup.shards, "stages": setup.stages}
    if not setup.drafted:
        return Served(reads, None, **spread)
    own = _own_draft(setup, shape)
    if own is None:
        return None
    return Served(
        reads,
        Drafting(
            setup.drafted,
            PASSES.get(setup.method or "", setup.drafted),
            own.weights_gb * GB,
            own.layers,
            expected_length(setup.drafted, own_head=setup.method == "mtp"),
            routed=own.routed_gb * GB,
        ),
        **spread,
    )


PASSES = {"dflash": 1, "dspark": 1, "ngram": 0, "suffix": 0}
"""How often a method reads the draft's weights; once a token where it is not here. DSpark drafts a
block in one pass, and a small head then goes over the block's tokens (vLLM 0.32.0,
`v1/worker/gpu/spec_decode/dspark/speculator.py`).
"""


def with_mtp(setup: Setup, tokens: int) -> Served | None:
    """Return what is known of a model that drafts so many tokens with its own prediction head.

    None if it has no such head, or its bytes are not known.
    """
    return of_setup(replace(setup, method="mtp", drafted=tokens, draft_bytes=ZERO))


def _own_draft(setup: Setup, shape: Shape | None) -> Draft | None:
    """What a draft reads in a pass: as listed, as its own checkpoint's size says, or as the
    target's checkpoint holds it.
    """
    if shape and setup.method in shape.drafts:
        return shape.drafts[setup.method]
    if setup.method in ("ngram", "suffix"):
        return Draft(passes=0, weights_gb=0, layers=0)
    if setup.draft_bytes.high:
        return Draft(passes=1, weights_gb=setup.draft_bytes.middle / GB, layers=5)
    inside, reads = setup.checkpoint.of("draft"), setup.checkpoint.reads
    if reads is None or not (inside.known and inside.high):
        return None
    # The prediction layer is built like a layer of the target: as large a part of it are experts.
    size, experts = inside.middle / GB, (reads.expert * reads.experts).middle
    part = experts / ((reads.dense + reads.shared).middle + experts)
    active = reads.active_experts / reads.experts if reads.experts else 0.0
    return Draft(passes=1, weights_gb=size * (1 - part), routed_gb=size * part * active, layers=1)


def drafting(shape: Shape, draft: Speculation | None) -> Drafting | None:
    if draft is None:
        return None
    low, likely, high = expected_length(draft.tokens, draft.text, draft.use == "mtp")
    if draft.length:
        low, likely, high = min(low, draft.length), draft.length, max(high, draft.length)
    own = shape.drafts[draft.use]
    return Drafting(
        draft.tokens,
        draft.passes or own.passes,
        own.weights_gb * GB,
        own.layers,
        (low, likely, high),
    )
