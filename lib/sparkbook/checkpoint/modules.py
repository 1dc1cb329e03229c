"""The modules that hold a language model's parameters, from its `config.json`: each with its name,
class and size.

Names are those of the checkpoints without their first part (`layers.3.self_attn`), so that the
lists of a quantized checkpoint can be matched with them. Where all projections of a part are
treated alike by every known checkpoint, the part is one module. Names and shapes are those of
Hugging Face transformers 5 (`models/*/modeling_*.py`) and vLLM 0.32.0 (`model_executor/models/`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sparkbook.checkpoint.config import (
    Config,
    draft_layers,
    experts_of,
    head_shape,
    layer_kinds,
    text_config,
    tied_by_default,
    whole,
)
from sparkbook.checkpoint.values import TensorClass

_GATED = ("qwen3_5", "qwen3_next")
"""The query projection makes a gate of the same size."""


@dataclass(frozen=True)
class Module:
    """One module, or several that are stored alike.

    Attributes:
        name: without the checkpoint's first part: `layers.3.mlp.experts`.
        kind: class of its tensors.
        params: parameters.
        plain: whether no format quantizes it: norms, routers, convolutions, embeddings.
    """

    name: str
    kind: TensorClass
    params: int
    plain: bool = False


@dataclass(frozen=True)
class _Names:
    """What an architecture calls the parts of a layer."""

    mixer: str = "self_attn"
    mlp: str = "mlp"
    experts: str = "mlp"
    shared: str = "mlp.shared_experts"
    router: str = "mlp.gate"


_NAMES: tuple[tuple[str, _Names], ...] = (
    ("qwen3_5", _Names(shared="mlp.shared_expert")),
    ("qwen3_next", _Names(shared="mlp.shared_expert")),
    ("gemma4", _Names(experts="", router="router")),
    ("gpt_oss", _Names(router="mlp.router")),
    (
        "nemotron_h",
        _Names("mixer", "mixer", "mixer", "mixer.shared_experts", "mixer.gate"),
    ),
    (
        "minimax",
        _Names(
            experts="block_sparse_moe",
            shared="block_sparse_moe.shared_experts",
            router="block_sparse_moe.gate",
        ),
    ),
    ("mixtral", _Names(experts="block_sparse_moe", router="block_sparse_moe.gate")),
    ("deepseek_v4", _Names("attn", "ffn", "ffn", "ffn.shared_experts", "ffn.gate")),
    ("deepseek_ref", _Names("attn", "ffn", "ffn", "ffn.shared_experts", "ffn.gate")),
    (
        "llama4",
        _Names(
            mlp="feed_forward",
            experts="feed_forward",
            shared="feed_forward.shared_expert",
            router="feed_forward.router",
        ),
    ),
    ("step3p", _Names(experts="moe", shared="share_expert", router="moe.gate")),
)


def modules(config: Config) -> Iterator[Module]:
    """Yield the modules of a model.

    Norms of a layer are counted as two of the hidden size. Vision and sound towers are counted
    only as far as their config's usual keys allow; a tower whose size is not known is left out.

    Raises:
        SparkbookError: the config lacks what a decoder's config says.
    """
    text = text_config(config)
    model, hidden = str(text.get("model_type")), whole(text, "hidden_size")
    names = next((names for start, names in _NAMES if model.startswith(start)), _Names())
    words = whole(text, "vocab_size") * hidden
    kinds = layer_kinds(text)
    yield Module("embed_tokens", "embedding", words, plain=True)
    if per_layer := text.get("hidden_size_per_layer_input"):
        table = text.get("vocab_size_per_layer_input") or whole(text, "vocab_size")
        yield Module(
            "embed_tokens_per_layer", "embedding", table * per_layer * len(kinds), plain=True
        )
    if not text.get("tie_word_embeddings", tied_by_default(text)):
        yield Module("lm_head", "head", words)
    yield Module("norm", "norms", hidden * (1 + 2 * len(kinds)), plain=True)
    for layer, kind in enumerate(kinds):
        for module in _layer(text, names, kind, layer):
            yield Module(
                f"layers.{layer}.{module.name}".rstrip("."),
                module.kind,
                module.params,
                module.plain,
            )
    yield from _draft(text, kinds)
    if tower := _tower(config.get("vision_config")):
        yield Module("visual", "vision", tower)


def parameters(config: Config) -> dict[TensorClass, int]:
    """Parameters by class.

    Raises:
        SparkbookError: the config lacks what a decoder's config says.
    """
    counts: dict[TensorClass, int] = {}
    for module in modules(config):
        if module.params:
            counts[module.kind] = counts.get(module.kind, 0) + module.params
    return counts


def _layer(text: Config, names: _Names, kind: str, layer: int) -> Iterator[Module]:
    """Yield the modules of one layer: the mixer's, then the feed-forward part's."""
    if kind == "linear_attention":
        yield from _gdn(text)
    elif kind == "kda":
        yield Module("self_attn", "linear", _kda(text))
    elif kind == "mamba":
        yield from _mamba(text)
    elif "attention" in kind:
        yield from _attention(text, names, kind, layer)
    if kind in ("mamba", "attention"):
        return
    if "block_configs" in text:
        yield Module("mlp", "mlp", _nas_mlp(text, layer))
        return
    model = str(text.get("model_type"))
    if kind == "mlp" or not has_experts(text, layer, kind):
        inner = (
            text.get("dense_intermediate_size")
            or text.get("intermediate_size_mlp")
            or text.get("intermediate_size")
            or 0
        )
        shared = text.get("num_kv_shared_layers") or 0
        if text.get("use_double_wide_mlp") and layer >= len(layer_kinds(text)) - shared:
            inner *= 2
        yield from _mlp(names.mlp, "mlp", text, inner)
        return
    yield from _moe(text, names)
    # Gemma 4's experts work in parallel with a dense MLP.
    if model.startswith("gemma4"):
        yield from _mlp("mlp", "mlp", text, whole(text, "intermediate_size"))


def _mlp(at: str, kind: TensorClass, text: Config, inner: int) -> Iterator[Module]:
    """Yield a gated MLP's projections; Nemotron-H's has no gate."""
    gated = str(text.get("model_type")) != "nemotron_h"
    for name in ("gate_proj", "up_proj", "down_proj")[not gated :]:
        yield Module(f"{at}.{name}", kind, whole(text, "hidden_size") * inner)


def has_experts(text: Config, layer: int, kind: str) -> bool:
    """Whether a layer's feed-forward part is a mixture of experts."""
    if kind == "moe":
        return True
    if not experts_of(text) or text.get("enable_moe_block") is False:
        return False
    if types := text.get("mlp_layer_types"):
        return str(types[layer]) == "sparse"
    frequency = text.get("moe_layer_freq")
    if isinstance(frequency, list):
        return bool(frequency[layer])
    every = text.get("decoder_sparse_step") or text.get("interleave_moe_layer_step") or 1
    dense = layer < (text.get("first_k_dense_replace") or 0) or layer in (
        text.get("mlp_only_layers") or ()
    )
    return not dense and (layer + 1) % every == 0


