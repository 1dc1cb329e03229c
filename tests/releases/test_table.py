"""The releases table and the questions that it answers. Expectations are facts that were looked up
in vLLM's own history.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sparkbook import releases
from sparkbook.errors import SparkbookError

DATA = Path(__file__).parents[1] / "data" / "metrics"


def test_the_table_is_small_and_whole():
    assert releases.TABLE.stat().st_size < 1_000_000
    table = releases.table()
    count = len(table["releases"])
    assert len(table["requires"]) == count == len(set(table["releases"]))
    for category in releases.CATEGORIES:
        for name, lives in table[category].items():
            ends = [-1, *(index for first, last, _ in lives for index in (first, last))]
            assert ends == sorted(ends) and ends[-1] < count, (category, name)


def test_every_minor_release_is_there():
    assert {release.rsplit(".", 1)[0] for release in releases.known()} == {
        f"0.{minor}" for minor in range(11, 34)
    }


def test_loading_takes_nothing_but_the_standard_library():
    """In a process of its own. `tools/bench_lint.py` prints how long it takes."""
    script = (
        "import sys\nfrom sparkbook import releases\n"
        "releases.get('0.32.0').accepts('max-model-len')\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    before = {name.partition(".")[0] for name in _at_start()}
    assert "sparkbook" in loaded, done.stderr
    assert loaded - before - set(sys.stdlib_module_names) == {"sparkbook"}


def _at_start():
    """The modules of a Python that was told nothing: an environment's own hooks are among them."""
    run = [sys.executable, "-c", "import sys; print(*sys.modules)"]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("option", "spans"),
    [
        ("speculative-disable-by-batch-size", []),
        ("task", [("0.11.0", "0.12.0")]),
        ("spec-method", [("0.22.0", None)]),
        ("gdn-prefill-backend", [("0.18.0", None)]),
        ("max-model-len", [("0.11.0", None)]),
    ],
)
def test_when_an_option_was_there(option, spans):
    assert releases.presence("options", option) == spans


@pytest.mark.parametrize(
    ("name", "gone_in", "there_in"),
    [
        ("VLLM_USE_FLASHINFER_MOE_FP4", "0.24.0", "0.21.0"),
        ("VLLM_FLASHINFER_MOE_BACKEND", "0.24.0", "0.21.0"),
        ("VLLM_NVFP4_GEMM_BACKEND", "0.24.0", "0.21.0"),
        ("VLLM_TEST_FORCE_FP8_MARLIN", "0.30.0", "0.27.0"),
        ("VLLM_ATTENTION_BACKEND", "0.17.0", "0.11.0"),
        ("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", "0.17.0", "0.19.0"),
    ],
)
def test_environment_variables_come_and_go(name, gone_in, there_in):
    assert not releases.get(gone_in).has("envs", name)
    assert releases.get(there_in).has("envs", name)


def test_what_no_release_ever_had():
    assert releases.lives("envs", "VLLM_FP8_MOE_BACKEND") == []
    assert releases.lives("reasoning_parsers", "nano_v3") == []
    assert releases.said(releases.presence("options", "nonsense")) == "in no release from 0.11.0 on"


def test_defaults_change():
    assert [
        releases.get(v).option("gpu-memory-utilization").default for v in ("0.19.0", "0.32.0")
    ] == [0.9, 0.92]
    assert releases.get("0.32.0").option("gpu_memory_utilization").type == "float"


def test_parsers_methods_and_architectures_by_release():
    assert not releases.get("0.18.1").has("tool_parsers", "gemma4") and releases.get("0.19.0").has(
        "tool_parsers", "gemma4"
    )
    assert not releases.get("0.19.1").has("spec_methods", "dflash") and releases.get("0.20.0").has(
        "spec_methods", "dflash"
    )
    assert not releases.get("0.24.0").has("tool_parsers", "qwen3_json")
    assert releases.get("0.32.0").architectures["Qwen3ForCausalLM"] == "qwen3"
    assert "DiffusionGemmaForBlockDiffusion" in releases.get("0.32.0").architectures


