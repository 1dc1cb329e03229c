"""The rules that the checks go by: one table, `rules.yaml`, with a code, a text and two examples
for each.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from sparkbook.findings import Severity
from sparkbook.util import own_yaml


class Rule(BaseModel):
    """One rule.

    Attributes:
        code: stable code, such as `HOST002`.
        name: its name in words with dashes.
        severity, kind: of its findings, where the check does not say otherwise.
        text: what it catches and why, in Markdown.
        fix: what to do, where that is the same for all of its findings.
        source: address of the report or document it rests on.
        bad: change of the recorded machine `healthy` that breaks the rule.
        good: change that is just right; empty: the healthy machine itself.
        nodes: whether it compares nodes; the examples then change the second of two.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str
    name: str
    severity: Severity
    kind: str | None = None
    text: str
    fix: str | None = None
    source: str
    confidence: Literal["high", "medium", "low"] = "high"
    bad: dict[str, Any]
    good: dict[str, Any] = {}
    nodes: bool = False

    @property
    def family(self) -> str:
        """Letters of the code."""
        return self.code.rstrip("0123456789")

    @property
    def address(self) -> str:
        """Where the rule's page stands in the site."""
        return f"rules/{self.family.lower()}.html#{self.code.lower()}"


@functools.cache
def _load() -> dict[str, Rule]:
    table = own_yaml.read(Path(__file__).with_name("rules.yaml"))
    return {code: Rule(code=code, **rule) for code, rule in table.items()}


RULES: dict[str, Rule] = _load()
"""Every rule by its code."""
