"""What a chapter gets for each target."""

import pytest
from sparkbook import serve
from sparkbook.errors import SparkbookError
from sparkbook.recipes.schema import Capabilities
from sparkbook.serve.process import ProcessEngine


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch):
    monkeypatch.delenv("SPARKBOOK_ENDPOINT", raising=False)
    monkeypatch.delenv("SPARKBOOK_KEY_FILE", raising=False)


def test_plan_starts_nothing_and_says_so():
    server = serve.connect("embedded/tiny-dense", "plan")
    assert server.planned
    assert "nothing was run" in server._repr_html_()
    assert "vllm serve" in server._repr_html_()
    with pytest.raises(serve.PlanOnly, match="nothing was started"):
        _ = server.client
    assert serve.PlanOnly("x")._render_traceback_() == ["PlanOnly: x"]
    server.stop()


@pytest.mark.parametrize(
    ("recipe", "target", "message"),
    [
        (
            "embedded/tiny-dense",
            "gpu",
            "'gpu' is not a target; choose one of auto, docker, process, attach, plan",
        ),
        ("embedded/tiny-dense", "attach", "set SPARKBOOK_ENDPOINT"),
        (
            "gpt-oss-120b",
            "auto",
            "gpt-oss-120b runs in a container.*target 'docker'.*target 'attach'",
        ),
        ("embedded/nothing", "auto", "there is no recipe"),
    ],
)
def test_refusals(recipe, target, message):
    with pytest.raises(SparkbookError, match=message):
        serve.connect(recipe, target)


def test_attaches_and_leaves_the_engine_alone(stand_in, launch, monkeypatch):
    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        for name, value in engine.environment().items():
            monkeypatch.setenv(name, value)
        with serve.connect("embedded/tiny-dense", "auto") as server:
            assert server.model == "small"
            assert "attached" in repr(server)
        assert engine.running


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("127.0.0.1:8000", "write an address such as"),
        ("http://h:abc", "write an address such as"),
        ("http://127.0.0.1:8000/v1/models", "write an address such as"),
        ("http://user:word@127.0.0.1:9", "leave it out"),
        ("http://127.0.0.1:9", "does not answer"),
    ],
)
def test_bad_addresses(monkeypatch, url, message):
    monkeypatch.setenv("SPARKBOOK_ENDPOINT", url)
    with pytest.raises(SparkbookError, match=message):
        serve.connect("embedded/tiny-dense", "attach")


def test_key_file_open_to_others(monkeypatch, tmp_path):
    file = tmp_path / "key"
    file.write_text("k")
    file.chmod(0o644)
    monkeypatch.setenv("SPARKBOOK_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("SPARKBOOK_KEY_FILE", str(file))
    with pytest.raises(SparkbookError, match="can be read by others: chmod 600"):
        serve.connect("embedded/tiny-dense", "attach")


def test_wrong_key(stand_in, launch, monkeypatch):
    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        monkeypatch.setenv("SPARKBOOK_ENDPOINT", engine.endpoint.url)
        monkeypatch.setenv("VLLM_API_KEY", "wrong")
        with pytest.raises(SparkbookError, match="refuses the API key"):
            serve.connect("embedded/tiny-dense", "attach")


@pytest.mark.parametrize("key", ["two lines\nsecret-part", "secret-part mid", "secret-part\u00fc"])
def test_a_key_that_can_not_be_one_is_never_shown(monkeypatch, tmp_path, key):
    monkeypatch.setenv("SPARKBOOK_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("VLLM_API_KEY", key)
    with pytest.raises(SparkbookError, match="VLLM_API_KEY holds a blank") as told:
        serve.connect("embedded/tiny-dense", "attach")
    assert "secret-part" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b"\xff\xfe", "is not UTF-8 text")]
)
def test_key_files_that_hold_no_key(monkeypatch, tmp_path, content, message):
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(0o600)
    monkeypatch.setenv("SPARKBOOK_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("SPARKBOOK_KEY_FILE", str(file))
    with pytest.raises(SparkbookError, match=message):
        serve.connect("embedded/tiny-dense", "attach")


def test_blanks_around_a_key_are_dropped(stand_in, launch, monkeypatch):
    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        monkeypatch.setenv("SPARKBOOK_ENDPOINT", f" {engine.endpoint.url}/v1/ ")
        monkeypatch.setenv("VLLM_API_KEY", f" {engine.endpoint.api_key}\r\n")
        server = serve.connect("embedded/tiny-dense", "attach")
        with pytest.raises(SparkbookError, match="attached to, not started here"):
            _ = server.engine


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"object": "list"}'])
def test_a_server_that_is_no_vllm(monkeypatch, body):
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Other(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        monkeypatch.setenv("SPARKBOOK_ENDPOINT", f"http://127.0.0.1:{other.server_port}")
        monkeypatch.delenv("VLLM_API_KEY", raising=False)
        with pytest.raises(SparkbookError, match="instead of a list of models"):
            serve.connect("embedded/tiny-dense", "attach")
        other.shutdown()


@pytest.mark.parametrize("place", ["/dev/null", "/proc/nowhere", "~nouser/cache"])
def test_a_cache_that_can_not_be_used(monkeypatch, place):
    from sparkbook.serve import paths

    monkeypatch.setenv("SPARKBOOK_CACHE", place)
    with pytest.raises(
        SparkbookError, match="name a folder that can be written with SPARKBOOK_CACHE"
    ):
        paths.cache_dir()


@pytest.mark.parametrize("url", ["http://user:word@127.0.0.1:9", "https://word@h/v1"])
def test_a_password_in_an_address_is_refused_and_not_shown(url):
    with pytest.raises(SparkbookError, match="leave it out") as error:
        serve.Endpoint(url)
    assert "word@" not in str(error.value)


def test_a_redirect_takes_neither_key_nor_prompt_to_another_server(servers):
    from sparkbook.serve.endpoint import Endpoint
    from sparkbook.serve.stream import StreamError, stream_chat

    home, stranger = servers.urls
    servers.redirects["/v1/chat/completions"] = f"{stranger}/there"
    with pytest.raises(StreamError):
        stream_chat(Endpoint(home, "m", api_key="the-key"), "the prompt", max_tokens=1)
    assert servers.tokens == ["Bearer the-key"]
