"""Memory of real Sparks, from public reports: to judge before one has a Spark, and to compare one's
own with (`reported.yaml`). Nothing of it was measured by this project.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from sparkbook.host.meminfo import Memory
from sparkbook.units import GIB
from sparkbook.util import own_yaml


@dataclass(frozen=True)
class ReportedHost:
    """One host in a public report, at the moment of the report.

    Attributes:
        state: what the host was doing.
        total_gib: memory that vLLM or the kernel showed as the total, in GiB.
        available_gib: memory that was available then, in GiB; of a range, its lower end.
        source: address of the report.
        date: of the report.
    """

    state: str
    total_gib: float
    available_gib: float
    source: str
    date: datetime.date

    @property
    def memory(self) -> Memory:
        """As a `Memory`, to the precision of the report; free memory is not reported and taken as
        what is available.
        """
        available = round(self.available_gib * GIB)
        return Memory(total=round(self.total_gib * GIB), free=available, available=available)


@dataclass(frozen=True)
class MeminfoExample:
    """A text of `/proc/meminfo` to practice on.

    Attributes:
        text: as the file would read.
        what: the situation.
        reported: which numbers the report gives. All others are made up, consistent with those.
        source: address of the report; None for a text without a report.
    """

    text: str
    what: str
    reported: str
    source: str | None = None


_FILE = own_yaml.read(Path(__file__).with_name("reported.yaml"))

REPORTED = tuple(ReportedHost(**entry) for entry in _FILE["hosts"])
"""Hosts with a GB10 in public reports."""

EXAMPLES = {name: MeminfoExample(**entry) for name, entry in _FILE["meminfo"].items()}
"""Texts of /proc/meminfo by name."""
