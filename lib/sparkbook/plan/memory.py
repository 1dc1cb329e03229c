"""Will it fit: vLLM's memory arithmetic on a machine with one pool, with every unknown as a range.

    requested = total * fraction, and the host must have that much available at the start
    KV cache  = requested - weights - CUDA context and libraries - activations - CUDA graphs
    (estimated beforehand since 0.21)

(vLLM 0.32.0: `request_memory` in `v1/worker/utils.py`, `determine_available_memory` in
`v1/worker/gpu_worker.py`.) Or the size of the cache is given with `--kv-cache-memory-bytes`, and
neither the fraction nor the profile is looked at. Pure: no clock, files or network. Bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from sparkbook.checkpoint.values import ZERO, Cache, Checkpoint, Range
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings, Severity
from sparkbook.plan.kv import KV_WIDTH, Pages, Paging, cut
from sparkbook.releases import at_least
from sparkbook.units import GIB

if TYPE_CHECKING:
    from sparkbook.plan.decode import Speed
    from sparkbook.plan.prefill import FirstToken

TOTAL = round(121.63 * GIB)
"""What vLLM shows as the total of a DGX Spark of "128 GB" in most public reports
(`sparkbook.host.REPORTED`).
"""

SYSTEM = Range(7.9 * GIB, 20.4 * GIB)
"""What an idle host has in use: total less available in the two reports of idle Sparks
(`sparkbook.host.REPORTED`: 7.97 of 121.69 GiB on one, 20.39 on a freshly booted one).
"""

CUDA_CONTEXT = Range(0.5 * GIB, 2.0 * GIB)
"""CUDA context and libraries. On an H100, context and activations of a small model together took
1.0 GiB.
"""

ACTIVATION_PER_1K = Range(0.02 * GIB, 0.65 * GIB)
"""Peak of activations for each 1,024 of `--max-num-batched-tokens`. The upper end: 5.30 GiB at
8,224 tokens against 1.39 at 2,048 on one GB10 with a large MoE (DeepSeek-V4-Flash); small models
are far below.
"""

GRAPHS = Range(0.05 * GIB, 1.0 * GIB)
"""CUDA graphs without a draft: 0.06 GiB (12 graphs, H100), 0.33 and 0.62 (GB10)."""

GRAPHS_DRAFTED = Range(0.3 * GIB, 6.3 * GIB)
"""CUDA graphs with a draft of its own: up to 6.24 GiB with 38 + 22 graphs (Qwen3.6-35B-A3B with
DFlash on GB10).
"""

RESERVE = 4 * GIB
"""What should stay free for the host when all is running. MemAvailable has read 22 GiB when the
driver was out of memory (https://github.com/vllm-project/vllm/issues/54200), so more is better; at
less the host stops answering.
"""

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of sequences for which the longest context is worked out."""


SOURCE = (
    "vLLM 0.32.0:"
    " [`request_memory`](https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/worker/utils.py)"
    " and "
    "[`determine_available_memory`](https://github.com/vllm-project/vllm/blob/v0.32.0/vllm/v1/worker/gpu_worker.py)"
)
"""Of the arithmetic, where a code names no other source."""


@dataclass(frozen=True)
class Code:
    """One kind of finding of a plan: its name, gravity, what it says and why.

    `example` gives it and `passing` does not: a launch line, and behind it `--cotenant` with what
        else runs, `--log` with lines of an
    engine's log, `--meminfo` with lines of /proc/meminfo, or `--release`
    (`sparkbook.plan.pages.planned` reads them).
    """

    name: str
    severity: Severity
    text: str
    example: str
    passing: str
    kind: str | None = None
    source: str = SOURCE


_MEMINFO = " --meminfo MemTotal: 127538000 kB\nMemFree: 31457280 kB\nMemAvailable: 115343360 kB"

CODES: dict[str, Code] = {
    "PLAN101": Code(
        "weights-too-large",
        "error",
        "Weights and working memory alone are more than the engine may take, so nothing is left for"
        " a KV cache: a smaller format or model, or more machines.",
        "vllm serve google/gemma-4-31B-it --gpu-memory-utilization 0.4",
        "vllm serve google/gemma-4-31B-it --gpu-memory-utilization 0.8 --max-model-len 32768",
        "oom-load",
    ),
    "PLAN102": Code(
        "start-check-fails",
        "error",
        "The fraction is one of all memory, and vLLM refuses to start where less than that is"
        " available. The host and everything else that runs on a Spark takes from the same pool.",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.97",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.5",
        "oom-startup-check",
    ),
    "PLAN103": Code(
        "start-check-unsure",
        "warning",
        "The fraction asks for more than some idle Sparks have available, and less than others"
        " have. Measure MemAvailable or ask for less.",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.88",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.5",
        "oom-startup-check",
    ),
    "PLAN104": Code(
        "context-too-long",
        "error",
        "Not one sequence of the asked length fits into the KV cache, and vLLM refuses to start.",
        "vllm serve google/gemma-4-31B-it --gpu-memory-utilization 0.6 --max-model-len 262144",
        "vllm serve google/gemma-4-31B-it --gpu-memory-utilization 0.8 --max-model-len 32768",
        "kv-too-small",
    ),
    "PLAN105": Code(
        "context-unsure",
        "warning",
        "Whether one sequence of the asked length fits depends on what is known in bounds only. The"
        " bounds are shown; a start tells.",
        "vllm serve google/gemma-4-31B-it --gpu-memory-utilization 0.7 --max-model-len 262144",
        "vllm serve google/gemma-4-31B-it --gpu-memory-utilization 0.8 --max-model-len 32768",
        "kv-too-small",
    ),
    "PLAN106": Code(
        "co-tenants-too-large",
        "error",
        "What the engines on this machine hold adds up to more than it has. An engine with a"
        " fraction of 0.42 holds 0.42 of all memory, whether it is busy or idle.",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.5 --cotenant other=0.6",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.4 --cotenant other=0.3",
        "oom-startup-check",
    ),
    "PLAN107": Code(
        "fewer-sequences-than-asked",
        "info",
        "Fewer sequences of full length fit at once than --max-num-seqs allows. That is no fault:"
        " shorter ones fit in greater number, and what does not fit waits or is preempted.",
        "vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --gpu-memory-utilization 0.8"
        " --max-model-len 131072 --max-num-seqs 8",
        "vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --gpu-memory-utilization 0.8"
        " --max-model-len 8192 --max-num-seqs 4",
    ),
    "PLAN108": Code(
        "not-known",
        "info",
        "A fact is not known, so the figures that rest on it are ranges. Reading the checkpoint's"
        " headers, or a start's log, closes them.",
        "vllm serve nvidia/Gemma-4-31B-IT-NVFP4 --gpu-memory-utilization 0.8 --max-model-len 32768",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.5 --max-model-len 32768"
        " --max-num-seqs 4",
    ),
    "PLAN109": Code(
        "host-left-with-little",
        "warning",
        "When all is running, little stays for the host. A Spark that runs out stops answering"
        " rather than ending a process.",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.80 --cotenant other=14GiB",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.50 --cotenant other=14GiB",
        "host-freeze",
    ),
    "PLAN110": Code(
        "negative-graph-estimate",
        "error",
        "The engine's estimate of CUDA graphs is negative, which adds memory to the KV cache that"
        " is not there. The start seems to succeed and the host freezes later. The fraction does"
        " not help: the term stays.",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.7 --log Estimated CUDA graph"
        " memory: -35.69 GiB total\nAvailable KV cache memory: 93.33 GiB",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.7 --log Estimated CUDA graph"
        " memory: 0.42 GiB total\nAvailable KV cache memory: 66.50 GiB",
        "uma-accounting",
        "https://github.com/vllm-project/vllm/issues/54200",
    ),
    "PLAN111": Code(
        "log-differs-from-plan",
        "info",
        "The engine's log gives another figure than the plan. It is explained as far as the log"
        " allows, and kept as calibration.",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.7 --log Available KV cache"
        " memory: 41.09 GiB",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.7 --log Available KV cache"
        " memory: 70.00 GiB",
    ),
    "PLAN112": Code(
        "page-cache-in-the-way",
        "warning",
        "Enough is available, but not free: the rest is page cache. vLLM compares with MemAvailable"
        " on integrated GPUs since its pull request 35356, and one report still saw MemFree on"
        " 0.24.0 (https://github.com/vllm-project/vllm/issues/48140).",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.8 --release 0.24.0" + _MEMINFO,
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.8 --release 0.28.0" + _MEMINFO,
        "oom-startup-check",
        "https://github.com/vllm-project/vllm/issues/48140",
    ),
    "PLAN113": Code(
        "context-beyond-the-model",
        "error",
        "The context is longer than the checkpoint's config allows (`max_position_embeddings`), and"
        " vLLM refuses to start, however much memory there is. `--hf-overrides` stretches the rope;"
        " VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 only takes the risk of garbled text.",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.5 --max-model-len 300000",
        "vllm serve openai/gpt-oss-20b --gpu-memory-utilization 0.5 --max-model-len 131072",
        None,
        "vLLM 0.32.0, _get_and_verify_max_len",
    ),
}
"""Findings of a plan, by code."""


def address(code: str) -> str:
    """Where a finding's section stands in the site."""
    return f"rules/plan.html#{code.lower()}"


def finding(
    code: str, message: str, evidence: str | None = None, fix: str | None = None, **more: Any
) -> Finding:
    """A finding of the family PLAN."""
    entry = CODES[code]
    return Finding(
        rule=code,
        severity=more.pop("severity", entry.severity),
        kind=entry.kind,
        message=message,
        evidence=evidence,
        fix=fix,
        why=address(code),
        **more,
    )


@dataclass(frozen=True)
class CoTenant:
    """Something else that holds memory: an engine with a fraction, or so many bytes.

    Attributes:
        name: in words.
        fraction: `--gpu-memory-utilization` of another engine; it holds that share of all memory.
        size: bytes, where there is no fraction.
    """

    name: str
    fraction: float | None = None
    size: int = 0

    def held(self, total: int) -> int:
        """Bytes of a machine with so many in total."""
        return math.ceil(self.fraction * total) if self.fraction is not None else self.size


@dataclass(frozen=True)
class Host:
    """The machine, in bytes.

    Attributes:
        total: what vLLM shows as total.
        available: MemAvailable before anything of this plan runs.
        cotenants: what else runs beside; taken off what is available.
        free: MemFree, without what the page cache would give back; None where it is not known.
    """

    total: int = TOTAL
    available: Range | None = None
    cotenants: tuple[CoTenant, ...] = ()
    free: int | None = None

    @property
    def held(self) -> int:
        """Bytes that the co-tenants hold."""
        return sum(tenant.held(self.total) for tenant in self.cotenants)

    @property
    def free_for_engine(self) -> Range:
        """What an engine finds available when it starts."""
        return (self.available or Range.of(self.total) - SYSTEM) - self.held


def together(engines: Sequence[CoTenant], total: int = TOTAL) -> tuple[int, int]:
    """What engines and programs side by side hold, and what is left of the machine; negative: they
    do not fit. Bytes.
    """
    held = sum(tenant.held(total) for tenant in engines)
    return held, total - held


@dataclass(frozen=True)
class Setup:
    """What is to be started.

    Attributes:
        checkpoint: the model.
        context: `--max-model-len`.
        sequences: `--max-num-seqs`.
        fraction: `--gpu-memory-utilization`.
        kv_bytes: `--kv-cache-memory-bytes`; the fraction then plays no part.
        kv_dtype: `--kv-cache-dtype`.
        release: vLLM release.
        batched: `--max-num-batched-tokens`.
        method, drafted: of speculative decoding; 0 tokens: none.
        draft_bytes: weights of a separate draft.
        draft_caches: what the draft's layers keep, in each way that is possible; one where it is
            known.
        eager: `--enforce-eager`: no CUDA graphs.
        prefix_caching: whether states are kept for it.
        load_format: `fp8` where the weights are quantized while loading.
        shards: machines that the weights are spread over by tensor parallelism.
        block: tokens of a block to begin with; None: 16, as on CUDA.
        assumed: what the line does not say, in words.
        most: context beyond which vLLM refuses to start; None where that is not known, or the line
            lifts it.
    """

    checkpoint: Checkpoint
    context: int
    sequences: int = 4
    fraction: float = 0.92
    kv_bytes: int | None = None
    kv_dtype: str = "auto"
    release: str = "0.32.0"
    batched: int = 8192
    method: str | None = None
    drafted: int = 0
    draft_bytes: Range = ZERO
    draft_caches: tuple[tuple[Cache, ...], ...] = ((),)
    eager: bool = False
    prefix_caching: bool = True
    load_format: str | None = None
    shards: int = 1
    block: int | None = None
    assumed: tuple[str, ...] = ()
    most: int | None = None

    @property
    def own_head(self) -> bool:
        """Whether the checkpoint's own prediction layers draft."""
        return bool(self.drafted) and self.method == "mtp" and self.draft_bytes == ZERO

    @property
    def weights(self) -> Range:
        """Bytes of the target's weights as loaded: without prediction layers that are not used,
        quantized if that happens while loading.
        """
        c = self.checkpoint
        size = c.bytes
        if not self.own_head and c.weights:
            spare = c.of("draft")
            size = Range(max(size.low - spare.high, 0), size.high - spare.low)
        if self.load_format == "fp8" and c.weights:
            kept = [w for w in c.weights if w.kind != "draft" or self.own_head]
            size = sum(
                (
                    w.bytes * (0.5 if w.format == "bf16" and w.kind in _QUANTIZED else 1)
                    for w in kept
                ),
                ZERO,
            )
        return size * (1 / self.shards)

    @property
    def kv_width(self) -> float:
        """Return the bytes of one element of the KV cache."""
        if self.kv_dtype == "auto":
            return self.checkpoint.dtype_bytes
        return KV_WIDTH.get(self.kv_dtype, 2)

    @property
    def caches(self) -> tuple[Cache, ...]:
        """Return the layers that keep a cache, those of a prediction head only while it drafts.

        Empty if the model's shape is not known. A separate draft's layers are in `draft_caches`.
        """
        geometry = self.checkpoint.geometry
        layers = geometry.caches if geometry else ()
        return tuple(cache for cache in layers if not cache.draft or self.own_head)

    @property
    def pages(self) -> tuple[Pages, ...]:
        """The KV cache cut into pages, in each way that is possible; empty where the model's shape
        is not known.
        """
        geometry = self.checkpoint.geometry
        if geometry is None:
            return ()
        mamba_all = any(c.kind == "mamba2" for c in geometry.caches) and not at_least(
            self.release, "0.20.0"
        )
        paging = Paging(
            context=self.context,
            width=self.kv_width,
            dtype_bytes=self.checkpoint.dtype_bytes,
            release=self.release,
            batched=self.batched,
            batches=(
                2 if at_least(self.release, "0.25.0") else 1
            ),  # 0.32 reserves for two; when that came is not known
            block=self.block or 16,
            drafted=self.drafted,
            states="none" if not self.prefix_caching else "all" if mamba_all else "align",
        )
        caches = [_shard(c, self.shards) for c in self.caches]
        return tuple(cut([*caches, *draft], paging) for draft in self.draft_caches)


_QUANTIZED = ("attention", "linear", "mlp", "experts", "shared expert")
"""Classes that `--quantization fp8` quantizes while loading: linear layers and experts, not
embedding, head, router and norms.
"""


def _shard(cache: Cache, shards: int) -> Cache:
    """What one of so many machines keeps."""
    if shards == 1 or cache.kind == "mla":
        return cache
    from dataclasses import replace

    return replace(
        cache,
        heads=max(-(-cache.heads // shards), 1 if cache.heads else 0),
        conv=(cache.conv[0] // shards, cache.conv[1]),
        state=cache.state // shards,
    )


@dataclass(frozen=True)
class Calibration:
    """What this machine's engines have shown, to be used instead of the general figures.

    Attributes:
        weights: loaded over predicted weights.
        working: bytes of context and activations, measured.
        graphs: bytes of CUDA graphs, measured.
        samples: logs that it comes from.
    """

    weights: float = 1.0
    working: float | None = None
    graphs: float | None = None
    samples: int = 0


Verdict = Literal["fits", "may fit", "fits with less context", "does not fit", "not known"]


@dataclass(frozen=True)
class Plan:
    """Whether it fits, with the working. Sizes are bytes; None is unknown."""

    setup: Setup
    host: Host = field(default_factory=Host)
    calibration: Calibration = field(default_factory=Calibration)

    # ---- the budget

    @cached_property
    def weights(self) -> Range:
        """The target's weights."""
        return self.setup.weights * self.calibration.weights

    @cached_property
    def draft(self) -> Range:
        """Weights of a separate draft."""
        return self.setup.draft_bytes

    @cached_property
    def working(self) -> Range:
        """CUDA context, libraries and activations."""
        if self.calibration.working is not None:
            return Range(self.calibration.working * 0.9, self.calibration.working * 1.1)
        return CUDA_CONTEXT + ACTIVATION_PER_1K * (self.setup.batched / 1024)

    @cached_property
    def graphs(self) -> Range:
        """CUDA graphs."""
        if self.setup.eager:
            return ZERO
        if self.calibration.graphs is not None:
            return Range(self.calibration.graphs * 0.9, self.calibration.graphs * 1.1)
        return GRAPHS_DRAFTED if self.setup.drafted and self.setup.method != "ngram" else GRAPHS

    @property
    def graphs_counted(self) -> bool:
        """Whether the release takes an estimate of the graphs off the KV cache (by default since
        0.21).
        """
        return at_least(self.setup.release, "0.21.0")

    @property
    def requested(self) -> int | None:
        """What the fraction asks for, as `request_memory` rounds; None where the cache is given in
        bytes.
        """
        return (
            None
            if self.setup.kv_bytes is not None
            else math.ceil(self.host.total * self.setup.fraction)
        )

    @cached_property
    def kv(self) -> Range:
        """KV cache; bounds below zero mean that nothing is left."""
        if self.setup.kv_bytes is not None:
            return Range.of(self.setup.kv_bytes)
        assert self.requested is not None
        return (
            Range.of(self.requested)
            - self.weights
            - self.draft
            - self.working
            - (self.graphs if self.graphs_counted else 0)
        )

    @cached_property
    def engine(self) -> Range:
        """All that the engine will hold when it runs."""
        if self.requested is not None:
            return Range.of(self.requested) + (ZERO if self.graphs_counted else self.graphs)
        return self.weights + self.draft + self.working + self.graphs + self.kv

    # ---- the cache

    @cached_property
    def pages(self) -> tuple[Pages, ...]:
        """The cache in pages; empty where the model's shape is not known."""
        return self.setup.pages

    def _over(self, memory: Range, figure: Any) -> Range | None:
        if not self.pages:
            return None
        ends = (max(memory.low, 0), max(memory.high, 0))
        return Range.hull(figure(pages, end) for pages in self.pages for end in ends)

    @cached_property
    def tokens(self) -> Range | None:
        """vLLM's "KV cache size" in tokens."""
        return self._over(self.kv, lambda pages, memory: pages.tokens(memory))

    @cached_property
    def concurrency(self) -> Range | None:
        """vLLM's "maximum concurrency": sequences of full length."""
        return self._over(self.kv, lambda pages, memory: pages.concurrency(memory))

    @cached_property
    def needed(self) -> Range | None:
        """KV cache that one sequence of full length takes: less, and vLLM refuses to start."""
        return Range.hull(pages.sequence_bytes() for pages in self.pages) if self.pages else None

    @property
    def limit(self) -> int:
        """Tokens beyond which no context is looked for: what the model is made for, or what is
        asked for if that is more and allowed.
        """
        if self.setup.most is not None:
            return self.setup.most
        geometry = self.setup.checkpoint.geometry
        return max(self.setup.context, (geometry.context if geometry else None) or 0)

    def longest(self, sequences: int = 1) -> Range | None:
        """Tokens of the longest sequence of which so many fit at once."""
        return self._over(
            self.kv, lambda pages, memory: pages.longest(memory, sequences, self.limit)
        )

    def sequences(self, context: int) -> Range | None:
        """Sequences of a length that fit at once."""
        return self._over(
            self.kv, lambda pages, memory: pages.pool(memory) // pages.sequence_blocks(context)
        )

    def request(self, context: int) -> Range | None:
        """KV cache that one sequence of a length takes."""
        return (
            Range.hull(pages.sequence_bytes(context) for pages in self.pages)
            if self.pages
            else None
        )

    # ---- the speed

    @cached_property
    def decode(self) -> tuple[Speed, ...]:
        """Estimated decode speed for 1, 4, 8 and 16 requests with a quarter of the context behind
        each, at most 8,192 tokens.

        Empty where it is not known.
        """
        from sparkbook.plan.evidence import of_setup

        known = of_setup(self.setup)
        return tuple(known.speeds(min(self.setup.context // 4, 8192))) if known else ()

    @cached_property
    def first_token(self) -> tuple[FirstToken, FirstToken] | None:
        """Estimated time to the first token of a prompt of 100,000 tokens, or of the context if
        that is less.

        Without a prefix cache, and with all but the last 1,000 tokens in it; None where it is not
        known.
        """
        from sparkbook.plan.evidence import of_setup
        from sparkbook.plan.prefill import first_token

        known, prompt = of_setup(self.setup), min(self.setup.context, 100_000)
        if known is None:
            return None
        cold = first_token(known.reads[1], prompt, chunk=self.setup.batched)
        return cold, first_token(
            known.reads[1], prompt, max(prompt - 1000, 0), chunk=self.setup.batched
        )

    # ---- what to ask for

    def fraction_for(self, sequences: int = 1) -> float | None:
        """The smallest fraction, in hundredths, that surely holds so many sequences of full length;
        None where it is not known, or above 1.

        It counts what is only known in bounds at its upper bound.
        """
        if self.needed is None or not self.weights.known or not self.draft.known:
            return None
        counted = self.graphs.high if self.graphs_counted else 0.0
        need = (
            self.weights.high
            + self.draft.high
            + self.working.high
            + counted
            + sequences * self.needed.high
        )
        fraction = math.ceil(need / self.host.total * 100 - 1e-9) / 100
        return fraction if fraction <= 1 else None

    @property
    def largest_fraction(self) -> float:
        """The largest fraction, in hundredths, that surely passes the start check and leaves the
        host a reserve; 0 where none does.
        """
        room = min(
            self.host.free_for_engine.low, self.host.total - self.host.held - RESERVE - SYSTEM.low
        )
        return max(math.floor(room / self.host.total * 100 + 1e-9) / 100, 0.0)

    def kv_bytes_for(self, sequences: int) -> int | None:
        """`--kv-cache-memory-bytes` for so many sequences of full length, rounded up to 64 MiB;
        None where it is not known.
        """
        if self.needed is None:
            return None
        step = 64 * 2**20
        return math.ceil(sequences * self.needed.high / step) * step

    # ---- the answer

    @cached_property
    def verdict(self) -> Verdict:
        """In a word."""
        codes = {f.rule for f in self.findings if f.severity == "error"}
        if codes & {"PLAN101", "PLAN102", "PLAN106"}:
            return "does not fit"
        if codes & {"PLAN104", "PLAN113"}:
            longest = self.longest()
            return (
                "fits with less context"
                if longest is not None and longest.high > 0
                else "does not fit"
            )
        if self.needed is None:
            return "not known"
        return "may fit" if any(f.rule in ("PLAN103", "PLAN105") for f in self.findings) else "fits"

    @property
    def fits(self) -> bool:
        """Whether nothing says that it does not."""
        return self.findings.worst != "error"

    @cached_property
    def findings(self) -> Findings:
        """What is to be said of it, gravest first."""
        return Findings(self._judge())

    def _judge(self) -> Iterator[Finding]:
        setup, host = self.setup, self.host
        free, gib = host.free_for_engine, GIB
        least = self.weights.low + self.draft.low + self.working.low
        budget = self.requested if self.requested is not None else free.high - self.kv.low
        if least >= budget:
            yield finding(
                "PLAN101",
                f"weights and working memory take at least {least / gib:.1f} GiB, and the engine"
                f" may take {budget / gib:.1f}",
                f"weights {self.weights * (1 / gib):.1f} GiB, draft {self.draft * (1 / gib):.1f},"
                f" working {self.working * (1 / gib):.1f}",
                "a narrower weight format, a smaller model, a larger fraction, or two machines with"
                " --tensor-parallel-size 2",
            )
        if host.cotenants and host.held + self.engine.low > host.total:
            yield finding(
                "PLAN106",
                f"the engines hold {(host.held + self.engine.low) / gib:.1f} GiB together, and"
                f" there are {host.total / gib:.1f}",
                ", ".join(f"{t.name} {t.held(host.total) / gib:.1f}" for t in host.cotenants)
                + f", this one {self.engine.low / gib:.1f}",
                "smaller fractions: together with what other programs hold they have to stay"
                " below 1",
            )
        asked = self.requested if self.requested is not None else self.engine.low
        what = (
            f"--gpu-memory-utilization {setup.fraction:g}"
            if self.requested is not None
            else "the engine"
        )
        if asked > free.high:
            yield finding(
                "PLAN102",
                f"{what} asks for {asked / gib:.1f} GiB, and {free * (1 / gib):.1f} GiB are"
                " available",
                f"{host.total / gib:.2f} GiB in total, less the system and {host.held / gib:.1f}"
                " GiB of others",
                f"at most --gpu-memory-utilization {self.largest_fraction:g}",
            )
        elif asked > free.low:
            yield finding(
                "PLAN103",
                f"{what} asks for {asked / gib:.1f} GiB; a host has {free * (1 / gib):.1f} GiB"
                " available",
                "two reports of idle Sparks" if host.available is None else None,
                "measure MemAvailable with `sparkbook check`; --gpu-memory-utilization"
                f" {self.largest_fraction:g} is safe",
            )
        if (
            host.free is not None
            and host.free - host.held < asked <= free.high
            and not at_least(setup.release, "0.25.0")
        ):
            yield finding(
                "PLAN112",
                f"{what} asks for {asked / gib:.1f} GiB, and {(host.free - host.held) / gib:.1f}"
                " GiB are free",
                f"vLLM {setup.release}",
                "drop the page cache before the start: sync; echo 3 | sudo tee"
                " /proc/sys/vm/drop_caches",
            )
        if setup.most is not None and setup.context > setup.most:
            yield finding(
                "PLAN113",
                f"{setup.context:,} tokens are more than the model's {setup.most:,}; vLLM refuses"
                " to start",
                None,
                f"--max-model-len {setup.most}, or extend the rope with --hf-overrides where the"
                " model's card says how",
            )
        if self.needed is not None:
            yield from self._judge_context()
        left = (
            Range.of(host.total)
            - self.engine
            - host.held
            - (SYSTEM.low if host.available is None else 0)
        )
        if 0 <= left.low < RESERVE and asked <= free.high:
            yield finding(
                "PLAN109",
                f"about {left.low / gib:.1f} GiB stay for the host when all is running",
                f"the engine holds {self.engine * (1 / gib):.1f} of {host.total / gib:.1f} GiB",
                f"leave {RESERVE / gib:.0f} GiB or more",
            )
        for fact in (*setup.checkpoint.unknown, *setup.assumed):
            yield finding(
                "PLAN108",
                f"not known: {fact}",
                fix=(
                    "`--hub` reads the checkpoint's headers"
                    if fact in setup.checkpoint.unknown
                    else None
                ),
            )

    def _judge_context(self) -> Iterator[Finding]:
        assert self.needed is not None
        gib, context = GIB, self.setup.context
        longest = self.longest()
        assert longest is not None
        if self.kv.high <= 0:
            return
        if self.needed.low > self.kv.high:
            fraction = self.fraction_for()
            more = (
                f", or --gpu-memory-utilization {fraction:.2f}"
                if fraction and fraction <= self.largest_fraction
                else ""
            )
            yield finding(
                "PLAN104",
                f"one sequence of {context:,} tokens takes {self.needed * (1 / gib):.2f} GiB of KV"
                f" cache, and there are {self.kv * (1 / gib):.2f}",
                f"the longest that fits: {longest:,.0f} tokens",
                f"--max-model-len {int(longest.low or longest.high)}{more}",
            )
        elif self.needed.high > self.kv.low:
            yield finding(
                "PLAN105",
                f"one sequence of {context:,} tokens takes {self.needed * (1 / gib):.2f} GiB of KV"
                f" cache, and there are {Range(max(self.kv.low, 0), self.kv.high) * (1 / gib):.2f}",
                f"the longest that fits: {longest:,.0f} tokens",
                f"--max-model-len {int(longest.low)} is safe" if longest.low else None,
            )
        elif self.concurrency is not None and self.concurrency.high < self.setup.sequences:
            yield finding(
                "PLAN107",
                f"{math.floor(self.concurrency.high)} sequences of {context:,} tokens fit at once,"
                f" and --max-num-seqs is {self.setup.sequences}",
            )

    @property
    def parts(self) -> list[tuple[str, Range]]:
        """The memory bar in bytes: what is held, by name, from the first to what is left."""
        rows = [
            ("weights", self.weights),
            ("draft", self.draft),
            ("working memory", self.working),
            ("CUDA graphs", self.graphs),
        ]
        rows += [("KV cache", Range(max(self.kv.low, 0), max(self.kv.high, 0)))]
        rows += [
            (tenant.name, Range.of(tenant.held(self.host.total))) for tenant in self.host.cotenants
        ]
        return [(name, size) for name, size in rows if size.high > 0]

    def to_dict(self) -> dict[str, Any]:
        """The shape of `--json`: findings, and a summary with the figures; sizes in GiB as
        `[low, high]`, null where not known.
        """
        setup = self.setup

        def pair(
            value: Range | None, scale: float = 1.0, digits: int = 3
        ) -> list[float | None] | None:
            if value is None:
                return None
            return [
                round(value.low * scale, digits),
                round(value.high * scale, digits) if value.known else None,
            ]

        gib = 1 / GIB
        return self.findings.to_dict(
            verdict=self.verdict,
            model=setup.checkpoint.name,
            release=setup.release,
            context=setup.context,
            sequences=setup.sequences,
            fraction=setup.fraction if self.requested is not None else None,
            kv_dtype=setup.kv_dtype,
            total_gib=round(self.host.total * gib, 2),
            available_gib=pair(self.host.free_for_engine, gib),
            requested_gib=round(self.requested * gib, 3) if self.requested is not None else None,
            parts_gib={name: pair(size, gib) for name, size in self.parts},
            kv_gib=pair(self.kv, gib),
            kv_tokens=pair(self.tokens, digits=0),
            concurrency=pair(self.concurrency, digits=2),
            needed_gib=pair(self.needed, gib),
            longest={str(count): pair(self.longest(count), digits=0) for count in COUNTS},
            smallest_fraction=self.fraction_for(),
            largest_fraction=self.largest_fraction,
            kv_cache_memory_bytes=self.kv_bytes_for(min(setup.sequences, 16)),
            decode=[
                {
                    "requests": s.concurrency,
                    "context": s.context,
                    "tok_s": _rounded(s.low, s.tok_s, s.high),
                }
                for s in self.decode
            ],
            first_token_s=[
                {
                    "prompt": f.prompt,
                    "cached": f.cached,
                    "seconds": _rounded(f.low_s, f.seconds, f.high_s),
                }
                for f in self.first_token or ()
            ],
            four_bit_share=pair(setup.checkpoint.four_bit_share),
            unknown=[*setup.checkpoint.unknown, *setup.assumed],
        )

    def working_out(self) -> list[str]:
        """The working, line by line."""
        gib, lines = 1 / GIB, []
        for part in self.setup.checkpoint.weights:
            lines.append(
                f"{part.kind}: {part.params:,.0f} parameters in {part.format},"
                f" {part.bytes * gib:.2f} GiB"
            )
        if self.setup.checkpoint.weights and self.setup.checkpoint.quantization.format != "none":
            lines.append(
                f"in 4 bits: {self.setup.checkpoint.four_bit_share * 100:.0f} % of the parameters"
            )
        if self.requested is not None:
            lines.append(
                f"requested = total x fraction = {self.host.total * gib:.2f} x"
                f" {self.setup.fraction:g} = {self.requested * gib:.2f} GiB"
            )
            graphs = (
                f" - graphs {self.graphs * gib:.2f}"
                if self.graphs_counted
                else " (this release does not take graphs off)"
            )
            lines.append(
                f"KV cache = {self.requested * gib:.2f} - weights {self.weights * gib:.2f} - draft"
                f" {self.draft * gib:.2f} - working memory {self.working * gib:.2f}{graphs} ="
                f" {self.kv * gib:.2f} GiB"
            )
        else:
            lines.append(f"KV cache = {self.kv * gib:.2f} GiB as given; the fraction plays no part")
        lines.append(
            f"available to the engine = {self.host.free_for_engine * gib:.1f} GiB: total, less the"
            " system"
            + (f", less {self.host.held * gib:.1f} GiB of others" if self.host.cotenants else "")
        )
        for i, pages in enumerate(self.pages):
            if len(self.pages) > 1:
                lines.append(f"possibility {i + 1} of {len(self.pages)} for the draft:")
            for group in pages.groups:
                cache, context = group.cache, self.setup.context
                size = (
                    "state of"
                    f" {cache.sequence_bytes(pages.paging.dtype_bytes, pages.paging.drafted):,}"
                    " bytes"
                    if cache.recurrent
                    else (f"{cache.token_bytes(pages.paging.width):,.0f} bytes a token and layer")
                )
                lines.append(
                    f"{group.layers} {cache.kind} layers, {size}: {group.groups}"
                    f" group{'s' * (group.groups > 1)}, blocks of {group.block} tokens,"
                    f" {group.blocks(context, pages.paging):,} blocks for {context:,} tokens"
                )
            lines.append(
                f"one block of the pool = {pages.block_bytes:,} bytes; one sequence ="
                f" {pages.sequence_blocks():,} blocks = {pages.sequence_bytes() * gib:.2f} GiB;"
                f" pool = {pages.pool(self.kv.low):,} to {pages.pool(self.kv.high):,} blocks"
            )
        if self.tokens is not None and self.concurrency is not None:
            lines.append(
                f"KV cache size {self.tokens:,.0f} tokens; maximum concurrency"
                f" {self.concurrency:.2f}x"
            )
        return lines


def _rounded(*values: float) -> list[float]:
    return [round(value, 2) for value in values]


def plan(setup: Setup, host: Host | None = None, calibration: Calibration | None = None) -> Plan:
    """Works out whether it fits.

    Raises:
        SparkbookError: a fraction that is none, a context below 1, or a cache type that is not
            known.
    """
    if not 0 < setup.fraction <= 1:
        raise SparkbookError(
            f"gpu-memory-utilization is {setup.fraction:g}: it is a fraction of all memory, above 0"
            " and at most 1"
        )
    if setup.context < 1 or setup.sequences < 1:
        raise SparkbookError(
            f"{setup.sequences} sequences of {setup.context} tokens: at least one of at least one"
            " token"
        )
    if setup.kv_dtype not in KV_WIDTH and not setup.kv_dtype.startswith(
        ("turboquant", "int", "ultraquant")
    ):
        raise SparkbookError(
            f"'{setup.kv_dtype}' is no type of KV cache that is known; known are"
            f" {', '.join(sorted(KV_WIDTH))}"
        )
    return Plan(setup, host or Host(), calibration or Calibration())
