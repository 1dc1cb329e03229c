"""What the kernels compute, in numpy: formats, quantization, and products of few tokens with NVFP4,
2:4 and FP8 weights.

NVFP4 (the format as NVIDIA's Model Optimizer writes it, https://github.com/NVIDIA/Model-Optimizer):
a weight is an E2M1 code times the E4M3 scale of its block of 16 along K times one float32 for the
whole tensor. Codes are packed two a byte, the even k in the low nibble: `codes` uint8 [N, K / 2],
`scales` uint8 (E4M3 bits) [N, K / 16], `alpha` float32, which multiplies.

Products are taken in float64 over the exactly decoded weights, so that they are the yardstick and
not one more float32 answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sparkbook.errors import SparkbookError

BLOCK = 16
E2M1_MAX = 6.0
E4M3_MAX = 448.0
U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

#: Value of each E2M1 code: sign, two exponent bits, one mantissa bit.
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def _e4m3_values() -> F32:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    magnitude[(code & 127) == 127] = np.nan
    return np.where(code < 128, magnitude, -magnitude).astype(np.float32)


#: Value of each E4M3 byte; 0x7f and 0xff are NaN, there is no infinity.
E4M3 = _e4m3_values()


def encode_e2m1(x: ArrayLike) -> U8:
    """Float32s to E2M1 codes: to nearest, ties to even, saturating at 6. NaN gives +6, as the
    hardware's conversion does; -0 gives 8.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    sign = np.where(magnitude > 0x7F800000, np.uint32(0), bits >> np.uint32(28) & np.uint32(8))
    a = np.minimum(magnitude, np.uint32(0x40C00000))  # 6.0
    # Below 1 the codes are 0.5 apart: added to 2^22, whose last bit is worth 0.5, the sum is
    # rounded as wanted.
    below_one = (a.view(np.float32) + np.float32(2**22)).view(np.uint32) & np.uint32(3)
    from_one = a + np.uint32(0x1FFFFF) + (a >> np.uint32(22) & np.uint32(1)) - np.uint32(
        0x3F000000
    ) >> np.uint32(22)
    return (sign | np.where(a < 0x3F800000, below_one, from_one)).astype(np.uint8)


