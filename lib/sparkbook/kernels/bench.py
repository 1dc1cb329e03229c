"""How fast the kernels are on this GPU, and the alternatives with them: `sparkbook kernels bench`.

What is timed is a CUDA graph of launches that go round through copies of the weights, together at
least four times the L2 cache: every launch reads its weights from memory, and every copy is read in
every replay. A figure is the median of at least 20 replays, divided by the launches in one. Bytes
are those of the weights, scales and positions; activations and results are not counted. The
ceilings, a copy (bytes read and written counted) and a kernel that only reads, are measured in the
same run: shares refer to that copy.

Rivals that are not installed are left out by name; one that fails says why.
"""

from __future__ import annotations

import datetime
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.kernels import build
from sparkbook.kernels.library import Library

#: [N, K] of decode products, from one expert's to a large model's MLP.
SHAPES = (
    (4096, 4096),
    (6144, 4096),
    (14336, 4096),
    (4096, 14336),
    (8192, 8192),
    (28672, 4096),
    (8192, 28672),
    (28672, 16384),
)
#: Shapes at which rivals and the other kernels are measured.
COMPARED = ((4096, 4096), (8192, 8192), (8192, 28672))
REPLAYS = 25


@dataclass
class Row:
    """One measurement. `us` is the median time of a launch (of a layer, for MoE), in microseconds;
    `spread` its (p90 - p10) / median.
    """

    what: str
    shape: str
    tokens: int
    us: float
    nbytes: int
    spread: float
    note: str = ""

    @property
    def gb_s(self) -> float:
        return self.nbytes / self.us / 1e3


@dataclass
class Report:
    """What `run` returns; `to_dict` is what is committed."""

    machine: dict[str, Any]
    ceilings: dict[str, float]  # GB/s
    rows: list[Row] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        copy = self.ceilings["copy"]
        rows = [
            {
                "what": row.what,
                "shape": row.shape,
                "tokens": row.tokens,
                "us": round(row.us, 2),
                "mb": round(row.nbytes / 1e6, 2),
                "gb_s": round(row.gb_s, 1),
                "of_copy": round(row.gb_s / copy, 3),
                "spread": round(row.spread, 3),
                **({"note": row.note} if row.note else {}),
            }
            for row in self.rows
        ]
        return {
            "machine": self.machine,
            "ceilings_gb_s": self.ceilings,
            "rows": rows,
            "absent": self.absent,
        }


