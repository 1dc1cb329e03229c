"""Published decode speeds beside what `sparkbook.plan.decode` estimates for them: calibration, test
and the book's table.

The figures, the shapes of their models and the rule that divides them stand in `measured.yaml`,
each with its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, sqrt
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sparkbook.checkpoint.bandwidth import BITS_PER_WEIGHT
from sparkbook.checkpoint.values import ZERO
from sparkbook.plan.decode import (
    SPARK,
    Drafting,
    Machine,
    Reads,
    Speed,
    expected_length,
    of_checkpoint,
    speed,
    speeds,
)
from sparkbook.plan.prefill import flops
from sparkbook.recipes.launch import Strict
from sparkbook.recipes.schema import Source
from sparkbook.units import GB
from sparkbook.util import own_yaml

if TYPE_CHECKING:
    from sparkbook.plan.setup import Setup

Group = Literal["calibration", "held out", "further"]
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
        """Parameters of the projections, all layers; the short convolution is left out, it is tiny."""
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
    sources: dict[str, dict[str, object]]

    def source(self, row: Row | Prefill) -> Source:
        """Where a figure comes from."""
        return Source.model_validate({"id": row.source, **self.sources[row.source]})

    @property
    def covered(self) -> list[Row]:
        """Rows that the model covers."""
        return [row for row in self.rows if row.left_out is None]

    def group(self, row: Row) -> Group:
        """Whether a covered row was used to fit parameters, was held out, or came later: every
        second one calibrates.
        """
        if row in self.further:
            return "further"
        return "calibration" if self.covered.index(row) % 2 else "held out"


@cache
def measured() -> Measured:
    """The published figures, validated."""
    return Measured.model_validate(own_yaml.read(Path(__file__).with_name("measured.yaml")))


def estimate(row: Row, machine: Machine = SPARK) -> Speed:
    """What the decode model says for a published figure's setup."""
    data = measured()
    shape = data.models[row.model]
    reads = shape.reads(row.weights or "", row.kv_factor)
    context = row.context or data.unstated_context
    found = speed(reads, row.concurrency, context, _drafting(shape, row.draft), machine)
    if row.perhaps:
        found = replace(
            found,
            high=max(
                found.high,
                speed(reads, row.concurrency, context, _drafting(shape, row.perhaps), machine).high,
            ),
        )
    return found


@dataclass(frozen=True)
class Served:
    """A model as it is served, as the decode model needs it.

    Attributes:
        reads: least, likely and most bytes of a step, with the KV cache type that is served.
        draft: speculative decoding, acceptance as expected from mixed text; None without.
    """

    reads: tuple[Reads, Reads, Reads]
    draft: Drafting | None

    def speeds(self, context: int) -> list[Speed]:
        """Estimated decode speed with so many tokens behind each request, for each number of
        requests of `decode.CONCURRENCIES`.
        """
        return speeds(self.reads, context, self.draft)


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
    if not setup.drafted:
        return Served(reads, None)
    own = _own_draft(setup, shape)
    if own is None:
        return None
    passes = {"dflash": 1, "ngram": 0, "suffix": 0}.get(setup.method or "", setup.drafted)
    return Served(
        reads,
        Drafting(
            setup.drafted, passes, own.weights_gb * GB, own.layers, expected_length(setup.drafted)
        ),
    )


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
    inside = setup.checkpoint.of("draft")
    return (
        Draft(passes=1, weights_gb=inside.middle / GB, layers=1)
        if inside.known and inside.high
        else None
    )


def _drafting(shape: Shape, draft: Speculation | None) -> Drafting | None:
    if draft is None:
        return None
    low, likely, high = expected_length(draft.tokens, draft.text)
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


@dataclass(frozen=True)
class Outcome:
    """A published figure beside its estimate."""

    row: Row
    group: Group
    estimate: Speed

    @property
    def error(self) -> float:
        """Estimate over published figure, less one: above 0 where the estimate is too fast."""
        return self.estimate.tok_s / self.row.tok_s - 1

    @property
    def holds(self) -> bool:
        """Whether the interval holds the published figure."""
        return self.estimate.holds(self.row.tok_s)

    @property
    def gigabytes(self) -> float:
        """Gigabytes (10^9 bytes) of weights, KV cache and state in one likely step, without the
        draft's own.
        """
        data = measured()
        _, reads, _ = data.models[self.row.model].reads(self.row.weights or "", self.row.kv_factor)
        tokens = self.row.concurrency * (1 + (self.row.draft.tokens if self.row.draft else 0))
        per_sequence = reads.kv(self.row.context or data.unstated_context) + 2 * reads.state
        return (reads.weights(tokens) + self.row.concurrency * per_sequence) / GB

    @property
    def plain(self) -> bool:
        """One request at a time, one token a step."""
        return self.row.concurrency == 1 and self.row.draft is None


def outcomes(machine: Machine = SPARK) -> list[Outcome]:
    """Every covered row and every further one, with its estimate."""
    data = measured()
    return [
        Outcome(row, data.group(row), estimate(row, machine))
        for row in (*data.covered, *data.further)
    ]


def median_error(of: Sequence[Outcome]) -> float:
    """Median of the absolute errors."""
    return median(abs(outcome.error) for outcome in of)


def held_share(of: Sequence[Outcome]) -> float:
    """Share of rows whose interval holds the published figure."""
    return sum(outcome.holds for outcome in of) / len(of)


def calibrate() -> Machine:
    """The fitted numbers of `Machine`, from the calibration rows alone.

    Overhead (in steps of 0.01 ms, from rows of one request without a draft) and the speed of
    verifying attention (in steps of 5 GB/s, from rows that state a context) are the values with the
    least sum of absolute errors. The scatter is three times the root mean square error of the rows
    without a draft, rounded up to 0.05: three, because ten rows say little about how far off the
        next build can be.
    """
    machine = SPARK
    rows = [row for row in measured().covered if measured().group(row) == "calibration"]
    plain = [row for row in rows if row.concurrency == 1 and row.draft is None]
    machine = _least(plain, [replace(machine, overhead_s=n / 100 / 1000) for n in range(2, 41)])
    machine = _least(
        [row for row in rows if row.context],
        [replace(machine, verify_kv_gb_s=5.0 * n) for n in range(2, 47)],
    )
    spread = sqrt(sum(_error(row, machine) ** 2 for row in plain) / len(plain))
    return replace(machine, scatter=ceil(3 * spread * 20) / 20)


def _least(rows: Sequence[Row], machines: Sequence[Machine]) -> Machine:
    return min(machines, key=lambda machine: sum(abs(_error(row, machine)) for row in rows))


def _error(row: Row, machine: Machine) -> float:
    return estimate(row, machine).tok_s / row.tok_s - 1


def prefill_rates() -> list[tuple[Prefill, float]]:
    """FLOP/s behind each published prefill speed, by the count of `sparkbook.plan.prefill`."""
    found = []
    for prefill in measured().prefills:
        shape = measured().models[prefill.model]
        _, reads, _ = shape.reads(next(iter(shape.weights)))
        found.append((prefill, flops(reads, prefill.prompt) * prefill.tok_s / prefill.prompt))
    return found
