"""A server that a user names by its address: its key, its release, and slips in the address."""

import contextlib
from types import SimpleNamespace

import httpx
import pytest
from sparkbook.errors import SparkbookError
from sparkbook.serve import attach, running
from sparkbook.serve.endpoint import Endpoint

MINE = "http://127.0.0.1:8017"


@pytest.fixture(autouse=True)
def _one_server(monkeypatch):
    """One server of ours is ready at `MINE`, another one is still starting."""
    servers = [
        SimpleNamespace(name="mine", url=MINE, state="ready"),
        SimpleNamespace(name="other", url="http://127.0.0.1:8018", state="starting"),
    ]
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    monkeypatch.delenv("SPARKBOOK_KEY_FILE", raising=False)
    monkeypatch.setattr(running, "engines", lambda: contextlib.nullcontext((None, ())))
    monkeypatch.setattr(running, "status", lambda docker: servers)
    monkeypatch.setattr(
        running, "endpoint", lambda docker, name: Endpoint("http://x", name, f"key of {name}")
    )


@pytest.mark.parametrize("url", [MINE, f"{MINE}/", f"{MINE}/v1", f"{MINE}/metrics"])
def test_a_server_that_was_started_here_gets_its_own_key(url):
    endpoint = attach.server(url)
    assert (endpoint.url, endpoint.api_key) == (MINE, "key of mine")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8018", "http://127.0.0.1:9999", "http://spark-2:8017"]
)
def test_no_other_server_gets_a_key_of_ours(url):
    assert attach.server(url).api_key == ""


def test_the_key_of_the_environment_comes_first(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "chosen")
    assert attach.server(MINE).api_key == "chosen"


def test_an_address_without_its_scheme_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert attach.is_address(MINE) and not attach.is_address("before.txt")
    with pytest.raises(SparkbookError, match=r"no file spark-2:8000. For a server, write http://"):
        attach.is_address("spark-2:8000")
    (tmp_path / "spark-2:8000").write_text("")
    assert not attach.is_address("spark-2:8000")


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:99999", "http://[::1", "http://", "spark:1", "http://h:0", "ftp://h"]
)
def test_what_is_no_address_is_refused_where_addresses_are_read(url):
    with pytest.raises(SparkbookError, match="write an address such as"):
        attach.server(url)


def test_the_models_are_waited_for_no_longer_than_asked(monkeypatch):
    waits = []

    def models(_self, _path, timeout_s):
        waits.append(timeout_s)
        return httpx.Response(200, json={"data": [{"id": "m", "max_model_len": 512}]})

    monkeypatch.setattr(Endpoint, "get", models)
    assert attach.context_of(Endpoint(MINE), 2.0) == ("m", 512) and set(waits) == {2.0}
