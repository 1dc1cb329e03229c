"""Whether an engine works, or only its API server answers.

`/health` and `/v1/models` are answered by the API server alone, also while the engine behind it is
frozen. A busy engine moves its counters; an idle one is asked for one token. Which counters the
engine itself moves: vllm/v1/metrics/loggers.py of vLLM 0.32.0.
"""

from __future__ import annotations

import time
from typing import Literal

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.faults import DOCK

_TOKENS, _RUNNING = "vllm:generation_tokens_total", "vllm:num_requests_running"
_MOVED = (
    _TOKENS,
    _RUNNING,
    "vllm:num_requests_waiting",
    "vllm:prompt_tokens_total",
    "vllm:kv_cache_usage_perc",
    "vllm:iteration_tokens_total",
)
_FAILED = (500, 502, 503, 504)
_BUSY_S = 1.0


def look(endpoint: Endpoint, within_s: float = 5.0) -> Literal["ready", "starting", "frozen"]:
    """Return the state of an engine whose API server answers.

    `starting` has never made a token yet: its first may take longer than `within_s`. A server that
    makes no text, such as one for embeddings, is believed to be ready.

    Args:
        endpoint: the server, with its key.
        within_s: seconds for the token.
    """
    before = _counters(endpoint)
    if _value(before, _RUNNING) and _moves(endpoint, before, _BUSY_S):
        return "ready"
    if _makes_a_token(endpoint, within_s) or _moves(endpoint, before, 0):
        return "ready"
    return "frozen" if _value(before, _TOKENS) else "starting"


def judge(*, token: bool, moved: bool, name: str) -> Finding | None:
    """Return that an engine is frozen; None if it made the token, or moved a counter."""
    return None if token or moved else DOCK["DOCK309"].finding(name=name)


def _makes_a_token(endpoint: Endpoint, within_s: float) -> bool:
    """Return whether the engine makes a token in time. A server that refuses the request itself,
    or has no such route (404, 501), counts as one that does: there is nothing else to ask it.
    """
    wish = {"model": endpoint.model, "prompt": "a", "max_tokens": 1, "ignore_eos": True}
    try:
        return endpoint.post("/v1/completions", wish, within_s).status_code not in _FAILED
    except SparkbookError:
        return False


def _moves(endpoint: Endpoint, before: str, within_s: float) -> bool:
    """Return whether the engine's counters have moved since, or do in time."""
    deadline = time.monotonic() + within_s
    while before:
        now = _counters(endpoint)
        if now and now != before:
            return True
        if time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    return False


def _counters(endpoint: Endpoint) -> str:
    """Return the lines of `/metrics` that only a working engine changes, if there are any."""
    try:
        lines = endpoint.metrics_text().splitlines()
    except SparkbookError:
        return ""
    return "\n".join(line for line in lines if line.startswith(_MOVED))


def _value(lines: str, name: str) -> bool:
    """Return whether a counter is more than zero."""
    figures = [line.split()[-1] for line in lines.splitlines() if line.startswith(name)]
    return any(figure.strip("0.") for figure in figures)
