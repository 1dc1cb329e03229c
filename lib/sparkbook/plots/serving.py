"""Pictures of what a running engine did, measured on the machine at hand. In the book's style; see
`sparkbook.plots.style`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sparkbook.metrics import Histogram
from sparkbook.plots.style import COLOURS, Chart, axes, book_style, whole_ticks
from sparkbook.serve.ready import Readiness
from sparkbook.serve.warmup import WarmUp
from sparkbook.serve.watchdog import Limits, Sample
from sparkbook.units import GIB, format_seconds


@book_style()
def stages(readiness: Readiness) -> Chart:
    """Draw the stages of a start as a waterfall: each bar begins where the one before ended.
    Seconds.
    """
    figure, axis = axes(0.8 + 0.32 * len(readiness.stages))
    begin = 0.0
    for row, stage in enumerate(readiness.stages):
        axis.barh(row, stage.seconds, left=begin, height=0.62, color=COLOURS[row % len(COLOURS)])
        begin += stage.seconds
        axis.text(begin + readiness.total_s * 0.01, row, format_seconds(stage.seconds), va="center")
    axis.set_yticks(range(len(readiness.stages)), [stage.name for stage in readiness.stages])
    axis.invert_yaxis()
    axis.set_xlim(0, readiness.total_s * 1.14)
    axis.set_xlabel("seconds since the start")
    longest = max(readiness.stages, key=lambda stage: stage.seconds)
    return Chart(
        figure,
        f"Waterfall of {len(readiness.stages)} start-up stages; the longest is {longest.name}; the"
        " table above has the figures.",
    )


@book_style()
def time_to_first_token(warm_ups: Sequence[WarmUp]) -> Chart:
    """Time to first token of each request of several warm-ups, in seconds on a logarithmic axis."""
    figure, axis = axes(3.2)
    for number, warmth in enumerate(warm_ups):
        ttfts = [sample.ttft_s for sample in warmth.samples]
        colour = COLOURS[number % len(COLOURS)]
        axis.plot(range(1, len(ttfts) + 1), ttfts, marker="o", color=colour, label=warmth.path)
        axis.annotate(
            format_seconds(ttfts[0]),
            (1, ttfts[0]),
            xytext=(7, 3),
            textcoords="offset points",
            color=colour,
        )
    axis.set_yscale("log")
    axis.margins(x=0.06, y=0.18)
    whole_ticks(axis)
    axis.yaxis.set_major_formatter(lambda value, _: format_seconds(value))
    axis.minorticks_off()
    axis.set_xlabel("request")
    axis.set_ylabel("time to first token")
    axis.legend()
    return Chart(
        figure,
        "Line chart: time to first token, request by request, one line a kind of request; "
        + "; ".join(map(str, warm_ups))
        + ".",
    )


@book_style()
def memory_guard(samples: Sequence[Sample], limits: Limits, acts: int) -> Chart:
    """Draw what a host has left over the time, the watchdog's floor, and the sample at which it
    acts. GiB over seconds.
    """
    figure, axis = axes(2.6)
    known = [
        (sample.at_s, sample.available / GIB) for sample in samples if sample.available is not None
    ]
    until = [point for point in known if point[0] <= samples[acts].at_s]
    axis.plot(
        *zip(*known, strict=True), color=COLOURS[0], linestyle=":"
    )  # what would have come without it
    axis.plot(*zip(*until, strict=True), color=COLOURS[0])
    floor = limits.floor / GIB
    axis.axhline(floor, color=COLOURS[1], linestyle="--")
    axis.text(0, floor, f" floor, {floor:.1f} GiB", va="bottom", color=COLOURS[1])
    acted = samples[acts]
    left = (acted.available or 0) / GIB
    axis.plot([acted.at_s], [left], marker="o", markersize=8, color=COLOURS[5])
    axis.annotate(
        f"stopped, {left:.1f} GiB left",
        (acted.at_s, left),
        xytext=(8, 16),
        textcoords="offset points",
    )
    axis.set_ylim(bottom=0)
    axis.set_xlim(0, max(known)[0] * 1.1)
    axis.set_xlabel("seconds after the weights were loaded")
    axis.set_ylabel("MemAvailable, GiB")
    alt = (
        f"Line chart: memory left falls from {known[0][1]:.0f} GiB; below the floor of {floor:.1f}"
        f" GiB, at {acted.at_s:g} s with {left:.1f} GiB left, the watchdog stops the server."
    )
    return Chart(figure, alt)


@book_style()
def histogram(values: Histogram, title: str) -> Chart:
    """Draw one of the engine's own latency histograms (bounds in seconds): observations a bucket,
    empty ends left out, the median marked.
    """
    figure, axis = axes(2.3)
    counts = values.per_bucket
    seen = [index for index, count in enumerate(counts) if count]
    shown = range(max(min(seen) - 1, 0), min(max(seen) + 2, len(counts))) if seen else range(0)
    for place, index in enumerate(shown):
        axis.bar(place, counts[index], width=0.9, color=COLOURS[0])
        if counts[index]:
            axis.text(place, counts[index], f"{counts[index]:g}", ha="center", va="bottom")
    axis.set_xticks(
        range(len(shown)), [_bound(values.bounds[index]) for index in shown], fontsize=8
    )
    axis.set_yticks([])
    axis.spines["left"].set_visible(False)
    axis.margins(y=0.15)
    axis.set_xlabel("at or below")
    median = values.quantile(0.5)
    summary = f"{values.count:g} observations" + (
        f", median about {format_seconds(median)}" if median is not None else ""
    )
    axis.set_title(f"{title} ({summary})")
    return Chart(figure, f"Histogram: {title}, {summary}.")


def _bound(bound: float) -> str:
    return "more" if math.isinf(bound) else format_seconds(bound)
