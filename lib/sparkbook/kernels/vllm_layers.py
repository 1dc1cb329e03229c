"""The kernels inside vLLM's own classes for Marlin: `vllm_plugin` installs them.

They read the weights in the order in which Marlin keeps them, so that nothing is stored twice and
each number of tokens takes whichever product was measured faster when the model was loaded
(`vllm_choice`). Both are W4A16. Other backends keep the weights in other orders; their layers stay
as they are, since a second copy would cost as much memory as the first.

Written against vLLM 0.24.0, 0.32.0 and 0.33.0.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import vllm
from vllm import envs
from vllm.model_executor.kernels import linear
from vllm.model_executor.kernels.linear.nvfp4.marlin import MarlinNvFp4LinearKernel
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
from vllm.platforms.interface import PlatformEnum

from sparkbook.kernels import (
    build,
    torch_ops,  # defines torch.ops.sparkbook
    vllm_choice,
)
from sparkbook.kernels.library import MARLIN_TOKENS
from sparkbook.kernels.vllm_choice import Calls, Choice, Choices

_log = logging.getLogger("vllm.sparkbook")  # vLLM shows what is logged below 'vllm'


@functools.cache
def _say(text: str) -> None:
    """A line in vLLM's log, once: a model has many layers of few sizes."""
    _log.info(text)


def _choice(what: str, shape: str, dtype: torch.dtype, measure: Callable[[], Choice]) -> Choice:
    """Return what was measured for a shape, now or before, and say it."""
    choices = Choices(Path(envs.VLLM_CACHE_ROOT) / "sparkbook-choices.json")
    kernels = f"kernels {build.VERSION} {build.source_hash()}"
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    key = " | ".join((card, f"vLLM {vllm.__version__}", kernels, what, shape, str(dtype)))
    try:
        choice = choices.get(key, measure)
    except Exception as error:  # noqa: BLE001 - a plug-in must not take the server down
        choice = Choice({}, {}, f"measuring failed ({type(error).__name__}: {error})")
    _say(f"NVFP4 {shape} ({what}; nothing is stored twice): {choice.words()}")
    return choice


# ---- linear layers


@dataclass(frozen=True)
class _Linear:
    """Our product for a layer, and which numbers of rows take it."""

    ours: Callable[[torch.Tensor], torch.Tensor]
    taken: list[bool]


_LAYERS: dict[int, _Linear] = {}
"""By the address of the weights."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Limit:
    """Rows up to which linear layers may be ours: in a mixture, no more than its experts. With
    vLLM's experts between them, our linear layers have won nothing in a whole model, though each
    was faster by itself (`kernels/VERSIONS.md`).
    """

    rows = MARLIN_TOKENS

    @classmethod
    def lower(cls, table: list[bool]) -> None:
        """Follow the choice of a layer's experts."""
        most = next((m - 1 for m in range(1, len(table)) if not table[m]), len(table) - 1)
        if max(most, 0) < cls.rows:
            cls.rows = max(most, 0)
            more = f"more than {cls.rows} tokens" if cls.rows else "any number of tokens"
            _say(f"NVFP4 linear layers of {more} are vLLM's own, as the experts are")


def hook(operator: Any) -> None:
    """Make calls of Marlin's operator take the choice. Graphs that torch compiles hold the operator
    as they would without us, and call this Python object, so that a call that is not ours costs a
    look into a dictionary; tensors that stand for others while a graph is traced pass through.
    """
    names = [one.name.removesuffix("_or_none") for one in operator._schema.arguments]
    x_at, weight_at, bias_at = (names.index(name) for name in ("a", "b_q_weight", "b_bias"))
    bias_name = operator._schema.arguments[bias_at].name
    theirs = operator._op

    def chosen(*args: Any, **named: Any) -> torch.Tensor:
        x = args[x_at] if args else named["a"]
        # Prompts call this more than a hundred times a step, and wait for it: their way is short.
        if type(x) is torch.Tensor and x.shape[0] <= _Limit.rows:
            if len(args) > bias_at:
                weight, bias = args[weight_at], args[bias_at]
            else:
                weight, bias = named.get("b_q_weight"), named.get(bias_name)
            if type(weight) in _PLAIN and bias is None:
                layer = _LAYERS.get(weight.data_ptr())
                if layer and x.shape[0] < len(layer.taken) and layer.taken[x.shape[0]]:
                    return layer.ours(x)
        return theirs(*args, **named)

    operator._op = chosen


