"""Logs of real engines, on an H100, an H200 and the CPU: each is read right, with its timeline and
facts.
"""

from pathlib import Path

import pytest
from sparkbook import logs
from sparkbook.plots.logs import startup_waterfall

DATA = Path(__file__).parents[1] / "data" / "logs"
HEALTHY = sorted(
    f"{name}.log"
    for name in (
        "h100-0.24.0-tiny-healthy",
        "h100-0.24.0-ngram",
        "h200-0.24.0-nvfp4-plugin",
        "cpu-0.32.0-compiled",
        "cpu-0.32.0-draft_iomp",
        "cpu-0.32.0-final",
        "cpu-0.32.0-moe_dummy",
        "cpu-0.32.0-ngram_uni",
        "cpu-0.32.0-plain",
        "cpu-0.32.0-tiny35_mtp3",
    )
)
FAULTS = {
    "cpu-0.32.0-badattn": ("attention-backend", "LOG312", "FOO"),
    "cpu-0.32.0-badreason": ("reasoning-parser", "LOG310", "foo"),
    "cpu-0.32.0-crash": ("attention-backend", "LOG312", "head dim size, 32"),
    "cpu-0.32.0-disable_bs": ("removed-flag", "LOG304", "disable_by_batch_size"),
    "cpu-0.32.0-gmu": ("oom-startup-check", "LOG101", "14.6/15.59"),
    "cpu-0.32.0-kvfp8": ("attention-backend", "LOG313", "AVX-512"),
    "cpu-0.32.0-quantmodelopt": ("quant-flag", "LOG314", "modelopt"),
    "cpu-0.32.0-suffix": ("dependency", "LOG224", "Arctic"),
    "cpu-0.32.0-toolong": ("flag-conflict", "LOG315", "1000000"),
    "h100-0.24.0-bad-json": ("launcher-quoting", "LOG305", "speculative-config"),
    "h100-0.24.0-kv-small": ("kv-too-small", "LOG108", "5.62 GiB"),
    "h100-0.24.0-missing-model": ("offline-assets", "LOG324", "/models/not-there"),
    "h100-0.24.0-moe-fp8": ("killed-by-watchdog", "LOG117", "exited unexpectedly"),
    "h100-0.24.0-removed-flag": ("removed-flag", "LOG303", "speculative-disable-by-batch-size"),
    "h200-0.24.0-cut-off": ("download-corrupt", "LOG326", "incomplete metadata"),
    "h200-0.24.0-flashinfer-attention": ("attention-backend", "LOG312", "FLASHINFER"),
    "h200-0.24.0-flashinfer-sampler": ("dependency", "LOG224", "flashinfer"),
    "h200-0.24.0-linear-backend": ("flag-conflict", "LOG337", "CutlassNvFp4LinearKernel"),
    "h200-0.24.0-memory-taken": ("oom-startup-check", "LOG101", "109.25/139.8"),
    "h200-0.24.0-moe-backend": ("flag-conflict", "LOG336", "moe_backend='triton'"),
    "h200-0.24.0-moe-cutlass-fp8": ("flag-conflict", "LOG336", "CUTLASS FP8"),
    "h200-0.24.0-mtp-method": ("spec-decode-load", "LOG342", "'mtp'"),
    "h200-0.24.0-no-gpu": ("nvidia-runtime", "LOG339", "0 devices"),
    "h200-0.24.0-tied-head": ("quant-load", "LOG340", "NotImplementedError"),
    "h200-0.24.0-turboquant": ("attention-backend", "LOG312", "version not detected"),
    "h200-0.24.0-two-gpus": ("flag-conflict", "LOG338", "World size (2)"),
    "h200-0.24.0-vocabulary": ("quant-load", "LOG341", "AssertionError"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy(name):
    diagnosis = logs.diagnose(DATA / name)
    assert diagnosis.verdict == "healthy" and diagnosis.primary is None
    assert not [f for f in diagnosis.findings if f.severity != "info"]


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name):
    kind, rule, evidence = FAULTS[name]
    diagnosis = logs.diagnose(DATA / f"{name}.log")
    assert (diagnosis.primary.kind, diagnosis.primary.rule) == (kind, rule)
    assert evidence in diagnosis.primary.evidence
    assert [f.rule for f in diagnosis.findings if f.severity == "error"] == [rule]


def test_echoes_are_consequences():
    diagnosis = logs.diagnose(DATA / "h100-0.24.0-kv-small.log")
    assert [f.rule for f in diagnosis.consequences] == ["LOG510"]
    echo = next(f for f in diagnosis.findings if f.rule == "LOG510")
    assert echo.severity == "info" and echo.message.startswith("Consequence: ")
    assert {"APIServer pid=2516", "EngineCore pid=2885"} <= diagnosis.story.last_lines.keys()


def test_the_killed_engine_core_is_named_as_such():
    diagnosis = logs.diagnose(DATA / "h100-0.24.0-moe-fp8.log")
    assert (
        "engine core" in diagnosis.primary.message
        and "killed from outside" in diagnosis.primary.message
    )
    assert "Collect next" in diagnosis.primary.fix


def test_the_story_of_a_gpu_start():
    story = logs.diagnose(DATA / "h100-0.24.0-moe-fp8.log").story
    facts = story.facts()
    expected = {
        "release": "0.24.0",
        "architecture": "Qwen3MoeForCausalLM",
        "max_model_len": 16384,
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "linear_kernel": "CutlassFP8ScaledMMLinearKernel",
        "moe_backend": "TRITON",
        "attention_backend": "FLASH_ATTN",
        "nvfp4_path": "not 4-bit",
        "weights_gib": 29.06,
        "compile_s": 76.22,
        "graph_s": 7.0,
        "graph_gib": 0.07,
        "graph_estimate_gib": 0.06,
        "kv_gib": 41.09,
        "kv_tokens": 897664,
        "concurrency": 54.79,
        "init_s": 105.11,
        "starts": 1,
        "ready": True,
    }
    assert {name: facts[name] for name in expected} == expected
    assert story.args["max_num_seqs"] == 16 and story.args["gpu_memory_utilization"] == 0.9
    assert [phase.name for phase in story.phases] == [
        "config",
        "process start",
        "weights",
        "compile",
        "profiling run",
        "KV cache",
        "graph capture",
        "engine warm-up",
        "API server",
    ]
    assert story.total_s == pytest.approx(135, abs=1)
    assert [(t.generation_tok_s, t.running, t.prefix_hits) for t in story.throughput] == [
        (462.0, 16, 0.887),
        (244.7, 0, 0.887),
    ]


def test_the_story_of_a_start_with_a_draft():
    story = logs.diagnose(DATA / "cpu-0.32.0-tiny35_mtp3.log").story
    assert (story.speculation, story.draft_tokens, story.draft_architecture) == (
        "mtp",
        3,
        "Qwen3_5MTP",
    )
    assert story.kv_tokens == 1048576 and story.concurrency == 1024.0  # one line holds both in 0.32
    assert "draft" in [phase.name for phase in story.phases]
    assert len(story.acceptance) == 2 and all(
        len(a.per_position) == 3 and a.mean_length > 1 for a in story.acceptance
    )


def test_the_story_of_a_fragment_of_a_spark():
    diagnosis = logs.diagnose(DATA / "gb10-nightly-2026-04-01.log")
    story = diagnosis.story
    assert story.autotune_s == pytest.approx(12.87, abs=0.01)
    assert (story.kv_gib, story.kv_tokens, story.concurrency) == (
        18.04,
        694656,
        2.63,
    )  # two lines before 0.32
    assert (
        story.graph_gib == -0.1 and story.graph_estimate_gib == 0.33
    )  # the measurement may be negative, the estimate may not
    assert {"LOG604", "LOG606"} < {f.rule for f in diagnosis.findings}
    assert diagnosis.verdict == "cut off", "it ends before a ready line"


def test_is_nvfp4_on_the_fast_path():
    config = (
        "INFO 11-27 10:00:00 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config:"
        " model='m', quantization=modelopt_fp4, x=1\n"
    )
    said = {
        "native": (
            "INFO 11-27 10:00:01 [nvfp4.py:242] Using 'FLASHINFER_CUTLASS' NvFp4 MoE backend out of"
            " potential backends: ['MARLIN'].\n"
        ),
        "weight-only": (
            "INFO 11-27 10:00:01 [nvfp4.py:242] Using 'MARLIN' NvFp4 MoE backend out of potential"
            " backends: ['MARLIN'].\n"
        ),
        "unknown": "",
    }
    for path, line in said.items():
        assert logs.diagnose(config + line).story.nvfp4_path == path
    dense = (
        "INFO 11-27 10:00:01 [__init__.py:1240] Using FlashInferCutlassNvFp4LinearKernel for NVFP4"
        " GEMM\n"
    )
    assert logs.diagnose(config + dense).story.nvfp4_path == "native"


def test_waterfall():
    chart = startup_waterfall(logs.diagnose(DATA / "h100-0.24.0-moe-fp8.log").story)
    assert "longest is compile" in chart.alt and chart.svg.startswith("<svg ")


def test_nothing_but_the_launch_so_far():
    text = (DATA / "cpu-0.32.0-plain.log").read_text()
    begun = logs.diagnose("\n".join(text.splitlines()[:20]))
    assert begun.verdict == "starting" and not begun.healthy and begun.primary is None
    assert "starts its processes" in begun.headline and "loading of the weights" in begun.headline
    assert logs.diagnose("").verdict == "empty"
