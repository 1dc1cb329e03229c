"""Several logs of one run: put on one clock, which one has the cause, which fell silent first, and
which only report it.

A log is what a rank printed, the kernel's log or a journal of a node, or what `docker inspect` says
of a container. Each is read by the log doctor; this module orders the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkbook.findings import Finding, Findings
from sparkbook.logs.doctor import UNKNOWN, Diagnosis, diagnose
from sparkbook.logs.facts import Facts
from sparkbook.logs.judging import as_consequence
from sparkbook.logs.log_line import JOURNAL
from sparkbook.logs.signatures import signatures
from sparkbook.logs.states import fell_silent, never_began, ranks_differ
from sparkbook.logs.verdict import Verdict

_TIME = re.compile(
    rb"\b(?:\d{4}-)?(?P<month>\d\d)-(?P<day>\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)"
    rb"|\[[IWEF](?P<month2>\d\d)(?P<day2>\d\d) (?P<clock2>\d\d:\d\d:\d\d)"
    rb"|\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) +(?P<day3>\d{1,2})"
    rb" (?P<clock3>\d\d:\d\d:\d\d)"
)
_MONTHS = (
    b"Jan",
    b"Feb",
    b"Mar",
    b"Apr",
    b"May",
    b"Jun",
    b"Jul",
    b"Aug",
    b"Sep",
    b"Oct",
    b"Nov",
    b"Dec",
)
_DAYS = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)
_PIECE = 64_000
NO_ANSWER = re.compile(r"connect|refused|timed out|no route", re.IGNORECASE)
"""The other end does not answer. Otherwise this rank has no such port, which is its own fault."""
_OF_ONE = {"LOG903", "LOG904", "LOG905", "LOG906"}
"""What explains why one log is not healthy; the order of all of them says more."""
_ZONE_S = 1800.0
"""Clocks of two logs that differ by a multiple of this are in different time zones."""

_SEVERAL = re.compile(rb"\bheadless\b|\bworld[_ ]size[= ](?:[2-9]|[1-9]\d)")
"""What the log of a rank among several shows."""
_SAME = {
    "vLLM's release": re.compile(
        rb"(?:LLM engine \(v|Launching vLLM \(v|server version |\]\W{0,60}version )(\d[\w.+]*)"
    ),
    "the model": re.compile(rb"Starting to load model (\S+?)\.*\s"),
    "the architecture": re.compile(rb"Resolved architecture: (\w+)"),
    "--max-model-len": re.compile(rb"Using max model len (\d+)"),
    "the address where they meet": re.compile(
        rb"(?:distributed_init_method=tcp://|master_addr=|head node address )"
        rb"\[?([\w.:-]+?)\]?(?::\d+)?[,\s]"
    ),
    "NCCL's version": re.compile(rb"NCCL INFO NCCL version (\d[\w.+]*)"),
}
"""What has to be the same on all ranks, and where a log shows it."""


@dataclass(kw_only=True)
class Member:
    """One log of the run.

    Attributes:
        begin_s, end_s: its first and last time, seconds since the turn of the year.
        journal: whether it is a node's journal, without a line of vLLM.
        exit_code, killed: of a container that `docker inspect` describes.
    """

    name: str
    diagnosis: Diagnosis
    begin_s: float | None = None
    end_s: float | None = None
    journal: bool = False
    exit_code: int | None = None
    killed: bool = False

    @property
    def engine(self) -> bool:
        """Whether a rank of the engine wrote it."""
        return bool(self.diagnosis.story.stage or self.diagnosis.story.starts)

    @property
    def has_to_serve(self) -> bool:
        """Whether it is healthy only if it shows that the engine is up: not the log of a rank
        without a web server or of the kernel, nor what is said of a container.
        """
        args, speakers = self.diagnosis.story.args, tuple(self.diagnosis.story.last_lines)
        worker = any(one.startswith(("Worker", "RayWorker")) for one in speakers)
        server = any(one.startswith("APIServer") for one in speakers)
        silent = args.get("headless") or args.get("node_rank") or (worker and not server)
        silent = silent and self.diagnosis.verdict in ("starting", "cut off", "stopped")
        host = self.journal or self.exit_code is not None
        of_host = host or self.diagnosis.verdict == "kernel log"
        return not (silent or of_host or self.only_reports)

    @property
    def stopped(self) -> bool:
        """Whether the engine was ordered to stop, and that is all that happened."""
        ordered = any(finding.rule == "LOG619" for finding in self.diagnosis.findings)
        return ordered and self.diagnosis.primary is None

    @property
    def only_reports(self) -> bool:
        """Whether its fault is only the echo of another one."""
        primary = self.diagnosis.primary
        signature = signatures().get(primary.rule) if primary else None
        if primary is None or signature is None:
            return False
        if signature.lost == "no-answer":
            return bool(NO_ANSWER.search(primary.evidence or ""))
        return bool(signature.echo or signature.lost)

    @property
    def echo(self) -> str | None:
        """Of what its fault is the echo: a process that `vanished`, or one that `failed`."""
        primary = self.diagnosis.primary
        signature = signatures().get(primary.rule) if primary else None
        return signature.echo if signature else None

    @property
    def lost_a_rank(self) -> bool:
        """Whether it says that another rank is gone."""
        found = [signatures().get(finding.rule) for finding in self.diagnosis.findings]
        return any(signature is not None and signature.lost for signature in found)

    @property
    def has_cause(self) -> bool:
        """Whether it has a fault of its own."""
        return self.diagnosis.primary is not None and not self.only_reports

    @property
    def fault_s(self) -> float | None:
        """The time of its fault."""
        return self.diagnosis.fault_s


@dataclass(frozen=True)
class Together:
    """The answer to several logs of one run.

    Attributes:
        members: in the order in which they fell silent.
        first: the one to look into; None if nothing went wrong.
    """

    members: tuple[Member, ...]
    first: Member | None
    findings: Findings
    verdict: Verdict

    @property
    def healthy(self) -> bool:
        """Whether all of them show a healthy run."""
        return self.verdict == "healthy"

    @property
    def headline(self) -> str:
        """The answer in one sentence."""
        if self.first is None:
            if self.healthy:
                return "Healthy: none of these logs has a fault."
            told = ", ".join(f"{one.name}: {one.diagnosis.verdict}" for one in self.members)
            return f"Not every log shows an engine that is up. {told}."
        of_all = self.findings[0].rule in (ranks_differ.code, never_began.code)
        named = "" if of_all else f"{self.first.name}: "
        return named + self.findings[0].message

    def to_dict(self) -> dict[str, Any]:
        """The `--json` answer."""
        return self.findings.to_dict(
            verdict=self.verdict,
            headline=self.headline,
            first=self.first.name if self.first else None,
            logs=[
                {
                    "name": one.name,
                    "verdict": one.diagnosis.verdict,
                    "primary": one.diagnosis.primary.rule if one.diagnosis.primary else None,
                    "only_reports": one.only_reports,
                    "begin_s": one.begin_s,
                    "end_s": one.end_s,
                }
                for one in self.members
            ],
        )


def together(logs: Mapping[str, bytes], facts: Facts | None = None) -> Together:
    """Return what several logs of one run show.

    Args:
        logs: their contents by name.
        facts: what is known about the host besides.
    """
    members = [_member(name, text, facts) for name, text in logs.items()]
    _on_one_clock(members)
    members.sort(key=lambda one: (one.end_s is None, one.end_s or 0.0))
    first = _first(members)
    findings: list[Finding] = []
    if first is not None:
        if first.has_cause and first.diagnosis.primary:
            findings.append(_named(first, first.diagnosis.primary))
        about = _about(members, first)
        findings += fell_silent.findings(_order(members, first), first.name, *about)
    for member in members:
        findings += _rest(member, first)
    differ = [*differences(logs), *_unbegun(members)]
    if differ and first is None:
        first = members[0]
    findings = [
        *differ,
        *(as_consequence(f) if differ and f.severity == "error" else f for f in findings),
    ]
    verdict: Verdict = "fault" if differ else _verdict(members, first)
    return Together(tuple(members), first, Findings(findings), verdict)


def differences(logs: Mapping[str, bytes]) -> list[Finding]:
    """Return in what the ranks of one server differ, though they must not."""
    ranks = {name: log for name, log in logs.items() if _container(log) is None}
    if not any(_SEVERAL.search(log) for log in ranks.values()):
        return []
    found: list[Finding] = []
    for what, pattern in _SAME.items():
        values = {
            name: matches[-1].decode("utf-8", "replace").rstrip("/").rpartition("/")[2]
            for name, log in ranks.items()
            if (matches := pattern.findall(log))
        }
        if len(set(values.values())) > 1:
            found += ranks_differ.findings(what, values.items())
    return found


def _unbegun(members: Sequence[Member]) -> list[Finding]:
    """Return which logs are empty, where a rank waits that has not come up."""
    early = ("starting", "cut off", "stopped")
    waits = next(
        (
            one
            for one in members
            if one.diagnosis.verdict in early and not one.diagnosis.story.ready
        ),
        None,
    )
    return [
        finding
        for one in members
        if waits and one.diagnosis.verdict == "empty"
        for finding in never_began.findings(one.name, waits.name)
    ]


def _member(name: str, text: bytes, facts: Facts | None) -> Member:
    state = _container(text)
    if state is None:
        found = diagnose(text, facts)
        return Member(
            name=name,
            diagnosis=found,
            begin_s=_time(text[:_PIECE]),
            end_s=_time(text[-_PIECE:], -1),
            journal=bool(JOURNAL.match(text.lstrip()[:400])) and b".py:" not in text,
        )
    code = state.get("ExitCode")
    said = f"container exited with code {code}" if code else "container runs"
    if state.get("OOMKilled"):
        said = "OOMKilled=true, the container was killed for lack of memory"
    return Member(
        name=name,
        diagnosis=diagnose(said.encode(), facts),
        end_s=_time(str(state.get("FinishedAt", "")).encode()) if code else None,
        exit_code=code if isinstance(code, int) else None,
        killed=bool(state.get("OOMKilled")) or code == 137,
    )


def _container(text: bytes) -> dict[str, Any] | None:
    """Return the state of a container that `docker inspect` describes; None for another text."""
    if text.lstrip()[:1] not in (b"[", b"{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    entry = value[0] if isinstance(value, list) and value else value
    state = entry.get("State") if isinstance(entry, dict) else None
    return state if isinstance(state, dict) else None


def _time(text: bytes, which: int = 0) -> float | None:
    """Return the first or last time of a text, in seconds since the turn of the year."""
    found = list(_TIME.finditer(text))
    if not found:
        return None
    match = found[which]
    month = match["month"] or match["month2"]
    number = int(month) if month else _MONTHS.index(match["name"]) + 1
    day = int(match["day"] or match["day2"] or match["day3"])
    clock = match["clock"] or match["clock2"] or match["clock3"]
    if not 1 <= number <= 12:
        return None
    hours, minutes, seconds = map(int, clock.split(b":"))
    return (_DAYS[number - 1] + day - 1) * 86400.0 + hours * 3600 + minutes * 60 + seconds


def _on_one_clock(members: list[Member]) -> None:
    """Move logs of another time zone to the clock of the first rank's."""
    leader = next((one for one in members if one.engine and one.end_s is not None), None)
    if leader is None or leader.end_s is None:
        return
    for one in members:
        if one.end_s is None:
            continue
        zones = round((leader.end_s - one.end_s) / _ZONE_S)
        shift = zones * _ZONE_S
        if zones and abs(leader.end_s - one.end_s - shift) < 600 and abs(zones) <= 28:
            one.end_s += shift
            one.begin_s = None if one.begin_s is None else one.begin_s + shift


