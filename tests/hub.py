"""A hub of our own: enough of Hugging Face's HTTP API to download from, and faults on demand.

    with Hub() as hub:
        hub.add("org/model", {"config.json": b"{}", "model.safetensors": weights})
        hub.fail("/resolve/", 503, times=1)

Large files (`*.safetensors`, `*.bin`, or what `lfs` names) are answered by a redirect to a second
server, as the real hub redirects to its content network: with ranges, and without wanting to see
the token.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


def git_hash(contents: bytes) -> str:
    """Git's hash of a file."""
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents, usedforsecurity=False).hexdigest()


@dataclass
class Fault:
    """What goes wrong where an address holds `part`: a status, or a connection that breaks after
    some bytes.
    """

    part: str
    status: int = 0
    times: int | None = None
    after: int | None = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class Repo:
    """A repository: commits with their files, and branches. `gated`: tokens that may read it; None:
    everybody.
    """

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    gated: set[str] | None = None


@dataclass
class Seen:
    """A request that was made."""

    method: str
    path: str
    authorization: str | None
    range: str | None
    status: int = 0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is part of the tests."""


class Hub:
    """The two servers. `tokens` are those that exist; `xet`: large files say that they are kept in
    Xet, as on the real hub most do.
    """

    def __init__(self, xet: bool = False) -> None:
        self.repos: dict[str, Repo] = {}
        self.files: dict[str, bytes] = {}
        self.tokens: set[str] = set()
        self.blobs: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.seen: list[Seen] = []
        self.ranges = True
        self.xet = xet
        self._lock = threading.Lock()
        self._servers = [_Server(("127.0.0.1", 0), self._handler(cdn)) for cdn in (False, True)]
        self._threads = [
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            for server in self._servers
        ]

    def __enter__(self) -> Hub:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()

    @property
    def url(self) -> str:
        """Address of the hub."""
        return f"http://127.0.0.1:{self._servers[0].server_port}"

    @property
    def cdn(self) -> str:
        """Address of its content network; another name than the hub's, so that a client takes it
        for another origin.
        """
        return f"http://localhost:{self._servers[1].server_port}"

    def add(
        self,
        name: str,
        files: dict[str, bytes],
        branch: str = "main",
        gated: set[str] | None = None,
    ) -> str:
        """Add a commit to a repository, and let a branch stand at it; its hash."""
        repo = self.repos.setdefault(name, Repo(gated=gated))
        listing = "".join(
            f"{path} {git_hash(contents)}\n" for path, contents in sorted(files.items())
        )
        commit = hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest()
        repo.commits[commit] = dict(files)
        repo.refs[branch] = commit
        for path, contents in files.items():
            if self.is_large(path):
                self.blobs[hashlib.sha256(contents).hexdigest()] = contents
        return commit

    def is_large(self, path: str) -> bool:
        """Whether a file is kept apart, as large ones are."""
        return path.endswith((".safetensors", ".bin"))

    def fail(
        self,
        part: str,
        status: int = 0,
        times: int | None = None,
        after: int | None = None,
        **headers: str,
    ) -> None:
        """Let requests whose address holds `part` fail; `times` None: always. With `after` the
        connection breaks after so many bytes.
        """
        self.faults.append(
            Fault(
                part,
                status,
                times,
                after,
                {key.replace("_", "-"): value for key, value in headers.items()},
            )
        )

    def requests(self, part: str, method: str = "GET") -> list[Seen]:
        """What was asked of addresses that hold `part`."""
        return [one for one in self.seen if part in one.path and one.method == method]

    def fault(self, path: str) -> Fault | None:
        """The fault that meets a request now."""
        with self._lock:
            for fault in self.faults:
                if fault.part in path and fault.times != 0:
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None

    def _handler(self, cdn: bool) -> type[BaseHTTPRequestHandler]:
        return type("Handler", (_Handler,), {"of": self, "cdn": cdn})

    def sibling(self, path: str, contents: bytes) -> dict[str, Any]:
        """A file as `/api/models/NAME/revision/REVISION?blobs=true` lists it."""
        entry: dict[str, Any] = {
            "rfilename": path,
            "size": len(contents),
            "blobId": git_hash(contents),
        }
        if self.is_large(path):
            entry["lfs"] = {
                "sha256": hashlib.sha256(contents).hexdigest(),
                "size": len(contents),
                "pointerSize": 134,
            }
        return entry

    def tree_entry(self, path: str, contents: bytes) -> dict[str, Any]:
        """A file as `/api/models/NAME/tree/REVISION` lists it."""
        entry: dict[str, Any] = {
            "type": "file",
            "path": path,
            "size": len(contents),
            "oid": git_hash(contents),
        }
        if self.is_large(path):
            entry["lfs"] = {
                "oid": hashlib.sha256(contents).hexdigest(),
                "size": len(contents),
                "pointerSize": 134,
            }
            if self.xet:
                entry["xetHash"] = hashlib.sha256(contents).hexdigest()
        return entry


class _Handler(BaseHTTPRequestHandler):
    """Answers for a hub, or for its content network. Both are set by `Hub._handler`."""

    protocol_version = "HTTP/1.1"
    of: Hub
    cdn: bool

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        self.note = Seen(
            self.command,
            self.path,
            self.headers.get("authorization"),
            self.headers.get("range"),
        )
        self.of.seen.append(self.note)
        self.breaks: int | None = None
        if fault := self.of.fault(self.path):
            if fault.after is None:
                self.send(fault.status, b"no", fault.headers)
                return
            self.breaks = fault.after
        address = urlsplit(self.path)
        path = unquote(address.path)
        if self.cdn:
            self.content(self.of.blobs.get(path.rsplit("/", 1)[-1]))
        elif path in self.of.files:
            self.send(200, self.of.files[path])
        else:
            self.answer_api(path, parse_qs(address.query))

    def token(self) -> str | None:
        text = self.headers.get("authorization")
        return text.removeprefix("Bearer ") if text else None

    def answer_api(self, path: str, query: dict[str, list[str]]) -> None:
        token = self.token()
        if token is not None and token not in self.of.tokens:
            self.send(401, b'{"error":"Invalid credentials in Authorization header"}')
            return
        if path == "/api/whoami-v2":
            self.send(200 if token else 401, b'{"type":"user","name":"ada"}')
            return
        words = path.strip("/").split("/")
        api = words[:2] == ["api", "models"]
        words = words[2:] if api else words
        name, rest = "/".join(words[:2]), words[2:]
        repo = self.of.repos.get(name)
        if repo is None:
            # The real hub tells nobody without a token whether a repository exists.
            self.send(
                404 if token else 401,
                b'{"error":"Repository not found"}',
                {"X-Error-Code": "RepoNotFound"},
            )
            return
        listing = api and rest[:1] != ["auth-check"]
        if repo.gated is not None and token not in repo.gated and not listing:
            self.send(403 if token else 401, b'{"error":"gated"}', {"X-Error-Code": "GatedRepo"})
            return
        if rest == ["auth-check"]:
            self.send(200, b"{}")
            return
        revision = rest[1] if len(rest) > 1 else "main"
        commit = repo.refs.get(revision, revision)
        if commit not in repo.commits:
            self.send(404, b'{"error":"Invalid rev id"}', {"X-Error-Code": "RevisionNotFound"})
            return
        files = repo.commits[commit]
        if api and rest[:1] == ["tree"]:
            self.send(
                200,
                json.dumps(
                    [self.of.tree_entry(path, contents) for path, contents in files.items()]
                ).encode(),
            )
        elif api:
            siblings = [self.of.sibling(path, contents) for path, contents in files.items()]
            self.send(
                200,
                json.dumps(
                    {"id": name, "modelId": name, "sha": commit, "siblings": siblings}
                ).encode(),
            )
        else:
            self.resolve("/".join(rest[2:]), commit, files)

    def resolve(self, path: str, commit: str, files: dict[str, bytes]) -> None:
        if path not in files:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        contents, headers = files[path], {"X-Repo-Commit": commit}
        if not self.of.is_large(path):
            self.content(contents, {**headers, "ETag": f'"{git_hash(contents)}"'})
            return
        digest = hashlib.sha256(contents).hexdigest()
        headers |= {
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(contents)),
            "Location": f"{self.of.cdn}/{digest}",
        }
        if self.of.xet:
            headers |= {
                "X-Xet-Hash": digest,
                "X-Xet-Refresh-Route": f"{self.of.url}/api/xet-token",
            }
        self.send(302, b"", headers)

    def content(self, contents: bytes | None, headers: dict[str, str] | None = None) -> None:
        if contents is None:
            self.send(404, b"")
            return
        asked, headers = (
            self.headers.get("range"),
            {
                "Accept-Ranges": "bytes",
                **(headers or {}),
            },
        )
        if asked and self.of.ranges:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end = (
                int(first),
                min(int(last) + 1 if last else len(contents), len(contents)),
            )
            if begin >= len(contents):
                self.send(416, b"", {"Content-Range": f"bytes */{len(contents)}"})
                return
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{len(contents)}"
            self.send(206, contents[begin:end], headers)
        else:
            self.send(200, contents, headers)

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.note.status = status
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            try:
                if self.breaks is None:
                    self.wfile.write(body)
                else:
                    self.wfile.write(body[: self.breaks])
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.close()
            except OSError:
                self.close_connection = True
