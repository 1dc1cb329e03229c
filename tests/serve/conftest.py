"""A model for the stand-in engine, and a recipe-like launch for it."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from sparkbook.recipes import Launch, Serve


@pytest.fixture
def stand_in(stand_in_engine, tmp_path, monkeypatch):
    """A model folder; processes started while this fixture lives run the stand-in instead of vLLM."""
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return model


@pytest.fixture
def launch():
    return Launch(serve=Serve(args={"served-model-name": "small", "max-model-len": 1024}))


@pytest.fixture
def stranger():
    """Makes a server that answers everything with 200, as a model server would; with the keys that
    it was sent.
    """

    @contextmanager
    def listen(port, name="small"):
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                requests.append(self.headers.get("Authorization"))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(f'{{"data": [{{"id": "{name}"}}]}}'.encode())

            do_POST = do_GET  # noqa: N815 (http.server's name)

        requests = []
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield requests
        finally:
            server.shutdown()
            thread.join()
            server.server_close()

    return listen
