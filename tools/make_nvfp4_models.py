"""Makes small models that a real vLLM serves with NVFP4 weights, and shapes of large ones without
weights.

    python tools/make_nvfp4_models.py SMOLLM2_FOLDER OUT

From SmolLM2-135M-Instruct in bfloat16 (what `sparkbook.serve.smollm2` converts):

    bf16                the model itself
    nvfp4               its linear layers in NVFP4, in the names of Model Optimizer
    nvfp4-ct            the same numbers in the names of compressed-tensors
    moe-bf16            a mixture of experts made of it: eight experts a layer, each the dense
    layer's weights with 5 % noise of its own,
                        and a router that was not trained. Two experts a token, their weights adding
                        to one: it answers much as SmolLM2 does, and a kernel that takes a wrong
                            expert or a wrong scale is seen in the tokens.
    moe-nvfp4           its experts and attention in NVFP4
    moe-nvfp4-ct        the same in the names of compressed-tensors

and, for `--load-format dummy`, a config and SmolLM2's tokenizer each: `shape-8b` (Qwen3-8B) and
`shape-30b` (Qwen3-30B-A3B), with SmolLM2's vocabulary of 49152.

Weights are quantized by the project's own operator (K2 on a GPU, the numpy reference on a CPU).
Layers that vLLM joins (q, k and v; gate and up) share one scale for the whole tensor, as both
producers write them. The activations' scales, which only a W4A4 product looks at, come from one
forward pass over prose, code and JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sparkbook.bench import prompts
from sparkbook.kernels import torch_ops  # noqa: F401 - defines torch.ops.sparkbook

EXPERTS, TOP_K, NOISE = 8, 2, 0.05
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))
LARGEST = 6 * 448
ACTIVATIONS = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
}
CONFIGS = {
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "format": "nvfp4-pack-quantized",
                "weights": {**ACTIVATIONS, "dynamic": False},
                "input_activations": {**ACTIVATIONS, "dynamic": "local"},
            }
        },
    },
}
SHAPES = {
    "shape-8b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "shape-30b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}
COMMON = {
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "vocab_size": 49152,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}


def largest_inputs(folder: Path) -> dict[str, float]:
    """The largest magnitude that each linear layer of SmolLM2 was given, over a few texts."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(DEVICE)
    tokenizer, seen = AutoTokenizer.from_pretrained(folder), {}

    def look(name: str):
        def hook(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            seen[name] = max(seen.get(name, 0.0), float(inputs[0].abs().max()))

        return hook

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(look(name))
    with torch.no_grad():
        for kind in ("prose", "code", "json"):
            for prompt in prompts.make(kind, 2, salt=None):
                model(
                    **tokenizer(
                        prompt.text, return_tensors="pt", truncation=True, max_length=512
                    ).to(DEVICE)
                )
    return seen


def mixture(
    dense: dict[str, torch.Tensor], inputs: dict[str, float]
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """SmolLM2's tensors and inputs under Mixtral's names, with experts for its MLPs."""
    drawn = torch.Generator().manual_seed(20261128)
    made, given = {}, dict(inputs)
    for name, tensor in dense.items():
        head, _, part = name.partition(".mlp.")
        if not part:
            made[name] = tensor
            continue
        which = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}[
            part.removesuffix(".weight")
        ]
        for expert in range(EXPERTS):
            module = f"{head}.block_sparse_moe.experts.{expert}.{which}"
            noise = torch.randn(tensor.shape, generator=drawn) * NOISE * tensor.float().std()
            made[f"{module}.weight"] = (tensor.float() + noise).to(tensor.dtype)
            given[module] = inputs.get(name.removesuffix(".weight"), 1.0)
        if which == "w1":
            router = torch.randn(EXPERTS, tensor.shape[1], generator=drawn) * 0.05
            made[f"{head}.block_sparse_moe.gate.weight"] = router.to(tensor.dtype)
    made["lm_head.weight"] = made["model.embed_tokens.weight"].clone()
    return made, given


def groups(names: list[str]) -> Iterator[list[str]]:
    """Modules that take one scale for the whole tensor: those that vLLM joins, and each other one
    by itself.
    """
    left = set(names)
    for name in names:
        if name not in left:
            continue
        head, _, part = name.rpartition(".")
        group = next((parts for parts in JOINED if part in parts), (part,))
        found = [f"{head}.{other}" for other in group if f"{head}.{other}" in left]
        left -= set(found)
        yield found


def quantized(
    tensors: dict[str, torch.Tensor], inputs: dict[str, float], producer: str
) -> dict[str, torch.Tensor]:
    """The tensors with every linear layer but router and lm_head in NVFP4, under the producer's
    names.
    """
    linear = [
        name.removesuffix(".weight")
        for name, tensor in tensors.items()
        if tensor.ndim == 2
        and "embed_tokens" not in name
        and "lm_head" not in name
        and ".gate." not in name
    ]
    done = {
        name: tensor
        for name, tensor in tensors.items()
        if name.removesuffix(".weight") not in set(linear)
    }
    for group in groups(linear):
        weights = {name: tensors[f"{name}.weight"].float().to(DEVICE) for name in group}
        g = max(weight.abs().max() for weight in weights.values()) / LARGEST
        given = torch.tensor(max(inputs.get(name, 1.0) for name in group) / LARGEST)
        for name, weight in weights.items():
            codes, scales = torch.ops.sparkbook.nvfp4_quantize(weight, g.reshape(1))
            scales = scales.cpu().view(torch.float8_e4m3fn)
            if producer == "modelopt":
                parts = {
                    "weight": codes.cpu(),
                    "weight_scale": scales,
                    "weight_scale_2": g.cpu(),
                    "input_scale": given.clone(),
                }
            else:
                parts = {
                    "weight_packed": codes.cpu(),
                    "weight_scale": scales,
                    "weight_global_scale": (1 / g).cpu().reshape(1),
                    "input_global_scale": (1 / given).reshape(1),
                }
            done |= {f"{name}.{key}": value for key, value in parts.items()}
    return done


def write(
    folder: Path,
    source: Path,
    config: dict,
    tensors: dict[str, torch.Tensor] | None,
    producer: str | None = None,
) -> None:
    """A model's folder: the tokenizer of `source`, the config, the tensors if there are any."""
    folder.mkdir(parents=True)
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors", "sparkbook.json"):
            shutil.copy(file, folder)
    if producer:
        left_out = ["lm_head"] if producer == "compressed-tensors" else ["lm_head", "*.gate"]
        config = config | {"quantization_config": CONFIGS[producer] | {"ignore": left_out}}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    if tensors is not None:
        # Copies: scales that several layers share are one tensor, which the file format does not
        # allow.
        tensors = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def main(source: Path, out: Path) -> None:
    """All models below `out`."""
    config = json.loads((source / "config.json").read_text())
    dense, inputs = load_file(source / "model.safetensors"), largest_inputs(source)
    dense.pop("lm_head.weight", None)  # tied to the embedding
    moe, moe_inputs = mixture(dense, inputs)
    moe_config = config | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "rope_theta": 100000.0,
    }
    for name, tensors, given, its_config in (
        ("", dense, inputs, config),
        ("moe-", moe, moe_inputs, moe_config),
    ):
        write(out / f"{name}bf16", source, its_config, tensors)
        # vLLM 0.24 can't tie the output layer of a ModelOpt checkpoint to the embedding (signature
        # LOG340): it is stored by itself.
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
        its_config = its_config | {"tie_word_embeddings": False}
        write(
            out / f"{name}nvfp4",
            source,
            its_config,
            quantized(tensors, given, "modelopt"),
            "modelopt",
        )
        write(
            out / f"{name}nvfp4-ct",
            source,
            its_config,
            quantized(tensors, given, "compressed-tensors"),
            "compressed-tensors",
        )
    for name, shape in SHAPES.items():
        write(out / name, source, COMMON | shape, None, "modelopt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