def _attention(text: Config, names: _Names, kind: str, layer: int) -> Iterator[Module]:
    hidden, at = whole(text, "hidden_size"), names.mixer
    model = str(text.get("model_type"))
    if "o_lora_rank" in text:
        yield from _attention_v4(text, layer)
        return
    if latent := text.get("kv_lora_rank"):
        yield from _mla(text, at, latent, layer)
        return
    queries, keys, size, size_v = head_shape(text, kind, layer)
    gated = model.startswith(_GATED) and text.get("attn_output_gate", True)
    wide = queries * size * (2 if gated else 1)
    one_for_both = kind == "full_attention" and text.get("attention_k_eq_v")
    yield Module(f"{at}.q_proj", "attention", hidden * wide)
    yield Module(f"{at}.k_proj", "attention", hidden * keys * size)
    if not one_for_both:
        yield Module(f"{at}.v_proj", "attention", hidden * keys * size_v)
    yield Module(f"{at}.o_proj", "attention", queries * size_v * hidden)
    sparse = text.get("sparse_attention_config")
    if (
        isinstance(sparse, Mapping)
        and (sparse.get("sparse_attention_freq") or [0])[
            min(layer, len(sparse.get("sparse_attention_freq") or [0]) - 1)
        ]
    ):
        heads, inner = sparse["sparse_num_index_heads"], sparse["sparse_index_dim"]
        yield Module(f"{at}.index", "attention", hidden * inner * (heads + 1), plain=True)


def _mla(text: Config, at: str, latent: int, layer: int) -> Iterator[Module]:
    hidden, heads = whole(text, "hidden_size"), whole(text, "num_attention_heads")
    rope, nope, value = text["qk_rope_head_dim"], text["qk_nope_head_dim"], text["v_head_dim"]
    if query := text.get("q_lora_rank"):
        yield Module(f"{at}.q_a_proj", "attention", hidden * query)
        yield Module(f"{at}.q_b_proj", "attention", query * heads * (nope + rope))
    else:
        yield Module(f"{at}.q_proj", "attention", hidden * heads * (nope + rope))
    yield Module(f"{at}.kv_a_proj_with_mqa", "attention", hidden * (latent + rope))
    yield Module(f"{at}.kv_b_proj", "attention", latent * heads * (nope + value))
    yield Module(f"{at}.o_proj", "attention", heads * value * hidden)
    types = text.get("indexer_types")
    if (size := text.get("index_head_dim")) and query and (not types or types[layer] == "full"):
        count = text["index_n_heads"]
        yield Module(f"{at}.indexer.wq_b", "attention", query * count * size)
        yield Module(f"{at}.indexer.wk", "attention", hidden * size)
        yield Module(f"{at}.indexer.weights_proj", "attention", hidden * count, plain=True)


