"""Looks for a checkpoint on this host and on the hub: the model store, Hugging Face's cache, then
two small files of the repository.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkbook.checkpoint import known, local
from sparkbook.checkpoint.store import model_store, snapshot
from sparkbook.checkpoint.values import Checkpoint
from sparkbook.errors import SparkbookError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_OFFLINE = ("1", "on", "yes", "true")


def look(
    name: str,
    revision: str | None = None,
    *,
    environ: Mapping[str, str],
    home: Path | None = None,
    hub: bool = True,
    api: HfApi | None = None,
) -> Checkpoint | None:
    """Return what the checkpoint's own files say; None where they are nowhere.

    Args:
        name: handle, `ORG/MODEL`.
        revision: branch, tag or commit.
        environ: names the model store (HF_HOME) and forbids the hub (HF_HUB_OFFLINE).
        home: the user's home.
        hub: whether the hub may be asked.
        api: client of the hub; None: the hub that HF_ENDPOINT names.
    """
    if name.count("/") != 1 or name.startswith(("/", ".", "~")):
        return None
    home = home or Path.home()
    for root in (model_store(environ, home), home / ".cache" / "huggingface"):
        folder = snapshot(root, name, revision)
        if folder and (found := _staged(name, folder)):
            return found
    if not hub or environ.get("HF_HUB_OFFLINE", "").lower() in _OFFLINE:
        return None
    return _asked(name, revision, api)


def _staged(name: str, folder: Path) -> Checkpoint | None:
    """A checkpoint in a folder: its headers, or where weights are missing its config alone."""
    try:
        return local.read(folder)
    except SparkbookError:
        pass
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        return known.of_config(name, config, local.hf_quant(folder), f"config.json in {folder}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, SparkbookError):
        return None


def _asked(name: str, revision: str | None, api: Any) -> Checkpoint | None:
    """A checkpoint from the hub's list of files and its two small ones; its headers are not
    read.
    """
    try:
        from huggingface_hub import HfApi

        from sparkbook.checkpoint import hub

        api = api or HfApi()
        found = hub.files(api, name, revision)
        source = f"config.json at {api.endpoint}/{name}/tree/{found.commit}"
        read = known.of_config(name, found.config, found.hf_quant, source)
    except (ImportError, LookupError, TypeError, AttributeError, SparkbookError):
        return None
    return known.sized(read, sum(found.sizes.values()), found.commit)
