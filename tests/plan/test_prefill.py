"""Time to first token."""

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.plan import evidence
from sparkbook.plan.decode import Machine, Reads
from sparkbook.plan.prefill import first_token, flops

ROUND = Machine(read_gb_s=100.0)
MODEL = Reads(every_step=1e9, layers=10, active_params=1e9, attention_width=1e3)


def test_flops_of_a_prompt():
    assert flops(MODEL, 1000) == 2e12 + 4 * 1e3 * 1000 * 500
    assert flops(MODEL, 10, 1000) == 2e10 + 4 * 1e3 * 10 * 1005


def test_two_halves_of_a_prompt_cost_what_the_whole_does():
    assert flops(MODEL, 500) + flops(MODEL, 500, 500) == pytest.approx(flops(MODEL, 1000))


def test_time_follows_the_rates():
    found = first_token(MODEL, 1000, machine=ROUND, flop_s=(1e12, 2e12, 4e12))
    assert (found.high_s, found.seconds, found.low_s) == pytest.approx((2.002, 1.001, 0.5005))
    assert found.tok_s == pytest.approx(1000 / 1.001)
    assert str(found) == "1 s (estimate; 0.5 to 2)"


def test_few_tokens_wait_for_the_weights():
    assert first_token(MODEL, 1, machine=ROUND, flop_s=(1e12, 2e12, 4e12)).seconds == pytest.approx(
        0.01
    )


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
    assert cold.seconds == pytest.approx(50, rel=0.25)
    assert warm.seconds < cold.seconds / 50


@pytest.mark.parametrize(("prompt", "cached"), [(0, 0), (10, 11), (10, -1)])
def test_impossible_prompts_are_refused(prompt, cached):
    with pytest.raises(SparkbookError, match="give at least one"):
        first_token(MODEL, prompt, cached)
