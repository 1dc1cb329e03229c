"""In which format a quantized checkpoint stores each module, from `quantization_config` or
`hf_quant_config.json`, and how many bytes that takes.

Which methods there are, and how their lists of modules are read, is vLLM 0.32.0's
(`model_executor/layers/quantization/`). Where a checkpoint does not say which modules it leaves
out, a module has several formats, and its size is a range.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkbook.checkpoint.config import Config, experts_of, text_config
from sparkbook.checkpoint.modules import Module, modules
from sparkbook.checkpoint.values import Range, TensorClass, Weights

_FIRST_PART = re.compile(r"^((language_model|model|backbone|text_model|transformer)\.)+")
_EXPERT = re.compile(r"\.experts\.(\d+|\*)(\..*)?$")


@dataclass(frozen=True)
class Format:
    """How a module is stored.

    Attributes:
        name: `nvfp4`, `mxfp4`, `fp8`, `mxfp8`, `int4`, `int8`, `bf16`.
        bits: bits of one parameter, its share of the scales included.
    """

    name: str
    bits: float


BF16 = Format("bf16", 16)
_FORMATS = {
    "NVFP4": Format("nvfp4", 4 + 8 / 16),
    "W4A16_NVFP4": Format("nvfp4", 4 + 8 / 16),
    "MXFP4": Format("mxfp4", 4 + 8 / 32),
    "MXFP8": Format("mxfp8", 8 + 8 / 32),
    "FP8": Format("fp8", 8),
    "FP8_PER_CHANNEL_PER_TOKEN": Format("fp8", 8),
    "FP8_PB_WO": Format("fp8", 8 + 32 / 128**2),
    "W4A16_AWQ": Format("int4", 4 + 16 / 128),
    "W4A8_AWQ": Format("int4", 4 + 16 / 128),
}
"""ModelOpt's `quant_algo`. NVFP4 has an 8-bit scale for 16 weights, MXFP4 and MXFP8 one for 32."""


@dataclass(frozen=True)
class Formats:
    """The formats of a checkpoint's modules.

    Attributes:
        main: of a module that no list names.
        producer: `modelopt`, `compressed-tensors`, or the method's name; None: nothing is
            quantized.
        ignored: patterns of modules that stay as they were trained.
        listed: formats of modules by name; the others have `main`.
        experts: of routed experts, where it is another than `main`.
        experts_only: whether only routed experts are quantized.
        complete: whether the checkpoint says which modules it leaves out.
        dense: whether the model has no experts.
        how: how `ignored` is read: `glob` patterns, whole `names`, or last `parts` of a name.
    """

    main: Format = BF16
    producer: str | None = None
    ignored: tuple[str, ...] = ()
    listed: Mapping[str, Format] | None = None
    experts: Format | None = None
    experts_only: bool = False
    complete: bool = True
    dense: bool = False
    how: Literal["glob", "names", "parts"] = "glob"

    def of(self, module: Module) -> tuple[Format, ...]:
        """Return the format of a module; several where it is not known which."""
        if module.plain or module.kind in ("norms", "embedding", "router"):
            return (BF16,)
        if self.listed is not None:
            rest = BF16 if module.kind in ("head", "vision", "draft") else self.main
            return (self._listed(module.name) or rest,)
        if self.main == BF16 or self._left_out(module.name):
            return (BF16,)
        if module.kind == "experts":
            return (self.experts or self.main,)
        if self.experts_only:
            return (BF16,)
        if module.kind in ("head", "vision") and not self._names_all():
            return (BF16,)
        if self.complete:
            return (self.main,)
        if module.kind in ("head", "vision", "draft"):
            return (BF16,)
        if module.kind == "mlp" and self.dense:
            return (self.main,)
        fp8 = (_FORMATS["FP8"],) if self.main.bits < 8 else ()
        return (self.main, *fp8, BF16)

    def _names_all(self) -> bool:
        """Whether a head or tower that the list does not name is quantized: vLLM quantizes those
        only for methods whose list is complete.
        """
        return self.producer == "compressed-tensors"

    def _listed(self, name: str) -> Format | None:
        assert self.listed is not None
        while name:
            if found := self.listed.get(name):
                return found
            name = name.rpartition(".")[0]
        return None

    def _left_out(self, name: str) -> bool:
        return any(_matches(pattern, name, self.how) for pattern in self.ignored)


def _matches(pattern: str, name: str, how: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], f"model.{name}") is not None
    pattern = _FIRST_PART.sub("", pattern)
    if name == pattern or name.startswith(f"{pattern}."):
        return True
    if how == "parts":
        return name.endswith(f".{pattern}") or f".{pattern}." in name
    return "*" in pattern and (
        fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(f"{name}.", pattern)
    )


def read(config: Config, hf_quant: Mapping[str, Any] | None = None) -> Formats:
    """Return the formats that a checkpoint states.

    Args:
        config: `config.json`.
        hf_quant: `hf_quant_config.json`, of which counts what config.json does not say.
    """
    said = config.get("quantization_config") or text_config(config).get("quantization_config")
    method = "modelopt"
    if not isinstance(said, Mapping) and isinstance(hf_quant, Mapping):
        said = hf_quant.get("quantization")
    if not isinstance(said, Mapping):
        return Formats()
    method = str(said.get("quant_method") or method).lower()
    if "quant_algo" in said:
        return _modelopt(said, not experts_of(text_config(config)))
    if method == "compressed-tensors":
        return _compressed(said)
    ignored = said.get("modules_to_not_convert") or said.get("ignored_layers") or ()
    if method == "mxfp4":
        return Formats(_FORMATS["MXFP4"], "openai", tuple(ignored), experts_only=True)
    if method == "fp8":
        main = _FORMATS["FP8_PB_WO"] if said.get("weight_block_size") else _FORMATS["FP8"]
        if str(config.get("expert_dtype")) == "fp4":  # DeepSeek V4
            return Formats(main, "fp8", tuple(ignored), experts=_FORMATS["MXFP4"], how="parts")
        return Formats(main, "fp8", tuple(ignored), how="parts")
    bits = said.get("bits") or said.get("w_bit") or 4
    group = said.get("group_size") or 128
    return Formats(
        _integer(int(bits), int(group), bool(said.get("zero_point") or not said.get("sym", True))),
        method,
        tuple(ignored),
        how="parts",
    )


