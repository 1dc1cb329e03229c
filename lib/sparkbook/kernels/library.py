"""The built library, on arrays that are on the GPU already.

An array is a torch tensor, or anything with `__cuda_array_interface__` (CuPy, Numba, cuda-python's
wrappers): only its address, shape and type are taken, nothing is copied and no torch is needed.
Results go into arrays that the caller gives, so that nothing here allocates, synchronizes or keeps
state: every call can be captured in a CUDA graph.

Types: activations bf16 or f16; results f32, bf16 or f16; codes, E4M3 bytes and tiles as one-byte
types.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.kernels import build
from sparkbook.kernels.arrays import KINDS, Array, Raw, array, multiple, scalar
from sparkbook.kernels.reference import TILE_BYTES, TILE_K, TILE_ROWS

MAX_TOKENS = 8
MARLIN_TOKENS = 16
"""Tokens that `marlin_gemv` takes in one reading of the weights."""

_P, _I, _L, _F = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float
SIGNATURES = {
    "sb_fp4_gemv": [_P, _P, _P, _P, _I, _P, _I, _I, _I, _I, _I, _I, _I, _P],
    "sb_fp8_gemv": [_P, _P, _I, _P, _I, _P, _I, _I, _I, _I, _I, _P],
    "sb_fp4_prefill": [*[_P] * 7, *[_I] * 5, _P],
    "sb_argmax": [_P, _I, _I, _P, _I, _P],
    "sb_moe_decode": [*[_P] * 6, _I, *[_P] * 3, _I, _P, _P, *[_I] * 6, _P],
    "sb_marlin_gemv": [*[_P] * 4, _I, _P, *[_I] * 8, _P],
    "sb_marlin_moe": [*[_P] * 6, _I, *[_P] * 3, _I, _P, _P, *[_I] * 6, _P],
    "sb_quantize": [_P, _I, _P, _P, _P, _I, _I, _I, _P],
    "sb_silu_mul_quantize": [_P, _I, _P, _P, _P, _I, _I, _I, _P],
    "sb_rmsnorm_quantize": [_P, _I, _P, _F, _P, _P, _P, _I, _I, _I, _P],
    "sb_dequantize": [_P, _P, _P, _P, _I, _I, _I, _I, _P],
    "sb_sparse_gemv": [_P, _P, _P, _I, _P, _I, _I, _I, _I, _I, _P],
    "sb_e2m1_sweep": [ctypes.c_uint32, _L, _P, _P],
    "sb_read_probe": [_P, _L, _P, _I, _P],
}


def capability(device: int = 0) -> tuple[int, int]:
    """Compute capability of a GPU, such as (9, 0), from the driver. Raises SparkbookError where
    there is no driver or no GPU.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise SparkbookError(
            "no NVIDIA driver here (libcuda.so.1): the kernels need a GPU; the numpy reference"
            " does not"
        ) from None
    handle, major, minor = _I(), _I(), _I()
    for code in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(handle), device),
        driver.cuDeviceGetAttribute(
            ctypes.byref(major), 75, handle
        ),  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
        driver.cuDeviceGetAttribute(ctypes.byref(minor), 76, handle),
    ):
        if code:
            raise SparkbookError(f"the NVIDIA driver finds no GPU {device} (CUDA error {code})")
    return major.value, minor.value


def target_of(capability: tuple[int, int]) -> str:
    """Return the target for a compute capability. Raises SparkbookError for one that no target
    fits.
    """
    targets = {(9, 0): "sm_90", (12, 0): "sm_120f", (12, 1): "sm_121f"}
    if capability not in targets:
        raise SparkbookError(
            "there are kernels for compute capability 9.0, 12.0 and 12.1; this GPU has"
            f" {capability[0]}.{capability[1]}"
        )
    return targets[capability]


def target_for(device: int = 0) -> str:
    """Return the target to build for a GPU. Raises SparkbookError for one that no target fits."""
    return target_of(capability(device))


def targets_here() -> list[str]:
    """Return the target of this machine's GPU; all targets if no GPU here has one."""
    try:
        return [target_for()]
    except SparkbookError:
        return list(build.TARGETS)


def marlin_cuts(m: int, n: int) -> Iterator[dict[str, int]]:
    """Yield every variant of `Library.marlin_gemv` that m tokens and n rows have."""
    for tiles in (1, 2):
        for warps in (8, 16):
            if n % (64 * tiles) == 0 and (m, tiles, warps) != (1, 2, 16):
                for split in (1, 2, 4, 8):
                    yield {"tiles": tiles, "warps": warps, "split": split}


