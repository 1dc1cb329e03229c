"""Pictures of speculative decoding. What the gate did not pass is marked; see
`sparkbook.plots.measurements`. In the book's style.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.plots.style import COLOURS, Chart, axes, book_style, whole_ticks
from sparkbook.recipes.schema import Speed


@book_style()
def acceptance(per_position: Mapping[str, Sequence[float]], title: str) -> Chart:
    """Draw acceptance of each draft position, one line a prompt class.

    Raises:
        SparkbookError: nothing was drafted.
    """
    known = {name: list(shares) for name, shares in per_position.items() if shares}
    if not known:
        raise SparkbookError("no class has an acceptance by position: was the server speculating?")
    figure, axis = axes(2.9)
    for number, (name, shares) in enumerate(known.items()):
        axis.plot(range(1, len(shares) + 1), shares, marker="o", color=COLOURS[number], label=name)
        axis.annotate(
            f"{shares[-1]:.0%}",
            (len(shares), shares[-1]),
            xytext=(7, -3),
            textcoords="offset points",
            color=COLOURS[number],
        )
    axis.set_ylim(0, 1.08)
    axis.margins(x=0.1)
    whole_ticks(axis)
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.set_xlabel("position of the draft in its step")
    axis.set_ylabel("accepted")
    axis.set_title(title)
    axis.legend()
    summary = "; ".join(
        f"{name} {', '.join(f'{share:.0%}' for share in shares)}" for name, shares in known.items()
    )
    return Chart(figure, f"Line chart: {title}: {summary}.")


@book_style()
def expected(curves: Mapping[str, Sequence[tuple[int, float, float]]], title: str) -> Chart:
    """Speed-up by K as acceptance and costs let expect (`advise.expected`), one line a case, its
    best K marked.
    """
    figure, axis = axes(3.1)
    summary = []
    for number, (name, rows) in enumerate(curves.items()):
        axis.plot(
            [k for k, _, _ in rows],
            [gain for _, _, gain in rows],
            color=COLOURS[number],
            label=name,
        )
        k, _, gain = max(rows, key=lambda row: row[2])
        axis.plot(k, gain, "o", markersize=7, color=COLOURS[number])
        axis.annotate(
            f"K = {k}",
            (k, gain),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            color=COLOURS[number],
        )
        summary.append(f"{name} best at K = {k} with {gain:.2f}")
    axis.axhline(1, color=COLOURS[5], linewidth=1, linestyle="--")
    axis.margins(y=0.12)
    axis.set_xlabel("K, drafts a step")
    axis.set_ylabel("times as fast as without")
    axis.set_title(title)
    figure.legend(loc="outside lower center", ncols=len(curves))
    return Chart(figure, f"Line chart: {title}: {'; '.join(summary)}.")


@book_style()
def published_steps(speeds: Sequence[Speed], title: str) -> Chart:
    """Published TPOT by prompt class, and TPOT times the tokens of a step: the time of a step
    (milliseconds).
    """
    shown = [speed for speed in speeds if speed.tpot_ms and speed.acceptance_length]
    figure, axis = axes(0.9 + 0.62 * len(shown))
    for place, speed in enumerate(shown):
        tpot, step = speed.tpot_ms or 0.0, (speed.tpot_ms or 0.0) * (speed.acceptance_length or 0.0)
        for shift, value, colour in ((-0.2, tpot, COLOURS[0]), (0.2, step, COLOURS[1])):
            axis.barh(place + shift, value, 0.36, color=colour)
            axis.text(value + 1, place + shift, f"{value:.1f}", va="center")
    axis.set_yticks(
        range(len(shown)),
        [f"{s.prompt_class}, {s.acceptance_length:g} tokens a step" for s in shown],
    )
    axis.invert_yaxis()
    axis.margins(x=0.1)
    axis.set_xlabel("milliseconds")
    axis.set_title(title)
    bars: list[Any] = list(axis.containers)
    figure.legend(
        bars[:2],
        ["TPOT", "TPOT × tokens a step = time of a step"],
        loc="outside lower center",
        ncols=2,
    )
    summary = "; ".join(
        f"{s.prompt_class} {s.tpot_ms:g} ms a token,"
        f" {(s.tpot_ms or 0) * (s.acceptance_length or 0):.0f} ms a step"
        for s in shown
    )
    return Chart(figure, f"Bar chart: {title}: {summary}.")
