"""What vLLM itself made of the rules' examples, release by release (`proofs.json`).

`tools/prove_rules.py` makes the table. A rule whose `claims` is `refused` is right where vLLM
refuses what the rule reports; a rule without a claim is right where vLLM starts: what it reports is
not decided by configuration.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkbook import releases
from sparkbook.lint.family import LintRule
from sparkbook.releases.answers import Answer

FILE = Path(__file__).with_name("proofs.json")
FAMILIES = ("FLAG", "MODEL", "QUANT", "SPEC", "ENV", "MEM", "SPARK", "IMG109", "RUN118")
"""Families, and single rules, that are about what vLLM's configuration decides."""

_OTHERS = ("transformers", "huggingface_hub", "tokenizers", "torch")
"""Packages of this environment, in another version than the release's image has."""

_YOUNGER = "does not recognize this architecture"
"""In vLLM's words where a model is younger than the release or its Transformers."""

_WORDS = 200


class Proofs:
    """The table: by example (`FLAG101 fails`) and release, `accepted`, or vLLM's refusal."""

    def __init__(self, verdicts: dict[str, dict[str, str]]) -> None:
        self.verdicts = verdicts

    def add(self, example: str, release: str, answer: Answer) -> None:
        """Add what a release said. No answer is no verdict, nor is an error that another package
        raised: it is that of this environment, such as a Transformers newer than the release.
        """
        rows = self.verdicts.setdefault(example, {})
        rows.pop(release, None)
        others = answer.by is not None and answer.by.package in _OTHERS
        others |= _YOUNGER in (answer.refused or "")
        if answer.failed is None and not others:
            refused = answer.refused or "without a word"
            rows[release] = "accepted" if answer.accepted else refused[:_WORDS]

    def of(self, rule: LintRule, which: str) -> dict[str, str]:
        """The verdicts on one example, oldest release first."""
        rows = self.verdicts.get(f"{rule.code} {which}", {})
        return {version: rows[version] for version in releases.known() if version in rows}

    def to_json(self) -> str:
        """The table as it is stored: for each example, verdicts with their releases."""
        stored: dict[str, dict[str, list[str]]] = {}
        for example, rows in sorted(self.verdicts.items()):
            grouped: dict[str, list[str]] = {}
            for version in releases.known():
                if version in rows:
                    grouped.setdefault(rows[version], []).append(version)
            stored[example] = grouped
        lines = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in stored.items())
        return "{\n" + ",\n".join(lines) + "\n}\n"

    def save(self) -> None:
        """Write the table."""
        FILE.write_text(self.to_json(), "utf-8")


def load() -> Proofs:
    """Read the table; empty where there is none yet."""
    if not FILE.is_file():
        return Proofs({})
    stored: dict[str, dict[str, list[str]]] = json.loads(FILE.read_text("utf-8"))
    return Proofs(
        {
            example: {version: verdict for verdict, at in grouped.items() for version in at}
            for example, grouped in stored.items()
        }
    )


@functools.cache
def table() -> Proofs:
    """The table, read once."""
    return load()


def contradictions(proofs: Proofs) -> Iterator[str]:
    """Yield each release and rule that vLLM contradicts, in words."""
    from sparkbook import lint
    from sparkbook.lint import samples
    from sparkbook.lint.rules import RULES

    for rule in RULES.values():
        for which in ("fails", "passes"):
            source = samples.source(rule.example(which))
            for version, verdict in proofs.of(rule, which).items():
                found = lint.lint(source, release=version).findings
                wrong = _judged(rule, [(f.rule, f.severity) for f in found], verdict)
                if wrong:
                    yield f"{rule.code} {which}, vLLM {version}: {wrong}: {verdict}"


def _judged(rule: LintRule, found: list[tuple[str, str]], verdict: str) -> str | None:
    """What is wrong with a rule in one release; None: vLLM agrees. Where the image may hold a fork,
    a rule that claims a refusal only warns.
    """
    from sparkbook.lint.rules import RULES

    refused = verdict != "accepted"
    if rule.claims == "perhaps" and rule.code in {code for code, _ in found}:
        return None
    claimed = rule.claims == "refused" and (rule.code, "error") in found
    if claimed and not refused:
        return "the rule says refused"
    warned = any(RULES[code].claims == "refused" for code, _ in found if code in RULES)
    if refused and not warned and not any(severity == "error" for _, severity in found):
        return "no rule says refused"
    return None


def proved(proofs: Proofs) -> list[str]:
    """Codes of rules of which both examples were asked about."""
    from sparkbook.lint.rules import RULES

    return [
        rule.code
        for rule in RULES.values()
        if proofs.of(rule, "fails") and proofs.of(rule, "passes")
    ]


def sentence(proofs: Proofs, rule: LintRule) -> str | None:
    """Return what vLLM made of the failing example, for the rule's page; None: it was not asked."""
    rows = proofs.of(rule, "fails")
    if not rows:
        return None
    refusing = [version for version, verdict in rows.items() if verdict != "accepted"]
    if not refusing:
        span = _span(list(rows), list(rows))
        return (
            f"Not decided by configuration: vLLM {span} starts with this. Reported by the source."
        )
    words = rows[refusing[-1]]
    text = f'vLLM {_span(refusing, list(rows))} refuses this: "{words}"'
    accepting = [version for version in rows if version not in refusing]
    return f"{text}. vLLM {_span(accepting, list(rows))} accepts it." if accepting else f"{text}."


def _span(chosen: list[str], asked: list[str]) -> str:
    """Releases in words; `A to B` where every release that was asked between them is one."""
    parts: list[list[str]] = []
    for version in asked:
        if version not in chosen:
            continue
        at = asked.index(version)
        if parts and asked.index(parts[-1][-1]) == at - 1:
            parts[-1].append(version)
        else:
            parts.append([version])
    return ", ".join(p[0] if len(p) == 1 else f"{p[0]} to {p[-1]}" for p in parts)


def to_rows(proofs: Proofs, rule: LintRule) -> dict[str, Any]:
    """The verdicts on both examples, for JSON."""
    return {which: proofs.of(rule, which) for which in ("fails", "passes")}
