"""Caddy and nginx from Debian with the configuration that `sparkbook proxy` writes: what passes, for
whom, how much of it, and that a stream is not held back.
"""

from __future__ import annotations

import threading

import pytest
from real_proxy import SERVER_KEY, Running, Upstream, running, upstream
from sparkbook import proxy
from sparkbook.serve.stack import UNGUARDED

pytestmark = pytest.mark.proxies

OUTSIDE = [*(route for route in UNGUARDED if route != "/health"), "/", "/v1", "/v2/x", "/inference", "/docs"]  # fmt: skip
DISGUISED = [
    "/metrics/../v1/models",
    "/v1/../metrics",
    "/v1/%2e%2e/metrics",
    "/v1/..%2fmetrics",
    "/v1//../metrics",
    "//metrics",
    "/v1/models/./x",
    "/v1/models%00",
    "/V1/models",
    "/v1\\..\\metrics",
    "/metrics?/v1/models",
]  # fmt: skip


@pytest.fixture(scope="module")
def behind():
    with upstream() as state:
        yield state


@pytest.fixture(scope="module", params=proxy.KINDS)
def front(request, behind, tmp_path_factory):
    wanted = proxy.Wanted(
        kind=request.param, host="localhost", upstream=behind.url, max_body="1m", patience_s=2
    )
    with running(wanted, tmp_path_factory.mktemp(request.param)) as one:
        yield one


@pytest.fixture(autouse=True)
def fresh(behind):
    for event in (behind.more, behind.left, behind.hold):
        event.clear()
    behind.seen.clear()


def test_a_user_gets_through_and_the_server_sees_its_own_key(front, behind):
    assert front.ask("GET", "/v1/models?after=a..b")[0] == 200
    assert front.ask("POST", "/v1/embeddings", "bob", b"{}")[0] == 200
    assert front.ask("GET", "/health")[0] == 200
    key = f"Bearer {SERVER_KEY}"
    assert behind.seen == [
        ("GET", "/v1/models?after=a..b", key, 0),
        ("POST", "/v1/embeddings", key, 2),
        ("GET", "/health", key, 0),
    ]


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics"])
def test_without_a_users_key_nothing_passes(front, behind, path):
    right = front.keys["alice"]
    wrong = [None, "Bearer ", "Bearer wrong", f"Bearer {SERVER_KEY}", right, f"Bearer {right}0"]
    wrong += [f"Bearer {right[:-1]}", f"Basic {right}", f"Bearer {right},Bearer x"]
    assert {front.ask("GET", path, header)[0] for header in wrong} == {401}
    assert behind.seen == []


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_route_that_the_key_does_not_cover_is_closed(front, behind, path):
    assert front.ask("GET", path)[0] == front.ask("POST", path, body=b"{}")[0] == 404
    assert behind.seen == []


@pytest.mark.parametrize("path", DISGUISED)
def test_a_path_in_disguise_does_not_pass(front, behind, path):
    with front.raw() as connection:
        key = front.keys["alice"]
        request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
        connection.sendall(f"{request}Connection: close\r\n\r\n".encode())
        status = connection.recv(4096).split()[1]
    assert status in (b"400", b"404") and behind.seen == []


def test_the_log_names_the_user_and_never_a_key(front, behind):
    front.ask("GET", "/v1/logged", "alice")
    front.ask("GET", "/v1/logged", "bob")
    front.ask("GET", "/v1/logged", "Bearer wrong-key")
    rows = front.logged("/v1/logged", 3)
    assert [row["user_id"] for row in rows] == ["alice", "bob", ""]
    assert [row["status"] for row in rows] == [200, 200, 401]
    text = front.log.read_text() + (front.folder / "output").read_text()
    secrets = [*front.keys.values(), SERVER_KEY, "wrong-key"]
    assert not [secret for secret in secrets if secret in text]


def test_a_stream_is_not_held_back(front, behind):
    """The server sends its second piece only when the client has read the first."""
    connection = front.connect()
    headers = {"Authorization": f"Bearer {front.keys['alice']}", "Accept-Encoding": "gzip"}
    connection.request("POST", "/v1/chat/completions", b"{}", headers)
    reply = connection.getresponse()
    assert reply.readline() == b"data: one\n" and not behind.more.is_set()
    behind.more.set()
    assert reply.read() == b"\ndata: two\n\n"
    connection.close()


