"""What rules have to know about model families: which parsers read their output, which architecture
they need, what else.

A line names a model by its handle or a path only, so a family is recognized by that name. Only what
sources state is here; a model that is not recognized is not judged by it.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
        name: for messages.
        pattern: recognizes a handle or path, lower case.
        architecture: class name in the checkpoint's config, as vLLM's registry lists it; None where
            variants differ.
        reasoning: reasoning parsers that read its thinking, the best first; empty where it does not
            think.
        tools: tool-call parsers that read its calls, the best first.
        thinks: whether it thinks by default, so that a line without a parser shows the thinking as
            content.
        hybrid: whether it mixes attention with state-space or linear-attention layers.
        moe: whether it is a mixture of experts.
        remote_code: whether its checkpoint needs --trust-remote-code.
    """

    name: str
    pattern: str
    architecture: str | None = None
    reasoning: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    thinks: bool = False
    hybrid: bool = False
    moe: bool = False
    remote_code: bool = False


FAMILIES = (
    Family(
        "Qwen3-Next",
        r"qwen3-next",
        "Qwen3NextForCausalLM",
        ("qwen3", "deepseek_r1"),
        ("qwen3_coder", "hermes"),
        hybrid=True,
        moe=True,
    ),
    Family(
        "Qwen3.5 and later (MoE)",
        r"qwen3\.[5-9].*-a\d+b",
        "Qwen3_5MoeForConditionalGeneration",
        ("qwen3",),
        ("qwen3_coder",),
        thinks=True,
        hybrid=True,
        moe=True,
    ),
    Family(
        "Qwen3.5 and later",
        r"qwen3\.[5-9]",
        "Qwen3_5ForConditionalGeneration",
        ("qwen3",),
        ("qwen3_coder",),
        thinks=True,
        hybrid=True,
    ),
    Family(
        "DiffusionGemma",
        r"diffusiongemma",
        "DiffusionGemmaForBlockDiffusion",
        ("gemma4",),
        ("gemma4",),
    ),
    Family(
        "Gemma 4",
        r"gemma-?4",
        "Gemma4ForConditionalGeneration",
        ("gemma4",),
        ("gemma4", "pythonic"),
    ),
    Family(
        "Nemotron 3",
        r"nemotron-?3|nemotron-nano|nemotron-super|nemotron-cascade-2",
        "NemotronHForCausalLM",
        ("nemotron_v3", "super_v3", "nano_v3"),
        ("qwen3_coder",),
        thinks=True,
        hybrid=True,
        moe=True,
    ),
    Family("gpt-oss", r"gpt-oss", "GptOssForCausalLM", ("openai_gptoss",), ("openai",), moe=True),
    Family("Mistral Small 4", r"mistral-small-4", None, ("mistral",), ("mistral",), moe=True),
    Family("Laguna", r"laguna", None, ("poolside_v1",), ("poolside_v1",), moe=True),
    Family("Phi-4 multimodal", r"phi-?4-?(multimodal|mm)", "Phi4MMForCausalLM", remote_code=True),
    Family("Llama 3.3", r"llama-3\.3", "LlamaForCausalLM", (), ("llama3_json", "pythonic")),
)


@functools.lru_cache(maxsize=512)
def family_of(model: str) -> Family | None:
    """The family that a handle or path belongs to."""
    name = model.lower()
    return next((family for family in FAMILIES if re.search(family.pattern, name)), None)
