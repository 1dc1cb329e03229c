"""The family of the gate's rules."""

from __future__ import annotations

from sparkbook.rules import Family

OWN = "This project's own choice."
"""The source of a threshold that no document gives."""

BENCH = Family(
    "BENCH",
    "measurements that are not numbers",
    "What `sparkbook bench` finds in a measurement. Each example is one sound measurement (16"
    " requests, 4 at a time; a look at the machine each second: two before the load, eight during"
    " it, two after it) with one change, and below it what the gate found when this page was built."
    " The thresholds are the project's own choice; each has its reason.",
    samples="sparkbook.bench.samples",
)