def test_a_stream_outlasts_the_patience_with_requests(front, behind):
    connection = front.connect()
    headers = {"Authorization": f"Bearer {front.keys['alice']}"}
    connection.request("POST", "/v1/chat/completions", b"{}", headers)
    reply = connection.getresponse()
    assert reply.readline() == b"data: one\n"
    threading.Timer(5, behind.more.set).start()  # patience: 2 s
    assert reply.read() == b"\ndata: two\n\n"
    connection.close()


def test_the_server_sees_that_a_client_has_gone(front, behind):
    connection = front.connect()
    headers = {"Authorization": f"Bearer {front.keys['alice']}"}
    connection.request("POST", "/v1/chat/completions?forever", b"{}", headers)
    reply = connection.getresponse()
    assert reply.readline() == b"data: one\n"
    reply.close()
    connection.close()
    behind.more.set()
    assert behind.left.wait(120)


def test_a_body_that_is_too_big_is_refused(front, behind):
    assert front.ask("POST", "/v1/embeddings", body=b"x" * 2**20)[0] == 200
    try:
        status, _ = front.ask("POST", "/v1/embeddings", body=b"x" * (2**20 + 1))
    except (BrokenPipeError, ConnectionResetError):
        status = 413  # it was refused before all of it was sent
    assert status == 413
    assert [size for *_, size in behind.seen] == [2**20]


def test_a_client_that_sends_too_slowly_is_let_go(front, behind):
    with front.raw() as slow:
        slow.sendall(
            b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
            b"Authorization: Bearer " + front.keys["alice"].encode() + b"\r\n\r\n{"
        )
        while slow.recv(4096):
            pass
    assert behind.seen == []
    with front.raw() as silent:
        silent.sendall(b"GET /v1/models HTTP/1.1\r\nHost: ")
        while silent.recv(4096):
            pass
    assert front.ask("GET", "/v1/models")[0] == 200


def waiting(front: Running, behind: Upstream, user: str) -> threading.Thread:
    """Open a request that the server does not answer yet."""
    thread = threading.Thread(target=front.ask, args=("GET", "/v1/wait", user))
    thread.start()
    assert behind.entered.acquire(timeout=120)
    return thread


@pytest.mark.parametrize(("kind", "bobs"), [("caddy", 503), ("nginx", 200)])
def test_open_requests_are_limited(kind, bobs, behind, tmp_path):
    """nginx counts them for each user, Caddy for all."""
    wanted = proxy.Wanted(kind=kind, host="localhost", upstream=behind.url, at_once=2)
    with running(wanted, tmp_path) as front:
        open_ones = [waiting(front, behind, "alice") for _ in range(2)]
        assert front.ask("GET", "/v1/models", "alice")[0] == (429 if kind == "nginx" else 503)
        assert front.ask("GET", "/v1/models", "bob")[0] == bobs
        behind.hold.set()
        for thread in open_ones:
            thread.join()
        assert front.ask("GET", "/v1/models", "alice")[0] == 200


def test_nginx_counts_the_requests_of_each_user(behind, tmp_path):
    wanted = proxy.Wanted(kind="nginx", host="localhost", upstream=behind.url, rate=1)
    with running(wanted, tmp_path) as front:
        assert {front.ask("GET", "/v1/models", None)[0] for _ in range(5)} == {401}
        statuses = [front.ask("GET", "/v1/models", "alice")[0] for _ in range(3)]
        assert statuses == [200, 200, 429], "one, and one more at once"
        assert front.ask("GET", "/v1/models", "bob")[0] == 200


@pytest.mark.parametrize("kind", proxy.KINDS)
def test_clients_may_use_an_address_instead_of_a_name(kind, behind, tmp_path):
    wanted = proxy.Wanted(kind=kind, host="127.0.0.1", upstream=behind.url)
    with running(wanted, tmp_path) as front:
        assert front.ask("GET", "/v1/models")[0] == 200


@pytest.mark.parametrize("kind", proxy.KINDS)
def test_a_server_that_is_gone_is_502(kind, tmp_path):
    with upstream() as gone:
        address = gone.url
    wanted = proxy.Wanted(kind=kind, host="localhost", upstream=address)
    with running(wanted, tmp_path) as front:
        assert front.ask("GET", "/v1/models")[0] == 502
