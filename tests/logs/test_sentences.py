"""The sentences of vLLM and of what runs with it: who says a line, and who does not."""

from __future__ import annotations

import ast
from importlib import metadata
from pathlib import Path

import pytest
from build_sentences import WHEELS, Slice, installed_files, merge, read_files
from sentence_source import Message, Reader, is_spoken, read_binary, read_cpp, read_go
from sparkbook.logs import sentences

FOREIGN = Path(__file__).parents[1] / "data" / "logs" / "foreign-lines.txt"

KNOWN = [
    (
        "ValueError: To serve at least one request with the model's max seq len (262144), (8.00 GiB KV"
        " cache is needed, which is larger than the available KV cache memory (2.15 GiB).",
        ("vllm", "vllm.v1.core.kv_cache_planning", "_check_enough_kv_cache_memory"),
    ),
    (
        "... 23.25 GiB KV cache is needed, which is larger than the available KV cache memory (22.5",
        ("vllm", "vllm.v1.core.kv_cache_planning", "_check_enough_kv_cache_memory"),
    ),
    (
        "(EngineCore pid=7) ValueError: Free memory on device cuda:0 (74.9/142.5 GiB) on startup is"
        " less than desired GPU memory utilization (0.9, 109.5 GiB).",
        ("vllm", "vllm.v1.worker.utils", "request_memory"),
    ),
    (
        "Model architectures ['SomeForCausalLM'] are not supported for now.",
        ("vllm", "vllm.model_executor.models.registry", "_ModelRegistry._raise_for_unsupported"),
    ),
    (
        "Unknown quantization method: fp3. Must be one of ['awq', 'fp8', 'modelopt']",
        ("vllm", "vllm.config.model", "ModelConfig._verify_quantization"),
    ),
    (
        "ERROR 11-20 10:10:10 [core.py:708] EngineCore failed to start.",
        ("vllm", "vllm.v1.engine.core", "EngineCoreProc.run_engine_core"),
    ),
]


@pytest.mark.parametrize(("line", "place"), KNOWN)
def test_a_line_is_recognized_whole_or_in_part(line: str, place: tuple[str, str, str]) -> None:
    best = sentences.lookup(line, package="vllm")[0]
    assert (best.package, best.module, best.function) == place
    assert best.weight >= sentences.MIN_WEIGHT_HERE
    assert best.releases


def test_a_short_sentence_needs_a_hint() -> None:
    assert sentences.lookup("EngineCore failed to start.") == []
    assert sentences.lookup("EngineCore failed to start.", package="vllm") != []
    assert sentences.lookup("ERROR 11-20 10:10:10 [core.py:708] EngineCore failed to start.") != []


def test_the_options_that_feed_a_sentence_are_named() -> None:
    memory = sentences.lookup(KNOWN[2][0])[0]
    assert "cache_config.gpu_memory_utilization" in memory.condition_fields
    assert "--gpu-memory-utilization" in memory.options
    drafts = sentences.options(["speculative_config.method", "max_model_len", "cache_dtype"])
    assert drafts == ("--speculative-config.method", "--max-model-len", "--kv-cache-dtype")
    assert sentences.options(["no_field_of_vllm"]) == ()


def test_the_releases_of_a_sentence_are_spans_of_known_releases() -> None:
    opened = sentences.index()
    known = opened.names["releases"]["vllm"]
    old = sentences.lookup("The V0 engine is deprecated; set VLLM_USE_V1 to use the new engine")
    for sentence in [*old, *(s for line, _ in KNOWN for s in sentences.lookup(line))]:
        for first, last in sentence.releases:
            assert first in known
            assert last is None or known.index(first) <= known.index(last) < len(known) - 1


def test_only_the_wanted_package_answers() -> None:
    line = KNOWN[0][0]
    assert sentences.lookup(line, package="torch") == []
    assert {s.package for s in sentences.lookup(line, package="vllm")} == {"vllm"}
    assert len(sentences.lookup(line, limit=1)) == 1


def test_other_programs_lines_are_nobodys() -> None:
    lines = FOREIGN.read_text("utf-8").splitlines()
    assert len(lines) >= 75
    assert [line for line in lines if sentences.lookup(line)] == []


