"""Checks of the formats on a GPU: encoding, quantization and its fused forms, bit by bit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from sparkbook.kernels import reference
from sparkbook.kernels.on_gpu import OnGpu


class FormatChecks(OnGpu):
    """The formats against the numpy reference."""

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
        """E2M1 encoding at ties, their neighbors, zeros, infinities and NaN."""
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
