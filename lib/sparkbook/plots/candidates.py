"""Pictures of a tuning: what the candidates gave, and what the best of them cost."""

from __future__ import annotations

from sparkbook.errors import SparkbookError
from sparkbook.plots.style import COLOURS, INK, Chart, axes, book_style
from sparkbook.tune.answer import Answer


@book_style()
def tried(answer: Answer) -> Chart:
    """Speed over the baseline's in the short runs, with 95 % intervals, and in the final.

    Raises:
        SparkbookError: nothing was measured.
    """
    ranked = sorted(answer.short.items(), key=lambda one: -one[1].ratio)
    if not ranked:
        raise SparkbookError("no candidate was measured")
    final = {row.candidate.key: row.ratio for row in answer.rows if row.ratio}
    figure, axis = axes(1.1 + 0.3 * len(ranked))
    for place, (key, ratio) in enumerate(ranked):
        low, high = ratio.interval or (ratio.ratio, ratio.ratio)
        axis.plot([low, high], [place, place], color=COLOURS[4], lw=1.6)
        axis.plot(ratio.ratio, place, "o", color=COLOURS[4], ms=5)
        if at_end := final.get(key):
            low, high = at_end.interval or (at_end.ratio, at_end.ratio)
            axis.plot([low, high], [place + 0.25] * 2, color=COLOURS[0], lw=2.4)
            axis.plot(at_end.ratio, place + 0.25, "D", color=COLOURS[0], ms=5)
    axis.axvline(1, color=INK, lw=1)
    axis.set_yticks(range(len(ranked)), [_words(key) for key, _ in ranked])
    axis.invert_yaxis()
    axis.set_xlabel("speed of a request over the recipe's (circle: short run; diamond: final)")
    said = "; ".join(f"{_words(key)} {ratio.ratio:.2f}" for key, ratio in ranked)
    at_last = "; ".join(f"{_words(key)} {ratio.ratio:.2f}" for key, ratio in final.items())
    return Chart(
        figure,
        f"Dot chart: speed over the recipe's in the short runs: {said}. In the final: {at_last}.",
    )


@book_style()
def trade(answer: Answer) -> Chart:
    """Speed of all requests together, by requests at a time, for the recipe and the finalists.

    Raises:
        SparkbookError: there is no final.
    """
    if not answer.rows:
        raise SparkbookError("the tuning has no final")
    figure, axis = axes(3.0)
    said = []
    for colour, row in zip(COLOURS, answer.rows, strict=False):
        points = [(load, speed) for load, speed in row.speeds.items() if speed]
        name = _words(row.candidate.key)
        axis.plot(*zip(*points, strict=True), "o-", color=colour, label=name)
        said.append(f"{name}: " + ", ".join(f"{speed:.0f} at {load}" for load, speed in points))
    loads = sorted({load for row in answer.rows for load in row.speeds})
    axis.set_xscale("log", base=2)
    axis.set_xticks(loads, [str(load) for load in loads])
    axis.set_ylim(bottom=0)
    axis.set_xlabel("requests at a time")
    axis.set_ylabel("tokens per second, all requests")
    axis.legend()
    return Chart(figure, f"Line chart: tokens per second by requests at a time: {'; '.join(said)}.")


def _words(key: str) -> str:
    """Return a candidate's key without what every option has."""
    return key.replace("speculative-config.num_speculative_tokens", "K").replace("--", "")
