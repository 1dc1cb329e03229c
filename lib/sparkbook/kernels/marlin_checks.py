"""Checks on a GPU of the products with weights in Marlin's order."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparkbook.kernels import marlin
from sparkbook.kernels.library import marlin_cuts
from sparkbook.kernels.on_gpu import EXPERTS, TOLERANCE, OnGpu

_KIND = {"bfloat16": "bf16", "float16": "f16"}


class MarlinChecks(OnGpu):
    """The products against the numpy reference, whose order of weights is checked against vLLM's
    own by the project's tests.
    """

    def check_18_marlin_gemv(self) -> str:
        """Product in Marlin's order: one-hot columns are exact; against float64 for 1 to 16 tokens,
        all types and variants; a corrupted scale is noticed.
        """
        for dtype, kind in _KIND.items():
            codes, scales, _ = self.weights(128, 192)
            codes[:, :16] = self.rng.integers(0, 256, (128, 16), dtype=np.uint8)
            ordered = marlin.to_marlin(codes, scales, 1.0, kind)
            want = marlin.gemv(np.eye(192), ordered)
            eye = self.torch.eye(192, device="cuda").to(getattr(self.torch, dtype))
            for first in range(0, 192, 16):
                y = self.poisoned(16, 128)
                self.lib.marlin_gemv(eye[first : first + 16].contiguous(), *self.marlin(ordered), y)
                assert np.array_equal(y.cpu().numpy(), want[first : first + 16]), f"k {first}"
        worst = 0.0
        for m, n, k in (
            (1, 64, 64),
            (1, 128, 288),
            (1, 192, 4096),
            (2, 192, 160),
            (5, 128, 4096),
            (9, 256, 2048),
            (16, 384, 1280),
        ):
            codes, scales, alpha = self.weights(n, k)
            variants: list[dict[str, Any]] = [{}, {"pdl": True}, *marlin_cuts(m, n)]
            for dtype, kind in _KIND.items():
                ordered = marlin.to_marlin(codes, scales, alpha, kind)
                on = self.marlin(ordered)
                x, exact = self.x(m, k, dtype)
                want = marlin.gemv(exact, ordered)
                for out in ("float32", dtype):
                    for how in variants:
                        y = self.poisoned(m, n, dtype=out)
                        self.lib.marlin_gemv(x, *on, y, **how)
                        error = self.near(f"{m} x {n} x {k} {dtype} to {out} {how}", y, want, out)
                        worst = max(worst, error if out == "float32" else 0)
                on[1][0, 0] ^= 0x08  # twice or half of one block's scale
                y = self.poisoned(m, n)
                self.lib.marlin_gemv(x, *on, y)
                assert self.error(y[:, 0], want[:, 0]) > TOLERANCE["float32"], "corrupted scale"
        return f"largest float32 error {worst:.1e}"

    def check_19_marlin_moe(self) -> str:
        """Experts in Marlin's order against float64: top-k 1 to 16, one and several tokens, ids out
        of range.
        """
        worst = 0.0
        for m, topk, e, inter, hidden in EXPERTS:
            w13, w2 = self.experts(e, inter, hidden)
            weights = self.rng.uniform(0.05, 1, (m, topk)).astype(np.float32)
            ids = self.rng.integers(0, e, (m, topk)).astype(np.int32)
            for dtype, kind in _KIND.items():
                (up, down), (on13, on2) = self.marlin_experts(w13, w2, kind)
                x, exact = self.x(m, hidden, dtype)
                for missing in (False, True):
                    if missing:
                        ids[0, 0], ids[-1, -1] = -1, e
                    want = marlin.moe(exact, up, down, ids, weights)
                    h = self.poisoned(m, topk, inter, dtype=dtype)
                    y = self.poisoned(m, hidden)
                    self.lib.marlin_moe(
                        x, on13, on2, self.up(ids), self.up(weights), h, y, pdl=missing
                    )
                    if not want.any():
                        assert not y.any(), "no expert, but a result"
                        continue
                    error = self.error(y, want)
                    what = f"{m} x {topk} of {e}, {dtype}, missing {missing}"
                    assert error < TOLERANCE[dtype], f"{what}: {error:.1e}"
                    assert self.intact(y) and self.intact(h), "wrote outside"
                    worst = max(worst, error)
        return f"largest error {worst:.1e}, rounding of h included"

    def check_19b_marlin_large_activations(self) -> str:
        """Product in Marlin's order with activations near the types' limits."""
        codes, scales, _ = self.weights(64, 512)
        for dtype, size in (("float16", 1.5e4), ("bfloat16", 1e30), ("bfloat16", 1e-30)):
            ordered = marlin.to_marlin(codes, scales, 1e-6, _KIND[dtype])
            for m in (1, 2):
                x, exact = self.x(m, 512, dtype, size)
                y = self.poisoned(m, 64)
                self.lib.marlin_gemv(x, *self.marlin(ordered), y)
                self.near(f"{m} x {dtype} of {size:g}", y, marlin.gemv(exact, ordered), "float32")
        return "1.5e4 in f16, 1e30 and 1e-30 in bf16"
