"""A figure is possible before it is believed: servers that lie about what they streamed, through
the real client; and recordings of honest ones, which keep their verdicts.
"""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from sparkbook.bench import BenchPlan, exchange, gate, load, roof, telemetry
from sparkbook.bench.examples import engine, everyone, request, seen, speculating, trace
from sparkbook.bench.results import Report, figures
from sparkbook.bench.roof import Roof
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.host import spark
from sparkbook.plan import request as planned
from sparkbook.serve.endpoint import Endpoint
from typer.testing import CliRunner

HERE = Path(__file__).parent
RECORDED = Path(gate.__file__).with_name("recorded")
CAUGHT = {
    "a-million-times": {"BENCH401", "BENCH402"},
    "three-times": {"BENCH401"},
    "a-tenth": {"BENCH403"},
    "nothing": {"BENCH403"},
    "all-of-max-tokens": {"BENCH402"},
    "long-prompts": {"BENCH408"},
    "cut-prompts": {"BENCH408"},
    "cached": {"BENCH418"},
    "canned": {"BENCH420"},
    "no-reason": {"BENCH414"},
    "cut-short": {"BENCH415"},
    "busy": {"BENCH206"},
    "other-prompts": {"BENCH406"},
    "accepting": {"BENCH416"},
}


def codes(found):
    return {finding.rule for finding in found}


@pytest.fixture(scope="module")
def liar():
    process = subprocess.Popen(
        [sys.executable, "-I", HERE / "lying.py"], stdout=subprocess.PIPE, text=True
    )
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture
def steady(monkeypatch):
    """A machine of which nothing is to be said: what the host does besides is not the matter."""
    sound = trace()
    moment = dataclasses.replace(sound.samples[4], running=1.0, waiting=0.0)

    class Steady:
        interval_s = 0.0

        def __init__(self, endpoint):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def trace(self, begin_s, end_s):
            samples = tuple(
                dataclasses.replace(moment, t_s=begin_s + (end_s - begin_s) * n / 8)
                for n in range(9)
            )
            return telemetry.Trace(samples, begin_s, end_s)

    monkeypatch.setattr(telemetry, "Live", Steady)


def measured(url, *options):
    line = ["bench", url, "--classes", "code", "--concurrency", "1", "--requests", "5"]
    return CliRunner().invoke(app, [*line, "--max-tokens", "48", "--json", *options])


@pytest.mark.slow
@pytest.mark.parametrize("how", CAUGHT)
def test_a_server_that_lies_is_not_believed(liar, steady, how):
    told = measured(f"{liar}/{how}", "--require-valid")
    assert told.exit_code == 1, (told.output, told.exception)
    answer = json.loads(told.output)
    assert answer["summary"]["verdict"] == "invalid"
    errors = {f["rule"] for f in answer["findings"] if f["severity"] == "error"}
    assert errors >= CAUGHT[how]


def test_an_honest_server_is_believed(liar, steady):
    """A busy host may make the steps of one request slower; nothing else is to be said."""
    told = measured(f"{liar}/honest")
    assert told.exit_code == 0, (told.output, told.exception)
    answer = json.loads(told.output)
    found = {f["rule"] for f in answer["findings"]} - {"BENCH302", "BENCH304", "BENCH310"}
    assert not found and answer["report"]["cells"][0]["figures"]["output_tokens"] == 240


def reports():
    for file in sorted(RECORDED.glob("*.jsonl")):
        for line in file.read_text("utf-8").split("\n"):
            value = json.loads(line or "{}")
            if isinstance(value, dict) and "report" in value:
                yield file.name, Report.model_validate(value["report"])
    for file in sorted((HERE.parent / "data" / "bench").glob("*.json")):
        yield file.name, exchange.read(file)


def test_real_recordings_hold_nothing_impossible():
    """Speculative and dense, one request and many, vLLM's, GuideLLM's, aiperf's and our own."""
    judged = 0
    for name, report in reports():
        for cell in report.cells:
            found = {code for code in codes(gate.judge(gate.Seen(cell))) if code > "BENCH400"}
            assert not found, (name, cell.prompt_class, cell.load, found)
            judged += 1
    assert judged > 100


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_what_is_no_number_does_not_pass(wrong):
    for change in ({"duration_s": wrong}, {"out_tok_s": wrong}):
        sound = seen()
        sound.cell.figures = sound.cell.figures.model_copy(update=change)
        assert "BENCH419" in codes(gate.judge(sound))
    assert "BENCH410" in codes(gate.judge(everyone(stamps_s=[0.1, float("nan"), 0.3])))


