"""Measurement that can be trusted: a client that does not colour the clock, prompts by class, and a
gate that rejects.

>>> from sparkbook import bench
>>> plan = bench.BenchPlan(classes=["code"], concurrency=[1, 4])
>>> report = bench.measure(endpoint, plan)   # doctest: +SKIP
>>> report.verdict   # doctest: +SKIP
'valid'
"""

from sparkbook.bench.gate import BENCH, Seen, judge
from sparkbook.bench.load import BenchPlan, measure
from sparkbook.bench.results import Cell, Figures, Report, Request, Summary, figures, json_schema

__all__ = [
    "BENCH",
    "BenchPlan",
    "Cell",
    "Figures",
    "Report",
    "Request",
    "Seen",
    "Summary",
    "figures",
    "json_schema",
    "judge",
    "measure",
]
