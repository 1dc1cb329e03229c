"""An example of each rule of the gate that trips it, and a twin, one step back, that does not:
shown on the rules' pages, held by a test.

They start from one sound measurement (16 requests, 4 at a time, on a GPU at 2,400 MHz) and change
what the rule looks at. A trace has a look each second: two before the load, eight during it, two
after it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkbook.bench import gate, load, telemetry
from sparkbook.bench.results import Cell, Client, Engine, Report, Request, Summary, WarmUp, figures
from sparkbook.bench.roof import Roof
from sparkbook.bench.seen import Seen
from sparkbook.findings import Finding
from sparkbook.metrics import Metrics

TEXT = (
    "The gate opens at nine and the keeper writes down who comes, from where and with how many"
    " horses; then he looks at the sky, guesses the weather of the evening, and closes the book"
    " until somebody knocks again."
)


def request(
    n: int = 0,
    ttft: float = 0.1,
    step: float = 0.02,
    tokens: int = 64,
    **more: Any,
) -> Request:
    """The n-th request; times in seconds."""
    values = {
        "prompt": f"code-{n:03}",
        "slot": n % 4,
        "start_s": 1.4 * (n // 4),
        "ttfr_s": ttft,
        "ttft_s": ttft,
        "ttfo_s": ttft,
        "latency_s": ttft + step * (tokens - 1),
        "stamps_s": [ttft + step * i for i in range(tokens)],
        "chunk_tokens": [1] * tokens,
        "prompt_tokens": 60,
        "output_tokens": tokens,
        "id_tokens": tokens,
        "count_from": "usage",
        "finish": "length",
        "text": f"{TEXT} He opened gate {n}.",
    }
    return Request(**{**values, **more})


Changes = dict[str, Any] | None


def trace(
    during: Changes = None, before: Changes = None, after: Changes = None, all_: Changes = None
) -> telemetry.Trace:
    """Two looks before, eight during, two after; what is given replaces fields, a function gets the
    number of the look.
    """
    base = {
        "clock_mhz": 2400.0,
        "clock_max_mhz": 3003.0,
        "power_w": 60.0,
        "temperature_c": 65.0,
        "gpu_busy": 0.95,
        "reasons": 0,
        "available_gib": 30.0,
        "swapped_mib": 100.0,
        "cpu_busy": 0.3,
        "running": 4.0,
        "waiting": 0.0,
    }
    idle = {
        "clock_mhz": 208.0,
        "power_w": 5.0,
        "gpu_busy": 0.0,
        "cpu_busy": 0.02,
        "running": 0.0,
        "reasons": 1,
    }
    samples = []
    for t in range(12):
        phase = before if t < 2 else after if t > 9 else during
        values = {**base, **({} if 2 <= t <= 9 else idle), **(all_ or {}), **(phase or {})}
        samples.append(
            telemetry.Sample(float(t), **{k: v(t) if callable(v) else v for k, v in values.items()})
        )
    return telemetry.Trace(tuple(samples), 1.5, 9.5)


def seen(
    requests: list[Request] | None = None,
    trace_: telemetry.Trace | None = None,
    cell: Changes = None,
    **more: Any,
) -> Seen:
    """The sound measurement with changes."""
    requests = requests if requests is not None else [request(n) for n in range(16)]
    values = {
        "prompt_class": "code",
        "concurrency": 4,
        "max_tokens": 64,
        "figures": figures(requests, 4),
        "requests": requests,
        "warm_up": WarmUp(ttfts_s=[0.9, 0.1, 0.1], settled=True),
        "client": Client(events=1024, cpu_s=0.05, lag_p99_s=0.001),
        "engine": Engine(
            generation_tokens=1024, prompt_tokens=960, preemptions=0, prefix_hits=0.02
        ),
    }
    prompts = more.pop("prompts", tuple(f"prompt {n}" for n in range(16)))
    return Seen(Cell(**{**values, **(cell or {})}), trace_ or trace(), prompts, **more)


def engine(**changes: Any) -> dict[str, Engine]:
    """The engine's account with changes, as a field of the cell."""
    values = {
        "generation_tokens": 1024,
        "prompt_tokens": 960,
        "preemptions": 0,
        "prefix_hits": 0.02,
    }
    return {"engine": Engine(**{**values, **changes})}


def spread(factor: float) -> list[Request]:
    """Every second request's steps take so many times as long."""
    return [request(n, step=0.02 * (factor if n % 2 else 1)) for n in range(16)]


