"""Whole lines with known right answers, and with what must not be said about them."""

import re

import pytest
from sparkbook import lint
from sparkbook.lint.case import MOST_SUGGESTED

LINE = """\
docker run -d --name chat --gpus all --ipc=host --restart unless-stopped \\
  -p 8000:8000 -v /home/USER/hf:/root/.cache/huggingface \\
  -e VLLM_ATTENTION_BACKEND=FLASHINFER \\
  IMAGE \\
  vllm serve ORG/MODEL-35B-A3B-NVFP4 \\
    --max_model_len 131072 --max_num_seqs 8 \\
    --enable-auto-tool-choice --port 8080
"""


def judged(image, release=None):
    return lint.lint(LINE.replace("IMAGE", image), release=release).findings


def test_a_line_with_seven_mistakes():
    findings = judged("vllm/vllm-openai:nightly")
    errors = [(f.rule, f.kind) for f in findings if f.severity == "error"]
    assert errors[0] == ("IMG104", "entrypoint")
    assert set(errors) == {("IMG104", "entrypoint"), ("MODEL104", "tool-parser"), ("RUN101", None)}
    warnings = {f.kind for f in findings if f.severity == "warning"}
    assert {"removed-env", "oom-startup-check", "restart-loop", "version-drift"} <= warnings
    by_rule = {f.rule: f for f in findings}
    assert "--attention-backend" in by_rule["ENV102"].fix
    assert "0.92" in by_rule["MEM101"].message
    assert "8080" in by_rule["RUN101"].message and "8000" in by_rule["RUN101"].message


def test_what_must_not_be_said_about_it():
    findings = judged("vllm/vllm-openai:nightly")
    assert not {"RUN102", "FLAG101", "FLAG117"} & {f.rule for f in findings}
    said = " ".join(f"{f.message} {f.fix}" for f in findings)
    assert "underscore" not in said and "--shm-size" not in said and "--quantization" not in said


def test_the_twin_with_nvidias_image_loses_exactly_the_entry_point():
    """Judged against one release, so that only the image differs."""
    official = [f.rule for f in judged("vllm/vllm-openai:nightly", "0.29.0")]
    ngc = [f.rule for f in judged("nvcr.io/nvidia/vllm:26.09-py3", "0.29.0")]
    about_the_tag = {"IMG101", "IMG102", "IMG107"}
    assert [rule for rule in official if rule not in about_the_tag and rule not in ngc] == [
        "IMG104"
    ]
    assert [rule for rule in ngc if rule not in about_the_tag and rule not in official] == []


def test_a_healthy_line_with_one_variable_that_has_gone():
    """The line whose log is healthy: one variable has no effect any more, and nothing else is wrong
    with it.
    """
    line = (
        "docker run -d --gpus all --ipc=host -p 127.0.0.1:8000:8000 -v ~/vllm:/models:ro -e"
        " VLLM_FLASHINFER_MOE_BACKEND=latency vllm/vllm-openai:v0.28.0@sha256:"
        + "1"
        * 64
        + " /models/Qwen3.6-35B-A3B-NVFP4 --load-format fastsafetensors "
        "--gpu-memory-utilization 0.8 --max-num-seqs 4 --reasoning-parser qwen3 --kv-cache-dtype"
        " fp8 "
        """--speculative-config '{"method":"mtp","num_speculative_tokens":3}'"""
    )
    findings = lint.lint(line).findings
    assert [(f.rule, f.kind) for f in findings if f.severity != "info"] == [
        ("ENV102", "removed-env")
    ]
    assert "--moe-backend" in findings[0].fix
    said = " ".join(f.message for f in findings)
    assert (
        "FP4" not in said.replace("NVFP4", "")
        and "not supported" not in said
        and "loader" not in said
    )


@pytest.mark.parametrize("image", ["vllm/vllm-openai:nightly", "example.org/mine:1"])
def test_where_the_release_is_not_known_the_finding_says_what_was_assumed(image):
    report = lint.lint(f"docker run --gpus all --ipc=host {image} ORG/MODEL --nonsense 1")
    assert report.assumed and report.release in ("0.33.0",)
    finding = next(f for f in report.findings if f.rule == "FLAG101")
    assert f"judged as vLLM {report.release}" in finding.message and finding.confidence == "medium"


