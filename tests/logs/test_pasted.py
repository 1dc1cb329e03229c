"""What people pasted into public reports: the right cause comes first, with the right remedy."""

from pathlib import Path

import pytest
import yaml
from sparkbook import logs

FILE = Path(__file__).parents[1] / "data" / "logs" / "pasted.yaml"
REPORTS = yaml.safe_load(FILE.read_text("utf-8"))


@pytest.mark.parametrize("report", REPORTS, ids=lambda r: "-".join(r["source"].split("/")[-3:]))
def test_the_right_cause_comes_first(report):
    primary = logs.diagnose(report["log"].encode()).primary
    assert primary.kind == report["kind"]
    assert report["fix"] in primary.fix
    assert report.get("says", "") in primary.message


SHARED = "No available shared memory broadcast block found in 60 seconds."
TUNING = "2026-09-02 11:57:03,500 - INFO - autotuner.py:829 - flashinfer.jit: [Autotuner]: "


def test_ranks_that_block_each_other_while_they_tune_kernels():
    """eugr/spark-vllm-docker, pull request 367, comment of 2 September 2026."""
    waits = "".join(
        f"(EngineCore pid=397) INFO 09-02 {time} [shm_broadcast.py:801] {SHARED}\n"
        for time in ("11:57:54", "11:58:54", "11:59:54")
    )
    tuning = f"(Worker_TP0 pid=511) {TUNING}Autotuning process starts ...\n"
    ended = f"(Worker_TP0 pid=511) {TUNING}Autotuning process ends\n"
    stuck = logs.diagnose(tuning + waits)
    assert stuck.verdict == "stuck"
    assert "flashinfer_autotune_cache" in next(iter(stuck.findings)).fix
    later = logs.diagnose(tuning + ended + waits)
    assert later.verdict == "stuck"
    assert "flashinfer_autotune_cache" not in next(iter(later.findings)).fix


def test_an_engine_that_failed_at_the_first_shard_has_not_hung_there():
    """vllm-project/vllm, issue 25029."""
    begins = "Loading safetensors checkpoint shards:   0% Completed | 0/5 [00:00<?, ?it/s]\n"
    ends = (
        "(EngineCore_DP0 pid=268) ERROR 09-16 20:57:00 [core.py:718] EngineCore failed to start.\n"
        "(EngineCore_DP0 pid=268) ERROR 09-16 20:57:00 [core.py:718] KeyError:"
        " 'layers.35.mlp.gate.g_idx'\n"
    )
    assert "LOG507" in [finding.rule for finding in logs.diagnose(begins).findings]
    failed = logs.diagnose(begins + ends)
    assert failed.primary.kind == "quant-load"
    assert "LOG507" not in [finding.rule for finding in failed.findings]


def test_a_start_that_waits_for_a_gpu_of_ray():
    """vllm-project/aibrix, issue 927: the address is what has to be compared."""
    wait = (
        "INFO 04-01 02:47:00 ray_utils.py:214] Waiting for creating a placement group of specs for"
        " {} seconds. specs=[{{'node:192.0.2.10': 0.001, 'GPU': 1.0}}, {{'GPU': 1.0}}].\n"
    )
    first = next(iter(logs.diagnose("".join(map(wait.format, (10, 30, 70)))).findings))
    assert first.rule == "LOG514" and "192.0.2.10" in first.message and "VLLM_HOST_IP" in first.fix
    got = "INFO 04-01 02:48:00 [gpu_model_runner.py:1] Starting to load model /m...\n"
    rules = [f.rule for f in logs.diagnose("".join(map(wait.format, (10, 30, 70))) + got).findings]
    assert "LOG514" not in rules


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("/v1//models", "Remove the slash"),
        ("//v1/models", "Remove the slash"),
        ("/v1/v1/chat/completions", "Remove /v1 from"),
        ("/chat/completions", "Add /v1 to"),
        ("/models", "Add /v1 to"),
        ("/api/tags", "Choose an OpenAI-compatible server"),
        ("/v1/chat/completions", "the model's name has to be the served one"),
    ],
)
def test_the_path_of_a_refused_request_says_what_is_wrong(path, fix):
    """open-webui/open-webui, issue 12117, and its neighbors."""
    log = f'INFO:     127.0.0.1:50764 - "GET {path} HTTP/1.1" 404 Not Found\n' * 2
    assert fix in next(iter(logs.diagnose(log).findings)).fix


REPORT = (
    "(APIServer pid=851) INFO 04-28 22:54:{second} [loggers.py:257] Engine 000: Avg prompt"
    " throughput: 0.0 tokens/s, Avg generation throughput: 5.4 tokens/s, Running: {running} reqs,"
    " Waiting: 14 reqs, GPU KV cache usage: 76.5%, Prefix cache hit rate: 92.0%\n"
)
REQUEST = '(APIServer pid=851) INFO:     10.0.0.2:59146 - "GET /metrics HTTP/1.1" 200 OK\n'


@pytest.mark.parametrize(("running", "verdict"), [(1, "slow"), (8, "healthy")])
def test_a_queue_behind_one_request_is_not_called_healthy(running, verdict):
    """intel/llm-scaler, issue 391 (29 April 2026): an hour of one request, with 14 that wait."""
    log = "".join(REPORT.format(second=s, running=running) + REQUEST for s in (32, 42, 52))
    assert logs.diagnose(log).verdict == verdict


def test_a_whole_traceback_under_a_known_sentence_is_what_the_sentence_says():
    """vllm-project/vllm, issue 26561 (9 October 2025): the parser's exception says less."""
    where = "(APIServer pid=8) ERROR 10-09 09:39:54 [hermes_tool_parser.py:157] "
    lines = (
        "Error in extracting tool call from response.",
        "Traceback (most recent call last):",
        '  File "/opt/vllm/hermes_tool_parser.py", line 134, in extract_tool_calls',
        "    raw_function_calls = [",
        "json.decoder.JSONDecodeError: Expecting value: line 2 column 1 (char 1)",
    )
    primary = logs.diagnose("\n".join(where + line for line in lines)).primary
    assert primary.kind == "tool-parser"
