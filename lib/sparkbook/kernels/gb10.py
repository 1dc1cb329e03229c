"""What can be known of the kernels on GB10 (sm_121f) without one: what the compiler made of each,
and how the launches of the catalogue's shapes fit a multiprocessor.

`record` compiles and counts; `recorded` is what that gave (`kernels/gb10.json`), for a machine
without a compiler. Launches are those of the sources themselves, compiled so that they note a
launch instead of making it (`kernels/record/launches.h`). NVIDIA's occupancy calculator
(`cuda_occupancy.h`) says how many blocks fit.
"""

from __future__ import annotations

import ctypes
import json
import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparkbook.checkpoint import config as configuration
from sparkbook.checkpoint import configs, known
from sparkbook.errors import SparkbookError
from sparkbook.kernels import build
from sparkbook.kernels.library import SIGNATURES
from sparkbook.recipes import catalogue

TARGET = "sm_121f"
FILE = "gb10.json"
WARPS, SHARED = 48, 101376
"""Warps that a multiprocessor of GB10 holds at a time, and bytes of shared memory that a block can
have: CUDA C++ Programming Guide, technical specifications by compute capability, 12.x.
"""
_TELLING = re.compile(r"F2FP\.\S*(E2M1|E4M3)|[HOQ]MMA")


@dataclass(frozen=True)
class Fit:
    """How a launch fits a multiprocessor.

    Attributes:
        call: the function of the library.
        shape: of the weights, N x K, or `experts A of E, I x H`.
        tokens: of the call.
        kernel: as the source writes it.
        shared: bytes of shared memory of a block.
        warps: resident on a multiprocessor, of 48; 0: the launch is refused.
    """

    call: str
    shape: str
    tokens: int
    kernel: str
    shared: int
    warps: int


@dataclass(frozen=True)
class Kernel:
    """What the compiler made of a kernel: what a thread and a block use, and its instructions that
    convert small floats or use the tensor core.
    """

    registers: int
    shared: int
    spilled: int
    machine: dict[str, int]


@dataclass(frozen=True)
class Record:
    """What was compiled, kernel by kernel, and for each kernel the launch of the catalogue's shapes
    that takes most shared memory, with those that GB10 refuses.
    """

    compiler: str
    kernels: dict[str, Kernel]
    fits: tuple[Fit, ...]

    def rows(self) -> Iterator[list[Any]]:
        """Yield a row a family of kernels: its name, variants, most registers, most shared memory
        of a block in KiB, fewest and most resident warps, conversions and products.
        """
        for family in dict.fromkeys(name.partition("<")[0] for name in self.kernels):
            mine = {name: one for name, one in self.kernels.items() if _of(name, family)}
            fits = [fit for fit in self.fits if _of(fit.kernel, family) and fit.warps]
            warps = sorted({fit.warps for fit in fits})
            machine = {name for one in mine.values() for name in one.machine}
            yield [
                f"`{family}`",
                len(mine),
                max(one.registers for one in mine.values()),
                round(max(fit.shared for fit in fits) / 1024, 1),
                " to ".join(map(str, dict.fromkeys((warps[0], warps[-1])))),
                ", ".join(f"`{name}`" for name in sorted(machine)),
            ]

    def refused(self) -> dict[str, float]:
        """Return the launches that need more shared memory than a block can have, in KiB."""
        return {
            f"{fit.call}, {fit.shape}": round(fit.shared / 1024, 1)
            for fit in self.fits
            if not fit.warps
        }


def _of(kernel: str, family: str) -> bool:
    return kernel.partition("<")[0] == family


