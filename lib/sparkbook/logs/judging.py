"""From what was found in a log to findings: figures filled in, and what only echoes set apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkbook.findings import Finding
from sparkbook.logs import figures as _figures
from sparkbook.logs.found import Context, Found
from sparkbook.logs.reader import Event
from sparkbook.logs.weight import is_exception
from sparkbook.rules import Hit, as_words

_EVIDENCE = 320
_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
_UNDECODED = re.compile("\ufffd[\ufffd ]*\ufffd")


@dataclass(kw_only=True)
class Judged:
    """A judgement: its finding, and what decides its place among the others.

    Attributes:
        role: the signature's, as its figures changed it.
        order: number of the line it rests on.
        rank: 1, or 2 of a cause that names no mechanism.
        alternatives: other likely causes.
        by: who says it, as `Line.source` has it.
    """

    finding: Finding
    role: str
    order: int
    rank: int
    alternatives: list[Finding]
    collect: tuple[str, ...] = ()
    time_s: float | None = None
    echo: str | None = None
    by: str = "other"


def judge(found: Found, context: Context) -> Judged | None:
    """Return the judgement of a signature that was found; None where its figures withdraw it."""
    signature = found.signature
    changes: dict[str, Any] = {}
    if signature.figures:
        computed = _figures.FIGURES[signature.figures](found, context)
        if computed is None:
            return None
        changes = computed
    values = {
        name: short(value, 200)
        for name, value in (found.groups | changes).items()
        if isinstance(value, str)
    }

    def text(name: str) -> str:
        return _fill(str(changes.get(name, getattr(signature, name))), values)

    role = changes.get("role", signature.role)
    severity = changes.get("severity")
    if severity is None and not (role in ("cause", "state") or role == signature.role == "noise"):
        severity = "info"
    collect = wanted(changes.get("collect", signature.collect), found.event, context)
    repeats = f" ({found.count} times)" if found.count > 1 and role != "cause" else ""
    finding = signature.finding(
        Hit(
            f"{short(text('title'), 300)}{repeats}: {text('text')}"
            f"{by_likelihood(changes.get('likely', signature.likely))}",
            evidence=evidence(found.event, found.row),
            fix=_fill(str(changes.get("fix", signature.fix)), as_words(values))
            + next_steps(collect),
            severity=severity,
            kind=changes.get("kind"),
            confidence=changes.get("confidence"),
        )
    )
    also = changes.get("alternatives", ())
    alternatives = [
        signature.finding(
            Hit(other.message, fix=other.fix, severity="info", kind=other.kind, confidence="low")
        )
        for other in signature.alternatives
        if other.kind in also
    ]
    return Judged(
        finding=finding,
        role=role,
        order=found.event.number,
        rank=2 if signature.late else 1,
        alternatives=alternatives,
        collect=collect,
        time_s=found.event.time_s,
        echo=signature.echo,
        by=found.event.line.source,
    )


def by_likelihood(causes: Sequence[str]) -> str:
    """Return several causes of one message, the likeliest first, as the end of a message."""
    listed = "; ".join(f"({number}) {cause}" for number, cause in enumerate(causes, 1))
    return f" Causes by likelihood: {listed}." if causes else ""


_GIVEN: dict[str, Callable[[Event, Context], object]] = {
    "Xid lines": lambda event, context: event.line.source == "kernel",
    "NCCL version": lambda event, context: context.story.nccl,
    "weights GiB": lambda event, context: context.story.weights_gib is not None,
    "the release": lambda event, context: context.story.release,
    "the launch line": lambda event, context: context.story.args,
    "uname -r": lambda event, context: "kernel" in context.facts.text,
}
"""What a log or the facts may hold already, so that nobody has to collect it."""


def wanted(collect: tuple[str, ...], event: Event, context: Context) -> tuple[str, ...]:
    """Return what to collect without what was given."""
    return tuple(
        one
        for one in collect
        if not any(name in one and given(event, context) for name, given in _GIVEN.items())
    )


def next_steps(collect: tuple[str, ...]) -> str:
    """Return what to collect, as the end of a fix."""
    return f" Collect next: {'; '.join(collect)}." if collect else ""


def promote(echoes: list[Judged]) -> tuple[list[Judged], list[Judged]]:
    """Only echoes were found: the one that says most becomes the finding, as a fault whose cause is
    not in the log.
    """
    echoes = sorted(echoes, key=lambda j: (j.echo != "vanished", j.order))
    head = echoes[0]
    fixed = replace(
        head.finding,
        severity="error",
        confidence="low" if head.finding.kind is None else "medium",
    )
    return [replace(head, finding=fixed, role="cause", rank=1, alternatives=[])], echoes[1:]


def as_consequence(finding: Finding) -> Finding:
    """Return a finding as an echo of another one."""
    return replace(finding, severity="info", message=f"Consequence: {finding.message}")


def evidence(event: Event, row: int = 0) -> str:
    """Return the line of an event that a finding rests on, with its number."""
    process = f"({event.line.process}) " if event.line.process else ""
    if event.is_traceback or is_exception(event.text):
        row = 0  # what follows is the rest of the exception's message
    said = event.exceptions[-1] if event.exceptions else event.text.split("\n")[row]
    if event.exceptions and "\n" in event.text:
        said = event.text[max(event.text.rfind(said), 0) :]
    number = event.rows[row - 1] if row else event.number
    return f"line {number}: {process}{short(' '.join(said.split()), _EVIDENCE)}"


def short(text: str, most: int) -> str:
    """Return a text of at most so many characters, all of them fit for a screen."""
    text = _UNPRINTABLE.sub(lambda m: m[0] if m[0].isprintable() else " ", text)
    text = _UNDECODED.sub("\ufffd", text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _fill(template: str, values: Mapping[str, str | None]) -> str:
    """Put figures into a text; a name that has no figure is left out with a word in its place."""
    return re.sub(r"\{([a-z_0-9]+)\}", lambda m: values.get(m[1]) or "?", template)