def _ours(layer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weights, scales, scale = layer.weight, layer.weight_scale, layer.weight_global_scale

    def product(x: torch.Tensor) -> torch.Tensor:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        y = torch.ops.sparkbook.marlin_gemv(rows, weights, scales, scale, pdl=True)
        return y.view(*x.shape[:-1], y.shape[-1])

    return product


def _twin(held: dict[str, Any]) -> SimpleNamespace:
    """Return a copy of a layer's attributes, tensors with memory of their own."""
    copied = {n: v.clone() if isinstance(v, torch.Tensor) else v for n, v in held.items()}
    return SimpleNamespace(**copied)


def _settle(kernel: Any, layer: torch.nn.Module, theirs: Callable[..., torch.Tensor]) -> None:
    """Measure a layer's shape, unless that was done, and note its products."""
    n, k = layer.output_size_per_partition, layer.input_size_per_partition
    weight = layer.weight
    if tuple(weight.shape) != (k // 16, 2 * n) or n % 64 or k % 32:
        return _say(f"NVFP4 linear {n} x {k}: vLLM's own, for Marlin pads it")

    def measure() -> Choice:
        nbytes = weight.nbytes + layer.weight_scale.nbytes
        held = {**layer.__dict__, **dict(layer.named_parameters(recurse=False))}
        twins = [_twin(held) for _ in range(vllm_choice.copies(nbytes))]
        xs = {m: torch.randn(m, k, device=weight.device).to(dtype) for m in vllm_choice.SIZES}

        def calls(product: Callable[[Any, torch.Tensor], torch.Tensor], m: int) -> Calls:
            return [functools.partial(product, twin, xs[m]) for twin in twins]

        return vllm_choice.measure(
            lambda m: calls(lambda twin, x: _ours(twin)(x), m),
            lambda m: calls(lambda twin, x: theirs(kernel, twin, x), m),
            MARLIN_TOKENS,
        )

    dtype = layer.params_dtype
    choice = _choice(type(kernel).__name__, f"linear {n} x {k}", dtype, measure)
    _LAYERS[weight.data_ptr()] = _Linear(_ours(layer), choice.table())


def _install_linear() -> None:
    for space in (torch.ops._C, torch.ops.vllm):  # before vLLM 0.32, and since
        if hasattr(space, "marlin_gemm"):
            hook(space.marlin_gemm.default)
    load, apply = (
        MarlinNvFp4LinearKernel.process_weights_after_loading,
        MarlinNvFp4LinearKernel.apply_weights,
    )

    def process_weights_after_loading(self: Any, layer: torch.nn.Module) -> None:
        load(self, layer)
        _settle(self, layer, apply)

    MarlinNvFp4LinearKernel.process_weights_after_loading = process_weights_after_loading
    for other in linear._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CUDA]:
        if other is not MarlinNvFp4LinearKernel:
            _refuse(other)


def _refuse(kernel: Any) -> None:
    """Say at the first layer of another backend why it stays as it is."""
    load = kernel.process_weights_after_loading

    def process_weights_after_loading(self: Any, layer: torch.nn.Module) -> None:
        load(self, layer)
        _say(
            f"NVFP4 linear layers stay {type(self).__name__}'s: the kernels read Marlin's order,"
            " and a second copy of the weights would cost as much memory as the first"
            " (--linear-backend marlin has one for both)"
        )

    kernel.process_weights_after_loading = process_weights_after_loading


# ---- experts


def _experts(self: Any, call: SimpleNamespace) -> torch.Tensor:
    """Write the experts' weighted sum into `output` [M, hidden], and return it."""
    ids = call.topk_ids
    if call.expert_map is not None:
        ids = call.expert_map[ids.long()]  # -1 where an expert lives elsewhere
    w13, w2 = (call.w1, self.w1_scale, self.g1_alphas), (call.w2, self.w2_scale, self.g2_alphas)
    torch_ops.marlin_moe_into(
        call.output, call.hidden_states, w13, w2, ids.int(), call.topk_weights.float()
    )
    return call.output


def _fits(self: Any, call: SimpleNamespace) -> bool:
    """Return whether our kernel does this call: plain SiLU without a limit, no bias, no LoRA, sizes
    on its grid, weights applied after the experts.
    """
    experts, hidden = call.w1.shape[0], call.hidden_states.shape[1]
    inter = call.w1.shape[2] // 4
    return (
        self.quant_config.use_nvfp4_w4a16
        and call.activation == MoEActivation.SILU
        and not call.apply_router_weight_on_input
        and getattr(self, "_lora_context", None) is None
        and all(getattr(self, name) is None for name in ("gemm1_clamp_limit", "w1_bias", "w2_bias"))
        and call.hidden_states.dtype in (torch.bfloat16, torch.float16)
        and tuple(call.w1.shape[1:]) == (hidden // 16, 4 * inter)
        and tuple(call.w2.shape) == (experts, inter // 16, 2 * hidden)
        and hidden % 64 == inter % 64 == 0
        and call.topk_ids.shape[1] <= 64
    )


_ARGUMENTS = [
    *("output", "hidden_states", "w1", "w2", "topk_weights", "topk_ids", "activation"),
    *("global_num_experts", "expert_map", "a1q_scale", "a2_scale", "workspace13", "workspace2"),
    *("expert_tokens_meta", "apply_router_weight_on_input"),
]


def _measure_experts(self: Any, call: SimpleNamespace, theirs: Callable[..., Any]) -> Choice:
    """Time both products with experts drawn anew for each of sixteen calls: other experts for each
    token, and the same for all, which Marlin reads once. What is worse for ours counts.
    """
    x, (experts, topk) = call.hidden_states, (call.w1.shape[0], call.topk_ids.shape[1])

    def drawn(m: int, i: int, same: bool) -> SimpleNamespace:
        chance = torch.Generator(x.device).manual_seed(i)
        rows = torch.rand(m, experts, device=x.device, generator=chance).topk(topk).indices
        if same:
            rows = rows[:1].repeat(m, 1)
        one = {
            **vars(call),
            "hidden_states": torch.randn(x[:1].expand(m, -1).shape, device=x.device).to(x.dtype),
            "topk_ids": rows.to(call.topk_ids.dtype),
            "topk_weights": torch.full((m, topk), 1 / topk, device=x.device),
            "output": x.new_empty(m, x.shape[1]),
            "expert_map": None,
            "global_num_experts": experts,
        }
        size = self.moe_problem_size(one["hidden_states"], call.w1, call.w2, rows)
        rooms = self.workspace_shapes(*size[1:], experts, experts, None, call.activation)
        one["workspace13"], one["workspace2"] = (x.new_empty(room) for room in rooms[:2])
        return SimpleNamespace(**one)

    def run_theirs(one: SimpleNamespace) -> torch.Tensor:
        theirs(self, *(getattr(one, name) for name in _ARGUMENTS))
        return one.output

    def timed(same: bool) -> Choice:
        @functools.cache
        def sets(m: int) -> list[SimpleNamespace]:
            return [drawn(m, i, same) for i in range(16)]

        return vllm_choice.measure(
            lambda m: [functools.partial(_experts, self, one) for one in sets(m)],
            lambda m: [functools.partial(run_theirs, one) for one in sets(m)],
            vllm_choice.SIZES[-1],
        )

    return vllm_choice.worse(timed(False), timed(True))


def _install_experts() -> None:
    theirs = MarlinExperts.apply

    def taken(self: Any, call: SimpleNamespace) -> list[bool]:
        """Measure this layer at its first call, which captures no graph, and return its table."""
        if call.hidden_states.is_cuda and torch.cuda.is_current_stream_capturing():
            return []
        experts, hidden, inter = call.w1.shape[0], call.w1.shape[1] * 16, call.w1.shape[2] // 4
        shape = f"experts, {experts} of {inter} x {hidden}, {call.topk_ids.shape[1]} a token"
        if _fits(self, call):
            measure = functools.partial(_measure_experts, self, call, theirs)
            table = _choice("MarlinExperts", shape, call.hidden_states.dtype, measure).table()
        else:
            _say(f"NVFP4 {shape}: vLLM's own, for the kernels don't do this layer")
            table = []
        self._sparkbook_taken = table
        _Limit.lower(table)
        return table

    def apply(self: Any, *values: Any, **named: Any) -> Any:
        table = getattr(self, "_sparkbook_taken", None)
        rows = (values[1] if len(values) > 1 else named["hidden_states"]).shape[0]
        if table is None or rows < len(table):  # prompts take the short way
            call = SimpleNamespace(**dict(zip(_ARGUMENTS, values, strict=False)), **named)
            table = taken(self, call) if table is None else table
            if rows < len(table) and table[rows] and _fits(self, call):
                _experts(self, call)
                return None
        return theirs(self, *values, **named)

    MarlinExperts.apply = apply


def install() -> None:
    """Put the choice into both classes. May be called again; a second call changes nothing."""
    if getattr(MarlinExperts, "sparkbook", False):
        return
    _install_linear()
    _install_experts()
    MarlinExperts.sparkbook = True
