"""What the checks on a GPU share: inputs, results with guards around them, and their errors."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkbook.errors import SparkbookError
from sparkbook.kernels import marlin, reference
from sparkbook.kernels.library import Library

#: Relative Frobenius error that passes, by the result's type: one rounding of that type, or
#: float32 sums in another order.
EXPERTS = ((1, 1, 4, 64, 64), (1, 10, 24, 512, 2048), (3, 8, 12, 192, 320), (2, 16, 16, 320, 576))
"""Layers of experts to check: tokens, experts a token, experts, their width, and the model's."""

TOLERANCE = {"float32": 5e-4, "bfloat16": 4e-3, "float16": 1e-3}


class OnGpu:
    """Random inputs, guarded results and their errors on a GPU, for classes of checks.

    Each method that starts with `check_` is a check: it asserts, and returns what it saw. Its
    docstring is its name.
    """

    def __init__(self, quick: bool) -> None:
        try:
            import torch
        except ImportError:
            raise SparkbookError(
                "the checks need torch with CUDA, which is missing here: pip install torch"
            ) from None
        if not torch.cuda.is_available():
            raise SparkbookError(
                "torch finds no GPU here; the numpy reference is checked by the project's tests"
            )
        self.torch, self.quick = torch, quick
        self.lib = Library.for_device()
        self.native_prefill = torch.cuda.get_device_capability()[0] == 12
        self.rng = np.random.default_rng(7)

    def up(self, array: Any, dtype: str | None = None) -> Any:
        """To the GPU, rounded to a type."""
        tensor = self.torch.from_numpy(np.ascontiguousarray(array)).cuda()
        return tensor.to(getattr(self.torch, dtype)) if dtype else tensor

    def poisoned(self, *shape: int, dtype: str = "float32") -> Any:
        """Return a result full of NaN (or 0xa5), with guards before and behind."""
        t = getattr(self.torch, dtype)
        size = int(np.prod(shape))
        whole = self.torch.full(
            (size + 512,), 0xA5 if dtype == "uint8" else float("nan"), dtype=t, device="cuda"
        )
        part = whole[256 : 256 + size].view(shape)
        part.guards = (whole[:256], whole[256 + size :])
        return part

    def intact(self, part: Any) -> bool:
        """Return whether nothing was written outside."""
        if part.dtype == self.torch.uint8:
            return all(bool((guard == 0xA5).all()) for guard in part.guards)
        return all(bool(guard.isnan().all()) for guard in part.guards)

    def weights(self, n: int, k: int, std: float = 0.02) -> tuple[Any, Any, float]:
        codes, scales, g = reference.quantize(
            self.rng.standard_normal((n, k)).astype(np.float32) * std
        )
        return codes, scales, float(g)

    def x(self, m: int, k: int, dtype: str, scale: float = 1.0) -> tuple[Any, Any]:
        """Random activations on the GPU, and their exact values for the reference."""
        tensor = self.up(self.rng.standard_normal((m, k)).astype(np.float32) * scale, dtype)
        return tensor, tensor.double().cpu().numpy()

    def error(self, y: Any, want: Any) -> float:
        got = y.double().cpu().numpy()
        return (
            float(np.linalg.norm(got - want) / np.linalg.norm(want))
            if np.isfinite(got).all()
            else float("inf")
        )

    def near(self, what: str, y: Any, want: Any, dtype: str) -> float:
        error = self.error(y, want)
        assert error < TOLERANCE[dtype], f"{what}: relative error {error:.1e}"
        if hasattr(y, "guards"):
            assert self.intact(y), f"{what}: wrote outside its result"
        return error

    def experts(self, e: int, inter: int, hidden: int) -> tuple[Any, Any]:
        w13 = self.weights(e * 2 * inter, hidden, 0.05)
        w2 = self.weights(e * hidden, inter, 0.05)
        alpha13 = (w13[2] * self.rng.uniform(0.5, 2, (e, 2))).astype(np.float32)
        alpha2 = (w2[2] * self.rng.uniform(0.5, 2, e)).astype(np.float32)
        shape = lambda w, rows: (w[0].reshape(e, rows, -1), w[1].reshape(e, rows, -1))  # noqa: E731
        return (*shape(w13, 2 * inter), alpha13), (*shape(w2, hidden), alpha2)

    def marlin(self, *matrices: marlin.Marlin) -> tuple[Any, Any, Any]:
        """Return weights, scales and the scales of the whole tensors; of several matrices, each
        with a dimension for them.
        """
        parts: Any = [(one.weights, one.scales, np.array([one.scale])) for one in matrices]
        if len(matrices) == 1:
            weights, scales, scale = map(self.up, parts[0])
            return weights, scales, scale
        weights, scales, scale = (self.up(np.stack(part)) for part in zip(*parts, strict=True))
        return weights, scales, scale.view(-1)

    def marlin_experts(self, w13: Any, w2: Any, kind: str) -> tuple[Any, Any]:
        """Return experts in Marlin's order, both matrices: for the reference, and on the GPU. Gate
        and up have one scale.
        """
        both = [
            [marlin.to_marlin(c, s, a, kind) for c, s, a in zip(w[0], w[1], alpha, strict=True)]
            for w, alpha in ((w13, w13[2][:, 0]), (w2, w2[2]))
        ]
        return both, (self.marlin(*both[0]), self.marlin(*both[1]))
