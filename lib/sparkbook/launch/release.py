"""The vLLM release that an image holds, as far as its name shows."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet

from sparkbook import releases
from sparkbook.host.spark import ENGINE_RELEASE
from sparkbook.launch.line import Line
from sparkbook.releases import images


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
    return releases.newest(), f"the newest known, as nothing says what {shown(image)} holds"


def _nearest(version: str, image: str | None) -> tuple[str, str | None]:
    if releases.normal(version) == version and version in releases.known():
        return version, None
    return releases.nearest(version), f"the nearest known to {version}, which {shown(image)} holds"


def shown(image: str | None) -> str:
    """Return image and tag, without a digest."""
    name, tag, _ = images.split(image) if image else (None, None, None)
    return f"{name}:{tag}" if tag else str(name)
