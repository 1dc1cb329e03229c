"""The gate: verdicts, edges of its rules, and a published table that must not pass."""

import dataclasses
import json
from pathlib import Path

import pytest
from sparkbook.bench import gate, samples, telemetry
from sparkbook.bench.examples import (
    LOOP,
    TEXT,
    drafts,
    engine,
    request,
    seen,
    speculating,
    trace,
)
from sparkbook.bench.gate import BENCH, Seen
from sparkbook.bench.results import Summary, agreement
from sparkbook.bench.rules import method

DATA = Path(__file__).parents[1] / "data"


def codes(found):
    return {finding.rule for finding in found}


def test_a_healthy_measurement_is_valid():
    assert not gate.judge(seen())
    assert gate.verdict(gate.judge(seen())) == "valid"


@pytest.mark.parametrize(
    ("code", "expected"), [("BENCH101", "invalid"), ("BENCH304", "suspect"), ("BENCH312", "valid")]
)
def test_the_gravest_finding_makes_the_verdict(code, expected):
    assert gate.verdict(gate.judge(BENCH[code].example("fails"))) == expected


def test_what_was_not_seen_is_unknown_and_not_judged():
    blind = dataclasses.replace(
        seen(),
        trace=telemetry.Trace(tuple(telemetry.Sample(float(t)) for t in range(12)), 1.5, 9.5),
    )
    found = gate.judge(blind)
    assert codes(found) == {"BENCH211"} and gate.verdict(found) == "valid"


@pytest.mark.parametrize("looping", [LOOP, "hahahaha" * 80, "Yes.\n" * 60, "好的，" * 200])
def test_repetition_is_seen(looping):
    assert method.loops(looping)


@pytest.mark.parametrize(
    "fine",
    [
        TEXT,
        TEXT * 2,
        "",
        "short",
        "def f(x):\n    return x\n",
        " ".join(f"word{n} {n * n}" for n in range(200)),
    ],
)
def test_other_texts_are_not_taken_for_it(fine):
    assert not method.loops(fine)


def test_the_careless_h100_table_does_not_pass():
    report = samples.careless()
    assert all(cell.engine.prefix_hits == pytest.approx(0.887, abs=0.0005) for cell in report.cells)
    assert [cell.figures.out_tok_s for cell in report.cells] == [118.9, 394.3, 725.3, 2623.2]
    sent: set[str] = set()
    for cell in report.cells:
        prompts = tuple(f"prompt {n}" for n in range(cell.concurrency))
        gate.stamp(cell, gate.judge(Seen(cell, None, prompts, frozenset(sent))))
        sent.update(prompts)
    gate.compare_rows(report)
    assert {cell.verdict for cell in report.cells} == {"invalid"}
    assert {"BENCH204", "BENCH301", "BENCH305", "BENCH307", "BENCH308"} <= codes(
        report.cells[-1].findings
    )
    # And without the counters, by the figures alone: a 16-way request can't be faster than a single
    # one.
    bare = samples.careless()
    gate.compare_rows(bare)
    assert [cell.verdict for cell in bare.cells] == ["invalid"] * 4
    assert codes(bare.cells[0].findings) == {"BENCH308"}


def test_rows_that_slow_down_under_load_are_left_alone():
    report = samples.careless()
    for cell, speed in zip(report.cells, (119.0, 99.0, 91.0, 60.0), strict=True):
        cell.figures.decode_tok_s = Summary.of([speed])
    gate.compare_rows(report)
    assert {cell.verdict for cell in report.cells} == {"valid"}


def test_a_little_faster_under_load_is_suspect():
    """As a small model on an H100 was, whose steps wait for the host's CPU: 328 tok/s at c=4 and
    418 at c=8.
    """
    report = samples.careless()
    report.cells = report.cells[1:3]
    for cell, speed in zip(report.cells, (328.0, 418.0), strict=True):
        cell.figures.decode_tok_s = Summary.of([speed])
    gate.compare_rows(report)
    assert [cell.verdict for cell in report.cells] == ["suspect", "suspect"]


