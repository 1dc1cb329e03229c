"""Ranks in containers: started, found by the verbs, one of them lost, and all taken down."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sparkbook import cluster
from sparkbook.cli import app
from sparkbook.cluster import cluster_plan, nodes, server
from sparkbook.formats import docker_run
from sparkbook.serve import running, stack
from typer.testing import CliRunner

pytestmark = pytest.mark.docker


@pytest.fixture
def two(engine, tmp_path):
    """An inventory of two nodes that share the engine: loopback is their network."""
    pair = cluster.Inventory(
        nodes=[
            {"host": "spark-a", "address": "127.0.0.1"},
            {"host": "spark-b", "address": "127.0.0.2", "via": ["env"]},
        ]
    )
    file = tmp_path / "two.yaml"
    file.write_text(pair.model_dump_json())
    return pair, str(file)


def test_ranks_in_containers(engine, answering, two):
    inventory, file = two
    launch = answering(port=8017)
    sites = nodes.look(inventory)
    served = server.ClusterServer(
        cluster_plan.plan(inventory, stack.given(launch, "two"), sites), sites
    )
    try:
        served.start()
        served.wait_ready(deadline_s=60)
        assert [(row["name"], row["state"]) for row in cluster_rows(file)] == [
            ("two-spark-a", "ready"),
            ("two-spark-b", "running"),
        ]
        ran = CliRunner().invoke(app, ["cluster", "logs", file, "two"])
        assert (
            "==> two-spark-b <==" in ran.output
            and "--node-rank 1" in ran.output
            and "--headless" in ran.output
        )
        body = served.engines["two-spark-b"].inspect()["Config"]
        assert "VLLM_HOST_IP=127.0.0.2" in body["Env"] and "sparkbook.name" in body["Labels"]
        engine.client.containers.get("two-spark-b").kill()
        fault = served.settled(120)
        assert (
            fault.findings[0].rule == "FAB402"
            and "spark-b" in fault.findings[0].message
            and "137" in fault.findings[0].message
        )
    finally:
        left = served.stop()
    assert not left


def cluster_rows(file):
    ran = CliRunner().invoke(app, ["cluster", "status", file, "--json"])
    return json.loads(ran.output)["ranks"]


def test_the_verbs_end_what_they_started(engine, host, answering, two, monkeypatch):
    inventory, file = two
    sites = nodes.look(inventory)
    served = server.ClusterServer(
        cluster_plan.plan(inventory, stack.given(answering(port=18018), "two"), sites), sites
    )
    served.start()
    served.wait_ready(deadline_s=60)
    served.leave()
    assert {one.name for one in running.status(host)} == {"two-spark-a", "two-spark-b"}
    ran = CliRunner().invoke(app, ["cluster", "stop", file, "two", "--json"])
    assert ran.exit_code == 0 and json.loads(ran.output)["stopped"] == [
        "two-spark-b",
        "two-spark-a",
    ]


def test_a_lost_engine_is_named_and_said_to_be_left(engine, answering, two):
    inventory, _ = two
    sites = nodes.look(inventory)
    served = server.ClusterServer(
        cluster_plan.plan(inventory, stack.given(answering(port=18019), "two"), sites), sites
    )
    served.start()
    try:
        served.wait_ready(deadline_s=60)
        engine.stop_daemon()
        fault = served.settled(120)
        assert fault.findings[0].rule in ("FAB402", "FAB403")
        begin = time.monotonic()
        left = served.stop()
        assert {finding.rule for finding in left} == {"FAB501"} and time.monotonic() - begin < 300
    finally:
        engine.start_daemon()
        for container in engine.client.containers.list(all=True, ignore_removed=True):
            container.remove(force=True)


STARTER = """
import sys
from sparkbook import cluster
from sparkbook.cluster import cluster_plan, nodes, server
from sparkbook.serve import stack
inventory = cluster.read(sys.argv[1])
sites = nodes.look(inventory)
plan = cluster_plan.plan(inventory, stack.given(sys.argv[2], "two"), sites)
served = server.ClusterServer(plan, sites)
served.start()
print("started", flush=True)
served.wait_ready(deadline_s=600)
"""


def test_a_start_over_several_nodes_that_is_killed_leaves_no_container(engine, answering, two):
    _, file = two
    launch = Path(file).with_name("launch.sh")
    launch.write_text(docker_run.write(answering("hangs", port=18020)))
    words = [sys.executable, "-c", STARTER, file, launch]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout.readline() == "started\n"
        assert len(engine.client.containers.list(all=True, ignore_removed=True)) == 2
        started.kill()
    deadline = time.monotonic() + 60
    while (
        engine.client.containers.list(all=True, ignore_removed=True) and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert engine.client.containers.list(all=True, ignore_removed=True) == []
