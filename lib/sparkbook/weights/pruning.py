"""Find what the store does not need: partial downloads and superseded commits."""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from sparkbook.checkpoint.store import (
    Repository,
    model_store,
    recipe_place,
    repositories,
)
from sparkbook.recipes import Recipe
from sparkbook.util.inside import Inside, UnsafePath
from sparkbook.weights.layout import PART, Place, blob_of
from sparkbook.weights.rules import fail


@dataclass(frozen=True)
class Prunable:
    """What can go: files and folders, why, and the bytes that this would free."""

    places: tuple[tuple[Inside, str, str], ...]
    bytes: int

    @property
    def paths(self) -> tuple[tuple[Path, str], ...]:
        """Each path with the reason."""
        return tuple((root.path(name), why) for root, name, why in self.places)

    def remove(self) -> None:
        """Remove them.

        Raises:
            WeightsError: they belong to somebody else.
        """
        for root, name, _ in self.places:
            try:
                root.remove(name)
            except PermissionError as error:
                raise fail("HUB014", f"{error.filename} can't be removed.", str(error)) from None


def prune(recipes: Sequence[Recipe], store: Path | None = None) -> Prunable:
    """Return what the store does not need: partial downloads, and commits to which no branch points
    and no recipe pins.

    Contents that a kept commit shares stay. Nothing is removed before `remove` is called.
    Repositories that no recipe knows are left alone but for commits that their branches have left
    behind.
    """
    store = store or model_store(os.environ)
    root = Inside(store)
    pinned = {one.revision for recipe in recipes for one in repositories(recipe) if one.revision}
    places: list[tuple[Inside, str, str]] = []
    for name in root.entries("hub", folders=True):
        if name.startswith("models--"):
            with contextlib.suppress(UnsafePath):  # what lies behind a link is not the store's
                places += [(root, *one) for one in _left_behind(root, f"hub/{name}", pinned)]
    folders = {
        one.folder for recipe in recipes for one in repositories(recipe) if one.folder is not None
    }
    for folder in sorted(folders):
        with contextlib.suppress(UnsafePath):
            own, base = recipe_place(folder, store)
            for name in own.files(base):
                if fnmatch.fnmatch(name.rpartition("/")[2], f".*{PART}"):
                    places.append((own, f"{base}/{name}", "the beginning of a download"))
    size = sum(own.size(name) or 0 for own, name, _ in places)
    return Prunable(tuple(places), size)


def _left_behind(root: Inside, repo: str, pinned: Set[str]) -> list[tuple[str, str]]:
    """Return what a repository in the cache does not need, with the reason."""
    refs = root.files(f"{repo}/refs")
    kept = pinned | {root.read(f"{repo}/refs/{ref}", 200).decode().strip() for ref in refs}
    snapshots = root.entries(f"{repo}/snapshots", folders=True)
    old = [commit for commit in snapshots if commit not in kept]
    if len(old) == len(snapshots):
        old = []  # nothing says which of them is in use
    at, used = Place(Repository(repo), root, repo), set()
    for commit in set(snapshots).difference(old):
        for name in root.files(f"{repo}/snapshots/{commit}"):
            target = root.target(f"{repo}/snapshots/{commit}/{name}")
            used.add(blob_of(at, name, target) if target else None)
    reason = "a commit to which no branch points any more"
    left = [(f"{repo}/snapshots/{commit}", reason) for commit in old]
    for blob in root.entries(f"{repo}/blobs"):
        if blob.endswith((".incomplete", PART)):
            left.append((f"{repo}/blobs/{blob}", "the beginning of a download"))
        elif blob not in used and old:
            left.append((f"{repo}/blobs/{blob}", "contents that only such commits have"))
    return left
