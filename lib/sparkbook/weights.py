"""Weights: what a recipe reads, from the hub into the model store, whole and verified.

    fetched = weights.fetch(recipes.load("qwen3.6-35b-a3b-nvfp4"))
    weights.verify(recipes.load("qwen3.6-35b-a3b-nvfp4"))

huggingface_hub lays the cache out. Large files are downloaded here, because its own downloads start
anew when the process ends (2.4.0: `_download_to_tmp_and_move` removes what is unfinished), and with
shards of 5 GB that is what an interruption costs. They come over plain HTTP, in parallel, and are
resumed at the byte; each is hashed before it gets its name. `hf_xet` is neither needed nor used.
"""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import hashlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings, Severity
from sparkbook.recipes import Recipe
from sparkbook.recipes.schema import PrepareStep
from sparkbook.store import Checkpoint, checkpoints, local_folder, model_store, snapshot, torn
from sparkbook.units import GB
from sparkbook.util.shell_text import USER, command_line, mark_home

_CHUNK = 2**20
_ATTEMPTS = 5
_SPARE = 2 * GB
_PART = ".part"  # behind a blob's name: bytes that a later fetch goes on from
_NOTED = "sparkbook-files.json"  # in the store: hashes of prepare-step files that no source pins


# ---- findings


@dataclass(frozen=True)
class Rule:
    """One way for a download to go wrong.

    Attributes:
        bad, good: a situation that is caught and one that is right, in words; tests make both
            happen on a hub of their own.
    """

    code: str
    name: str
    severity: Severity
    kind: str | None
    text: str
    fix: str
    bad: str
    good: str
    source: str | None = None

    @property
    def address(self) -> str:
        """Where the rule's page stands in the site."""
        return f"rules/hub.html#{self.code.lower()}"


