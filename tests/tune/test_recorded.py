"""The run that the chapter shows, and its pictures."""

from __future__ import annotations

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.plots import candidates as plots
from sparkbook.tune import commands, text
from sparkbook.tune.answer import Answer


def test_the_recorded_run_is_whole_and_starts_nothing() -> None:
    pruned, found, journal = commands.recorded()
    left = {one["candidate"] for one in pruned["left"]}
    assert {one.candidate for one in journal} <= left
    assert left == {one.candidate for one in journal} | set(found.unstarted)
    assert found.starts == len(list(journal))
    assert found.rows[0].candidate.key == "baseline"
    assert not any(one.answers for one in journal), "the verdicts are kept, the replies are not"
    assert all(row.trial for row in found.rows[1:])
    last = list(text.answer(found))[-1]
    assert last == (f"winner: {found.winner.key}" if found.winner else text.NOTHING)


def test_its_pictures_say_what_they_show() -> None:
    _, found, _ = commands.recorded()
    tried, trade = plots.tried(found), plots.trade(found)
    for row in found.rows[1:]:
        assert row.ratio
        assert f"{row.ratio.ratio:.2f}" in tried.alt
    assert all(f"at {load}" in trade.alt for load in (1, 8, 32))
    with pytest.raises(SparkbookError, match="no candidate"):
        plots.tried(Answer([]))
    with pytest.raises(SparkbookError, match="no final"):
        plots.trade(Answer([]))
