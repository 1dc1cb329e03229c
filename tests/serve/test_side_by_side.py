"""Sets of servers on one Spark: every one is planned beside those before it."""

import json

import pytest
from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.recipes import sets
from sparkbook.serve import launcher, side_by_side
from sparkbook.serve.launcher import Wish
from sparkbook.serve.stack import given, with_fraction

EVERY = [sets.load(name) for name in sets.ids()]


@pytest.mark.parametrize("chosen", EVERY, ids=lambda chosen: chosen.id)
def test_the_planner_lets_every_server_start_beside_those_before_it(chosen):
    assert len(side_by_side.check(chosen)) == len(chosen.servers)
    loaded = [recipes.load(server.recipe) for server in chosen.servers]
    ports = [s.port or r.launch.port for s, r in zip(chosen.servers, loaded, strict=True)]
    assert len(set(ports)) == len(ports)
    assert len({r.launch.container.name for r in loaded}) == len(loaded)
    assert not [r.id for r in loaded if r.successor or r.topology.nodes > 1]
    shares = [server.fraction for server in chosen.servers]
    assert shares == sorted(shares, reverse=True), "the largest starts first"


def test_a_dry_run_shows_every_start_in_order():
    dry = side_by_side.plan(Wish(source="two-chats"), {"gpt-oss-20b-v0.28.0": 0.3})
    bodies = [body for call, body in dry.calls if "/containers/create" in call]
    assert [body["Labels"]["sparkbook.recipe"] for body in bodies] == [
        server.recipe for server in sets.load("two-chats").servers
    ]
    shares = [body["Cmd"][body["Cmd"].index("--gpu-memory-utilization") + 1] for body in bodies]
    assert shares == ["0.5", "0.3"]
    assert "8010" in json.dumps(bodies[1]["HostConfig"]["PortBindings"])


def test_what_does_not_fit_is_not_started():
    large, small = sets.load("two-chats").servers
    shares = {large.recipe: 0.85, small.recipe: 0.14}
    with pytest.raises(SparkbookError, match="does not fit next to qwen"):
        side_by_side.check(side_by_side.with_fractions(sets.load("two-chats"), shares))


def test_fractions_that_can_not_be():
    with pytest.raises(SparkbookError, match="is not in the set two-chats"):
        side_by_side.with_fractions(sets.load("two-chats"), {"nosuch": 0.2})
    with pytest.raises(SparkbookError, match="there is one memory"):
        side_by_side.with_fractions(sets.load("two-chats"), {"gpt-oss-20b-v0.28.0": 0.6})
    with pytest.raises(SparkbookError, match="about one server"):
        side_by_side.wishes(Wish(source="two-chats", port=1), {})


def test_the_first_server_stays_where_the_second_fails(monkeypatch):
    said = []

    def start(wish, *, say, show):
        if wish.source.startswith("gpt"):
            raise SparkbookError("no")
        show({"name": "first"})

    monkeypatch.setattr(launcher, "serve", start)
    with pytest.raises(SparkbookError, match="no"):
        side_by_side.serve(Wish(source="two-chats"), {}, say=said.append, show=lambda _: None)
    assert said[-1] == "still running: first. To stop them: sparkbook stop first"


def test_another_share_of_one_server():
    asked = with_fraction(given("gpt-oss-20b-v0.28.0"), 0.3)
    assert asked.launch.serve.args["gpu-memory-utilization"] == 0.3
    script = with_fraction(given("qwen3.5-27b-dflash"), 0.7)
    assert script.launch.env["GPU_MEMORY_UTILIZATION"] == "0.7"
    with pytest.raises(SparkbookError, match="own script"):
        with_fraction(given("docker run avarok/vllm:1"), 0.7)


def test_a_recipe_for_several_sparks_is_not_started_on_one():
    several = next(r.id for r in recipes.all() if r.topology.nodes > 1)
    with pytest.raises(SparkbookError, match="sparkbook cluster serve FILE"):
        launcher.wanted(Wish(source=several))
