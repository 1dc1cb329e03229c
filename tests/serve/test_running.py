"""Process engines as other processes see them: status, logs, stop; and the command's foreground
server.
"""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import typer
from sparkbook import cli
from sparkbook.cli import servers
from sparkbook.errors import SparkbookError
from sparkbook.recipes.schema import Capabilities
from sparkbook.serve import folders, interrupts, launcher, pulse, running
from sparkbook.serve.endpoint import own_key
from sparkbook.serve.engine import EngineError
from sparkbook.serve.identity import Stranger
from sparkbook.serve.launcher import Wish
from sparkbook.serve.process import ProcessEngine, free_port

COMMAND = Path(sys.executable).with_name("sparkbook")


@pytest.fixture(autouse=True)
def _no_docker(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARKBOOK_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("DOCKER_HOST", raising=False)


@pytest.fixture(autouse=True)
def _hang_ups_are_heard():
    """Also where `nohup` started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_status_logs_and_stop(stand_in, launch):
    engine = ProcessEngine(launch, stand_in, name="small", recipe="embedded/small")
    assert [server.state for server in running.status(None)] in (["starting"], ["ready"])
    engine.wait_ready(Capabilities(structured_output=False))
    (server,) = running.status(None)
    assert (server.name, server.state, server.recipe, server.target) == (
        engine.folder.name,
        "ready",
        "embedded/small",
        "process",
    )
    assert json.dumps(server.to_dict()) and engine.endpoint.api_key not in str(server)
    assert running.endpoint(None, "small") == engine.endpoint
    assert b"".join(running.logs(None, "embedded/small")) == engine.log_file.read_bytes()
    assert running.stop(None, "small") == engine.folder.name
    assert not engine.running and not engine.key_file.exists()
    assert running.status(None) == []
    # The log of one that has ended is still there, under its whole name.
    assert b"".join(running.logs(None, engine.folder.name)) == engine.log_file.read_bytes()
    with pytest.raises(SparkbookError, match="no server called 'small'"):
        list(running.logs(None, "small"))
    engine.stop()


def test_two_of_one_name_are_told_apart(stand_in, launch):
    with (
        ProcessEngine(launch, stand_in, name="small") as one,
        ProcessEngine(launch, stand_in, name="small") as two,
    ):
        with pytest.raises(SparkbookError, match="means several servers"):
            running.stop(None, "small")
        assert running.stop(None, one.folder.name) == one.folder.name
        assert two.running and not one.running


def test_a_stranger_on_its_port_is_no_state_ready_and_gets_no_key(
    stand_in, launch, stranger, monkeypatch
):
    monkeypatch.setenv("STAND_IN_MODE", "hangs")
    with ProcessEngine(launch, stand_in, name="small") as engine:
        assert running.status(None)[0].state == "starting"
        with pytest.raises(SparkbookError, match="does not listen at"):
            running.endpoint(None, "small")
        with stranger(engine.port) as requests:
            assert running.status(None)[0].state == "port taken"
            with pytest.raises(Stranger):
                running.endpoint(None, "small")
            assert running.stop(None, "small") == engine.name
            assert requests == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "file", "tokens", "state"),
    [
        ("", None, 7, "ready"),
        ("", None, 0, "ready"),
        ("", "", 7, "frozen"),
        ("", "", 0, "starting"),  # its first token may take long
        ("", "busy", 7, "ready"),
        ("embeds", None, 7, "ready"),
        ("not-there", None, 7, "ready"),
        ("refuses", None, 7, "frozen"),
    ],
)
def test_frozen_is_told_from_busy_and_idle(
    stand_in, launch, tmp_path, monkeypatch, mode, file, tokens, state
):
    frozen = tmp_path / "frozen"
    for name, value in (("MODE", mode), ("FROZEN", str(frozen)), ("TOKENS", str(tokens))):
        monkeypatch.setenv(f"STAND_IN_{name}", value)
    look = pulse.look
    monkeypatch.setattr(pulse, "look", lambda endpoint: look(endpoint, 0.5))
    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        if file is not None:
            frozen.write_text(file)
        (server,) = running.status(None)
        assert server.state == state
        assert (server.end and server.end.rule) == ("DOCK309" if state == "frozen" else None)
        frozen.unlink(missing_ok=True)
        if mode != "refuses" and tokens:
            assert running.status(None)[0].state == "ready"


@pytest.mark.engine
def test_a_real_engine_whose_core_is_frozen():
    from sparkbook.serve import embedded

    with embedded.start() as engine:
        (core,) = [
            process
            for process in psutil.Process(engine._guard.pid).children(recursive=True)
            if "EngineCore" in " ".join([process.name(), *process.cmdline()])
        ]
        assert [server.state for server in running.status(None)] == ["ready"]
        core.suspend()
        assert [server.state for server in running.status(None)] == ["frozen"]
        core.resume()
        assert [server.state for server in running.status(None)] == ["ready"]
        os.kill(engine._guard.pid, signal.SIGKILL)
        assert not psutil.wait_procs([core], timeout=60)[1]


def test_a_step_of_the_clock_loses_no_server(stand_in, launch, monkeypatch):
    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        began = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: began(process) + 3600)
        assert [server.name for server in running.status(None)] == [engine.name]
        assert list(running.logs(None, engine.name))
        assert running.stop(None, engine.name) == engine.name


@pytest.mark.native("QEMU's unshare knows no time namespaces")
@pytest.mark.parametrize("seconds", [-1, 86_400])
def test_a_clock_that_really_differs_loses_no_server(stand_in, launch, seconds):
    """In a time namespace: the time since boot is another there."""
    if os.geteuid():
        pytest.skip("a time namespace needs root: in a user namespace no process may be looked at")
    elsewhere = ["unshare", "--time", "--fork", f"--boottime={seconds}"]
    elsewhere += [f"--monotonic={seconds}", COMMAND]

    def run(*words):
        done = subprocess.run([*elsewhere, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        (listed,) = json.loads(run("status", "--json"))["servers"]
        assert (listed["name"], listed["state"]) == (engine.name, "ready")
        assert run("logs", engine.name)
        run("stop", engine.name)
        assert not engine.running


def test_a_dead_guard_is_not_mistaken_for_a_new_process(stand_in, launch):
    with ProcessEngine(launch, stand_in, name="small") as engine:
        record = json.loads((engine.folder / "engine.json").read_text())
        record["process"]["pid"] = os.getpid()
        (engine.folder / "engine.json").write_text(json.dumps(record))
        assert running.status(None) == []


def test_logs_of_running_engines_are_kept(stand_in, launch, monkeypatch):
    monkeypatch.setattr(folders, "_LOGS_KEPT", 1)
    with ProcessEngine(launch, stand_in, name="oldest") as oldest:
        for number in range(3):
            ProcessEngine(launch, stand_in, name=f"short-{number}").stop()
        assert oldest.log_file.exists()
        names = sorted(folder.name.rsplit("-", 1)[0] for folder in oldest.folder.parent.iterdir())
        assert names == ["oldest", "short-1", "short-2"]


@pytest.mark.native("QEMU refuses prctl(PR_SET_CHILD_SUBREAPER)")
def test_kill_ends_the_whole_group_at_once(stand_in, launch, monkeypatch):
    monkeypatch.setenv("STAND_IN_MODE", "forks")
    engine = ProcessEngine(launch, stand_in, name="small", grace_s=3600)
    engine.wait_ready(Capabilities(structured_output=False))
    processes = psutil.Process(engine._guard.pid).children(recursive=True)
    engine.kill()  # and not after the hour that they could have
    _, alive = psutil.wait_procs(processes, timeout=120)
    assert not alive
    engine.stop()


def test_own_key_is_made_once_and_private(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    key, file = own_key()
    assert own_key() == (key, file) and len(key) == 64 and file.stat().st_mode & 0o777 == 0o600
    monkeypatch.setenv("VLLM_API_KEY", "chosen")
    chosen, other = own_key()
    assert chosen == other.read_text() == "chosen" and file.read_text() == key
    file.chmod(0o644)
    monkeypatch.delenv("VLLM_API_KEY")
    with pytest.raises(SparkbookError, match="can be read by others"):
        own_key()


OWN_KEY = """
import resource, signal, sys, time
from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import own_key
if sys.argv[1] == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
sys.stdin.readline()
try:
    print(own_key()[0])
except SparkbookError as error:
    print(error)
"""


def first_uses(monkeypatch, *kinds):
    """What `own_key` returned in processes that used it at once."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", OWN_KEY, kind], stdin=pipe, stdout=pipe, text=True)
        for kind in kinds
    ]
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    return [process.communicate()[0].strip() for process in started]