def shapes() -> tuple[set[tuple[int, int]], set[tuple[int, int, int, int]]]:
    """Return the NVFP4 products of the catalogue's models, as far as their configurations are
    known: weights [N, K] of full attention and MLPs, and experts (all, a token's, inner size,
    hidden size).
    """
    dense, experts = set(), set()
    for recipe in catalogue.all():
        if recipe.model.quantization.format != "nvfp4":
            continue
        handle = recipe.model.repo
        base = handle if configs.find(handle) else known.made_of(handle)
        if base is None:
            continue
        text = configuration.text_config(known.shape(known.shape_of(base)))
        hidden = configuration.whole(text, "hidden_size")
        queries, keys, size, _ = configuration.head_shape(text, "full_attention")
        if size:
            dense |= {((queries + 2 * keys) * size, hidden), (hidden, queries * size)}
        if inner := text.get("intermediate_size"):
            dense |= {(2 * inner, hidden), (hidden, inner)}
        if count := configuration.experts_of(text):
            inner = text.get("moe_intermediate_size") or configuration.whole(
                text, "intermediate_size"
            )
            within = text.get("moe_latent_size") or hidden
            experts.add((count, configuration.active_experts(text), inner, within))
    return dense, experts


def record() -> Record:
    """Return what the compiler says now: half a minute.

    Raises:
        SparkbookError: there is no compiler, disassembler, or other tool that it takes.
    """
    built = build.build(TARGET)
    found = build.instructions_by_kernel(built.path)
    if found.keys() != built.used.keys():
        raise SparkbookError(f"{built.path} and its log are of different builds: build it again")
    kernels = {
        short: Kernel(
            **asdict(built.used[name]),
            machine={one: found[name][one] for one in sorted(found[name]) if _TELLING.match(one)},
        )
        for name, short in _readable(found).items()
    }
    fits = _fits(kernels)
    worst = {
        fit.kernel: fit
        for fit in sorted(fits, key=lambda fit: (fit.shared, fit.shape, fit.tokens))
        if fit.warps
    }
    kept = {*worst.values(), *(fit for fit in fits if not fit.warps)}
    return Record(
        f"nvcc {build.find_toolchain().version()}",
        dict(sorted(kernels.items())),
        tuple(sorted(kept, key=lambda fit: (fit.kernel, fit.shared, fit.shape, fit.tokens))),
    )


def write(found: Record) -> None:
    """Write the record into the checkout."""
    text = json.dumps(asdict(found), indent=1)
    # One line a kernel and a launch: a change is then a line of a diff.
    text = re.sub(r"\n {3,}", " ", text)
    (build.sources() / FILE).write_text(re.sub(r"\n {2}\}", " }", text) + "\n", "utf-8")


def recorded() -> Record:
    """Return what was recorded. Raises SparkbookError where the `kernels` folder is not there."""
    said = json.loads((build.sources() / FILE).read_text("utf-8"))
    return Record(
        said["compiler"],
        {name: Kernel(**one) for name, one in said["kernels"].items()},
        tuple(Fit(**one) for one in said["fits"]),
    )


def _fits(kernels: dict[str, Kernel]) -> list[Fit]:
    """Return how each launch of the shapes fits, out of the sources with noted launches."""
    toolchain = build.find_toolchain()
    with tempfile.TemporaryDirectory() as folder:
        path, launches = Path(folder, "noted.so"), Path(folder, "launches")
        arch = TARGET.removeprefix("sm_")
        _output(
            [
                *(str(toolchain.nvcc), *toolchain.flags(), "-std=c++17", "-shared"),
                *("-cudart", "static", "-Xcompiler", "-fPIC", "--threads", "0", "-ldl"),
                *("-gencode", f"arch=compute_{arch},code=sm_{arch}", "-o", str(path)),
                *("-include", str(build.sources() / "record" / "launches.h")),
                *map(str, sorted(build.sources().glob("*.cu"))),
            ]
        )
        symbols = dict(re.findall(r"(\w+) \w (_ZN2sb\S+)", _output(["nm", str(path)])))
        readable = _readable(symbols.values())
        places = {int(place, 16): readable[name] for place, name in symbols.items()}
        noted = ctypes.CDLL(str(path))
        fits = []
        for call, shape, tokens, given in _calls():
            function = getattr(noted, call)
            function.argtypes = SIGNATURES[call]
            noted.note_launches(str(launches).encode())
            if code := function(*given):
                raise SparkbookError(f"{call} refuses {shape} with {tokens} tokens: error {code}")
            noted.note_launches(None)
            for line in launches.read_text("utf-8").splitlines():
                place, threads, shared = (
                    int(n, base) for n, base in zip(line.split(), (16, 10, 10), strict=True)
                )
                name = places[place]
                own = kernels[name]
                blocks = noted.resident_blocks(own.registers, own.shared, threads, shared)
                if blocks < 0:
                    raise SparkbookError(f"the occupancy calculator: error {-blocks}")
                warps, whole = blocks * threads // 32, own.shared + shared
                fits.append(Fit(call.removeprefix("sb_"), shape, tokens, name, whole, warps))
        return fits