_GATES = "https://huggingface.co/docs/hub/models-gated"
RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in (
        Rule(
            "HUB001",
            "fetch-without-token",
            "error",
            "gated-download",
            "The hub answers 401 and no token was sent: the repository is gated or private, and"
            " wants to know who asks.",
            "Set HF_TOKEN from a file that only you can read; see"
            " https://huggingface.co/settings/tokens",
            "a gated repository, no token",
            "an open repository, no token",
            _GATES,
        ),
        Rule(
            "HUB002",
            "fetch-with-bad-token",
            "error",
            "gated-download",
            "The hub answers 401 to a token: it is mistyped, expired or withdrawn. Open"
            " repositories are refused with it too.",
            "Make a new token at https://huggingface.co/settings/tokens, or unset HF_TOKEN for an"
            " open repository.",
            "a token that the hub does not know",
            "the right token",
            _GATES,
        ),
        Rule(
            "HUB003",
            "fetch-without-licence",
            "error",
            "gated-download",
            "403: the token is good. Its account has not accepted the licence, or it is a"
            " fine-grained token without the right to it.",
            "Open the model's page with the token's account and accept the licence.",
            "a good token whose account has not accepted",
            "the same after accepting",
            _GATES,
        ),
        Rule(
            "HUB004",
            "fetch-of-nothing",
            "error",
            None,
            "404: there is no such repository, or it is private and not yours.",
            "Compare the name with the model's page.",
            "a misspelt name",
            "the right name",
        ),
        Rule(
            "HUB005",
            "revision-not-found",
            "error",
            None,
            "The repository exists, the pinned commit or branch does not: it was rewritten, or the"
            " pin is mistyped.",
            "Look at the repository's commits, and pin one of them in the recipe.",
            "a commit that is not there",
            "a commit that is",
        ),
        Rule(
            "HUB006",
            "hub-unreachable",
            "error",
            None,
            "No connection to the hub, or HF_HUB_OFFLINE is set. What is staged already can be"
            " served without it.",
            "Connect, unset HF_HUB_OFFLINE, or name a mirror with HF_ENDPOINT.",
            "no route to the hub",
            "a hub that answers",
        ),
        Rule(
            "HUB007",
            "rate-limited",
            "error",
            None,
            "429: too many requests from this address or account, also after waiting as long as the"
            " hub asked for.",
            "Wait some minutes and fetch again; with a token the limit is higher.",
            "429 to every request",
            "429 twice, then an answer",
            "https://huggingface.co/docs/hub/rate-limits",
        ),
        Rule(
            "HUB008",
            "hub-broken",
            "error",
            None,
            "The hub answers with an error of its own (5xx), again and again.",
            "See https://status.huggingface.co; fetch again later, which goes on where this ended.",
            "503 to every request",
            "503 once, then an answer",
        ),
        Rule(
            "HUB009",
            "no-room",
            "error",
            None,
            "The files that are missing do not fit on the store's disk. Nothing was downloaded.",
            "sparkbook weights prune, or name another disk with HF_HOME.",
            "a disk with less free than the files need",
            "a disk with room",
        ),
        Rule(
            "HUB010",
            "file-damaged",
            "error",
            "download-corrupt",
            "A file's hash is not the one that the repository states. After a bad resume a file can"
            " have the right size all the same.",
            "Fetch again: the damaged file was taken away.",
            "one changed byte in a shard",
            "the bytes of the repository",
            "https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/30",
        ),
        Rule(
            "HUB011",
            "connection-breaks",
            "error",
            None,
            "The connection broke several times in a row without a byte in between. What came is"
            " kept.",
            "Fetch again: it goes on where this ended.",
            "a connection that breaks at once, always",
            "one that breaks in the middle, once",
        ),
        Rule(
            "HUB012",
            "prepared-file-changed",
            "error",
            None,
            "A file that the recipe fetches by address is not the one that was pinned. Parser"
            " plug-ins are code inside the server.",
            "Read what changed; if it is right, put the new sha256 into the recipe.",
            "another text under the same address",
            "the text that was pinned",
        ),
        Rule(
            "HUB013",
            "prepared-file-unpinned",
            "error",
            None,
            "The recipe fetches code by address, and no source gives its checksum, or the address"
            " names a branch. It was not fetched.",
            "Read the file, then fetch with --unpinned: its sha256 is noted, and a change is"
            " refused from then on.",
            "sha256: unknown in the recipe",
            "a sha256 and a commit in the recipe",
        ),
        Rule(
            "HUB014",
            "store-not-writable",
            "error",
            "cache-permission",
            "The store belongs to somebody else, as after a download by a container that runs as"
            " root.",
            'sudo chown -R "$USER" ~/vllm',
            "a store without the right to write",
            "a store of your own",
            "https://github.com/av/harbor/issues/262",
        ),
        Rule(
            "HUB015",
            "files-missing",
            "error",
            "download-corrupt",
            "Files that the model needs are not in the store: nothing was fetched, or a fetch was"
            " not finished.",
            "sparkbook weights fetch",
            "a shard of the index that is not there",
            "every shard of the index",
        ),
    )
}
"""Every rule of the hub and the store by its code."""


SOURCE = "It says what the hub answered, or what the store holds."
"""Of a rule that names no other."""

INTRO = (
    "What `sparkbook weights` says where a download goes wrong. A test makes both examples of each"
    " happen on a hub of its own."
)


def page(rule: Rule) -> str:
    """A rule's section of the book, in Markdown."""
    from sparkbook.checks import section_page

    text = f"{rule.text}\n\n**What to do:** {rule.fix.rstrip('.')}."
    examples = [
        (title, f"{made[:1].upper()}{made[1:]}.", ())
        for title, made in (("Fails", rule.bad), ("Passes", rule.good))
    ]
    return section_page(
        rule.code,
        rule.name,
        ("Weights", rule.severity),
        text,
        examples,
        rule.source or SOURCE,
        rule.kind,
    )


def _finding(
    code: str, message: str, evidence: str | None = None, fix: str | None = None
) -> Finding:
    rule = RULES[code]
    return Finding(
        rule=code,
        kind=rule.kind,
        severity=rule.severity,
        message=message,
        evidence=evidence,
        fix=fix or rule.fix,
        why=rule.address,
        source=rule.source,
    )


class WeightsError(SparkbookError):
    """Weights could not be fetched. `finding` says why and what to do; what was downloaded so far
    is kept.
    """

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.message} {finding.fix} ({finding.rule})")
        self.finding = finding


