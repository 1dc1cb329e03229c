"""A hub that is not trusted: which of a repository's files vLLM reads, and their bytes over as many
connections as it takes. Replies go through a schema (`checkpoint.reply`), and the token goes to its
origin only (`util.origins`).
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sparkbook.checkpoint import reply
from sparkbook.errors import SparkbookError
from sparkbook.util import origins
from sparkbook.util.inside import checked
from sparkbook.weights.rules import WeightsError, fail

CHUNK = 2**20


_ATTEMPTS = 5


USUAL_HUB = "https://huggingface.co"


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
    """Return the files of a repository that vLLM reads, in their order.

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
        from sparkbook.host.store_probes import find_token

        environ = os.environ
        self.endpoint = (self.endpoint or environ.get("HF_ENDPOINT") or USUAL_HUB).rstrip("/")
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
        """Yield the pieces of an answer from `begin` on, over as many connections as it takes; None
        where it starts again at 0.
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
        """Return the hub's answer from a byte on."""
        from huggingface_hub.utils import get_session

        headers = {"user-agent": "sparkbook", "accept-encoding": "identity"}
        if at:
            headers["range"] = f"bytes={at}-"
        home = str(self.endpoint)
        return origins.get(
            get_session(), url, home=home, token=self.token, headers=headers, timeout=30
        )

    def _pieces(self, answer: Any, repo: str, size: int | None, at: int) -> Iterator[bytes]:
        """Yield the pieces of one answer that begins at a byte, up to the stated size."""
        for piece in answer.iter_raw(CHUNK):
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
    """Return whether downloads are switched off."""
    off = environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    return fail("HUB006", "HF_HUB_OFFLINE is set, so nothing is downloaded.") if off else None


def _unreadable(where: str | None, repo: str, evidence: str) -> WeightsError:
    return fail("HUB017", f"{where} answers with no list of the files of {repo}.", evidence)


def _broken(repo: str, evidence: str) -> WeightsError:
    return fail("HUB011", f"The connection breaks while {repo} is downloaded.", evidence)


def _seconds(retry_after: str | None) -> float | None:
    """Return what a Retry-After header asks for, at most two minutes."""
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
            f"Open https://huggingface.co/{repo} with the token's account and accept the license."
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
