"""The process engine around a stand-in: ports, keys, logs, and above all that nothing is left
behind.
"""

import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest
from sparkbook.recipes.schema import Capabilities
from sparkbook.serve import folders, process, running
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.engine import EngineError
from sparkbook.serve.process import ProcessEngine, free_port, port_is_free
from sparkbook.serve.ready import NotReady


def descendants(engine):
    return psutil.Process(engine._guard.pid).children(recursive=True)


def children(process):
    """As the kernel lists them: psutil leaves out those that a step of the clock made older."""
    file = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [psutil.Process(int(pid)) for pid in file.read_text().split()]


def gone(processes, within_s=120):
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


def test_starts_answers_and_leaves_nothing(stand_in, launch):
    with ProcessEngine(launch, stand_in, name="small") as engine:
        readiness = engine.wait_ready(Capabilities(tools=True, reasoning=True))
        assert [stage.name for stage in readiness.stages] == [
            "port",
            "health",
            "models",
            "completion",
            "tools",
            "reasoning",
            "json schema",
        ]
        assert engine.running
        processes = descendants(engine)
        assert processes
    assert gone(processes)
    assert port_is_free(engine.port)
    assert not engine.key_file.exists()


def test_key_is_private_and_in_no_command_line(stand_in, launch):
    with ProcessEngine(launch, stand_in, name="small") as engine:
        assert engine.key_file.stat().st_mode & 0o777 == 0o600
        key = engine.key_file.read_text()
        assert len(key) == 32
        assert key not in repr(engine.endpoint) + repr(engine)
        engine.wait_ready(Capabilities(structured_output=False))
        assert not [
            p
            for p in [psutil.Process(engine._guard.pid), *descendants(engine)]
            if key in " ".join(p.cmdline())
        ]
        assert key not in engine.log_file.read_text()


def test_other_processes_attach_through_the_environment(stand_in, launch, monkeypatch):
    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        for name, value in engine.environment().items():
            monkeypatch.setenv(name, value)
        assert Endpoint.from_environment() == engine.endpoint


def test_taken_port_is_refused_before_anything_starts(stand_in, launch):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port {port} is taken on 127.0.0.1.*ss -ltnp"):
            ProcessEngine(launch, stand_in, name="small", port=port)


def test_second_start_on_the_same_port_is_refused_and_the_first_goes_on(stand_in, launch):
    port = free_port()
    with ProcessEngine(launch, stand_in, name="small", port=port) as first:
        first.wait_ready(Capabilities(structured_output=False))
        with pytest.raises(EngineError, match="is taken"):
            ProcessEngine(launch, stand_in, name="small", port=port)
        assert first.endpoint.served_models() == ["small"]


@pytest.fixture
def late(stand_in, tmp_path, monkeypatch):
    """The stand-in binds its port at once and listens when this file exists."""
    monkeypatch.setenv("STAND_IN_MODE", "late")
    monkeypatch.setenv("STAND_IN_LOADED", str(tmp_path / "loaded"))
    return tmp_path / "loaded"


def bound(log_file, within_s=60):
    deadline = time.monotonic() + within_s
    while "bound" not in log_file.read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "bound" in log_file.read_text()


@pytest.mark.parametrize("loaded", [False, True])
def test_a_stranger_on_the_port_is_not_ready_and_never_gets_the_key(
    stand_in, launch, late, stranger, monkeypatch, loaded
):
    monkeypatch.setenv("VLLM_API_KEY", "key-of-the-test")
    engine = ProcessEngine(launch, stand_in, name="small", grace_s=1)
    bound(engine.log_file)
    processes = descendants(engine)
    with stranger(engine.port) as requests:
        if loaded:  # it can't listen, and stays
            late.touch()
        said = []
        with pytest.raises(NotReady) as error:
            engine.wait_ready(deadline_s=60, progress=said.append)
    assert error.value.message.startswith(f"port failed: process {os.getpid()} (")
    assert f"listens on 127.0.0.1:{engine.port}, not the server" in error.value.message
    assert "\n" not in str(error.value) and not error.value.stages and not said
    assert requests == []
    assert gone(processes) and not engine.key_file.exists()