def _calls() -> Iterator[tuple[str, str, int, tuple[Any, ...]]]:
    """Yield the library's calls for the shapes: function, shape, tokens, arguments. Nothing is
    read at the addresses.
    """
    there, stream = 4096, 0
    dense, experts = shapes()
    for kind in (1, 2):  # bf16, f16
        for n, k in sorted(dense):
            shape = f"{n}x{k}"
            for m in (1, 8):
                ends = (there, kind, there, kind, m, n, k)
                yield "sb_fp4_gemv", shape, m, (there, there, there, *ends, 0, 0, 0, stream)
                for blocked in (0, 1):
                    yield "sb_fp8_gemv", shape, m, (there, there, blocked, *ends, 0, stream)
                if k % 256 == 0:
                    yield "sb_sparse_gemv", shape, m, (there, there, *ends, 0, stream)
            ends = (there, kind, 2048, n, k, 0, stream)
            yield "sb_fp4_prefill", shape, 2048, (*[there] * 6, *ends)
            for m in (1, 8, 16):
                ends = (there, kind, there, kind, m, n, k)
                yield "sb_marlin_gemv", shape, m, (there, there, there, *ends, 0, 0, 0, 0, stream)
        for count, active, inner, hidden in sorted(experts):
            shape = f"experts {active} of {count}, {inner}x{hidden}"
            for m in (1, 8):
                matrices = (*[there] * 6, count, there, there, there, kind, there, there, kind)
                given = (*matrices, m, active, inner, hidden, 0, stream)
                yield "sb_moe_decode", shape, m, given
                yield "sb_marlin_moe", shape, m, given
    for kind in (0, 1, 2):
        for k in sorted({k for _, k in dense}):
            out, size = (there, there), (2048, k, 0, stream)
            yield "sb_quantize", f"2048x{k}", 2048, (there, kind, there, *out, *size)
            yield "sb_silu_mul_quantize", f"2048x{k}", 2048, (there, kind, there, *out, *size)
            norm = (there, kind, there, 1e-6)
            yield "sb_rmsnorm_quantize", f"2048x{k}", 2048, (*norm, there, *out, *size)
            yield "sb_dequantize", f"2048x{k}", 2048, (there, there, there, there, kind, *size)
    yield "sb_argmax", "151936", 1, (there, 1, 151936, there, 0, stream)
    yield "sb_e2m1_sweep", "2048", 1, (0, 2048, there, stream)
    yield "sb_read_probe", "66 MB", 1, (there, 66 << 20, there, 48 * 4, stream)


def _readable(names: Iterable[str]) -> dict[str, str]:
    """Return kernels' names as the source writes them: `fp4_gemv<half, 1, 4, 8>`."""
    said = _output(["c++filt"], "\n".join(names)).replace("__nv_bfloat16", "bf16")
    short = re.sub(r"^void |sb::|__(?=half)|\(.*", "", said, flags=re.MULTILINE)
    return dict(zip(names, short.splitlines(), strict=True))


def _output(command: list[str], text: str = "") -> str:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    except OSError as error:
        raise SparkbookError(f"{command[0]} can't be run: {error.strerror}") from None
    if done.returncode:
        raise SparkbookError(f"{command[0]} failed:\n{done.stderr.strip()[-2000:]}")
    return done.stdout
