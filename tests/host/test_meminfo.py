"""Reading /proc/meminfo, and vLLM's start-up check worked out beforehand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sparkbook.errors import SparkbookError
from sparkbook.host import EXAMPLES, REPORTED, Memory, parse_meminfo, start_check
from sparkbook.units import GIB, KIB

MEMINFO = """\
MemTotal:       24684084 kB
MemFree:        21059300 kB
MemAvailable:   22459708 kB
Buffers:           28084 kB
Cached:          1297040 kB
SwapCached:            0 kB
Active(file):     654380 kB
SwapTotal:       2097148 kB
SwapFree:        2097100 kB
Shmem:              8876 kB
HugePages_Total:       3
"""


def test_every_field_is_in_bytes():
    memory = parse_meminfo(MEMINFO)
    assert memory == Memory(
        total=24684084 * KIB,
        free=21059300 * KIB,
        available=22459708 * KIB,
        page_cache=(1297040 + 28084 - 8876) * KIB,
        swap_total=2097148 * KIB,
        swap_free=2097100 * KIB,
    )
    assert memory.reclaimable == (22459708 - 21059300) * KIB
    assert memory.used == (24684084 - 22459708) * KIB


def test_what_the_text_does_not_say_is_unknown_and_not_zero():
    memory = parse_meminfo("MemTotal: 10 kB\nMemFree: 5 kB\nMemAvailable: 6 kB\n")
    assert (memory.page_cache, memory.swap_total, memory.swap_free) == (None, None, None)


def test_a_swapless_host_has_no_swap():
    assert parse_meminfo(MEMINFO.replace("2097148", "0").replace("2097100", "0")).swap_total == 0


@pytest.mark.parametrize("missing", ["MemTotal", "MemFree", "MemAvailable"])
def test_a_text_without_a_needed_line_is_refused_and_the_line_is_named(missing):
    text = "\n".join(line for line in MEMINFO.splitlines() if not line.startswith(missing))
    with pytest.raises(SparkbookError, match=missing):
        parse_meminfo(text)


@given(st.text())
def test_any_other_text_is_an_error_for_people(text):
    if "Mem" not in text:
        with pytest.raises(SparkbookError):
            parse_meminfo(text)


def test_the_figures_of_a_reported_refusal():
    # vLLM's own message in https://github.com/rwlove/home-ops/pull/13221: (38.74/121.63 GiB) …
    # (0.35, 42.57 GiB).
    check = start_check(
        Memory(total=round(121.63 * GIB), free=0, available=round(38.74 * GIB)), 0.35
    )
    assert round(check.requested / GIB, 2) == 42.57
    assert not check.passes
    assert round(check.missing / GIB, 2) == 3.83


def test_the_default_asks_for_more_than_a_headless_spark_has():
    memory = parse_meminfo(EXAMPLES["headless"].text)
    assert not start_check(memory).passes
    assert start_check(memory).largest_utilization == 0.83
    assert start_check(memory, 0.83).passes
    assert not start_check(memory, 0.84).passes


def test_a_full_page_cache_does_not_change_the_verdict():
    full, empty = (parse_meminfo(EXAMPLES[name].text) for name in ("after-download", "headless"))
    assert full.free < empty.free / 10
    assert start_check(full, 0.83).passes == start_check(empty, 0.83).passes


@given(total=st.integers(1, 2**42), share=st.floats(0, 1))
def test_the_largest_fraction_passes_and_a_hundredth_more_does_not(total, share):
    memory = Memory(total=total, free=0, available=int(total * share))
    largest = start_check(memory).largest_utilization
    if total > 10_000:  # a byte's rounding is no longer a hundredth
        assert largest == 0 or start_check(memory, largest).missing <= 1
        assert largest >= 0.99 or not start_check(memory, largest + 0.0101).passes


@pytest.mark.parametrize("utilization", [0, -0.1, 1.01, 85, float("nan")])
def test_a_fraction_outside_its_range_is_refused(utilization):
    with pytest.raises(SparkbookError, match="fraction"):
        start_check(Memory(1, 1, 1), utilization)


def test_reported_hosts_are_consistent():
    assert {round(host.total_gib, 2) for host in REPORTED} == {119.56, 121.63, 121.69}
    for host in REPORTED:
        assert host.memory.available <= host.memory.total
        assert host.source.startswith("https://")


def test_examples_say_what_they_are():
    for example in EXAMPLES.values():
        memory = parse_meminfo(example.text)
        assert memory.free <= memory.available <= memory.total
        assert example.source or "illustration" in example.reported
