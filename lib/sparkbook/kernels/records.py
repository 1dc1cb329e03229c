"""What was measured of the kernels, a report a card in `kernels/results/`, the goals that were set
for them, and a whole model's speeds.

    reports = load()
    reports["H200"].share("fp4_gemv", "8192x8192")

Goals and reasons are those of `kernels/VERSIONS.md`; whether a goal was reached is worked out here
from the reports.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook.checkpoint.known import DUMMIES
from sparkbook.errors import SparkbookError
from sparkbook.kernels import build

CARDS = ("H100", "H200")
"""Cards that have a report: of version 5 of the kernels on the H100, of version 10 on the H200."""

OURS = "fp4_gemv"
LIBRARIES = ("humming NVFP4", "torch _weight_int4pack_mm", "bitsandbytes fp4", "Triton GEMV")
"""Other people's 4-bit products, and a plain one in Triton, that ran with ours."""


@dataclass(frozen=True)
class Report:
    """One card's run of `python -m sparkbook.kernels.bench`.

    Attributes:
        card: H100 or H200.
        machine: the card, its driver, the libraries, the date, the version of the kernels and the
            hash of their sources.
        ceilings_gb_s: what a copy and a read-only probe moved, GB/s.
        rows: measurements: what, shape (rows x columns, or a model's name), tokens, us, mb, gb_s,
            of_copy; `measured`, the date of a row that is from an earlier run than the rest.
    """

    card: str
    machine: Mapping[str, Any]
    ceilings_gb_s: Mapping[str, float]
    rows: tuple[Mapping[str, Any], ...]

    @property
    def copy_gb_s(self) -> float:
        """What a copy moves on this card, GB/s: read and written bytes."""
        return self.ceilings_gb_s["copy"]

    @property
    def title(self) -> str:
        """The card, and the version of the kernels."""
        return f"{self.card}, kernels of version {self.version}"

    @property
    def version(self) -> int | str:
        """Version of the kernels (`kernels/VERSIONS.md`); `unknown` if the report has none."""
        return self.machine.get("kernels", {}).get("version", "unknown")

    def us(self, what: str, shape: str, tokens: int = 1) -> float:
        """Return microseconds of a launch. Raises SparkbookError if it was not measured."""
        return self._row(what, shape, tokens)["us"]

    def share(self, what: str, shape: str, tokens: int = 1) -> float:
        """Return share of the card's own copy. Raises SparkbookError if it was not measured."""
        return self._row(what, shape, tokens)["of_copy"]

    def _row(self, what: str, shape: str, tokens: int) -> Mapping[str, Any]:
        for row in self.rows:
            if (row["what"], row["shape"], row["tokens"]) == (what, shape, tokens):
                return row
        raise SparkbookError(
            f"'{what}' of {shape} with {tokens} tokens was not measured on the {self.card}"
        )


def load() -> dict[str, Report]:
    """Return the reports of all cards, by the card. Raises SparkbookError if one is not there."""
    found = {}
    for card in CARDS:
        file = build.sources() / "results" / f"{card.lower()}.json"
        try:
            data = json.loads(file.read_text("utf-8"))
            _times(data["rows"])
            found[card] = Report(card, data["machine"], data["ceilings_gb_s"], tuple(data["rows"]))
        except (OSError, *_NO_REPORT) as error:
            raise SparkbookError(f"{file} can't be read: {_words(error)}") from None
    return found


def times(file: str) -> dict[tuple[str, str, int], float]:
    """Return the times of a benchmark's report, or of `sparkbook record --kernels`, in microseconds
    by what, shape and tokens. Raises SparkbookError if the file can't be read as one.
    """
    try:
        data = json.loads(Path(file).read_text("utf-8"))
        return {} if "stopped" in data and "rows" not in data else _times(data["rows"])
    except (OSError, *_NO_REPORT) as error:
        raise SparkbookError(f"{file} is no report of the kernels: {_words(error)}") from None


_NO_REPORT = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def _words(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)[:120]


