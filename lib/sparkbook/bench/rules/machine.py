"""1xx: the state of the machine during a measurement."""

from __future__ import annotations

import statistics

from sparkbook.bench.examples import (
    seen,
    trace,
)
from sparkbook.bench.family import BENCH, OWN
from sparkbook.bench.seen import Seen
from sparkbook.bench.telemetry import known
from sparkbook.host.spark import STUCK_MHZ
from sparkbook.rules import Hit

_STUCK_SHARE = 0.5
_HARD = 0x8 | 0x20 | 0x40 | 0x80
_DRIFT = 0.05
_LOW_GIB = 2.0
_LOAD = 0.25


@BENCH.rule(
    "BENCH101",
    "stuck-clock",
    "error",
    source=OWN,
    fails=lambda: seen(trace_=trace({"clock_mhz": 799.0, "power_w": 20.0})),
    passes=lambda: seen(trace_=trace({"clock_mhz": 1600.0})),
)
def clock_stuck(seen: Seen) -> Hit | None:
    """The SM clock stays low under load without any throttle reason. A DGX Spark whose power
    negotiation failed runs at some 800 MHz until it is taken off the plug.

    **Threshold:** half of the highest clock that the GPU names, at least 900 MHz. Stuck Sparks
    were reported at 513, 721 and 800 MHz (the host check has the sources); throttling, which says
    why, is BENCH102.
    """
    if not seen.trace:
        return None
    clocks, tops = known(seen.trace.during, "clock_mhz"), known(seen.trace.samples, "clock_max_mhz")
    if not clocks:
        return None
    clock, limit = statistics.median(clocks), max(STUCK_MHZ, _STUCK_SHARE * max(tops, default=0.0))
    if clock >= limit or any((s.reasons or 0) & _HARD for s in seen.trace.during):
        return None
    power = known(seen.trace.during, "power_w")
    watts = f", {statistics.fmean(power):.0f} W" if power else ""
    return Hit(
        f"The SM clock was {clock:g} MHz under load.",
        f"median of {len(clocks)} samples{watts}; below {limit:g} MHz",
    )


@BENCH.rule(
    "BENCH102",
    "throttled",
    "error",
    source=OWN,
    fails=lambda: seen(trace_=trace({"reasons": lambda t: 0x40 if t > 6 else 0})),
    passes=lambda: seen(trace_=trace({"reasons": 0x2})),
)
def throttled(seen: Seen) -> Hit | None:
    """Heat, the power brake or a hardware slowdown held the clock down: the number is that of a hot
    machine.
    """
    during = seen.trace.during if seen.trace else ()
    hit = [s for s in during if (s.reasons or 0) & _HARD]
    if not hit:
        return None
    names = [n for n in seen.trace.summary().throttle if n != "software power cap"]  # type: ignore[union-attr]
    return Hit(
        f"The GPU was throttled: {', '.join(names)}.", f"{len(hit)} of {len(during)} samples"
    )


@BENCH.rule(
    "BENCH103",
    "power-limit",
    "warning",
    source=OWN,
    fails=lambda: seen(trace_=trace({"reasons": lambda t: 0x4 * (t % 2)})),
    passes=lambda: seen(trace_=trace({"reasons": lambda t: 0x4 * (t == 3)})),
)
def power_cap(seen: Seen) -> Hit | None:
    """The driver held the clock down to keep the power limit. Right for a machine that always runs
    so, not for a comparison with another limit.
    """
    during = seen.trace.during if seen.trace else ()
    hit = [s for s in during if (s.reasons or 0) & 0x4]
    if len(hit) * 4 < len(during) or not hit:
        return None
    return Hit(
        "The GPU ran into its power limit.",
        f"software power cap in {len(hit)} of {len(during)} samples",
    )


