"""Reads a `config.json`: the geometry of the caches, and how many parameters each class of tensors
has.

Written for the architectures of the catalogue and their relatives. Names of keys are those of
Hugging Face transformers 5 (`models/*/configuration_*.py`); what a layer caches is vLLM 0.32.0's
(`model_executor/models/`, `v1/kv_cache_interface.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sparkbook.checkpoint.values import Cache, Geometry, TensorClass
from sparkbook.errors import SparkbookError

Config = Mapping[str, Any]

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float": 4}

_GATED = ("qwen3_5", "qwen3_next")  # the query projection makes a gate of the same size
_PATTERN = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def text_config(config: Config) -> Config:
    """The language model's part of a multimodal config."""
    for name in ("text_config", "llm_config", "language_config"):
        inner = config.get(name)
        if isinstance(inner, Mapping) and "hidden_size" in inner:
            return {
                **{
                    key: value
                    for key, value in config.items()
                    if key in ("dtype", "torch_dtype", "tie_word_embeddings")
                },
                **inner,
            }
    return config


def dtype_bytes(config: Config) -> int:
    """Bytes of the model's own dtype; 2 where the config does not say."""
    text = text_config(config)
    return DTYPE_BYTES.get(
        str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype")), 2
    )


def layer_kinds(text: Config) -> list[str]:
    """Kind of each layer: `full_attention`, `sliding_attention`, `linear_attention`, or of
    Nemotron-H `mamba`, `attention`, `moe`, `mlp`.

    Raises:
        SparkbookError: the config does not say how many layers there are.
    """
    blocks = text.get("layers_block_type")
    if blocks is None and isinstance(pattern := text.get("hybrid_override_pattern"), str):
        blocks = [_PATTERN.get(letter, letter) for letter in pattern]
    if blocks:
        return [str(block) for block in blocks]
    count = _whole(text, "num_hidden_layers")
    if types := text.get("layer_types"):
        return [str(kind) for kind in types]
    if every := text.get("full_attention_interval"):
        return [
            "full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(count)
        ]
    if (
        str(text.get("model_type")).startswith(("qwen3_next", "qwen3_5"))
        and "linear_num_value_heads" in text
    ):
        return ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(count)]
    if text.get("sliding_window") and (every := text.get("sliding_window_pattern")):
        return [
            "full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)
        ]
    if text.get("sliding_window") and str(text.get("model_type")) == "gpt_oss":
        return ["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(count)]
    # Mistral's and Phi-3's window holds for every layer; Qwen's is off unless use_sliding_window
    # says so.
    everywhere = (
        text.get("sliding_window")
        and text.get("use_sliding_window", True)
        and str(text.get("model_type")) in ("mistral", "phi3")
    )
    return ["sliding_attention" if everywhere else "full_attention"] * count


def _whole(text: Config, *names: str) -> int:
    for name in names:
        if isinstance(value := text.get(name), int) and not isinstance(value, bool):
            return value
    raise SparkbookError(
        f"the config does not state {' or '.join(names)}, so this is not a decoder that can be"
        " planned for"
    )


def _heads(text: Config, kind: str) -> tuple[int, int, int]:
    """Query heads, KV heads, and size of a head of an attention layer of this kind."""
    queries = _whole(text, "num_attention_heads")
    keys = text.get("num_key_value_heads") or queries
    size = text.get("head_dim") or _whole(text, "hidden_size") // queries
    if kind == "full_attention" and str(text.get("model_type")).startswith("gemma4"):
        size = text.get("global_head_dim") or size
        keys = text.get("num_global_key_value_heads") or keys
    return queries, keys, size


def geometry(config: Config) -> Geometry:
    """Shape of the model.

    Raises:
        SparkbookError: the config lacks what a decoder's config says.
    """
    text = text_config(config)
    kinds = layer_kinds(text)
    caches: list[Cache] = []
    width = 0
    if latent := text.get("kv_lora_rank"):
        rope = _whole(text, "qk_rope_head_dim")
        caches.append(Cache("mla", len(kinds), 1, latent + rope, 0))
        # Multiplied out in prefill, every head works at full size.
        width = (
            len(kinds)
            * _whole(text, "num_attention_heads")
            * (text.get("qk_nope_head_dim", 0) + rope)
        )
    else:
        shared = text.get("num_kv_shared_layers") or 0
        own = kinds[: len(kinds) - shared]  # the last ones read the cache of an earlier layer
        for kind in ("full_attention", "attention", "sliding_attention"):
            count = own.count(kind)
            queries, keys, size = _heads(text, kind) if kind in kinds else (0, 0, 0)
            if kind != "sliding_attention":
                width += kinds.count(kind) * queries * size
            if count:
                window = text.get("sliding_window") or 0
                caches.append(
                    Cache(
                        "window" if kind == "sliding_attention" else "full",
                        count,
                        keys,
                        size,
                        size,
                        window if "sliding" in kind else 0,
                    )
                )
    if count := kinds.count("linear_attention"):
        caches.append(_gdn(text, count))
    if count := kinds.count("mamba"):
        caches.append(_mamba(text, count))
    caches += _draft(text, kinds)
    return Geometry(
        layers=len(kinds),
        hidden=_whole(text, "hidden_size"),
        vocabulary=_whole(text, "vocab_size"),
        caches=tuple(caches),
        tied=bool(text.get("tie_word_embeddings", _tied_by_default(text))),
        experts=_experts(text),
        active_experts=(
            text.get("num_experts_per_tok") or text.get("top_k_experts") or 0
            if _experts(text)
            else 0
        ),
        attention_width=width,
        context=_context(text),
        intermediate=text.get("intermediate_size") or 0,
    )


def _context(text: Config) -> int | None:
    """Longest context that vLLM takes without being overruled (vLLM 0.32.0,
    `_get_and_verify_max_len`): a rope that is stretched by a plain factor adds it; YaRN, LongRoPE
    and Llama 3 write the stretched length down themselves.
    """
    stated = text.get("max_position_embeddings")
    if not isinstance(stated, int):
        return None
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type")
    factor = (
        rope.get("factor")
        if kind in ("linear", "dynamic") and "gemma3" not in str(text.get("model_type"))
        else None
    )
    return int(stated * factor) if isinstance(factor, int | float) else stated


def _tied_by_default(text: Config) -> bool:
    """Gemma ties its embeddings unless its config says otherwise."""
    return str(text.get("model_type")).startswith("gemma")


def _experts(text: Config) -> int:
    return (
        text.get("n_routed_experts")
        or text.get("num_local_experts")
        or text.get("num_experts")
        or 0
    )


def _gdn(text: Config, count: int) -> Cache:
    keys, values = _whole(text, "linear_num_key_heads"), _whole(text, "linear_num_value_heads")
    key, value = _whole(text, "linear_key_head_dim"), _whole(text, "linear_value_head_dim")
    # The state is float32 by the config of Qwen3.5 (mamba_ssm_dtype), which vLLM follows;
    # Qwen3-Next's says nothing.
    dtype = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype")
    return Cache(
        "gdn",
        count,
        conv=(2 * keys * key + values * value, text.get("linear_conv_kernel_dim", 4)),
        state=values * value * key,
        state_bytes=DTYPE_BYTES.get(str(dtype)),
    )


def _mamba(text: Config, count: int) -> Cache:
    heads, size = _whole(text, "mamba_num_heads"), _whole(text, "mamba_head_dim")
    states, groups = _whole(text, "ssm_state_size"), text.get("n_groups", 8)
    return Cache(
        "mamba2",
        count,
        conv=(heads * size + 2 * groups * states, text.get("conv_kernel", 4)),
        state=heads * size * states,
        state_bytes=DTYPE_BYTES.get(str(text.get("mamba_ssm_cache_dtype", "float32"))),
        chunk=text.get("chunk_size", 128),
    )


def draft_layers(text: Config) -> int:
    """Layers of the multi-token-prediction head; 0 without one."""
    return text.get("mtp_num_hidden_layers") or text.get("num_nextn_predict_layers") or 0


def _draft(text: Config, kinds: list[str]) -> list[Cache]:
    """A prediction head has attention layers of the main model's full-attention shape."""
    if not (count := draft_layers(text)):
        return []
    if text.get("kv_lora_rank"):
        return [
            Cache("mla", count, 1, text["kv_lora_rank"] + text["qk_rope_head_dim"], 0, draft=True)
        ]
    _, keys, size = _heads(text, "attention" if "attention" in kinds else "full_attention")
    return [Cache("full", count, keys, size, size, draft=True)]


def parameters(config: Config) -> dict[TensorClass, int]:
    """Parameters by class, counted from the shapes. Biases and norms of a layer are counted where
    they are large enough to be seen.

    Vision and sound towers are counted only as far as their config's usual keys allow; a tower
    whose size is not known is left out, so compare the sum with the card.

    Raises:
        SparkbookError: the config lacks what a decoder's config says.
    """
    text = text_config(config)
    kinds = layer_kinds(text)
    hidden = _whole(text, "hidden_size")
    counts: dict[TensorClass, int] = {}

    def add(kind: TensorClass, count: int) -> None:
        if count:
            counts[kind] = counts.get(kind, 0) + count

    tied = text.get("tie_word_embeddings", _tied_by_default(text))
    add("embedding", _whole(text, "vocab_size") * hidden)
    add("head", 0 if tied else _whole(text, "vocab_size") * hidden)
    add("norms", hidden * (1 + 2 * len(kinds)))
    for i, kind in enumerate(kinds):
        for name, count in _layer_params(text, kind, i):
            add(name, count)
    if draft := draft_layers(text):
        per_layer = _attention_params(text, "full_attention", 0)
        if _experts(text):
            per_layer += sum(_moe_params(text).values())
        else:
            per_layer += 3 * hidden * (text.get("intermediate_size") or 0)
        add("draft", draft * (per_layer + 2 * hidden * hidden))
    add("vision", _tower(config.get("vision_config")))
    return counts


def _layer_params(text: Config, kind: str, layer: int) -> Iterator[tuple[TensorClass, int]]:
    """Yield the parameters of one layer by class: the mixer's, then the feed-forward part's."""
    if kind == "linear_attention":
        yield "linear", _gdn_params(text)
    elif kind == "mamba":
        yield "linear", _mamba_params(text)
    elif "attention" in kind:
        yield "attention", _attention_params(text, kind, layer)
    if kind in ("mamba", "attention"):
        return
    model = str(text.get("model_type"))
    matrix = _whole(text, "hidden_size") * (text.get("intermediate_size") or 0)
    if kind == "mlp" or not _has_experts(text, layer, kind):
        yield "mlp", (2 if model == "nemotron_h" else 3) * matrix
        return
    yield from _moe_params(text).items()
    # Gemma 4's experts work in parallel with a dense MLP.
    if model.startswith("gemma4") and text.get("enable_moe_block", True):
        yield "mlp", 3 * matrix


def _has_experts(text: Config, layer: int, kind: str) -> bool:
    if kind == "moe":
        return True
    if types := text.get("mlp_layer_types"):
        return types[layer] == "sparse"
    dense = layer < (text.get("first_k_dense_replace") or 0) or layer in (
        text.get("mlp_only_layers") or ()
    )
    return (
        bool(_experts(text))
        and not dense
        and (layer + 1) % (text.get("decoder_sparse_step") or 1) == 0
    )


def _attention_params(text: Config, kind: str, layer: int) -> int:
    hidden = _whole(text, "hidden_size")
    if latent := text.get("kv_lora_rank"):
        heads, rope, nope = (
            _whole(text, "num_attention_heads"),
            text["qk_rope_head_dim"],
            text["qk_nope_head_dim"],
        )
        value, query = text["v_head_dim"], text.get("q_lora_rank")
        down = (
            hidden * query + query * heads * (nope + rope)
            if query
            else hidden * heads * (nope + rope)
        )
        return (
            down
            + hidden * (latent + rope)
            + latent * heads * (nope + value)
            + heads * value * hidden
        )
    queries, keys, size = _heads(text, kind)
    if per_layer := text.get("num_attention_heads_per_layer"):
        queries = per_layer[layer]
    model = str(text.get("model_type"))
    one_for_both = kind == "full_attention" and text.get("attention_k_eq_v")
    gate = queries * size if model.startswith(_GATED) and text.get("attn_output_gate", True) else 0
    return hidden * (2 * queries * size + gate + keys * size * (1 if one_for_both else 2))


def _gdn_params(text: Config) -> int:
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    hidden = _whole(text, "hidden_size")
    return hidden * (2 * key + 3 * value + 2 * text["linear_num_value_heads"]) + (
        2 * key + value
    ) * text.get("linear_conv_kernel_dim", 4)


def _mamba_params(text: Config) -> int:
    inner, hidden = text["mamba_num_heads"] * text["mamba_head_dim"], _whole(text, "hidden_size")
    conv = inner + 2 * text.get("n_groups", 8) * text["ssm_state_size"]
    return (
        hidden * (inner + conv + text["mamba_num_heads"])
        + inner * hidden
        + conv * text.get("conv_kernel", 4)
    )


def _moe_params(text: Config) -> dict[TensorClass, int]:
    hidden, count, model = _whole(text, "hidden_size"), _experts(text), str(text.get("model_type"))
    inner = text.get("moe_intermediate_size") or _whole(text, "intermediate_size")
    matrices, latent = (2 if model == "nemotron_h" else 3), text.get("moe_latent_size")
    shared = (
        text.get("moe_shared_expert_intermediate_size")
        or text.get("shared_expert_intermediate_size")
        or 0
    )
    if not shared and text.get("n_shared_experts"):
        shared = inner * text["n_shared_experts"]
    return {
        "experts": count * matrices * (latent or hidden) * inner,
        "shared expert": matrices * hidden * shared,
        "latent": 2 * hidden * latent if latent else 0,
        "router": hidden * count,
    }


def _tower(vision: Any) -> int:
    """Parameters of a vision transformer by the usual keys; 0 without one, or its config
    says too little.
    """
    if not isinstance(vision, Mapping):
        return 0
    layers = vision.get("depth") or vision.get("num_hidden_layers") or 0
    hidden, inner = vision.get("hidden_size") or 0, vision.get("intermediate_size") or 0
    gated = 3 if vision.get("num_key_value_heads") else 2
    return layers * (4 * hidden * hidden + gated * hidden * inner)
