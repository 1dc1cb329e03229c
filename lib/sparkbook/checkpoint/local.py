"""Reads a checkpoint in a folder: config and the headers of its safetensors files, never the
weights.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkbook.checkpoint import tensors
from sparkbook.checkpoint.config import dtype_bytes, geometry
from sparkbook.checkpoint.values import Checkpoint, Geometry
from sparkbook.errors import SparkbookError


def read(folder: Path) -> Checkpoint:
    """What a folder holds.

    Raises:
        SparkbookError: it is no checkpoint: no config.json, no safetensors files, or files that are
            cut off.
    """
    config, found = files(folder)
    sizes = [(path.name, path.stat().st_size) for path in found]
    return build(str(folder), config, hf_quant(folder), list(found.values()), sizes)


def hf_quant(folder: Path) -> dict[str, Any] | None:
    """Model Optimizer's description of its formats, which its checkpoints carry with or in place
    of the config's.
    """
    return _json(folder / "hf_quant_config.json")


def files(folder: Path) -> tuple[dict[str, Any], dict[Path, dict[str, Any]]]:
    """The config of a checkpoint in a folder, and its safetensors files with their headers; every
    file is whole.

    Raises:
        SparkbookError: as `read`.
    """
    if not folder.is_dir():
        raise SparkbookError(f"{folder} is no folder: give the folder that holds config.json")
    config = _json(folder / "config.json")
    if config is None:
        raise SparkbookError(
            f"{folder} holds no config.json, so it is no checkpoint in Hugging Face's layout"
        )
    paths = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    index = _json(folder / "model.safetensors.index.json")
    if index and isinstance(index.get("weight_map"), Mapping):
        named = {str(name) for name in index["weight_map"].values()}
        if missing := sorted(named - {path.name for path in paths}):
            raise SparkbookError(
                f"{folder}: {len(missing)} of {len(named)} files are missing, such as {missing[0]};"
                " fetch them again"
            )
        paths = [path for path in paths if path.name in named]
    if not paths:
        raise SparkbookError(
            f"{folder} holds no safetensors files; weights in other formats (.bin, GGUF) are not"
            " read"
        )
    headers = {}
    for path in paths:
        header = _header(path)
        need = max((int(entry["data_offsets"][1]) for entry in header.values()), default=0)
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
        if path.stat().st_size < 8 + length + need:
            raise SparkbookError(
                f"{path} is cut off: {path.stat().st_size} of {8 + length + need} bytes; fetch it"
                " again"
            )
        headers[path] = header
    return config, headers


def build(
    name: str,
    config: Mapping[str, Any],
    hf_quant: Mapping[str, Any] | None,
    headers: list[dict[str, Any]],
    files: list[tuple[str, int]],
    revision: str | None = None,
    source: str = "config.json and the headers of the safetensors files",
) -> Checkpoint:
    """A checkpoint from its config and the headers of its files. A shape that cannot be read is
    unknown, not an error.
    """
    unknown: tuple[str, ...] = ()
    found: Geometry | None = None
    try:
        found = geometry(config)
    except SparkbookError as error:
        unknown = (f"shape of the model: {error}",)
    architectures = config.get("architectures")
    return Checkpoint(
        name=name,
        architecture=(
            architectures[0] if isinstance(architectures, list) and architectures else None
        ),
        model_type=config.get("model_type"),
        geometry=found,
        weights=tensors.weights(headers, found.layers if found else None),
        quantization=tensors.quantization(config, hf_quant),
        revision=revision,
        files=tuple(files),
        dtype_bytes=dtype_bytes(config),
        source=source,
        unknown=unknown,
    )


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise SparkbookError(f"{path} is not readable JSON: {str(error)[:120]}") from None
    if not isinstance(value, dict):
        raise SparkbookError(f"{path} holds no JSON object")
    return value


def _header(path: Path) -> dict[str, dict[str, Any]]:
    with path.open("rb") as file:
        start = file.read(8)
        if len(start) == 8:
            (length,) = struct.unpack("<Q", start)
            start += file.read(length) if length <= tensors.MAX_HEADER else b""
    return tensors.parse_header(start, str(path))