@pytest.mark.slow
def test_the_standard_librarys_strings_are_nobodys() -> None:
    texts = []
    for path in sorted(Path(ast.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts += [line for line in node.value.splitlines() if line.count(" ") > 3]
    taken = [text for text in texts if sentences.lookup(text)]
    assert len(texts) > 5000
    assert len(taken) <= len(texts) / 500, taken


@pytest.mark.parametrize("line", ["", "   ", "1 2 3", "of the", "(((", "\x00\xff", "x" * 70_000])
def test_what_says_nothing_is_nobodys(line: str) -> None:
    assert sentences.lookup(line) == []


def test_the_file_is_small_enough() -> None:
    assert sentences.DATA.stat().st_size <= 6 << 20


def facts(opened: sentences.Index, package: str, newest: int) -> set[tuple]:
    """Return what a file says about the sentences that a package's newest release has."""
    found = set()
    columns, names = opened.columns, opened.names
    for number, owner in enumerate(columns["packages"]):
        if names["packages"][owner] != package:
            continue
        for place in range(opened.first_place[number], opened.first_place[number + 1]):
            spans = names["spans"][columns["spans"][place]]
            if any(first <= newest <= last for first, last in spans):
                found.add(
                    (
                        columns["words"][number],
                        names["modules"][columns["modules"][place]],
                        names["functions"][columns["functions"][place]],
                        sentences.KINDS[columns["kinds"][place]],
                        tuple(names["fields"][columns["conditions"][place]]),
                    )
                )
    return found


@pytest.mark.slow
def test_a_package_read_again_gives_the_same() -> None:
    package = "huggingface_hub"
    release = metadata.version(package)
    read = sentences.index().names["releases"][package]
    assert release == read[-1], "run tools/build_sentences.py: the environment has another release"
    assert WHEELS[package][-1] == f"{package}=={release}"
    again = Slice(package, release, list(read_files(installed_files(package))))
    new = facts(sentences.unpack(merge([again])), package, 0)
    assert len(new) > 300
    assert facts(sentences.index(), package, len(read) - 1) == new


SOURCE = '''
LIMIT = "The limit of this engine is {} tokens and no more"

class SpeculativeConfig:
    """A docstring of quite a few words that nobody ever prints."""

    def check(self, cache_config, value):
        if self.method == "ngram":
            message = f"The drafts of {value} tokens are too many for this cache"
            if cache_config.block_size > 16:
                raise ValueError(message)
        assert value > 0, "The number of drafts %d has to be positive" % value
        logger.warning("Set `max_model_len` lower than %d to be safe", value)
        parser.add_argument("--x", help="A help text of quite a few words is never said")
        raise NotImplementedError(LIMIT.format(value))

    def reason(self):
        return "This kernel does not support the head size"
'''


def test_a_python_file_is_read() -> None:
    fields = {"method", "speculative_config.method", "block_size", "max_model_len"}
    messages = {m.kind: m for m in Reader("a.b", frozenset(fields)).read(SOURCE)}
    raised = [m for m in Reader("a.b", frozenset(fields)).read(SOURCE) if m.kind == "raise"]
    assert raised[0] == Message(
        pieces=("The drafts of ", " tokens are too many for this cache"),
        kind="raise",
        module="a.b",
        function="SpeculativeConfig.check",
        conditions=("speculative_config.method", "block_size"),
    )
    assert raised[1].pieces == ("The limit of this engine is ", " tokens and no more")
    assert messages["assert"].pieces == ("The number of drafts ", " has to be positive")
    assert messages["warning"].named == ("max_model_len",)
    assert messages["text"].function == "SpeculativeConfig.reason"
    assert "help" not in " ".join(m.pieces[0] for m in messages.values())


def test_a_file_that_does_not_parse_says_nothing() -> None:
    assert Reader("a", None).read("def (") == []


def test_other_sources_are_read() -> None:
    cpp = 'void Pair::send(int n) {\n  CHECK(n > 0) << "Cannot send " << n << " bytes to"\n " a peer";\n}\n'
    assert list(read_cpp("a.cc", cpp)) == [
        Message(
            pieces=("Cannot send ", " bytes to a peer"),
            kind="assert",
            module="a.cc",
            function="Pair::send",
        )
    ]
    go = 'func (d *Daemon) Start() error {\n\treturn fmt.Errorf("cannot start the container %s: %w", id, err)\n}\n'
    assert list(read_go("a.go", go)) == [
        Message(
            pieces=("cannot start the container ", ": ", ""),
            kind="raise",
            module="a.go",
            function="Daemon.Start",
        )
    ]
    binary = b"\0_ZN5torch4cuda\0Tried to set the device %d twice in a row\0aten::add(Tensor a, Tensor b)\0"
    assert [m.pieces for m in read_binary("lib.so", binary)] == [
        ("Tried to set the device ", " twice in a row")
    ]
    assert not is_spoken("aten::add(Tensor self, Tensor other, Scalar alpha) -> Tensor out")


def test_a_value_inside_a_sentence_may_have_three_words() -> None:
    hashes = sentences.shingles(["no kernel", "for this device"])
    assert sentences.shingle(["no", "kernel"], ["for", "this"]) in hashes
    assert sentences.shingle(["for", "this", "device"]) in hashes
