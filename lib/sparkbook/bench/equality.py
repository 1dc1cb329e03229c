"""Does an option that claims to change nothing change nothing? Greedy output, token by token, with
and without it.

Byte equality alone is the wrong gate. An engine that checks five tokens at once multiplies matrices
of another shape than one that makes one token, and rounds otherwise; where two tokens are almost
equally likely, either may win. So a first difference is examined: within `NEAR_TIE` of
log-probability it is a near-tie, else it is real. And the same server asked twice is the control:
what it does to itself says nothing about the option. Sources:
https://github.com/sgl-project/sglang/issues/34734,
https://github.com/vllm-project/vllm/issues/54506.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkbook.bench.prompts import Prompt
from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import Endpoint

NEAR_TIE = 0.26
"""Difference of log-probability (nats) up to which rounding may choose between two tokens.

Logits leave a bfloat16 model as bfloat16, which has 8 significant bits: between 16 and 32, where
the first choices of a language model lie, they are multiples of 0.125. A kernel that adds in
another order may move each of two logits by such a step, so two that are up to two steps apart may
change places. Settled after the first recordings (it had been 0.05, then 0.13); `Equality.under`
judges with another.
"""

_TOP = 5

State = Literal["identical", "near-tie", "real"]


@dataclass(frozen=True)
class Answer:
    """One greedy reply.

    Attributes:
        prompt: id of its prompt.
        tokens: token ids as the server writes them.
        tops: for each token the log-probabilities (nats) of the most likely ones, its own among
            them.
        text: the reply.
    """

    prompt: str
    tokens: tuple[str, ...]
    tops: tuple[dict[str, float], ...]
    text: str = ""


@dataclass(frozen=True)
class Difference:
    """Two replies to one prompt.

    Attributes:
        at: index of the first token that differs; None where none does.
        margin: by how much (nats) the first server preferred its own token there; `at_least`: it is
            no less than this, since the other token was not among the most likely ones; None where
            one reply just ended.
    """

    prompt: str
    state: State
    at: int | None = None
    margin: float | None = None
    at_least: bool = False


@dataclass(frozen=True)
class Equality:
    """The replies of two servers, or of one server asked twice.

    Attributes:
        differences: one a prompt. control: the first server against itself.
    """

    differences: tuple[Difference, ...]
    control: Equality | None = None

    def count(self, state: State) -> int:
        """Return prompts in this state."""
        return sum(d.state == state for d in self.differences)

    @property
    def identical(self) -> tuple[float, float, float]:
        """Share of identical replies with its 95 % interval (Wilson's score interval, JASA 22,
        1927).
        """
        return wilson(self.count("identical"), len(self.differences))

    def under(self, near_tie: float) -> Equality:
        """Return the same replies, judged with another limit of a near-tie (nats)."""
        judged = tuple(
            (
                d
                if d.at is None
                else dataclasses.replace(d, state=_state(d.margin, d.at_least, near_tie))
            )
            for d in self.differences
        )
        return Equality(judged, self.control.under(near_tie) if self.control else None)

    @property
    def passed(self) -> bool:
        """Whether there is no more real difference than the first server has with itself."""
        return self.count("real") <= (self.control.count("real") if self.control else 0)

    def __str__(self) -> str:
        share, low, high = self.identical
        text = (
            f"{self.count('identical')} of {len(self.differences)} identical ({share:.0%}, 95 %:"
            f" {low:.0%} to {high:.0%})"
        )
        text += f", {self.count('near-tie')} near-ties, {self.count('real')} real differences"
        if self.control:
            text += (
                f"; the same server asked twice: {self.control.count('identical')} identical,"
                f" {self.control.count('real')} real"
            )
        return text


def wilson(hits: int, n: int) -> tuple[float, float, float]:
    """Return a share and its 95 % interval. 0 of 0 is anything: (nan, 0, 1)."""
    if not n:
        return math.nan, 0.0, 1.0
    z = 1.959964
    share, divisor = hits / n, 1 + z * z / n
    centre = (share + z * z / (2 * n)) / divisor
    half = z / divisor * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return share, max(0.0, centre - half), min(1.0, centre + half)


def ask(
    endpoint: Endpoint,
    prompts: Sequence[Prompt],
    *,
    max_tokens: int = 64,
    temperature: float = 0.0,
    stop: str | None = None,
    timeout_s: float = 120.0,
    progress: Callable[[int], None] | None = None,
) -> list[Answer]:
    """Ask a server, one request at a time, with the log-probabilities of each token; greedily,
    unless a temperature is given.

    Args:
        stop: let the prompt be continued up to this text, instead of answered as a chat.
        timeout_s: for one whole reply.

    Raises:
        SparkbookError: the server does not answer, or gives no log-probabilities.
    """
    import openai

    answers: list[Answer] = []
    same: dict[str, Any] = {
        "model": endpoint.model,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": 0,
        "extra_body": {"return_tokens_as_token_ids": True},
    }
    with endpoint.client(timeout_s, timeout_s) as client:
        for number, prompt in enumerate(prompts, 1):
            try:
                if stop is None:
                    reply = client.chat.completions.create(
                        messages=[{"role": "user", "content": prompt.text}],
                        logprobs=True,
                        top_logprobs=_TOP,
                        **same,
                    )
                    answer = _of_chat(prompt.id, reply.choices[0])
                else:
                    answer = _of_text(
                        prompt.id,
                        client.completions.create(
                            prompt=prompt.text, logprobs=_TOP, stop=stop, **same
                        ).choices[0],
                    )
            except openai.OpenAIError as error:
                raise SparkbookError(
                    f"{endpoint.url} does not answer {prompt.id}: {str(error)[:300]}"
                ) from None
            except (AttributeError, TypeError, LookupError, ValueError, RecursionError):
                # The client takes whatever JSON comes: a reply without a message, with null for a
                # list, or nested without end.
                raise SparkbookError(
                    f"{endpoint.url} answers {prompt.id} with something else than a completion: is"
                    " it a vLLM server?"
                ) from None
            if not answer.tokens:
                raise SparkbookError(
                    f"{endpoint.url} gives no log-probabilities, so a near-tie looks like a real"
                    " difference"
                )
            answers.append(answer)
            if progress:
                progress(number)
    return answers


def _of_chat(prompt: str, choice: Any) -> Answer:
    steps = choice.logprobs.content if choice.logprobs and choice.logprobs.content else ()
    tops = tuple(
        {top.token: top.logprob for top in step.top_logprobs} | {step.token: step.logprob}
        for step in steps
    )
    return Answer(prompt, tuple(step.token for step in steps), tops, choice.message.content or "")


def _of_text(prompt: str, choice: Any) -> Answer:
    logprobs = choice.logprobs
    if not logprobs or not logprobs.tokens:
        return Answer(prompt, (), (), choice.text)
    tops = tuple(
        {**(top or {}), token: own}
        for token, own, top in zip(
            logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True
        )
    )
    return Answer(prompt, tuple(logprobs.tokens), tops, choice.text)


def _state(margin: float | None, at_least: bool, near_tie: float) -> State:
    """Classify two replies that differ. A token that is not even listed may be far less likely than
    the last one listed.
    """
    return "near-tie" if margin is not None and abs(margin) < near_tie and not at_least else "real"


def difference(a: Answer, b: Answer) -> Difference:
    """Return the first place where two replies part."""
    for at, (mine, other) in enumerate(zip(a.tokens, b.tokens, strict=False)):
        if mine == other:
            continue
        top = a.tops[at]
        at_least = other not in top
        margin = top[mine] - (min(top.values()) if at_least else top[other])
        return Difference(a.prompt, _state(margin, at_least, NEAR_TIE), at, margin, at_least)
    if len(a.tokens) != len(b.tokens):
        return Difference(a.prompt, "real", min(len(a.tokens), len(b.tokens)))
    return Difference(a.prompt, "identical")


def compare(
    a: Sequence[Answer], b: Sequence[Answer], again: Sequence[Answer] | None = None
) -> Equality:
    """Compare the replies of two servers.

    Args:
        a, b: without and with the option, to the same prompts.
        again: the first server asked a second time: the control.

    Raises:
        SparkbookError: they share no prompt.
    """
    others = {answer.prompt: answer for answer in b}
    found = tuple(
        difference(answer, others[answer.prompt]) for answer in a if answer.prompt in others
    )
    if not found:
        raise SparkbookError("the two servers were not asked the same prompts")
    return Equality(found, compare(a, again) if again is not None else None)
