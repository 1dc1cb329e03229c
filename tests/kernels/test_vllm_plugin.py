"""The vLLM plug-in in the engine's environment (vLLM for CPUs): found by its entry point, silent
with the switch off, a refusal with the switch on; and its two classes on stand-in layers against
the numpy reference.
"""

from __future__ import annotations

import os
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = """
import logging, os, sys
from vllm import plugins
from vllm.model_executor.kernels import linear
from vllm.model_executor.layers.fused_moe.oracle import nvfp4 as oracle
said = []
handler = logging.Handler()
handler.emit = lambda record: said.append(record.getMessage())
logging.getLogger("vllm.sparkbook").addHandler(handler)
state = lambda: (oracle.backend_to_kernel_cls, {key: list(value) for key, value in linear._POSSIBLE_NVFP4_KERNELS.items()})
before = state()
assert "sparkbook_nvfp4" in plugins.load_plugins_by_group("vllm.general_plugins")
plugins.load_general_plugins()
assert not said and state() == before and "sparkbook.kernels.library" not in sys.modules, "the switch is off"
os.environ["SPARKBOOK_VLLM_NVFP4"] = "1"
plugins.plugins_loaded = False
plugins.load_general_plugins()
(line,) = said
assert "are not used" in line and "NVIDIA GPU" in line, line
assert state() == before and "sparkbook.kernels.vllm_layers" not in sys.modules, "refused: nothing changes"
"""
LAYERS = """
from types import SimpleNamespace
import numpy as np, torch
from vllm.model_executor.kernels import linear
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.oracle import nvfp4 as oracle
from vllm.platforms.interface import PlatformEnum
from sparkbook.kernels import reference, vllm_layers
from sparkbook.kernels.caller_checks import torch_ops_calls
calls = torch_ops_calls(torch, np.random.default_rng(0))
close = lambda y, want: float((y.float() - want).norm() / want.norm()) < 1e-2

vllm_layers.install()
vllm_layers.install()
kernels = linear._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CUDA]
assert kernels[0] is vllm_layers.SparkbookNvFp4LinearKernel and len(set(kernels)) == len(kernels)
assert oracle.backend_to_kernel_cls(oracle.NvFp4MoeBackend.EMULATION) == [vllm_layers.SparkbookNvFp4Experts]
assert vllm_layers.SparkbookNvFp4Experts not in oracle.backend_to_kernel_cls(oracle.NvFp4MoeBackend.MARLIN)
usable, reason = vllm_layers.SparkbookNvFp4LinearKernel.is_supported()
assert not usable and "NVIDIA GPU" in reason

x, codes, scales, g = calls["fp4_gemv"]
kernel = object.__new__(vllm_layers.SparkbookNvFp4LinearKernel)
layer = SimpleNamespace(weight=codes, weight_scale=scales.view(torch.float8_e4m3fn), weight_global_scale=g[0])
w = torch.from_numpy(reference.dequantize(codes.numpy(), scales.numpy(), float(g)))
bias = torch.randn(w.shape[0], dtype=x.dtype)
for rows in (x, torch.randn(3, 7, x.shape[1], dtype=x.dtype)):
    y = kernel.apply_weights(layer, rows, bias)
    assert y.shape == (*rows.shape[:-1], w.shape[0]) and close(y, rows.float() @ w.T + bias.float())

x, c13, s13, _, c2, s2, a2, ids, weights = calls["moe_decode"]
a1 = torch.rand(c13.shape[0]) * 1e-3
want = reference.moe_decode(x.float().numpy(), (c13.numpy(), s13.numpy(), torch.stack((a1, a1), 1).numpy()),
                            (c2.numpy(), s2.numpy(), a2.numpy()), ids.numpy(), weights.numpy())
want = torch.from_numpy(want).float()
experts = object.__new__(vllm_layers.SparkbookNvFp4Experts)
torch.nn.Module.__init__(experts) if isinstance(experts, torch.nn.Module) else None
experts.quant_config = SimpleNamespace(g1_alphas=a1, g2_alphas=a2)
experts.w1_scale_val, experts.w2_scale_val = s13.view(torch.float8_e4m3fn), s2.view(torch.float8_e4m3fn)
passed_on = []
vllm_layers.Nvfp4QuantizationEmulationTritonExperts.apply = lambda self, output, *rest, **named: passed_on.append(named)

def apply(x, ids, weights, expert_map=None, activation=MoEActivation.SILU, before=False):
    y = torch.full_like(x, float("nan"))
    experts.apply(output=y, hidden_states=x, w1=c13, w2=c2, topk_weights=weights, topk_ids=ids, activation=activation,
                  global_num_experts=4, expert_map=expert_map, a1q_scale=None, a2_scale=None, workspace13=None, workspace2=None,
                  expert_tokens_meta=None, apply_router_weight_on_input=before)
    return y

assert close(apply(x, ids, weights), want) and not passed_on
# Expert parallelism: this rank's four experts are the global ones 4 to 7; the others, and the missing id, map to -1.
local = torch.tensor([-1, -1, -1, -1, 0, 1, 2, 3, -1])
moved = torch.where(ids >= 0, ids + 4, 8)
assert close(apply(x, moved, weights, expert_map=local), want) and not passed_on
for rows, how in ((9, {}), (2, {"activation": MoEActivation.GELU}), (2, {"before": True})):
    many = (torch.randn(rows, x.shape[1], dtype=x.dtype), torch.zeros(rows, 2, dtype=torch.int32), torch.ones(rows, 2))
    assert apply(*many, **how).isnan().all()
assert len(passed_on) == 3 and all(named["expert_tokens_meta"] is None for named in passed_on)
experts.quant_config.gemm1_clamp_limit = 7.0
apply(x, ids, weights)
assert len(passed_on) == 4, "a clamped activation is not K5's"
print("ok")
"""


