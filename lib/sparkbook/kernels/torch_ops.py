"""The kernels as operators of torch, defined when this module is imported:
`torch.ops.sparkbook.fp4_gemv`, `fp8_gemv`, `lm_head`, `moe_decode`, `sparse_gemv`, `marlin_gemv`,
`marlin_moe`, `nvfp4_quantize`, `nvfp4_dequantize`, `rmsnorm_nvfp4_quantize` and
`silu_mul_nvfp4_quantize`.

On CUDA tensors they launch on torch's current stream, allocate through torch and never synchronize,
so that CUDA graphs capture them and `torch.compile` keeps them in its graph. On CPU tensors they
compute the numpy reference.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from sparkbook.kernels import marlin, reference
from sparkbook.kernels.library import Library


@functools.cache
def _library(device: int) -> Library:
    return Library.for_device(device)


def _on(tensor: Tensor) -> tuple[Library, int]:
    """Return the library and the stream for a tensor's GPU."""
    return _library(tensor.device.index), torch.cuda.current_stream(tensor.device).cuda_stream


def _numpy(tensor: Tensor) -> np.ndarray:
    """Return a CPU tensor's values; one-byte types as their bits."""
    tensor = tensor.detach()
    if tensor.element_size() == 1:
        return tensor.view(torch.uint8).numpy()
    return tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()


def _back(values: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to(like.dtype)


@torch.library.custom_op("sparkbook::fp4_gemv", mutates_args=(), device_types="cuda")
def fp4_gemv(x: Tensor, codes: Tensor, scales: Tensor, alpha: Tensor) -> Tensor:
    """x [M, K] (bf16 or f16, M 1 to 8) times NVFP4 weights [N, K] in the checkpoint's layout; the
    result is of x's type.
    """
    y = x.new_empty(x.shape[0], codes.shape[0])
    library, stream = _on(x)
    library.fp4_gemv(x, codes, scales, alpha, y, stream=stream)
    return y


@fp4_gemv.register_kernel("cpu")
def _(x: Tensor, codes: Tensor, scales: Tensor, alpha: Tensor) -> Tensor:
    return _back(reference.fp4_gemv(_numpy(x), _numpy(codes), _numpy(scales), float(alpha)), x)


@fp4_gemv.register_fake
def _(x: Tensor, codes: Tensor, scales: Tensor, alpha: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], codes.shape[0])


