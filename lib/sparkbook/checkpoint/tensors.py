"""Tensor headers: bytes by class of tensors and by format, out of the names and dtypes in
safetensors files.

A safetensors file begins with 8 bytes (length of the header, little-endian) and a JSON header: name
-> dtype, shape, data_offsets (https://github.com/huggingface/safetensors, README). Names of
quantized tensors differ by producer:

    ModelOpt NVFP4           weight U8 (two values a byte), weight_scale F8_E4M3 (one for 16
    values), weight_scale_2 F32, input_scale F32 compressed-tensors NVFP4 weight_packed U8,
    weight_scale F8_E4M3, weight_global_scale F32, input_global_scale F32 MXFP4 (gpt-oss)
    *_blocks U8, *_scales U8 (E8M0, one for 32 values) FP8                      weight F8_E4M3,
    weight_scale or weight_scale_inv AWQ, GPTQ                qweight I32 (eight values each),
    qzeros I32, scales F16; GPTQ also g_idx
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

from sparkbook.checkpoint.values import Quantization, Range, TensorClass, Weights
from sparkbook.errors import SparkbookError

MAX_HEADER = 100_000_000
"""Longest header that safetensors itself accepts, in bytes."""

_BYTES = {
    "F64": 8,
    "I64": 8,
    "U64": 8,
    "F32": 4,
    "I32": 4,
    "U32": 4,
    "F16": 2,
    "BF16": 2,
    "I16": 2,
    "U16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U8": 1,
    "I8": 1,
    "BOOL": 1,
}
_PLAIN = {
    "F32": "fp32",
    "F16": "fp16",
    "BF16": "bf16",
    "F8_E4M3": "fp8",
    "F8_E5M2": "fp8",
    "I8": "int8",
    "F64": "fp64",
}

_SCALE = re.compile(
    r"[._](weight_scale(_2|_inv)?|input_scale|output_scale|[kqv]_scale|weight_global_scale|input_global_scale|weight_zero_point|weight_shape"
    r"|scales|scale_inv|scale|qzeros|g_idx|\w+_scales)$"
)
_RULES: tuple[tuple[TensorClass, str], ...] = (
    ("draft", r"(^|\.)(mtp|nextn|eagle|assistant)(\.|_)"),
    (
        "vision",
        r"vision|visual|audio|speech|img_|image_|mm_projector|multi_modal|embed_images|embed_audio",
    ),
    ("head", r"(^|\.)(lm_head|output\.weight$)"),
    ("embedding", r"embed_tokens|wte\.|tok_embeddings|(^|\.)embeddings?\.weight"),
    ("router", r"\.(router|gate|e_score_correction_bias)(\.|$)|\.gate\.weight$|shared_expert_gate"),
    ("shared expert", r"shared_experts?\."),
    ("latent", r"latent_proj"),
    ("experts", r"\.experts\.|\.experts_|\.moe\.experts"),
    ("norms", r"norm|layernorm"),
    (
        "linear",
        r"linear_attn|\.mamba\.|\.ssm\.|A_log|\.D$|dt_bias|conv1d|\.mixer\.(in_proj|out_proj|conv1d)",
    ),
    ("attention", r"self_attn|\.attn\.|attention|[qkvo]_proj|qkv_proj|q_a_proj|kv_a_proj"),
    ("mlp", r"mlp|feed_forward|gate_proj|up_proj|down_proj|ffn|\.mixer\."),
)
_COMPILED = tuple((kind, re.compile(pattern)) for kind, pattern in _RULES)


def parse_header(data: bytes, name: str) -> dict[str, dict[str, Any]]:
    """The header of a safetensors file, out of its first bytes.

    Raises:
        SparkbookError: these are not the first bytes of such a file, or not all of the header is
            there.
    """
    if len(data) < 8:
        raise SparkbookError(f"{name} is no safetensors file: it has {len(data)} bytes")
    (length,) = struct.unpack("<Q", data[:8])
    if not 2 <= length <= MAX_HEADER:
        kind = " (a Git LFS pointer: fetch the file itself)" if data.startswith(b"version") else ""
        raise SparkbookError(
            f"{name} is no safetensors file: its header would have {length} bytes{kind}"
        )
    if len(data) < 8 + length:
        raise SparkbookError(
            f"{name} is cut off: the header has {length} bytes and {len(data) - 8} are there; fetch"
            " it again"
        )
    try:
        header = json.loads(data[8 : 8 + length])
    except (ValueError, RecursionError):
        raise SparkbookError(f"{name} is no safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise SparkbookError(f"{name} is no safetensors file: its header is not an object")
    header.pop("__metadata__", None)
    for tensor, entry in header.items():
        if not _is_entry(entry):
            raise SparkbookError(
                f"{name}: the header's entry of {tensor[:200]!a} is not one of a tensor:"
                f" {str(entry)[:80]!a}"
            )
    return header


def _is_entry(entry: Any) -> bool:
    """Whether a header's entry has a type, a shape, and two offsets."""
    if not isinstance(entry, dict):
        return False
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list)):
        return False
    return len(offsets) == 2 and all(type(size) is int and size >= 0 for size in [*shape, *offsets])


