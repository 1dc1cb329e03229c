"""Servers that never answer, never end, answer something else or fall silent half way: each verb
ends in bounded time, with one clear line, and loses nothing that was measured.
"""

import importlib.util
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sparkbook import bench, bundle, dashboard
from sparkbook.bench import commands, equality, load, prompts, telemetry
from sparkbook.bench.results import Report
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.serve import bounded, ready, running
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.stream import stream_chat
from sparkbook.serve.warmup import warm_up
from typer.testing import CliRunner

_spec = importlib.util.spec_from_file_location("hostile", Path(__file__).with_name("hostile.py"))
assert _spec and _spec.loader
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
MODES, Hostile = _module.MODES, _module.Hostile

SHORT_S, PATIENT_S, LATEST_S = 0.25, 1.5, 240
"""How long the verbs wait here for what never comes; for what must come first, also on a busy
machine; and after which one of them hangs.
"""

SMALL = {
    "classes": "code",
    "concurrency": "1",
    "rates": None,
    "requests": 3,
    "max_tokens": 8,
    "timeout_s": SHORT_S,
    "caching": False,
}


@pytest.fixture(scope="module")
def hostile():
    with Hostile() as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(Endpoint.get, "__defaults__", (SHORT_S,))
    monkeypatch.setattr(telemetry.Live.__init__, "__defaults__", (0.02,))
    for name in ("VLLM_API_KEY", "SPARKBOOK_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def patient(impatient, monkeypatch):
    """For servers that answer well at first."""
    monkeypatch.setattr(Endpoint.get, "__defaults__", (PATIENT_S,))


def ask(endpoint, timeout_s=SHORT_S):
    return equality.ask(
        endpoint, prompts.make("prose", 1, salt=None), max_tokens=4, timeout_s=timeout_s
    )


VERBS = {
    "bench": lambda url: commands.obtain(url, dict(SMALL), model="m"),
    "equal": lambda url: ask(Endpoint(url, "m")),
    "advise": lambda url: commands.advice_of_server(url, 0.1, 0.05, 0.02),
    "prewarm": lambda url: warm_up(Endpoint(url, "m"), at_most=1, timeout_s=SHORT_S),
    "serve": lambda url: ready.wait_ready(Endpoint(url, "m"), deadline_s=0.6),
    "monitor": lambda url: next(dashboard.watch(Endpoint(url), 0.05)),
    "record": lambda url: bundle.served(url),
}
CHATS = {"bench", "equal", "prewarm"}
"""They are sent to a server that lists its models; the others to one that misbehaves on each path."""
ANSWERS_200 = {"nan", "page", "list", "odd-stream", "error-stream", "codec", "many"}
HARMLESS = {("record", how) for how in ANSWERS_200} | {(verb, "many") for verb in CHATS}
"""`record` keeps what a server says, whatever it is: to be looked at is what a recording is for. A
count that is none is unknown.
"""


def outcome(verb, url):
    """The error and the seconds until then."""
    begin = time.monotonic()
    try:
        VERBS[verb](url)
        error = None
    except Exception as caught:  # noqa: BLE001 (what is no SparkbookError is shown by the test)
        error = caught
    return error, time.monotonic() - begin


@pytest.mark.slow
def test_every_verb_ends_in_one_line_whatever_the_server_does(hostile):
    wanted = [(verb, "chat" if verb in CHATS else "all", how) for verb in VERBS for how in MODES]
    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(lambda one: outcome(one[0], hostile.url(*one[1:])), wanted))
    wrong = []
    for (verb, where, how), (error, took) in zip(wanted, found, strict=True):
        good = (
            isinstance(error, SparkbookError)
            and str(error).count("\n") == 0
            and len(str(error)) < 500
        )
        if (not good and not (error is None and (verb, how) in HARMLESS)) or took > LATEST_S:
            wrong.append((verb, where, how, repr(error), round(took, 1)))
    assert not wrong


