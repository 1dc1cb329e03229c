"""What the machine and the engine did before, during and after a measurement: samples from a source
that can be live or recorded.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

from sparkbook.bench.results import Machine
from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import Endpoint
from sparkbook.util import limits

REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Bits of nvidia-smi's `clocks_event_reasons.active` (NVML, nvmlClocksEventReasons)."""


@dataclass(frozen=True)
class Sample:
    """One look. None is unknown.

    Attributes:
        t_s: the monotonic clock.
        clock_mhz, clock_max_mhz: SM clock, and the highest that the GPU knows.
        reasons: bits of `REASONS`.
        gpu_busy, cpu_busy: share of time in use, 0 to 1.
        available_gib: MemAvailable. swapped_mib: read from and written to swap since the start of
            the machine.
        running, waiting: the engine's requests.
    """

    t_s: float
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    gpu_busy: float | None = None
    reasons: int | None = None
    available_gib: float | None = None
    swapped_mib: float | None = None
    cpu_busy: float | None = None
    running: float | None = None
    waiting: float | None = None


@dataclass(frozen=True)
class Trace:
    """Samples around a measurement that lasted from `begin_s` to `end_s` of the monotonic clock."""

    samples: tuple[Sample, ...] = ()
    begin_s: float = 0.0
    end_s: float = 0.0

    @property
    def before(self) -> tuple[Sample, ...]:
        """Samples taken before the first request."""
        return tuple(s for s in self.samples if s.t_s < self.begin_s)

    @property
    def during(self) -> tuple[Sample, ...]:
        """Samples taken while requests ran."""
        return tuple(s for s in self.samples if self.begin_s <= s.t_s <= self.end_s)

    @property
    def after(self) -> tuple[Sample, ...]:
        """Samples taken after the last reply."""
        return tuple(s for s in self.samples if s.t_s > self.end_s)

    def since(self, quiet_s: float) -> Trace:
        """Return the trace without samples before this moment: the warm-up is not other load."""
        return replace(self, samples=tuple(s for s in self.samples if s.t_s >= quiet_s))

    def summary(self) -> Machine:
        """Return the trace in a few numbers, as they are stored with the result."""
        during = self.during
        clocks, power, heat = (
            known(during, "clock_mhz"),
            known(during, "power_w"),
            known(during, "temperature_c"),
        )
        swapped = known(self.samples, "swapped_mib")
        waiting = known(during, "waiting")
        return Machine(
            samples=len(during),
            clock_mhz=statistics.median(clocks) if clocks else None,
            clock_low_mhz=min(clocks, default=None),
            clock_max_mhz=max(known(self.samples, "clock_max_mhz"), default=None),
            power_w=round(statistics.fmean(power), 2) if power else None,
            temperature_c=max(heat, default=None),
            throttle=[
                name
                for bit, name in REASONS.items()
                if bit > 2 and any((s.reasons or 0) & bit for s in during)
            ],
            available_gib=min(known(self.samples, "available_gib"), default=None),
            swapped_mib=round(swapped[-1] - swapped[0], 3) if swapped else None,
            load_before=(
                round(statistics.fmean(busy), 3)
                if (busy := known(self.before[1:], "cpu_busy"))
                else None
            ),
            waiting=max(waiting, default=None),
        )


def known(samples: Sequence[Sample], name: str) -> list[float]:
    """Return the values of one field where they are known."""
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


class Source(Protocol):
    """Where samples come from."""

    def __enter__(self) -> Source: ...

    def __exit__(self, *_: object) -> None: ...

    def trace(self, begin_s: float, end_s: float) -> Trace:
        """Return what was seen around a measurement."""
        ...


class Recorded:
    """Samples from a file, for tests: JSON lines as `_sampler.py` prints them."""

    def __init__(self, samples: Sequence[Sample]):
        self.samples = tuple(samples)

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def trace(self, begin_s: float, end_s: float) -> Trace:
        return Trace(self.samples, begin_s, end_s)

    @classmethod
    def read(cls, file: str | Path) -> Recorded:
        """Read JSON lines.

        Raises:
            SparkbookError: a line is not a sample.
        """
        return cls(parse(limits.read_text(file, "the telemetry")))


class Live:
    """This machine and a running engine, looked at by a separate process.

    Of an engine on another machine only its own `/metrics` is examined: this machine's clocks say
    nothing about it.
    """

    def __init__(self, endpoint: Endpoint, interval_s: float = 1.0):
        """`interval_s`: seconds between two looks."""
        self.interval_s = interval_s
        self._endpoint = endpoint
        self._stack = contextlib.ExitStack()
        self._file: Path | None = None

    def __enter__(self) -> Live:
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkbook-bench-"))
        self._file = Path(folder) / "samples"
        out = self._stack.enter_context(self._file.open("wb"))
        command = [
            sys.executable,
            "-I",
            str(Path(__file__).with_name("_sampler.py")),
            str(self.interval_s),
            f"{self._endpoint.url}/metrics",
        ]
        if urlsplit(self._endpoint.url).hostname not in ("127.0.0.1", "localhost", "::1"):
            command.append("--remote")
        environment = {**os.environ, "SPARKBOOK_SAMPLER_KEY": self._endpoint.api_key}
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        self._stack.callback(_end, process)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def trace(self, begin_s: float, end_s: float) -> Trace:
        samples = parse(self._file.read_text(encoding="utf-8")) if self._file else []
        around = 3 * self.interval_s + 1
        return Trace(
            tuple(s for s in samples if begin_s - around <= s.t_s <= end_s + around), begin_s, end_s
        )


def parse(text: str) -> list[Sample]:
    """Parse samples from JSON lines; an incomplete last line is left out.

    Raises:
        SparkbookError: another line is not a sample.
    """
    samples = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip() or number == len(lines):
            continue
        try:
            samples.append(Sample(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise SparkbookError(
                f"line {number} of the telemetry is not a sample: {error}"
            ) from None
    return samples


def _end(process: subprocess.Popen[bytes]) -> None:
    import signal

    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)  # the sampler and its nvidia-smi
    process.wait()
