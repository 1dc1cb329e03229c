"""Where a repository's files are in the model store, as huggingface_hub lays out its cache, or in a
folder of their own.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sparkbook.checkpoint.store import (
    Repository,
    cache_name,
    local_folder,
    recipe_place,
)
from sparkbook.util.inside import Inside, UnsafePath
from sparkbook.weights.hub_client import CHUNK

DIGITS = (40, 64)  # of a hash: git's own, and sha256


PART = ".part"  # behind a blob's name: bytes that a later fetch goes on from


@dataclass(frozen=True)
class Place:
    """Where a repository's files go: below a root, in the cache (`base` is the repository's folder)
    or in a folder of their own.
    """

    one: Repository
    root: Inside
    base: str

    def inside(self, name: str) -> str:
        return f"{self.base}/{name}" if self.base else name

    @property
    def local(self) -> bool:
        return self.one.folder is not None

    def note(self, name: str) -> str:
        """Return where Hugging Face's library notes the commit and the hash of a file in such a
        folder.
        """
        return self.inside(f".cache/huggingface/download/{name}.metadata")

    def noted_digest(self, name: str) -> str:
        """Return the hash that was noted of a file in a folder of its own; empty where none was."""
        try:
            return self.root.read(self.note(name)).decode().split()[1]
        except (OSError, IndexError, ValueError, UnsafePath):
            return ""


def place_of(one: Repository, store: Path, allowed: Sequence[Path] | None) -> Place:
    """Return where a checkpoint goes. `allowed` None: where it lies, wherever that is, to be read
    only.

    Raises:
        UnsafePath: a place that nobody allowed.
    """
    if one.folder is None:
        return Place(one, Inside(store), cache_name(one.repo))
    if allowed is None:
        return Place(one, Inside(local_folder(one.folder)), "")
    return Place(one, *recipe_place(one.folder, store, allowed))


def digest_of(file: BinaryIO, stated: str, stop: threading.Event | None = None) -> str:
    """Return the hash of a file, of the kind that is stated: sha256, or for 40 digits git's own,
    which is sha1 over a header and the contents.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if len(stated) == 40:
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    else:
        digest = hashlib.sha256()
    while piece := file.read(8 * CHUNK):
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        digest.update(piece)
    return digest.hexdigest()


def blob_of(at: Place, name: str, target: str) -> str | None:
    """Return the contents' name of a link in a snapshot; None where it leads to anything else."""
    snapshot_file = at.root.root / at.inside(f"snapshots/commit/{name}")
    path = Path(os.path.normpath(snapshot_file.parent / target))
    return path.name if path.parent == at.root.root / at.inside("blobs") else None
