"""The two small files that vLLM needs of a model: `config.json`, and `hf_quant_config.json` where
there is one. No weight is read.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook import checkpoint
from sparkbook.checkpoint import made
from sparkbook.errors import SparkbookError

NAMES = ("config.json", "hf_quant_config.json")
MOST_BYTES = 4 * 2**20
"""Of one file; the longest known, with a list of 1,800 layers left out, has 0.3 MiB."""


@dataclass(frozen=True)
class ModelFiles:
    """A model's files. The config says nothing of Python files of the checkpoint (`auto_map`): none
    is ever run, and vLLM takes its own class where it has one.

    Attributes:
        contents: by name.
        source: where they come from, in words.
    """

    contents: dict[str, Any]
    source: str

    def __post_init__(self) -> None:
        kept = {
            name: {key: value for key, value in content.items() if key != "auto_map"}
            for name, content in self.contents.items()
        }
        object.__setattr__(self, "contents", kept)

    @property
    def key(self) -> str:
        """A word that files with other contents do not have."""
        return hashlib.sha256(json.dumps(self.contents, sort_keys=True).encode()).hexdigest()[:16]


def find(model: str, revision: str | None = None) -> ModelFiles | None:
    """Return a model's files: from a folder, from Hugging Face's cache on this machine, or from the
    table of public checkpoints; None where none of them has it.

    Args:
        model: a folder, or `ORG/NAME`.
        revision: the commit or branch that the line pins.

    Raises:
        SparkbookError: a file that is there can't be read.
    """
    shipped = checkpoint.shipped(model)
    if shipped is not None:
        return _folder(shipped, f"{model}, which ships with sparkbook")
    local = Path(model).expanduser()
    if (local / "config.json").is_file():
        return _folder(local, f"the folder {model}")
    if cached := _cached(model, revision or "main"):
        return _folder(cached, f"the Hugging Face cache, {cached.name[:12]}")
    if facts := made.find(model):
        contents = {"config.json": facts.config}
        if facts.quantization is not None:
            contents["hf_quant_config.json"] = facts.quantization
        source = f"the table of public checkpoints ({facts.date})" if facts.date else facts.source
        return ModelFiles(contents, source)
    return None


def _cached(model: str, revision: str) -> Path | None:
    """The snapshot of a model in the cache, without a call to the hub."""
    home = os.environ.get("HF_HUB_CACHE") or str(
        Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
    )
    if not all(part and part not in (".", "..") for part in model.split("/")):
        return None
    repo = Path(home).expanduser() / f"models--{model.replace('/', '--')}"
    try:
        reference = (repo / "refs" / revision).read_text("utf-8").strip()
    except (OSError, ValueError):
        reference = revision
    snapshot = repo / "snapshots" / reference
    return snapshot if (snapshot / "config.json").is_file() else None


def _folder(folder: Path, source: str) -> ModelFiles:
    contents = {}
    for name in NAMES:
        path = folder / name
        if not path.is_file():
            continue
        try:
            if path.stat().st_size > MOST_BYTES:
                raise SparkbookError(
                    f"{path} is too long for a config: {path.stat().st_size} bytes"
                )
            contents[name] = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise SparkbookError(f"{path} is not readable JSON: {str(error)[:120]}") from None
        if not isinstance(contents[name], dict):
            raise SparkbookError(f"{path} holds no JSON object")
    return ModelFiles(contents, source)
