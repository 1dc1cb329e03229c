"""A token reaches the server that it belongs to, and nobody else: by spelling or by redirect."""

import http.server
import threading

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkbook.errors import SparkbookError
from sparkbook.util import origins

HOME = "https://huggingface.co"
TOKEN = "hf_the_token_of_a_test"


@pytest.mark.parametrize(
    "url",
    [
        *("https://huggingface.co", "https://huggingface.co/", "HTTPS://HuggingFace.CO/a?b#c"),
        *("https://huggingface.co:443/x", "https://huggingface.co/@x", "https://huggingface.co?q"),
    ],
)
def test_spellings_of_one_server(url):
    assert origins.origin(url) == ("https", "huggingface.co", 443)
    assert origins.same_origin(url, HOME)


@pytest.mark.parametrize(
    "url",
    [
        *("https://huggingface.co.evil.example/x", "https://huggingface.comx", "http://127.0.0.1"),
        *("http://huggingface.co", "http://huggingface.co:443", "https://huggingface.co:4430"),
        *("https://evil.example/https://huggingface.co/", "https://evil.example#huggingface.co"),
        *("https://huggingface.co.", "https://xn--huggingface-.co", "https://huggingface.co%2eb"),
    ],
)
def test_other_servers_that_look_like_it(url):
    assert not origins.same_origin(url, HOME)


@pytest.mark.parametrize(
    "url",
    [
        *("", "huggingface.co", "ftp://huggingface.co", "https://", "https://:443", "file:///x"),
        *(
            "https://huggingface.co:0",
            "https://huggingface.co:99999",
            "https://[::1",
            "https://a b",
        ),
        *("https://u:secret@huggingface.co", "https://huggingface.co@evil.example/secret"),
        *("https://evil.example\\@huggingface.co", "https://hugging\tface.co", "https://a\n.co"),
        *("https://huggingfаce.co", "https://hugging\u200bface.co", "https://a\0.co"),
    ],
)
def test_addresses_that_are_refused_and_not_shown(url):
    with pytest.raises(SparkbookError, match="A web address is refused") as error:
        origins.origin(url)
    assert "secret" not in str(error.value)


@given(st.text(st.sampled_from("htps:/\\@.#?[]%0149 \tabc\u0430"), max_size=30))
def test_what_is_taken_means_the_same_host_to_the_client(text):
    url = f"http://{text}"
    try:
        ours = origins.origin(url)
        theirs = httpx.URL(url)
    except (SparkbookError, httpx.InvalidURL):
        return
    assert (theirs.scheme, theirs.host.lower(), theirs.port or 80) == ours


@pytest.fixture
def servers():
    """Two servers, each another origin: `/to?URL` and `/loop` redirect, all else answers."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            requests.append((self.server.server_port, self.headers.get("authorization")))
            to = "/loop" if self.path == "/loop" else self.path.partition("?")[2]
            self.send_response(302 if to else 200)
            if to:
                self.send_header("Location", to)
            self.send_header("Content-Length", "0")
            self.end_headers()

    running = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) for _ in range(2)]
    threads = [threading.Thread(target=one.serve_forever, args=(0.02,)) for one in running]
    for thread in threads:
        thread.start()
    yield [f"http://127.0.0.1:{one.server_port}" for one in running], requests
    for one, thread in zip(running, threads, strict=True):
        one.shutdown()
        thread.join()
        one.server_close()


def get(url, home):
    with (
        httpx.Client() as client,
        origins.get(client, url, home=home, token=TOKEN, headers={"user-agent": "x"}) as answer,
    ):
        return answer.status_code


def test_the_token_goes_along_within_its_origin_only(servers):
    (home, stranger), requests = servers
    assert get(f"{home}/to?/there", home) == 200
    assert get(f"{home}/to?{stranger}/", home) == 200
    assert get(f"{stranger}/", home) == 200
    assert [secret for _, secret in requests] == [f"Bearer {TOKEN}"] * 3 + [None] * 2


def test_the_token_does_not_come_back_once_a_redirect_has_left(servers):
    (home, stranger), requests = servers
    assert get(f"{home}/to?{stranger}/to?{home}/", home) == 200
    assert [secret for _, secret in requests] == [f"Bearer {TOKEN}", None, None]


def test_redirects_have_an_end(servers):
    (home, _), requests = servers
    with pytest.raises(SparkbookError, match="redirects more than 10 times"):
        get(f"{home}/loop", home)
    assert len(requests) == 11
