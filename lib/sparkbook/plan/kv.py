"""How vLLM cuts its KV cache into pages, and how many tokens that holds: the engine's own
arithmetic, without the engine.

Every layer's cache is cut into pages, and one pool of blocks is shared by all. What is counted
here, step by step (vLLM 0.32.0, `v1/core/kv_cache_utils.py`, `v1/kv_cache_interface.py`,
`platforms/interface.py`):

1. A page of attention holds `block` tokens. With recurrent layers in the model the block grows
   until a page holds a state, and the state's page is padded to the same size
   (`_align_hybrid_block_size`).
2. If pages of attention differ, the smaller one's block grows, or its page is padded
  (`unify_kv_cache_spec_page_size`).
3. Layers of one kind are put into groups of equal size: as many as the rarest kind has, or as the
   most frequent one if that has less than 1.5 times as many
   (`_get_kv_cache_groups_uniform_page_size`). A pool block is one page of each layer of a group.
4. The pool has `memory // (page * layers of a group)` blocks. A sequence takes from it, for each
   group: full attention one block for every `block` tokens; a window one for what it can see and
   what is in flight, and one more; a state 1 block and one a drafted token, or with prefix caching
   (`align`) 2, in some layers 3.
5. Maximum concurrency is blocks over blocks of a sequence at full length; "KV cache size" in tokens
   is that times the length, so of a hybrid model it is no capacity for arbitrary sequences.

Layouts that pack pages of different sizes into one block (`_get_packed_kv_cache_groups`) are only
estimated, and decode context parallelism is not modelled. Where vLLM was asked about a checkpoint
(`checkpoint.built`), its own groups and blocks are taken (`as_built`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import lcm
from typing import Literal

from sparkbook.checkpoint.built import BuiltCache
from sparkbook.checkpoint.values import Cache
from sparkbook.errors import SparkbookError
from sparkbook.host.spark import ENGINE_RELEASE
from sparkbook.releases import at_least

KV_WIDTH: dict[str, float] = {
    "auto": 2,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "half": 2,
    "float32": 4,
    "float": 4,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "fp8_ds_mla": 1,
    "nvfp4": 4.5 / 8,
}
"""Bytes of one element of the KV cache by `--kv-cache-dtype`; `auto` is the model's dtype. NVFP4
carries an 8-bit scale for 16 elements.
"""


@dataclass(frozen=True)
class Paging:
    """What the pages depend on besides the model.

    Attributes:
        context: `--max-model-len`, tokens.
        width: bytes of an element of the KV cache.
        dtype_bytes: bytes of the model's dtype, which a state's convolution has.
        release: vLLM release; the count of tokens changed with 0.24.
        batched: `--max-num-batched-tokens`.
        batches: steps in flight at once; 2 with asynchronous scheduling (0.32: the default without
            pipeline parallelism).
        block: tokens of a block to begin with: 16 on CUDA, 128 on the CPU (16 with MLA).
        drafted: drafted tokens a step; 0: draft layers of the checkpoint are not loaded.
        states: how states are kept: `align` with prefix caching, `none` without, `all` in old
            releases for Mamba-2.
    """

    context: int
    width: float = 2
    dtype_bytes: int = 2
    release: str = ENGINE_RELEASE
    batched: int = 8192
    batches: int = 2
    block: int = 16
    drafted: int = 0
    states: Literal["align", "none", "all"] = "align"

    @property
    def in_flight(self) -> int:
        """Tokens that may be scheduled and not yet settled."""
        return self.batched * self.batches


@dataclass(frozen=True)
class Group:
    """Groups of layers of one kind.

    Attributes:
        cache: the layers.
        layers: layers of the kind, draft layers that are like them included.
        groups: how many groups they make.
        block: tokens of a block; of a state, those of the attention with it.
    """

    cache: Cache
    layers: int
    groups: int
    block: int

    def blocks(self, context: int, paging: Paging) -> int:
        """Blocks that one sequence of so many tokens takes, all groups of the kind together."""
        cache = self.cache
        if cache.recurrent:
            held = (2 if paging.states == "align" else 1) + paging.drafted
            if paging.states == "align" and cache.checkpointed:
                held += at_least(paging.release, cache.checkpointed)
            each = -(-context // self.block) if paging.states == "all" else held
        elif cache.kind == "window" and cache.chunk:
            each = -(-min(cache.chunk + paging.in_flight, context) // self.block)
        elif cache.kind == "window":
            each = -(-min(cache.window - 1 + paging.in_flight, context) // self.block) + 1
        else:
            each = -(-context // self.block)
        return self.groups * each


@dataclass(frozen=True)
class Pages:
    """The cache cut into pages.

    Attributes:
        groups: by kind.
        block_bytes: bytes of one block of the pool.
        page: bytes of one layer's page.
        padding: layers that only fill up a group.
        paging: what it was cut for.
        built: whether vLLM itself cut it.
    """

    groups: tuple[Group, ...]
    block_bytes: int
    page: int
    padding: int
    paging: Paging
    built: bool = False

    def sequence_blocks(self, context: int | None = None) -> int:
        """Blocks that one sequence takes; of full length where no other is given."""
        length = self.paging.context if context is None else context
        return sum(group.blocks(length, self.paging) for group in self.groups)

    def sequence_bytes(self, context: int | None = None) -> int:
        """Bytes that one sequence takes."""
        return self.block_bytes * self.sequence_blocks(context)

    def pool(self, memory: float) -> int:
        """Blocks that so many bytes give."""
        return int(memory) // self.block_bytes if memory > 0 else 0

    def concurrency(self, memory: float) -> float:
        """vLLM's "maximum concurrency": sequences of full length that so many bytes hold."""
        return self.pool(memory) / self.sequence_blocks()

    def tokens(self, memory: float) -> int:
        """vLLM's "KV cache size" in tokens for so many bytes."""
        if at_least(self.paging.release, "0.24.0"):
            return int(self.concurrency(memory) * self.paging.context)
        count = sum(group.groups for group in self.groups)
        return self.pool(memory) // count * min(group.block for group in self.groups)

    def longest(self, memory: float, sequences: int = 1, limit: int | None = None) -> int:
        """Tokens of the longest sequence of which so many fit at once into so many bytes; 0 where
        not one token does.

        As vLLM's `_estimate_max_model_len_from_groups` for one sequence.
        """
        pool = self.pool(memory)
        low, high = 0, limit or self.paging.context
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (
                (middle, high)
                if sequences * self.sequence_blocks(middle) <= pool
                else (low, middle - 1)
            )
        return low