def _times(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str, int], float]:
    found = {(row["what"], row["shape"], row["tokens"]): row["us"] for row in rows}
    for key, us in found.items():
        if not isinstance(us, int | float) or not 0 < us < math.inf:
            raise ValueError(f"the time of {key} is {us!r}")
    return found


Measure = Callable[[Report, str], list[float]]
"""Figures of a report, without (`""`) or with (`" pdl"`) a programmatic launch."""


@dataclass(frozen=True)
class Goal:
    """A goal that was set on the H100.

    Attributes:
        words: what was to be reached.
        measure: the figures that are to reach it, a figure a shape.
        least: what each has to be at least; with `most`, at most.
        least_pdl: the same with a programmatic launch; None: not a goal with one.
        unit: `%` for shares, `×` for ratios.
        why: why it was reached or not.
        most: whether `least` is an upper bound.
    """

    words: str
    measure: Measure
    least: float
    least_pdl: float | None
    unit: str
    why: str
    most: bool = False

    def _reached(self, figures: Iterable[float], bound: float) -> list[bool]:
        return [figure <= bound if self.most else figure >= bound for figure in figures]

    def verdict(self, report: Report) -> str:
        """`yes`, `with pdl` (programmatic launch only), `in part` (some shapes) or `no`."""
        plain = self._reached(self.measure(report, ""), self.least)
        if all(plain):
            return "yes"
        if self.least_pdl is not None and all(
            self._reached(self.measure(report, " pdl"), self.least_pdl)
        ):
            return "with pdl"
        return "in part" if any(plain) else "no"

    def figures(self, report: Report) -> str:
        """Return the figures, least to most, without and with a programmatic launch."""
        words = self._span(self.measure(report, ""))
        return (
            words
            if self.least_pdl is None
            else f"{words}; pdl {self._span(self.measure(report, ' pdl'))}"
        )

    def _span(self, figures: list[float]) -> str:
        low, high = (
            f"{100 * one:.1f}" if self.unit == "%" else f"{one:.2f}"
            for one in (min(figures), max(figures))
        )
        # A no-break space: the unit stays with its number in a narrow column.
        span = low if low == high else f"{low} to {high}"
        return f"{span}{chr(0xA0) if self.unit == '%' else ''}{self.unit}"


def _shares(*shapes: str, what: str = OURS) -> Measure:
    return lambda report, pdl: [report.share(what + pdl, shape) for shape in shapes]


def _more_for_four(report: Report, _pdl: str) -> list[float]:
    """Return how much longer four tokens take than one."""
    return [report.us(OURS, shape, 4) / report.us(OURS, shape) - 1 for shape in _SIZES]


def _sparse_gain(report: Report, _pdl: str) -> list[float]:
    return [report.us(OURS, shape) / report.us("sparse_gemv", shape) for shape in _SIZES]


def _lead(report: Report, pdl: str) -> list[float]:
    """Return how many times as fast as the fastest of the others."""
    shape = "8192x8192"
    return [min(report.us(other, shape) for other in LIBRARIES) / report.us(OURS + pdl, shape)]


