"""Will it fit: vLLM's memory arithmetic on a machine with one pool, with every unknown as a range.

    requested = total * fraction, and the host must have that much available at the start
    KV cache  = requested - weights - CUDA context and libraries - activations - CUDA graphs
    (estimated beforehand since 0.21)

(vLLM 0.32.0: `request_memory` in `v1/worker/utils.py`, `determine_available_memory` in
`v1/worker/gpu_worker.py`.) Or the size of the cache is given with `--kv-cache-memory-bytes`: the
profile is then not examined, and the start check still is. Pure: no clock, files or network. Bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sparkbook.checkpoint.values import ZERO, Range
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.plan.kv import KV_WIDTH, Pages
from sparkbook.plan.rules import PLAN, Verdict, of_plan
from sparkbook.plan.setup import (
    ACTIVATION_PER_1K,
    CUDA_CONTEXT,
    GRAPHS,
    GRAPHS_DRAFTED,
    RESERVE,
    SYSTEM,
    Host,
    Setup,
)
from sparkbook.releases import at_least
from sparkbook.units import GIB

if TYPE_CHECKING:
    from sparkbook.plan.decode import Speed
    from sparkbook.plan.prefill import FirstToken
    from sparkbook.plan.speeds import Shown
    from sparkbook.releases.answers import Answer, Capacity

_LEAST_CONTEXT = 2048
"""Tokens below which a context is not worth a launch line."""

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of sequences for which the longest context is worked out."""


@dataclass(frozen=True)
class Calibration:
    """What this machine's engines have shown, to be used instead of the general figures.

    Attributes:
        weights: loaded over predicted weights.
        working: bytes of context and activations, measured.
        graphs: bytes of CUDA graphs, measured.
        samples: logs that it comes from.
    """

    weights: float = 1.0
    working: float | None = None
    graphs: float | None = None
    samples: int = 0


