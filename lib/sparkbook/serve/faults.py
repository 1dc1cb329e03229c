"""What can go wrong between a request and a running container: one table of rules, and the findings
made from it.

`DOCK1xx` are answers of the Docker engine, recognized by their text; `DOCK2xx` are notes on what a
launch asks for; `DOCK3xx` say how a container ended; `DOCK4xx` come from the watchdog.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from sparkbook import own_yaml
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Severity
from sparkbook.recipes.launch import is_secret
from sparkbook.util.shell_text import quote

FILE = Path(__file__).with_name("faults.yaml")


class Fault(BaseModel):
    """One rule.

    Attributes:
        code, name: stable code, and the name in words with dashes.
        title: what is the matter, as a sentence; `{name}` stands for a named group of the pattern
            or a figure that is handed over.
        cause: why it happens.
        fix: what to do; may hold the same names.
        pattern: regular expressions (case ignored) over the engine's text; none where no text tells
            it.
        example: a text in which it is found.
        kind: the problem's name in the project's taxonomy, where it has one.
        source: where the knowledge comes from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    code: str = Field(pattern=r"^DOCK\d{3}$")
    name: str = Field(pattern=r"^[a-z-]+$")
    title: str
    cause: str
    fix: str
    pattern: tuple[str, ...] = ()
    example: str | None = None
    kind: str | None = None
    severity: Severity = "error"
    source: str

    @property
    def address(self) -> str:
        """Where its section stands in the site."""
        return f"rules/dock.html#{self.code.lower()}"

    def finding(self, evidence: str | None = None, **figures: object) -> Finding:
        """The finding; `figures` fill the names in title and fix."""
        return Finding(
            rule=self.code,
            kind=self.kind,
            severity=self.severity,
            message=filled(self.title, figures),
            evidence=evidence,
            fix=filled(self.fix, {name: _pasted(value) for name, value in figures.items()}),
            why=self.address,
            source=self.source,
        )

    def search(self, text: str) -> dict[str, str] | None:
        """The named groups of the pattern that is found in a text; None where none is."""
        for pattern in self.pattern:
            if match := re.search(pattern, text, re.IGNORECASE | re.DOTALL):
                return {name: value for name, value in match.groupdict().items() if value}
        return None


def _pasted(value: object) -> str | None:
    """A value as a word of the commands in a fix."""
    return None if value is None else quote(str(value).replace("\0", ""))


def filled(text: str, values: dict[str, object]) -> str:
    """The text with its names filled in; one that is not known reads `NAME`."""
    return re.sub(
        r"\{(\w+)\}",
        lambda name: str(name[1].upper() if values.get(name[1]) is None else values[name[1]]),
        text,
    )


@cache
def faults() -> dict[str, Fault]:
    """All rules by code, in the order of the file.

    Raises:
        SparkbookError: two have the same code.
    """
    found = TypeAdapter(tuple[Fault, ...]).validate_python(own_yaml.read(FILE))
    by_code = {fault.code: fault for fault in found}
    if len(by_code) < len(found):
        raise SparkbookError(f"{FILE.name}: a code is given twice")
    return by_code


class DockerFault(SparkbookError):
    """Docker could not do what was asked; `finding` says what, why and what to do."""

    def __init__(self, finding: Finding):
        self.finding = finding
        super().__init__(told(finding))


def told(finding: Finding) -> str:
    """A finding as lines for a message."""
    lines = [f"{finding.message} ({finding.rule})"]
    lines += [f"  evidence: {finding.evidence}"] if finding.evidence else []
    lines += [f"  what to do: {finding.fix}"] if finding.fix else []
    return "\n".join(lines)


def explain(text: str, **figures: object) -> Finding:
    """The finding for what the Docker engine said.

    Args:
        text: the engine's or the client's words.
        figures: what the text may not name: `port`, `name`, `platform`, `registry`, `path`, `host`.
    """
    for fault in faults().values():
        if (groups := fault.search(text)) is not None:
            return fault.finding(_shortened(text), **{**figures, **groups})
    return faults()["DOCK100"].finding(_shortened(text))


def how_it_ended(state: dict, name: str, restarts: int = 0) -> Finding | None:
    """What the engine's record of a container says about its end; None while it runs.

    Args:
        state: the `State` of `GET /containers/ID/json`.
        name: the container's name, for the advice.
        restarts: its `RestartCount`.
    """
    if state.get("Running") and not state.get("Restarting"):
        return faults()["DOCK307"].finding(count=restarts) if restarts else None
    status = int(state.get("ExitCode") or 0)
    if state.get("OOMKilled"):
        return faults()["DOCK301"].finding(f"OOMKilled, status {status}")
    if state.get("Status") == "created" and state.get("Error"):
        return explain(state["Error"], name=name)
    code = {
        137: "DOCK302",
        126: "DOCK304",
        127: "DOCK304",
        0: "DOCK305",
        143: "DOCK305",
        130: "DOCK305",
    }.get(status)
    code = code or ("DOCK303" if 128 < status < 160 else "DOCK306")
    evidence = f"status {status}" + (f", {restarts} restarts" if restarts else "")
    return faults()[code].finding(evidence, status=status, signal=status - 128, name=name)


def redact(environment: list[str]) -> list[str]:
    """`NAME=VALUE` entries whose secrets are hidden."""
    return [
        f"{name}=***" if is_secret(name) else f"{name}={value}"
        for name, _, value in (entry.partition("=") for entry in environment)
    ]


def _shortened(text: str, limit: int = 400) -> str:
    one = " ".join(text.split())
    return one if len(one) <= limit else f"{one[: limit - 1]}…"
