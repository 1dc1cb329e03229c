"""Rules that judge a `MemoryPlan`; the last two compare one with an engine's log."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sparkbook.checkpoint.values import Range
from sparkbook.findings import Findings
from sparkbook.plan.setup import RESERVE, SYSTEM
from sparkbook.releases import at_least
from sparkbook.rules import Family, Hit, Rule
from sparkbook.units import GIB

if TYPE_CHECKING:
    from sparkbook.plan.memory import MemoryPlan
    from sparkbook.plan.reconcile import Logged

Verdict = Literal["fits", "may fit", "fits with less context", "does not fit", "not known"]

_SOURCE = "vLLM 0.32.0, `request_memory` and `determine_available_memory`"
_MEMINFO = " --meminfo MemTotal: 127538000 kB\nMemFree: 31457280 kB\nMemAvailable: 115343360 kB"
_GEMMA = "vllm serve google/gemma-4-31B-it --gpu-memory-utilization"
_GPT = "vllm serve openai/gpt-oss-20b --gpu-memory-utilization"
_LLAMA = "vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --gpu-memory-utilization 0.8"
_FITS = f"{_GEMMA} 0.8 --max-model-len 32768"


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanRule(Rule):
    """One rule of a plan. An example is a launch line, and behind it `--cotenant` with what else
    runs, `--log` with lines of an engine's log, `--meminfo` with lines of /proc/meminfo, or
    `--release`.

    Attributes:
        verdict: what its findings mean for the plan's verdict.
    """

    verdict: Verdict | None = None


PLAN = Family(
    "PLAN",
    "will it fit",
    "What `sparkbook plan` finds. Each example was planned when this page was built.",
    type=PlanRule,
    samples="sparkbook.plan.samples",
)


def _gib(size: float | Range) -> Any:
    return size * (1 / GIB)


@PLAN.rule(
    "PLAN101",
    "weights-too-large",
    "error",
    kind="oom-load",
    source=_SOURCE,
    verdict="does not fit",
    fails=f"{_GEMMA} 0.4",
    passes=_FITS,
)
def weights_too_large(plan: MemoryPlan) -> Iterator[Hit]:
    """Weights and working memory alone are more than the engine may take, so nothing is left for a
    KV cache. The model needs a smaller format, or more machines.
    """
    least, free = _least(plan), plan.host.free_for_engine.high
    budget = free - plan.kv.low if plan.requested is None else plan.requested
    held = (
        f"weights {_gib(plan.weights):.1f} GiB, draft {_gib(plan.draft):.1f}, working"
        f" {_gib(plan.working):.1f}"
    )
    takes = f"Weights and working memory take at least {_gib(least):.1f} GiB, and"
    if least >= free:
        yield Hit(
            f"{takes} {_gib(max(free, 0)):.1f} GiB are available: the model does not fit, whatever"
            " the fraction.",
            f"{held}; {_available(plan)}",
            _INSTEAD,
        )
    elif least >= budget:
        yield Hit(
            f"{takes} the engine may take {_gib(budget):.1f}.",
            held,
            "Use a narrower weight format, a smaller model, a larger fraction, or two machines with"
            " --tensor-parallel-size 2.",
        )


_INSTEAD = (
    "Stop other programs that hold memory, or use a narrower weight format, a smaller model, or"
    " several machines with --tensor-parallel-size."
)


def _least(plan: MemoryPlan) -> float:
    """What the engine holds at least, without a KV cache."""
    return plan.weights.low + plan.draft.low + plan.working.low


def _holds(plan: MemoryPlan, fraction: float) -> bool:
    """Whether the model may fit into a fraction of all memory."""
    return fraction * plan.host.total > _least(plan)


def _available(plan: MemoryPlan) -> str:
    """How the memory that is available to the engine comes about."""
    host = plan.host
    if host.available is None:
        others = f" and {_gib(host.held):.1f} GiB of others" if host.held else ""
        return f"{_gib(host.total):.2f} GiB in total, less the system{others}"
    others = f", less {_gib(host.held):.1f} GiB of others" if host.held else ""
    return f"{_gib(host.available):.1f} GiB available before the start{others}"


@PLAN.rule(
    "PLAN114",
    "vllm-refuses-to-start",
    "error",
    source="vLLM itself, asked with `sparkbook plan --ask`",
    verdict="does not fit",
    fails=f"{_GPT} 0.5 --said tool_call_parser: invalid tool call parser",
    passes=f"{_GPT} 0.5",
)
def vllm_refuses(plan: MemoryPlan) -> Iterator[Hit]:
    """vLLM itself refuses the line, in its own words, before any memory is a matter."""
    said = plan.said
    if said is not None and said.refused is not None:
        words = said.refused.rstrip(".")
        yield Hit(f"{said.judge} refuses this line: {words}.", f"as far as: {said.depth}")


@PLAN.rule(
    "PLAN106",
    "co-tenants-too-large",
    "error",
    kind="oom-startup-check",
    source=_SOURCE,
    verdict="does not fit",
    fails=f"{_GPT} 0.5 --cotenant other=0.6",
    passes=f"{_GPT} 0.4 --cotenant other=0.3",
)
def co_tenants_too_large(plan: MemoryPlan) -> Iterator[Hit]:
    """The engines on this machine hold more than it has. An engine with a fraction of 0.42 holds
    0.42 of all memory, whether it is busy or idle.
    """
    host = plan.host
    held = host.held + plan.engine.low
    if host.cotenants and held > host.total:
        others = ", ".join(f"{t.name} {_gib(t.held(host.total)):.1f}" for t in host.cotenants)
        yield Hit(
            f"The engines hold {_gib(held):.1f} GiB together, and the machine has"
            f" {_gib(host.total):.1f}.",
            f"{others}, this one {_gib(plan.engine.low):.1f}",
            "Choose smaller fractions: with what other programs hold, their sum has to stay"
            " below 1.",
        )


@PLAN.rule(
    "PLAN115",
    "more-gpus-than-one",
    "warning",
    source="a DGX Spark has one GPU",
    fails=f"{_GPT} 0.5 --data-parallel-size 2",
    passes=f"{_GPT} 0.5 --tensor-parallel-size 2 --nnodes 2",
)
def more_gpus_than_one(plan: MemoryPlan) -> Iterator[Hit]:
    """The line asks for more GPUs than its machines have, and vLLM refuses to start: one Spark has
    one GPU. The plan shows one machine of as many as the line needs. SPARK104 of the linter reports
    the same.
    """
    if (same := plan.setup.crowded) is not None:
        yield Hit(same.message, same.evidence, same.fix)


def _asked(plan: MemoryPlan) -> float:
    """What has to be available: what the start check asks for, or what a cache of a given size
    makes the engine grow to.
    """
    grown = plan.engine.low if plan.requested is None else 0
    return max(plan.checked, grown)


def _who(plan: MemoryPlan) -> str:
    if _asked(plan) > plan.checked:
        return "The engine"
    held = ", which --kv-cache-memory-bytes does not lift," if plan.requested is None else ""
    return f"The start check of --gpu-memory-utilization {plan.setup.fraction:g}{held}"


@PLAN.rule(
    "PLAN102",
    "start-check-fails",
    "error",
    kind="oom-startup-check",
    source=_SOURCE,
    verdict="does not fit",
    fails=f"{_GPT} 0.97",
    passes=f"{_GPT} 0.5",
)
def start_check_fails(plan: MemoryPlan) -> Iterator[Hit]:
    """The fraction is one of all memory, and vLLM refuses to start if less than that is available,
    also with --kv-cache-memory-bytes. The host and everything else that runs on a Spark takes from
    the same pool.
    """
    host = plan.host
    free = host.free_for_engine
    if _asked(plan) > free.high > _least(plan):
        safe = plan.largest_fraction
        yield Hit(
            f"{_who(plan)} asks for {_gib(_asked(plan)):.1f} GiB, and {_gib(free):.1f} GiB are"
            " available.",
            _available(plan),
            f"Set --gpu-memory-utilization {safe:g} or less." if _holds(plan, safe) else _INSTEAD,
        )


@PLAN.rule(
    "PLAN103",
    "start-check-unsure",
    "warning",
    kind="oom-startup-check",
    source=_SOURCE,
    verdict="may fit",
    fails=f"{_GPT} 0.88",
    passes=f"{_GPT} 0.5",
)
def start_check_unsure(plan: MemoryPlan) -> Iterator[Hit]:
    """The fraction asks for more than some idle Sparks have available, and less than others have.
    Measure MemAvailable, or ask for less.
    """
    free = plan.host.free_for_engine
    if free.low < _asked(plan) <= free.high:
        safe = plan.largest_fraction
        lower = f", or set --gpu-memory-utilization {safe:g}, which is safe"
        yield Hit(
            f"{_who(plan)} asks for {_gib(_asked(plan)):.1f} GiB; a host has {_gib(free):.1f} GiB"
            " available.",
            "two reports of idle Sparks" if plan.host.available is None else None,
            f"Measure MemAvailable with `sparkbook check`{lower if _holds(plan, safe) else ''}.",
        )


@PLAN.rule(
    "PLAN112",
    "page-cache-in-the-way",
    "warning",
    kind="oom-startup-check",
    source="https://github.com/vllm-project/vllm/issues/48140",
    fails=f"{_GPT} 0.8 --release 0.24.0{_MEMINFO}",
    passes=f"{_GPT} 0.8 --release 0.28.0{_MEMINFO}",
)
def page_cache_in_the_way(plan: MemoryPlan) -> Iterator[Hit]:
    """Enough memory is available, but it is not free: the rest is page cache. vLLM compares with
    MemAvailable on integrated GPUs since its pull request 35356, and one report still saw MemFree
    on 0.24.0 (https://github.com/vllm-project/vllm/issues/48140).
    """
    host, asked = plan.host, _asked(plan)
    if host.free is None or at_least(plan.setup.release, "0.25.0"):
        return
    if host.free - host.held < asked <= host.free_for_engine.high:
        yield Hit(
            f"{_who(plan)} asks for {_gib(asked):.1f} GiB, and {_gib(host.free - host.held):.1f}"
            " GiB are free.",
            f"vLLM {plan.setup.release}",
            "Drop the page cache before the start: `sync; echo 3 | sudo tee"
            " /proc/sys/vm/drop_caches`.",
        )


@PLAN.rule(
    "PLAN113",
    "context-beyond-the-model",
    "error",
    source="vLLM 0.32.0, `_get_and_verify_max_len`",
    verdict="fits with less context",
    fails=f"{_GPT} 0.5 --max-model-len 300000",
    passes=f"{_GPT} 0.5 --max-model-len 131072",
)
def context_beyond_the_model(plan: MemoryPlan) -> Iterator[Hit]:
    """The context is longer than the checkpoint's config allows (`max_position_embeddings`), and
    vLLM refuses to start, however much memory there is. `--hf-overrides` stretches the rope;
    VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only accepts the risk of garbled text.
    """
    setup = plan.setup
    if setup.most is not None and setup.context > setup.most:
        yield Hit(
            f"The context of {setup.context:,} tokens is more than the model's {setup.most:,}; vLLM"
            " refuses to start.",
            None,
            f"Set --max-model-len {setup.most}, or extend the rope with --hf-overrides if the"
            " model's card describes how.",
        )


def _compare(plan: MemoryPlan) -> Literal["not one", "perhaps one", "surely one"] | None:
    """How many sequences of the whole context the KV cache holds; None where that is not known, or
    nothing is left for a cache.
    """
    if plan.needed is None or plan.kv.high <= 0:
        return None
    if plan.needed.low > plan.kv.high:
        return "not one"
    return "perhaps one" if plan.needed.high > plan.kv.low else "surely one"


def _one_sequence(plan: MemoryPlan, cache: Range) -> str:
    assert plan.needed is not None
    return (
        f"One sequence of {plan.setup.context:,} tokens takes {_gib(plan.needed):.2f} GiB of KV"
        f" cache, and the engine has {_gib(cache):.2f}."
    )


@PLAN.rule(
    "PLAN104",
    "context-too-long",
    "error",
    kind="kv-too-small",
    source=_SOURCE,
    verdict="fits with less context",
    fails=f"{_GEMMA} 0.6 --max-model-len 262144",
    passes=_FITS,
)
def context_too_long(plan: MemoryPlan) -> Iterator[Hit]:
    """Not one sequence of the requested length fits into the KV cache, and vLLM refuses to
    start.
    """
    longest = plan.longest()
    if _compare(plan) == "not one" and longest is not None:
        fraction = plan.fraction_for()
        enough = fraction and fraction <= plan.largest_fraction
        more = f", or --gpu-memory-utilization {fraction:.2f}" if enough else ""
        yield Hit(
            _one_sequence(plan, plan.kv),
            f"the longest that fits: {longest:,.0f} tokens",
            f"Set --max-model-len {int(longest.low or longest.high)}{more}.",
        )


@PLAN.rule(
    "PLAN105",
    "context-unsure",
    "warning",
    kind="kv-too-small",
    source=_SOURCE,
    verdict="may fit",
    fails=f"{_GEMMA} 0.7 --max-model-len 262144",
    passes=_FITS,
)
def context_unsure(plan: MemoryPlan) -> Iterator[Hit]:
    """Whether one sequence of the requested length fits depends on figures that are only known in
    bounds. The bounds are shown; a start decides.
    """
    longest = plan.longest()
    if _compare(plan) == "perhaps one" and longest is not None:
        safe = f"Set --max-model-len {int(longest.low)}, which is safe." if longest.low else None
        yield Hit(
            _one_sequence(plan, Range(max(plan.kv.low, 0), plan.kv.high)),
            f"the longest that fits: {longest:,.0f} tokens",
            safe,
        )


@PLAN.rule(
    "PLAN107",
    "fewer-sequences-than-asked",
    "info",
    source=_SOURCE,
    fails=f"{_LLAMA} --max-model-len 131072 --max-num-seqs 8",
    passes=f"{_LLAMA} --max-model-len 8192 --max-num-seqs 4",
)
def fewer_sequences(plan: MemoryPlan) -> Iterator[Hit]:
    """Fewer sequences of full length fit at once than --max-num-seqs allows. That is not a fault:
    more of them fit if they are shorter, and the rest waits or is preempted.
    """
    if _compare(plan) != "surely one" or plan.concurrency is None:
        return
    if plan.concurrency.high < plan.setup.sequences:
        yield Hit(
            f"Only {math.floor(plan.concurrency.high)} sequences of {plan.setup.context:,} tokens"
            f" fit at once, and --max-num-seqs is {plan.setup.sequences}."
        )


@PLAN.rule(
    "PLAN109",
    "host-left-with-little",
    "warning",
    kind="host-freeze",
    source=_SOURCE,
    fails=f"{_GPT} 0.80 --cotenant other=14GiB",
    passes=f"{_GPT} 0.50 --cotenant other=14GiB",
)
def host_left_with_little(plan: MemoryPlan) -> Iterator[Hit]:
    """When everything runs, little memory is left for the host. A Spark that runs out stops
    answering, and does not end a process.
    """
    host = plan.host
    system = SYSTEM.low if host.available is None else 0
    left = Range.of(host.total) - plan.engine - host.held - system
    if 0 <= left.low < RESERVE and _asked(plan) <= host.free_for_engine.high:
        yield Hit(
            f"About {_gib(left.low):.1f} GiB are left for the host when everything runs.",
            f"the engine holds {_gib(plan.engine):.1f} of {_gib(host.total):.1f} GiB",
            f"Leave {_gib(RESERVE):.0f} GiB or more.",
        )


@PLAN.rule(
    "PLAN108",
    "not-known",
    "info",
    source=_SOURCE,
    fails="vllm serve Qwen/Qwen3-8B-AWQ --gpu-memory-utilization 0.8 --max-model-len 32768",
    passes=f"{_GPT} 0.5 --max-model-len 32768 --max-num-seqs 4",
)
def not_known(plan: MemoryPlan) -> Iterator[Hit]:
    """A fact is not known, so the figures that depend on it are ranges. Reading the checkpoint's
    headers, or a start's log, closes them.
    """
    read = plan.setup.checkpoint.files
    fix = None if read else "Add --hub to read the checkpoint's headers."
    for fact in plan.setup.checkpoint.unknown:
        yield Hit(f"Not known: {fact}.", fix=fix)
    for fact in plan.setup.assumed:
        yield Hit(f"Not known: {fact}.")


@PLAN.rule(
    "PLAN110",
    "negative-graph-estimate",
    "error",
    kind="uma-accounting",
    source="https://github.com/vllm-project/vllm/issues/54200",
    fails=f"{_GPT} 0.7 --log Estimated CUDA graph memory: -35.69 GiB total\n"
    "Available KV cache memory: 93.33 GiB",
    passes=f"{_GPT} 0.7 --log Estimated CUDA graph memory: 0.42 GiB total\n"
    "Available KV cache memory: 66.50 GiB",
)
def negative_graph_estimate(logged: Logged) -> Iterator[Hit]:
    """The engine's estimate of CUDA graphs is negative, which adds memory to the KV cache that does
    not exist. The start seems to succeed and the host freezes later. The fraction does not help:
    the term stays.
    """
    plan, graphs = logged.plan, logged.graphs
    if graphs is None or graphs >= 0:
        return
    grows = ""
    if plan.requested is not None:
        grown = _gib(plan.requested - graphs * GIB)
        grows = f"; the engine grows to {grown:.1f} of {_gib(plan.host.total):.1f} GiB"
    honest = ""
    if logged.story.kv_gib is not None:
        honest = f"; without it the cache would have {logged.story.kv_gib + graphs:.1f} GiB"
    yield Hit(
        f"The estimate of CUDA graphs is {graphs:g} GiB, so the KV cache has {-graphs:g} GiB too"
        f" many{grows}{honest}.",
        f"Estimated CUDA graph memory: {graphs:g} GiB total",
        "Set --kv-cache-memory-bytes to a size that fits, or"
        " VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 and a lower fraction.",
    )


@PLAN.rule(
    "PLAN111",
    "log-differs-from-plan",
    "info",
    source=_SOURCE,
    fails=f"{_GPT} 0.7 --log Available KV cache memory: 41.09 GiB",
    passes=f"{_GPT} 0.7 --log Available KV cache memory: 70.00 GiB",
)
def log_differs_from_plan(logged: Logged) -> Iterator[Hit]:
    """The engine's log gives another figure than the plan. The difference is explained as far as
    the log allows, and kept as calibration.
    """
    yield from _context_differs(logged)
    yield from _memory_differs(logged)
    yield from _tokens_differ(logged)


def _context_differs(logged: Logged) -> Iterator[Hit]:
    length, context = logged.story.max_model_len, logged.plan.setup.context
    if length and length != context:
        yield Hit(
            f"The engine runs with {length:,} tokens of context, and the plan has {context:,}.",
            fix=f"MemoryPlan with --context {length}.",
        )


def _memory_differs(logged: Logged) -> Iterator[Hit]:
    weights, cache, *_ = logged.rows
    if weights.inside is False and weights.predicted is not None:
        yield Hit(
            f"The weights take {weights.logged:.2f} GiB in the log, and {weights.predicted:.2f} in"
            " the plan.",
            fix=(
                "Add --hub: the headers show layers that are in another format than the card"
                " describes, or repacked while loading."
            ),
        )
    negative = logged.graphs is not None and logged.graphs < 0
    if cache.inside is False and not negative and cache.predicted is not None:
        cause = "of the weights" if weights.inside is False else "of context and activations"
        takes = ""
        if logged.working is not None:
            takes = f"; context and activations take {_gib(logged.working):.2f} GiB"
        yield Hit(
            f"The KV cache has {cache.logged:.2f} GiB in the log, and {cache.predicted:.2f} in the"
            f" plan, because {cause}{takes}."
        )


def _tokens_differ(logged: Logged) -> Iterator[Hit]:
    expected, tokens = logged.tokens_for_memory, logged.story.kv_tokens
    if expected is None:
        return
    if tokens is not None and not expected.low - 1 <= tokens <= expected.high + 1:
        off = tokens / expected.middle - 1
        yield Hit(
            f"The KV cache has {tokens:,} tokens in the log, and the plan's pages give"
            f" {expected:,.0f} for the logged memory ({off:+.1%}).",
            fix=(
                "Compare the cache type, block size, prefix caching and draft with those of the"
                " plan."
            ),
        )
    elif logged.rows[2].inside is False:
        yield Hit("The tokens differ only because the memory does: the pages agree.")


_OF_LOG = (negative_graph_estimate, log_differs_from_plan)


def of_plan(plan: MemoryPlan) -> Findings:
    """Return what the rules find in a plan."""
    rules = [rule for rule in PLAN.rules.values() if rule not in _OF_LOG]
    return Findings(finding for rule in rules for finding in rule.findings(plan))


def of_log(logged: Logged) -> Findings:
    """Return how an engine's log differs from its plan."""
    return Findings(finding for rule in _OF_LOG for finding in rule.findings(logged))
