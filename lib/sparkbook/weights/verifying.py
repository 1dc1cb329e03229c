"""Verify what is staged: hash every file and look for missing ones, without a network."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sparkbook.checkpoint.store import (
    Repository,
    model_store,
    repositories,
    snapshot,
    torn_stream,
)
from sparkbook.findings import Finding, Findings
from sparkbook.recipes import Recipe
from sparkbook.util.inside import Inside, UnsafePath
from sparkbook.util.shell_text import command_line
from sparkbook.weights.layout import DIGITS, blob_of, digest_of, place_of
from sparkbook.weights.rules import HUB


@dataclass(frozen=True)
class Verified:
    """What a look at every byte found. `unknown` are files whose hash nothing here states."""

    files: int
    bytes: int
    unknown: tuple[str, ...]
    findings: Findings
    seconds: float


def verify(
    recipe: Recipe,
    store: Path | None = None,
    *,
    workers: int = 4,
    progress: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Verified:
    """Hash every staged file of a recipe, and look for missing ones. Needs no network.

    In the cache a file's contents are under its hash, and a folder of its own has notes of the
    library with the hash of each file. Missing shards are known from the index of the weights.
    """
    from tqdm.auto import tqdm

    begin = clock()
    store = store or model_store(os.environ)
    findings: list[Finding] = []
    files: list[_Stored] = []
    for one in repositories(recipe):
        try:
            stored, problems = _stored(one, store, recipe.id)
        except UnsafePath as error:
            stored, problems = [], [HUB["HUB016"].finding(str(error))]
        findings += problems
        files += stored
    unknown = []
    total = sum(file.size for file in files)
    with (
        tqdm(total=total, unit="B", unit_scale=True, desc="verify", disable=not progress) as bar,
        ThreadPoolExecutor(workers) as pool,
    ):
        for file, problem in zip(files, pool.map(_damage, files), strict=True):
            bar.update(file.size)
            if problem:
                remove = command_line("rm", file.root.path(file.place))
                fix = f"{remove}; {command_line('sparkbook', 'weights', 'fetch', recipe.id)}"
                findings.append(
                    HUB["HUB010"].finding(f"{file.name} of {file.repo} is damaged.", problem, fix)
                )
            elif len(file.stated) not in DIGITS:
                unknown.append(file.name)
    return Verified(
        len(files), total, tuple(unknown), Findings(findings), round(clock() - begin, 3)
    )


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A file of a staged repository: its name there, the place of its contents below a root, their
    bytes, and the hash that is stated of them (empty where none is).
    """

    repo: str
    name: str
    root: Inside
    place: str
    size: int
    stated: str


def _stored(one: Repository, store: Path, recipe: str) -> tuple[list[_Stored], list[Finding]]:
    """Return what the store holds of a repository, and what is missing or lies elsewhere.

    Raises:
        UnsafePath: the repository's own folder is a link.
    """
    at = place_of(one, store, None)
    fetch_again = command_line("sparkbook", "weights", "fetch", recipe)
    commit = snapshot(store, one.repo, one.revision)
    if not at.root.root.is_dir() or not (at.local or commit):
        missing = f"{one.repo} is not in the store."
        return [], [HUB["HUB015"].finding(missing, str(store), fetch_again)]
    folder = "" if at.local else at.inside(f"snapshots/{commit.name if commit else ''}")
    names = [name for name in at.root.files(folder) if not name.startswith(".")]
    stored, gone, findings = [], [], []
    for name in names:
        place = f"{folder}/{name}" if folder else name
        stated = at.noted_digest(name) if at.local else ""
        if (target := at.root.target(place)) is not None:
            blob = None if at.local else blob_of(at, name, target)
            if blob is None:
                text = f"{name!a} of {one.repo} is a link out of the store to {target!a}."
                findings.append(HUB["HUB016"].finding(text, fix=f"Remove it, then {fetch_again}"))
                continue
            place, stated = at.inside(f"blobs/{blob}"), blob
        size = at.root.size(place)
        if size is None:
            gone.append(name)
        else:
            stored.append(
                _Stored(
                    repo=one.repo, name=name, root=at.root, place=place, size=size, stated=stated
                )
            )
    gone += [name for name in _indexed(stored) if name not in names]
    where = str(at.root.path(folder) if folder else at.root.root)
    for name in sorted(set(gone)):
        text = f"{name} of {one.repo} is missing."
        findings.append(HUB["HUB015"].finding(text, where, fetch_again))
    return stored, findings


def _indexed(stored: Sequence[_Stored]) -> list[str]:
    """Return the shards that the indexes of a repository list."""
    shards: set[str] = set()
    for file in stored:
        if not fnmatch.fnmatch(file.name, "*.safetensors.index.json") or "/" in file.name:
            continue
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError, LookupError):
            index = json.loads(file.root.read(file.place))
            shards |= {str(name) for name in index["weight_map"].values()}
    return sorted(shards)


def _damage(file: _Stored) -> str | None:
    """Return what is wrong with a file's contents: a cut header, or an unexpected hash."""
    with file.root.open(file.place) as contents:
        if file.name.endswith(".safetensors") and (reason := torn_stream(contents)):
            return reason
        if len(file.stated) not in DIGITS:
            return None
        digest = digest_of(contents, file.stated)
    return None if digest == file.stated else f"hash {digest}, stated {file.stated}"
