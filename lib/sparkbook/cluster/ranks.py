"""Which rank fell first, when several did: what every rank printed, judged together.

Each rank's log goes through the log doctor. Words that only pass on that another process failed are
an echo; a rank with a cause of its own comes before those, by the time of its own first line; a
rank that vanished without a word, or a node that can't be reached, comes before ranks that only
lost a connection.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sparkbook.logs.doctor import UNKNOWN, Diagnosis, diagnose
from sparkbook.logs.signatures import Signature, signatures
from sparkbook.logs.together import NO_ANSWER

_TIME = re.compile(rb"\b(\d\d-\d\d \d\d:\d\d:\d\d)\b")


@dataclass(frozen=True)
class RankState:
    """One rank at the moment of a fall.

    Attributes:
        number, host: which rank, and where.
        log: what it printed.
        running: whether it was still there; `exit_status` is set where it was not.
        unreachable: why its node does not answer; None where it does.
        ended: place in the order in which ranks were seen to end; None for one that had not.
    """

    number: int
    host: str
    log: bytes = field(repr=False)
    running: bool = True
    exit_status: int | None = None
    unreachable: str | None = None
    ended: int | None = None

    def tail(self, lines: int = 8) -> list[str]:
        """Return the last lines that say something."""
        text = self.log[-64_000:].decode("utf-8", "replace").replace("\r", "\n")
        return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]


@dataclass(frozen=True)
class Judged:
    """A rank with the log doctor's judgement and the time of its first fault, `MM-DD HH:MM:SS` by
    its own clock.
    """

    state: RankState
    diagnosis: Diagnosis
    time: str | None

    @property
    def signature(self) -> Signature | None:
        """The signature of its primary fault."""
        primary = self.diagnosis.primary
        return signatures().get(primary.rule) if primary else None

    @property
    def own(self) -> bool:
        """Whether it has a cause of its own."""
        echo = self.signature.echo if self.signature else None
        return self.diagnosis.primary is not None and echo is None and not self.lost

    @property
    def lost(self) -> bool:
        """Whether it only reports that another one is gone."""
        lost = self.signature.lost if self.signature else None
        if lost != "no-answer":
            return lost == "always"
        # An address of loopback is what the other one was told to use: it has no port of the
        # cluster's network.
        primary = self.diagnosis.primary
        evidence = (primary.evidence if primary else None) or ""
        return bool(NO_ANSWER.search(evidence)) and "[127.0.0.1]" not in evidence

    @property
    def weight(self) -> tuple:
        """Order of suspicion: the smallest fell first."""
        primary = self.diagnosis.primary
        if self.state.unreachable:
            rank = 1
        elif self.own:
            rank = 0
        elif (self.signature and self.signature.echo == "vanished") or (
            not self.state.running and self.state.exit_status == 137
        ):
            rank = 1
        elif self.lost:
            rank = 3
        elif primary:
            rank = 4
        else:
            rank = 2 if not self.state.running else 5
        known = 0 if primary and primary.rule != UNKNOWN else 1
        ended = self.state.ended if self.state.ended is not None else 99
        return (rank, self.time or "99", known, ended, -self.state.number)


def first_fallen(states: Sequence[RankState]) -> Judged | None:
    """Return the rank that fell first; None where no rank has fallen."""
    judged = [judge(state) for state in states]
    fallen = [one for one in judged if one.weight[0] < 5]
    return min(fallen, key=lambda one: one.weight, default=None)


def judge(state: RankState) -> Judged:
    """Return one rank by itself."""
    diagnosis = diagnose(state.log)
    primary, time = diagnosis.primary, None
    said = (
        re.sub(r"^line \d+: (?:\([^)]*\) )?", "", primary.evidence or "")[:60].encode()
        if primary
        else b""
    )
    if said and (at := state.log.find(said)) >= 0:
        times = _TIME.findall(state.log[: at + len(said)])
        time = times[-1].decode() if times else None
    return Judged(state, diagnosis, time)
