"""The product for prefill: its source runs on the CPU, with the tensor core's FP4 instruction imitated
in numpy by the documented layout of its operands. Its machine code is that instruction.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sparkbook.errors import SparkbookError
from sparkbook.kernels import build, library, reference

HERE = Path(__file__).parent
LANE, NIBBLE = np.arange(32), np.arange(8)
G, T = LANE // 4, LANE % 4


class Operands(ctypes.Structure):
    """What the lanes of a warp give the instruction, and get."""

    _fields_ = [
        ("a", ctypes.c_uint32 * 4 * 32),
        ("b", ctypes.c_uint32 * 2 * 32),
        ("scale_a", ctypes.c_uint32 * 32),
        ("scale_b", ctypes.c_uint32 * 32),
        ("d", ctypes.c_float * 4 * 32),
    ]


def codes(words: np.ndarray) -> np.ndarray:
    """Values of the eight codes of each word, the first in the lowest bits."""
    return reference.E2M1[words[..., None] >> 4 * NIBBLE.astype(np.uint32) & 15].astype(float)


def scales(words: np.ndarray) -> np.ndarray:
    """Each of a word's four scales, for the 16 of k that it belongs to."""
    each = reference.E4M3[words[:, None] >> 8 * np.arange(4, dtype=np.uint32) & 255]
    return np.repeat(each.astype(float), 16, axis=1)


@ctypes.CFUNCTYPE(None, ctypes.POINTER(Operands))
def tensor_core(given: ctypes._Pointer) -> None:
    """D += (A scales) (B scales), by the PTX ISA's "Matrix fragments for mma.m16n8k64" and "Block
    scaling for mma.sync" (both selectors 0).
    """
    one = given.contents
    a, b = np.array(one.a, np.uint32), np.array(one.b, np.uint32)
    left, right = np.zeros((16, 64)), np.zeros((8, 64))
    for word in range(4):
        k = 8 * T + 32 * (word // 2)
        left[(G + 8 * (word % 2))[:, None], k[:, None] + NIBBLE] = codes(a[:, word])
    for word in range(2):
        right[G[:, None], (8 * T + 32 * word)[:, None] + NIBBLE] = codes(b[:, word])
    scale_a, scale_b = scales(np.array(one.scale_a)), scales(np.array(one.scale_b))
    rows = np.zeros((16, 64))
    rows[(G + 8 * (T & 1))[T < 2]] = scale_a[T < 2]
    product = (left * rows) @ (right * scale_b[T == 0]).T
    d = np.array(one.d)
    for value in range(4):
        d[:, value] += product[G + 8 * (value // 2), 2 * T + value % 2]
    one.d = type(one.d).from_buffer_copy(d.astype(np.float32))


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("prefill")
    shutil.copy(build.sources() / "prefill.cu", folder / "prefill.cpp")
    shutil.copy(HERE / "on_cpu.h", folder / "fp4_mma.cuh")
    line = ["g++", "-std=c++20", "-O1", "-pthread", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
    subprocess.run([*line, "-o", "prefill.so", "prefill.cpp"], cwd=folder, check=True)
    made = ctypes.CDLL(str(folder / "prefill.so"))
    made.sb_fp4_prefill.argtypes = library.SIGNATURES["sb_fp4_prefill"]
    yield made


@pytest.mark.nvcc
@pytest.mark.parametrize("early", [False, True], ids=["copies late", "copies early"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 3, 64), (131, 130, 448), (40, 129, 128)])
def test_the_source_gives_the_product(on_cpu: ctypes.CDLL, m: int, n: int, k: int, early: bool):
    """Odd sizes: rows and columns that do not exist, K of one step and of more than the ring. Late
    copies show a step read before it is there; early ones, a stage overwritten while it is read.
    """
    random = np.random.default_rng(m)
    x, w = (reference.quantize(random.standard_normal((rows, k))) for rows in (m, n))
    alphas = np.array([x[2], w[2]], np.float32)
    y = np.full((m + 1, n), np.nan, np.float32)
    on_cpu.imitate(tensor_core, early)
    at = [array.ctypes.data for array in (x[0], x[1], alphas[:1], w[0], w[1], alphas[1:], y)]
    assert on_cpu.sb_fp4_prefill(*at, 0, m, n, k, 0, None) == 0
    exact = reference.dequantize(x[0], x[1], 1.0).astype(float)
    want = reference.fp4_gemv(exact, w[0], w[1], 1.0) * float(alphas[0]) * float(alphas[1])
    assert np.linalg.norm(y[:m] - want) / np.linalg.norm(want) < 1e-6
    assert np.isnan(y[m]).all(), "wrote behind its result"


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["121f", "121a", "120f"])
def test_the_machine_code_is_the_tensor_cores_own_instruction(arch: str, tmp_path: Path):
    chain, cubin = build.find_toolchain(), tmp_path / "prefill.cubin"
    target = ["-gencode", f"arch=compute_{arch},code=sm_{arch}", "-cubin", "-o", str(cubin)]
    source = str(build.sources() / "prefill.cu")
    line = [str(chain.nvcc), *chain.flags(), "-O3", "-std=c++17", "-Xptxas", "-v", *target, source]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
    (found,) = build.instructions_by_kernel(cubin).values()
    products = {name: count for name, count in found.items() if "MMA" in name}
    # 4 x 4 tiles of a warp's 64 x 32.
    assert products == {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 16}


@pytest.mark.nvcc
@pytest.mark.parametrize("switch", [None, "0", "1"])
def test_it_is_off_by_default(monkeypatch: pytest.MonkeyPatch, switch: str | None):
    monkeypatch.delenv("SPARKBOOK_FP4_PREFILL", raising=False)
    if switch:
        monkeypatch.setenv("SPARKBOOK_FP4_PREFILL", switch)
    made = library.Library(build.build("sm_121f").path)
    assert made.prefill is (switch == "1")
    if not made.prefill:
        with pytest.raises(SparkbookError, match="SPARKBOOK_FP4_PREFILL=1"):
            made.fp4_prefill((), (), None)
