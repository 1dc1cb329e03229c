"""torch's operators on the CPU: values, schema, and that torch.compile keeps them in one graph. In the engine's environment."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import numpy as np, torch
from sparkbook.kernels import reference, torch_ops
torch.manual_seed(0)
w = np.random.default_rng(0).standard_normal((48, 64)).astype("f4")
codes, scales, g = (torch.from_numpy(np.asarray(a)) for a in reference.quantize(w))
x = torch.randn(3, 64, dtype=torch.bfloat16)
want = x.float() @ torch.from_numpy(reference.dequantize(codes.numpy(), scales.numpy(), float(g))).T
assert (torch.ops.sparkbook.fp4_gemv(x, codes, scales, g) - want).abs().max() < 0.1
compiled = torch.compile(lambda v: torch.ops.sparkbook.fp4_gemv(v, codes, scales, g) * 2, fullgraph=True, backend="aot_eager")
assert torch.equal(compiled(x), torch.ops.sparkbook.fp4_gemv(x, codes, scales, g) * 2)
torch.library.opcheck(torch_ops.fp4_gemv, (x, codes, scales, g))
torch.library.opcheck(torch_ops.nvfp4_quantize, (x, g))
w8 = torch.from_numpy(reference.encode_e4m3(w))
torch.library.opcheck(torch_ops.fp8_gemv, (x, w8, torch.ones(48)))
torch.library.opcheck(torch_ops.lm_head, (x, w8, torch.ones(48)))
as_fp8 = torch.ops.sparkbook.fp8_gemv(x, w8.view(torch.float8_e4m3fn), torch.ones(48))
assert torch.equal(as_fp8, torch.ops.sparkbook.fp8_gemv(x, w8, torch.ones(48)))
print("ok")
"""


@pytest.mark.engine
def test_operators_on_the_cpu():
    python = ROOT / ".venv-engine" / "bin" / "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run([python, "-c", CODE], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout.strip() == "ok", done.stderr[-2000:]
