"""The life of a server in a container, from our launcher, in a real Docker engine."""

import ctypes
import json
import signal
import stat
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import httpx
import psutil
import pytest
import yaml
from sparkbook import lock, logs, recipes
from sparkbook import start as first
from sparkbook.host import docker_probes
from sparkbook.releases import images
from sparkbook.serve import (
    containers,
    docker_engine,
    docker_host,
    launcher,
    running,
)
from sparkbook.serve.docker_engine import start
from sparkbook.serve.faults import ServeFault
from sparkbook.serve.identity import Stranger
from sparkbook.serve.ready import NotReady
from sparkbook.serve.stack import CAPABILITIES, UNGUARDED, Choices, given
from sparkbook.serve.watchdog import Limits, Sample, Watchdog
from sparkbook.units import format_bytes

pytestmark = pytest.mark.docker
CLONE_NEWNET = 0x40000000
COMMAND = Path(sys.executable).with_name("sparkbook")


def test_the_whole_life_of_a_real_server(engine, host, real, monkeypatch, tmp_path):
    canary = "canary-of-the-life-test-3141592653"
    monkeypatch.setenv("HF_TOKEN", canary)
    said = []
    server = start(given(real), host=host, progress=said.append, deadline_s=240)
    key = server.endpoint.api_key

    # Ready means: real requests were answered, and what the recipe claims was tried.
    assert [stage.name for stage in server.readiness.stages] == [
        "port",
        "health",
        "models",
        "completion",
        "tools",
        "reasoning",
        "json schema",
    ]
    assert any(line.startswith("starting tiny from test/host:1") for line in said)
    assert any("DOCK206" in line for line in said)

    # Safe by default: loopback, a private key, no privileges, the restarts of a stack that is new.
    seen = server.inspect()
    assert seen["HostConfig"]["PortBindings"] == {
        "8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8000"}]
    }
    assert not seen["HostConfig"]["Privileged"]
    assert seen["HostConfig"]["RestartPolicy"] == {"Name": "on-failure", "MaximumRetryCount": 3}
    assert all(not mount["RW"] for mount in seen["Mounts"])
    assert stat.S_IMODE(server.key_file.stat().st_mode) == 0o600
    assert len(key) == 64
    command_lines = [
        " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])
    ]
    assert any("vllm serve /models/tiny-dense" in line for line in command_lines)
    assert not [line for line in command_lines if key in line or canary in line]
    assert f"HF_TOKEN={canary}" in seen["Config"]["Env"]  # it did arrive

    # The routes that the key does not cover are those that the notes name.
    assert httpx.get(f"{server.endpoint.url}/v1/models").status_code == 401
    status = {route: httpx.get(f"{server.endpoint.url}{route}").status_code for route in UNGUARDED}
    open_here = [route for route, code in status.items() if code not in (401, 403)]
    assert open_here == list(UNGUARDED), status
    body = {
        "model": server.endpoint.model,
        "messages": [{"role": "user", "content": "ping"}],
        "max_tokens": 4,
    }
    assert (
        httpx.post(f"{server.endpoint.url}/invocations", json=body, timeout=60).status_code == 200
    )

    # The same again is found, not started again.
    again = start(given(real), host=host, progress=said.append)
    assert again.already and again.id == server.id and "up already" in "".join(said)

    # status, logs, lock: what others see of it.
    (listed,) = running.status(host)
    assert (listed.name, listed.state, listed.recipe, listed.target) == (
        "tiny",
        "ready",
        "embedded/tiny-dense",
        "docker",
    )
    log = b"".join(running.logs(host, "tiny"))
    deadline = time.monotonic() + 60
    # The file follows a moment later, and standard error may come in between.
    while left := Counter(log.splitlines()) - Counter(server.log_file.read_bytes().splitlines()):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
    assert logs.diagnose(log.decode()).healthy
    monkeypatch.setattr(recipes, "load", lambda _name: real)
    locked = lock.make(
        real.launch,
        real,
        served=lock.Served(*containers.digest_of(host, containers.find(host)[0]), "0.32.0", "x"),
    )
    assert locked["image"]["id"].startswith("sha256:")
    assert launcher.lock_of(given(real))["engine"]["vllm"] == "0.32.0"  # as the server reports

    # The canary and the key are nowhere in what was said, printed, or kept.
    kept = "".join(
        [
            *said,
            log.decode(),
            lock.dumps(locked),
            json.dumps(listed.to_dict()),
            repr(server),
            str(server.request),
        ]
    )
    kept += "".join(
        path.read_text(errors="replace")
        for path in tmp_path.rglob("*")
        if path.is_file() and path != server.key_file
    )
    assert canary not in kept and key not in kept

    server.stop()
    server.stop()
    assert containers.find(host) == []
    assert not running.status(host)


