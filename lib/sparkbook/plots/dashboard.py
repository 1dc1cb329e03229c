"""The panels of a live view: what an engine did, look by look. In the book's style; see
`sparkbook.plots.style`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkbook.plots import style
from sparkbook.plots.style import COLOURS, Chart, book_style
from sparkbook.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sparkbook.dashboard import Look


@book_style()
def panels(looks: Sequence[Look], title: str) -> Chart:
    """Draw six panels: KV use, requests, tokens per second over time; TTFT and gaps as histograms;
    acceptance by position, mean of the looks.
    """
    figure, (usage, requests, tokens, positions, ttft, itl) = style.panels(5.9, 3, 2)
    times = [one.t_s for one in looks]
    lines = (
        (usage, "KV cache in use", (("", [one.kv_use for one in looks]),)),
        (
            requests,
            "Requests",
            (
                ("running", [one.running for one in looks]),
                ("waiting", [one.waiting for one in looks]),
            ),
        ),
        (tokens, "Tokens per second", (("", [one.generation_tok_s for one in looks]),)),
    )
    for axis, name, series in lines:
        for number, (label, values) in enumerate(series):
            known = [float("nan") if value is None else value for value in values]
            axis.step(times, known, where="pre", color=COLOURS[number], label=label)
        axis.set_title(name)
        axis.set_ylim(bottom=0)
        if len(series) > 1:
            axis.legend()
    usage.yaxis.set_major_formatter(
        lambda value, _: f"{value:.3g}" if not value else f"{value:.1%}"
    )
    _positions(positions, looks)
    _histogram(ttft, "Time to first token", [one.ttft for one in looks])
    _histogram(itl, "Gap between outputs (ITL)", [one.itl for one in looks])
    tokens.set_xlabel("seconds")
    figure.suptitle(title, x=0.01, ha="left")
    rates = [one.generation_tok_s for one in looks if one.generation_tok_s is not None]
    summary = f"at most {max(rates):.0f} tokens per second" if rates else "no tokens"
    return Chart(
        figure,
        f"Six panels over {len(looks)} looks at an engine: KV use, requests, tokens per second,"
        f" latencies, acceptance; {summary}.",
    )


def _positions(axis: Axes, looks: Sequence[Look]) -> None:
    positions = [one.per_position for one in looks if one.per_position]
    axis.set_title("Accepted drafts by position")
    if not positions:
        axis.text(
            0.5,
            0.5,
            "no drafts",
            ha="center",
            va="center",
            transform=axis.transAxes,
            color=COLOURS[4],
        )
        return
    width = max(map(len, positions))
    means = [
        sum(shares[i] for shares in positions if i < len(shares)) / len(positions)
        for i in range(width)
    ]
    axis.bar(range(1, width + 1), means, 0.7, color=COLOURS[2])
    for place, mean in enumerate(means, 1):
        axis.text(place, mean, f"{mean:.0%}", ha="center", va="bottom")
    axis.set_ylim(0, 1.15)
    axis.set_yticks([])
    axis.set_xticks(range(1, width + 1))


def _histogram(axis: Axes, name: str, parts: Sequence[dict[str, float]]) -> None:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    bounds = sorted(total, key=float)
    axis.bar(range(len(bounds)), [total[bound] for bound in bounds], 0.9, color=COLOURS[0])
    names = ["more" if bound == "inf" else format_seconds(float(bound)) for bound in bounds]
    axis.set_xticks(range(len(bounds)), names, fontsize=7, rotation=30 if len(bounds) > 5 else 0)
    axis.set_yticks([])
    axis.set_title(f"{name}: {sum(total.values()):g} observations")
    axis.set_xlabel("at or below")
