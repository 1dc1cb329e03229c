"""Reads a checkpoint on the Hugging Face hub without its weights: config files, and headers of
safetensors files by range requests.

huggingface_hub says which hub, which token and what a refusal means. The replies are read here,
through the schema of `reply` and within limits, and the token goes to the hub's origin only.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from sparkbook.checkpoint import reply, tensors
from sparkbook.checkpoint.local import build
from sparkbook.checkpoint.values import Checkpoint
from sparkbook.errors import SparkbookError
from sparkbook.util import origins
from sparkbook.util.inside import checked

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_S = 30.0
_MOST_JSON = 2**26  # bytes of a config or an index
_FIRST = 100_000  # bytes that hold most files' headers


def read(name: str, revision: str | None = None, api: HfApi | None = None) -> Checkpoint:
    """The facts about a repository's checkpoint, at one commit.

    Args:
        name: handle, `ORG/MODEL`.
        revision: branch, tag or commit; None: the default branch. It is resolved to a commit once,
            and everything is read there.
        api: client; None: the hub that HF_ENDPOINT names, with the caller's own token.

    Raises:
        SparkbookError: no such repository or revision, no permission, no network, or no safetensors
            files; the message says what to do.
    """
    from huggingface_hub import HfApi

    api = api or HfApi()
    with _told(api, name, revision):
        return _read(api, name, revision)


class Files(NamedTuple):
    """A repository's checkpoint at one commit: its config files, and its safetensors files with
    their sizes in bytes.
    """

    commit: str
    config: dict[str, Any]
    hf_quant: dict[str, Any] | None
    sizes: dict[str, int]


def files(api: HfApi, name: str, revision: str | None = None) -> Files:
    """What a repository holds; its weights are not read. Raises SparkbookError as `read` does."""
    with _told(api, name, revision):
        return _files(api, name, revision)


def read_range(api: HfApi, name: str, file: str, commit: str, begin: int, end: int) -> bytes:
    """Bytes begin to end (exclusive) of a repository's file, and no others. Raises SparkbookError
    as `read` does.
    """
    if begin == end:
        return b""
    path = f"{name}/resolve/{commit}/{quote(file)}"
    with _told(api, name, commit), _answer(api, path, range=f"bytes={begin}-{end - 1}") as answer:
        if answer.status_code != 206:
            raise SparkbookError(
                f"{api.endpoint} sends the whole of {file} instead of the part asked for: fetch"
                f" {name} first"
            )
        data = _whole(answer, f"{name}: the part of {file}", end - begin)
    if len(data) != end - begin:
        raise SparkbookError(
            f"{name}: {file} is cut off: {len(data)} of {end - begin} bytes from {begin} on; try"
            " again"
        )
    return data


def read_header(api: HfApi, name: str, file: str, found: Files, first: int = _FIRST) -> bytes:
    """The first bytes of a safetensors file: at least all of its header, where it has one.

    Args:
        first: bytes to begin with; 8 read nothing but the header, and take one request more.

    Raises:
        SparkbookError: as `read`.
    """
    size, commit = found.sizes[file], found.commit
    start = read_range(api, name, file, commit, 0, min(first, size))
    length = struct.unpack("<Q", start[:8])[0] if len(start) >= 8 else 0
    if len(start) < 8 + length <= size and length <= tensors.MAX_HEADER:
        start += read_range(api, name, file, commit, len(start), 8 + length)
    return start


@contextlib.contextmanager
def _answer(api: HfApi, path: str, **headers: str) -> Iterator[Any]:
    """The hub's answer to a GET, which is no refusal; the caller's token goes to the hub only."""
    from huggingface_hub.utils import get_session, hf_raise_for_status

    known = api._build_hf_headers()
    token = known.pop("authorization", "").removeprefix("Bearer ")
    with origins.get(
        get_session(),
        f"{api.endpoint}/{path}",
        home=api.endpoint,
        token=token,
        headers={**known, "accept-encoding": "identity", **headers},
        timeout=TIMEOUT_S,
    ) as answer:
        hf_raise_for_status(answer)
        yield answer


def _whole(answer: Any, what: str, most: int) -> bytes:
    data = bytearray()
    for piece in answer.iter_raw(2**20):
        data += piece
        if len(data) > most:
            raise SparkbookError(f"{what} is longer than the {most} bytes that it may have")
    return bytes(data)


@contextlib.contextmanager
def _told(api: HfApi, name: str, revision: str | None) -> Iterator[None]:
    """What goes wrong with the hub, in words."""
    from huggingface_hub import errors

    where = f"{api.endpoint}/{name}"
    try:
        yield
    except errors.GatedRepoError as error:
        status = getattr(error.response, "status_code", 403)
        if status == 401:
            raise SparkbookError(
                f"{name} is gated, and no valid token was sent: accept its license on {where}, make"
                " a token that may read, and set HF_TOKEN"
            ) from None
        raise SparkbookError(
            f"{name} is gated, and its license is not accepted by the account of this token: accept"
            f" it on {where} and try again"
        ) from None
    except errors.RevisionNotFoundError:
        raise SparkbookError(
            f"{name} has no revision '{revision}': {where}/commits shows the ones there are"
        ) from None
    except errors.RepositoryNotFoundError as error:
        status = getattr(error.response, "status_code", 404)
        token = (
            ""
            if status == 404
            else "; or it is private and the token is missing or wrong: set HF_TOKEN"
        )
        raise SparkbookError(
            f"there is no model {name} on {api.endpoint}: check the spelling{token}"
        ) from None
    except errors.OfflineModeIsEnabled:
        raise SparkbookError(
            f"{name} can't be read: HF_HUB_OFFLINE is set; unset it, or give a local folder"
        ) from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no status")
        hint = {
            401: "the token is not valid: set HF_TOKEN again",
            403: f"this token may not read it: see {where}",
            429: "too many requests: wait a minute, or send a token",
        }.get(status, "try again later")
        raise SparkbookError(f"{where} answers {status}: {hint}") from None
    except errors.HFValidationError as error:
        raise SparkbookError(
            f"'{name}' is no handle of a model: {str(error).splitlines()[0]}"
        ) from None
    except _network_errors() as error:
        raise SparkbookError(
            f"{api.endpoint} can't be reached ({type(error).__name__}): check the network, or give"
            " a local folder"
        ) from None


def _network_errors() -> tuple[type[Exception], ...]:
    """Return what an unreachable Hub raises. huggingface_hub 2 has httpx2 where 1 had httpx."""
    from huggingface_hub import errors

    names = [name for name in ("httpx2", "httpx") if importlib.util.find_spec(name)]
    network = (importlib.import_module(name).HTTPError for name in names)
    return (errors.LocalEntryNotFoundError, *network, OSError)


def _files(api: HfApi, name: str, revision: str | None) -> Files:
    from huggingface_hub.utils import validate_repo_id

    validate_repo_id(name)
    at = f"/revision/{quote(revision, safe='')}" if revision else ""
    with _answer(api, f"api/models/{name}{at}?blobs=true") as answer:
        text = _whole(answer, f"the list of the files of {name}", reply.MOST_BYTES)
    try:
        info = reply.listing(text)
    except SparkbookError as error:
        raise SparkbookError(
            f"{api.endpoint} answers with no list of the files of {name} ({error}): compare"
            " HF_ENDPOINT with the hub's address"
        ) from None
    commit = info.sha
    sizes = {file.rfilename: file.size or 0 for file in info.siblings}
    if "config.json" not in sizes:
        raise SparkbookError(
            f"{name} has no config.json, so it is no checkpoint in Hugging Face's layout"
        )
    config = _json(api, name, "config.json", commit)
    names = sorted(file for file in sizes if file.endswith(".safetensors") and "/" not in file)
    if "model.safetensors.index.json" in sizes:
        index = _json(api, name, "model.safetensors.index.json", commit)
        named = {str(file) for file in _weight_map(index).values()}
        if missing := sorted(named - set(names)):
            raise SparkbookError(
                f"{name}: {len(missing)} files of its index are missing, such as {missing[0]}"
            )
        names = [file for file in names if file in named]
    if not names:
        raise SparkbookError(
            f"{name} holds no safetensors files; weights in other formats (.bin, GGUF) are not read"
        )
    hf_quant = (
        _json(api, name, "hf_quant_config.json", commit)
        if "hf_quant_config.json" in sizes
        else None
    )
    return Files(commit, config, hf_quant, {checked(file): sizes[file] for file in names})


def _read(api: HfApi, name: str, revision: str | None) -> Checkpoint:
    found = _files(api, name, revision)
    headers = [
        tensors.parse_header(read_header(api, name, file, found), f"{name}/{file}")
        for file in found.sizes
    ]
    source = f"headers of the files at {api.endpoint}/{name}/tree/{found.commit}"
    sizes = list(found.sizes.items())
    return build(name, found.config, found.hf_quant, headers, sizes, found.commit, source)


def _weight_map(index: dict[str, Any]) -> dict[str, Any]:
    named = index.get("weight_map")
    return named if isinstance(named, dict) else {}


def _json(api: HfApi, name: str, file: str, commit: str) -> dict[str, Any]:
    with _answer(api, f"{name}/resolve/{commit}/{file}") as answer:
        text = _whole(answer, f"{name}: {file}", _MOST_JSON)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        raise SparkbookError(f"{name}: {file} is not JSON") from None
    if not isinstance(value, dict):
        raise SparkbookError(f"{name}: {file} holds no JSON object")
    return value
