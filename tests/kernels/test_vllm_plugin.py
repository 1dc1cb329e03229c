"""The vLLM plug-in in the engine's environment (vLLM for CPUs): found by its entry point, silent
with the switch off, a refusal with the switch on; its choice on stand-in layers, against the numpy
reference; and the order of weights against vLLM's own code.
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
import os, sys, tempfile
from types import SimpleNamespace
os.environ["VLLM_CACHE_ROOT"] = tempfile.mkdtemp()
import numpy as np, torch
from vllm.model_executor.kernels.linear.nvfp4.marlin import MarlinNvFp4LinearKernel
from vllm.model_executor.kernels import linear
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.experts.marlin_moe import MarlinExperts
from vllm.platforms.interface import PlatformEnum
from sparkbook.kernels import marlin, reference, vllm_choice, vllm_layers
from sparkbook.kernels.caller_checks import torch_ops_calls
calls = torch_ops_calls(torch, np.random.default_rng(0))
close = lambda y, want: float((y.float() - want).norm() / want.norm()) < 1e-2
said = []
vllm_layers._log.info = said.append
vllm_choice.copies = lambda nbytes: 2
# On a CPU nothing is timed: ours takes as many microseconds as there are tokens, theirs always five.
measured = []
def measure(ours, theirs, most, timed=None):
    measured.append(most)
    times = iter([x for m in (1, 2, 4, 8, 16, 32) for x in (m, 5)])
    return real(ours, theirs, most, lambda calls: next(times))
real, vllm_choice.measure = vllm_choice.measure, measure

x, codes, scales, scale = calls["marlin_gemv"]
n, k = codes.shape[1] // 2, codes.shape[0] * 16
w = torch.from_numpy(marlin.decoded(marlin.Marlin(codes.numpy(), scales.numpy(), np.float32(1), "bf16")).copy())
w = w / 128 * float(scale) / 2.0**119
passed_on = []
stand = torch.library.Library("stand", "DEF")
stand.define("marlin_gemm(Tensor a, Tensor? c_or_none, Tensor b_q_weight, Tensor? b_bias_or_none) -> Tensor")
def product(a, c, weight, bias):
    passed_on.append(a.shape[0])
    y = (a.float() @ w.T).to(a.dtype)
    return y if bias is None else y + bias
stand.impl("marlin_gemm", product, "CPU")
torch.library.register_fake("stand::marlin_gemm", lambda a, c, weight, bias: a.new_empty(a.shape[0], n), lib=stand)
MarlinNvFp4LinearKernel.apply_weights = lambda self, layer, x, bias=None: torch.ops.stand.marlin_gemm(x, None, layer.weight, bias)
MarlinNvFp4LinearKernel.process_weights_after_loading = lambda self, layer: None
other = next(one for one in linear._POSSIBLE_NVFP4_KERNELS[PlatformEnum.CUDA] if one is not MarlinNvFp4LinearKernel)
other.process_weights_after_loading = lambda self, layer: None
vllm_layers.install()
vllm_layers.install()
vllm_layers.hook(torch.ops.stand.marlin_gemm.default)

class Layer(torch.nn.Module):
    def __init__(self, n, k, codes, scale=scale):
        super().__init__()
        self.output_size_per_partition, self.input_size_per_partition, self.params_dtype = n, k, torch.bfloat16
        self.weight, self.weight_scale, self.weight_global_scale = (
            torch.nn.Parameter(t, requires_grad=False) for t in (codes, scales, scale.clone()))
        self.workspace = torch.zeros(4)

kernel = object.__new__(MarlinNvFp4LinearKernel)
layer, second = Layer(n, k, codes), Layer(n, k, codes.clone())
for one in (layer, second):
    kernel.process_weights_after_loading(one)
assert measured == [16] and len(said) == 1, (measured, said)
assert "ours for up to 1, 2, 4 tokens" in said[0] and "nothing is stored twice" in said[0], said
bias = torch.randn(n, dtype=x.dtype)
call = torch.ops.stand.marlin_gemm.default
for rows, ours in ((1, True), (3, True), (4, True), (5, False), (0, False), (40, False)):
    many = torch.randn(rows, k, dtype=x.dtype)
    for add in (None, bias):
        passed_on.clear()
        y = call(many, None, layer.weight, add)
        want = many.float() @ w.T + (0 if add is None else add.float())
        assert y.shape == want.shape and (not rows or close(y, want)), rows
        assert bool(passed_on) == (not ours or add is not None), (rows, passed_on)
passed_on.clear()
# What inductor compiles for any number of tokens calls the hooked operator, too.
compiled = torch.compile(lambda x: call(x * 2, None, layer.weight, None) + 1, fullgraph=True, dynamic=True)
for rows in (7, 2, 3):
    many = torch.randn(rows, k, dtype=x.dtype)
    assert close(compiled(many), 2 * many.float() @ w.T + 1)
assert passed_on == [7], passed_on
padded = Layer(n - 8, k, codes.clone())
kernel.process_weights_after_loading(padded)
assert len(vllm_layers._LAYERS) == 2 and "Marlin pads it" in said[-1]
object.__new__(other).process_weights_after_loading(layer)
assert f"stay {other.__name__}'s" in said[-1] and "memory" in said[-1], said[-1]

x, c13, s13, a13, c2, s2, a2, ids, weights = calls["marlin_moe"]
e, hidden, inter = c13.shape[0], x.shape[1], c13.shape[2] // 4
want = torch.ops.sparkbook.marlin_moe(x, c13, s13, a13, c2, s2, a2, ids, weights).float()
kept = []
class Stand(MarlinExperts):
    w1_scale, w2_scale, g1_alphas, g2_alphas = s13.view(torch.float8_e4m3fn), s2.view(torch.float8_e4m3fn), a13, a2
    w1_bias = w2_bias = gemm1_clamp_limit = None
    quant_config = SimpleNamespace(use_nvfp4_w4a16=True)
    def __init__(self): pass
    def moe_problem_size(self, x, w1, w2, ids): return e, x.shape[0], inter, hidden, ids.shape[1]
experts = Stand()
theirs_of = MarlinExperts.apply.__closure__
cell = next(c for c in theirs_of if callable(c.cell_contents) and c.cell_contents.__name__ == "apply")
def other_apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, activation, global_num_experts, expert_map, *rest, **named):
    kept.append(hidden_states.shape[0])
    output.copy_(torch.ops.sparkbook.marlin_moe(hidden_states, w1, s13, a13, w2, s2, a2, topk_ids.int(), topk_weights))
cell.cell_contents = other_apply

def apply(x, ids, weights, expert_map=None, activation=MoEActivation.SILU, before=False, one=experts):
    y = torch.full_like(x, float("nan"))
    kept.clear()
    one.apply(output=y, hidden_states=x, w1=c13, w2=c2, topk_weights=weights, topk_ids=ids, activation=activation,
              global_num_experts=e, expert_map=expert_map, a1q_scale=None, a2_scale=None, workspace13=None, workspace2=None,
              expert_tokens_meta=None, apply_router_weight_on_input=before)
    return y

apply(x, ids, weights)
assert measured == [16, 32, 32] and "experts" in said[-2] and "ours for up to 1, 2, 4 tokens" in said[-2], said[-2:]
assert "of more than 4 tokens are vLLM's own" in said[-1] and vllm_layers._Limit.rows == 4
assert close(apply(x, ids, weights), want) and not kept
# Expert parallelism: this rank's four experts are the global ones 4 to 7; the others, and the missing id, map to -1.
local = torch.tensor([-1, -1, -1, -1, 0, 1, 2, 3, -1])
moved = torch.where(ids >= 0, ids + 4, 8)
assert close(apply(x, moved, weights, expert_map=local), want) and not kept
many = (torch.randn(9, hidden, dtype=x.dtype), torch.zeros(9, 2, dtype=torch.int32), torch.ones(9, 2))
for arguments, how in ((many, {}), ((x, ids, weights), {"activation": MoEActivation.GELU}), ((x, ids, weights), {"before": True})):
    apply(*arguments, **how)
    assert len(kept) == 1, how
Stand.gemm1_clamp_limit = 7.0
apply(x, ids, weights, one=Stand())
assert len(kept) == 1 and "don't do this layer" in said[-2], "a clamped activation is not ours"
# Where no experts are ours, no linear layer is.
assert "of any number of tokens are vLLM's own" in said[-1], said[-1]
passed_on.clear()
call(torch.randn(1, k, dtype=layer.params_dtype), None, layer.weight, None)
assert passed_on == [1]
"""
CHOICES = """
import json
from pathlib import Path
file = Path(tempfile.mkdtemp()) / "deeper" / "choices.json"
choices, new, counted = vllm_choice.Choices(file), vllm_choice.Choice({1: 1.0, 2: 2.0}, {1: 5.0, 2: 5.0}), []
again = lambda: (counted.append(1), new)[1]
entry = {"ours": {"1": 1.0, "2": 2.0}, "theirs": {"1": 5.0, "2": 5.0}, "refused": ""}
assert choices.get("a", again) == new and choices.get("a", again) == new and len(counted) == 1
assert json.loads(file.read_text()) == {"a": entry}
for damaged in ({"theirs": {"1": 5.0}}, {"ours": {"1": "fast", "2": 1}}, {"ours": {"1": None, "2": 1}}, {"refused": None}, {"ours": 3},
                {"ours": {"-3": 1, "2": 1}}, {"theirs": {"1": float("inf"), "2": 5.0}}, {"ours": {"512": 1.0}, "theirs": {"512": 5.0}}):
    file.write_text(json.dumps({"a": entry | damaged, "b": 7}))
    counted.clear()
    assert choices.get("a", again) == new and counted, damaged
    assert json.loads(file.read_text()) == {"a": entry, "b": 7}, damaged
for whole in ("[]", "null", "3", '"a"', "{", "[" * 100000, ""):
    file.write_text(whole)
    assert choices.get("a", again) == new and json.loads(file.read_text()) == {"a": entry}, whole[:5]
in_a_file = vllm_choice.Choices(file / "choices.json")
assert in_a_file.get("a", again) == new and list(file.parent.iterdir()) == [file]
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
    assert run(LOADED + LAYERS + CHOICES) == "ok"


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


def test_a_switch_that_is_neither_on_nor_off_is_told(monkeypatch, caplog):
    from sparkbook.kernels import vllm_plugin

    for value in ("true", " 1", "on", "2"):
        caplog.clear()
        monkeypatch.setenv(vllm_plugin.SWITCH, value)
        vllm_plugin.register()
        assert f"is '{value}', and only 1 switches" in caplog.text
    for value in ("", "0"):
        caplog.clear()
        monkeypatch.setenv(vllm_plugin.SWITCH, value)
        vllm_plugin.register()
        assert not caplog.text


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
