"""Checks of the kernels as programs call them: repeatedly, in CUDA graphs, from torch and CuPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from sparkbook.kernels import marlin, reference
from sparkbook.kernels.on_gpu import TOLERANCE, OnGpu


def torch_ops_calls(torch: Any, rng: np.random.Generator) -> dict[str, tuple[Any, ...]]:
    """Return CPU arguments for each operator of `torch_ops`, small enough for numpy."""
    up = lambda a: torch.from_numpy(np.ascontiguousarray(a))  # noqa: E731
    normal = lambda *shape: np.asarray(rng.standard_normal(shape), np.float32)  # noqa: E731
    codes, scales, g = (up(a) for a in reference.quantize(normal(256, 512) * 0.02))
    x, one = up(normal(2, 512)).bfloat16(), torch.ones(1)
    w8 = up(reference.encode_e4m3(normal(80, 512)))
    pruned = reference.to_sparse24(codes.numpy(), scales.numpy(), allow_lossy=True)
    e, inter, hidden = 4, 64, 512
    c13, s13, g13 = (up(a) for a in reference.quantize(normal(e * 2 * inter, hidden) * 0.05))
    c2, s2, g2 = (up(a) for a in reference.quantize(normal(e * hidden, inter) * 0.05))
    experts = (
        c13.view(e, 2 * inter, -1),
        s13.view(e, 2 * inter, -1),
        g13 * torch.rand(e, 2),
        c2.view(e, hidden, -1),
        s2.view(e, hidden, -1),
        g2 * torch.rand(e),
    )
    ids, weights = torch.tensor([[0, 3], [2, -1]], dtype=torch.int32), torch.rand(2, 2)
    ordered = [
        tuple(
            up(np.stack([np.asarray(getattr(one, part)) for one in matrices]))
            for part in ("weights", "scales", "scale")
        )
        for matrices in (
            [marlin.to_marlin(codes.numpy(), scales.numpy(), float(g))],
            [
                marlin.to_marlin(c.numpy(), s.numpy(), 1e-4)
                for c, s in zip(*experts[:2], strict=True)
            ],
            [
                marlin.to_marlin(c.numpy(), s.numpy(), 1e-4)
                for c, s in zip(*experts[3:5], strict=True)
            ],
        )
    ]
    return {
        "fp4_gemv": (x, codes, scales, g.view(1)),
        "fp8_gemv": (x, w8, torch.ones(80)),
        "lm_head": (x, w8, torch.ones(80)),
        "moe_decode": (x, *experts, ids, weights),
        "marlin_gemv": (up(normal(11, 512)).bfloat16(), *(a[0] for a in ordered[0])),
        "marlin_moe": (x, *ordered[1], *ordered[2], ids, weights),
        "sparse_gemv": (x, up(pruned.tiles), g.view(1), pruned.n),
        "nvfp4_quantize": (x, one * 0.001),
        "nvfp4_dequantize": (codes, scales, g.view(1), torch.bfloat16),
        "rmsnorm_nvfp4_quantize": (x, up(normal(512)).bfloat16(), 1e-6, one * 0.001),
        "silu_mul_nvfp4_quantize": (up(normal(3, 128)).bfloat16(), one * 0.001),
    }


class CallerChecks(OnGpu):
    """The same results for each way to call a kernel."""

    def _calls(self) -> dict[str, tuple[Callable[..., None], Any]]:
        """Return one call of each product, and its result."""
        n, k, m = 1024, 2048, 4
        codes, scales, alpha = self.weights(n, k)
        x, _ = self.x(m, k, "bfloat16")
        sparse = self.up(reference.to_sparse24(codes, scales, allow_lossy=True).tiles)
        on = self.up(codes), self.up(scales), self.up(np.array([alpha], np.float32))
        fp8, ones = (
            self.up(reference.encode_e4m3(self.rng.standard_normal((n, k)))),
            self.up(np.ones(n, np.float32)),
        )
        w13, w2 = (tuple(map(self.up, w)) for w in self.experts(8, 256, 512))
        xm, ids = (
            x[:2, :512].contiguous(),
            self.up(self.rng.integers(0, 8, (2, 4)).astype(np.int32)),
        )
        weights = self.up(self.rng.uniform(0, 1, (2, 4)).astype(np.float32))
        h = self.torch.empty(2, 4, 256, dtype=x.dtype, device="cuda")
        y = {
            name: self.torch.full((m, n), float("nan"), device="cuda")
            for name in ("fp4", "fp8", "sparse")
        }
        y["moe"], y["experts"] = self.torch.full((2, 2, 512), float("nan"), device="cuda")
        y["marlin"] = self.torch.full((m, n), float("nan"), device="cuda")
        ordered = self.marlin(marlin.to_marlin(codes, scales, alpha))
        on13, on2 = self.marlin_experts(*self.experts(8, 256, 512), "bf16")[1]
        return {
            "fp4": (lambda **how: self.lib.fp4_gemv(x, *on, y["fp4"], **how), y["fp4"]),
            "fp8": (lambda **how: self.lib.fp8_gemv(x, fp8, ones, y["fp8"], **how), y["fp8"]),
            "sparse": (
                lambda **how: self.lib.sparse_gemv(x, sparse, on[2], y["sparse"], **how),
                y["sparse"],
            ),
            "moe": (
                lambda **how: self.lib.moe_decode(xm, w13, w2, ids, weights, h, y["moe"], **how),
                y["moe"],
            ),
            "marlin": (
                lambda **how: self.lib.marlin_gemv(x, *ordered, y["marlin"], **how),
                y["marlin"],
            ),
            "experts": (
                lambda **how: self.lib.marlin_moe(
                    xm, on13, on2, ids, weights, h, y["experts"], **how
                ),
                y["experts"],
            ),
        }

    def check_20_repeatable(self) -> str:
        """A hundred runs of each product are equal bit by bit, with other work on the GPU."""
        runs = 3 if self.quick else 100
        torch = self.torch
        # Small if quick: racecheck watches every access of this product as well.
        noise = torch.randn(2 * [64 if self.quick else 2048], device="cuda")
        side = torch.cuda.Stream()
        for name, (call, y) in self._calls().items():
            call()
            torch.cuda.synchronize()
            first = y.clone()
            for i in range(runs):
                with torch.cuda.stream(side):
                    noise @ noise
                y.fill_(float("nan"))
                call(pdl=bool(i % 2))
                assert torch.equal(y, first), f"{name}: run {i} differs"
        return f"{runs} runs of six products"

    def check_21_graph(self) -> str:
        """CUDA graphs capture and replay every product, with and without programmatic launch."""
        torch = self.torch
        for name, (call, y) in self._calls().items():
            call()
            first = y.clone()
            for pdl in (False, True):
                graph = torch.cuda.CUDAGraph()
                stream = torch.cuda.Stream()
                with torch.cuda.graph(graph, stream=stream):
                    for _ in range(3):
                        call(stream=stream.cuda_stream, pdl=pdl)
                y.fill_(float("nan"))
                graph.replay()
                torch.cuda.synchronize()
                assert torch.equal(y, first), f"{name}, pdl {pdl}"
        return "six products"

    def check_22_torch_operators(self) -> str:
        """torch operators: opcheck, torch.compile in one graph, and CUDA graphs, give what the
        library or the CPU's operator gives.
        """
        if self.quick:
            return "left out"
        torch = self.torch
        from sparkbook.kernels import torch_ops

        operators = torch_ops_calls(torch, self.rng)
        for name, arguments in operators.items():
            on = tuple(a.cuda() if isinstance(a, torch.Tensor) else a for a in arguments)
            operator = getattr(torch.ops.sparkbook, name)
            torch.library.opcheck(getattr(torch_ops, name), on)
            several = lambda y: y if isinstance(y, tuple) else (y,)  # noqa: E731
            plain = several(operator(*on))
            for got, want in zip(plain, several(operator(*arguments)), strict=True):
                assert got.shape == want.shape and got.dtype == want.dtype, (
                    f"{name}: {got.shape} {got.dtype}"
                )
                if want.dtype in (torch.uint8, torch.int64):
                    assert (got.cpu() != want).float().mean() < 1e-3, (
                        f"{name}: differs from the CPU's"
                    )
                else:
                    self.near(
                        name, got, want.double().numpy(), str(want.dtype).removeprefix("torch.")
                    )
            graph = torch.cuda.CUDAGraph()
            operator(*on)
            with torch.cuda.graph(graph):
                captured = several(operator(*on))
            for y in captured:
                y.zero_()
            graph.replay()
            assert all(torch.equal(y, want) for y, want in zip(captured, plain, strict=True)), (
                f"{name}: replay of a CUDA graph"
            )
            torch._dynamo.reset()  # the limit of recompilations counts by code, and the code is one
            compiled = torch.compile(
                lambda *a, operator=operator: operator(*a), backend="aot_eager", fullgraph=True
            )
            assert all(
                torch.equal(y, want) for y, want in zip(several(compiled(*on)), plain, strict=True)
            ), f"{name}: torch.compile"
        for name in ("fp4_gemv", "moe_decode", "marlin_gemv", "marlin_moe"):
            on = tuple(a.cuda() for a in operators[name])
            operator = getattr(torch.ops.sparkbook, name)
            for mode in ("default", "reduce-overhead"):
                torch._dynamo.reset()
                compiled = torch.compile(
                    lambda x, *rest, operator=operator: operator(x, *rest) + 1,
                    mode=mode,
                    fullgraph=True,
                )
                for _ in range(3):
                    y = compiled(*on)
                assert torch.equal(y, operator(*on) + 1), f"{name}: torch.compile, {mode}"
        return ", ".join(operators)

    def check_23_cupy(self) -> str:
        """Arrays of CuPy through __cuda_array_interface__, without a copy."""
        try:
            import cupy
        except ImportError:
            return "left out: CuPy is not installed"
        codes, scales, alpha = self.weights(64, 256)
        x = cupy.asarray(self.rng.standard_normal((2, 256)), dtype=cupy.float16)
        y = cupy.full((2, 64), cupy.nan, cupy.float32)
        self.lib.fp4_gemv(
            x,
            cupy.asarray(codes),
            cupy.asarray(scales),
            cupy.asarray(np.array([alpha], np.float32)),
            y,
        )
        cupy.cuda.runtime.deviceSynchronize()
        want = reference.fp4_gemv(x.get(), codes, scales, alpha)
        error = float(np.linalg.norm(y.get() - want) / np.linalg.norm(want))
        assert error < TOLERANCE["float32"], f"error {error:.1e}"
        return f"error {error:.1e}"
