"""The options that matter on a Spark: when each was there, its default, what it costs, and the
rules that watch it.

The lives and defaults come out of the releases table, the rules out of the rules themselves; only
what an option costs is written here.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from sparkbook import releases
from sparkbook.lint.rules import RULES
from sparkbook.releases import changelog

COSTS = {
    "gpu-memory-utilization": (
        "the share of all 121.6 GiB that vLLM takes; about 0.83 is the most that a clean system can"
        " give"
    ),
    "kv-cache-memory-bytes": (
        "fixes the KV cache whatever the weights take; the fraction is then not looked at"
    ),
    "max-model-len": (
        "one request of this length has to fit into the KV cache, or the server does not start"
    ),
    "max-num-seqs": (
        "each further sequence shares the memory bandwidth; 1 to 4 for one user, and never the"
        " default"
    ),
    "max-num-batched-tokens": (
        "sizes the activations of a prefill step: 8,192 to 16,384; 65,536 has hung a host"
    ),
    "enable-chunked-prefill": "on by default: leaving it out does not switch it off",
    "enable-prefix-caching": (
        "on by default, for hybrid models in later releases only; what a conversation repeats is"
        " not computed again"
    ),
    "async-scheduling": (
        "hides the scheduler behind the GPU; chosen by itself, and refused with n-gram drafts"
    ),
    "quantization": "found in the checkpoint; a wrong one is refused",
    "kv-cache-dtype": (
        "fp8 halves the KV cache; some models repeat themselves, some drafts need 16 bit"
    ),
    "speculative-config": (
        "one to three MTP tokens raise the rate of one user; a draft costs memory and bandwidth of"
        " its own"
    ),
    "moe-backend": "automatic unless a tested recipe pins one; a pin holds for the draft too",
    "linear-backend": "automatic unless a tested recipe pins one",
    "attention-backend": (
        "automatic unless a tested recipe pins one; Gemma 4 takes TRITON_ATTN by itself"
    ),
    "enable-expert-parallel": "nothing to spread with one GPU",
    "enforce-eager": "no CUDA graphs: a faster start, and slower decoding for good",
    "max-cudagraph-capture-size": "graphs above sequences × (K + 1) are captured for nothing",
    "load-format": "a fast loader saves minutes, and needs room beside the weights",
    "reasoning-parser": "the model's own; without it the thinking stands in the answer",
    "tool-call-parser": "the model's own, together with --enable-auto-tool-choice",
    "enable-auto-tool-choice": "needs --tool-call-parser",
    "trust-remote-code": "runs Python from the model's repository",
    "tensor-parallel-size": "one Spark has one GPU: above 1 takes as many machines",
    "hf-overrides": (
        "stretches the rope (YaRN): more context, and slightly worse answers at any length"
    ),
    "cpu-offload-gb": "moves data into the memory that it already is in",
    "speculative-disable-by-batch-size": "nothing: no release that is known has it",
}
"""Option: what it does to memory and speed on a Spark, in one sentence."""


@dataclass(frozen=True)
class Flag:
    """One option, as the flag reference shows it.

    Attributes:
        name: long name without dashes.
        life: when it was there.
        default: its default in the release asked for, in words; None where that release does not
            have it, or has none.
        cost: what it costs on a Spark.
        rules: codes of the rules that watch it.
    """

    name: str
    life: str
    default: str | None
    cost: str
    rules: tuple[str, ...]


def flags(release: str) -> list[Flag]:
    """The options that matter on a Spark.

    Raises:
        ReleaseError: the table does not know the release.
    """
    known = releases.get(release)
    return [
        Flag(
            name,
            releases.said(releases.presence("options", name)),
            _default(known, name),
            cost,
            watching(name),
        )
        for name, cost in COSTS.items()
    ]


def _default(release: releases.Release, name: str) -> str | None:
    if name not in release.options:
        return None
    default = release.options[name].default
    if default is None or isinstance(default, dict) or default == "":
        return "chosen at start" if release.options[name].optional or default is None else "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def watching(name: str) -> tuple[str, ...]:
    """Codes of the rules that watch an option: those whose text or failing example names it."""
    spelled = re.compile(rf"--(no-)?{re.escape(name)}(?![\w-])")
    return tuple(
        code
        for code, rule in RULES.items()
        if spelled.search(rule.text) or spelled.search(rule.fails) or spelled.search(rule.passes)
    )


def history(name: str) -> list[tuple[str, str]]:
    """What changed about an option, release by release: `("0.20.0", "default 0.9, now 0.92")`."""
    lives = releases.lives("options", name)
    told = []
    for before, after in itertools.pairwise(lives):
        change = releases.Change("options", name, "changed", before.value, after.value)
        told.append((after.since, changelog.explain(change).partition(": ")[2]))
    return told
