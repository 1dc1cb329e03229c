"""The arithmetic of a decode step, against numbers worked out by hand."""

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.plan.decode import (
    ACCEPTANCE,
    CONCURRENCIES,
    Drafting,
    Machine,
    Reads,
    expected_length,
    geometric_length,
    mean_length,
    speed,
    speeds,
    step,
)

ROUND = Machine(
    read_gb_s=100.0, peak_flop_s=1e14, overhead_s=1e-3, verify_kv_gb_s=10.0, scatter=0.25
)
"""100 GB/s, 100 TFLOP/s, 1 ms a layer: numbers that a head can follow."""

DENSE = Reads(every_step=10e9, layers=10, active_params=10e9, kv_token=1e5, head=1e9)
MOE = Reads(every_step=1e9, routed=1e9, experts=8, active_experts=2, layers=10, active_params=1e9)


def test_a_dense_step_reads_everything_once():
    found = step(DENSE, 1, 10_000, machine=ROUND)
    assert found.parts == pytest.approx(
        {"weights": 0.1, "KV cache": 0.01, "recurrent state": 0, "draft": 0, "overhead": 0.01}
    )
    assert found.total_s == pytest.approx(0.12)
    assert found.limit == "memory"


def test_more_sequences_share_weights_and_not_their_cache():
    found = step(DENSE, 8, 10_000, machine=ROUND)
    assert found.weights_s == pytest.approx(0.1)
    assert found.kv_s == pytest.approx(0.08)


def test_enough_tokens_make_arithmetic_the_limit():
    found = step(DENSE, 1000, 0, machine=ROUND)
    assert found.limit == "arithmetic"
    assert found.weights_s == pytest.approx(2 * 10e9 * 1000 / 1e14)


def test_more_tokens_touch_more_experts():
    # One token goes through 2 of 8; of two tokens, each expert is missed with (3/4)^2: 3.5 are
    # touched, 1.75 times the bytes.
    assert step(MOE, 1, 0, machine=ROUND).weights_s == pytest.approx(0.02)
    assert step(MOE, 2, 0, machine=ROUND).weights_s == pytest.approx(0.01 + 0.01 * 1.75)
    assert step(MOE, 500, 0, machine=ROUND).weights_s == pytest.approx(0.01 + 0.04)


def test_a_window_ends_the_growth_of_the_cache():
    sliding = Reads(
        every_step=1e9, layers=1, active_params=1e9, kv_token=1e3, kv_window=1e5, window=1000
    )
    assert sliding.kv(500) == 500 * 1e3 + 500 * 1e5
    assert sliding.kv(50_000) == 50_000 * 1e3 + 1000 * 1e5


def test_a_state_is_read_once_and_written_after_every_token():
    recurrent = Reads(every_step=1e9, layers=0, active_params=1e9, state=1e8)
    assert step(recurrent, 2, 0, machine=ROUND).state_s == pytest.approx(2 * 2e8 / 1e11)
    draft = Drafting(tokens=3, passes=0, weights=0, layers=0, length=(1, 2, 3))
    assert step(recurrent, 2, 0, draft, ROUND).state_s == pytest.approx(2 * 5e8 / 1e11)


def test_a_draft_costs_its_passes_and_the_head():
    draft = Drafting(tokens=4, passes=4, weights=5e8, layers=1, length=(2.0, 3.0, 4.0))
    assert step(DENSE, 1, 0, draft, ROUND).draft_s == pytest.approx(4 * (1.5e9 / 1e11 + 1e-3))
    own_head = Drafting(
        tokens=4, passes=1, weights=5e8, layers=1, length=(2.0, 3.0, 4.0), shares_head=False
    )
    assert step(DENSE, 1, 0, own_head, ROUND).draft_s == pytest.approx(5e8 / 1e11 + 1e-3)


def test_verifying_attention_is_slower_and_its_speed_unknown():
    draft = Drafting(tokens=4, passes=0, weights=0, layers=0, length=(3.0, 3.0, 3.0))
    assert step(DENSE, 1, 10_000, draft, ROUND).kv_s == pytest.approx(10_000 * 1e5 / 1e10)
    found = speed(DENSE, 1, 10_000, draft, ROUND)
    assert found.tok_s == pytest.approx(3 / 0.21)
    assert found.low == pytest.approx(3 / 0.21 / 1.25)
    assert found.high == pytest.approx(3 / 0.12 * 1.25)


def test_bounds_of_the_input_widen_the_interval():
    sure, unsure = (
        speed(DENSE, machine=ROUND),
        speed((DENSE.scaled(0.5), DENSE, DENSE.scaled(2)), machine=ROUND),
    )
    assert unsure.tok_s == sure.tok_s
    assert unsure.low < sure.low < sure.tok_s < sure.high < unsure.high


def test_an_aggregate_is_shared_by_the_requests():
    found = speed(DENSE, 4, 0, machine=ROUND)
    assert found.tok_s == pytest.approx(4 / 0.11)
    assert found.per_request == pytest.approx((found.low / 4, found.tok_s / 4, found.high / 4))
    assert str(found).startswith("36.4 tok/s (estimate; 29.1 to 45.5)")


def test_a_plan_answers_for_four_loads():
    found = speeds(DENSE)
    assert tuple(s.concurrency for s in found) == CONCURRENCIES
    assert [s.tok_s for s in found] == sorted(s.tok_s for s in found)


def test_mean_length_is_one_plus_the_rates():
    # vLLM's log line in the recorded scrape: 0.85 / 0.59 / 0.33 gives a mean acceptance length of
    # 2.77.
    assert mean_length([0.85, 0.59, 0.33]) == pytest.approx(2.77)
    assert mean_length([]) == 1
    assert geometric_length(0.5, 3) == pytest.approx(1.875)
    with pytest.raises(SparkbookError, match="never rise"):
        mean_length([0.5, 0.6])


def test_expected_lengths_give_what_the_source_states():
    for text, accepted in (("code", 5.5), ("dialogue", 3.0), ("prose", 2.0)):
        assert expected_length(15, text)[1] - 1 == pytest.approx(accepted, abs=0.06)
    for low, likely, high in ACCEPTANCE.values():
        assert low < likely < high
    with pytest.raises(SparkbookError, match="no acceptance is known for 'poetry'"):
        expected_length(3, "poetry")


@pytest.mark.parametrize(("concurrency", "context"), [(0, 10), (1, -1)])
def test_impossible_loads_are_refused(concurrency, context):
    with pytest.raises(SparkbookError, match="a step has at least one"):
        step(DENSE, concurrency, context)


@pytest.mark.parametrize("length", [(0.5, 1, 2), (1, 3, 2), (1, 2, 6)])
def test_impossible_lengths_are_refused(length):
    with pytest.raises(SparkbookError, match="from 1 to 5"):
        Drafting(tokens=4, passes=1, weights=1, layers=1, length=length)
