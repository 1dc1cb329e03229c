"""Pictures of speculation: what they say in words is what was measured, and what cannot be drawn is
refused.
"""

import pytest
from sparkbook import recipes
from sparkbook.bench import advise, sweep
from sparkbook.errors import SparkbookError
from sparkbook.plots import speculation
from sparkbook.plots.style import PAPER


def test_acceptance_is_told_by_class():
    chart = speculation.acceptance({"code": (0.5, 0.25), "prose": ()}, "MTP")
    assert "code 50%, 25%" in chart.alt and "prose" not in chart.alt
    with pytest.raises(SparkbookError, match="speculating"):
        speculation.acceptance({"code": ()}, "MTP")


def test_only_a_sure_gain_is_filled():
    advice = sweep.recorded("mtp").advice()
    chart = speculation.speed_ups(advice, "MTP")
    points = [line for line in chart.figure.axes[0].lines if line.get_marker() == "o"]
    filled = sum(line.get_markerfacecolor() != PAPER for line in points)
    cases = [case for case in advice.cases if case.concurrency == 1]
    assert (
        len(points) == len(cases)
        and filled == sum(case.worth for case in cases)
        and 0 < filled < len(cases)
    )
    with pytest.raises(SparkbookError):
        speculation.speed_ups(advice, "MTP", 64)


def test_the_best_k_of_each_curve_is_named():
    rows = advise.expected((0.8, 0.1), advise.Costs(draft=0.2, verify=0.0), 4)
    assert (
        f"best at K = {max(rows, key=lambda row: row[2])[0]} "
        in speculation.expected({"x": rows}, "t").alt
    )


def test_published_steps_are_tpot_times_tokens():
    chart = speculation.published_steps(
        recipes.load("qwen3.5-27b-dflash").benchmarks.speed, "DFlash"
    )
    assert "code 15.2 ms a token, 99 ms a step" in chart.alt and "reasoning" not in chart.alt
