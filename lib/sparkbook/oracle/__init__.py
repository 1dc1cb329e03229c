"""vLLM itself, asked what it makes of a launch line: without a GPU, without weights, without a
network.

    >>> from sparkbook import oracle
    >>> answer = oracle.ask_line("vllm serve openai/gpt-oss-120b", depth="model")  # doctest: +SKIP
    >>> answer.weights_bytes / 2**30  # doctest: +SKIP
    65.92...

vLLM's CPU build holds the argument parser, the configuration, the model classes, the choice of
backends and the arithmetic of the KV cache; `inside/` runs them on a pretended GB10.
"""

from __future__ import annotations

from sparkbook.formats.lines import given
from sparkbook.lint.case import Case
from sparkbook.oracle.asking import Question, Where, ask, choose, installed, of_case
from sparkbook.oracle.programs import Limits
from sparkbook.releases.answers import Answer, Depth

__all__ = ["Answer", "Limits", "Question", "Where", "ask", "ask_line", "choose", "of_case"]


def ask_line(
    source: str,
    *,
    release: str | None = None,
    image: str | None = None,
    depth: Depth = "cache",
    available_gib: float | None = None,
    kv_gib: tuple[float, ...] = (),
    remote_code: bool = False,
) -> Answer:
    """Ask about a recipe or a launch line.

    Args:
        source: a recipe's id, a file, `-`, or the text of a line.
        release: the vLLM to ask; None: that of the line's image.
        image: an image on this host to ask instead.
        depth: how far to go.
        available_gib: memory that is available at the start, GiB; None leaves the check out.
        kv_gib: sizes of the KV cache, GiB; empty: what the line leaves.
        remote_code: whether Python files of the checkpoint may be executed.

    Raises:
        SparkbookError: the input can't be used, or there is nobody to ask.
    """
    line, _ = given(source)
    case = Case(line, release)
    where, _ = choose(case, release, image)
    question = of_case(
        case, depth=depth, available_gib=available_gib, kv_gib=kv_gib, remote_code=remote_code
    )
    holds = installed(case, where.engine.version) if where.engine else None
    (answer,) = ask([question], where, holds=holds)
    return answer
