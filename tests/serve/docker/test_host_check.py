"""The host check in front of a real Docker engine: what the probes read there, and what is left
behind (nothing).
"""

from __future__ import annotations

import contextlib
import time

import docker
import pytest
from docker.types import DeviceRequest
from sparkbook import host
from sparkbook.host.access import Access
from sparkbook.host.probes import look
from sparkbook.recipes.schema import Recipe

pytestmark = pytest.mark.docker
GPU = DeviceRequest(count=-1, capabilities=[["gpu"]])


def recipe(image="test/busybox:1"):
    return Recipe.model_validate(
        {
            "id": "test",
            "title": "T",
            "summary": "S",
            "family": "qwen",
            "sources": [{"id": "s", "title": "S"}],
            "model": {"repo": "tiny-dense", "quantization": {"format": "bf16"}},
            "image": {"ref": image},
            "container": {"ports": ["127.0.0.1:8000:8000"]},
        }
    )


def seen(image="test/busybox:1", **how):
    return look(recipe(image), Access(get=lambda url, token: (200, {})), **how)


def codes(machine):
    return [finding.rule for finding in host.judge(machine)]


def test_the_engine_and_its_image(engine):
    machine = seen()
    version = engine.client.version()
    assert (machine.docker.version, machine.docker.api) == (
        version["Version"],
        version["ApiVersion"],
    )
    assert machine.docker.root == f"{engine.folder}/data"
    assert machine.docker.containers == []
    assert machine.store.docker_free_bytes > 0
    assert machine.image.present
    assert not {"HOST004", "HOST005", "HOST006", "HOST030", "HOST041"} & set(codes(machine))
    absent = seen("test/nothing:1")
    assert absent.image.present is False
    assert "HOST040" in codes(absent)


def test_servers_in_each_state(engine):
    options = {"labels": {"org.vllm": "yes"}, "detach": True}
    engine.client.containers.run("test/busybox:1", ["sleep", "60"], name="vllm-runs", **options)
    ends = engine.client.containers.run(
        "test/busybox:1", ["sh", "-c", "exit 3"], name="vllm-ends", **options
    )
    looped = {"restart_policy": {"Name": "on-failure", "MaximumRetryCount": 3}}
    loops = engine.client.containers.run(
        "test/busybox:1", ["sh", "-c", "exit 1"], name="vllm-loops", **options, **looped
    )
    left = engine.client.containers.create(
        "test/busybox:1", name="vllm-left", labels={"org.vllm": "yes"}, device_requests=[GPU]
    )
    with pytest.raises(docker.errors.APIError):
        left.start()
    ends.wait(timeout=60)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        loops.reload()
        if loops.status == "exited" and loops.attrs["RestartCount"] == 3:
            break
        time.sleep(0.1)
    machine = seen()
    by_name = {one.name: one for one in machine.docker.containers}
    assert by_name["vllm-runs"].state == "running"
    assert (by_name["vllm-ends"].state, by_name["vllm-ends"].exit_code) == ("exited", 3)
    assert 0 <= by_name["vllm-ends"].stopped_s < 60
    assert (by_name["vllm-loops"].restart, by_name["vllm-loops"].restarts) == ("on-failure:3", 3)
    assert "could not select device driver" in by_name["vllm-left"].error
    assert {"HOST031", "HOST032", "HOST033"} <= set(codes(machine))
    for container in engine.client.containers.list(all=True, ignore_removed=True):
        container.remove(force=True)


def test_the_port_of_a_container_is_named(engine):
    assert seen().port.owner is None
    engine.client.containers.run(
        "test/busybox:1",
        ["sleep", "60"],
        name="holds",
        detach=True,
        ports={"80/tcp": [("127.0.0.1", 8000), ("0.0.0.0", 8001)]},
    )
    try:
        machine = seen()
        assert machine.docker.published == {"holds": ["0.0.0.0:8001"]}
        assert "HOST038" in codes(machine)
        assert machine.port.owner == "the container holds"
        assert "HOST060" in codes(machine)
    finally:
        engine.client.containers.get("holds").remove(force=True)


def test_an_engine_without_a_gpu_runtime_says_so_and_keeps_nothing(engine):
    machine = seen(run=True)
    assert machine.smoke.ok is False
    assert "could not select device driver" in machine.smoke.output
    spark = machine.model_copy(update={"gpu": host.recorded("healthy").gpu})
    (finding,) = [finding for finding in host.judge(spark) if finding.rule == "HOST035"]
    assert finding.kind == "nvidia-runtime"
    assert engine.client.containers.list(all=True, ignore_removed=True) == []


def test_an_engine_that_was_stopped(engine):
    engine.stop_daemon()
    try:
        machine = seen()
        assert machine.docker.version is None
        assert "HOST006" in codes(machine) or "HOST004" in codes(machine)
    finally:
        engine.start_daemon()
        with contextlib.suppress(docker.errors.DockerException):
            engine.client.ping()
