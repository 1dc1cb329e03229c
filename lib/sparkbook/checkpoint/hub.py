"""Reads a checkpoint on the Hugging Face hub without its weights: config files, and headers of
safetensors files by range requests.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkbook.checkpoint.local import build
from sparkbook.checkpoint.values import Checkpoint
from sparkbook.errors import SparkbookError

if TYPE_CHECKING:
    from huggingface_hub import HfApi

TIMEOUT_S = 30.0


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
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import get_session, hf_raise_for_status

    if begin == end:
        return b""
    with _told(api, name, commit):
        url = hf_hub_url(name, file, revision=commit, endpoint=api.endpoint)
        headers = {
            **api._build_hf_headers(),
            "range": f"bytes={begin}-{end - 1}",
            "accept-encoding": "identity",
        }
        with get_session().stream(
            "GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True
        ) as answer:
            if answer.status_code >= 400:
                answer.read()
            hf_raise_for_status(answer)
            if answer.status_code != 206:
                raise SparkbookError(
                    f"{api.endpoint} sends the whole of {file} instead of the part asked for: fetch"
                    f" {name} first"
                )
            data = answer.read()
    if len(data) != end - begin:
        raise SparkbookError(
            f"{name}: {file} is cut off: {len(data)} of {end - begin} bytes from {begin} on; try"
            " again"
        )
    return bytes(data)


@contextlib.contextmanager
def _told(api: HfApi, name: str, revision: str | None) -> Iterator[None]:
    """What goes wrong with the hub, told in words."""
    from huggingface_hub import errors

    where = f"{api.endpoint}/{name}"
    try:
        yield
    except errors.GatedRepoError as error:
        status = getattr(error.response, "status_code", 403)
        if status == 401:
            raise SparkbookError(
                f"{name} is gated, and no valid token was sent: accept its licence on {where}, make"
                " a token that may read, and set HF_TOKEN"
            ) from None
        raise SparkbookError(
            f"{name} is gated, and its licence is not accepted by the account of this token: accept"
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
    except (errors.NotASafetensorsRepoError, errors.SafetensorsParsingError) as error:
        raise SparkbookError(f"{name}: {str(error).splitlines()[0]}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no status")
        hint = {
            401: "the token is not valid: set HF_TOKEN anew",
            403: f"this token may not read it: see {where}",
            429: "too many requests: wait a minute, or send a token",
        }.get(status, "try again later")
        raise SparkbookError(f"{where} answers {status}: {hint}") from None
    except errors.HFValidationError as error:
        raise SparkbookError(
            f"'{name}' is no handle of a model: {str(error).splitlines()[0]}"
        ) from None
    except (errors.LocalEntryNotFoundError, *_network_errors(), OSError) as error:
        raise SparkbookError(
            f"{api.endpoint} can't be reached ({type(error).__name__}): check the network, or give"
            " a local folder"
        ) from None


def _network_errors() -> tuple[type[Exception], ...]:
    """What the client underneath raises; huggingface_hub 2 has httpx2 where version 1 had httpx."""
    names = [name for name in ("httpx2", "httpx") if importlib.util.find_spec(name)]
    return tuple(importlib.import_module(name).HTTPError for name in names)


def _files(api: HfApi, name: str, revision: str | None) -> Files:
    info = api.model_info(name, revision=revision, files_metadata=True, timeout=TIMEOUT_S)
    commit = info.sha
    sizes = {file.rfilename: file.size for file in info.siblings or []}
    if "config.json" not in sizes:
        raise SparkbookError(
            f"{name} has no config.json, so it is no checkpoint in Hugging Face's layout"
        )
    config = _json(api, name, "config.json", commit)
    names = sorted(file for file in sizes if file.endswith(".safetensors") and "/" not in file)
    if "model.safetensors.index.json" in sizes:
        index = _json(api, name, "model.safetensors.index.json", commit)
        named = {str(file) for file in index.get("weight_map", {}).values()}
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
    return Files(commit, config, hf_quant, {file: sizes[file] or 0 for file in names})


def _read(api: HfApi, name: str, revision: str | None) -> Checkpoint:
    commit, config, hf_quant, sizes = _files(api, name, revision)
    headers = []
    for file in sizes:
        found = api.parse_safetensors_file_metadata(name, file, revision=commit)
        headers.append(
            {
                tensor: {
                    "dtype": str(entry.dtype),
                    "shape": list(entry.shape),
                    "data_offsets": list(entry.data_offsets),
                }
                for tensor, entry in found.tensors.items()
            }
        )
    source = f"headers of the files at {api.endpoint}/{name}/tree/{commit}"
    return build(name, config, hf_quant, headers, list(sizes.items()), commit, source)


def _json(api: HfApi, name: str, file: str, revision: str | None) -> dict[str, Any]:
    path = api.hf_hub_download(name, file, revision=revision)
    try:
        value = json.loads(Path(path).read_text("utf-8"))
    except ValueError:
        raise SparkbookError(f"{name}: {file} is not JSON") from None
    if not isinstance(value, dict):
        raise SparkbookError(f"{name}: {file} holds no JSON object")
    return value
