"""The rules of the host check as sections of the book: text, the two examples, and what the check
says about the failing one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from sparkbook.findings import Finding, Severity
from sparkbook.host.checks import check, check_nodes
from sparkbook.host.machine import Machine, recorded
from sparkbook.host.rules import RULES, Rule
from sparkbook.rules import section_page


@dataclass(frozen=True)
class Example:
    """A Spark in good order with a change; of a rule that compares nodes, the second of two."""

    change: dict[str, Any]
    nodes: bool

    @property
    def machines(self) -> list[Machine]:
        """The machines that are judged."""
        healthy = recorded("healthy")
        changed = healthy.changed(self.change)
        return [healthy, changed.changed({"name": "spark-2"})] if self.nodes else [changed]


@dataclass(frozen=True)
class Section:
    """What the book's pages ask of a rule."""

    rule: Rule

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    @property
    def bad(self) -> Callable[[], Example]:
        """Makes the example that fails."""
        return lambda: Example(self.rule.bad, self.rule.nodes)

    @property
    def good(self) -> Callable[[], Example]:
        """Makes the example that passes."""
        return lambda: Example(self.rule.good, self.rule.nodes)


class Pages:
    """The family of rules, for `sparkbook.site.rule_pages`: one page, a section a rule."""

    prefix = "HOST"
    title = "The machine"
    intro = (
        "What `sparkbook check` looks for. Each example is a healthy Spark, put together from"
        " public reports, with one change. The check judged it when this page was built; its"
        " findings are shown."
    )
    checks: dict[str, Section] = {code: Section(rule) for code, rule in RULES.items()}  # noqa: RUF012

    def show(self, example: Example) -> str:
        """The change as YAML."""
        if not example.change:
            return "nothing changed"
        return yaml.safe_dump(
            example.change, sort_keys=False, width=110, allow_unicode=True
        ).strip()

    def examined(self, example: Example) -> list[Finding]:
        """All that the check finds in an example."""
        machines = example.machines
        return list((check_nodes(machines) if len(machines) > 1 else check(machines[0])).findings)

    def page(self, section: Section) -> str:
        """The section of one rule, in Markdown."""
        words: dict[Severity, str] = {"error": "blocked", "warning": "slow", "info": "a note"}
        examples = []
        for title, make in (("Fails", section.bad), ("Passes", section.good)):
            example = make()
            examples.append((title, f"```yaml\n{self.show(example)}\n```", self.examined(example)))
        about = (self.title, f"{section.severity} ({words[section.severity]})")
        return section_page(
            section.code, section.name, about, section.text, examples, section.source, section.kind
        )


HOST = Pages()
"""For the list of families in `sparkbook.site.rule_pages`."""
