"""The numpy reference: formats against their definitions, products against plain matrix products,
the 2:4 layout there and back.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sparkbook.errors import SparkbookError
from sparkbook.kernels import reference as r

KERNELS = Path(__file__).parents[2] / "kernels"
# What E2M1 is, by its values: a magnitude goes to the nearest of these, of two equally near ones to
# the one with the even code.
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TIES = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)


def nearest(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Index of the nearest of the rising values, ties to the even index, by brute force in float64."""
    distance = np.abs(np.abs(x.astype(np.float64))[:, None] - values[None, :])
    best = distance == distance.min(1, keepdims=True)
    even = best & (np.arange(len(values)) % 2 == 0)
    return np.where(even.any(1), even.argmax(1), best.argmax(1))


def test_e2m1_rounds_to_the_nearest_and_ties_to_even():
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 0x7F800001, 200_000, dtype=np.uint32)
    around = (TIES.view(np.uint32)[:, None] + np.arange(-2, 3)).astype(np.uint32).ravel()
    x = np.concatenate([bits, around, np.array([0, 1, 0x7F800000], np.uint32)]).view(np.float32)
    want = nearest(
        np.minimum(x, 100), MAGNITUDES
    )  # what is larger is as far from 4 as from 6, in float64
    assert np.array_equal(r.encode_e2m1(x), want)
    assert np.array_equal(r.encode_e2m1(-x), want | 8)


def test_e2m1_of_nan_is_six_whatever_its_sign():
    nan = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0xFFFFFFFF], np.uint32).view(
        np.float32
    )
    assert r.encode_e2m1(nan).tolist() == [7] * 5


def test_e2m1_codes_decode_and_encode_to_themselves():
    assert r.encode_e2m1(r.E2M1).tolist() == list(range(16))
    assert np.array_equal(np.abs(r.E2M1), np.tile(MAGNITUDES, 2)) and np.signbit(r.E2M1[8])


def test_e4m3_codes_decode_and_encode_to_themselves_and_rounding_is_to_the_nearest():
    codes = np.delete(np.arange(256, dtype=np.uint8), [0x7F, 0xFF])
    assert np.array_equal(r.encode_e4m3(r.E4M3[codes]), codes)
    assert r.E4M3[0x7E] == 448 and r.E4M3[1] == 2**-9 and r.E4M3[0x38] == 1
    x = np.abs(np.random.default_rng(2).standard_normal(5000).astype(np.float32)) * np.float32(
        10
    ) ** np.random.default_rng(3).integers(-4, 3, 5000)
    middle = (r.E4M3[:0x7E] + r.E4M3[1:0x7F]) / 2  # every tie
    x = np.concatenate([x.astype(np.float32), middle.astype(np.float32), np.float32([449, 1e30])])
    assert np.array_equal(
        r.encode_e4m3(x), nearest(np.minimum(x, 1000), r.E4M3[:0x7F].astype(np.float64))
    )
    assert r.encode_e4m3(np.float32([np.nan, np.inf])).tolist() == [0x7F, 0x7E]


@pytest.fixture(scope="module")
def host(tmp_path_factory) -> ctypes.CDLL:
    """kernels/e2m1.h, the header that the GPU code includes, compiled for this machine beside a
    definition by comparisons.
    """
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.fail("no C compiler: nvcc needs one too (apt install gcc)")
    folder = tmp_path_factory.mktemp("e2m1")
    (folder / "sweep.c").write_text(r"""
#include "e2m1.h"
static uint32_t by_comparison(uint32_t bits) {
  float x; memcpy(&x, &bits, 4);
  float a = __builtin_fabsf(x);
  uint32_t m = (a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f);
  return x != x ? 7u : m | (bits >> 31) << 3;
}
uint64_t wrong(uint64_t first, uint64_t count) {
  uint64_t n = 0;
  for (uint64_t i = first; i < first + count; i += 1 << 16) {
    uint32_t part = 0;
    for (uint32_t j = 0; j < 1 << 16; ++j) part += sb_e2m1_encode_bits((uint32_t)i + j) != by_comparison((uint32_t)i + j);
    n += part;
  }
  return n;
}
uint32_t encode(float x) { return sb_e2m1_encode(x); }
float decode(uint32_t c) { return sb_e2m1_decode(c); }
uint32_t encode8(float x) { return sb_e4m3_encode(x); }
float decode8(uint32_t c) { return sb_e4m3_decode(c); }
""")
    command = (
        [compiler, "-O3", "-mavx2"]
        if "avx2" in Path("/proc/cpuinfo").read_text()
        else [compiler, "-O3"]
    )
    subprocess.run(
        [
            *command,
            "-shared",
            "-fPIC",
            "-I",
            str(KERNELS),
            str(folder / "sweep.c"),
            "-o",
            str(folder / "sweep.so"),
        ],
        check=True,
    )
    library = ctypes.CDLL(str(folder / "sweep.so"))
    library.wrong.argtypes, library.wrong.restype = (
        [
            ctypes.c_uint64,
            ctypes.c_uint64,
        ],
        ctypes.c_uint64,
    )
    for name in ("decode", "decode8"):
        getattr(library, name).restype = ctypes.c_float
    for name in ("encode", "encode8"):
        getattr(library, name).argtypes = [ctypes.c_float]
    return library


