"""The gate: every rule has a case that trips it and a twin, one step back, that does not; and a published table that must not pass."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from sparkbook.bench import gate, load, telemetry
from sparkbook.bench.gate import RULES, Seen
from sparkbook.bench.results import Cell, Client, Engine, Report, Request, Summary, WarmUp, figures
from sparkbook.metrics import Metrics

DATA = Path(__file__).parents[1] / "data"
TEXT = "The gate opens at nine and the keeper writes down who comes, from where and with how many horses; " \
       "then he looks at the sky, guesses the weather of the evening, and closes the book until somebody knocks again."  # fmt: skip


def request(n=0, ttft=0.1, step=0.02, tokens=64, text=TEXT, **more):
    values = {
        "prompt": f"code-{n:03}", "slot": n % 4, "start_s": 1.4 * (n // 4), "ttfr_s": ttft, "ttft_s": ttft, "ttfo_s": ttft,
        "latency_s": ttft + step * (tokens - 1), "stamps_s": [ttft + step * i for i in range(tokens)], "chunk_tokens": [1] * tokens,
        "prompt_tokens": 60, "output_tokens": tokens, "id_tokens": tokens, "count_from": "usage", "finish": "length", "text": text,
    }  # fmt: skip
    return Request(**{**values, **more})


def trace(during=None, before=None, after=None, all_=None):
    """Two looks before, eight during, two after; what is given replaces fields, a function gets the number of the look."""
    base = {
        "clock_mhz": 2400.0, "clock_max_mhz": 3003.0, "power_w": 60.0, "temperature_c": 65.0, "gpu_busy": 0.95, "reasons": 0,
        "available_gib": 30.0, "swapped_mib": 100.0, "cpu_busy": 0.3, "running": 4.0, "waiting": 0.0,
    }  # fmt: skip
    idle = {"clock_mhz": 208.0, "power_w": 5.0, "gpu_busy": 0.0, "cpu_busy": 0.02, "running": 0.0, "reasons": 1}
    samples = []
    for t in range(12):
        phase = before if t < 2 else after if t > 9 else during
        values = {**base, **({} if 2 <= t <= 9 else idle), **(all_ or {}), **(phase or {})}
        samples.append(telemetry.Sample(float(t), **{k: v(t) if callable(v) else v for k, v in values.items()}))
    return telemetry.Trace(tuple(samples), 1.5, 9.5)


def seen(requests=None, trace_=None, cell=None, **more):
    requests = requests if requests is not None else [request(n) for n in range(16)]
    values = {
        "prompt_class": "code", "concurrency": 4, "max_tokens": 64, "figures": figures(requests, 4), "requests": requests,
        "warm_up": WarmUp(ttfts_s=[0.9, 0.1, 0.1], settled=True), "client": Client(events=1024, cpu_s=0.05, lag_p99_s=0.001),
        "engine": Engine(generation_tokens=1024, prompt_tokens=960, preemptions=0, prefix_hits=0.02),
    }  # fmt: skip
    prompts = more.pop("prompts", tuple(f"prompt {n}" for n in range(16)))
    return Seen(Cell(**{**values, **(cell or {})}), trace_ or trace(), prompts, **more)


def engine(**changes):
    values = {"generation_tokens": 1024, "prompt_tokens": 960, "preemptions": 0, "prefix_hits": 0.02}
    return {"engine": Engine(**{**values, **changes})}


def spread(factor):
    return [request(n, step=0.02 * (factor if n % 2 else 1)) for n in range(16)]


def speculating(tokens_a_chunk):
    requests = []
    for n in range(16):
        chunks = [1] + [tokens_a_chunk] * 21
        requests.append(
            request(n, chunk_tokens=chunks, stamps_s=[0.1 + 0.05 * i for i in range(22)], output_tokens=sum(chunks), id_tokens=sum(chunks))
        )
    return requests


def drafts(length):
    return engine(drafts=336, drafted=1344, accepted=336 * (length - 1), mean_length=length, generation_tokens=16 * 64)


LOOP = "and so on and " * 40
CASES = {
    "BENCH101": (seen(trace_=trace({"clock_mhz": 799.0, "power_w": 20.0})), seen(trace_=trace({"clock_mhz": 1600.0}))),
    "BENCH102": (seen(trace_=trace({"reasons": lambda t: 0x40 if t > 6 else 0})), seen(trace_=trace({"reasons": 0x2}))),
    "BENCH103": (seen(trace_=trace({"reasons": lambda t: 0x4 * (t % 2)})), seen(trace_=trace({"reasons": lambda t: 0x4 * (t == 3)}))),
    "BENCH104": (
        seen(trace_=trace({"clock_mhz": lambda t: 2400.0 if t < 6 else 2200.0})),
        seen(trace_=trace({"clock_mhz": lambda t: 2400.0 if t < 6 else 2350.0})),
    ),
    "BENCH105": (seen(trace_=trace({"temperature_c": 88.0})), seen(trace_=trace({"temperature_c": 80.0}))),
    "BENCH111": (seen(trace_=trace(before={"cpu_busy": 0.6})), seen(trace_=trace(before={"cpu_busy": 0.1}))),
    "BENCH112": (seen(trace_=trace({"available_gib": 0.9})), seen(trace_=trace({"available_gib": 3.0}))),
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
    "BENCH206": (seen(cell=engine(generation_tokens=1300)), seen(cell=engine(generation_tokens=1036))),
    "BENCH207": (seen([request(n, id_tokens=60) for n in range(16)]), seen([request(n, id_tokens=63) for n in range(16)])),
    "BENCH208": (
        seen([request(n, output_tokens=None, id_tokens=None, chunk_tokens=None, count_from="unknown") for n in range(16)]),
        seen([request(n, id_tokens=None, chunk_tokens=None) for n in range(16)]),
    ),
    "BENCH209": (seen(speculating(3), cell=drafts(3.2)), seen(speculating(3), cell=drafts(3.01))),
    "BENCH210": (seen(cell={"engine": None}), seen()),
    "BENCH211": (seen(trace_=trace(all_={"clock_mhz": None}, during={"clock_mhz": None})), seen()),
    "BENCH301": (seen(cell={"warm_up": None}), seen()),
    "BENCH302": (seen(cell={"warm_up": WarmUp(ttfts_s=[9.0, 5.0, 3.0])}), seen()),
    "BENCH303": (seen([request(n, ttft=31.0 if n == 3 else 0.1) for n in range(16)]), seen([request(n, ttft=2.0) for n in range(16)])),
    "BENCH304": (seen(spread(1.12)), seen(spread(1.03))),
    "BENCH305": (seen([request(n) for n in range(7)]), seen([request(n) for n in range(8)])),
    "BENCH306": (seen([request(n, tokens=7) for n in range(16)]), seen([request(n, tokens=20) for n in range(16)])),
    "BENCH307": (seen(earlier=frozenset({"prompt 3"})), seen(earlier=frozenset({"prompt 99"}))),
    "BENCH309": (
        seen([request(n, error="the connection broke" if n == 0 else None) for n in range(16)]),
        seen(),
    ),
    "BENCH310": (seen(cell={"client": Client(lag_p99_s=0.012)}), seen(cell={"client": Client(lag_p99_s=0.003)})),
    "BENCH311": (
        seen([request(n, text=LOOP if n < 10 else TEXT) for n in range(16)]),
        seen([request(n, text=LOOP if n < 2 else TEXT) for n in range(16)]),
    ),
    "BENCH312": (seen(cell={"interrupted": True}), seen()),
}  # fmt: skip


def codes(found):
    return {finding.rule for finding in found}


@pytest.mark.parametrize("code", CASES)
def test_a_rule_trips_and_its_twin_does_not(code):
    tripping, twin = CASES[code]
    assert code in codes(gate.judge(tripping))
    assert code not in codes(gate.judge(twin))


def test_every_rule_has_a_case_or_looks_at_rows():
    assert sorted({*CASES, "BENCH308"}) == sorted(RULES)
    assert [rule.code for rule in RULES.values() if rule.judge is None] == ["BENCH308"]


def test_a_healthy_measurement_is_valid():
    assert not gate.judge(seen())
    assert gate.verdict(gate.judge(seen())) == "valid"


@pytest.mark.parametrize(("code", "expected"), [("BENCH101", "invalid"), ("BENCH304", "suspect"), ("BENCH312", "valid")])
def test_the_gravest_finding_makes_the_verdict(code, expected):
    assert gate.verdict(gate.judge(CASES[code][0])) == expected


def test_examples_are_what_the_gate_says():
    """Figures aside, the example in the table is the message that the rule writes."""
    for code, (tripping, _) in CASES.items():
        message = next(f.message for f in gate.judge(tripping) if f.rule == code)
        assert re.sub(r"[\d.]+", "#", message) == re.sub(r"[\d.]+", "#", RULES[code].example)


def test_what_was_not_seen_is_unknown_and_not_judged():
    blind = dataclasses.replace(seen(), trace=telemetry.Trace(tuple(telemetry.Sample(float(t)) for t in range(12)), 1.5, 9.5))
    found = gate.judge(blind)
    assert codes(found) == {"BENCH211"} and gate.verdict(found) == "valid"


@pytest.mark.parametrize("looping", [LOOP, "hahahaha" * 80, "Yes.\n" * 60, "好的，" * 200])
def test_repetition_is_seen(looping):
    assert gate.loops(looping)


@pytest.mark.parametrize(
    "fine", [TEXT, TEXT * 2, "", "short", "def f(x):\n    return x\n", " ".join(f"word{n} {n * n}" for n in range(200))]
)
def test_other_texts_are_not_taken_for_it(fine):
    assert not gate.loops(fine)


def published_rows():
    """The table that a careless script printed beside the H100 capture: no warm-up, prompts repeated, most of them cached."""
    after = Metrics.parse((DATA / "bench" / "h100-0.24.0-moe-after.txt").read_text())
    before = Metrics.parse("# TYPE vllm:generation_tokens counter\nvllm:generation_tokens_total 0\n")
    account, restarted = load.engine_delta(before, after, 60.0)
    assert not restarted and account.prefix_hits == pytest.approx(0.887, abs=0.0005)
    cells = []
    for line in (DATA / "bench" / "h100-0.24.0-moe.table").read_text().splitlines():
        concurrency, total, _, _, each, *_ = line.split()
        rates = figures([])
        rates.completed, rates.out_tok_s = int(concurrency), float(total)
        rates.decode_tok_s = Summary.of([float(each)])
        cells.append(Cell(prompt_class="unknown", concurrency=int(concurrency), figures=rates, engine=account))
    return Report(date="2026-11-27", tool="a script", model="moe", engine="vLLM 0.24.0", machine="NVIDIA H100 80GB", cells=cells)


def test_the_careless_h100_table_does_not_pass():
    report = published_rows()
    assert [cell.figures.out_tok_s for cell in report.cells] == [118.9, 394.3, 725.3, 2623.2]
    sent: set[str] = set()
    for cell in report.cells:
        prompts = tuple(f"prompt {n}" for n in range(cell.concurrency))
        gate.stamp(cell, gate.judge(Seen(cell, None, prompts, frozenset(sent))))
        sent.update(prompts)
    gate.compare_rows(report)
    assert {cell.verdict for cell in report.cells} == {"invalid"}
    assert {"BENCH204", "BENCH301", "BENCH305", "BENCH307", "BENCH308"} <= codes(report.cells[-1].findings)
    # And without the counters, by the figures alone: a 16-way request can't be faster than a single one.
    bare = published_rows()
    gate.compare_rows(bare)
    assert [cell.verdict for cell in bare.cells] == ["invalid"] * 4
    assert codes(bare.cells[0].findings) == {"BENCH308"}


def test_rows_that_slow_down_under_load_are_left_alone():
    report = published_rows()
    for cell, speed in zip(report.cells, (119.0, 99.0, 91.0, 60.0), strict=True):
        cell.figures.decode_tok_s = Summary.of([speed])
    gate.compare_rows(report)
    assert {cell.verdict for cell in report.cells} == {"valid"}


def test_a_little_faster_under_load_is_suspect():
    """As a small model on an H100 was, whose steps wait for the host's CPU: 328 tok/s at c=4 and 418 at c=8."""
    report = published_rows()
    report.cells = report.cells[1:3]
    for cell, speed in zip(report.cells, (328.0, 418.0), strict=True):
        cell.figures.decode_tok_s = Summary.of([speed])
    gate.compare_rows(report)
    assert [cell.verdict for cell in report.cells] == ["suspect", "suspect"]