def test_an_engine_that_made_tokens_for_replies_without_any():
    empty = everyone(output_tokens=0, id_tokens=None, chunk_tokens=None, finish="stop")
    assert "BENCH206" in codes(gate.judge(empty))


def test_tool_calls_and_thoughts_are_text():
    """Arguments of calls are no answer, and the tokens that made them are real."""
    called = everyone(
        text="", text_bytes=300, stamps_s=[0.1, 0.4, 1.36], chunk_tokens=None, id_tokens=None
    )
    assert "BENCH402" not in codes(gate.judge(called))


def test_steps_that_the_server_sent_together_explain_their_tokens():
    """63 steps a reply in 21 events: merged on their way. 21 steps: tokens that nobody made."""
    for steps, unexplained in ((16 * 63.0, False), (16 * 21.0, True)):
        found = codes(gate.judge(seen(speculating(3), cell=engine(steps=steps))))
        assert ("BENCH423" in found) == unexplained


# ---- the roof


def test_batching_and_drafts_raise_the_roof():
    """By hand: 273 GB/s over 27.3 GB are 10 steps a second."""
    alone = Roof(step_bytes=27.3e9, token_flops=50e9)
    assert alone.decode_tok_s() == pytest.approx(10)
    assert alone.decode_tok_s(8) == pytest.approx(80)
    assert dataclasses.replace(alone, drafted=3).decode_tok_s(8) == pytest.approx(320)
    assert alone.prefill_tok_s == pytest.approx(10_000)


def test_one_hurried_request_does_not_break_the_roof():
    """A reply whose events were held back comes faster than memory; the row does not."""
    requests = [request(n, step=0.0001 if n == 3 else 0.02) for n in range(16)]
    judged = seen(requests, roof=Roof(step_bytes=5e9, token_flops=1e9))
    assert "BENCH404" not in codes(Findings(gate.judge(judged)))


def test_a_cached_prompt_is_no_prefill():
    quick = [request(n, ttft=0.002) for n in range(16)]
    small = Roof(step_bytes=1.5e9, token_flops=24e9)
    assert "BENCH405" in codes(gate.judge(seen(quick, roof=small)))
    assert "BENCH405" not in codes(gate.judge(seen(quick, cell={"caching": True}, roof=small)))


def test_the_roof_of_a_recipe_lies_above_its_estimate():
    """For each model that the plan knows, and for no other machine than a Spark."""
    from sparkbook import recipes
    from sparkbook.plan.evidence import of_setup

    known = 0
    for recipe in recipes.all():
        try:
            setup = planned.read(recipe.id)
        except SparkbookError:
            continue
        limit, served = roof.of(setup, "NVIDIA GB10, driver 580.95"), of_setup(setup)
        assert (limit is None) == (served is None)
        assert roof.of(setup, "NVIDIA H100 80GB") is None and roof.of(setup, None) is None
        if limit is None:
            continue
        known += 1
        for speed in served.speeds(1024):
            assert speed.high <= limit.decode_tok_s(speed.concurrency), recipe.id
    assert known > 10


def test_a_speed_above_the_roof_is_invalid_where_recipe_and_machine_are_known(
    liar, steady, monkeypatch
):
    """On a Spark with a memory of 1 GB/s, which no model of gigabytes makes many tokens from."""
    monkeypatch.setattr(load, "machine_name", lambda endpoint: "NVIDIA GB10, driver 580.95")
    monkeypatch.setattr(spark, "BANDWIDTH_GB_S", 1.0)
    told = json.loads(measured(f"{liar}/honest", "--recipe", "gpt-oss-120b").output)
    assert "BENCH404" in {f["rule"] for f in told["findings"]}
    assert told["summary"]["verdict"] == "invalid" and not told["report"].get("notes")


def test_an_unknown_roof_is_said(liar, steady):
    told = json.loads(measured(f"{liar}/honest", "--recipe", "gpt-oss-120b").output)
    assert "not compared with what memory allows" in told["report"]["notes"][0]


def test_a_recipe_is_not_used_on_a_file(tmp_path):
    file = tmp_path / "r.json"
    file.write_text("{}")
    told = CliRunner().invoke(app, ["bench", str(file), "--recipe", "gpt-oss-120b"])
    assert isinstance(told.exception, SparkbookError) and "--recipe" in str(told.exception)


def test_the_client_tells_by_how_much_the_clocks_went_apart(liar, steady):
    plan = BenchPlan(classes=["code"], concurrency=[1], requests=2, max_tokens=16, waves=0)
    (cell,) = load.measure(Endpoint(f"{liar}/honest", "m"), plan).cells
    assert cell.client.clock_apart_s is not None
    assert all(r.text_bytes == len(r.text.encode()) for r in cell.requests)
    assert figures(cell.requests, 1).output_tokens == 32
