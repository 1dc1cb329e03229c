"""What a sentence of vLLM, or of a program next to it, means for the reader of a log: who says it,
in which releases, under which condition, which options feed it, and what switches that part off.

>>> from sparkbook.logs import described, sentences
>>> line = "Unknown quantization method: fp3. Must be one of ['awq', 'fp8']"
>>> best = sentences.lookup(line, package="vllm")[0]
>>> described.describe(best).who
'vLLM raises it in vllm.config.model, ModelConfig._verify_quantization.'
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparkbook import releases
from sparkbook.logs.sentences import Sentence

NAMES = {
    "vllm": "vLLM",
    "torch": "PyTorch",
    "transformers": "Transformers",
    "huggingface_hub": "huggingface_hub",
    "compressed_tensors": "compressed-tensors",
    "xgrammar": "XGrammar",
    "ray": "Ray",
    "flashinfer": "FlashInfer",
    "deepgemm": "DeepGEMM",
    "triton": "Triton",
    "nccl": "NCCL",
    "gloo": "Gloo",
    "docker": "Docker",
    "nvidia-container-toolkit": "the NVIDIA Container Toolkit",
    "nvidia-driver": "the NVIDIA driver",
}
"""Package: its name in a sentence, if that differs."""

VERBS = {
    "raise": "raises it",
    "assert": "asserts it",
    "error": "logs it as an error",
    "warning": "logs it as a warning",
    "info": "logs it as information",
    "text": "says it",
}

SWITCHES = (
    (r"deep_?gemm", ("VLLM_USE_DEEP_GEMM=0", "VLLM_MOE_USE_DEEP_GEMM=0")),
    (r"speculat|spec_decode|eagle|medusa|ngram|_mtp\b|dflash|dspark", ("--speculative-config",)),
    (r"fused_moe|\bmoe\b|experts", ("--moe-backend",)),
    (r"kernels\.linear|scaled_mm|machete|marlin", ("--linear-backend", "VLLM_DISABLED_KERNELS")),
    (r"attention|attn|\bmla\b", ("--attention-backend", "--kv-cache-dtype")),
    (r"structured_output|xgrammar|llguidance|outlines", ("--structured-outputs-config",)),
    (r"tool_parsers", ("--tool-call-parser", "--enable-auto-tool-choice")),
    (r"reasoning", ("--reasoning-parser",)),
    (r"quantization|compressed_tensors|modelopt", ("--quantization",)),
    (r"compilation|cudagraph|cuda_graph|inductor|dynamo|triton", ("--enforce-eager",)),
    (r"custom_all_reduce", ("--disable-custom-all-reduce",)),
    (r"\blora\b", ("--enable-lora",)),
    (r"mamba|\bgdn\b|linear_attn", ("--mamba-cache-mode", "--no-enable-prefix-caching")),
    (r"kv_transfer|kv_connector|nixl|mooncake|lmcache", ("--kv-transfer-config",)),
    (r"kv_offload|block_pool|prefix_cach", ("--no-enable-prefix-caching",)),
    (r"multimodal|encoder_cache", ("--limit-mm-per-prompt", "--language-model-only")),
    (r"model_loader|safetensors|runai|tensorizer", ("--load-format",)),
    (r"autotune|flashinfer", ("--no-enable-flashinfer-autotune", "VLLM_USE_FLASHINFER_SAMPLER=0")),
    (r"\bray\b|ray_", ("--distributed-executor-backend",)),
    (r"core\.sched|async_sched", ("--no-async-scheduling",)),
    (r"tokenizer", ("--tokenizer-mode",)),
)
"""What a module's name contains: the options and variables that switch the part off, replace it or
choose another of its kind."""


@dataclass(frozen=True, kw_only=True)
class Described:
    """A sentence, explained. A field is empty if nothing is known.

    Attributes:
        who: who says it, and where.
        releases: in which releases it exists.
        condition: which configuration decides whether it is said.
        options: options of `vllm serve` that feed it.
        switches: options and variables that switch the part off or replace it.
    """

    who: str
    releases: str
    condition: str
    options: tuple[str, ...]
    switches: tuple[str, ...]


def describe(sentence: Sentence, release: str | None = None) -> Described:
    """Return a sentence, explained.

    Args:
        sentence: what `lookup` returned.
        release: vLLM release of the log; only options that it accepts are named.
    """
    name = NAMES.get(sentence.package, sentence.package)
    place = ", ".join(filter(None, (sentence.module, sentence.function)))
    spans = releases.said(sentence.releases) if sentence.releases else ""
    fields = tuple(field.rpartition(".")[2] for field in sentence.condition_fields)
    return Described(
        who=f"{name} {VERBS[sentence.kind]}{f' in {place}' if place else ''}.",
        releases=f"{name} has this sentence {_since(spans)}." if spans else "",
        condition=f"It depends on {_listed(fields)}." if fields else "",
        options=_accepted(sentence.options, release),
        switches=switches(sentence, release),
    )


def switches(sentence: Sentence, release: str | None = None) -> tuple[str, ...]:
    """Return what switches the part that says a sentence off, or replaces it.

    Args:
        sentence: what `lookup` returned.
        release: vLLM release; only what it accepts is returned. Without one, the newest.
    """
    place = f"{sentence.package}.{sentence.module}.{sentence.function}".lower().replace("/", ".")
    found = next((names for pattern, names in SWITCHES if re.search(pattern, place)), ())
    return _accepted(found, release or releases.newest())


def _accepted(names: Sequence[str], release: str | None) -> tuple[str, ...]:
    """Return the options and variables that a release accepts; all of them if it is not known."""
    try:
        known = releases.get(release) if release else None
    except releases.ReleaseError:
        known = None
    if known is None:
        return tuple(names)
    return tuple(
        name
        for name in names
        if (
            known.accepts(name.removeprefix("--").partition(".")[0])
            if name.startswith("--")
            else name.partition("=")[0] in known.envs
        )
    )


def _since(spans: str) -> str:
    """Return spans as the end of a sentence: `since 0.24.0`, `in 0.11.0 to 0.21.0`."""
    return spans if spans.startswith("since") else f"in {spans}"


def _listed(names: Sequence[str]) -> str:
    quoted = [f"`{name}`" for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
