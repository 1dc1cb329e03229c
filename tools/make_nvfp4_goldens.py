"""Makes tests/data/nvfp4: the same weights quantized by NVIDIA's Model Optimizer and by
compressed-tensors, with their own code.

    pip install nvidia-modelopt==0.47.0 compressed-tensors==0.17.0 torch safetensors omegaconf pulp
    scipy python tools/make_nvfp4_goldens.py

The largest weight is 2688 / 4096, so that both libraries' global scales are a power of two, one
2^-12 and the other 2^12, and both round the same numbers: they have to come to the same codes.
`expected.json` holds the hash of what each library itself decodes: float32, little-endian, -0 as 0.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.quant_scheme import NVFP4
from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
from modelopt.torch.export.diffusers_utils import swizzle_nvfp4_scales
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from safetensors.torch import save_file

OUT = Path(__file__).parents[1] / "tests" / "data" / "nvfp4"
LARGEST = 2688 / 4096
SHAPES = {
    f"model.layers.0.self_attn.{part}_proj": (rows, 64)
    for part, rows in (("q", 32), ("k", 16), ("v", 16))
} | {
    f"model.layers.0.mlp.experts.{expert}.{part}_proj": (64, 64)
    for expert in (0, 1)
    for part in ("gate", "up", "down")
}
CONFIG = {"architectures": ["TinyForCausalLM"], "model_type": "tiny"}
INPUT_SCALE = 2.0**-7


def digest(weight: torch.Tensor) -> str:
    return hashlib.sha256((weight.float() + 0.0).contiguous().numpy().tobytes()).hexdigest()


def weights() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(20261128)
    found = {}
    for name, shape in SHAPES.items():
        weight = torch.randn(shape, generator=generator) * 0.1
        weight = weight.clamp(-LARGEST, LARGEST)
        weight[3, 5] = -LARGEST
        weight[7, 16:32] = 0  # a block of zeros: the libraries give its scale different values
        found[name] = weight
    return found


def modelopt(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    quantized, scale, scale_2 = NVFP4QTensor.quantize(weight.clone(), 16)
    again = quantized.dequantize(
        torch.float32, scale=scale, double_scale=scale_2, block_sizes={-1: 16}
    )
    return {
        "weight": quantized._quantized_data,
        "weight_scale": scale,
        "weight_scale_2": scale_2.reshape(()),
    }, again


def compressed_tensors(weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    scheme = QuantizationScheme(targets=["Linear"], **NVFP4)
    divisor = generate_gparam(weight.min(), weight.max())
    blocks = weight.reshape(weight.shape[0], -1, 16)
    scale, _ = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme.weights, divisor)
    packed = NVFP4PackedCompressor.compress(
        {"weight": weight, "weight_scale": scale, "weight_global_scale": divisor}, scheme
    )
    again = NVFP4PackedCompressor.decompress(dict(packed), scheme)["weight"]
    return {
        key: packed[key] for key in ("weight_packed", "weight_scale", "weight_global_scale")
    }, again


def main() -> None:
    expected: dict[str, dict[str, str]] = {}
    head = {"lm_head.weight": torch.ones(4, 64, dtype=torch.bfloat16)}
    ignored = {"ignore": ["lm_head"]}
    configs = {
        "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", **ignored},
        "compressed-tensors": {
            "quant_method": "compressed-tensors",
            "format": "nvfp4-pack-quantized",
            **ignored,
        },
    }
    for library, quantize, input_scale in (
        ("modelopt", modelopt, {"input_scale": torch.tensor(INPUT_SCALE)}),
        (
            "compressed-tensors",
            compressed_tensors,
            {"input_global_scale": torch.tensor([1 / INPUT_SCALE])},
        ),
    ):
        folder = OUT / library
        folder.mkdir(parents=True, exist_ok=True)
        tensors = dict(head)
        for name, weight in weights().items():
            parts, again = quantize(weight)
            tensors |= {
                f"{name}.{key}": value.clone() for key, value in {**parts, **input_scale}.items()
            }
            expected.setdefault(library, {})[name] = digest(again)
        save_file(tensors, folder / "model.safetensors")
        (folder / "config.json").write_text(
            json.dumps({**CONFIG, "quantization_config": configs[library]}, indent=1) + "\n"
        )
    # The layout that cuBLAS and CUTLASS want: 136 rows of 2 scales become 256 of 4.
    wide = (torch.randn((136, 32), generator=torch.Generator().manual_seed(1)) * 0.1).clamp(
        -LARGEST, LARGEST
    )
    wide[3, 5] = LARGEST
    parts, again = modelopt(wide)
    tensors = swizzle_nvfp4_scales({f"wide.{key}": value for key, value in parts.items()})
    folder = OUT / "swizzled"
    folder.mkdir(exist_ok=True)
    save_file(
        {key: value.contiguous() for key, value in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(
        json.dumps({**CONFIG, "quantization_config": configs["modelopt"]}, indent=1) + "\n"
    )
    expected["swizzled"] = {"wide": digest(again)}
    (OUT / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main()
