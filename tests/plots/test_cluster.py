"""Pictures of several Sparks: each carries the numbers that it shows in its alternative text."""

from dataclasses import replace

import pytest
from sparkbook.checkpoint.values import Range
from sparkbook.cluster import advice, sighting
from sparkbook.cluster.fixtures import NAMES, recorded
from sparkbook.cluster.rules import FAB
from sparkbook.errors import SparkbookError
from sparkbook.plan import request
from sparkbook.plots import cluster as plots


@pytest.fixture(scope="module")
def found():
    return advice.advise(request.read("gpt-oss-120b"))


def drawn(chart):
    data, metadata = chart._repr_svg_()
    assert data.startswith("<svg ") and metadata["alt"] == chart.alt
    return chart.alt


def test_the_topology_names_each_nodes_own_ports():
    seen = sighting.example(b={"interface": "enP2p1s0f1np1", "address": "192.168.100.2"})
    alt = drawn(plots.topology(seen))
    assert "spark-1 (head: rank 0, answers) with address 192.168.100.1 on enp1s0f0np0" in alt
    assert "spark-2 (worker: rank 1, headless) with address 192.168.100.2 on enP2p1s0f1np1" in alt


def test_memory_of_each_way(found):
    alt = drawn(plots.memory(found))
    assert "one node: weights 65.9" in alt and "tensor parallel: weights 3" in alt


def test_the_break_even_is_that_of_the_advice(found):
    alt = drawn(plots.break_even(found, {"here": 30}))
    assert f"1 requests {found.break_even_latency_s(1) * 1e6:.0f} µs" in alt
    slow = replace(found, link=replace(found.link, latency_s=Range.of(1.0)))
    assert (
        drawn(plots.break_even(slow)) == alt
    )  # the map goes over all latencies, whatever the link


@pytest.mark.parametrize("us", [3, 30, 637, 1900, 2872])
def test_the_name_of_a_latency_stays_on_the_map(found, us):
    """One that lies beyond the axis is named at its edge, with its value."""
    chart = plots.break_even(found, {"here": us})
    (axis,) = chart.figure.axes
    (text,) = [text for text in axis.texts if "here" in text.get_text()]
    chart.figure.canvas.draw()
    box, frame = text.get_window_extent(), axis.get_window_extent()
    assert frame.x0 <= box.x0 and box.x1 <= frame.x1
    assert ("µs" in text.get_text()) is (us in (3, 2872))
    drawn(chart)


def test_gains_beside_the_published_ones():
    alt = drawn(plots.gains(advice.compared()))
    assert (
        "gpt-oss-120b, tensor parallel: published 1.20 at 1 request to 1.50 at 64, estimated 1.22"
        in alt
    )


def test_recordings_are_judged_as_they_were_made():
    rules = {name: {finding.rule for finding in FAB.judge(recorded(name))} for name in NAMES}
    assert rules == {"two-namespaces": set(), "two-namespaces-slow": {"FAB303"}}
    assert all(recorded(name).pairs[0].backend == "gloo" for name in NAMES)
    with pytest.raises(SparkbookError, match="there is no recording 'x'"):
        recorded("x")
