"""Servers and scrapes that a user names: an address, or a file with a scrape of `/metrics`."""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import replace
from urllib.parse import urlsplit

from sparkbook import releases
from sparkbook.errors import SparkbookError
from sparkbook.metrics import Metrics
from sparkbook.serve.endpoint import Endpoint, key_from_environment
from sparkbook.util import limits

_WITHOUT_SCHEME = re.compile(r"[\w.-]+:\d+(/.*)?")


def is_address(source: str) -> bool:
    """Return whether a source is the address of a server, and not a file.

    Raises:
        SparkbookError: it is an address without its scheme, which would be taken for a missing
            file.
    """
    if source.startswith(("http://", "https://")):
        return True
    if _WITHOUT_SCHEME.fullmatch(source) and not os.path.exists(source):  # noqa: PTH110
        raise SparkbookError(f"There is no file {source}. For a server, write http://{source}")
    return False


def server(url: str, model: str = "") -> Endpoint:
    """Return the server at an address, with the API key that the environment names. Without one,
    a server that was started here gets its own key.

    Raises:
        SparkbookError: the address or the key file can't be used.
    """
    address = url.rstrip("/").removesuffix("/v1").removesuffix("/metrics")
    endpoint = Endpoint(address, model, key_from_environment())
    return endpoint if endpoint.api_key else replace(endpoint, api_key=_own_key(address))


def _own_key(address: str) -> str:
    """Return the key of the server that was started here at an address; empty if there is none."""
    if urlsplit(address).hostname not in ("127.0.0.1", "localhost", "::1"):
        return ""
    from sparkbook.serve import running

    with contextlib.suppress(SparkbookError), running.engines() as (docker, _):
        for known in running.status(docker):
            if known.state == "ready" and known.url == address:
                return running.endpoint(docker, known.name).api_key
    return ""


def scrapes(endpoint: Endpoint, seconds: float) -> tuple[Metrics, Metrics]:
    """Return two scrapes of a server's metrics, `seconds` apart, 0.1 at least."""
    earlier = Metrics.parse(endpoint.metrics_text())
    time.sleep(max(seconds, 0.1))
    return earlier, Metrics.parse(endpoint.metrics_text())


def scrape_in(file: str) -> Metrics:
    """Return the scrape in a file.

    Raises:
        SparkbookError: it can't be read.
    """
    with limits.naming(file):
        return Metrics.parse(limits.read_text(file, errors="replace"))


def release_of(endpoint: Endpoint) -> str | None:
    """Return the vLLM release that a server reports; None if it reports none that is known."""
    with contextlib.suppress(SparkbookError, ValueError, AttributeError, KeyError):
        return releases.get(str(endpoint.get("/version").json()["version"])).version
    return None


def context_of(endpoint: Endpoint, timeout_s: float = 10.0) -> tuple[str, int | None]:
    """Return the served model's name, and its context in tokens if the server reports it. An
    endpoint without a model means the server's first.

    Raises:
        SparkbookError: nothing answers, or the model is not served.
    """
    names = endpoint.served_models(timeout_s)
    model = endpoint.model or next(iter(names), "")
    if not model or model not in names:
        raise SparkbookError(
            f"{endpoint.url} serves {', '.join(names) or 'nothing'}"
            + (f", not {model}" if model else "")
        )
    for one in endpoint.get("/v1/models", timeout_s).json()["data"]:
        if one["id"] == model and isinstance(one.get("max_model_len"), int):
            return model, one["max_model_len"]
    return model, None