def encode_e4m3(x: ArrayLike) -> U8:
    """Float32s to E4M3 bytes: to nearest, ties to even, saturating at 448; NaN gives 0x7f."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    a = np.minimum(magnitude, np.uint32(0x43E00000))  # 448.0
    subnormal = (a.view(np.float32) + np.float32(2**14)).view(np.uint32) & np.uint32(15)
    normal = a + np.uint32(0x7FFFF) + (a >> np.uint32(20) & np.uint32(1)) - np.uint32(
        0x3C000000
    ) >> np.uint32(20)
    code = np.where(a < 0x3C800000, subnormal, normal) | (bits >> np.uint32(24) & np.uint32(0x80))
    return np.where(magnitude > 0x7F800000, np.uint32(0x7F), code).astype(np.uint8)


def pack(codes: U8) -> U8:
    """[..., K] codes to [..., K / 2] bytes, the even k in the low nibble."""
    return codes[..., 0::2] | codes[..., 1::2] << np.uint8(4)


def unpack(packed: U8) -> U8:
    """[..., K / 2] bytes to [..., K] codes."""
    return np.stack([packed & np.uint8(15), packed >> np.uint8(4)], -1).reshape(
        *packed.shape[:-1], -1
    )


# ---- quantization


def global_scale(x: ArrayLike) -> np.float32:
    """Return the tensor's float32 scale as Model Optimizer chooses it: the largest magnitude over 6
    x 448, or 1 for a tensor of zeros.
    """
    amax = np.max(np.abs(np.asarray(x, np.float32)), initial=0.0)
    return np.float32(amax / np.float32(E2M1_MAX * E4M3_MAX)) if amax > 0 else np.float32(1)


def quantize(x: ArrayLike, g: float | np.float32 | None = None) -> tuple[U8, U8, np.float32]:
    """[..., K] to (codes [..., 8 ceil(K / 16)], scales [..., ceil(K / 16)], g).

    Per block: scale = E4M3(amax / (6 g)), code = E2M1(x / (scale g)).

    Every step is one IEEE float32 operation, and the kernels do the same steps: the results are
    equal bit by bit. A block whose scale comes out as zero has codes of zero (with the sign kept);
    a NaN is not counted in amax and becomes +6; a last, short block is filled up with zeros.
    """
    x = np.asarray(x, np.float32)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise SparkbookError("nothing to quantize: the array's last axis is empty")
    scale = global_scale(x) if g is None else np.float32(g)
    if not (np.isfinite(scale) and scale > 0):
        raise SparkbookError(f"the global scale is {scale}; it has to be a finite number above 0")
    if short := -x.shape[-1] % BLOCK:
        x = np.concatenate([x, np.zeros((*x.shape[:-1], short), np.float32)], -1)
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    with np.errstate(all="ignore"):
        amax = np.fmax.reduce(np.abs(blocks), -1, initial=np.float32(0))
        scales = np.where(amax > 0, encode_e4m3(amax / (np.float32(E2M1_MAX) * scale)), np.uint8(0))
        step = (E4M3[scales] * scale)[..., None]
        codes = encode_e2m1(np.where(step > 0, blocks / step, np.copysign(np.float32(0), blocks)))
    return pack(codes.reshape(x.shape)), scales, scale


def check_layout(codes: U8, scales: U8) -> None:
    """Raises SparkbookError unless these are codes [..., K / 2] and scales [..., K / 16], bytes."""
    for what, array in (("codes", codes), ("scales", scales)):
        if array.dtype != np.uint8:
            raise SparkbookError(f"{what} are uint8, not {array.dtype}")
    want = (*codes.shape[:-1], 2 * codes.shape[-1] // BLOCK)
    if scales.shape != want or 2 * codes.shape[-1] % BLOCK:
        raise SparkbookError(
            f"codes {list(codes.shape)} take scales {list(want)}, one for {BLOCK} of K; these are"
            f" {list(scales.shape)}"
        )


def dequantize(codes: U8, scales: U8, g: float) -> F32:
    """(codes [..., K / 2], scales [..., K / 16], g) to float32 [..., K]: (code x scale) x g. The
    first product is exact. Raises SparkbookError if the two don't fit each other.
    """
    check_layout(codes, scales)
    values = E2M1[unpack(codes)] * np.repeat(E4M3[scales], BLOCK, -1)
    return values * np.float32(g)


def rmsnorm_quantize(
    x: ArrayLike, weight: ArrayLike, eps: float, g: float | np.float32
) -> tuple[U8, U8, np.float32]:
    """Quantizes x / sqrt(mean(x^2) + eps) * weight, float32 in between. The kernel adds in another
    order: a code may differ at a tie.
    """
    x = np.asarray(x, np.float32)
    mean = np.mean(np.square(x, dtype=np.float64), -1, keepdims=True)
    return quantize(
        x * (1 / np.sqrt(mean + eps)).astype(np.float32) * np.asarray(weight, np.float32), g
    )


def silu_mul_quantize(x: ArrayLike, g: float | np.float32) -> tuple[U8, U8, np.float32]:
    """[M, 2 K] (gate, then up): quantizes silu(gate) * up. exp differs by a unit in the last place
    between machines.
    """
    gate, up = np.split(np.asarray(x, np.float32), 2, -1)
    return quantize(silu(gate).astype(np.float32) * up, g)


def silu(x: ArrayLike) -> F64:
    """x / (1 + exp(-x)), in float64."""
    x = np.asarray(x, np.float64)
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


# ---- products


def fp4_gemv(x: ArrayLike, codes: U8, scales: U8, alpha: float) -> F64:
    """x [M, K] times NVFP4 weights [N, K], transposed: float64 [M, N]. Raises SparkbookError if
    codes and scales don't fit each other.
    """
    weights = dequantize(codes, scales, 1.0)
    return np.asarray(x, np.float64) @ weights.astype(np.float64).T * float(np.float32(alpha))


def fp8_gemv(x: ArrayLike, weights: U8, scale: ArrayLike) -> F64:
    """x [M, K] times E4M3 weights [N, K], transposed. `scale` multiplies: [N], or [ceil(N / 128),
    ceil(K / 128)].
    """
    scale = np.asarray(scale, np.float64)
    values = E4M3[weights].astype(np.float64)
    n, k = values.shape
    full = (
        scale[:, None]
        if scale.ndim == 1
        else np.repeat(np.repeat(scale, 128, 0)[:n], 128, 1)[:, :k]
    )
    return np.asarray(x, np.float64) @ (values * full).T


def lm_head(x: ArrayLike, weights: U8, scale: ArrayLike) -> NDArray[np.int64]:
    """Return the index of each token's largest logit, the lowest where several are."""
    return np.argmax(fp8_gemv(x, weights, scale), -1)


