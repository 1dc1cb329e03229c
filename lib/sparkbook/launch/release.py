"""The vLLM release that an image holds, as far as its name shows."""

from __future__ import annotations

import re

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from sparkbook import releases
from sparkbook.host.spark import ENGINE_RELEASE
from sparkbook.launch.line import Line
from sparkbook.releases import images

_TAGGED = re.compile(r"(?<![\d.])v?(0\.\d+(?:\.\d+)?)(?![\d.])")


def release_of(line: Line) -> tuple[str, str | None]:
    """Return the release of a line's image, or of its recipe, and why it was assumed: None where it
    is known.
    """
    recipe, image = line.recipe, line.image
    info = images.find(image) if image else None
    declared = recipe.image.vllm if recipe and recipe.image else None
    if declared and declared.startswith("=="):
        return _nearest(declared.removeprefix("=="), image)
    if info and info.vllm:
        return _nearest(info.vllm, image)
    if image is None and recipe is not None:
        return ENGINE_RELEASE, None
    if image is None:
        return releases.newest(), "the newest known, as no image says"
    allowed = declared or (info.vllm_range if info else None)
    if allowed:
        fitting = [version for version in releases.known() if version in SpecifierSet(allowed)]
        if fitting:
            return fitting[-1], f"the newest known that {shown(image)} can hold ({allowed})"
    if tagged := _tagged(image):
        return tagged, f"the release that the tag of {shown(image)} names"
    return releases.newest(), f"the newest known, as nothing says what {shown(image)} holds"


def _tagged(image: str) -> str | None:
    """Return the release in the tag of somebody's image of vLLM; None without one. A tag below the
    first known release is the image's own version.
    """
    name, tag, _ = images.split(image)
    match = _TAGGED.search(tag or "") if "vllm" in name else None
    if match is None or Version(match[1]) < Version(releases.known()[0]):
        return None
    return releases.nearest(match[1])


def _nearest(version: str, image: str | None) -> tuple[str, str | None]:
    if releases.normal(version) == version and version in releases.known():
        return version, None
    return releases.nearest(version), f"the nearest known to {version}, which {shown(image)} holds"


def shown(image: str | None) -> str:
    """Return image and tag, without a digest."""
    name, tag, _ = images.split(image) if image else (None, None, None)
    return f"{name}:{tag}" if tag else str(name)
