"""The estimates against every published figure that the model covers: the halves, the errors, the
intervals, and that the numbers in use are those that the calibration half gives.
"""

import hashlib
import json
import runpy
from pathlib import Path

import pytest
from sparkbook import recipes
from sparkbook.plan import speeds
from sparkbook.plan.speeds import Outcome

OUTCOMES = speeds.outcomes()
TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools/build_runs.py"))


def held_out(kind: str, least: int = 1, most: int = 64, prompt: int = 0) -> list[Outcome]:
    return [
        o
        for o in OUTCOMES
        if o.figure.group == "held out"
        and o.figure.kind == kind
        and least <= o.figure.concurrency <= most
        and o.figure.context >= prompt
    ]


def test_the_halves_are_those_of_a_hash_of_the_configuration():
    for outcome in OUTCOMES:
        name = f"1 {outcome.figure.configuration}"
        even = hashlib.sha256(name.encode()).digest()[0] % 2 == 0
        assert outcome.figure.group == ("calibration" if even else "held out")
    names = {o.figure.configuration for o in OUTCOMES}
    held = {o.figure.configuration for o in OUTCOMES if o.figure.group == "held out"}
    assert len(names) == 37
    assert len(held) == 19


def test_the_numbers_in_use_are_what_the_calibration_half_gives():
    assert speeds.calibrate() == speeds.FITTED


def test_the_fit_reads_nothing_of_the_held_out_half(monkeypatch: pytest.MonkeyPatch):
    mine = tuple(f for f in speeds.all_figures() if f.group == "calibration")
    monkeypatch.setattr(speeds, "all_figures", lambda: mine)
    assert speeds.calibrate() == speeds.FITTED


@pytest.mark.parametrize(
    ("kind", "least", "most", "prompt", "bound"),
    [
        ("decode", 1, 1, 0, 0.11),
        ("decode", 8, 64, 0, 0.15),
        ("first token", 1, 1, 8000, 0.20),
    ],
)
def test_median_errors_of_the_held_out_half(kind, least, most, prompt, bound):
    found = held_out(kind, least, most, prompt)
    assert len(found) >= 10
    assert speeds.median_error(found) <= bound


@pytest.mark.parametrize("group", ["calibration", "held out"])
def test_intervals_hold_nine_of_ten(group):
    mine = [o for o in OUTCOMES if o.figure.group == group]
    assert speeds.held_share(mine) >= 0.9
    assert speeds.held_share([o for o in mine if o.figure.kind == "decode"]) >= 0.9


def test_no_interval_says_nothing():
    for outcome in OUTCOMES:
        low, high = outcome.bounds
        assert high / low < (4 if outcome.figure.plain else 8.5), outcome.figure.id


def test_large_errors_of_decode_are_explained():
    for outcome in OUTCOMES:
        if outcome.figure.kind == "decode" and abs(outcome.error) > 0.26:
            assert outcome.figure.note, outcome.figure.id


def test_figures_have_one_id_each_and_a_source():
    labels = [o.figure.label for o in OUTCOMES]
    assert len(labels) == len(set(labels))
    assert all(o.figure.source.url and o.figure.setup for o in OUTCOMES)


def test_more_requests_than_the_server_takes_are_no_figure():
    assert max(run["concurrency"] for one in speeds.runs() for run in one["runs"]) == 64
    assert max(o.figure.concurrency for o in OUTCOMES) == 32


def test_several_sparks_share_a_step():
    two = next(o.figure for o in OUTCOMES if o.figure.id == "qwen3.8-27b-nvfp4-dflash2-2x")
    one = next(o.figure for o in OUTCOMES if o.figure.id == "qwen3.8-27b-nvfp4-dflash2")
    parts, alone = two.estimate().step, one.estimate().step
    assert parts.weights_s == pytest.approx(alone.weights_s / 2)
    assert parts.overhead_s == alone.overhead_s
    assert parts.network_s > 0 == alone.network_s