def _attention_v4(text: Config, layer: int) -> Iterator[Module]:
    """DeepSeek V4: queries and outputs of low rank, one key-value vector, and compressors."""
    hidden, heads, size = whole(text, "hidden_size"), text["num_attention_heads"], text["head_dim"]
    query, groups, rank = text["q_lora_rank"], text["o_groups"], text["o_lora_rank"]
    yield Module("attn.wq_a", "attention", hidden * query)
    yield Module("attn.wq_b", "attention", query * heads * size)
    yield Module("attn.wkv", "attention", hidden * size)
    yield Module("attn.wo_a", "attention", heads * size * rank)
    yield Module("attn.wo_b", "attention", groups * rank * hidden)
    ratio = (text.get("compress_ratios") or [0])[layer]
    if ratio:
        twice = 2 if ratio == 4 else 1  # overlapping windows
        yield Module("attn.compressor", "attention", 2 * hidden * size * twice, plain=True)
    if ratio == 4:
        inner, count = text["index_head_dim"], text["index_n_heads"]
        yield Module("attn.indexer.wq_b", "attention", query * count * inner)
        yield Module("attn.indexer", "attention", hidden * (count + 4 * inner), plain=True)


def _gdn(text: Config) -> Iterator[Module]:
    """Gated DeltaNet. Qwen3-Next joins the four inputs, which changes no size."""
    hidden = whole(text, "hidden_size")
    key = text["linear_num_key_heads"] * text["linear_key_head_dim"]
    value = text["linear_num_value_heads"] * text["linear_value_head_dim"]
    yield Module("linear_attn.in_proj_qkv", "linear", hidden * (2 * key + value))
    yield Module("linear_attn.in_proj_z", "linear", hidden * value)
    yield Module("linear_attn.in_proj_b", "linear", hidden * text["linear_num_value_heads"])
    yield Module("linear_attn.in_proj_a", "linear", hidden * text["linear_num_value_heads"])
    yield Module("linear_attn.out_proj", "linear", value * hidden)
    taps = text.get("linear_conv_kernel_dim", 4)
    yield Module("linear_attn.conv1d", "linear", (2 * key + value) * taps, plain=True)


def _kda(text: Config) -> int:
    """Parameters of Kimi Delta Attention: five projections of full width, two gates of low rank."""
    about, hidden = text["linear_attn_config"], whole(text, "hidden_size")
    size = about["head_dim"]
    wide = about["num_heads"] * size
    low_rank = 2 * (hidden * size + size * wide)
    return int(4 * hidden * wide + low_rank + hidden * about["num_heads"])


def _mamba(text: Config) -> Iterator[Module]:
    inner, hidden = text["mamba_num_heads"] * text["mamba_head_dim"], whole(text, "hidden_size")
    conv = inner + 2 * text.get("n_groups", 8) * text["ssm_state_size"]
    yield Module("mixer.in_proj", "linear", hidden * (inner + conv + text["mamba_num_heads"]))
    yield Module("mixer.out_proj", "linear", inner * hidden)
    yield Module("mixer.conv1d", "linear", conv * text.get("conv_kernel", 4), plain=True)


def _moe(text: Config, names: _Names) -> Iterator[Module]:
    hidden, count, model = whole(text, "hidden_size"), experts_of(text), str(text.get("model_type"))
    inner = text.get("moe_intermediate_size") or whole(text, "intermediate_size")
    matrices, latent = (2 if model == "nemotron_h" else 3), text.get("moe_latent_size")
    latent = latent or text.get("routed_expert_hidden_size")
    at = f"{names.experts}.experts".lstrip(".")
    yield Module(at, "experts", count * matrices * (latent or hidden) * inner)
    if model == "gpt_oss":
        yield Module(f"{at}.bias", "experts", count * (2 * inner + hidden), plain=True)
    if shared := _shared_inner(text, inner):
        yield from _mlp(names.shared, "shared expert", text, shared)
    if latent:
        yield Module("mixer.fc1_latent_proj", "latent", hidden * latent)
        yield Module("mixer.fc2_latent_proj", "latent", hidden * latent)
    yield Module(names.router, "router", hidden * count, plain=True)


