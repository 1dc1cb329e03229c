"""`sparkbook bench`, as somebody types it."""

import json

from sparkbook.bench import telemetry
from sparkbook.cli import app
from typer.testing import CliRunner


def run(*arguments):
    return CliRunner().invoke(app, ["bench", *arguments])


def test_measure_keep_and_show_again(truth, tmp_path, monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "sk-secret")
    monkeypatch.delenv("SPARKBOOK_KEY_FILE", raising=False)
    monkeypatch.setattr(
        telemetry.Live.__init__, "__defaults__", (0.1,)
    )  # ten looks a second: the command waits for some before and after
    out = tmp_path / "r.json"
    small = ("--classes", "code", "--concurrency", "2", "--requests", "5", "--max-tokens", "20")
    told = run(truth.url, *small, "--out", str(out), "--json")
    assert told.exit_code == 0, told.output
    answer = json.loads(told.output)
    assert (
        answer["summary"]["rows"] == 1 and answer["report"]["cells"][0]["figures"]["completed"] == 5
    )
    assert "sk-secret" not in told.output + out.read_text()
    shown = run(str(out))
    assert shown.exit_code == 0 and "c=2" in shown.output and "Verdict" in shown.output


def test_what_does_not_pass_fails_the_run_where_that_is_asked(tmp_path, truth):
    from pathlib import Path

    recorded = Path(__file__).parents[1] / "data" / "bench" / "h100-0.24.0-smollm2-ab-0-dense.json"
    assert run(str(recorded)).exit_code == 0
    assert run(str(recorded), "--require-valid").exit_code == 1


def test_what_cannot_be_used_is_said_in_one_line():
    for arguments in (
        ("nothing",),
        ("http://127.0.0.1:9",),
        ("http://127.0.0.1:9", "--concurrency", "x"),
        ("http://127.0.0.1:9", "--classes", "poetry"),
        ("http://127.0.0.1:9", "--with", "vllm"),
        ("http://127.0.0.1:9", "--with", "vllm", "--rate", "2"),
        ("nothing", "--with", "vllm"),
        ("http://127.0.0.1:9", "--with", "wrk"),
    ):
        told = run(*arguments)
        assert told.exit_code != 0 and str(told.exception).count("\n") == 0