def test_a_block_draft_reads_its_weights_once():
    for name in ("nemotron-3.5-lightning-30b-a3b-nvfp4-dspark", "qwen3.8-27b-nvfp4-dflash2"):
        figure = next(o.figure for o in OUTCOMES if o.figure.id == name)
        assert figure.served.draft.passes == 1


def test_a_prediction_layer_of_experts_reads_those_of_its_tokens():
    figure = next(o.figure for o in OUTCOMES if o.figure.id == "qwen3.5-122b-a10b-nvfp4-mtp")
    draft = figure.served.draft
    assert draft.weights + draft.routed < 1e9  # of a layer of 5 GB


# ---- what a page shows


def test_a_recipe_shows_what_others_measured_its_own_line_first():
    shown = speeds.published(recipes.load("qwen3.8-27b-nvfp4-mtp"))
    assert [one.concurrency for one in shown] == sorted(one.concurrency for one in shown)
    assert {"https://github.com/0xBakeer/inference-atlas"} & {
        one.source.url[:43] for one in shown if one.source.url
    }
    line = str(speeds.published(recipes.load("qwen3.8-27b-nvfp4-dflash2"))[0])
    assert line.startswith("24.3 tok/s each (1 request, prompt of 8,192 tokens; NVIDIA")


def test_figures_of_other_machines_are_not_shown():
    assert all(
        one.tok_s < 1000 for one in speeds.published(recipes.load("diffusiongemma-26b-a4b-nvfp4"))
    )
    two = speeds.published(recipes.load("qwen3.8-27b-nvfp4-dflash2-2x"))
    assert [round(one.tok_s, 2) for one in two] == [37.35]


# ---- the file that a tool writes


def test_the_tool_writes_what_a_run_says(tmp_path: Path):
    model = tmp_path / "models/ORG/M/quants"
    model.mkdir(parents=True)
    (model / "q.json").write_text('{"hf_id": "ORG/M-Q"}')
    metrics = {
        "requests_ok": 2,
        "input_tokens_total": 20,
        "output_tokens_total": 8,
        "output_tok_s": 5.0,
        "tpot_ms": {"mean": 20.0},
        "itl_ms": {"mean": 50.0},
        "ttft_ms": {"p50": 1.0, "p90": 9.0},
    }
    run = {
        "config_id": "abc",
        "kind": "prefill",
        "engine": {"version": "0.27.1", "container": "image:1 (digest)"},
        "model": {"id": "ORG/M", "quant_id": "q", "revision": None},
        "hardware": {"count": 1},
        "args": {"max-num-seqs": 4, "vllm-x": 1, "trust-remote-code": False, "a": {"b": 1}},
        "workload": {"resolved_params": {"concurrency": 1}},
        "metrics": metrics,
        "provenance": {"started_at": "2026-09-16T22:17:06Z"},
    }
    place = tmp_path / "results/vllm/ORG/M/nvidia-gb10-dgx-spark"
    place.mkdir(parents=True)
    (place / "abc--prefill.json").write_text(json.dumps(run))
    (place / "abc--eval.json").write_text(json.dumps(run | {"kind": "eval"}))
    (one,) = TOOL["configurations"](tmp_path)
    assert one["line"] == (
        "vllm serve ORG/M-Q --max-num-seqs 4 --no-trust-remote-code --a '{\"b\": 1}'"
    )
    assert (one["image"], one["date"]) == ("image:1", "2026-09-16")
    (row,) = one["runs"]
    assert (row["prompt"], row["ttft_ms"]) == (10, 9.0), "a prefix cache: the miss counts"
    assert json.loads(TOOL["text"]([one])) == [one]


def test_the_committed_file_is_of_the_tool_s_form():
    text = TOOL["OUT"].read_text("utf-8")
    assert TOOL["text"](json.loads(text)) == text
