"""What the Docker engine says when it can't, and what the launcher makes of it: each text is the
engine's own, provoked here.
"""

import socket
import threading

import pytest
from sparkbook.serve import containers, docker_engine, docker_host, faults
from sparkbook.serve.docker_engine import start
from sparkbook.serve.faults import ServeFault
from sparkbook.serve.ready import NotReady
from sparkbook.serve.stack import given

pytestmark = pytest.mark.docker


def refused(host, launch, code, **more):
    with pytest.raises(ServeFault) as told:
        start(given(launch, "victim"), host=host, **more)
    assert told.value.finding.rule == code, told.value
    return told.value.finding


@pytest.mark.parametrize("change", [{"gpus": "all"}, {"gpus": "device=0"}, {"runtime": "nvidia"}])
def test_no_gpu_runtime(host, shell, change):
    finding = refused(host, shell("sleep 9", **change), "DOCK103")
    assert finding.kind == "nvidia-runtime" and "nvidia-ctk" in finding.fix


def test_port_taken_by_a_program(host, shell):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        finding = refused(host, shell("sleep 9", ports=[f"127.0.0.1:{port}:8000"]), "DOCK104")
    assert str(port) in finding.message and "ss -ltnp" in finding.fix


def test_port_taken_between_look_and_start(host, shell, monkeypatch):
    """The engine's own words: the look beforehand is switched off."""
    monkeypatch.setattr(docker_engine, "_check_strangers", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert (
            str(port)
            in refused(host, shell("sleep 9", ports=[f"127.0.0.1:{port}:8000"]), "DOCK104").message
        )


def test_port_published_by_a_strangers_container(engine, host, shell):
    stranger = engine.client.containers.run(
        "test/busybox:1", name="stranger", ports={"8000/tcp": ("127.0.0.1", 8123)}, detach=True
    )
    try:
        assert (
            "stranger"
            in refused(host, shell("sleep 9", ports=["127.0.0.1:8123:8000"]), "DOCK104").evidence
        )
    finally:
        stranger.remove(force=True)


def test_name_taken(engine, host, shell, monkeypatch):
    stranger = engine.client.containers.create("test/busybox:1", name="victim")
    try:
        assert "not started by this launcher" in refused(host, shell("sleep 9"), "DOCK105").evidence
        monkeypatch.setattr(docker_engine, "_check_strangers", lambda *_: None)
        assert (
            "victim" in refused(host, shell("sleep 9"), "DOCK105").message
        )  # the engine's own words
    finally:
        stranger.remove(force=True)


def test_registry_that_does_not_answer(host, shell):
    launch = shell("sleep 9").model_copy(update={"image": "127.0.0.1:5999/no/such:image"})
    refused(host, launch, "DOCK108")


def test_image_for_another_processor(engine, host, shell):
    foreign = "arm64" if docker_host.platform_of(host.client) == "linux/amd64" else "amd64"
    image = engine.client.images.get("test/busybox:1")
    archive = b"".join(image.save(named=True))
    _retagged(engine, archive, foreign)
    try:
        finding = refused(
            host, shell("sleep 9").model_copy(update={"image": "test/foreign:1"}), "DOCK109"
        )
        assert foreign in finding.evidence and finding.kind == "arch-image"
    finally:
        engine.client.images.remove("test/foreign:1")


def _retagged(engine, archive, architecture):
    """The same image, said to be built for another processor."""
    import hashlib
    import io
    import json
    import tarfile

    out = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(archive)) as old,
        tarfile.open(fileobj=out, mode="w") as new,
    ):
        manifest = json.load(old.extractfile("manifest.json"))
        config = json.load(old.extractfile(manifest[0]["Config"])) | {"architecture": architecture}
        data = json.dumps(config).encode()
        name = f"{hashlib.sha256(data).hexdigest()}.json"
        manifest[0] |= {"Config": name, "RepoTags": ["test/foreign:1"]}
        for member, content in ((name, data), ("manifest.json", json.dumps(manifest).encode())):
            info = tarfile.TarInfo(member)
            info.size = len(content)
            new.addfile(info, io.BytesIO(content))
        for layer in manifest[0]["Layers"]:
            new.addfile(old.getmember(layer), old.extractfile(layer))
    engine.client.images.load(out.getvalue())


