"""The products in Marlin's order and the one for prefill: their sources run on a CPU, thread by
thread, with what they say in PTX imitated (`cuda_on_cpu.h`), against the numpy reference.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sparkbook.kernels import build, library, marlin, reference

HERE = Path(__file__).parent
KINDS = {"bf16": 1, "f16": 2}
HOPPER, SPARK = 227 << 10, 99 << 10
"""Bytes of shared memory that a block may have."""
SHARED = re.compile(r"extern __shared__ __align__\(16\) (\w+) (\w+)\[\];")


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("kernels")
    for name in ("common.cuh", "e2m1.h", "one_token.cuh", "marlin.cu", "prefill.cu"):
        text = (build.sources() / name).read_text("utf-8")
        # Each block of a cluster has shared memory of its own.
        own = SHARED.sub(r"\1* const \2 = reinterpret_cast<\1*>(on_cpu::room());", text)
        (folder / re.sub(r"\.cu$", ".cpp", name)).write_text(own)
    shutil.copy(HERE / "cuda_on_cpu.h", folder / "cuda_runtime.h")
    for name in ("ptx.cuh", "cuda_bf16.h", "cuda_fp16.h"):
        (folder / name).write_text('#include "cuda_runtime.h"\n')
    (folder / "fp4_mma.cuh").write_text('#include "common.cuh"\n')
    line = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", "-w", "-I.", "-o", "kernels.so"]
    subprocess.run([*line, "marlin.cpp", "prefill.cpp"], cwd=folder, check=True)
    made = ctypes.CDLL(str(folder / "kernels.so"))
    for name in ("sb_marlin_gemv", "sb_marlin_moe", "sb_fp4_prefill"):
        getattr(made, name).argtypes = library.SIGNATURES[name]
    yield made


def rounded(values: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Values as the type's bits, and exactly as float64."""
    if kind == "f16":
        half = values.astype(np.float16)
        return half, half.astype(float)
    bits = values.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)
    return bits, (bits.astype(np.uint32) << 16).view(np.float32).astype(float)


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that starts where a GPU's allocation would."""
    room = np.empty(values.nbytes + 256, np.uint8)
    at = -room.ctypes.data % 256
    copy = room[at : at + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def matrix(random: np.random.Generator, n: int, k: int, kind: str) -> marlin.Marlin:
    codes = random.integers(0, 256, (n, k // 2), dtype=np.uint8)
    scales = random.integers(0x28, 0x40, (n, k // 16), dtype=np.uint8)
    scales[random.random(scales.shape) < 0.1] = 0
    return marlin.to_marlin(codes, scales, float(random.uniform(0.01, 0.04)), kind)


def error(y: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(y - want) / np.linalg.norm(want))


class Product:
    """x [m, k] times a matrix [n, k], and what the source makes of it."""

    def __init__(self, made: ctypes.CDLL, m: int, n: int, k: int, kind: str, size=1.0) -> None:
        self.made, self.shape, self.kind = made, (m, n, k), kind
        random = np.random.default_rng(n + m)
        weights = matrix(random, n, k, kind)
        x, exact = rounded(random.standard_normal((m, k)) * size, kind)
        self.on = [aligned(one) for one in (weights.weights, weights.scales, weights.scale, x)]
        self.want = marlin.gemv(exact, weights)

    def __call__(self, tiles=0, warps=0, split=0, seed=1, card=(132, HOPPER), pdl=0) -> np.ndarray:
        m, n, k = self.shape
        y = np.full((m + 1, n), np.nan, np.float32)
        self.made.imitate(bool(seed % 2), seed, *card)
        at = [one.ctypes.data for one in self.on]
        how = (m, n, k, tiles, warps, split, pdl, None)
        code = self.made.sb_marlin_gemv(*at, KINDS[self.kind], y.ctypes.data, 0, *how)
        assert code == 0
        assert np.isnan(y[m]).all(), "wrote behind its result"
        return y[:m]


@pytest.mark.nvcc
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *((1, 64, 32), (1, 128, 160), (1, 64, 4096), (1, 192, 288)),
        *((2, 64, 288), (5, 128, 512), (9, 128, 96), (16, 64, 640)),
    ],
)
def test_every_variant_gives_the_product(on_cpu: ctypes.CDLL, m: int, n: int, k: int, kind: str):
    """With any cut, in any order of threads, and the same bits for each cut."""
    product = Product(on_cpu, m, n, k, kind)
    cuts = [cut for cut in library.marlin_cuts(m, n) if cut["split"] != 4]
    for place, cut in enumerate(cuts):
        y = product(**cut, seed=2 * place)
        assert error(y, product.want) < 1e-6, cut
        assert np.array_equal(y, product(**cut, seed=2 * place + 1)), cut


@pytest.mark.nvcc
@pytest.mark.parametrize("shared", [HOPPER, SPARK], ids=["Hopper", "Spark"])
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *((1, 64, 64), (1, 192, 64), (1, 256, 64), (1, 320, 64), (1, 384, 64), (1, 640, 64)),
        *((1, 1088, 32), (1, 1408, 32), (2, 192, 8192), (2, 384, 64), (8, 320, 8192)),
        *((8, 896, 32), (16, 64, 64), (16, 320, 32), (16, 384, 32), (16, 1408, 32)),
    ],
)
def test_the_cut_that_is_taken_fits(on_cpu: ctypes.CDLL, m: int, n: int, k: int, shared: int):
    """Each branch of `marlin_cut`, as it would be for larger layers on a larger card."""
    product = Product(on_cpu, m, n, k, "bf16")
    for pdl in (0, 1):
        assert error(product(card=(5, shared), pdl=pdl), product.want) < 1e-6


@pytest.mark.nvcc
@pytest.mark.parametrize("size", [1e30, 1e-30, 1e-3])
@pytest.mark.parametrize("m", [1, 2])
def test_large_and_small_activations(on_cpu: ctypes.CDLL, m: int, size: float):
    product = Product(on_cpu, m, 64, 512, "bf16", size)
    assert np.isfinite(product.want).all() and error(product(), product.want) < 1e-5


@pytest.mark.nvcc
def test_one_token_with_an_outlier_and_zeros(on_cpu: ctypes.CDLL):
    """A warp's activations share a power of two: one large number must not cost the others."""
    product = Product(on_cpu, 1, 64, 1024, "bf16")
    x = np.zeros((1, 1024))
    x[0, 5], x[0, 200:328] = 3e4, np.linspace(-1e-4, 1e-4, 128)
    bits, exact = rounded(x, "bf16")
    whole = matrix(np.random.default_rng(65), 64, 1024, "bf16")
    small = np.where(np.abs(exact) < 1, exact, 0)
    product.on[3][...] = bits
    y, want = product(), marlin.gemv(exact, whole)
    assert error(y, want) < 1e-6
    product.on[3][...] = rounded(small, "bf16")[0]
    assert error(product(), marlin.gemv(small, whole)) < 1e-6
    product.on[3][...] = 0
    assert not product().any()


@pytest.mark.nvcc
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("m", "topk", "e", "inter", "hidden"),
    [(1, 1, 4, 64, 64), (1, 40, 3, 64, 64), (1, 10, 12, 128, 256), (3, 4, 12, 192, 320)],
)
def test_experts(
    on_cpu: ctypes.CDLL, m: int, topk: int, e: int, inter: int, hidden: int, kind: str
):
    """Drawn experts, some twice, ids out of range, and none."""
    random = np.random.default_rng(inter)
    w13 = [matrix(random, 2 * inter, hidden, kind) for _ in range(e)]
    w2 = [matrix(random, hidden, inter, kind) for _ in range(e)]
    on = [
        aligned(np.stack(part))
        for one in (w13, w2)
        for part in zip(*((w.weights, w.scales, w.scale) for w in one), strict=True)
    ]
    x, exact = rounded(random.standard_normal((m, hidden)) * 0.1, kind)
    x = aligned(x)
    weights = random.uniform(0.05, 1, (m, topk)).astype(np.float32)
    drawn = random.integers(0, e, (m, topk)).astype(np.int32)
    missing = np.where(random.random((m, topk)) < 0.4, e + 3, drawn).astype(np.int32)
    missing[0, 0] = -1
    for ids in (drawn, missing, np.full_like(drawn, -1)):
        want = marlin.moe(exact, w13, w2, ids, weights)
        found = []
        for seed, card in enumerate([(132, HOPPER)] * 2 + [(16, SPARK), (4, SPARK)], 1):
            h = np.full((m, topk, inter), 0xFFFF, np.uint16)
            y = np.full((m + 1, hidden), np.nan, np.float32)
            on_cpu.imitate(bool(seed % 2), seed, *card)
            at = [one.ctypes.data for one in on]
            ends = (h.ctypes.data, y.ctypes.data, 0, m, topk, inter, hidden, 0, None)
            given = (e, ids.ctypes.data, weights.ctypes.data, x.ctypes.data, KINDS[kind])
            assert on_cpu.sb_marlin_moe(*at, *given, *ends) == 0
            assert np.isnan(y[m]).all(), "wrote behind its result"
            found.append(y[:m])
        assert np.array_equal(found[0], found[1])
        for y in found:
            if want.any():
                assert error(y, want) < (4e-3 if kind == "bf16" else 1e-3)  # rounding of h
            else:
                assert not y.any()