def test_every_recipe_of_the_embedded_engine_is_clean():
    from sparkbook import recipes

    for name in recipes.ids():
        if name.startswith("embedded/"):
            assert lint.lint(name).findings.worst in (None, "info"), name


def test_no_recipe_of_the_catalogue_has_an_error():
    """They are started as they are; what cannot work has no place there."""
    from sparkbook import recipes

    for name in recipes.ids():
        assert lint.lint(name).findings.worst != "error", name


@pytest.mark.parametrize(
    ("line", "rule", "right"),
    [
        ("vllm serve ORG/MODEL {}", "FLAG101", "Write --max-model-len."),
        ("{} vllm serve ORG/MODEL", "ENV101", "Write VLLM_LOGGING_LEVEL."),
    ],
)
def test_of_very_many_unknown_names_only_the_first_are_compared(line, rule, right):
    word = "--max-model-lenn{} 1" if rule == "FLAG101" else "VLLM_LOGGING_LEVEL{}=1"
    words = " ".join(
        word.format("x" * (i % 3) + chr(97 + i % 26) * (i // 26)) for i in range(1, 78)
    )
    fixes = [
        finding.fix
        for finding in lint.lint(line.format(words), release="0.32.0").findings
        if finding.rule == rule
    ]
    assert fixes[0] == right and len(fixes) > MOST_SUGGESTED
    assert right not in fixes[MOST_SUGGESTED:]


@pytest.mark.parametrize(
    ("pulled", "run", "wrong"),
    [
        ("vllm/vllm-openai:v0.28.0:latest", "vllm/vllm-openai:v0.28.0", True),
        ("--quiet nvcr.io/nvidia/vllm:26.04:py3", "vllm/vllm-openai:v0.28.0", True),
        ("localhost:5000/vllm:v0.28.0", "localhost:5000/vllm:v0.28.0", False),
        (f"a/b:1@sha256:{'0' * 64}", "a/b:1", False),
        ("a/b:1", "a/b:1:2", True),
    ],
)
def test_an_image_has_one_tag_also_where_it_is_pulled(pulled, run, wrong):
    text = f"docker pull {pulled}\ndocker run --gpus all {run} --model ORG/MODEL"
    assert wrong == ("IMG114" in {f.rule for f in lint.lint(text).findings})


@pytest.mark.parametrize(
    ("rest", "severity", "says"),
    [
        ("Qwen/Qwen3-32B-FP8 --quantization mxfp4", "error", "config.json says fp8"),
        ("Qwen/Qwen3-32B-FP8 --quantization awq", "error", "config.json says fp8"),
        ("Qwen/Qwen3-32B-FP8 --quantization modelopt_fp4", "error", "config.json says fp8"),
        ("Qwen/Qwen3-8B --quantization gptq", "error", "is not quantized"),
        ("moonshotai/Kimi-K2.5 --quantization awq", "error", "is compressed-tensors"),
        ("openai/gpt-oss-20b --quantization fp8", "warning", "changes nothing: .* is MXFP4"),
        ("nvidia/GLM-5.1-NVFP4 --quantization mxfp4", "warning", "changes nothing: .* is NVFP4"),
        ("ORG/M-NVFP4 --quantization mxfp4", "warning", "name says NVFP4, .* probably"),
        ("ORG/M-FP8 --quantization mxfp4", "warning", "name says FP8, .* probably"),
        ("ORG/M-AWQ --quantization gptq_marlin", "warning", "name says AWQ, .* probably"),
        ("ORG/M-GPTQ-Int4 --quantization mxfp4", "warning", "name says GPTQ, .* probably"),
        ("/models/M-MXFP4/ --quantization fp8", "warning", "name says MXFP4, .* probably"),
        ("ORG/M-NVFP4 --quantization modelopt_fp4", None, ""),
        ("ORG/M-NVFP4-FP8 --quantization modelopt", None, ""),
        # Its config says MIXED_PRECISION, and its card gives this flag.
        ("nvidia/Qwen3.6-35B-A3B-NVFP4 --quantization modelopt", "info", "is not needed"),
        ("ORG/M-fp8 --quantization fp8", None, ""),
        ("Qwen/Qwen3-8B --quantization mxfp4", None, ""),
        ("openai/gpt-oss-20b --quantization mxfp4", None, ""),
    ],
)
def test_a_flag_that_names_another_format_than_the_checkpoint(rest, severity, says):
    """vLLM 0.32.0 was asked about each public checkpoint (`sparkbook ask`): it refuses those that
    are an error here, and accepts the others.
    """
    found = [f for f in lint.lint(f"vllm serve {rest}", "0.32.0").findings if f.rule[:5] == "QUANT"]
    if severity is None:
        assert found == []
        return
    [one] = found
    assert one.severity == severity and re.search(says, one.message), one.message


IMAGE = "vllm/vllm-openai:v0.32.0"
HEALTH = f"""\
services:
  a:
    image: {IMAGE}
    network_mode: host
    command: ORG/MODEL {{}}
    healthcheck:
      test: ["CMD-SHELL", "curl -fsS http://{{}}/health || exit 1"]
"""


@pytest.mark.parametrize(
    ("options", "asked", "wrong"),
    [
        ("--host 192.0.2.1 --port 8888", "127.0.0.1:8888", "Ask http://192.0.2.1:8888/health."),
        ("--port 8888", "localhost:8000", "Ask http://127.0.0.1:8888/health."),
        ("", "localhost", "Ask http://127.0.0.1:8000/health."),
        ("--headless --nnodes 2", "127.0.0.1:8000", "Leave the health check out on this rank."),
        ("--host 192.0.2.1", "192.0.2.1:8000", None),
        ("--host 127.0.0.1", "localhost:8000", None),
        ("--host 0.0.0.0", "a:8000", None),
        ("--port ${PORT}", "127.0.0.1:${PORT}", None),
        ("--host ${ADDRESS}", "127.0.0.1:8000", None),
        ("--host 192.0.2.1", "spark-1:8000", None),  # a name may mean any address
        ("--config /server.yaml", "127.0.0.1:9000", None),
    ],
)
def test_a_health_check_asks_where_the_server_listens(options, asked, wrong):
    """MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark, issue 185, and its neighbors."""
    findings = lint.lint(HEALTH.format(options, asked)).findings
    assert next((f.fix for f in findings if f.rule == "RUN121"), None) == wrong


@pytest.mark.parametrize(
    ("options", "model", "lost"),
    [
        ("-v ~/models:/models", "mistralai/Devstral-Small-2507", True),
        ("--mount type=bind,source=/m,target=/models", "ORG/MODEL", True),
        ("-v hub:/root/.cache/huggingface/hub", "ORG/MODEL", False),
        ("-v ~/.cache:/root/.cache/", "ORG/MODEL", False),
        ("-v ~/models:/models -e HF_HOME=/models/hub", "ORG/MODEL", False),
        ("-v ~/models:/models -e HF_HOME", "ORG/MODEL", False),
        ("-v ~/models:/models", "ORG/MODEL --download-dir /models", False),
        ("-v ~/models:/models --user 1000", "ORG/MODEL", False),
        ("-v ~/models:/models", "/models/MODEL", False),
        (r"-v C:\\hub:/root/.cache/huggingface:ro,z", "ORG/MODEL", False),
        ("-v ${HUB:-/hub}:/root/.cache/huggingface", "ORG/MODEL", False),
        ("-v ${HUB:-/hub}:/models", "ORG/MODEL", True),
        ("-v $HUB:$HUB", "ORG/MODEL", False),
        ("-v ~/m:/m -e XDG_CACHE_HOME=/m", "ORG/MODEL", False),
        ("-v ~/m:/m -e HOME=/m", "ORG/MODEL", False),
        ("-v ~/m:/m --env-file .env", "ORG/MODEL", False),
        ("--volumes-from store", "ORG/MODEL", False),
        ("-v ~/m:/m --volumes-from store", "ORG/MODEL", False),
        ("-v ~/m:/m -e HF_HUB_OFFLINE=1", "ORG/MODEL", False),
        ("-v ~/m:/vllm-workspace/models", "models/MODEL", False),
    ],
)
def test_a_volume_that_does_not_hold_what_is_downloaded(options, model, lost):
    """vllm-project/vllm, issue 20902: the weights are mounted, and the repository is named."""
    findings = lint.lint(f"docker run --gpus all {options} {IMAGE} {model}").findings
    assert lost == ("RUN106" in {f.rule for f in findings})


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("HF_CACHE", "Write HF_HOME."),
        ("HUGGINGFACE_TOKEN", "Write HF_TOKEN."),
        ("HF_API_TOKEN", "Write HF_TOKEN."),
        ("HUGGING_FACE_HUB_TOKEN", None),
        ("HUGGINGFACE_HUB_CACHE", None),
        ("HF_XET_CACHE", None),
        ("HF_HUB_DOWNLOAD_TIMEOUT", None),
    ],
)
def test_a_variable_that_the_hub_does_not_read(name, read):
    findings = lint.lint(f"docker run --gpus all -e {name} {IMAGE} ORG/MODEL").findings
    assert next((f.fix for f in findings if f.rule == "ENV109"), None) == read


