"""Warm-up: the same kind of request again and again until its time to first token no longer falls.

The first request of a kind pays for what an engine leaves until it is needed: kernels compiled or
tuned on first use, a grammar, a code path never taken. Only requests of the same kind pay for each
other, so the warm-up takes the path that real traffic will take.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.stream import stream_chat
from sparkbook.units import format_seconds


@dataclass(frozen=True)
class Sample:
    """One streamed request: time to first token and total time in seconds, and the tokens of the
    reply.
    """

    ttft_s: float
    total_s: float
    tokens: int


@dataclass
class WarmUp:
    """The requests of one warm-up, in the order they were sent.

    Attributes:
        path: the kind of request, in words.
        settled: whether the time to first token had settled when the warm-up ended.
    """

    path: str
    samples: list[Sample] = field(default_factory=list)
    settled: bool = False

    @property
    def first_ttft_s(self) -> float:
        """Time to first token of the first request, in seconds."""
        return self.samples[0].ttft_s

    @property
    def settled_ttft_s(self) -> float:
        """Median time to first token of the last three requests, in seconds."""
        return statistics.median(sample.ttft_s for sample in self.samples[-3:])

    @property
    def penalty_s(self) -> float:
        """What the first request paid on top of a settled one, in seconds."""
        return self.first_ttft_s - self.settled_ttft_s

    def __str__(self) -> str:
        state = "settled at" if self.settled else "not settled, last"
        first, settled = format_seconds(self.first_ttft_s), format_seconds(self.settled_ttft_s)
        return f"{self.path}: first {first}, {state} {settled} after {len(self.samples)} requests"


def has_settled(ttfts: list[float], tolerance: float = 0.25, floor_s: float = 0.05) -> bool:
    """Return whether the last three times to first token lie within a band around their median.

    Args:
        ttfts: times to first token in seconds, oldest first.
        tolerance: half width of the band as a share of the median.
        floor_s: half width in seconds below which differences are the machine's noise.
    """
    if len(ttfts) < 4:  # the first one never counts
        return False
    last = ttfts[-3:]
    middle = statistics.median(last)
    return all(abs(ttft - middle) <= max(tolerance * middle, floor_s) for ttft in last)


def warm_up(  # noqa: PLR0913 - what is sent, when to end, and a test's clock
    endpoint: Endpoint,
    *,
    path: str = "chat",
    request: dict[str, Any] | None = None,
    max_tokens: int = 8,
    at_most: int = 12,
    timeout_s: float = 120.0,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> WarmUp:
    """Send requests of one kind, one after the other, until their time to first token settles.

    Args:
        endpoint: the server.
        path: name of this kind of request.
        request: fields that make it this kind, such as `response_format` or `tools`; they join the
            request's body.
        max_tokens: length of each reply in tokens.
        at_most: requests after which it ends, settled or not.
        timeout_s: longest silence of a reply.
        progress: called with a line for each request.
        clock: replaced in tests.

    Raises:
        SparkbookError: a request fails.
    """
    result = WarmUp(path)
    while len(result.samples) < at_most and not result.settled:
        # A different prompt each time: a prefix that is already cached would make later requests
        # look warm for the wrong reason.
        prompt = f"Request {len(result.samples) + 1}: say hello."
        reply = stream_chat(
            endpoint,
            prompt,
            max_tokens=max_tokens,
            request=request,
            timeout_s=timeout_s,
            clock=clock,
        )
        sample = Sample(reply.ttft_s, reply.total_s, reply.tokens)
        result.samples.append(sample)
        result.settled = has_settled([s.ttft_s for s in result.samples])
        if progress:
            progress(
                f"{path} {len(result.samples)}: first token after {format_seconds(sample.ttft_s)}"
            )
    return result
