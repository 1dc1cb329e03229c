"""Pictures of several Sparks: how they are joined, where two gain, and where tensor parallelism
stops to pay. In the book's style.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Patch

from sparkbook.checkpoint.values import Range
from sparkbook.cluster.advice import REQUESTS, Advice, Compared
from sparkbook.cluster.all_reduce import NOMINAL, Link
from sparkbook.cluster.measured_links import TITLES, Recording
from sparkbook.cluster.measured_links import recorded as recorded_links
from sparkbook.cluster.sighting import Seen
from sparkbook.plots import style
from sparkbook.plots.plan import Part, memory_bar
from sparkbook.plots.style import COLOURS, INK, PAPER, Chart, book_style
from sparkbook.units import GIB

BLUE, ORANGE, GREEN, PURPLE, GREY, RED = COLOURS


@book_style()
def topology(seen: Seen) -> Chart:
    """Draw two nodes, the fast link between them and the office network, with the names that each
    node has for them.
    """
    figure, axis = style.axes(3.0)
    axis.set_axis_off()
    axis.set_xlim(0, 10)
    axis.set_ylim(0, 4.2)
    summary = []
    for left, role, (node, site) in zip(
        (0.1, 6.5), ("head: rank 0, answers", "worker: rank 1, headless"), seen.nodes, strict=True
    ):
        axis.add_patch(
            FancyBboxPatch(
                (left, 0.9),
                3.4,
                3.0,
                boxstyle="round,pad=0,rounding_size=0.12",
                facecolor=PAPER,
                edgecolor=INK,
            )
        )
        lines = [site.address or "", site.interface or "", *(port.name for port in site.rails)]
        axis.text(left + 0.2, 3.55, node.host, fontsize=11, weight="bold", va="center")
        axis.text(left + 0.2, 3.15, role, va="center")
        for row, (label, value) in enumerate(
            zip(("address", "port", "rail 1", "rail 2"), lines, strict=False)
        ):
            axis.text(left + 0.2, 2.6 - 0.42 * row, label, color=GREY, va="center")
            axis.text(left + 1.05, 2.6 - 0.42 * row, value, family="monospace", va="center")
        summary.append(
            f"{node.host} ({role}) with address {site.address} on {site.interface} and RDMA devices"
            f" {' and '.join(lines[2:])}"
        )
        axis.plot([left + 1.7] * 2, [0.9, 0.35], color=GREY)
    axis.plot([3.5, 6.5], [2.2, 2.2], color=BLUE, linewidth=5, solid_capstyle="butt")
    axis.text(5, 2.45, "QSFP cable, 200 Gbit/s", color=BLUE, ha="center", va="bottom")
    axis.text(5, 1.95, "all-reduces, weights:\nRoCE, two rails, MTU 9000", ha="center", va="top")
    axis.plot([1.8, 8.2], [0.35, 0.35], color=GREY)
    axis.text(
        5, 0.42, "office network, 10 Gbit/s: SSH, clients, downloads", ha="center", va="bottom"
    )
    alt = (
        "Two Sparks joined twice: by a QSFP cable of 200 Gbit/s for all-reduces and weights, and"
        f" by the office network. {'; '.join(summary)}."
    )
    return Chart(figure, alt)


def memory(advice: Advice) -> Chart:
    """Return what one node holds, for each way: weights, KV cache, and the rest of the engine's
    share.
    """
    total = advice.host_total / GIB
    share = total * advice.setup.fraction
    bars: dict[str, list[Part]] = {}
    for way, held in advice.memory.items():
        weights, kv = held.weights.middle / GIB, max(held.kv.middle, 0.0) / GIB
        bars[way] = [
            Part("weights", weights),
            Part("working memory", max(share - weights - kv, 0.0) if kv else 0.0),
            Part("KV cache", kv),
        ]
    return memory_bar(bars, total, {f"--gpu-memory-utilization {advice.setup.fraction:g}:": share})


_LEVELS = (0.7, 0.9, 1.1, 1.4)
_BANDS = (
    (ORANGE, 0.45, "under 0.7"),
    (ORANGE, 0.2, "0.7 to 0.9"),
    (PAPER, 1.0, "about equal"),
    (BLUE, 0.2, "1.1 to 1.4"),
    (BLUE, 0.45, "over 1.4"),
)
"""What lies below, between and above the levels: colour, how dense, and the words of the key."""


@book_style()
def break_even(advice: Advice, marks: Mapping[str, float] | None = None) -> Chart:
    """Tensor parallel against two replicas, over the latency of an all-reduce and the requests at
    once.

    Args:
        advice: of a model that fits in one node.
        marks: latencies in µs to draw, by name.
    """
    figure, axis = style.axes(3.9)
    latencies = np.geomspace(10, 2000, 40)
    requests = list(REQUESTS)
    ratio = np.array([[_gain(advice, n, us) for us in latencies] for n in requests])
    axis.contourf(
        latencies,
        range(len(requests)),
        ratio,
        levels=_LEVELS,
        colors=[(colour, a) for colour, a, _ in _BANDS],
        extend="both",
    )
    limits = [(advice.break_even_latency_s(n) or 0) * 1e6 for n in requests]
    axis.plot(limits, range(len(requests)), "o-", color=INK, markersize=4)
    axis.set_xscale("log")
    axis.set_xlim(10, 2000)
    axis.set_ylim(-0.3, len(requests) - 0.4)
    for name, us in (marks or {}).items():
        low, high = axis.get_xlim()
        top = len(requests) - 0.45
        if low <= us <= high:
            axis.axvline(us, color=INK, linewidth=1, linestyle="--")
            left = us < high / 3  # there is room for a name to the right of its line
            axis.text(
                us * 1.06 if left else us / 1.06,
                top,
                name,
                va="top",
                ha="left" if left else "right",
            )
        else:  # off the map: said at the edge that it lies beyond
            short = us < low
            label = f"← {name}, {us:,.0f} µs" if short else f"{name}, {us:,.0f} µs →"
            axis.text(
                low * 1.06 if short else high / 1.06,
                top,
                label,
                va="top",
                ha="left" if short else "right",
            )
    axis.set_yticks(range(len(requests)), [str(n) for n in requests])
    axis.set_ylabel("requests at once")
    axis.set_xlabel("time of an all-reduce of 8 KiB, µs")
    axis.set_xticks([10, 30, 100, 300, 1000], ["10", "30", "100", "300", "1000"])
    _areas(figure, _BANDS, title="speed of tensor parallel over that of replicas")
    summary = ", ".join(
        f"{n} requests {limit:.0f} µs" if limit else f"{n} requests never"
        for n, limit in zip(requests, limits, strict=True)
    )
    return Chart(
        figure,
        "Map of where tensor parallel is faster than two replicas. It is so up to an all-reduce"
        f" time of: {summary}.",
    )


def _areas(figure: Figure, areas: Iterable[Iterable[Any]], title: str | None = None) -> None:
    """Draw the key of a map: colour, how dense, and the words of each area."""
    keys = [
        Patch(facecolor=(colour, alpha), edgecolor=INK, linewidth=0.4, label=words)
        for colour, alpha, words in areas
    ]
    figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), title=title)


def _gain(advice: Advice, requests: int, us: float) -> float:
    link = Link(Range.of(us * 1e-6), advice.link.gb_s, "drawn")
    drawn = replace(advice, link=link)
    one, two = drawn.speed("replicas", requests), drawn.speed("tensor parallel", requests)
    return two.middle / one.middle if one is not None and two is not None else float("nan")


def _rdma(gbit: float) -> Link:
    """What is known of two Sparks' port of 200 Gbit/s, with another rate."""
    return replace(NOMINAL, gb_s=NOMINAL.gb_s * (gbit / 200))


