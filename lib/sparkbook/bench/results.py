"""What a measurement leaves: one JSON shape, from single requests to the verdict, with a published
JSON Schema.

Names of figures say what they count; no figure is called just "ITL" or "tok/s", since four tools
mean four things by these words. Times are seconds. Unknown is None, never zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkbook.bench import stats
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.util import invalid, limits
from sparkbook.util.files import write_text

SCHEMA: Final = "sparkbench/1"
FEW_FOR_P99 = 100
"""Below so many samples the largest one stands in for the 99th percentile more often than not, so
none is printed.
"""

Verdict = Literal["valid", "suspect", "invalid"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Request(_Model):
    """One request as measured. Times of `ttfr_s` to `stamps_s` count from the moment before it was
    written.

    Attributes:
        prompt: id of its prompt.
        start_s: when it was sent, since the first one of its cell.
        late_s: open loop: sent so long after it was due.
        ttfr_s: first event with `choices`, be it an empty role.
        ttft_s: first event with an answer, a thought or a tool call: what a reader sees. Where the
            first token is a mark that the server's parser takes away, such as `<think>`, it is
            later than the engine's first token, which is `stamps_s[0]`.
        ttfo_s: first event with an answer or a tool call.
        latency_s: the last byte.
        stamps_s: events that carry tokens, one an engine step as far as the client can tell.
        chunk_tokens: tokens of each such event, where the server sends token ids.
        prompt_tokens, output_tokens: by the server's `usage`, else by token ids; None where it
            tells neither.
        count_from: where `output_tokens` comes from.
        id_tokens: tokens by ids, where both are told.
        cached_tokens: of the prompt, from the prefix cache, where `usage` tells it.
        text_bytes: UTF-8 bytes of what was streamed: answer, thoughts and tool calls.
    """

    prompt: str
    slot: int = 0
    start_s: float = 0.0
    late_s: float | None = None
    ttfr_s: float | None = None
    ttft_s: float | None = None
    ttfo_s: float | None = None
    latency_s: float | None = None
    stamps_s: list[float] = Field(default_factory=list)
    chunk_tokens: list[int] | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    id_tokens: int | None = None
    cached_tokens: int | None = None
    count_from: Literal["usage", "token ids", "unknown"] = "unknown"
    finish: str | None = None
    text: str | None = None
    text_bytes: int | None = None
    error: str | None = None

    @property
    def first_tokens(self) -> int:
        """Tokens of the first event."""
        return (self.chunk_tokens[0] or 1) if self.chunk_tokens else 1

    @property
    def tpot_s(self) -> float | None:
        """Time of a token after the first event: (last event - first event) / (tokens - tokens of
        the first event).
        """
        later = (self.output_tokens or 0) - self.first_tokens
        return (
            (self.stamps_s[-1] - self.stamps_s[0]) / later
            if later > 0 and len(self.stamps_s) > 1
            else None
        )

    @property
    def step_gaps_s(self) -> list[float]:
        """Times between events: the engine's steps. vLLM calls these ITL."""
        return [b - a for a, b in zip(self.stamps_s, self.stamps_s[1:], strict=False)]

    @property
    def itl_tok_s(self) -> list[float]:
        """Times between tokens: each gap shared out over the tokens that came at its end. Empty
        where their number is unknown.
        """
        if not self.chunk_tokens:
            return []
        return [
            gap / k
            for gap, k in zip(self.step_gaps_s, self.chunk_tokens[1:], strict=False)
            for _ in range(k)
            if k
        ]

    @property
    def tok_per_step(self) -> float | None:
        """Tokens an event after the first: the client's view of the mean acceptance length."""
        gaps = len(self.stamps_s) - 1
        return (
            (self.output_tokens - self.first_tokens) / gaps
            if gaps > 0 and self.output_tokens
            else None
        )

    @property
    def req_tok_s(self) -> float | None:
        """Tokens of the reply / its whole latency."""
        return (
            self.output_tokens / self.latency_s if self.output_tokens and self.latency_s else None
        )


