"""Pictures of a plan: the marks are the figures, and the text says what is seen."""

from itertools import combinations

import pytest
from matplotlib.text import Text
from sparkbook.plan import speeds
from sparkbook.plan.decode import Reads, speed
from sparkbook.plots import plan as plots

DENSE = Reads(every_step=10e9, layers=10, active_params=10e9, kv_token=1e5)


def test_parts_stand_one_after_the_other():
    parts = [plots.Part("weights", 20.0, 18.0, 24.0), plots.Part("KV cache", 30.0)]
    chart = plots.memory_bar({"one": parts}, 121.6, {"available": 101.4})
    bars = chart.figure.axes[0].patches
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0, 20), (20, 30)]
    assert "weights 20.0, KV cache 30.0, together 50.0" in chart.alt
    texts = {text.get_text() for text in chart.figure.axes[0].texts}
    assert {"total 121.6", "available 101.4", "20.0", "30.0", "50.0"} <= texts
    whisker = chart.figure.axes[0].lines[0]
    assert list(whisker.get_xdata()) == [48, 54]


def test_what_does_not_fit_is_crossed_out():
    chart = plots.memory_bar({"too much": [plots.Part("weights", 130.0)]}, 121.6)
    over = chart.figure.axes[0].patches[-1]
    assert (over.get_x(), over.get_width()) == pytest.approx((121.6, 8.4))


def test_a_part_has_one_look_in_every_row():
    rows = {
        "a": [plots.Part("weights", 20.0), plots.Part("KV cache", 30.0)],
        "b": [plots.Part("KV cache", 10.0)],
    }
    bars = plots.memory_bar(rows, 121.6).figure.axes[0].patches
    assert bars[1].get_facecolor() == bars[2].get_facecolor() != bars[0].get_facecolor()
    assert bars[1].get_hatch() == bars[2].get_hatch() != bars[0].get_hatch()


def test_a_roofline_has_published_figures_and_estimates_apart():
    dots = [
        plots.Dot("gemma", 10.0, 20.0),
        plots.Dot("gemma", 10.0, 28.0),
        plots.Dot("mine", 5.0, 40.0, "estimate", 30.0, 50.0),
    ]
    chart = plots.roofline(dots)
    published, estimates = chart.figure.axes[0].collections
    assert [list(point) for point in published.get_offsets()] == [[10, 20], [10, 28]]
    assert [list(point) for point in estimates.get_offsets()] == [[5, 40]]
    assert "2 published speeds, 1 of them above the line of 273 GB/s" in chart.alt
    assert "mine: 5 GB, 40 a second (30 to 50)" in chart.alt


def test_names_on_a_roofline_lie_on_no_dot_and_on_no_other_name():
    dots = [
        plots.Dot(f.configuration.split()[0], f.gigabytes, f.value)
        for f in speeds.all_figures()
        if f.plain
    ]
    axis = plots.roofline(dots).figure.axes[0]
    axis.figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axis.texts]
    marks = axis.transData.transform([(dot.gigabytes, dot.steps_s) for dot in dots])
    assert len(boxes) == len({dot.label for dot in dots}) > 5
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert not any(box.contains(x, y) for box in boxes for x, y in marks)


def test_context_costs_room_and_speed():
    contexts = [4096, 8192]
    chart = plots.context_tradeoff(
        contexts, [8.0, 4.0], [speed(DENSE, 1, context) for context in contexts]
    )
    upper, lower = chart.figure.axes
    assert list(upper.lines[0].get_ydata()) == [8, 4]
    assert [label.get_text() for label in lower.get_xticklabels()] == ["4k", "8k"]
    assert "4k: 8 sequences" in chart.alt


def test_predictions_say_how_many_hold():
    chart = plots.predicted(["a-x-1", "a-x-2"], [20.0, 900.0], [speed(DENSE), speed(DENSE)])
    assert [label.get_text() for label in chart.figure.axes[0].get_yticklabels()] == ["a-x-1", "-2"]
    assert "2 published speeds next to their estimates; 1 lie inside the interval" in chart.alt
    assert chart.svg.startswith("<svg ")
