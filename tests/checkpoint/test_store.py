"""What recipes put on disk, and the layout of the cache that Hugging Face's own library reads."""

from __future__ import annotations

import huggingface_hub
import pytest
from sparkbook import recipes
from sparkbook.checkpoint.store import (
    Disk,
    disk_needed,
    download_lines,
    model_store,
    mounts,
    snapshot,
    torn,
    write_cache,
)
from sparkbook.recipes.schema import Recipe


def _recipe(
    repo="org/name", fmt="nvfp4", producer=None, weights=None, params=10.0, draft=None, **more
):
    return Recipe.model_validate(
        {
            "id": "test",
            "title": "T",
            "summary": "S",
            "family": "qwen",
            "sources": [{"id": "s", "title": "S"}],
            "draft": draft,
            "model": {
                "repo": repo,
                "total_params_b": params,
                "weights_gb": weights,
                "quantization": {"format": fmt, "producer": producer},
                "revision": more.pop("revision", None),
            },
            **more,
        }
    )


def test_a_stated_size_is_taken_and_a_missing_one_worked_out():
    assert disk_needed([_recipe(weights=7.0)]) == [Disk("org/name", 7.0, False, None)]
    assert disk_needed([_recipe()]) == [Disk("org/name", 10 * 4.5 / 8, True, None)]


def test_what_is_quantized_while_loading_lies_on_disk_in_bf16():
    assert disk_needed([_recipe(fmt="fp8", producer="vllm")])[0].weights_gb == 20


def test_what_is_not_known_is_left_out():
    assert disk_needed([_recipe(params=None)]) == []


def test_a_checkpoint_that_two_recipes_serve_counts_once_with_its_draft():
    draft = {"method": "dflash", "model": "org/draft", "tokens": 4, "size_gb": 3.0}
    plain, drafted = _recipe(weights=7.0), _recipe(weights=7.0, draft=draft)
    for order in ([plain, drafted], [drafted, plain]):
        (disk,) = disk_needed(order)
        assert (disk.draft_gb, disk.total_gb) == (3.0, 10.0)


def test_a_draft_inside_the_repository_is_not_added():
    bundled = {"method": "mtp", "model": "/model/assistant", "tokens": 3, "size_gb": 0.85}
    assert disk_needed([_recipe(weights=8.0, draft=bundled)])[0].total_gb == 8.0


@pytest.mark.parametrize(
    ("recipe", "lines"),
    [
        (_recipe(), ["hf download org/name"]),
        (_recipe(revision="abc"), ["hf download org/name --revision abc"]),
        (
            _recipe(draft={"method": "dflash", "model": "org/draft", "tokens": 4}),
            ["hf download org/name", "hf download org/draft"],
        ),
        (
            _recipe(draft={"method": "mtp", "model": "/model/assistant", "tokens": 4}),
            ["hf download org/name"],
        ),
        (
            _recipe(prepare=[{"do": "download", "why": "w", "repo": "org/n", "to": "~/vllm/x"}]),
            ["hf download org/n --local-dir ~/vllm/x"],
        ),
        (_recipe(repo="tiny-dense"), []),
    ],
)
def test_download_lines(recipe, lines):
    assert download_lines(recipe) == lines


def test_every_recipe_that_is_not_embedded_can_be_downloaded():
    for recipe in recipes.all():
        assert bool(download_lines(recipe)) == (recipe.family != "embedded")


def test_hugging_face_reads_the_layout_and_sees_shared_files_once(tmp_path):
    first, second, weights = "a" * 40, "b" * 40, b"w" * 1000
    revisions = {
        first: {"model.safetensors": weights},
        second: {"model.safetensors": weights, "new.json": b"{}"},
    }
    write_cache(tmp_path, "org/name", revisions, second)
    cache = huggingface_hub.scan_cache_dir(tmp_path)
    assert not cache.warnings
    (repo,) = cache.repos
    assert repo.repo_id == "org/name"
    assert repo.size_on_disk == 1002
    assert repo.refs["main"].commit_hash == second
    found = huggingface_hub.try_to_load_from_cache("org/name", "new.json", cache_dir=tmp_path)
    assert found == str(tmp_path / "models--org--name" / "snapshots" / second / "new.json")


def test_mounts_say_what_to_do_before_the_start(tmp_path):
    one = recipes.load("qwen3.6-35b-a3b-nvfp4")
    before, cache = mounts(one, tmp_path)
    assert (before.host, before.inside, before.exists, before.todo) == (
        "~/vllm",
        "/models",
        False,
        "mkdir -p ~/vllm",
    )
    assert (cache.host, cache.inside, cache.todo) == (
        "~/vllm-cache",
        "/cache",
        "mkdir -p ~/vllm-cache",
    )
    (tmp_path / "vllm").mkdir()
    after, _ = mounts(one, tmp_path)
    assert (after.exists, after.yours, after.writable, after.todo) == (True, True, True, None)


def test_a_mount_that_belongs_to_somebody_else(tmp_path, monkeypatch):
    (tmp_path / "vllm").mkdir()
    monkeypatch.setattr("sparkbook.checkpoint.store.os.getuid", lambda: 12345)
    foreign, _ = mounts(recipes.load("qwen3.6-35b-a3b-nvfp4"), tmp_path)
    assert (foreign.yours, foreign.todo) == (False, 'sudo chown -R "$USER" ~/vllm')


def test_the_model_store_follows_hf_home(tmp_path):
    assert model_store({}, tmp_path) == tmp_path / "vllm"
    assert model_store({"HF_HOME": "~/elsewhere"}, tmp_path) == tmp_path / "elsewhere"
    assert model_store({"HF_HOME": "/data/hf"}, tmp_path).as_posix() == "/data/hf"


def test_a_snapshot_by_branch_and_by_commit(tmp_path):
    commit = "a" * 40
    write_cache(tmp_path / "hub", "org/name", {commit: {"config.json": b"{}"}}, commit)
    assert (
        snapshot(tmp_path, "org/name")
        == snapshot(tmp_path, "org/name", commit)
        == tmp_path / f"hub/models--org--name/snapshots/{commit}"
    )
    assert snapshot(tmp_path, "org/name", "b" * 40) is None
    assert snapshot(tmp_path, "org/other") is None


def test_a_header_tells_where_its_file_ends(tmp_path):
    file = tmp_path / "model.safetensors"
    header = b'{"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}'
    whole = len(header).to_bytes(8, "little") + header + b"1234"
    for contents, word in (
        (whole, None),
        (whole[:-1], "header lists"),
        (whole + b"5", "header lists"),
        (b"short", "long"),
        (b"", "long"),
        ((2).to_bytes(8, "little") + b"[]", "can't be read"),
        (b"\xff" * 16, "long"),
    ):
        file.write_bytes(contents)
        reason = torn(file)
        assert reason is None if word is None else word in (reason or ""), contents


@pytest.mark.parametrize("name", ["../../outside", "/outside", "a\0b", ".."])
def test_a_commit_is_no_path(tmp_path, name):
    (tmp_path / "outside").mkdir()
    assert snapshot(tmp_path, "org/name", name.replace("/outside", f"{tmp_path}/outside")) is None
    refs = tmp_path / "hub" / "models--org--name" / "refs"
    refs.mkdir(parents=True)
    (refs.parent / "snapshots").mkdir()
    (refs / "main").write_text(name.replace("\0", ""))
    assert snapshot(tmp_path, "org/name") is None
