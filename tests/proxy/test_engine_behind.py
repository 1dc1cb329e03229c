"""vLLM itself behind Caddy and nginx: the routes that it answers without a key are closed."""

from __future__ import annotations

import contextlib
import http.client
import json

import pytest
from real_proxy import LIMIT_S, running
from sparkbook import proxy, recipes
from sparkbook.serve import embedded
from sparkbook.serve.stack import UNGUARDED

pytestmark = [pytest.mark.engine, pytest.mark.proxies]

INSIDE = ["/metrics/../v1/models", "/metrics/v1/models"]
"""Paths below the one that vLLM mounts, so that all of them answer with its metrics."""


@pytest.fixture(scope="module")
def engine():
    with embedded.start(recipes.load("embedded/tiny-dense")) as one:
        yield one


def sent_as_it_is(url: str, path: str) -> bytes:
    """Return what the server answers to a path that a client would tidy."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=LIMIT_S)
    connection.request("GET", path)
    with contextlib.closing(connection):
        return connection.getresponse().read()


@pytest.mark.parametrize("kind", proxy.KINDS)
def test_vllm_behind_a_proxy(kind, engine, tmp_path):
    wanted = proxy.Wanted(kind=kind, host="localhost", upstream=engine.endpoint.url)
    with running(wanted, tmp_path, engine.endpoint.api_key) as front:
        (model,) = json.loads(front.ask("GET", "/v1/models")[1])["data"]
        assert model["id"] == engine.endpoint.model
        body = {"model": model["id"], "messages": [{"role": "user", "content": "12*17"}]}
        body |= {"stream": True, "temperature": 0}
        status, text = front.ask("POST", "/v1/chat/completions", body=json.dumps(body).encode())
        assert status == 200 and text.count(b"data: ") > 2 and text.endswith(b"data: [DONE]\n\n")
        for path in (*UNGUARDED, *INSIDE):
            if path != "/health":
                assert front.ask("GET", path)[0] == 404
        assert {front.ask("GET", path, None)[0] for path in (*UNGUARDED, "/v1/models")} == {401}
        assert front.ask("GET", "/health")[0] == 200
    for path in INSIDE:
        assert sent_as_it_is(engine.endpoint.url, path).startswith(b"# HELP")
