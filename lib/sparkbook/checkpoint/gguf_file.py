"""Reads the header of a GGUF file, never the weights: shape, tensors and their bytes.

A file begins with `GGUF`, its version, and how many tensors and keys it has; then come keys with
values, and for each tensor name, shape, type and offset
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, 29 November 2026). A tensor ends where
the next one begins, so no table of types is needed. A model in several files has its shape in the
first.
"""

from __future__ import annotations

import os
import re
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from sparkbook.checkpoint import gguf, tensors
from sparkbook.checkpoint.config import geometry
from sparkbook.checkpoint.values import Checkpoint, Geometry, Quantization, Weights
from sparkbook.errors import SparkbookError

_NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_MOST = 100_000
"""Keys, or tensors, that a header may have."""
_COST = 160_000_000
"""What a header may cost to read: its bytes, and 32 for each value. That of a model with 0.3
million words costs 60 million.
"""

_PLAIN = {0: "F32", 1: "F16", 30: "BF16"}
"""Types of tensors that are not quantized, as safetensors names them."""

_FAMILIES = {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}
_FAMILIES |= {name: name for name in ("llama", "qwen2", "qwen3", "granite", "olmo2")}
"""By `general.architecture`, the `model_type` of those in which every layer has full attention over
all tokens; of any other, the keys below do not give the cache.
"""

_NAMES = {
    r"^token_embd\.": "embed_tokens.",
    r"^output\.": "lm_head.",
    r"_exps\.": ".experts.",
    r"_shexp\.": "shared_expert.",
    r"\.ffn_gate_inp\.": ".router.",
    r"\.nextn\.": "mtp.",
    r"_norm\.": "norm.",
    r"\.attn_": "self_attn.",
    r"\.ssm_": ".ssm.",
}
"""What of a tensor's name says its class, and what says it to `tensors.classify`; the first
counts.
"""


