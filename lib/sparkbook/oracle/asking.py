"""From a launch line to a question for vLLM, and from its reply to an answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sparkbook import releases
from sparkbook.errors import SparkbookError
from sparkbook.lint.case import Case
from sparkbook.oracle import engines, model_files, programs
from sparkbook.oracle.engines import Engine
from sparkbook.oracle.model_files import ModelFiles
from sparkbook.oracle.programs import Limits, Reply
from sparkbook.plan.request import BATCHED
from sparkbook.plan.setup import ACTIVATION_PER_1K, CUDA_CONTEXT, GRAPHS, GRAPHS_DRAFTED, TOTAL
from sparkbook.releases import at_least
from sparkbook.releases.answers import Answer, Depth, Judge
from sparkbook.util import invalid
from sparkbook.util.shell_text import command_line

Finder = Callable[[str, str | None], ModelFiles | None]
"""From the name of a model, and its revision, to its files."""

SPARK = {
    "name": "NVIDIA GB10",
    "total_bytes": TOTAL,
    "capability": [12, 1],
    "multiprocessors": 48,
    "integrated": True,
}
"""What the driver answers on a DGX Spark (NVIDIA's data sheet; total memory as vLLM shows it)."""

_NO_SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_NOT_OURS = ("VLLM_LOGGING_CONFIG_PATH", "VLLM_PLUGINS", "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT")


@dataclass(frozen=True, kw_only=True)
class Question:
    """One line to ask about.

    Attributes:
        id: to know the answer by.
        words: the words after `vllm serve`.
        depth: how far to go.
        env: variables of the line that vLLM reads.
        models: the model and its draft, with their files.
        available_bytes: MemAvailable at the start; None leaves the start check out.
        kv_bytes: sizes of KV cache to ask about; empty: what the line leaves.
        reserved_bytes: what else the memory is taken by, least and most, where a size is computed.
    """

    id: str
    words: tuple[str, ...]
    depth: Depth = "config"
    env: dict[str, str] = field(default_factory=dict)
    models: dict[str, ModelFiles] = field(default_factory=dict)
    available_bytes: int | None = None
    kv_bytes: tuple[int, ...] = ()
    reserved_bytes: tuple[int, ...] = (0,)

    def to_dict(self) -> dict[str, Any]:
        """The question for the program inside; the files of its models travel next to it."""
        return {
            "id": self.id,
            "models": {name: found.key for name, found in self.models.items()},
            "words": list(self.words),
            "depth": self.depth,
            "env": self.env,
            "available_bytes": self.available_bytes,
            "kv_bytes": list(self.kv_bytes),
            "reserved_bytes": list(self.reserved_bytes),
        }


@dataclass(frozen=True)
class Where:
    """Who is asked: a release on this machine, or an image.

    Attributes:
        engine: the release; None with an image.
        image: its reference.
        gpu: whether the container gets this machine's GPU.
    """

    engine: Engine | None = None
    image: str | None = None
    gpu: bool = False


def of_case(
    case: Case,
    *,
    name: str = "line",
    depth: Depth = "cache",
    available_gib: float | None = None,
    kv_gib: Sequence[float] = (),
    find: Finder = model_files.find,
) -> Question:
    """Return the question that a launch line is. `find` gives a model's files by its name.

    Raises:
        SparkbookError: the line serves nothing, leaves a word to a shell, or names a checkpoint of
            which no config is known.
    """
    if broken := case.line.broken:
        raise broken.error()
    if case.line.serve is None:
        raise SparkbookError("the input starts no `vllm serve`, so there is nothing to ask")
    words = [word.text for word in case.line.serve]
    for word in case.line.serve:
        if not word.known:
            raise SparkbookError(f"{word.shown}: only your shell can fill this in: write the value")
    models = _models(case, find, needed=depth != "parse")
    words = [_relative(word) if word in models else word for word in words]
    spec = case.spec or {}
    draft = str(spec.get("model") or "")
    words = [word.replace(json.dumps(draft), json.dumps(_relative(draft))) for word in words]
    size = 2**30
    return Question(
        id=name,
        words=(*words, *_of_head(case)),
        depth=depth,
        env=_variables(case),
        models={_relative(model): found for model, found in models.items()},
        available_bytes=None if available_gib is None else round(available_gib * size),
        kv_bytes=tuple(round(gib * size) for gib in kv_gib),
        reserved_bytes=_reserved(case),
    )


def _of_head(case: Case) -> tuple[str, ...]:
    """What `sparkbook cluster serve` adds to the head's line of a recipe for several Sparks, where
    the line says nothing of how its ranks find each other.
    """
    said = ("nnodes", "distributed-executor-backend", "data-parallel-size")
    if case.nodes == 1 or any(case.value(option) for option in said):
        return ()
    nodes = ("--nnodes", str(case.nodes), "--node-rank", "0", "--master-addr", "127.0.0.1")
    return ("--distributed-executor-backend", "mp", *nodes)


def known(case: Case) -> bool:
    """Whether the config of a line's model, and of its draft, is known here."""
    try:
        return bool(_models(case, model_files.find, needed=True))
    except SparkbookError:
        return False


def _models(case: Case, find: Finder, *, needed: bool) -> dict[str, ModelFiles]:
    """The files of the model and of its draft, by the word that names them."""
    found: dict[str, ModelFiles] = {}
    draft = str((case.spec or {}).get("model") or "")
    named = case.args.model.text if case.args.model else ""
    for word in filter(None, dict.fromkeys([named, draft])):
        repo = case.recipe.model.repo if case.recipe and word == named else word
        revision = case.value("revision") if word == named else None
        here = find(word, revision) or find(repo, revision)
        if here is not None:
            found[word] = here
        elif needed:
            raise SparkbookError(
                f"no config.json of '{word}' is known: give a folder that holds it, or download it"
                " with " + command_line("hf", "download", word, "config.json")
            )
    if needed and not named:
        raise SparkbookError("the line names no model, so there is nothing to ask")
    return found


def _relative(model: str) -> str:
    """The name of a model's folder: its own name, a path without what leads to the root."""
    parts = [part for part in model.split("/") if part not in ("", ".", "..", "~")]
    return "/".join(parts) or "model"


def _variables(case: Case) -> dict[str, str]:
    """The variables of a line that vLLM decides by; no secret, and none that names a file."""
    return {
        name: value
        for name, value in case.line.env.items()
        if value is not None
        and name.startswith("VLLM_")
        and name not in _NOT_OURS
        and not any(part in name for part in _NO_SECRET)
        and "\0" not in value
    }


def _reserved(case: Case) -> tuple[int, int]:
    """Bytes besides weights and cache, least and most, as the planner counts them."""
    batched = case.number("max-num-batched-tokens") or BATCHED
    graphs = GRAPHS_DRAFTED if case.spec else GRAPHS
    other = CUDA_CONTEXT + ACTIVATION_PER_1K * (batched / 1024)
    if not case.on("enforce-eager") and at_least(case.version, "0.21.0"):
        other = other + graphs
    return round(other.low), round(other.high)


def installed(case: Case | None, version: str) -> dict[str, str | bool]:
    """Return the packages that count as installed: what is known of the line's image, else what
    vLLM's own image of the release has. (`requires_dist` of PyPI's `vllm`, read 2026-11-29.)
    """
    requires = releases.get(releases.nearest(version)).requires
    flashinfer = requires.get("flashinfer", "").removeprefix("==") or False
    own: dict[str, str | bool] = {
        "flashinfer": flashinfer,
        "cutlass": bool(flashinfer),
        "cuda": bool(flashinfer),
        "quack": at_least(version, "0.19.1"),
        "tilelang": at_least(version, "0.21.0"),
        "humming": at_least(version, "0.22.1"),
        "triton": True,
        "deep_gemm": True,
        "ray": "ray" in requires,
        "diskcache": True,
        "b12x": False,
    }
    stated = case.info.contents if case is not None and case.info else {}
    names = {
        "flashinfer-python": "flashinfer",
        "deep-gemm": "deep_gemm",
        "triton-kernels": "triton_kernels",
    }
    for distribution, holds in stated.items():
        name = names.get(distribution, distribution.replace("-", "_"))
        if name in own or distribution in names:
            own[name] = holds if isinstance(holds, bool) else str(holds)
    return own


def choose(case: Case, release: str | None, image: str | None) -> tuple[Where, str | None]:
    """Return whom to ask about a line, and why it is not the release of the line's image.

    Raises:
        SparkbookError: the release is not here.
    """
    if image is not None:
        return Where(image=image, gpu=Path("/proc/driver/nvidia").exists()), None
    if release is not None:
        return Where(engine=engines.find(release)), None
    if case.assumed is None:
        return Where(engine=engines.find(case.version)), None
    here = engines.available()
    fitting = [e for e in here if at_least(case.version, releases.normal(e.version))]
    if not fitting:
        engines.embedded()
        line = command_line("sparkbook", "engines", "add", case.version)
        raise SparkbookError(f"no release to ask is here: {line}")
    return Where(engine=fitting[-1]), f"the newest here; {case.assumed}"


def ask(
    questions: Sequence[Question],
    where: Where,
    *,
    holds: dict[str, str | bool] | None = None,
    limits: Limits | None = None,
    machine: dict[str, Any] | None = None,
) -> list[Answer]:
    """Ask vLLM, once for all questions. What goes wrong inside is an answer too.

    Args:
        holds: packages that count as installed; None: those of the release's own image.
        machine: what to pretend; None: a DGX Spark.

    Raises:
        SparkbookError: there is no Docker, or no such image.
    """
    limits = limits or Limits()
    models = {found.key: found.contents for q in questions for found in q.models.values()}
    request = {
        "machine": machine or SPARK,
        "pretend": not where.gpu,
        "installed": {},
        "models": models,
        "questions": [question.to_dict() for question in questions],
    }
    if where.engine is not None:
        request["installed"] = installed(None, where.engine.version) if holds is None else holds
        reply = programs.in_python(where.engine.python, where.engine.folders, request, limits)
    else:
        assert where.image is not None
        request["installed"] = {} if where.gpu else {"triton": True}
        reply = programs.in_image(where.image, request, limits, gpu=where.gpu)
    return answers(questions, reply, where)


def answers(questions: Sequence[Question], reply: Reply, where: Where) -> list[Answer]:
    """Return one answer for each question, whatever the reply is."""
    version = where.engine.version if where.engine else "of unknown release"
    judge = Judge(vllm=version, image=where.image)
    head, rest = (reply.lines[0], reply.lines[1:]) if reply.lines else ({}, [])
    failed = head.get("failed")
    if failed is None and "vllm" in head:
        try:
            judge = Judge.model_validate({**head, "image": where.image})
        except ValidationError:
            failed = "its reply can't be read"
    elif failed is None:
        failed = "vLLM took too long to start" if reply.late else "it ended without an answer"
    by_id = {str(line.get("id")): line for line in rest}
    return [
        _answer(question, by_id.get(question.id), judge, failed, reply) for question in questions
    ]


def _answer(
    question: Question, line: dict[str, Any] | None, judge: Judge, failed: Any, reply: Reply
) -> Answer:
    sources = {name: found.source for name, found in question.models.items()}
    about: dict[str, Any] = {"id": question.id, "judge": judge, "files": sources}
    if failed is None and line is not None:
        try:
            answer = Answer.model_validate({**line, **about})
            needs_code = "does not recognize this architecture" in (answer.refused or "")
            if not (needs_code and "--trust-remote-code" in answer.left_out):
                return answer
            failed = "the release needs Python files of the checkpoint, and none is run here"
        except ValidationError as error:
            failed = f"its reply can't be read: {invalid.reason(error)}"
    elif failed is None:
        failed = "no time was left for it" if reply.late else "it ended without an answer"
    return Answer(**about, failed=str(failed)[:2000], last_words=reply.last_words)