@pytest.mark.nvcc
def test_the_header_is_right_on_all_float32s(host):
    from concurrent.futures import ThreadPoolExecutor

    quarter = 1 << 30
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda i: host.wrong(i * quarter, quarter), range(4))) == [0, 0, 0, 0]


def test_the_header_and_numpy_agree(host):
    assert [host.decode(c) for c in range(16)] == r.E2M1.tolist()
    assert np.array_equal(np.float32([host.decode8(c) for c in range(256)]), r.E4M3, equal_nan=True)
    x = np.random.default_rng(4).integers(0, 1 << 32, 3000, dtype=np.uint32).view(np.float32)
    x = x[~np.isnan(x)]
    assert [host.encode(float(v)) for v in x] == r.encode_e2m1(x).tolist()
    assert [host.encode8(float(v)) for v in x] == r.encode_e4m3(x).tolist()


def test_quantizing_keeps_zero_blocks_outliers_and_infinities():
    x = np.zeros((1, 80), np.float32)
    x[0, 16:32] = np.linspace(-1, 1, 16)
    x[0, 32] = 2688
    x[0, 48:50] = [np.inf, -np.inf]
    x[0, 64] = 1e-30
    codes, scales, _ = r.quantize(x, 1.0)
    back = r.dequantize(codes, scales, 1.0)
    assert not back[0, :16].any() and scales[0, 0] == 0
    assert np.abs(back[0, 16:32] - x[0, 16:32]).max() < 0.17
    assert back[0, 32] == 2688 and not back[0, 33:48].any()
    assert back[0, 48] == 2688 and back[0, 49] == -2688
    assert scales[0, 4] == 0 and not r.unpack(codes)[0, 64:].any()


def test_quantization_error_is_that_of_the_format():
    x = np.random.default_rng(5).standard_normal((256, 1024)).astype(np.float32)
    codes, scales, g = r.quantize(x)
    error = np.square(r.dequantize(codes, scales, g) - x).sum() / np.square(x).sum()
    assert 0.0085 < error < 0.0095


def test_a_short_last_block_is_filled_with_zeros():
    x = np.random.default_rng(6).standard_normal((3, 21)).astype(np.float32)
    codes, scales, g = r.quantize(x)
    assert codes.shape == (3, 16) and scales.shape == (3, 2)
    assert not r.dequantize(codes, scales, g)[:, 21:].any()


@pytest.mark.parametrize("g", [0, -1, np.inf, np.nan])
def test_a_global_scale_has_to_be_above_zero(g):
    with pytest.raises(SparkbookError, match="global scale"):
        r.quantize(np.ones((1, 16)), g)


def weights(n: int, k: int, seed: int = 0):
    return r.quantize(np.random.default_rng(seed).standard_normal((n, k)).astype(np.float32) * 0.02)


