"""The real vLLM, end to end: start, chat, stream, read the metrics, stop, and nothing is left. And
the ways it fails.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import psutil
import pytest
from sparkbook import recipes, serve
from sparkbook.errors import SparkbookError
from sparkbook.metrics import Metrics
from sparkbook.serve import embedded, running, smollm2
from sparkbook.serve.process import free_port, port_is_free
from sparkbook.serve.ready import NotReady

pytestmark = pytest.mark.engine


def tree(engine):
    guard = psutil.Process(engine._guard.pid)
    return [guard, *guard.children(recursive=True)]


def leader(engine):
    """The process group of vLLM: of the keeper's child, where it has been started."""
    guard = psutil.Process(engine._guard.pid)
    return next((vllm.pid for child in guard.children() for vllm in child.children()), None)


def gone(processes, within_s=120):
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    return not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Logs and keys of these engines go to the test's own folder; the converted SmolLM2 stays where
    it is.
    """
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path))


def test_the_life_of_an_engine_until_it_is_killed(cache):
    said = []
    engine = embedded.start("embedded/tiny-dense", progress=said.append)
    try:
        processes = tree(engine)
        stages = [stage.name for stage in engine.readiness.stages]
        assert stages == [
            "port",
            "health",
            "models",
            "completion",
            "tools",
            "reasoning",
            "json schema",
        ]
        assert any(line.startswith("completion: ") for line in said)

        client = engine.endpoint.client()
        question = [{"role": "user", "content": "What is the capital of France?"}]
        thinking_off = {"chat_template_kwargs": {"enable_thinking": False}}
        before = Metrics.parse(engine.endpoint.metrics_text())
        reply = client.chat.completions.create(
            model=engine.endpoint.model, messages=question, temperature=0, extra_body=thinking_off
        )
        assert "Paris" in reply.choices[0].message.content

        stream = client.chat.completions.create(
            model=engine.endpoint.model,
            messages=question,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body=thinking_off,
        )
        chunks = list(stream)
        assert (
            "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            == reply.choices[0].message.content
        )
        assert chunks[-1].usage.completion_tokens == reply.usage.completion_tokens

        after = Metrics.parse(engine.endpoint.metrics_text())
        generated = after.value("generation_tokens_total") - before.value("generation_tokens_total")
        assert generated == 2 * reply.usage.completion_tokens
        assert (
            after.histogram("time_to_first_token_seconds")
            .minus(before.histogram("time_to_first_token_seconds"))
            .count
            == 2
        )
        assert 0 <= after.value("kv_cache_usage_perc") <= 1

        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(
                base_url=f"{engine.endpoint.url}/v1", api_key="wrong", max_retries=0
            ).models.list()

        # Its end, in the middle of a reply.
        stream = client.chat.completions.create(
            model=engine.endpoint.model,
            messages=[{"role": "user", "content": "Count."}],
            stream=True,
            max_tokens=900,
            extra_body={"ignore_eos": True},
        )
        received = [next(iter(stream))]
        os.killpg(leader(engine), signal.SIGKILL)
        with pytest.raises(
            (openai.APIError, Exception),
            match=r"(?i)peer closed|incomplete|connection|reset|closed",
        ):
            received.extend(stream)
        assert received
        with pytest.raises(SparkbookError, match="does not answer"):
            engine.endpoint.get("/health")
        assert engine._guard.wait(60) == 137
    finally:
        engine.stop()
    assert gone(processes)
    assert port_is_free(engine.port)


@pytest.mark.parametrize(
    ("recipe", "kind"),
    [
        ("embedded/tiny-mtp-k3", "mtp"),
        ("embedded/tiny-dense-draft", "draft_model"),
        ("embedded/tiny-dense-ngram", "ngram"),
    ],
)
def test_speculation_is_real(cache, recipe, kind):
    """Drafted tokens are counted, and accepted for text that the model knows by heart."""
    assert recipes.load(recipe).launch.serve.args["speculative-config"]["method"] == kind
    with embedded.start(recipe) as engine:
        for prompt in ("Count to ten.", "Write a binary search in Python with type hints."):
            engine.endpoint.client().chat.completions.create(
                model=engine.endpoint.model,
                messages=[{"role": "user", "content": prompt}],
                temperature=0,
                max_tokens=120,
                extra_body={"chat_template_kwargs": {"enable_thinking": False}},
            )
        metrics = Metrics.parse(engine.endpoint.metrics_text())
        drafted, accepted = (
            metrics.value(f"spec_decode_num_{name}_tokens") for name in ("draft", "accepted")
        )
        assert 0 < accepted <= drafted
        by_position = metrics.by_label("spec_decode_num_accepted_tokens_per_pos", "position")
        assert sum(by_position.values()) == accepted


def test_killed_while_loading(cache):
    with embedded.start("embedded/tiny-dense", ready=False) as engine:
        while (group := leader(engine)) is None:
            time.sleep(0.05)
        processes = tree(engine)
        threading.Timer(4, lambda: os.killpg(group, signal.SIGKILL)).start()
        with pytest.raises(NotReady, match="ended with status 137 while waiting for port"):
            engine.wait_ready(deadline_s=120)
        assert gone(processes)


def test_smollm2_is_converted_and_whole():
    folder = smollm2.ensure()
    assert smollm2.damaged(folder) is None
    assert (folder / "model.safetensors").stat().st_size > 250_000_000


@pytest.mark.root  # it mounts a small file system
def test_disk_full_while_converting(tmp_path, monkeypatch):
    """A 64 MiB file system, the check beforehand switched off: the real conversion runs into the
    end of the disk.
    """
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place], check=True)
    try:
        monkeypatch.setattr(smollm2, "NEEDED_BYTES", 0)
        with pytest.raises(SparkbookError, match=r"is full|could not be converted"):
            smollm2.ensure(place / "model")
        assert [path.name for path in place.iterdir()] == [".model.lock"]
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_chapter_that_finds_no_server_starts_one_and_stops_it(cache, monkeypatch):
    monkeypatch.delenv("SPARKBOOK_ENDPOINT", raising=False)
    with serve.connect("embedded/tiny-dense") as server:
        assert server.started
        assert Path(server.engine.log_file).stat().st_size > 0
        assert server.client.models.list().data[0].id == server.model
        processes = tree(server.engine)
    assert gone(processes)
    assert port_is_free(server.engine.port)


def test_a_stranger_that_takes_the_port_while_the_model_loads(cache, stranger, monkeypatch):
    """vLLM binds its port seconds before it listens; whoever listens first gets the port."""
    monkeypatch.setenv("VLLM_API_KEY", "key-of-the-test")
    engine = embedded.start("embedded/tiny-dense", ready=False)
    deadline = time.monotonic() + 60
    while not bound(engine.port) and time.monotonic() < deadline:
        time.sleep(0.05)
    with stranger(engine.port, "tiny-dense") as requests:
        with pytest.raises(NotReady, match=r"port failed: process \d+ .* not the server that was"):
            engine.wait_ready(deadline_s=120)
        assert requests == []
    assert not engine.running and not engine.key_file.exists()


def bound(port):
    """Whether a socket is bound to the port, listening or not."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def test_two_starts_at_once_of_one_recipe_on_one_port(cache):
    port = str(free_port())
    command = [
        *(Path(sys.executable).with_name("sparkbook"), "serve", "embedded/tiny-dense"),
        *("--port", port, "--no-watchdog", "--json"),
    ]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    try:
        while not (ended := [one for one in both if one.poll() is not None]):
            time.sleep(0.05)
        (loser,) = ended
        winner = both[1 - both.index(loser)]
        out, err = loser.communicate()
        assert loser.returncode == 1 and not out and len(err.splitlines()) == 1
        assert f"http://127.0.0.1:{port} is taken by tiny-dense-{port}" in err
        printed = ""
        while not printed.rstrip().endswith("}"):
            printed += winner.stdout.readline()
        answer = json.loads(printed)
        (server,) = running.status(None)
        assert (server.name, server.state) == (answer["name"], "ready")
        assert Path(answer["key"]).exists()
        assert running.stop(None, answer["name"]) == answer["name"]
        assert winner.wait(60) == 1
    finally:
        for process in both:
            process.kill()
            process.communicate()
