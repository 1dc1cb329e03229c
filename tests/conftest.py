"""What tests of several rooms start: the stand-in for vLLM, which is up in a moment, vLLM's own
parser, and two servers that redirect to one another.
"""

import http.server
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@pytest.fixture
def stand_in_engine(tmp_path, monkeypatch):
    """Processes started while this fixture lives run the stand-in instead of vLLM."""
    programs = tmp_path / "engine" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    vllm = programs / "vllm"
    vllm.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).parent / "serve" / "stand_in.py"}"'
        ' "$@"\n'
    )
    vllm.chmod(0o755)
    monkeypatch.setenv("SPARKBOOK_ENGINE_PYTHON", str(programs / "python"))


@pytest.fixture(scope="session")
def real_parser():
    """vLLM's own parser, started once for all tests that ask it (ten seconds)."""
    sys.path.insert(0, str(Path(__file__).parent / "releases"))
    from asked_parser import RealParser

    parser = RealParser()
    yield parser
    parser.close()


@dataclass
class Servers:
    """Two servers, each another origin, that redirect where they are told to.

    Attributes:
        redirects: path to location; all other paths are answered with an empty 200.
        tokens: the Authorization of each request, in their order.
    """

    urls: list[str] = field(default_factory=list)
    redirects: dict[str, str] = field(default_factory=dict)
    tokens: list[str | None] = field(default_factory=list)


@pytest.fixture
def servers():
    """Two running `Servers`."""
    both = Servers()

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.rfile.read(int(self.headers.get("content-length") or 0))
            both.tokens.append(self.headers.get("authorization"))
            location = both.redirects.get(self.path)
            self.send_response(307 if location else 200)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_POST = do_GET  # noqa: N815 (http.server's name)

    running = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [threading.Thread(target=one.serve_forever, args=(0.02,)) for one in running]
    for thread in threads:
        thread.start()
    both.urls = [f"http://127.0.0.1:{one.server_port}" for one in running]
    yield both
    for one, thread in zip(running, threads, strict=True):
        one.shutdown()
        thread.join()
        one.server_close()