@BENCH.rule(
    "BENCH104",
    "clock-drift",
    "warning",
    source=OWN,
    fails=lambda: seen(trace_=trace({"clock_mhz": lambda t: 2400.0 if t < 6 else 2200.0})),
    passes=lambda: seen(trace_=trace({"clock_mhz": lambda t: 2400.0 if t < 6 else 2350.0})),
)
def clock_drift(seen: Seen) -> Hit | None:
    """The clock of the second half differs by more than 5 % from that of the first: the number
    belongs to neither.

    **Threshold:** 5 %, the same as the spread that BENCH304 allows: decode is bound by memory, so
    its speed moves less than the clock.
    """
    clocks = known(seen.trace.during, "clock_mhz") if seen.trace else []
    if len(clocks) < 6:
        return None
    half = len(clocks) // 2
    first, second = statistics.median(clocks[:half]), statistics.median(clocks[half:])
    if abs(second - first) <= _DRIFT * first:
        return None
    return Hit(
        f"The SM clock went from {first:g} to {second:g} MHz.",
        f"medians of the two halves of {len(clocks)} samples",
    )


@BENCH.rule(
    "BENCH105",
    "hot",
    "warning",
    source=OWN,
    fails=lambda: seen(trace_=trace({"temperature_c": 88.0})),
    passes=lambda: seen(trace_=trace({"temperature_c": 80.0})),
)
def hot(seen: Seen) -> Hit | None:
    """So near to the limit the next run may be throttled and differ.

    **Threshold:** 85 °C is a choice on the careful side: BENCH102, an error, reports
    that the GPU did slow down; this is a warning about the next run.
    """
    heat = known(seen.trace.during, "temperature_c") if seen.trace else []
    if not heat or max(heat) < 85:
        return None
    return Hit(
        f"The GPU was {max(heat):g} °C hot.",
        "85 °C or more: the next run may be throttled, and differ from this one",
    )


@BENCH.rule(
    "BENCH111",
    "other-load",
    "warning",
    source=OWN,
    fails=lambda: seen(trace_=trace(before={"cpu_busy": 0.6})),
    passes=lambda: seen(trace_=trace(before={"cpu_busy": 0.1})),
)
def busy(seen: Seen) -> Hit | None:
    """CPU or GPU were busy before the load or after it, so something else was at work during it as
    well.

    **Threshold:** a quarter of the machine: an idle desktop and this command's own looks need a few
    percent.
    """
    if not seen.trace:
        return None
    for name, what in (("cpu_busy", "CPU"), ("gpu_busy", "GPU")):
        for when, samples in (("before", seen.trace.before), ("after", seen.trace.after)):
            # A share counts since the sample before it: the first one still holds some of the
            # warm-up or of the load.
            values = known(samples[1:], name)
            if values and statistics.fmean(values) > _LOAD:
                share = statistics.fmean(values)
                return Hit(
                    f"Something else kept the {what} {share:.0%} busy {when} the load.",
                    f"{len(values)} samples, over {_LOAD:.0%}",
                )
    return None


@BENCH.rule(
    "BENCH112",
    "little-memory",
    "warning",
    source=OWN,
    fails=lambda: seen(trace_=trace({"available_gib": 0.9})),
    passes=lambda: seen(trace_=trace({"available_gib": 3.0})),
)
def memory(seen: Seen) -> Hit | None:
    """On unified memory, engine and system share what is left; below 2 GiB pages begin to move.

    **Threshold:** 2 GiB is a choice on the careful side; BENCH113, an
    error, reports that pages really moved.
    """
    left = known(seen.trace.samples, "available_gib") if seen.trace else []
    if not left or min(left) >= _LOW_GIB:
        return None
    return Hit(
        f"Only {min(left):.1f} GiB of memory were available.",
        f"MemAvailable; below {_LOW_GIB:g} GiB a Spark begins to swap",
    )


@BENCH.rule(
    "BENCH113",
    "swapping",
    "error",
    source=OWN,
    fails=lambda: seen(trace_=trace(all_={"swapped_mib": lambda t: 100.0 + 64 * max(t - 4, 0)})),
    passes=lambda: seen(trace_=trace(all_={"swapped_mib": 5000.0})),
)
def swap(seen: Seen) -> Hit | None:
    """Pages went to or came from swap during the load: disk time is in the number."""
    pages = (
        known((*seen.trace.before[-1:], *seen.trace.during, *seen.trace.after[:1]), "swapped_mib")
        if seen.trace
        else []
    )
    if len(pages) < 2 or pages[-1] - pages[0] < 1:
        return None
    return Hit(
        f"The machine swapped {pages[-1] - pages[0]:.0f} MiB during the load.",
        "pswpin + pswpout of /proc/vmstat",
    )
