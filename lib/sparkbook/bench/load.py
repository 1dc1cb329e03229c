"""A load and its measurement: warm up, send, collect, judge; row by row."""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import os
import platform
import random
import re
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkbook.bench import gate, prompts, roof, telemetry
from sparkbook.bench.counters import engine_delta
from sparkbook.bench.results import (
    Cell,
    Client,
    Report,
    Request,
    WarmUp,
    agreement,
    figures,
)
from sparkbook.bench.roof import Roof
from sparkbook.errors import SparkbookError
from sparkbook.metrics import Metrics
from sparkbook.serve.endpoint import Endpoint

if TYPE_CHECKING:
    from sparkbook.plan.memory import Setup

Progress = Callable[[str, int, int | None], None]
"""Called with a description, the requests that are done, and how many there will be (None: until
the time is up).
"""


PROBE_TOKENS = 8
"""Tokens of the very first reply."""
NOISE_S = 0.02
"""Two warm-up waves that differ by no more agree: it is the machine's noise."""


_MOST = 10_000
"""Requests at a time or a second: more needs more than one machine to send them."""
_LOWEST_RATE = 0.01
"""Requests a second: at a lower rate a row takes hours."""


@dataclass(frozen=True)
class BenchPlan:
    """What to measure. Every class is measured under every load.

    Attributes:
        classes: see `prompts.CLASSES`; or names of `texts`.
        texts: prompts of your own, by the name of their class.
        concurrency: closed loop: so many requests at a time, all the time.
        rates: open loop instead: requests per second, at random moments (Poisson).
        requests: of each row; None: `seconds` of it, or max(4 c, 16).
        seconds: no request of a row is started later.
        max_tokens: length of each reply, the end of the text ignored (`ignore_eos`) where the
            server can, so that replies are alike.
        seed: chooses prompts and arrival times. salt: makes them new to a prefix cache; None draws
            one.
        caching: send the prompts unsalted, since caching is what is measured.
        waves: warm-up waves at most, in each row; 0 for none.
        extra: further fields of every request's body.
        label: name of this arm or mode, stored with each row.
        keep_text: keep the replies in the result.
    """

    classes: Sequence[str] = ("code", "prose")
    concurrency: Sequence[int] = (1, 4, 8, 16)
    rates: Sequence[float] = ()
    requests: int | None = None
    seconds: float | None = None
    max_tokens: int = 128
    seed: int = 0
    salt: str | None = None
    caching: bool = False
    ignore_eos: bool = True
    waves: int = 5
    extra: dict[str, Any] = field(default_factory=dict)
    texts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    label: str | None = None
    keep_text: bool = True
    timeout_s: float = 300.0

    def __post_init__(self) -> None:
        for name in self.classes:
            self.prompts(name, 1, salt=None)
        wrong = [c for c in self.concurrency if not 1 <= c <= _MOST] + [
            r for r in self.rates if not _LOWEST_RATE <= r <= _MOST
        ]
        if wrong or not (self.concurrency or self.rates) or not self.classes:
            raise SparkbookError(
                "a load has at least one class, and concurrencies from 1, or rates from"
                f" {_LOWEST_RATE:g}, to {_MOST:,}"
            )
        if (
            (self.requests or 0) > 1_000_000
            or not 0 < (self.seconds or 1) <= 1e6
            or not 0 < self.timeout_s <= 1e6
        ):
            raise SparkbookError("requests and seconds are above 0, and a million at most")
        if (
            self.max_tokens < 1
            or (self.requests is not None and self.requests < 1)
            or (self.seconds is not None and self.seconds <= 0)
        ):
            raise SparkbookError("requests, seconds and the length of replies must be above 0")

    def prompts(
        self, name: str, count: int, *, salt: str | None, chars_per_token: float = 4.0
    ) -> list[prompts.Prompt]:
        """Return prompts of one of its classes.

        Raises:
            SparkbookError: there is no such class.
        """
        if name in self.texts:
            return prompts.own(name, self.texts[name], count, seed=self.seed, salt=salt)
        return prompts.make(name, count, seed=self.seed, salt=salt, chars_per_token=chars_per_token)

    def rows(self) -> Iterator[tuple[str, int | None, float | None]]:
        """Return class, concurrency and rate of each row."""
        for name in self.classes:
            if self.rates:
                yield from ((name, None, rate) for rate in self.rates)
            else:
                yield from ((name, c, None) for c in self.concurrency)