def _first(members: list[Member]) -> Member | None:
    """Return the log to look into: with a cause of its own, the earliest; else the rank that fell
    silent first, if others report a fault.
    """
    causes = [one for one in members if one.has_cause]
    if causes:
        return min(
            causes,
            key=lambda one: (
                one.diagnosis.primary.rule == UNKNOWN if one.diagnosis.primary else True,
                one.fault_s is None,
                one.fault_s or 0.0,
            ),
        )
    ranks = [one for one in members if one.engine]
    reports = [one for one in members if one.only_reports]
    if not reports or any(one.stopped for one in ranks):
        return None
    lost_a_process = [one for one in reports if one.echo == "vanished"]
    if not lost_a_process and len(reports) == 1 and not reports[0].lost_a_rank:
        lost_a_process = reports  # it says nothing of another rank: a process of its own is gone
    return next(iter(lost_a_process or ranks), None)


def _order(members: list[Member], first: Member) -> str:
    """Return who fell silent when, as a sentence."""
    timed = [one for one in members if one.end_s is not None]
    if not timed:
        return f"{first.name} has the cause."
    start = timed[0].end_s or 0.0
    told = [
        f"{one.name} {'first' if one is timed[0] else f'{(one.end_s or 0.0) - start:.0f} s later'}"
        for one in timed
    ]
    reports = [one.name for one in members if one.only_reports and one is not first]
    only = (
        f" {', '.join(reports)} only {'reports' if len(reports) == 1 else 'report'} it."
        if (reports)
        else ""
    )
    return f"Fell silent: {', '.join(told)}.{only}"