def _is_draft(name: str, layers: int | None) -> bool:
    """DeepSeek's way: prediction layers are numbered on behind the last layer."""
    match = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return (
        layers is not None
        and match is not None
        and int(match[1]) >= layers
        and not re.search("vision|visual|audio", name)
    )


def classify(name: str, layers: int | None = None) -> TensorClass:
    """The class of a tensor by its name; scales are distinguished by `is_scale`.

    Args:
        name: the tensor's.
        layers: layers of the main model, where known.
    """
    if _is_draft(name, layers):
        return "draft"
    return next((kind for kind, pattern in _COMPILED if pattern.search(name)), "norms")


def is_scale(name: str) -> bool:
    """Whether a tensor only carries scales, zero points or indices of a quantized one."""
    return bool(_SCALE.search(name))


def weights(
    headers: Iterable[Mapping[str, Mapping[str, Any]]], layers: int | None = None
) -> tuple[Weights, ...]:
    """Bytes by class and format, exact, and the parameters that they hold.

    Raises:
        SparkbookError: a header is not one.
    """
    tensors: dict[str, tuple[str, tuple[int, ...], int]] = {}
    for header in headers:
        for name, entry in header.items():
            try:
                begin, end = entry["data_offsets"]
                tensors[name] = (
                    str(entry["dtype"]),
                    tuple(int(size) for size in entry["shape"]),
                    int(end) - int(begin),
                )
            except (KeyError, TypeError, ValueError):
                raise SparkbookError(
                    f"the header's entry of {name} is not one of a tensor: {str(entry)[:80]}"
                ) from None
    found: dict[tuple[TensorClass, str], list[int]] = {}
    for name in sorted(tensors):
        dtype, shape, size = tensors[name]
        kind: TensorClass
        if is_scale(name):
            kind, form, count = "scales", _PLAIN.get(dtype, dtype.lower()), 0
        else:
            kind = classify(name, layers)
            form, count = _format(name, dtype, shape, size, tensors)
        entry_ = found.setdefault((kind, form), [0, 0])
        entry_[0] += count
        entry_[1] += size
    order = list(TensorClass.__args__)  # type: ignore[attr-defined]
    ranked = sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    return tuple(
        Weights(kind, form, Range.of(count), Range.of(size))
        for (kind, form), (count, size) in ranked
    )


def _format(
    name: str, dtype: str, shape: tuple[int, ...], size: int, tensors: Mapping[str, Any]
) -> tuple[str, int]:
    """Format and number of values of a tensor that is not a scale."""
    stem = name.rpartition(".")[0]
    if dtype in ("U8", "I8") and (
        name.endswith("weight_packed") or f"{stem}.weight_scale_2" in tensors
    ):
        return "nvfp4", 2 * size
    if dtype == "U8" and name.endswith("_blocks"):
        return "mxfp4", 2 * size
    if dtype == "U8" and f"{stem}.weight_scale" in tensors:
        scale = tensors[f"{stem}.weight_scale"]
        return ("mxfp4" if scale[0] in ("U8", "F8_E8M0") else "nvfp4"), 2 * size
    if name.endswith("qweight"):
        return ("gptq" if f"{stem}.g_idx" in tensors else "awq"), 2 * size
    if name.endswith("weight_packed") and dtype == "I32":
        return "int4", 2 * size
    return _PLAIN.get(dtype, dtype.lower()), prod(shape) if shape else 1


def quantization(
    config: Mapping[str, Any], hf_quant: Mapping[str, Any] | None = None
) -> Quantization:
    """What config.json's `quantization_config`, or ModelOpt's `hf_quant_config.json`, says.

    vLLM finds each of these formats by itself (`override_quantization_method` of its quantization
    configs), so no flag is needed.
    """
    inside = config.get("text_config")
    said = config.get("quantization_config") or (
        inside.get("quantization_config") if isinstance(inside, Mapping) else None
    )
    if (
        isinstance(hf_quant, Mapping)
        and isinstance(inner := hf_quant.get("quantization"), Mapping)
        and not said
    ):
        said = {"quant_method": "modelopt", **inner}
    if not isinstance(said, Mapping):
        return Quantization()
    method = str(said.get("quant_method") or "").lower()
    text = json.dumps(said).lower()
    ignored = (
        said.get("ignore")
        or said.get("exclude_modules")
        or said.get("modules_to_not_convert")
        or ()
    )
    ignored = tuple(str(item) for item in ignored) if isinstance(ignored, list | tuple) else ()
    if method.startswith("modelopt") or "quant_algo" in said:
        algorithm = str(said.get("quant_algo") or "").lower()
        return Quantization(
            "nvfp4" if "fp4" in algorithm else "fp8" if "fp8" in algorithm else algorithm or "none",
            "modelopt",
            None,
            ignored,
        )
    if method == "compressed-tensors":
        form = "nvfp4" if "nvfp4" in text else "mxfp4" if "mxfp4" in text else None
        if form is None:
            bits = min([int(bits) for bits in re.findall(r'"num_bits": (\d+)', text)] or [16])
            form = {4: "int4", 8: "fp8" if '"float"' in text else "int8"}.get(bits, "none")
        return Quantization(form, "compressed-tensors", None, ignored)
    if method == "mxfp4":
        return Quantization("mxfp4", "openai", None, ignored)
    return Quantization(method or "none", method or None, None, ignored)
