"""What can go wrong between a request and a running container: one table of rules, and the findings
made from it.

`DOCK1xx` are answers of the Docker engine, recognized by their text; `DOCK2xx` are notes on what a
launch asks for; `DOCK3xx` say how a container ended; `DOCK4xx` come from the watchdog.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.rules import Family
from sparkbook.util.secret import is_secret

FILE = Path(__file__).with_name("faults.yaml")


DOCK = Family(
    "DOCK",
    "starting, ending and guarding a container",
    "What `sparkbook serve`, `status` and the watchdog find. Answers of the Docker engine were"
    " printed by engines 20.10.24 and 26.1.5, unless the rule says otherwise; each example was"
    " judged when this page was built.",
    samples="sparkbook.serve.samples",
)
DOCK.load(FILE)


class ServeFault(SparkbookError):
    """A server could not be started or was stopped; `finding` says what, why and what to do."""

    def __init__(self, finding: Finding):
        self.finding = finding
        super().__init__(as_lines(finding))


def as_lines(finding: Finding) -> str:
    """Return a finding as lines for a message."""
    lines = [f"{finding.message} ({finding.rule})"]
    lines += [f"  evidence: {finding.evidence}"] if finding.evidence else []
    lines += [f"  what to do: {finding.fix}"] if finding.fix else []
    return "\n".join(lines)


def as_progress(finding: Finding) -> str:
    """Return a finding that stops nothing as one line of progress, with what to do."""
    line = f"{finding.severity}: {finding.message} ({finding.rule})"
    return f"{line} {finding.fix}" if finding.fix else line


def explain(text: str, **figures: object) -> Finding:
    """Return the finding for what the Docker engine said.

    Args:
        text: the engine's or the client's words.
        figures: what the text may not name: `port`, `name`, `platform`, `registry`, `path`, `host`.
    """
    for rule in DOCK.rules.values():
        if (groups := rule.search(text)) is not None:
            values: dict[str, Any] = {**figures, **groups}
            return rule.finding(evidence=_shortened(text), **values)
    return DOCK["DOCK100"].finding(evidence=_shortened(text))


def how_it_ended(state: dict, name: str, restarts: int = 0) -> Finding | None:
    """Return what the engine's record of a container says about its end; None while it runs, before
    it has run, and while it is being removed.

    Args:
        state: the `State` of `GET /containers/ID/json`.
        name: the container's name, for the advice.
        restarts: its `RestartCount`.
    """
    if state.get("Paused"):
        return DOCK["DOCK308"].finding(name=name)
    if state.get("Running") and not state.get("Restarting"):
        return DOCK["DOCK307"].finding(count=restarts, name=name) if restarts else None
    if state.get("Status") == "removing" or (
        state.get("Status") == "created" and not state.get("Error")
    ):
        return None
    status = int(state.get("ExitCode") or 0)
    if state.get("OOMKilled"):
        return DOCK["DOCK301"].finding(evidence=f"OOMKilled, status {status}")
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
    return DOCK[code].finding(evidence=evidence, status=status, signal=status - 128, name=name)


def redact(environment: list[str]) -> list[str]:
    """`NAME=VALUE` entries whose secrets are hidden."""
    return [
        f"{name}=***" if is_secret(name, value) else f"{name}={value}"
        for name, _, value in (entry.partition("=") for entry in environment)
    ]


def _shortened(text: str, limit: int = 400) -> str:
    one = " ".join(text.split())
    return one if len(one) <= limit else f"{one[: limit - 1]}…"
