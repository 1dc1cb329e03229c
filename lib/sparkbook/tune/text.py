"""The candidates of a recipe as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.tune.without_start import Pruned


def pruned(found: Pruned) -> Iterator[str]:
    """Yield how many candidates of how many are left, and why each of the others went."""
    whole = len(found.left) + len(found.dropped)
    counts = ", ".join(f"{count} {reason}" for reason, count in found.counts.items())
    yield f"{len(found.left)} of {whole} candidates are left" + (f" ({counts})" if counts else "")
    if found.judge:
        yield f"asked: {found.judge}"
    yield from found.notes
    for name, why in found.options.items():
        yield f"option {name}: left out, {why}"
    for one, more in found.causes.values():
        others = f" (and {more} that contain it)" if more else ""
        yield f"  {one.reason:<10} {one.candidate.key}{others}: {one.text}"
    for candidate in found.left:
        yield f"  left       {candidate.key}"