_SIZES = ("4096x4096", "8192x8192", "8192x28672")
GOALS = (
    Goal(
        "132 MB: 92 % of the copy",
        _shares("8192x28672"),
        0.92,
        0.92,
        "%",
        "H200: integer instructions, decoding mostly: 23 of 40 µs before version 9 made it cheaper;"
        " the faster memory waits for them",
    ),
    Goal(
        "66 MB: 88 %",
        _shares("28672x4096"),
        0.88,
        0.88,
        "%",
        "many short blocks: K = 4096 is four steps of eight warps. H200: decoding as well",
    ),
    Goal(
        "33 to 38 MB: 80 %",
        _shares("14336x4096", "4096x14336", "8192x8192"),
        0.80,
        0.80,
        "%",
        "launch, first fetch and drain are a fifth of the time; an overlapping launch hides them."
        " H200: decoding as well",
    ),
    Goal(
        "9.4 MB: 55 %",
        _shares("4096x4096"),
        0.55,
        0.55,
        "%",
        "the launch again: of so few bytes, an H200's read-only probe comes to 58 % itself",
    ),
    Goal(
        "experts of a layer: 55 %, with pdl 70 %",
        _shares("Qwen3-Next-80B-A3B", what="moe_decode"),
        0.55,
        0.70,
        "%",
        "two launches, and in each the ids, the weights, the activations and the sum come one after"
        " the other; since version 6 14.4 µs on the H200, version 5 took 16.7. In Marlin's order,"
        " version 10: 12.0",
    ),
    Goal(
        "four tokens: at most 10 % more time than one",
        _more_for_four,
        0.10,
        None,
        "%",
        "each block reads the activations again; a version that did not was slower with one token"
        " and with four",
        most=True,
    ),
    Goal(
        "2:4 at least 1.20× the dense product",
        _sparse_gain,
        1.20,
        None,
        "×",
        "the 2:4 kernel has the structure of version 1",
    ),
    Goal(
        "8192²: 1.5× the best library",
        _lead,
        1.5,
        1.5,
        "×",
        "humming needs 20 µs on both cards, where 27 were published: it waits for instructions, not"
        " for memory",
    ),
)


def goals(reports: Mapping[str, Report]) -> list[list[str]]:
    """Return a row a goal: the goal; for each card whether it was reached and what was measured;
    why.
    """
    return [
        [
            goal.words,
            *(f"**{goal.verdict(report)}**: {goal.figures(report)}" for report in reports.values()),
            goal.why,
        ]
        for goal in GOALS
    ]


MODELS = tuple(DUMMIES)
"""Shapes of models that were measured in a whole vLLM."""


def _arms(size: str) -> list[dict[str, Any]]:
    data = json.loads((build.sources() / "results" / f"whole-{size}-h200.json").read_text("utf-8"))
    return [data["arms"]["marlin"], data["arms"]["plugin"]]


def whole_model(size: str) -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of a table: vLLM with Marlin and with the plug-in on an H200, one
    of `MODELS`. Tokens a second while all requests decode, and first tokens in ms: the median of
    five turns' medians, and the lowest and highest of them.
    """
    arms = _arms(size)
    rows = []
    for marlin, ours in zip(*(arm["decode"] for arm in arms), strict=True):
        speeds = [marlin["tok_s"], ours["tok_s"]]
        what = f"{ours['requests']} at a time, tok/s"
        rows.append([what, *(f"{speed:.0f}" for speed in speeds), f"{speeds[1] / speeds[0]:.2f}"])
    for prompt in arms[0]["first_token_ms"]:
        turns = [
            [statistics.median(turn) for turn in arm["first_token_ms"][prompt]] for arm in arms
        ]
        marlin, ours = (statistics.median(times) for times in turns)
        shown = [
            f"{statistics.median(times):.1f} ({min(times):.1f} to {max(times):.1f})"
            for times in turns
        ]
        rows.append([f"first token, {prompt}, ms", *shown, f"{marlin / ours:.2f}"])
    return [f"{size.upper()} on an H200", "Marlin", "plug-in", "ratio"], rows


def drafts(size: str = "8b") -> tuple[list[str], list[list[str]]]:
    """Return the header and rows of a table: tokens a second with n-gram drafts of four tokens, the
    mean of both turns and each of them, with Marlin and with the plug-in.
    """
    rows = []
    for both in zip(*(arm["ngram"] for arm in _arms(size)), strict=True):
        shown = [
            f"{one['tok_s']:.0f} ({', '.join(f'{turn:.0f}' for turn in one['turns'])})"
            for one in both
        ]
        ratio = both[1]["tok_s"] / both[0]["tok_s"]
        rows.append([str(both[0]["requests"]), *shown, f"{ratio:.2f}"])
    return [
        f"{size.upper()} on an H200, requests",
        "Marlin, tok/s",
        "plug-in, tok/s",
        "ratio",
    ], rows
