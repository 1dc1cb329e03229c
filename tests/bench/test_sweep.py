"""A sweep over K with engines that are not there: what is started, in which order, and what is
compared.
"""

import contextlib
import json
from pathlib import Path

import pytest
from sparkbook import recipes
from sparkbook.bench import advise, commands, prompts, sweep
from sparkbook.bench.advise import _report
from sparkbook.bench.equality import Answer
from sparkbook.bench.load import BenchPlan
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import Endpoint
from typer.testing import CliRunner

SPEED = {0: 20, 1: 26, 3: 40}


@pytest.fixture
def world(monkeypatch):
    """Engines that answer at a known speed; each start and stop is written down."""
    log = []

    @contextlib.contextmanager
    def start(recipe):
        config = recipe.launch.serve.args.get("speculative-config")
        k = config["num_speculative_tokens"] if config else 0
        log.append(f"start {k}")
        yield Endpoint(f"http://127.0.0.1:{k + 1}", "m")
        log.append(f"stop {k}")

    def measure(endpoint, plan):
        k = int(endpoint.url.rsplit(":", 1)[1]) - 1
        return _report(SPEED[k], k, positions=[0.8, 0.6, 0.4][:k])

    def ask(endpoint, prompts, max_tokens):
        return [Answer(prompt.id, ("1",), ({"1": -0.1},)) for prompt in prompts]

    monkeypatch.setattr(sweep.equality, "ask", ask)
    return log, start, measure


def run(world, ks=(1, 3), **more):
    _log, start, measure = world
    return sweep.sweep(
        recipes.load("embedded/tiny-mtp-k3"),
        ks,
        BenchPlan(classes=["code"], concurrency=[1]),
        start,
        measure=measure,
        **more,
    )


def test_off_comes_first_and_last(world):
    found = run(world)
    assert world[0] == [
        "start 0",
        "stop 0",
        "start 1",
        "stop 1",
        "start 3",
        "stop 3",
        "start 0",
        "stop 0",
    ]
    assert found.advice().best == {("code", 1): 3}
    assert all(
        found.equality[k].passed and found.equality[k].control.count("identical") == 12
        for k in (1, 3)
    )


def test_an_engine_is_stopped_when_its_measurement_fails(world):
    log, start, _ = world

    def fails(endpoint, plan):
        raise SparkbookError("gone")

    with contextlib.suppress(SparkbookError):
        run((log, contextlib.contextmanager(_closing(start, log)), fails))
    assert log == ["start 0", "stopped"]


def _closing(start, log):
    def closing(recipe):
        with start(recipe) as endpoint:
            try:
                yield endpoint
            finally:
                log.append("stopped")

    return closing


@pytest.mark.parametrize(
    ("recipe", "ks"),
    [("embedded/tiny-mtp-k3", []), ("embedded/tiny-mtp-k3", [0]), ("embedded/tiny-mtp", [1])],
)
def test_what_cannot_be_swept_is_said(world, recipe, ks):
    with pytest.raises(SparkbookError):
        sweep.sweep(
            recipes.load(recipe),
            ks,
            BenchPlan(classes=["code"], concurrency=[1]),
            world[1],
            measure=world[2],
        )


def test_the_other_arguments_stay():
    recipe = recipes.load("embedded/tiny-mtp-k3")
    assert sweep.with_k(recipe, 3).launch == recipe.launch
    assert "speculative-config" not in sweep.with_k(recipe, 0).launch.serve.args
    assert recipe.launch.serve.args["speculative-config"]["num_speculative_tokens"] == 3, (
        "the original is as it was"
    )


