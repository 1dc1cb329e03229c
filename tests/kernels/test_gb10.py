"""What the compiler made of the kernels for GB10, and how their launches fit it. No GPU."""

from __future__ import annotations

import re

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.kernels import gb10

RECORD = gb10.recorded()
ENCODE, DECODE = "F2FP.SATFINITE.E2M1.F32", "F2FP.F16.E2M1.UNPACK"
ENCODE_SCALE, DECODE_SCALE = "F2FP.SATFINITE.E4M3.F32", "F2FP.F16.E4M3.UNPACK"
PRODUCT, SPARSE, FP4 = "HMMA.16816.F32", "HMMA.SP.16832.F32", "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"
QUANTIZERS = {ENCODE, ENCODE_SCALE, DECODE_SCALE}
#: Conversions and products by kernel. The products decode E2M1 by shifts into subnormals of the
#: activations' type, which needs no conversion (common.cuh); Marlin's scales are such bits already.
MEANT = {
    "quantize": QUANTIZERS,
    "rmsnorm_quantize": QUANTIZERS,
    "silu_mul_quantize": QUANTIZERS,
    "e2m1_sweep": {ENCODE},
    "dequantize": {DECODE, DECODE_SCALE},
    "fp4_gemv": {PRODUCT, DECODE_SCALE},
    "moe_gate_up": {PRODUCT, DECODE_SCALE},
    "moe_down": {PRODUCT, DECODE_SCALE},
    "sparse_gemv": {SPARSE, DECODE_SCALE},
    "fp8_gemv": {PRODUCT},
    "marlin_gemv": {PRODUCT},
    "one_gemv": {PRODUCT},
    "one_gate_up": {PRODUCT},
    "one_down": {PRODUCT},
    "fp4_prefill": {FP4},
    "argmax": set(),
    "read_probe": set(),
}


@pytest.mark.parametrize("kernel", RECORD.kernels)
def test_each_kernel_has_the_native_conversions_and_spills_nothing(kernel: str) -> None:
    one = RECORD.kernels[kernel]
    assert one.spilled == 0
    meant = MEANT[kernel.partition("<")[0]]
    assert all(any(name.startswith(start) for name in one.machine) for start in meant)
    assert all(any(name.startswith(start) for start in meant) for name in one.machine)


def test_all_launches_of_the_catalogue_fit_but_for_one_model_family() -> None:
    assert all(fit.shared <= gb10.SHARED for fit in RECORD.fits if fit.warps)
    refused = {(fit.call, fit.shape) for fit in RECORD.fits if not fit.warps}
    # Nemotron 3 Super and Ultra take 22 experts a token: activations of all don't fit. In Marlin's
    # order, which is what the plug-in takes, they do.
    assert refused == {
        ("moe_decode", "experts 22 of 512, 2688x1024"),
        ("moe_decode", "experts 22 of 512, 5120x2048"),
    }
    assert all(fit.shared > gb10.SHARED for fit in RECORD.fits if not fit.warps)


def test_occupancy_is_a_whole_number_of_blocks_of_at_most_48_warps() -> None:
    assert max(fit.warps for fit in RECORD.fits) == gb10.WARPS
    launched = {fit.kernel for fit in RECORD.fits}
    assert launched <= RECORD.kernels.keys()
    never = {re.sub("bf16|half", "T", name) for name in RECORD.kernels.keys() - launched}
    # For larger GPUs, or asked for by name.
    assert never == {
        "fp4_gemv<T, 1, 4, 4>",
        "fp4_gemv<T, 1, 4, 8>",
        "moe_gate_up<T, 6>",
        "marlin_gemv<T, 1, 2, 8>",
        "marlin_gemv<T, 2, 2, 16>",
        "one_gate_up<T, 2>",
    }


def test_the_catalogues_shapes_are_those_of_its_models() -> None:
    dense, experts = gb10.shapes()
    # Llama 3.3 70B: 64 heads and 8 of keys, 128 wide; MLP of 28672.
    assert dense >= {(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)}
    # Qwen3-Next 80B, Qwen3.6 35B, and Nemotron 3 Super in its narrower latent space.
    assert experts >= {(512, 10, 512, 2048), (256, 8, 512, 2048), (512, 22, 2688, 1024)}


@pytest.mark.nvcc
def test_the_record_is_what_the_compiler_says() -> None:
    now = gb10.record()
    if now.compiler == RECORD.compiler:  # another one may count and allocate differently
        assert now == RECORD
    assert now.kernels.keys() == RECORD.kernels.keys()
    assert not any(kernel.spilled for kernel in now.kernels.values())


def test_the_calculator_of_another_build_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    built = type("Built", (), {"path": "x.so", "used": {"a": None}})
    monkeypatch.setattr(gb10.build, "build", lambda target: built)
    monkeypatch.setattr(gb10.build, "instructions_by_kernel", lambda path: {"b": None})
    with pytest.raises(SparkbookError, match=r"x\.so and its log are of different builds"):
        gb10.record()
