"""Who wins, who may not, and what is written down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from fleet import Fleet, loaders
from sparkbook import recipes
from sparkbook.bench.equality import Answer as Reply
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.serve.engine import Engine
from sparkbook.tune import answer, text
from sparkbook.tune.answer import Answer
from sparkbook.tune.journal import Outcome
from sparkbook.tune.space import Candidate

K3 = "--speculative-config.num_speculative_tokens 3"
SEQS = "--max-num-seqs 16"
BOTH = f"{K3} {SEQS}"


def replies(token: str) -> list[Reply]:
    """Return one reply of one token, of which the server is sure."""
    return [Reply("code-000", (token,), ({token: -0.01, "other": -9.0},), token)]


def finished(
    fleet: Fleet,
    changed: str = "",
    broken: str = "nothing",
    tried: Sequence[Candidate] = (),
    **how: Any,
) -> Answer:
    """Run, and answer; `changed` names what the candidate that answers otherwise has in its key,
    `broken` the one whose tool calls fail. `tried`: loaders.
    """

    def finalist(_engine: Engine, outcome: Outcome) -> None:
        key = outcome.candidate
        rounds = 2 if key == "baseline" else 1
        reply = replies("changed" if changed and changed in key else "same")
        outcome.answers = [reply] * rounds
        wrong = Finding(rule="TOOL101", severity="error", message=f"Wrong with {key}.")
        weak = Finding(rule="TOOL201", severity="warning", message="Weak.")
        outcome.tools = [wrong, weak] if broken in key else [weak]

    tuning = fleet.tuning(finalist=finalist, loaders=tried)
    tuning.run()
    return answer.finish(tuning, **{"lossy": {}, **how})


def test_the_winner_is_taken_apart() -> None:
    found = finished(Fleet({K3: 1.3, SEQS: 1.2}))
    assert found.winner is not None
    assert found.winner.key == BOTH
    assert set(found.parts) == {K3, SEQS}
    assert found.parts[K3].ratio == pytest.approx(1.3, rel=0.05)
    assert found.parts[SEQS].ratio == pytest.approx(1.2, rel=0.05)
    assert [row.candidate.key for row in found.rows][:2] == ["baseline", BOTH]
    lines = list(text.answer(found))
    assert lines[-1] == f"winner: {BOTH}"
    assert found.to_dict()["winner"] == BOTH


def test_one_that_changes_answers_may_not_win_and_the_next_may() -> None:
    found = finished(Fleet({K3: 1.3, SEQS: 1.2}), changed=SEQS)
    assert found.winner is not None
    assert found.winner.key == K3
    refused = {row.candidate.key: row.refused for row in found.rows}
    assert "it changes answers" in (refused[BOTH] or "")


def test_an_option_that_may_change_answers_wins_with_near() -> None:
    fleet = Fleet({K3: 1.3, SEQS: 1.2})
    found = finished(fleet, changed=SEQS, lossy={"sequences": True}, near=True)
    assert found.winner is not None
    assert found.winner.key == BOTH
    row = found.row
    assert row is not None
    assert row.trial is not None
    assert not row.trial.claims


def test_one_whose_tool_calls_fail_may_not_win() -> None:
    found = finished(Fleet({K3: 1.3, SEQS: 1.2}), broken=SEQS)
    assert found.winner is not None
    assert found.winner.key == K3
    assert any("tool calls fail with it: TOOL101" in line for line in text.answer(found))


@pytest.mark.parametrize(("seconds", "faster"), [(20, True), (60, False)])
def test_a_loader_is_named_if_its_starts_are_faster(seconds: float, faster: bool) -> None:
    fast, other = (one.key for one in loaders())
    found = finished(Fleet({K3: 1.3}, start_s={fast: seconds}), tried=loaders())
    assert found.winner is not None
    assert found.winner.key == K3
    assert found.loading == {"baseline": [60, 60], fast: [seconds] * 2, other: [60, 60]}
    assert found.loader == (fast if faster else None)
    lines = list(text.answer(found))
    assert any("faster than the recipe each time" in line for line in lines) == faster
    found.about["date"] = "2026-11-29"
    assert (fast in answer.recipe(found, "users").remarks[-1].text) == faster


def test_tool_calls_that_fail_with_the_recipe_too_refuse_nothing() -> None:
    found = finished(Fleet({K3: 1.3, SEQS: 1.2}), broken="")
    assert found.winner is not None
    assert found.winner.key == BOTH


def test_no_winner_is_an_answer_and_no_recipe() -> None:
    found = finished(Fleet(spread=0.05))
    assert found.winner is None
    assert list(text.answer(found))[-1] == text.NOTHING
    with pytest.raises(SparkbookError, match="no winner"):
        answer.recipe(found, "users")


def test_without_a_comparison_of_answers_nothing_wins() -> None:
    tuning = Fleet({K3: 1.3}).tuning()
    tuning.run()
    found = answer.finish(tuning, lossy={})
    assert found.winner is None
    assert {row.refused for row in found.rows[1:]} >= {"its answers were not compared"}


def test_the_recipe_says_where_it_is_from_and_pins_the_image() -> None:
    found = finished(Fleet({SEQS: 1.3}))
    found.about |= {"machine": "NVIDIA GB10", "digest": f"sha256:{'a' * 64}", "date": "2026-11-29"}
    assert found.row is not None
    winner = replace(found.row.candidate, recipe=recipes.load("gpt-oss-120b"))
    found.rows, found.winner = [replace(found.row, candidate=winner)], winner
    tuned = answer.recipe(found, "users")
    assert tuned.id == "gpt-oss-120b-tuned-users"
    assert tuned.image is not None
    assert tuned.image.digest == f"sha256:{'a' * 64}"
    assert tuned.source("tune").title == (
        "tuned from gpt-oss-120b for the use 'users', on NVIDIA GB10"
    )
    remark = tuned.remarks[-1]
    assert remark.source == "tune"
    assert SEQS in remark.text
    assert "Answers: identical" in remark.text
