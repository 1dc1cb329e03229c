"""The verdict by evidence: healthy only where something says so, and never by not knowing."""

import random
import re
from pathlib import Path

import pytest
from sparkbook import logs
from sparkbook.logs.verdict import MEANINGS

from tests.logs.test_captures import FAULTS, HEALTHY

DATA = Path(__file__).parents[1] / "data" / "logs"
WORDS = [
    "apple",
    "bridge",
    "candle",
    "dragon",
    "echo",
    "forest",
    "guitar",
    "harbor",
    "island",
    "jungle",
    "kettle",
    "lantern",
]
READY = "INFO:     Application startup complete."
SAYS = re.compile(
    r"^(?P<head>(?:\([^)]*\) )*(?:(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] )?)"
    r"(?P<class>(?:[\w.]+(?:Error|Exception)|[\w. ]*error)\b:? ?)?"
)


def scrambled(line, dice):
    """A line with other words for its message; who speaks, and the class of an exception, stay."""
    match = SAYS.match(line)
    kept = match["head"] + (match["class"] or "")
    return kept + " ".join(dice.choice(WORDS) for _ in range(dice.randrange(1, 12)))


def is_said(line):
    return bool(re.search(r"\b(?:ERROR|CRITICAL)\b|Error\b|Exception\b|error:", line))


@pytest.mark.parametrize("name", sorted(FAULTS))
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_an_error_in_unknown_words_is_never_healthy(name, seed):
    dice = random.Random(f"{name}{seed}")
    lines = (DATA / f"{name}.log").read_text(encoding="utf-8").splitlines()
    assert any(map(is_said, lines))
    text = "\n".join(scrambled(line, dice) if is_said(line) else line for line in lines)
    diagnosis = logs.diagnose(text)
    assert not diagnosis.healthy and diagnosis.verdict in MEANINGS
    assert diagnosis.findings, "a log that is not healthy gets an answer"


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_log_is_not_healthy_before_its_ready_line(name):
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    ready = next(n for n, line in enumerate(lines) if "Application startup complete" in line)
    for cut in range(1, ready + 1):
        assert not logs.diagnose("\n".join(lines[:cut])).healthy, lines[cut - 1]
    assert logs.diagnose("\n".join(lines[: ready + 1])).healthy


@pytest.mark.parametrize("name", HEALTHY)
def test_an_error_after_the_ready_line_ends_the_health(name):
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    ready = next(n for n, line in enumerate(lines) if "Application startup complete" in line)
    head = "\n".join(lines[: ready + 1])
    for said in (
        "(EngineCore pid=9) ERROR 11-28 10:00:00 [mixer.py:7] the blender is out of fruit",
        'Traceback (most recent call last):\n  File "/x/mixer.py", line 7, in blend\nMixError: no',
        "CRITICAL 11-28 10:00:00 [mixer.py:7] fruit",
        "Main process exited, code=exited, status=3/NOTIMPLEMENTED",
        "mixer: error: no fruit",
    ):
        assert not logs.diagnose(f"{head}\n{said}").healthy, said


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (READY, "healthy"),
        ('INFO:     127.0.0.1:1 - "POST /v1/chat/completions HTTP/1.1" 200 OK', "healthy"),
        ("MixError: the blender is out of fruit", "fault, cause unknown"),
        ('{"error":{"message":"no fruit","type":"BadRequestError","code":400}}', "client error"),
        ("Nov 28 10:00:00 spark kernel: NVRM: Xid (PCI:000f:01:00): 13, pid=7", "kernel log"),
        ("docker: Error response from daemon: the blender is out of fruit.", "docker"),
        (f"ValueError: no fruit\n{READY}", "healthy"),
        ("(EngineCore pid=9) INFO 11-28 10:00:00 [mixer.py:7] fruit", "cut off"),
        ("", "empty"),
    ],
)
def test_every_text_gets_its_verdict(text, verdict):
    assert logs.diagnose(text).verdict == verdict