@pytest.mark.parametrize(
    "before",
    [
        "export HF_CACHE=/hub\nexport HF_HOME=$HF_CACHE\n",
        "export HUGGINGFACE_TOKEN=x\nexport HF_TOKEN=${HUGGINGFACE_TOKEN:?}\n",
        "HF_API_TOKEN=x HF_TOKEN=x ",
        "HF_CACHE=/hub HF_HUB_CACHE=/hub ",
    ],
)
def test_a_variable_that_the_line_reads_or_states_again(before):
    assert "ENV109" not in {f.rule for f in lint.lint(f"{before}vllm serve ORG/MODEL").findings}


@pytest.mark.parametrize(
    ("options", "rest", "wrong"),
    [
        ("-p 8000:8000", "", True),
        ("-p 127.0.0.1:80:8000/tcp", "", True),
        ("-p 8000-8010:8000-8010", "", True),
        ("-p 8080:8080", "", False),  # of a proxy in the container
        ("-p 8080:8080", "--port 8080", True),
        ("-p 8000:8000", "--uds /tmp/vllm.sock", False),
        ("-p 8000:8000 --network host", "", False),
    ],
)
def test_a_server_on_the_containers_loopback(options, rest, wrong):
    line = f"docker run --gpus all {options} {IMAGE} ORG/MODEL --host 127.0.0.1 {rest}"
    assert wrong == ("RUN122" in {f.rule for f in lint.lint(line).findings})


