"""Pictures for the chapter on NVFP4: what the kernels reach, and what pruning costs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from sparkbook.kernels.weights24 import Pruning
from sparkbook.plots import style
from sparkbook.plots.style import COLOURS, GRID, INK, Chart

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
H100_BF16_TFLOPS = 989.0
"""Dense BF16 of an H100 SXM, by its data sheet (https://www.nvidia.com/en-us/data-center/h100/)."""


def flop_per_byte(row: Mapping[str, Any]) -> float | None:
    """Operations for each byte that a measured row read; None for what is no product of a matrix.

    Two for each weight and token. Of zeros that a 2:4 kernel skips, both are counted, as if they had been done.
    """
    if match := re.fullmatch(r"(\d+)x(\d+)", row["shape"]):
        return 2 * int(match[1]) * int(match[2]) * row["tokens"] / (row["mb"] * 1e6) if row["what"] != "quantize" else None
    # Experts of a layer: every token reads its own, in NVFP4.
    return 2 / 0.5625 if row["what"].startswith("moe") else None


def roofline(report: Mapping[str, Any], spark_gb_s: float) -> Chart:
    """Measured products under the roof that one card's memory sets, and the Spark's roof beside it."""
    figure, axes = style.axes(4.3)
    copy = report["ceilings_gb_s"]["copy"]
    ends = [0.6, 2000]
    for slope, top, name, line in (
        (copy, H100_BF16_TFLOPS, "H100: its copy", "-"),
        (spark_gb_s, 500.0, "Spark: a read-only probe", "--"),
    ):
        axes.plot(ends, [min(x * slope / 1e3, top) for x in ends], alpha=0)  # the limits
        knee = top / slope * 1e3
        axes.plot([ends[0], knee, ends[1]], [ends[0] * slope / 1e3, top, top], color=INK, linewidth=1, linestyle=line)
        axes.annotate(
            f"{name}, {slope:,.0f} GB/s", (60, 60 * slope / 1e3), xytext=(0, 5), textcoords="offset points", rotation=25.5, color=INK,
            fontsize=8, ha="center", va="bottom", rotation_mode="anchor",
        )  # fmt: skip
    for what, (label, colour, marker) in _LOOKS.items():
        rows = [(x, row["gb_s"]) for row in report["rows"] if row["what"] == what and (x := flop_per_byte(row))]
        if rows:
            axes.plot(
                [x for x, _ in rows], [x * rate / 1e3 for x, rate in rows], marker, color=colour, markersize=5, alpha=0.85, label=label
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(*ends)
    axes.set_ylim(0.1, 2000)
    for axis, at in ((axes.xaxis, [1, 4, 10, 30, 100, 1000]), (axes.yaxis, [0.1, 1, 10, 100, 1000])):
        axis.set_major_locator(FixedLocator(at))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_xlabel("operations for each byte read", color=INK, fontsize=9)
    axes.set_ylabel("TFLOP/s", color=INK, fontsize=9)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="lower right", ncols=2)
    return Chart(
        figure,
        f"Roofline of {report['machine']['gpu']}: the products of 1 to 8 tokens lie on or below the slope of memory, far from the flat "
        "roof of compute; the Spark's slope is thirteen times lower",
    )


def bandwidth(report: Mapping[str, Any]) -> Chart:
    """Bytes a second of each kernel over the bytes of the weights, one token."""
    figure, axes = style.axes(4.3)
    for name, value in report["ceilings_gb_s"].items():
        axes.axhline(value, color=INK, linewidth=1, linestyle="--" if name == "copy" else ":")
        words = {"copy": "copy", "read": "read-only probe"}.get(name, name)
        axes.annotate(
            f"{words}, {value:,.0f}",
            (3.2, value),
            xytext=(0, -10 if name == "copy" else 3),
            textcoords="offset points",
            color=INK,
            fontsize=8,
        )
    for what, (label, colour, marker) in _LOOKS.items():
        rows = sorted((row["mb"], row["gb_s"]) for row in report["rows"] if row["what"] == what and row["tokens"] == 1)
        if rows:
            line = "-" if len(rows) > 2 else ""
            axes.plot(
                [x for x, _ in rows],
                [y for _, y in rows],
                marker=marker,
                linestyle=line,
                color=colour,
                linewidth=1,
                markersize=5,
                label=label,
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator([5, 10, 20, 50, 100, 200, 500]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(3, 600)
    axes.set_ylim(0, 3500)
    axes.grid(True, color=GRID, linewidth=0.6)
    axes.set_xlabel("bytes of the weights, MB", color=INK, fontsize=9)
    axes.set_ylabel("GB/s, one token", color=INK, fontsize=9)
    axes.legend(frameon=False, labelcolor=INK, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Chart(
        figure, f"Bytes read a second over the size of the weights on {report['machine']['gpu']}: small matrices stay far below the copy"
    )


def pruning(found: Mapping[str, Pruning]) -> Chart:
    """Energy lost by keeping two of four, beside the energy of NVFP4's own error."""
    figure, axes = style.axes(0.5 * len(found) + 1.1)
    rows = range(len(found))
    for offset, colour, label, values in (
        (-0.18, BLUE, "NVFP4's own error", [100 * one.quantization for one in found.values()]),
        (0.18, ORANGE, "pruned to 2:4", [100 * one.pruning for one in found.values()]),
    ):
        axes.barh([row + offset for row in rows], values, height=0.34, color=colour, label=label)
        for row, value in zip(rows, values, strict=True):
            axes.annotate(
                f"{value:.1f}", (value, row + offset), xytext=(3, 0), textcoords="offset points", va="center", color=INK, fontsize=8
            )
    axes.set_yticks(list(rows), list(found), fontsize=9)
    axes.invert_yaxis()
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel("share of the weights' energy, %", color=INK, fontsize=9)
    axes.legend(frameon=False, labelcolor=INK, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return Chart(
        figure, "Energy lost by pruning to 2:4 against NVFP4's own error, in percent: some 8 to 19 against 1 for each distribution"
    )


def parts(found: Mapping[str, tuple[float, float]]) -> Chart:
    """Bytes of one token by class of weights; each a range where the format is not known."""
    figure, axes = style.axes(0.42 * len(found) + 0.9)
    names = list(found)
    for row, (low, high) in enumerate(found.values()):
        axes.barh(row, low / 1e9, height=0.6, color=BLUE, label="in any case" if row == 0 else None)
        if high > low:
            axes.barh(row, (high - low) / 1e9, left=low / 1e9, height=0.6, color=BLUE, alpha=0.35)
        words = f"{low / 1e9:.2f}" if high == low else f"{low / 1e9:.2f} to {high / 1e9:.2f}"
        axes.annotate(words, (high / 1e9, row), xytext=(4, 0), textcoords="offset points", va="center", color=INK, fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.grid(True, axis="x", color=GRID, linewidth=0.6)
    axes.set_xlabel("GB read for one token (pale: if in BF16 instead of NVFP4)", color=INK, fontsize=9)
    text = "; ".join(f"{name} {low / 1e9:.2f} to {high / 1e9:.2f}" for name, (low, high) in found.items())
    return Chart(figure, f"GB read for one token, by class of weights: {text}")