def speculating(tokens_a_chunk: int) -> list[Request]:
    """Replies in events of several tokens."""
    requests = []
    for n in range(16):
        chunks = [1] + [tokens_a_chunk] * 21
        requests.append(
            request(
                n,
                chunk_tokens=chunks,
                stamps_s=[0.1 + 0.05 * i for i in range(22)],
                output_tokens=sum(chunks),
                id_tokens=sum(chunks),
            )
        )
    return requests


def drafts(length: float, **more: Any) -> dict[str, Engine]:
    """The account of an engine whose steps yield so many tokens."""
    return engine(
        drafts=336,
        drafted=1344,
        accepted=336 * (length - 1),
        mean_length=length,
        generation_tokens=16 * 64,
        **more,
    )


LOOP = "and so on and " * 40

_SMALL = Roof(step_bytes=1.5e9, token_flops=24e9)


def everyone(cell: Changes = None, **changes: Any) -> Seen:
    """The sound measurement with the same change of each request."""
    return seen([request(n, **changes) for n in range(16)], cell=cell)


def repeating(text: str, count: int) -> list[Request]:
    """Sixteen requests, so many of them answered with the same text."""
    return [request(n, text=text) if n < count else request(n) for n in range(16)]


def told(**changes: Any) -> Seen:
    """The sound measurement with figures that its requests do not give."""
    sound = seen().cell.figures
    return seen(cell={"figures": sound.model_copy(update=changes)})


def prompts(words: int) -> tuple[str, ...]:
    """Sixteen prompts of so many words."""
    return tuple(" ".join(["word"] * (words - 1) + [f"n{n}"]) for n in range(16))


def rows(slow: float, fast: float) -> Report:
    """One request at a time and sixteen, with the tok/s of a request."""
    cells = []
    for slots, speed in ((1, slow), (16, fast)):
        told = figures([])
        told.decode_tok_s = Summary.of([speed])
        cells.append(Cell(prompt_class="code", concurrency=slots, figures=told))
    return Report(date="2026-11-27", tool="example", model="example", cells=cells)


