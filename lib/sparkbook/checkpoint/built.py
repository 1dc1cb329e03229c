"""What vLLM itself builds of public checkpoints (`built.json`): bytes of weights, and how it cuts
the KV cache.

    >>> built = find("openai/gpt-oss-120b")
    >>> round(built.weights_bytes / 2**30, 2)
    65.93

`tools/record_caches.py` makes the table. It is read when the first checkpoint is asked for.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("built.json")

VARIANTS = (("auto", 0), ("fp8", 0), ("auto", 1), ("fp8", 1))
"""Type of the KV cache and drafted tokens that were asked about."""


class BuiltGroup(NamedTuple):
    """Groups of layers that share a block table, as vLLM makes them.

    Attributes:
        spec: vLLM's class of cache.
        layers: of one group.
        block: tokens of a block.
        window: tokens that attention reaches back to; None: all.
        blocks: blocks of one sequence of full length, in one group.
        groups: how many there are.
    """

    spec: str
    layers: int
    block: int
    window: int | None
    blocks: int
    groups: int


@dataclass(frozen=True)
class BuiltCache:
    """The KV cache in blocks.

    Attributes:
        block_bytes: bytes of one block of the pool.
        groups: all groups.
        context, batched: tokens of a sequence and of a step that were asked about.
        tokens: vLLM's "KV cache size" of 1 TiB.
    """

    block_bytes: int
    groups: tuple[BuiltGroup, ...]
    context: int
    batched: int
    tokens: int


@dataclass(frozen=True)
class Built:
    """What vLLM builds of a checkpoint.

    Attributes:
        weights: bytes by class and type, without prediction layers.
        draft_bytes: bytes of its own prediction layers; None: it has none, or was not asked.
        caches: by type of cache and drafted tokens.
        vllm: the release that was asked.
    """

    weights: tuple[tuple[str, str, int], ...]
    draft_bytes: int | None
    caches: dict[tuple[str, int], BuiltCache]
    vllm: str

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights, without prediction layers."""
        return sum(size for _, _, size in self.weights)


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(FILE.read_text("utf-8"))


def names() -> list[str]:
    """Handles of the table."""
    return list(_table()["entries"])


@functools.cache
def find(name: str) -> Built | None:
    """Return what vLLM builds of a checkpoint; None where the table lacks it."""
    table = _table()
    entry = table["entries"].get(name)
    if entry is None:
        return None
    caches = {}
    for variant, (block_bytes, groups, (context, batched, tokens)) in entry["pages"].items():
        kv, _, drafted = variant.partition(" ")
        made = tuple(BuiltGroup(*group) for group in groups)
        caches[kv, int(drafted)] = BuiltCache(block_bytes, made, context, batched, tokens)
    weights = tuple((kind, dtype, size) for kind, dtype, size in entry["weights"])
    return Built(weights, entry.get("draft"), caches, table["source"]["vllm"])
