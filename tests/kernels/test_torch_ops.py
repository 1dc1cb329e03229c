"""torch's operators on the CPU, every one: values, schema, and that torch.compile keeps them in one
graph. In the engine's environment.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CODE = """
import numpy as np, torch
from sparkbook.kernels import reference, torch_ops
from sparkbook.kernels.caller_checks import torch_ops_calls
torch.manual_seed(0)
calls = torch_ops_calls(torch, np.random.default_rng(0))
assert set(calls) == {name for name in dir(torch_ops) if hasattr(getattr(torch_ops, name), "register_fake")}, "an operator without a test"
several = lambda y: y if isinstance(y, tuple) else (y,)
for name, arguments in calls.items():
    operator = getattr(torch.ops.sparkbook, name)
    torch.library.opcheck(getattr(torch_ops, name), arguments)
    torch._dynamo.reset()  # the limit of recompilations counts by code, and the code is one
    compiled = torch.compile(lambda *a: operator(*a), fullgraph=True, backend="aot_eager")
    assert all(torch.equal(a, b) for a, b in zip(several(compiled(*arguments)), several(operator(*arguments)))), name
x, codes, scales, g = calls["fp4_gemv"]
weights = torch.ops.sparkbook.nvfp4_dequantize(codes, scales, g, torch.float32)
assert torch.equal(weights, torch.from_numpy(reference.dequantize(codes.numpy(), scales.numpy(), float(g))))
assert (torch.ops.sparkbook.fp4_gemv(x, codes, scales, g) - x.float() @ weights.T).abs().max() < 0.05
assert torch.equal(torch.ops.sparkbook.nvfp4_quantize(weights, g)[0], codes)
y, want = torch.ops.sparkbook.marlin_gemv(*calls["marlin_gemv"]), calls["marlin_gemv"][0].float() @ weights.T
assert (y.float() - want).norm() < 0.01 * want.norm(), "the same weights in Marlin's order"
x, tiles, alpha, n = calls["sparse_gemv"]
pruned, same = reference.from_sparse24(reference.Sparse24(tiles.numpy(), n, x.shape[1], 0.0, 0.0))
dense = torch.ops.sparkbook.fp4_gemv(x, torch.from_numpy(pruned), torch.from_numpy(same), alpha)
assert torch.equal(torch.ops.sparkbook.sparse_gemv(x, tiles, alpha, n), dense)
x, w8, ones = calls["fp8_gemv"]
assert torch.equal(torch.ops.sparkbook.fp8_gemv(x, w8.view(torch.float8_e4m3fn), ones), torch.ops.sparkbook.fp8_gemv(x, w8, ones))
one, two = calls["moe_decode"], list(calls["moe_decode"])
two[-2] = torch.full_like(one[-2], -1)
assert torch.ops.sparkbook.moe_decode(*one).abs().max() > 0 and not torch.ops.sparkbook.moe_decode(*two).any()
x, gamma, eps, g = calls["rmsnorm_nvfp4_quantize"]
normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps) * gamma.float()
fused, apart = torch.ops.sparkbook.rmsnorm_nvfp4_quantize(x, gamma, eps, g), torch.ops.sparkbook.nvfp4_quantize(normed, g)
assert (fused[0] != apart[0]).float().mean() < 0.01
x, g = calls["silu_mul_nvfp4_quantize"]
gate, up = x.float().chunk(2, -1)
apart = torch.ops.sparkbook.nvfp4_quantize(torch.nn.functional.silu(gate) * up, g)
assert (torch.ops.sparkbook.silu_mul_nvfp4_quantize(x, g)[0] != apart[0]).float().mean() < 0.01
print("ok")
"""


@pytest.mark.engine
def test_operators_on_the_cpu():
    python = ROOT / ".venv-engine" / "bin" / "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "lib")}
    done = subprocess.run(
        [python, "-c", CODE], capture_output=True, text=True, check=False, env=environment
    )
    assert done.stdout.strip() == "ok", done.stderr[-2000:]
