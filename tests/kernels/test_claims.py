"""The claims laboratory: the register's file, the recorded instructions against the compiler, weights and the pictures."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sparkbook.book import notebooks
from sparkbook.errors import SparkbookError
from sparkbook.kernels import build, claims, instructions, reference, weights24
from sparkbook.plots import kernels as plots

ROOT = build.sources().parent
CHAPTER = ROOT / "notebooks" / "14_nvfp4_claims.ipynb"


def reported() -> dict[str, str]:
    cells = json.loads(CHAPTER.read_text("utf-8"))["cells"]
    found = [entry for cell in cells for output in cell.get("outputs", []) for entry in output.get("data", {}).get(claims.MIME, [])]
    return {entry["id"]: entry["verdict"] for entry in found}


def test_every_claim_that_can_be_executed_is_reported_by_the_chapter_with_its_verdict():
    lab = claims.Laboratory()
    assert reported() == {name: claim["verdict"] for name, claim in lab.claims.items() if claim.get("executable")}
    assert notebooks.engine_of(CHAPTER) == "none"


def test_the_registers_entries_are_in_order():
    for name, claim in claims.Laboratory().claims.items():
        assert name.startswith("nvfp4-") and claim["statement"].endswith(".") and claim["check"].endswith((".", ").")), name
        assert claim["verdict"] in ("holds", "expired", "false", "not-testable") and claim["where"], name
        assert claim["source"]["url"].startswith("https://") and claim["source"]["date"], name
        assert claim.get("executable", False) == ("executed_by" in claim), name
        assert not (claim.get("executable") and claim["verdict"] == "not-testable"), name
        for one in claim["where"]:
            assert one.startswith("models/") or (ROOT / "notebooks" / f"{one}.ipynb").is_file(), (name, one)


REGISTER = """
source: {title: A, url: "https://example.com", date: 2026-01-01}
claims:
  - {id: a-yes, statement: It is so., figure: 42 tok/s, check: Looked., executable: true, verdict: holds}
  - {id: a-no, statement: It is not., figures: {low: 63 to 89 %, one: 1.1}, check: Looked., executable: true, verdict: "false"}
"""


def test_the_laboratory_stops_at_another_verdict(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(REGISTER)
    lab = claims.Laboratory(file)
    assert lab.unchecked == ["a-yes", "a-no"]
    shown = lab.check({"a-yes": (True, "seen")})._repr_mimebundle_()
    assert shown[claims.MIME] == [{"id": "a-yes", "verdict": "holds"}] and "seen" in shown["text/markdown"]
    assert lab.unchecked == ["a-no"]
    with pytest.raises(SparkbookError, match="a-no: the register says 'false', the cell found 'holds'"):
        lab.check({"a-no": (True, "")})
    with pytest.raises(SparkbookError, match="a-yes: the register says 'holds', the cell found 'false'"):
        lab.check({"a-yes": (False, "")})
    assert lab.figure("a-yes") == 42 and lab.ends("a-no", "low") == (63, 89) and lab.figure("a-no", "one") == 1.1
    for wrong, message in ((("a-no", "low"), "is a range"), (("a-no",), "has no figure"), (("b",), "no claim is called 'b'")):
        with pytest.raises(SparkbookError, match=message):
            lab.figure(*wrong)
    with pytest.raises(SparkbookError, match="can't be read"):
        claims.Laboratory(tmp_path / "none.yaml")


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
    assert facts["architecture"] == {target: instructions.architecture(target) for target in facts["architecture"]}
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
    assert weights24.by_comparisons(nan).tolist() == [7, 15] and reference.encode_e2m1(nan.view(np.float32)).tolist() == [7, 7]


def test_weights_of_a_trained_model_are_read():
    found = weights24.trained(ROOT / "lib" / "sparkbook" / "serve" / "models" / "tiny-mtp" / "model.safetensors")
    assert len(found) > 20 and all(weights.ndim == 2 and 0.001 < weights.std() < 1 for weights in found)


def test_pictures_of_measured_kernels():
    report = json.loads((build.sources() / "results" / "h100.json").read_text("utf-8"))
    row = next(row for row in report["rows"] if row["what"] == "fp4_gemv" and row["tokens"] == 1)
    assert plots.flop_per_byte(row) == pytest.approx(2 / 0.5625, rel=0.01)
    assert plots.flop_per_byte({**row, "tokens": 4}) == pytest.approx(4 * plots.flop_per_byte(row))
    assert plots.flop_per_byte({"what": "moe_decode", "shape": "Qwen3", "tokens": 1, "mb": 1}) == 2 / 0.5625
    for chart in (plots.roofline(report, 232), plots.bandwidth(report), plots.parts({"a": (1e9, 1e9), "b": (1e9, 2e9)})):
        assert len(chart.alt) > 40 and chart._repr_png_()[0][:4] == b"\x89PNG"


def test_the_chapters_numbers_fit_its_prose():
    """What the text says of the table of kernels: 4-bit products with overlapping launches are the fastest."""
    report = json.loads((Path(build.sources()) / "results" / "h100.json").read_text("utf-8"))
    four = {"fp4_gemv", "fp4_gemv pdl", "humming NVFP4", "torch _weight_int4pack_mm", "bitsandbytes fp4", "Triton GEMV"}
    for shape in ("4096x4096", "8192x8192", "8192x28672"):
        rows = [row for row in report["rows"] if row["tokens"] == 1 and row["shape"] == shape and row["what"] in four]
        assert min(rows, key=lambda row: row["us"])["what"] == "fp4_gemv pdl"