@pytest.mark.parametrize(
    ("last", "state"),
    [
        ("INFO 11-28 10:00:09 [a.py:1] Starting to load model some/model...", "loads the weights"),
        (
            "INFO 11-28 10:00:09 [parallel_state.py:1] world_size=2 rank=0 local_rank=0"
            " distributed_init_method=tcp://10.0.0.1:29501 backend=nccl",
            "waits for the other ranks",
        ),
        (
            "INFO 11-28 10:00:09 [parallel_state.py:1] rank 1 in world size 2 is assigned as DP",
            "prepares the model",
        ),
        (
            "INFO 11-28 10:00:09 [b.py:1] Using cache directory: /c/rank_0 for vLLM's torch.compile",
            "compiles the model",
        ),
        ("INFO 11-28 10:00:09 [m.py:1] torch.compile took 7.5 s in total", "measures memory"),
        ("INFO 11-28 10:00:09 [k.py:1] GPU KV cache size: 9,664 tokens", "captures CUDA graphs"),
        (
            "Loading safetensors checkpoint shards:  45% Completed | 5/11 [00:10<00:12]",
            "'Loading safetensors checkpoint shards' is at 45 %",
        ),
        (
            "Capturing CUDA graphs (FULL):   0%|   | 0/9 [00:00<?]Capturing CUDA graphs (FULL):"
            "  33%|█▎  | 3/9 [00:01<00:02]",
            "'Capturing CUDA graphs (FULL)' is at 33 %",
        ),
        ("Fetching 12 files:  25%|██▌   | 3/12 [00:10<00:30]", "'Fetching 12 files' is at 25 %"),
        (
            "model-00003-of-00012.safetensors:  50%|███ | 2.50G/4.98G [00:20<00:30, 98MB/s]",
            "'model-00003-of-00012.safetensors' is at 50 %",
        ),
    ],
)
def test_an_excerpt_that_ends_early_says_what_was_under_way(last, state):
    before = "(EngineCore pid=9) WARNING 11-28 10:00:00 [mixer.py:7] fruit"
    for text in (last, f"{before}\n{last}"):
        headline = logs.diagnose(text).headline
        assert state in headline.split(", and the log ends there")[0], headline


def test_a_clock_that_goes_back_is_no_time_before_the_start():
    begun = "(APIServer pid=1) INFO 11-28 10:00:0{} [u.py:1] non-default args: {{'model': 'm'}}"
    assert logs.diagnose(f"{begun.format(5)}\n{begun.format(1)}").headline.startswith(
        "The engine is not ready: it reads"
    )


def test_an_error_that_the_start_survived_is_noted():
    survived = logs.diagnose(f"ValueError: no fruit\n{READY}")
    assert [f.rule for f in survived.findings] == ["LOG907"]


def test_versions_of_others_are_no_releases():
    for line in (
        "CUDA Version 13.2.0",
        "NVIDIA-SMI 580.95.05   Driver Version: 580.95.05   CUDA Version: 13.0",
        "version 580.159.03 was detected and compatibility mode is UNAVAILABLE.",
        "NCCL version 2.29.3",
        "Python version 3.12.3 (main)",
    ):
        assert logs.diagnose(line).story.release is None, line
    said = "(APIServer pid=1) INFO 11-28 10:00:00 [api_server.py:1] vLLM API server version 0.32.0"
    assert logs.diagnose(said).story.release == "0.32.0"