def test_first_users_at_once_get_one_key(monkeypatch):
    keys = first_uses(monkeypatch, *["go"] * 4)
    assert len(set(keys)) == 1 and keys[0] == own_key()[0]


def test_a_disk_that_is_full_at_first_use_leaves_no_key_file(monkeypatch):
    (message,) = first_uses(monkeypatch, "full")
    assert "can't be written: File too large" in message
    key, file = own_key()
    assert len(key) == 64 and [one.name for one in file.parent.glob("*key*")] == [file.name]
    file.write_text("")  # as an earlier version left it
    assert len(own_key()[0]) == 64


def test_key_and_record_of_an_engine_that_was_killed_are_swept(stand_in, launch):
    engine = ProcessEngine(launch, stand_in, name="small")
    tree = [psutil.Process(pid) for pid in engine._identity.tree()]
    for one in tree:
        one.kill()
    engine._guard.wait(60)
    psutil.wait_procs(tree, 20)
    assert engine.key_file.exists()
    assert running.status(None) == []
    assert [file.name for file in engine.folder.iterdir()] == ["server.log"]
    engine.stop()


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Wish(), "name either"),
        (Wish("gpt-oss-20b", locked="x"), "name either"),
        (Wish("gpt-oss-20b", target="gpu"), "is not a target"),
        (Wish("gpt-oss-20b", target="process"), "--target docker"),
        (Wish("embedded/tiny-dense", target="docker"), "has no image"),
        (Wish("embedded/tiny-dense", expose=True), "about containers"),
    ],
)
def test_wishes_that_can_not_be_met(wish, message):
    with pytest.raises(SparkbookError, match=message):
        launcher.wanted(wish)


