"""What a link between two nodes was worth: a recording of `tools/measure_links.py`, and the model
of `sparkbook plan --nodes` held against it.

A step of tensor parallelism over two nodes is estimated without any fitted number: half of what one
node takes, plus two all-reduces a layer and one more, each of hidden size × tokens × 2 bytes, with
the times that were measured of all-reduces over the same link. One of pipeline parallelism is what
one node takes for half of the requests, and two hops.
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

from sparkbook.checkpoint import known
from sparkbook.cluster.all_reduce import between

Gbit = float | None
"""The rate that the link is held to, in Gbit/s; None: it is not held."""

Table = Sequence[Sequence[float]]
"""(bytes, µs) of an all-reduce, by bytes."""

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
        way: tp or pp (over both nodes), one, or replicas (one on each).
        requests: at the same time, all servers together.
        prompts: the class of prompts, such as code or long-8k.
        step_s: seconds between two tokens of a request, the median.
        tok_s: tokens a second, all requests together, their prompts read meanwhile.
        ttft_s: seconds to the first token, the median.
        rules: what the gate says of it.
        beside: whether other servers were still starting.
    """

    shape: str
    way: str
    gbit: Gbit
    requests: int
    prompts: str
    step_s: float
    tok_s: float
    ttft_s: float
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
class Delayed:
    """All-reduces over a cable with latency.

    Attributes:
        delay_us: added in each direction.
        rtt_us: of a ping over it, the median.
        table: (bytes, µs) of an all-reduce.
    """

    delay_us: int
    rtt_us: float
    table: Table


@dataclass(frozen=True)
class Recording:
    """Rows of several shapes over several links.

    Attributes:
        about: machine, engine, date, how.
        shapes: (layers, hidden size) by name.
        tables: (bytes, µs) of an all-reduce while no server ran, by the link's rate.
        busy: the same next to idle servers and with their sockets.
        delayed: next to idle servers, over a cable of 10 Gbit/s, by its delay.
        rows: of short prompts.
        long: of long prompts.
    """

    about: dict[str, str]
    shapes: dict[str, tuple[int, int]]
    tables: dict[Gbit, Table]
    busy: dict[Gbit, Table]
    delayed: tuple[Delayed, ...]
    rows: tuple[Row, ...]
    long: tuple[Row, ...]

    def find(self, shape: str, way: str, requests: int, gbit: Gbit = None) -> Row | None:
        """Return the row of this load; None where it was not measured."""
        same = (shape, way, requests, gbit)
        return next(
            (one for one in self.rows if (one.shape, one.way, one.requests, one.gbit) == same), None
        )

    def alone_s(self, row: Row) -> float | None:
        """Return the step time of one node under the same load."""
        found = self.find(row.shape, "one", row.requests)
        return found.step_s if found else None

    def terms(self, tables: dict[Gbit, Table] | None = None) -> Iterable[tuple[Row, list[float]]]:
        """Yield each trusted row of tensor parallelism with what its step is made of: the step of
        one node, a second, the all-reduces.

        Args:
            tables: of all-reduces; without them, those measured while no server ran.
        """
        tables = self.tables if tables is None else tables
        for row in self.rows:
            alone = self.alone_s(row)
            if row.way == "tp" and row.trusted and alone and row.gbit in tables:
                layers, hidden = self.shapes[row.shape]
                each = between(tables[row.gbit], hidden * 2 * row.requests)
                yield row, [alone, 1.0, (2 * layers + 1) * each * 1e-6]

    def pipelined(self) -> list[Checked]:
        """Return the trusted rows of pipeline parallelism next to their estimates."""
        found = []
        for row in self.rows:
            if row.way != "pp" or not row.trusted or row.gbit not in self.tables:
                continue
            same = (row.shape, "one")
            loads = [(o.requests, o.step_s) for o in self.rows if (o.shape, o.way) == same]
            if loads:
                half = -(-row.requests // 2)
                size = self.shapes[row.shape][1] * 2 * half
                hops = 2 * between(self.tables[row.gbit], size) * 1e-6
                found.append(Checked(row, between(sorted(loads), half) + hops))
        return found

    def checked(
        self,
        numbers: Sequence[float] = (0.5, 0.0, 1.0),
        tables: dict[Gbit, Table] | None = None,
    ) -> list[Checked]:
        """Return every such row next to its estimate.

        Args:
            numbers: what the terms count; without them, nothing is fitted.
            tables: see `terms`.
        """
        return [
            Checked(row, sum(a * b for a, b in zip(numbers, terms, strict=True)))
            for row, terms in self.terms(tables)
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
    tables: dict[Gbit, Table] = {}
    busy: dict[Gbit, Table] = {}
    delayed = []
    about, rows = {}, []
    for line in lines:
        if "about" in line:
            about = line["about"]
            continue
        gbit, delay_us = line["link"]["gbit"], line["link"]["delay_us"]
        if line["way"] == "all-reduce":
            table = line.get("points")
            if table and delay_us:
                delayed.append(Delayed(delay_us, line["pair"]["rtt_us"], table))
            elif table:
                (busy if line.get("run") == 2 else tables)[gbit] = table
        elif line.get("tpot_s") and not delay_us:
            rows.append(
                Row(
                    line["shape"],
                    line["way"],
                    gbit,
                    line["requests"],
                    line["prompts"],
                    line["tpot_s"],
                    line["tok_s"],
                    line["ttft_s"],
                    tuple(line["rules"]),
                    line.get("beside", False),
                )
            )
    short = tuple(row for row in rows if row.prompts == "code")
    long = tuple(row for row in rows if row.prompts != "code")
    delayed.sort(key=lambda one: one.delay_us)
    return Recording(about, shapes(), tables, busy, tuple(delayed), short, long)


TITLES = {name: handle.rpartition("/")[2] for name, handle in known.DUMMIES.items()}
TITLES["tiny"] = "tiny-dense"
"""Models that were measured, by their names in a recording."""


@cache
def shapes() -> dict[str, tuple[int, int]]:
    """Return layers and hidden size of these models."""
    configs = {name: known.shape(handle) for name, handle in known.DUMMIES.items()}
    found = {name: (of["num_hidden_layers"], of["hidden_size"]) for name, of in configs.items()}
    return found | {"tiny": (3, 128)}


@cache
def recorded() -> Recording:
    """Return what was measured between two GPUs."""
    text = files("sparkbook.cluster").joinpath("recorded", "links-h200.jsonl").read_text("utf-8")
    return read(json.loads(line) for line in text.splitlines())
