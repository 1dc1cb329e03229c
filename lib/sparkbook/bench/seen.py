"""What the gate judges a cell by."""

from __future__ import annotations

from dataclasses import dataclass

from sparkbook.bench.results import Cell
from sparkbook.bench.roof import Roof
from sparkbook.bench.telemetry import Trace


@dataclass(frozen=True)
class Seen:
    """All that a cell is judged by.

    Attributes:
        cell: requests, figures, warm-up, client and the engine's own counters.
        trace: the machine around it; None where there was no telemetry.
        prompts: the texts that were sent, in the order of the cell's requests; earlier: those of
            earlier rows, for repetitions.
        restarted: the engine's counters fell, so it restarted meanwhile.
        roof: what machine and model allow at most; None where either is not known.
    """

    cell: Cell
    trace: Trace | None = None
    prompts: tuple[str, ...] = ()
    earlier: frozenset[str] = frozenset()
    restarted: bool = False
    roof: Roof | None = None