@pytest.fixture
def run(capfd, monkeypatch):
    """Runs the command as `sparkbook` does, in this process; the exit code must be as expected."""

    def command(*arguments, check=0):
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["sparkbook", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capfd.readouterr()
        assert (end.value.code or 0) == check, out + err
        return SimpleNamespace(stdout=out, stderr=err)

    return command


def test_dry_run_sends_nothing_and_shows_no_secret(run, monkeypatch, tmp_path):
    canary = "canary-of-the-dry-run"
    monkeypatch.setenv("HF_TOKEN", canary)
    monkeypatch.setenv("VLLM_API_KEY", canary)
    told = json.loads(run("serve", "gpt-oss-20b", "--dry-run", "--json").stdout)
    create = next(call for call in told["calls"] if "/containers/create" in call["call"])
    assert {"HF_TOKEN=***", "VLLM_API_KEY=***"} <= set(create["body"]["Env"])
    assert create["body"]["HostConfig"]["PortBindings"]["8000/tcp"][0]["HostIp"] == "127.0.0.1"
    text = run("serve", "gpt-oss-20b", "--dry-run")
    assert canary not in json.dumps(told) + text.stdout + text.stderr
    assert not (tmp_path / "state").exists()


def test_without_docker_one_line_says_what_to_do(run, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    assert "DOCK101" in run("serve", "gpt-oss-20b", check=1).stderr
    assert "DOCK101" in run("status", check=2).stdout
    monkeypatch.delenv("DOCKER_HOST")


@pytest.mark.parametrize("scheme", ["ssh", "tcp"])
def test_a_password_in_the_engines_address_is_not_shown(monkeypatch, scheme):
    address = f"{scheme}://user:canary@127.0.0.1:1"
    given = [[*words, "--host", address] for words in (["status"], ["stop", "x"], ["logs", "x"])]
    monkeypatch.setenv("DOCKER_HOST", address)
    for words in (*given, ["status"], ["check"], ["serve", "gpt-oss-20b"]):
        done = subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=60)
        assert "canary" not in done.stdout + done.stderr, words
        assert done.returncode in (0, 1, 2) and "Traceback" not in done.stderr, done


@pytest.mark.slow
def test_a_server_in_the_foreground(run, stand_in):
    """serve, status, logs, stop by the command, around the stand-in; another one ends by Ctrl-C."""
    line = f"vllm serve {stand_in} --served-model-name small"
    for end in ("stop", "interrupt"):
        server = subprocess.Popen(
            [COMMAND, "serve", line, "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        told = ""
        while not told.rstrip().endswith("}"):
            told += server.stdout.readline()
        answer = json.loads(told)
        key = Path(answer["key"]).read_text()
        listed = json.loads(run("status", "--json").stdout)["servers"]
        assert [(one["served"], one["state"]) for one in listed] == [("small", "ready")]
        assert "INFO stand-in" in run("logs", answer["name"]).stdout
        assert key not in told + json.dumps(listed)
        if end == "stop":
            assert "is stopped" in run("stop", answer["name"]).stdout
            assert server.wait(60) == 1  # it was ended by somebody else
        else:
            server.send_signal(signal.SIGINT)
            assert server.wait(60) == 0
        assert "Traceback" not in server.stderr.read()
        server.stdout.close()
        server.stderr.close()
        assert "No server was started here." in run("status").stdout


@pytest.fixture
def two_at_once(stand_in, tmp_path, monkeypatch):
    """Makes two `sparkbook serve` of one model on one port, with keys of their own, that don't
    listen yet; with one cache, or with one each, as two users have.
    """
    monkeypatch.setenv("STAND_IN_MODE", "late")
    monkeypatch.setenv("STAND_IN_LOADED", str(tmp_path / "loaded"))
    started = []

    def start(port, caches):
        line = f"vllm serve {stand_in} --served-model-name small"
        for number in range(2):
            cache = tmp_path / f"cache-{number % caches}"
            started.append(
                subprocess.Popen(
                    [COMMAND, "serve", line, "--port", port, "--no-watchdog", "--json"],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env={
                        **os.environ,
                        "SPARKBOOK_CACHE": str(cache),
                        "VLLM_API_KEY": f"key-{number}",
                    },
                )
            )
        return started

    yield start
    for process in started:
        process.terminate()
        process.communicate()


def until(condition, within_s=60):
    """Wait for a condition and return what it returns."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


@pytest.mark.slow
@pytest.mark.parametrize("caches", [1, 2])
def test_two_servers_at_once_on_one_port(run, two_at_once, tmp_path, monkeypatch, caches):
    """One is ready; the other says why not, and nothing is left of it. With two caches no lock
    keeps the second from starting.
    """

    def bound():
        logs = [file.read_text() for file in tmp_path.glob("*/engines/*/server.log")]
        return len(logs) == caches and all("bound" in log for log in logs)

    def ended():
        return [process for process in both if process.poll() is not None]

    port = str(free_port())
    both = two_at_once(port, caches)
    until(bound)
    if caches == 1:
        until(ended)  # it is refused while the port still looks free
    (tmp_path / "loaded").touch()
    (loser,) = until(ended)
    winner = both[1 - both.index(loser)]
    printed = ""
    while not printed.rstrip().endswith("}"):
        printed += winner.stdout.readline()
    answer = json.loads(printed)

    out, err = loser.communicate()
    assert loser.returncode == 1 and not out and "Traceback" not in err
    (error,) = [line for line in err.splitlines() if line.startswith("sparkbook: ")]
    assert f"127.0.0.1:{port}" in error and "was started here" in error
    assert Path(answer["key"]).read_text() == f"key-{both.index(winner)}"
    assert "INFO stand-in" in Path(answer["log"]).read_text()
    assert len(list(tmp_path.glob("*/engines/*/engine.json"))) == 1
    assert len(list(tmp_path.glob("*/engines/*/api-key"))) == 1
    (server,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(tmp_path / "model") in (process.info["cmdline"] or ())
        and "stand_in.py" in " ".join(process.info["cmdline"])
        and "_guard.py" not in " ".join(process.info["cmdline"])
    ]
    assert psutil.Process(winner.pid) in server.parents()

    monkeypatch.setenv("SPARKBOOK_CACHE", str(Path(answer["log"]).parents[2]))
    (listed,) = json.loads(run("status", "--json").stdout)["servers"]
    assert (listed["name"], listed["state"]) == (answer["name"], "ready")
    run("stop", answer["name"])


ENDS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("number", ENDS)
def test_a_signal_while_it_starts_leaves_nothing(stand_in, monkeypatch, number, times):
    monkeypatch.setenv("STAND_IN_MODE", "hangs")
    server = subprocess.Popen(
        [COMMAND, "serve", f"vllm serve {stand_in}", "--no-watchdog"],
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: running.status(None))
    processes = psutil.Process(server.pid).children(recursive=True)
    for _ in range(times):
        server.send_signal(number)
        time.sleep(0.1)
    _, err = server.communicate(timeout=60)
    assert server.returncode == 128 + number, err
    assert "Traceback" not in err and "Interrupted" in err
    assert processes and not psutil.wait_procs(processes, timeout=60)[1]


@pytest.mark.slow
@pytest.mark.parametrize("ready", [False, True])
def test_a_terminal_that_is_closed_leaves_nothing(stand_in, monkeypatch, ready):
    monkeypatch.setenv("STAND_IN_MODE", "" if ready else "hangs")
    server, terminal = pty.fork()
    if not server:
        os.execv(COMMAND, ["sparkbook", "serve", f"vllm serve {stand_in}", "--no-watchdog"])
    (listed,) = until(lambda: running.status(None))
    if ready:
        until(lambda: b"Ctrl-C" in os.read(terminal, 4096))
    processes = psutil.Process(server).children(recursive=True)
    os.close(terminal)
    status = psutil.Process(server).wait(60)
    assert status == (0 if ready else 128 + signal.SIGHUP)
    assert processes and not psutil.wait_procs(processes, timeout=60)[1]
    assert not (folders.path_of(listed.name) / folders.KEY_FILE).exists()


def test_what_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.raised():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", ENDS)
def test_a_clean_up_is_not_cut_short(number):
    did = []
    before = {one: signal.getsignal(one) for one in ENDS}
    try:
        with pytest.raises(interrupts.Interrupted) as end, interrupts.raised():
            with interrupts.held_back():
                signal.raise_signal(number)
                signal.raise_signal(number)
                did.append("all of it")
            did.append("more")
        assert did == ["all of it"] and end.value.number == number
        for one in ENDS:
            signal.raise_signal(one)  # until the process ends
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@pytest.mark.parametrize("number", ENDS)
def test_a_clean_up_that_fails_is_still_of_an_interruption(number, capsys):
    def act():
        try:
            signal.raise_signal(number)
        finally:
            raise EngineError("the container is still there")

    before = {one: signal.getsignal(one) for one in ENDS}
    try:
        with pytest.raises(typer.Exit) as end:
            servers.run_server(act)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
    assert end.value.exit_code == 128 + number
    lines = ["sparkbook: the container is still there", "sparkbook: Interrupted"]
    assert capsys.readouterr().err.splitlines() == lines


def test_lock_by_the_command(run, tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    run("lock", "embedded/tiny-dense", "-o", str(one))
    assert run("lock", "make", "embedded/tiny-dense").stdout == one.read_text()
    run("lock", "verify", str(one))
    run("lock", "embedded/tiny-dense-ngram", "-o", str(two))
    run("lock", "diff", str(one), str(one))
    told = json.loads(run("lock", "diff", str(one), str(two), "--json", check=1).stdout)
    assert "launch.serve.args.speculative-config" in [change["path"] for change in told["changes"]]
    assert told["findings"][0]["rule"] == "LOCK103"
    run("lock", "verify", str(tmp_path / "none.json"), check=2)


def test_a_lock_keeps_plan_and_measurement(run, tmp_path):
    from sparkbook.bench.results import Cell, Figures, Report

    cell = Cell(
        prompt_class="code", concurrency=4, figures=Figures(completed=16, out_tok_s=123.456)
    )
    Report(date="2026-11-28T00:00:00Z", tool="sparkbook", model="m", cells=[cell]).write(
        tmp_path / "bench.json"
    )
    locked = json.loads(run("lock", "gpt-oss-20b", "--bench", str(tmp_path / "bench.json")).stdout)
    assert locked["plan"]["fraction"] == 0.85 and locked["plan"]["kv_gib"]
    assert locked["bench"]["rows"] == [
        {
            "class": "code",
            "load": "c=4",
            "verdict": "valid",
            "out_tok_s": 123.5,
            "ttft_s": None,
            "tpot_s": None,
        }
    ]
    run("lock", "gpt-oss-20b", "--bench", str(tmp_path / "none.json"), check=2)


def test_a_lock_has_the_share_of_the_memory_that_the_server_has(stand_in, launch):
    launch.serve.args["gpu-memory-utilization"] = 0.31
    with ProcessEngine(launch, stand_in, name="small"):
        locked = launcher.lock_of("gpt-oss-20b", name="small", planned="gpt-oss-20b")
    assert locked["launch"]["serve"]["args"]["gpu-memory-utilization"] == 0.31
    assert locked["plan"]["fraction"] == 0.31
    again = launcher.lock_of("gpt-oss-20b", name="small", planned="gpt-oss-20b")
    assert again["launch"]["serve"]["args"]["gpu-memory-utilization"] == 0.85
    assert again["plan"]["fraction"] == 0.85


def test_a_lock_of_other_files_is_not_served(run, tmp_path):
    file = tmp_path / "one.json"
    locked = launcher.lock_of("embedded/tiny-dense")
    locked["models"]["tiny-dense"]["files"]["model.safetensors"]["sha256"] = "0" * 64
    file.write_text(json.dumps(locked))
    assert (
        "not started, the lock is about other files"
        in run("serve", "--locked", str(file), check=2).stderr
    )


def test_a_lock_is_served_as_it_was_not_as_the_recipe_is_now(tmp_path, monkeypatch):
    file = tmp_path / "one.json"
    locked = launcher.lock_of("embedded/tiny-dense")
    locked["launch"]["serve"]["args"]["max-num-seqs"] = 3
    file.write_text(json.dumps(locked))
    started = []

    def start(recipe, **_):
        started.append(recipe)
        raise SparkbookError("far enough")

    monkeypatch.setattr(launcher.embedded, "start", start)
    with pytest.raises(SparkbookError, match="far enough"):
        launcher.serve(Wish(locked=str(file)), say=print, show=print)
    assert started[0].launch.serve.args["max-num-seqs"] == 3
    assert "--max-num-seqs 3" in launcher.plan(Wish(locked=str(file))).text


def test_without_an_answer_of_docker_nobody_says_that_nothing_runs():
    with (
        pytest.raises(SparkbookError, match=r"Docker can't be asked \(DOCK101\)"),
        running.engines("tcp://127.0.0.1:1") as (docker, _),
    ):
        running.stop(docker, "nobody")
