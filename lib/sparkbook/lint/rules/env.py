"""ENV: environment variables."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from sparkbook import releases
from sparkbook.lint.case import MOST_SUGGESTED, Case
from sparkbook.lint.family import family
from sparkbook.rules import Hit
from sparkbook.util.secret import is_secret
from sparkbook.util.shell_text import command_line, quote

ENV = family("ENV", "environment variables")

ENVS = "vLLM's envs.py, read out of each release"
SUCCESSORS = {
    "VLLM_ATTENTION_BACKEND": "--attention-backend",
    "VLLM_USE_FLASHINFER_MOE_FP4": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP8": "--moe-backend",
    "VLLM_USE_FLASHINFER_MOE_FP16": "--moe-backend",
    "VLLM_FLASHINFER_MOE_BACKEND": "--moe-backend",
    "VLLM_FP8_MOE_BACKEND": "--moe-backend",
    "VLLM_MXFP4_BACKEND": "--moe-backend, or the image that was built with it",
    "VLLM_NVFP4_GEMM_BACKEND": "--linear-backend",
    "VLLM_TEST_FORCE_FP8_MARLIN": "--linear-backend marlin and --moe-backend marlin",
    "VLLM_USE_V1": "nothing: there is one engine",
    "VLLM_FLASH_ATTN_VERSION": "--attention-config.flash_attn_version",
}
"""Variables that guides still teach, and what does their work."""

_B12X = "the build with b12x kernels (https://github.com/eugr/spark-vllm-docker)"
OF_FORKS = {
    "VLLM_PLE_TABLE_MEMORY": _B12X,
    "VLLM_MXFP8_LM_HEAD": _B12X,
    "VLLM_B12X_MOE_FP4_LAYER_MAX_INPUT_SCALE": _B12X,
    "VLLM_PLE_FORCE_FP8": "the image of Qwen3.8-Flash-Next",
}
"""Variables of builds of vLLM that no release has, and which builds read them."""

_FOREIGN = {
    r"SGLANG_\w+|SGL_\w+": "SGLang",
    r"TRTLLM_\w+|TLLM_\w+": "TensorRT-LLM",
    r"LLAMA_ARG_\w+|GGML_\w+": "llama.cpp",
    r"OLLAMA_\w+": "Ollama",
    r"LMDEPLOY_\w+": "LMDeploy",
}


def strangers(case: Case) -> Iterator[str]:
    """Variables that look like vLLM's and that this release does not know; an image with a script
    of its own has its own.
    """
    if case.line.runs == "wrapper" and case.line.serve is None:
        return
    for name, _ in case.env_named(r"VLLM_\w+"):
        if not case.release.has("envs", name):
            yield name


@ENV.rule(
    "ENV101",
    "unknown-variable",
    "warning",
    source=ENVS,
    release="0.32.0",
    versioned=True,
    fails="VLLM_LOGGING_LEVL=DEBUG vllm serve ORG/MODEL",
    passes="VLLM_LOGGING_LEVEL=DEBUG vllm serve ORG/MODEL",
)
def unknown_variable(case: Case) -> Iterator[Hit]:
    """A `VLLM_` variable that no release has. vLLM starts, says "Unknown vLLM environment variable
    detected", and ignores it. A fork of vLLM may read it.
    """
    for number, name in enumerate(strangers(case)):
        if name not in SUCCESSORS and not releases.presence("envs", name):
            compared = case.release.envs if number < MOST_SUGGESTED else ()
            close = difflib.get_close_matches(name, list(compared), n=1, cutoff=0.85)
            if reader := case.forked or OF_FORKS.get(name):
                yield Hit(
                    f"{name} is not in vLLM {case.version}: {reader} reads it.",
                    name,
                    "Keep it if that build is what you start; vLLM itself ignores it.",
                    severity="info",
                )
                continue
            fix = "Ask the image's documentation if it holds a fork of vLLM; vLLM ignores it."
            yield Hit(
                f"{name} is not a variable of vLLM {case.version}, which ignores it.",
                name,
                f"Write {close[0]}." if close and not case.fork else fix,
            )


@ENV.rule(
    "ENV102",
    "removed-variable",
    "warning",
    kind="removed-env",
    source=(
        "vLLM issue 50292, https://github.com/vllm-project/vllm/issues/50292, and envs.py of each"
        " release"
    ),
    release="0.32.0",
    versioned=True,
    fails="VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve ORG/MODEL",
    passes="vllm serve ORG/MODEL --attention-backend FLASHINFER",
)
def removed_variable(case: Case) -> Iterator[Hit]:
    """A variable that older releases read, or that another build reads, and that this release
    ignores. The start continues after a warning that is easily missed, and the setting does not
    happen.
    """
    for name in strangers(case):
        spans = releases.presence("envs", name)
        older = [
            until for _, until in spans if until and not releases.at_least(until, case.version)
        ]
        if older or (name in SUCCESSORS and not spans):
            when = (
                f"was removed after {older[-1]}"
                if older
                else f"is in no release from {releases.known()[0]} on"
            )
            fix = f"Use {SUCCESSORS[name]}." if name in SUCCESSORS else "Take it out."
            yield Hit(
                f"{name} {when}, so it has no effect.",
                f"{name}={case.line.env[name] or ''}".rstrip("="),
                fix,
            )


@ENV.rule(
    "ENV103",
    "variable-too-new",
    "warning",
    kind="image-too-old",
    source=ENVS,
    release="0.17.0",
    versioned=True,
    fails="VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 vllm serve ORG/MODEL",
    passes="VLLM_USE_DEEP_GEMM=0 vllm serve ORG/MODEL",
)
def variable_too_new(case: Case) -> Iterator[Hit]:
    """A variable that only later releases read; in this one it has no effect."""
    for name in strangers(case):
        later = [
            since
            for since, _ in releases.presence("envs", name)
            if not releases.at_least(case.version, since)
        ]
        if later:
            yield Hit(
                f"{name} came with {later[0]}, so it has no effect.",
                name,
                f"Take an image with vLLM {later[0]} or later.",
            )


@ENV.rule(
    "ENV104",
    "secret-on-the-line",
    "warning",
    source="Docker: environment variables are shown by docker inspect",
    fails="docker run --gpus all -e HF_TOKEN=hf_abc vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes="docker run --gpus all -e HF_TOKEN vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def secret(case: Case) -> Iterator[Hit]:
    """A token, key or password written out. It ends up in the shell's history, in `docker inspect`
    and in every copy of the line.

    `-e NAME` alone passes the caller's own value on. The value is never shown here.
    """
    for name, value in case.line.env.items():
        if value and "$" not in value and is_secret(name, value):
            yield Hit(
                f"{name} is written out on the line.",
                f"{name}=…",
                f"Export {quote(name)} first, and write {command_line('-e', name)} with no value.",
            )
    for name, given in case.options.items():
        words = [word.text for word in given.values]
        if any("$" not in word and is_secret(name, word) for word in words):
            variable = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}.get(name)
            yield Hit(
                f"The value of --{name} is written out on the line, and it is a secret.",
                f"--{name} …",
                f"Export {variable} and pass it on."
                if variable
                else f"Put the secret into a file that the container mounts, and remove --{name}.",
            )


@ENV.rule(
    "ENV105",
    "variable-of-another-framework",
    "info",
    source="the frameworks' own documentation",
    fails="SGLANG_ENABLE_JIT=1 vllm serve ORG/MODEL",
    passes="HF_HOME=/models vllm serve ORG/MODEL",
)
def foreign_variable(case: Case) -> Iterator[Hit]:
    """A variable that another server reads and vLLM does not: the line was probably carried over,
    and its setting is lost.
    """
    for name in case.line.env:
        for pattern, whose in _FOREIGN.items():
            if re.fullmatch(pattern, name):
                yield Hit(f"{name} is read by {whose}, not by vLLM.", name, "Take it out.")


_HUB = {
    r"(?:HF|HUGGING_?FACE)_(?:HUB_|API_|AUTH_|ACCESS_)*(?:TOKEN|API_KEY|KEY)": "HF_TOKEN",
    r"(?:HF|HUGGING_?FACE)_(?:HUB_)?(?:CACHE|HOME|CACHE_(?:DIR|HOME|PATH))": "HF_HOME",
}
"""Names that look like those of huggingface_hub, and the one that it reads instead."""
_HUB_READS = {
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"),
}

_STAND_IN = re.compile(
    r"(?:hf_)?(?:[*.…xX]{3,}|<[\w -]+>|(?:[Yy]our|YOUR)[\w-]*|token(?:_here)?|TOKEN|REPLACE\w*)"
)
"""What stands in guides for a token."""


@ENV.rule(
    "ENV109",
    "variable-that-the-hub-ignores",
    "warning",
    source="huggingface_hub 2.4.0, constants.py and utils/_auth.py, read 2026-11-29; seen in"
    " https://github.com/vllm-project/vllm/issues/16292 (2025-04-08)",
    fails="HF_CACHE=/models vllm serve ORG/MODEL",
    passes="HF_HOME=/models vllm serve ORG/MODEL",
)
def ignored_by_the_hub(case: Case) -> Iterator[Hit]:
    """Nothing reads a variable with such a name: gated weights are refused for lack of a token, or
    the download goes to the default folder. A script of the image may read it, or the line itself,
    which then is not reported.
    """
    stated = _HUB_READS & case.line.env.keys()
    for name in case.line.env:
        used = re.search(rf"\${{?{re.escape(name)}\b", case.line.text)
        for pattern, read in _HUB.items():
            also = any(re.fullmatch(pattern, other) for other in stated)
            if not (used or also) and re.fullmatch(pattern, name):
                yield Hit(f"Neither vLLM nor huggingface_hub reads {name}.", name, f"Write {read}.")


@ENV.rule(
    "ENV110",
    "token-left-open",
    "info",
    kind="gated-download",
    source="https://github.com/huggingface/huggingface_hub/pull/2847 (2025-02-10)",
    fails="HF_TOKEN=your_token_here vllm serve ORG/MODEL",
    passes="docker run --gpus all -e HF_TOKEN vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def token_left_open(case: Case) -> Iterator[Hit]:
    """A token that is a guide's stand-in (`***`, `your_token_here`, `hf_xxx`). The hub answers each
    download that brings a wrong token with 401, also of a public model, which needs none.
    """
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        value = case.line.env.get(name) or ""
        if _STAND_IN.fullmatch(value):
            yield Hit(
                f"{name}={value} is a guide's stand-in, and the hub refuses what comes with it.",
                f"{name}={value}",
                f"Export your own {name} and pass it on without a value, or leave it out if the"
                " model is public.",
            )


@ENV.rule(
    "ENV106",
    "variables-are-checked",
    "error",
    claims="refused",
    source=ENVS,
    release="0.32.0",
    versioned=True,
    fails="VLLM_FP8_MOE_BACKEND=marlin vllm serve ORG/MODEL --fail-on-environ-validation",
    passes="VLLM_USE_DEEP_GEMM=0 vllm serve ORG/MODEL --fail-on-environ-validation",
)
def checked(case: Case) -> Iterator[Hit]:
    """With `--fail-on-environ-validation` an unknown `VLLM_` variable is no longer a warning: the
    server refuses to start.
    """
    if case.on("fail-on-environ-validation"):
        for name in strangers(case):
            yield Hit(
                f"--fail-on-environ-validation refuses {name}, which this release does not know.",
                name,
                f"Take {quote(name)} out.",
            )


@ENV.rule(
    "ENV107",
    "harmony-offline",
    "warning",
    kind="offline-assets",
    source="dgx-spark-playbooks issue 17, https://github.com/NVIDIA/dgx-spark-playbooks/issues/17",
    fails="HF_HUB_OFFLINE=1 vllm serve openai/gpt-oss-20b",
    passes="HF_HUB_OFFLINE=1 TIKTOKEN_ENCODINGS_BASE=/models/tiktoken"
    " vllm serve openai/gpt-oss-20b",
)
def harmony_offline(case: Case) -> Iterator[Hit]:
    """gpt-oss needs the Harmony vocabulary, which its library downloads at run time and not through
    Hugging Face. Offline, the first request fails although the weights are there. Fetch
    o200k_base.tiktoken beforehand and say where it lies.
    """
    offline = case.line.env.get("HF_HUB_OFFLINE") or case.line.env.get("TRANSFORMERS_OFFLINE")
    staged = case.line.env.keys() & {"TIKTOKEN_ENCODINGS_BASE", "TIKTOKEN_RS_CACHE_DIR"}
    if (
        offline in ("1", "true", "True")
        and case.family
        and case.family.name == "gpt-oss"
        and not staged
    ):
        yield Hit(
            "gpt-oss downloads its Harmony vocabulary at run time, which offline it cannot.",
            "HF_HUB_OFFLINE=1",
            "Fetch o200k_base.tiktoken first and set TIKTOKEN_ENCODINGS_BASE to its folder.",
        )


@ENV.rule(
    "ENV108",
    "devices-that-are-not-there",
    "warning",
    source="a DGX Spark has one GPU, number 0",
    fails="CUDA_VISIBLE_DEVICES=0,1 vllm serve ORG/MODEL",
    passes="CUDA_VISIBLE_DEVICES=0 vllm serve ORG/MODEL",
)
def devices(case: Case) -> Iterator[Hit]:
    """A Spark has one GPU. A second number in CUDA_VISIBLE_DEVICES, or none at all, hides it or
    names what is not there.
    """
    value = case.line.env.get("CUDA_VISIBLE_DEVICES")
    if case.spark and value is not None and re.fullmatch(r"[\d,]+|-1", value) and value != "0":
        yield Hit(
            f"CUDA_VISIBLE_DEVICES={value} names a GPU that a Spark does not have.",
            f"CUDA_VISIBLE_DEVICES={value}",
            "Leave it out.",
        )
