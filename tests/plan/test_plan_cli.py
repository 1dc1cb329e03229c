"""The command: its words, its exit codes, its JSON."""

import json

import pytest
from sparkbook import recipes
from sparkbook.cli import app
from sparkbook.errors import SparkbookError
from sparkbook.plan import request
from sparkbook.plan.rules import PLAN
from typer.testing import CliRunner

LINE = "vllm serve openai/gpt-oss-20b"
HUGE = "9" * 400  # more than a float holds


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == code, result.output or result.exception
    return result.output


def test_a_bar_a_table_and_the_working():
    text = run("gpt-oss-120b", "--fraction", "0.8", "--explain")
    assert "openai/gpt-oss-120b, vLLM" in text
    assert "121.63 GiB" in text
    assert "sequences at once" in text
    assert "requested = total x fraction = 121.63 x 0.8 = 97.30 GiB" in text
    assert text == run("gpt-oss-120b", "--fraction", "0.8", "--explain")


@pytest.mark.parametrize("more", [(), ("--json",), ("--nodes", "2")])
def test_a_recipe_of_ones_own_is_planned_as_the_one_it_extends(more, tmp_path):
    own = tmp_path / "mine-new.yaml"
    own.write_text("extends: gpt-oss-120b\nid: mine-new\ntitle: My own\n")
    assert run(str(own), *more) == run("gpt-oss-120b", *more)
    assert request.served(recipes.load(own)) == request.served(recipes.load("gpt-oss-120b"))


def test_a_mounted_folder_of_the_home_names_the_model():
    # as in https://github.com/eugr/spark-vllm-docker/issues/238
    mount = "docker run --gpus all -v ~/models/Gemma-4-26B-A4B-it-NVFP4:/model vllm-node"
    assert "made of google/gemma-4-26B-A4B" in run(f"{mount} vllm serve /model")


def test_less_memory_than_the_weights_is_no_matter_of_the_fraction():
    given = ("gpt-oss-120b", "--available-gib")
    text = " ".join(run(*given, "10", "--explain", code=1).split())
    assert "10.0 GiB are available: the model does not fit, whatever the fraction." in text
    assert "10.0 GiB available before the start" in text and "10.0 GiB: as given" in text
    assert "Set --gpu-memory-utilization" not in text and "less the system" not in text
    assert "PLAN102" not in text and "a smaller model" in text
    little = " ".join(run(*given, "66.8", code=1).split())
    assert "PLAN102" in little and "Set --gpu-memory-utilization" not in little
    assert "Set --gpu-memory-utilization 0.65 or less." in " ".join(
        run(*given, "80", code=1).split()
    )


@pytest.mark.parametrize("size", ["tensor", "pipeline", "data"])
def test_one_spark_has_one_gpu(size):
    text = " ".join(run(f"{LINE} --{size}-parallel-size 2", "--fraction", "0.5").split())
    assert "PLAN115" in text and "2 GPUs are asked for, and 1 machine has one each." in text
    assert "PLAN115" not in run(f"{LINE} --{size}-parallel-size 2 --nnodes 2")


def test_what_does_not_fit_exits_with_one():
    text = run("vllm serve google/gemma-4-31B-it", "--fraction", "0.4", code=1)
    assert "PLAN101" in text
    assert "does not fit" in text


def test_json_has_the_shape_of_every_answer():
    answer = json.loads(
        run(
            "qwen3.6-35b-a3b-nvfp4-2026-09",
            "--json",
            "--seqs",
            "2",
            "--context",
            "65536",
            "--kv-dtype",
            "fp8",
        )
    )
    assert answer["summary"]["sequences"] == 2
    assert answer["summary"]["context"] == 65536
    low, high = answer["summary"]["kv_tokens"]
    assert 0 < low < high
    assert {entry["rule"] for entry in answer["findings"]} <= set(PLAN.rules)


