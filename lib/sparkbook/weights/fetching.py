"""Fetch what a recipe reads: download what is missing, hash each file, and only then give it its
name. Fetches that run at the same time share the work: each file has a lock.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook.checkpoint.store import (
    OutsideStore,
    model_store,
    recipe_place,
    repositories,
)
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.recipes import Recipe
from sparkbook.units import GB
from sparkbook.util.inside import Inside, UnsafePath
from sparkbook.util.shell_text import USER, command_line, mark_home
from sparkbook.weights.hub_client import File, Hub
from sparkbook.weights.layout import PART, Place, digest_of, place_of
from sparkbook.weights.pinned_code import prepared_file
from sparkbook.weights.rules import WeightsError, fail

_SPARE = 2 * GB


_NOT_ALLOWED = (
    "Compare the repository's page. If a link in the store is your own, name the folder that it"
    " leads to with HF_HOME."
)


@dataclass(frozen=True)
class Staged:
    """One repository in the store.

    Attributes:
        commit: the commit it points to.
        folder: what vLLM reads.
        files: how many files it needs, and their bytes.
        downloaded: bytes of large files that came over the network this time.
    """

    repo: str
    commit: str
    folder: Path
    files: int
    bytes: int
    downloaded: int


@dataclass(frozen=True)
class Fetched:
    """What a fetch did. `findings` holds what was refused without stopping the rest."""

    staged: tuple[Staged, ...]
    prepared: tuple[Path, ...]
    findings: Findings
    seconds: float

    @property
    def downloaded(self) -> int:
        """Bytes."""
        return sum(one.downloaded for one in self.staged)


def fetch(
    recipe: Recipe,
    store: Path | None = None,
    hub: Hub | None = None,
    *,
    workers: int = 8,
    progress: bool = True,
    unpinned: bool = False,
    allow_outside: Sequence[Path] = (),
) -> Fetched:
    """Stage everything that a recipe reads: its repositories, its draft's, and the files of its
    prepare steps.

    What is there already, with the right size, is not downloaded again (`verify` looks at its
    bytes). Interrupted downloads resume. A new file is hashed before it gets its name.
    Ctrl-C leaves the beginnings for the next time.

    Args:
        store: the model store; None: what HF_HOME names, else ~/vllm.
        hub: the way to the hub.
        workers: files at once.
        progress: show a bar, in a terminal or a notebook.
        unpinned: also fetch prepare-step files that no source gives a checksum of, and note theirs.
        allow_outside: files and folders outside the store that the recipe may write to.

    Raises:
        WeightsError: nothing more can be done; its `finding` says why.
        KeyboardInterrupt: on Ctrl-C.
    """
    begin = time.monotonic()
    store = store or model_store(os.environ)
    wanted = repositories(recipe)
    steps = [step for step in recipe.prepare if step.do == "fetch"]
    if not wanted and not steps:
        raise SparkbookError(f"{recipe.id} ships with this package: there is nothing to fetch")
    mistral = recipe.serve.args.get("load-format") == "mistral"
    try:
        places = [place_of(one, store, allow_outside) for one in wanted]
        targets = [recipe_place(step.to or "", store, allow_outside) for step in steps]
    except UnsafePath as error:
        fix = None if isinstance(error, OutsideStore) else "Correct the path in the recipe."
        raise fail("HUB016", str(error), fix=fix) from None
    hub = hub or Hub()
    try:
        listed = []
        for one, place in zip(wanted, places, strict=True):
            commit, files = hub.files(one.repo, one.revision, mistral)
            listed.append(_Listed(place, commit, files))
        staged = _stage(hub, store, listed, workers, progress)
        prepared, refused = [], []
        for step, (root, name) in zip(steps, targets, strict=True):
            try:
                prepared.append(prepared_file(hub, Inside(store), step, root, name, unpinned))
            except WeightsError as error:
                refused.append(error.finding)
    except UnsafePath as error:
        raise fail("HUB016", str(error), fix=_NOT_ALLOWED) from None
    except PermissionError as error:
        raise denied(error, store) from None
    except OSError as error:
        if error.errno == 28:
            raise fail("HUB009", "The disk filled up during the download.", str(error)) from None
        raise SparkbookError(f"{error.filename} can't be written: {error.strerror}") from None
    return Fetched(staged, tuple(prepared), Findings(refused), round(time.monotonic() - begin, 3))


def denied(error: PermissionError, store: Path | str) -> WeightsError:
    """Return what a refused write means."""
    return fail(
        "HUB014",
        f"{error.filename} can't be written.",
        str(error),
        command_line("sudo", "chown", "-R", USER, mark_home(str(store))),
    )


@dataclass(frozen=True)
class _Listed:
    """A repository's files at a commit, and the place they go to."""

    place: Place
    commit: str
    files: list[File]


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A file on its way: the address, the beginning, and the name that it gets when it is whole.

    Attributes:
        lock: held while the beginning is written. In the cache it is the one that Hugging Face's
            own library takes.
    """

    at: Place
    file: File
    url: str
    part: str
    target: str
    lock: str

    @property
    def done(self) -> bool:
        """Whether the file is there. In a folder of its own the same size is not yet the same
        file.
        """
        root, digest = self.at.root, self.file.digest
        if root.size(self.target) != self.file.size:
            return False
        if not self.at.local or self.at.noted_digest(self.file.name) == digest:
            return True
        with root.open(self.target) as file:
            return digest_of(file, digest) == digest

    @property
    def missing(self) -> int:
        """Bytes still to come, of a file that is not there."""
        return max(self.file.size - self.at.root.kept(self.part), 0)


def _job(hub: Hub, at: Place, commit: str, file: File) -> _Job:
    from urllib.parse import quote

    if at.local:
        target = at.inside(file.name)
        folder, slash, last = target.rpartition("/")
        part = f"{folder}{slash}.{last[:50]}.{file.digest[:16]}{PART}"
        lock = at.inside(f".cache/huggingface/download/{file.digest}.lock")
    else:
        target = at.inside(f"blobs/{file.digest}")
        part = target + PART
        lock = f"hub/.locks/{Path(at.base).name}/{file.digest}.lock"
    url = f"{hub.endpoint}/{at.one.repo}/resolve/{commit}/{quote(file.name)}"
    return _Job(at=at, file=file, url=url, part=part, target=target, lock=lock)


def _stage(
    hub: Hub, store: Path, listed: list[_Listed], workers: int, progress: bool
) -> tuple[Staged, ...]:
    """Download what is missing of all repositories, then give it its names."""
    jobs: dict[str, _Job] = {}  # equal files of a repository are one in the cache
    for one in listed:
        for file in one.files:
            job = _job(hub, one.place, one.commit, file)
            if not job.done:
                jobs.setdefault(str(job.at.root.path(job.target)), job)
    _check_room(store, sum(job.missing for job in jobs.values()))
    coming = {one.place: 0 for one in listed}
    for job in jobs.values():
        coming[job.at] += job.missing if job.file.large else 0
    _download(hub, list(jobs.values()), workers, progress)
    return tuple(_lay_out(one, coming[one.place]) for one in listed)


def _check_room(store: Path, missing: int) -> None:
    folder = store
    while not folder.exists():
        folder = folder.parent
    if problem := room_problem(missing, shutil.disk_usage(folder).free, str(folder)):
        raise problem


def room_problem(missing: int, free: int, folder: str) -> WeightsError | None:
    """Return whether so many bytes, and some to spare, do not fit on a disk."""
    if not missing or missing + min(_SPARE, missing) <= free:
        return None
    message = f"{missing / GB:.1f} GB are missing, and {folder} has {free / GB:.1f} GB free."
    return fail("HUB009", message, f"{missing} bytes missing, {free} free")


def hash_problem(name: str, repo: str, found: str, stated: str) -> WeightsError | None:
    """Return whether a file that came is not the repository's."""
    return (
        None
        if found == stated
        else fail("HUB010", f"{name} of {repo} arrived damaged.", f"hash {found}, stated {stated}")
    )