def test_speculation_that_accepts_more_is_not_a_faster_machine():
    """Two rows with other texts: 2 and 3 tokens a step, the step a little slower under load."""
    report = samples.careless()
    report.cells = report.cells[:2]
    for cell, speed, length in zip(report.cells, (40.0, 57.0), (2.0, 3.0), strict=True):
        cell.figures.decode_tok_s, cell.figures.tok_per_step = Summary.of([speed]), length
    gate.compare_rows(report)
    assert {cell.verdict for cell in report.cells} == {"valid"}


def test_a_recorded_trace_is_read_back(tmp_path):
    file = tmp_path / "trace"
    file.write_text(
        "".join(json.dumps(dataclasses.asdict(s)) + "\n" for s in trace().samples)
        + '{"t_s": 13, "clo'
    )
    recorded = telemetry.Recorded.read(file)
    assert recorded.trace(1.5, 9.5) == trace()
    told = trace().summary()
    assert (told.samples, told.clock_mhz, told.power_w, told.swapped_mib, told.load_before) == (
        8,
        2400.0,
        60.0,
        0.0,
        0.02,
    )


def test_merged_steps_are_told_from_wrong_acceptance():
    """The engine's own count of steps decides: 336 steps in 336 events, or in 300 of them because
    the server sent some together.
    """
    fine = gate.judge(seen(speculating(3), cell=drafts(3.05, steps=336.0, first_tokens=16.0)))
    assert "BENCH209" not in codes(fine)
    merged = next(
        f
        for f in gate.judge(seen(speculating(3), cell=drafts(2.8, steps=374.0, first_tokens=16.0)))
        if f.rule == "BENCH209"
    )
    assert "336 events against 374 steps" in merged.evidence
    # In a reply's last step the engine accepts more than the reply takes: 16 replies and K = 4
    # allow for 64 tokens, not for 200.
    assert "BENCH209" not in codes(
        gate.judge(seen(speculating(3), cell=drafts(3 + 60 / 336, steps=336.0, first_tokens=16.0)))
    )
    assert "BENCH209" in codes(
        gate.judge(seen(speculating(3), cell=drafts(3 + 200 / 336, steps=336.0, first_tokens=16.0)))
    )


def test_what_client_and_engine_agree_on():
    """By hand: 16 replies of 64 tokens, events every 20 ms after 100 ms; the engine's sums of the
    same.
    """
    told = engine(steps=16 * 63.0, first_tokens=16.0, ttft_s=0.097, decode_s=16 * 63 * 0.0199)
    found = agreement(seen(cell=told).cell)
    assert list(found) == ["tokens", "tokens a step", "tpot_s", "ttft_s"]
    assert (found["tokens"].client, found["tokens"].apart, found["tokens a step"].apart) == (
        1024,
        0,
        0,
    )
    assert found["tpot_s"].client == pytest.approx(0.02) and found["tpot_s"].apart == pytest.approx(
        0.02 / 0.0199 - 1
    )
    assert found["ttft_s"].client == pytest.approx(0.1) and found["ttft_s"].engine == 0.097
    assert not agreement(seen(cell={**told, "interrupted": True}).cell) and not agreement(
        seen(cell={"engine": None}).cell
    )
    thin = [
        r.model_copy(update={"stamps_s": [r.stamps_s[0], r.stamps_s[-1]], "chunk_tokens": [1]})
        for r in seen().cell.requests
    ]
    assert list(agreement(seen(thin, cell=told).cell)) == ["tokens", "tpot_s", "ttft_s"]


def test_a_stream_that_comes_in_one_piece_is_no_measurement():
    lumps = [
        request(n, stamps_s=[0.1] * 8, chunk_tokens=[8] * 8, output_tokens=64) for n in range(16)
    ]
    found = {f.rule: f for f in gate.judge(seen(lumps))}
    assert found["BENCH304"].severity == "error" and "in one piece" in found["BENCH304"].message