def test_another_stack_on_the_port_is_named_and_can_be_replaced(host, answering):
    first = start(given(answering(), "first"), host=host, watch=False)
    with pytest.raises(ServeFault, match=r"DOCK104(?s:.*)first is up on port 8000(?s:.*)--replace"):
        start(given(answering(), "second"), host=host, watch=False)
    with pytest.raises(ServeFault, match=r"DOCK10\d(?s:.*)another configuration"):
        start(given(answering("no-tools"), "first"), host=host, watch=False)
    second = start(given(answering(), "second"), host=host, watch=False, replace=True)
    assert [found.name for found in containers.find(host)] == ["second"]
    assert not first.running
    other_port = start(
        given(answering(), "third"), host=host, watch=False, choices=Choices(port=8001)
    )
    assert other_port.endpoint.url == "http://127.0.0.1:8001"
    assert other_port.endpoint.served_models() == ["small"]
    for server in (second, other_port):
        server.stop()


def test_of_starts_at_once_under_one_name_one_is_left_alone(host, answering, monkeypatch):
    """Each has another configuration and port, and has looked before any makes its container."""
    together, look = Barrier(4), docker_engine._check_strangers

    def looked(*given):
        look(*given)
        together.wait(60)

    def begin(number):
        stack = given(answering(port=8000 + number), "victim")
        try:
            return start(stack, host=host, watch=False, ready=False)
        except ServeFault as fault:
            return fault.finding

    monkeypatch.setattr(docker_engine, "_check_strangers", looked)
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(begin, range(4)))
    (winner,) = [one for one in outcomes if isinstance(one, docker_engine.DockerEngine)]
    losers = [one for one in outcomes if one is not winner]
    assert [one.id for one in containers.find(host)] == [winner.id]
    for finding in losers:
        assert finding.rule == "DOCK105" and "another configuration" in finding.evidence
        assert "sparkbook stop victim" in finding.fix and "docker rm" not in finding.fix
    winner.wait_ready(deadline_s=60)
    winner.stop(grace_s=1)


def test_a_stranger_on_the_hosts_network_is_not_ready_and_never_gets_the_key(
    host, answering, stranger, tmp_path
):
    programs = tmp_path / "programs"  # the container's folder on this host
    launch = answering("late", network="host")
    launch = launch.model_copy(
        update={"env": {**launch.env, "STAND_IN_LOADED": "/programs/loaded"}}
    )
    server = start(given(launch, "late"), host=host, watch=False, ready=False)
    deadline = time.monotonic() + 60
    while b"bound" not in server.log_file.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    with stranger(8000) as requests:
        with pytest.raises(
            NotReady, match=r"port failed: process \d+ .* listens on 127.0.0.1:8000"
        ):
            server.wait_ready(deadline_s=60)
        assert running.status(host)[0].state == "port taken"
        with pytest.raises(Stranger):
            running.endpoint(host, "late")
        assert requests == []
    (programs / "loaded").touch()
    server.wait_ready(deadline_s=60)
    server.stop()


