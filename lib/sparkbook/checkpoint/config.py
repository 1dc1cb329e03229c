"""Reads a `config.json`: the kinds of layers, and the geometry of their caches.

Written for the architectures of the catalogue and their relatives. Names of keys are those of
Hugging Face transformers 5 (`models/*/configuration_*.py`); what a layer caches is vLLM 0.32.0's
(`model_executor/models/`, `v1/kv_cache_interface.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkbook.checkpoint.values import Cache, Geometry
from sparkbook.errors import SparkbookError

Config = Mapping[str, Any]

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "float": 4}

_KINDS = {
    "deepseek_sparse_attention": "full_attention",
    "chunked_attention": "sliding_attention",
    "conv": "short_conv",
}
"""Names of `layer_types` for layers that keep what another kind does."""
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
                    if key in ("dtype", "model_type", "torch_dtype", "tie_word_embeddings")
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
    count = whole(text, "num_hidden_layers")
    if isinstance(nas := text.get("block_configs"), list):
        return ["none" if block["attention"]["no_op"] else "full_attention" for block in nas]
    if isinstance(linear := text.get("linear_attn_config"), Mapping) and "kda_layers" in linear:
        kda = set(linear["kda_layers"])  # counted from 1
        return ["kda" if i + 1 in kda else "full_attention" for i in range(count)]
    if isinstance(pattern := text.get("hybrid_layer_pattern"), list):
        return ["sliding_attention" if local else "full_attention" for local in pattern]
    if types := text.get("layer_types"):
        return [_KINDS.get(str(kind), str(kind)) for kind in types]
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
    if text.get("attention_chunk_size") and str(text.get("model_type")).startswith("llama4"):
        return ["full_attention" if (i + 1) % 4 == 0 else "sliding_attention" for i in range(count)]
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


def whole(text: Config, *names: str) -> int:
    for name in names:
        if isinstance(value := text.get(name), int) and not isinstance(value, bool):
            return value
    raise SparkbookError(
        f"the config does not state {' or '.join(names)}, so this is not a decoder that can be"
        " planned for"
    )


def head_shape(text: Config, kind: str, layer: int = 0) -> tuple[int, int, int, int]:
    """Query heads, KV heads, and sizes of a key and of a value, of an attention layer."""
    model = str(text.get("model_type"))
    queries = whole(text, "num_attention_heads")
    keys = text.get("num_key_value_heads") or queries
    size = text.get("head_dim") or whole(text, "hidden_size") // queries
    size_v = size
    if model.startswith("mimo_v2"):
        size_v = text.get("v_head_dim") or size
        if kind == "sliding_attention":
            queries = text.get("swa_num_attention_heads") or queries
            keys = text.get("swa_num_key_value_heads") or keys
            size, size_v = text.get("swa_head_dim") or size, text.get("swa_v_head_dim") or size_v
    if kind == "full_attention" and model.startswith("gemma4"):
        size = size_v = text.get("global_head_dim") or size
        keys = text.get("num_global_key_value_heads") or keys
    if per_layer := text.get("num_attention_heads_per_layer"):
        queries = per_layer[layer]
    if isinstance(nas := text.get("block_configs"), list):
        keys = queries // (nas[layer]["attention"].get("n_heads_in_group") or 1)
    return queries, keys, size, size_v


def geometry(config: Config) -> Geometry:
    """Shape of the model.

    Raises:
        SparkbookError: the config lacks what a decoder's config says.
    """
    text = text_config(config)
    kinds = layer_kinds(text)
    caches, width = _attention_caches(text, kinds)
    if count := kinds.count("linear_attention"):
        caches.append(_gdn(text, count))
    if count := kinds.count("mamba"):
        caches.append(_mamba(text, count))
    if count := kinds.count("kda"):
        caches.append(_kda(text, count))
    caches += _draft(text, kinds)
    return Geometry(
        layers=len(kinds),
        hidden=whole(text, "hidden_size"),
        vocabulary=whole(text, "vocab_size"),
        caches=tuple(caches),
        tied=bool(text.get("tie_word_embeddings", tied_by_default(text))),
        experts=experts_of(text),
        active_experts=active_experts(text) if experts_of(text) else 0,
        attention_width=width,
        context=_context(text),
        intermediate=text.get("intermediate_size") or 0,
    )


def _attention_caches(text: Config, kinds: list[str]) -> tuple[list[Cache], int]:
    """What the attention layers keep, and their width in prefill: query heads times the size of a
    head, all layers together.
    """
    if latent := text.get("kv_lora_rank"):
        rope = whole(text, "qk_rope_head_dim")
        count = sum("attention" in kind for kind in kinds)
        # Multiplied out in prefill, every head works at full size.
        wide = whole(text, "num_attention_heads") * (text.get("qk_nope_head_dim", 0) + rope)
        if "index_topk" in text:
            return _indexed(text, count), count * wide
        return [Cache("mla", count, 1, latent + rope, 0)], count * wide
    if ratios := text.get("compress_ratios"):
        return _compressed(text, ratios[: len(kinds)]), text["num_attention_heads"] * text[
            "head_dim"
        ]
    width = 0
    shared = text.get("num_kv_shared_layers") or 0
    found: dict[tuple[int, int, int, int, int], int] = {}
    for layer, kind in enumerate(kinds):
        if kind not in ("full_attention", "attention", "sliding_attention"):
            continue
        queries, keys, size, size_v = head_shape(text, kind, layer)
        local = kind == "sliding_attention"
        width += 0 if local else queries * size
        if layer < len(kinds) - shared:  # the last ones read the cache of an earlier layer
            llama4 = str(text.get("model_type")).startswith("llama4")
            chunk = (text.get("attention_chunk_size") or 0) * (local and llama4)
            window = chunk or (text.get("sliding_window") or 0) * local
            key = (keys, size, size_v, window, chunk)
            found[key] = found.get(key, 0) + 1
    # Full attention first.
    return [
        Cache("window" if window else "full", count, keys, size, size_v, window, chunk=chunk)
        for (keys, size, size_v, window, chunk), count in sorted(
            found.items(), key=lambda item: bool(item[0][3])
        )
    ], width


def _indexed(text: Config, count: int, draft: bool = False) -> list[Cache]:
    """DeepSeek's sparse attention (vLLM 0.32.0 on compute capability 12.x): the latent vector as
    `fp8_ds_mla` whatever `--kv-cache-dtype` says, 8 bits an element with a scale of 32 bits for
    128, and the rope part in 16 bits; next to it the key of the index, with a scale, in layers that
    have an index of their own.
    """
    latent, rope = text["kv_lora_rank"], text["qk_rope_head_dim"]
    own = text.get("indexer_types") or text.get("index_types") or []
    indexes = count if draft or not own else own.count("full")
    vector, key = latent + 4 * (latent // 128) + 2 * rope, (text.get("index_head_dim") or 128) + 4
    return [
        Cache("mla", count, fixed=vector, block=64, draft=draft),
        Cache("mla", indexes, fixed=key, block=64, draft=draft),
    ]


def _compressed(text: Config, ratios: list[int]) -> list[Cache]:
    """DeepSeek V4 (vLLM 0.32.0, `models/deepseek_v4`): a vector for 4 or 128 tokens, with an index
    where it is for 4; the last 128 tokens; and what the compressors have not finished. The bytes
    are those of its own type of cache, whatever `--kv-cache-dtype` says.
    """
    four, many = ratios.count(4), ratios.count(128)
    vector, index = 584, 132
    kept = four * (vector + index) / 4 + many * vector / 128
    return [
        Cache("mla", 1, 1, text["head_dim"], 0, fixed=kept, block=256),
        Cache("window", len(ratios), window=128, fixed=585, block=64),
        Cache("window", four, window=8, fixed=10368, block=4),
        Cache("window", many, window=128, fixed=4104, block=8),
    ]


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


def tied_by_default(text: Config) -> bool:
    """Gemma ties its embeddings unless its config says otherwise."""
    return str(text.get("model_type")).startswith("gemma")


def active_experts(text: Config) -> int:
    """Routed experts of one token; at least one."""
    names = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_k")
    return next((int(count) for name in names if (count := text.get(name))), 1)


def experts_of(text: Config) -> int:
    return (
        text.get("n_routed_experts")
        or text.get("num_local_experts")
        or text.get("num_experts")
        or 0
    )


def _gdn(text: Config, count: int) -> Cache:
    keys, values = whole(text, "linear_num_key_heads"), whole(text, "linear_num_value_heads")
    key, value = whole(text, "linear_key_head_dim"), whole(text, "linear_value_head_dim")
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
    heads, size = whole(text, "mamba_num_heads"), whole(text, "mamba_head_dim")
    states, groups = whole(text, "ssm_state_size"), text.get("n_groups", 8)
    return Cache(
        "mamba2",
        count,
        conv=(heads * size + 2 * groups * states, text.get("conv_kernel", 4)),
        state=heads * size * states,
        state_bytes=DTYPE_BYTES.get(str(text.get("mamba_ssm_cache_dtype", "float32"))),
        chunk=text.get("chunk_size", 128),
        checkpointed="0.32.0",
    )


def _kda(text: Config, count: int) -> Cache:
    """Kimi Delta Attention (vLLM 0.32.0, `kda_state_shape`): a state of one matrix a head, and the
    convolutions of queries, keys and values.
    """
    about = text["linear_attn_config"]
    heads, size = about["num_heads"], about["head_dim"]
    return Cache(
        "gdn",
        count,
        conv=(3 * heads * size, about.get("short_conv_kernel_size", 4)),
        state=heads * size * size,
        state_bytes=4,
        checkpointed="0.29.0",
    )


def draft_layers(text: Config) -> int:
    """Layers of the multi-token-prediction head; 0 without one."""
    return text.get("mtp_num_hidden_layers") or text.get("num_nextn_predict_layers") or 0


def _draft(text: Config, kinds: list[str]) -> list[Cache]:
    """A prediction head has attention layers of the main model's full-attention shape."""
    if not (count := draft_layers(text)) or "compress_ratios" in text:
        return []
    if text.get("kv_lora_rank"):
        if "index_topk" in text:
            return _indexed(text, count, draft=True)
        return [
            Cache("mla", count, 1, text["kv_lora_rank"] + text["qk_rope_head_dim"], 0, draft=True)
        ]
    first = "attention" if "attention" in kinds else "full_attention"
    if first not in kinds:
        return []
    _, keys, size, size_v = head_shape(text, first, kinds.index(first))
    return [Cache("full", count, keys, size, size_v, draft=True)]