def _tcp(gbit: float) -> Link:
    """The shortest all-reduces recorded over TCP up to this rate; below 10 Gbit/s each byte takes
    longer.
    """
    tables = recorded_links().tables.items()
    columns = zip(*(table for rate, table in tables if rate and rate <= max(gbit, 10)), strict=True)
    more = 8e-9 * max(1 / gbit - 1 / 10, 0)
    table = [(size, us * 1e-6 + size * more) for size, us in map(min, columns)]
    return Link(Range.of(table[0][1]), Range.of(gbit / 8), "drawn", table=tuple(table))


def _wifi(gbit: float) -> Link:
    """The latency is assumed."""
    return Link(Range.of(2e-3), Range.of(gbit / 8), "drawn")


PLACES = (
    ("RDMA, 30 µs", _rdma, "QSFP port", 200.0),
    ("TCP, 80 µs", _tcp, "10 GbE", 10.0),
    ("Wi-Fi, 2 ms", _wifi, "Wi-Fi", 1.0),
)
"""Kinds of links, with the time of an all-reduce of 8 KiB, and where a Spark's port is, in
Gbit/s.
"""

_BEST = (
    (GREY, 0.35, "one node is as fast", {"one node"}),
    (BLUE, 0.4, "tensor parallel", {"tensor parallel"}),
    (PAPER, 1.0, "no difference", {"tensor parallel", "replicas"}),
    (ORANGE, 0.4, "replicas", {"replicas"}),
)
"""What is best: colour, how dense, the words of the key, and the ways that are as fast."""


def _kind(advice: Advice, requests: int, link: Link) -> int:
    best = set(replace(advice, link=link).best(requests)) - {"pipeline parallel"}
    return next((n for n, (*_, ways) in enumerate(_BEST) if best == ways), len(_BEST) - 1)


