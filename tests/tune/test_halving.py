"""Which candidates are started, and what is believed of them."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from fleet import Fleet, candidates, loaders
from sparkbook.errors import SparkbookError
from sparkbook.serve.engine import EngineError
from sparkbook.tune.halving import Tuning, compared, start_noise
from sparkbook.tune.journal import Journal, Outcome

K3 = "--speculative-config.num_speculative_tokens 3"
SEQS = "--max-num-seqs 16"
BOTH = f"{K3} {SEQS}"
BATCH = "--max-num-batched-tokens 4096"


def decided(tuning: Tuning) -> dict[str, bool]:
    """Return by finalist whether it counts as faster than the baseline."""
    return {one.key: tuning.why_not_faster(one) is None for one in tuning.best}


def test_the_best_combination_wins_with_few_starts() -> None:
    fleet = Fleet({K3: 1.3, SEQS: 1.2, BATCH: 0.9})
    tuning = fleet.tuning()
    tuning.run()
    assert tuning.best[0].key == f"{K3} {SEQS}"
    assert decided(tuning)[f"{K3} {SEQS}"]
    # Of the combinations only that of the two changes that help was started.
    pairs = {one.key for one in candidates() if len(one.changes) == 2} & set(fleet.log)
    assert pairs == {f"{K3} {SEQS}"}
    assert "promises no more" in tuning.unstarted[f"{K3} {BATCH}"]


def test_every_option_has_its_first_value_tried_before_any_has_its_second() -> None:
    fleet = Fleet()
    fleet.tuning().run()
    single = [one for one in candidates() if len(one.changes) == 1 and one.key in fleet.log]
    option = {one.key: next(iter(one.changes)) for one in single}
    first = [option[key] for key in fleet.log[1:] if key in option][: len(set(option.values()))]
    assert len(set(first)) == len(first)


def test_the_final_takes_turns_there_and_back() -> None:
    fleet = Fleet({K3: 1.3, K3.replace("3", "2"): 1.3})
    fleet.tuning().run()
    a, b, c = fleet.log[-6:-3]
    assert a == "baseline"
    assert fleet.log[-6:] == [a, b, c, c, b, a]


def test_the_way_back_leaves_out_who_is_surely_behind() -> None:
    fleet = Fleet({K3: 1.5, SEQS: 1.2})
    fleet.tuning().run()
    assert fleet.log[-5:] == ["baseline", BOTH, K3, BOTH, "baseline"]


def test_the_way_back_keeps_who_is_as_near_as_two_starts() -> None:
    fleet = Fleet({K3: 1.3, K3.replace("3", "2"): 1.26}, spread=0.002)
    fleet.tuning().run()
    assert fleet.log[-6:] == fleet.log[-6:][::-1]
    assert fleet.log[-6] == "baseline"


def test_a_combination_that_looked_slower_than_its_part_has_its_final() -> None:
    """As slow as another start of the same server may be."""

    def factor(key: str, count: int) -> float:
        return 0.82 if (key, count) == (BOTH, 1) else 1.0

    others = [one.key for one in candidates() if len(one.changes) == 1]
    gains = {**dict.fromkeys(others, 0.9), K3: 1.3, SEQS: 1.2}
    tuning = Fleet(gains, factor=factor).tuning()
    tuning.run()
    assert BOTH in {one.key for one in tuning.best}
    assert decided(tuning)[BOTH]


def test_the_best_is_tried_with_what_two_starts_may_have_hidden() -> None:
    """Sixteen sequences help, and looked as if they did not; other numbers are surely slower."""
    others = [f"--max-num-seqs {number}" for number in (4, 32, 64)]

    def factor(key: str, count: int) -> float:
        return 0.82 if (key, count) == (SEQS, 1) else 1.0

    fleet = Fleet({K3: 1.3, SEQS: 1.2, **dict.fromkeys(others, 0.9)}, factor=factor)
    tuning = fleet.tuning()
    tuning.run()
    assert tuning.best[0].key == BOTH
    assert not {f"{K3} {other}" for other in others} & set(fleet.log)


def test_three_changes_are_reached_step_by_step() -> None:
    fleet = Fleet({K3: 1.3, SEQS: 1.2, BATCH: 1.1}, changes=3)
    tuning = fleet.tuning()
    tuning.run()
    assert set(tuning.best[0].changes) == {"drafts", "sequences", "batched-tokens"}
    assert len(fleet.log) < len(candidates(3)) / 3


def test_without_a_gain_no_combination_is_started() -> None:
    fleet = Fleet(spread=0.002)
    fleet.tuning().run()
    assert not [one for one in candidates() if len(one.changes) == 2 and one.key in fleet.log]


def test_loaders_take_turns_and_do_not_compete() -> None:
    fast, dead = (one.key for one in loaders())
    fleet = Fleet({K3: 1.3}, start_s={fast: 20}, dead={dead: "no such package"})
    tuning = fleet.tuning(loaders=loaders())
    tuning.run()
    assert fast not in {one.key for one in tuning.best}
    back = fleet.log.index(fast)
    assert fleet.log[back : back + 2] == [fast, fast]
    assert [turn.start_s for turn in tuning.final(loaders()[0])] == [20, 20]
    assert not any(turn.report for turn in tuning.final(loaders()[0]))
    (died,) = tuning.final(loaders()[1])
    assert died.died == f"{dead} does not start here: no such package"


def test_without_time_no_loader_is_started() -> None:
    tuning = Fleet().tuning(loaders=loaders(), budget_s=100)
    tuning.run()
    assert {tuning.unstarted[one.key] for one in loaders()} == {"the time is up"}


def test_where_nothing_helps_nothing_is_better() -> None:
    tuning = Fleet(spread=0.05).tuning()
    tuning.run()
    assert not any(decided(tuning).values())


def test_a_baseline_that_was_slow_once_makes_no_winner() -> None:
    """The first measurement of the baseline was taken on a slow engine: all look faster."""
    fleet = Fleet(factor=lambda key, count: 0.7 if (key, count) == ("baseline", 1) else 1.0)
    tuning = fleet.tuning()
    tuning.run()
    assert not any(decided(tuning).values())
    # The second look at the baseline shows it, so no combination is started.
    assert not [one for one in candidates() if len(one.changes) == 2 and one.key in fleet.log]


def restarted(seed: int, deviation: float, gains: dict[str, float]) -> bool:
    """Return whether a winner is found where each start has a speed of its own."""
    rng = random.Random(seed)
    fleet = Fleet(gains, factor=lambda _key, _count: math.exp(rng.gauss(0, deviation)))
    tuning = fleet.tuning()
    tuning.run()
    return any(decided(tuning).values())


@pytest.mark.parametrize("seed", range(3))
def test_starts_that_differ_make_no_winner_and_hide_no_gain(seed: int) -> None:
    assert not restarted(seed, 0.05, {})
    assert restarted(seed, 0.01, {K3: 1.05})


def test_the_noise_of_starts_needs_a_server_that_was_started_twice() -> None:
    assert start_noise([]).margin(2, 2) > 1e9


@pytest.mark.parametrize("rule", ["BENCH111", "BENCH311"])
def test_what_the_gate_rejects_is_repeated_once_and_never_counts(rule: str) -> None:
    """A machine under other load; a model that repeats itself."""
    fleet = Fleet({K3: 5.0, SEQS: 1.2}, wrong={K3: rule})
    tuning = fleet.tuning()
    tuning.run()
    assert K3 not in {one.key for one in tuning.best}
    outcome = tuning.journal.get(K3, "short")
    assert outcome is not None
    assert outcome.rejected == f"{rule}: Something is wrong."
    assert sum(line.startswith(f"{K3}: repeated") for line in fleet.said) == 1
    assert sum(line.startswith(f"{K3}: left out") for line in fleet.said) == 1
    assert compared([outcome], [outcome]) is None


def test_a_baseline_that_can_not_be_measured_ends_the_run_and_is_tried_again(
    tmp_path: Path,
) -> None:
    fleet = Fleet(wrong={"baseline": "BENCH111"})
    with pytest.raises(SparkbookError, match="baseline can't be measured: BENCH111"):
        fleet.tuning(tmp_path / "journal").run()
    fleet.wrong = {}
    fleet.tuning(tmp_path / "journal").run()


def test_a_dead_start_leaves_out_its_whole_class() -> None:
    fleet = Fleet({SEQS: 1.2}, dead={K3: "no such kernel"})
    tuning = fleet.tuning()
    tuning.run()
    sentence = f"{K3} does not start here: no such kernel"
    assert sentence in fleet.said
    with_it = [one.key for one in candidates() if K3 in one.key and one.key != K3]
    assert with_it
    assert {tuning.unstarted[key] for key in with_it} == {sentence}


@pytest.mark.parametrize("clean", [True, False])
def test_an_interruption_keeps_what_was_measured(tmp_path: Path, clean: bool) -> None:
    whole = Fleet({K3: 1.3, SEQS: 1.2})
    whole.tuning().run()

    def stop(_key: str, count: int) -> None:
        if count == 5:
            try:
                raise KeyboardInterrupt
            finally:
                if not clean:  # it ends the tuner too: the candidate did not die
                    raise EngineError("the server can't be stopped")

    broken = Fleet({K3: 1.3, SEQS: 1.2}, stop=stop)
    with pytest.raises(KeyboardInterrupt if clean else EngineError):
        broken.tuning(tmp_path / "journal").run()
    rest = Fleet({K3: 1.3, SEQS: 1.2})
    rest.tuning(tmp_path / "journal").run()
    assert broken.log + rest.log == whole.log
    again = Fleet()
    again.tuning(tmp_path / "journal").run()
    assert again.log == []


def test_the_budget_holds_the_start_and_leaves_time_for_the_final() -> None:
    fleet = Fleet({K3: 1.3})
    tuning = fleet.tuning(budget_s=2000)
    tuning.run()
    assert tuning.journal.spent_s <= 2000
    assert tuning.best
    assert "the time is up" in tuning.unstarted.values()
    small = Fleet({K3: 1.3}).tuning(budget_s=100)
    small.run()
    assert not small.best


def test_nodes_that_work_side_by_side_share_the_time() -> None:
    journal = Journal(None, {})
    for node, stage, seconds in (
        ("a", "short", 100),
        ("b", "short", 60),
        ("b", "longer 1", 30),
        ("a", "final 0", 20),
    ):
        journal.add(Outcome(candidate="baseline", stage=stage, node=node, seconds=seconds))
    assert journal.spent_s == 120


def test_a_journal_of_something_else_is_not_gone_on_with(tmp_path: Path) -> None:
    fleet = Fleet()
    fleet.tuning(tmp_path / "journal").run()
    with pytest.raises(SparkbookError, match="another recipe"):
        Journal(tmp_path / "journal", {"test": 2})
    (tmp_path / "other").write_text("{}\n{}\n", "utf-8")
    with pytest.raises(SparkbookError, match="is not a journal"):
        Journal(tmp_path / "other", {})
