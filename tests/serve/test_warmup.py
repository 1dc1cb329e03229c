"""When a warm-up has settled, and what it keeps."""

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.recipes.schema import Capabilities
from sparkbook.serve import Endpoint, ProcessEngine, WarmUp, warm_up
from sparkbook.serve.warmup import Sample, has_settled


@pytest.mark.parametrize(
    ("ttfts", "settled"),
    [
        ([], False),
        ([0.1, 0.1, 0.1], False),  # the first request never counts
        ([30.0, 0.1, 0.1, 0.1], True),
        ([30.0, 12.0, 0.1, 0.1], False),
        ([30.0, 12.0, 0.1, 0.11, 0.12], True),
        ([1.0, 1.0, 1.2, 0.9], True),
        ([2.0, 1.0, 2.0, 1.0], False),
    ],
)
def test_has_settled(ttfts, settled):
    assert has_settled(ttfts) is settled


def test_figures():
    warmth = WarmUp("chat", [Sample(t, t + 1, 8) for t in (30.0, 0.5, 0.4, 0.5)], settled=True)
    assert (warmth.first_ttft_s, warmth.settled_ttft_s, warmth.penalty_s) == (30.0, 0.5, 29.5)
    assert str(warmth) == "chat: first 30.0 s, settled at 500 ms after 4 requests"


def test_warm_up_ends_when_settled(stand_in, launch):
    lines = []
    with ProcessEngine(launch, stand_in, name="small") as engine:
        engine.wait_ready(Capabilities(structured_output=False))
        warmth = warm_up(engine.endpoint, progress=lines.append)
    assert warmth.settled
    assert 4 <= len(warmth.samples) == len(lines) <= 12
    assert all(
        0 < sample.ttft_s <= sample.total_s and sample.tokens == 2 for sample in warmth.samples
    )


def test_failing_request_says_which():
    with pytest.raises(SparkbookError, match=r"the request 'Request 1: say hello\.' failed"):
        warm_up(Endpoint("http://127.0.0.1:9", "small", "key"))
