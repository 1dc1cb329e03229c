"""What is known about images, and how a reference is matched to it."""

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import TypeAdapter
from sparkbook import recipes, releases
from sparkbook.recipes.names import entrypoint_of
from sparkbook.releases import images
from sparkbook.util import own_yaml


@pytest.mark.parametrize(
    ("ref", "vllm", "entrypoint"),
    [
        ("nvcr.io/nvidia/vllm:25.10-py3", "0.10.2", "command"),
        ("nvcr.io/nvidia/vllm:26.04-py3", "0.19.0", "command"),
        ("nvcr.io/nvidia/vllm:26.09-py3@sha256:" + "a" * 64, "0.29.0", "command"),
        ("vllm/vllm-openai:v0.28.0", "0.28.0", "vllm-serve"),
        ("docker.io/vllm/vllm-openai:v0.31.0-aarch64", "0.31.0", "vllm-serve"),
        ("vllm/vllm-openai:v0.19.0-cu130", "0.19.0", "vllm-serve"),
        ("vllm/vllm-openai:nightly", None, "vllm-serve"),
        ("vllm/vllm-openai", None, "vllm-serve"),
        ("avarok/dgx-vllm-nvfp4-kernel:v22", "0.16.0rc2", "wrapper"),
        ("vllm-node-tf5", None, "command"),
    ],
)
def test_an_image_is_found(ref, vllm, entrypoint):
    found = images.find(ref)
    assert (found.vllm, found.entrypoint) == (vllm, entrypoint)


@pytest.mark.parametrize(
    "ref", ["example.org/mine:1", "vllm/vllm-openai:something-else", "nvcr.io/nvidia/vllm:whatever"]
)
def test_what_is_not_known_is_none(ref):
    assert images.find(ref) is None


@pytest.mark.parametrize(
    ("ref", "parts"),
    [
        ("registry:5000/a/b", ("registry:5000/a/b", None, None)),
        ("registry:5000/a/b:t", ("registry:5000/a/b", "t", None)),
        ("docker.io/library/vllm-node:x@sha256:12", ("vllm-node", "x", "sha256:12")),
    ],
)
def test_a_reference_is_taken_apart(ref, parts):
    assert images.split(ref) == parts


def test_the_images_agree_with_what_launches_take_for_their_entry_point():
    for entry in images.all():
        tag = entry.tags[0] if isinstance(entry.tags, list) else "v0.32.0"
        assert (
            entrypoint_of(f"{entry.image}:{tag}") == entry.entrypoint
            or entry.contents.get("vllm") is False
        ), entry.image


def test_every_image_of_the_catalogue_is_known_and_agrees_with_it():
    for recipe in recipes.all():
        if recipe.image:
            found = images.find(recipe.image.ref)
            assert found is not None, recipe.image.ref
            if recipe.image.vllm and recipe.image.vllm.startswith("==") and found.vllm:
                assert recipe.image.vllm.removeprefix("==") == found.vllm


def test_every_release_named_is_one_that_was_read_or_older():
    known = releases.known()
    for entry in images.all():
        if entry.vllm and "rc" not in entry.vllm:
            assert entry.vllm in known or Version(entry.vllm) < Version(known[0]), entry


def test_the_file_holds_what_the_classes_say() -> None:
    data = own_yaml.read(images.FILE)
    assert set(data) == {"images", "sources", "starts"}
    TypeAdapter(dict[str, images.Source]).validate_python(data["sources"])
    TypeAdapter(dict[str, images.Start]).validate_python(data["starts"])
    TypeAdapter(list[images.ImageInfo]).validate_python(data["images"])


def test_every_image_cites_a_source_and_a_moving_tag_has_a_date() -> None:
    for entry in images.all():
        assert SpecifierSet(entry.vllm_range or "") is not None
        assert not entry.moving or entry.local or entry.as_of, entry.image
        for name in (entry.source, *(bug.source for bug in entry.bugs)):
            assert images.source(name).url


def test_what_an_image_needs_is_stated() -> None:
    names = {entry.image for entry in images.all()}
    for name, start in images.starts().items():
        assert name in names
        assert images.source(start.source).url
    text = images.needs("eugr/spark-vllm:latest")
    assert "read-only root: untried" in text
    assert "--cap-add=IPC_LOCK" in text
    assert "memory limit: 110g" in text
    assert "memory limit: none" in images.needs("vllm/vllm-openai:v0.28.0")
    assert images.needs("example.org/mine:1").endswith("not known")
