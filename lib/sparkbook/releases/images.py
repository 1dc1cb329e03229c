"""Container images: which vLLM release is inside, what else is, and what is known to be wrong with
it.

>>> from sparkbook.releases import images
>>> images.find("nvcr.io/nvidia/vllm:26.04-py3").vllm
'0.19.0'
"""

from __future__ import annotations

import datetime
import functools
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sparkbook.util import own_yaml

FILE = Path(__file__).parent / "images.yaml"
WRITES = ("/root", "/tmp", "/var/tmp", "/run")
"""Folders that a vLLM server writes to: caches of vLLM, Triton, FlashInfer, torch and CUDA below
the home folder, and files for a moment.
"""
_VERSION = r"(?P<vllm>\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?)"


@dataclass(frozen=True)
class Source:
    """Where something about an image is known from."""

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    title: str
    url: str
    date: datetime.date

    def __post_init__(self) -> None:
        if not re.fullmatch(r"https://\S+", self.url):
            raise ValueError(f"'{self.url}' is not an address with https")


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a publisher's own start gives a container on its host.

    Attributes:
        rights: capabilities and shared resources of the host.
        memory: its memory limit; None: it sets none.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    rights: str
    source: str
    memory: str | None = None


@dataclass(frozen=True, kw_only=True)
class Bug:
    """Something known to be wrong with an image. If a condition is given, it only concerns launches
    that meet it.

    Attributes:
        models: part of the model's name, lower case.
        method: speculative method.
        env: `NAME=VALUE` that brings it about.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    what: str
    fix: str
    source: str
    models: str | None = None
    method: str | None = None
    tool_parser: str | None = None
    env: str | None = None


@dataclass(frozen=True, kw_only=True)
class ImageInfo:
    """What is known about an image, or about a family of its tags.

    Attributes:
        vllm: release inside.
        vllm_range: releases that it can be, if the tag moves or no source names one.
        platforms: None: not known.
        contents: distribution: version, true, or false if it is missing.
        local: built on the machine, in no registry.
        fork: what it changes of vLLM.
        root: whether a server of this image was seen to run with a read-only root file system
            (`read-only`), is known to write to it (`writable`), or neither (`untried`).
        writes: folders that it then writes to, besides its mounts.
        capabilities: what root in it needs beyond `sparkbook.serve.stack.CAPABILITIES`.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    image: str
    tags: list[str] | str
    entrypoint: Literal["command", "vllm-serve", "wrapper"]
    source: str
    vllm: str | None = None
    vllm_range: str | None = None
    cuda: str | None = None
    platforms: list[Literal["linux/amd64", "linux/arm64"]] | None = None
    contents: dict[str, str | bool] = field(default_factory=dict)
    bugs: list[Bug] = field(default_factory=list)
    moving: bool = False
    local: bool = False
    fork: str | None = None
    as_of: datetime.date | None = None
    root: Literal["read-only", "writable", "untried"] = "untried"
    writes: tuple[str, ...] = WRITES
    capabilities: tuple[str, ...] = ()

    def pattern(self) -> re.Pattern[str] | None:
        """The tags' pattern, where they are given as one."""
        if isinstance(self.tags, str):
            return re.compile(self.tags.strip("/").replace("{vllm}", _VERSION))
        return None

    def matches(self, tag: str) -> re.Match[str] | bool:
        """Whether this entry names a tag."""
        if (pattern := self.pattern()) is not None:
            return pattern.fullmatch(tag) or False
        return tag in self.tags


@functools.cache
def _file() -> tuple[dict[str, Source], list[ImageInfo]]:
    """Read the file; a test checks each value in it."""
    data: dict[str, Any] = own_yaml.read(FILE)
    sources = {name: Source(**entry) for name, entry in data["sources"].items()}
    images = [
        ImageInfo(**{**entry, "bugs": [Bug(**bug) for bug in entry.get("bugs", ())]})
        for entry in data["images"]
    ]
    return sources, images


def all() -> list[ImageInfo]:
    """Every entry, in the file's order."""
    return _file()[1]


@functools.cache
def starts() -> dict[str, Start]:
    """How the publishers of images start them, by image name."""
    return {name: Start(**entry) for name, entry in own_yaml.read(FILE)["starts"].items()}


def needs(ref: str) -> str:
    """Return what is known, and what is not, of the rights that an image needs on its host."""
    info, start = find(ref), starts().get(split(ref)[0])
    root = info.root if info else "untried"
    published = f"{start.rights}; memory limit: {start.memory or 'none'}" if start else "not known"
    return (
        f"read-only root: {root}; capabilities beyond those of sparkbook:"
        f" {' '.join(info.capabilities) if info and info.capabilities else 'none known'};"
        f" its publisher's start: {published}"
    )


def source(name: str) -> Source:
    """The source that an entry cites."""
    return _file()[0][name]


TWO_TAGS = re.compile(r":[^/@]*:")
"""What no reference to an image has: two colons in its last part, before the digest."""


def split(ref: str) -> tuple[str, str | None, str | None]:
    """Name, tag and digest of an image reference: `nvcr.io/nvidia/vllm:26.04-py3@sha256:…`. The tag
    is None where none is given.
    """
    ref, _, digest = ref.partition("@")
    name, colon, tag = ref.rpartition(":")
    if not colon or "/" in tag:
        name, tag = ref, ""
    for head in ("docker.io/library/", "docker.io/", "index.docker.io/"):
        name = name.removeprefix(head)
    return name, tag or None, digest or None


@functools.lru_cache(maxsize=512)
def find(ref: str) -> ImageInfo | None:
    """What is known about the image with this reference; None where nothing is. A release in the
    tag is filled in as `vllm`.
    """
    name, tag, _ = split(ref)
    for entry in all():
        if entry.image == name and (match := entry.matches(tag or "latest")):
            if isinstance(match, re.Match) and "vllm" in match.groupdict():
                return replace(entry, vllm=match["vllm"])
            return entry
    return None
