"""What needs no start: candidates that are known to be bad, that vLLM refuses, that do not fit, or
that are another candidate in other words.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import of_launch
from sparkbook.lint import lint
from sparkbook.lint.case import Case
from sparkbook.oracle import asking
from sparkbook.plan import memory, request
from sparkbook.releases.answers import Answer, Judge
from sparkbook.tune.space import Candidate
from sparkbook.util.shell_text import command_line

Say = Callable[[str], None]
Asker = Callable[[Sequence[Candidate]], list[Answer]]


@dataclass(frozen=True)
class Dropped:
    """A candidate that is not started.

    Attributes:
        reason: `invalid` (an error of the linter), `known bad`, `refused` (by vLLM), `the same` (as
            another one), `too large` or `not here` (its image).
        text: the reason in full.
    """

    candidate: Candidate
    reason: str
    text: str


@dataclass
class Pruned:
    """What is left, and what went.

    Attributes:
        left: the baseline first.
        dropped: in the order of the candidates.
        options: by option, why it is left out whole.
        judge: the vLLM that was asked; None: nobody was.
        notes: what could not be checked.
    """

    left: list[Candidate]
    dropped: list[Dropped] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    judge: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def causes(self) -> dict[str, tuple[Dropped, int]]:
        """Each dropped candidate of which no part was dropped for the same reason, and how many
        candidates contain it; by its name.
        """
        found: dict[str, tuple[Dropped, int]] = {}
        for one in self.dropped:
            for key, (cause, more) in found.items():
                if cause.reason == one.reason and one.candidate.contains(cause.candidate):
                    found[key] = (cause, more + 1)
                    break
            else:
                found[one.candidate.key] = (one, 0)
        return found

    @property
    def counts(self) -> Counter[str]:
        """How many went, by reason."""
        return Counter(one.reason for one in self.dropped)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        rows = [
            {"candidate": one.candidate.key, "reason": one.reason, "text": one.text}
            for one in self.dropped
        ]
        return {
            "candidates": len(self.left) + len(self.dropped),
            "left": [{"candidate": one.key, "changes": one.changes} for one in self.left],
            "dropped": rows,
            "options": self.options,
            "asked": self.judge,
            "notes": self.notes,
        }


def prune(
    candidates: Sequence[Candidate],
    ask: Asker | None = None,
    release: str | None = None,
    here: Collection[str] | None = None,
) -> Pruned:
    """Leave out what needs no start.

    Args:
        candidates: the baseline first; it stays whatever is said of it, unless vLLM refuses it.
        ask: asks vLLM about them; None leaves that out, and with it the search for the same ones.
        release: the vLLM to judge by; None: that of the recipe's image. A candidate with another
            image is judged by that image.
        here: the images on the machine; None: nobody knows.

    Raises:
        SparkbookError: vLLM refuses the baseline.
    """
    pruned = Pruned(list(candidates))
    if here is not None:
        refs = {one.key: one.recipe.launch.image for one in pruned.left if one.image}
        gone = {
            key: command_line("docker", "pull", str(ref))
            for key, ref in refs.items()
            if ref not in here
        }
        _drop(pruned, "not here", gone)
    elif any(one.image for one in candidates):
        pruned.notes.append("Which images are on this machine is not known.")
    errors, bad = _linted(pruned.left, release)
    _drop(pruned, "invalid", errors)
    _drop(pruned, "known bad", bad)
    if ask is None:
        pruned.notes.append("vLLM was not asked: some candidates may be refused, or be the same.")
    else:
        answers = dict(zip((one.key for one in pruned.left), ask(pruned.left), strict=True))
        base = answers[pruned.left[0].key]
        pruned.judge = str(base.judge)
        if base.refused:
            raise SparkbookError(f"{base.judge} refuses the recipe as it is: {base.refused}")
        if silent := sum(answer.failed is not None for answer in answers.values()):
            pruned.notes.append(f"{base.judge} gave no answer about {silent} candidates.")
        _drop(pruned, "refused", {k: a.refused for k, a in answers.items() if a.refused})
        _drop(pruned, "the same", _same(pruned.left, answers))
    _drop(pruned, "too large", _too_large(pruned, release))
    return pruned


def _drop(pruned: Pruned, reason: str, why: dict[str, str]) -> None:
    pruned.dropped += [Dropped(one, reason, why[one.key]) for one in pruned.left if one.key in why]
    pruned.left = [one for one in pruned.left if one.key not in why]


def _case(candidate: Candidate, release: str | None) -> Case:
    return Case(of_launch(candidate.recipe.launch, candidate.recipe), _judge(candidate, release))


def _judge(candidate: Candidate, release: str | None) -> str | None:
    return None if candidate.image else release


def _linted(
    candidates: Sequence[Candidate], release: str | None
) -> tuple[dict[str, str], dict[str, str]]:
    """By candidate, what the linter says of it that it does not say of the baseline: errors, and
    combinations that public reports name as bad.
    """
    baseline, *rest = candidates
    usual = {finding.rule for finding in lint(baseline.recipe, release).findings}
    errors: dict[str, str] = {}
    bad: dict[str, str] = {}
    for candidate in rest:
        for finding in lint(candidate.recipe, _judge(candidate, release)).findings:
            if finding.rule in usual or finding.severity == "info":
                continue
            if finding.rule.startswith("BAD"):
                bad[candidate.key] = f"{finding.rule}: {finding.message}"
            elif finding.severity == "error":
                errors[candidate.key] = f"{finding.rule}: {finding.message}"
    return errors, bad


def _same(candidates: Sequence[Candidate], answers: dict[str, Answer]) -> dict[str, str]:
    """By candidate, the earlier one that resolves to the same."""
    first: dict[str, str] = {}
    why = {}
    for candidate in candidates:
        answer = answers[candidate.key]
        if answer.failed is not None:
            continue
        resolved = _resolved(candidate, answer)
        if resolved in first:
            why[candidate.key] = f"vLLM makes the same of it as of: {first[resolved]}"
        else:
            first[resolved] = candidate.key
    return why


_PLAIN = ("UnquantizedLinearMethod", "UnquantizedEmbeddingMethod")


def _resolved(candidate: Candidate, answer: Answer) -> str:
    """What a candidate comes to: the values, drafts and backends that vLLM settles on, and the
    changed arguments of which it says nothing. If the backends of all layers are named, the option
    that asks for one does not count.
    """
    named = bool(answer.backends) and all(
        one.kind.lower() == "attention" or one.backend in _PLAIN or "(" in one.backend
        for one in answer.backends
    )
    values = {
        name: got
        for name, (_, got) in answer.resolved.items()
        if not (named and name.endswith("_backend"))
    }
    silent = {
        name: value
        for name, value in candidate.recipe.serve.args.items()
        if name.replace("-", "_").removeprefix("no_") not in answer.resolved
        and name != "speculative-config"
        and not (named and name.endswith("-backend"))
    }
    drafts = answer.speculation.model_dump() if answer.speculation else None
    backends = sorted((one.kind, one.backend) for one in answer.backends)
    whole = [candidate.image, values, backends, drafts, silent]
    return json.dumps(whole, sort_keys=True, default=str)


def _too_large(pruned: Pruned, release: str | None) -> dict[str, str]:
    """By candidate, what the planner says, if it says that it does not fit on a Spark and the
    baseline does.
    """
    why = {}
    for candidate in pruned.left:
        try:
            planned = memory.plan(request.of_case(_case(candidate, release), request.Override()))
        except SparkbookError as error:
            pruned.notes.append(f"Not planned: {error}")
            break
        if not planned.fits:
            if candidate is pruned.left[0]:
                pruned.notes.append("By the planner, the recipe itself does not fit on a Spark.")
                break
            why[candidate.key] = f"the planner: {planned.verdict}"
    return why


def asker(
    baseline: Candidate,
    release: str | None = None,
    image: str | None = None,
    say: Say = lambda _line: None,
) -> Asker | None:
    """Return what asks the vLLM of a recipe; None: none is here that could be asked.

    A recipe without an image is asked on this machine as it is, any other on a pretended Spark.

    Args:
        release, image: ask this release, or inside this image, instead.
        say: called with a line about who is asked.

    Raises:
        SparkbookError: the release is not here.
    """
    case = _case(baseline, release)
    try:
        where, note = asking.choose(case, release, image)
    except SparkbookError as error:
        if release:
            raise
        say(f"vLLM is not asked: {error}")
        return None
    if note:
        say(f"vLLM {where.engine.version if where.engine else where.image} is asked: {note}")
    if baseline.recipe.image is None:
        where = asking.Where(engine=where.engine, image=where.image, gpu=True)

    def ask(candidates: Sequence[Candidate]) -> list[Answer]:
        say(f"asking vLLM about {len(candidates)} lines")
        by_image: dict[str | None, list[Candidate]] = {}
        for one in candidates:
            by_image.setdefault(one.image, []).append(one)
        answers: dict[str, Answer] = {}
        for ref, some in by_image.items():
            got = _asked(some, where, release) if ref is None else _asked_elsewhere(some)
            answers |= {one.key: answer for one, answer in zip(some, got, strict=True)}
        return [answers[one.key] for one in candidates]

    return ask


def _asked_elsewhere(candidates: Sequence[Candidate]) -> list[Answer]:
    """Ask the release of another image about the candidates that take it."""
    case = _case(candidates[0], None)
    try:
        where, _ = asking.choose(case, None, None)
    except SparkbookError as error:
        unknown = Answer(judge=Judge(vllm=case.version), failed=str(error))
        return [unknown for _ in candidates]
    return _asked(candidates, where, None)


def _asked(
    candidates: Sequence[Candidate], where: asking.Where, release: str | None
) -> list[Answer]:
    cases = [_case(one, release) for one in candidates]
    questions = [
        asking.of_case(case, name=str(number), depth="model") for number, case in enumerate(cases)
    ]
    holds = asking.installed(cases[0], where.engine.version) if where.engine else None
    return asking.ask(questions, where, holds=holds)
