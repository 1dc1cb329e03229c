"""When another image is as good, and what its lock says. `tests/serve/docker/test_upgrade.py` has
the real thing.
"""

import contextlib
import json
import signal
from unittest.mock import MagicMock

import pytest
from sparkbook import lock, recipes, upgrade
from sparkbook.bench.equality import Answer
from sparkbook.bench.results import Cell, Figures, Report, Request
from sparkbook.errors import SparkbookError
from sparkbook.serve import docker_engine, interrupts, launcher, tool_calls
from sparkbook.serve import stack as stacks
from sparkbook.serve.containers import Found
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.engine import EngineError
from sparkbook.serve.stack import Choices
from sparkbook.serve.tool_rules import TOOL

NEAR, FAR = -0.2, -3.0


def answers(real=0, near=0):
    """Replies of which some differ from those without arguments."""
    letters = ["z"] * real + ["n"] * near + ["a"] * (20 - real - near)
    top = {"a": -0.1, "n": NEAR, "z": FAR}
    return [Answer(f"p{i}", (letter,), (top,), letter) for i, letter in enumerate(letters)]


def tools(*codes):
    """A report of the tool calls with these rules' examples."""
    replies = [TOOL[code].example("fails") for code in codes]
    return tool_calls.Report("u", "m", [tool_calls.grade(replies, "one call")])


def speed(factor=1.0, ttft=1.0, name="code"):
    """A measurement of decode speeds around 10 tok/s, times a factor."""
    requests = []
    for i in range(16):
        end = ttft + 10 / (10 * (1 + i / 16) * factor)
        figures = {"ttft_s": ttft, "latency_s": end, "stamps_s": [ttft, end], "output_tokens": 11}
        requests.append(Request(prompt=f"{name}-{i}", **figures))
    cell = Cell(prompt_class=name, concurrency=1, figures=Figures(completed=16), requests=requests)
    return Report(date="2026-11-28T00:00:00Z", tool="sparkbook", model="m", cells=[cell])


OLD = upgrade.Look(answers(), answers(), tools("TOOL102"), speed())


@pytest.mark.parametrize(
    ("new", "options", "reason"),
    [
        (OLD, {}, None),
        (upgrade.Look(answers(near=9)), {}, None),
        (upgrade.Look(answers(real=1)), {}, "answers differ"),
        (upgrade.Look(answers(real=1)), {"allow_changed": True}, None),
        (upgrade.Look(answers(), tools=tools("TOOL102", "TOOL101")), {}, "TOOL101"),
        (upgrade.Look(answers(), tools=tools()), {}, None),
        (upgrade.Look(answers(), speed=speed(0.96)), {}, None),
        (upgrade.Look(answers(), speed=speed(0.9)), {}, "slower for sure: decode"),
        (upgrade.Look(answers(), speed=speed(0.9)), {"slower": 15}, None),
        (upgrade.Look(answers(), speed=speed(1.5)), {}, None),
        (upgrade.Look(answers(), speed=speed(ttft=1.5)), {}, None),
    ],
)
def test_what_is_as_good(new, options, reason):
    wanted = upgrade.Wanted(source="r", image="b:2", **options)
    outcome = upgrade.Outcome("a:1", "b:2", "swap")
    upgrade.judge(OLD, new, wanted, outcome)
    assert outcome.taken == (reason is None), outcome.reasons
    assert reason is None or reason in outcome.reasons[0]
    assert json.loads(json.dumps(outcome.to_dict()))["taken"] == outcome.taken
    assert outcome.lines[-1].startswith("taken: b:2" if outcome.taken else "not taken, a:1")


def test_a_long_prompt_that_waits_longer_and_a_rejected_measurement():
    wanted = upgrade.Wanted(source="r", image="b:2")
    outcome = upgrade.Outcome("a:1", "b:2", "swap")
    old = upgrade.Look(speed=speed(name="long-4k"))
    upgrade.judge(old, upgrade.Look(speed=speed(ttft=1.3, name="long-4k")), wanted, outcome)
    assert outcome.reasons[0].startswith("slower for sure: TTFT")
    outcome = upgrade.Outcome("a:1", "b:2", "swap")
    rejected = speed(0.5)
    rejected.cells[0].verdict = "invalid"
    upgrade.judge(old, upgrade.Look(speed=rejected), wanted, outcome)
    assert outcome.taken and outcome.notes == [
        "speed is not judged: the gate rejected a measurement (bench)"
    ]


def test_a_dry_run_names_every_step():
    lines = upgrade.dry(upgrade.Wanted(source="gpt-oss-20b", image="b:2", lock="x.json"))
    assert lines[0] == "old: nvcr.io/nvidia/vllm:26.04-py3, new: b:2"
    assert any("write x.json" in line for line in lines)
    assert any(line.startswith("POST /containers/create") for line in lines)


def test_a_dry_run_says_what_the_image_refuses_and_no_step_that_is_not_taken():
    image = "vllm/vllm-openai:v0.28.0-x86_64"
    _, refused, end = upgrade.dry(upgrade.Wanted(source="gpt-oss-20b", image=image))
    assert refused.startswith("refused: IMG103") and end.startswith("nothing is pulled or started")
    assert "Take the tag with -aarch64, or one for both. (lint)" in refused


