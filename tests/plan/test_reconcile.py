"""A plan beside an engine's log: recorded logs, the report with a negative estimate, and the
calibration that is kept.
"""

import dataclasses
import json
from pathlib import Path

import pytest
from sparkbook import checkpoint, logs, plan
from sparkbook.checkpoint.values import Cache, Checkpoint, Geometry, Range
from sparkbook.errors import SparkbookError
from sparkbook.plan.reconcile import load_calibration, reconcile, save_calibration
from sparkbook.plan.rules import PLAN
from sparkbook.plan.setup import Host, Setup

GIB = 2**30
RECORDED = Path(logs.__file__).parent / "recorded"
H100 = Host(round(79.11 * GIB), Range.of(78 * GIB))


def story(text):
    return logs.diagnose(text).story


def model(gib, caches=(), context=262144):
    weights = (checkpoint.Weights("mlp", "bf16", Range.of(1), Range.of(gib * GIB)),)
    return Checkpoint(
        "ORG/MODEL", None, None, Geometry(48, 2048, 151936, tuple(caches), context=context), weights
    )


def moe():
    caches = (Cache("full", 48, 4, 128, 128),)
    return Setup(model(29.06, caches), 16384, 16, 0.9, kv_dtype="fp8", release="0.24.0")


def recorded():
    return story((RECORDED / "h100-moe.log").read_text("utf-8"))


def test_a_recorded_start_lies_inside_the_plan():
    told = recorded()
    assert (told.kv_tokens, told.kv_gib, told.weights_gib) == (897_664, 41.09, 29.06)
    found = reconcile(plan.plan(moe(), H100), told)
    assert {row.name: row.inside for row in found.rows} == {
        "weights": True,
        "KV cache": True,
        "KV tokens": True,
        "maximum concurrency": True,
    }
    assert found.tokens_for_memory.low <= 897_664 <= found.tokens_for_memory.high
    assert not found.findings


def test_what_a_log_shows_is_used_from_then_on(tmp_path):
    told, file = recorded(), tmp_path / "calibration.json"
    first = plan.plan(moe(), H100)
    found = reconcile(first, told)
    assert found.working == pytest.approx(
        H100.total * 0.9 - (29.06 + 41.09 + 0.06) * GIB, abs=0.02 * GIB
    )
    save_calibration(file, found.calibration)
    kept = load_calibration(file)
    assert kept == found.calibration
    second = plan.plan(moe(), H100, kept)
    assert second.kv.high - second.kv.low < (first.kv.high - first.kv.low) / 10
    assert 41.09 * GIB in second.kv
    again = reconcile(second, told)
    assert again.calibration.samples == 2
    assert again.calibration.working == pytest.approx(kept.working)


def test_no_file_means_the_general_figures_and_a_bad_one_is_refused(tmp_path):
    assert load_calibration(tmp_path / "none.json") == plan.Calibration()
    for text in (
        "{",
        "[]",
        '{"weights": 1}',
        json.dumps({"weights": "x", "working": 1, "graphs": 1, "samples": 1}),
        json.dumps({"weights": 0, "working": 1, "graphs": 1, "samples": 1}),
    ):
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(SparkbookError, match=r"is no calibration|is not JSON"):
            load_calibration(tmp_path / "bad.json")


NEGATIVE = """\
INFO Model loading took 22.4 GiB memory and 88.120000 seconds
INFO Loading drafter model...
INFO Estimated CUDA graph memory: -35.69 GiB total
INFO Available KV cache memory: 93.33 GiB
INFO GPU KV cache size: 4,812,032 tokens, Maximum concurrency for 262,144 tokens per request: 18.36x
"""


def test_a_negative_estimate_is_the_fault_and_calibrates_nothing():
    """0.70 of 121.63 is 85.14; 85.14 - 22.40 - 5.10 + 35.69 = 93.33:
    https://github.com/vllm-project/vllm/issues/54200.
    """
    setup = Setup(model(22.4, (Cache("full", 10, 2, 256, 256),)), 262144, 8, 0.70, release="0.30.0")
    planned = plan.plan(setup, Host(), plan.Calibration(working=5.10 * GIB, graphs=0.0))
    assert f"{planned.requested / GIB:.2f}" == "85.14"
    told = story(NEGATIVE)
    found = reconcile(planned, told)
    worst = found.findings[0]
    assert (worst.rule, worst.severity) == ("PLAN110", "error")
    assert "120.8 of 121.6" in worst.message
    assert "57.6" in worst.message
    assert "--kv-cache-memory-bytes" in worst.fix
    assert "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0" in worst.fix
    assert f"{found.working / GIB:.2f}" == "5.10", "the log's own figures give it back"
    assert found.calibration == planned.calibration
    honest = planned.kv
    assert honest.low < 57.64 * GIB < honest.high


def test_differences_are_told_apart():
    told = recorded()
    heavier = dataclasses.replace(moe(), checkpoint=model(20.0, (Cache("full", 48, 4, 128, 128),)))
    messages = [f.message for f in reconcile(plan.plan(heavier, H100), told).findings]
    assert any(
        m.startswith("The weights take 29.06 GiB in the log, and 20.00 in the plan")
        for m in messages
    )
    assert any("because of the weights" in m for m in messages)
    assert any("the pages agree" in m for m in messages)
    wide = reconcile(plan.plan(dataclasses.replace(moe(), kv_dtype="auto"), H100), told).findings
    assert any(
        m.message.startswith("The KV cache has 897,664 tokens in the log")
        and "(+100.0%)" in m.message
        for m in wide
    )
    other = reconcile(plan.plan(dataclasses.replace(moe(), context=8192), H100), told).findings
    assert any("--context 16384" in (f.fix or "") for f in other)
    assert {f.rule for f in [*wide, *other]} <= set(PLAN.rules)


def test_a_log_without_figures_is_refused():
    with pytest.raises(SparkbookError, match="does not report weights"):
        reconcile(plan.plan(moe(), H100), story("INFO hello\n"))