@book_style()
def by_link(advice: Advice) -> Chart:
    """What to do with two nodes, over the speed of the link and the requests at once, for links of
    three latencies.

    Args:
        advice: of a model that fits in one node.
    """
    figure, panels = style.panels(3.4, 1, len(PLACES), sharey=True)
    rates, requests = np.geomspace(0.1, 400, 61), list(REQUESTS)
    summary = []
    for axis, (name, link, mark, port) in zip(panels, PLACES, strict=True):
        kinds = [[_kind(advice, n, link(gbit)) for gbit in rates] for n in requests]
        rows = np.arange(len(requests))
        for row, line in zip(rows, kinds, strict=True):
            edges = [0, *(n for n in range(1, len(line)) if line[n] != line[n - 1]), len(line) - 1]
            for begin, end in pairwise(edges):
                colour, alpha, *_ = _BEST[line[begin]]
                width = rates[end] - rates[begin]
                axis.barh(row, width, 1, rates[begin], color=colour, alpha=alpha, linewidth=0)
        axis.set_xlim(rates[0], rates[-1])
        axis.set_ylim(-0.5, len(requests) - 0.5)
        axis.set_xscale("log")
        axis.set_xticks([0.1, 1, 10, 100], ["0.1", "1", "10", "100"])
        axis.minorticks_off()
        axis.set_yticks(rows, [str(n) for n in requests])
        axis.set_title(name, fontsize=9)
        axis.axvline(port, color=INK, linewidth=1, linestyle="--")
        axis.text(port / 1.1, len(requests) - 0.6, mark, va="top", ha="right", fontsize=8)
        at = {n: _BEST[_kind(advice, n, link(port))][2] for n in (1, 8, 64)}
        said = ", ".join(f"{n}: {best}" for n, best in at.items())
        summary.append(f"{mark} ({name}), by requests: {said}")
    panels[0].set_ylabel("requests at once")
    panels[len(panels) // 2].set_xlabel("speed of the link, Gbit/s")
    _areas(figure, [area for *area, _ in _BEST])
    return Chart(
        figure,
        "Map of what is fastest with two nodes, over link speed and requests at once. "
        + "; ".join(summary)
        + ".",
    )


@book_style()
def measured_links(recording: Recording) -> Chart:
    """Two GPUs under tensor parallelism over one, for links of several speeds: as measured, and as
    estimated without a fit. A panel for each shape.
    """
    rates = sorted(recording.tables, key=lambda gbit: gbit or np.inf)
    checked = recording.checked()
    names = list(dict.fromkeys(one.row.shape for one in checked))
    figure, panels = style.panels(3.0, 1, len(names), sharey=True)
    summary = []
    for axis, name in zip(panels, names, strict=True):
        mine = [one for one in checked if one.row.shape == name]
        for requests, colour in zip((1, 8, 32), (BLUE, ORANGE, GREEN), strict=True):
            rows = [one for one in mine if one.row.requests == requests]
            rows.sort(key=lambda one: rates.index(one.row.gbit))
            at = [rates.index(one.row.gbit) for one in rows]
            alone = [recording.alone_s(one.row) or np.nan for one in rows]
            gains = [a / one.row.step_s for a, one in zip(alone, rows, strict=True)]
            guess = [a / one.estimate_s for a, one in zip(alone, rows, strict=True)]
            label = f"{requests} requests" if requests > 1 else "1 request"
            axis.plot(at, gains, "o", color=colour, label=f"{label}, measured")
            axis.plot(at, guess, "--", color=colour, label="estimated")
            low, high = min(gains), max(gains)
            summary.append(f"{TITLES[name]}, {label}: {low:.2f} to {high:.2f}")
        axis.set_xticks(
            range(len(rates)), [f"{gbit:g}" if gbit else "not held" for gbit in rates], fontsize=8
        )
        axis.set_ylim(0, 0.6)
        axis.grid(axis="y")
        axis.set_title(TITLES[name], fontsize=9)
    panels[0].set_ylabel("speed of two GPUs over one")
    panels[0].set_xlabel("speed of the link, Gbit/s")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return Chart(
        figure,
        "How fast two GPUs decode under tensor parallelism over TCP, next to one alone: "
        + "; ".join(summary)
        + ".",
    )


@book_style()
def gains(compared: Sequence[Compared]) -> Chart:
    """Published gains of two Sparks over one next to the estimates, a panel for each model."""
    models = list(dict.fromkeys(one.published.model for one in compared))
    figure, panels = style.panels(2.9, 1, len(models), sharey=True)
    summary = []
    for axis, model in zip(panels, models, strict=True):
        for way, colour, mark in (("tensor parallel", BLUE, "o"), ("replicas", ORANGE, "s")):
            rows = [one for one in compared if one.published.model == model and one.way == way]
            at = [one.requests for one in rows]
            axis.plot(at, [one.gain for one in rows], mark, color=colour, label=f"{way}, published")
            axis.plot(
                at, [one.estimate for one in rows], "--", color=colour, label=f"{way}, estimated"
            )
            summary.append(
                f"{model}, {way}: published {rows[0].gain:.2f} at 1 request to {rows[-1].gain:.2f}"
                f" at {at[-1]}, estimated {rows[0].estimate:.2f} to {rows[-1].estimate:.2f}"
            )
        axis.set_xscale("log", base=2)
        axis.set_xticks(at, [str(n) for n in at], fontsize=8)
        axis.minorticks_off()
        axis.set_ylim(0.9, 2.05)
        axis.grid(axis="y")
        axis.set_title(model, fontsize=9)
    panels[0].set_ylabel("two Sparks over one")
    panels[len(models) // 2].set_xlabel("requests at once")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return Chart(
        figure,
        "How many times as fast two Sparks are as one, over requests at once. "
        + "; ".join(summary)
        + ".",
    )
