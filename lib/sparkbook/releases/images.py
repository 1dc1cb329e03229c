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
from pathlib import Path
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sparkbook.util import own_yaml

FILE = Path(__file__).parent / "images.yaml"
_VERSION = r"(?P<vllm>\d+\.\d+\.\d+(?:\.post\d+|rc\d+)?)"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Source(_Strict):
    """Where something about an image is known from."""

    title: str
    url: str = Field(pattern=r"^https://\S+$")
    date: datetime.date


class Bug(_Strict):
    """Something known to be wrong with an image. Where a condition is given, it only concerns
    launches that meet it.
    """

    what: str
    fix: str
    source: str
    models: str | None = Field(None, description="part of the model's name, lower case")
    method: str | None = Field(None, description="speculative method")
    tool_parser: str | None = None
    env: str | None = Field(None, description="NAME=VALUE that brings it about")


class ImageInfo(_Strict):
    """What is known about an image, or about a family of its tags."""

    image: str
    tags: list[str] | str
    vllm: str | None = Field(None, description="release inside")
    vllm_range: str | None = Field(
        None, description="releases that it can be, where the tag moves or no source says"
    )
    cuda: str | None = None
    entrypoint: Literal["command", "vllm-serve", "wrapper"]
    platforms: list[Literal["linux/amd64", "linux/arm64"]] | None = Field(
        None, description="null: not known"
    )
    contents: dict[str, str | bool] = Field(
        default_factory=dict,
        description="distribution: version, true, or false where it is missing",
    )
    bugs: list[Bug] = Field(default_factory=list)
    moving: bool = False
    local: bool = Field(False, description="built on the machine, in no registry")
    fork: str | None = Field(None, description="what it changes of vLLM")
    as_of: datetime.date | None = None
    source: str

    @field_validator("vllm_range")
    @classmethod
    def _range(cls, text: str | None) -> str | None:
        try:
            SpecifierSet(text or "")
        except InvalidSpecifier:
            raise ValueError(f"'{text}' is not a version range") from None
        return text

    @model_validator(mode="after")
    def _dated(self) -> ImageInfo:
        if self.moving and not self.local and self.as_of is None:
            raise ValueError(f"{self.image} {self.tags}: a moving tag needs as_of")
        return self

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


class _File(_Strict):
    sources: dict[str, Source]
    images: list[ImageInfo]

    @model_validator(mode="after")
    def _cited(self) -> _File:
        for image in self.images:
            for name in (image.source, *(bug.source for bug in image.bugs)):
                if name not in self.sources:
                    raise ValueError(
                        f"{image.image} cites '{name}', which is no source of this file"
                    )
        return self


@functools.cache
def _file() -> _File:
    return _File.model_validate(own_yaml.read(FILE))


def all() -> list[ImageInfo]:
    """Every entry, in the file's order."""
    return _file().images


def source(name: str) -> Source:
    """The source that an entry cites."""
    return _file().sources[name]


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
                return entry.model_copy(update={"vllm": match["vllm"]})
            return entry
    return None
