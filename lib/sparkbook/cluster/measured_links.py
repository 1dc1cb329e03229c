"""What a link between two nodes was worth: a recording of `tools/measure_links.py`, and the model
of `sparkbook plan --nodes` held against it.

A step of tensor parallelism over two nodes is estimated without any fitted number: half of what one
node takes, plus two all-reduces a layer and one more, each of hidden size × tokens × 2 bytes, with
the times that were measured of all-reduces over the same link.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any

from sparkbook.cluster.all_reduce import between

Gbit = float | None
"""The rate that the link is held to, in Gbit/s; None: it is not held."""

TRUSTED = {"BENCH304", "BENCH311", "BENCH420"}
"""What the gate may say of a row that counts: step times that spread, and replies that repeat
themselves or are all the same, which are all that dummy weights can write.
"""

LIMITS = {True: 0.15, False: 0.20}
"""Relative error within which an estimate holds: with one request, with more."""


@dataclass(frozen=True)
class Row:
    """One server under one load.

    Attributes:
        way: tp (over both nodes), one, or replicas (one on each).
        requests: at the same time, all servers together.
        step_s: seconds between two tokens of a request, the median.
        tok_s: tokens a second, all requests together, their prompts read meanwhile.
        rules: what the gate says of it.
        beside: whether other servers were still starting.
    """

    shape: str
    way: str
    gbit: Gbit
    requests: int
    step_s: float
    tok_s: float
    rules: tuple[str, ...] = ()
    beside: bool = False

    @property
    def trusted(self) -> bool:
        """Whether nothing disturbed it."""
        return not self.beside and set(self.rules) <= TRUSTED


@dataclass(frozen=True)
class Checked:
    """A row next to its estimate."""

    row: Row
    estimate_s: float

    @property
    def error(self) -> float:
        """The estimate over what was measured, minus one."""
        return self.estimate_s / self.row.step_s - 1

    @property
    def holds(self) -> bool:
        """Whether it is within `LIMITS`."""
        return abs(self.error) <= LIMITS[self.row.requests == 1]


@dataclass(frozen=True)
class Recording:
    """Rows of several shapes over several links.

    Attributes:
        about: machine, engine, date, how.
        shapes: (layers, hidden size) by name.
        tables: (bytes, µs) of an all-reduce, by the link's rate.
    """

    about: dict[str, str]
    shapes: dict[str, tuple[int, int]]
    tables: dict[Gbit, Sequence[Sequence[float]]]
    rows: tuple[Row, ...]

    def network_s(self, row: Row) -> float:
        """Return seconds of the all-reduces of a step.

        Raises:
            KeyError: none was measured over its link.
        """
        layers, hidden = self.shapes[row.shape]
        each = between(self.tables[row.gbit], hidden * 2 * row.requests)
        return (2 * layers + 1) * each * 1e-6

    def alone_s(self, row: Row) -> float | None:
        """Return the step time of one node under the same load."""
        same = (row.shape, "one", row.requests)
        found = [one for one in self.rows if (one.shape, one.way, one.requests) == same]
        return found[0].step_s if found else None

    def terms(self) -> Iterable[tuple[Row, list[float]]]:
        """Yield each trusted row of tensor parallelism with what its step is made of: the step of
        one node, a second, the all-reduces.
        """
        for row in self.rows:
            alone = self.alone_s(row)
            if row.way == "tp" and row.trusted and alone and row.gbit in self.tables:
                yield row, [alone, 1.0, self.network_s(row)]

    def checked(self, numbers: Sequence[float] = (0.5, 0.0, 1.0)) -> list[Checked]:
        """Return every such row next to its estimate.

        Args:
            numbers: what the terms count; without them, nothing is fitted.
        """
        return [
            Checked(row, sum(a * b for a, b in zip(numbers, terms, strict=True)))
            for row, terms in self.terms()
        ]

    def fitted(self) -> tuple[tuple[float, ...], list[Checked]]:
        """Find the three numbers on every second row, none below zero, and check them on the
        others.

        Returns:
            The numbers, and the rows that they were not found on; no rows where there are less than
            five.
        """
        import numpy as np

        points = sorted(self.terms(), key=lambda one: (one[0].requests, one[1][2]))
        if len(points) < 5:
            return (), []
        # Relative errors count: each row is divided by what was measured.
        known = np.array([[term / row.step_s for term in terms] for row, terms in points[::2]])
        best, least = np.zeros(3), np.inf
        for used in itertools.product((False, True), repeat=3):
            chosen, values = np.array(used), np.zeros(3)
            values[chosen] = np.linalg.lstsq(known[:, chosen], np.ones(len(known)), rcond=None)[0]
            error = float(((known @ values - 1) ** 2).sum())
            if values.min() >= 0 and error < least:
                best, least = values, error
        numbers = tuple(float(value) for value in best)
        others = {id(row) for row, _ in points[1::2]}
        return numbers, [one for one in self.checked(numbers) if id(one.row) in others]


def typical_error(checked: Sequence[Checked]) -> float:
    """Return the median of the errors' sizes."""
    return median(abs(one.error) for one in checked)


def read(lines: Iterable[dict[str, Any]]) -> Recording:
    """Return a recording from its lines; the last all-reduce of a link counts."""
    tables: dict[Gbit, Sequence[Sequence[float]]] = {}
    about, rows = {}, []
    for line in lines:
        if "about" in line:
            about = line["about"]
        elif line["link"]["delay_us"]:
            continue
        elif line["way"] == "all-reduce":
            if line.get("points"):
                tables[line["link"]["gbit"]] = line["points"]
        elif line.get("tpot_s") and line["prompts"] == "code":
            place = (line["shape"], line["way"], line["link"]["gbit"], line["requests"])
            rules, beside = tuple(line["rules"]), line.get("beside", False)
            rows.append(Row(*place, line["tpot_s"], line["tok_s"], rules, beside))
    return Recording(about, SHAPES, tables, tuple(rows))


SHAPES = {"8b": (36, 4096), "30b": (48, 2048), "tiny": (3, 128)}
"""(layers, hidden size), by name."""

TITLES = {"8b": "Qwen3-8B", "30b": "Qwen3-30B-A3B", "tiny": "tiny-dense"}
"""Models with these shapes."""


@cache
def recorded() -> Recording:
    """Return what was measured between two GPUs."""
    text = files("sparkbook.cluster").joinpath("recorded", "links-h200.jsonl").read_text("utf-8")
    return read(json.loads(line) for line in text.splitlines())
