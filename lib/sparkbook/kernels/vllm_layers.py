"""The kernels as vLLM's classes: one for linear layers, one for the experts of a mixture-of-experts
layer. `vllm_plugin` installs them.

Written against vLLM 0.24.0, 0.32.0 and 0.33.0. Both read weights in the checkpoint's layout (codes,
linear E4M3 scales, a global scale that multiplies), which is what vLLM's backend 'emulation' keeps,
so that nothing is stored twice. Activations are not quantized on the way through the kernels
(W4A16): results differ from a W4A4 backend's, and are closer to those of unquantized activations.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import torch
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear import NvFp4LinearKernel
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.nvfp4_emulation_moe import (
    Nvfp4QuantizationEmulationTritonExperts,
)
from vllm.model_executor.layers.fused_moe.oracle import nvfp4 as oracle
from vllm.platforms.interface import PlatformEnum

from sparkbook.kernels import (
    torch_ops,  # defines torch.ops.sparkbook
    vllm_support,
)
from sparkbook.kernels.library import MAX_TOKENS

_log = logging.getLogger("vllm.sparkbook")  # vLLM shows what is logged below 'vllm'


@functools.cache
def _say(text: str) -> None:
    """A line in vLLM's log, once: a model has many layers of few sizes."""
    _log.info(text)


class SparkbookNvFp4LinearKernel(NvFp4LinearKernel):
    """K3 and K4 for up to sixteen tokens, by eights; for more, the weights are dequantized for the
    call and multiplied by torch.
    """

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        """As vLLM asks it: (usable, or why not)."""
        reason = vllm_support.refusal()
        return reason is None, reason

    @classmethod
    def can_implement(cls, config: Any) -> tuple[bool, str | None]:
        """Return that every NVFP4 layer can be served: the kernel checks sizes itself."""
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing to repack; vLLM's log says what the layer takes."""
        n, k = layer.weight.shape[0], 2 * layer.weight.shape[1]
        few = f"fp4_gemv for 1 to {torch_ops.MAX_ROWS} tokens, dequantized for more"
        _say(
            f"NVFP4 linear layers of {n} x {k}:"
            f" {few if k % 64 == 0 else 'dequantized for every call, since K is no multiple of 64'}"
        )

    def apply_weights(
        self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """x [..., K] times the layer's weights [N, K]."""
        rows = x.reshape(-1, x.shape[-1])
        y = torch.ops.sparkbook.nvfp4_linear(
            rows, layer.weight, layer.weight_scale, layer.weight_global_scale
        )
        if bias is not None:
            y = y + bias
        return y.view(*x.shape[:-1], y.shape[-1])


class SparkbookNvFp4Experts(Nvfp4QuantizationEmulationTritonExperts):
    """K5 for up to eight tokens; otherwise vLLM's emulation, which reads the same layout."""

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Nothing to repack; vLLM's log says what the layer takes."""
        super().process_weights_after_loading(layer)
        experts, hidden, inter = (
            layer.w13_weight.shape[0],
            2 * layer.w13_weight.shape[2],
            2 * layer.w2_weight.shape[2],
        )
        few = f"moe_decode for 1 to {MAX_TOKENS} tokens, vLLM's emulation for more"
        fits = hidden % 64 == 0 and inter % 64 == 0
        _say(
            f"NVFP4 experts, {experts} of {inter} x {hidden}:"
            f" {few if fits else 'emulation, since a size is no multiple of 64'}"
        )

    def apply(  # noqa: PLR0913 - vLLM's signature
        self,
        output: torch.Tensor,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        activation: MoEActivation,
        global_num_experts: int,
        expert_map: torch.Tensor | None,
        *rest: Any,
        **named: Any,
    ) -> None:
        """Writes the experts' weighted sum into `output` [M, hidden]; the arguments are vLLM's."""
        weighted_before = named.get("apply_router_weight_on_input", rest[-1] if rest else False)
        if self._unfit(hidden_states, w1, w2, activation) or weighted_before:
            super().apply(
                output,
                hidden_states,
                w1,
                w2,
                topk_weights,
                topk_ids,
                activation,
                global_num_experts,
                expert_map,
                *rest,
                **named,
            )
            return
        ids = (
            topk_ids if expert_map is None else expert_map[topk_ids.long()]
        )  # -1 where an expert lives elsewhere
        alpha = self.quant_config.g1_alphas
        y = torch.ops.sparkbook.moe_decode(
            hidden_states,
            w1,
            self.w1_scale_val,
            torch.stack((alpha, alpha), 1),
            w2,
            self.w2_scale_val,
            self.quant_config.g2_alphas,
            ids.int(),
            topk_weights.float(),
        )
        output.copy_(y)

    def _unfit(
        self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, activation: MoEActivation
    ) -> bool:
        """Return whether K5 does not do this call: too many tokens, another activation than plain
        SiLU, or sizes off its grid.
        """
        changed = any(
            getattr(self.quant_config, name, None) is not None
            for name in ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit")
        )
        hidden, inter = x.shape[1], 2 * w2.shape[2]
        return (
            not 1 <= x.shape[0] <= MAX_TOKENS
            or activation != MoEActivation.SILU
            or changed
            or x.dtype not in (torch.bfloat16, torch.float16)
            or hidden % 64 != 0
            or inter % 64 != 0
            or w1.shape[1] != 2 * inter
        )


def install() -> None:
    """Puts both classes where vLLM chooses: first among the linear kernels for CUDA, and in the
    place of 'emulation' for experts.

    May be called again; a second call changes nothing.
    """
    kernels = linear._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CUDA]
    if SparkbookNvFp4LinearKernel not in kernels:
        kernels.insert(0, SparkbookNvFp4LinearKernel)
    before = oracle.backend_to_kernel_cls
    if getattr(before, "sparkbook", False):
        return

    def backend_to_kernel_cls(backend: Any) -> list[type]:
        return (
            [SparkbookNvFp4Experts]
            if backend == oracle.NvFp4MoeBackend.EMULATION
            else before(backend)
        )

    backend_to_kernel_cls.sparkbook = True  # type: ignore[attr-defined]
    oracle.backend_to_kernel_cls = backend_to_kernel_cls