class Summary(_Model):
    """One quantity over the requests of a cell.

    Attributes:
        n: values. `mean_ci`, `median_ci`: 95 % intervals with the prompt as the unit.
        p90: None where another tool's file does not tell it. p99: only from 100 values on.
            iqr_share: (p75 - p25) / median.
    """

    n: int
    mean: float
    mean_ci: tuple[float, float] | None = None
    median: float
    median_ci: tuple[float, float] | None = None
    p90: float | None = None
    p99: float | None = None
    low: float
    high: float
    iqr_share: float | None = None

    @classmethod
    def of(cls, values: Sequence[float], prompts: Sequence[str] | None = None) -> Summary | None:
        """Summarize; `prompts` names the prompt of each value. None for no values."""
        if not values:
            return None
        units = stats.by_prompt(zip(prompts, values, strict=True)) if prompts is not None else []
        middle = stats.quantile(values, 0.5)
        return cls(
            n=len(values),
            mean=math.fsum(values) / len(values),
            mean_ci=stats.mean_interval(units),
            median=middle,
            median_ci=stats.median_interval(units),
            p90=stats.quantile(values, 0.9),
            p99=stats.quantile(values, 0.99) if len(values) >= FEW_FOR_P99 else None,
            low=min(values),
            high=max(values),
            iqr_share=(
                (stats.quantile(values, 0.75) - stats.quantile(values, 0.25)) / middle
                if middle and len(values) > 3
                else None
            ),
        )


class Figures(_Model):
    """What a cell comes to.

    Attributes:
        duration_s: first request sent to last event.
        out_tok_s: all output tokens / duration: ramp and drain are in it (vLLM's output
            throughput).
        steady_tok_s: tokens that came while all slots were decoding / the length of that time
            `steady_s`.
        prefill_tok_s: prompt tokens / TTFT, a request. decode_tok_s: 1 / TPOT, a request.
    """

    completed: int
    failed: int = 0
    duration_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    out_tok_s: float | None = None
    steady_tok_s: float | None = None
    steady_s: float | None = None
    tok_per_step: float | None = None
    ttfr_s: Summary | None = None
    ttft_s: Summary | None = None
    ttfo_s: Summary | None = None
    tpot_s: Summary | None = None
    step_gap_s: Summary | None = None
    itl_tok_s: Summary | None = None
    latency_s: Summary | None = None
    req_tok_s: Summary | None = None
    decode_tok_s: Summary | None = None
    prefill_tok_s: Summary | None = None


def figures(requests: Sequence[Request], slots: int | None = None) -> Figures:
    """Work out a cell's figures.

    Args:
        requests: its requests; failed ones are counted and leave no other trace.
        slots: requests at a time, for the steady window; None in an open loop, which has none.
    """
    good = [r for r in requests if r.error is None]
    result = Figures(completed=len(good), failed=len(requests) - len(good))
    if not good:
        return result

    def over(name: str) -> Summary | None:
        pairs = [(r.prompt, value) for r in good if (value := getattr(r, name)) is not None]
        return Summary.of([v for _, v in pairs], [p for p, _ in pairs])

    for name in ("ttfr_s", "ttft_s", "ttfo_s", "tpot_s", "latency_s", "req_tok_s"):
        setattr(result, name, over(name))
    rates = [(r.prompt, 1 / r.tpot_s) for r in good if r.tpot_s]
    result.decode_tok_s = Summary.of([v for _, v in rates], [p for p, _ in rates])
    reads = [(r.prompt, r.prompt_tokens / r.ttft_s) for r in good if r.prompt_tokens and r.ttft_s]
    result.prefill_tok_s = Summary.of([v for _, v in reads], [p for p, _ in reads])
    # Gaps of one reply are not independent of each other, so they get no interval.
    result.step_gap_s = Summary.of([gap for r in good for gap in r.step_gaps_s])
    result.itl_tok_s = Summary.of([gap for r in good for gap in r.itl_tok_s])
    steps = [
        (r.output_tokens - r.first_tokens, len(r.stamps_s) - 1)
        for r in good
        if r.output_tokens and len(r.stamps_s) > 1
    ]
    result.tok_per_step = sum(t for t, _ in steps) / sum(g for _, g in steps) if steps else None
    ends = [r.start_s + r.stamps_s[-1] for r in good if r.stamps_s]
    if ends:
        result.duration_s = max(ends) - min(r.start_s for r in good)
    if all(r.prompt_tokens is not None for r in good):
        result.input_tokens = sum(r.prompt_tokens or 0 for r in good)
    if all(r.output_tokens is not None for r in good):
        result.output_tokens = sum(r.output_tokens or 0 for r in good)
        result.out_tok_s = result.output_tokens / result.duration_s if result.duration_s else None
        result.steady_tok_s, result.steady_s = _steady(good, slots)
    return result


def _steady(requests: Sequence[Request], slots: int | None) -> tuple[float | None, float | None]:
    """Return tokens per second between the instant when all slots are decoding and the first
    instant when one has run dry.
    """
    lanes: dict[int, list[Request]] = {}
    for request in requests:
        if request.stamps_s:
            lanes.setdefault(request.slot, []).append(request)
    if not slots or len(lanes) < slots:
        return None, None
    begin = max(min(r.start_s + r.stamps_s[0] for r in lane) for lane in lanes.values())
    end = min(max(r.start_s + r.stamps_s[-1] for r in lane) for lane in lanes.values())
    if end <= begin:
        return None, None
    tokens = 0.0
    for request in requests:
        later = len(request.stamps_s) - 1
        share = [request.first_tokens] + [
            ((request.output_tokens or 0) - request.first_tokens) / max(later, 1)
        ] * later
        counts = (
            request.chunk_tokens
            if request.chunk_tokens and sum(request.chunk_tokens) == request.output_tokens
            else share
        )
        tokens += sum(
            k
            for at, k in zip(request.stamps_s, counts, strict=False)
            if begin < request.start_s + at <= end
        )
    return tokens / (end - begin), end - begin