CASES: dict[str, tuple[Seen | Report, Seen | Report]] = {
    "BENCH101": (
        seen(trace_=trace({"clock_mhz": 799.0, "power_w": 20.0})),
        seen(trace_=trace({"clock_mhz": 1600.0})),
    ),
    "BENCH102": (
        seen(trace_=trace({"reasons": lambda t: 0x40 if t > 6 else 0})),
        seen(trace_=trace({"reasons": 0x2})),
    ),
    "BENCH103": (
        seen(trace_=trace({"reasons": lambda t: 0x4 * (t % 2)})),
        seen(trace_=trace({"reasons": lambda t: 0x4 * (t == 3)})),
    ),
    "BENCH104": (
        seen(trace_=trace({"clock_mhz": lambda t: 2400.0 if t < 6 else 2200.0})),
        seen(trace_=trace({"clock_mhz": lambda t: 2400.0 if t < 6 else 2350.0})),
    ),
    "BENCH105": (
        seen(trace_=trace({"temperature_c": 88.0})),
        seen(trace_=trace({"temperature_c": 80.0})),
    ),
    "BENCH111": (
        seen(trace_=trace(before={"cpu_busy": 0.6})),
        seen(trace_=trace(before={"cpu_busy": 0.1})),
    ),
    "BENCH112": (
        seen(trace_=trace({"available_gib": 0.9})),
        seen(trace_=trace({"available_gib": 3.0})),
    ),
    "BENCH113": (
        seen(trace_=trace(all_={"swapped_mib": lambda t: 100.0 + 64 * max(t - 4, 0)})),
        seen(trace_=trace(all_={"swapped_mib": 5000.0})),
    ),
    "BENCH201": (seen(trace_=trace(before={"running": 3.0})), seen(trace_=trace({"running": 4.0}))),
    "BENCH202": (
        seen(trace_=trace({"waiting": 3.0, "running": 1.0})),
        seen(trace_=trace({"waiting": lambda t: 1.0 * (t == 2), "running": 3.0})),
    ),
    "BENCH203": (seen(cell=engine(preemptions=4)), seen(cell=engine(preemptions=0))),
    "BENCH204": (seen(cell=engine(prefix_hits=0.887)), seen(cell=engine(prefix_hits=0.25))),
    "BENCH205": (seen(cell={"engine": None}, restarted=True), seen()),
    "BENCH206": (
        seen(cell=engine(generation_tokens=1300)),
        seen(cell=engine(generation_tokens=1036)),
    ),
    "BENCH207": (
        seen([request(n, id_tokens=60) for n in range(16)]),
        seen([request(n, id_tokens=63) for n in range(16)]),
    ),
    "BENCH208": (
        seen(
            [
                request(
                    n, output_tokens=None, id_tokens=None, chunk_tokens=None, count_from="unknown"
                )
                for n in range(16)
            ]
        ),
        seen([request(n, id_tokens=None, chunk_tokens=None) for n in range(16)]),
    ),
    "BENCH209": (seen(speculating(3), cell=drafts(3.6)), seen(speculating(3), cell=drafts(3.01))),
    "BENCH210": (seen(cell={"engine": None}), seen()),
    "BENCH211": (seen(trace_=trace(all_={"clock_mhz": None}, during={"clock_mhz": None})), seen()),
    "BENCH301": (seen(cell={"warm_up": None}), seen()),
    "BENCH302": (seen(cell={"warm_up": WarmUp(ttfts_s=[9.0, 5.0, 3.0])}), seen()),
    "BENCH303": (
        seen([request(n, ttft=31.0 if n == 3 else 0.1) for n in range(16)]),
        seen([request(n, ttft=2.0) for n in range(16)]),
    ),
    "BENCH304": (seen(spread(1.12)), seen(spread(1.03))),
    "BENCH305": (seen([request(n) for n in range(7)]), seen([request(n) for n in range(8)])),
    "BENCH306": (
        seen([request(n, tokens=7, finish="stop") for n in range(16)]),
        seen([request(n, tokens=20, finish="stop") for n in range(16)]),
    ),
    "BENCH307": (seen(earlier=frozenset({"prompt 3"})), seen(earlier=frozenset({"prompt 99"}))),
    "BENCH308": (rows(119.0, 165.0), rows(119.0, 125.0)),
    "BENCH309": (
        seen([request(n, error="the connection broke" if n == 0 else None) for n in range(16)]),
        seen(),
    ),
    "BENCH310": (
        seen(cell={"client": Client(lag_p99_s=0.012)}),
        seen(cell={"client": Client(lag_p99_s=0.003)}),
    ),
    "BENCH311": (
        seen(repeating(LOOP, 10)),
        seen(repeating(LOOP, 2)),
    ),
    "BENCH312": (seen(cell={"interrupted": True}), seen()),
    "BENCH401": (
        everyone(output_tokens=64_000_000),
        seen(cell={"max_tokens": 128}, requests=[request(n, finish="stop") for n in range(16)]),
    ),
    "BENCH402": (
        everyone(text="Yes.", stamps_s=[0.1, 1.36], id_tokens=None, chunk_tokens=None),
        everyone(text="Yes."),
    ),
    "BENCH403": (
        everyone(output_tokens=16, id_tokens=None, chunk_tokens=None, finish="stop"),
        everyone(
            engine(generation_tokens=960),
            output_tokens=60,
            id_tokens=None,
            chunk_tokens=None,
            finish="stop",
        ),
    ),
    "BENCH404": (
        seen(roof=Roof(step_bytes=28e9, token_flops=28e9)),
        seen(roof=Roof(step_bytes=28e9, token_flops=28e9, drafted=7)),
    ),
    "BENCH405": (
        seen([request(n, ttft=0.002) for n in range(16)], roof=_SMALL),
        seen([request(n, ttft=0.004) for n in range(16)], roof=_SMALL),
    ),
    "BENCH406": (seen(cell=engine(prompt_tokens=4096)), seen(cell=engine(prompt_tokens=970))),
    "BENCH407": (seen(cell=engine(first_tokens=24)), seen(cell=engine(first_tokens=16))),
    "BENCH408": (seen(prompts=prompts(300)), seen(prompts=prompts(80))),
    "BENCH409": (
        seen([request(n, ttft=0.0) for n in range(16)]),
        seen([request(n, ttft=0.002) for n in range(16)]),
    ),
    "BENCH410": (
        everyone(stamps_s=[0.1, 0.14, 0.12, *(0.1 + 0.02 * i for i in range(3, 64))]),
        everyone(stamps_s=[0.1, 0.13, 0.13, *(0.1 + 0.02 * i for i in range(3, 64))]),
    ),
    "BENCH411": (everyone(latency_s=1.0), everyone(latency_s=1.4)),
    "BENCH412": (told(duration_s=2.0), told(duration_s=5.5)),
    "BENCH413": (told(out_tok_s=387.0), told(out_tok_s=185.0)),
    "BENCH414": (everyone(finish=None), everyone(finish="stop")),
    "BENCH415": (
        everyone(engine(generation_tokens=640), tokens=40),
        everyone(engine(generation_tokens=640), tokens=40, finish="stop"),
    ),
    "BENCH416": (
        seen(cell=engine(drafts=100, drafted=400, accepted=420)),
        seen(cell=engine(drafts=100, drafted=400, accepted=399)),
    ),
    "BENCH417": (
        seen(cell=engine(per_position=[0.8, 0.9])),
        seen(cell=engine(per_position=[0.9, 0.8])),
    ),
    "BENCH418": (seen(cell=engine(prefix_hits=1.3)), seen(cell=engine(prefix_hits=0.08))),
    "BENCH419": (seen(cell=engine(queue_s=-0.5)), seen(cell=engine(queue_s=0.5))),
    "BENCH420": (
        everyone(text=TEXT),
        seen(repeating(TEXT, 3)),
    ),
    "BENCH421": (
        seen(cell={"client": Client(events=1024, clock_apart_s=3600.0)}),
        seen(cell={"client": Client(events=1024, clock_apart_s=0.02)}),
    ),
    "BENCH422": (told(completed=20), seen()),
    "BENCH423": (seen(speculating(3)), seen(speculating(3), cell=drafts(3.01))),
}