def moe_decode(
    x: ArrayLike,
    w13: tuple[U8, U8, ArrayLike],
    w2: tuple[U8, U8, ArrayLike],
    ids: ArrayLike,
    weights: ArrayLike,
) -> F64:
    """Return the experts of a mixture-of-experts layer for x [M, hidden]: float64 [M, hidden].

    w13 = (codes [E, 2 I, hidden / 2], scales, alpha [E, 2]): gate's rows, then up's, and their two
    global scales. w2 = (codes [E, hidden, I / 2], scales, alpha [E]). ids and weights [M, topk]; an
    id outside 0 .. E - 1 adds nothing.
    """
    x, ids, weights = np.asarray(x, np.float64), np.asarray(ids), np.asarray(weights, np.float64)
    alpha13, alpha2 = np.asarray(w13[2], np.float32), np.asarray(w2[2], np.float32)
    experts, rows = w13[0].shape[:2]
    inter = rows // 2
    y = np.zeros_like(x)
    for token, slot in np.ndindex(*ids.shape):
        e = int(ids[token, slot])
        if 0 <= e < experts:
            gate = fp4_gemv(x[token], w13[0][e, :inter], w13[1][e, :inter], alpha13[e, 0])
            up = fp4_gemv(x[token], w13[0][e, inter:], w13[1][e, inter:], alpha13[e, 1])
            y[token] += weights[token, slot] * fp4_gemv(
                silu(gate) * up, w2[0][e], w2[1][e], alpha2[e]
            )
    return y


# ---- 2:4

TILE_ROWS, TILE_K, TILE_BYTES = 16, 256, 1792
_EVEN, _ODD = slice(0, None, 2), slice(1, None, 2)


@dataclass(frozen=True)
class Sparse24:
    """NVFP4 weights in the 2:4 layout of `kernels/sparse24.cu`: `tiles` uint8 [ceil(N / 16), K /
    256, 1792], for N x K weights.

    `lossy_groups` is the share of groups of four that had more than two values; `energy_lost` the
    share of the squared weights that went with the values dropped from them. Both are 0 where the
    weights were 2:4.
    """

    tiles: U8
    n: int
    k: int
    lossy_groups: float
    energy_lost: float

    def report(self) -> str:
        """Return one line for people."""
        if not self.lossy_groups:
            return (
                f"{self.n} x {self.k}: every group of four has at most two values; nothing was lost"
            )
        return (
            f"{self.n} x {self.k}: {self.lossy_groups:.1%} of the groups of four had more than two"
            f" values; dropping the smaller ones lost {self.energy_lost:.2%} of the weights' energy"
        )


def two_of_four(codes: U8) -> tuple[U8, U8, NDArray[np.bool_]]:
    """[N, K] codes to (kept codes [N, K / 4, 2], their positions [N, K / 4, 2] in rising order,
    which groups lost something [N, K / 4]).

    Of each four the two of largest magnitude are kept, of equal ones the first. Inside a block all
    share one scale, so codes compare as the weights do.
    """
    groups = codes.reshape(codes.shape[0], -1, 4)
    magnitude = groups & 7
    order = np.argsort(-magnitude.astype(np.int8), axis=-1, kind="stable")
    positions = np.sort(order[..., :2], -1).astype(np.uint8)
    lost = (magnitude > 0).sum(-1) > 2
    return np.take_along_axis(groups, positions, -1), positions, lost