@pytest.fixture
def run(tmp_path: Path):
    """Runs code in the engine's environment, with the package's entry points as an installation
    would have them.
    """
    info = tmp_path / "sparkbook-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sparkbook\nVersion: 0.1.0\n")
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    (info / "entry_points.txt").write_text(
        "\n".join(
            f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in named.items())
            for group, named in points.items()
        )
    )

    def call(code: str) -> str:
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("SPARKBOOK_VLLM")
        }
        environment |= {
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'lib'}",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        python = ROOT / ".venv-engine" / "bin" / "python"
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip().splitlines()[-1]

    return call


@pytest.mark.engine
def test_in_vllm(run):
    """One process: loading vLLM takes longest."""
    assert run(LOADED + LAYERS) == "ok"


def test_the_switch_off_imports_nothing():
    code = (
        "import sys; from sparkbook.kernels.vllm_plugin import register; register();"
        "print(sorted({'torch', 'vllm', 'numpy'} & set(sys.modules)))"
    )
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("SPARKBOOK_VLLM")
    }
    done = subprocess.run(
        [ROOT / ".venv" / "bin" / "python", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment | {"PYTHONPATH": str(ROOT / "lib")},
    )
    assert done.stdout.strip() == "[]"


def test_without_vllm_the_switch_on_says_so_and_goes_on(monkeypatch, caplog):
    from sparkbook.kernels import vllm_plugin

    monkeypatch.setenv(vllm_plugin.SWITCH, "1")
    vllm_plugin.register()
    assert "are not used: ModuleNotFoundError" in caplog.text


def test_another_release_is_refused(monkeypatch):
    import sys
    from types import ModuleType, SimpleNamespace

    from sparkbook.kernels import build, vllm_support

    def vllm(version: str, major: int, minor: int, cuda: bool = True) -> None:
        fake, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
        fake.__version__ = version
        platforms.current_platform = SimpleNamespace(
            is_cuda=lambda: cuda,
            device_name="a card",
            device_type="cpu",
            get_device_capability=lambda: SimpleNamespace(major=major, minor=minor),
        )
        monkeypatch.setitem(sys.modules, "vllm", fake)
        monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)

    vllm("0.40.1", 12, 1)
    assert "this is 0.40.1" in vllm_support.refusal()
    vllm("0.33.0+cu130", 8, 9)
    assert "8.9" in vllm_support.refusal()
    vllm("0.33.0", 12, 1, cuda=False)
    assert "NVIDIA GPU" in vllm_support.refusal()
    vllm("0.32.0", 12, 1)
    monkeypatch.setattr(build, "library_path", lambda target: Path("/nonexistent") / target)
    assert "sparkbook kernels build --target sm_121f" in vllm_support.refusal()
    monkeypatch.setattr(build, "library_path", lambda target: Path(__file__))
    assert vllm_support.refusal() is None
