"""vLLM itself, on the embedded engine and on other releases that are here. Known values: a DGX
Spark's own log (2,054,681 tokens), an H100's (15.27 GiB), a published size (65.93 GiB).
"""

import contextlib
import dataclasses
import json
import os
from pathlib import Path

import psutil
import pytest
from sparkbook import oracle
from sparkbook.errors import SparkbookError
from sparkbook.oracle import engines, model_files
from sparkbook.oracle.asking import Question, Where
from sparkbook.oracle.model_files import ModelFiles
from sparkbook.oracle.programs import Limits
from sparkbook.releases.answers import Answer
from sparkbook.units import GIB

pytestmark = pytest.mark.engine
GPT, MOE, DENSE = "openai/gpt-oss-120b", "nvidia/Qwen3.6-35B-A3B-NVFP4", "nvidia/Qwen3.6-27B-NVFP4"
SPARK_LOG = (
    DENSE, "--max-model-len", "262144", "--max-num-seqs", "8", "--kv-cache-dtype", "fp8",
    "--enable-prefix-caching", "--attention-backend", "FLASHINFER", "--speculative-config",
    '{"method":"mtp","num_speculative_tokens":3}',
)  # fmt: skip
TWO = (
    "--tensor-parallel-size", "2", "--distributed-executor-backend", "mp", "--nnodes", "2",
    "--node-rank", "0", "--master-addr", "127.0.0.1",
)  # fmt: skip
OWN_BACKEND = (
    "--speculative-config",
    '{"method":"mtp","num_speculative_tokens":3,"moe_backend":"triton"}',
)
OTHERS = ("0.28.0", "0.24.0", "0.19.1")


def question(name: str, *words: str, **more: object) -> Question:
    found = model_files.find(words[0])
    assert found is not None, words[0]
    return Question(id=name, words=words, models={words[0]: found}, **more)  # type: ignore[arg-type]


QUESTIONS = [
    question("too long", MOE, "--max-model-len", "400000"),
    question("misspelt", MOE, "--maxmodel-len", "4"),
    question("awq", MOE, "--quantization", "awq", "--trust-remote-code"),
    question("parser", MOE, "--enable-auto-tool-choice", "--tool-call-parser", "qwen4"),
    question("defaults", GPT, depth="cache", available_bytes=100 * GIB),
    question("spark", *SPARK_LOG, depth="cache", kv_bytes=(int(72.79 * GIB),)),
    question("h100", "Qwen/Qwen3-8B", depth="model"),
    question("two Sparks", DENSE, *TWO, depth="cache", kv_bytes=(40 * GIB,)),
    question("own backend", MOE, "--moe-backend", "marlin", *OWN_BACKEND, depth="model"),
    question("sparse", "deepseek-ai/DeepSeek-V4-Flash", depth="cache", kv_bytes=(40 * GIB,)),
]


@pytest.fixture(scope="module")
def said() -> dict[str, Answer]:
    """All questions in one call: vLLM is imported once."""
    answers = oracle.ask(QUESTIONS, Where(engine=engines.embedded()))
    return {str(answer.id): answer for answer in answers}


def test_a_refusal_is_in_vllms_own_words(said: dict[str, Answer]) -> None:
    assert (said["too long"].refused or "").startswith("User-specified max_model_len (400000)")
    assert said["misspelt"].refused == "unrecognized arguments: --maxmodel-len 4"
    assert said["misspelt"].depth == "parse"
    assert (said["parser"].refused or "").startswith("invalid tool call parser: qwen4")


def test_a_silent_override_shows(said: dict[str, Answer]) -> None:
    answer = said["awq"]
    assert answer.accepted
    assert dict(answer.changed) == {"quantization": ("awq", "modelopt_mixed")}
    assert answer.left_out == ["--trust-remote-code"]


def test_a_spark_is_taken_for_a_small_gpu(said: dict[str, Answer]) -> None:
    resolved = said["defaults"].resolved
    assert resolved["max_num_seqs"][1] == 256
    assert resolved["max_num_batched_tokens"][1] == 2048


def test_weights_and_backends(said: dict[str, Answer]) -> None:
    answer = said["defaults"]
    assert round((answer.weights_bytes or 0) / GIB, 2) == 65.93
    assert any("MARLIN" in one.backend for one in answer.backends)
    assert round((said["h100"].weights_bytes or 0) / GIB, 2) == 15.27
    language = [part for part in said["spark"].weights if part.kind not in ("vision", "draft")]
    assert round(sum(part.bytes for part in language) / GIB, 2) == 18.80


def test_the_cache_to_the_token(said: dict[str, Answer]) -> None:
    cache = said["spark"].cache
    assert cache is not None and cache.block_size == 1600
    assert cache.sizes[0].tokens == 2_054_681
    assert round(cache.sizes[0].concurrency or 0, 2) == 7.84


