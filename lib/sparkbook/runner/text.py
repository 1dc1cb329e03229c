"""A batch for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparkbook.runner.batch import MANIFEST, Outcome

if TYPE_CHECKING:
    from rich.console import RenderableType


def lines(outcome: Outcome) -> Iterator[RenderableType]:
    """Yield the notebooks that failed and why, and how many are done."""
    for name, why in outcome.failed.items():
        yield f"FAILED {name}: {why}"
    yield (
        f"{len(outcome.done)} done ({outcome.kept} of them earlier), {len(outcome.failed)} failed:"
        f" {outcome.folder / MANIFEST}"
    )