def careless() -> Report:
    """A table that a script printed beside a server on an H100 (vLLM 0.24.0, 2026-11-27), and what
    the server's counters said afterwards: no warm-up, as many requests as ran at a time, most
    prompts cached, and sixteen at a time faster than one alone. What must not pass.
    """
    folder = Path(__file__).with_name("recorded")
    nothing = Metrics.parse(
        "# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total 0\n"
    )
    after = Metrics.parse((folder / "careless-h100-metrics.txt").read_text(encoding="utf-8"))
    account, _ = load.engine_delta(nothing, after, 60.0)
    cells = []
    for line in (folder / "careless-h100.table").read_text(encoding="utf-8").splitlines():
        slots, total, _, _, each, *_ = line.split()
        told = figures([])
        told.completed, told.out_tok_s, told.decode_tok_s = (
            int(slots),
            float(total),
            Summary.of([float(each)]),
        )
        cells.append(
            Cell(prompt_class="unknown", concurrency=int(slots), figures=told, engine=account)
        )
    return Report(
        date="2026-11-27",
        tool="a script",
        model="moe",
        engine="vLLM 0.24.0",
        machine="NVIDIA H100 80GB",
        cells=cells,
    )


def findings(example: Seen | Report) -> list[Finding]:
    """What the gate says of an example."""
    if isinstance(example, Seen):
        return list(gate.judge(example))
    judged = example.model_copy(deep=True)
    gate.compare_rows(judged)
    return list(judged.cells[0].findings)


def show(example: Seen | Report) -> str:
    """What is changed about the sound measurement: looks of the trace from left to right, values of
    the requests in their order.
    """
    if isinstance(example, Report):
        return "\n".join(
            f"c={c.concurrency:<3} {c.figures.decode_tok_s.median:g} tok/s a request"
            for c in example.cells
        )  # type: ignore[union-attr]
    sound, lines = seen(), []
    if example.trace != sound.trace and example.trace and sound.trace:
        for name in telemetry.Sample.__dataclass_fields__:
            mine, other = (
                [getattr(s, name) for s in t.samples] for t in (example.trace, sound.trace)
            )
            if mine != other:
                lines.append(
                    f"{name:14} " + "  ".join("–" if v is None else f"{v:g}" for v in mine)
                )
    for part in ("engine", "warm_up", "client", "interrupted"):
        mine, other = getattr(example.cell, part), getattr(sound.cell, part)
        if mine != other and not hasattr(mine, "model_dump"):
            lines.append(f"{part}: {'unknown' if mine is None else mine}")
        elif mine != other:
            known = other.model_dump()
            lines += [
                f"{part}.{k}: {_short(v)}" for k, v in mine.model_dump().items() if v != known[k]
            ]
    for name, of in _SHOWN.items():
        mine, other = ([of(r) for r in e.cell.requests] for e in (example, sound))
        if mine != other:
            lines.append(f"{name}: " + "  ".join(map(_short, mine)))
    given = figures(example.cell.requests, 4).model_dump()
    lines += [
        f"figures.{name}: {_short(value)}"
        for name, value in example.cell.figures.model_dump().items()
        if value != given[name]
    ]
    if example.roof:
        lines.append(f"roof: {example.roof}")
    words = [[len(text.split()) for text in e.prompts] for e in (example, sound)]
    if words[0] != words[1]:
        lines.append("words of the prompt: " + "  ".join(map(str, words[0])))
    repeated = [text for text in example.prompts if text in example.earlier]
    lines += [f"sent before: {', '.join(repeated)}"] if repeated else []
    lines += ["a counter of /metrics fell"] if example.restarted else []
    return "\n".join(lines) or "the sound measurement, nothing changed"


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