def _fail(
    code: str, message: str, evidence: str | None = None, fix: str | None = None
) -> WeightsError:
    return WeightsError(_finding(code, message, evidence, fix))


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
    """A file of a repository: size in bytes, and its hash: the sha256 of a large file, git's own of
    a small one.
    """

    name: str
    size: int
    sha256: str | None = None
    git: str | None = None


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
        self.endpoint = (
            self.endpoint or environ.get("HF_ENDPOINT") or "https://huggingface.co"
        ).rstrip("/")
        self.token = self.token or find_token(environ, Path.home())[1]
        self.sleep = self.sleep or self.stop.wait
        if problem := offline_problem(environ):
            raise problem

    def files(self, repo: str, revision: str | None) -> tuple[str, list[File]]:
        """The commit that a revision stands at, and its files.

        Raises:
            WeightsError: the hub refuses, does not know it, or does not answer.
        """
        path = f"/api/models/{repo}/revision/{(revision or 'main').replace('/', '%2F')}?blobs=true"
        info = json.loads(self._read(path, repo, revision))
        found = [
            File(
                one["rfilename"],
                one.get("size") or 0,
                (one.get("lfs") or {}).get("sha256"),
                one.get("blobId"),
            )
            for one in info.get("siblings", [])
        ]
        return info["sha"], found

    def _read(self, path: str, repo: str, revision: str | None = None) -> bytes:
        return b"".join(self._stream(f"{self.endpoint}{path}", repo, revision, 0, None))

    def download(
        self, url: str, file: Path, size: int, repo: str, moved: Callable[[int], None]
    ) -> None:
        """Append to a file until it has its size. Sizes are bytes; `moved` is told of each piece,
        and of what has to be taken back.

        Raises:
            WeightsError: the hub refuses, or the connection breaks again and again without a byte
                in between.
        """
        have = file.stat().st_size if file.exists() else 0
        if have > size:
            file.unlink()
            moved(-have)
            have = 0
        # Also an empty file has to be there in the end.
        with file.open("ab") as target:
            pieces = self._stream(url, repo, None, have, size) if have < size else ()
            for piece in pieces:
                if piece is None:  # the server began from the front
                    moved(-target.tell())
                    target.truncate(0)
                    continue
                target.write(piece)
                moved(len(piece))

    def _stream(
        self, url: str, repo: str, revision: str | None, begin: int, size: int | None
    ) -> Iterator[Any]:
        """The pieces of an answer from `begin` on, over as many connections as it takes; None where
        it starts again at 0.
        """
        import httpx2
        from huggingface_hub.utils import get_session

        failures, at = 0, begin
        while True:
            headers = {"user-agent": "sparkbook", "accept-encoding": "identity"}
            if self.token and url.startswith(str(self.endpoint)):
                headers["authorization"] = f"Bearer {self.token}"
            if at:
                headers["range"] = f"bytes={at}-"
            pause: float | None = None
            try:
                with get_session().stream(
                    "GET", url, headers=headers, timeout=30, follow_redirects=True
                ) as answer:
                    status = answer.status_code
                    if status in (408, 429) or status >= 500:
                        pause = _seconds(answer.headers.get("retry-after"))
                        problem = _status_problem(
                            status, repo, self.token, answer.headers, revision
                        )
                    elif status >= 400:
                        raise _status_problem(status, repo, self.token, answer.headers, revision)
                    else:
                        if at and status == 200:
                            yield None
                            at = 0
                        for piece in answer.iter_raw(_CHUNK):
                            if self.stop.is_set():
                                raise KeyboardInterrupt
                            if size is not None and at + len(piece) > size:
                                raise _fail(
                                    "HUB010",
                                    f"The hub sends more of {repo} than the repository states.",
                                    f"{size} bytes stated",
                                )
                            at, failures = at + len(piece), 0
                            yield piece
                        if size is None or at >= size:
                            return
                        problem = _broken(repo, f"{at} of {size} bytes")
            except httpx2.ConnectError as error:
                problem = _fail(
                    "HUB006",
                    f"{self.endpoint} can't be reached.",
                    str(error) or type(error).__name__,
                )
            except httpx2.HTTPError as error:
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


def offline_problem(environ: Mapping[str, str]) -> WeightsError | None:
    """Whether downloads are switched off."""
    off = environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    return _fail("HUB006", "HF_HUB_OFFLINE is set, so nothing is downloaded.") if off else None


