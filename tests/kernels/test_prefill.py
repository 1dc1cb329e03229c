"""The product for prefill: its machine code is the tensor core's FP4 instruction, and it is off by
default. `test_on_cpu.py` runs its source.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.kernels import build, library


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["121f", "121a", "120f"])
def test_the_machine_code_is_the_tensor_cores_own_instruction(arch: str, tmp_path: Path):
    chain, cubin = build.find_toolchain(), tmp_path / "prefill.cubin"
    target = ["-gencode", f"arch=compute_{arch},code=sm_{arch}", "-cubin", "-o", str(cubin)]
    source = str(build.sources() / "prefill.cu")
    line = [str(chain.nvcc), *chain.flags(), "-O3", "-std=c++17", "-Xptxas", "-v", *target, source]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "0 bytes spill stores, 0 bytes spill loads" in done.stderr
    (found,) = build.instructions_by_kernel(cubin).values()
    products = {name: count for name, count in found.items() if "MMA" in name}
    # 4 x 4 tiles of a warp's 64 x 32.
    assert products == {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X": 16}


@pytest.mark.nvcc
@pytest.mark.parametrize("switch", [None, "0", "1"])
def test_it_is_off_by_default(monkeypatch: pytest.MonkeyPatch, switch: str | None):
    monkeypatch.delenv("SPARKBOOK_FP4_PREFILL", raising=False)
    if switch:
        monkeypatch.setenv("SPARKBOOK_FP4_PREFILL", switch)
    made = library.Library(build.build("sm_121f").path)
    assert made.prefill is (switch == "1")
    if not made.prefill:
        with pytest.raises(SparkbookError, match="SPARKBOOK_FP4_PREFILL=1"):
            made.fp4_prefill((), (), None)
