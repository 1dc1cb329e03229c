"""Pictures of what a log shows, in the book's style; see `sparkbook.plots.style`."""

from __future__ import annotations

from sparkbook.errors import SparkbookError
from sparkbook.logs.story import Story
from sparkbook.plots.style import COLOURS, Chart, axes, book_style
from sparkbook.units import format_seconds


@book_style()
def startup_waterfall(story: Story) -> Chart:
    """Draw the phases of a start as its log timed them, one bar each, in seconds since the first
    line with a time.

    Raises:
        SparkbookError: the log holds no phase with a time.
    """
    phases = story.phases
    if not phases:
        raise SparkbookError(
            "this log holds no phase with a time: give the log of a start, from its first line on"
        )
    total = max(phase.end_s for phase in phases) or 1.0
    figure, axis = axes(0.8 + 0.3 * len(phases))
    for row, phase in enumerate(phases):
        axis.barh(
            row,
            max(phase.seconds, total * 0.002),
            left=phase.begin_s,
            height=0.62,
            color=COLOURS[row % len(COLOURS)],
        )
        duration = format_seconds(phase.seconds) if phase.seconds >= 1 else "under 1 s"
        axis.text(
            phase.end_s + total * 0.01,
            row,
            ", ".join(filter(None, [duration, phase.detail])),
            va="center",
        )
    axis.set_yticks(range(len(phases)), [phase.name for phase in phases])
    axis.invert_yaxis()
    axis.set_xlim(0, total * 1.22)
    axis.set_xlabel("seconds since the first line")
    longest = max(phases, key=lambda phase: phase.seconds)
    return Chart(
        figure,
        f"Waterfall of a start in {len(phases)} phases over {format_seconds(total)}; the longest is"
        f" {longest.name}, {format_seconds(longest.seconds)}.",
    )
