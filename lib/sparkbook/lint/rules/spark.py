"""SPARK: what is specific to GB10, with its range of releases."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from sparkbook import releases
from sparkbook.lint.case import Case
from sparkbook.lint.family import family
from sparkbook.rules import Hit

SPARK = family("SPARK", "what is specific to GB10")


@SPARK.rule(
    "SPARK101",
    "attention-of-gemma-4",
    "warning",
    kind="attention-backend",
    source="vLLM issue 40677, https://github.com/vllm-project/vllm/issues/40677",
    release="0.19.1",
    since="0.19.0",
    confidence="medium",
    fails="vllm serve google/gemma-4-31B-it --attention-backend FLASHINFER",
    passes="vllm serve google/gemma-4-31B-it --attention-backend TRITON_ATTN",
)
def gemma4_attention(case: Case) -> Iterator[Hit]:
    """Gemma 4 has heads of 256 and 512 dimensions, which on sm_12x only the Triton backend ran when
    it came out: "head_size not supported". vLLM chooses that backend by itself.
    """
    backend = (case.value("attention-backend") or "").upper()
    if (
        case.spark
        and case.family
        and case.family.name == "Gemma 4"
        and backend
        and backend != "TRITON_ATTN"
    ):
        yield Hit(
            f"{backend} has not been able to run the head sizes of Gemma 4.",
            case.shown("attention-backend"),
            "Leave --attention-backend out.",
            edits=case.drop(case.options["attention-backend"]),
        )


@SPARK.rule(
    "SPARK102",
    "plain-sm121",
    "warning",
    kind="arch-ptxas",
    source="dgx-vllm issue 10, https://github.com/Avarok-Cybersecurity/dgx-vllm/issues/10",
    fails="FLASHINFER_CUDA_ARCH_LIST=12.1 vllm serve ORG/MODEL-NVFP4",
    passes="FLASHINFER_CUDA_ARCH_LIST=12.1a vllm serve ORG/MODEL-NVFP4",
)
def plain_arch(case: Case) -> Iterator[Hit]:
    """The FP4 conversions exist in the architecture-specific target only: kernels compiled for
    plain 12.1 end with "Instruction 'cvt with .e2m1x2' not supported on .target 'sm_121'". The list
    has to say 12.1a (or the family, 12.1f), and old kernels have to be cleared away.
    """
    for name in ("TORCH_CUDA_ARCH_LIST", "FLASHINFER_CUDA_ARCH_LIST"):
        value = case.line.env.get(name) or ""
        if re.search(r"(^|[ ;,])12\.1(\+PTX)?($|[ ;,])", value):
            yield Hit(
                f"{name}={value} compiles for plain sm_121, which has no FP4 conversions.",
                f"{name}={value}",
                f"Set {name}=12.1a, and clear the kernel cache.",
            )
    if re.fullmatch(r"sm_121", case.line.env.get("CUTE_DSL_ARCH") or ""):
        yield Hit(
            "CUTE_DSL_ARCH=sm_121 lacks the suffix.",
            "CUTE_DSL_ARCH=sm_121",
            "Set CUTE_DSL_ARCH=sm_121a.",
        )


@SPARK.rule(
    "SPARK103",
    "datacenter-kernels",
    "warning",
    kind="arch-no-kernel",
    source="vLLM pull request 31740, https://github.com/vllm-project/vllm/pull/31740",
    release="0.32.0",
    fails="vllm serve ORG/MODEL --moe-backend flashinfer_trtllm",
    passes="vllm serve ORG/MODEL --moe-backend flashinfer_cutlass",
)
def trtllm(case: Case) -> Iterator[Hit]:
    """The TensorRT-LLM kernels in FlashInfer are compiled for data-center Blackwell (sm_100) only:
    "No supported CUDA architectures found for major versions [10]". GB10 is sm_121.
    """
    for name in ("moe-backend", "linear-backend"):
        if case.spark and "trtllm" in (case.value(name) or ""):
            yield Hit(
                f"{case.shown(name)} has kernels for sm_100 only.",
                case.shown(name),
                f"Leave --{name} out.",
                edits=case.drop(case.options[name]),
            )


@SPARK.rule(
    "SPARK104",
    "more-gpus-than-one",
    "error",
    claims="refused",
    source="a DGX Spark has one GPU",
    fails="vllm serve ORG/MODEL --tensor-parallel-size 2",
    passes="vllm serve ORG/MODEL --tensor-parallel-size 1",
)
def one_gpu(case: Case) -> Iterator[Hit]:
    """One Spark has one GPU, and every rank needs one of its own. A product of tensor, pipeline and
    data parallel sizes above one needs as many machines, which the line has to name (`--nnodes`, or
    Ray). Of the data parallel ranks count those that the line starts itself.
    """
    split = ("tensor-parallel-size", "pipeline-parallel-size")
    sizes = {name: case.number(name) or 1 for name in split}
    local = case.number("data-parallel-size-local")
    if local is not None:
        sizes["data-parallel-size-local"] = local
    elif "data-parallel-rank" not in case.options and not case.on("data-parallel-external-lb"):
        sizes["data-parallel-size"] = case.number("data-parallel-size") or 1
    gpus = math.prod(sizes.values())
    if case.spark and gpus > case.nodes and not case.ray:
        wrong = [name for name, size in sizes.items() if size > 1]
        machines = "1 machine has" if case.nodes == 1 else f"{case.nodes} machines have"
        yield Hit(
            f"{gpus:.0f} GPUs are asked for, and {machines} one each.",
            " ".join(case.shown(name) for name in wrong),
            f"Use {' and '.join(f'--{name} 1' for name in wrong)}, or --nnodes with --node-rank and"
            " --master-addr on each machine.",
        )


@SPARK.rule(
    "SPARK105",
    "always-marlin-has-expired",
    "info",
    kind="default-changed",
    source="vLLM recipes pull request 632, https://github.com/vllm-project/recipes/pull/632",
    since="0.24.0",
    release="0.28.0",
    confidence="medium",
    fails="vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 --moe-backend marlin",
    passes="vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
)
def marlin(case: Case) -> Iterator[Hit]:
    """ "Always Marlin" was right where CUTLASS gave garbage on sm_121. From 0.24 on the default was
    found correct and faster for Nemotron; NVIDIA still pins Marlin for Qwen3.6. Measure both before
    carrying the pin on.
    """
    if (
        case.spark
        and case.nvfp4
        and case.value("moe-backend") == "marlin"
        and not (case.family and case.family.name.startswith("Qwen3.5"))
    ):
        yield Hit(
            "--moe-backend marlin was needed on older images; from 0.24 on the default can be"
            " faster.",
            case.shown("moe-backend"),
            "Measure once without it.",
        )


@SPARK.rule(
    "SPARK106",
    "attention-backend-unknown",
    "error",
    claims="refused",
    kind="attention-backend",
    source="vLLM's registry of attention backends, read out of each release",
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --attention-backend FLASHINFR",
    passes="vllm serve ORG/MODEL --attention-backend flashinfer",
)
def unknown_backend(case: Case) -> Iterator[Hit]:
    """The parser takes any word for an attention backend; the engine refuses what this release does
    not have. Lower case is fine.
    """
    import difflib

    name = (case.value("attention-backend") or "").upper()
    if (
        name
        and name not in ("AUTO", "NONE")
        and name not in case.release.names("attention_backends")
    ):
        close = difflib.get_close_matches(name, list(case.release.names("attention_backends")), n=1)
        spans = releases.presence("attention_backends", name)
        fix = (
            f"Take an image of the releases that have it: {releases.said(spans)}."
            if spans
            else f"Write {close[0]}."
            if close
            else "Leave it out."
        )
        yield Hit(
            f"vLLM {case.version} has no attention backend '{name}'.",
            case.shown("attention-backend"),
            fix,
        )


@SPARK.rule(
    "SPARK107",
    "cuda-12-build",
    "warning",
    kind="arch-no-kernel",
    source="vLLM issue 30855, https://github.com/vllm-project/vllm/issues/30855",
    until="0.12.0",
    fails="docker run --gpus all --ipc=host vllm/vllm-openai:v0.12.0 ORG/MODEL",
    passes="docker run --gpus all --ipc=host vllm/vllm-openai:v0.19.0-cu130 ORG/MODEL",
)
def cuda_12(case: Case) -> Iterator[Hit]:
    """The official builds up to 0.12 came with CUDA 12.8, which has no code for sm_121: "no kernel
    image is available". Take a build for CUDA 13 (a tag with cu130), NVIDIA's image, or a later
    release.
    """
    if case.image == "vllm/vllm-openai" and "cu13" not in (case.tag or ""):
        yield Hit(
            f"{case.shown_image} is built with CUDA 12, which has no kernels for GB10.",
            case.line.image,
            "Take a tag with cu130, or a later release.",
        )


@SPARK.rule(
    "SPARK108",
    "bundled-ptxas",
    "info",
    kind="arch-ptxas",
    source="Triton's bundled assembler before CUDA 13 does not know sm_121a",
    until="0.19.1",
    confidence="medium",
    fails=(
        "docker run --gpus all --ipc=host -e TRITON_PTXAS_PATH=/usr/bin/ptxas"
        " nvcr.io/nvidia/vllm:26.04-py3 vllm serve ORG/MODEL"
    ),
    passes=(
        "docker run --gpus all --ipc=host -e TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas"
        " nvcr.io/nvidia/vllm:26.04-py3 vllm serve M"
    ),
)
def ptxas(case: Case) -> Iterator[Hit]:
    """Where Triton's own assembler is too old ("Value 'sm_121a' is not defined for option
    'gpu-name'"), TRITON_PTXAS_PATH names the one of the CUDA 13 toolkit inside the container,
    /usr/local/cuda/bin/ptxas. Another path is the host's, or is not there.
    """
    path = case.line.env.get("TRITON_PTXAS_PATH")
    if path and not re.fullmatch(r"/usr/local/cuda(-1[3-9][.\d]*)?/bin/ptxas", path):
        yield Hit(
            f"TRITON_PTXAS_PATH={path} is not where the images have the toolkit's assembler.",
            f"TRITON_PTXAS_PATH={path}",
            "Set TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas.",
        )
