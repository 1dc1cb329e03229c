"""QUANT: how the weights and the KV cache are stored."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkbook.lint.case import Case
from sparkbook.lint.family import family
from sparkbook.releases import at_least
from sparkbook.rules import Hit

QUANT = family("QUANT", "quantization")

MEASURED = "vLLM 0.32.0's model config, asked with configs of each kind"


@QUANT.rule(
    "QUANT101",
    "unknown-method",
    "error",
    claims="refused",
    kind="quant-flag",
    source="vLLM's registry of quantization methods, read out of each release",
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --quantization nvfp4x",
    passes="vllm serve ORG/MODEL --quantization fp8",
)
def unknown_method(case: Case) -> Iterator[Hit]:
    """A quantization method that this release does not have. The parser takes any word; the engine
    refuses it a few seconds later.
    """
    method = case.value("quantization")
    if method and method.lower() not in case.release.names("quantization"):
        names = sorted(case.release.names("quantization"))
        yield Hit(
            f"--quantization {method} is no method of this release.",
            case.shown("quantization"),
            f"Leave it out: the checkpoint says it; methods are {', '.join(names)}.",
        )


@QUANT.rule(
    "QUANT102",
    "does-not-match-the-checkpoint",
    "error",
    claims="refused",
    kind="quant-flag",
    source=MEASURED,
    fails="vllm serve RedHatAI/Qwen3-8B-NVFP4 --quantization modelopt",
    passes="vllm serve RedHatAI/Qwen3-8B-NVFP4",
)
def mismatch(case: Case) -> Iterator[Hit]:
    """A compressed-tensors checkpoint names its method itself, and vLLM refuses a different one on
    the line: "Quantization method specified in the model config (compressed-tensors) does not match
    the quantization method specified in the `quantization` argument".
    """
    method = case.value("quantization")
    if method and case.producer == "compressed-tensors" and method != "compressed-tensors":
        yield Hit(
            f"The checkpoint is compressed-tensors, so --quantization {method} is refused.",
            case.shown("quantization"),
            "Leave --quantization out.",
            edits=case.drop(case.options["quantization"]),
        )


@QUANT.rule(
    "QUANT103",
    "name-is-no-format",
    "warning",
    claims="perhaps",
    kind="quant-flag",
    source=(
        "A GLM-4.7-Flash 'AWQ' build on a Spark,"
        " https://sovgrid.org/blog/glm-47-flash-on-a-single-dgx-spark/"
    ),
    confidence="medium",
    fails="vllm serve ORG/GLM-4.7-Flash-AWQ-4bit --quantization awq",
    passes="vllm serve ORG/GLM-4.7-Flash-AWQ-4bit",
)
def name_is_no_format(case: Case) -> Iterator[Hit]:
    """ "AWQ" or "GPTQ" in a repository's name does not make it the format: what counts is
    `quantization_config.quant_method` in its config.json, which is often compressed-tensors. An
    explicit flag is then refused; without one vLLM reads the config.
    """
    method = case.value("quantization") or ""
    if re.fullmatch(r"(awq|gptq)(_marlin)?", method) and not (case.producer or _differs(case)):
        yield Hit(
            f"--quantization {method} is refused if the checkpoint's config.json says another"
            " method, whatever its name says.",
            case.shown("quantization"),
            "Leave it out: vLLM reads quant_method from config.json.",
            edits=case.drop(case.options["quantization"]),
        )


@QUANT.rule(
    "QUANT104",
    "modelopt-is-found-by-itself",
    "info",
    claims="perhaps",
    kind="quant-flag",
    source=MEASURED,
    release="0.32.0",
    fails="vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --quantization modelopt",
    passes="vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4",
)
def modelopt(case: Case) -> Iterator[Hit]:
    """A ModelOpt checkpoint is recognized by itself, and is loaded as what it is, whatever the flag
    says. Releases up to 0.21 refuse `modelopt` where only `hf_quant_config.json` names the method,
    and override it where `config.json` does: both were asked.
    """
    method = case.value("quantization") or ""
    if method.startswith("modelopt") and case.producer == "modelopt":
        old = not at_least(case.version, "0.22.0") and method != "modelopt_fp4"
        yield Hit(
            f"vLLM {case.version} refuses --quantization {method} where only hf_quant_config.json"
            " names the method; left out, it finds the method by itself."
            if old
            else f"--quantization {method} is not needed: this release recognizes ModelOpt"
            " checkpoints.",
            case.shown("quantization"),
            "Leave it out.",
            edits=case.drop(case.options["quantization"]),
        )


@QUANT.rule(
    "QUANT105",
    "fp8-for-fp4-weights",
    "warning",
    claims="perhaps",
    kind="quant-flag",
    source=MEASURED,
    fails="vllm serve nvidia/Llama-3.3-70B-Instruct-NVFP4 --quantization fp8",
    passes="vllm serve ORG/MODEL --quantization fp8",
)
def fp8_for_fp4(case: Case) -> Iterator[Hit]:
    """`--quantization fp8` quantizes 16-bit weights while they load. On a checkpoint that is NVFP4
    already it is ignored; releases up to 0.21 refuse it where only `hf_quant_config.json` names the
    method.
    """
    if case.value("quantization") == "fp8" and case.nvfp4 and case.producer != "compressed-tensors":
        yield Hit(
            "--quantization fp8 is meant for 16-bit weights; this checkpoint is NVFP4 already.",
            case.shown("quantization"),
            "Leave it out.",
            edits=case.drop(case.options["quantization"]),
        )


@QUANT.rule(
    "QUANT106",
    "fp8-kv-on-qwen2",
    "warning",
    kind="garbled-output",
    source="Qwen3 issue 840, https://github.com/QwenLM/Qwen3/issues/840",
    confidence="medium",
    fails="vllm serve Qwen/Qwen2.5-7B-Instruct --kv-cache-dtype fp8",
    passes="vllm serve Qwen/Qwen2.5-7B-Instruct --kv-cache-dtype auto",
)
def fp8_kv_on_qwen2(case: Case) -> Iterator[Hit]:
    """The keys of the Qwen2 family reach too far for unscaled 8-bit floats: the text turns into
    repetition after a few words. A checkpoint that brings scales for the KV cache is not concerned.
    """
    if (case.value("kv-cache-dtype") or "").startswith("fp8") and re.search(
        r"qwen2(\.5)?[-_/ ]", case.known_names
    ):
        yield Hit(
            "An unscaled fp8 KV cache makes models of the Qwen2 family repeat themselves.",
            case.shown("kv-cache-dtype"),
            "Leave the KV cache in 16 bit, and compare a few answers before trying again.",
        )


@QUANT.rule(
    "QUANT107",
    "deprecated-kv-spelling",
    "info",
    source="vLLM's cache config: fp8 is fp8_e4m3 on CUDA",
    fails="vllm serve ORG/MODEL --kv-cache-dtype fp8_e5m2",
    passes="vllm serve ORG/MODEL --kv-cache-dtype fp8",
)
def fp8_e5m2(case: Case) -> Iterator[Hit]:
    """`fp8_e5m2` keeps two bits of fraction where `fp8` (that is `fp8_e4m3`) keeps three; it is
    there for GPUs that had nothing better, and a checkpoint that is quantized to fp8 itself refuses
    it.
    """
    if case.value("kv-cache-dtype") == "fp8_e5m2":
        yield Hit(
            "fp8_e5m2 is coarser than fp8 and gains nothing on a Spark.",
            case.shown("kv-cache-dtype"),
            "Use --kv-cache-dtype fp8.",
        )


_MEANS = {
    r"(auto_)?awq(_marlin)?": {"awq"},
    r"(auto_)?gptq(_marlin)?": {"gptq"},
    r"(gpt_oss_)?mxfp4": {"mxfp4"},
    r"mxfp8": {"mxfp8"},
    r"(fbgemm_|ptpc_)?fp8": {"fp8"},
    r"modelopt_mxfp8": {"mxfp8"},
    r"modelopt_fp4": {"nvfp4", "mixed_precision"},
    r"modelopt": {"fp8", "nvfp4", "mxfp8", "mixed_precision"},
}
"""The formats of weights that methods of `--quantization` load; no other method is judged."""
_WHILE_LOADING = ("fp8", "mxfp8", "mxfp4", "ptpc_fp8")
"""Methods that quantize 16-bit weights too."""


def _differs(case: Case) -> str:
    """Return the format that the checkpoint's config, the recipe or the checkpoint's name states,
    where `--quantization` means another one; empty where it does not, or nothing is known.
    """
    method = (case.value("quantization") or "").lower()
    means = next((kinds for name, kinds in _MEANS.items() if re.fullmatch(name, method)), None)
    if means is None:
        return ""
    if case.quantized:
        stated = {case.quantized.format}
    else:
        recipe = case.recipe.model.quantization.format if case.recipe else ""
        name = f"{recipe} {case.model.lower().rstrip('/').rpartition('/')[2]}"
        stated = set(re.findall(r"(?<![a-z0-9])(awq|gptq|mxfp[48]|nvfp4|fp8)(?![a-z0-9])", name))
    if stated & means or (stated == {"none"} and method in _WHILE_LOADING):
        return ""
    return min(stated, default="")


@QUANT.rule(
    "QUANT108",
    "another-format",
    "error",
    claims="perhaps",
    kind="quant-flag",
    source=MEASURED,
    release="0.32.0",
    fails="vllm serve Qwen/Qwen3-32B-FP8 --quantization mxfp4",
    passes="vllm serve Qwen/Qwen3-32B-FP8 --quantization fp8",
)
def another_format(case: Case) -> Iterator[Hit]:
    """The flag names another format than the checkpoint has. vLLM compares it with `quant_method`
    in config.json: "Quantization method specified in the model config (fp8) does not match the
    quantization method specified in the `quantization` argument (mxfp4)". On an unquantized
    checkpoint, a method that needs a quantized one fails with "Cannot find the config file for
    awq". Checkpoints of ModelOpt, gpt-oss and DeepSeek V4 are loaded as what they are, whatever the
    flag says. If only the name of a checkpoint is known, that is a warning.
    """
    method, stated = case.value("quantization") or "", _differs(case)
    if not stated or case.producer == "compressed-tensors" or (method == "fp8" and case.nvfp4):
        return
    known = case.quantized
    kept = case.producer in ("modelopt", "openai") or "deepseek-v4" in case.known_names
    if kept and (known or case.recipe):
        said = f"the checkpoint is {stated.upper()}, and vLLM {case.version} loads it as that"
        message = f"--quantization {method} changes nothing: {said}."
        if not at_least(case.version, "0.22.0"):
            message = f"The checkpoint is {stated.upper()}: --quantization {method} may be refused."
    elif known and stated == "none":
        message = f"The checkpoint is not quantized, so --quantization {method} is refused."
    elif known:
        message = (
            f"The checkpoint's config.json says {known.producer}, so --quantization {method} is"
            " refused."
        )
    else:
        source = "recipe" if case.recipe else "checkpoint's name"
        message = (
            f"The {source} says {stated.upper()}, so --quantization {method} is probably another"
            " format: vLLM refuses or ignores the flag if config.json says so too."
        )
    certain = known and not kept
    yield Hit(
        message,
        case.shown("quantization"),
        "Leave --quantization out: vLLM reads the method from config.json.",
        severity="error" if certain else "warning",
        confidence="high" if known else "medium",
        edits=case.drop(case.options["quantization"]),
    )
