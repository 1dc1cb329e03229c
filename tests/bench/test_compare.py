"""Two arms, prompt by prompt: what the interval claims is held against thousands of arms whose
truth is known.
"""

import math
import random

import pytest
from sparkbook.bench import compare
from sparkbook.bench.results import Cell, Figures, Report, Request
from sparkbook.errors import SparkbookError


def arm(n, speed, noise, rng, base):
    """Values of n prompts: the prompt's own speed, the arm's factor, and noise of so large a share."""
    return {f"p{i}": [base[i] * speed * math.exp(rng.gauss(0, noise))] for i in range(n)}


def trial(seed, n, speed, noise=0.03):
    rng = random.Random(seed)
    base = [rng.uniform(10, 60) for _ in range(n)]
    return compare.paired(
        arm(n, 1.0, noise, rng, base), arm(n, speed, noise, rng, base), seed=seed, draws=500
    )


def test_a_difference_of_five_percent_is_found_with_40_pairs():
    found = [trial(seed, 40, 1.05) for seed in range(100)]
    assert sum(c.interval[0] > 1 for c in found) >= 99
    assert sum(c.interval[0] <= 1.05 <= c.interval[1] for c in found) >= 90


@pytest.mark.parametrize("n", [12, 40])
def test_no_difference_is_not_made_up(n):
    found = [trial(seed, n, 1.0) for seed in range(1000, 1100)]
    assert sum(c.interval[0] <= 1 <= c.interval[1] for c in found) >= 93
    assert sum(c.p > 0.05 for c in found) >= 90


def test_the_ratio_is_the_geometric_mean_and_paired():
    found = compare.paired({"a": [10.0], "b": [1000.0]}, {"a": [20.0], "b": [500.0]})
    assert found.ratio == pytest.approx(1.0)
    assert compare.paired({"a": [10.0, 40.0]}, {"a": [40.0]}).ratio == pytest.approx(2.0)


def test_the_exact_permutation_test_counts_signs():
    # All four prompts gain alike: of 16 choices of signs the observed one and its mirror are as far
    # out.
    assert compare.paired(
        {k: [1.0] for k in "abcd"}, {k: [1.1] for k in "abcd"}
    ).p == pytest.approx(2 / 16)


def test_a_single_prompt_has_no_interval_and_is_never_sure():
    found = compare.paired({"a": [1.0]}, {"a": [2.0]})
    assert found.interval is None and not found.sure


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"a": [1.0]}, {"b": [1.0]}),
        ({}, {}),
        ({"a": [0.0]}, {"a": [1.0]}),
        ({"a": [math.nan]}, {"a": [1.0]}),
    ],
)
def test_what_cannot_be_compared_is_said(a, b):
    with pytest.raises(SparkbookError):
        compare.paired(a, b)


def block(factor, n=16, load=1, name="code", start=10.0):
    """A report whose requests decode at known speeds."""
    requests = []
    for i in range(n):
        tpot = 1 / (start * (1 + i / n) * factor)
        requests.append(
            Request(
                prompt=f"{name}-{i:03}",
                ttft_s=0.1,
                latency_s=0.1 + 10 * tpot,
                stamps_s=[0.1, 0.1 + 10 * tpot],
                output_tokens=11,
            )
        )
    cell = Cell(
        prompt_class=name, concurrency=load, figures=Figures(completed=n), requests=requests
    )
    return Report(date="2026-11-28T00:00:00Z", tool="sparkbook", model="m", cells=[cell])


def test_blocks_a_b_b_a_show_a_machine_that_changed():
    steady = compare.arms([block(1.0), block(1.001)], [block(1.2), block(1.2)])[0].comparison
    assert steady.ratio == pytest.approx(1.2, rel=0.01) and steady.steady and steady.sure
    hot = compare.arms([block(1.0), block(0.9)], [block(1.2), block(1.2)])[0].comparison
    assert not hot.steady and not hot.sure
    assert "the machine changed by -10.0%" in str(hot)


def test_arms_are_matched_by_class_and_load():
    assert [row.load for row in compare.arms([block(1.0, load=4)], [block(1.1, load=4)])] == ["c=4"]
    with pytest.raises(SparkbookError, match="no prompt class under the same load"):
        compare.arms([block(1.0, load=4)], [block(1.1, load=8)])
    with pytest.raises(SparkbookError, match="no figure 'speed'"):
        compare.arms([block(1.0)], [block(1.0)], "speed")


def test_few_prompts_are_named():
    assert "fewer than 12 prompts" in str(
        compare.arms([block(1.0, n=5)], [block(1.1, n=5)])[0].comparison
    )
