"""BAD: combinations that public reports name as bad; one rule for each entry of the table
`releases/known_bad.yaml` that a launch line can show.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

from sparkbook.lint.case import Case
from sparkbook.lint.family import LintRule, family
from sparkbook.releases import known_bad
from sparkbook.releases.known_bad import Combination, Facts
from sparkbook.rules import Hit, Judge

GPU = "NVIDIA GB10"
"""A launch line is judged for a Spark."""

BAD = family("BAD", "known-bad combinations")


@functools.lru_cache(maxsize=1)
def facts(case: Case) -> Facts:
    """Return what the table's conditions are compared with."""
    options: dict[str, object] = {
        name: ("false" if given.negated else given.value) for name, given in case.options.items()
    }
    for name in ("speculative-config", "compilation-config", "kv-transfer-config"):
        if (config := case.json(name)) is not None:
            options[name] = config
    if case.spec is not None:
        options["speculative-config"] = case.spec
    return known_bad.facts(
        release=case.version,
        model=case.known_names,
        options=options,
        environment=case.line.env,
        gpu=GPU if case.spark else None,
        image=case.shown_image if case.line.image else None,
    )


def _judge(one: Combination) -> Judge:
    def judge(case: Case) -> Iterator[Hit]:
        if (case.serves or one.image) and one.holds(facts(case)):
            yield Hit(one.sentence, evidence=", ".join(_evidence(one, case)))

    return judge


def _evidence(one: Combination, case: Case) -> Iterator[str]:
    """Yield the parts of the line that the combination is made of."""
    if one.image:
        yield case.shown_image
    if one.models:
        yield case.model
    for name in dict.fromkeys(name.partition(".")[0] for name in one.options):
        if name in case.options:
            yield case.shown(name)
    for name in one.environment:
        if name in case.line.env:
            yield f"{name}={case.line.env[name] or ''}"


def _text(one: Combination) -> str:
    """Return the text of the rule's page: what happens, who reported it, what speaks against it."""
    parts = [one.title, f" {one.symptom}."]
    where = [f"GPU {', '.join(one.gpus)}"] if one.gpus else []
    where += [f"fixed in {one.fixed_in}"] if one.fixed_in else []
    text = ":".join(parts) + (f" ({'; '.join(where)})" if where else "")
    reports = ", ".join(f"[{source.date}]({source.url})" for source in one.sources)
    doubt = f" Disputed: {one.disputed}." if one.disputed else ""
    return f"{text}{doubt} Reports: {reports}. Use instead: {one.instead}"


def _rules(entries: Callable[[], Iterable[Combination]]) -> Iterator[LintRule]:
    for one in entries():
        if one.fails is None:
            continue
        yield LintRule(
            code=one.code,
            name=one.name,
            severity=one.severity,
            kind=one.kind,
            text=_text(one),
            source="; ".join(map(str, one.sources)),
            fails=one.fails,
            passes=one.passes,
            since=one.since,
            until=one.last,
            release=one.release,
            versioned=bool(one.since or one.until or one.fixed_in),
            confidence="low" if one.disputed else "high",
            fix=one.instead,
            judge=_judge(one),
        )


BAD.load(lambda: _rules(known_bad.combinations))
