"""Time to first token."""

from dataclasses import replace

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.plan import evidence
from sparkbook.plan.decode import Machine, Reads
from sparkbook.plan.prefill import Rates, first_token, flops

ROUND = Machine(read_gb_s=100.0)
RATES = Rates(wide=2e12, narrow=2e12, routed=2e12, scatter=1.0)
MODEL = Reads(every_step=1e9, layers=10, active_params=1e9, attention_width=1e3)


def test_flops_of_a_prompt():
    assert flops(MODEL, 1000) == 2e12 + 4 * 1e3 * 1000 * 500
    assert flops(MODEL, 10, 1000) == 2e10 + 4 * 1e3 * 10 * 1005


def test_two_halves_of_a_prompt_cost_what_the_whole_does():
    assert flops(MODEL, 500) + flops(MODEL, 500, 500) == pytest.approx(flops(MODEL, 1000))


def test_time_follows_the_rates():
    found = first_token(MODEL, 1000, machine=ROUND, rates=RATES)
    assert found.seconds == pytest.approx(1.001 + 0.01)
    assert (found.low_s, found.high_s) == pytest.approx((1.011 / 2, 1.011 * 2))
    assert found.tok_s == pytest.approx(1000 / 1.011)
    assert str(found) == "1.01 s (estimate; 0.505 to 2.02)"


def test_experts_and_narrow_products_have_rates_of_their_own():
    mixed = replace(MODEL, active_routed=0.5e9, active_narrow=0.25e9)
    rates = replace(RATES, narrow=4e12, routed=1e12)
    slower = first_token(mixed, 1000, machine=ROUND, rates=rates).seconds
    assert slower == pytest.approx(1.011 + 0.5 - 0.125)


def test_each_chunk_reads_the_weights_and_two_sparks_share_the_work():
    whole, half = (
        first_token(MODEL, 1000, chunk=chunk, machine=ROUND, rates=RATES).seconds
        for chunk in (1000, 500)
    )
    assert half - whole == pytest.approx(0.01)
    shared = first_token(MODEL, 1000, machine=replace(ROUND, nodes=2), rates=RATES).seconds
    assert shared == pytest.approx((1.001 + 0.01) / 2)


def test_few_tokens_wait_for_the_weights():
    one = first_token(MODEL, 1, machine=ROUND, rates=RATES).seconds
    assert one == pytest.approx(0.01, rel=0.15)


def test_whole_blocks_are_kept_and_one_token_is_always_computed():
    assert first_token(MODEL, 100, cached=70, block=16).cached == 64
    assert first_token(MODEL, 64, cached=64, block=16).cached == 48
    assert first_token(MODEL, 100, cached=70, block=2096).cached == 0


def test_an_agent_waits_for_a_hundred_thousand_tokens_once():
    # An owner: 100k tokens at 2,000 tokens/s are 50 s, for Nemotron-3-Super (NVIDIA forum, "State
    # of FP4/NVFP4 support").
    _, reads, _ = evidence.measured().models["nemotron-3-super-120b-a12b"].reads("nvfp4")
    cold, warm = first_token(reads, 100_000), first_token(reads, 100_000, cached=99_000)
    assert cold.low_s < 50 < cold.high_s
    assert cold.seconds == pytest.approx(50, rel=0.30)
    assert warm.seconds < cold.seconds / 50


@pytest.mark.parametrize(("prompt", "cached"), [(0, 0), (10, 11), (10, -1)])
def test_impossible_prompts_are_refused(prompt, cached):
    with pytest.raises(SparkbookError, match="give at least one"):
        first_token(MODEL, prompt, cached)
