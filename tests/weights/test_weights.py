"""Weights against a hub of our own: whole, resumed, refused, damaged; and what is told about it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from sparkbook import weights
from sparkbook.checkpoint import reply
from sparkbook.checkpoint.store import snapshot, torn
from sparkbook.errors import SparkbookError
from sparkbook.recipes.schema import Recipe
from sparkbook.weights import WeightsError, fetch, fetching, needed, prune, verify

_spec = importlib.util.spec_from_file_location("hub", Path(__file__).parents[1] / "hub.py")
assert _spec and _spec.loader
hub_module = importlib.util.module_from_spec(_spec)
sys.modules["hub"] = hub_module
_spec.loader.exec_module(hub_module)

TOKEN = "hf_the_token_of_a_test"
TINY = Path(weights.__file__).parents[1] / "checkpoint" / "models" / "tiny-dense"


def shard(size: int, seed: int = 0) -> bytes:
    """A safetensors file with one tensor of `size` bytes."""
    header = json.dumps(
        {f"layer.{seed}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    ).encode()
    return (
        struct.pack("<Q", len(header))
        + header
        + bytes((seed + number) % 251 for number in range(1000)) * (size // 1000)
    )


FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "model-00001-of-00002.safetensors": shard(3_000_000, 1),
    "model-00002-of-00002.safetensors": shard(4_000_000, 2),
    "model.safetensors.index.json": (
        json.dumps(
            {
                "weight_map": {
                    "layer.1": "model-00001-of-00002.safetensors",
                    "layer.2": "model-00002-of-00002.safetensors",
                }
            }
        ).encode()
    ),
    "tokenizer.json": b"{}",
    "README.md": b"not needed",
    "pytorch_model.bin": b"the same weights again",
}
NEEDED = 5


@pytest.fixture
def hub():
    with hub_module.Hub() as server:
        server.add("org/name", FILES)
        yield server


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch, tmp_path):
    for name in (
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "HF_ENDPOINT",
        "HF_HUB_OFFLINE",
        "HF_TOKEN_PATH",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "store"))
    monkeypatch.setenv("HOME", str(tmp_path))


def recipe(repo="org/name", **more):
    model = {
        "repo": repo,
        "quantization": {"format": "nvfp4"},
        "revision": more.pop("revision", None),
    }
    return Recipe.model_validate(
        {
            "id": "test",
            "title": "T",
            "summary": "S",
            "family": "qwen",
            "sources": [{"id": "s", "title": "S"}],
            "model": model,
            **more,
        }
    )


def client(server, token=None, naps=None):
    return weights.Hub(server.url, token, sleep=(naps if naps is not None else []).append)


def get(server, one=None, token=None, naps=None, **more):
    return fetch(one or recipe(), hub=client(server, token, naps), progress=False, **more)


def refused(server, one=None, token=None):
    with pytest.raises(WeightsError) as error:
        get(server, one, token)
    assert error.value.finding.fix
    assert error.value.finding.why == weights.HUB[error.value.finding.rule].address
    return error.value.finding.rule


# ---- the right way


def test_everything_needed_is_staged_where_vllm_looks_and_nothing_else(hub, tmp_path):
    fetched = get(hub)
    (one,) = fetched.staged
    assert (one.files, one.downloaded) == (
        NEEDED,
        sum(len(FILES[name]) for name in FILES if name.endswith(".safetensors")),
    )
    folder = snapshot(tmp_path / "store", "org/name")
    assert folder == one.folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        n: c for n, c in FILES.items() if n not in ("README.md", "pytorch_model.bin")
    }
    # What vLLM itself will do, without a network.
    from huggingface_hub import snapshot_download

    assert (
        Path(
            snapshot_download(
                "org/name",
                cache_dir=tmp_path / "store" / "hub",
                local_files_only=True,
                allow_patterns="*.json",
            )
        )
        == folder
    )


def test_what_is_there_is_not_downloaded_again(hub):
    get(hub)
    hub.seen.clear()
    assert get(hub).downloaded == 0
    assert not [one for one in hub.seen if one.method == "GET" and "safetensors" in one.path]


def test_large_files_that_are_kept_in_xet_come_over_plain_http(tmp_path):
    with hub_module.Hub(xet=True) as server:
        server.add("org/name", FILES)
        get(server)
        assert not server.requests("xet")
    assert not verify(recipe(), progress=False).findings


def test_a_pinned_commit_is_taken_though_the_branch_moved_on(hub):
    first = hub.repos["org/name"].refs["main"]
    hub.add("org/name", {**FILES, "config.json": b"{}"})
    (one,) = get(hub, recipe(revision=first)).staged
    assert one.commit == first
    assert (one.folder / "config.json").read_bytes() == FILES["config.json"]


def test_a_draft_and_a_folder_of_its_own(hub, tmp_path):
    hub.add("org/draft", {"config.json": b"{}", "model.safetensors": shard(1000)})
    drafted = recipe(draft={"method": "dflash", "model": "org/draft", "tokens": 4})
    assert [one.repo for one in get(hub, drafted).staged] == ["org/name", "org/draft"]
    own = recipe(prepare=[{"do": "download", "why": "w", "repo": "org/name", "to": "~/vllm/name"}])
    (one,) = get(hub, own).staged
    assert one.folder == tmp_path / "vllm" / "name"
    assert (one.folder / "model-00001-of-00002.safetensors").read_bytes() == FILES[
        "model-00001-of-00002.safetensors"
    ]
    seen = verify(own, progress=False)
    assert (seen.files, seen.findings, seen.unknown) == (NEEDED, (), ())


def test_the_embedded_model_goes_through_a_hub_and_comes_back_the_same(hub):
    files = {path.name: path.read_bytes() for path in sorted(TINY.iterdir()) if path.is_file()}
    hub.add("org/tiny", files)
    (one,) = get(hub, recipe("org/tiny")).staged
    assert (one.folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert torn(one.folder / "model.safetensors") is None
    assert not verify(recipe("org/tiny"), progress=False).findings


def test_the_token_goes_to_the_hub_and_not_to_the_content_network(hub):
    hub.tokens.add(TOKEN)
    get(hub, token=TOKEN)
    assert hub.requests("/resolve/")[0].authorization == f"Bearer {TOKEN}"
    blobs = [one for one in hub.seen if one.path.count("/") == 1]
    assert len(blobs) == 2
    assert {one.authorization for one in blobs} == {None}


# ---- what is needed


@pytest.mark.parametrize(
    ("names", "kept"),
    [
        (["model.safetensors", "pytorch_model.bin", "model.gguf"], ["model.safetensors"]),
        (["pytorch_model.bin", "config.json"], ["pytorch_model.bin", "config.json"]),
        (
            ["model.safetensors", "original/consolidated.00.pth", "onnx/model.json"],
            ["model.safetensors"],
        ),
        (
            ["assistant/model.safetensors", "model.safetensors"],
            ["assistant/model.safetensors", "model.safetensors"],
        ),
        (
            [".gitattributes", "README.md", "LICENSE", "chat_template.jinja", "modeling_x.py"],
            ["chat_template.jinja", "modeling_x.py"],
        ),
        (["consolidated.safetensors", "params.json"], ["consolidated.safetensors", "params.json"]),
    ],
)
def test_needed(names, kept):
    assert needed(names) == kept


def test_mistrals_two_forms_are_taken_once():
    names = [
        "consolidated-00001-of-00002.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "params.json",
    ]
    assert needed(names) == [
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "params.json",
    ]
    assert needed(names, mistral=True) == ["consolidated-00001-of-00002.safetensors", "params.json"]


# ---- interruptions


def test_a_connection_that_breaks_is_gone_on_with_at_the_byte(hub):
    digest = next(
        key
        for key, contents in hub.blobs.items()
        if contents == FILES["model-00002-of-00002.safetensors"]
    )
    hub.fail(digest, times=2, after=1_500_000)
    get(hub)
    ranges = [one.range for one in hub.requests(digest)]
    assert len(ranges) == 3
    assert ranges[0] is None
    assert all(text.startswith("bytes=") and text != "bytes=0-" for text in ranges[1:])
    assert not verify(recipe(), progress=False).findings


def test_a_server_without_ranges_begins_again_and_the_file_is_whole(hub):
    hub.ranges = False
    digest = next(
        key
        for key, contents in hub.blobs.items()
        if contents == FILES["model-00001-of-00002.safetensors"]
    )
    hub.fail(digest, times=1, after=2_500_000)
    get(hub)
    assert not verify(recipe(), progress=False).findings


def test_a_list_of_files_that_breaks_off_is_read_from_the_front(hub):
    listing(hub, tags=["x" * 3_000_000])  # pieces are a megabyte
    hub.fail("/api/models/", times=1, after=2_000_000)
    get(hub)
    assert not verify(recipe(), progress=False).findings


def test_what_came_before_a_failure_is_kept_for_the_next_fetch(hub, tmp_path):
    digest = next(
        key
        for key, contents in hub.blobs.items()
        if contents == FILES["model-00002-of-00002.safetensors"]
    )
    hub.fail(digest, times=1, after=2_000_000)
    hub.fail(digest, times=None, after=0)
    assert refused(hub) == "HUB011"
    (part,) = (tmp_path / "store").rglob(f"{digest}.part")
    kept = part.stat().st_size
    assert kept > 0
    hub.faults.clear()
    hub.seen.clear()
    get(hub)
    assert [one.range for one in hub.requests(digest)] == [f"bytes={kept}-"]
    assert not verify(recipe(), progress=False).findings


def test_a_beginning_with_wrong_bytes_is_noticed_and_taken_away(hub, tmp_path):
    digest = next(
        key
        for key, contents in hub.blobs.items()
        if contents == FILES["model-00001-of-00002.safetensors"]
    )
    part = tmp_path / "store" / "hub" / "models--org--name" / "blobs" / f"{digest}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    assert refused(hub) == "HUB010"
    assert not part.exists()
    get(hub)
    assert not verify(recipe(), progress=False).findings


@pytest.mark.slow
def test_ctrl_c_ends_cleanly_and_the_next_fetch_goes_on(hub, tmp_path):
    big = shard(30_000_000, 3)
    hub.add("org/big", {"config.json": b"{}", "model.safetensors": big})
    digest = next(key for key, contents in hub.blobs.items() if contents == big)
    hub.fail(digest, after=12_000_000, times=1)
    hub.fail(digest, 503, Retry_After="60")
    code = (
        "import sys; from sparkbook import cli; sys.argv = ['sparkbook', 'weights', 'fetch',"
        " sys.argv[1]]; cli.main()"
    )
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps(recipe("org/big").model_dump(mode="json")))
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "PYTHONPATH": str(Path(weights.__file__).parents[2]),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(file)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(hub.requests(digest)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert "The next fetch resumes here" in err
    hub.faults.clear()
    hub.seen.clear()
    get(hub, recipe("org/big"))
    assert hub.requests(digest)[0].range is not None


# ---- refusals


def test_each_refusal_is_a_finding_of_its_own(hub):
    hub.add("org/gated", FILES, gated={TOKEN})
    hub.tokens |= {TOKEN, "hf_other"}
    assert refused(hub, recipe("org/gated")) == "HUB001"
    assert refused(hub, recipe("org/gated"), "hf_expired") == "HUB002"
    assert refused(hub, recipe("org/gated"), "hf_other") == "HUB003"
    assert refused(hub, recipe("org/nothing"), TOKEN) == "HUB004"
    assert refused(hub, recipe(revision="0" * 40)) == "HUB005"
    assert get(hub, recipe("org/gated"), TOKEN).staged


def test_nobody_there_and_offline(hub, monkeypatch):
    dead = weights.Hub("http://127.0.0.1:9", sleep=lambda seconds: None)
    with pytest.raises(WeightsError) as error:
        fetch(recipe(), hub=dead, progress=False)
    assert error.value.finding.rule == "HUB006"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE"):
        fetch(recipe(), progress=False)


def test_a_rate_limit_is_waited_out_and_told_when_it_stays(hub):
    naps = []
    hub.fail("/api/models/", 429, times=2, Retry_After="7")
    get(hub, naps=naps)
    assert naps == [7.0, 7.0]
    hub.fail("/api/models/", 429)
    assert refused(hub) == "HUB007"


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_hub_with_a_fault_is_asked_again_and_told_when_it_stays(hub, status):
    hub.fail("/resolve/", status, times=1)
    get(hub)
    hub.fail("/api/models/", status)
    assert refused(hub) == "HUB008"


def test_a_damaged_file_never_gets_its_name(hub, tmp_path):
    digest = next(
        key
        for key, contents in hub.blobs.items()
        if contents == FILES["model-00001-of-00002.safetensors"]
    )
    good = hub.blobs[digest]
    hub.blobs[digest] = good[:-1] + b"!"
    assert refused(hub) == "HUB010"
    assert not list((tmp_path / "store").rglob(digest))
    hub.blobs[digest] = good
    get(hub)


def test_no_room_is_told_before_anything_is_downloaded(hub, monkeypatch):
    monkeypatch.setattr(
        fetching.shutil,
        "disk_usage",
        lambda folder: os.terminal_size((0, 0)) and type("U", (), {"free": 1_000_000})(),
    )
    assert refused(hub) == "HUB009"
    assert not hub.requests("/resolve/")


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_store_that_cannot_be_written(hub, tmp_path):
    (tmp_path / "store").mkdir(mode=0o500)
    assert refused(hub) == "HUB014"


def test_a_store_that_refuses_to_be_written(hub, monkeypatch):
    def denied(*_, **__):
        raise PermissionError(13, "Permission denied", "/store/hub")

    monkeypatch.setattr(fetching, "_download", denied)
    assert refused(hub) == "HUB014"


# ---- files of prepare steps


def plugin(server, sha256="unknown"):
    server.files["/org/name/resolve/main/parser.py"] = b"print('parser')\n"
    step = {
        "do": "fetch",
        "why": "w",
        "url": f"{server.url}/org/name/resolve/main/parser.py",
        "to": "~/vllm/parser.py",
        "sha256": sha256,
    }
    return recipe(
        prepare=[step, {"do": "download", "why": "w", "repo": "org/name", "to": "~/vllm/name"}]
    )


def test_code_without_a_checksum_is_refused_and_the_rest_is_fetched(hub, tmp_path):
    fetched = get(hub, plugin(hub))
    assert [finding.rule for finding in fetched.findings] == ["HUB013"]
    assert "branch" in fetched.findings[0].message
    assert fetched.staged
    assert not (tmp_path / "vllm" / "parser.py").exists()


def test_code_that_was_noted_once_may_not_change(hub, tmp_path):
    one = plugin(hub)
    assert not get(hub, one, unpinned=True).findings
    assert (tmp_path / "vllm" / "parser.py").read_bytes() == b"print('parser')\n"
    hub.files["/org/name/resolve/main/parser.py"] = b"print('something else')\n"
    (tmp_path / "vllm" / "parser.py").unlink()
    assert [finding.rule for finding in get(hub, one, unpinned=True).findings] == ["HUB012"]
    assert not (tmp_path / "vllm" / "parser.py").exists()


def test_code_with_a_checksum_has_to_match_it(hub):
    right = hashlib.sha256(b"print('parser')\n").hexdigest()
    assert not get(hub, plugin(hub, right)).findings
    assert not get(hub, plugin(hub, right)).findings, "and is left alone where it is there"
    assert len(hub.requests("parser.py")) == 1
    assert [finding.rule for finding in get(hub, plugin(hub, "0" * 64)).findings] == ["HUB012"]


# ---- verify and prune


def test_verify_sees_one_changed_byte_a_torn_shard_and_a_missing_one(hub):
    (one,) = get(hub).staged
    assert (verify(recipe(), progress=False).files, verify(recipe(), progress=False).findings) == (
        NEEDED,
        (),
    )
    first, second = (one.folder / f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    contents = first.read_bytes()
    first.resolve().write_bytes(contents[:-1] + b"!")
    assert torn(first) is None, "its header alone does not tell"
    assert [f.rule for f in verify(recipe(), progress=False).findings] == ["HUB010"]
    first.resolve().write_bytes(contents + b"!")
    (finding,) = verify(recipe(), progress=False).findings
    assert "its header lists" in (finding.evidence or "")
    second.unlink()
    assert sorted(f.rule for f in verify(recipe(), progress=False).findings) == ["HUB010", "HUB015"]


def test_verify_before_anything_was_fetched():
    (finding,) = verify(recipe(), progress=False).findings
    assert (finding.rule, finding.fix) == ("HUB015", "sparkbook weights fetch test")


def test_prune_takes_what_was_left_behind_and_keeps_what_is_shared_or_pinned(hub, tmp_path):
    first = get(hub).staged[0]
    hub.add("org/name", {**FILES, "model-00001-of-00002.safetensors": shard(3_000_000, 9)})
    second = get(hub).staged[0]
    blobs = tmp_path / "store" / "hub" / "models--org--name" / "blobs"
    (blobs / ("a" * 64 + ".part")).write_bytes(b"12345")
    assert not prune([recipe(revision=first.commit)]).bytes - 5, "a pinned commit stays"
    found = prune([recipe()])
    assert found.bytes == len(FILES["model-00001-of-00002.safetensors"]) + 5
    found.remove()
    assert not first.folder.exists()
    assert not verify(recipe(), progress=False).findings
    assert snapshot(tmp_path / "store", "org/name") == second.folder
    assert not prune([recipe()]).paths


def test_a_recipe_without_weights_to_fetch(hub):
    with pytest.raises(SparkbookError, match="nothing to fetch"):
        get(hub, recipe("tiny-dense"))


# ---- several at once


def test_two_equal_files_come_once(hub):
    hub.add("org/twins", {"a.safetensors": shard(2_000_000), "b.safetensors": shard(2_000_000)})
    (one,) = get(hub, recipe("org/twins")).staged
    assert one.folder.joinpath("a.safetensors").read_bytes() == shard(2_000_000)
    digest = hashlib.sha256(shard(2_000_000)).hexdigest()
    assert len(hub.requests(digest)) == 1
    own = recipe(prepare=[{"do": "download", "why": "w", "repo": "org/twins", "to": "~/vllm/t"}])
    get(hub, own)
    assert [verify(one, progress=False).files for one in (recipe("org/twins"), own)] == [2, 2]


def test_two_fetches_at_once_share_the_work(hub):
    hub.add("org/big", {"config.json": b"{}", "model.safetensors": shard(30_000_000)})
    start, results = threading.Barrier(2), []

    def one_fetch():
        start.wait(60)
        results.append(get(hub, recipe("org/big")).staged[0].files)

    threads = [threading.Thread(target=one_fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [2, 2]
    assert len(hub.requests(hashlib.sha256(shard(30_000_000)).hexdigest())) == 1
    assert not verify(recipe("org/big"), progress=False).findings


def test_a_server_that_cuts_every_reply_and_begins_again_is_given_up(hub):
    hub.ranges = False
    hub.fail(hashlib.sha256(FILES["model-00001-of-00002.safetensors"]).hexdigest(), after=1_000_000)
    assert refused(hub) == "HUB011"


# ---- hostile hubs, recipes and stores


def listing(hub, *siblings, **more):
    """Let the hub answer with a list of files of our own."""
    commit = hub.repos["org/name"].refs["main"]
    own = [hub.sibling(name, contents) for name, contents in FILES.items()]
    answer = {"sha": commit, "siblings": [*own, *siblings], **more}
    hub.files["/api/models/org/name/revision/main"] = json.dumps(answer).encode()


def sibling(name="x.safetensors", **more):
    return {"rfilename": name, "size": 5, "lfs": {"sha256": "0" * 64}, **more}


def tree(folder):
    """Every file and link below a folder."""
    return sorted(str(path) for path in folder.rglob("*") if path.is_symlink() or path.is_file())


@pytest.mark.parametrize(
    "name",
    [
        *("{0}/outside.safetensors", "{0}/outside.py"),
        *("a\\..\\..\\x.json", "C:\\x.json", "a\0b.json"),
        *("a\x1b[2J.json", "a\nb.json", "x//y.json", "\\\\host\\share\\x.json"),
    ],
)
@pytest.mark.parametrize("place", ["cache", "folder"])
def test_a_file_name_that_leads_out_is_refused_before_anything_is_written(
    hub, tmp_path, name, place
):
    listing(hub, sibling(name.format(tmp_path)))
    prepare = [{"do": "download", "why": "w", "repo": "org/name", "to": "~/vllm/own"}]
    assert refused(hub, recipe(prepare=prepare if place == "folder" else [])) == "HUB016"
    assert tree(tmp_path) == []
    assert not hub.requests("/resolve/")


@pytest.mark.parametrize("name", ["../../../../outside.json", "x/../../../../../outside.json"])
def test_a_file_name_with_steps_upwards_is_none_that_vllm_reads(hub, tmp_path, name):
    listing(hub, sibling(name))
    get(hub)
    assert not [path for path in tree(tmp_path.parent) if path.endswith("outside.json")]
    assert verify(recipe(), progress=False).files == NEEDED


@pytest.mark.parametrize(
    "answer",
    [
        *(b"", b"<html>Log in</html>", b"[]", b"7", b"null", b"{}", b"[" * 100_000, b"\xff\xfe"),
        *({"sha": 7}, {"sha": "../../../outside"}, {"sha": None}, {"siblings": {}}),
        *({"siblings": ["a"]}, {"siblings": [{"size": 1}]}, {"siblings": [sibling(7)]}),
        *({"siblings": [sibling(size=size)]} for size in ("abc", "5", -5, 1e308, 10**30, None)),
        *({"siblings": [sibling(lfs={"sha256": x})]} for x in ("../x", 7, None, "0" * 63, "/x")),
        *({"siblings": [sibling(lfs=None, blobId=x)]} for x in ("../x", 7, None, "0" * 40 + "\n")),
    ],
)
def test_a_reply_that_is_no_list_of_files_is_one_clear_error(hub, tmp_path, answer):
    if isinstance(answer, bytes):
        hub.files["/api/models/org/name/revision/main"] = answer
    else:
        listing(hub, **answer)
    assert refused(hub) == "HUB017"
    assert tree(tmp_path) == []


def test_a_reply_without_end_is_ended(hub, monkeypatch):
    monkeypatch.setattr(reply, "MOST_BYTES", 1000)
    hub.files["/api/models/org/name/revision/main"] = b" " * 5000
    assert refused(hub) == "HUB017"


def writes_to(server, to, **more):
    """A recipe that fetches a file to a place of its choice."""
    server.files["/parser.py"] = b"print('parser')\n"
    digest = hashlib.sha256(server.files["/parser.py"]).hexdigest()
    step = {"do": "fetch", "why": "w", "url": f"{server.url}/parser.py", "to": to}
    return recipe("local-model", prepare=[{**step, "sha256": digest}], **more)


OUTSIDE = [
    *("~/.bashrc", "{0}/.bashrc", "~/vllm/../.bashrc", "~/vllmx", "~", "~/", "~/vllm", "/"),
    *(".bashrc", "./.bashrc", "", "~/vllm//x", "~/vllm/a\nb", "~/vllm/link/x"),
    *("~/vllm/hub/models--a--b/blobs/x", "~/vllm/token", "~/vllm/sparkbook-files.json"),
    *("{0}/store/token", "{0}/store", "~other/.bashrc"),
]


@pytest.mark.parametrize("to", OUTSIDE)
def test_a_recipe_writes_nowhere_but_in_the_store(hub, tmp_path, monkeypatch, to):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".bashrc").write_text("mine")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "link").symlink_to("..")
    before, to = tree(tmp_path), to.format(tmp_path)
    assert refused(hub, writes_to(hub, to)) == "HUB016"
    step = {"do": "download", "why": "w", "repo": "org/name", "to": to}
    assert refused(hub, recipe(prepare=[step])) == "HUB016" or not to
    assert tree(tmp_path) == before
    assert (tmp_path / ".bashrc").read_text() == "mine"


def test_the_owner_may_allow_a_place_outside(hub, tmp_path):
    one = writes_to(hub, "~/plugins/parser.py")
    for allowed in ("plugins/parser.py", "plugins"):
        (path,) = get(hub, one, allow_outside=[tmp_path / allowed]).prepared
        assert path.read_bytes() == b"print('parser')\n"
        path.unlink()
    with pytest.raises(WeightsError, match="outside"):
        get(hub, one, allow_outside=[tmp_path / "plugins" / "other.py"])
    step = {"do": "download", "why": "w", "repo": "org/name", "to": "~/models/name"}
    get(hub, recipe(prepare=[step]), allow_outside=[tmp_path / "models"])
    assert verify(recipe(prepare=[step]), progress=False).files == NEEDED


def test_the_command_names_the_path_and_takes_the_option(hub, tmp_path, monkeypatch, capsys):
    from sparkbook import cli

    file = tmp_path / "test.yaml"
    file.write_text(json.dumps(writes_to(hub, "~/parser.py").model_dump(mode="json")))
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("COLUMNS", "200")

    def command(*options):
        monkeypatch.setattr("sys.argv", ["sparkbook", "weights", "fetch", str(file), *options])
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code or 0, capsys.readouterr().out

    code, out = command()
    assert code == 1
    assert "~/parser.py" in out
    assert "--allow-outside" in out
    assert not (tmp_path / "parser.py").exists()
    assert command("--allow-outside", "~/parser.py")[0] == 0
    assert (tmp_path / "parser.py").exists()


@pytest.mark.parametrize("revision", ["../../../../outside", "/outside", "a\nb"])
def test_a_revision_is_no_path(hub, tmp_path, revision):
    commit = hub.repos["org/name"].refs["main"]
    answer = {"sha": commit, "siblings": [hub.sibling("config.json", FILES["config.json"])]}
    hub.files[f"/api/models/org/name/revision/{revision}"] = json.dumps(answer).encode()
    with pytest.raises(SparkbookError):
        get(hub, recipe(revision=revision))
    assert not [path for path in tree(tmp_path) if "outside" in path]
    assert snapshot(tmp_path / "store", "org/name", revision) is None


@pytest.mark.parametrize("place", ["blobs", "hub", "snapshots", "part", "lock", "refs"])
def test_a_link_that_somebody_planted_in_a_shared_store_is_not_followed(hub, tmp_path, place):
    digest = hashlib.sha256(FILES["model-00001-of-00002.safetensors"]).hexdigest()
    cache = tmp_path / "store" / "hub" / "models--org--name"
    victim = tmp_path / "victim"
    victim.mkdir()
    link = {
        "hub": cache.parent,
        "part": cache / "blobs" / f"{digest}.part",
        "lock": cache.parent / ".locks" / cache.name / f"{digest}.lock",
        "refs": cache / "refs" / "main",
    }.get(place, cache / place)
    link.parent.mkdir(parents=True)
    if place in ("part", "lock", "refs"):
        (victim / "file").write_text("precious")
        link.symlink_to(victim / "file")
    else:
        link.symlink_to(victim)
    if place in ("part", "refs"):  # the link goes, and the fetch works
        get(hub)
        assert not verify(recipe(), progress=False).findings
    else:
        assert refused(hub) == "HUB016"
    assert [path.read_text() for path in victim.iterdir()] == (
        ["precious"] if place in ("part", "lock", "refs") else []
    )


def test_verify_and_prune_stay_in_the_store(hub, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "old.part").write_text("precious")
    (one,) = get(hub).staged
    (one.folder / "extra.json").symlink_to(victim / "old.part")
    assert [f.rule for f in verify(recipe(), progress=False).findings] == ["HUB016"]
    hub.add("org/name", {**FILES, "config.json": b"{}"})
    get(hub)
    cache = tmp_path / "store" / "hub"
    (cache / "models--x--y").symlink_to(tmp_path)
    (cache / "models--a--b").mkdir()
    (cache / "models--a--b" / "blobs").symlink_to(victim)
    left = prune([recipe()])
    assert {path for path, _ in left.paths if victim in path.resolve().parents} == set()
    left.remove()
    assert not one.folder.exists()
    assert (victim / "old.part").read_text() == "precious"


def test_a_small_file_that_is_another_than_stated_is_refused(hub):
    listing(hub)
    for files in hub.repos["org/name"].commits.values():
        files["config.json"] = b'{"other": 1, "architectures": ["Llama"]}'[:39]
    assert refused(hub) == "HUB010"


# ---- secrets and rules


def test_the_token_does_not_go_to_an_address_that_begins_like_the_hubs(hub):
    one = writes_to(hub, "~/vllm/parser.py")
    fetch(one, hub=weights.Hub(hub.url[:-1], TOKEN), progress=False)
    assert [request.authorization for request in hub.requests("/parser.py")] == [None]


def test_a_redirect_to_another_server_is_followed_without_the_token(hub):
    listing(hub)
    hub.tokens.add(TOKEN)
    with hub_module.Hub() as other:
        other.files["/api/models/org/name/revision/main"] = hub.files.pop(
            "/api/models/org/name/revision/main"
        )
        to = f"{other.url}/api/models/org/name/revision/main"
        hub.fail("/api/models/", 302, Location=to)
        get(hub, token=TOKEN)
        assert [request.authorization for request in other.seen] == [None]


def test_a_password_in_the_hubs_address_is_refused_and_not_shown(monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "https://me:secret@mirror.example")
    with pytest.raises(SparkbookError, match="name or password") as error:
        weights.Hub()
    assert "secret" not in str(error.value)


def test_the_token_is_in_no_message_and_no_file(hub, tmp_path):
    hub.tokens.add("hf_other")
    hub.add("org/gated", FILES, gated={"hf_other"})
    one = client(hub, TOKEN)
    assert TOKEN not in repr(one)
    with pytest.raises(WeightsError) as error:
        fetch(recipe("org/gated"), hub=one, progress=False)
    assert TOKEN not in str(error.value) + repr(error.value.finding)
    assert not [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]


def test_every_rule_is_made_to_happen_here():
    text = Path(__file__).read_text("utf-8")
    assert [code for code in weights.HUB.rules if f'"{code}"' not in text] == []
