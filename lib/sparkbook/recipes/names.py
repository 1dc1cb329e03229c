"""Names in a launch line: an option's one spelling, what an image runs by itself, and which
variables are secret. Whatever reads or judges a line uses these without loading a `Launch`.
"""

from __future__ import annotations

import re
from typing import Literal

EntryPoint = Literal["command", "vllm-serve", "wrapper"]
"""What an image runs by itself: any command it is given (`command`), `vllm serve` (the words after
the image are its arguments), or a script of its own that reads environment variables (`wrapper`).
"""

_VLLM_SERVE = re.compile(r"^(docker\.io/)?vllm/vllm-openai\b|/vllm-openai\b")
_WRAPPER = re.compile(r"^(docker\.io/)?avarok/|\baeon-7/vllm-|^vllm-dflash-tq\b")

SHORT_FLAGS = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "ep": "enable-expert-parallel",
    "q": "quantization",
    "sc": "speculative-config",
    "cc": "compilation-config",
    "n": "nnodes",
    "r": "node-rank",
    "ac": "attention-config",
    "dc": "diffusion-config",
    "asc": "api-server-count",
    "dcp": "decode-context-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "dpn": "data-parallel-rank",
    "dpr": "data-parallel-start-rank",
    "dpl": "data-parallel-size-local",
    "dpa": "data-parallel-address",
    "dpp": "data-parallel-rpc-port",
    "dpb": "data-parallel-backend",
    "dph": "data-parallel-hybrid-lb",
    "dpe": "data-parallel-external-lb",
    "dpm": "data-parallel-multi-port-external-lb",
}
"""Short options of `vllm serve` and their long names (vLLM 0.32.0's own parser)."""


def entrypoint_of(image: str) -> EntryPoint:
    """What the image with this name runs by itself.

    The official `vllm/vllm-openai` images start `vllm serve`, so those two words must not be given
    again; NVIDIA's NGC images and most self-built ones start whatever they are told.
    """
    if _VLLM_SERVE.search(image):
        return "vllm-serve"
    return "wrapper" if _WRAPPER.search(image) else "command"


def option_name(name: str) -> str:
    """The one spelling of an option: long, with dashes. vLLM takes underscores for dashes up to the
    first dot.
    """
    head, dot, rest = name.partition(".")
    return SHORT_FLAGS.get(head, head.replace("_", "-")) + dot + rest


_VARIANT = re.compile(
    r"-(it|nvfp4|fp8|fp4|awq|int4|mtp|dflash\d?|dspark|\dx|\d+gb|v0\.\d.*|1m)(-.*)?$"
)
"""Where a recipe's id stops naming the model: format, draft, machines, image."""


def model_of(recipe_id: str) -> str:
    """Return what the ids of all recipes of a model begin with; of the book's own models
    `embedded`.
    """
    return "embedded" if recipe_id.startswith("embedded/") else _VARIANT.sub("", recipe_id)
