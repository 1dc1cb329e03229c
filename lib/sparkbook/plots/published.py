"""Published figures of recipes as pictures. The values are printed next to the marks; nothing is
shown that is not in the data.
"""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from sparkbook.host import spark
from sparkbook.plots.style import COLOURS, Chart, axes, book_style
from sparkbook.recipes import Recipe
from sparkbook.recipes.schema import Accuracy, Speed


@book_style()
def accuracy(table: Accuracy) -> Chart:
    """Draw scores as horizontal bars, one group a benchmark, one colour a series."""
    rows, series = table.rows, table.series
    figure, axis = axes(0.7 + len(rows) * (0.16 + 0.24 * len(series)))
    thick = 0.8 / len(series)
    top = max((value for row in rows for value in row.values if value is not None), default=1.0)
    for number, name in enumerate(series):
        places = [index + (number - (len(series) - 1) / 2) * thick for index in range(len(rows))]
        known = [
            (place, value)
            for place, row in zip(places, rows, strict=True)
            if (value := row.values[number]) is not None
        ]
        axis.barh(
            [place for place, _ in known],
            [value for _, value in known],
            thick * 0.9,
            label=name,
            color=COLOURS[number % len(COLOURS)],
        )
        for place, value in known:
            axis.text(value + top * 0.01, place, f"{value:g}", va="center")
    axis.set_yticks(range(len(rows)), [row.label for row in rows])
    axis.invert_yaxis()
    axis.set_xlim(0, top * 1.1)
    axis.set_xlabel(table.unit)
    axis.set_title(table.title)
    if len(series) > 1:
        figure.legend(loc="outside lower center", ncols=len(series))
    return Chart(
        figure,
        f"Bar chart: {table.title}, {' and '.join(series)}, for {len(rows)} benchmarks; the table"
        " below has the same figures.",
    )


@book_style()
def speed(figures: Sequence[Speed]) -> Chart | None:
    """Published decode rates of single requests as bars, a range as a line to its upper end; None
    where no source gives one.
    """
    shown = [
        (figure, rate)
        for figure in figures
        if (rate := figure.decode_tok_s or figure.decode_tok_s_max) is not None
    ]
    if not shown:
        return None
    picture, axis = axes(0.9 + 0.42 * len(shown))
    top = max(figure.decode_tok_s_max or rate for figure, rate in shown)
    for place, (figure, rate) in enumerate(shown):
        axis.barh(place, rate, 0.62, color=COLOURS[0])
        end = figure.decode_tok_s_max
        if end and figure.decode_tok_s and end > rate:
            axis.plot(
                [rate, end], [place, place], color=COLOURS[1], linewidth=3, solid_capstyle="butt"
            )
        text = f"{rate:g}–{end:g}" if end and end > rate else f"{rate:g}"
        axis.text(max(rate, end or 0) + top * 0.01, place, text, va="center")
    axis.set_yticks(range(len(shown)), [_speed_label(figure) for figure, _ in shown])
    axis.invert_yaxis()
    axis.set_xlim(0, top * 1.16)
    axis.set_xlabel("decode, tokens per second and request")
    axis.set_title("Published decode rates")
    return Chart(
        picture,
        f"Bar chart: {len(shown)} published decode rates in tokens per second; the table has the"
        " same figures.",
    )


def _speed_label(figure: Speed) -> str:
    parts = [
        figure.configuration,
        figure.prompt_class,
        f"{figure.concurrency} requests" if figure.concurrency > 1 else None,
    ]
    parts.append(None if figure.on_spark else figure.machine)
    text = ", ".join(part for part in parts if part) or "as the recipe"
    return text if len(text) <= 42 else f"{text[:41]}…"


def best_single(recipe: Recipe) -> float | None:
    """Return the decode rate of `Benchmarks.best`, in tok/s."""
    figure = recipe.benchmarks.best
    return figure.best_tok_s if figure else None


@book_style()
def weights_and_speed(
    recipes: Sequence[Recipe], bandwidth_gb_s: float = spark.BANDWIDTH_GB_S
) -> Chart:
    """Draw size of the weights against the best published decode rate of one request.

    The line is the ceiling for a model that reads all its weights for each token: bandwidth /
    weights. A point above it reads less (a mixture of experts reads only the active ones) or gets
    more than one token from a pass (speculative decoding).
    """
    points = [
        (recipe, recipe.model.weights_gb, rate)
        for recipe in recipes
        if recipe.model.weights_gb and (rate := best_single(recipe)) is not None
    ]
    picture, axis = axes(4.6)
    for expert, colour, marker, name in (
        (True, COLOURS[0], "o", "mixture of experts"),
        (False, COLOURS[1], "s", "dense"),
    ):
        chosen = [
            (gb, rate)
            for recipe, gb, rate in points
            if bool(recipe.model.mixture_of_experts) is expert
        ]
        axis.scatter(
            [gb for gb, _ in chosen],
            [rate for _, rate in chosen],
            s=34,
            c=colour,
            marker=marker,
            label=name,
            zorder=3,
        )
    sizes = [gb for _, gb, _ in points] or [1.0, 100.0]
    low, high = min(sizes) * 0.8, max(sizes) * 1.25
    axis.plot(
        [low, high],
        [bandwidth_gb_s / low, bandwidth_gb_s / high],
        color=COLOURS[5],
        linestyle="--",
        label=f"all weights read for each token at {bandwidth_gb_s:g} GB/s",
    )
    axis.set_xscale("log")
    axis.set_yscale("log")
    for bound in (axis.xaxis, axis.yaxis):
        bound.set_major_formatter(lambda value, _: f"{value:g}")
        bound.set_minor_formatter(
            lambda value, _: f"{value:g}" if str(f"{value:g}")[0] in "25" else ""
        )
    axis.tick_params(which="minor", labelsize=8)
    axis.grid()
    _label_points(axis, points)
    axis.set_xlabel("weights, GB")
    axis.set_ylabel("best published decode, tok/s (one request)")
    axis.legend(loc="upper right")
    return Chart(
        picture,
        f"Scatter plot of {len(points)} recipes: weights in GB against published decode rate, with"
        f" the {bandwidth_gb_s:g} GB/s ceiling.",
    )


def _label_points(axis: Axes, points: Sequence[tuple[Recipe, float, float]]) -> None:
    """Write a name next to each point; names of points at one place go below each other."""
    placed: list[tuple[float, float]] = []
    for recipe, gb, rate in sorted(points, key=lambda point: (-point[2], point[1])):
        near = sum(1 for x, y in placed if 0.55 < gb / x < 1.8 and 0.85 < rate / y < 1.18)
        placed.append((gb, rate))
        axis.annotate(
            recipe.id,
            (gb, rate),
            xytext=(5, 3 - 8 * near),
            textcoords="offset points",
            fontsize=6.5,
        )