@torch.library.custom_op("sparkbook::fp8_gemv", mutates_args=(), device_types="cuda")
def fp8_gemv(x: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    """Multiply x [M, K] by E4M3 weights [N, K]; float32 scales [N] or
    [ceil(N / 128), ceil(K / 128)].
    """
    y = x.new_empty(x.shape[0], weights.shape[0])
    library, stream = _on(x)
    library.fp8_gemv(x, weights, scale, y, stream=stream)
    return y


@fp8_gemv.register_kernel("cpu")
def _(x: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    return _back(reference.fp8_gemv(_numpy(x), _numpy(weights), _numpy(scale)), x)


@fp8_gemv.register_fake
def _(x: Tensor, weights: Tensor, scale: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weights.shape[0])


@torch.library.custom_op("sparkbook::lm_head", mutates_args=(), device_types="cuda")
def lm_head(x: Tensor, weights: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 weights [N, K]: (logits [M, N] float32, the index of each token's largest [M] int64)."""
    logits = x.new_empty(x.shape[0], weights.shape[0], dtype=torch.float32)
    index = x.new_empty(x.shape[0], dtype=torch.int64)
    library, stream = _on(x)
    library.lm_head(x, weights, scale, logits, index, stream=stream)
    return logits, index


@lm_head.register_kernel("cpu")
def _(x: Tensor, weights: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    logits = torch.from_numpy(reference.fp8_gemv(_numpy(x), _numpy(weights), _numpy(scale))).float()
    return logits, logits.argmax(-1)


@lm_head.register_fake
def _(x: Tensor, weights: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape[0], weights.shape[0], dtype=torch.float32), x.new_empty(
        x.shape[0], dtype=torch.int64
    )


@torch.library.custom_op("sparkbook::moe_decode", mutates_args=(), device_types="cuda")
def moe_decode(  # noqa: PLR0913 - an operator's schema takes tensors, no groups of them
    x: Tensor,
    codes13: Tensor,
    scales13: Tensor,
    alpha13: Tensor,
    codes2: Tensor,
    scales2: Tensor,
    alpha2: Tensor,
    ids: Tensor,
    weights: Tensor,
) -> Tensor:
    """Return the experts of a mixture-of-experts layer for a few tokens; shapes as
    `Library.moe_decode` has them.
    """
    h = x.new_empty(x.shape[0], ids.shape[1], codes2.shape[2] * 2)
    y = torch.empty_like(x)
    library, stream = _on(x)
    library.moe_decode(
        x,
        (codes13, scales13, alpha13),
        (codes2, scales2, alpha2),
        ids,
        weights,
        h,
        y,
        stream=stream,
    )
    return y


@moe_decode.register_kernel("cpu")
def _(  # noqa: PLR0913 - as above
    x: Tensor,
    codes13: Tensor,
    scales13: Tensor,
    alpha13: Tensor,
    codes2: Tensor,
    scales2: Tensor,
    alpha2: Tensor,
    ids: Tensor,
    weights: Tensor,
) -> Tensor:
    y = reference.moe_decode(
        _numpy(x),
        (_numpy(codes13), _numpy(scales13), _numpy(alpha13)),
        (_numpy(codes2), _numpy(scales2), _numpy(alpha2)),
        _numpy(ids),
        _numpy(weights),
    )
    return _back(y, x)


@moe_decode.register_fake
def _(  # noqa: PLR0913 - as above
    x: Tensor,
    codes13: Tensor,
    scales13: Tensor,
    alpha13: Tensor,
    codes2: Tensor,
    scales2: Tensor,
    alpha2: Tensor,
    ids: Tensor,
    weights: Tensor,
) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("sparkbook::marlin_gemv", mutates_args=(), device_types="cuda")
def marlin_gemv(
    x: Tensor, weights: Tensor, scales: Tensor, scale: Tensor, pdl: bool = False
) -> Tensor:
    """x [M, K] (bf16 or f16, M 1 to 16) times NVFP4 weights [N, K] in Marlin's order; the result is
    of x's type. With pdl the launch is programmatic: weights, scales and scale must not be what the
    kernel just before wrote.
    """
    y = x.new_empty(x.shape[0], weights.shape[1] // 2)
    library, stream = _on(x)
    library.marlin_gemv(x, weights, scales, scale, y, stream=stream, pdl=pdl)
    return y


@marlin_gemv.register_kernel("cpu")
def _(x: Tensor, weights: Tensor, scales: Tensor, scale: Tensor, pdl: bool = False) -> Tensor:
    (matrix,) = _marlin(x, weights[None], scales[None], scale.view(1))
    return _back(marlin.gemv(_numpy(x), matrix), x)


@marlin_gemv.register_fake
def _(x: Tensor, weights: Tensor, scales: Tensor, scale: Tensor, pdl: bool = False) -> Tensor:
    return x.new_empty(x.shape[0], weights.shape[1] // 2)


@torch.library.custom_op("sparkbook::marlin_moe", mutates_args=(), device_types="cuda")
def marlin_moe(  # noqa: PLR0913 - an operator's schema takes tensors, no groups of them
    x: Tensor,
    weights13: Tensor,
    scales13: Tensor,
    scale13: Tensor,
    weights2: Tensor,
    scales2: Tensor,
    scale2: Tensor,
    ids: Tensor,
    weights: Tensor,
) -> Tensor:
    """`moe_decode` with weights in Marlin's order; shapes as `Library.marlin_moe` has them."""
    y = torch.empty_like(x)
    w13, w2 = (weights13, scales13, scale13), (weights2, scales2, scale2)
    marlin_moe_into(y, x, w13, w2, ids, weights)
    return y


Experts = tuple[Tensor, Tensor, Tensor]
"""Weights, scales, and the scale of each expert's whole matrix."""


def marlin_moe_into(
    y: Tensor, x: Tensor, w13: Experts, w2: Experts, ids: Tensor, weights: Tensor
) -> None:
    """The same into y, where no graph of torch has to see it."""
    if not x.is_cuda:
        y.copy_(torch.ops.sparkbook.marlin_moe(x, *w13, *w2, ids, weights))
        return
    h = x.new_empty(x.shape[0], ids.shape[1], w2[0].shape[1] * 16)
    library, stream = _on(x)
    library.marlin_moe(x, w13, w2, ids, weights, h, y, stream=stream)


@marlin_moe.register_kernel("cpu")
def _(  # noqa: PLR0913 - as above
    x: Tensor,
    weights13: Tensor,
    scales13: Tensor,
    scale13: Tensor,
    weights2: Tensor,
    scales2: Tensor,
    scale2: Tensor,
    ids: Tensor,
    weights: Tensor,
) -> Tensor:
    w13, w2 = _marlin(x, weights13, scales13, scale13), _marlin(x, weights2, scales2, scale2)
    return _back(marlin.moe(_numpy(x), w13, w2, _numpy(ids), _numpy(weights)), x)


@marlin_moe.register_fake
def _(  # noqa: PLR0913 - as above
    x: Tensor,
    weights13: Tensor,
    scales13: Tensor,
    scale13: Tensor,
    weights2: Tensor,
    scales2: Tensor,
    scale2: Tensor,
    ids: Tensor,
    weights: Tensor,
) -> Tensor:
    return torch.empty_like(x)


def _marlin(x: Tensor, weights: Tensor, scales: Tensor, scale: Tensor) -> list[marlin.Marlin]:
    """Return CPU tensors of several matrices, as the reference takes them."""
    kind = "bf16" if x.dtype == torch.bfloat16 else "f16"
    each = zip(_numpy(weights), _numpy(scales), _numpy(scale), strict=True)
    return [marlin.Marlin(w, s, g, kind) for w, s, g in each]


@torch.library.custom_op("sparkbook::nvfp4_quantize", mutates_args=(), device_types="cuda")
def nvfp4_quantize(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """x [M, K] with the global scale g to (codes [M, 8 ceil(K / 16)], scales [M, ceil(K / 16)]),
    both as bytes.
    """
    codes, scales = _room(x)
    library, stream = _on(x)
    library.quantize(x, g, codes, scales, stream=stream)
    return codes, scales


@nvfp4_quantize.register_kernel("cpu")
def _(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales, _ = reference.quantize(_numpy(x), float(g))
    return torch.from_numpy(codes), torch.from_numpy(scales)


@nvfp4_quantize.register_fake
def _(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return _room(x)


@torch.library.custom_op("sparkbook::rmsnorm_nvfp4_quantize", mutates_args=(), device_types="cuda")
def rmsnorm_nvfp4_quantize(
    x: Tensor, weight: Tensor, eps: float, g: Tensor
) -> tuple[Tensor, Tensor]:
    """x [M, K] / sqrt(mean(x^2) + eps) * weight [K], quantized as `nvfp4_quantize` does; K is a
    multiple of 16.
    """
    codes, scales = _room(x)
    library, stream = _on(x)
    library.rmsnorm_quantize(x, weight, eps, g, codes, scales, stream=stream)
    return codes, scales


@rmsnorm_nvfp4_quantize.register_kernel("cpu")
def _(x: Tensor, weight: Tensor, eps: float, g: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales, _ = reference.rmsnorm_quantize(_numpy(x), _numpy(weight), eps, float(g))
    return torch.from_numpy(codes), torch.from_numpy(scales)


@rmsnorm_nvfp4_quantize.register_fake
def _(x: Tensor, weight: Tensor, eps: float, g: Tensor) -> tuple[Tensor, Tensor]:
    return _room(x)


@torch.library.custom_op("sparkbook::silu_mul_nvfp4_quantize", mutates_args=(), device_types="cuda")
def silu_mul_nvfp4_quantize(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """x [M, 2 K], gate then up: silu(gate) * up, quantized; K is a multiple of 16."""
    codes, scales = _room(x, x.shape[1] // 2)
    library, stream = _on(x)
    library.silu_mul_quantize(x, g, codes, scales, stream=stream)
    return codes, scales


@silu_mul_nvfp4_quantize.register_kernel("cpu")
def _(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    codes, scales, _ = reference.silu_mul_quantize(_numpy(x), float(g))
    return torch.from_numpy(codes), torch.from_numpy(scales)


@silu_mul_nvfp4_quantize.register_fake
def _(x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    return _room(x, x.shape[1] // 2)


@torch.library.custom_op("sparkbook::nvfp4_dequantize", mutates_args=(), device_types="cuda")
def nvfp4_dequantize(codes: Tensor, scales: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
    """codes [M, K / 2] and scales [M, K / 16] to (code * scale) * g, [M, K] of float32, bfloat16 or
    float16.
    """
    y = codes.new_empty(codes.shape[0], 2 * codes.shape[1], dtype=dtype)
    library, stream = _on(codes)
    library.dequantize(codes, scales, g, y, stream=stream)
    return y


@nvfp4_dequantize.register_kernel("cpu")
def _(codes: Tensor, scales: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(reference.dequantize(_numpy(codes), _numpy(scales), float(g))).to(dtype)


@nvfp4_dequantize.register_fake
def _(codes: Tensor, scales: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
    return codes.new_empty(codes.shape[0], 2 * codes.shape[1], dtype=dtype)


@torch.library.custom_op("sparkbook::sparse_gemv", mutates_args=(), device_types="cuda")
def sparse_gemv(x: Tensor, tiles: Tensor, alpha: Tensor, n: int) -> Tensor:
    """x [M, K] times 2:4 weights of n rows in the tiles of `reference.to_sparse24`."""
    y = x.new_empty(x.shape[0], n)
    library, stream = _on(x)
    library.sparse_gemv(x, tiles, alpha, y, stream=stream)
    return y


@sparse_gemv.register_kernel("cpu")
def _(x: Tensor, tiles: Tensor, alpha: Tensor, n: int) -> Tensor:
    codes, scales = reference.from_sparse24(
        reference.Sparse24(_numpy(tiles), n, x.shape[1], 0.0, 0.0)
    )
    return _back(reference.fp4_gemv(_numpy(x), codes, scales, float(alpha)), x)


@sparse_gemv.register_fake
def _(x: Tensor, tiles: Tensor, alpha: Tensor, n: int) -> Tensor:
    return x.new_empty(x.shape[0], n)


def _room(x: Tensor, k: int | None = None) -> tuple[Tensor, Tensor]:
    """Codes and scales for x's rows of length k."""
    blocks = ((x.shape[1] if k is None else k) + 15) // 16
    return x.new_empty(x.shape[0], 8 * blocks, dtype=torch.uint8), x.new_empty(
        x.shape[0], blocks, dtype=torch.uint8
    )