class WarmUp(_Model):
    """How a cell was warmed: requests of its own shape, wave by wave.

    Attributes:
        ttfts_s: median TTFT of each wave, the cold one first. settled: the last two agreed within
            10 %.
    """

    ttfts_s: list[float] = Field(default_factory=list)
    settled: bool = False


class Client(_Model):
    """The measuring client itself: CPU while measuring and while taking the events apart
    afterwards, how late its loop was, and by how much the time of day went further than its clock.
    """

    events: int | None = None
    cpu_s: float | None = None
    parse_cpu_s: float | None = None
    lag_p99_s: float | None = None
    clock_apart_s: float | None = None


class Engine(_Model):
    """The engine's own account of a cell: what its counters grew by, and speculation's ratios.

    `steps`, `first_tokens`, `ttft_s` and `decode_s` as in `metrics_doctor.Deltas`.
    """

    generation_tokens: float | None = None
    prompt_tokens: float | None = None
    preemptions: float | None = None
    prefix_hits: float | None = None
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    acceptance: float | None = None
    mean_length: float | None = None
    per_position: list[float] = Field(default_factory=list)
    queue_s: float | None = None
    steps: float | None = None
    first_tokens: float | None = None
    ttft_s: float | None = None
    decode_s: float | None = None


class Machine(_Model):
    """The machine's state in a cell, summed up from telemetry: before, during and after. None is
    unknown.
    """

    samples: int = 0
    clock_mhz: float | None = None
    clock_low_mhz: float | None = None
    clock_max_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: list[str] = Field(default_factory=list)
    available_gib: float | None = None
    swapped_mib: float | None = None
    load_before: float | None = None
    waiting: float | None = None


class Cell(_Model):
    """One measurement: a prompt class under one load.

    Attributes:
        concurrency: requests at a time (closed loop); rate: requests per second (open loop,
            Poisson).
        context: tokens that a long prompt aimed at. caching: prompts repeat on purpose.
        findings: reasons for the verdict, and remarks.
    """

    prompt_class: str
    concurrency: int | None = None
    rate: float | None = None
    max_tokens: int | None = None
    context: int | None = None
    caching: bool = False
    label: str | None = None
    figures: Figures
    warm_up: WarmUp | None = None
    client: Client = Field(default_factory=Client)
    engine: Engine | None = None
    machine: Machine | None = None
    interrupted: bool = False
    verdict: Verdict = "valid"
    findings: list[Finding] = Field(default_factory=list)
    requests: list[Request] = Field(default_factory=list)

    @property
    def load(self) -> str:
        """`c=4`, or `2 req/s`."""
        return f"c={self.concurrency}" if self.rate is None else f"{self.rate:g} req/s"


@dataclass(frozen=True)
class Agreement:
    """One quantity of a cell as the client measured it and as the engine counted it.

    Attributes:
        name: `tokens`; `tokens a step`; `acceptance`, the tokens of a step once more, against 1 +
            accepted / steps; `tpot_s`; `ttft_s`.
    """

    name: str
    client: float
    engine: float

    @property
    def apart(self) -> float:
        """By how much of the engine's value the client's is larger."""
        return self.client / self.engine - 1 if self.engine else math.inf