class _Bench:
    def __init__(self, say: Callable[[str], None]) -> None:
        try:
            import torch
        except ImportError:
            raise SparkbookError(
                "the benchmark needs torch with CUDA, which is missing here: pip install torch"
            ) from None
        if not torch.cuda.is_available():
            raise SparkbookError("torch finds no GPU here. Run the benchmark on a machine with one")
        self.torch, self.say = torch, say
        self.lib = Library.for_device()
        self.properties = torch.cuda.get_device_properties(0)
        self.l2 = self.properties.L2_cache_size
        self.stream = torch.cuda.Stream()
        self.report = Report(self._machine(), {})

    def _machine(self) -> dict[str, Any]:
        torch = self.torch
        try:
            import subprocess

            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split(
                "\n"
            )[0]
        except (OSError, subprocess.CalledProcessError):
            driver = "unknown"
        return {
            "gpu": torch.cuda.get_device_name(0),
            "driver": driver,
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "python": platform.python_version(),
            "multiprocessors": self.properties.multi_processor_count,
            "l2_mb": round(self.l2 / 1e6, 1),
            "replays": REPLAYS,
            "kernels": {"version": build.VERSION, "sources": build.source_hash()},
        }

    # ---- timing

    def copies(self, nbytes: int) -> int:
        """Return how many sets of buffers make four times the L2 cache, and at least two."""
        return max(2, -(-4 * self.l2 // nbytes))

    def time(self, calls: Sequence[Callable[[], Any]], per_call: int = 1) -> tuple[float, float]:
        """Return median microseconds of one of the calls, and the spread. All go into one graph,
        several times over if they are few.
        """
        torch = self.torch
        rounds = max(1, 24 // len(calls))
        with torch.cuda.stream(self.stream):
            for call in calls[:2]:
                call()
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                for _ in range(rounds):
                    for call in calls:
                        call()
            for _ in range(3):
                graph.replay()
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * REPLAYS)]
            for i in range(REPLAYS):
                events[2 * i].record()
                graph.replay()
                events[2 * i + 1].record()
            self.stream.synchronize()
        times = sorted(
            events[2 * i].elapsed_time(events[2 * i + 1]) * 1e3 / (rounds * len(calls) * per_call)
            for i in range(REPLAYS)
        )
        middle = statistics.median(times)
        return middle, (times[int(0.9 * REPLAYS)] - times[int(0.1 * REPLAYS)]) / middle

    def row(
        self,
        what: str,
        shape: str,
        tokens: int,
        nbytes: int,
        calls: Sequence[Callable[[], Any]],
        note: str = "",
    ) -> Row:
        us, spread = self.time(calls)
        row = Row(what, shape, tokens, us, nbytes, spread, note)
        self.report.rows.append(row)
        share = row.gb_s / self.report.ceilings["copy"]
        self.say(
            f"{what:<34} {shape:>14}  M {tokens}  {us:8.2f} us  {row.gb_s:7.0f} GB/s  {share:6.1%} "
            f" {note}"
        )
        return row

    # ---- data

    def bytes_(self, *shape: int) -> Any:
        return self.torch.randint(0, 256, shape, dtype=self.torch.uint8, device="cuda")

    def scales(self, *shape: int) -> Any:
        """E4M3 bytes of 0.25 to 2: no NaN, no zero."""
        return self.torch.randint(0x28, 0x40, shape, dtype=self.torch.uint8, device="cuda")

    def x(self, m: int, k: int) -> Any:
        return self.torch.randn(m, k, device="cuda").bfloat16()

    def ones(self, *shape: int) -> Any:
        return self.torch.full(shape, 0.01, device="cuda")

    # ---- what is measured

    def ceilings(self) -> None:
        """The best of copies of two sizes by the driver and by a kernel of torch: which is fastest
        differs from card to card.
        """
        torch = self.torch
        sink = torch.zeros(1, dtype=torch.int32, device="cuda")
        copies, reads = [], []
        handle = self.stream.cuda_stream
        for size in (1 << 28, 1 << 30):
            a, b = (
                self.bytes_(size).view(torch.int32),
                torch.empty(size // 4, dtype=torch.int32, device="cuda"),
            )
            copies += [
                2 * size / self.time([call])[0] / 1e3
                for call in (lambda: b.copy_(a), lambda: torch.add(a, 1, out=b))
            ]
            for per in (4, 6, 8):
                blocks = self.properties.multi_processor_count * per
                call = lambda: self.lib.read_probe(a.view(torch.uint8), sink, blocks, stream=handle)  # noqa: E731
                reads.append(size / self.time([call])[0] / 1e3)
        self.report.ceilings = {"copy": round(max(copies), 1), "read": round(max(reads), 1)}
        self.say(
            f"copy {self.report.ceilings['copy']} GB/s, read only {self.report.ceilings['read']}"
            " GB/s"
        )

    def reads(self, shapes: Sequence[tuple[int, int]]) -> None:
        """The read-only probe on as many bytes as the NVFP4 weights of each shape: what a launch of
        that size can reach at all.
        """
        sink = self.torch.zeros(1, dtype=self.torch.int32, device="cuda")
        for n, k in shapes:
            nbytes = n * k * 9 // 16
            sets = [self.bytes_(nbytes) for _ in range(self.copies(nbytes))]
            timings = []
            for per in (2, 4, 8):
                blocks = self.properties.multi_processor_count * per
                calls = [
                    lambda v=v: self.lib.read_probe(v, sink, blocks, stream=self.stream.cuda_stream)
                    for v in sets
                ]
                timings.append(self.time(calls))
            best = min(timings)
            row = Row(
                "read probe",
                f"{n}x{k}",
                0,
                best[0],
                nbytes,
                best[1],
                "the bytes of that shape, nothing computed",
            )
            self.report.rows.append(row)
            share = row.gb_s / self.report.ceilings["copy"]
            self.say(
                f"{row.what:<34} {row.shape:>14}  M 0  {row.us:8.2f} us  {row.gb_s:7.0f} GB/s "
                f" {share:6.1%}  {row.note}"
            )

    def fp4(
        self,
        shapes: Sequence[tuple[int, int]],
        tokens: Sequence[int],
        pdl: Sequence[bool] = (False,),
        *,
        marlin: bool = False,
        **variant: int,
    ) -> None:
        """The NVFP4 product, with weights of random bytes in the checkpoint's or Marlin's order."""
        torch = self.torch
        what, product = (
            ("marlin_gemv", self.lib.marlin_gemv) if marlin else ("fp4_gemv", self.lib.fp4_gemv)
        )
        alpha = self.ones(1) * (2.0**119 if marlin else 1)
        shown = "".join(f" {name}={value}" for name, value in variant.items())
        for n, k in shapes:
            nbytes = n * k * 9 // 16
            sets = [
                (self.bytes_(k // 16, 8 * n).view(torch.int32), self.marlin_scales(k // 16, n))
                if marlin
                else (self.bytes_(n, k // 2), self.scales(n, k // 16))
                for _ in range(self.copies(nbytes))
            ]
            for m in tokens:
                x, y = self.x(m, k), torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
                for p in pdl:
                    how = {"stream": self.stream.cuda_stream, "pdl": p, **variant}
                    calls = [partial(product, x, w, s, alpha, y, **how) for w, s in sets]
                    self.row(what + (" pdl" if p else "") + shown, f"{n}x{k}", m, nbytes, calls)

    def marlin_scales(self, *shape: int) -> Any:
        """Bytes of Marlin's scales, 2 to 128: none that its rounding drops."""
        return self.torch.randint(0x80, 0xC0, shape, dtype=self.torch.uint8, device="cuda")

    def sparse(self, shapes: Sequence[tuple[int, int]]) -> None:
        """2:4 tiles of random bytes; positions are drawn from the six that are in order."""
        torch = self.torch
        legal = torch.tensor(
            [a | b << 2 for a in range(4) for b in range(a + 1, 4)],
            dtype=torch.uint8,
            device="cuda",
        )
        for n, k in shapes:
            nbytes = n * k * 7 // 16
            sets = []
            for _ in range(self.copies(nbytes)):
                tiles = self.bytes_(n // 16, k // 256, 1792)
                pick = legal[torch.randint(0, 6, (2, n // 16, k // 256, 512), device="cuda")]
                tiles[..., 1024:1536] = pick[0] | pick[1] << 4
                tiles[..., 1536:] = self.scales(n // 16, k // 256, 256)
                sets.append(tiles)
            alpha, x, y = (
                self.ones(1),
                self.x(1, k),
                torch.empty(1, n, dtype=torch.bfloat16, device="cuda"),
            )
            calls = [
                lambda t=t: self.lib.sparse_gemv(x, t, alpha, y, stream=self.stream.cuda_stream)
                for t in sets
            ]
            self.row("sparse_gemv", f"{n}x{k}", 1, nbytes, calls, "2:4 data")

    def fp8(self, shapes: Sequence[tuple[int, int]], tokens: Sequence[int]) -> None:
        for n, k in shapes:
            sets = [self.scales(n, k) for _ in range(self.copies(n * k))]
            scale = self.ones(n)
            for m in tokens:
                x, y = (
                    self.x(m, k),
                    self.torch.empty(m, n, dtype=self.torch.bfloat16, device="cuda"),
                )
                calls = [
                    lambda w=w: self.lib.fp8_gemv(x, w, scale, y, stream=self.stream.cuda_stream)
                    for w in sets
                ]
                self.row("fp8_gemv", f"{n}x{k}", m, n * k, calls)

    def lm_head(self, n: int, k: int) -> None:
        w = [self.scales(n, k) for _ in range(2)]
        scale, x = self.ones(n), self.x(1, k)
        logits, index = (
            self.torch.empty(1, n, device="cuda"),
            self.torch.empty(1, dtype=self.torch.int64, device="cuda"),
        )
        calls = [
            lambda v=v: self.lib.lm_head(x, v, scale, logits, index, stream=self.stream.cuda_stream)
            for v in w
        ]
        self.row("lm_head fp8 + argmax", f"{n}x{k}", 1, n * k, calls)

    def moe(
        self, name: str, experts: int, topk: int, inter: int, hidden: int, tokens: Sequence[int]
    ) -> None:
        """One layer of all its experts, in both orders of the weights; each launch takes other ids,
        so that all experts are read in turn.
        """
        torch = self.torch
        w13 = (
            self.bytes_(experts, 2 * inter, hidden // 2),
            self.scales(experts, 2 * inter, hidden // 16),
            self.ones(experts, 2),
        )
        w2 = (
            self.bytes_(experts, hidden, inter // 2),
            self.scales(experts, hidden, inter // 16),
            self.ones(experts),
        )
        one = self.ones(experts) * 2.0**119
        marlin13 = (
            w13[0].view(torch.int32).view(experts, hidden // 16, 4 * inter),
            self.marlin_scales(experts, hidden // 16, 2 * inter),
            one,
        )
        marlin2 = (
            w2[0].view(torch.int32).view(experts, inter // 16, 2 * hidden),
            self.marlin_scales(experts, inter // 16, hidden),
            one,
        )
        products = {
            "moe_decode": (self.lib.moe_decode, w13, w2),
            "marlin_moe": (self.lib.marlin_moe, marlin13, marlin2),
        }
        for m in tokens:
            nbytes = m * topk * 3 * inter * hidden * 9 // 16
            order = torch.randperm(experts, device="cuda").to(torch.int32)
            sets = [
                order[i : i + m * topk].view(m, topk).contiguous()
                for i in range(0, experts - m * topk + 1, m * topk)
            ]
            weights = torch.rand(m, topk, device="cuda")
            x, y = self.x(m, hidden), self.x(m, hidden)
            h = self.x(m * topk, inter).view(m, topk, inter)
            for what, (product, first, second) in products.items():
                for pdl in (False, True):
                    calls = [
                        partial(
                            product,
                            x,
                            first,
                            second,
                            ids,
                            weights,
                            h,
                            y,
                            stream=self.stream.cuda_stream,
                            pdl=pdl,
                        )
                        for ids in sets
                    ]
                    note = f"{len(sets)} sets of ids"
                    self.row(what + (" pdl" if pdl else ""), name, m, nbytes, calls, note)

    def quant(self, m: int, k: int) -> None:
        x = [self.x(m, k) for _ in range(self.copies(2 * m * k))]
        codes, scales, g = self.bytes_(m, k // 2), self.bytes_(m, k // 16), self.ones(1)
        calls = [
            lambda v=v: self.lib.quantize(v, g, codes, scales, stream=self.stream.cuda_stream)
            for v in x
        ]
        self.row(
            "quantize", f"{m}x{k}", m, m * k * 2 + m * k * 9 // 16, calls, "bytes read and written"
        )

    # ---- rivals

    def rival(self, name: str, function: Callable[[], None]) -> None:
        """Run a rival's measurement; errors in other people's code are noted, not raised."""
        try:
            function()
        except ImportError as error:
            self.report.absent[name] = f"not installed: {error}"
        except Exception as error:  # noqa: BLE001
            self.report.absent[name] = f"{type(error).__name__}: {str(error)[:300]}"
        if name in self.report.absent:
            self.say(f"{name}: {self.report.absent[name]}")
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()

    def prefill(self) -> None:
        """Ours, and off by default: many tokens on the tensor core's own FP4 instruction."""
        self.lib.prefill, m = True, 2048
        for n, k in COMPARED:
            x, w = (
                (self.bytes_(rows, k // 2), self.scales(rows, k // 16), self.ones(1))
                for rows in (m, n)
            )
            y = self.torch.empty(m, n, dtype=self.torch.bfloat16, device="cuda")
            call = partial(self.lib.fp4_prefill, x, w, y, stream=self.stream.cuda_stream)
            row = self.row("fp4_prefill", f"{n}x{k}", m, n * k * 9 // 16, [call])
            row.note = f"{2 * m * n * k / row.us / 1e6:.0f} TFLOP/s"

    def torch_bf16(self) -> None:
        for n, k in COMPARED:
            w = [
                self.torch.randn(n, k, device="cuda", dtype=self.torch.bfloat16)
                for _ in range(self.copies(2 * n * k))
            ]
            x = self.x(1, k)
            self.row(
                "torch linear bf16",
                f"{n}x{k}",
                1,
                2 * n * k,
                [partial(self.torch.nn.functional.linear, x, v) for v in w],
            )

    def torch_int4(self) -> None:
        torch = self.torch
        for n, k in COMPARED:
            nbytes = n * k // 2 + n * k // 128 * 4
            sets = []
            for _ in range(self.copies(nbytes)):
                packed = torch._convert_weight_to_int4pack(self.bytes_(n, k // 2), 8)
                sets.append((packed, torch.randn(k // 128, n, 2, device="cuda").bfloat16()))
            x = self.x(1, k)
            calls = [lambda w=w, s=s: torch._weight_int4pack_mm(x, w, 128, s) for w, s in sets]
            self.row(
                "torch _weight_int4pack_mm", f"{n}x{k}", 1, nbytes, calls, "INT4, groups of 128"
            )

    def bitsandbytes(self) -> None:
        import bitsandbytes.functional as bnb
        from bitsandbytes import matmul_4bit

        for n, k in COMPARED:
            nbytes = n * k // 2 + n * k // 64 * 4
            sets = []
            for _ in range(self.copies(nbytes)):
                w = self.torch.randn(n, k, device="cuda", dtype=self.torch.bfloat16)
                sets.append(bnb.quantize_4bit(w, blocksize=64, quant_type="fp4"))
            x = self.x(1, k)
            calls = [lambda q=q, s=s: matmul_4bit(x, q, s) for q, s in sets]
            self.row("bitsandbytes fp4", f"{n}x{k}", 1, nbytes, calls, "FP4, blocks of 64")

    def humming(self) -> None:
        from humming.layer import HummingLayer

        torch = self.torch
        for n, k in COMPARED:
            nbytes = n * k * 9 // 16
            layers = []
            for _ in range(self.copies(nbytes)):
                layer = HummingLayer(
                    shape_n=n,
                    shape_k=k,
                    weight_config={"quant_method": "modelopt", "quant_algo": "nvfp4"},
                    torch_dtype=torch.bfloat16,
                ).cuda()
                tensors = {
                    "weight": self.bytes_(n, k // 2),
                    "weight_scale": self.scales(n, k // 16).view(torch.float8_e4m3fn),
                    "weight_scale_2": self.ones(1),
                }
                layer.load_from_tensors(tensors)
                layer.transform()
                layers.append((layer, tensors))
            x = self.x(1, k)
            got = layers[0][0](x)
            want = torch.empty(1, n, device="cuda")
            tensors = layers[0][1]
            self.lib.fp4_gemv(
                x, tensors["weight"], tensors["weight_scale"], tensors["weight_scale_2"], want
            )
            error = float((got.float() - want).norm() / want.norm())
            self.row(
                "humming NVFP4",
                f"{n}x{k}",
                1,
                nbytes,
                [partial(layer, x) for layer, _ in layers],
                f"differs by {error:.1e}",
            )

    def triton(self) -> None:
        from sparkbook.kernels.triton_gemv import fp4_gemv

        for n, k in COMPARED:
            nbytes = n * k * 9 // 16
            sets = [
                (self.bytes_(n, k // 2), self.scales(n, k // 16))
                for _ in range(self.copies(nbytes))
            ]
            alpha, x = self.ones(1), self.x(1, k)
            y, want = (
                self.torch.empty(1, n, dtype=x.dtype, device="cuda"),
                self.torch.empty(1, n, device="cuda"),
            )
            fp4_gemv(x, *sets[0], alpha, y)
            self.lib.fp4_gemv(x, *sets[0], alpha, want)
            error = float((y.float() - want).norm() / want.norm())
            calls = [lambda c=c, s=s: fp4_gemv(x, c, s, alpha, y) for c, s in sets]
            self.row("Triton GEMV", f"{n}x{k}", 1, nbytes, calls, f"differs by {error:.1e}")


def run(*, quick: bool = False, say: Callable[[str], None] = lambda text: None) -> Report:
    """Return all measurements on GPU 0. quick: only the ceilings and the NVFP4 product at 8192 x
    8192.
    """
    bench = _Bench(say)
    bench.ceilings()
    if quick:
        bench.fp4([(8192, 8192)], (1,))
        return bench.report
    bench.reads(SHAPES)
    bench.fp4(SHAPES, (1,), (False, True))
    bench.fp4(COMPARED, (2, 4, 8))
    bench.fp4(SHAPES, (1,), (False, True), marlin=True)
    bench.fp4(COMPARED, (2, 4, 8, 16), marlin=True)
    bench.moe("Qwen3-Next-80B-A3B", 512, 10, 512, 2048, (1, 4))
    bench.moe("Qwen3-30B-A3B", 128, 8, 768, 2048, (1, 4))
    bench.sparse(COMPARED)
    bench.fp8(COMPARED, (1, 4))
    bench.lm_head(151936, 2048)
    bench.quant(1, 8192)
    bench.quant(4096, 8192)
    bench.rival("fp4_prefill", bench.prefill)
    bench.rival("torch linear bf16", bench.torch_bf16)
    bench.rival("torch _weight_int4pack_mm", bench.torch_int4)
    bench.rival("bitsandbytes fp4", bench.bitsandbytes)
    bench.rival("Triton GEMV", bench.triton)
    bench.rival("humming NVFP4", bench.humming)
    return bench.report
