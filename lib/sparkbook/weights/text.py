"""What was fetched, verified and pruned, for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sparkbook.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparkbook.weights import Fetched, Prunable, Verified


def fetched(result: Fetched) -> Iterator[RenderableType]:
    """Yield where each repository's files are, and what is to be known about them."""
    for one in result.staged:
        yield (
            f"{one.repo} at {one.commit[:12]}: {format_bytes(one.bytes)} in {one.files} files,"
            f" {format_bytes(one.downloaded)} of them now"
        )
        yield f"  {one.folder}"
    yield from (str(path) for path in result.prepared)
    yield f"done in {format_seconds(result.seconds)}"
    if result.findings:
        yield result.findings


def fetched_dict(result: Fetched) -> dict[str, Any]:
    """Return the same for JSON."""
    staged = [
        {
            "repo": one.repo,
            "commit": one.commit,
            "folder": str(one.folder),
            "files": one.files,
            "bytes": one.bytes,
            "downloaded": one.downloaded,
        }
        for one in result.staged
    ]
    prepared = [str(path) for path in result.prepared]
    return result.findings.to_dict(seconds=result.seconds, staged=staged, prepared=prepared)


def verified(result: Verified) -> Iterator[RenderableType]:
    """Yield how much was hashed, and the findings."""
    took = format_seconds(result.seconds)
    yield f"{result.files} files, {format_bytes(result.bytes)}, in {took}"
    if result.unknown:
        yield f"no known hash: {', '.join(result.unknown)}"
    yield result.findings


def verified_dict(result: Verified) -> dict[str, Any]:
    """Return the same for JSON."""
    return result.findings.to_dict(
        files=result.files,
        bytes=result.bytes,
        unknown=list(result.unknown),
        seconds=result.seconds,
    )


def spare(result: Prunable, *, removed: bool) -> Iterator[RenderableType]:
    """Yield what can be deleted and why, and its size."""
    for path, why in result.paths:
        yield f"{path}: {why}"
    size = format_bytes(result.bytes)
    if not result.paths:
        yield "nothing to prune"
    else:
        yield f"{size} freed" if removed else f"{size} can be freed. To delete, give --yes"


def spare_dict(result: Prunable, *, removed: bool) -> dict[str, Any]:
    """Return the same for JSON."""
    paths = [{"path": str(path), "why": why} for path, why in result.paths]
    return {"paths": paths, "bytes": result.bytes, "removed": removed}
