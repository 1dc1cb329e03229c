"""The faults that were provoked between two namespaces (`tools/provoke_two_nodes.py`): what the two
ranks of a real vLLM 0.32.0 (CPU) printed names the cause first, in any order of the logs.
"""

from pathlib import Path

import pytest
from sparkbook.cluster.fixtures import faults
from sparkbook.logs.together import together

DATA = Path(__file__).parents[1] / "data" / "cluster"
SAID = {
    "killed-serving": ("LOG910", "worker.log ends without a cause"),
    "killed-loading": ("LOG910", "worker.log ends without a cause"),
    "node-killed": ("LOG910", "worker.log ends without a cause"),
    "other-vllm": ("LOG911", "differ in vLLM's release"),
    "other-length": ("LOG911", "differ in --max-model-len"),
    "other-model": ("LOG911", "differ in the model"),
    "other-shape": ("LOG911", "differ in the model"),
}


UNSAID = ("healthy", "link-2s", "loss", "clock", "slow-interface", "starter-killed")
"""The server goes on, or nobody is left who could say it."""


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("name", SAID)
def test_both_logs_name_the_cause(name, order):
    logs = [(f"{end}.log", (DATA / f"{name}-{end}.log").read_bytes()) for end in ("head", "worker")]
    run = together(dict(logs[::order]))
    rule, said = SAID[name]
    assert run.findings[0].rule == rule and said in run.findings[0].message, run.headline
    assert {one.rule for one in run.findings if one.severity == "error"} == {rule}
    assert not run.healthy


@pytest.mark.parametrize("name", ["nccl-tensor", "nccl-pipeline"])
def test_two_gpus_over_sockets_are_healthy_and_on_a_slow_path(name):
    """vLLM 0.24.0 with NCCL 2.28.9 on two H200s in two namespaces, started by `cluster serve`."""
    logs = {f"{end}.log": (DATA / f"{name}-{end}.log").read_bytes() for end in ("head", "worker")}
    run = together(logs)
    assert run.healthy, run.headline
    assert {one.rule for one in run.findings if one.severity != "info"} == {"LOG504"}


def test_the_record_of_faults_is_whole():
    kept = {one.name: one for one in faults()}
    assert set(SAID) <= set(kept)
    for one in kept.values():
        assert one.left == {}, f"{one.name} left {one.left}"
        assert one.status_right is not False, one.name
        assert one.said or one.name in UNSAID, one.name
        assert one.client_s is None or one.client_s < 10, one.name
    named = {name: (kept[name].said or "")[:6] for name in kept}
    assert named["link-60s"] == "FAB404" and named["port-blocked"] == "FAB406"
    assert named["wrong-interface"] == "FAB401" and named["head-killed"] == "FAB402"
    assert named["never-starts"] == "FAB405"
