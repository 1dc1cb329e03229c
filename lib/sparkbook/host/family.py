"""What the rules of the host check share: a check looks at one thing of a machine, and its rules
judge that.

    @check("driver", probe="gpu")
    def driver(machine: Machine) -> str:
        \"\"\"Return what was seen in a few words, or raise `Unknown` with the reason.\"\"\"
        return f"{machine.gpu.driver}"

    @driver.rule("HOST002", "driver-too-old", "error", source="https://…",
                 fails={"gpu": {"driver": "570.86.10"}})
    def driver_too_old(machine: Machine) -> Iterator[Hit]:
        \"\"\"The text of the rule's page.\"\"\"

The rules of a check run only if its `look` returns. `fails` and `passes` change the recorded
machine `healthy`; `passes` is that machine itself if it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from sparkbook.findings import Severity
from sparkbook.host.machine import Machine
from sparkbook.rules import Family, Hit, Rule

_VERDICTS: dict[Severity, str] = {"error": "blocked", "warning": "slow", "info": "a note"}


class Unknown(Exception):
    """The check cannot judge; the text says why."""


class Example(NamedTuple):
    """A change of a Spark in good order; with `nodes`, of the second of two."""

    change: dict[str, Any]
    nodes: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class HostRule(Rule):
    """One rule of the host check; its function takes a `Machine`, or with `nodes` several."""

    nodes: bool = False

    @property
    def about(self) -> tuple[str, ...]:
        """What pages show under the heading."""
        return (f"{self.severity} ({_VERDICTS[self.severity]})",)

    def example(self, which: Literal["fails", "passes"]) -> Any:
        """Return the change, and whether it is one of the second of two nodes."""
        return Example(super().example(which), self.nodes)


HOST = Family(
    "HOST",
    "the machine",
    "What `sparkbook check` looks for. Each example is a Spark in good order, put together from"
    " public reports, with one change. It was judged when this page was built.",
    type=HostRule,
    samples="sparkbook.host.samples",
)


class Check:
    """One line of the host check.

    Attributes:
        name: as the report shows it.
        probe: the probe that reads what it looks at.
        look: what was seen, in a few words; it raises `Unknown` where it can't be judged.
        rules: the rules that judge it, in their order.
    """

    def __init__(self, name: str, probe: str, look: Callable[..., str]):
        self.name, self.probe, self.look = name, probe, look
        self.rules: list[HostRule] = []

    def rule(
        self, code: str, name: str, severity: Severity, **fields: Any
    ) -> Callable[[Callable[..., Iterable[Hit]]], HostRule]:
        """Make a rule of the family HOST that belongs to this check; see `Family.rule`."""
        register = HOST.rule(code, name, severity, **({"passes": {}} | fields))

        def attach(judge: Callable[..., Iterable[Hit]]) -> HostRule:
            rule = register(judge)
            self.rules.append(rule)
            return rule

        return attach


CHECKS: list[Check] = []
"""Every check of one machine, in the order of the report."""


def check(name: str, probe: str) -> Callable[[Callable[[Machine], str]], Check]:
    """Make a check of a function from a machine to what was seen."""

    def register(look: Callable[[Machine], str]) -> Check:
        made = Check(name, probe, look)
        CHECKS.append(made)
        return made

    return register


def spark_only(machine: Machine, reason: str) -> None:
    """Raise `Unknown` for a machine that is not a Spark."""
    if not machine.is_spark:
        raise Unknown(f"not a Spark: {reason}")


def version(text: str | None) -> tuple[int, ...] | None:
    """Return the first number with dots in a text, as numbers."""
    match = re.search(r"\d+(?:\.\d+)*", text or "")
    return tuple(int(part) for part in match[0].split(".")) if match else None
