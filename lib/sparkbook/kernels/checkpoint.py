"""Reads NVFP4 weights out of a checkpoint as the kernels take them: from a folder, or from the hub
by ranges, a layer at a time.

    opened = checkpoint.open_folder("~/models/some-NVFP4")
    layer = opened.linear("model.layers.0.mlp.down_proj")
    reference.fp4_gemv(x, layer.codes, layer.scales, layer.alpha)

Two producers store the same numbers under different names:

    Model Optimizer      weight         weight_scale   weight_scale_2 (multiplies)       input_scale
    (multiplies) compressed-tensors   weight_packed  weight_scale   weight_global_scale (divides)
    input_global_scale (divides)

Model Optimizer: `modelopt/torch/quantization/qtensor/nvfp4_tensor.py` of
https://github.com/NVIDIA/Model-Optimizer. compressed-tensors: `compressors/nvfp4/base.py` and
`generate_gparam` of https://github.com/vllm-project/compressed-tensors. Block scales are stored row
by row; some exports have them in the tiles of 128 rows x 4 that cuBLAS and CUTLASS read
(https://docs.nvidia.com/cuda/cublas/#d-block-scaling-factors-layout), which are put back in order
here.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkbook.checkpoint import tensors
from sparkbook.errors import SparkbookError
from sparkbook.kernels.reference import BLOCK, F32, U8, dequantize

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TILE = (128, 4)
"""Rows and columns of a tile of swizzled block scales."""

_SIZES = {
    "F64": 8,
    "F32": 4,
    "BF16": 2,
    "F16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "I32": 4,
    "I64": 8,
    "BOOL": 1,
}
_PROJECTIONS = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))


@dataclass(frozen=True)
class Linear:
    """A linear layer's NVFP4 weights [N, K].

    Attributes:
        name: the module's, without `.weight`.
        codes: uint8 [N, K / 2], the even k in the low nibble.
        scales: E4M3 bytes, uint8 [N, K / 16], row by row.
        alpha: the tensor's scale; multiplies.
        input_scale: the checkpoint's scale of the activations; multiplies; None: it has none.
            The kernels here don't need it.
        producer: `modelopt` or `compressed-tensors`.
        swizzled: whether the scales were stored in tiles.
    """

    name: str
    codes: U8
    scales: U8
    alpha: np.float32
    input_scale: float | None
    producer: str
    swizzled: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        return self.codes.shape[0], 2 * self.codes.shape[1]

    def dequantize(self) -> F32:
        """Return the weights as float32 [N, K]: (code x scale) x alpha; a library that takes scale
        x alpha first differs in the last bit.
        """
        return dequantize(self.codes, self.scales, float(self.alpha))


@dataclass(frozen=True)
class Experts:
    """The routed experts of a layer, stacked as `reference.moe_decode` and `Library.moe_decode`
    take them.

    `w13`: (codes [E, 2 I, hidden / 2], scales [E, 2 I, hidden / 16], alpha float32 [E, 2]), gate's
        rows before up's; `w2`: (codes
    [E, hidden, I / 2], scales, alpha [E]).
    """

    w13: tuple[U8, U8, F32]
    w2: tuple[U8, U8, F32]


@dataclass(frozen=True)
class _Entry:
    """Where a tensor lies: `begin` and `end` in bytes of its file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class NVFP4Checkpoint:
    """The tensors of a checkpoint; nothing but headers is read until a layer is asked for."""

    def __init__(
        self,
        name: str,
        entries: Mapping[str, _Entry],
        read: Callable[[str, int, int], bytes],
        left_out: tuple[str, ...],
    ) -> None:
        """`read` gives bytes begin to end of a file; `left_out` are the modules that the config
        says are not quantized.
        """
        self.name, self._entries, self._read, self.left_out = name, dict(entries), read, left_out
        keys = (".weight", ".weight_packed", ".qweight")
        modules = sorted(
            {tensor.rpartition(".")[0] for tensor in self._entries if tensor.endswith(keys)}
        )
        self._formats = {module: self._format(module) for module in modules}

    @property
    def linears(self) -> list[str]:
        """Names of the modules with NVFP4 weights, sorted."""
        return [name for name, form in self._formats.items() if form == "nvfp4"]

    @property
    def others(self) -> dict[str, str]:
        """Modules with weights in another format, such as {'lm_head': 'bf16'}."""
        return {name: form for name, form in self._formats.items() if form != "nvfp4"}

    def linear(self, name: str, *, swizzled: bool | None = None) -> Linear:
        """Reads one layer.

        Args:
            name: the module's, such as `model.layers.0.mlp.down_proj`.
            swizzled: whether the block scales are in tiles. None: by their shape, which says
                it only where a dimension was filled up to whole tiles; where it was not, they are
                taken row by row, as both producers write them by default.

        Raises:
            SparkbookError: there is no such layer, it is in another format, a scale is missing, or
                shapes and types don't fit.
        """
        name = name.removesuffix(".weight_packed").removesuffix(".weight")
        form = self._formats.get(name)
        if form is None:
            close = difflib.get_close_matches(name, self.linears, 3, 0.6)
            hint = (
                f"did you mean {', '.join(close)}?"
                if close
                else f"it has {len(self.linears)} NVFP4 layers"
            )
            raise SparkbookError(f"{self.name} has no layer '{name}'; {hint}")
        if form != "nvfp4":
            named = [pattern for pattern in self.left_out if _matches(pattern, name)]
            why = f": its config leaves {named[0]} out" if named else ""
            raise SparkbookError(f"{name} is in {form}, not in NVFP4{why}")
        packed = f"{name}.weight_packed" in self._entries
        weight = self._entries[f"{name}.weight_packed" if packed else f"{name}.weight"]
        if len(weight.shape) != 2 or weight.shape[1] % (BLOCK // 2) or not weight.shape[0]:
            raise SparkbookError(
                f"{name}: the codes have the shape {list(weight.shape)}; expected N rows of K / 2"
                " bytes, K a multiple of 16"
            )
        rows, blocks = weight.shape[0], weight.shape[1] // (BLOCK // 2)
        scales, tiled = self._scales(name, rows, blocks, swizzled)
        alpha = self._factor(
            name, "weight_global_scale" if packed else "weight_scale_2", divides=packed, needed=True
        )
        given = self._factor(
            name, "input_global_scale" if packed else "input_scale", divides=packed, needed=False
        )
        return Linear(
            name,
            self._bytes(weight).reshape(weight.shape),
            scales,
            np.float32(alpha),
            given,
            "compressed-tensors" if packed else "modelopt",
            tiled,
        )

    def joined(self, names: Sequence[str]) -> Linear:
        """Return several layers with the same input as one, rows one below the other: q, k and v,
        or gate and up.

        Raises:
            SparkbookError: their widths differ, or their tensors' scales: the product takes one.
                (vLLM then takes the largest for all, and
            warns; that changes the weights.)
        """
        parts = [self.linear(name) for name in names]
        if len({part.shape[1] for part in parts}) != 1:
            raise SparkbookError(
                f"{', '.join(names)} have inputs of {', '.join(str(p.shape[1]) for p in parts)}:"
                " they can't be joined"
            )
        if len({float(part.alpha) for part in parts}) != 1:
            raise SparkbookError(
                f"{', '.join(names)} have different tensor scales: multiply with them one by one"
            )
        codes, scales = (
            np.concatenate([p.codes for p in parts]),
            np.concatenate([p.scales for p in parts]),
        )
        first = parts[0]
        return Linear(
            "+".join(names),
            codes,
            scales,
            first.alpha,
            first.input_scale,
            first.producer,
            any(p.swizzled for p in parts),
        )

    def experts(self, name: str) -> Experts:
        """Return the routed experts below a module, such as `model.layers.0.mlp.experts`.

        Raises:
            SparkbookError: there are none, one of them is missing or in another format, or their
                shapes differ.
        """
        pattern = re.compile(re.escape(name) + r"\.(\d+)\.(\w+)$")
        found = {(int(m[1]), m[2]) for module in self._formats if (m := pattern.match(module))}
        numbers = sorted({number for number, _ in found})
        if not numbers:
            raise SparkbookError(
                f"{self.name} has no experts at '{name}': expected {name}.0.gate_proj and so on;"
                " stacked ones are not read"
            )
        if numbers != list(range(len(numbers))):
            missing = next(i for i in range(len(numbers)) if i not in numbers)
            raise SparkbookError(f"{name}: expert {missing} is missing, of {numbers[-1] + 1}")
        gate, up, down = next(
            (names for names in _PROJECTIONS if (0, names[0]) in found), _PROJECTIONS[0]
        )
        parts = [
            [self.linear(f"{name}.{number}.{part}") for part in (gate, up, down)]
            for number in numbers
        ]
        if (
            len({tuple(part.shape for part in expert) for expert in parts}) != 1
            or parts[0][0].shape != parts[0][1].shape
            or parts[0][0].shape != parts[0][2].shape[::-1]
        ):
            raise SparkbookError(
                f"{name}: the experts' shapes differ, such as {[part.shape for part in parts[0]]}"
            )
        return Experts(
            (
                np.stack([np.concatenate([e[0].codes, e[1].codes]) for e in parts]),
                np.stack([np.concatenate([e[0].scales, e[1].scales]) for e in parts]),
                np.array([[e[0].alpha, e[1].alpha] for e in parts], np.float32),
            ),
            (
                np.stack([e[2].codes for e in parts]),
                np.stack([e[2].scales for e in parts]),
                np.array([e[2].alpha for e in parts], np.float32),
            ),
        )

    # ---- one tensor

    def _format(self, name: str) -> str:
        """Format of a module's weights, by the types of its tensors."""
        entry = next(
            e
            for key in ("weight_packed", "weight", "qweight")
            if (e := self._entries.get(f"{name}.{key}"))
        )
        if entry.dtype not in ("U8", "I8"):
            four = entry.dtype == "I32"
            return (
                "int4"
                if four
                else {"F8_E4M3": "fp8", "F8_E5M2": "fp8"}.get(entry.dtype, entry.dtype.lower())
            )
        scale = self._entries.get(f"{name}.weight_scale")
        two_level = any(
            f"{name}.{key}" in self._entries for key in ("weight_scale_2", "weight_global_scale")
        )
        if scale is not None and scale.dtype in ("U8", "F8_E8M0") and not two_level:
            return "mxfp4"
        return "nvfp4" if scale is None or scale.dtype == "F8_E4M3" or two_level else "int8"

    def _scales(self, name: str, rows: int, blocks: int, swizzled: bool | None) -> tuple[U8, bool]:
        """Block scales row by row, and whether they were stored in tiles."""
        entry = self._entries.get(f"{name}.weight_scale")
        if entry is None:
            raise SparkbookError(
                f"{name} has no weight_scale: the scales of its blocks are missing, so its codes"
                " mean nothing"
            )
        if entry.dtype != "F8_E4M3":
            raise SparkbookError(
                f"{name}: weight_scale is of type {entry.dtype}; NVFP4's block scales are F8_E4M3"
            )
        straight, filled = (
            (rows, blocks),
            tuple(-(-size // tile) * tile for size, tile in zip((rows, blocks), TILE, strict=True)),
        )
        tiled = entry.shape != straight if swizzled is None else swizzled
        if entry.shape != (filled if tiled else straight):
            also = f", or {list(filled)} in tiles" if filled != straight else ""
            raise SparkbookError(
                f"{name}: weight_scale has the shape {list(entry.shape)}; "
                f"{rows} x {blocks * BLOCK} weights in blocks of 16 need {list(straight)}{also}"
            )
        scales = self._bytes(entry).reshape(entry.shape)
        if tiled:
            scales = unswizzle(scales)[:rows, :blocks].copy()
        if ((scales & 0x7F) == 0x7F).any():
            raise SparkbookError(
                f"{name}: weight_scale holds NaN; the file is damaged or was quantized from weights"
                " with NaN"
            )
        return scales, tiled

    def _factor(self, name: str, key: str, *, divides: bool, needed: bool) -> float | None:
        """Return a float32 for the whole tensor, as a factor."""
        entry = self._entries.get(f"{name}.{key}")
        if entry is None:
            if not needed:
                return None
            raise SparkbookError(
                f"{name} has no {key}: without the tensor's scale its weights are known up to a"
                " factor only"
            )
        if entry.dtype != "F32" or math.prod(entry.shape) != 1:
            raise SparkbookError(
                f"{name}: {key} is {entry.dtype} {list(entry.shape)}; expected one F32"
            )
        value = float(self._bytes(entry).view("<f4")[0])
        # The reciprocal of a subnormal number is infinite in float32.
        with np.errstate(all="ignore"):
            factor = float(np.float32(1) / np.float32(value)) if divides else value
        if not (math.isfinite(value) and value > 0 and math.isfinite(factor)):
            raise SparkbookError(f"{name}: {key} is {value:g}; a scale is a finite number above 0")
        return factor

    def _bytes(self, entry: _Entry) -> U8:
        data = self._read(entry.file, entry.begin, entry.end)
        if len(data) != entry.end - entry.begin:
            raise SparkbookError(
                f"{self.name}: {entry.file} is cut off: {len(data)} of {entry.end - entry.begin}"
                " bytes; fetch it again"
            )
        return np.frombuffer(data, np.uint8).copy()


def unswizzle(scales: U8) -> U8:
    """Block scales in tiles, [128 a, 4 b], to row by row: in a tile, row r and column c lie at byte
    16 (r % 32) + 4 (r / 32) + c.
    """
    rows, columns = scales.shape
    tiles = scales.reshape(
        rows // 128, columns // 4, 32, 4, 4
    )  # tile row, tile column, r % 32, r / 32, c
    return tiles.transpose(0, 3, 2, 1, 4).reshape(rows, columns)


def open_folder(folder: str | Path) -> NVFP4Checkpoint:
    """Return a checkpoint in a folder.

    Raises:
        SparkbookError: it is no checkpoint, a file is cut off, or its header is wrong.
    """
    from sparkbook.checkpoint import local

    folder = Path(folder).expanduser()
    config, headers = local.files(folder)

    def read(file: str, begin: int, end: int) -> bytes:
        with (folder / file).open("rb") as opened:
            opened.seek(begin)
            return opened.read(end - begin)

    entries: dict[str, _Entry] = {}
    for path, header in headers.items():
        (length,) = struct.unpack("<Q", read(path.name, 0, 8))
        entries |= _entries(path.name, header, 8 + length)
    return NVFP4Checkpoint(
        str(folder), entries, read, tensors.quantization(config, local.hf_quant(folder)).ignored
    )


def open_hub(name: str, revision: str | None = None, api: HfApi | None = None) -> NVFP4Checkpoint:
    """Return a checkpoint on the hub, at one commit: its headers now, then the bytes of the layers
    that are asked for.

    Raises:
        SparkbookError: as `sparkbook.checkpoint.hub.read`.
    """
    from huggingface_hub import HfApi

    from sparkbook.checkpoint import hub

    api = api or HfApi()
    found = hub.files(api, name, revision)

    def read(file: str, begin: int, end: int) -> bytes:
        return hub.read_range(api, name, file, found.commit, begin, end)

    entries: dict[str, _Entry] = {}
    for file in found.sizes:
        start = hub.read_header(api, name, file, found, first=8)
        length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
        entries |= _entries(file, tensors.parse_header(start, f"{name}/{file}"), 8 + length)
    return NVFP4Checkpoint(
        name, entries, read, tensors.quantization(found.config, found.hf_quant).ignored
    )


def _entries(file: str, header: Mapping[str, Any], start: int) -> dict[str, _Entry]:
    """Return where a file's tensors lie. Raises SparkbookError for one whose bytes don't fit its
    shape.
    """
    found = {}
    for name, entry in header.items():
        try:
            begin, end = (int(offset) for offset in entry["data_offsets"])
            dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        except (KeyError, TypeError, ValueError):
            raise SparkbookError(
                f"{file}: the header's entry of {name} is not one of a tensor: {str(entry)[:80]}"
            ) from None
        need = math.prod(shape) * _SIZES.get(dtype, 0)
        if begin < 0 or end < begin or (dtype in _SIZES and end - begin != need):
            raise SparkbookError(
                f"{file}: {name} is {dtype} {list(shape)}, which takes {need} bytes, and the header"
                f" gives it {end - begin}"
            )
        found[name] = _Entry(file, dtype, shape, start + begin, start + end)
    ordered = sorted(found.items(), key=lambda item: (item[1].begin, item[1].end))
    for (name, one), (other, after) in pairwise(ordered):
        if after.begin < one.end:
            raise SparkbookError(f"{file}: {name} and {other} lie over each other")
    return found


def _matches(pattern: str, name: str) -> bool:
    """Return whether a config's pattern names a module: as it stands, with `*`, as a regular
    expression behind `re:`, or as a parent's name.
    """
    if pattern.startswith("re:"):
        with contextlib.suppress(re.error):
            return re.match(pattern[3:], name) is not None
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*") + r"(\..*)?", name) is not None