def test_metrics_and_routes():
    newest = releases.get("0.32.0")
    assert newest.metrics["kv_cache_usage_perc"] == "gauge"
    assert newest.metrics["time_to_first_token_seconds"] == "histogram"
    assert newest.metrics["spec_decode_num_accepted_tokens"] == "counter"
    assert (
        "gpu_cache_usage_perc" not in newest.metrics
        and "gpu_cache_usage_perc" in releases.get("0.11.0").metrics
    )
    assert newest.routes["/v1/chat/completions"] == ["POST"] and "/health" in newest.routes


@pytest.mark.parametrize(
    "recorded", ["h100-0.24.0-ngram-before.txt", "h100-0.24.0-ngram-after.txt"]
)
def test_what_a_server_showed_is_in_the_table(recorded):
    """A recorded scrape of a real server: every vLLM metric of it, with its type."""
    metrics = releases.get("0.24.0").metrics
    shown = re.findall(
        r"^# TYPE vllm:(\w+) (\w+)$", (DATA / recorded).read_text("utf-8"), re.MULTILINE
    )
    assert len(shown) > 30
    for name, kind in shown:
        if not name.endswith("_created"):
            assert metrics.get(name.removesuffix("_total"), metrics.get(name)) == kind, name


def test_the_keys_of_json_configs():
    keys = releases.get("0.32.0").config_keys("speculative-config")
    assert "num_speculative_tokens_per_batch_size" in keys and "disable_by_batch_size" not in keys
    assert "disable_by_batch_size" in releases.get("0.16.0").config_keys("speculative-config")
    assert "dflash" in keys["method"] and keys["model"] is None


@pytest.mark.parametrize(
    ("spelling", "name", "negated"),
    [
        ("max-model-len", "max-model-len", False),
        ("max_model_len", "max-model-len", False),
        ("no-enable-prefix-caching", "enable-prefix-caching", True),
        ("gpu-memory-util", "gpu-memory-utilization", False),
        ("device-memory-utilization", "gpu-memory-utilization", False),
    ],
)
def test_spellings_of_an_option(spelling, name, negated):
    option, no = releases.get("0.33.0").resolve(spelling)
    assert (option.name, no) == (name, negated)


def test_an_ambiguous_abbreviation_is_no_option():
    assert releases.get("0.32.0").resolve("max") is None
    assert releases.get("0.32.0").resolve("") is None


def test_versions_are_read_as_people_write_them():
    assert releases.get("v0.32").version == "0.32.0"
    assert releases.get("0.32.0+cpu").version == "0.32.0"
    assert (
        releases.nearest("0.23.1rc1") == "0.23.0"
        and releases.nearest("0.5") == "0.11.0"
        and releases.nearest("9") == releases.newest()
    )


@pytest.mark.parametrize("version", ["0.99.0", "0.10.2", "latest"])
def test_an_unknown_release_says_what_there_is(version):
    with pytest.raises(SparkbookError, match=r"0\.11\.0|number such as"):
        releases.get(version)


def test_a_diff_names_what_moved():
    changes = {(c.category, c.name): c for c in releases.diff("0.19.0", "0.32.0")}
    assert changes["options", "spec-method"].change == "added"
    assert changes["envs", "VLLM_NVFP4_GEMM_BACKEND"].change == "removed"
    assert changes["options", "gpu-memory-utilization"].after["default"] == 0.92
    assert releases.diff("0.32.0", "0.32.0") == []


def test_what_a_release_requires():
    assert releases.get("0.33.0").requires["torch"] == "==2.14.0"
    assert (
        "flashinfer" in releases.get("0.33.0").requires
        and "ray" not in releases.get("0.33.0").requires
    )


def test_the_table_is_written_one_symbol_a_line():
    """So that a change of one symbol shows as one line of a diff."""
    lines = releases.TABLE.read_text("utf-8").splitlines()
    assert sum(line.startswith('"max-model-len":') for line in lines) == 1
    assert json.loads("\n".join(lines)) == releases.table()


def test_the_table_is_read_once_and_so_is_a_release():
    release = releases.get("0.32.0")
    assert release is releases.get("v0.32.0+cpu") and releases.table() is releases.table()
    assert release.resolve("max-model-len") is release.resolve("max_model_len")
