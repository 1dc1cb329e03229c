"""Weights: what a recipe reads, from the hub into the model store, whole and verified.

    fetched = weights.fetch(recipes.load("qwen3.6-35b-a3b-nvfp4"))
    weights.verify(recipes.load("qwen3.6-35b-a3b-nvfp4"))

The store is laid out as huggingface_hub lays out its cache, so vLLM and `hf` read it. The files are
downloaded here, because the library's own downloads start over when the process ends (2.4.0:
`_download_to_tmp_and_move` removes what is unfinished), and with shards of 5 GB that is what an
interruption costs. They come over plain HTTP, in parallel, and are resumed at the byte; each is
hashed before it gets its name. `hf_xet` is neither needed nor used.

A hub is not trusted: its replies go through a schema (`checkpoint.reply`), its file names and a
recipe's folders through one gate (`util.inside`), and the token goes to its origin only
(`util.origins`).
"""

from __future__ import annotations

from sparkbook.weights.fetching import Fetched, Staged, denied, fetch
from sparkbook.weights.hub_client import Hub, needed
from sparkbook.weights.pruning import Prunable, prune
from sparkbook.weights.rules import HUB, WeightsError
from sparkbook.weights.verifying import Verified, verify

__all__ = [
    "HUB",
    "Fetched",
    "Hub",
    "Prunable",
    "Staged",
    "Verified",
    "WeightsError",
    "denied",
    "fetch",
    "needed",
    "prune",
    "verify",
]