def test_of_two_starts_at_once_the_loser_touches_nothing(stand_in, launch, late):
    port = free_port()
    with ProcessEngine(launch, stand_in, name="small", port=port) as winner:
        bound(winner.log_file)  # and does not listen yet: the port looks free
        assert port_is_free(port)
        before = {file: file.read_text() for file in winner.folder.iterdir()}
        for name in ("small", "other"):
            with pytest.raises(EngineError, match=rf"{port} is taken by small-{port}"):
                ProcessEngine(launch, stand_in, name=name, port=port)
        assert {file: file.read_text() for file in winner.folder.iterdir()} == before
        assert list(winner.folder.parent.iterdir()) == [winner.folder]
        late.touch()
        winner.wait_ready(Capabilities(structured_output=False))


def test_an_engine_that_has_ended_leaves_the_next_ones_files(stand_in, launch, monkeypatch):
    monkeypatch.setenv("STAND_IN_MODE", "dies")
    port = free_port()
    first = ProcessEngine(launch, stand_in, name="small", port=port)
    first._guard.wait(60)
    monkeypatch.delenv("STAND_IN_MODE")
    with ProcessEngine(launch, stand_in, name="small", port=port) as second:
        first.stop()
        assert second.folder == first.folder
        assert second.key_file.exists() and (second.folder / "engine.json").exists()
        second.wait_ready(Capabilities(structured_output=False))


def test_a_start_that_fails_leaves_no_key_and_no_record(stand_in, launch, monkeypatch):
    monkeypatch.setattr(process.sys, "executable", str(stand_in / "nothing"))
    with pytest.raises(EngineError, match="can't be started"):
        ProcessEngine(launch, stand_in, name="small", port=free_port())
    (folder,) = folders.all_folders()
    assert [file.name for file in folder.iterdir()] == ["server.log"]


def test_a_free_port_is_not_one_that_the_kernel_gives_away(monkeypatch, tmp_path):
    given_out = tmp_path / "range"
    monkeypatch.setattr(process, "_GIVEN_OUT", given_out)
    given_out.write_text("20003\t60999\n")
    monkeypatch.setattr(process, "port_is_free", lambda port, _host: port == 20001)
    assert free_port() == 20001
    for text in ("1024\t65535\n", "", "20003\t60999\n"):  # no port below is free
        given_out.write_text(text)
        monkeypatch.setattr(process, "port_is_free", lambda *_: False)
        assert free_port() > 0


def test_missing_model_folder(stand_in, launch):
    with pytest.raises(EngineError, match=r"no model in .*nowhere: it has no config\.json"):
        ProcessEngine(launch, stand_in / "nowhere", name="small")


def test_missing_engine_environment(stand_in, launch, monkeypatch):
    monkeypatch.setenv("SPARKBOOK_ENGINE_PYTHON", str(stand_in / "python"))
    with pytest.raises(Exception, match="SPARKBOOK_ENGINE_PYTHON names"):
        ProcessEngine(launch, stand_in, name="small")


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("dies", r"ended with status 3 while waiting for port(?s:.*)the model can't be loaded"),
        ("fatal-line", r"failed while waiting for port: .*(?i:port)(?s:.*)what to do: "),
    ],
)
def test_failed_start_ends_the_wait_at_once_with_the_log(
    stand_in, launch, monkeypatch, mode, message
):
    monkeypatch.setenv("STAND_IN_MODE", mode)
    engine = ProcessEngine(launch, stand_in, name="small", grace_s=1)
    begin = time.monotonic()
    with pytest.raises(NotReady, match=message):
        engine.wait_ready(deadline_s=3600)
    assert time.monotonic() - begin < 600, "it waited for what can't come any more"
    assert not engine.running


def test_deadline(stand_in, launch, monkeypatch):
    monkeypatch.setenv("STAND_IN_MODE", "hangs")
    engine = ProcessEngine(launch, stand_in, name="small", grace_s=1)
    processes = descendants(engine)
    with pytest.raises(NotReady, match=r"not ready after .*: still waiting for port"):
        engine.wait_ready(deadline_s=1)
    assert gone(processes)


def test_claim_that_is_not_kept(stand_in, launch, monkeypatch):
    monkeypatch.setenv("STAND_IN_MODE", "no-tools")
    with (
        ProcessEngine(launch, stand_in, name="small") as engine,
        pytest.raises(NotReady, match=r"claims tool calls: The model makes no call. \(TOOL201\)"),
    ):
        engine.wait_ready(Capabilities(tools=True))


