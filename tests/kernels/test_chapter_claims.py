"""What chapter 14 rests on: its claims in the register, the recorded instructions against the
compiler, weights and the pictures.
"""

from __future__ import annotations

import numpy as np
import pytest
from sparkbook.errors import SparkbookError
from sparkbook.kernels import build, instructions, records, reference, roofline, weights24
from sparkbook.plots import kernels as plots
from sparkbook.register import claims
from sparkbook.runner import notebooks

ROOT = build.sources().parent
CHAPTER = ROOT / "notebooks" / "14_nvfp4_claims.ipynb"


def test_every_claim_that_can_be_executed_is_reported_by_the_chapter_with_its_verdict():
    mine = [
        claim for claim in claims.registers()["nvfp4"].claims if claim.executable and not claim.test
    ]
    assert claims.reported(notebooks.read(CHAPTER)) == {claim.id: claim.verdict for claim in mine}
    assert {claim.executed_by for claim in mine} == {CHAPTER.stem} and notebooks.engine_of(
        CHAPTER
    ) == "none"


def test_the_registers_entries_are_in_order():
    for claim in claims.registers()["nvfp4"].claims:
        assert (
            claim.id.startswith("nvfp4-")
            and claim.statement.endswith(".")
            and claim.check.endswith((".", ")."))
        ), claim.id
        for one in claim.where:
            assert one.startswith("models/") or (ROOT / "notebooks" / f"{one}.ipynb").is_file(), (
                claim.id,
                one,
            )


@pytest.mark.nvcc
def test_recorded_instructions_are_what_the_compiler_says():
    now, before = instructions.table(), instructions.recorded()
    assert {i: {t: a.accepted for t, a in row.items()} for i, row in now.items()} == {
        i: {t: a.accepted for t, a in row.items()} for i, row in before.items()
    }
    name = "cvt.rn.satfinite.e2m1x2.f32"
    assert instructions.ask(name, "sm_121f", disassemble=True) == before[name]["sm_121f"]
    assert "not supported on .target 'sm_121'" in instructions.ask(name, "sm_121").says
    facts = instructions.facts()
    assert facts["architecture"] == {
        target: instructions.architecture(target) for target in facts["architecture"]
    }
    assert instructions.has_fp4_header() is facts["fp4_header"]


def test_without_a_compiler_nothing_is_asked(monkeypatch):
    def none():
        raise SparkbookError("no CUDA compiler")

    monkeypatch.setattr(build, "find_toolchain", none)
    assert instructions.compiler() is None
    with pytest.raises(SparkbookError, match="no CUDA compiler"):
        instructions.ask("tcgen05.alloc", "sm_121")


def test_pruning_is_measured_as_defined():
    weights = np.zeros((1, 16), np.float32)
    weights[0, :4] = [6, -4, 2, 1]  # one group of four values, three of zeros
    found = weights24.of(weights)
    assert found.lossless == 0.75 and found.zeros == 0.75 and found.quantization < 1e-12
    assert found.pruning == pytest.approx(5 / 57)  # 2 and 1 of 6, 4, 2, 1
    assert weights24.of(weights24.pruned_before(weights)).pruning == 0
    both = weights24.together([weights, np.ones((3, 16), np.float32)])
    assert both.lossless == pytest.approx(0.75 / 4)


def test_the_comparisons_differ_from_the_hardware_for_nan_alone():
    bits = weights24.telling_bits()
    assert np.array_equal(weights24.by_comparisons(bits), weights24.hardware(bits))
    assert not np.isnan(bits.view(np.float32)).any() and bits.size > 2e6
    nan = np.uint32([0x7FC00000, 0xFFC00000])
    assert weights24.by_comparisons(nan).tolist() == [7, 15] and reference.encode_e2m1(
        nan.view(np.float32)
    ).tolist() == [7, 7]


def test_weights_of_a_trained_model_are_read():
    found = weights24.trained(
        ROOT / "lib" / "sparkbook" / "checkpoint" / "models" / "tiny-mtp" / "model.safetensors"
    )
    assert len(found) > 20 and all(
        weights.ndim == 2 and 0.001 < weights.std() < 1 for weights in found
    )


def test_pictures_of_measured_kernels():
    reports = records.load()
    row = next(
        row for row in reports["H100"].rows if row["what"] == "fp4_gemv" and row["tokens"] == 1
    )
    assert plots.flop_per_byte(row) == pytest.approx(2 / 0.5625, rel=0.01)
    assert plots.flop_per_byte({**row, "tokens": 4}) == pytest.approx(4 * plots.flop_per_byte(row))
    assert (
        plots.flop_per_byte({"what": "moe_decode", "shape": "Qwen3", "tokens": 1, "mb": 1})
        == 2 / 0.5625
    )
    charts = (
        plots.roofline(reports, 232),
        plots.bandwidth(reports),
        plots.spark_roofline(list(roofline.predict(reports["H100"]))),
        plots.parts({"a": (1e9, 1e9), "b": (1e9, 2e9)}),
    )
    for chart in charts:
        assert len(chart.alt) > 40 and chart.svg.startswith("<svg ")
    assert (
        "13 times (H100) and 18 times (H200)" in charts[0].alt
        and "95% on the H100 and 84% on the H200" in charts[1].alt
    )
    assert "500 (FP4) and 125 (BF16)" in charts[2].alt
    for chart in charts[:2]:
        assert [panel.get_title(loc="left") for panel in chart.figure.axes] == [
            report.title for report in reports.values()
        ]
