"""Pictures of what a running engine did: the marks are the figures, and the text says what is seen."""

import math

import pytest
from sparkbook.metrics import Histogram
from sparkbook.plots import serving
from sparkbook.serve.ready import Readiness, Stage
from sparkbook.serve.warmup import Sample, WarmUp


def test_a_waterfall_has_each_stage_after_the_other():
    chart = serving.stages(
        Readiness([Stage("port", 20.0, ""), Stage("health", 0.5, ""), Stage("completion", 1.5, "")])
    )
    bars = chart.figure.axes[0].patches
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0, 20.0), (20.0, 0.5), (20.5, 1.5)]
    assert "longest is port" in chart.alt


def test_a_line_for_each_kind_of_request():
    kinds = [
        WarmUp("chat", [Sample(t, t, 1) for t in (0.2, 0.1, 0.1, 0.1)], settled=True),
        WarmUp("json", [Sample(3.0, 3.0, 1)]),
    ]
    chart = serving.time_to_first_token(kinds)
    assert [list(line.get_ydata()) for line in chart.figure.axes[0].lines] == [
        [0.2, 0.1, 0.1, 0.1],
        [3.0],
    ]
    assert "chat: first 200 ms" in chart.alt


@pytest.mark.parametrize(
    ("histogram", "counts"),
    [
        (
            Histogram((0.1, 0.2, 0.5, 1.0, math.inf), (0.0, 0.0, 3.0, 4.0, 4.0), 2.0),
            [0, 3, 1, 0],
        ),  # empty ends are cut to one bucket
        (Histogram((0.1, math.inf), (0.0, 2.0), 9.0), [0, 2]),
        (Histogram((0.1, math.inf), (0.0, 0.0), 0.0), []),
    ],
)
def test_a_histogram_shows_what_was_counted(histogram, counts):
    chart = serving.histogram(histogram, "TTFT")
    assert [bar.get_height() for bar in chart.figure.axes[0].patches] == counts
    assert f"{histogram.count:g} observations" in chart.alt
    assert chart.svg.startswith("<svg ")