def test_a_server_that_does_not_chat_is_asked_for_what_it_does(stand_in, launch, monkeypatch):
    services = {"embedding": True, "reranking": True, "transcription": True}
    claims = Capabilities(chat=False, structured_output=False, **services)
    with ProcessEngine(launch, stand_in, name="small") as engine:
        readiness = engine.wait_ready(claims)
    assert [(stage.name, stage.detail) for stage in readiness.stages[3:]] == [
        ("embedding", "a vector of 3 numbers"),
        ("reranking", "scores 1.00, 0.50"),
        ("transcript", "hears 'a hum'"),
    ]
    monkeypatch.setenv("STAND_IN_MODE", "no-vector")
    with (
        ProcessEngine(launch, stand_in, name="small") as engine,
        pytest.raises(NotReady, match="embedding failed: the reply is no embedding"),
    ):
        engine.wait_ready(claims)


@pytest.mark.parametrize(
    "mode",
    [
        "ignores-term",
        pytest.param(
            "forks", marks=pytest.mark.native("QEMU refuses prctl(PR_SET_CHILD_SUBREAPER)")
        ),
    ],
)
def test_stubborn_and_escaped_processes_are_killed(stand_in, launch, monkeypatch, mode):
    monkeypatch.setenv("STAND_IN_MODE", mode)
    engine = ProcessEngine(launch, stand_in, name="small", grace_s=0.5)
    engine.wait_ready(Capabilities(structured_output=False))
    processes = descendants(engine)
    if mode == "forks":
        processes.append(
            psutil.Process(int(engine.log_file.read_text().split("child ")[1].split()[0]))
        )
    engine.stop()
    assert gone(processes)
    engine.stop()  # again: nothing to do


def test_engine_killed_from_outside_is_noticed(stand_in, launch):
    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        command = descendants(engine)[-1]
        command.kill()
        assert engine._guard.wait(60) == 128 + signal.SIGKILL
        assert "ended with status 137" in repr(engine)


