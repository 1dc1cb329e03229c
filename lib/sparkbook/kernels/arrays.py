"""Arrays that are on the GPU already, as address, shape and type: torch tensors, or anything with
`__cuda_array_interface__`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from sparkbook.errors import SparkbookError

KINDS = {"f32": 0, "bf16": 1, "f16": 2}
_TORCH = {
    "torch.float32": "f32",
    "torch.bfloat16": "bf16",
    "torch.float16": "f16",
    "torch.uint8": "u8",
    "torch.float8_e4m3fn": "u8",
    "torch.float4_e2m1fn_x2": "u8",
    "torch.int8": "u8",
    "torch.int32": "i32",
    "torch.int64": "i64",
}
_TYPESTR = {
    "<f4": "f32",
    "<V2": "bf16",
    "|V2": "bf16",
    "<f2": "f16",
    "|u1": "u8",
    "|i1": "u8",
    "|V1": "u8",
    "<i4": "i32",
    "<i8": "i64",
}


@dataclass(frozen=True)
class Array:
    """An array by its description; `kind` such as `bf16` or `u8`."""

    pointer: int
    shape: tuple[int, ...]
    kind: str


def array(
    name: str, value: Any, kinds: str, shape: tuple[int | None, ...], align: int = 1
) -> Array:
    """`value` as address, shape and type, if it is what is expected: one of the kinds, the shape
    (None: any), C order, aligned.
    """
    if hasattr(value, "data_ptr") and hasattr(value, "is_contiguous"):
        if not value.is_cuda:
            raise SparkbookError(
                f"{name} is on {value.device}; the kernels work on the GPU's memory"
            )
        kind = _TORCH.get(str(value.dtype), str(value.dtype))
        found, contiguous = (
            Array(value.data_ptr(), tuple(value.shape), kind),
            value.is_contiguous(),
        )
    elif (interface := getattr(value, "__cuda_array_interface__", None)) is not None:
        dims = tuple(interface["shape"])
        kind = _TYPESTR.get(interface["typestr"], interface["typestr"])
        size = int("".join(filter(str.isdigit, interface["typestr"])))
        strides = interface.get("strides")
        contiguous = strides is None or tuple(strides) == tuple(
            size * prod(dims[i + 1 :]) for i in range(len(dims))
        )
        found = Array(interface["data"][0], dims, kind)
    else:
        raise SparkbookError(
            f"{name} is a {type(value).__name__}; expected a torch tensor on the GPU or an array"
            " with __cuda_array_interface__"
        )
    if found.kind not in kinds.split():
        raise SparkbookError(
            f"{name} is of type {found.kind}; expected {' or '.join(kinds.split())}"
        )
    if len(found.shape) != len(shape) or any(
        want is not None and want != have for want, have in zip(shape, found.shape, strict=True)
    ):
        expected = " x ".join("any" if want is None else str(want) for want in shape)
        raise SparkbookError(
            f"{name} has the shape {' x '.join(map(str, found.shape)) or 'of a single number'};"
            f" expected {expected}"
        )
    if not contiguous:
        raise SparkbookError(f"{name} is not contiguous: call .contiguous() on it first")
    if found.pointer % align:
        raise SparkbookError(f"{name} starts at an address that is not a multiple of {align} bytes")
    return found


def scalar(name: str, value: Any) -> Array:
    """Return an array of one float32 on the GPU; its shape does not matter."""
    shape = tuple(value.shape) if hasattr(value, "shape") else ()
    if prod(shape) != 1:
        raise SparkbookError(f"{name} has {prod(shape)} values; expected one")
    return array(name, value, "f32", shape)


@dataclass(frozen=True)
class Raw:
    """An array that was looked at already."""

    array: Array


def multiple(name: str, value: float, of: int) -> None:
    if value % of:
        raise SparkbookError(f"{name} is {value:g}; it has to be a multiple of {of}")