def test_a_line_that_a_terminal_broke_inside_an_option():
    """vllm-project/vllm, issue 34322, as it was pasted."""
    broken = "vllm serve ORG/MODEL --enable-auto-tool-c\nhoice --tool-call-parser qwen3_coder"
    said = {f.rule: f.message for f in lint.lint(broken).findings}
    assert "--enable-auto-tool-choice" in said["RUN119"]
    short = "vllm serve ORG/MODEL --enable-auto-tool-c\necho --done"
    assert "RUN119" not in {f.rule for f in lint.lint(short).findings}


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("Qwen/Qwen3-Reranker-8B", True),
        ("/models/Qwen3-VL-Reranker-2B --runner pooling", True),
        ("Qwen/Qwen3-VL-Reranker-2B --hf-overrides.is_original_qwen3_reranker true", False),
        ("tomaarsen/Qwen3-Reranker-0.6B-seq-cls", False),
        ("Qwen/Qwen3-Embedding-8B", False),
    ],
)
def test_a_reranker_needs_its_overrides(line, wrong):
    found = [f for f in lint.lint(f"vllm serve {line}").findings if f.rule == "MODEL116"]
    assert wrong == bool(found)
    pooled = "--runner pooling" in line
    assert all(("generates text" in f.message) != pooled for f in found)