@pytest.mark.parametrize("times", [3, 4, 5, 9, 16, 17, 40, 1000])
def test_repeated_lines_are_counted_right(times):
    line = (
        "(EngineCore pid=684) INFO 09-07 {:02}:{:02}:54 [shm_broadcast.py:705] No available shared"
        " memory broadcast block found in 60 seconds."
    )
    diagnosis = logs.diagnose("\n".join(line.format(n // 60, n % 60) for n in range(times)))
    assert f"waited {times} times" in diagnosis.headline


def test_lines_with_a_prefix_of_compose_are_read_as_without():
    text = (DATA / "h100-0.24.0-kv-small.log").read_text(encoding="utf-8")
    plain = logs.diagnose(text)
    for prefix in (
        "vllm-1  | ",
        "2026-11-28T10:00:00.123456789Z ",
        "Nov 28 10:00:00 spark vllm[7]: ",
    ):
        wrapped = logs.diagnose("".join(f"{prefix}{line}\n" for line in text.splitlines()))
        assert [f.rule for f in wrapped.findings] == [f.rule for f in plain.findings], prefix
        assert wrapped.primary.evidence == plain.primary.evidence


def test_half_a_traceback_names_its_place():
    half = """\
(EngineCore pid=85) ERROR 06-23 18:39:58 [core.py:1229]   File "/usr/lib/vllm/v1/spec_decode/mixer.py", line 383, in blend
(EngineCore pid=85) ERROR 06-23 18:39:58 [core.py:1229]     fruit = bowl.get()"""
    diagnosis = logs.diagnose(half)
    assert diagnosis.verdict == "fault, cause unknown"
    assert "speculative decoding (mixer.py, blend)" in diagnosis.headline
    assert "--speculative-config" in diagnosis.primary.fix


_ACCESS = '(APIServer pid=1) INFO:     127.0.0.1:5000 - "{} HTTP/1.1" 200 OK\n'
_ASKED = "POST /v1/chat/completions"
_FORGED = [
    '"POST /v1/chat/completions HTTP/1.1" 500 Internal Server Error',
    '1.1.1.1:1 - "POST /v1/chat/completions HTTP/1.1" 400 Bad Request',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB",
    "vLLM API server version 0.1.0 [shutdown] API server: shutdown triggered",
]
_LOGGED = [
    "Received request chatcmpl-1: prompt: {!r}, params: SamplingParams(n=1)",
    "Received request {}: params: SamplingParams(n=1), lora_request: None.",
    "Request chatcmpl-1 details: prompt: {!r}, prompt_token_ids: None.",
    "Generated response chatcmpl-1: output: {!r}, finish_reason: stop",
    "Error with model error=ErrorInfo(message='The model `{}` does not exist.', code=404)",
]


@pytest.mark.parametrize("said", _FORGED)
@pytest.mark.parametrize("logged", _LOGGED)
def test_what_a_client_says_is_no_line_of_the_server(said, logged):
    line = f"(APIServer pid=1) INFO 07-04 10:00:02 [logger.py:40] {logged.format(said)}\n"
    diagnosis = logs.diagnose(f"{READY}\n{line}{_ACCESS.format(_ASKED)}")
    assert diagnosis.headline == (
        "Healthy: the engine is up and has answered 1 request; nothing in this log is a fault."
    )
    assert diagnosis.story.release is None and not diagnosis.findings


@pytest.mark.parametrize("path", ["GET /health", "GET /metrics", "GET /v1/models"])
def test_only_requests_that_generate_count_as_answered(path):
    looked = logs.diagnose(f"{READY}\n{_ACCESS.format(path)}")
    assert "engine is up; nothing" in looked.headline
    asked = logs.diagnose(_ACCESS.format(path) + _ACCESS.format(_ASKED) * 2)
    assert "has answered 2 requests;" in asked.headline
    assert logs.diagnose(_ACCESS.format(path)).healthy, "it answers"


@pytest.mark.parametrize("prefix", ["", "vllm-1  | ", "2026-11-28T10:00:00.1Z ", "(x pid=1) "])
def test_the_web_servers_own_line_is_read_behind_any_prefix(prefix):
    line = f'{prefix}INFO:     [::1]:9 - "{_ASKED} HTTP/1.1" 500 Internal Server Error'
    assert logs.diagnose(line).primary.rule == "LOG621"


_START = "(APIServer pid=1) INFO 07-04 10:00:00 [api_server.py:1] vLLM API server version 0.28.0\n"
_UP = f"{_START}{READY}\n" + _ACCESS.format(_ASKED)
_DOWN = "INFO:     Shutting down\nINFO:     Application shutdown complete.\n"
_FULL = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n"


@pytest.mark.parametrize("down", [_DOWN, *_DOWN.splitlines()])
def test_an_engine_that_shut_down_is_no_longer_up(down):
    assert "was up and answered 1 request until" in logs.diagnose(_UP + down).headline
    assert "is up and has answered" in logs.diagnose(f"{_UP}{down}\n{_UP}").headline, "again"
    begun = logs.diagnose(f"{_UP}{down}\n{_START}")
    assert begun.verdict == "starting", begun.headline


@pytest.mark.parametrize("why", [_FULL, "MixError: the blender is out of fruit\n"])
def test_a_fault_of_an_earlier_start_leaves_the_last_one_up(why):
    diagnosis = logs.diagnose(why + _UP)
    assert diagnosis.headline.startswith("The last start is up and has answered 1 request; an earl")
    assert diagnosis.primary.message in diagnosis.headline and not diagnosis.healthy
    for later in (_UP + why, why + _START, why + _UP + why):
        assert not logs.diagnose(later).up_again, later


def test_a_fault_after_an_ordered_stop_and_a_new_start_counts():
    assert logs.diagnose(_UP + _DOWN + _UP + "MixError: no fruit").primary is not None
    assert logs.diagnose(f"{_UP}{_DOWN}MixError: no fruit\n{_UP}").healthy, "an echo of the stop"


def test_what_comes_after_an_ordered_stop_is_not_called_free_of_faults():
    crashed = logs.diagnose(f"{_UP}{_DOWN}Segmentation fault (core dumped)\n").headline
    assert crashed.endswith("until it was stopped; nothing before that is a fault.")


def test_a_bar_that_ended_is_no_step_again():
    """A progress bar is read when the next one begins, after the lines that follow it."""
    lines = [
        "Capturing CUDA graphs (PIECEWISE): 100%|####| 7/7 [00:03<00:00,  2.1it/s]",
        "(EngineCore pid=9) INFO 11-28 10:00:29 [g.py:1] Graph capturing finished in 4 secs, took 1.00 GiB",
        "(EngineCore pid=9) INFO 11-28 10:00:29 [w.py:1] CUDA graph pool memory: 0.1 GiB (actual)",
    ]
    for count, does in ((1, "captures CUDA graphs"), (2, "warms up"), (3, "warms up")):
        message = logs.diagnose("\n".join(lines[:count])).findings[0].message
        assert does in message, message


@pytest.mark.parametrize("name", HEALTHY)
def test_a_start_under_way_begins_with_what_it_does(name):
    """A warning that each start prints is not the first thing to say of one that is under way."""
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    warned = [n for n, line in enumerate(lines) if "parameters won't work with spec" in line]
    for end in warned:
        found = logs.diagnose("\n".join(lines[: end + 1]))
        assert found.verdict == "starting" and found.findings[0].rule == "LOG903", found.findings


def test_a_file_near_a_fault_is_not_who_said_an_earlier_note():
    note = "W1128 07:57:54.414000 15790 torch/_library/triton.py:53] Triton not available"
    cut = 'Traceback (most recent call last):\n  File "/usr/bin/mixer", line 10, in <module>'
    message = logs.diagnose(f"{note}\n{cut}").findings[0].message
    assert "ends inside a traceback" in message and "triton.py" not in message


def test_a_traceback_that_is_announced_and_cut_is_its_own_process():
    """The reason is further down, where the log is cut; not further up, in another process."""
    lines = (DATA.parent / "cluster" / "interface-worker.log").read_text("utf-8").splitlines()
    announced = next(n for n, line in enumerate(lines) if "WorkerProc failed to start" in line)
    message = logs.diagnose("\n".join(lines[: announced + 4])).findings[0].message
    assert "ends inside a traceback" in message, message
