"""Pictures of speculation: what they say in words is what was measured, and what cannot be drawn is
refused.
"""

import pytest
from sparkbook import recipes
from sparkbook.bench import advise
from sparkbook.errors import SparkbookError
from sparkbook.plots import speculation


def test_acceptance_is_told_by_class():
    chart = speculation.acceptance({"code": (0.5, 0.25), "prose": ()}, "MTP")
    assert "code 50%, 25%" in chart.alt and "prose" not in chart.alt
    with pytest.raises(SparkbookError, match="speculating"):
        speculation.acceptance({"code": ()}, "MTP")


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
