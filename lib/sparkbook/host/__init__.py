"""The machine: what it is, what memory it has, and whether it is ready to serve.

`look` reads a machine and changes nothing; `check` judges what was read. What was read is a value
that can be kept and judged elsewhere.

    >>> from sparkbook import host
    >>> host.check(host.recorded("healthy")).verdict
    'ready'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sparkbook.host.meminfo import Memory, StartCheck, parse_meminfo, start_check

if TYPE_CHECKING:
    from sparkbook.host.checks import Report, Result, check, check_nodes, judge
    from sparkbook.host.family import HOST
    from sparkbook.host.machine import Machine, Wanted, read_machine, recorded
    from sparkbook.host.probes import look, wanted
    from sparkbook.host.reported import EXAMPLES, REPORTED, MeminfoExample, ReportedHost

# Imported when first asked for: the memory's arithmetic is used by commands that have to start at
# once.
_LATER = {
    "checks": ("Report", "Result", "check", "check_nodes", "judge"),
    "machine": ("Machine", "Wanted", "read_machine", "recorded"),
    "probes": ("look", "wanted"),
    "reported": ("EXAMPLES", "REPORTED", "MeminfoExample", "ReportedHost"),
    "rules": ("HOST",),
}

__all__ = [
    "EXAMPLES",
    "HOST",
    "REPORTED",
    "Machine",
    "MeminfoExample",
    "Memory",
    "Report",
    "ReportedHost",
    "Result",
    "StartCheck",
    "Wanted",
    "check",
    "check_nodes",
    "judge",
    "look",
    "parse_meminfo",
    "read_machine",
    "recorded",
    "start_check",
    "wanted",
]


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(importlib.import_module(f"sparkbook.host.{module}"), name)
    raise AttributeError(f"module 'sparkbook.host' has no attribute '{name}'")