def test_running_servers_are_measured_class_by_class(world):
    """Off, each K and off again for one class, then for the next; the rows of an arm come together
    in one report.
    """
    _log, _, measure = world
    seen = []

    def counting(endpoint, plan):
        seen.append((plan.classes, int(endpoint.url.rsplit(":", 1)[1]) - 1))
        report = measure(endpoint, plan)
        report.cells[0].prompt_class = plan.classes[0]
        return report

    servers = {k: Endpoint(f"http://127.0.0.1:{k + 1}", "m") for k in (0, 1, 3)}
    found = sweep.by_turns(
        servers, BenchPlan(classes=["code", "prose"], concurrency=[1]), measure=counting
    )
    assert seen == [((name,), k) for name in ("code", "prose") for k in (0, 1, 3, 0)]
    assert found.advice().best == {("code", 1): 3, ("prose", 1): 3}
    assert all(
        [c.prompt_class for c in r.cells] == ["code", "prose"]
        for r in (*found.off, found.arms[1][0], found.arms[3][0])
    )
    assert found.equality[3].passed and found.equality[3].control.count("identical") == 12
    for k in (0, 1):
        with pytest.raises(SparkbookError, match="without speculation"):
            sweep.by_turns(
                {k: servers[k]}, BenchPlan(classes=["code"], concurrency=[1]), measure=counting
            )


@pytest.fixture
def files(tmp_path):
    off, on = _report(20), _report(40, 3, positions=[0.8, 0.6, 0.4])
    from sparkbook.bench.results import Engine

    off.cells[0].engine = Engine(generation_tokens=100.0)
    off.write(tmp_path / "off.json")
    on.write(tmp_path / "on.json")
    return [str(tmp_path / "on.json"), str(tmp_path / "off.json")]


def test_the_verb_tells_the_arms_apart_by_what_the_engine_counted(files):
    answer = CliRunner().invoke(app, ["advise", *files, "--json"])
    told = json.loads(answer.output)
    assert answer.exit_code == 0 and told["summary"]["best"] == [
        {"class": "code", "concurrency": 1, "k": 3}
    ]
    assert "K = 3 makes it 2.00 times as fast" in CliRunner().invoke(app, ["advise", *files]).output


def test_a_rejected_measurement_is_an_exit_of_1(files, tmp_path):
    report = advise.Report.read(files[0])
    report.cells[0].verdict = "invalid"
    report.write(files[0])
    assert CliRunner().invoke(app, ["advise", *files]).exit_code == 1


def test_an_arm_is_missing(files):
    assert isinstance(CliRunner().invoke(app, ["advise", files[0]]).exception, SparkbookError)
    with pytest.raises(SparkbookError, match="nothing to advise on"):
        commands.advice_of_files([files[1]])


@pytest.mark.parametrize("name", ["mtp", "draft", "ngram", "smollm2-ngram"])
def test_a_recorded_sweep_gives_the_same_advice_after_another_writing(name, tmp_path):
    found = sweep.recorded(name)
    found.write(tmp_path / "again.jsonl")
    again = sweep.Sweep.read(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_text() == (
        Path(sweep.__file__).with_name("recorded") / f"{name}.jsonl"
    ).read_text()
    assert again.advice().cases == found.advice().cases and again.equality == found.equality
    assert all(equal.control and equal.passed for equal in again.equality.values())


def test_acceptance_falls_from_what_is_known_to_noise():
    """A law of the recorded series that no load of the machine can bend."""
    advice = sweep.recorded("mtp").advice()
    for k in (1, 2, 3, 4, 5):
        chat, code, random = (
            sum(advice.case(k, name, 1).per_position) for name in ("chat", "code", "random")
        )
        assert chat > code > random > 0
    steps = sweep.recorded("mtp").steps("code")
    assert sorted(steps) == [0, 1, 2, 3, 4, 5] and min(steps.values()) > 0


@pytest.mark.parametrize("text", ["", "{}", '{"equality": {}}\n{"k": 0}'])
def test_a_file_that_is_no_sweep_is_refused(text, tmp_path):
    (tmp_path / "x").write_text(text)
    with pytest.raises(SparkbookError, match="not a recorded sweep"):
        sweep.Sweep.read(tmp_path / "x")


def test_prompts_of_ones_own():
    texts = prompts.familiar()
    plan = BenchPlan(classes=["chat", "code"], texts=texts, concurrency=[1])
    assert [p.text for p in plan.prompts("chat", 2, salt=None)] == texts["chat"][:2]
    again = plan.prompts("chat", len(texts["chat"]) + 1, salt="x")
    assert (
        again[-1].id == again[0].id == "chat-000"
        and again[-1].text != again[0].text
        and again[0].text.endswith(texts["chat"][0])
    )
    with pytest.raises(SparkbookError, match="no text"):
        BenchPlan(classes=["mine"], texts={"mine": []}, concurrency=[1])