def test_products_are_those_of_the_decoded_weights():
    rng = np.random.default_rng(8)
    codes, scales, alpha = weights(24, 160)
    x = rng.standard_normal((3, 160))
    np.testing.assert_allclose(
        r.fp4_gemv(x, codes, scales, alpha),
        x @ r.dequantize(codes, scales, alpha).T.astype(np.float64),
        rtol=1e-5,
    )
    w = r.encode_e4m3(rng.standard_normal((200, 160)))
    rows, blocks = rng.uniform(1, 2, 200), rng.uniform(1, 2, (2, 2))
    np.testing.assert_allclose(
        r.fp8_gemv(x, w, rows), x @ (r.E4M3[w] * rows[:, None]).T, rtol=1e-12
    )
    y = r.fp8_gemv(x, w, blocks)
    np.testing.assert_allclose(
        y[0, 130],
        sum(x[0, j] * r.E4M3[w[130, j]] * blocks[1, j // 128] for j in range(160)),
        rtol=1e-12,
    )
    assert np.array_equal(r.lm_head(x, w, rows), r.fp8_gemv(x, w, rows).argmax(1))


def test_moe_adds_the_experts_that_exist():
    rng = np.random.default_rng(9)
    e, inter, hidden = 3, 32, 64
    (c13, s13, a13), (c2, s2, a2) = weights(e * 2 * inter, hidden, 1), weights(e * hidden, inter, 2)
    w13 = c13.reshape(e, 2 * inter, -1), s13.reshape(e, 2 * inter, -1), np.full((e, 2), a13)
    w2 = c2.reshape(e, hidden, -1), s2.reshape(e, hidden, -1), np.full(e, a2)
    x = rng.standard_normal((1, hidden))
    one = [r.moe_decode(x, w13, w2, [[i]], [[1.0]]) for i in range(e)]
    both = r.moe_decode(x, w13, w2, [[2, -1, 0, 2, e]], [[0.5, 9, 2, 0.25, 9]])
    np.testing.assert_allclose(both, 0.75 * one[2] + 2 * one[0], rtol=1e-12)
    dense = r.dequantize(c13, s13, a13).reshape(e, 2 * inter, hidden).astype(np.float64)[1]
    h = r.silu(x @ dense[:inter].T) * (x @ dense[inter:].T)
    np.testing.assert_allclose(
        one[1],
        h @ r.dequantize(c2, s2, a2).reshape(e, hidden, inter)[1].T.astype(np.float64),
        rtol=1e-5,
    )


def test_ordinary_weights_are_refused_by_the_sparse_converter():
    codes, scales, _ = weights(16, 512)
    with pytest.raises(
        SparkbookError, match=r"not 2:4 sparse.*would lose 1[0-9]\.\d\d% of the weights' energy"
    ):
        r.to_sparse24(codes, scales)
    lossy = r.to_sparse24(codes, scales, allow_lossy=True)
    assert lossy.lossy_groups > 0.95 and 0.11 < lossy.energy_lost < 0.16
    assert "lost" in lossy.report()


def test_the_energy_lost_is_what_the_dropped_weights_had():
    codes, scales, _ = weights(20, 256)
    lossy = r.to_sparse24(codes, scales, allow_lossy=True)
    kept, same = r.from_sparse24(lossy)
    before, after = (
        np.square(r.dequantize(c, scales, 1.0), dtype=np.float64).sum() for c in (codes, kept)
    )
    assert np.array_equal(same, scales)
    assert lossy.energy_lost == pytest.approx(1 - after / before)


def test_weights_that_are_two_of_four_come_through_whole():
    x = np.random.default_rng(10).standard_normal((21, 512)).astype(np.float32).reshape(21, 128, 4)
    order = np.argsort(np.abs(x), -1)
    np.put_along_axis(x, order[..., :2], 0, -1)
    codes, scales, alpha = r.quantize(x.reshape(21, 512))
    sparse = r.to_sparse24(codes, scales)
    assert (
        sparse.lossy_groups == 0
        and sparse.energy_lost == 0
        and "nothing was lost" in sparse.report()
    )
    assert sparse.tiles.shape == (2, 2, r.TILE_BYTES)
    back, same = r.from_sparse24(sparse)
    assert np.array_equal(r.dequantize(back, same, alpha), r.dequantize(codes, scales, alpha))


def test_the_sparse_layout_wants_k_in_tiles():
    codes, scales, _ = weights(16, 128)
    with pytest.raises(SparkbookError, match="multiple of 256"):
        r.to_sparse24(codes, scales)


def test_layouts_that_do_not_fit_are_refused():
    """They would be broadcast, and the result wrong without a word."""
    from sparkbook.kernels import marlin

    codes, scales, g = r.quantize(np.random.default_rng(1).standard_normal((64, 128)))
    x = np.ones((1, 128))
    products = (
        lambda c, s: r.dequantize(c, s, g),
        lambda c, s: r.fp4_gemv(x, c, s, g),
        lambda c, s: marlin.to_marlin(c, s, g),
    )
    for wrong in (scales[:1], scales.T, scales.reshape(128, 4), scales[:, :-1]):
        for product in products:
            with pytest.raises(SparkbookError, match=r"take scales \[64, 8\]"):
                product(codes, wrong)
    for product in products:
        with pytest.raises(SparkbookError, match="codes are uint8, not int8"):
            product(codes.view(np.int8), scales)
    with pytest.raises(SparkbookError, match="N a multiple of 64, not \\[32, 128\\]"):
        marlin.to_marlin(codes[:32], scales[:32], g)
    with pytest.raises(SparkbookError, match="bf16 or f16, not 'float16'"):
        marlin.to_marlin(codes, scales, g, "float16")
    with pytest.raises(SparkbookError, match="scale is negative"):
        marlin.to_marlin(codes, scales | 0x80, g)