@dataclass(frozen=True)
class MemoryPlan:
    """Whether it fits, with the working. Sizes are bytes; None is unknown.

    Attributes:
        said: what vLLM itself said of the line; its weights and its KV cache then take the place of
            ours.
    """

    setup: Setup
    host: Host = field(default_factory=Host)
    calibration: Calibration = field(default_factory=Calibration)
    said: Answer | None = None

    # ---- the budget

    @cached_property
    def weights(self) -> Range:
        """The target's weights."""
        if self.said and self.said.weights_bytes is not None:
            return Range.of(self.said.weights_bytes - self.said.draft_bytes)
        return self.setup.weights * self.calibration.weights

    @cached_property
    def draft(self) -> Range:
        """Weights of a draft; those of the model's own head count here where vLLM was asked."""
        if self.said and self.said.weights_bytes is not None:
            return Range.of(self.said.draft_bytes)
        return self.setup.draft_bytes

    @cached_property
    def working(self) -> Range:
        """CUDA context, libraries and activations."""
        if self.calibration.working is not None:
            return Range(self.calibration.working * 0.9, self.calibration.working * 1.1)
        return CUDA_CONTEXT + ACTIVATION_PER_1K * (self.setup.batched / 1024)

    @cached_property
    def graphs(self) -> Range:
        """CUDA graphs."""
        if self.setup.eager:
            return ZERO
        if self.calibration.graphs is not None:
            return Range(self.calibration.graphs * 0.9, self.calibration.graphs * 1.1)
        return GRAPHS_DRAFTED if self.setup.drafted and self.setup.method != "ngram" else GRAPHS

    @property
    def graphs_counted(self) -> bool:
        """Whether the release takes an estimate of the graphs off the KV cache (by default since
        0.21).
        """
        return at_least(self.setup.release, "0.21.0")

    @property
    def requested(self) -> int | None:
        """What the fraction asks for, as `request_memory` rounds; None where the cache is given in
        bytes.
        """
        return None if self.setup.kv_bytes is not None else self.checked

    @property
    def checked(self) -> int:
        """What vLLM wants to find available at the start, with `--kv-cache-memory-bytes` too."""
        return math.ceil(self.host.total * self.setup.fraction)

    @cached_property
    def kv(self) -> Range:
        """KV cache; bounds below zero mean that nothing is left."""
        if self.setup.kv_bytes is not None:
            return Range.of(self.setup.kv_bytes)
        assert self.requested is not None
        return (
            Range.of(self.requested)
            - self.weights
            - self.draft
            - self.working
            - (self.graphs if self.graphs_counted else 0)
        )

    @cached_property
    def engine(self) -> Range:
        """All that the engine will hold when it runs."""
        if self.requested is not None:
            return Range.of(self.requested) + (ZERO if self.graphs_counted else self.graphs)
        return self.weights + self.draft + self.working + self.graphs + self.kv

    # ---- the cache

    @cached_property
    def pages(self) -> tuple[Pages, ...]:
        """The cache in pages; empty where the model's shape is not known."""
        return self.setup.pages

    def _over(self, memory: Range, figure: Any) -> Range | None:
        if not self.pages:
            return None
        ends = (max(memory.low, 0), max(memory.high, 0))
        return Range.hull(figure(pages, end) for pages in self.pages for end in ends)

    @cached_property
    def tokens(self) -> Range | None:
        """vLLM's "KV cache size" in tokens."""
        if self._capacities:
            return Range.hull(float(one.tokens or 0) for one in self._capacities)
        return self._over(self.kv, lambda pages, memory: pages.tokens(memory))

    @cached_property
    def concurrency(self) -> Range | None:
        """vLLM's "maximum concurrency": sequences of full length."""
        if self._capacities:
            return Range.hull(one.concurrency or 0.0 for one in self._capacities)
        return self._over(self.kv, lambda pages, memory: pages.concurrency(memory))

    @cached_property
    def needed(self) -> Range | None:
        """KV cache that one sequence of full length takes: less, and vLLM refuses to start."""
        if held := [one for one in self._capacities if one.concurrency]:
            return Range.hull(one.bytes / (one.concurrency or 1) for one in held)
        return Range.hull(pages.sequence_bytes() for pages in self.pages) if self.pages else None

    @cached_property
    def _capacities(self) -> list[Capacity]:
        """What vLLM makes of the least and of the most KV cache; empty where it was not asked."""
        return list(self.said.cache.sizes) if self.said and self.said.cache else []

    @property
    def limit(self) -> int:
        """Tokens beyond which no context is searched for: what the model is made for, or what is
        asked for if that is more and allowed.
        """
        if self.setup.most is not None:
            return self.setup.most
        geometry = self.setup.checkpoint.geometry
        return max(self.setup.context, (geometry.context if geometry else None) or 0)

    def longest(self, sequences: int = 1) -> Range | None:
        """Tokens of the longest sequence of which so many fit at once."""
        return self._over(
            self.kv, lambda pages, memory: pages.longest(memory, sequences, self.limit)
        )

    def sequences(self, context: int) -> Range | None:
        """Sequences of a length that fit at once."""
        return self._over(
            self.kv, lambda pages, memory: pages.pool(memory) // pages.sequence_blocks(context)
        )

    def request(self, context: int) -> Range | None:
        """KV cache that one sequence of a length takes."""
        return (
            Range.hull(pages.sequence_bytes(context) for pages in self.pages)
            if self.pages
            else None
        )

    # ---- the speed

    @cached_property
    def decode(self) -> tuple[Speed, ...]:
        """Estimated decode speed for 1, 4, 8 and 16 requests with a quarter of the context behind
        each, at most 8,192 tokens.

        Empty where it is not known.
        """
        from sparkbook.plan.evidence import of_setup

        known = of_setup(self.setup)
        return tuple(known.speeds(min(self.setup.context // 4, 8192))) if known else ()

    @cached_property
    def first_token(self) -> tuple[FirstToken, FirstToken] | None:
        """Estimated time to the first token of a prompt of 100,000 tokens, or of the context if
        that is less.

        Without a prefix cache, and with all but the last 1,000 tokens in it; None where it is not
        known.
        """
        from sparkbook.plan.evidence import of_setup
        from sparkbook.plan.prefill import first_token

        known, prompt = of_setup(self.setup), min(self.setup.context, 100_000)
        if known is None:
            return None
        chunk, machine = self.setup.batched, known.on()
        cached = max(prompt - 1000, 0)
        return (
            first_token(known.reads[1], prompt, chunk=chunk, machine=machine),
            first_token(known.reads[1], prompt, cached, chunk=chunk, machine=machine),
        )

    @cached_property
    def published(self) -> list[Shown]:
        """What others measured of the recipe; empty where the line is from none."""
        if self.setup.recipe is None:
            return []
        from sparkbook.plan import speeds

        return speeds.published(self.setup.recipe)

    # ---- what to ask for

    def fraction_for(self, sequences: int = 1) -> float | None:
        """The smallest fraction, in hundredths, that surely holds so many sequences of full length;
        None where it is not known, or above 1.

        It counts what is only known in bounds at its upper bound.
        """
        if self.needed is None or not self.weights.known or not self.draft.known:
            return None
        counted = self.graphs.high if self.graphs_counted else 0.0
        need = (
            self.weights.high
            + self.draft.high
            + self.working.high
            + counted
            + sequences * self.needed.high
        )
        fraction = math.ceil(need / self.host.total * 100 - 1e-9) / 100
        return fraction if fraction <= 1 else None

    @property
    def largest_fraction(self) -> float:
        """The largest fraction, in hundredths, that surely passes the start check and leaves the
        host a reserve; 0 where none does.
        """
        room = min(
            self.host.free_for_engine.low, self.host.total - self.host.held - RESERVE - SYSTEM.low
        )
        return max(math.floor(room / self.host.total * 100 + 1e-9) / 100, 0.0)

    def kv_bytes_for(self, sequences: int) -> int | None:
        """`--kv-cache-memory-bytes` for so many sequences of full length, rounded up to 64 MiB;
        None where it is not known.
        """
        if self.needed is None:
            return None
        step = 64 * 2**20
        return math.ceil(sequences * self.needed.high / step) * step

    def fitting(self) -> dict[str, float | int] | None:
        """The options with which it surely fits, where they are others than the line's: first
        another fraction, then a shorter context.

        Empty where it fits as it is; None where no such line is found.
        """
        if self.verdict == "fits":
            return {}
        safe = self.largest_fraction
        if self.pages == () or safe <= 0:
            return None
        least = min(_LEAST_CONTEXT, self.setup.context)
        for fraction in (min(safe, self.setup.fraction), safe):
            setup = replace(self.setup, fraction=fraction)
            for context in (self.setup.context, replace(self, setup=setup).safe_context()):
                if context < least:
                    continue
                plan = replace(self, setup=replace(setup, context=context))
                if plan.verdict == "fits":
                    changed: dict[str, float | int] = {"gpu-memory-utilization": fraction}
                    if context != self.setup.context:
                        changed["max-model-len"] = context
                    return changed
        return None

    def safe_context(self) -> int:
        """Tokens of the longest sequence that surely fits, a multiple of 1,024 where it is as
        long.
        """
        longest = self.longest()
        tokens = int(longest.low) if longest else 0
        return min(tokens // 1024 * 1024 or tokens, self.setup.context)

    # ---- the answer

    @cached_property
    def verdict(self) -> Verdict:
        """In a word."""
        verdicts = {PLAN[finding.rule].verdict for finding in self.findings}
        if "does not fit" in verdicts:
            return "does not fit"
        if "fits with less context" in verdicts:
            longest = self.longest()
            shorter = longest is not None and longest.high > 0
            return "fits with less context" if shorter else "does not fit"
        if self.needed is None:
            return "not known"
        return "may fit" if "may fit" in verdicts else "fits"

    @property
    def fits(self) -> bool:
        """Whether nothing says that it does not."""
        return self.findings.worst != "error"

    @cached_property
    def findings(self) -> Findings:
        """What the rules of `sparkbook.plan.rules` find, most serious first."""
        return of_plan(self)

    @property
    def parts(self) -> list[tuple[str, Range]]:
        """The memory bar in bytes: what is held, by name, from the first to what is left."""
        rows = [
            ("weights", self.weights),
            ("draft", self.draft),
            ("working memory", self.working),
            ("CUDA graphs", self.graphs),
        ]
        rows += [("KV cache", Range(max(self.kv.low, 0), max(self.kv.high, 0)))]
        rows += [
            (tenant.name, Range.of(tenant.held(self.host.total))) for tenant in self.host.cotenants
        ]
        return [(name, size) for name, size in rows if size.high > 0]

    def to_dict(self) -> dict[str, Any]:
        """The shape of `--json`: findings, and a summary with the figures; sizes in GiB as
        `[low, high]`, null where not known.
        """
        setup = self.setup

        def pair(
            value: Range | None, scale: float = 1.0, digits: int = 3
        ) -> list[float | None] | None:
            if value is None:
                return None
            return [
                round(value.low * scale, digits),
                round(value.high * scale, digits) if value.known else None,
            ]

        gib = 1 / GIB
        return self.findings.to_dict(
            verdict=self.verdict,
            model=setup.checkpoint.name,
            source=setup.checkpoint.source,
            machines=setup.shards * setup.stages,
            release=setup.release,
            context=setup.context,
            sequences=setup.sequences,
            fraction=setup.fraction if self.requested is not None else None,
            kv_dtype=setup.kv_dtype,
            total_gib=round(self.host.total * gib, 2),
            available_gib=pair(self.host.free_for_engine, gib),
            requested_gib=round(self.requested * gib, 3) if self.requested is not None else None,
            parts_gib={name: pair(size, gib) for name, size in self.parts},
            kv_gib=pair(self.kv, gib),
            kv_tokens=pair(self.tokens, digits=0),
            concurrency=pair(self.concurrency, digits=2),
            needed_gib=pair(self.needed, gib),
            longest={str(count): pair(self.longest(count), digits=0) for count in COUNTS},
            smallest_fraction=self.fraction_for(),
            largest_fraction=self.largest_fraction,
            fits_with=self.fitting(),
            kv_cache_memory_bytes=self.kv_bytes_for(min(setup.sequences, 16)),
            decode=[
                {
                    "requests": s.concurrency,
                    "context": s.context,
                    "tok_s": _rounded(s.low, s.tok_s, s.high),
                }
                for s in self.decode
            ],
            published=[one.to_dict() for one in self.published],
            first_token_s=[
                {
                    "prompt": f.prompt,
                    "cached": f.cached,
                    "seconds": _rounded(f.low_s, f.seconds, f.high_s),
                }
                for f in self.first_token or ()
            ],
            four_bit_share=pair(setup.checkpoint.four_bit_share),
            unknown=[*setup.checkpoint.unknown, *setup.assumed],
            asked=str(self.said.judge) if self.said else None,
        )

    def working_out(self) -> list[str]:
        """The working, line by line."""
        gib, lines = 1 / GIB, []
        for part in self.setup.checkpoint.weights:
            lines.append(
                f"{part.kind}: {part.params:,.0f} parameters in {part.format},"
                f" {part.bytes * gib:.2f} GiB"
            )
        if self.setup.checkpoint.weights and self.setup.checkpoint.quantization.format != "none":
            lines.append(
                f"in 4 bits: {self.setup.checkpoint.four_bit_share * 100:.0f} % of the parameters"
            )
        if self.requested is not None:
            lines.append(
                f"requested = total x fraction = {self.host.total * gib:.2f} x"
                f" {self.setup.fraction:g} = {self.requested * gib:.2f} GiB"
            )
            graphs = (
                f" - graphs {self.graphs * gib:.2f}"
                if self.graphs_counted
                else " (this release does not take graphs off)"
            )
            lines.append(
                f"KV cache = {self.requested * gib:.2f} - weights {self.weights * gib:.2f} - draft"
                f" {self.draft * gib:.2f} - working memory {self.working * gib:.2f}{graphs} ="
                f" {self.kv * gib:.2f} GiB"
            )
        else:
            lines.append(
                f"KV cache = {self.kv * gib:.2f} GiB as given; the start check asks for"
                f" {self.checked * gib:.2f} GiB all the same"
            )
        lines.append(
            f"available to the engine = {self.host.free_for_engine * gib:.1f} GiB:"
            + (" total, less the system" if self.host.available is None else " as given")
            + (f", less {self.host.held * gib:.1f} GiB of others" if self.host.cotenants else "")
        )
        for i, pages in enumerate(self.pages):
            if len(self.pages) > 1:
                lines.append(f"possibility {i + 1} of {len(self.pages)} for the draft:")
            for group in pages.groups:
                cache, context = group.cache, self.setup.context
                if pages.built:
                    size = "as vLLM itself makes them"
                elif cache.recurrent:
                    held = cache.sequence_bytes(pages.paging.dtype_bytes, pages.paging.drafted)
                    size = f"state of {held:,} bytes"
                else:
                    size = f"{cache.token_bytes(pages.paging.width):,.0f} bytes a token and layer"
                lines.append(
                    f"{group.layers} {cache.kind} layers, {size}: {group.groups}"
                    f" group{'s' * (group.groups > 1)}, blocks of {group.block} tokens,"
                    f" {group.blocks(context, pages.paging):,} blocks for {context:,} tokens"
                )
            lines.append(
                f"one block of the pool = {pages.block_bytes:,} bytes; one sequence ="
                f" {pages.sequence_blocks():,} blocks = {pages.sequence_bytes() * gib:.2f} GiB;"
                f" pool = {pages.pool(self.kv.low):,} to {pages.pool(self.kv.high):,} blocks"
            )
        if self.tokens is not None and self.concurrency is not None:
            lines.append(
                f"KV cache size {self.tokens:,.0f} tokens; maximum concurrency"
                f" {self.concurrency:.2f}x"
            )
        return lines


def _rounded(*values: float) -> list[float]:
    return [round(value, 2) for value in values]


def plan(
    setup: Setup, host: Host | None = None, calibration: Calibration | None = None
) -> MemoryPlan:
    """Works out whether it fits.

    Raises:
        SparkbookError: a fraction that is none, a context below 1, or a cache type that is not
            known.
    """
    if not 0 < setup.fraction <= 1:
        raise SparkbookError(
            f"gpu-memory-utilization is {setup.fraction:g}: it is a fraction of all memory, above 0"
            " and at most 1"
        )
    if setup.context < 1 or setup.sequences < 1:
        raise SparkbookError(
            f"{setup.sequences} sequences of {setup.context} tokens: at least one of at least one"
            " token"
        )
    if setup.kv_dtype not in KV_WIDTH and not setup.kv_dtype.startswith(
        ("turboquant", "int", "ultraquant")
    ):
        raise SparkbookError(
            f"'{setup.kv_dtype}' is no type of KV cache that is known; known are"
            f" {', '.join(sorted(KV_WIDTH))}"
        )
    host = host or (Host.sized(setup.total) if setup.total else Host())
    return MemoryPlan(setup, host, calibration or Calibration())
