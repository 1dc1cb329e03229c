"""One streamed chat, with the time of every piece that arrived."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import Endpoint


class StreamError(SparkbookError):
    """A streamed request failed.

    Attributes:
        why: the client's words.
        connection: whether the connection failed, and not the request.
    """

    def __init__(self, prompt: str, error: Exception, connection: bool):
        self.why, self.connection = str(error), connection
        super().__init__(f"the request {prompt!r} failed: {error}")


@dataclass
class Streamed:
    """A streamed reply. Times are seconds since the request was sent.

    Attributes:
        stamps_s: when each piece of text, reasoning or tool call arrived; a piece can carry several
            tokens.
        total_s: when the stream ended.
        tokens: completion tokens by the server's own `usage`.
        text: reasoning and answer, as they came.
    """

    stamps_s: list[float] = field(default_factory=list)
    total_s: float = 0.0
    tokens: int = 0
    text: str = ""

    @property
    def ttft_s(self) -> float:
        """Time to first token; the whole time where nothing came."""
        return self.stamps_s[0] if self.stamps_s else self.total_s

    @property
    def per_token_s(self) -> float | None:
        """Mean time of a token after the first (TPOT); None for a reply of a single one."""
        return (
            (self.stamps_s[-1] - self.stamps_s[0]) / (self.tokens - 1)
            if self.tokens > 1 and len(self.stamps_s) > 1
            else None
        )


def stream_chat(
    endpoint: Endpoint,
    prompt: str,
    *,
    max_tokens: int,
    request: dict[str, Any] | None = None,
    on_text: Callable[[str], None] | None = None,
    timeout_s: float = 120.0,
    clock: Callable[[], float] = time.monotonic,
) -> Streamed:
    """Ask one question, greedily, and time the reply.

    Args:
        endpoint: the server.
        prompt: the user's message.
        max_tokens: at most so many tokens.
        request: further fields of the request's body.
        on_text: called with each piece of text as it arrives.
        timeout_s: seconds without a sign of life after which it fails; a reply that has not ended
            after ten times that fails as well.
        clock: replaced in tests.

    Raises:
        StreamError: the request fails.
    """
    import httpx
    import openai

    reply, seen = Streamed(), False
    begin = clock()
    try:
        with endpoint.client(timeout_s) as client:
            stream = client.chat.completions.create(
                model=endpoint.model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=max_tokens,
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
                **(request or {}),
            )
            for chunk in stream:
                delta = chunk.choices[0].delta if chunk.choices else None
                seen = seen or delta is not None
                # vLLM streams what a reasoning model thinks as `reasoning`: for the one who waits
                # it is the first sign of life.
                text = delta and (delta.content or getattr(delta, "reasoning", None))
                if text or (delta and delta.tool_calls):
                    reply.stamps_s.append(clock() - begin)
                if text:
                    reply.text += text
                    if on_text:
                        on_text(text)
                reply.tokens = chunk.usage.completion_tokens if chunk.usage else reply.tokens
    except openai.OpenAIError as error:
        raise StreamError(prompt, error, isinstance(error, openai.APIConnectionError)) from None
    except (
        httpx.HTTPError
    ) as error:  # in the middle of a stream the client passes them on as they are
        raise StreamError(prompt, error, connection=True) from None
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        problem = SparkbookError(
            f"the stream holds something else than a chat ({type(error).__name__})"
        )
        raise StreamError(prompt, problem, connection=False) from None
    if not seen:
        raise StreamError(
            prompt, SparkbookError("the reply holds no events of a chat"), connection=False
        )
    reply.total_s = clock() - begin
    return reply
