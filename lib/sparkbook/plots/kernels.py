"""Pictures for the chapter on NVFP4: what the kernels reach, and what pruning costs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sparkbook.host import spark
from sparkbook.kernels.records import OURS, Report
from sparkbook.kernels.roofline import Predicted
from sparkbook.kernels.weights24 import Pruning
from sparkbook.plots import style
from sparkbook.plots.style import COLOURS, INK, Chart, book_style

BLUE, ORANGE, GREEN, VIOLET, GREY, RED = COLOURS
_LOOKS = {
    "fp4_gemv pdl": ("NVFP4, overlapping launches", BLUE, "o"),
    "fp4_gemv": ("NVFP4", BLUE, "^"),
    "sparse_gemv": ("NVFP4, 2:4", GREEN, "D"),
    "fp8_gemv": ("FP8", VIOLET, "s"),
    "moe_decode pdl": ("experts of a layer", RED, "P"),
    "humming NVFP4": ("humming NVFP4", ORANGE, "o"),
    "torch _weight_int4pack_mm": ("torch INT4", ORANGE, "^"),
    "bitsandbytes fp4": ("bitsandbytes FP4", GREY, "o"),
    "Triton GEMV": ("Triton", GREY, "^"),
    "torch linear bf16": ("torch BF16", INK, "x"),
}
BF16_TFLOPS = 989.0
"""Dense BF16 of an H100 SXM and of an H200 SXM, by their data sheets
(https://www.nvidia.com/en-us/data-center/h100/, …/h200/).
"""
SPARK_TFLOPS = spark.PEAK_FLOP_S / 1e12
"""Dense FP4 of a Spark."""


def flop_per_byte(row: Mapping[str, Any]) -> float | None:
    """Operations for each byte that a measured row read; None for what is no product of a matrix.

    Two for each weight and token. Of zeros that a 2:4 kernel skips, both are counted, as if they
    had been done.
    """
    if match := re.fullmatch(r"(\d+)x(\d+)", row["shape"]):
        return (
            2 * int(match[1]) * int(match[2]) * row["tokens"] / (row["mb"] * 1e6)
            if row["what"] != "quantize"
            else None
        )
    # Experts of a layer: every token reads its own, in NVFP4.
    return 2 / 0.5625 if row["what"].startswith("moe") else None


@book_style()
def roofline(reports: Mapping[str, Report], spark_gb_s: float) -> Chart:
    """Draw a panel a card: measured products under the roof that the card's memory sets, and the
    Spark's roof next to it.
    """
    figure, panels = style.panels(4.6, 1, len(reports), sharey=True)
    for axes, report in zip(panels, reports.values(), strict=True):
        _roof(axes, report.copy_gb_s, BF16_TFLOPS, f"{report.card}: its copy", "-", above=True)
        _roof(axes, spark_gb_s, SPARK_TFLOPS, "Spark: a read-only probe", "--", above=False)
        for what, (_, colour, marker) in _LOOKS.items():
            rows = [
                (x, row["gb_s"])
                for row in report.rows
                if row["what"] == what and (x := flop_per_byte(row))
            ]
            axes.plot(
                [x for x, _ in rows],
                [x * rate / 1e3 for x, rate in rows],
                marker,
                color=colour,
                markersize=4,
            )
        _log_log(axes)
        axes.set_title(report.title)
    panels[0].set_ylabel("TFLOP/s")
    _legend(figure, _LOOKS)
    slopes = " and ".join(
        f"{report.copy_gb_s / spark_gb_s:.0f} times ({card})" for card, report in reports.items()
    )
    return Chart(
        figure,
        f"Rooflines of {' and '.join(reports)}: the products of 1 to 8 tokens are on or below the"
        f" slope of memory, far from the flat roof of compute; it lies {slopes} as high as a"
        " Spark's",
    )


@book_style()
def spark_roofline(predicted: Sequence[Predicted]) -> Chart:
    """Draw what is predicted for a Spark under its roofs: memory as specified with FP4, and memory
    as a probe reads it with BF16.
    """
    figure, axes = style.axes(4.4)
    read = sum(spark.READ_GB_S) / 2
    for rate, tflops, name, line, side in (
        (spark.BANDWIDTH_GB_S, SPARK_TFLOPS, "specified, FP4", "-", 4),
        (read, SPARK_TFLOPS / 4, "probe, BF16", "--", -11),
    ):
        _roof_line(axes, rate, tflops, line)
        axes.annotate(
            f"{name}: {rate:.4g} GB/s",
            (_ENDS[1], tflops),
            xytext=(-4, side),
            textcoords="offset points",
            ha="right",
            fontsize=7,
        )
    places = [
        (one.what, x, x * one.mb / (one.low_us + one.high_us) * 2)
        for one in predicted
        if (x := flop_per_byte(asdict(one)))
    ]
    for what, (_, colour, marker) in _LOOKS.items():
        mine = [(x, y) for name, x, y in places if name == what]
        axes.plot([x for x, _ in mine], [y for _, y in mine], marker, color=colour, markersize=4)
    _log_log(axes)
    axes.set_ylabel("TFLOP/s")
    names = {what for what, *_ in places}
    _legend(figure, {what: look for what, look in _LOOKS.items() if what in names})
    least, most = (f"{end(y for *_, y in places):.2g}" for end in (min, max))
    return Chart(
        figure,
        f"Roofline of a Spark: predicted products of 1 to 8 tokens are on the slope of its memory"
        f" at {least} to {most} TFLOP/s; the flat roofs are at {SPARK_TFLOPS:g} (FP4) and"
        f" {SPARK_TFLOPS / 4:g} (BF16)",
    )


_ENDS = (0.6, 5000)


def _log_log(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*_ENDS)
    axes.set_ylim(0.1, 2000)
    _ticks(axes.xaxis, [1, 10, 100, 1000])
    _ticks(axes.yaxis, [0.1, 1, 10, 100, 1000])
    axes.grid()
    axes.set_xlabel("operations for each byte read")


def _roof_line(axes: Axes, gb_s: float, tflops: float, line: str) -> None:
    knee = tflops / gb_s * 1e3
    axes.plot(
        [_ENDS[0], knee, _ENDS[1]],
        [_ENDS[0] * gb_s / 1e3, tflops, tflops],
        color=INK,
        linewidth=1,
        linestyle=line,
    )


def _roof(axes: Axes, gb_s: float, tflops: float, name: str, line: str, *, above: bool) -> None:
    """The slope of memory up to the flat part of compute, with its name along the slope."""
    _roof_line(axes, gb_s, tflops, line)
    axes.annotate(
        f"{name}, {gb_s:,.4g} GB/s",
        (9 if above else 45, (9 if above else 45) * gb_s / 1e3),
        xytext=(0, 4 if above else -4),
        textcoords="offset points",
        rotation=45,
        rotation_mode="anchor",
        transform_rotates_text=True,
        fontsize=7,
        ha="center",
        va="bottom" if above else "top",
    )


@book_style()
def bandwidth(reports: Mapping[str, Report]) -> Chart:
    """Draw a panel a card: what each kernel reads over the bytes of the weights, one token, as a
    share of the card's own copy.
    """
    figure, panels = style.panels(4.6, 1, len(reports), sharey=True)
    looks = {**_LOOKS, "read probe": ("a probe that only reads", INK, ".")}
    for axes, report in zip(panels, reports.values(), strict=True):
        axes.axhline(100, color=INK, linewidth=1, linestyle="--")
        axes.annotate(
            f"copy, {report.copy_gb_s:,.0f} GB/s",
            (3.3, 100),
            xytext=(0, 3),
            textcoords="offset points",
        )
        for what, (_, colour, marker) in looks.items():
            # The probe computes nothing: it has no tokens.
            rows = sorted(
                (row["mb"], 100 * row["of_copy"])
                for row in report.rows
                if row["what"] == what and row["tokens"] == (what != "read probe")
            )
            line = ":" if what == "read probe" else "-" if len(rows) > 2 else ""
            axes.plot(
                [x for x, _ in rows],
                [y for _, y in rows],
                marker,
                linestyle=line,
                color=colour,
                linewidth=1,
                markersize=4,
            )
        axes.set_xscale("log")
        _ticks(axes.xaxis, [5, 20, 50, 100, 200, 500])
        axes.set_xlim(3, 700)
        axes.set_ylim(0, 112)
        axes.grid()
        axes.set_title(report.title)
        axes.set_xlabel("bytes of the weights, MB")
    panels[0].set_ylabel("share of the card's own copy, %")
    _legend(figure, looks)
    best = " and ".join(
        f"{max(row['of_copy'] for row in one.rows if row['what'] == f'{OURS} pdl'):.0%} on the"
        f" {one.card}"
        for one in reports.values()
    )
    return Chart(
        figure,
        f"Share of the card's own copy over the size of the weights, {' and '.join(reports)}: small"
        " matrices stay far below it; the NVFP4 product with overlapping launches reaches at most"
        f" {best}",
    )


def _ticks(axis: Axis, at: Sequence[float]) -> None:
    """Plain numbers at these places of a logarithmic axis, no others."""
    axis.set_major_locator(FixedLocator(list(at)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _legend(figure: Figure, looks: Mapping[str, tuple[str, str, str]]) -> None:
    """One legend for all panels, below them."""
    marks = [
        Line2D([], [], color=colour, marker=marker, linestyle="", label=label)
        for label, colour, marker in looks.values()
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=4)


@book_style()
def pruning(found: Mapping[str, Pruning]) -> Chart:
    """Energy lost by keeping two of four, next to the energy of NVFP4's own error."""
    figure, axes = style.axes(0.5 * len(found) + 1.1)
    rows = range(len(found))
    for offset, colour, label, values in (
        (-0.18, BLUE, "NVFP4's own error", [100 * one.quantization for one in found.values()]),
        (0.18, ORANGE, "pruned to 2:4", [100 * one.pruning for one in found.values()]),
    ):
        axes.barh([row + offset for row in rows], values, height=0.34, color=colour, label=label)
        for row, value in zip(rows, values, strict=True):
            axes.annotate(
                f"{value:.1f}",
                (value, row + offset),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
            )
    axes.set_yticks(list(rows), list(found))
    axes.invert_yaxis()
    axes.grid(axis="x")
    axes.set_xlabel("share of the weights' energy, %")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return Chart(
        figure,
        "Energy lost by pruning to 2:4 against NVFP4's own error, in percent: some 8 to 19 against"
        " 1 for each distribution",
    )


@book_style()
def parts(found: Mapping[str, tuple[float, float]]) -> Chart:
    """Draw bytes of one token by class of weights; each a range where the format is not known."""
    figure, axes = style.axes(0.42 * len(found) + 0.9)
    names = list(found)
    for row, (low, high) in enumerate(found.values()):
        axes.barh(row, low / 1e9, height=0.6, color=BLUE, label="in any case" if row == 0 else None)
        if high > low:
            axes.barh(row, (high - low) / 1e9, left=low / 1e9, height=0.6, color=BLUE, alpha=0.35)
        words = f"{low / 1e9:.2f}" if high == low else f"{low / 1e9:.2f} to {high / 1e9:.2f}"
        axes.annotate(
            words, (high / 1e9, row), xytext=(4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.grid(axis="x")
    axes.set_xlabel("GB read for one token (pale: if in BF16 instead of NVFP4)")
    text = "; ".join(
        f"{name} {low / 1e9:.2f} to {high / 1e9:.2f}" for name, (low, high) in found.items()
    )
    return Chart(figure, f"GB read for one token, by class of weights: {text}")