@pytest.mark.nvcc
@pytest.mark.parametrize("seed", [1, 2], ids=["copies early", "copies late"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 3, 64), (131, 130, 448), (40, 129, 128)])
def test_prefill(on_cpu: ctypes.CDLL, m: int, n: int, k: int, seed: int):
    """Odd sizes: rows and columns that do not exist, K of one step and of more than the ring. Late
    copies show a step read before it is there; early ones, a stage overwritten while it is read.
    """
    random = np.random.default_rng(m)
    x, w = (reference.quantize(random.standard_normal((rows, k))) for rows in (m, n))
    alphas = np.array([x[2], w[2]], np.float32)
    y = np.full((m + 1, n), np.nan, np.float32)
    on_cpu.imitate(bool(seed % 2), seed, 132, SPARK)
    on = [aligned(one) for one in (x[0], x[1], alphas[:1], w[0], w[1], alphas[1:])]
    at = [array.ctypes.data for array in (*on, y)]
    assert on_cpu.sb_fp4_prefill(*at, 0, m, n, k, 0, None) == 0
    exact = reference.dequantize(x[0], x[1], 1.0).astype(float)
    want = reference.fp4_gemv(exact, w[0], w[1], 1.0) * float(alphas[0]) * float(alphas[1])
    assert error(y[:m], want) < 1e-6
    assert np.isnan(y[m]).all(), "wrote behind its result"
