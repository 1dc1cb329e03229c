"""An NVFP4 GEMV in Triton, as one would write it first: the benchmark's yardstick for what
hand-written CUDA is worth. M = 1.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def _value(code):
    """E2M1 codes as float32, by their bits: 2^126 corrects the exponent's bias."""
    bits = ((code & 8) << 28) | ((code & 7) << 22)
    return bits.to(tl.float32, bitcast=True) * 8.507059173023462e37


@triton.jit
def _kernel(  # noqa: PLR0913 - a kernel takes pointers and sizes one by one
    x, codes, scales, alpha, y, n, k, rows: tl.constexpr, span: tl.constexpr
):  # span: values of k a step
    row = tl.program_id(0) * rows + tl.arange(0, rows)
    total = tl.zeros((rows,), tl.float32)
    half = tl.arange(0, span // 2)
    block = tl.arange(0, span // 16)
    inside = row < n
    for first in range(0, k, span):
        packed = tl.load(
            codes + row[:, None].to(tl.int64) * (k // 2) + first // 2 + half[None, :],
            mask=inside[:, None] & (first + 2 * half < k)[None, :],
            other=0,
        ).to(tl.int32)
        scale = tl.load(
            scales + row[:, None].to(tl.int64) * (k // 16) + first // 16 + block[None, :],
            mask=inside[:, None] & (first + 16 * block < k)[None, :],
            other=0,
        )
        scale = scale.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        even = tl.load(x + first + 2 * half, mask=first + 2 * half < k, other=0).to(tl.float32)
        odd = tl.load(x + first + 2 * half + 1, mask=first + 2 * half < k, other=0).to(tl.float32)
        product = _value(packed & 15) * even[None, :] + _value(packed >> 4) * odd[None, :]
        sums = tl.sum(tl.reshape(product, (rows, span // 16, 8)), 2)
        total += tl.sum(sums * scale, 1)
    tl.store(y + row, (total * tl.load(alpha)).to(y.dtype.element_ty), mask=inside)


def fp4_gemv(x: Any, codes: Any, scales: Any, alpha: Any, y: Any) -> None:
    """y [1, N] = x [1, K] W^T on torch's current stream."""
    n, k = codes.shape[0], 2 * codes.shape[1]
    rows = 4 if n < 8192 else 8
    _kernel[(triton.cdiv(n, rows),)](
        x, codes, scales, alpha, y, n, k, rows=rows, span=1024, num_warps=4
    )