def _broken(repo: str, evidence: str) -> WeightsError:
    return _fail("HUB011", f"The connection breaks while {repo} is downloaded.", evidence)


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
    """What a status of 400 or more means. `X-Error-Code` tells a missing repository from a missing
    commit and a closed one.
    """
    code, evidence = headers.get("x-error-code", ""), f"HTTP {status}"
    if code:
        evidence += f" {code}"
    if status == 401 or (status == 403 and not token):
        if token:
            return _fail("HUB002", "The hub does not accept this token.", evidence)
        return _fail(
            "HUB001",
            f"The hub gives {repo} to nobody without a token: it is gated, private, or not there.",
            evidence,
        )
    if status == 403:
        page = (
            f"Open https://huggingface.co/{repo} with the token's account and accept the licence."
        )
        return _fail("HUB003", f"The token may not read {repo}.", evidence, page)
    if status == 404 and (code == "RevisionNotFound" or (revision and code != "RepoNotFound")):
        return _fail("HUB005", f"{repo} has no revision {revision}.", evidence)
    if status == 404 and code == "EntryNotFound":
        return _fail("HUB015", f"A file of {repo} is not on the hub.", evidence)
    if status == 404:
        return _fail("HUB004", f"The hub has no repository {repo}.", evidence)
    if status == 429:
        return _fail("HUB007", "The hub wants fewer requests.", evidence)
    if status >= 500 or status == 408:
        return _fail("HUB008", "The hub has a fault of its own.", evidence)
    return _fail("HUB008", f"The hub answers what it should not to a request for {repo}.", evidence)


# ---- fetch


@dataclass(frozen=True)
class Staged:
    """One repository in the store.

    Attributes:
        commit: that it stands at.
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
    clock: Callable[[], float] = time.monotonic,
) -> Fetched:
    """Stage everything that a recipe reads: its repositories, its draft's, and the files of its
    prepare steps.

    What is there already, with the right size, is not downloaded again (`verify` looks at its
    bytes). What was begun is gone on with. A file that came now is hashed before it gets its name.
    Ctrl-C leaves the beginnings for the next time.

    Args:
        store: the model store; None: what HF_HOME names, else ~/vllm.
        hub: the way to the hub.
        workers: files at once.
        progress: show a bar, in a terminal or a notebook.
        unpinned: also fetch prepare-step files that no source gives a checksum of, and note theirs.

    Raises:
        WeightsError: nothing more can be done; its `finding` says why.
        KeyboardInterrupt: on Ctrl-C.
    """
    begin = clock()
    store = store or model_store(_environ())
    wanted = checkpoints(recipe)
    steps = [step for step in recipe.prepare if step.do == "fetch"]
    if not wanted and not steps:
        raise SparkbookError(f"{recipe.id} ships with this package: there is nothing to fetch")
    hub = hub or Hub()
    mistral = recipe.serve.args.get("load-format") == "mistral"
    try:
        listed = []
        for one in wanted:
            commit, files = hub.files(one.repo, one.revision)
            names = set(needed([file.name for file in files], mistral))
            listed.append((one, commit, [file for file in files if file.name in names]))
        jobs = [
            _job(hub, store, one, commit, file)
            for one, commit, files in listed
            for file in files
            if file.sha256
        ]
        small = sum(file.size for _, _, files in listed for file in files if not file.sha256)
        _check_room(store, sum(job.missing for job in jobs) + small)
        coming: dict[str, int] = {}
        for job in jobs:
            coming[job.repo] = coming.get(job.repo, 0) + job.missing
        _download(hub, [job for job in jobs if not job.done], workers, progress)
        staged = tuple(
            _lay_out(hub, store, one, commit, files, coming.get(one.repo, 0), workers)
            for one, commit, files in listed
        )
        prepared, refused = [], []
        for step in steps:
            try:
                prepared.append(_prepare(hub, store, step, unpinned))
            except WeightsError as error:
                refused.append(error.finding)
    except PermissionError as error:
        raise denied(error, store) from None
    except OSError as error:
        if error.errno == 28:
            raise _fail("HUB009", "The disk filled up during the download.", str(error)) from None
        raise
    return Fetched(staged, tuple(prepared), Findings(refused), round(clock() - begin, 3))


def denied(error: PermissionError, store: Path | str) -> WeightsError:
    """What a refused write means."""
    return _fail(
        "HUB014",
        f"{error.filename} can't be written.",
        str(error),
        command_line("sudo", "chown", "-R", USER, mark_home(str(store))),
    )


@dataclass(frozen=True)
class _Job:
    """A large file on its way: the address, the beginning, and the place where it goes when it is
    whole.
    """

    repo: str
    url: str
    part: Path
    place: Path
    size: int
    sha256: str

    @property
    def done(self) -> bool:
        return self.place.is_file() and self.place.stat().st_size == self.size

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        if self.done:
            return 0
        return max(self.size - (self.part.stat().st_size if self.part.is_file() else 0), 0)


def _job(hub: Hub, store: Path, one: Checkpoint, commit: str, file: File) -> _Job:
    from urllib.parse import quote

    assert file.sha256
    if one.folder:
        place = local_folder(one.folder) / file.name
        part = place.parent / f".{place.name}.{file.sha256[:16]}{_PART}"
    else:
        place = _cache_folder(store, one.repo) / "blobs" / file.sha256
        part = place.with_name(file.sha256 + _PART)
    return _Job(
        one.repo,
        f"{hub.endpoint}/{one.repo}/resolve/{commit}/{quote(file.name)}",
        part,
        place,
        file.size,
        file.sha256,
    )


def _cache_folder(store: Path, repo: str) -> Path:
    return store / "hub" / ("models--" + repo.replace("/", "--"))


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
    return _fail("HUB009", message, f"{missing} bytes missing, {free} free")


def hash_problem(name: str, repo: str, found: str, stated: str) -> WeightsError | None:
    """Whether a file that came is not the repository's."""
    return (
        None
        if found == stated
        else _fail("HUB010", f"{name} of {repo} arrived damaged.", f"hash {found}, stated {stated}")
    )


