"""Weights: what a recipe reads, from the hub into the model store, whole and verified.

    fetched = weights.fetch(recipes.load("qwen3.6-35b-a3b-nvfp4"))
    weights.verify(recipes.load("qwen3.6-35b-a3b-nvfp4"))

The store is laid out as huggingface_hub lays out its cache, so vLLM and `hf` read it. The files are
downloaded here, because the library's own downloads start over when the process ends (2.4.0:
`_download_to_tmp_and_move` removes what is unfinished), and with shards of 5 GB that is what an
interruption costs. They come over plain HTTP, in parallel, and are resumed at the byte; each is
hashed before it gets its name. `hf_xet` is neither needed nor used.

A hub is not trusted: its replies go through a schema (`checkpoint.reply`), its file names and a
recipe's folders through one gate (`util.inside`), and the token goes to its origin only
(`util.origins`). Fetches that run at the same time share the work: each file has a lock.
"""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sparkbook.checkpoint import reply
from sparkbook.checkpoint.store import (
    OutsideStore,
    Repository,
    cache_name,
    local_folder,
    model_store,
    recipe_place,
    repositories,
    snapshot,
    torn_stream,
)
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.recipes import Recipe
from sparkbook.recipes.schema import PrepareStep
from sparkbook.units import GB
from sparkbook.util import origins
from sparkbook.util.inside import Inside, UnsafePath, checked
from sparkbook.util.shell_text import USER, command_line, mark_home
from sparkbook.weights.rules import HUB, WeightsError, fail

_CHUNK = 2**20
_ATTEMPTS = 5
_SPARE = 2 * GB
_DIGITS = (40, 64)  # of a hash: git's own, and sha256
_PART = ".part"  # behind a blob's name: bytes that a later fetch goes on from
_USUAL_HUB = "https://huggingface.co"
_NOT_ALLOWED = (
    "Compare the repository's page. If a link in the store is your own, name the folder that it"
    " leads to with HF_HOME."
)
_LONGEST_CODE = 2**26  # bytes of a file that a prepare step fetches
_NOTED = "sparkbook-files.json"  # in the store: hashes of prepare-step files that no source pins


# ---- which files


_WANTED = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.py",
    "*.vocab",
    "*.merges",
    "*.mpk",
)
_OTHER_FORMATS = (
    "original/*",
    "onnx/*",
    "openvino/*",
    "metal/*",
    "coreml/*",
    "gguf/*",
    ".*",
    "*/.*",
)
_OLD_WEIGHTS = ("*.bin", "*.pt", "*.pth")


def needed(names: Sequence[str], mistral: bool = False) -> list[str]:
    """The files of a repository that vLLM reads, in their order.

    Weights as safetensors with their index, configuration, tokenizer, chat templates, and code of
    the model. Not the same weights in
    another format: `.bin` only where there are no safetensors; Mistral's `consolidated` files
        beside the usual ones only where the recipe
    loads that format.
    """
    safetensors = any(name.endswith(".safetensors") for name in names)
    consolidated = [name for name in names if fnmatch.fnmatch(name, "consolidated*.safetensors*")]
    usual = [
        name
        for name in names
        if re.fullmatch(r"model(-\d+-of-\d+)?\.safetensors(\.index\.json)?", name)
    ]
    unwanted = set(usual if mistral else consolidated) if consolidated and usual else set()
    kinds = _WANTED if safetensors else (*_WANTED, *_OLD_WEIGHTS)
    return [
        name
        for name in names
        if any(fnmatch.fnmatch(name, kind) for kind in kinds)
        and not any(fnmatch.fnmatch(name, other) for other in _OTHER_FORMATS)
        and name not in unwanted
    ]


@dataclass(frozen=True)
class File:
    """A file of a repository: size in bytes, and its hash: the sha256 of a large file, git's own
    (40 hex digits) of a small one.
    """

    name: str
    size: int
    digest: str

    @property
    def large(self) -> bool:
        """Whether the hub keeps it apart from git."""
        return len(self.digest) == 64


# ---- the hub


def _environ() -> Mapping[str, str]:
    return os.environ


