"""The process that looks at machine and engine: a bad page is a look without the engine, and the
next look follows.
"""

import socket
import threading

import pytest
from sparkbook.bench import _sampler

KEY = "the-key-of-a-test"
GAUGES = b'vllm:num_requests_running{e="0"} 12\nvllm:num_requests_waiting 1\n'


def look(answer, drip_s=None):
    """What is seen of a server that sends this once; with `drip_s`, then spaces for ever."""
    done = threading.Event()

    def serve():
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(answer)
            while drip_s and not done.wait(drip_s):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return _sampler.engine(f"http://127.0.0.1:{server.getsockname()[1]}/metrics", KEY)
        finally:
            done.set()
            thread.join()


def test_a_page_of_metrics_is_read():
    assert look(b"HTTP/1.1 200 OK\r\n\r\n" + GAUGES) == {"running": 12, "waiting": 1}


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" + GAUGES[:28],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n" + GAUGES,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n" + GAUGES,
        b"HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_running abc\n",
        b"HTTP/1.1 500 No\r\n\r\n" + GAUGES,
    ],
)
def test_what_is_no_page_is_nothing(answer):
    assert look(answer) == {}


def test_a_page_without_end_is_nothing(monkeypatch):
    monkeypatch.setattr(_sampler, "WHOLE_S", 0.3)
    assert look(b"HTTP/1.1 200 OK\r\n\r\n" + GAUGES, drip_s=0.02) == {}
    monkeypatch.setattr(_sampler, "MOST_BYTES", 20)
    assert look(b"HTTP/1.1 200 OK\r\n\r\n" + GAUGES) == {}


def test_a_redirect_does_not_take_the_key_elsewhere():
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        answer = f"HTTP/1.1 302 Found\r\nLocation: http://localhost:{port}/\r\n\r\n"
        assert look(answer.encode()) == {}
        stranger.settimeout(0.2)
        with pytest.raises(TimeoutError):
            stranger.accept()
