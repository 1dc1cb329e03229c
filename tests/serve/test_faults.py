"""The table of faults: every example is recognized as what it is an example of, and every end of a
container is named.
"""

import re

import pytest
from sparkbook.serve.faults import DOCK, as_progress, explain, how_it_ended, redact

SEEN = {
    # What engines 20.10.24 and 26.1.5 said, as docker-py hands it on, where it is worded otherwise
    # than the table's own example.
    'could not select device driver "nvidia" with capabilities: [[gpu]]': "DOCK103",
    "Unknown runtime specified nvidia": "DOCK103",
    "unknown or invalid runtime name: nvidia": "DOCK103",
    "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=7": "DOCK103",
    "failed to discover GPU vendor from CDI: no known GPU vendor found": "DOCK103",
    'error gathering device information while adding custom device "/dev/nvidia0": no such file or directory': (
        "DOCK103"
    ),
    'Get "https://registry.invalid/v2/": dial tcp: lookup registry.invalid on 10.0.0.1:53: no such host': (
        "DOCK108"
    ),
    "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error setting rlimits for ready process: error setting rlimit type 8: operation not permitted: unknown": (
        "DOCK113"
    ),
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock": (
        "DOCK102"
    ),
    "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?": (
        "DOCK101"
    ),
    "driver failed programming external connectivity on endpoint x (0a): Error starting userland proxy: listen tcp4 127.0.0.1:8000: bind: address already in use": (
        "DOCK104"
    ),
    "something that nobody has seen before": "DOCK100",
}


@pytest.mark.parametrize(("text", "code"), SEEN.items())
def test_texts_of_real_engines(text, code):
    found = explain(text)
    assert found.rule == code and text.split(":")[0] in found.evidence


def test_what_a_text_names_is_in_the_advice():
    assert "8000" in explain("Bind for 127.0.0.1:8000 failed: port is already allocated").message
    assert "8123" in explain("port is already allocated", port=8123).message
    assert "PORT" in explain("port is already allocated").message
    assert explain(
        'Conflict. The container name "/l2" is already in use by container "1"'
    ).fix.startswith("Remove it with `docker rm -f l2`")


@pytest.mark.parametrize(
    ("state", "restarts", "code"),
    [
        ({"Running": True}, 0, None),
        ({"Running": True}, 2, "DOCK307"),
        ({"Running": False, "ExitCode": 137, "OOMKilled": True}, 0, "DOCK301"),
        ({"Running": False, "ExitCode": 137}, 0, "DOCK302"),
        ({"Running": False, "ExitCode": 139}, 0, "DOCK303"),
        ({"Running": False, "ExitCode": 127}, 0, "DOCK304"),
        ({"Running": False, "ExitCode": 143}, 0, "DOCK305"),
        ({"Running": False, "ExitCode": 1}, 3, "DOCK306"),
        ({"Running": True, "Paused": True, "Status": "paused"}, 0, "DOCK308"),
        ({"Running": False, "Status": "created", "ExitCode": 0}, 0, None),
        ({"Running": False, "Status": "removing", "ExitCode": 137}, 0, None),
        ({"Running": False, "Dead": True, "Status": "dead", "ExitCode": 1}, 0, "DOCK306"),
        (
            {
                "Running": False,
                "Status": "created",
                "ExitCode": 128,
                "Error": "port is already allocated",
            },
            0,
            "DOCK104",
        ),
    ],
)
def test_ends(state, restarts, code):
    found = how_it_ended(state, "x", restarts)
    assert (found and found.rule) == code


def test_137_is_not_called_out_of_memory():
    assert how_it_ended({"Running": False, "ExitCode": 137}, "x").kind == "killed-by-watchdog"


def test_what_the_engine_answers_is_recognized_by_its_text():
    for rule in DOCK.rules.values():
        by_text = isinstance(rule.fails, str) and rule.code != "DOCK100"
        assert bool(rule.pattern) == by_text == ("DOCK100" < rule.code < "DOCK200")
        assert len(re.sub(r"\{\w+\}", "", rule.title)) < 140


def test_redact():
    assert redact(["HF_TOKEN=a=b", "MODE=x", "MY_PASSWORD=p", "VLLM_API_KEY=k"]) == [
        "HF_TOKEN=***",
        "MODE=x",
        "MY_PASSWORD=***",
        "VLLM_API_KEY=***",
    ]


def test_a_finding_on_the_way_is_one_line_with_what_to_do():
    found = explain("port is already allocated", port=8123)
    assert as_progress(found) == f"error: {found.message} ({found.rule}) {found.fix}"
    assert found.fix and "\n" not in as_progress(found)
