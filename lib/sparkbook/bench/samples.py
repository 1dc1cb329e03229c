"""The examples of the gate's rules: how a page shows one, and what the gate finds in it; and a
careless table that must not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparkbook.bench import gate, telemetry
from sparkbook.bench.counters import engine_delta
from sparkbook.bench.examples import seen
from sparkbook.bench.results import Cell, Report, Request, Summary, figures
from sparkbook.bench.seen import Seen
from sparkbook.findings import Finding
from sparkbook.metrics import Metrics
from sparkbook.util.markup import fenced


def careless() -> Report:
    """Return a table that a script printed with a server on an H100 (vLLM 0.24.0, 2026-11-27), and
    what the server's counters said afterwards: no warm-up, as many requests as ran at a time, most
    prompts cached, and sixteen at a time faster than one alone. What must not pass.
    """
    folder = Path(__file__).with_name("recorded")
    nothing = Metrics.parse(
        "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total 0\n"
    )
    after = Metrics.parse((folder / "careless-h100-metrics.txt").read_text(encoding="utf-8"))
    account, _ = engine_delta(nothing, after, 60.0)
    cells = []
    for line in (folder / "careless-h100.table").read_text(encoding="utf-8").splitlines():
        slots, total, _, _, each, *_ = line.split()
        summary = figures([])
        summary.completed, summary.out_tok_s, summary.decode_tok_s = (
            int(slots),
            float(total),
            Summary.of([float(each)]),
        )
        cells.append(
            Cell(prompt_class="unknown", concurrency=int(slots), figures=summary, engine=account)
        )
    return Report(
        date="2026-11-27",
        tool="a script",
        model="moe",
        engine="vLLM 0.24.0",
        machine="NVIDIA H100 80GB",
        cells=cells,
    )


def examine(example: Seen | Report) -> list[Finding]:
    """Return what the gate finds in an example."""
    if isinstance(example, Seen):
        return list(gate.judge(example))
    judged = example.model_copy(deep=True)
    gate.compare_rows(judged)
    return list(judged.cells[0].findings)


def show(example: Seen | Report) -> str:
    """Return an example as Markdown: what is changed about the sound measurement."""
    return fenced("\n".join(_lines(example)) or "the sound measurement, nothing changed")


def _lines(example: Seen | Report) -> list[str]:
    """Return what is changed: looks of the trace from left to right, values of the requests in
    their order.
    """
    if isinstance(example, Report):
        rows = [(cell.concurrency, cell.figures.decode_tok_s) for cell in example.cells]
        return [f"c={c:<3} {speed.median:g} tok/s a request" for c, speed in rows if speed]
    sound = seen()
    repeated = [text for text in example.prompts if text in example.earlier]
    return [
        *_trace_lines(example, sound),
        *_part_lines(example.cell, sound.cell),
        *_request_lines(example.cell, sound.cell),
        *([f"roof: {example.roof}"] if example.roof else []),
        *_prompt_lines(example, sound),
        *([f"sent before: {', '.join(repeated)}"] if repeated else []),
        *(["a counter of /metrics fell"] if example.restarted else []),
    ]


def _trace_lines(example: Seen, sound: Seen) -> Iterator[str]:
    if not example.trace or not sound.trace:
        return
    for name in telemetry.Sample.__dataclass_fields__:
        mine, other = (
            [getattr(sample, name) for sample in trace.samples]
            for trace in (example.trace, sound.trace)
        )
        if mine != other:
            yield f"{name:14} " + "  ".join("–" if v is None else f"{v:g}" for v in mine)


def _part_lines(cell: Cell, sound: Cell) -> Iterator[str]:
    for part in ("engine", "warm_up", "client", "interrupted"):
        mine, other = getattr(cell, part), getattr(sound, part)
        if mine == other:
            continue
        if not hasattr(mine, "model_dump"):
            yield f"{part}: {'unknown' if mine is None else mine}"
            continue
        known = other.model_dump()
        for name, value in mine.model_dump().items():
            if value != known[name]:
                yield f"{part}.{name}: {_short(value)}"


def _request_lines(cell: Cell, sound: Cell) -> Iterator[str]:
    for name, of in _SHOWN.items():
        mine, other = ([of(r) for r in one.requests] for one in (cell, sound))
        if mine != other:
            yield f"{name}: " + "  ".join(map(_short, mine))
    given = figures(cell.requests, 4).model_dump()
    for name, value in cell.figures.model_dump().items():
        if value != given[name]:
            yield f"figures.{name}: {_short(value)}"


def _prompt_lines(example: Seen, sound: Seen) -> Iterator[str]:
    mine, other = ([len(text.split()) for text in one.prompts] for one in (example, sound))
    if mine != other:
        yield "words of the prompt: " + "  ".join(map(str, mine))


_SHOWN: dict[str, Callable[[Request], Any]] = {
    "TTFT, s": lambda r: r.ttft_s,
    "mean step, ms": lambda r: (
        round(1000 * sum(r.step_gaps_s) / len(r.step_gaps_s), 1) if r.step_gaps_s else None
    ),
    "tokens by usage": lambda r: r.output_tokens,
    "tokens by ids": lambda r: r.id_tokens,
    "events": lambda r: len(r.stamps_s),
    "end of the text": lambda r: "…" + (r.text or "")[-14:],
    "finish reason": lambda r: r.finish,
    "shortest step, ms": lambda r: min(0.0, *r.step_gaps_s) * 1000 if r.step_gaps_s else 0.0,
    "last token after the end, s": lambda r: (
        max(0.0, round(r.stamps_s[-1] - (r.latency_s or 0.0), 3)) if r.stamps_s else 0.0
    ),
    "error": lambda r: r.error,
}


def _short(value: Any) -> str:
    return (
        "–" if value is None else f"{value:.5g}" if isinstance(value, int | float) else str(value)
    )