def by_name(form: str, dense: bool) -> Formats:
    """The formats of a checkpoint of which only the main format is known.

    Args:
        form: `nvfp4`, `fp8`, `int4` and so on.
        dense: whether the model has no experts: its MLPs then are what is quantized for sure.
    """
    named = {"nvfp4": "NVFP4", "mxfp4": "MXFP4", "mxfp8": "MXFP8", "fp8": "FP8"}
    main = _FORMATS[named[form]] if form in named else _integer(8 if "8" in form else 4, 128, False)
    return Formats(main, complete=False, dense=dense)


def _integer(bits: int, group: int, zeros: bool) -> Format:
    """Whole numbers in groups with a 16-bit scale, and where asked a zero point."""
    extra = (16 + (bits if zeros else 0)) / group if group > 0 else 0
    return Format(f"int{bits}", bits + extra)


def _modelopt(said: Mapping[str, Any], dense: bool) -> Formats:
    algorithm = str(said.get("quant_algo")).upper()
    ignored = said.get("exclude_modules") or said.get("ignore")
    listed = said.get("quantized_layers")
    if isinstance(listed, Mapping) and algorithm == "MIXED_PRECISION" and listed:
        by_name: dict[str, Format] = {}
        for name, about in listed.items():
            stem = _EXPERT.sub(".experts", _FIRST_PART.sub("", str(name)))
            form = _FORMATS.get(str(about.get("quant_algo")).upper(), BF16)
            by_name[stem] = form
        # DeepSeek V4: what is not listed keeps the FP8 of its base.
        rest = _FORMATS["FP8_PB_WO"] if said.get("quant_method") == "fp8" else BF16
        return Formats(rest, "modelopt", listed=by_name)
    return Formats(
        _FORMATS.get(algorithm, BF16),
        "modelopt",
        tuple(ignored or ()),
        complete=ignored is not None,
        dense=dense,
    )


def _compressed(said: Mapping[str, Any]) -> Formats:
    groups = said.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    group: Mapping[str, Any] = first if isinstance(first, Mapping) else {}
    said_of = group.get("weights")
    weights: Mapping[str, Any] = said_of if isinstance(said_of, Mapping) else {}
    bits, kind = weights.get("num_bits", 16), weights.get("type")
    named = str(group.get("format") or said.get("format") or "")
    if "mxfp4" in named:
        main = _FORMATS["MXFP4"]
    elif bits == 4 and kind == "float":
        main = _FORMATS["NVFP4"]
    elif bits == 8 and kind == "float":
        main = _FORMATS["FP8"]
    elif bits in (4, 8):
        main = _integer(bits, weights.get("group_size") or -1, not weights.get("symmetric", True))
    else:
        main = BF16
    return Formats(main, "compressed-tensors", tuple(said.get("ignore") or ()))


def weights(config: Config, formats: Formats) -> tuple[Weights, ...]:
    """Bytes by class and format.

    Raises:
        SparkbookError: the config lacks what a decoder's config says.
    """
    return counted((module, formats.of(module)) for module in modules(config))


def counted(found: Iterable[tuple[Module, tuple[Format, ...]]]) -> tuple[Weights, ...]:
    """Bytes by class and format, from modules with the formats that each may have."""
    sums: dict[tuple[TensorClass, str], list[float]] = {}
    for module, formats in found:
        name = " or ".join(sorted({form.name for form in formats}, key=_order))
        entry = sums.setdefault((module.kind, name), [0, 0, 0])
        bits = [form.bits for form in formats]
        entry[0] += module.params
        entry[1] += module.params * min(bits) / 8
        entry[2] += module.params * max(bits) / 8
    return tuple(_weights(sums))


def _weights(sums: Mapping[tuple[TensorClass, str], list[float]]) -> Iterator[Weights]:
    for (kind, name), (params, low, high) in sums.items():
        if params:
            yield Weights(kind, name, Range.of(params), Range(low, high))


def _order(name: str) -> int:
    return {"bf16": 16, "fp8": 8, "mxfp8": 8, "int8": 8}.get(name, 4)


def kv_dtype(config: Config, hf_quant: Mapping[str, Any] | None = None) -> str | None:
    """Return the type of the KV cache that `auto` means for a ModelOpt checkpoint; None: that of
    the model.

    (vLLM 0.32.0, `resolve_kv_cache_dtype_string`: other methods' lists are not read for it.)
    """
    said = config.get("quantization_config")
    if not isinstance(said, Mapping) and isinstance(hf_quant, Mapping):
        said = hf_quant.get("quantization")
        said = {"quant_method": "modelopt", **said} if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping):
        return None
    method = said.get("quant_method") or ("modelopt" if "quant_algo" in said else "")
    if not str(method).startswith("modelopt"):
        return None
    scheme = said.get("kv_cache_scheme") or said.get("kv_cache_quant_algo")
    if isinstance(scheme, Mapping):
        bits = scheme.get("num_bits") if scheme.get("type") == "float" else None
        return {8: "fp8", 4: "nvfp4"}.get(bits) if bits else None
    return {"fp8": "fp8", "nvfp4": "nvfp4"}.get(str(scheme).lower())
