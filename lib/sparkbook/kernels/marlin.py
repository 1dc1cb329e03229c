"""NVFP4 weights in the order in which vLLM's Marlin keeps them, in numpy: there, back, products.

Vocabulary: a tile is 16 k of 64 rows, 512 bytes; scales are bytes of five exponent and three
mantissa bits, of 128 times the scale. For bf16 activations Marlin first multiplies all scales by
the power of two that brings the largest next to 448, and drops those that are still below 2^-6; the
float32 of the whole tensor makes up for that and for what its decoding leaves out.

Order of weights and scales: `gptq_marlin_repack`, `marlin_permute_scales` and
`nvfp4_marlin_process_scales` of vLLM 0.24.0
(https://github.com/vllm-project/vllm/tree/v0.24.0/vllm/model_executor/layers/quantization/utils,
2026-11-28).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparkbook.errors import SparkbookError
from sparkbook.kernels import reference
from sparkbook.kernels.reference import E2M1, E4M3, U8

_ORDER = [0, 2, 1, 3, 4, 6, 5, 7]  # of a lane's eight scales
LEFT_OUT = {"bf16": 119, "f16": 7}
"""Powers of two in the float32 of the whole tensor, by the type of the activations."""


@dataclass(frozen=True)
class Marlin:
    """A matrix [N, K]; N is a multiple of 64, K of 16.

    Attributes:
        weights: int32 [K / 16, 2 N].
        scales: uint8 [K / 16, N].
        scale: float32 of the whole tensor.
        kind: type of the activations: bf16 or f16.
    """

    weights: NDArray[np.int32]
    scales: U8
    scale: np.float32
    kind: str


def to_marlin(codes: U8, scales: U8, alpha: float, kind: str = "bf16") -> Marlin:
    """Put NVFP4 weights of a checkpoint (codes [N, K / 2], scales [N, K / 16]) into Marlin's
    order.

    Raises:
        SparkbookError: they are not bytes, their shapes don't fit each other or Marlin's grid, a
            block scale is negative, or `kind` is not bf16 or f16.
    """
    reference.check_layout(codes, scales)
    n, k = codes.shape[0], 2 * codes.shape[-1]
    if codes.ndim != 2 or n % 64:
        raise SparkbookError(f"Marlin's order takes [N, K] with N a multiple of 64, not {[n, k]}")
    if kind not in LEFT_OUT:
        raise SparkbookError(f"activations are {' or '.join(LEFT_OUT)}, not '{kind}'")
    if ((scales > 0x80) & (scales < 0xFF)).any():
        raise SparkbookError("a block scale is negative, and Marlin's order has no sign for it")
    # k is (tile, half, pair, odd), row is (tile, operand, upper or lower, row of eight).
    nibbles = reference.unpack(codes).T.reshape(k // 16, 2, 4, 2, n // 64, 4, 2, 8)
    lanes = nibbles.transpose(0, 4, 7, 2, 5, 3, 6, 1).reshape(k // 16, 2 * n, 8).astype(np.uint32)
    words = np.bitwise_or.reduce(lanes << np.arange(0, 32, 4, dtype=np.uint32), -1)
    large = E4M3[scales].T * np.float32(128)
    more = 1.0
    if kind == "bf16" and 0 < large.max() < 448 * 128:
        more = 2.0 ** np.floor(np.log2(448 * 128 / large.max()))
    large = np.where(large * more < 2, 0, large * more).astype(np.float16)
    bytes_ = (large.view(np.uint16) >> 7).astype(np.uint8)
    ordered = bytes_.reshape(k // 16, n // 64, 8, 8).swapaxes(2, 3)[..., _ORDER]
    whole = np.float32(float(np.float32(alpha)) * 2.0 ** LEFT_OUT[kind] / more)
    return Marlin(words.view(np.int32), ordered.reshape(k // 16, n), whole, kind)


def decoded(marlin: Marlin) -> reference.F32:
    """Return the weights [N, K] without the scale of the whole tensor, and 128 times as large."""
    tiles, n = marlin.scales.shape
    words = marlin.weights.view(np.uint32)[..., None]
    nibbles = (words >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.uint8)
    lanes = nibbles.reshape(tiles, n // 64, 8, 4, 4, 2, 2, 2)
    values = E2M1[lanes.transpose(0, 7, 3, 5, 1, 4, 6, 2).reshape(tiles, 16, n)]
    back = marlin.scales.reshape(tiles, n // 64, 8, 8)[..., np.argsort(_ORDER)].swapaxes(2, 3)
    scales = (back.reshape(tiles, n).astype(np.uint16) << 7).view(np.float16).astype(np.float32)
    return (values * scales[:, None]).reshape(16 * tiles, n).T


def gemv(x: ArrayLike, marlin: Marlin) -> reference.F64:
    """x [M, K] times the weights, transposed: float64 [M, N]."""
    whole = float(marlin.scale) * 2.0 ** -LEFT_OUT[marlin.kind]
    return np.asarray(x, np.float64) @ decoded(marlin).T.astype(np.float64) / 128 * whole


def moe(
    x: ArrayLike, w13: list[Marlin], w2: list[Marlin], ids: ArrayLike, weights: ArrayLike
) -> reference.F64:
    """Return the experts of a layer for x [M, hidden]: w13 [E] of 2 I rows, gate's before up's; w2
    [E] of hidden rows. An id outside 0 .. E - 1 adds nothing.
    """
    x, ids, weights = np.asarray(x, np.float64), np.asarray(ids), np.asarray(weights, np.float64)
    y = np.zeros_like(x)
    for token, slot in np.ndindex(*ids.shape):
        if 0 <= (e := int(ids[token, slot])) < len(w13):
            gate, up = np.split(gemv(x[token], w13[e]), 2)
            y[token] += weights[token, slot] * gemv(reference.silu(gate) * up, w2[e])
    return y
