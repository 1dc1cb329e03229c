"""The machine: what it is and what memory it has.

    >>> from sparkbook import host
    >>> host.parse_meminfo("MemTotal: 8388608 kB\\nMemFree: 1048576 kB\\nMemAvailable: 4194304 kB").available
    4294967296
"""

from sparkbook.host.examples import EXAMPLES, REPORTED, MeminfoExample, ReportedHost
from sparkbook.host.machine import Machine, judge, look
from sparkbook.host.memory import Memory, StartCheck, parse_meminfo, start_check

__all__ = [
    "EXAMPLES", "REPORTED", "Machine", "MeminfoExample", "Memory", "ReportedHost", "StartCheck", "judge", "look", "parse_meminfo",
    "start_check",
]  # fmt: skip