def to_sparse24(codes: U8, scales: U8, *, allow_lossy: bool = False) -> Sparse24:
    """Checkpoint-layout NVFP4 weights to the 2:4 layout.

    Raises SparkbookError where a group of four has more than two values that are not zero, unless
    `allow_lossy`: dropping the smaller ones of an ordinary (not 2:4-trained) model's loses some 13
        % of the energy of its weights, fourteen times what NVFP4 itself loses.
    """
    n, k = codes.shape[0], codes.shape[1] * 2
    if k % TILE_K or scales.shape != (n, k // BLOCK):
        raise SparkbookError(
            f"weights of {n} x {k} with scales of {scales.shape} don't fit: K has to be a multiple"
            f" of {TILE_K}, scales N x K / 16"
        )
    dense = unpack(codes)
    values, positions, lost = two_of_four(dense)
    energy = lost_energy = 0.0
    if lost.any():
        weights = np.square(
            E2M1[dense].astype(np.float64) * np.repeat(E4M3[scales].astype(np.float64), BLOCK, -1)
        ).reshape(n, -1, 4)
        kept = np.take_along_axis(weights, positions.astype(np.int64), -1)
        energy = float(weights.sum())
        lost_energy = energy - float(kept.sum())
    share = float(lost.mean())
    if share and not allow_lossy:
        raise SparkbookError(
            f"these weights are not 2:4 sparse: {share:.1%} of the groups of four have more than"
            " two values that are not zero. Dropping the smaller ones would lose"
            f" {lost_energy / energy:.2%} of the weights' energy; allow it only to see what that"
            " costs"
        )
    rows = -n % TILE_ROWS
    values, positions, padded = (
        np.pad(a, [(0, rows)] + [(0, 0)] * (a.ndim - 1)) for a in (values, positions, scales)
    )
    if rows:
        positions[n:, :, 1] = (
            1  # the two positions of a group have to differ, also where its values are zeros
        )
    return Sparse24(
        _tiles(values, positions, padded), n, k, share, lost_energy / energy if energy else 0.0
    )


def _tiles(values: U8, positions: U8, scales: U8) -> U8:
    """Return the byte order that sparse24.cu describes. Axes: row tile, half (row g or g + 8), g, k
    tile, lane t, group (16 of four).
    """
    tiles, steps = values.shape[0] // TILE_ROWS, values.shape[1] // 64
    v = values.reshape(
        tiles, 2, 8, steps, 4, 4, 4, 2
    )  # ..., t, word, group in word, which of the two
    nibbles = v.transpose(0, 3, 1, 2, 4, 5, 7, 6).reshape(
        tiles, steps, 2, 32, 32
    )  # word: four first values, four second ones
    p = (positions[..., 0] | positions[..., 1] << np.uint8(2)).reshape(tiles, 2, 8, steps, 4, 16)
    # A lane's word w: step 2 w + t / 2 of the eight, its first or second group (t & 1), of all four
    # lanes; row g low, row g + 8 high.
    p = p.reshape(
        tiles, 2, 8, steps, 4, 4, 2, 2
    )  # half, g, k tile, source lane, w, step in w, group in step
    p = p.transpose(
        0, 3, 2, 6, 7, 5, 1, 4
    )  # tile, k tile, g, (step in w, group in step) = t, w, half, source lane
    words = pack(p.reshape(tiles, steps, 32, 4 * 8))
    s = scales.reshape(tiles, 2, 8, steps, 4, 4).transpose(0, 3, 2, 4, 1, 5)
    parts = [
        pack(nibbles).reshape(tiles, steps, 1024),
        words.reshape(tiles, steps, 512),
        s.reshape(tiles, steps, 256),
    ]
    return np.ascontiguousarray(np.concatenate(parts, -1))


def from_sparse24(sparse: Sparse24) -> tuple[U8, U8]:
    """Back to (codes [N, K / 2], scales [N, K / 16]): what the kernel multiplies with."""
    tiles, steps = sparse.tiles.shape[:2]
    v = (
        unpack(sparse.tiles[..., :1024])
        .reshape(tiles, steps, 2, 8, 4, 4, 2, 4)
        .transpose(0, 2, 3, 1, 4, 5, 7, 6)
    )
    values = v.reshape(tiles * TILE_ROWS, steps * 64, 2)
    p = (
        unpack(sparse.tiles[..., 1024:1536])
        .reshape(tiles, steps, 8, 2, 2, 4, 2, 4)
        .transpose(0, 6, 2, 1, 7, 5, 3, 4)
    )
    p = p.reshape(tiles * TILE_ROWS, steps * 64)
    s = (
        sparse.tiles[..., 1536:]
        .reshape(tiles, steps, 8, 4, 2, 4)
        .transpose(0, 4, 2, 1, 3, 5)
        .reshape(tiles * TILE_ROWS, steps * 16)
    )
    dense = np.zeros((*p.shape, 4), np.uint8)
    np.put_along_axis(dense, np.stack([p & 3, p >> 2], -1).astype(np.int64), values, -1)
    return pack(dense.reshape(tiles * TILE_ROWS, sparse.k))[: sparse.n], np.ascontiguousarray(
        s[: sparse.n]
    )