def agreement(cell: Cell) -> dict[str, Agreement]:
    """Return the client's figures next to the engine's own, by name; only what both know, and
    nothing of a cell in which a request failed.

    - `tokens`: by `usage`, against `generation_tokens`: the same number, the end-of-text token
      included in both.
    - `tokens a step`: tokens after the first / events after the first, against the same over
      `inter_token_latency_seconds_count`. A server that is late merges two steps into one event, so
      events can be fewer than steps and never more.
    - `acceptance`: tokens by `usage` after the first / the engine's steps, against 1 + accepted /
      steps. In the last step of a reply the engine counts drafts as accepted that lie behind the
      reply's end, so the engine's is higher by up to K / (tokens of a reply).
    - `tpot_s`: time from the first event to the last / tokens after the first, both summed over
      requests, against `request_decode_time_seconds_sum` / tokens. A merged event does not change
      it. (`tpot_s` of the figures weighs requests alike.)
    - `ttft_s`: mean time to the first event that holds a token, against
      `time_to_first_token_seconds`. The engine's clock starts when the request has been received
      and parsed and stops before the event is written, so the client's is longer by a few
      milliseconds of server.

    (vLLM 0.32, `vllm/v1/metrics/stats.py`,
    https://github.com/vllm-project/vllm/blob/main/vllm/v1/metrics/stats.py)
    """
    engine, good = (
        cell.engine,
        [r for r in cell.requests if r.error is None and r.stamps_s and r.output_tokens],
    )
    if engine is None or not good or len(good) < len(cell.requests) or cell.interrupted:
        return {}
    tokens = sum(r.output_tokens or 0 for r in good)
    later = tokens - sum(r.first_tokens for r in good)
    # A recorded sweep has kept only the first and the last stamp of a request, so its events are
    # not known any more.
    whole = all(not r.chunk_tokens or len(r.chunk_tokens) == len(r.stamps_s) for r in good)
    events = sum(len(r.stamps_s) - 1 for r in good) if whole else 0
    decode = math.fsum(r.stamps_s[-1] - r.stamps_s[0] for r in good)
    made = tokens - (engine.first_tokens or 0)
    pairs: dict[str, tuple[float | None, float | None]] = {
        "tokens": (tokens, engine.generation_tokens),
        "tokens a step": (
            later / events if events else None,
            made / engine.steps if engine.steps else None,
        ),
        "acceptance": (
            (made / engine.steps, 1 + engine.accepted / engine.steps)
            if engine.steps and engine.accepted
            else (None, None)
        ),
        "tpot_s": (
            decode / later if later else None,
            engine.decode_s / made if engine.decode_s and made else None,
        ),
        "ttft_s": (math.fsum(r.stamps_s[0] for r in good) / len(good), engine.ttft_s),
    }
    return {
        name: Agreement(name, a, b)
        for name, (a, b) in pairs.items()
        if a is not None and b is not None
    }


class Report(_Model):
    """A whole run.

    Attributes:
        tool: who measured. engine, machine: what was measured. label: the arm of a comparison, or a
            mode.
        seed, salt: what the prompts are made from. cold: the very first request, kept apart.
        interrupted: ended by Ctrl-C. ended: why it ended before its last row otherwise.
    """

    schema_: Literal["sparkbench/1"] = Field(SCHEMA, alias="schema")
    date: str
    tool: str
    model: str
    engine: str | None = None
    machine: str | None = None
    label: str | None = None
    seed: int = 0
    salt: str | None = None
    cold: Request | None = None
    cells: list[Cell] = Field(default_factory=list)
    interrupted: bool = False
    ended: str | None = None
    notes: list[str] = Field(default_factory=list)

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of its cells; a run without cells is invalid."""
        order: tuple[Verdict, ...] = ("valid", "suspect", "invalid")
        return max((cell.verdict for cell in self.cells), key=order.index, default="invalid")

    def summary(self) -> dict[str, Any]:
        """Return the few figures that tell one measurement from another: medians in seconds, rates
        in tokens per second.
        """
        rows = []
        for cell in self.cells:
            ttft, tpot = cell.figures.ttft_s, cell.figures.tpot_s
            rows.append(
                {
                    "class": cell.prompt_class,
                    "load": cell.load,
                    "verdict": cell.verdict,
                    "out_tok_s": _short(cell.figures.out_tok_s),
                    "ttft_s": _short(ttft.median if ttft else None),
                    "tpot_s": _short(tpot.median if tpot else None),
                }
            )
        about = {
            "date": self.date,
            "model": self.model,
            "engine": self.engine,
            "machine": self.machine,
        }
        return {**about, "verdict": self.verdict, "rows": rows}

    @classmethod
    def read(cls, file: str | Path) -> Report:
        """Read a file that `write` wrote.

        Raises:
            SparkbookError: it can't be read, or is not such a file.
        """
        try:
            return cls.model_validate_json(limits.read_text(file))
        except ValidationError as error:
            raise SparkbookError(
                f"{file} is not a {SCHEMA} file: {invalid.reason(error)}"
            ) from None

    def write(self, file: str | Path) -> None:
        """Write as JSON.

        Raises:
            SparkbookError: the file can't be written.
        """
        write_text(file, self.to_json())

    def to_json(self) -> str:
        """Return what `write` writes."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=1) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; what is not known is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _short(value: float | None) -> float | None:
    """Return four significant digits: what comes after them differs from run to run."""
    return None if value is None else float(f"{value:.4g}")


def json_schema() -> str:
    """Return the JSON Schema of a result file."""
    return json.dumps(Report.model_json_schema(by_alias=True), indent=2, ensure_ascii=False) + "\n"
