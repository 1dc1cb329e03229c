"""The watchdog: stops a server before it takes the host down, or when it has silently stopped
working.

On a Spark weights, KV cache and operating system share one memory, and a container's memory limit
does not count what CUDA takes. So the guard reads what the host has left. `judge` is pure: samples
in, a finding or None out. `Watchdog` takes the samples and acts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.host.meminfo import Memory, parse_meminfo
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.faults import DOCK, ServeFault
from sparkbook.serve.stack import KEPT_FREE
from sparkbook.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Sample:
    """One look at the host and the engine. What can't be read is None, which never counts as bad.

    Attributes:
        at_s: when, in seconds of the watchdog's clock.
        available: MemAvailable in bytes.
        generated: the engine's counter of generated tokens.
        running: requests that it works on.
        power_w: the GPU's power in W.
    """

    at_s: float
    available: int | None = None
    generated: float | None = None
    running: float | None = None
    power_w: float | None = None


@dataclass(frozen=True)
class Limits:
    """What the watchdog holds a server to.

    Attributes:
        floor: bytes of MemAvailable below which the host is in danger. It must lie below what is
            left once the server runs.
        stall_s: seconds without a token, while requests run and the GPU idles, after which the
            engine counts as stuck.
        idle_w: power in W below which the GPU does no work; a long prefill makes no token either,
            but draws far more. (A GB10 drew 16 to 27 W in a deadlock:
            https://github.com/eugr/spark-vllm-docker/issues/260; fit it to your own unit.)
    """

    floor: int
    stall_s: float = 180.0
    idle_w: float = 30.0

    @classmethod
    def of_host(cls, total: int, floor: int | None = None) -> Limits:
        """Return the limits for a host of so many bytes: a twentieth of its memory as the floor, 6
        GiB on a Spark, unless another is given.

        Reports of frozen Sparks saw 6 to 7 GiB just before
        (https://github.com/vllm-project/vllm/issues/46307, …/issues/56824).
        """
        return cls(total // KEPT_FREE if floor is None else floor)


def judge(samples: Sequence[Sample], limits: Limits) -> Finding | None:
    """Return what the samples, oldest first, say: None, or why the server has to be stopped.

    Memory: the last two samples that know it are below the floor (one alone may be a passing dip),
        or the last is below half of it. The
    loss after the weights are loaded was seen at more than 2 GiB a second, so there is no time to
    wait for a third.

    Progress: through all of `stall_s` requests ran, the counter of tokens stood still, and the
        power was known and low. An engine whose
    power is not known is never called stuck: tokens alone would accuse a long prefill.
    """
    known = [sample.available for sample in samples if sample.available is not None][-2:]
    if known and (known[-1] < limits.floor / 2 or (len(known) == 2 and max(known) < limits.floor)):
        left, floor = format_bytes(known[-1]), format_bytes(limits.floor)
        return DOCK["DOCK401"].finding(
            evidence="MemAvailable " + ", ".join(format_bytes(size) for size in known),
            available=left,
            floor=floor,
        )
    # Only samples that could see the engine count; a window is full when they span it.
    seen = [
        sample
        for sample in samples
        if sample.generated is not None
        and sample.running is not None
        and sample.power_w is not None
    ]
    if not seen or seen[-1].at_s - seen[0].at_s < limits.stall_s:
        return None
    # The sample just before the window's beginning belongs to it: it says what the counter was
    # then.
    begin = max(sample.at_s for sample in seen if sample.at_s <= seen[-1].at_s - limits.stall_s)
    window = [sample for sample in seen if sample.at_s >= begin]
    stuck = all(
        sample.running
        and sample.generated == window[0].generated
        and sample.power_w is not None
        and sample.power_w < limits.idle_w
        for sample in window
    )
    if not stuck:
        return None
    power = max(sample.power_w for sample in window if sample.power_w is not None)
    return DOCK["DOCK402"].finding(
        evidence=f"generation_tokens_total {window[0].generated:g} for"
        f" {format_seconds(window[-1].at_s - window[0].at_s)}",
        running=f"{window[-1].running:g}",
        seconds=format_seconds(window[-1].at_s - window[0].at_s),
        power=f"at most {power:.0f}",
    )


def admit(memory: Memory, limits: Limits) -> Finding | None:
    """Return why nothing should be started on a host that has this memory; None where it has
    enough.
    """
    if memory.available >= limits.floor:
        return None
    left, least = format_bytes(memory.available), format_bytes(limits.floor)
    return DOCK["DOCK403"].finding(
        evidence=f"MemAvailable {left} of {format_bytes(memory.total)}", available=left, floor=least
    )


class Watchdog:
    """Takes samples in a thread of its own and acts once, when they are bad.

    Attributes:
        finding: why it acted; None while it has not.
    """

    def __init__(
        self,
        act: Callable[[], None],
        read: Callable[[], Sample],
        limits: Limits,
        *,
        every_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Prepare the watchdog; it watches after `start`, or inside a `with` block.

        Args:
            act: stops the server, at once.
            read: takes a sample.
            limits: what it is held to.
            every_s: seconds between two samples.
            clock: replaced in tests.
        """
        self.finding: Finding | None = None
        self._act, self._read, self.limits, self._every_s, self._clock = (
            act,
            read,
            limits,
            every_s,
            clock,
        )
        self._samples: deque[Sample] = deque(maxlen=int(2 * limits.stall_s / every_s) + 2)
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self) -> Finding | None:
        """Take one sample, judge, and act if need be; the finding if this step acted."""
        if self.finding is None:
            self._samples.append(self._read())
            self.finding = judge(self._samples, self.limits)
            if self.finding:
                self._act()
                return self.finding
        return None

    def start(self) -> None:
        """Watch from now on."""
        self._thread = threading.Thread(target=self._run, name="sparkbook watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._over.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(timeout=30)

    def _run(self) -> None:
        while not self._over.is_set() and self.finding is None:
            # A look that fails must not end the watch: the next one may be the one that matters.
            with contextlib.suppress(SparkbookError, OSError):
                self.step()
            self._over.wait(self._every_s)

    def __enter__(self) -> Watchdog:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Eyes:
    """Reads samples of this host and an engine: memory at every look, the engine and the GPU's
    power every `slow_s` seconds.
    """

    def __init__(
        self,
        endpoint: Endpoint | None,
        *,
        meminfo: Path = Path("/proc/meminfo"),
        power: Callable[[], float | None] | None = None,
        slow_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._endpoint, self._meminfo, self._power, self._slow_s, self._clock = (
            endpoint,
            meminfo,
            power or gpu_power,
            slow_s,
            clock,
        )
        self._next_s = clock()

    def __call__(self) -> Sample:
        now = self._clock()
        available = None
        with contextlib.suppress(OSError, SparkbookError):
            available = parse_meminfo(self._meminfo.read_text("utf-8")).available
        if self._endpoint is None or now < self._next_s:
            return Sample(now, available)
        self._next_s = now + self._slow_s
        generated, running = self._engine()
        return Sample(now, available, generated, running, self._power() if running else None)

    def _engine(self) -> tuple[float | None, float | None]:
        from sparkbook.metrics import Metrics

        assert self._endpoint is not None
        try:
            metrics = Metrics.parse(self._endpoint.metrics_text())
            return metrics.value("generation_tokens_total"), metrics.value("num_requests_running")
        except SparkbookError:
            return None, None  # still starting


def gpu_power() -> float | None:
    """Return the first GPU's power in W, as nvidia-smi says; None where it does not."""
    import subprocess

    command = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=4,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return float(done.stdout.splitlines()[0]) if done.returncode == 0 else None
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return None


def guard(act: Callable[[], None], endpoint: Endpoint | None, floor: int | None = None) -> Watchdog:
    """Return a watchdog over this host and a server.

    Args:
        act: stops the server.
        endpoint: the server.
        floor: bytes of MemAvailable; None takes a twentieth of the memory.

    Raises:
        SparkbookError: less than the floor is left already, so nothing should be started; or this
            host does not report its memory.
    """
    try:
        memory = parse_meminfo(Path("/proc/meminfo").read_text("utf-8"))
    except OSError as error:
        raise SparkbookError(
            f"the watchdog can't read /proc/meminfo: {error.strerror}; --no-watchdog starts"
            " without it"
        ) from None
    limits = Limits.of_host(memory.total, floor)
    if finding := admit(memory, limits):
        raise ServeFault(finding)
    # /metrics asks for no key, and during a start another program may be at the address.
    keyless = replace(endpoint, api_key="") if endpoint else None
    return Watchdog(act, Eyes(keyless), limits)
