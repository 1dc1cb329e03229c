"""`sparkbook diagnose`: words, JSON and exit codes."""

import json
from pathlib import Path

import pytest
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.logs import parse_facts
from typer.testing import CliRunner

DATA = Path(__file__).parents[1] / "data" / "logs"


def run(*words, given=None):
    return CliRunner().invoke(app, ["diagnose", *map(str, words)], input=given)


def test_a_fault():
    result = run(DATA / "h100-0.24.0-kv-small.log")
    assert result.exit_code == 1
    assert (
        "4.69 GiB too small" in result.output
        and "LOG108" in result.output
        and "Last line of each process" in result.output
    )


def test_healthy():
    result = run(DATA / "h100-0.24.0-ngram.log")
    assert result.exit_code == 0 and result.output.startswith("Healthy")
    assert "API server" in result.output


def test_json_and_standard_input():
    result = run("-", "--json", given=(DATA / "h100-0.24.0-moe-fp8.log").read_bytes())
    answer = json.loads(result.output)
    assert result.exit_code == 1
    assert (
        answer["findings"][0]["kind"] == "killed-by-watchdog"
        and answer["summary"]["primary"] == answer["findings"][0]["rule"]
    )
    assert (
        answer["summary"]["verdict"] == "fault"
        and answer["summary"]["facts"]["kv_tokens"] == 897664
    )
    assert [entry["phase"] for entry in answer["summary"]["timeline"]][-1] == "API server"
    assert set(answer["findings"][0]) >= {
        "rule",
        "kind",
        "severity",
        "message",
        "evidence",
        "fix",
        "why",
        "source",
        "since",
        "until",
        "confidence",
    }


def test_facts_change_the_answer(tmp_path):
    log = tmp_path / "start.log"
    log.write_text(
        "ValueError: Free memory on device cuda:0 (14.2/121.63 GiB) on startup is less than desired"
        " GPU memory utilization (0.85, 103.38 GiB).\n"
    )
    assert json.loads(run(log, "--json").output)["findings"][0]["kind"] == "restart-loop"
    facts = tmp_path / "facts.json"
    facts.write_text(
        json.dumps(
            {"processes": [{"name": "VLLM::EngineCore", "pid": 41218, "memory": "104277 MiB"}]}
        )
    )
    answer = json.loads(run(log, "--json", "--facts", facts).output)
    assert (
        answer["findings"][0]["kind"] == "orphan-memory" and "41218" in answer["findings"][0]["fix"]
    )


def test_unusable(tmp_path):
    assert run(tmp_path / "none.log").exit_code != 0
    empty = tmp_path / "empty.log"
    empty.write_text("")
    result = run(empty)
    assert result.exit_code not in (0, 1) or "empty" in str(result.exception)
    facts = tmp_path / "facts.txt"
    facts.write_text("hello")
    result = run(DATA / "h100-0.24.0-ngram.log", "--facts", facts)
    assert "nothing that is known" in str(result.exception)


@pytest.mark.parametrize("value", ["nan", "-4", "-4 GiB", ".inf"])
def test_a_fact_that_is_no_amount_is_told(value):
    with pytest.raises(SparkbookError, match="is no amount"):
        parse_facts(f"MemTotal: {value}\nMemAvailable: 101 GiB")


@pytest.mark.parametrize(
    "junk",
    [bytes(400), b" \n \n", b"[]\n", b"# A title\n\nSome words.\n", b"vllm serve m --port 8000\n"],
)
def test_what_is_no_log_is_not_called_healthy(junk):
    assert "is not a log of vLLM" in str(run("-", given=junk).exception)


@pytest.mark.parametrize(
    "begun",
    [
        b"INFO 11-28 10:00:00 [x.py:1] loading\n",
        b"==========\n== vLLM ==\n",
        b"Loading weights:   0%\n",
    ],
)
def test_a_log_that_only_begins_is_one_and_is_not_healthy(begun):
    result = run("-", given=begun)
    assert (result.exit_code == 1 and "not ready" in result.output) or "before" in result.output


def test_one_sentence_of_a_program_that_runs_vllm_is_known_from_its_report():
    said = b"--tensor-parallel-size 2 cannot divide worker[0] 1 GPUs"
    result = run("-", given=said)
    assert "gpustack/gpustack/issues/5779" in result.stdout and result.exit_code == 1