def _shared_inner(text: Config, inner: int) -> int:
    """Width of the shared experts together; 0 without one."""
    for name in (
        "moe_shared_expert_intermediate_size",
        "shared_expert_intermediate_size",
        "share_expert_dim",
    ):
        if width := text.get(name):
            return int(width)
    if str(text.get("model_type")).startswith("llama4"):
        return inner
    shared = text.get("n_shared_experts") or text.get("num_shared_experts") or 0
    return int(inner * shared)


def _nas_mlp(text: Config, layer: int) -> int:
    """Parameters of an MLP whose width a search chose (`nemotron-nas`): the multiple of the hidden
    size, rounded up to 256.
    """
    block, hidden = text["block_configs"][layer]["ffn"], whole(text, "hidden_size")
    if block.get("no_op"):
        return 0
    inner = int(2 * block["ffn_mult"] * hidden / 3)
    return 3 * hidden * (-(-inner // 256) * 256)


def _draft(text: Config, kinds: list[str]) -> Iterator[Module]:
    """Yield the prediction layers: a layer each, and the projection of two vectors into one."""
    if not (count := draft_layers(text)):
        return
    hidden = whole(text, "hidden_size")
    if not {"full_attention", "attention"} & set(kinds):
        return
    first = "attention" if "attention" in kinds else "full_attention"
    layer = kinds.index(first)
    size = sum(m.params for m in _attention(text, _Names(), first, layer))
    if experts_of(text):
        size += sum(m.params for m in _moe(text, _Names()))
    else:
        size += 3 * hidden * (text.get("intermediate_size") or 0)
    yield Module("mtp", "draft", count * (size + 2 * hidden * hidden))


def _tower(vision: Any) -> int:
    """Parameters of a vision transformer by the usual keys; 0 without one, or its config
    says too little.
    """
    if not isinstance(vision, Mapping):
        return 0
    layers = (
        vision.get("depth")
        or vision.get("num_hidden_layers")
        or vision.get("vt_num_hidden_layers")
        or 0
    )
    hidden = vision.get("hidden_size") or vision.get("vt_hidden_size") or 0
    inner = vision.get("intermediate_size") or vision.get("vt_intermediate_size") or 0
    gated = 3 if vision.get("num_key_value_heads") else 2
    merged = hidden * (vision.get("spatial_merge_size") or 0) ** 2
    merger = merged * merged + merged * (vision.get("out_hidden_size") or 0) if merged else 0
    mergers = 1 + len(vision.get("deepstack_visual_indexes") or ())
    return int(layers * (4 * hidden * hidden + gated * hidden * inner) + mergers * merger)


def loaded(config: Config) -> int:
    """Bytes that a model takes when it is loaded, and not on disk (vLLM 0.32.0).

    The tables of rotary embeddings, one for each width (`layers/rotary_embedding/base.py`), values
    that are keys too (Gemma 4), and what Marlin's MXFP4 experts are padded by: the hidden size to
    256, their own to 128 (`layers/quantization/utils/mxfp4_utils.py`).
    """
    text = text_config(config)
    rows = text.get("max_position_embeddings") or 0
    widths = set()
    for layer, kind in enumerate(layer_kinds(text)):
        if "attention" not in kind or kind == "linear_attention":
            continue
        if text.get("kv_lora_rank") or "o_lora_rank" in text:
            widths.add(text["qk_rope_head_dim"])
        elif str(text.get("model_type")) != "nemotron_h":
            size = head_shape(text, kind, layer)[2]
            rope = text.get("rope_parameters") or {}
            part = text.get("partial_rotary_factor") or rope.get("partial_rotary_factor") or 1
            widths.add(int(size * part))
    wide = 4 if str(text.get("model_type")).startswith("deepseek") else 2
    tables = rows * wide * sum(widths)
    if text.get("attention_k_eq_v"):  # a second copy of the keys stands for the values
        for layer, kind in enumerate(layer_kinds(text)):
            _, keys, size, _ = head_shape(text, kind, layer)
            tables += (kind == "full_attention") * 2 * whole(text, "hidden_size") * keys * size
    said = config.get("quantization_config")
    if not isinstance(said, Mapping) or said.get("quant_method") != "mxfp4":
        return int(tables)
    hidden, inner = whole(text, "hidden_size"), whole(text, "intermediate_size")
    padded = -(-hidden // 256) * 256 * (-(-inner // 128) * 128)
    matrices = 3 * len(layer_kinds(text)) * experts_of(text)
    return int(tables + matrices * (padded - hidden * inner) * (4 + 8 / 32) / 8)
