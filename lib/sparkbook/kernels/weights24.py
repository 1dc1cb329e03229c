"""How far weights are 2:4 sparse by nature, and the cost of pruning them to 2:4 compared with
that of NVFP4 itself.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparkbook.kernels.reference import (
    E2M1,
    F32,
    dequantize,
    encode_e2m1,
    quantize,
    two_of_four,
    unpack,
)


@dataclass(frozen=True)
class Pruning:
    """Shares between 0 and 1.

    Attributes:
        zeros: codes that are zero.
        lossless: groups of four with at most two values that are not zero: what "natural 2:4
            sparsity" would need of all.
        quantization: energy of NVFP4's error, as a share of the weights' energy.
        pruning: energy that goes with the smaller values when each group keeps its two largest.
    """

    zeros: float
    lossless: float
    quantization: float
    pruning: float


def of(weights: F32) -> Pruning:
    """Quantizes weights [N, K] to NVFP4 as Model Optimizer does, and keeps two of four of the
    codes. K is a multiple of 16.
    """
    codes, scales, g = quantize(weights)
    dense = unpack(codes)
    back = dequantize(codes, scales, float(g)).astype(np.float64)
    _, positions, lost = two_of_four(dense)
    energy = np.square(back).reshape(*lost.shape, 4)
    kept = np.take_along_axis(energy, positions.astype(np.int64), -1).sum()
    error = np.square(back - weights).sum() / np.square(weights, dtype=np.float64).sum()
    return Pruning(
        float(np.mean((dense & 7) == 0)),
        float(1 - lost.mean()),
        float(error),
        float(1 - kept / energy.sum()),
    )


def distributions(rows: int = 512, columns: int = 1024, seed: int = 0) -> dict[str, F32]:
    """Return weights as models have them, more or less, [rows, columns]: what is known of a layer
    is that it lies between these.
    """
    rng = np.random.default_rng(seed)
    shape = (rows, columns)
    gauss = rng.standard_normal(shape)
    found = {
        "Gaussian": gauss,
        "Student-t, 5 degrees": rng.standard_t(5, shape),
        "Laplace": rng.laplace(size=shape),
        "uniform": rng.uniform(-1, 1, shape),
        "Gaussian, columns of different size": (
            rng.standard_normal(shape) * np.exp(0.5 * rng.standard_normal(columns))
        ),
    }
    return {name: weights.astype(np.float32) for name, weights in found.items()}


def pruned_before(weights: F32) -> F32:
    """Return the weights with the two smaller of each four set to zero, as a 2:4 model has."""
    groups = weights.reshape(-1, 4).copy()
    np.put_along_axis(groups, np.argsort(np.abs(groups), -1, kind="stable")[:, :2], 0, -1)
    return groups.reshape(weights.shape)


def trained(path: Path) -> list[F32]:
    """Return the matrices of a safetensors file in BF16 whose rows NVFP4 can take, embedding and
    head left out.
    """
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found = []
    for name, entry in sorted(json.loads(data[8 : 8 + length]).items()):
        if (
            entry.get("dtype") == "BF16"
            and len(entry["shape"]) == 2
            and not entry["shape"][1] % 16
            and "embed" not in name
            and "head" not in name
        ):
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            bits = np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16
            found.append(bits.view(np.float32).reshape(entry["shape"]))
    return found


def together(matrices: list[F32]) -> Pruning:
    """Return the same over several matrices, each by its number of weights."""
    parts, sizes = [of(weights) for weights in matrices], [weights.size for weights in matrices]

    def mean(name: str) -> float:
        return float(np.average([getattr(part, name) for part in parts], weights=sizes))

    return Pruning(*(mean(name) for name in ("zeros", "lossless", "quantization", "pruning")))


# ---- the conversion by comparisons

_ABOVE = np.array([0.25, 1.25, 2.5, 5.0], np.float32)
_FROM = np.array([0.75, 1.75, 3.5], np.float32)
THRESHOLDS = np.sort(np.concatenate([_ABOVE, _FROM]))
"""Where E2M1 changes its value: the middles between its neighbors."""


def by_comparisons(bits: np.ndarray) -> np.ndarray:
    """E2M1 codes by a chain of comparisons, as the README's software conversion finds them, of
    float32s as uint32.

    NaN fails every comparison and becomes 6, with its sign.
    """
    size = np.abs(bits.view(np.float32))
    with np.errstate(invalid="ignore"):
        below = sum((size <= at).astype(np.uint8) for at in _ABOVE) + sum(
            (size < at).astype(np.uint8) for at in _FROM
        )
    return (7 - below) | ((bits >> np.uint32(28)).astype(np.uint8) & 8)


def telling_bits(seed: int = 0) -> np.ndarray:
    """Float32s, as uint32, that would show a difference: all within 1000 steps of a threshold or a
    value, and 2^20 others, both signs.
    """
    near = (
        np.concatenate([THRESHOLDS, np.unique(np.abs(E2M1))])
        .astype(np.float32)
        .view(np.uint32)
        .astype(np.int64)
    )
    around = (near[:, None] + np.arange(-1000, 1001)).ravel()
    some = np.random.default_rng(seed).integers(0, 0x7F800001, 2**20)
    positive = np.concatenate(
        [around[around >= 0], some, [0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000]]
    ).astype(np.uint32)
    return np.concatenate([positive, positive | np.uint32(0x80000000)])


def hardware(bits: np.ndarray) -> np.ndarray:
    """E2M1 codes as the hardware's conversion gives them (`reference.encode_e2m1`)."""
    return encode_e2m1(bits.view(np.float32))
