"""A token reaches the server that it belongs to, and nobody else: by spelling or by redirect."""

import httpx
import pytest
from hypothesis import given, settings
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


@settings(deadline=None, derandomize=True, database=None)
@given(st.text(st.sampled_from("htps:/\\@.#?[]%0149 \tabc\u0430"), max_size=30))
def test_what_is_taken_means_the_same_host_to_the_client(text):
    url = f"http://{text}"
    try:
        ours = origins.origin(url)
        theirs = httpx.URL(url)
    except (SparkbookError, httpx.InvalidURL):
        return
    assert (theirs.scheme, theirs.host.lower(), theirs.port or 80) == ours


def get(url, home):
    with (
        httpx.Client() as client,
        origins.get(client, url, home=home, token=TOKEN, headers={"user-agent": "x"}) as answer,
    ):
        return answer.status_code


def test_the_token_goes_along_within_its_origin_only(servers):
    home, stranger = servers.urls
    servers.redirects |= {"/to-own": "/there", "/to-other": f"{stranger}/there"}
    assert get(f"{home}/to-own", home) == 200
    assert get(f"{home}/to-other", home) == 200
    assert get(f"{stranger}/", home) == 200
    assert servers.tokens == [f"Bearer {TOKEN}"] * 3 + [None] * 2


def test_the_token_does_not_come_back_once_a_redirect_has_left(servers):
    home, stranger = servers.urls
    servers.redirects |= {"/a": f"{stranger}/b", "/b": f"{home}/c"}
    assert get(f"{home}/a", home) == 200
    assert servers.tokens == [f"Bearer {TOKEN}", None, None]


def test_redirects_have_an_end(servers):
    home = servers.urls[0]
    servers.redirects["/loop"] = "/loop"
    with pytest.raises(SparkbookError, match="redirects more than 10 times"):
        get(f"{home}/loop", home)
    assert len(servers.tokens) == 11
