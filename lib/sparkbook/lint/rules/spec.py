"""SPEC: speculative decoding."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from sparkbook import releases
from sparkbook.lint.case import Case
from sparkbook.lint.family import family
from sparkbook.rules import Hit
from sparkbook.util.shell_text import command_line

SPEC = family("SPEC", "speculative decoding")

CONFIG = "vLLM's speculative config, read out of each release"
_FLASH = ("dflash", "dspark")


def _shown(case: Case) -> str:
    return (
        case.shown("speculative-config")
        if "speculative-config" in case.options
        else case.shown("spec-method")
    )


@SPEC.rule(
    "SPEC101",
    "method-not-in-release",
    "error",
    claims="refused",
    kind="spec-decode-load",
    source=CONFIG,
    release="0.19.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --speculative-config"
    """ '{"method":"dflash","model":"ORG/DRAFT","num_speculative_tokens":7}'""",
    passes="vllm serve ORG/MODEL --speculative-config"
    """ '{"method":"mtp","num_speculative_tokens":1}'""",
)
def method(case: Case) -> Iterator[Hit]:
    """A speculative method that this release does not have. DFlash came with 0.20, so the NGC image
    26.04 (0.19) cannot run it.
    """
    if (
        case.method
        and not case.release.has("spec_methods", case.method)
        and not (case.info and case.info.fork)
    ):
        spans = releases.presence("spec_methods", case.method)
        close = difflib.get_close_matches(
            case.method, list(case.release.names("spec_methods")), n=1
        )
        fix = (
            f"Take an image of the releases that have it: {releases.said(spans)}."
            if spans
            else f"Write {close[0]}."
            if close
            else "Choose one that"
            f" `{command_line('sparkbook', 'releases', 'show', case.version)}` lists."
        )
        yield Hit(
            f"vLLM {case.version} has no speculative method '{case.method}'.", _shown(case), fix
        )


@SPEC.rule(
    "SPEC102",
    "unknown-key",
    "error",
    claims="refused",
    source=CONFIG + "; vLLM pull request 35060, https://github.com/vllm-project/vllm/pull/35060",
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --speculative-config"
    """ '{"method":"mtp","num_speculative_tokens":1,"disable_by_batch_size":32}'""",
    passes="vllm serve ORG/MODEL --speculative-config"
    """ '{"method":"mtp","num_speculative_tokens":1}'""",
)
def unknown_key(case: Case) -> Iterator[Hit]:
    """A key that the speculative config of this release does not have: the parser takes any JSON,
    and the engine refuses it a few seconds later ("Unexpected keyword argument").
    `disable_by_batch_size` is the one that guides still teach; its successor is
    `num_speculative_tokens_per_batch_size`, a list of [from, to, K].
    """
    keys = case.release.config_keys("speculative-config")
    for key in case.spec or {}:
        if key in keys:
            continue
        spans = releases.presence("config_keys", f"speculative-config.{key}")
        gone = any(until and not releases.at_least(until, case.version) for _, until in spans)
        close = difflib.get_close_matches(key, list(keys), n=1, cutoff=0.8)
        if key == "disable_by_batch_size" and "num_speculative_tokens_per_batch_size" in keys:
            fix = "Use num_speculative_tokens_per_batch_size, or fewer draft tokens."
        else:
            fix = f"Write {close[0]}." if close else "Take it out."
        when = f", which is there {releases.said(spans)}" if spans else ""
        yield Hit(
            f"The speculative config has no key '{key}'{when}.",
            key,
            fix,
            kind="removed-flag" if gone else None,
        )


@SPEC.rule(
    "SPEC103",
    "nothing-to-draft-with",
    "error",
    claims="refused",
    kind="spec-decode-load",
    source=CONFIG,
    release="0.32.0",
    fails="""vllm serve ORG/MODEL --speculative-config '{"num_speculative_tokens":3}'""",
    passes="vllm serve ORG/MODEL --speculative-config"
    """ '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}'""",
)
def incomplete(case: Case) -> Iterator[Hit]:
    """The config needs a method, or a draft model from which vLLM finds the method. DFlash, EAGLE
    and `draft_model` need the model. DSpark does not: a checkpoint such as DeepSeek-V4-Flash-0731
    holds its own.
    """
    if case.spec is None:
        return
    if not case.spec.get("method") and not case.spec.get("model"):
        yield Hit(
            "The speculative config names neither a method nor a draft model.",
            _shown(case),
            'Add "method".',
        )
    elif case.method in (
        "dflash",
        "eagle",
        "eagle3",
        "draft_model",
        "medusa",
    ) and not case.spec.get("model"):
        yield Hit(f"The method {case.method} needs a draft model.", _shown(case), 'Add "model".')


@SPEC.rule(
    "SPEC104",
    "too-many-draft-tokens",
    "warning",
    kind="spec-decode-tuning",
    source="spark-vllm-docker issue 308, https://github.com/eugr/spark-vllm-docker/issues/308",
    confidence="medium",
    release="0.32.0",
    fails="vllm serve ORG/MODEL --spec-method mtp --spec-tokens 6",
    passes="vllm serve ORG/MODEL --spec-method mtp --spec-tokens 3",
)
def many(case: Case) -> Iterator[Hit]:
    """Each further token is right less often, and costs a step of the draft. MTP heads are run with
    1 to 3 tokens; 5 crashed under long concurrent tool traffic in one release. DFlash proposes
    whole blocks and is run with 7 to 15.
    """
    limit = 4 if case.mtp else 16 if case.method in _FLASH else 8
    if case.draft_tokens and case.draft_tokens > limit:
        yield Hit(
            f"{case.draft_tokens} draft tokens are many for {case.method or 'this method'}.",
            _shown(case),
            f"Start with {3 if case.mtp else 7} and compare the acceptance of each position.",
        )


@SPEC.rule(
    "SPEC105",
    "fp8-kv-with-block-drafts",
    "error",
    kind="spec-decode-kv-dtype",
    source=(
        "vLLM issue 41559, https://github.com/vllm-project/vllm/issues/41559; NVIDIA runs DFlash"
        " with fp8 on 0.28"
    ),
    until="0.27.1",
    release="0.24.0",
    fails=(
        "vllm serve ORG/MODEL --kv-cache-dtype fp8 --spec-method dflash --spec-model ORG/DRAFT"
        " --spec-tokens 7"
    ),
    passes="vllm serve ORG/MODEL --spec-method dflash --spec-model ORG/DRAFT --spec-tokens 7",
)
def fp8_kv(case: Case) -> Iterator[Hit]:
    """DFlash and DSpark draft with attention that looks both ways, which on sm_120 and sm_121 had
    no path for an fp8 KV cache: an illegal memory access at warm-up. From 0.28 on published recipes
    run it. DeepSeek V4 keeps its cache in fp8 and in nothing else, so the rule leaves it out.
    """
    fp8 = (case.value("kv-cache-dtype") or "").startswith("fp8") and not (case.spec or {}).get(
        "kv_cache_dtype"
    )
    only_fp8 = "deepseek-v4" in case.known_names
    if case.spark and case.method in _FLASH and fp8 and not only_fp8:
        yield Hit(
            f"The method {case.method} with an fp8 KV cache crashes on GB10 in this release.",
            case.shown("kv-cache-dtype"),
            "Leave the KV cache in 16 bit, or take an image with vLLM 0.28 or later.",
            edits=case.drop(case.options["kv-cache-dtype"]),
        )


@SPEC.rule(
    "SPEC106",
    "moe-backend-of-the-draft",
    "warning",
    kind="spec-decode-load",
    source="vLLM issue 56832, https://github.com/vllm-project/vllm/issues/56832",
    release="0.30.0",
    fails="vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --moe-backend marlin"
    " --spec-method mtp --spec-tokens 3",
    passes="""vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --moe-backend marlin """
    """--speculative-config '{"method":"mtp","num_speculative_tokens":3,"moe_backend":"triton"}'""",
)
def draft_backend(case: Case) -> Iterator[Hit]:
    """`--moe-backend` holds for the draft too. An MTP head in BF16 with NVFP4 weights has no
    experts that Marlin or CUTLASS can run: "moe_backend='marlin' is not supported for unquantized
        MoE". Give the draft its own in the speculative config.
    """
    backend = case.value("moe-backend")
    own = bool((case.spec or {}).get("moe_backend"))
    if (
        case.mtp
        and case.nvfp4
        and backend not in (None, "auto", "triton")
        and not own
        and (not case.family or case.family.moe)
    ):
        yield Hit(
            f"--moe-backend {backend} applies to the draft too, but its experts are not quantized.",
            case.shown("moe-backend"),
            'Add "moe_backend":"triton" to the speculative config.',
        )


@SPEC.rule(
    "SPEC107",
    "drafts-for-many-sequences",
    "warning",
    kind="spec-decode-oom",
    source=(
        "Blackwellboy minefield, trap 98, https://github.com/"
        "Blackwellboy/model-serving-minefield/blob/main/traps/runtime/98-speculative-decode-default-max-seqs-oom-uma.md"
    ),
    release="0.32.0",
    fails=(
        "vllm serve poolside/Laguna-XS.2 --spec-method dflash --spec-model"
        " poolside/Laguna-XS.2-speculator.dflash --spec-tokens 7"
    ),
    passes=(
        "vllm serve poolside/Laguna-XS.2 --spec-method dflash --spec-model"
        " poolside/Laguna-XS.2-speculator.dflash --spec-tokens 7 --max-num-seqs 4"
    ),
)
def many_sequences(case: Case) -> Iterator[Hit]:
    """Draft slots grow with sequences × K. With DFlash and the default of 256 sequences a Spark
    runs out of memory at the start; with 32, within minutes of load.
    """
    seqs = case.number("max-num-seqs")
    if case.spark and case.method in _FLASH and (seqs is None or seqs > 16):
        yield Hit(
            f"The method {case.method} sizes its drafts for {int(seqs) if seqs else 256}"
            " sequences.",
            case.shown("max-num-seqs"),
            "Use --max-num-seqs 4.",
            edits=() if seqs else case.append("--max-num-seqs 4"),
        )


@SPEC.rule(
    "SPEC108",
    "ngram-with-async-scheduling",
    "error",
    claims="refused",
    kind="flag-conflict",
    source=CONFIG,
    release="0.32.0",
    fails="vllm serve ORG/MODEL --async-scheduling --spec-method ngram --spec-tokens 3",
    passes="vllm serve ORG/MODEL --spec-method ngram --spec-tokens 3",
)
def ngram_async(case: Case) -> Iterator[Hit]:
    """`--async-scheduling` is refused with drafts by n-gram lookup. Left out, it is chosen by
    itself.
    """
    if case.method == "ngram" and case.on("async-scheduling"):
        yield Hit(
            "--async-scheduling is refused with the method ngram.",
            case.shown("async-scheduling"),
            "Leave it out.",
            edits=case.drop(case.options["async-scheduling"]),
        )


@SPEC.rule(
    "SPEC109",
    "two-ways-at-once",
    "warning",
    kind="flag-conflict",
    source=CONFIG,
    release="0.32.0",
    fails="vllm serve ORG/MODEL"
    """ --spec-method mtp --speculative-config '{"num_speculative_tokens":1}'""",
    passes="vllm serve ORG/MODEL --spec-method mtp --spec-tokens 1",
)
def two_ways(case: Case) -> Iterator[Hit]:
    """The short options (`--spec-method`, `--spec-model`, `--spec-tokens`) and
    `--speculative-config` say the same thing twice.
    """
    short = [name for name in ("spec-method", "spec-model", "spec-tokens") if name in case.options]
    if short and "speculative-config" in case.options:
        yield Hit(
            f"--{short[0]} and --speculative-config both describe the draft.",
            _shown(case),
            "Write everything in one of them.",
        )


@SPEC.rule(
    "SPEC110",
    "fp8-kv-with-assistant",
    "warning",
    kind="spec-decode-acceptance",
    source="vLLM issue 41789, https://github.com/vllm-project/vllm/issues/41789",
    confidence="medium",
    release="0.32.0",
    fails=(
        "vllm serve google/gemma-4-31B-it --kv-cache-dtype fp8 --spec-method mtp --spec-model"
        " google/gemma-4-31B-it-assistant"
    ),
    passes=(
        "vllm serve google/gemma-4-31B-it --spec-method mtp --spec-model"
        " google/gemma-4-31B-it-assistant --spec-tokens 3"
    ),
)
def assistant_kv(case: Case) -> Iterator[Hit]:
    """With Gemma 4, a separate MTP assistant and an fp8 KV cache an acceptance of 0.2 % was
    reported: draft and target seem to disagree about the cache's type or scales. Below 5 % after a
        few hundred drafts it is the pairing, not the tuning.
    """
    if (
        case.mtp
        and (case.spec or {}).get("model")
        and (case.value("kv-cache-dtype") or "").startswith("fp8")
    ):
        yield Hit(
            "A separate MTP draft with an fp8 KV cache has shown an acceptance near zero.",
            case.shown("kv-cache-dtype"),
            "Look at the acceptance after 200 drafts; if it is below 5 %, leave the KV cache in"
            " 16 bit.",
        )


@SPEC.rule(
    "SPEC111",
    "several-tokens-from-one-layer",
    "info",
    kind="false-positive",
    source="vLLM recipes pull request 647, https://github.com/vllm-project/recipes/pull/647",
    release="0.32.0",
    fails="vllm serve Qwen/Qwen3.6-27B --spec-method mtp --spec-tokens 3",
    passes="vllm serve Qwen/Qwen3.6-27B --spec-method mtp --spec-tokens 1",
)
def several(case: Case) -> Iterator[Hit]:
    """More than one draft token from a model with one MTP layer is fine: the layer is used again
    for each. Reviewers and bots have called it a mistake. What to watch is the acceptance of the
    later positions, which falls with each.
    """
    if case.mtp and case.draft_tokens and 1 < case.draft_tokens <= 4:
        yield Hit(
            f"{case.draft_tokens} draft tokens are valid with one MTP layer, which is used again"
            " for each.",
            _shown(case),
            "Change nothing; watch spec_decode_num_accepted_tokens_per_pos.",
        )


@SPEC.rule(
    "SPEC112",
    "no-number-of-tokens",
    "error",
    claims="refused",
    source=CONFIG,
    release="0.32.0",
    fails="vllm serve ORG/MODEL --speculative-config"
    """ '{"method":"ngram","prompt_lookup_max":4}'""",
    passes="vllm serve ORG/MODEL --speculative-config"
    """ '{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":4}'""",
)
def no_tokens(case: Case) -> Iterator[Hit]:
    """Without `num_speculative_tokens` vLLM takes the number from the draft's config, and refuses
    to start where there is none.
    """
    if (
        case.spec is not None
        and case.spec.get("num_speculative_tokens") is None
        and (case.spec.get("method") or case.spec.get("model"))
    ):
        yield Hit(
            "The speculative config does not say how many tokens to draft.",
            _shown(case),
            'Add "num_speculative_tokens".',
        )


@SPEC.rule(
    "SPEC113",
    "checkpoint-without-mtp",
    "error",
    kind="spec-decode-load",
    source="the checkpoints' config.json, https://github.com/ai-dynamo/aiconfigurator",
    fails="vllm serve openai/gpt-oss-120b --speculative-config"
    """ '{"method":"mtp","num_speculative_tokens":4}'""",
    passes="vllm serve nvidia/Qwen3.6-27B-NVFP4 --speculative-config"
    """ '{"method":"mtp","num_speculative_tokens":3}'""",
)
def without_mtp(case: Case) -> Iterator[Hit]:
    """The method `mtp` drafts with a prediction layer of the checkpoint, and the configs of some
    models state none. A separate draft model works with these.
    """
    from sparkbook.checkpoint.known import mtp

    if case.mtp and not (case.spec or {}).get("model") and mtp(case.model) is False:
        yield Hit(
            f"The checkpoint {case.model} has no MTP layer, which the method {case.method} needs.",
            _shown(case),
            "Remove the speculative config, or name a draft model such as one for DFlash.",
        )