def _download(hub: Hub, jobs: list[_Job], workers: int, progress: bool) -> None:
    """All files at once, as far as there are workers. The first failure stops the others; what came
    is kept.
    """
    from tqdm.auto import tqdm

    if not jobs:
        return
    total = sum(job.size for job in jobs)
    bar = tqdm(
        total=total,
        initial=total - sum(job.missing for job in jobs),
        unit="B",
        unit_scale=True,
        desc=jobs[0].repo,
        disable=not progress,
    )
    with bar, ThreadPoolExecutor(workers, thread_name_prefix="weights") as pool:
        futures: list[Future[None]] = [
            pool.submit(_one, hub, job, bar.update)
            for job in sorted(jobs, key=lambda job: -job.missing)
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


def _one(hub: Hub, job: _Job, moved: Callable[[int], Any]) -> None:
    """One file: download, hash, name."""
    job.part.parent.mkdir(parents=True, exist_ok=True)
    hub.download(job.url, job.part, job.size, job.repo, moved)
    if problem := hash_problem(
        job.url.rsplit("/", 1)[-1], job.repo, _sha256(job.part, hub.stop), job.sha256
    ):
        job.part.unlink()
        raise problem
    job.part.replace(job.place)


def _sha256(file: Path, stop: threading.Event | None = None) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(8 * _CHUNK):
            if stop is not None and stop.is_set():
                raise KeyboardInterrupt
            digest.update(piece)
    return digest.hexdigest()


def _lay_out(
    hub: Hub, store: Path, one: Checkpoint, commit: str, files: list[File], came: int, workers: int
) -> Staged:
    """Let huggingface_hub put the files in their places: it finds the large ones there, and fetches
    the small ones.
    """
    import httpx2
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    place: dict[str, Any] = (
        {"local_dir": local_folder(one.folder)} if one.folder else {"cache_dir": store / "hub"}
    )
    silent = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        folder = snapshot_download(
            one.repo,
            revision=commit,
            allow_patterns=[glob.escape(file.name) for file in files],
            endpoint=hub.endpoint,
            token=hub.token or False,
            max_workers=workers,
            **place,
        )
    except HfHubHTTPError as error:
        raise _status_problem(
            error.response.status_code, one.repo, hub.token, error.response.headers, one.revision
        ) from None
    except (httpx2.HTTPError, LocalEntryNotFoundError) as error:
        raise _broken(one.repo, f"{type(error).__name__} in a small file") from None
    finally:
        if not silent:
            enable_progress_bars()
    if not one.folder and (one.revision or "main") != commit:
        # The commit was named, so the library notes no branch; offline, vLLM looks for the branch.
        reference = _cache_folder(store, one.repo) / "refs" / (one.revision or "main")
        reference.parent.mkdir(parents=True, exist_ok=True)
        reference.write_text(commit, "utf-8")
    for file in files:
        if file.sha256 or not file.git:
            continue
        if problem := hash_problem(
            file.name, one.repo, _git_hash(Path(folder) / file.name), file.git
        ):
            (Path(folder) / file.name).resolve().unlink()
            raise problem
    return Staged(
        one.repo, commit, Path(folder), len(files), sum(file.size for file in files), came
    )


def _git_hash(file: Path) -> str:
    """Git's own hash of a file, which is what the hub states of small ones: sha1 over a header and
    the contents.
    """
    contents = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(contents) + contents, usedforsecurity=False).hexdigest()