def test_missing_folder_is_not_made(host, shell, tmp_path, monkeypatch):
    launch = shell("sleep 9", volumes=[f"{tmp_path}/nowhere:/models"])
    assert "mkdir -p" in refused(host, launch, "DOCK111").fix
    monkeypatch.setattr(
        docker_host.DockerHost, "remote", True
    )  # as on another host, where only the engine can tell
    assert f"{tmp_path}/nowhere" in refused(host, launch, "DOCK111").message
    assert not (tmp_path / "nowhere").exists()


def test_program_that_is_not_in_the_image(host, shell):
    launch = shell("x").model_copy(
        update={
            "entrypoint": "command",
            "serve": shell("x").serve.model_copy(update={"command": None, "model": "m"}),
        }
    )
    assert "vllm" in refused(host, launch, "DOCK112").message


def test_limit_that_is_not_allowed(host, shell):
    refused(host, shell("sleep 9", ulimits={"nofile": "99999999"}), "DOCK113")


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("exit 3", "DOCK306"),
        ("exit 0", "DOCK305"),
        ("exit 137", "DOCK302"),
        ("exit 139", "DOCK303"),
        ("exit 127", "DOCK304"),
    ],
)
def test_how_a_container_ends(host, shell, script, code):
    with pytest.raises(NotReady) as told:
        start(given(shell(f"echo last words; {script}"), "victim"), host=host, watch=False)
    assert code in str(told.value) and "last words" in str(told.value)


def test_killed_from_outside(engine, host, shell):
    threading.Timer(1, lambda: engine.client.containers.get("victim").kill()).start()
    with pytest.raises(NotReady, match="DOCK302"):
        start(given(shell("sleep 60"), "victim"), host=host, watch=False)


def test_killed_by_the_containers_own_memory_limit(host, shell, monkeypatch):
    prepare = docker_engine.prepare

    def limited(*arguments, **more):
        asked = prepare(*arguments, **more)
        asked.body["HostConfig"]["Memory"] = 32 << 20
        return asked

    monkeypatch.setattr(docker_engine, "prepare", limited)
    with pytest.raises(NotReady, match="DOCK301"):
        start(
            given(shell("x=0123456789abcdef; while true; do x=$x$x; done"), "victim"),
            host=host,
            watch=False,
        )


def test_a_log_that_names_the_fault_is_diagnosed(host, answering):
    with pytest.raises(NotReady) as told:
        start(given(answering("fatal-line"), "victim"), host=host, watch=False)
    assert told.value.diagnosis.primary.kind == "port-in-use"


def test_removed_from_outside_while_waiting(engine, host, shell):
    threading.Timer(1, lambda: engine.client.containers.get("victim").remove(force=True)).start()
    with pytest.raises(NotReady, match="the engine ended"):
        start(given(shell("sleep 60"), "victim"), host=host, watch=False)


def test_no_space_left(host):
    """The engine's words for a full disk can't be provoked safely here; the rule is held to them as
    text.
    """
    assert (
        faults.explain("write /var/lib/docker/tmp/GetImageBlob1: no space left on device").rule
        == "DOCK110"
    )


def test_engine_stopped_under_us_and_restarted(engine, host, answering):
    """The daemon goes away while a server runs: said so; when it is back, the launcher finds the
    container and what became of it.
    """
    server = start(given(answering(), "victim"), host=host, watch=False)
    engine.stop_daemon()
    with pytest.raises(ServeFault) as told:
        _ = server.running
    assert told.value.finding.rule in ("DOCK101", "DOCK116")
    with pytest.raises(ServeFault):
        docker_host.reach()
    engine.start_daemon()
    found = containers.find(host, "victim")
    assert [one.state for one in found] == ["exited"]
    assert docker_engine.attach(host, found[0]).ended().rule == "DOCK305"
    # Started again: the dead one makes room by itself.
    again = start(given(answering(), "victim"), host=host, watch=False)
    assert again.running and not again.already
    again.stop()


def test_engine_stopped_while_waiting(engine, host, shell):
    def stop(line):
        if line.startswith("port"):  # the container runs, and is waited for
            engine.stop_daemon()

    try:
        with pytest.raises(ServeFault, match=r"DOCK1(01|16)(?s:.*)sparkbook stop victim"):
            start(
                given(shell("sleep 600"), "victim"),
                host=host,
                watch=False,
                deadline_s=240,
                progress=stop,
            )
    finally:
        engine.start_daemon()
    for found in containers.find(host):
        containers.remove(host, found.id)
