"""A real Caddy or nginx in front of a small server that streams as a test says. Used by the tests
here and by `tools/bench_proxy.py`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sparkbook import proxy
from sparkbook.serve.process import free_port

SERVER_KEY = "the-servers-own-key"
LIMIT_S = 120
"""What hangs for so long is an error."""


@dataclass
class Upstream:
    """What the server behind the proxy saw, and when it goes on.

    Attributes:
        more: set by a test that has read the first piece of a stream.
        left: set by the server when the reader of a stream has gone.
        entered: counts requests that wait. hold: what those of /v1/wait wait for.
        seen: method, path, key and size of each whole request.
    """

    url: str = ""
    more: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    entered: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    hold: threading.Event = field(default_factory=threading.Event)
    seen: list[tuple[str, str, str | None, int]] = field(default_factory=list)


class Handler(BaseHTTPRequestHandler):
    """Answers every path, as vLLM does those without its key."""

    protocol_version = "HTTP/1.1"
    state: Upstream

    def do_GET(self) -> None:
        self._note(b"")
        if self.path.startswith("/v1/wait"):
            self.state.entered.release()
            self.state.hold.wait(LIMIT_S)
        self._whole()

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        self._note(body)
        if self.path.startswith("/v1/chat/completions"):
            self._stream()
        elif self.path.startswith("/v1/timed"):
            self._timed(int(self.path.rpartition("=")[2]))
        else:
            self._whole()

    def _note(self, body: bytes) -> None:
        key = self.headers.get("Authorization")
        self.state.seen.append((self.command, self.path, key, len(body)))

    def _whole(self) -> None:
        data = json.dumps({"path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _begin(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def _timed(self, pieces: int) -> None:
        """Send the time of sending, again and again."""
        self._begin()
        for _ in range(pieces):
            self.wfile.write(f"data: {time.perf_counter()}\n\n".encode())
            time.sleep(0.002)

    def _stream(self) -> None:
        """Send a piece, then another when the test has read the first."""
        self._begin()
        self.wfile.write(b"data: one\n\n")
        self.state.more.wait(4 * LIMIT_S)  # longer than any client: one that waits has failed
        self.wfile.write(b"data: two\n\n")
        with contextlib.suppress(OSError):
            while self.path.endswith("forever"):
                self.wfile.write(b"data: more\n\n")
                time.sleep(0.01)
            return
        self.state.left.set()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextlib.contextmanager
def upstream() -> Iterator[Upstream]:
    """Run the server behind the proxy."""
    state = Upstream()
    handler = type("Own", (Handler,), {"state": state})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        state.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield state
        finally:
            state.more.set()
            state.hold.set()
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Running:
    """A proxy that runs.

    Attributes:
        keys: of each user. log: the file of its requests. folder: where its files are.
    """

    host: str
    port: int
    keys: dict[str, str]
    log: Path
    folder: Path
    trust: ssl.SSLContext

    def connect(self) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=LIMIT_S, context=self.trust
        )

    def raw(self) -> ssl.SSLSocket:
        """Return a connection for what no client sends."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S)
        return self.trust.wrap_socket(plain, server_hostname="localhost")

    def ask(
        self, method: str, path: str, user: str | None = "alice", body: bytes | None = None
    ) -> tuple[int, bytes]:
        """Return status and body; `user` is one with a key, or a header's value as it is."""
        headers = {"Content-Type": "application/json"}
        if user:
            headers["Authorization"] = f"Bearer {self.keys[user]}" if user in self.keys else user
        connection = self.connect()
        try:
            connection.request(method, path, body, headers)
            with contextlib.closing(connection.getresponse()) as reply:
                return reply.status, reply.read()
        finally:
            connection.close()

    def logged(self, path: str, count: int) -> list[dict[str, object]]:
        """Return the rows of the log about a path, of which so many are awaited."""
        limit = time.monotonic() + LIMIT_S
        rows: list[str] = []
        while len(rows) < count and time.monotonic() < limit:
            text = self.log.read_text() if self.log.exists() else ""
            rows = [row for row in text.splitlines() if f'"uri":"{path}"' in row.replace(" ", "")]
            time.sleep(0.05)
        return [json.loads(row) for row in rows]


@contextlib.contextmanager
def running(wanted: proxy.Wanted, folder: Path, server_key: str = SERVER_KEY) -> Iterator[Running]:
    """Start a proxy with the configuration that the command writes."""
    log = folder / "requests.log"
    wanted = replace(wanted, port=free_port(), log=str(log))
    made, files = proxy.write(wanted, server_key, add=["alice", "bob"], folder=folder / "made")
    home = folder / "home"
    home.mkdir()
    if wanted.kind == "caddy":
        command = ["caddy", "run", "--config", str(made / "Caddyfile")]
        certificate = home / "caddy/pki/authorities/local/root.crt"
    else:
        shutil.copy(made / proxy.KEYS, folder)
        subprocess.run(wanted.certificate_command(folder), check=True, capture_output=True)
        main = folder / "nginx.conf"
        temporary = "".join(
            f"{name}_temp_path {home}/{name};\n"
            for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        main.write_text(
            f"user root; daemon off; pid {folder}/pid; error_log {folder}/errors.log;\nevents {{}}\n"
            f"http {{\n{temporary}include {made}/sparkbook.conf;\n}}\n"
        )
        command = [shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") or "nginx"]
        command += ["-p", str(folder), "-c", str(main)]
        certificate = folder / "sparkbook.crt"
    own = {"HOME": str(home), "XDG_DATA_HOME": str(home), "XDG_CONFIG_HOME": str(home)}
    output = folder / "output"
    with output.open("wb") as out:
        process = subprocess.Popen(command, env=os.environ | own, stdout=out, stderr=out)
    try:
        _wait_for(process, wanted, certificate, output)
        yield Running(
            host=wanted.host,
            port=wanted.port,
            keys={name: file.read_text() for name, file in files.items()},
            log=log,
            folder=folder,
            trust=ssl.create_default_context(cafile=str(certificate)),
        )
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def _wait_for(
    process: subprocess.Popen[bytes], wanted: proxy.Wanted, certificate: Path, said: Path
) -> None:
    """Wait until a proxy takes TLS connections."""
    limit = time.monotonic() + LIMIT_S
    while process.poll() is None and time.monotonic() < limit:
        with contextlib.suppress(OSError):  # ssl.SSLError among them: no certificate yet
            trust = ssl.create_default_context(cafile=str(certificate))
            plain = socket.create_connection(("127.0.0.1", wanted.port), timeout=5)
            with plain, trust.wrap_socket(plain, server_hostname=wanted.host):
                return
        time.sleep(0.05)
    raise AssertionError(said.read_text("utf-8", "replace")[-3000:])
