"""What the examples of the gate's rules are made of: one sound measurement (16 requests, 4 at a
time, on a GPU at 2,400 MHz) and changes of what a rule looks at. A trace has a look each second:
two before the load, eight during it, two after it.
"""

from __future__ import annotations

from typing import Any

from sparkbook.bench import telemetry
from sparkbook.bench.results import Cell, Client, Engine, Report, Request, Summary, WarmUp, figures
from sparkbook.bench.roof import Roof
from sparkbook.bench.seen import Seen

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
    """Return the n-th request; times in seconds."""
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
    """Return two looks before, eight during, two after; what is given replaces fields, a function
    gets the number of the look.
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
    """Return the sound measurement with changes."""
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
    """Return the engine's account with changes, as a field of the cell."""
    values = {
        "generation_tokens": 1024,
        "prompt_tokens": 960,
        "preemptions": 0,
        "prefix_hits": 0.02,
    }
    return {"engine": Engine(**{**values, **changes})}


def spread(factor: float) -> list[Request]:
    """Return requests of which every second one has steps `factor` times as long."""
    return [request(n, step=0.02 * (factor if n % 2 else 1)) for n in range(16)]


def speculating(tokens_a_chunk: int) -> list[Request]:
    """Return replies in events of several tokens."""
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
    """Return the account of an engine whose steps yield so many tokens."""
    return engine(
        drafts=336,
        drafted=1344,
        accepted=336 * (length - 1),
        mean_length=length,
        generation_tokens=16 * 64,
        **more,
    )


LOOP = "and so on and " * 40

SMALL = Roof(step_bytes=1.5e9, token_flops=24e9)


def everyone(cell: Changes = None, **changes: Any) -> Seen:
    """Return the sound measurement with the same change of each request."""
    return seen([request(n, **changes) for n in range(16)], cell=cell)


def repeating(text: str, count: int) -> list[Request]:
    """Return sixteen requests, so many of them answered with the same text."""
    return [request(n, text=text) if n < count else request(n) for n in range(16)]


def stating(**changes: Any) -> Seen:
    """Return the sound measurement with figures that its requests do not give."""
    sound = seen().cell.figures
    return seen(cell={"figures": sound.model_copy(update=changes)})


def prompts(words: int) -> tuple[str, ...]:
    """Return sixteen prompts of so many words."""
    return tuple(" ".join(["word"] * (words - 1) + [f"n{n}"]) for n in range(16))


def rows(slow: float, fast: float) -> Report:
    """Return one request at a time and sixteen, with the tok/s of a request."""
    cells = []
    for slots, speed in ((1, slow), (16, fast)):
        summary = figures([])
        summary.decode_tok_s = Summary.of([speed])
        cells.append(Cell(prompt_class="code", concurrency=slots, figures=summary))
    return Report(date="2026-11-27", tool="example", model="example", cells=cells)
