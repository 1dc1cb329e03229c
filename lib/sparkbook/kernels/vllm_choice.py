"""Which of two products is faster for how many tokens: measured once, kept in a file.

A product is timed as decoding runs it: in a CUDA graph that goes round through copies of the
weights, together larger than the L2 cache, with a small kernel before each. Ours is taken where it
took less than `MARGIN` of the other's time, and only if both give the same. The key of a
measurement names the GPU, vLLM, the version of the kernels and the hash of their sources, the other
product and the shape: what was measured on another of any of these is not used.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SIZES = (1, 2, 4, 8, 16, 32)
MARGIN = 0.98
TOLERANCE = 0.02
"""Relative difference of two results in bfloat16 that still counts as equal."""

Calls = Sequence[Callable[[], torch.Tensor]]
"""The same product on copies of the weights."""


@dataclass(frozen=True)
class Choice:
    """Microseconds by the number of tokens, ours and theirs; `refused`: why ours is out."""

    ours: Mapping[int, float]
    theirs: Mapping[int, float]
    refused: str = ""

    def table(self) -> list[bool]:
        """Return for each number of tokens, from 0 on, whether ours is taken: as measured with the
        next larger number. More tokens than the list is long are theirs.
        """
        measured = [(m, self.ours[m] < MARGIN * self.theirs[m]) for m in sorted(self.ours)]
        taken = [False]
        for m, faster in measured if not self.refused else ():
            taken += [faster] * (m - len(taken) + 1)
        return taken

    def words(self) -> str:
        """Return what was measured and what follows, for vLLM's log."""
        if self.refused:
            return f"vLLM's own, for {self.refused}"
        pairs = (f"{m}: {self.ours[m]:.1f}/{self.theirs[m]:.1f}" for m in self.ours)
        taken = [str(m) for m in self.ours if self.table()[m]]
        which = f"ours for up to {', '.join(taken)} tokens" if taken else "vLLM's own for all"
        return f"{which}; microseconds, tokens: ours/vLLM's, {', '.join(pairs)}"


class Choices:
    """Measurements in a file, each by its key."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, key: str, measure: Callable[[], Choice]) -> Choice:
        """Return what is kept under `key`; otherwise, or where that is damaged, measure it and keep
        it.
        """
        choice = _read(self._kept().get(key))
        if choice is None:
            choice = measure()
            self._keep(key, choice)
        return choice

    def _kept(self) -> dict[str, Any]:
        try:
            kept = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return kept if isinstance(kept, dict) else {}

    def _keep(self, key: str, choice: Choice) -> None:
        """Add one; a file that can't be written costs the next start a measurement, no more."""
        one = {"ours": choice.ours, "theirs": choice.theirs, "refused": choice.refused}
        part = self.path.with_suffix(f".{os.getpid()}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(json.dumps(self._kept() | {key: one}, indent=1) + "\n", "utf-8")
            part.replace(self.path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()


def _read(entry: Any) -> Choice | None:
    """Return what a file's entry says; None if `Choices` can't have written it."""
    try:
        ours, theirs = (
            {int(m): float(us) for m, us in entry[side].items()} for side in ("ours", "theirs")
        )
        refused = entry["refused"]
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    sizes = SIZES[: len(ours)]
    sound = tuple(ours) == tuple(theirs) == sizes and isinstance(refused, str)
    times = [*ours.values(), *theirs.values()]
    return Choice(ours, theirs, refused) if sound and all(map(math.isfinite, times)) else None


def copies(nbytes: int) -> int:
    """Return how many sets of weights make twice the L2 cache, and at least two."""
    cache = torch.cuda.get_device_properties().L2_cache_size
    return max(2, -(-2 * cache // nbytes))


def microseconds(calls: Calls) -> float:
    """Return the median time of one call, of seven replays of a CUDA graph of them all. A small
    kernel runs before each, as a model has one there, and its time is taken off: a product that
    starts while the one before it still runs would look faster after another product.
    """
    calls[0]()
    small = torch.zeros(1, device="cuda")

    def replayed(each: Sequence[Callable[[], object]]) -> float:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            kept = [(small.add_(1), call()) for call in each]
        events = [torch.cuda.Event(enable_timing=True) for _ in range(16)]
        for first, last in zip(events[::2], events[1::2], strict=True):
            first.record()
            graph.replay()
            last.record()
        torch.cuda.synchronize()
        times = [a.elapsed_time(b) for a, b in zip(events[::2], events[1::2], strict=True)]
        del kept
        return statistics.median(times[1:]) * 1e3 / len(each)

    return replayed(calls) - replayed([lambda: None] * len(calls))


def measure(
    ours: Callable[[int], Calls], theirs: Callable[[int], Calls], most: int, timed=microseconds
) -> Choice:
    """Return both products' times for `SIZES`, ours up to `most` tokens."""
    mine: dict[int, float] = {}
    other: dict[int, float] = {}
    for m in (size for size in SIZES if size <= most):
        a, b = ours(m), theirs(m)
        if (off := _difference(a[0]().clone(), b[0]())) > TOLERANCE:
            return Choice({}, {}, f"results differ by {off:.1e} with {m} tokens")
        mine[m], other[m] = round(timed(a), 2), round(timed(b), 2)
    return Choice(mine, other)


def worse(a: Choice, b: Choice) -> Choice:
    """Return for each number of tokens the pair of times in which ours compares worse."""
    if a.refused or b.refused:
        return Choice({}, {}, a.refused or b.refused)
    parts = {m: max((a, b), key=lambda one: one.ours[m] / one.theirs[m]) for m in a.ours}
    return Choice(
        {m: one.ours[m] for m, one in parts.items()},
        {m: one.theirs[m] for m, one in parts.items()},
    )


def _difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return |a - b| relative to |b|; 0 where both are zero."""
    a, b = (torch.nan_to_num(t.float(), 0, 0, 0) for t in (a, b))
    off = (a - b).norm()
    return float(off / b.norm()) if off else 0.0