# ---- prepare-step files


def _prepare(hub: Hub, store: Path, step: PrepareStep, unpinned: bool) -> Path:
    """Fetch one file by its address. It is code as a rule, so it is taken only with the checksum
    that was pinned or noted before.
    """
    assert step.url and step.to
    url, target = step.url, local_folder(step.to)
    if hub.endpoint != "https://huggingface.co" and url.startswith("https://huggingface.co/"):
        url = str(hub.endpoint) + url.removeprefix("https://huggingface.co")
    noted = _noted(store)
    known = step.sha256 if step.sha256 != "unknown" else noted.get(step.url)
    if target.is_file() and known and _sha256(target) == known:
        return target
    if problem := unpinned_problem(target.name, step.url, known, unpinned):
        raise problem
    contents = b"".join(piece for piece in hub._stream(url, step.url, None, 0, None) if piece)
    found = hashlib.sha256(contents).hexdigest()
    if problem := changed_problem(target.name, known, found):
        raise problem
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}{_PART}")
    part.write_bytes(contents)
    part.replace(target)
    if step.sha256 == "unknown":
        store.mkdir(parents=True, exist_ok=True)
        (store / _NOTED).write_text(
            json.dumps({**noted, step.url: found}, indent=2, sort_keys=True) + "\n", "utf-8"
        )
    return target


def unpinned_problem(name: str, url: str, known: str | None, allowed: bool) -> WeightsError | None:
    """Whether code is to be fetched that nothing is known of."""
    if known is not None or allowed:
        return None
    branch = ", and its address names a branch" if re.search(r"/(main|master)/", url) else ""
    return _fail("HUB013", f"{name} is code without a checksum{branch}; it was not fetched.", url)


def changed_problem(name: str, known: str | None, found: str) -> WeightsError | None:
    """Whether code is not what was pinned."""
    if known in (None, found):
        return None
    return _fail(
        "HUB012",
        f"{name} is not the file that was pinned; it was not written.",
        f"sha256 {found}, pinned {known}",
    )