STARTER = """
import sys, time
from pathlib import Path
from sparkbook.recipes import Launch, Serve
from sparkbook.serve.process import ProcessEngine
engine = ProcessEngine(Launch(serve=Serve(args={"served-model-name": "small"})), Path(sys.argv[1]), name="small", grace_s=1)
engine.wait_ready()
print(engine._guard.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_engine_does_not_outlive_a_starter_that_dies(stand_in, number):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, stand_in],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    guard = psutil.Process(int(starter.stdout.readline()))
    processes = [guard, *guard.children(recursive=True)]
    assert len(processes) >= 2
    starter.send_signal(number)
    starter.wait(60)
    starter.stdout.close()
    assert gone(processes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["", "forks", "ignores-term"])
@pytest.mark.parametrize(
    ("victims", "group"),
    [
        ("guard", "cgroup"),
        ("keeper", "cgroup"),
        ("command", "cgroup"),
        ("reaper", "cgroup"),
        ("guard keeper", "cgroup"),
        ("guard keeper", "none"),
    ],
)
def test_descendants_die_with_any_of_their_parents(
    stand_in, launch, monkeypatch, mode, victims, group, tmp_path
):
    monkeypatch.setenv("STAND_IN_MODE", mode)
    if group == "none":
        guard_file = tmp_path / "guard.py"
        guard_file.write_text(process._GUARD.read_text().replace('"cgroup2"', '"none"'))
        monkeypatch.setattr(process, "_GUARD", guard_file)
    engine = ProcessEngine(launch, stand_in, name="small", grace_s=1)
    engine.wait_ready(Capabilities(structured_output=False))
    guard = psutil.Process(engine._guard.pid)
    reaper, keeper = sorted(children(guard), key=lambda child: len(children(child)))
    (command,) = children(keeper)
    processes = [psutil.Process(pid) for pid in engine._identity.tree()]
    assert len(processes) == (6 if mode == "forks" else 4)
    parents = {"guard": guard, "keeper": keeper, "command": command, "reaper": reaper}
    stopped = [parents[victim] for victim in victims.split()]
    for one in stopped:
        one.suspend()  # none sees another's end before its own
    for one in stopped:
        one.kill()
    if victims == "reaper":
        engine.stop()
    engine._guard.wait(60)
    assert gone(processes)
    engine.stop()


def test_an_engine_that_ends_is_called_stopping(stand_in, launch, monkeypatch):
    monkeypatch.setenv("STAND_IN_MODE", "ignores-term")
    engine = ProcessEngine(launch, stand_in, name="small", grace_s=600)
    engine.wait_ready(Capabilities(structured_output=False))
    assert [server.state for server in running.status(None)] == ["ready"]
    engine._guard.terminate()
    deadline = time.monotonic() + 60
    while (state := running.status(None)[0].state) == "ready" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert state == "stopping"
    engine.kill()
    engine.stop()


@pytest.mark.slow
def test_a_guard_that_is_frozen_is_stopped_by_force(stand_in, launch):
    engine = ProcessEngine(launch, stand_in, name="small")
    engine.wait_ready(Capabilities(structured_output=False))
    processes = [psutil.Process(engine._guard.pid), *descendants(engine)]
    for one in processes[:2]:
        one.suspend()
    assert running.stop(None, "small", within_s=1) == engine.name
    assert gone(processes)
    engine.stop()


def test_secrets_that_the_recipe_does_not_name_are_not_passed_on(stand_in, launch, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret-of-the-test")
    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        assert all("HF_TOKEN" not in process.environ() for process in descendants(engine))


@pytest.mark.parametrize("how", ["stop", "kill", "all"])
def test_shared_memory_and_sockets_go_with_the_engine(stand_in, launch, monkeypatch, tmp_path, how):
    guard = tmp_path / "guard.py"
    guard.write_text(process._GUARD.read_text().replace("LOOK_S = 5.0", "LOOK_S = 0.2"))
    monkeypatch.setattr(process, "_GUARD", guard)
    monkeypatch.setenv("STAND_IN_MODE", "shares")
    other = shared_memory.SharedMemory(create=True, size=16)
    engine = ProcessEngine(launch, stand_in, name="small", grace_s=1)
    try:
        engine.wait_ready(Capabilities(structured_output=False))
        deadline = time.monotonic() + 60
        while b"left: " not in (log := engine.log_file.read_bytes()):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        line = next(line for line in log.decode().splitlines() if line.startswith("left: "))
        files = [Path(name) for name in line.split()[1:]]
        assert len(files) == 4 and all(file.exists() for file in files)
        if how != "stop":
            time.sleep(1.0)  # a look of the guard
        if how == "kill":
            psutil.Process(engine._guard.pid).children()[-1].children()[0].kill()
            engine._guard.wait(60)
        if how == "all":
            engine.kill()
    finally:
        engine.stop()
    assert not [file for file in files if file.exists()] and not files[3].parent.exists()
    assert Path("/dev/shm", other.name).exists(), "what is another program's stays"
    other.close()
    other.unlink()


def test_a_file_that_an_older_process_of_the_same_number_left_goes_too(monkeypatch):
    guard = importlib.import_module("sparkbook.serve._guard")
    monkeypatch.setattr(guard, "descendants", lambda: {999999999})
    same, other = (
        Path(guard.SHARED, f"{guard.OPENMP}{number}_{os.getuid()}")
        for number in (999999999, 999999998)
    )
    for file in (same, other):
        file.touch()
    try:
        shared = guard.Shared()
        shared.look()
        shared.remove()
        assert not same.exists() and other.exists()
    finally:
        other.unlink()


def test_a_guard_removes_no_folder_that_it_did_not_make(tmp_path, monkeypatch):
    """Somebody else of the machine may have put a link where its folder of sockets would be."""
    monkeypatch.delenv("VLLM_RPC_BASE_PATH", raising=False)
    kept = tmp_path / "kept"
    kept.touch()
    held, lifeline = os.pipe()
    script = 'ln -s "$1" /tmp/sparkbook-$$; exec "$2" -I -S "$3" "$4" 1 printenv VLLM_RPC_BASE_PATH'
    words = ["sh", "-c", script, "sh", tmp_path, sys.executable, process._GUARD, str(held)]
    guard = subprocess.Popen(words, pass_fds=[held], stdout=subprocess.PIPE)
    link = Path(f"/tmp/sparkbook-{guard.pid}")
    try:
        assert guard.communicate(timeout=60) == (b"", None)
        assert guard.returncode == 1, "the variable is not set"
        assert kept.exists()
    finally:
        link.unlink()
        os.close(held)
        os.close(lifeline)