def test_speculation_that_accepts_more_is_not_a_faster_machine():
    """Two rows with other texts: 2 and 3 tokens a step, the step a little slower under load."""
    report = published_rows()
    report.cells = report.cells[:2]
    for cell, speed, length in zip(report.cells, (40.0, 57.0), (2.0, 3.0), strict=True):
        cell.figures.decode_tok_s, cell.figures.tok_per_step = Summary.of([speed]), length
    gate.compare_rows(report)
    assert {cell.verdict for cell in report.cells} == {"valid"}


def test_a_recorded_trace_is_read_back(tmp_path):
    file = tmp_path / "trace"
    file.write_text("".join(json.dumps(dataclasses.asdict(s)) + "\n" for s in trace().samples) + '{"t_s": 13, "clo')
    recorded = telemetry.Recorded.read(file)
    assert recorded.trace(1.5, 9.5) == trace()
    told = trace().summary()
    assert (told.samples, told.clock_mhz, told.power_w, told.swapped_mib, told.load_before) == (8, 2400.0, 60.0, 0.0, 0.02)


def test_a_stream_that_comes_in_one_piece_is_no_measurement():
    lumps = [request(n, stamps_s=[0.1] * 8, chunk_tokens=[8] * 8, output_tokens=64) for n in range(16)]
    found = {f.rule: f for f in gate.judge(seen(lumps))}
    assert found["BENCH304"].severity == "error" and "in one piece" in found["BENCH304"].message
