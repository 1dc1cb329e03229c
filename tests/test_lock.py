"""The stack lock: what goes into it, that it is stable, and what counts as moved."""

import copy
import hashlib
import json

import pytest
from sparkbook import lock, recipes
from sparkbook.checkpoint import store
from sparkbook.errors import SparkbookError
from sparkbook.recipes import Launch
from sparkbook.util.limits import Ran

SPARK = {
    "uname -r": "6.11.0-1016-nvidia",
    "uname -m": "aarch64",
    "nvidia-smi --query-gpu=name,driver_version --format=csv,noheader": "NVIDIA GB10, 580.95.05",
}
DIGEST = f"sha256:{'a' * 64}"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def runner(command):
    return Ran(0, SPARK[" ".join(command)], "")


@pytest.fixture
def staged(tmp_path, monkeypatch):
    """gpt-oss-20b's recipe with its weights in a model store."""
    monkeypatch.setenv("HOME", str(tmp_path))
    files = {"config.json": b"{}", "model.safetensors": b"weights"}
    store.write_cache(tmp_path / "vllm" / "hub", "openai/gpt-oss-20b", {COMMIT: files}, COMMIT)
    return recipes.load("gpt-oss-20b")


def made(recipe, **more):
    served = lock.Served(DIGEST, f"sha256:{'b' * 64}", "0.19.0", "28.0.1")
    return lock.make(recipe.launch, recipe, served=served, runner=runner, **more)


def test_what_is_in_it(staged):
    locked = made(staged, plan={"fits": True}, bench={"decode_tok_s": 33.0})
    assert locked["image"] == {
        "ref": "nvcr.io/nvidia/vllm:26.04-py3",
        "digest": DIGEST,
        "id": f"sha256:{'b' * 64}",
    }
    model = locked["models"]["openai/gpt-oss-20b"]
    assert model["revision"] == COMMIT
    assert model["files"]["model.safetensors"] == {
        "bytes": 7,
        "sha256": hashlib.sha256(b"weights").hexdigest(),
    }
    assert locked["engine"] == {"vllm": "0.19.0", "docker": "28.0.1"}
    assert locked["host"] == {
        "architecture": "aarch64",
        "kernel": "6.11.0-1016-nvidia",
        "gpus": ["NVIDIA GB10"],
        "driver": "580.95.05",
    }
    env = locked["launch"]["env"]
    assert {"HF_HOME": "/models", "HF_TOKEN": None, "VLLM_API_KEY": None}.items() <= env.items()
    assert (locked["plan"], locked["bench"]) == ({"fits": True}, {"decode_tok_s": 33.0})


def test_what_it_leaves_open_is_named(staged):
    assert lock.unpinned(made(staged)) == []
    bare = recipes.load("gpt-oss-120b")
    assert lock.unpinned(lock.make(bare.launch, bare, runner=runner)) == [
        "the digest of nvcr.io/nvidia/vllm:26.04-py3",
        "the commit of openai/gpt-oss-120b",
    ]


def test_the_text_is_stable_and_is_read_back(staged, tmp_path):
    text = lock.dumps(made(staged))
    assert text == lock.dumps(made(staged)) == lock.dumps(json.loads(text))
    (tmp_path / "lock.json").write_text(text)
    assert lock.read(tmp_path / "lock.json") == json.loads(text)


def test_serving_it_again_pins_the_digest(staged):
    launch = lock.launch_of(made(staged))
    assert launch.image == f"nvcr.io/nvidia/vllm:26.04-py3@{DIGEST}"
    assert launch.model_copy(update={"image": staged.launch.image}) == staged.launch
    without = lock.launch_of(lock.make(staged.launch, staged, runner=runner))
    assert without == staged.launch


def test_a_secret_never_gets_in(staged):
    launch = staged.launch.model_copy(
        update={"env": {"HF_TOKEN": "canary", "MODE": "x"}}
    )  # model_copy does not validate
    locked = lock.dumps(lock.make(launch, staged, runner=runner))
    assert "canary" not in locked and '"MODE": "x"' in locked


