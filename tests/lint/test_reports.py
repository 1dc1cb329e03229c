"""Public reports of what went wrong, each as a small line that has the same mistake: a rule of the
right kind catches it.
"""

import pytest
from sparkbook import lint

D = "docker run --gpus all --ipc=host "
OFFICIAL = D + "vllm/vllm-openai:v0.28.0 "

REPORTS = [
    (
        "default fraction",
        "oom-startup-check",
        OFFICIAL + "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    ),
    (
        "35 restarts",
        "restart-loop",
        D + "--restart unless-stopped vllm/vllm-openai:v0.28.0 ORG/MODEL --gpu-memory-utilization"
        " 0.85",
    ),
    (
        "DFlash with 256 sequences",
        "spec-decode-oom",
        OFFICIAL
        + "poolside/Laguna-S-2.1-NVFP4 --spec-method dflash --spec-model a/b --spec-tokens 15",
    ),
    (
        "DFlash with 32 sequences",
        "spec-decode-oom",
        OFFICIAL
        + "poolside/Laguna-S-2.1-NVFP4 --max-num-seqs 32 --spec-method dflash --spec-model a/b"
        " --spec-tokens 15",
    ),
    (
        "64 GB of shm",
        "hard-reset",
        "docker run --gpus all --shm-size 64gb vllm/vllm-openai:v0.28.0 ORG/MODEL",
    ),
    (
        "NGC 25.11 and NVFP4 MoE",
        "image-too-old",
        D + "nvcr.io/nvidia/vllm:25.11-py3 vllm serve ORG/GLM-4.6-NVFP4",
    ),
    ("a nightly", "version-drift", D + "vllm/vllm-openai:nightly-aarch64 ORG/MODEL"),
    (
        "DSpark and fp8 KV",
        "spec-decode-kv-dtype",
        D
        + "vllm/vllm-openai:v0.25.1 ORG/Qwen3.6-27B-NVFP4 --kv-cache-dtype fp8 --spec-method dspark"
        " --spec-model a/b --spec-tokens 8",
    ),
    (
        "Gemma 4 with FlashInfer",
        "attention-backend",
        D + "vllm/vllm-openai:v0.19.1 google/gemma-4-31B-it --attention-backend FLASHINFER",
    ),
    (
        "Phi-4 and scipy",
        "dependency",
        D + "nvcr.io/nvidia/vllm:26.02-py3 vllm serve nvidia/Phi-4-multimodal-instruct-NVFP4"
        " --trust-remote-code",
    ),
    (
        "a cluster's container",
        "multi-node-docker",
        D + "nvcr.io/nvidia/vllm:26.04-py3 vllm serve ORG/MODEL -tp 2"
        " --distributed-executor-backend ray",
    ),
    (
        "no Ray in the image",
        "ray-missing",
        D + "nvcr.io/nvidia/vllm:26.04-py3 vllm serve ORG/MODEL -tp 2"
        " --distributed-executor-backend ray",
    ),
    (
        "gemma4-cu130 and its loader",
        "image-too-old",
        D + "vllm/vllm-openai:gemma4-cu130 google/gemma-4-31B-it --load-format fastsafetensors",
    ),
    (
        "gemma4-cu130 and its tool parser",
        "image-too-old",
        D + "vllm/vllm-openai:gemma4-cu130 google/gemma-4-31B-it --enable-auto-tool-choice"
        " --tool-call-parser gemma4",
    ),
    ("amd64 on Arm", "arch-image", D + "vllm/vllm-openai:v0.28.0-x86_64 ORG/MODEL"),
    ("vllm serve twice", "entrypoint", OFFICIAL + "vllm serve ORG/MODEL"),
    (
        "vllm serve twice, latest",
        "entrypoint",
        D + "-v ~/m:/models vllm/vllm-openai:latest vllm serve /models/GLM-4.7-Flash-AWQ-4bit",
    ),
    (
        "the switch by batch size",
        "removed-flag",
        OFFICIAL + "ORG/MODEL --speculative-disable-by-batch-size 32",
    ),
    (
        "the switch as a key",
        "removed-flag",
        OFFICIAL
        + """ORG/MODEL --speculative-config '{"method":"mtp","num_speculative_tokens":1,"disable_by_batch_size":32}'""",
    ),
    (
        "the attention variable",
        "removed-env",
        D + "-e VLLM_ATTENTION_BACKEND=FLASHINFER vllm/vllm-openai:v0.26.0 ORG/MODEL",
    ),
    (
        "a fork's variable",
        "removed-env",
        D + "-e VLLM_MXFP4_BACKEND=marlin vllm/vllm-openai:nightly openai/gpt-oss-120b",
    ),
    (
        "K=3 is not a mistake",
        "false-positive",
        OFFICIAL
        + """Qwen/Qwen3.6-35B-A3B --speculative-config '{"method":"mtp","num_speculative_tokens":3}'""",
    ),
    (
        "mamba blocks without prefix cache",
        "flag-conflict",
        OFFICIAL + "ORG/MODEL --no-enable-prefix-caching --mamba-block-size 256",
    ),
    (
        "chunked prefill left out",
        "default-changed",
        OFFICIAL + "Qwen/Qwen3.5-35B-A3B --enable-chunked-prefill",
    ),
    (
        "two launch scripts",
        "config-drift",
        (
            "vllm serve poolside/Laguna-XS.2 --max-num-seqs 2\nvllm serve poolside/Laguna-XS.2"
            " --max-num-seqs 8"
        ),
    ),
    ("three images", "version-drift", OFFICIAL + "ORG/MODEL"),
    (
        "Marlin for the draft",
        "spec-decode-load",
        OFFICIAL
        + """nvidia/Qwen3.6-35B-A3B-NVFP4 --moe-backend marlin --speculative-config '{"method":"mtp","num_speculative_tokens":3}'""",
    ),
    (
        "Nemotron Super's two parsers",
        "reasoning-parser",
        D
        + "nvcr.io/nvidia/vllm:26.04-py3 vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4"
        " --reasoning-parser super_v3",
    ),
    (
        "qwen3_xml",
        "tool-parser",
        D + "vllm/vllm-openai:v0.23.0 nvidia/Qwen3.6-35B-A3B-NVFP4 --enable-auto-tool-choice"
        " --tool-call-parser qwen3_xml",
    ),
    (
        "step3p5 for Nemotron",
        "reasoning-parser",
        OFFICIAL + "nvidia/Nemotron-3.5-Lightning-30B-A3B-NVFP4 --reasoning-parser step3p5",
    ),
    (
        "no reasoning parser",
        "reasoning-parser",
        OFFICIAL + "Qwen/Qwen3.5-397B-A17B --enable-auto-tool-choice --tool-call-parser hermes",
    ),
    ("--enable-reasoning", "removed-flag", OFFICIAL + "Qwen/Qwen3.5-397B-A17B --enable-reasoning"),
    (
        "tools without the two options",
        "tool-parser",
        OFFICIAL + "google/gemma-4-31B-it --tool-call-parser gemma4",
    ),
    (
        "Harmony offline",
        "offline-assets",
        D + "-e HF_HUB_OFFLINE=1 vllm/vllm-openai:v0.28.0 openai/gpt-oss-120b",
    ),
    (
        "fastsafetensors over Ray",
        "loader-hang",
        (
            "RAY_memory_monitor_refresh_ms=0 vllm serve ORG/MODEL -tp 2"
            " --distributed-executor-backend ray --load-format fastsafetensors"
        ),
    ),
    (
        "Ray's memory monitor",
        "ray-oom-killer",
        "vllm serve ORG/MODEL -tp 2 --distributed-executor-backend ray",
    ),
    (
        "a limit that does not hold",
        "host-freeze",
        D + "--memory 8g vllm/vllm-openai:v0.28.0 ORG/MODEL",
    ),
    (
        "AWQ in the name",
        "quant-flag",
        D + "vllm/vllm-openai:v0.23.0 ORG/GLM-4.7-Flash-AWQ --quantization awq",
    ),
    (
        "a template that is not there",
        "template-missing",
        D + "-v ~/m:/models vllm/vllm-openai:v0.28.0 /models/glm --chat-template"
        " /recipes/chat_template.jinja",
    ),
]


@pytest.mark.parametrize(
    ("kind", "line"), [report[1:] for report in REPORTS], ids=[report[0] for report in REPORTS]
)
def test_a_report_is_caught(kind, line):
    assert kind in {finding.kind for finding in lint.lint(line).findings}


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_few_tokens_from_one_mtp_layer_are_no_mistake(tokens):
    findings = lint.lint(
        OFFICIAL + f"Qwen/Qwen3.6-35B-A3B --spec-method mtp --spec-tokens {tokens}"
    ).findings
    assert not [f for f in findings if f.rule.startswith("SPEC") and f.severity != "info"]


def test_every_kind_of_the_linters_reports_is_among_them():
    """The kinds of the public reports that a linter is the first to catch."""
    theirs = """oom-startup-check restart-loop spec-decode-oom hard-reset image-too-old version-drift spec-decode-kv-dtype attention-backend
        dependency multi-node-docker entrypoint removed-flag removed-env false-positive flag-conflict default-changed config-drift
        spec-decode-load reasoning-parser tool-parser offline-assets loader-hang ray-oom-killer host-freeze quant-flag template-missing"""
    assert set(theirs.split()) <= {kind for _, kind, _ in REPORTS}


UNSEEN_D = (
    "docker run --rm -it --gpus all --ipc=host -p 127.0.0.1:9000:8000 -v /srv/models:/models "
)
UNSEEN = [
    (
        "entrypoint",
        UNSEEN_D + "vllm/vllm-openai:v0.31.0-aarch64 vllm serve mistralai/Mistral-Small-4"
        " --max-model-len 32k",
    ),
    ("entrypoint", "docker run --gpus all nvcr.io/nvidia/vllm:26.06-py3 --model Qwen/Qwen3-8B"),
    ("removed-flag", "vllm serve Qwen/Qwen3-8B --swap-space 8 --num-scheduler-steps 4"),
    (
        "removed-flag",
        UNSEEN_D
        + "vllm/vllm-openai:v0.33.0 openai/gpt-oss-20b --speculative_disable_by_batch_size=16",
    ),
    (
        "removed-env",
        UNSEEN_D
        + "-e VLLM_NVFP4_GEMM_BACKEND=cutlass vllm/vllm-openai:v0.32.0 nvidia/Qwen3-32B-NVFP4",
    ),
    ("removed-env", UNSEEN_D + "--env VLLM_USE_V1=0 vllm/vllm-openai:v0.30.0 Qwen/Qwen3-8B"),
    (
        "oom-startup-check",
        UNSEEN_D + "vllm/vllm-openai:v0.32.0 Qwen/Qwen3-8B --gpu_memory_utilization=0.95",
    ),
    (
        "restart-loop",
        UNSEEN_D.replace("--rm -it", "-d --restart always")
        + "vllm/vllm-openai:v0.32.0 Qwen/Qwen3-8B --gpu-memory-utilization .7",
    ),
    ("version-drift", UNSEEN_D + "vllm/vllm-openai:latest Qwen/Qwen3-8B"),
    ("arch-image", UNSEEN_D + "--platform linux/amd64 vllm/vllm-openai:v0.32.0 Qwen/Qwen3-8B"),
    (
        "reasoning-parser",
        "vllm serve nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 --reasoning-parser nano_v3",
    ),
    ("reasoning-parser", "vllm serve google/gemma-4-12b-it --reasoning-parser deepseek_r1"),
    ("tool-parser", "vllm serve Qwen/Qwen3.6-27B --enable-auto-tool-choice"),
    (
        "tool-parser",
        "vllm serve openai/gpt-oss-20b --enable-auto-tool-choice --tool-call-parser hermes",
    ),
    (
        "spec-decode-oom",
        UNSEEN_D + "vllm/vllm-openai:v0.32.0 Qwen/Qwen3.5-27B -sc"
        ' \'{"method":"dflash","model":"x/y","num_speculative_tokens":9}\'',
    ),
    (
        "quant-flag",
        UNSEEN_D + "vllm/vllm-openai:v0.32.0 RedHatAI/Qwen3-32B-NVFP4 --quantization modelopt_fp4",
    ),
    (
        "ray-missing",
        UNSEEN_D + "nvcr.io/nvidia/vllm:26.04-py3 vllm serve Qwen/Qwen3-235B -tp 2"
        " --distributed-executor-backend=ray",
    ),
    ("hard-reset", "docker run --gpus all --shm-size=96g vllm/vllm-openai:v0.32.0 Qwen/Qwen3-8B"),
    ("host-ipc", "docker run --gpus all vllm/vllm-openai:v0.32.0 Qwen/Qwen3-8B -tp 2"),
    ("default-changed", "vllm serve Qwen/Qwen3-8B --enable-chunked-prefill"),
    (
        "launcher-quoting",
        (
            "vllm serve Qwen/Qwen3-8B --speculative-config"
            ' {"method":"ngram","num_speculative_tokens":3}'
        ),
    ),
    (
        "spec-decode-acceptance",
        (
            "vllm serve Qwen/Qwen3.6-27B --spec-method eagle3 --spec-model"
            " RedHatAI/gemma-4-31B-it-speculator.eagle3 --spec-tokens 3"
        ),
    ),
]
"""The same kinds in other words: kind, and a line that has the mistake."""


@pytest.mark.parametrize(
    ("kind", "line"), UNSEEN, ids=[f"{kind}: {line[-40:]}" for kind, line in UNSEEN]
)
def test_other_words(kind, line):
    assert kind in {finding.kind for finding in lint.lint(line).findings}