class Worker:
    """The measuring client's process."""

    def __enter__(self) -> Worker:
        command = [sys.executable, "-I", str(Path(__file__).with_name("client.py"))]
        # In a session of its own, so that Ctrl-C reaches only this process, which then asks for
        # what was measured.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()

    def run(
        self, job: dict[str, Any], progress: Callable[[int], None] = lambda count: None
    ) -> dict[str, Any]:
        """Run a job of `client.run`. Ctrl-C ends it early: what was answered comes back, marked
        `interrupted`.

        Raises:
            SparkbookError: it could not connect, or died.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        try:
            stdin.write(json.dumps(job).encode() + b"\n")
            stdin.flush()
        except OSError:
            raise SparkbookError(
                f"the measuring client ended with status {self._process.wait()}"
            ) from None
        stopped = False
        while True:
            try:
                line = stdout.readline()
                if not line:
                    raise SparkbookError(
                        f"the measuring client ended with status {self._process.wait()}"
                    )
                answer = json.loads(line)
                if "failed" in answer:
                    raise SparkbookError(
                        f"http{'s' * bool(job['tls'])}://{job['host']}:{job['port']} can't be"
                        f" measured: {answer['failed']}"
                    )
                if "records" in answer:
                    return answer
                progress(answer["finished"])
            except KeyboardInterrupt:
                if stopped:  # a second Ctrl-C means it
                    raise
                stopped = True
                self._process.send_signal(signal.SIGUSR1)


class Bench:
    """A running measurement of one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        plan: BenchPlan,
        worker: Worker,
        source: telemetry.Source | None,
        progress: Progress | None,
        roof: Roof | None = None,
    ):
        self.endpoint, self.plan, self.worker, self.source = endpoint, plan, worker, source
        self.roof = roof
        self.progress = progress or (lambda text, done, total: None)
        self.salt = plan.salt if plan.salt is not None else secrets.token_hex(4)
        self.vllm_fields = True
        self.chars_per_token = 4.0
        self.sent: set[str] = set()
        parts = urlsplit(endpoint.url)
        tls = parts.scheme == "https"
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        port, path = (
            parts.port or (443 if tls else 80),
            f"{parts.path.rstrip('/')}/v1/chat/completions",
        )
        self.target = {
            "host": parts.hostname,
            "port": port,
            "tls": tls,
            "path": path,
            "headers": headers,
        }

    def body(self, text: str, max_tokens: int, ids: bool = True) -> str:
        """Return one request's body."""
        value: dict[str, Any] = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.vllm_fields:
            # Ids say how many tokens a chunk holds. Those of a long prompt would come back too, in
            # front of the first token.
            value |= {"ignore_eos": True} if self.plan.ignore_eos else {}
            value |= {"return_token_ids": True} if ids else {}
        return json.dumps(value | self.plan.extra, ensure_ascii=False)

    def send(
        self,
        bodies: Sequence[str],
        slots: int,
        name: str = "",
        total: int | None = None,
        **job: Any,
    ) -> dict[str, Any]:
        """Run one job."""
        job = {
            **self.target,
            "bodies": list(bodies),
            "slots": slots,
            "timeout_s": self.plan.timeout_s,
            "keep_text": True,
            **job,
        }
        return self.worker.run(job, lambda done: self.progress(name, done, total))

    def cold(self) -> Request:
        """Send the very first request. Its reply also shows whether the server takes vLLM's own
        fields and how long its tokens are.

        Raises:
            SparkbookError: it fails.
        """
        probe = prompts.make("prose", 1, seed=self.plan.seed, salt=f"{self.salt}/cold")
        outcome = self.send([self.body(probe[0].text, PROBE_TOKENS)], 1, "first request", 1)
        if outcome["records"] and outcome["records"][0]["status"] in (400, 422):
            self.vllm_fields = False
            outcome = self.send([self.body(probe[0].text, PROBE_TOKENS)], 1, "first request", 1)
        if not outcome["records"]:
            raise KeyboardInterrupt
        request = requests_of(outcome, probe, False)[0]
        if request.error:
            raise SparkbookError(
                f"{self.endpoint.url} does not answer a streamed chat: {request.error}"
            )
        return request

    def calibrate(self, name: str) -> None:
        """Learn from one prompt of a long class how many letters a token has here."""
        if prompts.context_tokens(name) is None:
            return
        probe = prompts.make("long-500", 1, seed=self.plan.seed, salt=f"{self.salt}/probe")
        request = requests_of(
            self.send([self.body(probe[0].text, 1, ids=False)], 1, f"{name}: tokens", 1),
            probe,
            False,
        )[0]
        if request.prompt_tokens:
            self.chars_per_token = len(probe[0].text) / request.prompt_tokens

    def make(self, name: str, count: int, part: str) -> list[prompts.Prompt]:
        salt = None if self.plan.caching else f"{self.salt}/{part}"
        return self.plan.prompts(name, count, salt=salt, chars_per_token=self.chars_per_token)

    def warm_up(self, name: str, slots: int, row: str) -> tuple[WarmUp, float]:
        """Send waves of the row's own shape until two of them agree. Return also the shortest
        latency (seconds).

        Raises:
            SparkbookError: a whole wave brought nothing: neither would the row, and each of its
                requests would be waited for.
        """
        result, shortest = WarmUp(), float("inf")
        for wave in range(self.plan.waves):
            chosen = self.make(name, slots, f"warm/{row}/{wave}")
            outcome = self.send(
                [self.body(p.text, min(self.plan.max_tokens, 16), self.ids(name)) for p in chosen],
                slots,
                f"{row}: warm-up",
                None,
            )
            found = requests_of(outcome, chosen, False)
            ttfts = [r.ttft_s for r in found if r.ttft_s is not None and not r.error]
            shortest = min([shortest, *(r.latency_s for r in found if r.latency_s and not r.error)])
            if outcome["interrupted"]:
                raise KeyboardInterrupt
            if not ttfts:
                errors = [r.error for r in found if r.error]
                raise SparkbookError(
                    f"{self.endpoint.url} answers no request of {row}:"
                    f" {errors[0] if errors else 'no text came'}"
                )
            result.ttfts_s.append(round(statistics.median(ttfts), 6))
            last = result.ttfts_s[-2:]
            if len(last) == 2 and abs(last[1] - last[0]) <= max(0.1 * last[0], NOISE_S):
                result.settled = True
                break
        return result, shortest

    def ids(self, name: str) -> bool:
        return prompts.context_tokens(name) is None

    def cell(self, name: str, concurrency: int | None, rate: float | None) -> Cell:
        """Measure one row."""
        plan = self.plan
        row = f"{name} {f'c={concurrency}' if concurrency else f'{rate:g}/s'}"
        self.calibrate(name)
        slots = concurrency or max(4, round((rate or 0) * 4))
        warmth, shortest = self.warm_up(name, min(slots, 64), row) if plan.waves else (None, 0.05)
        count = plan.requests or max(4 * slots, 16)
        if plan.seconds and not plan.requests:
            # No reply is shorter than the warm-up's: more than these can't be sent in the time.
            count = min(
                20_000,
                (
                    round(plan.seconds / max(min(shortest, plan.seconds), 1e-3) + 2) * slots
                    if concurrency
                    else round(plan.seconds * (rate or 1) * 2 + 20)
                ),
            )
        chosen = self.make(name, count, f"run/{row}")
        bodies = [self.body(p.text, plan.max_tokens, self.ids(name)) for p in chosen]
        arrivals = None
        if rate:
            rng = random.Random(f"arrivals/{plan.seed}/{rate}")
            arrivals = list(itertools.accumulate(rng.expovariate(rate) for _ in bodies))
        quiet = time.monotonic()
        self.pause()
        before = self.scrape()
        begin = time.monotonic()
        job = {"arrivals_s": arrivals, "seconds": plan.seconds}
        outcome = self.send(
            bodies, slots, row, None if plan.seconds and not plan.requests else count, **job
        )
        end = time.monotonic()
        self.pause()
        engine, restarted = engine_delta(before, self.scrape(), max(end - begin, 1e-3))
        requests = requests_of(outcome, chosen, plan.keep_text)
        parsed = figures(requests_of(outcome, chosen, False), concurrency)
        result = Cell(
            prompt_class=name,
            concurrency=concurrency,
            rate=rate,
            max_tokens=plan.max_tokens,
            context=prompts.context_tokens(name),
            caching=plan.caching,
            label=plan.label,
            figures=parsed,
            warm_up=warmth,
            engine=engine,
            requests=requests,
            client=Client(**{name: outcome[name] for name in Client.model_fields}),
            interrupted=outcome["interrupted"],
        )
        trace = None
        if self.source:
            last = max((r["begin"] + (r["end"] or 0) for r in outcome["records"]), default=end)
            trace = self.source.trace(outcome["begin"], last).since(quiet)
            result.machine = trace.summary()
        sent = tuple(chosen[r["index"]].text for r in _in_order(outcome))
        full = result.model_copy(update={"requests": requests_of(outcome, chosen, True)})
        gate.stamp(
            result,
            gate.judge(
                gate.Seen(full, trace, sent, frozenset(self.sent), restarted, roof=self.roof)
            ),
        )
        self.sent.update(sent)
        return result

    def pause(self) -> None:
        """Wait until the telemetry has sampled the quiet machine."""
        if self.source:
            time.sleep(2.5 * getattr(self.source, "interval_s", 0.0))

    def scrape(self) -> Metrics | None:
        """Return the engine's counters; None where it has none."""
        try:
            return Metrics.parse(self.endpoint.metrics_text())
        except SparkbookError:
            return None


