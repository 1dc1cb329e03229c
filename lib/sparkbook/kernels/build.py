"""Building the CUDA sources: which compiler, one line of nvcc for each target, and a look at what
came out.

A target is what nvcc calls `sm_...`: sm_90 (H100, H200), sm_120f (RTX 50 and RTX PRO Blackwell, and
GB10) and sm_121f (GB10, the Spark). The `f` matters: plain sm_120 and sm_121 reject the FP4
conversion instructions that the chip has. Each target becomes one shared library with a C
interface; it needs no torch to build and none to load.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.util.shell_text import command_line

TARGETS = ("sm_90", "sm_120f", "sm_121f")
VERSION = 10
"""Of the kernels, as `kernels/VERSIONS.md` counts. A benchmark's report carries it, with the hash
of the sources.
"""
_FLAGS = (
    "-O3",
    "-std=c++17",
    "-shared",
    "-cudart",
    "static",
    "-Xcompiler",
    "-fPIC,-fvisibility=hidden,-O3",
    "-Xptxas",
    "-v",
    "--threads",
    "0",
)
#: Names of the wheels. nvcc's own has no front end, no headers and no runtime library.
WHEELS = "nvidia-cuda-nvcc nvidia-cuda-crt nvidia-nvvm nvidia-cuda-runtime nvidia-cuda-cccl"
_INSTRUCTION = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)", re.MULTILINE
)
_INSTALL = command_line("pip", "install", *WHEELS.split())


@dataclass(frozen=True)
class Toolchain:
    """An nvcc and where it came from. `root` is the folder that holds bin, include and lib."""

    nvcc: Path
    origin: str
    root: Path

    def version(self) -> str:
        """Such as '13.0'."""
        said = _run([str(self.nvcc), "--version"]).stdout
        found = re.search(r"release (\d+\.\d+)", said)
        return found[1] if found else "unknown"

    def flags(self) -> list[str]:
        """Return options that nvcc needs because it is in a wheel: the wheels have no lib64 and no
        unversioned libraries.
        """
        return (
            ["-I", str(self.root / "include"), "-L", str(self.root / "lib")]
            if self.origin == "wheel"
            else []
        )


@dataclass(frozen=True)
class Used:
    """What a kernel uses, as the assembler reported: registers of a thread, bytes of shared memory
    that every launch has, bytes spilled.
    """

    registers: int
    shared: int
    spilled: int


@dataclass(frozen=True)
class Built:
    """A library that was built, and what its kernels use, by their names in the machine code."""

    target: str
    path: Path
    used: dict[str, Used]
    fresh: bool  # False: it was there already, of the same sources

    @property
    def kernels(self) -> int:
        return len(self.used)

    @property
    def spills(self) -> int:
        """Bytes stored, over all kernels."""
        return sum(one.spilled for one in self.used.values())

    def to_dict(self) -> dict[str, str | int | bool]:
        return {
            "target": self.target,
            "path": str(self.path),
            "kernels": self.kernels,
            "spilled_bytes": self.spills,
            "fresh": self.fresh,
        }


def sources() -> Path:
    """Return the folder of the CUDA sources. Raises SparkbookError where the package is installed
    without them.
    """
    folder = Path(
        os.environ.get("SPARKBOOK_KERNELS") or Path(__file__).resolve().parents[3] / "kernels"
    )
    if not (folder / "gemv.cu").is_file():
        raise SparkbookError(
            f"{folder} has no CUDA sources: work in a checkout of the project, or name its kernels"
            " folder in SPARKBOOK_KERNELS"
        )
    return folder


def build_folder() -> Path:
    """Return where libraries go: `_build/kernels` of the checkout."""
    return sources().parent / "_build" / "kernels"


def find_toolchain() -> Toolchain:
    """nvcc from CUDA_HOME (or CUDA_PATH), from PATH, or from this Python's PyPI wheels, in
    this order.

    Raises SparkbookError that says how to get one.
    """
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(name):
            nvcc = Path(home) / "bin" / "nvcc"
            if not nvcc.is_file():
                raise SparkbookError(
                    f"{name} is {home}, but there is no bin/nvcc in it: correct it or unset it"
                )
            return Toolchain(nvcc, name, Path(home))
    if found := shutil.which("nvcc"):
        return Toolchain(Path(found), "PATH", Path(found).resolve().parents[1])
    for folder in sys.path:
        for root in sorted(Path(folder or ".").glob("nvidia/cu1[3-9]")):
            if (root / "bin" / "nvcc").is_file():
                if missing := [
                    part
                    for part in (
                        "nvvm/bin/cicc",
                        "include/cuda_runtime.h",
                        "include/crt/host_defines.h",
                    )
                    if not (root / part).exists()
                ]:
                    raise SparkbookError(
                        f"the wheel of nvcc at {root} lacks {', '.join(missing)}: {_INSTALL}"
                    )
                return Toolchain(root / "bin" / "nvcc", "wheel", root)
    raise SparkbookError(
        "no CUDA compiler: looked in CUDA_HOME, on PATH and for PyPI's wheels. Install the CUDA"
        f" toolkit 13.0 or later, or its compiler alone: {_INSTALL}. Without one, the"
        " numpy reference (sparkbook.kernels.reference) works"
    )


def source_hash() -> str:
    """Return twelve hex digits over the names and bytes of the sources and the flags."""
    digest = hashlib.sha256(" ".join(_FLAGS).encode())
    for path in sorted(sources().glob("*.cu*")) + sorted(sources().glob("*.h")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def library_path(target: str) -> Path:
    """Return where `target`'s library lies, or would. The name carries the hash of the sources: an
    old one is never taken for the new.
    """
    return build_folder() / f"sparkbook-{target}-{source_hash()}.so"


def build(target: str, *, toolchain: Toolchain | None = None, again: bool = False) -> Built:
    """Compiles `target`, or finds it compiled. Raises SparkbookError with the compiler's words if
    it fails.
    """
    if target not in TARGETS:
        raise SparkbookError(f"there is no target '{target}'; targets are {', '.join(TARGETS)}")
    path = library_path(target)
    log = path.with_suffix(".log")
    used = _used(_text(log)) if path.is_file() and not again else {}
    fresh = not used
    if fresh:
        toolchain = toolchain or find_toolchain()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        arch = target.removeprefix("sm_")
        files = sorted(str(file) for file in sources().glob("*.cu"))
        command = [
            str(toolchain.nvcc),
            *_FLAGS,
            *toolchain.flags(),
            "-gencode",
            f"arch=compute_{arch},code=sm_{arch}",
            "-o",
            str(part),
            *files,
        ]
        done = _run(command)
        said = done.stderr + done.stdout
        if done.returncode:
            part.unlink(missing_ok=True)
            why = "\n".join(line for line in said.splitlines() if not line.startswith("ptxas info"))
            if done.returncode < 0:
                why += f"\nended by signal {-done.returncode}: is there enough memory?"
            raise SparkbookError(
                f"nvcc ({toolchain.nvcc}) could not compile {target}:\n{why.strip()[-2000:]}"
            )
        used = _used(said)
        try:
            log.write_text(said, "utf-8")
            part.replace(path)
        except OSError as error:
            for one in (part, log):
                with contextlib.suppress(OSError):
                    one.unlink()
            raise SparkbookError(f"{path} can't be written: {error.strerror}") from None
        for old in path.parent.glob(f"sparkbook-{target}-*"):
            if not old.name.startswith(path.stem):  # another process may build these sources too
                old.unlink(missing_ok=True)
    return Built(target, path, used, fresh)


def _text(log: Path) -> str:
    try:
        return log.read_text("utf-8", "replace")
    except OSError:
        return ""


def _used(log: str) -> dict[str, Used]:
    """Return what each kernel takes, by what the compiler said of it."""
    used = {}
    for part in log.split("Compiling entry function '")[1:]:
        spilled, registers, shared = (
            int(found[1]) if (found := re.search(pattern, part)) else 0
            for pattern in (r"(\d+) bytes spill st", r"Used (\d+) reg", r"(\d+) bytes smem")
        )
        used[part.partition("'")[0]] = Used(registers, shared, spilled)
    return used


def find_disassembler() -> Path:
    """cuobjdump, from where nvcc can come from. Raises SparkbookError."""
    places = [
        Path(home) / "bin" for name in ("CUDA_HOME", "CUDA_PATH") if (home := os.environ.get(name))
    ]
    places += [Path(found).parent] if (found := shutil.which("cuobjdump")) else []
    places += [
        root / "bin"
        for folder in sys.path
        for root in sorted(Path(folder or ".").glob("nvidia/cu1[3-9]"))
    ]
    for place in places:
        if (place / "cuobjdump").is_file():
            return place / "cuobjdump"
    raise SparkbookError(
        "no cuobjdump: install the CUDA toolkit, or pip install nvidia-cuda-cuobjdump"
        " nvidia-cuda-nvdisasm"
    )


def instructions(library: Path) -> Counter[str]:
    """Count each machine instruction in a library, by its full name such as
    'F2FP.SATFINITE.E2M1.F32.PACK_AB_MERGE_C'.
    """
    return sum(instructions_by_kernel(library).values(), Counter())


def instructions_by_kernel(library: Path) -> dict[str, Counter[str]]:
    """Count the same kernel by kernel, by their names in the machine code."""
    tool = find_disassembler()
    # cuobjdump calls nvdisasm, which the wheels put beside it.
    environment = {**os.environ, "PATH": f"{tool.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = _run([str(tool), "-sass", str(library)], environment)
    if done.returncode:
        raise SparkbookError(f"cuobjdump could not read {library}: {done.stderr.strip()[-500:]}")
    parts = re.split(r"^\s+Function : (\S+)$", done.stdout, flags=re.MULTILINE)
    return {
        name: Counter(_INSTRUCTION.findall(text))
        for name, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def _run(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environment,
        )
    except OSError as error:
        raise SparkbookError(f"{command[0]} can't be run: {error.strerror}") from None