@pytest.mark.parametrize(
    ("source", "image", "entrypoint"),
    [
        ("gpt-oss-20b", "vllm/vllm-openai:latest", "vllm-serve"),
        ("gpt-oss-20b-v0.28.0", "nvcr.io/nvidia/vllm:26.04-py3", "command"),
        ("gpt-oss-20b-v0.28.0", "my-own:1", "vllm-serve"),
        ("gpt-oss-20b", "my-own:1", "command"),
    ],
)
def test_the_new_image_is_started_as_it_has_to_be(source, image, entrypoint):
    wanted = upgrade.Wanted(source=source, image=image)
    (old,) = upgrade._stacks(wanted)
    new = upgrade._changed(old, wanted)
    assert new.launch.entrypoint == entrypoint
    assert not upgrade._refusals(old, new)


def test_a_server_with_another_share_of_the_memory_keeps_it():
    wanted = upgrade.Wanted(source="gpt-oss-20b", image="b:2", fraction=0.31)
    (old,) = upgrade._stacks(wanted)
    for one in (old, upgrade._changed(old, wanted)):
        assert one.launch.serve.args["gpu-memory-utilization"] == 0.31


@pytest.mark.parametrize("place", ["no/where.json", "."])
def test_a_lock_that_can_not_be_written_is_refused_before_anything_is_measured(tmp_path, place):
    wanted = upgrade.Wanted(source="gpt-oss-20b", image="b:2", lock=str(tmp_path / place))
    with pytest.raises(SparkbookError, match="can't be written"):
        upgrade.run(wanted, say=print)


def test_a_lock_of_another_model_is_refused(tmp_path):
    recipe = recipes.load("gpt-oss-120b")
    file = tmp_path / "lock.json"
    file.write_text(lock.dumps(lock.make(recipe.launch, recipe)))
    with pytest.raises(SparkbookError, match="is about openai/gpt-oss-120b"):
        upgrade.dry(upgrade.Wanted(source="gpt-oss-20b", image="b:2", lock=str(file)))


def test_the_new_server_has_the_settings_of_the_one_that_runs_and_not_of_an_old_lock(
    tmp_path, monkeypatch
):
    recipe = recipes.load("gpt-oss-20b")
    args = {**recipe.launch.serve.args, "max-model-len": 4096}
    serve = recipe.launch.serve.model_copy(update={"args": args})
    file = tmp_path / "lock.json"
    older = recipe.launch.model_copy(update={"serve": serve})
    file.write_text(lock.dumps(lock.make(older, recipe)))
    wanted = upgrade.Wanted(source="gpt-oss-20b", image="b:2", lock=str(file))
    host = MagicMock(home=None, memory=None)
    stack = stacks.given("gpt-oss-20b", None)
    runs = docker_engine.prepare(stack, None, Choices(port=8000), "hidden").stack
    found = Found("id", stack.name, "gpt-oss-20b", runs, "", "http://x:8000", "running", "a:1")
    monkeypatch.setattr(upgrade.containers, "find", lambda _host: [found])
    _, matched, _ = upgrade._running(host, wanted, upgrade._stacks(wanted))
    assert matched.launch.serve.args == recipe.launch.serve.args


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_clean_up_that_fails_is_still_of_an_interruption(monkeypatch, interrupted):
    """And no reason against the image, as a fault of the new server is."""

    def replaced(*_):
        try:
            if interrupted:
                raise interrupts.Interrupted(signal.SIGINT)
        finally:
            raise EngineError("the new server can't be stopped")

    stack = stacks.given("gpt-oss-20b", None)
    found = Found("id", stack.name, "gpt-oss-20b", "", "", "http://x:8000", "running", "a:1")
    for name, value in {"_running": (found, stack, Choices()), "look": OLD}.items():
        monkeypatch.setattr(upgrade, name, lambda *_, value=value, **__: value)
    monkeypatch.setattr(upgrade, "_replace", replaced)
    host = MagicMock(home=None, memory=None)
    monkeypatch.setattr(upgrade.docker_host, "reach", lambda: host)
    monkeypatch.setattr(
        upgrade.containers, "endpoint_of", lambda *_: Endpoint("http://x", "m", "k")
    )
    wanted = upgrade.Wanted(source="gpt-oss-20b", image="nvcr.io/nvidia/vllm:26.05-py3", way="swap")
    with pytest.raises(EngineError) if interrupted else contextlib.nullcontext():
        assert upgrade.run(wanted, say=print).reasons == ["the new server can't be stopped"]


def test_the_lock_of_an_upgraded_server_verifies(tmp_path):
    """Its image is another than the recipe's, and that is what was locked."""
    recipe = recipes.load("gpt-oss-20b")
    changed = recipe.launch.model_copy(update={"image": "vllm/vllm-openai:v0.33.0"})
    file = tmp_path / "lock.json"
    file.write_text(lock.dumps(lock.make(changed, recipe)))
    assert launcher.verify(str(file))[0] == []
