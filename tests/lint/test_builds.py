"""Other builds and other machines than one release on one Spark: forks, vLLM-Omni, several Sparks."""

from __future__ import annotations

import pytest
from sparkbook import formats, lint
from sparkbook.formats.lines import of_text
from sparkbook.lint.case import Case

EUGR = """\
recipe_version: "1"
name: Test
model: ORG/MODEL-27B
container: {container}
{more}defaults: {{tensor_parallel: {parallel}, gpu_memory_utilization: 0.8}}
command: |
  vllm serve ORG/MODEL-27B --tensor-parallel-size {{tensor_parallel}} \\
    --gpu-memory-utilization {{gpu_memory_utilization}} {options}
"""


def eugr(options: str = "", container: str = "vllm-node", parallel: int = 1, more: str = "") -> str:
    return EUGR.format(container=container, parallel=parallel, more=more, options=options)


def found(text: str) -> dict[str, str]:
    """Severity by rule."""
    return {f.rule: f.severity for f in lint.lint(of_text(text)).findings}


@pytest.mark.parametrize(
    "options",
    [
        "--mxfp4-backend CUTLASS",
        "--some-option-of-a-fork 3",
        "--attention-backend B12X_MLA_SPARSE",
        "--quantization nvfp4",
        "--load-format b12x",
        "--tool-call-parser of_a_fork --enable-auto-tool-choice",
    ],
)
def test_what_only_a_fork_has_is_never_an_error(options):
    report = lint.lint(of_text(eugr(options)))
    assert [f for f in report.findings if f.severity == "error"] == []
    asked = [f for f in report.findings if "docker run --rm --entrypoint vllm" in (f.fix or "")]
    assert asked and not any("Take it out" in (f.fix or "") for f in report.findings)
    assert report.edits == (), "nothing of a fork's line is repaired"


@pytest.mark.parametrize(
    ("image", "fork"),
    [
        ("vllm-node", True),
        ("eugr/spark-vllm-b12x:latest", True),
        ("somebody/vllm:1", True),
        ("vllm/vllm-openai:nightly", True),
        ("vllm/vllm-openai:qwen38-flash-next", False),
        ("vllm/vllm-openai:v0.28.0", False),
        ("vllm/vllm-openai:latest", False),
        ("nvcr.io/nvidia/vllm:26.04-py3", False),
    ],
)
def test_which_images_may_hold_a_fork(image, fork):
    line = of_text(f"docker run --gpus all {image} vllm serve ORG/MODEL")
    assert Case(line).fork is fork


def test_an_option_that_no_release_has_is_an_error_on_a_release():
    text = "docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL --some-option-of-a-fork 3"
    assert found(text)["FLAG101"] == "error"


def test_a_variable_of_a_fork_is_kept():
    line = "VLLM_PLE_TABLE_MEMORY=disk vllm serve ORG/MODEL-27B"
    (finding,) = (f for f in lint.lint(line).findings if f.rule == "ENV101")
    assert finding.severity == "info"
    assert finding.fix.startswith("Keep it")


def test_vllm_omni_is_another_program():
    report = found("vllm serve ORG/MODEL --omni --vae-use-tiling --deploy-config x.yaml")
    assert "FLAG101" not in report and report["FLAG122"] == "info"
    image = "docker run --gpus all vllm/vllm-omni:x vllm serve ORG/MODEL --usp 2"
    assert "FLAG101" not in found(image)


@pytest.mark.parametrize(
    ("parallel", "more", "nodes"),
    [(1, "", 1), (4, "", 4), (1, "cluster_only: true\n", 2), (2, "min_nodes: 3\n", 3)],
)
def test_parallel_sizes_of_the_launchers_mean_machines(parallel, more, nodes):
    text = eugr(parallel=parallel, more=more)
    assert of_text(text).nodes == nodes
    assert formats.read(text).recipe.topology.nodes == nodes
    assert "SPARK104" not in found(text)


def test_a_plain_line_with_two_gpus_is_still_refused():
    assert found("vllm serve ORG/MODEL --tensor-parallel-size 2")["SPARK104"] == "error"


@pytest.mark.parametrize("size", ["pipeline-parallel-size", "data-parallel-size"])
def test_more_gpus_than_machines_are_refused_by_the_options_name(size):
    (told,) = [
        finding
        for finding in lint.lint(f"vllm serve ORG/MODEL --{size} 2").findings
        if finding.rule == "SPARK104"
    ]
    assert told.message == "2 GPUs are asked for, and 1 machine has one each."
    assert told.fix.startswith(f"Use --{size} 1, or --nnodes")


@pytest.mark.parametrize(
    "more",
    ["--nnodes 2", "--data-parallel-size-local 1", "--data-parallel-rank 0"],
)
def test_data_parallel_ranks_of_other_machines_take_no_gpu_of_this_one(more):
    assert "SPARK104" not in found(f"vllm serve ORG/MODEL --data-parallel-size 2 {more}")
    doubled = more.replace("local 1", "local 2").replace("nnodes 2", "nnodes 1")
    line = f"vllm serve ORG/MODEL --data-parallel-size 2 --tensor-parallel-size 2 {doubled}"
    assert found(line)["SPARK104"] == "error"


def test_a_key_given_twice_with_one_value_is_read():
    text = eugr(more="container: vllm-node\n")
    assert formats.read(text).recipe.image.ref == "vllm-node"
    with pytest.raises(formats.SparkbookError, match="given twice"):
        formats.read(eugr(more="container: another\n"))


def test_an_image_may_be_a_mapping_of_builds():
    text = """\
meta: {title: Test, provider: ORG}
model:
  model_id: ORG/MODEL-27B
  docker_image: {nvidia: {cu130: "vllm/vllm-openai:test"}}
  base_args: ["--max-model-len auto"]
"""
    read = formats.read(text)
    assert read.recipe.image.ref == "vllm/vllm-openai:test"
    assert read.recipe.serve.args["max-model-len"] == "auto"


def test_the_stuck_nightly_is_judged_as_what_it_holds():
    image = "docker run --gpus all vllm/vllm-openai:cu130-nightly ORG/MODEL"
    assert lint.lint(image).release.startswith("0.19.")


def test_mtp_needs_a_layer_in_the_checkpoint():
    line = 'vllm serve {} --speculative-config \'{{"method":"mtp","num_speculative_tokens":3}}\''
    assert found(line.format("openai/gpt-oss-120b"))["SPEC113"] == "error"
    assert "SPEC113" not in found(line.format("nvidia/Qwen3.6-27B-NVFP4"))
    assert "SPEC113" not in found(line.format("ORG/UNKNOWN"))