def test_a_server_of_ones_own_is_never_called_ready(hostile):
    def state(how):
        return running._answers(Endpoint(hostile.url("all", how)), lambda: True)

    with ThreadPoolExecutor(len(MODES)) as pool:
        states = dict(zip(MODES, pool.map(state, MODES), strict=True))
    # Whoever answers 200 to whatever is asked is up: `status` asks no more than that.
    assert {how for how, state in states.items() if state == "ready"} == ANSWERS_200


def test_rows_measured_before_a_server_falls_silent_are_kept(
    hostile, tmp_path, patient, monkeypatch
):
    """First request, warm-up of two waves, three requests: the second row meets a server that
    answers no more.
    """
    monkeypatch.setattr(load, "NOISE_S", LATEST_S)  # any two waves agree
    out = tmp_path / "r.json"
    for how in ("silent", "broken", "breaks"):
        line = [
            "bench",
            hostile.url(6, how),
            "--classes",
            "code",
            "--concurrency",
            "1,2",
            "--requests",
            "3",
            "--max-tokens",
            "8",
        ]
        told = CliRunner().invoke(app, [*line, "--timeout", str(PATIENT_S), "--out", str(out)])
        kept = Report.read(out)
        assert isinstance(
            told.exception, SparkbookError
        ) and "answers no request of code c=2" in str(told.exception)
        assert (
            [cell.figures.completed for cell in kept.cells] == [3]
            and kept.ended == str(told.exception)
            and "c=1" in told.output
        )


@pytest.mark.parametrize(
    ("ended", "error"), [(None, KeyboardInterrupt), ("it answers no more", SparkbookError)]
)
def test_a_comparison_that_was_cut_short_says_so(monkeypatch, ended, error):
    report = Report(date="", tool="sparkbook", model="m", interrupted=ended is None, ended=ended)
    monkeypatch.setattr(load, "measure", lambda *_, **__: report)
    with pytest.raises(error):
        load.agreeing(Endpoint("http://127.0.0.1:1", "m"), bench.BenchPlan(), ["tpot_s"])


@pytest.mark.slow
def test_a_row_gives_up_after_failures_in_a_row(hostile, patient):
    """A hundred requests of which each would be waited for."""
    plan = bench.BenchPlan(
        classes=["code"], concurrency=[4], requests=100, max_tokens=8, timeout_s=PATIENT_S, waves=1
    )
    (cell,) = bench.measure(Endpoint(hostile.url(9, "silent"), "m"), plan).cells
    assert (
        cell.figures.completed == 4 and 8 <= cell.figures.failed <= 12 and cell.verdict == "invalid"
    )
    assert {r.error for r in cell.requests if r.error} == {f"silent for {PATIENT_S:g} s"}


@pytest.mark.parametrize("wrong", [float("nan"), -1, 10**400, "7"])
def test_a_token_count_that_is_none_is_unknown(wrong):
    usage = {"completion_tokens": wrong, "prompt_tokens": True}
    times = {
        "ttfr": 0.1,
        "ttft": 0.1,
        "ttfo": 0.1,
        "end": 0.2,
        "stamps": [0.1, 0.2],
        "begin": 0.0,
        "scheduled": None,
    }
    rest = {
        "index": 0,
        "slot": 0,
        "tokens": None,
        "usage": usage,
        "finish": None,
        "text_bytes": 0,
        "text": "",
        "error": None,
    }
    (request,) = load.requests_of({"records": [times | rest]}, prompts.make("code", 1), True)
    assert (request.output_tokens, request.prompt_tokens, request.count_from) == (
        None,
        None,
        "unknown",
    )


