"""Checks of the products on a GPU: FP4, FP8, the LM head, experts and 2:4 sparsity."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from sparkbook.errors import SparkbookError
from sparkbook.kernels import reference
from sparkbook.kernels.library import MAX_TOKENS
from sparkbook.kernels.on_gpu import EXPERTS, TOLERANCE, OnGpu


class ProductChecks(OnGpu):
    """The products against the numpy reference."""

    def check_10_gemv_one_hot(self) -> str:
        """NVFP4 product with one-hot activations gives the weights' columns, bit by bit."""
        n, k = 40, 448
        codes, scales, _ = self.weights(n, k)
        codes[:, :16] = self.rng.integers(
            0, 256, (n, 16), dtype=np.uint8
        )  # every code, with both zeros
        want = reference.dequantize(codes, scales, 1.0)
        for dtype in ("bfloat16", "float16"):
            self._columns(
                n,
                k,
                dtype,
                want,
                lambda x, y: self.lib.fp4_gemv(
                    x, self.up(codes), self.up(scales), self.up(np.array([1], np.float32)), y
                ),
            )
        return f"{k} columns of {n}, two types"

    def _columns(
        self, n: int, k: int, dtype: str, want: Any, product: Callable[[Any, Any], None]
    ) -> None:
        eye = self.torch.eye(k, device="cuda").to(getattr(self.torch, dtype))
        for first in range(0, k, MAX_TOKENS):
            x = eye[first : first + MAX_TOKENS].contiguous()
            y = self.poisoned(x.shape[0], n)
            product(x, y)
            got = y.cpu().numpy()
            wrong = np.argwhere(got != want[:, first : first + MAX_TOKENS].T)
            if len(wrong):
                token, row = wrong[0]
                raise AssertionError(
                    f"{dtype}: column {first + token}, row {row} is {got[token, row]}, expected"
                    f" {want[row, first + token]}"
                )
            assert self.intact(y), "wrote outside"

    def _shapes(self) -> Iterator[tuple[int, int, int]]:
        yield from (
            (1, 1, 64),
            (2, 17, 192),
            (8, 129, 320),
            (3, 512, 2048),
            (4, 1000, 4096),
            (1, 48, 28672),
            (7, 33, 12352),
        )
        if not self.quick:
            yield from ((m, 256, 1024) for m in range(1, 9))

    def check_11_gemv(self) -> str:
        """NVFP4 product against float64: tails, 1 to 8 tokens, all types and variants; a corrupted
        scale is noticed.
        """
        worst = 0.0
        for m, n, k in self._shapes():
            codes, scales, alpha = self.weights(n, k)
            on = self.up(codes), self.up(scales), self.up(np.array([alpha], np.float32))
            for dtype in ("bfloat16", "float16"):
                x, exact = self.x(m, k, dtype)
                want = reference.fp4_gemv(exact, codes, scales, alpha)
                for out in ("float32", dtype):
                    for variant in (
                        {},
                        {"tiles": 1},
                        {"tiles": 2},
                        {"tiles": 1, "warps": 4},
                        {"tiles": 2, "warps": 4},
                        {"pdl": True},
                    ):
                        y = self.poisoned(m, n, dtype=out)
                        self.lib.fp4_gemv(x, *on, y, **variant)
                        error = self.near(
                            f"{m} x {n} x {k} {dtype} to {out} {variant}", y, want, out
                        )
                        worst = max(worst, error if out == "float32" else 0)
                if n * k >= 4096:
                    broken = scales.copy()
                    broken[n // 2, 0] ^= 0x08  # twice or half of one block's scale in one row
                    y = self.poisoned(m, n)
                    self.lib.fp4_gemv(x, on[0], self.up(broken), on[2], y)
                    error = self.error(y[:, n // 2], want[:, n // 2])
                    assert error > TOLERANCE["float32"], (
                        f"a corrupted scale went unnoticed: {error:.1e}"
                    )
        return f"largest float32 error {worst:.1e}"

    def check_12_large_activations(self) -> str:
        """NVFP4 product with activations near the types' limits: no overflow on the way."""
        codes, scales, _ = self.weights(64, 512)
        for dtype, scale in (
            ("float16", 1.5e4),
            ("bfloat16", 1e30),
            ("bfloat16", 1e-30),
            ("float16", 1e-4),
        ):
            x, exact = self.x(2, 512, dtype, scale)
            y = self.poisoned(2, 64)
            alpha = 1e-6
            self.lib.fp4_gemv(
                x, self.up(codes), self.up(scales), self.up(np.array([alpha], np.float32)), y
            )
            self.near(
                f"{dtype} of {scale:g}",
                y,
                reference.fp4_gemv(exact, codes, scales, alpha),
                "float32",
            )
        return "6e4 in f16, 1e30 and 1e-30 in bf16"

    def check_13_gemv_large(self) -> str:
        """NVFP4 product at 8192 x 8192 against torch in float64."""
        if self.quick:
            return "left out"
        torch = self.torch
        codes = torch.randint(0, 256, (8192, 4096), dtype=torch.uint8, device="cuda")
        scales = torch.randint(0x20, 0x50, (8192, 512), dtype=torch.uint8, device="cuda")
        one = torch.ones(1, device="cuda")
        w = torch.empty(8192, 8192, device="cuda")
        self.lib.dequantize(codes, scales, one, w)
        x = torch.randn(5, 8192, device="cuda").bfloat16()
        y = self.poisoned(5, 8192)
        self.lib.fp4_gemv(x, codes, scales, one, y)
        return (
            "error"
            f" {self.near('8192', y, (x.double() @ w.double().T).cpu().numpy(), 'float32'):.1e}"
        )

    def check_14_fp8(self) -> str:
        """FP8 product against float64, one scale a row and one a block of 128 x 128; one-hot
        columns are exact.
        """
        worst = 0.0
        for m, n, k in ((1, 1, 16), (8, 33, 80), (3, 300, 2048), (5, 128, 4112)):
            values = self.rng.standard_normal((n, k)).astype(np.float32) * 30
            w = reference.encode_e4m3(values)
            for dtype in ("bfloat16", "float16"):
                x, exact = self.x(m, k, dtype)
                for shape in ((n,), (-(-n // 128), -(-k // 128))):
                    scale = self.rng.uniform(0.5, 2, shape).astype(np.float32)
                    y = self.poisoned(m, n)
                    self.lib.fp8_gemv(x, self.up(w), self.up(scale), y)
                    worst = max(
                        worst,
                        self.near(
                            f"{m} x {n} x {k} {dtype} {shape}",
                            y,
                            reference.fp8_gemv(exact, w, scale),
                            "float32",
                        ),
                    )
        w = np.resize(np.delete(np.arange(256, dtype=np.uint8), [0x7F, 0xFF]), (20, 144))
        ones = self.up(np.ones(20, np.float32))
        for dtype in ("bfloat16", "float16"):
            self._columns(
                20,
                144,
                dtype,
                reference.E4M3[w],
                lambda x, y: self.lib.fp8_gemv(x, self.up(w), ones, y),
            )
        return f"largest error {worst:.1e}"

    def check_15_lm_head(self) -> str:
        """lm_head: the index of the largest logit, the lowest of equals."""
        for m, n, k in ((1, 5, 64), (4, 5000, 256), (2, 40000, 512)):
            w = reference.encode_e4m3(self.rng.standard_normal((n, k)).astype(np.float32))
            w[n - 1] = w[n // 2]  # a tie, if it is the largest
            x, exact = self.x(m, k, "bfloat16")
            x[0] = self.up(
                reference.E4M3[w[n // 2]].astype(np.float32) * 4, "bfloat16"
            )  # and it is, for token 0
            scale = np.ones(n, np.float32)
            logits, index = self.poisoned(m, n), self.torch.full((m,), -1, device="cuda")
            self.lib.lm_head(x, self.up(w), self.up(scale), logits, index)
            want = logits.cpu().numpy().argmax(-1)
            self.near(
                "logits", logits, reference.fp8_gemv(x.double().cpu().numpy(), w, scale), "float32"
            )
            assert np.array_equal(index.cpu().numpy(), want), (
                f"{index.cpu().numpy()}, expected {want}"
            )
            assert want[0] == n // 2, "the planted row is not the largest"
            del exact
        return "three vocabularies"

    def _moe(self, x: Any, w13: Any, w2: Any, ids: Any, weights: Any, **how: Any) -> Any:
        h = self.poisoned(*ids.shape, w2[0].shape[2] * 2, dtype=str(x.dtype).removeprefix("torch."))
        y = self.poisoned(*x.shape)
        self.lib.moe_decode(
            x,
            tuple(map(self.up, w13)),
            tuple(map(self.up, w2)),
            self.up(ids),
            self.up(weights),
            h,
            y,
            **how,
        )
        assert self.intact(h), "wrote outside its working room"
        return y

    def check_16_moe(self) -> str:
        """MoE decode against float64: top-k 1 to 16, one and several tokens, twice the same id, ids
        out of range, permuted experts.
        """
        worst = 0.0
        for m, topk, e, inter, hidden in EXPERTS:
            w13, w2 = self.experts(e, inter, hidden)
            weights = self.rng.uniform(0.05, 1, (m, topk)).astype(np.float32)
            ids = self.rng.integers(0, e, (m, topk)).astype(np.int32)
            for dtype in ("bfloat16", "float16"):
                x, exact = self.x(m, hidden, dtype)
                for change in ("as drawn", "equal", "missing"):
                    chosen = ids.copy()
                    if change == "equal":
                        chosen[:] = chosen[0, 0]
                    if change == "missing":
                        chosen[0, 0], chosen[-1, -1] = -1, e
                    want = reference.moe_decode(exact, w13, w2, chosen, weights)
                    y = self._moe(x, w13, w2, chosen, weights, pdl=change == "equal")
                    if not want.any():
                        assert not y.any(), "no expert, but a result"
                        continue
                    error = self.error(y, want)
                    # h is rounded to the activations' type between the launches: that rounding,
                    # once.
                    assert error < TOLERANCE[dtype], (
                        f"{m} x {topk} of {e}, {dtype}, {change}: {error:.1e}"
                    )
                    worst = max(worst, error)
                    assert self.intact(y), "wrote outside"
            order = self.rng.permutation(e)
            place = np.argsort(order).astype(np.int32)
            shuffled = tuple(a[order] for a in w13), tuple(a[order] for a in w2)
            a, b = self._moe(x, w13, w2, ids, weights), self._moe(x, *shuffled, place[ids], weights)
            assert self.torch.equal(a, b), "permuted experts change the result"
        return f"largest error {worst:.1e}, rounding of h included"

    def check_17_sparse(self) -> str:
        """2:4 product: one-hot columns are exact; equal to the dense product on weights that are
        2:4; lossy input is refused.
        """
        n, k = 40, 512
        codes, scales, alpha = self.weights(n, k)
        try:
            reference.to_sparse24(codes, scales)
            raise AssertionError("lossy input was taken")
        except SparkbookError:
            pass
        sparse = reference.to_sparse24(codes, scales, allow_lossy=True)
        pruned, same = reference.from_sparse24(sparse)
        assert np.array_equal(same, scales), "scales changed on the way"
        again = reference.to_sparse24(pruned, scales)
        assert again.energy_lost == 0, "2:4 weights lost energy"
        want = reference.dequantize(pruned, scales, 1.0)
        one = self.up(np.array([1], np.float32))
        for dtype in ("bfloat16", "float16"):
            self._columns(
                n,
                k,
                dtype,
                want,
                lambda x, y: self.lib.sparse_gemv(x, self.up(again.tiles), one, y),
            )
        worst = 0.0
        for m, n, k in ((1, 16, 256), (8, 100, 768), (3, 512, 4096)):
            codes, scales, alpha = self.weights(n, k)
            sparse = reference.to_sparse24(codes, scales, allow_lossy=True)
            pruned, _ = reference.from_sparse24(sparse)
            x, exact = self.x(m, k, "bfloat16")
            y = self.poisoned(m, n)
            self.lib.sparse_gemv(
                x, self.up(sparse.tiles), self.up(np.array([alpha], np.float32)), y
            )
            worst = max(
                worst,
                self.near(
                    f"{m} x {n} x {k}",
                    y,
                    reference.fp4_gemv(exact, pruned, scales, alpha),
                    "float32",
                ),
            )
        return f"largest error {worst:.1e}"

    def check_18_prefill(self) -> str:
        """FP4 for prefill: odd sizes against the reference; the same bits twice; refused where the
        instruction is not there.
        """
        self.lib.prefill = True
        worst = 0.0
        for m, n, k in ((1, 8, 64), (131, 130, 448), (512, 1024, 4096)):
            sides = [self.weights(rows, k, 1.0) for rows in (m, n)]
            x, w = (
                (self.up(codes), self.up(scales), self.up(np.array([alpha], np.float32)))
                for codes, scales, alpha in sides
            )
            y, again = self.poisoned(m, n), self.poisoned(m, n)
            if not self.native_prefill:
                try:
                    self.lib.fp4_prefill(x, w, y)
                except SparkbookError as error:
                    assert "not supported" in str(error), error
                    return "this GPU lacks the instruction, and the call says so"
                raise AssertionError("a GPU without the instruction took it")
            self.lib.fp4_prefill(x, w, y)
            self.lib.fp4_prefill(x, w, again)
            assert self.torch.equal(y, again), "two runs differ"
            codes, scales, alpha = sides[1]
            exact = reference.dequantize(*sides[0]).astype(np.float64)
            want = reference.fp4_gemv(exact, codes, scales, alpha)
            worst = max(worst, self.near(f"{m} x {n} x {k}", y, want, "float32"))
        return f"largest error {worst:.1e}"