@dataclass
class Hub:
    """The way to a hub.

    Attributes:
        endpoint: its address; None: what HF_ENDPOINT names, else https://huggingface.co.
        token: a secret; None: where Hugging Face's own library looks for one.
        sleep: waits between attempts.
        stop: set to make downloads end at the next megabyte.
    """

    endpoint: str | None = None
    token: str | None = field(default=None, repr=False)
    sleep: Callable[[float], Any] | None = None
    stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        from sparkbook.host.probes import find_token

        environ = _environ()
        self.endpoint = (self.endpoint or environ.get("HF_ENDPOINT") or _USUAL_HUB).rstrip("/")
        origins.origin(self.endpoint)  # one with a password, or none, is refused here
        self.token = self.token or find_token(environ, Path.home())[1]
        self.sleep = self.sleep or self.stop.wait
        if problem := offline_problem(environ):
            raise problem

    def files(
        self, repo: str, revision: str | None, mistral: bool = False
    ) -> tuple[str, list[File]]:
        """Return the commit that a revision points to, and those of its files that vLLM reads.

        Raises:
            WeightsError: the hub refuses, does not know it, does not answer, or its reply is not
                such a list.
            UnsafePath: a file's name leads out of the repository.
        """
        path = f"/api/models/{repo}/revision/{(revision or 'main').replace('/', '%2F')}?blobs=true"
        text = self.read(f"{self.endpoint}{path}", repo, reply.MOST_BYTES, revision)
        try:
            listing = reply.listing(text)
        except SparkbookError as error:
            raise _unreadable(self.endpoint, repo, str(error)) from None
        names = set(needed([one.rfilename for one in listing.siblings], mistral))
        files = []
        for one in listing.siblings:
            if one.rfilename not in names:
                continue
            name, digest = checked(one.rfilename), one.lfs.sha256 if one.lfs else one.blobId
            if digest is None or one.size is None:
                raise _unreadable(self.endpoint, repo, f"{name} has no size or no hash")
            files.append(File(name, one.size, digest))
        return listing.sha, files

    def read(self, url: str, repo: str, most: int, revision: str | None = None) -> bytes:
        """Return all of an answer. Raises WeightsError as `download`, and for more than `most`
        bytes.
        """
        text = bytearray()
        for piece in self._stream(url, repo, revision, 0, None):
            if piece is None:  # the server began from the front
                text.clear()
                continue
            text += piece
            if len(text) > most:
                raise _unreadable(url, repo, f"more than {most} bytes")
        return bytes(text)

    def download(
        self, url: str, target: BinaryIO, size: int, repo: str, moved: Callable[[int], None]
    ) -> None:
        """Append to a file until it has its size. Sizes are bytes; `moved` is called with
        the bytes of each piece, and with those to take back.

        Raises:
            WeightsError: the hub refuses, or the connection breaks again and again without a byte
                in between.
        """
        have = target.seek(0, os.SEEK_END)
        if have > size:
            moved(-have)
            target.truncate(0)
            have = target.seek(0)
        pieces = self._stream(url, repo, None, have, size) if have < size else ()
        for piece in pieces:
            if piece is None:  # the server began from the front
                moved(-target.tell())
                target.truncate(0)
                target.seek(0)
                continue
            target.write(piece)
            moved(len(piece))
        target.flush()

    def _stream(
        self, url: str, repo: str, revision: str | None, begin: int, size: int | None
    ) -> Iterator[Any]:
        """The pieces of an answer from `begin` on, over as many connections as it takes; None where
        it starts again at 0.
        """
        import httpx2

        assert self.endpoint is not None
        failures, at, most = 0, begin, begin
        while True:
            pause: float | None = None
            try:
                with self._answer(url, at) as answer:
                    status = answer.status_code
                    if status >= 400:
                        problem = _status_problem(
                            status, repo, self.token, answer.headers, revision
                        )
                        if status not in (408, 429) and status < 500:
                            raise problem
                        pause = _seconds(answer.headers.get("retry-after"))
                    else:
                        if at and status == 200:
                            yield None
                            at = 0
                        for piece in self._pieces(answer, repo, size, at):
                            at += len(piece)
                            if at > most:  # a server that begins again and again brings nothing
                                most, failures = at, 0
                            yield piece
                        if size is None or at >= size:
                            return
                        problem = _broken(repo, f"{at} of {size} bytes")
            except httpx2.ConnectError as error:
                problem = fail(
                    "HUB006",
                    f"{self.endpoint} can't be reached.",
                    str(error) or type(error).__name__,
                )
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                problem = _broken(repo, f"{type(error).__name__} after {at} bytes")
            failures += 1
            if failures >= _ATTEMPTS or (
                problem.finding.rule == "HUB006" and at == 0 and failures >= 2
            ):
                raise problem
            if self.stop.is_set():
                raise KeyboardInterrupt
            assert self.sleep is not None
            self.sleep(pause if pause is not None else 0.5 * 2**failures)

    def _answer(self, url: str, at: int) -> contextlib.AbstractContextManager[Any]:
        """The hub's answer from a byte on."""
        from huggingface_hub.utils import get_session

        headers = {"user-agent": "sparkbook", "accept-encoding": "identity"}
        if at:
            headers["range"] = f"bytes={at}-"
        home = str(self.endpoint)
        return origins.get(
            get_session(), url, home=home, token=self.token, headers=headers, timeout=30
        )

    def _pieces(self, answer: Any, repo: str, size: int | None, at: int) -> Iterator[bytes]:
        """The pieces of one answer that begins at a byte, and not more than the stated size."""
        for piece in answer.iter_raw(_CHUNK):
            if self.stop.is_set():
                raise KeyboardInterrupt
            at += len(piece)
            if size is not None and at > size:
                raise fail(
                    "HUB010",
                    f"The hub sends more of {repo} than the repository states.",
                    f"{size} bytes stated",
                )
            yield piece