class _Header:
    """A file's header, read from its beginning.

    Attributes:
        values: the keys; a list of texts is left empty.
        tensors: name, shape, number of the type, and bytes of each tensor.
    """

    def __init__(self, path: Path) -> None:
        self._name = str(path)
        self._left = _COST
        self.size = path.stat().st_size
        with path.open("rb") as file:
            self._file: BinaryIO = file
            if file.read(4) != b"GGUF" or not 2 <= self._number("I") <= 3:
                raise SparkbookError(f"{path} is no GGUF file of version 2 or 3")
            count, keys = self._number("Q"), self._number("Q")
            if max(count, keys) > _MOST:
                raise SparkbookError(f"{path}: its header has more entries than that of any model")
            self.values = {self._text(): self._value(self._number("I")) for _ in range(keys)}
            found = [self._tensor() for _ in range(count)]
            align = self.values.get("general.alignment", 32)
            if not isinstance(align, int) or not 1 <= align <= 1 << 20:
                raise SparkbookError(f"{path}: its tensors are aligned to {align!r} bytes")
            begin = -(-file.tell() // align) * align
        ends = sorted({begin + offset for *_, offset in found} | {self.size})
        if ends[-1] > self.size or (found and ends[-1] == ends[0]):
            raise SparkbookError(f"{path} is cut off: its tensors end beyond it; fetch it again")
        bytes_ = {first: second - first for first, second in pairwise(ends)}
        self.tensors = [
            (name, shape, kind, bytes_.get(begin + offset, 0))
            for name, shape, kind, offset in found
        ]

    def _pay(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise SparkbookError(f"{self._name}: its header is longer than that of any model")

    def _read(self, size: int) -> bytes:
        self._pay(size + 32)
        data = self._file.read(size)
        if len(data) < size:
            raise SparkbookError(f"{self._name} is cut off inside its header; fetch it again")
        return data

    def _number(self, form: str) -> Any:
        return struct.unpack(f"<{form}", self._read(struct.calcsize(f"<{form}")))[0]

    def _text(self) -> str:
        return self._read(self._number("Q")).decode("utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _TEXT:
            return self._text()
        inner = self._number("I") if kind == _ARRAY else kind
        if inner not in _NUMBERS and inner != _TEXT:
            raise SparkbookError(f"{self._name}: its header has a value of the type {inner}")
        count = self._number("Q")
        self._pay(count * 32)
        if inner == _TEXT:
            for _ in range(count):
                self._read(self._number("Q"))
            return []
        data = self._read(count * struct.calcsize(f"<{_NUMBERS[inner]}"))
        return list(struct.unpack(f"<{count}{_NUMBERS[inner]}", data))

    def _tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text()
        dimensions = self._number("I")
        if dimensions > 8:
            raise SparkbookError(f"{self._name}: a tensor with {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))
        return name, shape, self._number("I"), self._number("Q")


def is_file(name: str) -> bool:
    """Whether a GGUF file of this name is there."""
    path = os.path.expanduser(name)  # noqa: PTH111 (leaves alone what it can't expand)
    return name.lower().endswith(".gguf") and os.path.isfile(path)  # noqa: PTH113 (never raises)


def read(path: Path, named: Checkpoint | None = None) -> Checkpoint:
    """What a GGUF file holds, and those that belong to it.

    Args:
        path: the file, or one of several.
        named: what its name says, whose shape counts where the header's keys do not give it, and do
            not contradict it.

    Raises:
        SparkbookError: it can't be read, is none, is cut off, or lacks one of its files.
    """
    try:
        headers = {part: _Header(part) for part in _parts(path)}
    except OSError as error:
        raise SparkbookError(f"{path} can't be read: {error.strerror}") from None
    values = next(iter(headers.values())).values
    entries = [entry for header in headers.values() for entry in header.tensors]
    architecture = str(values.get("general.architecture"))
    unknown = [gguf.SPEED]
    shape: Geometry | None = None
    try:
        shape = geometry(_config(values, entries))
    except SparkbookError as error:
        sizes = [values.get(f"{architecture}.{key}") for key in ("block_count", "embedding_length")]
        if named and (like := named.geometry) and [like.layers, like.hidden] == sizes:
            shape, unknown = like, [*named.unknown]
        else:
            unknown.append(f"shape of the model: {error}")
    return Checkpoint(
        name=str(path),
        architecture=None,
        model_type=_FAMILIES.get(architecture, architecture),
        geometry=shape,
        weights=_weights(entries),
        quantization=Quantization("gguf"),
        files=tuple((part.name, header.size) for part, header in headers.items()),
        source="the header of the GGUF file",
        unknown=tuple(unknown),
    )


def _parts(path: Path) -> list[Path]:
    """Return the files of a model, the first of them first."""
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name, re.IGNORECASE)
    if match is None or not int(match[2]):
        return [path]
    count = int(match[2])
    names = (f"{match[1]}-{n:05}-of-{count:05}{path.suffix}" for n in range(1, count + 1))
    found = [path.with_name(name) for name in names]
    if missing := [part.name for part in found if not part.is_file()]:
        raise SparkbookError(
            f"{path}: {len(missing)} of {count} files are missing, such as {missing[0]}; fetch them"
            " again"
        )
    return found


def _config(values: dict[str, Any], entries: list[Any]) -> dict[str, Any]:
    """Return the `config.json` that says what the header says.

    Raises:
        SparkbookError: the layers keep more, or other things, than these keys say.
    """
    architecture = str(values.get("general.architecture"))
    if architecture not in _FAMILIES:
        raise SparkbookError(f"the header's keys of '{architecture}' do not give its cache")

    def value(name: str) -> Any:
        found = values.get(f"{architecture}.{name}")
        return found[0] if isinstance(found, list) and len(set(found)) == 1 else found

    heads, width = value("attention.head_count"), value("attention.key_length")
    if value("attention.sliding_window") or value("attention.value_length") not in (None, width):
        raise SparkbookError("its layers differ in what they keep")
    vocabulary = next(
        (shape[-1] for name, shape, *_ in entries if shape and name == "token_embd.weight"), None
    )
    config = {
        "num_hidden_layers": value("block_count"),
        "hidden_size": value("embedding_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv") or heads,
        "head_dim": width,
        "max_position_embeddings": value("context_length"),
        "intermediate_size": value("feed_forward_length"),
        "vocab_size": vocabulary,
        "num_experts": value("expert_count"),
        "num_experts_per_tok": value("expert_used_count"),
    }
    stated = {key: found for key, found in config.items() if found is not None}
    for key, found in stated.items():
        if isinstance(found, list):
            raise SparkbookError("its layers differ in what they keep")
        most = 10_000 if key == "num_hidden_layers" else 10**8
        least = 0 if key.startswith("num_experts") else 1
        if not (isinstance(found, int) and least <= found <= most):
            raise SparkbookError(f"the header says {found!r} for {key}")
    if not (heads and config["hidden_size"]):
        raise SparkbookError("the header does not say how many heads there are, or how wide")
    tied = all(name != "output.weight" for name, *_ in entries)
    return stated | {"model_type": _FAMILIES[architecture], "tie_word_embeddings": tied}


def _weights(entries: list[Any]) -> tuple[Weights, ...]:
    """Return bytes and parameters by class and format."""
    header = {}
    for name, shape, kind, size in entries:
        words = next((word for form, word in _NAMES.items() if re.search(form, name)), "")
        dtype = _PLAIN.get(kind, "GGUF")
        header[words + name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]}
    return tensors.weights([header])