@pytest.mark.parametrize(
    ("path", "value", "rule", "severity"),
    [
        (("image", "digest"), f"sha256:{'c' * 64}", "LOCK101", "error"),
        (
            ("models", "openai/gpt-oss-20b", "files", "model.safetensors", "sha256"),
            "0" * 64,
            "LOCK102",
            "error",
        ),
        (("models", "openai/gpt-oss-20b", "revision"), "0" * 40, "LOCK102", "error"),
        (("launch", "serve", "args", "max-num-seqs"), 8, "LOCK103", "error"),
        (("launch", "env", "NEW"), "1", "LOCK103", "error"),
        (("engine", "vllm"), "0.20.0", "LOCK104", "warning"),
        (("host", "driver"), "590.1", "LOCK105", "warning"),
        (("recipe", "sha256"), "0" * 64, "LOCK106", "info"),
        (("plan",), {"fits": False}, "LOCK107", "info"),
    ],
)
def test_what_moved_is_named(staged, path, value, rule, severity):
    before = made(staged)
    after = copy.deepcopy(before)
    place = after
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    (change,) = lock.diff(before, after)
    assert change.path == ".".join(path) and change.after == value
    (finding,) = lock.judge([change])
    assert (finding.rule, finding.severity) == (rule, severity) and change.path in finding.evidence


def test_nothing_moved(staged):
    assert not lock.judge(lock.diff(made(staged), made(staged)))


def test_what_a_server_that_is_down_can_not_tell_has_not_moved(staged):
    before, now = made(staged), lock.make(staged.launch, staged, runner=runner)
    changes = lock.diff(before, now)
    assert {change.path for change in changes} == {
        "image.digest",
        "image.id",
        "engine.vllm",
        "engine.docker",
    }
    assert not lock.judge(changes, unknown=False)
    assert lock.judge(changes).worst == "error"


def test_deep_finds_what_a_name_hides(staged, tmp_path):
    before = made(staged)
    (blob,) = [
        path
        for path in (tmp_path / "vllm" / "hub").rglob("blobs/*")
        if path.read_bytes() == b"weights"
    ]
    blob.write_bytes(b"Weights")
    assert not lock.diff(before, made(staged))  # the cache's name is taken at its word
    (change,) = lock.diff(before, made(staged, deep=True))
    assert change.path.endswith("model.safetensors.sha256")


def test_weights_that_are_not_here_are_unknown(staged, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "elsewhere"))
    assert made(staged)["models"]["openai/gpt-oss-20b"] == {"revision": None, "files": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not a stack lock"),
        ('{"format": "sparkbook-lock/9"}', "not a stack lock of this version"),
        ('{"format": "sparkbook-lock/1"}', "lacks recipe"),
    ],
)
def test_files_that_are_no_lock(tmp_path, text, message):
    (tmp_path / "lock.json").write_text(text)
    with pytest.raises(SparkbookError, match=message):
        lock.read(tmp_path / "lock.json")
    with pytest.raises(SparkbookError, match="can't be read"):
        lock.read(tmp_path / "nowhere.json")


def test_a_lock_with_a_launch_that_is_none(staged, tmp_path):
    locked = made(staged)
    locked["launch"]["container"]["ports"] = ["everywhere"]
    (tmp_path / "lock.json").write_text(lock.dumps(locked))
    with pytest.raises(SparkbookError, match=r"no launch that can be used: container\.ports"):
        lock.read(tmp_path / "lock.json")


def test_a_bare_launch_line_can_be_locked(tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    launch = Launch.model_validate({"serve": {"model": str(folder)}})
    locked = lock.make(launch, runner=runner)
    assert locked["recipe"] is None and locked["image"] is None
    assert list(locked["models"][str(folder)]["files"]) == ["config.json"]