def cut(caches: Iterable[Cache], paging: Paging) -> Pages:
    """Cuts the caches of a model into pages.

    Args:
        caches: the model's; draft layers count where tokens are drafted.
        paging: what the pages depend on.

    Raises:
        SparkbookError: no layer keeps anything, or the pages cannot be made equal, as vLLM would
            say too.
    """
    active = [cache for cache in caches if cache.layers and (paging.drafted or not cache.draft)]
    if not active:
        raise SparkbookError(
            "no layer of this model keeps anything for a sequence: there is no KV cache to plan"
        )
    own = {cache.block for cache in active}
    if any(cache.fixed for cache in active) and len(own) > 1:
        return _packed(active, paging)
    attention = [cache for cache in active if not cache.recurrent]
    states = [cache for cache in active if cache.recurrent]
    block = max(own) or paging.block
    if states and attention:
        block = _block_for_states(attention, states, paging)
    kinds = {(cache.kind, cache.window) for cache in active}
    specs = [(cache, block, _page(cache, block, paging)) for cache in active]
    if not states and (kinds <= {("full", 0), ("mla", 0)} or len(kinds) == 1):
        # One block table for all, even where layers differ in width: a block is one page of each.
        total = sum(cache.layers * page for cache, _, page in specs)
        layers = sum(cache.layers for cache in active)
        return Pages(
            (Group(active[0], layers, 1, block),),
            total,
            max(page for _, _, page in specs),
            0,
            paging,
        )
    specs = _unified(specs, paging)
    buckets: dict[tuple[object, ...], list[tuple[Cache, int]]] = {}
    for cache, tokens, _ in specs:
        key = (replace(cache, layers=0, draft=False), tokens)
        buckets.setdefault(key, []).append((cache, tokens))
    counts = [sum(cache.layers for cache, _ in bucket) for bucket in buckets.values()]
    size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = tuple(
        Group(bucket[0][0], count, -(-count // size), bucket[0][1])
        for bucket, count in zip(buckets.values(), counts, strict=True)
    )
    page = specs[0][2]
    return Pages(
        groups,
        page * size,
        page,
        sum(group.groups * size - group.layers for group in groups),
        paging,
    )


_KINDS: dict[str, Literal["full", "window", "mla", "mamba2"]] = {
    "FullAttentionSpec": "full",
    "MLAAttentionSpec": "mla",
    "SlidingWindowSpec": "window",
    "SlidingWindowMLASpec": "window",
    "ChunkedLocalAttentionSpec": "window",
    "MambaSpec": "mamba2",
}


def as_built(built: BuiltCache, paging: Paging) -> Pages | None:
    """Return the pages that vLLM itself made; None where they hold something that is not known
    here.
    """
    groups = []
    for group in built.groups:
        kind = _KINDS.get(group.spec)
        if kind is None:
            return None
        chunk = (group.window or 0) * (group.spec == "ChunkedLocalAttentionSpec")
        more = kind == "mamba2" and group.blocks > 2 + paging.drafted
        since = paging.release if more else ""
        cache = Cache(kind, group.layers, window=group.window or 0, chunk=chunk, checkpointed=since)
        groups.append(Group(cache, group.layers * group.groups, group.groups, group.block))
    return Pages(tuple(groups), built.block_bytes, built.block_bytes, 0, paging, built=True)


_UNIT = 576
"""Bytes to which vLLM rounds the pages that it packs (`alignment` of DeepSeek V4's caches)."""


def _packed(active: list[Cache], paging: Paging) -> Pages:
    """Pages of different sizes in one pool. vLLM packs them into blocks; here each takes its own
    bytes, so what a block wastes is not counted.
    """
    groups = []
    for cache in active:
        block = cache.block or paging.block
        page = cache.layers * block * cache.token_bytes(paging.width)
        groups.append(Group(cache, cache.layers, -(-round(page) // _UNIT), block))
    return Pages(tuple(groups), _UNIT, _UNIT, 0, paging)


def _page(cache: Cache, block: int, paging: Paging) -> int:
    if cache.recurrent:
        return cache.sequence_bytes(paging.dtype_bytes, paging.drafted)
    return round(block * cache.token_bytes(paging.width))


def _block_for_states(attention: list[Cache], states: list[Cache], paging: Paging) -> int:
    """Tokens of a block whose page holds a state."""
    token = attention[0].token_bytes(paging.width)
    state = max(cache.sequence_bytes(paging.dtype_bytes, paging.drafted) for cache in states)
    align = max(16, paging.block)
    if attention[0].kind == "mla":
        align = max(align, 128)
    if paging.states == "all":
        # Old releases keep states at chunk boundaries, so a block is a multiple of the chunk too.
        align = lcm(align, *(cache.chunk for cache in states if cache.chunk))
    return max(paging.block, align * -(-state // round(align * token)))


def _unified(specs: list[tuple[Cache, int, int]], paging: Paging) -> list[tuple[Cache, int, int]]:
    """Every page as large as the largest: by a larger block where it divides, else by padding."""
    largest = max(page for _, _, page in specs)
    result = []
    for cache, block, page in specs:
        if cache.recurrent or page == largest:
            result.append((cache, block, largest))
        elif largest % page == 0:
            result.append((cache, block * (largest // page), largest))
        elif cache.kind == "mla":
            raise SparkbookError(
                f"pages of {page} and {largest} bytes can't be made equal with MLA: vLLM refuses"
                " this pair of model and draft"
            )
        else:
            result.append((cache, block, largest))
    return result
