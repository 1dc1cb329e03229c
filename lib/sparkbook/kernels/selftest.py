"""The kernels on a GPU against the numpy reference: what `sparkbook kernels test` runs. Needs torch
with CUDA.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from sparkbook.errors import SparkbookError
from sparkbook.kernels import reference
from sparkbook.kernels.library import MAX_TOKENS, Library

#: Relative Frobenius error that passes, by the result's type: one rounding of that type, or
#: float32 sums in another order.
TOLERANCE = {"float32": 5e-4, "bfloat16": 4e-3, "float16": 1e-3}


@dataclass(frozen=True)
class Check:
    """One check: what it looked at, whether it holds, and a figure or the reason."""

    name: str
    ok: bool
    detail: str
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "ok": self.ok,
            "detail": self.detail,
            "seconds": round(self.seconds, 2),
        }


def run(*, quick: bool = False, say: Callable[[Check], None] = lambda check: None) -> list[Check]:
    """All checks. quick: without the sweep over all float32s, the hundred runs and torch.compile
    (for use under compute-sanitizer).
    """
    bench = _Checks(quick)
    done = []
    for name in [name for name in dir(bench) if name.startswith("check_")]:
        function = getattr(bench, name)
        begin = time.monotonic()
        try:
            ok, detail = True, function()
        except AssertionError as error:
            ok, detail = False, str(error) or "assertion failed"
        check = Check(
            (function.__doc__ or name).strip().rstrip("."), ok, detail, time.monotonic() - begin
        )
        say(check)
        done.append(check)
    return done


class _Checks:
    """Each method that starts with check_ is a check: it asserts, and returns what it saw. The
    docstring is its name.
    """

    def __init__(self, quick: bool) -> None:
        try:
            import torch
        except ImportError:
            raise SparkbookError(
                "the checks need torch with CUDA, which is not installed here"
            ) from None
        if not torch.cuda.is_available():
            raise SparkbookError(
                "torch finds no GPU here; the numpy reference is checked by the project's tests"
            )
        self.torch, self.quick = torch, quick
        self.lib = Library.for_device()
        self.rng = np.random.default_rng(7)

    # ---- helpers

    def up(self, array: Any, dtype: str | None = None) -> Any:
        """To the GPU, rounded to a type."""
        tensor = self.torch.from_numpy(np.ascontiguousarray(array)).cuda()
        return tensor.to(getattr(self.torch, dtype)) if dtype else tensor

    def poisoned(self, *shape: int, dtype: str = "float32") -> Any:
        """A result full of NaN (or 0xa5), with guards before and behind."""
        t = getattr(self.torch, dtype)
        size = int(np.prod(shape))
        whole = self.torch.full(
            (size + 512,), 0xA5 if dtype == "uint8" else float("nan"), dtype=t, device="cuda"
        )
        part = whole[256 : 256 + size].view(shape)
        part.guards = (whole[:256], whole[256 + size :])
        return part

    def intact(self, part: Any) -> bool:
        """Whether nothing was written outside."""
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

    # ---- formats

    def check_01_e2m1_all(self) -> str:
        """E2M1 encoding: GPU = CPU for all 2^32 float32s."""
        torch, chunk = self.torch, 1 << 28
        firsts = [0x3F000000] if self.quick else list(range(0, 1 << 32, chunk))
        count = 1 << 20 if self.quick else chunk
        room = torch.empty(count // 2, dtype=torch.uint8, device="cuda")
        expected = [np.empty(count // 2, np.uint8) for _ in firsts]
        with ThreadPoolExecutor(16) as pool:
            jobs = [
                pool.submit(self.lib.e2m1_sweep_host, first, out)
                for first, out in zip(firsts, expected, strict=True)
            ]
            for first, want, job in zip(firsts, expected, jobs, strict=True):
                self.lib.e2m1_sweep(first, room)
                got = room.cpu().numpy()
                job.result()
                assert np.array_equal(got, want), f"differs in the 2^28 from {first:#x} on"
        return f"{len(firsts) * count:,} inputs equal"

    def check_02_e2m1_edges(self) -> str:
        """E2M1 encoding at ties, their neighbours, zeros, infinities and NaN."""
        ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 6], np.float32).view(np.uint32)
        near = (ties[:, None] + np.arange(-2, 3, dtype=np.int64)).astype(np.uint32).ravel()
        special = np.array([0, 1, 0x7F800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF], np.uint32)
        bits = np.concatenate([near, special])
        bits = np.concatenate([bits, bits | np.uint32(1 << 31)])
        want = reference.encode_e2m1(bits.view(np.float32))
        room = self.torch.empty(1024, dtype=self.torch.uint8, device="cuda")
        for one, code in zip(bits, want, strict=True):
            self.lib.e2m1_sweep(int(one), room)
            got = int(room[0]) & 15
            assert got == code, f"{int(one):#010x}: {got}, expected {code}"
        return f"{len(bits)} values"

    def check_03_dequantize(self) -> str:
        """Dequantization is bit-exact for every code and every E4M3 scale."""
        codes = self.rng.integers(0, 256, (64, 256), dtype=np.uint8)
        scales = np.tile(np.arange(256, dtype=np.uint8), 64 * 32 // 256).reshape(64, 32)
        for g in (1.0, 3.7e-4):
            y = self.poisoned(64, 512)
            self.lib.dequantize(
                self.up(codes), self.up(scales), self.up(np.array([g], np.float32)), y
            )
            want = reference.dequantize(codes, scales, g)
            assert np.array_equal(y.cpu().numpy(), want, equal_nan=True), f"global scale {g}"
            assert (
                np.array_equal(np.signbit(y.cpu().numpy()), np.signbit(want))
                or np.isnan(want).any()
            ), "signs of zero"
            assert self.intact(y), "wrote outside"
        return "32,768 values, two global scales"

    def check_04_quantize(self) -> str:
        """Quantization is bit-exact, with zero, tiny, outlier, infinite and NaN blocks and a short
        last block.
        """
        seen = 0
        for dtype in ("float32", "bfloat16", "float16"):
            for m, k in ((1, 16), (7, 64), (5, 1000), (33, 4096), (3, 17)):
                x = self.rng.standard_normal((m, k)).astype(np.float32)
                x.ravel()[: min(16, k)] = 0
                if k >= 64:
                    x[0, 16:32] *= 1e-7
                    x[0, 32:48] *= 1e4
                    x[0, 48:52] = [np.inf, -np.inf, np.nan, -0.0]
                tensor = self.up(x, dtype)
                exact = tensor.float().cpu().numpy()
                g = (
                    float(
                        np.float32(np.nanmax(np.abs(np.where(np.isfinite(exact), exact, 0))) / 2688)
                    )
                    or 1.0
                )
                codes, scales, _ = reference.quantize(exact, g)
                got_codes, got_scales = (
                    self.poisoned(*codes.shape, dtype="uint8"),
                    self.poisoned(*scales.shape, dtype="uint8"),
                )
                self.lib.quantize(tensor, self.up(np.array([g], np.float32)), got_codes, got_scales)
                assert np.array_equal(got_scales.cpu().numpy(), scales), (
                    f"scales, {dtype} {m} x {k}"
                )
                assert np.array_equal(got_codes.cpu().numpy(), codes), f"codes, {dtype} {m} x {k}"
                assert self.intact(got_codes) and self.intact(got_scales), "wrote outside"
                seen += m * k
        return f"{seen:,} values"

    def check_05_fused_quantize(self) -> str:
        """RMSNorm and SiLU x up, then quantization: equal except at a rounding boundary."""
        worst = 0.0
        for dtype in ("float32", "bfloat16", "float16"):
            m, k = 9, 2048
            x, exact = self.x(m, 2 * k, dtype, 2.0)
            weight, w = self.x(1, k, dtype)
            g = np.float32(0.002)
            for name in ("rms", "silu"):
                codes, scales = (
                    self.poisoned(m, k // 2, dtype="uint8"),
                    self.poisoned(m, k // 16, dtype="uint8"),
                )
                if name == "rms":
                    half = x[:, :k].contiguous()
                    self.lib.rmsnorm_quantize(
                        half, weight[0], 1e-6, self.up(np.array([g], np.float32)), codes, scales
                    )
                    want = reference.rmsnorm_quantize(
                        exact[:, :k].astype(np.float32), w[0].astype(np.float32), 1e-6, g
                    )
                else:
                    self.lib.silu_mul_quantize(x, self.up(np.array([g], np.float32)), codes, scales)
                    want = reference.silu_mul_quantize(exact.astype(np.float32), g)
                differ = np.mean(reference.unpack(codes.cpu().numpy()) != reference.unpack(want[0]))
                worst = max(worst, differ, np.mean(scales.cpu().numpy() != want[1]))
                assert differ < 2e-3, f"{name} {dtype}: {differ:.1e} of the codes differ"
                assert self.intact(codes) and self.intact(scales), "wrote outside"
        return f"at most {worst:.1e} of the codes or scales differ"

    # ---- products

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

    def _experts(self, e: int, inter: int, hidden: int) -> tuple[Any, Any]:
        w13 = self.weights(e * 2 * inter, hidden, 0.05)
        w2 = self.weights(e * hidden, inter, 0.05)
        alpha13 = (w13[2] * self.rng.uniform(0.5, 2, (e, 2))).astype(np.float32)
        alpha2 = (w2[2] * self.rng.uniform(0.5, 2, e)).astype(np.float32)
        shape = lambda w, rows: (w[0].reshape(e, rows, -1), w[1].reshape(e, rows, -1))  # noqa: E731
        return (*shape(w13, 2 * inter), alpha13), (*shape(w2, hidden), alpha2)

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
        for m, topk, e, inter, hidden in (
            (1, 1, 4, 64, 64),
            (1, 10, 24, 512, 2048),
            (3, 8, 12, 192, 320),
            (2, 16, 16, 320, 576),
        ):
            w13, w2 = self._experts(e, inter, hidden)
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

    # ---- behaviour

    def _calls(self) -> dict[str, tuple[Callable[..., None], Any]]:
        """One call of each product, and its result."""
        n, k, m = 1024, 2048, 4
        codes, scales, alpha = self.weights(n, k)
        x, _ = self.x(m, k, "bfloat16")
        sparse = self.up(reference.to_sparse24(codes, scales, allow_lossy=True).tiles)
        on = self.up(codes), self.up(scales), self.up(np.array([alpha], np.float32))
        fp8, ones = (
            self.up(reference.encode_e4m3(self.rng.standard_normal((n, k)))),
            self.up(np.ones(n, np.float32)),
        )
        w13, w2 = (tuple(map(self.up, w)) for w in self._experts(8, 256, 512))
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
        y["moe"] = self.torch.full((2, 512), float("nan"), device="cuda")
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
        }

    def check_20_repeatable(self) -> str:
        """A hundred runs of each product are equal bit by bit, with other work on the GPU."""
        runs = 3 if self.quick else 100
        torch = self.torch
        noise = torch.randn(2048, 2048, device="cuda")
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
        return f"{runs} runs of four products"

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
        return "four products"

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
        for name in ("fp4_gemv", "moe_decode"):
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
    return {
        "fp4_gemv": (x, codes, scales, g.view(1)),
        "nvfp4_linear": (up(normal(20, 512)).bfloat16(), codes, scales, g.view(1)),
        "fp8_gemv": (x, w8, torch.ones(80)),
        "lm_head": (x, w8, torch.ones(80)),
        "moe_decode": (x, *experts, ids, weights),
        "sparse_gemv": (x, up(pruned.tiles), g.view(1), pruned.n),
        "nvfp4_quantize": (x, one * 0.001),
        "nvfp4_dequantize": (codes, scales, g.view(1), torch.bfloat16),
        "rmsnorm_nvfp4_quantize": (x, up(normal(512)).bfloat16(), 1e-6, one * 0.001),
        "silu_mul_nvfp4_quantize": (up(normal(3, 128)).bfloat16(), one * 0.001),
    }


def main() -> int:
    """`python -m sparkbook.kernels.selftest [--quick]`: prints a line a check; 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="without the long checks, as under compute-sanitizer"
    )
    arguments = parser.parse_args()
    done = run(quick=arguments.quick, say=lambda check: print(line(check), flush=True))  # noqa: T201
    return int(not all(check.ok for check in done))


def line(check: Check) -> str:
    """A check in one line."""
    return f"{'ok  ' if check.ok else 'FAIL'} {check.name} ({check.detail}; {check.seconds:.1f} s)"


if __name__ == "__main__":
    sys.exit(main())
