"""Pictures of measurements. What the gate did not pass is hatched, so that nobody mistakes it for a
number; see `sparkbook.plots.style`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.patches import Patch

from sparkbook.bench.lossless import Trial
from sparkbook.bench.results import Cell, Report, Summary
from sparkbook.errors import SparkbookError
from sparkbook.plots.style import COLOURS, GRID, INK, PAPER, Chart, axes, book_style, panels

HATCH = {"valid": "", "suspect": "//", "invalid": "xx"}
"""How a bar of each verdict is filled: only a valid one is solid."""


@book_style()
def by_class(report: Report, concurrency: int = 1) -> Chart:
    """Decode speed of a request by prompt class, with 95 % intervals; tok/s = 1/TPOT.

    Raises:
        SparkbookError: no row has this concurrency.
    """
    cells = [c for c in report.cells if c.concurrency == concurrency and c.figures.decode_tok_s]
    if not cells:
        raise SparkbookError(f"no row at concurrency {concurrency} has a decode speed")
    figure, axis = axes(0.9 + 0.42 * len(cells))
    top = max(c.figures.decode_tok_s.high for c in cells if c.figures.decode_tok_s)
    for place, cell in enumerate(cells):
        speed = cell.figures.decode_tok_s
        assert speed
        axis.barh(place, speed.median, 0.62, **_fill(cell, COLOURS[0]))
        _whisker(axis, speed, place)
        text = f"{speed.median:.1f}" + (
            f", {cell.figures.tok_per_step:.2f} tokens a step"
            if (cell.figures.tok_per_step or 1) > 1.005
            else ""
        )
        axis.text(
            max(speed.median, *(_ends(speed) or (0, 0))) + top * 0.015, place, text, va="center"
        )
    axis.set_yticks(range(len(cells)), [c.prompt_class for c in cells])
    axis.invert_yaxis()
    axis.set_xlim(0, top * 1.3)
    axis.set_xlabel("decode, tokens per second of one request (1 / TPOT, median of prompts)")
    _key(figure, cells)
    summary = "; ".join(
        f"{c.prompt_class} {c.figures.decode_tok_s.median:.1f} ({c.verdict})"
        for c in cells
        if c.figures.decode_tok_s
    )
    return Chart(
        figure,
        f"Bar chart: decode speed by prompt class at concurrency {concurrency}, in tokens per"
        f" second: {summary}.",
    )


@book_style()
def by_concurrency(report: Report) -> Chart:
    """Whole throughput over concurrency, one colour a prompt class; tok/s = all output tokens /
    duration.

    Raises:
        SparkbookError: no row of a closed loop has a throughput.
    """
    cells = [c for c in report.cells if c.concurrency and c.figures.out_tok_s]
    if not cells:
        raise SparkbookError("no row of a closed loop has a throughput")
    classes = list(dict.fromkeys(c.prompt_class for c in cells))
    loads = sorted({c.concurrency or 0 for c in cells})
    figure, axis = axes(3.2)
    width = 0.8 / len(classes)
    for number, name in enumerate(classes):
        for cell in (c for c in cells if c.prompt_class == name):
            place = loads.index(cell.concurrency or 0) + (number - (len(classes) - 1) / 2) * width
            total = cell.figures.out_tok_s or 0.0
            axis.bar(place, total, width * 0.9, **_fill(cell, COLOURS[number % len(COLOURS)]))
            axis.text(place, total, f"{total:.0f}", ha="center", va="bottom")
    axis.set_xticks(range(len(loads)), [str(load) for load in loads])
    axis.set_xlabel("requests at a time")
    axis.set_ylabel("out_tok_s, tokens per second")
    axis.margins(y=0.12)
    colours = (
        [Patch(facecolor=COLOURS[n % len(COLOURS)], label=name) for n, name in enumerate(classes)]
        if len(classes) > 1
        else []
    )
    _key(figure, cells, colours)
    summary = "; ".join(
        f"{c.prompt_class} at {c.concurrency}: {c.figures.out_tok_s:.0f} ({c.verdict})"
        for c in cells
    )
    return Chart(
        figure, f"Bar chart: tokens per second over all requests by concurrency: {summary}."
    )


@book_style()
def lossless(trials: Sequence[Trial], title: str) -> Chart:
    """Draw what each option did to greedy replies (left: share identical, near-tie, really
    different) and to small tasks (right, in points, with 95 % intervals); on top the control, the
    server without the option asked twice.

    Raises:
        SparkbookError: there is no trial.
    """
    if not trials:
        raise SparkbookError("no option was compared")
    figure, (axis, beside) = panels(
        1.3 + 0.36 * (len(trials) + 1), 1, 2, sharey=True, width_ratios=(1.7, 1)
    )
    rows = [
        ("nothing: asked twice", trials[0].equality.control, None),
        *((t.option, t.equality, t) for t in trials),
    ]
    states, names, summary = (
        ("identical", "near-tie", "real"),
        ("identical", "near-tie", "really different"),
        [],
    )
    for place, (name, equal, trial) in enumerate(rows):
        counts = [equal.count(state) for state in states] if equal else [0, 0, 0]  # type: ignore[arg-type]
        total, begin = sum(counts) or 1, 0.0
        for count, colour in zip(counts, (COLOURS[0], COLOURS[1], COLOURS[5]), strict=True):
            axis.barh(place, count / total, 0.62, left=begin, color=colour)
            if count / total > 0.07:
                axis.text(
                    begin + count / total / 2,
                    place,
                    str(count),
                    va="center",
                    ha="center",
                    color=PAPER,
                )
            begin += count / total
        text = (
            f"{name}:"
            f" {', '.join(f'{count} {word}' for count, word in zip(counts, names, strict=True))}"
        )
        if trial:
            share, low, high = (100 * x for x in trial.scores.difference)
            beside.plot((low, high), (place, place), color=INK)
            beside.plot(share, place, "o", color=COLOURS[0] if low <= 0 <= high else COLOURS[5])
            text += f", tasks {share:+.0f} points"
        summary.append(text)
    for one, label in ((axis, "share of replies"), (beside, "tasks solved, change in points")):
        one.set_xlabel(label)
    beside.axvline(0, color=GRID, linewidth=1, zorder=0)
    beside.tick_params(left=False)
    axis.set_xlim(0, 1)
    axis.set_xticks((0, 0.25, 0.5, 0.75))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axis.invert_yaxis()
    figure.suptitle(title, x=0.01, ha="left")
    patches = [
        Patch(facecolor=c, label=name)
        for c, name in zip((COLOURS[0], COLOURS[1], COLOURS[5]), names, strict=True)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=3)
    return Chart(figure, f"Bar chart: {title}: {'; '.join(summary)}.")


def _fill(cell: Cell, colour: str) -> dict[str, Any]:
    solid = cell.verdict == "valid"
    return {
        "facecolor": colour if solid else PAPER,
        "edgecolor": colour,
        "hatch": HATCH[cell.verdict],
        "linewidth": 1,
    }


def _ends(summary: Summary) -> tuple[float, float] | None:
    return summary.median_ci or summary.mean_ci


def _whisker(axis: Any, summary: Summary, place: float) -> None:
    if ends := _ends(summary):
        axis.plot(ends, [place, place], color=INK, solid_capstyle="butt")
        axis.plot(ends, [place, place], "|", color=INK, markersize=6)


def _key(figure: Any, cells: Sequence[Cell], more: Sequence[Patch] = ()) -> None:
    """A legend of the verdicts, where not every number passed."""
    seen = [v for v in ("suspect", "invalid") if any(c.verdict == v for c in cells)]
    words = {"suspect": "suspect: see the findings", "invalid": "invalid: not a result"}
    patches = [
        *more,
        *(
            Patch(facecolor=PAPER, edgecolor=COLOURS[4], hatch=HATCH[v], label=words[v])
            for v in seen
        ),
    ]
    if patches:
        figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))
