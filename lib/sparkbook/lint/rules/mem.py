"""MEM: memory, which on a Spark is one pool for the system, the weights and the KV cache."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.errors import SparkbookError
from sparkbook.host.spark import REACHABLE, TOTAL_GIB, USABLE_GIB
from sparkbook.lint.case import Case
from sparkbook.lint.family import family
from sparkbook.rules import Hit
from sparkbook.units import GIB, parse_size

MEM = family("MEM", "memory")

POOL = f"a clean headless Spark has about 101-102 of {TOTAL_GIB:.1f} GiB available"


@MEM.rule(
    "MEM101",
    "no-fraction",
    "warning",
    kind="oom-startup-check",
    source="vLLM recipes pull request 632, https://github.com/vllm-project/recipes/pull/632",
    versioned=True,
    fails="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL --gpu-memory-utilization 0.8",
)
def no_fraction(case: Case) -> Iterator[Hit]:
    """Without `--gpu-memory-utilization` vLLM asks for 0.92 of all memory (0.9 before 0.20). A
    Spark cannot give that: the system and the page cache live in the same pool, and the start ends
    at the check of free memory. `--kv-cache-memory-bytes` does not change that check.
    """
    if case.spark and case.lacks("gpu-memory-utilization"):
        default = case.release.option("gpu-memory-utilization").default
        yield Hit(
            f"No --gpu-memory-utilization: the default of {default:g} asks for"
            f" {default * TOTAL_GIB:.0f} GiB, and {POOL}.",
            None,
            "Add --gpu-memory-utilization 0.80 or less, by what the model needs.",
            edits=case.append("--gpu-memory-utilization 0.80"),
        )


@MEM.rule(
    "MEM102",
    "fraction-out-of-reach",
    "warning",
    kind="oom-startup-check",
    source="reports of Spark owners: MemAvailable on a clean system",
    confidence="medium",
    fails="vllm serve ORG/MODEL --gpu-memory-utilization 0.9",
    passes="vllm serve ORG/MODEL --gpu-memory-utilization 0.8",
)
def fraction(case: Case) -> Iterator[Hit]:
    """The fraction is one of all memory, and is compared with what is available at the start. A
    clean headless Spark has about 101.5 of 121.6 GiB, so more than about 0.83 is refused there; a
    desktop session takes several GiB more.
    """
    asked = case.fraction_gib()
    if (
        case.spark
        and asked is not None
        and (case.number("gpu-memory-utilization") or 0) > REACHABLE
    ):
        yield Hit(
            f"{case.shown('gpu-memory-utilization')} asks for {asked:.1f} GiB, and {POOL}.",
            case.shown("gpu-memory-utilization"),
            f"Set at most {REACHABLE}, or measure MemAvailable: at most MemAvailable /"
            f" {TOTAL_GIB:.1f}.",
        )


@MEM.rule(
    "MEM103",
    "bytes-win-over-fraction",
    "info",
    source="vLLM's cache config",
    release="0.32.0",
    fails="vllm serve ORG/MODEL --gpu-memory-utilization 0.8 --kv-cache-memory-bytes 20G",
    passes="vllm serve ORG/MODEL --kv-cache-memory-bytes 20G",
)
def both(case: Case) -> Iterator[Hit]:
    """`--kv-cache-memory-bytes` fixes the size of the KV cache, and the fraction has no part in it.
    vLLM still compares the fraction with the free memory before it loads anything (`init_device` of
    its GPU worker, 0.11.0 to 0.32.0), so a fraction that is too large still ends the start.
    """
    if "kv-cache-memory-bytes" in case.options and "gpu-memory-utilization" in case.options:
        yield Hit(
            "--kv-cache-memory-bytes fixes the KV cache; --gpu-memory-utilization only counts for"
            " the check of free memory at the start.",
            case.shown("kv-cache-memory-bytes"),
            "Set --gpu-memory-utilization to what is surely available at the start.",
        )


@MEM.rule(
    "MEM104",
    "context-beyond-the-model",
    "error",
    claims="refused",
    source="vLLM's model config",
    fails="EXAMPLE:context-too-long",
    passes="qwen3.6-27b-nvfp4",
)
def context(case: Case) -> Iterator[Hit]:
    """`--max-model-len` above what the checkpoint was trained for is refused, unless the rope is
    extended with `--hf-overrides`, or VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 says that the risk of garbled
    text is taken.
    """
    asked = case.number("max-model-len")
    if asked and not case.context_lifted and (native := case.native_context) and asked > native:
        yield Hit(
            f"--max-model-len {asked:.0f} is more than the model's {native:,} tokens.",
            case.shown("max-model-len"),
            f"Set at most {native}, or extend the rope with --hf-overrides.",
        )


@MEM.rule(
    "MEM105",
    "no-limit-of-sequences",
    "warning",
    source=(
        "vLLM 0.32.0, get_batch_defaults: NVML does not report the memory of GB10, so it gets the"
        " defaults of a small GPU"
    ),
    fails="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL --max-num-seqs 4",
)
def no_sequences(case: Case) -> Iterator[Hit]:
    """Without `--max-num-seqs` vLLM plans for 256 concurrent sequences: it captures graphs and
    sizes buffers for them, and for models with state-space layers it needs a cache block for each.
    A Spark is bound by memory bandwidth and serves a few at a time.
    """
    if case.spark and case.lacks("max-num-seqs"):
        yield Hit(
            "No --max-num-seqs: vLLM plans for 256 concurrent sequences.",
            None,
            "Add --max-num-seqs 4, or as many as you serve.",
            edits=case.append("--max-num-seqs 4"),
        )


@MEM.rule(
    "MEM106",
    "graphs-miss-the-full-batch",
    "info",
    kind="silent-slow",
    source=(
        "Blackwellboy minefield, trap 130, https://github.com/"
        "Blackwellboy/model-serving-minefield/blob/main/traps/runtime/130-cudagraph-clamp-runs-top-shape-eager.md"
    ),
    fails="vllm serve ORG/MODEL --max-num-seqs 4 --spec-method mtp --spec-tokens 6",
    passes="vllm serve ORG/MODEL --max-num-seqs 4 --spec-method mtp --spec-tokens 5",
    release="0.32.0",
)
def graph_sizes(case: Case) -> Iterator[Hit]:
    """A full batch of decoding steps has sequences × (K + 1) tokens. CUDA graphs are captured for
    1, 2, 4 and multiples of 8; a batch above the largest captured size runs without a graph. With 4
    sequences K=5 fills 24 exactly, and K=6 (28) is clipped to 24.
    """
    seqs, tokens = case.number("max-num-seqs"), case.draft_tokens
    if seqs and tokens and seqs <= 64 and "cudagraph-capture-sizes" not in case.options:
        full = int(seqs) * (tokens + 1)
        if full not in (1, 2, 4) and full % 8:
            yield Hit(
                f"A full batch has {int(seqs)} × ({tokens} + 1) = {full} tokens, which no captured"
                " graph size equals.",
                f"--max-num-seqs {int(seqs)}, {tokens} draft tokens",
                "See cudagraph_capture_sizes in the log; choose sequences × (K + 1) as a multiple"
                " of 8.",
            )


@MEM.rule(
    "MEM107",
    "large-shm",
    "warning",
    kind="hard-reset",
    source=(
        "DeepSeek-V4-Flash recipe issue 31, https://github.com/tonyd2wild/"
        "DeepSeek-v4-Flash-Vision-Exp-DSpark-1M-NVFP4-KV-2x-DGX-Spark/issues/31"
    ),
    confidence="low",
    fails="docker run --gpus all --shm-size 64g vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes="docker run --gpus all --shm-size 16g vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def large_shm(case: Case) -> Iterator[Hit]:
    """/dev/shm comes out of the same pool as everything else. vLLM needs a few GiB of it; a
    reservation of 64 GB with a large model has been suspected in hard power-offs (not proven).
    """
    size = case.line.option("shm-size")
    try:
        large = size is not None and parse_size(size) > 16 * GIB
    except SparkbookError:
        return
    if case.spark and large:
        yield Hit(
            f"--shm-size {size} comes out of the memory that the model needs.",
            f"--shm-size {size}",
            "Use --ipc=host, or --shm-size 16g.",
        )


@MEM.rule(
    "MEM108",
    "memory-limit-does-not-hold",
    "warning",
    kind="host-freeze",
    source=(
        "Blackwellboy minefield, trap 125, https://github.com/"
        "Blackwellboy/model-serving-minefield/blob/main/traps/memory/125-cgroup-memorymax-does-not-account-gb10-cuda-uma.md"
    ),
    fails="docker run --gpus all --memory 100g vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL --gpu-memory-utilization 0.8",
)
def memory_limit(case: Case) -> Iterator[Hit]:
    """On GB10 what CUDA allocates is not charged to the container's control group, so `--memory` is
    no guard: a limit of 8 GiB let 12 GiB of CUDA memory through. A watchdog on MemAvailable is one.
    """
    if case.spark and (limit := case.line.option("memory")) is not None:
        yield Hit(
            f"--memory {limit} does not see CUDA memory on GB10.",
            f"--memory {limit}",
            "Limit vLLM by its fraction, and watch MemAvailable.",
        )


@MEM.rule(
    "MEM109",
    "more-than-the-model-needs",
    "info",
    kind="multi-tenant",
    source=(
        "GLM-4.7-Flash on a single DGX Spark,"
        " https://sovgrid.org/blog/glm-47-flash-on-a-single-dgx-spark/"
    ),
    confidence="medium",
    fails="EXAMPLE:large-fraction",
    passes="nemotron-cascade-2-30b-a3b-nvfp4",
)
def greedy(case: Case) -> Iterator[Hit]:
    """vLLM takes the whole fraction, and turns what the weights leave into KV cache. A model of 20
    GiB with 0.85 holds 80 GiB of KV cache, which few contexts ever fill, and which the rest of the
    machine then lacks.
    """
    asked, weights = case.fraction_gib(), case.weights_gib
    if case.spark and asked and weights and asked > 4 * weights and asked > USABLE_GIB * 0.75:
        yield Hit(
            f"{asked:.0f} GiB for {weights:.0f} GiB of weights leaves {asked - weights:.0f} GiB to"
            " the KV cache.",
            case.shown("gpu-memory-utilization"),
            "Plan the KV cache from context and sequences, and lower the fraction.",
        )


@MEM.rule(
    "MEM110",
    "loader-too-large",
    "warning",
    kind="loader-hang",
    source=(
        "spark-vllm-docker, README, https://github.com/eugr/spark-vllm-docker/blob/main/README.md"
    ),
    fails="EXAMPLE:fastsafetensors-large",
    passes="vllm serve openai/gpt-oss-20b --load-format safetensors",
)
def large_weights(case: Case) -> Iterator[Hit]:
    """fastsafetensors keeps buffers with the final tensors. Where the weights take more than 0.8
    of the memory, loading runs out of it.
    """
    weights = case.weights_gib
    if case.value("load-format") == "fastsafetensors" and weights and weights > 0.8 * TOTAL_GIB:
        yield Hit(
            f"Fastsafetensors needs room in addition to {weights:.0f} GiB of weights.",
            case.shown("load-format"),
            "Use --load-format safetensors.",
        )


@MEM.rule(
    "MEM111",
    "offload-to-the-same-memory",
    "warning",
    source="GB10 has one memory: the CPU's is the GPU's",
    release="0.32.0",
    fails="vllm serve ORG/MODEL --cpu-offload-gb 20",
    passes="vllm serve ORG/MODEL --gpu-memory-utilization 0.8",
)
def offload(case: Case) -> Iterator[Hit]:
    """Offloading to the CPU moves weights or KV cache into the memory that they already are in, and
    copies them back at each step.
    """
    for name in ("cpu-offload-gb", "kv-offloading-size"):
        if case.spark and (case.number(name) or 0) > 0:
            yield Hit(
                f"--{name} moves data into the same memory on a Spark.",
                case.shown(name),
                "Leave it out.",
                edits=case.drop(case.options[name]),
            )


@MEM.rule(
    "MEM112",
    "huge-batches",
    "warning",
    kind="host-freeze",
    source="AEON-7 vllm-ultimate-dgx-spark issue 1: 65,536 batched tokens hung the host",
    confidence="medium",
    fails="vllm serve ORG/MODEL --max-num-batched-tokens 65536",
    passes="vllm serve ORG/MODEL --max-num-batched-tokens 8192",
)
def batched_tokens(case: Case) -> Iterator[Hit]:
    """`--max-num-batched-tokens` sizes the activations of a step. 65,536 hung a Spark; 8,192 to
    16,384 is what published recipes use.
    """
    if case.spark and (case.number("max-num-batched-tokens") or 0) > 32768:
        yield Hit(
            f"{case.shown('max-num-batched-tokens')} sizes activations that a Spark may not have"
            " room for.",
            case.shown("max-num-batched-tokens"),
            "Set 8192 to 16384.",
        )


@MEM.rule(
    "MEM113",
    "small-batches",
    "error",
    claims="refused",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/config/scheduler.py",
    fails="vllm serve ORG/MODEL --max-num-batched-tokens 4 --max-num-seqs 8",
    passes="vllm serve ORG/MODEL --max-num-batched-tokens 1024 --max-num-seqs 8",
)
def small_batches(case: Case) -> Iterator[Hit]:
    """A step has to hold one token of each sequence: `--max-num-batched-tokens` below
    `--max-num-seqs` is refused. Without chunked prefill it also has to hold the longest prompt,
    `--max-model-len`.
    """
    tokens = case.number("max-num-batched-tokens")
    if tokens is None:
        return
    whole_prompts = case.off("enable-chunked-prefill")
    for name in ("max-num-seqs", *(["max-model-len"] if whole_prompts else [])):
        least = case.number(name)
        if least is not None and tokens < least:
            yield Hit(
                f"{case.shown('max-num-batched-tokens')} is less than {case.shown(name)}.",
                case.shown("max-num-batched-tokens"),
                f"Set --max-num-batched-tokens {least:.0f} or more.",
            )
