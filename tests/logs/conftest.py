"""Recorded logs, and a long healthy one made of them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))  # the builder of sentences.bin

DATA = Path(__file__).parents[1] / "data" / "logs"
HEALTHY = (
    "gb10-nightly-2026-04-01",
    "h100-0.24.0-tiny-healthy",
    "h100-0.24.0-ngram",
    "cpu-0.32.0-compiled",
    "cpu-0.32.0-draft_iomp",
    "cpu-0.32.0-moe_dummy",
    "cpu-0.32.0-ngram_uni",
    "cpu-0.32.0-plain",
    "cpu-0.32.0-tiny35_mtp3",
    "cpu-0.32.0-final",
)
"""Logs of starts that went well; all but the first were stopped in order at their end."""


def lines_of(name):
    return (DATA / f"{name}.log").read_text(encoding="utf-8").splitlines()


@pytest.fixture(scope="session")
def healthy_lines():
    """5,000 lines of healthy starts, requests and reports."""
    lines = [line for name in HEALTHY for line in lines_of(name)]
    count = 0
    while len(lines) < 5000:
        count += 1
        lines.append(
            f'INFO:     127.0.0.1:{40000 + count % 9000} - "POST /v1/chat/completions HTTP/1.1"'
            " 200 OK"
        )
        if count % 40 == 0:
            second = count // 40 % 60
            lines.append(
                f"(APIServer pid=4980) INFO 11-28 00:{count // 2400 % 60:02d}:{second:02d}"
                f" [loggers.py:273] Engine 000: Avg prompt throughput: {count % 97}.2 tokens/s, Avg"
                f" generation throughput: {100 + count % 400}.0 tokens/s, Running: {count % 16}"
                f" reqs, Waiting: 0 reqs, GPU KV cache usage: {count % 90}.2%, Prefix cache hit"
                " rate: 41.7%"
            )
    return lines[:5000]