def offline_problem(environ: Mapping[str, str]) -> WeightsError | None:
    """Whether downloads are switched off."""
    off = environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    return fail("HUB006", "HF_HUB_OFFLINE is set, so nothing is downloaded.") if off else None


def _unreadable(where: str | None, repo: str, evidence: str) -> WeightsError:
    return fail("HUB017", f"{where} answers with no list of the files of {repo}.", evidence)


def _broken(repo: str, evidence: str) -> WeightsError:
    return fail("HUB011", f"The connection breaks while {repo} is downloaded.", evidence)


def _seconds(retry_after: str | None) -> float | None:
    """What a Retry-After header asks for, at most two minutes."""
    return (
        min(float(retry_after), 120.0)
        if retry_after and retry_after.replace(".", "", 1).isdigit()
        else None
    )


def _status_problem(
    status: int, repo: str, token: str | None, headers: Mapping[str, str], revision: str | None
) -> WeightsError:
    """Return what a status of 400 or more means. `X-Error-Code` separates a missing repository
    from a missing commit and a closed one.
    """
    code, evidence = headers.get("x-error-code", ""), f"HTTP {status}"
    if code:
        evidence += f" {code}"
    if status == 401 or (status == 403 and not token):
        if token:
            return fail("HUB002", "The hub does not accept this token.", evidence)
        return fail(
            "HUB001",
            f"The hub gives {repo} to nobody without a token: it is gated, private, or not there.",
            evidence,
        )
    if status == 403:
        page = (
            f"Open https://huggingface.co/{repo} with the token's account and accept the licence."
        )
        return fail("HUB003", f"The token may not read {repo}.", evidence, page)
    if status == 404 and (code == "RevisionNotFound" or (revision and code != "RepoNotFound")):
        return fail("HUB005", f"{repo} has no revision {revision}.", evidence)
    if status == 404 and code == "EntryNotFound":
        return fail("HUB015", f"A file of {repo} is not on the hub.", evidence)
    if status == 404:
        return fail("HUB004", f"The hub has no repository {repo}.", evidence)
    if status == 429:
        return fail("HUB007", "The hub wants fewer requests.", evidence)
    if status >= 500 or status == 408:
        return fail("HUB008", "The hub has a fault of its own.", evidence)
    return fail("HUB008", f"The hub answers what it should not to a request for {repo}.", evidence)


# ---- fetch


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
    store = store or model_store(_environ())
    wanted = repositories(recipe)
    steps = [step for step in recipe.prepare if step.do == "fetch"]
    if not wanted and not steps:
        raise SparkbookError(f"{recipe.id} ships with this package: there is nothing to fetch")
    mistral = recipe.serve.args.get("load-format") == "mistral"
    try:
        places = [_place(one, store, allow_outside) for one in wanted]
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
                prepared.append(_prepare(hub, Inside(store), step, root, name, unpinned))
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
    """What a refused write means."""
    return fail(
        "HUB014",
        f"{error.filename} can't be written.",
        str(error),
        command_line("sudo", "chown", "-R", USER, mark_home(str(store))),
    )