@pytest.mark.parametrize(
    ("out", "form", "words"),
    [
        ("no/folder/r.json", "sparkbook", "can't be written"),
        ("", "sparkbook", "can't be written"),
        ("r.json", "xml", "no form 'xml'"),
        ("r.json", "vllm", "one row and this measurement has 2"),
        ("r.yaml", "performance", "one row"),
    ],
)
def test_what_is_wrong_with_the_target_is_said_before_the_measurement(
    hostile, tmp_path, out, form, words
):
    line = [
        "bench",
        hostile.url("all", "silent"),
        "--classes",
        "code",
        "--concurrency",
        "1,2",
        "--out",
        f"{tmp_path}/{out}",
        "--as",
        form,
    ]
    told = CliRunner().invoke(app, line)
    assert words in str(told.exception) and "does not answer" not in str(told.exception)


def test_what_is_wrong_with_the_target_is_said_of_a_file_too(tmp_path):
    (tmp_path / "r.json").write_text(
        Report(date="", tool="sparkbook", model="m").model_dump_json(by_alias=True), "utf-8"
    )
    for more, words in (
        (["--out", ""], "can't be written"),
        (["--as", "nonsense"], "no form"),
        (["--as", "vllm", "--out", "x"], "row"),
    ):
        told = CliRunner().invoke(app, ["bench", f"{tmp_path}/r.json", *more])
        assert isinstance(told.exception, SparkbookError) and words in str(told.exception)
    assert "no form" in str(
        CliRunner().invoke(app, ["bench", "neither", "--as", "nonsense"]).exception
    )


def test_where_nothing_can_be_kept_it_is_said(tmp_path, monkeypatch):
    report = Report(date="", tool="sparkbook", model="m")
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/none")
    assert "no temporary file" in commands.keep_or_rescue(
        report, "http://x", "/dev/full", "sparkbook"
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    report.model = "\ud800"  # no file takes it
    assert "and " in commands.keep_or_rescue(
        report, "http://x", "/dev/full", "sparkbook"
    ) and not list(tmp_path.iterdir())


def test_a_full_disk_loses_nothing(hostile, tmp_path, monkeypatch, patient):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    line = [
        "bench",
        hostile.url(99, "silent"),
        "--classes",
        "code",
        "--concurrency",
        "1",
        "--requests",
        "3",
        "--max-tokens",
        "8",
    ]
    told = CliRunner().invoke(app, [*line, "--out", "/dev/full"])
    spare = next(tmp_path.glob("sparkbench-*.json"))
    assert (
        "/dev/full can't be written" in str(told.exception)
        and str(spare) in str(told.exception)
        and "c=1" in told.output
    )
    assert Report.read(spare).cells[0].figures.completed == 3


def test_a_reply_without_end_is_cut_by_its_size(hostile, monkeypatch):
    monkeypatch.setattr(bounded, "MOST_BYTES", 2000)
    with pytest.raises(SparkbookError, match="more than"):
        Endpoint(hostile.url("all", "endless")).get("/metrics", timeout_s=30)


def test_a_packed_reply_is_refused_and_never_asked_for(hostile):
    """Its size is that of what comes over the wire, not of what it unpacks to."""
    with pytest.raises(SparkbookError, match="packed as 'gzip'"):
        Endpoint(hostile.url("all", "packed")).metrics_text()


def test_vllms_own_benchmark_is_not_started_against_what_is_no_server(hostile, patient):
    begin = time.monotonic()
    for how in ("nan", "silent", "key"):
        with pytest.raises(SparkbookError, match="does not answer a streamed chat"):
            commands.obtain_with_vllm(
                hostile.url("chat", how), dict(SMALL), model="m", tokenizer="t"
            )
    assert time.monotonic() - begin < LATEST_S


def test_the_hostile_server_can_be_kind(hostile):
    """Else all of the above would pass for the wrong reason."""
    assert stream_chat(Endpoint(hostile.url(5, "silent"), "m"), "x", max_tokens=4).tokens == 4
    assert ask(Endpoint(hostile.url(8, "silent"), "m"), PATIENT_S)[0].tokens == ("a",)
