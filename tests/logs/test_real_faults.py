"""Faults of the real vLLM, provoked on the CPU, and what the doctor says about the log that they
leave.
"""

import os
import shutil
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from sparkbook import logs
from sparkbook.recipes import Launch, Serve
from sparkbook.serve import embedded
from sparkbook.serve.process import ProcessEngine
from sparkbook.serve.ready import NotReady

pytestmark = pytest.mark.engine
SMALL = {
    "max-model-len": 512,
    "max-num-seqs": 2,
    "enforce-eager": True,
    "distributed-executor-backend": "uni",
    "kv-cache-memory-bytes": "64M",
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path))


def model(tmp_path, **changes):
    """A copy of the tiny model with other values in its config.json."""
    import json

    folder = tmp_path / "model"
    shutil.copytree(embedded.model_folder("tiny-dense"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def log_of(tmp_path, served, env=None, **args):
    """The log of a start that ends by itself."""
    arguments = {
        name: value
        for name, value in {**SMALL, **{n.replace("_", "-"): v for n, v in args.items()}}.items()
        if value is not None
    }
    engine = ProcessEngine(
        Launch(serve=Serve(args=arguments), env=env or {}),
        served,
        name="tiny",
        folder=tmp_path / "engine",
    )
    try:
        deadline = time.monotonic() + 150
        while engine.running and time.monotonic() < deadline:
            time.sleep(0.3)
        assert not engine.running, "this start was meant to fail"
        with pytest.raises(NotReady) as told:
            engine.wait_ready(deadline_s=5)
        assert engine.tail()[-1] in str(told.value), "who waits for it is shown the log's end"
    finally:
        engine.stop()
    return engine.log_file.read_bytes()


# Each start of vLLM costs half a minute, so each is made once.
STARTS = {
    "too long context": (
        {"max_model_len": 1_000_000},
        {},
        "flag-conflict",
        "LOG315",
        "Set --max-model-len 4096",
    ),
    "unknown architecture": (
        {},
        {"architectures": ["NobodysForCausalLM"], "model_type": "nobodys"},
        "model-type-unknown",
        "LOG317",
        "newer vLLM",
    ),
    "bad JSON": (
        {"speculative_config": '{"method":"ngram"'},
        {},
        "launcher-quoting",
        "LOG305",
        "single quotes",
    ),
    "missing model": ({}, None, "offline-assets", "LOG325", "Fetch the files beforehand"),
    "unknown tool parser": (
        {"enable_auto_tool_choice": True, "tool_call_parser": "nobodys"},
        {},
        "tool-parser",
        "LOG309",
        "--tool-parser-plugin",
    ),
    "removed flag": (
        {"speculative_disable_by_batch_size": 32},
        {},
        "removed-flag",
        "LOG303",
        "num_speculative_tokens_per_batch_size",
    ),
    "wrong dtype": ({"dtype": "int3"}, {}, "removed-flag", "LOG306", "--dtype"),
    "unknown reasoning parser": (
        {"reasoning_parser": "nano_v3"},
        {},
        "reasoning-parser",
        "LOG310",
        "nemotron_v3",
    ),
    "KV too small": (
        {"max_model_len": 2048, "kv_cache_memory_bytes": "256K"},
        {},
        "kv-too-small",
        "LOG108",
        "--max-model-len",
    ),
}


@pytest.fixture(scope="module")
def printed(request, tmp_path_factory):
    """The log of each start that is asked for, on its way: two at a time, since one keeps a single
    core busy.
    """

    def start(name):
        args, config, *_ = STARTS[name]
        folder = tmp_path_factory.mktemp("start")
        served = "nobody/no-such-model" if config is None else model(folder, **config)
        return log_of(folder, served, {"HF_HUB_OFFLINE": "1"}, **args)

    asked = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(start, name) for name in asked}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", STARTS)
def test_a_start_that_fails(name, printed):
    *_, kind, rule, fix = STARTS[name]
    diagnosis = logs.diagnose(printed[name].result())
    assert diagnosis.primary is not None, diagnosis.story.last_lines
    assert (diagnosis.primary.rule, diagnosis.primary.kind) == (rule, kind), diagnosis.primary
    assert fix in diagnosis.primary.fix
    assert [f.rule for f in diagnosis.findings if f.severity == "error"] == [rule]


def test_port_in_use(cache, tmp_path):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        # The library looks before it starts; the engine itself is what is tried here, so the port
        # is taken behind its back.
        launch = Launch(serve=Serve(args=SMALL))
        engine = ProcessEngine(
            launch,
            embedded.model_folder("tiny-dense"),
            name="tiny",
            port=port,
            folder=tmp_path / "engine",
        )
        taken.listen()
        try:
            deadline = time.monotonic() + 150
            while engine.running and time.monotonic() < deadline:
                time.sleep(0.3)
        finally:
            engine.stop()
    diagnosis = logs.diagnose(engine.log_file)
    assert diagnosis.primary.kind == "port-in-use"


def test_healthy_then_killed(cache, tmp_path):
    """One start shows two things: a healthy log is healthy, and the same log is a fault when the
    engine core has been killed.
    """
    launch = Launch(serve=Serve(args=SMALL))
    engine = ProcessEngine(
        launch, embedded.model_folder("tiny-dense"), name="tiny", folder=tmp_path / "engine"
    )
    try:
        engine.wait_ready(requests=False, deadline_s=150)
        healthy = logs.diagnose(engine.log_file)
        assert healthy.verdict == "healthy" and not [
            f for f in healthy.findings if f.severity != "info"
        ]
        assert healthy.story.release and healthy.story.kv_tokens and healthy.story.phases
        processes = psutil.Process(engine._guard.pid).children(recursive=True)
        core = next(
            p
            for p in processes
            if "EngineCore" in " ".join(p.cmdline()) or "EngineCore" in p.name()
        )
        os.kill(core.pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while engine.running and time.monotonic() < deadline:
            time.sleep(0.3)
    finally:
        engine.stop()
    killed = logs.diagnose(engine.log_file)
    assert killed.primary.kind == "killed-by-watchdog", killed.primary