def measure(
    endpoint: Endpoint,
    plan: BenchPlan | None = None,
    *,
    source: telemetry.Source | None = None,
    progress: Progress | None = None,
    setup: Setup | None = None,
) -> Report:
    """Measure an endpoint.

    Args:
        endpoint: the server, its model and key.
        plan: what to measure.
        source: telemetry; None looks at this machine and at the engine, once a second.
        progress: called as requests are answered.
        setup: what the server was started with: on a machine whose memory bandwidth is known, no
            figure above what both allow is believed.

    Returns:
        All rows, each with its verdict. Ctrl-C ends the run early: rows measured until then are in
        it, `interrupted` is set. So does a
        server that stops answering after a row: `ended` says what happened.

    Raises:
        SparkbookError: the server does not answer a streamed chat, or nothing before the first row
            was done.
    """
    plan = plan or BenchPlan()
    report = Report(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        tool="sparkbook",
        model=endpoint.model,
        engine=engine_name(endpoint),
        machine=machine_name(endpoint),
        label=plan.label,
        seed=plan.seed,
    )
    limit = roof.of(setup, report.machine) if setup else None
    if setup and limit is None:
        report.notes.append(
            "Speeds were not compared with what memory allows: this machine is no Spark, or the"
            " model's size is not known."
        )
    with source or telemetry.Live(endpoint) as looking, Worker() as worker:
        bench = Bench(endpoint, plan, worker, looking, progress, limit)
        report.salt = None if plan.caching else bench.salt
        try:
            report.cold = bench.cold()
            if not bench.vllm_fields:
                report.notes.append(
                    "The server refuses vLLM's own fields: replies may end early, and no token ids"
                    " come."
                )
            for name, concurrency, rate in plan.rows():
                cell = bench.cell(name, concurrency, rate)
                report.cells.append(cell)
                if cell.interrupted:
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            report.interrupted = True
        except SparkbookError as error:
            if not report.cells:
                raise
            report.ended = str(error)
    gate.compare_rows(report)
    return report