def _about(members: list[Member], first: Member) -> tuple[str, bool]:
    """Return the evidence of the order, and whether the first has a cause of its own."""
    primary = first.diagnosis.primary
    said = primary.evidence if primary else first.diagnosis.story.last_lines
    last = said if isinstance(said, str) else next(iter((said or {}).values()), "no line")
    return f"{first.name}: {last}", first.has_cause


def _named(member: Member, finding: Finding) -> Finding:
    return replace(finding, evidence=f"{member.name}, {finding.evidence}")


def _rest(member: Member, first: Member | None) -> list[Finding]:
    """Return the other findings of a log, with its name."""
    primary = member.diagnosis.primary
    found = []
    for finding in member.diagnosis.findings:
        if finding == primary and member is first and member.has_cause:
            continue
        if finding.rule in _OF_ONE and (first is not None or not member.has_to_serve):
            continue
        if member is not first and finding.severity == "info":
            continue  # notes on a log that only reports the fault of another one
        echo = (first is not None and finding.severity == "error") or finding == primary
        found.append(_named(member, as_consequence(finding) if echo else finding))
    return found


def _verdict(members: list[Member], first: Member | None) -> Verdict:
    if first is not None:
        return first.diagnosis.verdict if first.has_cause else "fault, cause unknown"
    others = [one for one in members if one.has_to_serve and not one.diagnosis.healthy]
    if others:
        return others[0].diagnosis.verdict
    return "healthy" if any(one.diagnosis.healthy for one in members) else "cut off"