def test_several_sparks_each_hold_a_share(said: dict[str, Answer]) -> None:
    answer = said["two Sparks"]
    assert answer.accepted and answer.cache is not None
    share = (answer.weights_bytes or 0) / (said["spark"].weights_bytes or 1)
    assert 0.45 < share < 0.6
    assert answer.cache.sizes[0].tokens


def test_a_draft_may_have_a_backend_of_its_own(said: dict[str, Answer]) -> None:
    answer = said["own backend"]
    assert answer.accepted
    moe = {one.backend for one in answer.backends if one.kind == "RoutedExperts"}
    assert any("MARLIN" in name for name in moe) and any("TRITON" in name for name in moe)


def test_sparse_attention_is_packed_as_vllm_packs_it(said: dict[str, Answer]) -> None:
    cache = said["sparse"].cache
    assert cache is not None and cache.sizes[0].tokens == 7_766_095
    assert {group.spec for group in cache.groups} == {"SlidingWindowMLASpec", "MLAAttentionSpec"}


def test_the_start_check(said: dict[str, Answer]) -> None:
    check = said["defaults"].admission
    assert check is not None
    assert "Free memory on device cuda:0 (100.0/121.63 GiB)" in (check.refused or "")
    assert said["defaults"].weights_bytes, "a refused start check hides nothing else"


@pytest.mark.parametrize("version", OTHERS)
def test_other_releases(version: str) -> None:
    try:
        engine = engines.find(version)
    except SparkbookError as error:
        pytest.skip(str(error))
    asked = [q for q in QUESTIONS if q.id in ("misspelt", "awq", "defaults")]
    answers = {a.id: a for a in oracle.ask(asked, Where(engine=engine))}
    assert answers["misspelt"].refused == "unrecognized arguments: --maxmodel-len 4"
    assert answers["awq"].resolved["quantization"] == ["awq", "modelopt_mixed"]
    assert round((answers["defaults"].weights_bytes or 0) / GIB, 2) == 65.93
    assert answers["defaults"].judge.vllm.startswith(version)


HUGE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "num_attention_heads": 4, "num_hidden_layers": 10**7, "intermediate_size": 64,
    "vocab_size": 100, "max_position_embeddings": 128, "torch_dtype": "bfloat16",
}  # fmt: skip


def running(folder: Path) -> list[psutil.Process]:
    """Processes that have a folder below this one as their home."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("HOME", "").startswith(str(folder)):
                found.append(process)
    return found


def test_a_hostile_config_ends_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    hostile = [
        Question(id="huge", words=("m",), depth="model",
                 models={"m": ModelFiles({"config.json": HUGE}, "test")}),
        Question(id="empty", words=("m",), models={"m": ModelFiles({"config.json": {}}, "test")}),
        Question(id="outside", words=("m",),
                 models={"../../m": ModelFiles({"config.json": {}}, "test")}),
        question("fine", "Qwen/Qwen3-8B"),
    ]  # fmt: skip
    limits = Limits(seconds=120, cpu_seconds=20, bytes=3 * GIB)
    answers = {
        a.id: a for a in oracle.ask(hostile, Where(engine=engines.embedded()), limits=limits)
    }
    assert answers["huge"].failed is not None
    assert answers["empty"].refused or answers["empty"].failed
    assert answers["outside"].failed is not None
    assert answers["fine"].accepted, "one bad question costs the others nothing"
    assert not running(tmp_path)
    assert not list(tmp_path.iterdir()), "the folder of the call is removed"


def test_a_hang_is_one_answer_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'last words' >&2\nsleep 1000 & sleep 1000\n")
    fake.chmod(0o755)
    engine = dataclasses.replace(engines.embedded(), python=fake)
    limits = Limits(start_s=1, seconds=0.5)
    (answer,) = oracle.ask([question("a", GPT)], Where(engine=engine), limits=limits)
    assert answer.failed == "vLLM took too long to start"
    assert answer.last_words == ["last words"]
    assert not running(tmp_path)


def test_a_python_without_vllm_is_one_answer(tmp_path: Path) -> None:
    plain = tmp_path / "python"
    plain.write_text(
        f'#!/bin/sh\nexec {os.environ.get("PYTHON", "/usr/bin/env python3")} -I -S "$@"\n'
    )
    plain.chmod(0o755)
    engine = dataclasses.replace(engines.embedded(), python=plain)
    (answer,) = oracle.ask([question("a", GPT)], Where(engine=engine))
    assert answer.failed and not answer.accepted
    assert json.loads(answer.model_dump_json())["failed"]
