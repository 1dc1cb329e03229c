"""The host check: every check of `sparkbook.host.rules` on one machine or several. Pure: a machine
in, results out.

A check reports what it saw, and which of its rules are broken; or that it cannot judge, and why.
`check_nodes` adds what has to be the same on all machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkbook.findings import Finding, Findings
from sparkbook.host.family import Unknown
from sparkbook.host.machine import Machine
from sparkbook.host.rules import CHECKS
from sparkbook.host.rules.nodes import COMPARISONS, Comparison
from sparkbook.units import GIB

Verdict = Literal["ready", "slow", "blocked", "not judged"]


@dataclass(frozen=True)
class Result:
    """What one check found.

    Attributes:
        name: of the check.
        saw: what it looked at, in a few words; of a check that could not judge, why.
        judged: whether it could.
        seconds: how long its probe took; checks of the same probe show the same time. None: the
            machine was read from a file without it.
        node: whose, where there are several.
    """

    name: str
    saw: str
    findings: tuple[Finding, ...] = ()
    judged: bool = True
    seconds: float | None = None
    node: str | None = None

    @property
    def verdict(self) -> Verdict:
        """`blocked`: serving will fail; `slow`: it works worse than it could, or by luck; `ready`;
        or `not judged`.
        """
        if not self.judged:
            return "not judged"
        return verdict(self.findings)

    @property
    def todo(self) -> str | None:
        """What to do, in one line."""
        return (
            "; ".join(
                finding.fix
                for finding in self.findings
                if finding.fix and finding.severity != "info"
            )
            or None
        )


@dataclass(frozen=True)
class Report:
    """All checks of one machine or of several."""

    machines: tuple[Machine, ...]
    results: tuple[Result, ...]

    @property
    def findings(self) -> Findings:
        """Of all checks, errors first."""
        return Findings(finding for result in self.results for finding in result.findings)

    @property
    def verdict(self) -> Verdict:
        """Of the worst check."""
        return verdict(self.findings)

    @property
    def unjudged(self) -> int:
        """How many checks could not judge."""
        return sum(not result.judged for result in self.results)

    @property
    def missing(self) -> list[str]:
        """What the checks that could not judge lacked, such as `no Docker`."""
        machines = self.machines
        lacks = {
            "no GPU": any(not machine.gpu.names for machine in machines),
            "no Docker": any(machine.docker.version is None for machine in machines),
            "no recipe named": any(machine.wanted.recipe is None for machine in machines),
        }
        return [name for name, lacking in lacks.items() if lacking and self.unjudged]

    @property
    def headline(self) -> str:
        """The verdict in one line, with how much of it could not be judged."""
        if not self.unjudged:
            return self.verdict
        why = f" ({', '.join(self.missing)})" if self.missing else ""
        return (
            f"{self.verdict}, as far as could be judged: {self.unjudged} of {len(self.results)}"
            f" checks not judged{why}"
        )

    @property
    def exit_code(self) -> int:
        """0 ready or slow, 1 blocked; 2 is for input that cannot be used, as with every verb."""
        return 1 if self.verdict == "blocked" else 0

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON answer. `facts` is what `diagnose --facts` reads; `probes` is what
        `sparkbook check --probes` judges again.
        """
        checks = [
            {
                "name": r.name,
                "node": r.node,
                "verdict": r.verdict,
                "saw": r.saw,
                "todo": r.todo,
                "rules": [finding.rule for finding in r.findings],
                "seconds": r.seconds,
            }
            for r in self.results
        ]
        first = self.machines[0]
        probes = [machine.model_dump(mode="json", exclude_none=True) for machine in self.machines]
        return {
            **self.findings.to_dict(
                verdict=self.verdict,
                headline=self.headline,
                checks=len(self.results),
                not_judged=self.unjudged,
                missing=self.missing,
            ),
            "checks": checks,
            "facts": facts(first),
            "probes": probes[0] if len(probes) == 1 else probes,
        }


def verdict(findings: Iterable[Finding]) -> Verdict:
    """Return the verdict: an error blocks, a warning slows, notes leave the machine ready."""
    worst = {finding.severity for finding in findings}
    return "blocked" if "error" in worst else "slow" if "warning" in worst else "ready"


def facts(machine: Machine) -> dict[str, Any]:
    """Return what a log does not say about its host, for `sparkbook diagnose --facts`. Sizes are
    GiB.
    """
    found: dict[str, Any] = {}
    if machine.memory:
        memory = machine.memory.memory
        found |= {
            "total_gib": round(memory.total / GIB, 2),
            "available_gib": round(memory.available / GIB, 2),
            "free_gib": round(memory.free / GIB, 2),
        }
    if machine.wanted.utilization is not None:
        found["gpu_memory_utilization"] = machine.wanted.utilization
    found["engines"] = [
        {
            "pid": p.pid,
            "name": p.name,
            "holds": f"{p.gpu_mib:.0f} MiB" if p.gpu_mib is not None else "not known",
        }
        for p in machine.processes
        if p.name.startswith("VLLM::")
    ]
    return found


def check(machine: Machine) -> Report:
    """Return every check on one machine."""
    return Report((machine,), tuple(_results(machine, None)))


def check_nodes(machines: Sequence[Machine]) -> Report:
    """Make every check on every node, then compare the nodes."""
    own = [result for machine in machines for result in _results(machine, machine.name)]
    between = [_compared(comparison, machines) for comparison in COMPARISONS]
    return Report(tuple(machines), (*own, *between))


def judge(machine: Machine) -> Findings:
    """Return the findings alone."""
    return check(machine).findings


def _results(machine: Machine, node: str | None) -> Iterator[Result]:
    for one in CHECKS:
        seconds = machine.seconds.get(one.probe)
        try:
            if one.probe in machine.unread:
                raise Unknown(machine.unread[one.probe])
            seen = one.look(machine)
        except Unknown as reason:
            yield Result(one.name, str(reason), judged=False, seconds=seconds, node=node)
        else:
            findings = [finding for rule in one.rules for finding in rule.findings(machine)]
            yield Result(one.name, seen, tuple(findings), seconds=seconds, node=node)


def _compared(comparison: Comparison, machines: Sequence[Machine]) -> Result:
    values = {machine.name: comparison.value(machine) for machine in machines}
    unknown = [node for node, value in values.items() if value is None]
    if unknown:
        reason = f"not known of {', '.join(unknown)}"
        return Result(comparison.name, reason, judged=False, node="all")
    if len(set(values.values())) == 1:
        return Result(comparison.name, str(next(iter(values.values()))), node="all")
    listed = ", ".join(f"{node}: {value}" for node, value in values.items())
    findings = tuple(comparison.rule.findings(comparison.what, listed))
    return Result(comparison.name, listed, findings, node="all")
