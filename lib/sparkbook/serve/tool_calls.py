"""Tool calling, tried: a small battery of requests, and a grade for each reply.

What an agent needs of a server is one shape: calls as calls and not as text, arguments that are
JSON and follow the declared schema, one id a call, a finish reason that says so, the same when
streamed. `ask` sends a probe and reads the reply as it came, wrong shapes included; the rules
(`tool_rules`) judge it. An error is the server's fault: a parser, a template, a flag. A warning may
be the model's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sparkbook.findings import Finding, Findings
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.tool_probes import BATTERY, ONE, STREAMED, Probe, Reply, agent
from sparkbook.serve.tool_rules import TOOL


def ask(endpoint: Endpoint, probe: Probe, timeout_s: float = 300.0) -> Reply:
    """Send a probe.

    Raises:
        SparkbookError: nothing answers, or not all of the reply comes in time.
    """
    got = endpoint.post("/v1/chat/completions", probe.body(endpoint.model), timeout_s)
    if not got.is_success:
        return Reply(probe=probe, status=got.status_code, error=_words(got.text))
    if probe.streams:
        return _joined(probe, got.text)
    try:
        choice = got.json()["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
    except (ValueError, TypeError, LookupError, RecursionError):
        message, finish = None, None
    if not isinstance(message, dict):
        return Reply(probe=probe, status=got.status_code, error=_words(got.text))
    return Reply(probe=probe, message=message, finish=finish)


def _words(text: str) -> str:
    """Return what a refusal says."""
    try:
        value = json.loads(text)
        inner = value.get("error", value)
        text = str(inner.get("message", inner)) if isinstance(inner, dict) else str(inner)
    except (ValueError, AttributeError, RecursionError):
        pass
    return " ".join(text.split())[:300] or "an empty reply"


def _joined(probe: Probe, text: str) -> Reply:
    """Return a stream's pieces as one message."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    finish, broken = None, ""
    lines = [line[5:].strip() for line in text.splitlines() if line.startswith("data:")]
    if "[DONE]" not in lines:
        broken = "it ends without [DONE]"
    for line in lines:
        if line == "[DONE]":
            break
        try:
            choices = json.loads(line)["choices"]
            if not choices:
                continue
            delta = choices[0]["delta"] or {}
            finish = choices[0].get("finish_reason") or finish
            for key in ("content", "reasoning", "reasoning_content"):
                if isinstance(delta.get(key), str):
                    message[key] = message.get(key, "") + delta[key]
            for piece in delta.get("tool_calls") or ():
                broken = _add(calls, piece) or broken
        except (ValueError, TypeError, LookupError, AttributeError):
            broken = f"an event is no chunk of a chat: {line[:80]}"
    message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return Reply(probe=probe, message=message, finish=finish, broken=broken)


def _add(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> str:
    """Add a piece of a call to those before, and return what is wrong with it."""
    if not isinstance(piece.get("index"), int):
        return "a piece of a call has no index"
    started = piece["index"] in calls
    call = calls.setdefault(piece["index"], {"id": None, "function": {"name": "", "arguments": ""}})
    function = piece.get("function") or {}
    call["id"] = piece.get("id") or call["id"]
    call["function"]["name"] += function.get("name") or ""
    call["function"]["arguments"] += function.get("arguments") or ""
    return "" if started or function.get("name") else "the first piece of a call has no name"


@dataclass(frozen=True)
class Grade:
    """What came out of one probe, or of all turns of the agent.

    Attributes:
        probe: what was tried.
        findings: what is wrong; empty: it is right.
        right, asked: requests.
    """

    probe: str
    findings: Findings
    right: int
    asked: int

    @property
    def word(self) -> str:
        """`pass`, `weak` (the model may be at fault) or `fail`."""
        return {"error": "fail", "warning": "weak"}.get(self.findings.worst or "", "pass")


@dataclass(frozen=True)
class Report:
    """The grades of a server."""

    url: str
    model: str
    grades: list[Grade]

    @property
    def findings(self) -> Findings:
        """All that is wrong, each rule once."""
        first: dict[str, Finding] = {}
        for grade in self.grades:
            for finding in grade.findings:
                first.setdefault(finding.rule, finding)
        return Findings(first.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        probes = [
            {
                "probe": grade.probe,
                "grade": grade.word,
                "right": grade.right,
                "asked": grade.asked,
                "rules": [finding.rule for finding in grade.findings],
            }
            for grade in self.grades
        ]
        return {
            "url": self.url,
            "model": self.model,
            "probes": probes,
            **self.findings.to_dict(asked=sum(grade.asked for grade in self.grades)),
        }

    @property
    def lines(self) -> list[str]:
        """For a terminal."""
        head = [f"Tool calls of {self.model} at {self.url}"]
        return head + [
            f"{grade.word:<5} {grade.probe:<24} {grade.right} of {grade.asked}"
            + "".join(f"  {finding.rule}" for finding in grade.findings)
            for grade in self.grades
        ]


def grade(replies: list[Reply], name: str) -> Grade:
    """Return the grade of replies to one kind of probe. A rule that found something in several of
    them is one finding, with the first as its evidence.
    """
    seen: dict[str, list[tuple[Reply, Finding]]] = {}
    for reply in replies:
        for finding in TOOL.judge(reply):
            seen.setdefault(finding.rule, []).append((reply, finding))
    findings = []
    for hits in seen.values():
        reply, finding = hits[0]
        evidence = f"{reply.probe.name}: {finding.evidence}"
        if len(replies) > 1:
            evidence = f"{len(hits)} of {len(replies)}, first {evidence}"
        findings.append(replace(finding, evidence=evidence))
    wrong = {id(reply) for hits in seen.values() for reply, _ in hits}
    return Grade(name, Findings(findings), len(replies) - len(wrong), len(replies))


def check(
    endpoint: Endpoint,
    *,
    turns: int = 50,
    timeout_s: float = 300.0,
    say: Callable[[str], None] = lambda _line: None,
) -> Report:
    """Send the battery to a server, and grade it.

    Args:
        endpoint: the server, with its model's name.
        turns: of the agent; 0 leaves it out.
        timeout_s: for each reply.
        say: called with a line for each probe.

    Raises:
        SparkbookError: nothing answers, or not in time.
    """
    grades = []
    for probe in BATTERY:
        say(f"{probe.name} …")
        grades.append(grade([ask(endpoint, probe, timeout_s)], probe.name))
    if turns:
        say(f"an agent of {turns} turns …")
        replies = []
        for probe in agent(turns):
            replies.append(ask(endpoint, probe, timeout_s))
            if replies[-1].status == 400 and len(replies) > 1 and replies[-2].status == 400:
                break  # the history is refused, and it only grows
        grades.append(grade(replies, f"an agent of {turns} turns"))
    return Report(endpoint.url, endpoint.model, grades)


def ready(endpoint: Endpoint, timeout_s: float) -> tuple[str, Findings]:
    """Return what readiness asks of a server that claims tool calls: one call, whole and streamed;
    the call in words, and what is the server's fault.
    """
    replies = [ask(endpoint, probe, timeout_s) for probe in (ONE, STREAMED)]
    faults = [
        finding
        for reply in replies
        for finding in TOOL.judge(reply)
        if finding.severity == "error" or not reply.calls
    ]
    if faults:
        return "", Findings(faults)
    function = replies[0].calls[0]["function"]
    return f"calls {function['name']}({function['arguments']}), streamed too", Findings()
