"""Reading a checkpoint on a hub of our own: exact bytes, one commit, no weights, and what goes
wrong told in words.
"""

import json
import struct

import pytest
from sparkbook.checkpoint import hub as reading
from sparkbook.errors import SparkbookError

from .conftest import COMMIT, CONFIG, LAYER, PLAIN, safetensors


def header(entries):
    """A safetensors file that has nothing but this header."""
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def test_headers_are_read_and_weights_are_not(hub, api):
    large = {**PLAIN, LAYER + "mlp.up_proj.weight": ("BF16", (2000, 1000))}
    hub.files["model.safetensors"] = safetensors(large)
    found = reading.read("ORG/MODEL", api=api)
    assert found.bytes.exact
    assert found.bytes.low == sum(2 * _size(shape) for _, shape in large.values())
    assert found.revision == COMMIT
    assert found.geometry.layers == 1
    assert hub.sent < 300_000 < len(hub.files["model.safetensors"])


def _size(shape):
    count = 1
    for length in shape:
        count *= length
    return count


def test_everything_is_read_at_one_commit(hub, api):
    reading.read("ORG/MODEL", "v1", api=api)
    files = [line for line in hub.asked if "/resolve/" in line]
    assert files
    assert all(f"/resolve/{COMMIT}/" in line for line in files)


def test_shards_of_an_index(hub, api):
    first, second = dict(list(PLAIN.items())[:2]), dict(list(PLAIN.items())[2:])
    index = {
        "weight_map": {
            **dict.fromkeys(first, "a.safetensors"),
            **dict.fromkeys(second, "b.safetensors"),
        }
    }
    hub.files = {
        "config.json": json.dumps(CONFIG).encode(),
        "model.safetensors.index.json": json.dumps(index).encode(),
        "a.safetensors": safetensors(first),
        "b.safetensors": safetensors(second),
        "consolidated.safetensors": safetensors(PLAIN),
    }
    found = reading.read("ORG/MODEL", api=api)
    assert [name for name, _ in found.files] == ["a.safetensors", "b.safetensors"]
    assert found.bytes.low == sum(2 * _size(shape) for _, shape in PLAIN.values())


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        ((403, "GatedRepo"), "accept it on .*/ORG/MODEL"),
        ((401, "GatedRepo"), "set HF_TOKEN"),
        ((401, "RepoNotFound"), "private and the token is missing"),
        ((404, "RepoNotFound"), "check the spelling"),
        ((500, ""), "answers 500"),
        ((429, ""), "too many requests"),
    ],
)
def test_a_refusal_says_what_to_do(hub, api, refusal, message):
    hub.refuse = refusal
    with pytest.raises(SparkbookError, match=message):
        reading.read("ORG/MODEL", api=api)


def test_a_revision_that_is_not_there(api):
    with pytest.raises(SparkbookError, match="no revision 'gone'"):
        reading.read("ORG/MODEL", "gone", api=api)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"model.safetensors": safetensors(PLAIN)}, "no config.json"),
        ({"config.json": b"{}", "pytorch_model.bin": b""}, "no safetensors"),
        ({"config.json": b"[]", "model.safetensors": safetensors(PLAIN)}, "no JSON object"),
        ({"config.json": b"{}", "model.safetensors": b"\xff" * 100}, "model.safetensors"),
    ],
)
def test_what_is_no_checkpoint(hub, api, files, message):
    hub.files = files
    with pytest.raises(SparkbookError, match=message):
        reading.read("ORG/MODEL", api=api)


def test_offline_and_unreachable_are_told_apart(hub, api, monkeypatch):
    from huggingface_hub import HfApi

    with pytest.raises(SparkbookError, match="can't be reached"):
        reading.read("ORG/MODEL", api=HfApi(endpoint="http://127.0.0.1:9", token=False))
    with pytest.raises(SparkbookError, match="no handle"):
        reading.read("a/b/c", api=api)


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"<html>", b"[]", b"null", b"{}", b"[" * 100_000),
        *({"sha": 7}, {"sha": "../x"}, {"siblings": {}}, {"siblings": [7]}),
        *({"siblings": [{"rfilename": "config.json", "size": size}]} for size in ("5", -1, 1e99)),
    ],
)
def test_a_reply_that_is_no_list_of_files(hub, api, answer):
    hub.listing = (
        answer
        if isinstance(answer, bytes)
        else json.dumps({"sha": COMMIT, "siblings": [], **answer}).encode()
    )
    with pytest.raises(SparkbookError, match="no list of the files of ORG/MODEL"):
        reading.read("ORG/MODEL", api=api)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", b"[" * 100_000),
        ("model.safetensors.index.json", b'{"weight_map": 7}'),
        ("hf_quant_config.json", b"7"),
        ("model.safetensors", header({"a": 7})),
        ("model.safetensors", header({"a": {"dtype": "BF16"}})),
        ("model.safetensors", header({"a": {"dtype": 7, "shape": [1], "data_offsets": [0, 2]}})),
        (
            "model.safetensors",
            header({"a\x1b[2J": {"dtype": "U8", "shape": ["1"], "data_offsets": [0, 1]}}),
        ),
    ],
)
def test_files_of_the_wrong_form(hub, api, file, text):
    hub.files[file] = text
    with pytest.raises(SparkbookError) as error:
        reading.read("ORG/MODEL", api=api)
    assert "\x1b" not in str(error.value)


def test_the_token_goes_to_the_hub_and_to_no_other_server(hub):
    from huggingface_hub import HfApi

    api = HfApi(endpoint=hub.address, token="hf_the_token_of_a_test")
    reading.read("ORG/MODEL", api=api)
    assert set(hub.tokens) == {"Bearer hf_the_token_of_a_test"}
    hub.tokens.clear()
    # The same server under another name is another origin.
    hub.redirect = hub.address.replace("127.0.0.1", "localhost")
    reading.read("ORG/MODEL", api=api)
    assert hub.tokens[:2] == ["Bearer hf_the_token_of_a_test", None]
    assert hub.tokens.count(None) == len(hub.tokens) // 2
