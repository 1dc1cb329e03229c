"""Configurations of checkpoints that no table quotes, made of what is known of them (`made.yaml`):
the model's that they were made of, with the quantization that their publisher writes.

    >>> made = find("Qwen/Qwen3.6-27B-FP8")
    >>> made.config["quantization_config"]["weight_block_size"]
    [128, 128]
    >>> made.source
    "made: the shape of Qwen/Qwen3.6-27B; Qwen's FP8 checkpoints have blocks of 128 x 128, ..."

vLLM can be asked about such a checkpoint, and the answer says that the configuration was made.
"""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkbook.checkpoint import configs, folding, formats, known, naming
from sparkbook.checkpoint.configs import ConfigFacts
from sparkbook.util import own_yaml

FILE = Path(__file__).with_name("made.yaml")


@functools.cache
def facts() -> dict[str, Any]:
    """The file `made.yaml`."""
    return own_yaml.read(FILE)


def find(name: str) -> ConfigFacts | None:
    """Return a checkpoint's configuration, its own or a made one; None where it can't be made.

    Args:
        name: handle, `ORG/MODEL`.
    """
    if own := configs.find(name) or configs.stated(name):
        return _whole(own)
    entry = facts()["checkpoints"].get(name, {})
    said = [f"{entry['why']}"] if entry else []
    base = entry.get("base") or known.made_of(name)
    if not entry and naming.read(name).reduced:
        return None  # how many experts are left is not in its name
    if base is None:
        config = dict(entry.get("config", {}))
        return ConfigFacts(name, config, None, f"made: {said[0]}", "") if config else None
    config = dict(known.shape(known.shape_of(base)))
    if "architectures" not in config | entry.get("config", {}):
        return None
    quantized = _quantization(name, base, config, entry, said)
    if quantized is None:
        return None
    inner = {
        key: {k: v for k, v in value.items() if k != "quantization_config"}
        for key, value in config.items()
        if isinstance(value, dict) and key != "quantization_config"
    }
    config.pop("quantization_config", None)
    made = {**config, **inner, **entry.get("config", {}), **quantized}
    return ConfigFacts(name, made, None, f"made: the shape of {base}; {'; '.join(said)}", "")


def _whole(own: ConfigFacts) -> ConfigFacts:
    """A checkpoint's own configuration with the `quantization_config` that ModelOpt writes into
    `config.json` since 0.31, where the table's copy has it in `hf_quant_config.json` alone.
    """
    there = own.config.get("quantization_config")
    if there and "quant_method" not in there and "quant_algo" in there:
        return replace(
            own,
            config={**own.config, "quantization_config": {"quant_method": "modelopt", **there}},
        )
    if own.quantization is None or there:
        return own
    said = own.quantization["quantization"]
    version = str(own.quantization.get("producer", {}).get("version", "1"))
    if version.startswith(("0.2", "0.30")):
        return own
    names = said.get("exclude_modules")
    if names is None and "quantized_layers" not in said:
        names = facts()["quantizations"]["modelopt-nvfp4"]["ignore"]
    scheme = {"num_bits": 8, "type": "float", "dynamic": False}
    quantized = {
        "quant_method": "modelopt",
        "quant_algo": said["quant_algo"],
        "ignore": names or [],
        **{key: said[key] for key in ("group_size", "quantized_layers") if key in said},
        **({"kv_cache_scheme": scheme} if said.get("kv_cache_quant_algo") == "FP8" else {}),
    }
    return replace(own, config={**own.config, "quantization_config": quantized})


def _quantization(
    name: str, base: str, config: dict[str, Any], entry: dict[str, Any], said: list[str]
) -> dict[str, Any] | None:
    """The key `quantization_config`, or nothing; None: no usual one is known."""
    native = config.get("quantization_config")
    form = naming.read(name).format
    if key := entry.get("quantization"):
        return _of_key(key)
    if naming.read(known.shape_of(base)).format is not None:
        native = None  # the known checkpoint is a quantized one itself
    has = formats.read(config).main.name if native else "bf16"
    if form in (None, has):
        return {"quantization_config": native} if native else {}
    for usual in facts()["usual"]:
        if usual["format"] == form and re.search(usual["name"], name):
            said.append(usual["why"])
            return _of_key(usual["quantization"])
    return {} if form == "bf16" else None


def _of_key(key: str) -> dict[str, Any] | None:
    if key == "unknown":
        return None
    if own := configs.find(key):
        said = own.config.get("quantization_config") or own.quantization
        return {"quantization_config": said}
    return {"quantization_config": _unfolded(facts()["quantizations"][key])}


def _unfolded(value: Any) -> Any:
    """A value with each name of its lists written out."""
    if isinstance(value, dict):
        return {key: _unfolded(inner) for key, inner in value.items()}
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return folding.unfold_names(value)
    return value
