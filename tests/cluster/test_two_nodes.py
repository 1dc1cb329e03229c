"""A real server over two nodes: real vLLM on two network namespaces, started, asked, broken, and
gone.
"""

import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from sparkbook.cluster import cluster_plan, nodes, server
from sparkbook.serve import stack

pytestmark = [pytest.mark.cluster, pytest.mark.engine]


def tiny():
    return stack.given("embedded/tiny-dense", "two")


def started(inventory, **choices):
    sites = nodes.look(inventory)
    planned = cluster_plan.plan(inventory, tiny(), sites, **choices)
    return server.ClusterServer(planned, sites)


def until(condition, within_s=240):
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.1)


def test_tensor_parallel_over_two_nodes_and_a_worker_killed(two_nodes):
    inventory = two_nodes.inventory()
    served = started(inventory)
    try:
        served.start()
        ready = served.wait_ready(deadline_s=600)
        assert [stage.name for stage in ready.stages][:4] == [
            "port",
            "health",
            "models",
            "completion",
        ]
        reply = served.endpoint.client().chat.completions.create(
            model="tiny-dense",
            messages=[{"role": "user", "content": "What is 12*17?"}],
            temperature=0,
            max_tokens=64,
        )
        assert "204" in reply.choices[0].message.content
        worker = served.engines["two-spark-b"]
        assert b"rank 1 in world size 2" in worker.log_file.read_bytes()
        leader = next(
            p
            for p in psutil.Process(worker._guard.pid).children(recursive=True)
            if "Worker" in " ".join(p.cmdline())
        )
        os.kill(leader.pid, signal.SIGKILL)
        fault = served.settled(240)
        assert fault is not None
        assert fault.findings[0].rule == "FAB402" and "spark-b" in fault.findings[0].message, str(
            fault
        )
        assert set(fault.tails) == {"spark-a (rank 0)", "spark-b (rank 1)"}
    finally:
        left = served.stop()
    assert not left and not two_nodes.processes()
    assert not list(Path(os.environ["SPARKBOOK_CACHE"]).glob("engines/*/api-key"))


def test_the_link_is_cut_during_the_start(two_nodes):
    served = started(two_nodes.inventory())
    try:
        served.start()
        until(lambda: b"world_size=2" in served.engines["two-spark-b"].log_file.read_bytes())
        two_nodes.cut()
        with pytest.raises(server.ClusterFault) as fault:
            served.wait_ready(deadline_s=600)
        assert (
            fault.value.findings[0].rule == "FAB404"
            and "spark-b" in fault.value.findings[0].message
        ), str(fault.value)
    finally:
        served.stop()
    assert not two_nodes.processes()