def test_a_port_that_docker_publishes_in_another_network_is_not_asked_here(
    host, answering, stranger
):
    """As with an engine in a machine of its own: what listens here is somebody else."""
    server = start(given(answering(), "elsewhere"), host=host, watch=False)
    assert server.listens()

    def outside():
        assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0  # this thread alone
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        with stranger(8000) as requests, pytest.raises(Stranger):
            server.listens()
        return requests

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(outside).result() == []
    server.stop()


def test_each_container_keeps_the_key_that_it_was_started_with(host, answering, monkeypatch):
    servers = []
    for number in (1, 2):
        monkeypatch.setenv("VLLM_API_KEY", f"key-{number}")
        choices = Choices(port=8000 + number)
        stack = given(answering(), f"server-{number}")
        servers.append(start(stack, host=host, watch=False, choices=choices))
    monkeypatch.delenv("VLLM_API_KEY")
    assert [server.key_file.read_text() for server in servers] == ["key-1", "key-2"]
    assert {server.state for server in running.status(host)} == {"ready"}
    with pytest.raises(ServeFault):  # a loser leaves the winner's key
        monkeypatch.setenv("VLLM_API_KEY", "key-3")
        start(given(answering("no-tools"), "server-1"), host=host, watch=False)
    assert servers[0].key_file.read_text() == "key-1"
    for server in servers:
        running.stop(host, server.name)
        assert not server.key_file.exists()
        assert b"stand-in" in b"".join(running.logs(host, server.name))  # its log stays