@pytest.mark.parametrize(
    ("text", "told"),
    [("junk", "is not JSON"), ('{"weights": 1}', "lacks a figure"), (None, "Is a directory")],
)
def test_what_is_no_calibration_is_not_to_be_deleted(text, told, tmp_path):
    file = tmp_path / "machine.json"
    file.mkdir() if text is None else file.write_text(text)
    error = str(
        CliRunner().invoke(app, ["plan", "gpt-oss-120b", "--calibration", str(file)]).exception
    )
    assert told in error and error.endswith("name another file")


def test_a_log_is_compared_and_kept(tmp_path):
    log = tmp_path / "engine.log"
    log.write_text(
        "INFO Model loading took 60.1 GiB memory and 88.12 seconds\nINFO Estimated CUDA graph"
        " memory: 0.33 GiB total\nINFO Available KV cache memory: 33.50 GiB\n"
    )
    kept = tmp_path / "machine.json"
    text = run("gpt-oss-120b", "--fraction", "0.8", "--log", str(log), "--calibration", str(kept))
    assert "Compared with the log" in text
    assert json.loads(kept.read_text())["samples"] == 1
    assert "context and activations, by the log" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-recipe"], "no recipe"),
        (["vllm serve ORG/UNKNOWN"], "add --hub"),
        (["gpt-oss-120b", "--cotenant", "42"], "write a fraction below 1"),
        (["gpt-oss-120b", "--fraction", "2"], "fraction of all memory"),
        (["gpt-oss-120b", "--memory-gib", "0"], "has some memory"),
        (["gpt-oss-120b", "--memory-gib", "nan"], "nan is no size"),
        (["gpt-oss-120b", "--available-gib", "inf"], "inf is no size"),
        (["gpt-oss-120b", "--memory-gib", "1e308"], "has some memory"),
        (["gpt-oss-120b", "--memory-gib", "1e-308"], "has some memory"),
        (["gpt-oss-120b", "--context", HUGE], "from 1 to 1,000,000,000"),
        (["gpt-oss-120b", "--seqs", HUGE], "from 1 to 1,000,000,000"),
        (["gpt-oss-120b", "--nodes", HUGE], "more than 1,024 nodes"),
        ([f"{LINE} --max-model-len {HUGE}"], "--max-model-len) is too large"),
        ([f"{LINE} --max-num-seqs {HUGE}"], "--max-num-seqs) is too large"),
        ([f"{LINE} --max-num-batched-tokens {HUGE}"], "--max-num-batched-tokens is too large"),
        ([f"{LINE} --tensor-parallel-size {HUGE}"], "--tensor-parallel-size is too large"),
        (
            [f"{LINE} --tensor-parallel-size 0.5"],
            "--tensor-parallel-size 0.5: expected a whole number",
        ),
        ([f"{LINE} --block-size {HUGE}"], "--block-size is too large"),
        (["gpt-oss-120b", "--kv-dtype", "fp9"], "fp9"),
        (["gpt-oss-120b", "--log", "/no/such.log"], "No such file"),
        (["gpt-oss-120b", "--meminfo", "/no/such"], "can't be read"),
    ],
)
def test_what_cannot_be_used_is_told(arguments, message):
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert isinstance(result.exception, SparkbookError)
    assert message in str(result.exception)


@pytest.mark.parametrize("total", ["0", HUGE], ids=["0", "huge"])
def test_a_meminfo_of_no_machine_is_told(tmp_path, total):
    file = tmp_path / "meminfo"
    file.write_text(f"MemTotal: {total} kB\nMemFree: 0 kB\nMemAvailable: 0 kB\n")
    result = CliRunner().invoke(app, ["plan", "gpt-oss-120b", "--meminfo", str(file)])
    assert isinstance(result.exception, SparkbookError)
    assert "MemTotal" in str(result.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--context", "1000000000"],
        ["--seqs", "1000000000"],
        ["--nodes", "1024"],
        ["--memory-gib", "0.001"],
        ["--memory-gib", "1e6"],
    ],
)
def test_up_to_its_bounds_a_number_is_reckoned_with(arguments):
    result = CliRunner().invoke(app, ["plan", "gpt-oss-120b", *arguments])
    assert isinstance(result.exception, SystemExit | None) and result.exit_code in (0, 1)