@dataclass(frozen=True)
class _Place:
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
        """Where Hugging Face's library notes the commit and the hash of a file in such a folder."""
        return self.inside(f".cache/huggingface/download/{name}.metadata")

    def noted_digest(self, name: str) -> str:
        """The hash that was noted of a file in a folder of its own; empty where none was."""
        try:
            return self.root.read(self.note(name)).decode().split()[1]
        except (OSError, IndexError, ValueError, UnsafePath):
            return ""


def _place(one: Repository, store: Path, allowed: Sequence[Path] | None) -> _Place:
    """Where a checkpoint goes. `allowed` None: where it lies, wherever that is, to be read only.

    Raises:
        UnsafePath: a place that nobody allowed.
    """
    if one.folder is None:
        return _Place(one, Inside(store), cache_name(one.repo))
    if allowed is None:
        return _Place(one, Inside(local_folder(one.folder)), "")
    return _Place(one, *recipe_place(one.folder, store, allowed))


@dataclass(frozen=True)
class _Listed:
    """A repository's files at a commit, and the place they go to."""

    place: _Place
    commit: str
    files: list[File]


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A file on its way: the address, the beginning, and the name that it gets when it is whole.

    Attributes:
        lock: held while the beginning is written. In the cache it is the one that Hugging Face's
            own library takes.
    """

    at: _Place
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
            return _hash(file, digest) == digest

    @property
    def missing(self) -> int:
        """Bytes still to come, of a file that is not there."""
        return max(self.file.size - self.at.root.kept(self.part), 0)


def _job(hub: Hub, at: _Place, commit: str, file: File) -> _Job:
    from urllib.parse import quote

    if at.local:
        target = at.inside(file.name)
        folder, slash, last = target.rpartition("/")
        part = f"{folder}{slash}.{last[:50]}.{file.digest[:16]}{_PART}"
        lock = at.inside(f".cache/huggingface/download/{file.digest}.lock")
    else:
        target = at.inside(f"blobs/{file.digest}")
        part = target + _PART
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
    """Whether so many bytes, and some to spare, do not fit on a disk."""
    if not missing or missing + min(_SPARE, missing) <= free:
        return None
    message = f"{missing / GB:.1f} GB are missing, and {folder} has {free / GB:.1f} GB free."
    return fail("HUB009", message, f"{missing} bytes missing, {free} free")


def hash_problem(name: str, repo: str, found: str, stated: str) -> WeightsError | None:
    """Whether a file that came is not the repository's."""
    return (
        None
        if found == stated
        else fail("HUB010", f"{name} of {repo} arrived damaged.", f"hash {found}, stated {stated}")
    )


def _download(hub: Hub, jobs: list[_Job], workers: int, progress: bool) -> None:
    """All files at once, as far as there are workers. The first failure stops the others; what came
    is kept.
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
    """One file: download, hash, name. Another fetch that has it in hand is waited for."""
    root, file = job.at.root, job.file
    with root.locked(job.lock, hub.stop):
        if job.done:
            moved(missing)
            return
        moved(missing - job.missing)
        with root.create(job.part, keep=True) as part:
            hub.download(job.url, part, file.size, job.at.one.repo, moved)
            digest = _hash(part, file.digest, hub.stop)
        if problem := hash_problem(file.name, job.at.one.repo, digest, file.digest):
            root.remove(job.part)
            raise problem
        root.replace(job.part, job.target)


def _hash(file: BinaryIO, stated: str, stop: threading.Event | None = None) -> str:
    """The hash of a file, of the kind that is stated: sha256, or for 40 digits git's own, which is
    sha1 over a header and the contents.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if len(stated) == 40:
        digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    else:
        digest = hashlib.sha256()
    while piece := file.read(8 * _CHUNK):
        if stop is not None and stop.is_set():
            raise KeyboardInterrupt
        digest.update(piece)
    return digest.hexdigest()


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


# ---- prepare-step files


def _prepare(
    hub: Hub, store: Inside, step: PrepareStep, root: Inside, name: str, unpinned: bool
) -> Path:
    """Fetch one file by its address. It is code as a rule, so it is taken only with the checksum
    that was pinned or noted before.
    """
    assert step.url
    target = root.path(name)
    known = step.sha256 if step.sha256 != "unknown" else _noted(store).get(step.url)
    if known and root.size(name) is not None:
        with root.open(name) as file:
            if _hash(file, known) == known:
                return target
    if problem := unpinned_problem(target.name, step.url, known, unpinned):
        raise problem
    contents = hub.read(_mirrored(hub, step.url), step.url, _LONGEST_CODE)
    digest = hashlib.sha256(contents).hexdigest()
    if problem := changed_problem(target.name, known, digest):
        raise problem
    root.write(name, contents)
    if step.sha256 == "unknown":
        with store.locked(f".{_NOTED}.lock"):
            noted = {**_noted(store), step.url: digest}
            store.write(_NOTED, (json.dumps(noted, indent=2, sort_keys=True) + "\n").encode())
    return target