def test_a_proven_stack_may_be_kept_for_ever(host, answering):
    server = start(
        given(answering(), "kept"), host=host, watch=False, choices=Choices(restart_always=True)
    )
    assert server.inspect()["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
    server.stop()


def test_the_log_goes_on_over_a_restart(host, shell):
    launch = shell("echo one; sleep 0.3; exit 1")
    server = start(given(launch, "again"), host=host, watch=False, ready=False)
    deadline = time.monotonic() + 60
    while server.log_file.read_text().count("one") < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    while containers.find(host)[0].state != "exited" and time.monotonic() < deadline:
        time.sleep(0.1)
    assert server.log_file.read_text() == "one\n" * 4  # on-failure:3
    assert server.ended().rule == "DOCK306" and "3 restarts" in server.ended().evidence
    assert running.status(host)[0].state == "stopped"
    server.stop()


def test_watchdog_stops_a_start_that_eats_the_host(host, answering, monkeypatch):
    samples = iter(
        [Sample(0, 9 << 30), Sample(1, 5 << 30), *(Sample(2 + i, 1 << 30) for i in range(9))]
    )

    def made(act, endpoint, floor):
        return Watchdog(act, lambda: next(samples), Limits(6 << 30), every_s=0.05)

    monkeypatch.setattr(docker_engine.watchdog, "guard", made)
    with pytest.raises(ServeFault) as told:
        start(given(answering("hangs"), "greedy"), host=host)
    assert told.value.finding.rule == "DOCK401" and told.value.finding.kind == "host-freeze"
    assert containers.find(host) == []


def test_nothing_is_started_on_a_full_host(host, answering):
    with pytest.raises(ServeFault, match="DOCK403"):
        start(given(answering(), "late"), host=host, floor=1 << 60)


# ---- a registry


@pytest.fixture
def registry(engine, tmp_path):
    """Debian's docker-registry on the engine's loopback, with one image of 40 MB that is not here."""
    import io
    import os
    import shutil
    import tarfile

    from sparkbook.serve.process import free_port

    port = free_port()
    (tmp_path / "registry.yml").write_text(
        "version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory:"
        f" {tmp_path}/registry}}}}\nhttp: {{addr: 127.0.0.1:{port}}}\n"
    )
    process = subprocess.Popen(
        ["docker-registry", "serve", tmp_path / "registry.yml"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"127.0.0.1:{port}"
        while True:
            try:
                httpx.get(f"http://{address}/v2/").raise_for_status()
                break
            except httpx.HTTPError:
                time.sleep(0.05)
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            tar.add(shutil.which("busybox"), "bin/sh")
            info = tarfile.TarInfo("weights")
            info.size = 40_000_000
            tar.addfile(info, io.BytesIO(os.urandom(info.size)))
        name = f"{address}/test/big"
        engine.client.api.import_image_from_data(content.getvalue(), repository=name, tag="1")
        told = [json.loads(line) for line in engine.client.api.push(name, tag="1").splitlines()]
        digest = next(line["aux"]["Digest"] for line in told if "aux" in line)
        engine.client.images.remove(f"{name}:1")
        yield name, digest
        for image in engine.client.images.list(name=name):
            engine.client.images.remove(image.id, force=True)
    finally:
        process.terminate()
        process.wait(60)


def test_pull_with_progress_by_digest(host, registry):
    name, digest = registry
    said = []
    assert docker_host.pull(host.client, f"{name}@{digest}", said.append, every_s=0) == digest
    assert said[0] == f"pulling {name}@{digest}"
    assert any("0 of 1 layers" in line and " MiB of 39.17 MiB" in line for line in said)
    assert said[-1].startswith("1 of 1 layers") and said[-1].endswith(digest)
    assert docker_host.image_present(host.client, f"{name}@{digest}")
    with pytest.raises(ServeFault, match="DOCK106"):
        docker_host.pull(host.client, f"{name}:nope")
    with pytest.raises(ServeFault, match="DOCK106"):
        docker_host.pull(host.client, f"{name}@sha256:{'0' * 64}")


def test_digest_of_what_was_pulled_goes_into_the_lock(host, registry, shell, tmp_path):
    name, digest = registry
    launch = shell("sleep 60").model_copy(update={"image": f"{name}:1"})
    server = start(given(launch, "pulled"), host=host, watch=False, ready=False)
    assert containers.digest_of(host, containers.find(host)[0]) == (
        digest,
        server.inspect()["Image"],
    )
    locked = launcher.lock_of(given(launch, "pulled"))
    server.stop(grace_s=1)
    assert lock.launch_of(locked).image == f"{name}:1@{digest}"
    # Served from the lock: that digest, whatever the tag means by now.
    (tmp_path / "lock.json").write_text(lock.dumps(locked))
    asked, _ = launcher.wanted(launcher.Wish(locked=str(tmp_path / "lock.json"), name="pulled"))
    again = start(asked, host=host, watch=False, ready=False)
    assert again.inspect()["Config"]["Image"] == f"{name}@{digest}"
    assert not [note for note in again.request.notes if note.rule == "DOCK204"]
    again.stop(grace_s=1)


# ---- each end of a start


def interrupted(
    launch_line: str, sign: str, *options: str, number: int = signal.SIGINT
) -> tuple[int, str]:
    """Runs `sparkbook serve` in a process of its own and sends it a signal when a line with the
    sign appears; exit code and output.
    """
    process = subprocess.Popen(
        [COMMAND, "serve", launch_line, "--name", "victim", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # What started the tests may ignore a hang-up, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    seen = ""
    for line in process.stdout:
        seen += line
        if sign in line:
            process.send_signal(number)
            break
    rest, _ = process.communicate(timeout=60)
    return process.returncode, seen + rest


def test_ctrl_c_while_pulling(engine, host, registry):
    name, digest = registry
    code, output = interrupted(
        f"docker run -p 8000:8000 {name}@{digest} vllm serve tiny", "pulling"
    )
    assert code == 130 and "Interrupted" in output and "Traceback" not in output, output
    time.sleep(0.5)
    assert engine.client.containers.list(all=True, ignore_removed=True) == []
    assert docker_host.image_present(host.client, f"{name}@{digest}") is None


@pytest.fixture
def launch_file(answering, tmp_path):
    """Makes a file with the launch line of the stand-in."""
    from sparkbook.formats import docker_run

    def make(mode: str) -> str:
        file = tmp_path / "launch.sh"
        file.write_text(docker_run.write(answering(mode)))
        return str(file)

    return make


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
@pytest.mark.parametrize("sign", ["starting victim", "port: "])
def test_each_end_of_a_start_leaves_no_container(engine, launch_file, sign, number):
    code, output = interrupted(launch_file("hangs"), sign, number=number)
    assert "Traceback" not in output, output
    if number == signal.SIGKILL:
        assert code == -number
        deadline = time.monotonic() + 60  # the one that guards the start removes it
        while (
            engine.client.containers.list(all=True, ignore_removed=True)
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
    else:
        assert code == 128 + number and "Interrupted" in output, output
    assert engine.client.containers.list(all=True, ignore_removed=True) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_end_of_a_watch_leaves_the_server(engine, host, launch_file, number):
    code, output = interrupted(launch_file(""), "url", "--watch", number=number)
    assert code == 0 and "Traceback" not in output, output
    assert running.stop(host, "victim") == "victim"
    assert engine.client.containers.list(all=True, ignore_removed=True) == []


# ---- Docker's states, one by one

STATES = {
    "created": "created",
    "running": "ready",
    "paused": "paused",
    "restarting": "restarting",
    "exited": "stopped",
}
"""Those that a container can be kept in, and what `status` calls them."""


@pytest.fixture
def in_state(engine, host, answering, shell):
    """Brings a server of ours into one of Docker's states."""

    def bring(state: str) -> None:
        api = engine.client.api
        stack = given(answering(), "victim")
        if state == "created":
            asked = docker_engine.prepare(stack)
            api.create_container_from_config(asked.body, asked.name)
        elif state == "restarting":
            asked = docker_engine.prepare(given(shell("exit 1"), "victim"))
            asked.body["HostConfig"]["RestartPolicy"] = {"Name": "always"}
            api.create_container_from_config(asked.body, asked.name)
            api.start("victim")
            while api.inspect_container("victim")["RestartCount"] < 4:
                time.sleep(0.05)  # from then on Docker waits for more than a second each time
        else:
            start(stack, host=host, watch=False)
        if state == "paused":
            api.pause("victim")
        if state == "exited":
            api.stop("victim", timeout=1)
        deadline = time.monotonic() + 60
        while (now := containers.find(host)[0].state) != state and time.monotonic() < deadline:
            time.sleep(0.02)
        assert now == state

    return bring


@pytest.mark.parametrize("state", STATES)
def test_states_of_a_container(host, in_state, answering, monkeypatch, state):
    in_state(state)
    (listed,) = running.status(host)
    assert listed.state in {STATES[state]} | ({"starting"} if state == "restarting" else set())
    other = given(answering("no-tools"), "victim")
    on_its_port = given(answering(), "other")
    if state == "exited":  # it runs no more, and makes room
        start(on_its_port, host=host, watch=False, ready=False).stop(grace_s=1)
        start(other, host=host, watch=False, ready=False)
    else:
        before = containers.find(host)[0].id
        for stack in (other, on_its_port):
            with pytest.raises(ServeFault, match=r"DOCK10[45](?s:.*)victim(?s:.*)--replace"):
                start(stack, host=host, watch=False, ready=False)
        assert [one.id for one in containers.find(host)] == [before]
        replacing = start(on_its_port, host=host, watch=False, ready=False, replace=True)
        assert [one.name for one in containers.find(host)] == ["other"]
        replacing.stop(grace_s=1)
        in_state(state)
    assert running.stop(host, "victim") == "victim"
    assert containers.find(host) == []


@pytest.mark.parametrize(
    ("word", "state"),
    [("removing", "stopping"), ("dead", "stopped")],
)
def test_states_that_pass_by(host, in_state, monkeypatch, word, state):
    """A container is so for a moment only, or after a fault of the engine: here its record says
    so.
    """
    in_state("exited")
    inspected = containers.inspected

    def passing(host, found):
        record = inspected(host, found)
        record["State"]["Status"] = word
        return record

    monkeypatch.setattr(containers, "inspected", passing)
    assert running.status(host)[0].state == state
    running.stop(host, "victim")


def test_what_a_container_may_do_on_its_host(engine, host, answering):
    server = start(given(answering(), "vllm"), host=host, watch=False)
    _, text = engine.client.containers.get("vllm").exec_run(["cat", "/proc/1/status"])
    status = dict(line.split(":", 1) for line in text.decode().splitlines())
    assert int(status["NoNewPrivs"]) == 1 and int(status["Seccomp"]) == 2
    kept = {0: "CHOWN", 1: "DAC_OVERRIDE", 3: "FOWNER", 5: "KILL", 6: "SETGID", 7: "SETUID"}
    assert set(kept.values()) == set(CAPABILITIES)  # numbers: linux/capability.h
    for which in ("CapEff", "CapPrm", "CapBnd"):
        assert int(status[which], 16) == sum(1 << number for number in kept)
    limit = host.memory - host.memory // 20
    limits = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max")
    script = f"cat {' '.join(limits)} 2>/dev/null"
    _, kernels = engine.client.containers.get("vllm").exec_run(["sh", "-c", script])
    assert abs(int(kernels) - limit) < 1 << 16, "in whole pages"
    rights = docker_probes._rights(server.inspect()["HostConfig"])
    assert rights == (
        "capabilities CHOWN DAC_OVERRIDE FOWNER KILL SETGID SETUID, no-new-privileges, seccomp,"
        f" writable root, memory limit {format_bytes(limit)} without CUDA's"
    )
    assert "DOCK209" in [note.rule for note in server.request.notes]
    server.stop(grace_s=1)


def test_a_read_only_root_has_folders_to_write_to(engine, host, answering):
    choices = Choices(read_only=True)
    server = start(given(answering(), "vllm"), host=host, watch=False, choices=choices)
    inside = engine.client.containers.get("vllm")
    for place in images.WRITES:
        assert inside.exec_run(["sh", "-c", f"echo > {place}/file"]).exit_code == 0, place
    for place in ("/", "/etc", "/var"):
        refused = inside.exec_run(["sh", "-c", f"echo > {place}/file"])
        assert refused.exit_code and b"Read-only file system" in refused.output, place
    assert "read-only root" in docker_probes._rights(server.inspect()["HostConfig"])
    volumes = len(engine.client.volumes.list())
    assert volumes >= len(images.WRITES)
    server.stop(grace_s=1)
    assert len(engine.client.volumes.list()) <= volumes - len(images.WRITES)


def test_a_container_whose_engine_is_frozen(host, answering, tmp_path, monkeypatch):
    launch = answering()
    launch = launch.model_copy(
        update={"env": {**launch.env, "STAND_IN_FROZEN": "/programs/frozen"}}
    )
    server = start(given(launch, "victim"), host=host, watch=False)
    (tmp_path / "programs" / "frozen").touch()
    (listed,) = running.status(host)
    assert listed.state == "frozen" and listed.end.rule == "DOCK309"
    server.stop(grace_s=1)


# ---- GPU, with a stand-in for NVIDIA's hook: dockerd grants --gpus when it finds one on its PATH


@pytest.fixture
def hook(dockerd):
    """Puts a script in the hook's place and restarts the engine."""

    def place(script: str) -> None:
        path = dockerd.stubs / "nvidia-container-runtime-hook"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    place("exit 0")
    dockerd.stop_daemon()
    dockerd.start_daemon()
    yield place
    (dockerd.stubs / "nvidia-container-runtime-hook").unlink()
    dockerd.stop_daemon()
    dockerd.start_daemon()


def test_gpus_are_handed_over(engine, host, answering, hook):
    for asked, given_to_it in (("all", "all"), ("device=0,2", "0,2")):
        server = start(given(answering(gpus=asked), "gpu"), host=host, watch=False)
        _, environment = engine.client.containers.get("gpu").exec_run(["cat", "/proc/1/environ"])
        assert f"NVIDIA_VISIBLE_DEVICES={given_to_it}".encode() in environment.split(b"\0")
        server.stop()
    hook("echo no driver answers >&2; exit 1")
    with pytest.raises(ServeFault, match=r"DOCK115(?s:.*)no driver answers"):
        start(given(answering(gpus="all"), "gpu"), host=host, watch=False)


# ---- another host, over SSH: a real sshd on the engine's loopback stands for it


@pytest.fixture
def other_host(engine, sshd, monkeypatch):
    """Address of a host that can be reached by key, whose DOCKER_HOST is the engine."""
    monkeypatch.delenv("DOCKER_HOST")
    return f"ssh://root@127.0.0.1:{sshd(DOCKER_HOST=engine.address)}"


def test_a_server_on_another_host(other_host, answering):
    deadline = time.monotonic() + 60
    while True:
        try:
            host = docker_host.reach(other_host)
            break
        except ServeFault:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
    said = []
    server = start(given(answering(), "far"), host=host, progress=said.append)
    assert host.remote and host.home == "/root"
    assert any("no watchdog" in line for line in said)
    assert server.endpoint.url != "http://127.0.0.1:8000"  # the near end of a tunnel
    assert server.endpoint.served_models() == ["small"]
    assert running.status(host)[0].state == "ready"
    server.stop()
    folder = host.tunnel.socket.parent
    host.close()
    assert not folder.exists()


def test_a_host_that_can_not_be_reached(other_host):
    port = other_host.rsplit(":", 1)[1]
    with pytest.raises(ServeFault, match="DOCK117"):
        docker_host.reach(f"ssh://nobody@127.0.0.1:{port}")  # the key is root's
    with pytest.raises(ServeFault, match="DOCK117"):
        docker_host.reach("ssh://127.0.0.1:1")
    with pytest.raises(ServeFault, match="is not ssh://"):
        docker_host.reach("ssh://-oProxyCommand=x")


def test_start_goes_from_the_recipe_to_a_first_answer_and_again(engine, host, real, tmp_path):
    """`sparkbook start`, without what only a Spark and a network have."""
    file = tmp_path / "tiny-box.yaml"
    file.write_text(
        yaml.safe_dump(real.model_dump(mode="json", exclude_unset=True) | {"id": "tiny-box"})
    )
    wanted = first.Wanted(recipe=str(file), client="openai", skip=("check", "fetch"))
    shown, said = [], []
    for _ in range(2):
        first.run(wanted, say=said.append, show=shown.append)
    once, again = (one.to_dict("openai") for one in shown)
    assert once["call"] == again["call"] == 'get_weather({"city": "Paris"})'
    assert once["steps"] == {
        "check": "left out",
        "fetch": "left out",
        "serve": "it answers",
        "ask": "answered, and called a tool",
    }
    assert again["steps"]["serve"] == "left out" and again["server"]["url"] == once["server"]["url"]
    (block,) = once["client"]["blocks"]
    assert once["server"]["key"] in block["text"] and once["server"]["url"] in block["text"]

    # What the settings of Open WebUI rest on: only next to the server is it reached.
    reached = {}
    for network, name in (
        ("bridge", "127.0.0.1"),
        ("bridge", "host.docker.internal"),
        ("host", "127.0.0.1"),
    ):
        probe = host.client.containers.create(
            "test/busybox:1",
            ["wget", "-q", "-O", "-", f"http://{name}:8000/health"],
            entrypoint=["/bin/busybox"],
            network_mode=network,
            extra_hosts={"host.docker.internal": "host-gateway"},
        )
        probe.start()
        reached[network, name] = probe.wait()["StatusCode"] == 0
        probe.remove()
    assert [*reached.values()] == [False, False, True], reached
    running.stop(host, "tiny")