def agreeing(
    endpoint: Endpoint,
    plan: BenchPlan,
    names: Sequence[str],
    *,
    within: float = 0.02,
    tries: int = 5,
    interval_s: float = 0.25,
) -> Report:
    """Measure until the client's figures are within a share of the engine's own, at most so many
    times.

    What is told apart so: a machine without a free CPU delivers an event late now and then, another
        one each time; a client that counts or
    times wrong is wrong every time. The time of a reply's events is off by the delivery of its
    first and its last one, some milliseconds however long the reply is, so replies of a second or
    more are needed to see 2 %.

    Args:
        names: of `results.agreement`, such as `tpot_s`.
        within: share of the engine's value.
        interval_s: of the telemetry.

    Returns:
        The first measurement of which all rows agree in all names; the nearest one where none does.

    Raises:
        SparkbookError: as `measure`, the server stopped answering, or the engine tells nothing of
            these.
        KeyboardInterrupt: Ctrl-C before the first row was done.
    """
    best: tuple[float, Report] | None = None
    for _ in range(tries):
        report = measure(endpoint, plan, source=telemetry.Live(endpoint, interval_s))
        if report.ended:
            raise SparkbookError(report.ended)
        if not report.cells:
            raise KeyboardInterrupt
        found = [agreement(cell) for cell in report.cells]
        if not all(set(names) <= both.keys() for both in found):
            raise SparkbookError(
                f"{endpoint.url} does not report the figures to compare: {', '.join(names)}"
            )
        apart = max(abs(both[name].apart) for both in found for name in names)
        best = min([(apart, report), *([best] if best else [])], key=lambda one: one[0])
        if apart <= within or report.interrupted:
            break
    assert best is not None
    return best[1]