class Library:
    """The kernels of one target.

    Every method takes `stream` (the CUDA stream's handle, 0: the default one) and most take `pdl`:
    start while the kernel before still runs (programmatic dependent launch). With it weights are
    fetched before that kernel has ended; they must not be its output.

    Attributes:
        prefill: whether `fp4_prefill` may run. It has run on no GPU yet, so it is off unless
            SPARKBOOK_FP4_PREFILL=1; the checks and the benchmark switch it on for themselves.
    """

    prefill = False

    def __init__(self, path: Path) -> None:
        try:
            self._c = ctypes.CDLL(str(path))
        except OSError as error:
            raise SparkbookError(f"{path} can't be loaded: {error}") from None
        self._c.sb_error.restype, self._c.sb_error.argtypes = ctypes.c_char_p, [_I]
        self._c.sb_e2m1_sweep_host.restype, self._c.sb_e2m1_sweep_host.argtypes = (
            None,
            [
                ctypes.c_uint32,
                _L,
                _P,
            ],
        )
        for name, arguments in SIGNATURES.items():
            getattr(self._c, name).argtypes = arguments
        self.prefill = os.environ.get("SPARKBOOK_FP4_PREFILL") == "1"

    @classmethod
    def for_device(cls, device: int = 0) -> Library:
        """Return the library for a GPU, built first if it is not there."""
        return cls(build.build(target_for(device)).path)

    def _call(self, name: str, *arguments: Any) -> None:
        values = [
            argument.pointer if isinstance(argument, Array) else argument for argument in arguments
        ]
        if code := getattr(self._c, name)(*values):
            raise SparkbookError(
                f"{name.removeprefix('sb_')}: {self._c.sb_error(code).decode()} (CUDA error {code})"
            )

    # ---- formats

    def quantize(
        self, x: Any, g: Any, codes: Any, scales: Any, *, stream: int = 0, pdl: bool = False
    ) -> None:
        """Quantize x [M, K] by g (one float32): codes [M, 8 ceil(K / 16)], scales
        [M, ceil(K / 16)].
        """
        x = array("x", x, "f32 bf16 f16", (None, None), 16)
        m, k = x.shape
        blocks = -(-k // 16)
        codes, scales = (
            array("codes", codes, "u8", (m, 8 * blocks), 8),
            array("scales", scales, "u8", (m, blocks)),
        )
        self._call(
            "sb_quantize", x, KINDS[x.kind], scalar("g", g), codes, scales, m, k, pdl, stream
        )

    def rmsnorm_quantize(  # noqa: PLR0913 - the kernel's own arguments
        self,
        x: Any,
        weight: Any,
        eps: float,
        g: Any,
        codes: Any,
        scales: Any,
        *,
        stream: int = 0,
        pdl: bool = False,
    ) -> None:
        """x [M, K] / sqrt(mean(x^2) + eps) * weight [K], quantized. K is a multiple of 16."""
        x = array("x", x, "f32 bf16 f16", (None, None), 16)
        m, k = x.shape
        multiple("K", k, 16)
        weight = array("weight", weight, x.kind, (k,), 16)
        codes, scales = (
            array("codes", codes, "u8", (m, k // 2), 8),
            array("scales", scales, "u8", (m, k // 16)),
        )
        self._call(
            "sb_rmsnorm_quantize",
            x,
            KINDS[x.kind],
            weight,
            eps,
            scalar("g", g),
            codes,
            scales,
            m,
            k,
            pdl,
            stream,
        )

    def silu_mul_quantize(
        self, x: Any, g: Any, codes: Any, scales: Any, *, stream: int = 0, pdl: bool = False
    ) -> None:
        """x [M, 2 K], gate then up: silu(gate) * up, quantized. K is a multiple of 16."""
        x = array("x", x, "f32 bf16 f16", (None, None), 16)
        m, k = x.shape[0], x.shape[1] // 2
        multiple("half of x's columns", x.shape[1] / 2, 16)
        codes, scales = (
            array("codes", codes, "u8", (m, k // 2), 8),
            array("scales", scales, "u8", (m, k // 16)),
        )
        self._call(
            "sb_silu_mul_quantize",
            x,
            KINDS[x.kind],
            scalar("g", g),
            codes,
            scales,
            m,
            k,
            pdl,
            stream,
        )

    def dequantize(
        self, codes: Any, scales: Any, g: Any, y: Any, *, stream: int = 0, pdl: bool = False
    ) -> None:
        """codes [M, K / 2] and scales [M, K / 16] to y [M, K]."""
        codes = array("codes", codes, "u8", (None, None), 8)
        m, k = codes.shape[0], 2 * codes.shape[1]
        multiple("K", k, 16)
        scales, y = (
            array("scales", scales, "u8", (m, k // 16)),
            array("y", y, "f32 bf16 f16", (m, k), 16),
        )
        self._call(
            "sb_dequantize", codes, scales, scalar("g", g), y, KINDS[y.kind], m, k, pdl, stream
        )

    # ---- products

    def fp4_gemv(  # noqa: PLR0913 - the kernel's own arguments
        self,
        x: Any,
        codes: Any,
        scales: Any,
        alpha: Any,
        y: Any,
        *,
        stream: int = 0,
        pdl: bool = False,
        tiles: int = 0,
        warps: int = 0,
    ) -> None:
        """y [M, N] = x [M, K] W^T with NVFP4 W in the checkpoint's layout: codes [N, K / 2], scales
        [N, K / 16], alpha one float32.

        M is 1 to 8, K a multiple of 64. tiles and warps choose a variant for measurements; 0 takes
        the one measured best.
        """
        codes = array("codes", codes, "u8", (None, None), 16)
        n, k = codes.shape[0], 2 * codes.shape[1]
        multiple("K", k, 64)
        scales = array("scales", scales, "u8", (n, k // 16), 4)
        x, y = self._sides(x, y, n, k)
        self._call(
            "sb_fp4_gemv",
            codes,
            scales,
            scalar("alpha", alpha),
            x,
            KINDS[x.kind],
            y,
            KINDS[y.kind],
            x.shape[0],
            n,
            k,
            tiles,
            warps,
            pdl,
            stream,
        )

    def fp4_prefill(
        self,
        x: tuple[Any, Any, Any],
        w: tuple[Any, Any, Any],
        y: Any,
        *,
        stream: int = 0,
        pdl: bool = False,
    ) -> None:
        """y [M, N] = x [M, K] W^T, both NVFP4: x and w are codes [rows, K / 2], scales [rows,
        K / 16] and alpha, as `quantize` and the checkpoint have them. K is a multiple of 64. For
        many tokens, on GPUs of generation 12 (GB10, RTX Blackwell); see `prefill`.
        """
        if not self.prefill:
            raise SparkbookError(
                "fp4_prefill is off, because it has run on no GPU yet. To try it, set"
                " SPARKBOOK_FP4_PREFILL=1"
            )
        sides: list[Array] = []
        k = 2 * x[0].shape[-1]
        multiple("K", k, 64)
        for name, (codes, scales, alpha) in (("x", x), ("w", w)):
            rows = codes.shape[0]
            sides += (
                array(f"{name}'s codes", codes, "u8", (rows, k // 2), 16),
                array(f"{name}'s scales", scales, "u8", (rows, k // 16), 4),
                scalar(f"{name}'s alpha", alpha),
            )
        m, n = sides[0].shape[0], sides[3].shape[0]
        y = array("y", y, "f32 bf16 f16", (m, n))
        self._call("sb_fp4_prefill", *sides, y, KINDS[y.kind], m, n, k, pdl, stream)

    def fp8_gemv(
        self, x: Any, weights: Any, scale: Any, y: Any, *, stream: int = 0, pdl: bool = False
    ) -> None:
        """y [M, N] = x [M, K] W^T with E4M3 W [N, K]; scale float32 [N], or [ceil(N / 128), ceil(K
        / 128)]. K is a multiple of 16.
        """
        weights = array("weights", weights, "u8", (None, None), 16)
        n, k = weights.shape
        multiple("K", k, 16)
        blocked = len(scale.shape) == 2
        scale = array("scale", scale, "f32", (-(-n // 128), -(-k // 128)) if blocked else (n,))
        x, y = self._sides(x, y, n, k)
        self._call(
            "sb_fp8_gemv",
            weights,
            scale,
            blocked,
            x,
            KINDS[x.kind],
            y,
            KINDS[y.kind],
            x.shape[0],
            n,
            k,
            pdl,
            stream,
        )

    def lm_head(
        self,
        x: Any,
        weights: Any,
        scale: Any,
        logits: Any,
        index: Any,
        *,
        stream: int = 0,
        pdl: bool = False,
    ) -> None:
        """fp8_gemv into logits [M, N] float32, and each token's largest logit's index into index
        [M] int64.
        """
        logits = array("logits", logits, "f32", (None, None))
        index = array("index", index, "i64", (logits.shape[0],))
        self.fp8_gemv(x, weights, scale, Raw(logits), stream=stream, pdl=pdl)
        self._call("sb_argmax", logits, logits.shape[0], logits.shape[1], index, pdl, stream)

    def sparse_gemv(
        self, x: Any, tiles: Any, alpha: Any, y: Any, *, stream: int = 0, pdl: bool = False
    ) -> None:
        """y [M, N] = x [M, K] W^T with 2:4 W in the layout of `reference.to_sparse24`: tiles
        [ceil(N / 16), K / 256, 1792].
        """
        tiles = array("tiles", tiles, "u8", (None, None, TILE_BYTES), 16)
        k = tiles.shape[1] * TILE_K
        n = y.shape[-1]
        if -(-n // TILE_ROWS) != tiles.shape[0]:
            raise SparkbookError(
                f"y has {n} columns; {tiles.shape[0]} tiles of {TILE_ROWS} rows don't fit that"
            )
        x, y = self._sides(x, y, n, k)
        self._call(
            "sb_sparse_gemv",
            tiles,
            scalar("alpha", alpha),
            x,
            KINDS[x.kind],
            y,
            KINDS[y.kind],
            x.shape[0],
            n,
            k,
            pdl,
            stream,
        )

    def moe_decode(  # noqa: PLR0913 - the kernel's own arguments
        self,
        x: Any,
        w13: tuple[Any, Any, Any],
        w2: tuple[Any, Any, Any],
        ids: Any,
        weights: Any,
        h: Any,
        y: Any,
        *,
        stream: int = 0,
        pdl: bool = False,
    ) -> None:
        """The experts of a layer, in two launches.

        x [M, hidden]; w13 = (codes [E, 2 I, hidden / 2], scales [E, 2 I, hidden / 16], alpha [E,
        2]) with gate's rows before up's; w2 = (codes [E, hidden, I / 2], scales, alpha [E]); ids
        int32 and weights float32 [M, topk]; h [M, topk, I], of x's type, is working room; y [M,
        hidden]. An id outside 0 .. E - 1 adds nothing. M is meant to be small: an expert that
        tokens share is read once for each. With pdl the ids must not be written by the kernel just
        before, except by one that itself waits for what came before it.
        """
        codes13 = array("w13's codes", w13[0], "u8", (None, None, None), 16)
        experts, hidden = codes13.shape[0], 2 * codes13.shape[2]
        inter = codes13.shape[1] // 2
        multiple("the hidden size", hidden, 64)
        multiple("the experts' inner size", codes13.shape[1] / 2, 64)
        scales13 = array("w13's scales", w13[1], "u8", (experts, 2 * inter, hidden // 16), 4)
        alpha13 = array("w13's alpha", w13[2], "f32", (experts, 2))
        codes2 = array("w2's codes", w2[0], "u8", (experts, hidden, inter // 2), 16)
        scales2 = array("w2's scales", w2[1], "u8", (experts, hidden, inter // 16), 4)
        alpha2 = array("w2's alpha", w2[2], "f32", (experts,))
        x = array("x", x, "bf16 f16", (None, hidden), 16)
        m = x.shape[0]
        ids = array("ids", ids, "i32", (m, None))
        topk = ids.shape[1]
        weights = array("weights", weights, "f32", (m, topk))
        h = array("h", h, x.kind, (m, topk, inter), 16)
        y = array("y", y, "f32 bf16 f16", (m, hidden))
        self._call(
            "sb_moe_decode",
            codes13,
            scales13,
            alpha13,
            codes2,
            scales2,
            alpha2,
            experts,
            ids,
            weights,
            x,
            KINDS[x.kind],
            h,
            y,
            KINDS[y.kind],
            m,
            topk,
            inter,
            hidden,
            pdl,
            stream,
        )

    # ---- products with weights in Marlin's order (`sparkbook.kernels.marlin`)

    def marlin_gemv(  # noqa: PLR0913 - the kernel's own arguments
        self,
        x: Any,
        weights: Any,
        scales: Any,
        scale: Any,
        y: Any,
        *,
        stream: int = 0,
        pdl: bool = False,
        tiles: int = 0,
        warps: int = 0,
        split: int = 0,
    ) -> None:
        """y [M, N] = x [M, K] W^T: weights int32 [K / 16, 2 N], scales bytes [K / 16, N], scale one
        float32, all as Marlin keeps them for activations of x's type.

        M is 1 to 16, N a multiple of 64, K of 32. For measurements: a block takes `tiles` (1, 2)
        times 64 rows with `warps` (8, 16) warps, and `split` (1, 2, 4, 8) blocks share K
        (`marlin_cuts` has all that there are).
        """
        weights = array("weights", weights, "i32", (None, None), 16)
        n, k = weights.shape[1] // 2, 16 * weights.shape[0]
        multiple("N", n, 64)
        multiple("K", k, 32)
        scales = array("scales", scales, "u8", (k // 16, n), 8)
        x, y = self._sides(x, y, n, k, MARLIN_TOKENS)
        sides = (x, KINDS[x.kind], y, KINDS[y.kind], x.shape[0], n, k)
        scale = scalar("scale", scale)
        self._call(
            "sb_marlin_gemv", weights, scales, scale, *sides, tiles, warps, split, pdl, stream
        )

    def marlin_moe(  # noqa: PLR0913 - the kernel's own arguments
        self,
        x: Any,
        w13: tuple[Any, Any, Any],
        w2: tuple[Any, Any, Any],
        ids: Any,
        weights: Any,
        h: Any,
        y: Any,
        *,
        stream: int = 0,
        pdl: bool = False,
    ) -> None:
        """`moe_decode` with weights as Marlin keeps them: w13 = (int32 [E, hidden / 16, 4 I],
        scales [E, hidden / 16, 2 I], scale [E]), w2 = (int32 [E, I / 16, 2 hidden], scales, scale).
        """
        codes13 = array("w13's weights", w13[0], "i32", (None, None, None), 16)
        experts, hidden, inter = codes13.shape[0], 16 * codes13.shape[1], codes13.shape[2] // 4
        multiple("the hidden size", hidden, 64)
        multiple("the experts' inner size", codes13.shape[2] / 4, 64)
        x = array("x", x, "bf16 f16", (None, hidden), 16)
        m = x.shape[0]
        ids = array("ids", ids, "i32", (m, None))
        topk = ids.shape[1]
        h = array("h", h, x.kind, (m, topk, inter), 16)
        y = array("y", y, "f32 bf16 f16", (m, hidden))
        self._call(
            "sb_marlin_moe",
            codes13,
            array("w13's scales", w13[1], "u8", (experts, hidden // 16, 2 * inter), 8),
            array("w13's scale", w13[2], "f32", (experts,)),
            array("w2's weights", w2[0], "i32", (experts, inter // 16, 2 * hidden), 16),
            array("w2's scales", w2[1], "u8", (experts, inter // 16, hidden), 8),
            array("w2's scale", w2[2], "f32", (experts,)),
            experts,
            ids,
            array("weights", weights, "f32", (m, topk)),
            x,
            KINDS[x.kind],
            h,
            y,
            KINDS[y.kind],
            m,
            topk,
            inter,
            hidden,
            pdl,
            stream,
        )

    # ---- for tests and measurements

    def e2m1_sweep(self, first: int, codes: Any, *, stream: int = 0) -> None:
        """Write E2M1 codes, two a byte, of the float32s with the bits first, first + 1, ..."""
        codes = array("codes", codes, "u8", (None,), 4)
        self._call("sb_e2m1_sweep", first, 2 * codes.shape[0], codes, stream)

    def e2m1_sweep_host(self, first: int, codes: Any) -> None:
        """The same on the CPU, into a numpy array."""
        self._c.sb_e2m1_sweep_host(first, 2 * codes.size, codes.ctypes.data)

    def read_probe(self, data: Any, sink: Any, blocks: int, *, stream: int = 0) -> None:
        """Reads data [bytes] and writes nothing: the ceiling of whatever only reads."""
        data = array("data", data, "u8", (None,), 16)
        self._call(
            "sb_read_probe", data, data.shape[0], array("sink", sink, "i32", (1,)), blocks, stream
        )

    def _sides(self, x: Any, y: Any, n: int, k: int, most: int = MAX_TOKENS) -> tuple[Array, Array]:
        x = array("x", x, "bf16 f16", (None, k), 16)
        if not 1 <= x.shape[0] <= most:
            raise SparkbookError(f"x has {x.shape[0]} rows; these kernels take 1 to {most}")
        y = y.array if isinstance(y, Raw) else array("y", y, "f32 bf16 f16", (x.shape[0], n))
        if y.shape != (x.shape[0], n):
            raise SparkbookError(f"the result has the shape {y.shape}; expected {(x.shape[0], n)}")
        return x, y