def _download(hub: Hub, jobs: list[_Job], workers: int, progress: bool) -> None:
    """Download all files, `workers` at a time. The first failure stops the others; what arrived is
    kept.
    """
    from tqdm.auto import tqdm

    if not jobs:
        return
    total = sum(job.file.size for job in jobs)
    missing = {job: job.missing for job in jobs}
    bar = tqdm(
        total=total,
        initial=total - sum(missing.values()),
        unit="B",
        unit_scale=True,
        desc=jobs[0].at.one.repo,
        disable=not progress,
    )
    with bar, ThreadPoolExecutor(workers, thread_name_prefix="weights") as pool:
        futures: list[Future[None]] = [
            pool.submit(_one, hub, job, missing[job], bar.update)
            for job in sorted(jobs, key=lambda job: -missing[job])
        ]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        except KeyboardInterrupt:
            hub.stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        failed = [
            error
            for future in futures
            if future.done() and not future.cancelled() and (error := future.exception())
        ]
        if failed:
            hub.stop.set()
            pool.shutdown(cancel_futures=True)
            hub.stop.clear()
            raise failed[0]


def _one(hub: Hub, job: _Job, missing: int, moved: Callable[[int], Any]) -> None:
    """Download one file, hash it, name it. If another fetch downloads it, wait for that one."""
    root, file = job.at.root, job.file
    with root.locked(job.lock, hub.stop):
        if job.done:
            moved(missing)
            return
        moved(missing - job.missing)
        with root.create(job.part, keep=True) as part:
            hub.download(job.url, part, file.size, job.at.one.repo, moved)
            digest = digest_of(part, file.digest, hub.stop)
        if problem := hash_problem(file.name, job.at.one.repo, digest, file.digest):
            root.remove(job.part)
            raise problem
        root.replace(job.part, job.target)


def _lay_out(listed: _Listed, came: int) -> Staged:
    """Give the files their names, as huggingface_hub does: in the cache links to their contents,
    and the commit of the branch; in a folder of its own notes of commit and hash.
    """
    at, commit = listed.place, listed.commit
    one, root = at.one, at.root
    for file in listed.files:
        if at.local:
            note = f"{commit}\n{file.digest}\n{time.time()}\n"
            root.write(at.note(file.name), note.encode())
        else:
            up = "../" * (2 + file.name.count("/"))
            root.link(at.inside(f"snapshots/{commit}/{file.name}"), f"{up}blobs/{file.digest}")
    branch = one.revision or "main"
    if not at.local and branch != commit:  # offline, vLLM looks for the branch
        root.write(at.inside(f"refs/{branch}"), commit.encode())
    folder = root.path(at.base) if at.local else root.path(at.inside(f"snapshots/{commit}"))
    size = sum(file.size for file in listed.files)
    return Staged(one.repo, commit, folder, len(listed.files), size, came)
