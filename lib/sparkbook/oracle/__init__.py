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

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import given
from sparkbook.lint.case import Case
from sparkbook.oracle import engines
from sparkbook.oracle.asking import SPARK, Question, Where, ask, choose, installed, known, of_case
from sparkbook.oracle.programs import Limits
from sparkbook.releases.answers import Answer, Depth

if TYPE_CHECKING:
    from sparkbook.plan.memory import MemoryPlan

__all__ = [
    "Answer",
    "Limits",
    "Question",
    "Where",
    "ask",
    "ask_config",
    "ask_embedded",
    "ask_line",
    "ask_plan",
    "question",
]


class About(TypedDict, total=False):
    """What a question has besides its line.

    Attributes:
        depth: how far to go; left out: the cache.
        available_gib: memory that is available at the start, GiB; left out, the check is too.
        kv_gib: sizes of the KV cache, GiB; left out: what the line leaves.
    """

    depth: Depth
    available_gib: float | None
    kv_gib: tuple[float, ...]


def ask_line(
    source: str, *, release: str | None = None, image: str | None = None, **about: Unpack[About]
) -> Answer:
    """Ask about a recipe or a launch line.

    Args:
        source: a recipe's id, a file, `-`, or the text of a line.
        release: the vLLM to ask; None: that of the line's image.
        image: an image on this host to ask instead.
        about: see `About`.

    Raises:
        SparkbookError: the input can't be used, or there is nobody to ask.
    """
    line, _ = given(source)
    case = Case(line, release)
    where, _ = choose(case, release, image)
    return _one(case, of_case(case, **about), where)


def question(name: str, source: str, **about: Unpack[About]) -> Question:
    """Return a line as a question, to be asked together with others.

    Args:
        name: the id of its answer.
        source, about: as for `ask_line`.
    """
    line, _ = given(source)
    return of_case(Case(line), name=name, **about)


def ask_embedded(questions: list[Question], target: str = "auto") -> list[Answer]:
    """Ask the embedded engine's vLLM, once for all questions.

    Args:
        target: the build's target.

    Raises:
        SparkbookError: the target is `plan`, or the engine is not installed.
    """
    if target == "plan":
        raise SparkbookError("this page asks the embedded engine's vLLM; the target is 'plan'")
    return ask(questions, Where(engine=engines.embedded()))


def ask_config(source: str, *, release: str | None = None) -> Answer:
    """Ask as far as the configuration; where the checkpoint's config is not known, the parser
    alone.

    Raises:
        SparkbookError: as `ask_line`.
    """
    line, _ = given(source)
    case = Case(line, release)
    where, _ = choose(case, release, None)
    return _one(case, of_case(case, depth="config" if known(case) else "parse"), where)


def ask_plan(source: str, plan: MemoryPlan, release: str | None = None) -> Answer:
    """Ask with the figures of a plan: its machine, its context, its bounds of what else is taken.

    Raises:
        SparkbookError: as `ask_line`.
    """
    line, _ = given(source)
    case = Case(line, release)
    where, _ = choose(case, release, None)
    setup, host = plan.setup, plan.host
    words = ["--max-model-len", str(setup.context), "--max-num-seqs", str(setup.sequences)]
    words += ["--gpu-memory-utilization", f"{setup.fraction:g}"]
    words += [] if setup.kv_dtype == "auto" else ["--kv-cache-dtype", setup.kv_dtype]
    other = plan.working + (plan.graphs if plan.graphs_counted else 0)
    question = of_case(case, depth="cache")
    question = replace(
        question,
        words=(*question.words, *words),
        reserved_bytes=(round(other.low), round(other.high)),
        available_bytes=None if host.available is None else round(host.free_for_engine.low),
    )
    return _one(case, question, where, {**SPARK, "total_bytes": host.total})


def _one(
    case: Case, question: Question, where: Where, machine: dict[str, Any] | None = None
) -> Answer:
    holds = installed(case, where.engine.version) if where.engine else None
    (answer,) = ask([question], where, holds=holds, machine=machine)
    return answer
