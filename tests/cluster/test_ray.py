"""A real Ray cluster of two nodes, started, counted, broken and gone by the launcher; vLLM itself
is the stand-in.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from sparkbook.cluster import cluster_plan, nodes, server
from sparkbook.serve import stack
from sparkbook.serve.engine import EngineError

pytestmark = [pytest.mark.cluster, pytest.mark.engine]


@pytest.fixture
def ray_environment(tmp_path, monkeypatch):
    """An engine's environment with this one's Ray, and a short folder for Ray's sockets."""
    programs = tmp_path / "engine" / "bin"
    programs.mkdir(parents=True)
    stand_in = Path(__file__).parents[1] / "serve" / "stand_in.py"
    for name, command in (
        ("python", ""),
        ("ray", f'"{Path(sys.executable).with_name("ray")}"'),
        ("vllm", f'"{stand_in}"'),
    ):
        (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {command} "$@"\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("SPARKBOOK_ENGINE_PYTHON", str(programs / "python"))
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")
    monkeypatch.setenv("RAY_TMPDIR", folder)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


def test_ray_over_two_nodes(two_nodes, ray_environment):
    # A machine of its own has a folder of its own: Ray's sockets of both would lie in one.
    (ray_environment / "b").mkdir()
    script = f'mount --bind {ray_environment}/b {ray_environment} && exec "$@"'
    inventory = two_nodes.inventory(
        via=[*two_nodes.via, "unshare", "--mount", "sh", "-c", script, "sh"]
    )
    sites = nodes.look(inventory)
    planned = cluster_plan.plan(
        inventory, stack.given("embedded/tiny-dense", "two"), sites, backend="ray"
    )
    for turns_left in (2, 1, 0):
        served, said = server.ClusterServer(planned, sites), []
        try:
            served.start(said.append)
            break
        except (
            EngineError
        ) as error:  # Ray waits 30 seconds for its daemon: not long on a busy machine
            if not turns_left or "timed out during startup" not in str(error):
                raise
    try:
        assert said == [
            "starting two-spark-a-ray on spark-a",
            "starting two-spark-b-ray on spark-b",
            "Ray counts 2 nodes",
            "starting two-spark-a on spark-a",
        ]
        served.wait_ready(deadline_s=240)
        assert b"--distributed-executor-backend ray" in served.head.log_file.read_bytes()
        worker = served.engines["two-spark-b-ray"]
        raylet = next(
            p
            for p in psutil.Process(worker._guard.pid).children(recursive=True)
            if p.name() == "raylet"
        )
        assert "10.97.0.2" in " ".join(raylet.cmdline()), (
            "it is known by its address on the fast network"
        )
        os.kill(raylet.pid, signal.SIGKILL)
        fault = served.settled(240)
        assert fault is not None and "spark-b" in fault.findings[0].message, str(fault)
    finally:
        left = served.stop()
    assert not left and not two_nodes.processes()