def _noted(store: Path) -> dict[str, str]:
    try:
        value = json.loads((store / _NOTED).read_text("utf-8"))
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

    In the cache a file's contents lie under its hash, and a folder of its own has notes of the
    library with the hash of each file. Missing shards are known from the index of the weights.
    """
    from tqdm.auto import tqdm

    begin = clock()
    store = store or model_store(_environ())
    findings, jobs = [], []
    fetch = command_line("sparkbook", "weights", "fetch", recipe.id)
    for one in checkpoints(recipe):
        folder = local_folder(one.folder) if one.folder else snapshot(store, one.repo, one.revision)
        if folder is None or not folder.is_dir():
            findings.append(
                _finding("HUB015", f"{one.repo} is not in the store.", str(store), fetch)
            )
            continue
        names = sorted(
            path.relative_to(folder).as_posix()
            for path in folder.rglob("*")
            if path.is_symlink() or path.is_file()
        )
        names = [name for name in names if not name.startswith(".")]
        gone = [name for name in names if not (folder / name).exists()] + [
            name for name in _indexed(folder) if name not in names
        ]
        for name in sorted(set(gone)):
            findings.append(
                _finding(
                    "HUB015",
                    f"{name} of {one.repo} is missing.",
                    str(folder),
                    fetch,
                )
            )
        jobs += [(one, folder, name) for name in names if (folder / name).exists()]
    total = sum((folder / name).stat().st_size for _, folder, name in jobs)
    unknown = []
    with (
        tqdm(total=total, unit="B", unit_scale=True, desc="verify", disable=not progress) as bar,
        ThreadPoolExecutor(workers) as pool,
    ):
        futures = [
            pool.submit(_compare, folder, name, one.folder is not None)
            for one, folder, name in jobs
        ]
        for (one, folder, name), future in zip(jobs, futures, strict=True):
            stated, problem = future.result()
            bar.update((folder / name).stat().st_size)
            if problem:
                fix = f"{command_line('rm', (folder / name).resolve())}; {fetch}"
                findings.append(
                    _finding("HUB010", f"{name} of {one.repo} is damaged.", problem, fix)
                )
            elif not stated:
                unknown.append(name)
    return Verified(len(jobs), total, tuple(unknown), Findings(findings), round(clock() - begin, 3))


def _indexed(folder: Path) -> list[str]:
    """The shards that the indexes of a folder speak of."""
    found: set[str] = set()
    for index in sorted(folder.glob("*.safetensors.index.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            found |= {
                str(name) for name in json.loads(index.read_text("utf-8"))["weight_map"].values()
            }
    return sorted(found)


def _compare(folder: Path, name: str, local: bool) -> tuple[bool, str | None]:
    """Whether a file's hash is stated anywhere, and what speaks against the file."""
    file = folder / name
    if local:
        note = folder / ".cache" / "huggingface" / "download" / f"{name}.metadata"
        try:
            stated = note.read_text("utf-8").split()[1]
        except (OSError, IndexError, ValueError):
            stated = ""
    else:
        stated = file.resolve().name
    if file.suffix == ".safetensors" and (reason := torn(file)):
        return True, reason
    found = _sha256(file) if len(stated) == 64 else _git_hash(file) if len(stated) == 40 else None
    if found is None:
        return False, None
    return True, None if found == stated else f"hash {found}, stated {stated}"


# ---- prune


@dataclass(frozen=True)
class Prunable:
    """What can go: files and folders, why, and the bytes that this would free."""

    paths: tuple[tuple[Path, str], ...]
    bytes: int

    def remove(self) -> None:
        """Remove them.

        Raises:
            WeightsError: they belong to somebody else.
        """
        for path, _ in self.paths:
            try:
                (
                    shutil.rmtree(path)
                    if path.is_dir() and not path.is_symlink()
                    else path.unlink(missing_ok=True)
                )
            except PermissionError as error:
                raise _fail("HUB014", f"{path} can't be removed.", str(error)) from None


def prune(recipes: Sequence[Recipe], store: Path | None = None) -> Prunable:
    """What the store does not need: beginnings of downloads, and commits that no branch stands at
    and no recipe pins.

    Contents that a kept commit shares stay. Nothing is removed before `remove` is called.
    Repositories that no recipe knows are left alone but for commits that their branches have left
    behind.
    """
    store = store or model_store(_environ())
    pinned = {one.revision for recipe in recipes for one in checkpoints(recipe) if one.revision}
    paths: list[tuple[Path, str]] = []
    for repo in sorted((store / "hub").glob("models--*")):
        kept = pinned | {
            ref.read_text("utf-8").strip() for ref in (repo / "refs").rglob("*") if ref.is_file()
        }
        snapshots = sorted(path for path in (repo / "snapshots").glob("*") if path.is_dir())
        old = [path for path in snapshots if path.name not in kept]
        if len(old) == len(snapshots):
            old = []  # nothing says which of them is in use
        used = {
            link.resolve()
            for path in snapshots
            if path not in old
            for link in path.rglob("*")
            if link.is_symlink()
        }
        paths += [(path, "a commit that no branch stands at any more") for path in old]
        for blob in sorted((repo / "blobs").glob("*")):
            if blob.name.endswith((".incomplete", _PART)):
                paths.append((blob, "the beginning of a download"))
            elif blob.resolve() not in used and old:
                paths.append((blob, "contents that only such commits have"))
    folders = {
        local_folder(one.folder) for recipe in recipes for one in checkpoints(recipe) if one.folder
    }
    for folder in sorted(folders):
        paths += [
            (part, "the beginning of a download") for part in sorted(folder.rglob(f".*{_PART}"))
        ]
    size = sum(path.stat().st_size for path, _ in paths if path.is_file() and not path.is_symlink())
    return Prunable(tuple(paths), size)
