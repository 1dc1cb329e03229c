"""Which target has which FP4 instruction: one line of PTX each, put through the assembler and the
disassembler.

`table` runs them where nvcc's `ptxas` is found; `recorded` is what that gave here, for a machine
without a compiler.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.kernels import build

TARGETS = (
    "sm_90",
    "sm_100",
    "sm_100a",
    "sm_100f",
    "sm_120",
    "sm_120a",
    "sm_120f",
    "sm_121",
    "sm_121a",
    "sm_121f",
)
FILE = "instructions.json"

_D, _A, _B = ("{d0,d1,d2,d3}", "{a0,a1,a2,a3}", "{b0,b1}")
_SCALES = "s0, {0,0}, s1, {0,0}"
_STORE = "add.f32 d0, d0, d3; st.global.f32 [p], d0;"

#: What is tried: a name, and the PTX that needs it. The registers are declared around it.
TRIED = {
    "cvt.rn.satfinite.e2m1x2.f32": "cvt.rn.satfinite.e2m1x2.f32 t, d0, d1; st.global.b8 [p], t;",
    "cvt.rn.f16x2.e2m1x2": "ld.global.b8 t, [p]; cvt.rn.f16x2.e2m1x2 a0, t; st.global.b32 [p], a0;",
    "mma m16n8k64 kind::mxf4nvf4": (
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"
        f" {_D}, {_A}, {_B}, {_D}, {_SCALES}; {_STORE}"
    ),
    "mma.sp m16n8k128 kind::mxf4nvf4": (
        "mma.sp::ordered_metadata.sync.aligned.m16n8k128.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1.f32.ue4m3"
        f" {_D}, {_A}, {{b0,b1,b2,b3}}, {_D}, s0, 0, {_SCALES.replace('s0', 's1', 1)}; {_STORE}"
    ),
    "mma m16n8k64 without a kind": (
        f"mma.sync.aligned.m16n8k64.row.col.f32.e2m1.e2m1.f32 {_D}, {_A}, {_B}, {_D}; {_STORE}"
    ),
    "mma m16n8k32 e4m3": (
        f"mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {_D}, {_A}, {_B}, {_D}; {_STORE}"
    ),
    "tcgen05.alloc": "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [s0], 32;",
}
_PTX = """.version 9.0
.target {target}
.address_size 64
.visible .entry k(.param .u64 to) {{
  .reg .b64 p; .reg .f32 d0, d1, d2, d3; .reg .b32 a0, a1, a2, a3, b0, b1, b2, b3, s0, s1; .reg .b8 t;
  ld.param.u64 p, [to];
  ld.global.v4.f32 {{d0,d1,d2,d3}}, [p]; ld.global.v4.b32 {{a0,a1,a2,a3}}, [p+16]; ld.global.v4.b32 {{b0,b1,b2,b3}}, [p+32];
  ld.global.v2.b32 {{s0,s1}}, [p+48];
  {body}
  ret;
}}
"""  # noqa: E501 - PTX, as the assembler reads it
_TELLING = ("F2FP", "OMMA", "QMMA", "HMMA", "UTCATOMSWS")


@dataclass(frozen=True)
class Answer:
    """The assembler's answer for one instruction on one target.

    Attributes:
        accepted: whether it assembles.
        machine: the machine instructions that do the work, sorted; empty where it was not
            disassembled.
        says: the assembler's words where it does not.
    """

    accepted: bool
    machine: tuple[str, ...] = ()
    says: str = ""


def ask(name: str, target: str, *, disassemble: bool = False) -> Answer:
    """Assembles one of `TRIED` for a target, which takes some hundredths of a second; disassembling
    takes half a second more.

    Raises:
        SparkbookError: there is no assembler or no disassembler.
    """
    toolchain = build.find_toolchain()
    # nvcc on the path may be a link, or a script that stands elsewhere.
    places = [
        toolchain.root / "bin" / "ptxas",
        toolchain.nvcc.resolve().parent / "ptxas",
        Path(shutil.which("ptxas") or "ptxas"),
    ]
    ptxas = next((place for place in places if place.is_file()), None)
    if ptxas is None:
        raise SparkbookError(
            f"no ptxas next to {toolchain.nvcc}: it comes with the CUDA toolkit and with the wheel"
            " nvidia-cuda-nvcc"
        )
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        source.write_text(_PTX.format(target=target, body=TRIED[name]), "utf-8")
        done = build._run([str(ptxas), f"-arch={target}", "-o", str(out), str(source)])
        if done.returncode:
            said = next(
                (
                    line.split("error", 1)[1].lstrip(" :")
                    for line in done.stderr.splitlines()
                    if "error" in line
                ),
                done.stderr,
            )
            return Answer(False, says=said.strip()[:160])
        found = build.instructions(out) if disassemble else {}
    return Answer(True, tuple(sorted(name for name in found if name.startswith(_TELLING))))


def table(*, disassemble: bool = False) -> dict[str, dict[str, Answer]]:
    """Return every instruction on every target, asked now: a second, or 20 with the disassembler.
    Raises SparkbookError as `ask`.
    """
    return {
        name: {target: ask(name, target, disassemble=disassemble) for target in TARGETS}
        for name in TRIED
    }


def architecture(target: str) -> int:
    """Return the value of __CUDA_ARCH__ for a target, from the preprocessor. Raises SparkbookError
    as `ask`, or where nvcc fails.
    """
    toolchain = build.find_toolchain()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "k.cu")
        source.write_text("#ifdef __CUDA_ARCH__\nthe_number __CUDA_ARCH__\n#endif\n", "utf-8")
        done = build._run(
            [str(toolchain.nvcc), *toolchain.flags(), "-E", f"-arch={target}", str(source)]
        )
    if not (found := re.search(r"^the_number (\d+)", done.stdout, re.MULTILINE)):
        raise SparkbookError(
            f"nvcc ({toolchain.nvcc}) could not preprocess for {target}:"
            f" {done.stderr.strip()[-300:]}"
        )
    return int(found[1])


def has_fp4_header() -> bool:
    """Return whether the compiler's own headers have cuda_fp4.h. Raises SparkbookError where there
    is no compiler.
    """
    toolchain = build.find_toolchain()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "k.cu")
        source.write_text("#include <cuda_fp4.h>\n", "utf-8")
        return (
            build._run(
                [
                    str(toolchain.nvcc),
                    *toolchain.flags(),
                    "-E",
                    "-arch=sm_121",
                    "-o",
                    str(Path(folder, "out")),
                    str(source),
                ]
            ).returncode
            == 0
        )


def facts() -> dict[str, Any]:
    """Return what was recorded with the table: the compiler, __CUDA_ARCH__ of three targets, and
    whether there is a header with FP4 types.
    """
    said: dict[str, Any] = json.loads((build.sources() / FILE).read_text("utf-8"))
    return {key: value for key, value in said.items() if key != "answers"}


def recorded() -> dict[str, dict[str, Answer]]:
    """Return the same, as it was recorded. Raises SparkbookError where the checkout's `kernels`
    folder is not there.
    """
    said = json.loads((build.sources() / FILE).read_text("utf-8"))["answers"]
    return {
        name: {
            target: Answer(one["accepted"], tuple(one["machine"]), one["says"])
            for target, one in row.items()
        }
        for name, row in said.items()
    }


def compiler() -> str | None:
    """Return what `table` would ask: such as 'nvcc 13.0'; None where something is missing."""
    try:
        toolchain = build.find_toolchain()
        build.find_disassembler()
    except SparkbookError:
        return None
    return f"nvcc {toolchain.version()}"
