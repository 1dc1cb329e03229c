"""The checks judge what probes read: recorded machines, and every public report of a host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from sparkbook import host
from sparkbook.errors import SparkbookError
from sparkbook.host.checks import Report
from sparkbook.host.rules import CHECKS
from sparkbook.host.rules.nodes import COMPARISONS
from sparkbook.logs import parse_facts

HEALTHY = host.recorded("healthy")
REPORTS = yaml.safe_load(
    (Path(__file__).parents[1] / "data" / "host" / "reports.yaml").read_text("utf-8")
)


def _codes(report: host.Report) -> list[str]:
    return [finding.rule for finding in report.findings]


def test_a_healthy_spark_is_ready_and_nothing_is_found():
    report = host.check(HEALTHY)
    assert (report.verdict, report.exit_code, _codes(report)) == ("ready", 0, [])
    silent = {result.name for result in report.results if not result.judged}
    assert silent == {
        "vLLM on the host",
        "interfaces",
        "fast link",
        "RDMA ports",
        "MTU",
    }, "everything else can be judged on it"


def test_every_rule_belongs_to_a_check():
    attached = [rule.code for check in CHECKS for rule in check.rules]
    compared = [comparison.rule.code for comparison in COMPARISONS]
    assert sorted([*attached, *set(compared)]) == sorted(host.HOST.rules)


@pytest.mark.parametrize("report", REPORTS, ids=[report["title"] for report in REPORTS])
def test_a_public_report_is_seen_on_its_host(report):
    if "nodes" in report:
        nodes = [
            HEALTHY.changed({**change, "name": f"spark-{number}"})
            for number, change in enumerate(report["nodes"])
        ]
        seen = host.check_nodes(nodes)
    else:
        seen = host.check(HEALTHY.changed(report["change"]))
    assert {finding.rule: finding.kind for finding in seen.findings}.items() >= report[
        "expect"
    ].items()


def test_every_kind_that_a_host_check_is_the_first_to_catch_is_among_the_reports():
    kinds = {kind for report in REPORTS for kind in report["expect"].values()}
    assert kinds >= {
        "arch-image",
        "arch-no-kernel",
        "arch-ptx-driver",
        "cache-permission",
        "docker-permission",
        "download-corrupt",
        "driver",
        "flashinfer-jit",
        "gated-download",
        "host-ipc",
        "launcher-quoting",
        "libcudart",
        "multi-node-interface",
        "multi-node-rdma",
        "nvidia-runtime",
        "nvml-not-supported",
        "oom-startup-check",
        "orphan-memory",
        "page-cache",
        "port-in-use",
        "power-throttle",
        "registry-auth",
        "restart-policy",
        "slow-load",
    }


def test_a_laptop_is_told_once_that_it_is_no_spark_and_the_rest_is_judged():
    report = host.check(host.recorded("laptop"))
    assert report.verdict == "ready"
    assert _codes(report).count("HOST001") == 1
    judged = {result.name for result in report.results if result.judged}
    assert judged >= {
        "memory",
        "docker engine",
        "model store",
        "disk",
        "port",
        "shared memory",
        "limits",
    }


def test_without_docker_a_laptop_is_ready_until_a_recipe_with_a_container_is_named():
    bare = host.recorded("laptop").changed({"docker": None})
    assert host.check(bare).verdict == "ready"
    assert (
        host.check(
            bare.changed({"wanted": {"recipe": "x", "image": "vllm/vllm-openai:v0.28.0"}})
        ).verdict
        == "blocked"
    )
    embedded = host.check(bare.changed({"wanted": {"recipe": "embedded/tiny"}}))
    assert "HOST004" not in _codes(embedded)


def test_what_cannot_be_read_is_not_judged_and_no_fault():
    report = host.check(
        host.Machine(
            system={"architecture": "aarch64", "kernel": "6.17"},
            unread={"docker": "it could not be read: broken"},
        )
    )
    by_name = {result.name: result for result in report.results}
    assert by_name["docker engine"].verdict == "not judged"
    assert by_name["docker engine"].saw == "it could not be read: broken"
    assert by_name["clocks and power"].verdict == "not judged"
    assert report.verdict == "ready"


def test_the_verdict_says_what_was_not_judged():
    report = host.check(host.recorded("laptop").changed({"docker": None, "gpu": {"names": []}}))
    unjudged = sum(not result.judged for result in report.results)
    assert unjudged > 20 and report.missing == ["no GPU", "no Docker", "no recipe named"]
    assert report.headline == (
        f"ready, as far as could be judged: {unjudged} of {len(report.results)} checks not judged"
        " (no GPU, no Docker, no recipe named)"
    )
    summary = report.to_dict()["summary"]
    assert summary["verdict"] == "ready" and summary["headline"] == report.headline
    assert (summary["not_judged"], summary["checks"]) == (unjudged, len(report.results))
    assert summary["missing"] == report.missing
    whole = Report(report.machines, tuple(r for r in report.results if r.judged))
    assert whole.headline == "ready" and whole.missing == []


def test_an_idle_gpu_is_not_judged_by_its_clock():
    idle = HEALTHY.changed({"load": {"utilization": 3, "clock_mhz": 208, "power_w": 4}})
    result = next(r for r in host.check(idle).results if r.name == "clocks and power")
    assert result.verdict == "not judged"
    assert "--run" in result.saw


@pytest.mark.parametrize(
    ("mhz", "stuck"),
    [(513, True), (721, True), (800, True), (899, True), (900, False), (2405, False)],
)
def test_the_stuck_clocks(mhz, stuck):
    assert ("HOST017" in _codes(host.check(HEALTHY.changed({"load": {"clock_mhz": mhz}})))) is stuck


@pytest.mark.parametrize(
    ("kernel", "bad"),
    [
        ("7.0.0-1019-nvidia", True),
        ("7.0.0-31-generic", True),
        ("7.0.0-30-generic", False),
        ("7.0.0-310-generic", False),
        ("6.17.0-1019-nvidia", False),
    ],
)
def test_the_kernels_without_rdma(kernel, bad):
    assert ("HOST011" in _codes(host.check(HEALTHY.changed({"system": {"kernel": kernel}})))) is bad


def test_no_rule_is_listed_lighter_than_it_weighs_in_its_own_example():
    """The chapter lists each rule by the severity in its table, and its page shows the example."""
    for code, rule in host.HOST.rules.items():
        findings = host.HOST.examine(rule.example("fails"))
        assert {f.severity for f in findings if f.rule == code} == {rule.severity}, code


def test_a_kernel_without_rdma_does_not_block_one_spark_alone():
    assert (
        host.check(HEALTHY.changed({"system": {"kernel": "7.0.0-1019-nvidia"}})).verdict == "ready"
    )


def test_verdicts_and_exit_codes():
    assert (host.check(HEALTHY.changed({"load": {"clock_mhz": 513}})).verdict, 1) == ("slow", 1)
    slow, blocked = (
        HEALTHY.changed({"load": {"clock_mhz": 513}}),
        HEALTHY.changed({"port": {"owner": "python3"}}),
    )
    assert [host.check(machine).exit_code for machine in (HEALTHY, slow, blocked)] == [0, 0, 1]


def test_what_is_staged_already_is_not_asked_of_the_hub_or_the_disk():
    locked = HEALTHY.changed(
        {
            "hub": {"access": {"nvidia/Qwen3.6-35B-A3B-NVFP4": 403}},
            "store": {"free_bytes": 1_000_000},
        }
    )
    assert host.check(locked).verdict == "ready"


def test_the_json_is_what_diagnose_takes():
    orphan = {
        "processes": [{"pid": 4711, "name": "VLLM::EngineCore", "parent": 1, "gpu_mib": 104277}]
    }
    facts = parse_facts(json.dumps(host.check(HEALTHY.changed(orphan)).to_dict()))
    assert (facts.total_gib, facts.available_gib, facts.free_gib, facts.fraction) == (
        121.69,
        101.8,
        100.9,
        0.8,
    )
    assert ("EngineCore", 4711, 104277.0) in facts.engines


def test_the_json_can_be_judged_again_elsewhere():
    report = host.check(HEALTHY.changed({"gpu": {"driver": "570.86.10"}, "seconds": {"gpu": 0.2}}))
    again = host.check(host.read_machine(json.dumps(report.to_dict()), "probes.json"))
    assert again.to_dict() == report.to_dict()
    assert [
        check["seconds"] for check in report.to_dict()["checks"] if check["name"] == "driver"
    ] == [0.2]


def test_several_nodes_are_compared():
    other = HEALTHY.changed({"name": "spark-2"})
    same = host.check_nodes([HEALTHY, other])
    assert same.verdict == "ready"
    assert {result.node for result in same.results} == {"spark-1", "spark-2", "all"}
    unknown = host.check_nodes([HEALTHY, other.changed({"store": {"digest": None}})])
    (weights,) = [result for result in unknown.results if result.name == "weights on every node"]
    assert (weights.verdict, weights.saw) == ("not judged", "not known of spark-2")


@pytest.mark.parametrize("text", ["[", "x: 1", "probes: {system: {}}", "{}", ""])
def test_a_file_that_holds_no_machine_is_refused_with_a_reason(text):
    with pytest.raises(SparkbookError, match="probes"):
        host.read_machine(text, "probes.json")


def test_an_unknown_recording_and_an_unknown_change():
    with pytest.raises(SparkbookError, match="healthy, laptop"):
        host.recorded("nothing")
    with pytest.raises(SparkbookError, match="gpu"):
        HEALTHY.changed({"gpu": {"colour": "green"}})


def test_a_login_is_not_missed_where_nobody_knows_whether_the_image_is_here():
    change = {
        "wanted": {"image": "nvcr.io/nvidia/vllm:26.04-py3", "digest": None},
        "image": None,
        "registry": {"logins": []},
    }
    result = next(
        result
        for result in host.check(HEALTHY.changed(change)).results
        if result.name == "registry login"
    )
    assert result.verdict == "not judged"
