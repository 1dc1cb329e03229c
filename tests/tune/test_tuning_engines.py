"""The real engine: what is started, asked and kept. Speeds are worked out from the engine's own
count of steps, so that no test depends on how fast the machine is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet import RECIPE, SPACE, Fleet, candidates
from sparkbook import lock, recipes
from sparkbook.bench import load, telemetry
from sparkbook.bench.load import BenchPlan
from sparkbook.bench.results import Report
from sparkbook.formats import own
from sparkbook.recipes import Recipe
from sparkbook.serve import embedded, launcher, running, stack
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.engine import Engine
from sparkbook.tune import answer, measuring, text
from sparkbook.tune.answer import Asking
from sparkbook.tune.halving import Tuning
from sparkbook.tune.journal import Journal
from sparkbook.tune.measuring import Plans, Start, Starter
from sparkbook.tune.space import Candidate, Load, Space

K3 = "--speculative-config.num_speculative_tokens 3"
NONE = "without --speculative-config"
LOAD = Load(classes=("code",), concurrency=2, max_tokens=24)


def counted(endpoint: Endpoint, plan: BenchPlan, recipe: Recipe) -> Report:
    """Measure, and take for a request's time the engine's steps of its tokens, of which one with K
    drafts costs 1 + 0.02 K.
    """
    report = load.measure(endpoint, plan, source=telemetry.Live(endpoint, 0.02))
    config = recipe.serve.args.get("speculative-config") or {"num_speculative_tokens": 0}
    cost = 1 + 0.02 * config["num_speculative_tokens"]
    for cell in report.cells:
        cell.findings = [one for one in cell.findings if not one.rule.startswith("BENCH1")]
        assert cell.engine
        assert cell.engine.steps
        steps = cell.engine.steps / len(cell.requests)
        for request in cell.requests:
            request.latency_s = steps * cost
    return report


@pytest.mark.engine
def test_the_best_number_of_drafts_wins_and_becomes_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "_EACH", 1)
    monkeypatch.setattr(answer, "_TURNS", 2)
    monkeypatch.setattr(measuring, "LOADS", (1, 4))
    by_key = {one.key: one for one in candidates()}
    wanted = [by_key[key] for key in ("baseline", NONE, K3)]
    with embedded.together([one.recipe for one in wanted]) as engines:
        pairs = list(zip(wanted, engines, strict=True))

        @contextlib.contextmanager
        def start(recipe: Recipe) -> Iterator[Engine]:
            yield next(engine for one, engine in pairs if one.recipe.serve == recipe.serve)

        starter = Starter(start, counted)
        tuning = Tuning(wanted, Plans(RECIPE, LOAD), Journal(tmp_path / "journal", {}), starter)
        tuning.finalist = Asking(tuning.plans, counted, tools=True)
        tuning.run()
    found = answer.finish(tuning, lossy={})
    assert [row.candidate.key for row in found.rows] == ["baseline", K3]
    assert found.winner is by_key[K3], list(text.answer(found))
    row = found.row
    assert row is not None
    assert row.trial is not None
    assert row.trial.verdict in ("identical", "near-ties")
    assert set(row.speeds) == {1, 4}
    assert row.first_s is not None
    assert row.kv_tokens is not None
    assert row.kv_tokens < (found.rows[0].kv_tokens or 0) * 2
    file = tmp_path / "tuned.yaml"
    file.write_text(own.write(answer.recipe(found, "users")), "utf-8")
    tuned = recipes.load(file)
    assert tuned.serve.args["speculative-config"]["num_speculative_tokens"] == 3
    assert tuned.draft
    assert tuned.draft.tokens == 3
    assert K3 in tuned.remarks[-1].text
    assert launcher.plan(launcher.Wish(source=str(file))).target == "process"
    assert lock.launch_of(launcher.lock_of(str(file))).serve.args == tuned.serve.args


@pytest.mark.engine
def test_a_start_that_dies_is_diagnosed() -> None:
    space = {
        "uses": {"users": SPACE.use("users")},
        "options": {
            "cache": {
                "why": "too small for one request",
                "source": {"url": "https://example.org/", "date": "2026-11-29"},
                "values": [{"kv-cache-memory-bytes": "100K"}],
            }
        },
    }
    from sparkbook.tune import space as spaces

    _, small = spaces.candidates(Space.model_validate(space), RECIPE, "users")[0]
    outcome = Starter(measuring.start, counted).once(small, "short", Plans(RECIPE, LOAD).run(0))
    assert outcome.died is not None
    assert outcome.died.startswith("--kv-cache-memory-bytes 100K does not start here: ")
    assert "KV cache" in outcome.died
    assert outcome.start_s is None


def remembering(alive: list[Engine]) -> Start:
    """Return what starts a recipe's server as the tuner does, and adds it to a list."""

    @contextlib.contextmanager
    def start(recipe: Recipe) -> Iterator[Engine]:
        with launcher.guarded(stack.given(recipe)) as engine:
            alive.append(engine)
            yield engine

    return start


@pytest.mark.usefixtures("stand_in_engine")
def test_an_interruption_leaves_no_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))
    alive: list[Engine] = []

    def measure(_endpoint: Endpoint, _plan: BenchPlan, _recipe: Recipe) -> Report:
        assert [server.state for server in running.status(None)] == ["ready"]
        raise KeyboardInterrupt

    tuning = Fleet().tuning(tmp_path / "journal")
    tuning.starter = Starter(remembering(alive), measure)
    with pytest.raises(KeyboardInterrupt):
        tuning.run()
    assert [engine.running for engine in alive] == [False]
    assert running.status(None) == []
    assert list(Journal(tmp_path / "journal", {"test": 1})) == []


@pytest.mark.usefixtures("stand_in_engine")
def test_a_server_that_ends_under_load_is_diagnosed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))
    alive: list[Engine] = []

    def measure(endpoint: Endpoint, plan: BenchPlan, _recipe: Recipe) -> Report:
        alive[0].kill()
        return load.measure(endpoint, plan)

    candidate: Candidate = candidates()[1]
    outcome = Starter(remembering(alive), measure).once(
        candidate, "short", Plans(RECIPE, LOAD).run(0)
    )
    assert outcome.died is not None
    assert outcome.died.startswith(f"{candidate.key} ends under load: ")
    assert not outcome.counts
