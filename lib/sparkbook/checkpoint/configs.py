"""Configurations of public checkpoints (`configs.json`): `config.json` and `hf_quant_config.json`
as they are on the hub, without keys of training and generation.

    >>> find("openai/gpt-oss-120b").config["num_hidden_layers"]
    36

`tools/build_checkpoints.py` makes the table. It is read when the first checkpoint is asked for.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook.checkpoint import folding

FILE = Path(__file__).with_name("configs.json")


@dataclass(frozen=True)
class ConfigFacts:
    """What a checkpoint's configuration files contain.

    Attributes:
        name: handle, `ORG/MODEL`.
        config: `config.json`.
        quantization: `hf_quant_config.json`; None where the checkpoint has none.
        source: address of the copy that was read.
        date: day of that copy, ISO.
    """

    name: str
    config: dict[str, Any]
    quantization: dict[str, Any] | None
    source: str
    date: str


@functools.cache
def _table() -> dict[str, Any]:
    return json.loads(FILE.read_text("utf-8"))


@functools.cache
def _handles(part: str) -> dict[str, str]:
    """Handles by their spelling in lower case; the hub ignores case too."""
    return {name.lower(): name for name in _table()[part]["entries"]}


def names() -> list[str]:
    """Handles of the table, sorted."""
    return sorted(_handles("checkpoints").values(), key=str.lower)


def find(model_id: str) -> ConfigFacts | None:
    """Return a checkpoint's configuration; None where the table lacks it.

    Args:
        model_id: handle, `ORG/MODEL`.
    """
    return _find("checkpoints", model_id)


def stated(model_id: str) -> ConfigFacts | None:
    """Return the configuration that a class of Transformers states as that of a checkpoint; None
    where none does.
    """
    return _find("defaults", model_id)


def stated_names() -> list[str]:
    """Handles of checkpoints that a class of Transformers states the configuration of, sorted."""
    return sorted(_handles("defaults").values(), key=str.lower)


def _find(part: str, model_id: str) -> ConfigFacts | None:
    name = _handles(part).get(model_id.lower())
    if name is None:
        return None
    table = _table()[part]
    entry, source = table["entries"][name], table["source"]
    quantization = entry.get("quantization")
    return ConfigFacts(
        name,
        folding.unfold(entry["config"]),
        None if quantization is None else folding.unfold(quantization),
        source["address"],
        source["date"],
    )


@dataclass(frozen=True)
class Card:
    """A model's figures; None: not stated.

    Attributes:
        params_b, active_b: 10^9 parameters, all and those of one token.
        context: tokens; 0 for a model that is no decoder of text.
        format: of the weights.
        gib: published size of the weights, GiB.
        table_b: 10^9 parameters of a lookup table that can stay on the disk.
        table_format: how that table is stored.
        source: address, or where else the figures are from.
    """

    params_b: float | None = None
    active_b: float | None = None
    context: int | None = None
    format: str | None = None
    gib: float | None = None
    table_b: float = 0
    table_format: str = "bf16"
    source: str = ""


def card(model_id: str) -> Card | None:
    """Return the figures of a model; None where the table lacks them."""
    table = _table()["cards"]
    name = _handles("cards").get(model_id.lower())
    if name is None:
        return None
    params_b, active_b, context, form = table["entries"][name]
    return Card(params_b, active_b, context, form, source=table["source"]["address"])


def cards() -> list[str]:
    """Handles of models with figures, sorted."""
    return sorted(_handles("cards").values(), key=str.lower)
