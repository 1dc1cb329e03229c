"""`sparkbook start`: its steps in their order, left out and taken up again, and what fails."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

sys.path.insert(0, str(Path(__file__).parent / "cli"))

from command_line import COMMAND, ENV, run
from sparkbook import host, recipes, start, weights
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.runner.project import here
from sparkbook.serve.running import Server
from sparkbook.start import Started, StepFailed, Wanted
from sparkbook.weights import HUB, WeightsError

TINY = "embedded/tiny-dense"
SHORT = "qwen3.6-35b-a3b-fp8"


@pytest.fixture
def steps(monkeypatch):
    """What acts, replaced: a healthy machine, a download, a server that is ready."""
    done = []
    monkeypatch.setattr(host, "look", lambda recipe: host.recorded("healthy"))
    nothing = weights.Fetched((), (), Findings(), 0.1)
    monkeypatch.setattr(
        weights, "fetch", lambda recipe, progress: done.append(f"fetch {recipe.id}") or nothing
    )

    def serve(wish, say, show):
        done.append(f"serve {wish.source} {wish.fraction}")
        show({"url": "http://127.0.0.1:8000/v1"})

    def ready(wanted, started, facts, _say):
        started.server = facts
        return started

    monkeypatch.setattr(start, "_ready", lambda recipe, port: None)
    monkeypatch.setattr(start.launcher, "serve", serve)
    monkeypatch.setattr(start, "_asked", ready)
    return done


def taken(**wanted) -> Started:
    shown = []
    start.run(Wanted(**wanted), say=lambda _line: None, show=shown.append)
    return shown[0]


def test_the_steps_come_in_their_order(steps):
    started = taken(recipe="gpt-oss-20b")
    assert steps == ["fetch gpt-oss-20b", "serve gpt-oss-20b 0.83"]
    assert (
        list(started.steps) == ["check", "fetch"]
        and "memory: fits; served" in started.steps["check"]
    )


def test_a_step_is_left_out(steps):
    started = taken(recipe="gpt-oss-20b", skip=("check", "fetch"))
    assert steps == ["serve gpt-oss-20b 0.83"]
    assert started.steps == {"check": "left out", "fetch": "left out"}


def test_less_memory_is_served_with_a_smaller_share(steps):
    taken(recipe="gpt-oss-20b", skip=("check", "fetch"), memory_gib=64)
    (line,) = steps
    assert 0.2 < float(line.rpartition(" ")[2]) < 0.6


def test_a_model_that_does_not_fit_fails_before_anything_is_done(steps):
    with pytest.raises(StepFailed, match="the memory does not suffice") as failed:
        taken(recipe="gpt-oss-120b", memory_gib=20, skip=("check",))
    assert failed.value.step == "memory" and failed.value.findings.worst == "error" and steps == []
    assert "--skip" not in str(failed.value) and "without a recipe" in str(failed.value)


@pytest.mark.parametrize(("size", "status"), [(35, 1), (58, 0)])
def test_start_and_plan_have_one_machine(size, status):
    name = "gpt-oss-20b-64gb"
    planned = json.loads(
        run("plan", name, "--available-gib", str(size), "--json", check=status).stdout
    )["summary"]
    wanted = Wanted(recipe=name, memory_gib=size)
    wish, _ = start.wish_of(wanted, start.checked(wanted))
    assert planned["fits_with"].get("gpu-memory-utilization") == wish.fraction


def test_the_verdict_is_of_the_line_that_is_served():
    wanted = Wanted(recipe="gpt-oss-120b", memory_gib=100)
    wish, verdict = start.wish_of(wanted, start.checked(wanted))
    assert verdict == f"fits; served with --gpu-memory-utilization {wish.fraction:g}"


def test_a_blocked_host_stops_it(steps, monkeypatch):
    machine = host.recorded("healthy")
    gpu = machine.gpu.model_copy(update={"driver": "570.86.10"})
    machine = machine.model_copy(update={"gpu": gpu})
    monkeypatch.setattr(host, "look", lambda recipe: machine)
    with pytest.raises(StepFailed, match="the step check failed") as failed:
        taken(recipe="gpt-oss-20b")
    assert failed.value.findings[0].rule == "HOST002" and steps == []


def test_a_download_that_fails_names_its_rule(steps, monkeypatch):
    finding = HUB["HUB009"].finding("The disk filled up during the download.")

    def full(*_, **__):
        raise WeightsError(finding)

    monkeypatch.setattr(weights, "fetch", full)
    with pytest.raises(StepFailed, match="the same line again") as failed:
        taken(recipe="gpt-oss-20b")
    assert failed.value.findings == (finding,) and steps == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("gpt-oss-12b",), "there is no recipe 'gpt-oss-12b'"),
        (("gpt-oss-20b", "--skip", "boil"), "the steps are check, fetch, serve, ask"),
        (("gpt-oss-20b", "--client", "emacs"), "Unknown client 'emacs'"),
        (("gpt-oss-20b", "--use", "agent"), "one is named"),
        (("--use", "fly"), "choose chat, agent, any"),
        (("gpt-oss-20b", "--memory-gib", "nan"), "nan is no size"),
        (("gpt-oss-20b-64gb", "--memory-gib", "100"), "100 GiB available of 60.8"),
        (("--use", "chat", "--memory-gib", "3"), "no recipe for chat fits 3 GiB"),
        (("--use", "chat", "--memory-gib", "900"), "900 GiB available of 121.6"),
        (
            ("jina-embeddings-v5-text-small", "--client", "opencode"),
            "does not chat: it is for embedding",
        ),
        (("--use", "any"), "name a recipe: sparkbook start RECIPE"),
        (("glm-5.3-flash-nvfp4-2x", "--dry-run"), "2 Sparks"),
    ],
)
def test_wrong_words_are_one_line_and_exit_2(words, message):
    assert message in run("start", *words, check=2).stderr


def test_the_list_holds_what_fits_and_suits():
    listed = start.candidates("agent")
    assert listed and all(recipe.capabilities.tools for recipe, _ in listed)
    assert all(recipe.topology.nodes == 1 and not recipe.successor for recipe, _ in listed)
    small = {recipe.id for recipe, _ in start.candidates("agent", 40)}
    assert small < {recipe.id for recipe, _ in listed}
    assert len(start.candidates("any")) > len(listed)
    assert {plan.verdict for size in (None, 64) for _, plan in start.candidates("any", size)} <= {
        "fits",
        "may fit",
    }


def test_the_list_says_where_a_speed_is_not_known():
    said = run("start", "--memory-gib", "64", check=2)
    assert said.stdout.startswith("Recipes that fit or may fit") and " 0 tok/s" not in said.stdout
    listed = json.loads(run("start", "--json", check=2).stdout)["recipes"]
    assert {"recipe", "tok_s", "verdict"} == set(listed[0])
    assert any(one["tok_s"] is None for one in listed)
    assert "speed unknown" in run("start", check=2).stdout


def test_a_server_that_does_not_chat_is_not_asked_to():
    name = "jina-embeddings-v5-text-small"
    shown = json.loads(run("start", name, "--dry-run", "--json").stdout)["steps"]
    assert shown["ask"] == ["nothing more: serve itself tries embedding"]


def test_what_a_client_can_not_do_is_said_before_anything_is_fetched(steps):
    said = []
    wanted = Wanted(recipe="gpt-oss-20b", client="claude-code")
    start.run(wanted, say=lambda line: said.append((line, len(steps))), show=lambda _started: None)
    warned = [(line, done) for line, done in said if line.startswith("warning: ")]
    assert len(warned) == 2 and not any(done for _, done in warned)
    assert "slash" in warned[0][0] and "tool parser" in warned[1][0]
    shown = dict(start.dry(wanted))["client"]
    assert [line for line, _ in warned] == shown[:2]


def test_the_settings_have_the_recipes_context():
    lines = dict(start.dry(Wanted(recipe=SHORT, client="opencode")))["client"]
    context = recipes.load(SHORT).serve.args["max-model-len"]
    assert context != 131072 and f'"context": {context},' in "\n".join(lines)


@pytest.mark.parametrize("memory", [0.0, 40.0])
def test_a_terminal_is_asked_what_was_left_out(monkeypatch, memory):
    answers = iter(["chat", memory, 1, "llm"])
    asked = []
    monkeypatch.setattr("typer.prompt", lambda text, **_: asked.append(text) or next(answers))
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)}))
    shown = run("start", "--dry-run").stdout
    assert [text.split(" in ")[0] for text in asked] == [
        "What for",
        "Memory for the server",
        "Which one",
        "Settings for which program",
    ]
    assert "0 for an empty Spark" in asked[1]  # what None is planned for, whatever runs here
    newest = start.candidates("chat", memory or None)[0][0].id
    assert f"1  {newest}" in shown and "== client\nllm (command line)" in shown


def test_an_interrupt_at_a_question_is_one(monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise typer.Abort

    monkeypatch.setattr("typer.prompt", interrupted)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)}))
    run("start", check=130)


@pytest.mark.parametrize("words", [("--client", "nosuch"), ("--skip", "nosuch")])
def test_a_wrong_name_is_refused_before_the_questions(monkeypatch, words):
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("a question")

    monkeypatch.setattr("typer.prompt", asked)
    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)}))
    assert "nosuch" in run("start", *words, check=2).stderr


def test_a_dry_run_shows_all_of_it_and_does_nothing(steps):
    shown = json.loads(
        run("start", "gpt-oss-20b", "--dry-run", "--client", "opencode", "--json").stdout
    )["steps"]
    assert list(shown) == ["check", "fetch", "serve", "ask", "client"] and steps == []
    assert (
        "POST /containers/create" in shown["serve"][0] and "openai/gpt-oss-20b" in shown["fetch"][0]
    )
    assert '"model": "spark/openai/gpt-oss-20b"' in "\n".join(shown["client"])
    left = run("start", "gpt-oss-20b", "--dry-run", "--skip", "serve").stdout
    assert "left out: --skip" in left and "POST /containers" not in left


def test_a_server_that_runs_is_only_asked(steps, monkeypatch):
    facts = {"url": "http://127.0.0.1:8001/v1"}
    monkeypatch.setattr(start, "_ready", lambda recipe, port: recipe.id)
    monkeypatch.setattr(start, "_facts", lambda name: facts)
    started = taken(recipe="gpt-oss-20b")
    assert steps == [] and started.server == facts
    assert started.steps == dict.fromkeys(("check", "fetch", "serve"), "left out")


def test_of_two_servers_of_a_recipe_the_port_says_which(monkeypatch):
    recipe = recipes.load("embedded/tiny-dense")
    servers = [
        Server(
            name=f"tiny-dense-{port}",
            target="process",
            recipe=recipe.id,
            served="tiny",
            url=f"http://127.0.0.1:{port}",
            state=state,
        )
        for port, state in ((18100, "starting"), (18101, "ready"), (18102, "ready"))
    ]
    monkeypatch.setattr(start.running, "status", lambda docker: servers)
    assert start._ready(recipe, None) == "tiny-dense-18101"
    assert start._ready(recipe, 18102) == "tiny-dense-18102"
    assert start._ready(recipe, 18100) is None


def test_skipping_serve_needs_a_server_that_runs(tmp_path, monkeypatch):
    monkeypatch.setitem(ENV, "SPARKBOOK_CACHE", str(tmp_path / "cache"))
    line = ("start", TINY, "--skip", "check", "--skip", "fetch", "--skip", "serve")
    assert f"no server called '{TINY}'" in run(*line, check=2).stderr


def test_a_key_file_that_is_gone_is_said(tmp_path):
    facts = {"url": "http://127.0.0.1:9/v1", "model": "x", "key": str(tmp_path / "key")}
    with pytest.raises(SparkbookError, match="key"):
        start._asked(Wanted(recipe=TINY), Started(), facts, lambda _line: None)


def test_the_address_of_the_repository_is_one_setting():
    """README and the chapter state what `_config.yml` does."""
    line = f"uv tool install git+{here().repository}"
    assert line in (here().root / "README.md").read_text("utf-8")
    assert line in (here().root / "notebooks" / "00_first_hour.ipynb").read_text("utf-8")


@pytest.mark.engine
def test_from_nothing_to_an_answer_a_tool_call_and_settings(tmp_path):
    """The real engine, from the installed command; then the same line again finds it running."""
    env = ENV | {"SPARKBOOK_CACHE": str(tmp_path / "cache")}
    line = [COMMAND, "start", TINY, "--client", "openai", "--json"]
    process = subprocess.Popen(
        line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        text = ""
        while not text.endswith("\n}\n"):
            text += process.stdout.readline() or pytest.fail(process.stderr.read())
        first = json.loads(text)
        again = subprocess.run(
            line,
            env=env,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert list(first["steps"]) == ["check", "fetch", "serve", "ask"] and first["answer"]
    assert first["call"] == 'get_weather({"city": "Paris"})'
    assert first["server"]["url"] in first["client"]["blocks"][0]["text"]
    key = Path(first["server"]["key"])
    assert str(key) in first["client"]["blocks"][0]["text"] and not key.is_file(), (
        "its server ended"
    )
    second = json.loads(again.stdout)
    assert second["call"] == first["call"] and second["steps"]["serve"] == "left out"