def _mirrored(hub: Hub, url: str) -> str:
    """A file's address on the hub that is in use, where the recipe names the usual one."""
    if not origins.same_origin(url, _USUAL_HUB):
        return url
    path = url.partition("://")[2].partition("/")[2]
    return f"{hub.endpoint}/{path}"


def unpinned_problem(name: str, url: str, known: str | None, allowed: bool) -> WeightsError | None:
    """Whether code is to be fetched that nothing is known of."""
    if known is not None or allowed:
        return None
    branch = ", and its address names a branch" if re.search(r"/(main|master)/", url) else ""
    return fail("HUB013", f"{name} is code without a checksum{branch}; it was not fetched.", url)


def changed_problem(name: str, known: str | None, found: str) -> WeightsError | None:
    """Whether code is not what was pinned."""
    if known in (None, found):
        return None
    return fail(
        "HUB012",
        f"{name} is not the file that was pinned; it was not written.",
        f"sha256 {found}, pinned {known}",
    )


def _noted(store: Inside) -> dict[str, str]:
    try:
        value = json.loads(store.read(_NOTED))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


# ---- verify


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
    store = store or model_store(_environ())
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
            elif len(file.stated) not in _DIGITS:
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
    """What the store holds of a repository, and what is missing or lies elsewhere.

    Raises:
        UnsafePath: the repository's own folder is a link.
    """
    at = _place(one, store, None)
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
            blob = None if at.local else _blob(at, name, target)
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


def _blob(at: _Place, name: str, target: str) -> str | None:
    """The contents' name of a link in a snapshot; None where it leads to anything else."""
    snapshot_file = at.root.root / at.inside(f"snapshots/commit/{name}")
    path = Path(os.path.normpath(snapshot_file.parent / target))
    return path.name if path.parent == at.root.root / at.inside("blobs") else None


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
        if len(file.stated) not in _DIGITS:
            return None
        digest = _hash(contents, file.stated)
    return None if digest == file.stated else f"hash {digest}, stated {file.stated}"


# ---- prune


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
    """What the store does not need: partial downloads, and commits to which no branch points
    and no recipe pins.

    Contents that a kept commit shares stay. Nothing is removed before `remove` is called.
    Repositories that no recipe knows are left alone but for commits that their branches have left
    behind.
    """
    store = store or model_store(_environ())
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
                if fnmatch.fnmatch(name.rpartition("/")[2], f".*{_PART}"):
                    places.append((own, f"{base}/{name}", "the beginning of a download"))
    size = sum(own.size(name) or 0 for own, name, _ in places)
    return Prunable(tuple(places), size)


def _left_behind(root: Inside, repo: str, pinned: Set[str]) -> list[tuple[str, str]]:
    """What a repository in the cache does not need, with the reason."""
    refs = root.files(f"{repo}/refs")
    kept = pinned | {root.read(f"{repo}/refs/{ref}", 200).decode().strip() for ref in refs}
    snapshots = root.entries(f"{repo}/snapshots", folders=True)
    old = [commit for commit in snapshots if commit not in kept]
    if len(old) == len(snapshots):
        old = []  # nothing says which of them is in use
    at, used = _Place(Repository(repo), root, repo), set()
    for commit in set(snapshots).difference(old):
        for name in root.files(f"{repo}/snapshots/{commit}"):
            target = root.target(f"{repo}/snapshots/{commit}/{name}")
            used.add(_blob(at, name, target) if target else None)
    reason = "a commit to which no branch points any more"
    left = [(f"{repo}/snapshots/{commit}", reason) for commit in old]
    for blob in root.entries(f"{repo}/blobs"):
        if blob.endswith((".incomplete", _PART)):
            left.append((f"{repo}/blobs/{blob}", "the beginning of a download"))
        elif blob not in used and old:
            left.append((f"{repo}/blobs/{blob}", "contents that only such commits have"))
    return left