def probe(endpoint: Endpoint, timeout_s: float) -> float:
    """Return seconds of one streamed chat of `PROBE_TOKENS` tokens.

    Raises:
        SparkbookError: the server does not answer one.
    """
    with Worker() as worker:
        return (
            Bench(endpoint, BenchPlan(timeout_s=timeout_s), worker, None, None).cold().latency_s
            or 0.0
        )


def requests_of(
    outcome: dict[str, Any], chosen: Sequence[prompts.Prompt], keep_text: bool
) -> list[Request]:
    """Return the client's records as requests, in the order in which they were sent."""
    records = _in_order(outcome)
    first = records[0]["begin"] if records else 0.0
    return [_request(record, chosen[record["index"]].id, first, keep_text) for record in records]


def _in_order(outcome: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the client's records in the order in which they were sent."""
    return sorted(outcome["records"], key=lambda r: (r["begin"], r["index"]))


def _request(record: dict[str, Any], prompt: str, first: float, keep_text: bool) -> Request:
    usage = record["usage"] or {}
    details = usage.get("prompt_tokens_details")
    details = details if isinstance(details, dict) else {}
    counted = _count(usage.get("completion_tokens"))
    by_ids = sum(record["tokens"]) if record["tokens"] else None
    count = counted if counted is not None else by_ids
    return Request(
        prompt=prompt,
        slot=record["slot"],
        start_s=round(record["begin"] - first, 6),
        late_s=(
            round(record["begin"] - record["scheduled"], 6)
            if record["scheduled"] is not None
            else None
        ),
        ttfr_s=record["ttfr"],
        ttft_s=record["ttft"],
        ttfo_s=record["ttfo"],
        latency_s=record["end"],
        stamps_s=record["stamps"],
        chunk_tokens=record["tokens"],
        prompt_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=count,
        id_tokens=by_ids,
        cached_tokens=_count(details.get("cached_tokens")),
        count_from=(
            "usage" if counted is not None else "token ids" if by_ids is not None else "unknown"
        ),
        finish=record["finish"],
        text=record["text"] if keep_text else None,
        text_bytes=record["text_bytes"],
        error=record["error"],
    )


def _count(value: Any) -> int | None:
    """Return a number of tokens; None for what is none, such as NaN, or more than a float tells
    apart.
    """
    return (
        value
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
        else None
    )


def engine_name(endpoint: Endpoint) -> str | None:
    from sparkbook.bench.client import sound

    with contextlib.suppress(SparkbookError, ValueError, AttributeError):
        version = endpoint.get("/version").json().get("version")
        return sound(f"vLLM {version}") if version else None
    return None


def machine_name(endpoint: Endpoint) -> str | None:
    """Return the GPU or CPU of this machine; None if the engine is on another one."""
    if urlsplit(endpoint.url).hostname not in ("127.0.0.1", "localhost", "::1"):
        return None
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        gpus = (
            subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            .stdout.strip()
            .splitlines()
        )
        name, driver = gpus[0].rsplit(", ", 1)
        return (
            f"{len(gpus)} x {name}, driver {driver}"
            if len(gpus) > 1
            else f"{name}, driver {driver}"
        )
    with contextlib.suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
        return f"{found[1] if found else platform.machine()}, {os.cpu_count()} CPUs, no GPU"
    return platform.machine()
