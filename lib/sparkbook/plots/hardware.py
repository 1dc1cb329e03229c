"""Pictures for the chapters on landscape, hardware and storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, MonthLocator, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from packaging.version import Version

from sparkbook.checkpoint.bandwidth import Point, distinct_experts
from sparkbook.checkpoint.store import Disk
from sparkbook.plots import style
from sparkbook.plots.style import INK, Chart, book_style

if TYPE_CHECKING:
    from sparkbook.host import ReportedHost
    from sparkbook.site.landscape import Release

BLUE, ORANGE, GREEN, _, PALE, _ = style.COLOURS


def _axes(height_in: float) -> tuple[Figure, Axes]:
    figure, axes = style.axes(height_in)
    axes.grid()
    return figure, axes


def _label(axes: Axes, x: str = "", y: str = "") -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _legend(axes: Axes, **where: Any) -> None:
    axes.legend(**where)


@book_style()
def timeline(releases: Sequence[Release]) -> Chart:
    """vLLM's version in each track, over time; hollow marks where only the latest possible day is
    known.
    """
    figure, axes = _axes(3.6)
    for track, colour, above in (("vLLM", BLUE, True), ("NGC", ORANGE, False)):
        mine = sorted((r for r in releases if r.track == track), key=lambda r: r.date)
        numbers = [_minor(r.vllm) for r in mine]
        axes.plot(
            date2num([r.date for r in mine]),
            numbers,
            color=colour,
            drawstyle="steps-post",
            label=f"{track} release",
        )
        for release, number in zip(mine, numbers, strict=True):
            face = colour if release.precision == "day" else "none"
            axes.plot(
                date2num([release.date]),
                [number],
                "o",
                markerfacecolor=face,
                markeredgecolor=colour,
                markersize=6,
            )
            axes.annotate(
                release.name,
                (release.date, number),
                xytext=(-4, 6) if above else (6, -11),
                textcoords="offset points",
                color=colour,
                ha="right" if above else "left",
                bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.5},
            )
    axes.xaxis.set_major_locator(MonthLocator())
    axes.xaxis.set_major_formatter(DateFormatter("%b"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"0.{value:.0f}"))
    axes.margins(x=0.08, y=0.12)
    _label(axes, y="vLLM version inside")
    _legend(axes, loc="upper left")
    return Chart(
        figure,
        "vLLM releases of 2026 by date, and the vLLM version inside NVIDIA's containers, some weeks"
        " behind",
    )


def _minor(version: str) -> float:
    parsed = Version(version)
    return parsed.minor + parsed.micro / 10


@book_style()
def memory_of(hosts: Sequence[ReportedHost], utilizations: Sequence[float]) -> Chart:
    """For each host its total and what was available, and what some fractions would ask for."""
    figure, axes = _axes(0.55 * len(hosts) + 1.2)
    rows = range(len(hosts))
    axes.barh(
        rows, [h.total_gib for h in hosts], color="none", edgecolor=INK, height=0.62, label="total"
    )
    axes.barh(rows, [h.available_gib for h in hosts], color=BLUE, height=0.62, label="available")
    for number, utilization in enumerate(utilizations):
        wanted = [h.total_gib * utilization for h in hosts]
        label = "asked for by the fraction above" if not number else None
        axes.plot(wanted, rows, "|", color=ORANGE, markersize=20, markeredgewidth=2, label=label)
        axes.annotate(
            f"{utilization:g}", (wanted[0], -0.48), color=ORANGE, ha="center", va="bottom"
        )
    axes.set_yticks(list(rows), [_wrap(h.state) for h in hosts], fontsize=8)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlim(0, 128)
    _label(axes, "GiB")
    axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=3)
    fractions = ", ".join(f"{u:g}" for u in utilizations)
    return Chart(
        figure,
        f"Total and available memory of {len(hosts)} reported Sparks in GiB, and what the fractions"
        f" {fractions} ask for",
    )


def _wrap(text: str, width: int = 30) -> str:
    lines, line = [], ""
    for word in text.split():
        if line and len(line) + len(word) + 1 > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


@book_style()
def ceilings(points: Sequence[Point]) -> Chart:
    """Published speed of one request over the ceiling that memory sets, both logarithmic."""
    figure, axes = _axes(4.4)
    ends = [
        min(min(p.ceiling, p.published) for p in points) * 0.7,
        max(max(p.ceiling, p.published) for p in points) * 1.4,
    ]
    axes.plot(ends, ends, color=INK, linewidth=1, linestyle="--")
    axes.annotate("published = ceiling", (3, 3.3), rotation=32, ha="center", va="bottom")
    looks = {
        "one token a step": (BLUE, "o"),
        "several tokens a step": (ORANGE, "^"),
        "not stated": (PALE, "s"),
    }
    for kind, (colour, marker) in looks.items():
        mine = [p for p in points if p.kind == kind]
        if mine:
            axes.plot(
                [p.ceiling for p in mine],
                [p.published for p in mine],
                marker,
                color=colour,
                markersize=6,
                label=kind,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100, 200]))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(*ends)
    _label(
        axes,
        "ceiling, tokens/s (bandwidth / bytes of active weights)",
        "published, tokens/s, one request",
    )
    _legend(axes, loc="upper left")
    return Chart(
        figure,
        "Published decode speed on a Spark over the ceiling of memory bandwidth: only several"
        " tokens a step get above it",
    )


@book_style()
def experts_touched(models: Mapping[str, tuple[int, int]], most: int) -> Chart:
    """Draw how many times one token's experts a step reads, over the number of tokens in the step;
    a dense model stays at one.
    """
    figure, axes = _axes(3.2)
    tokens = range(1, most + 1)
    axes.plot(
        [1, most],
        [1, most],
        color=INK,
        linewidth=1,
        linestyle="--",
        label="no sharing between tokens",
    )
    for (name, (experts, active)), colour in zip(
        models.items(), (BLUE, ORANGE, GREEN), strict=False
    ):
        times = [distinct_experts(experts, active, n) / active for n in tokens]
        axes.plot(tokens, times, color=colour, label=f"{name}: {active} of {experts} experts")
    axes.plot([1, most], [1, 1], color=PALE, linewidth=2, label="dense model")
    axes.set_xlim(1, most)
    axes.set_ylim(0, most)
    _label(
        axes, "tokens in one step (concurrent requests)", "expert weights read,\ntimes one token's"
    )
    _legend(axes, loc="upper left")
    return Chart(
        figure,
        f"Expert weights read in a step with 1 to {most} tokens, as a multiple of one token's:"
        " tokens share little",
    )


@book_style()
def disk_needed(disks: Sequence[Disk]) -> Chart:
    """Disk space per checkpoint, largest first; outlined where it is an estimate, a separate draft
    on top.
    """
    disks = sorted(disks, key=lambda disk: (disk.total_gb, disk.repo))
    names = [disk.repo for disk in disks]
    figure, axes = _axes(0.28 * len(disks) + 0.9)
    for estimated, face, label in (
        (False, BLUE, "weights, stated"),
        (True, "none", "weights, from the parameters"),
    ):
        sizes = [disk.weights_gb if disk.estimated == estimated else 0 for disk in disks]
        axes.barh(names, sizes, color=face, edgecolor=BLUE, linewidth=1, height=0.62, label=label)
    left = [disk.weights_gb for disk in disks]
    axes.barh(
        names,
        [disk.draft_gb or 0 for disk in disks],
        left=left,
        color=ORANGE,
        height=0.62,
        label="separate draft, where stated",
    )
    _legend(axes, loc="lower right")
    for row, disk in enumerate(disks):
        text = f"{disk.total_gb:.0f}" if disk.total_gb >= 1 else f"{disk.total_gb:.2f}"
        axes.annotate(
            text, (disk.total_gb, row), xytext=(3, 0), textcoords="offset points", va="center"
        )
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", labelsize=7, left=False)
    axes.margins(y=0.01)
    axes.set_xlim(0, 1.08 * max(disk.total_gb for disk in disks))
    _label(axes, "GB on disk")
    return Chart(
        figure, f"Disk space of {len(names)} checkpoints in GB; the largest is {names[-1]}"
    )
