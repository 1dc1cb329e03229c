"""What is planned: the machine, what else runs, and what is to be started. Bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkbook.checkpoint import built
from sparkbook.checkpoint.built import Built
from sparkbook.checkpoint.values import ZERO, Cache, Checkpoint, Range
from sparkbook.errors import SparkbookError
from sparkbook.host.meminfo import VLLM_DEFAULT_UTILIZATION
from sparkbook.host.spark import ENGINE_RELEASE, TOTAL
from sparkbook.plan.kv import KV_WIDTH, Pages, Paging, as_built, cut
from sparkbook.releases import at_least
from sparkbook.units import GIB

if TYPE_CHECKING:
    from sparkbook.findings import Finding
    from sparkbook.recipes.schema import Recipe

SYSTEM = Range(7.9 * GIB, 20.4 * GIB)
"""What an idle host has in use: total less available in the two reports of idle Sparks
(`sparkbook.host.REPORTED`: 7.97 of 121.69 GiB on one, 20.39 on a freshly booted one).
"""


CUDA_CONTEXT = Range(0.5 * GIB, 2.0 * GIB)
"""CUDA context and libraries. On an H100, context and activations of a small model together took
1.0 GiB.
"""

ACTIVATION_PER_1K = Range(0.02 * GIB, 0.65 * GIB)
"""Peak of activations for each 1,024 of `--max-num-batched-tokens`. The upper end: 5.30 GiB at
8,224 tokens against 1.39 at 2,048 on one GB10 with a large MoE (DeepSeek-V4-Flash); small models
are far below.
"""

GRAPHS = Range(0.05 * GIB, 1.0 * GIB)
"""CUDA graphs without a draft: 0.06 GiB (12 graphs, H100), 0.33 and 0.62 (GB10)."""

GRAPHS_DRAFTED = Range(0.3 * GIB, 6.3 * GIB)
"""CUDA graphs with a draft of its own: up to 6.24 GiB with 38 + 22 graphs (Qwen3.6-35B-A3B with
DFlash on GB10).
"""

RESERVE = 4 * GIB
"""What should stay free for the host when all is running. MemAvailable has read 22 GiB when the
driver was out of memory (https://github.com/vllm-project/vllm/issues/54200), so more is better; at
less the host stops answering.
"""


@dataclass(frozen=True)
class CoTenant:
    """Something else that holds memory: an engine with a fraction, or so many bytes.

    Attributes:
        name: in words.
        fraction: `--gpu-memory-utilization` of another engine; it holds that share of all memory.
        size: bytes, where there is no fraction.
    """

    name: str
    fraction: float | None = None
    size: int = 0

    def held(self, total: int) -> int:
        """Bytes of a machine with so many in total."""
        return math.ceil(self.fraction * total) if self.fraction is not None else self.size


@dataclass(frozen=True)
class Host:
    """The machine, in bytes.

    Attributes:
        total: what vLLM shows as total.
        available: MemAvailable before anything of this plan runs.
        cotenants: what else runs; taken off what is available.
        free: MemFree, without what the page cache would give back; None where it is not known.
    """

    total: int = TOTAL
    available: Range | None = None
    cotenants: tuple[CoTenant, ...] = ()
    free: int | None = None

    @classmethod
    def sized(cls, total: int, cotenants: tuple[CoTenant, ...] = ()) -> Host:
        """Return a machine of so many bytes other than the usual Spark. Its system takes what a
        Spark's does, but never more than half.
        """
        half = 0.5 * total
        free = Range(max(total - SYSTEM.high, half), max(total - 2 * GIB, half))
        return cls(total, free, cotenants)

    @property
    def held(self) -> int:
        """Bytes that the co-tenants hold."""
        return sum(tenant.held(self.total) for tenant in self.cotenants)

    @property
    def free_for_engine(self) -> Range:
        """What an engine finds available when it starts."""
        return (self.available or Range.of(self.total) - SYSTEM) - self.held


def together(engines: Sequence[CoTenant], total: int = TOTAL) -> tuple[int, int]:
    """What engines and programs side by side hold, and what is left of the machine; negative: they
    do not fit. Bytes.
    """
    held = sum(tenant.held(total) for tenant in engines)
    return held, total - held


@dataclass(frozen=True)
class Setup:
    """What is to be started.

    Attributes:
        checkpoint: the model.
        context: `--max-model-len`.
        sequences: `--max-num-seqs`.
        fraction: `--gpu-memory-utilization`.
        kv_bytes: `--kv-cache-memory-bytes`; the fraction then counts for the start check alone.
        kv_dtype: `--kv-cache-dtype`.
        release: vLLM release.
        batched: `--max-num-batched-tokens`.
        method, drafted: of speculative decoding; 0 tokens: none.
        draft_bytes: weights of a separate draft.
        draft_caches: what the draft's layers keep, in each way that is possible; one where it is
            known.
        eager: `--enforce-eager`: no CUDA graphs.
        prefix_caching: whether states are kept for it.
        load_format: `fp8` where the weights are quantized while loading.
        shards: machines that the weights are spread over by tensor parallelism.
        stages: machines that the layers are spread over by pipeline parallelism.
        split: machines that share the tokens of a sequence (decode context parallelism), of those
            that tensor parallelism uses.
        block: tokens of a block to begin with; None: 16, as on CUDA.
        assumed: what the line does not say, in words.
        table_on_disk: whether a lookup table of the checkpoint stays on the disk.
        most: context beyond which vLLM refuses to start; None where that is not known, or the line
            lifts it.
        recipe: the one that the line is from; None where it is from none.
        total: memory in bytes of the Spark that the line is for; None: the usual one.
        crowded: what the linter finds where the line asks for more GPUs than its machines have.
    """

    checkpoint: Checkpoint
    context: int
    sequences: int = 4
    fraction: float = VLLM_DEFAULT_UTILIZATION
    kv_bytes: int | None = None
    kv_dtype: str = "auto"
    release: str = ENGINE_RELEASE
    batched: int = 8192
    method: str | None = None
    drafted: int = 0
    draft_bytes: Range = ZERO
    draft_caches: tuple[tuple[Cache, ...], ...] = ((),)
    eager: bool = False
    prefix_caching: bool = True
    load_format: str | None = None
    shards: int = 1
    stages: int = 1
    split: int = 1
    block: int | None = None
    assumed: tuple[str, ...] = ()
    table_on_disk: bool = False
    most: int | None = None
    recipe: Recipe | None = None
    total: int | None = None
    crowded: Finding | None = None

    @property
    def own_head(self) -> bool:
        """Whether the checkpoint's own prediction layers draft."""
        return bool(self.drafted) and self.method == "mtp" and self.draft_bytes == ZERO

    @property
    def weights(self) -> Range:
        """Bytes of the target's weights as loaded: without prediction layers that are not used,
        quantized if that happens while loading. Those that vLLM built where it was asked.
        """
        c = self.checkpoint
        own = None if c.unknown else self._built
        if own and self.load_format is None and not self.table_on_disk:
            return Range.of(own.weights_bytes + self.own_head * (own.draft_bytes or 0))
        size = c.bytes
        if self.load_format == "fp8" and c.weights:
            size = sum(
                (
                    w.bytes * (0.5 if w.format == "bf16" and w.kind in _QUANTIZED else 1)
                    for w in c.weights
                ),
                ZERO,
            )
        spare = ZERO if self.own_head else c.of("draft")
        if self.table_on_disk:
            spare += c.of("table")
        left = Range(max(size.low - spare.high, 0), max(size.high - spare.low, 0))
        return (left + c.loaded_bytes) * (1 / (self.shards * self.stages))

    @property
    def _built(self) -> Built | None:
        """What vLLM builds of the checkpoint on one machine; None where it was not asked."""
        c = self.checkpoint
        if c.files or not c.certain or self.shards * self.stages > 1:
            return None
        return built.find(c.name)

    def _built_pages(self, paging: Paging) -> Pages | None:
        """The pages that vLLM itself made of this cache; None where it was not asked about it."""
        c = self.checkpoint
        packed = any(cache.fixed and cache.block != 64 for cache in self.caches)
        # One vector for all heads: every rank of tensor parallelism keeps it whole.
        whole = packed and self.stages == 1 and c.certain
        own = built.find(c.name) if whole else self._built
        if own is None or self.draft_caches != ((),) or not (self.drafted == 0 or self.own_head):
            return None
        if self.split > 1:
            return None
        kinds: dict[float, str] = {1: "fp8", 2: "auto"}
        kind = "auto" if self.kv_dtype == "auto" else kinds.get(paging.width)
        if kind == "auto" != self.kv_dtype and c.kv_dtype:
            return None
        states = any(cache.recurrent for cache in self.caches)
        cache = own.caches.get((str(kind), self.drafted if states else min(self.drafted, 1)))
        if cache is None or (states and paging.states != "align"):
            return None
        # Older releases cut otherwise: the arithmetic knows how.
        if not packed and (self.block not in (None, 16) or not at_least(self.release, own.vllm)):
            return None
        return as_built(cache, paging)

    @property
    def kv_width(self) -> float:
        """Return the bytes of one element of the KV cache."""
        kind = self.kv_dtype
        if kind == "auto" and self.checkpoint.kv_dtype:
            kind = self.checkpoint.kv_dtype
        return self.checkpoint.dtype_bytes if kind == "auto" else KV_WIDTH.get(kind, 2)

    @property
    def caches(self) -> tuple[Cache, ...]:
        """Return the layers that keep a cache, those of a prediction head only while it drafts; of
        an estimated shape the widest.

        Empty if the model's shape is not known. A separate draft's layers are in `draft_caches`.
        """
        return next(iter(self.possible_caches), ())

    @property
    def possible_caches(self) -> tuple[tuple[Cache, ...], ...]:
        """Return `caches` in each way that is possible; one where the shape is known."""
        geometry = self.checkpoint.geometry
        return tuple(
            tuple(cache for cache in layers if not cache.draft or self.own_head)
            for layers in (geometry.possible if geometry else ())
        )

    @property
    def pages(self) -> tuple[Pages, ...]:
        """The KV cache cut into pages, in each way that is possible; empty where the model's shape
        is not known.
        """
        geometry = self.checkpoint.geometry
        if geometry is None:
            return ()
        mamba_all = any(c.kind == "mamba2" for c in geometry.caches) and not at_least(
            self.release, "0.20.0"
        )
        paging = Paging(
            context=self.context,
            width=self.kv_width,
            dtype_bytes=self.checkpoint.dtype_bytes,
            release=self.release,
            batched=self.batched,
            batches=(
                2 if at_least(self.release, "0.25.0") else 1
            ),  # 0.32 reserves for two; when that came is not known
            block=self.block or 16,
            drafted=self.drafted,
            states="none" if not self.prefix_caching else "all" if mamba_all else "align",
        )
        if (built := self._built_pages(paging)) is not None:
            return (built,)
        ways = [
            [
                *(_split(_shard(cache, self.shards, self.stages), self.split) for cache in layers),
                *draft,
            ]
            for layers in self.possible_caches
            for draft in self.draft_caches
        ]
        pages: list[Pages] = []
        for way in ways:
            try:
                pages.append(cut(way, paging))
            except SparkbookError:
                # A guessed draft that the engine could not place is not the one that runs.
                if way is ways[-1] and not pages:
                    raise
        return tuple(pages)


_QUANTIZED = ("attention", "linear", "mlp", "experts", "shared expert")
"""Classes that `--quantization fp8` quantizes while loading: linear layers and experts, not
embedding, head, router and norms.
"""


def _split(cache: Cache, machines: int) -> Cache:
    """What one of so many machines keeps, if each keeps its share of the tokens."""
    if cache.recurrent or cache.window:
        return cache
    return replace(
        cache,
        size=-(-cache.size // machines),
        size_v=-(-cache.size_v // machines),
        fixed=cache.fixed / machines,
    )


def _shard(cache: Cache, shards: int, stages: int) -> Cache:
    """What one of so many machines keeps: of each layer a share of the heads, or of the layers a
    share.
    """
    if stages > 1:
        cache = replace(cache, layers=-(-cache.layers // stages))
    if shards == 1 or cache.kind == "mla" or cache.fixed:
        return cache
    return replace(
        cache,
        heads=max(-(-cache.heads // shards), 1 if cache.heads else 0),
        conv=(cache.conv[0] // shards, cache.conv[1]),
        state=cache.state // shards,
    )
