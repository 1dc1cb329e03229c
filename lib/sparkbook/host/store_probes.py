"""What the hub says of a token, and what the model store holds of a recipe."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from sparkbook.checkpoint.store import (
    local_commit,
    local_folder,
    model_store,
    snapshot,
    torn,
)
from sparkbook.errors import SparkbookError
from sparkbook.host import machine as seen
from sparkbook.host.access import Access
from sparkbook.host.docker_probes import docker_answers
from sparkbook.host.machine import Wanted
from sparkbook.units import GB

_MOST_FILES = 200_000


def hub_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    from httpx import HTTPError

    if not want.repos:
        return {}
    place, token = find_token(access.environ, access.home)
    if access.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return {"hub": seen.Hub(token=place, offline="HF_HUB_OFFLINE is set")}
    hub = (access.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    valid, skew, codes = None, None, {}
    try:
        if token:
            status, _ = access.get(f"{hub}/api/whoami-v2", token)
            valid = True if status == 200 else False if status == 401 else None
        for repo in want.repos:
            codes[repo], headers = access.get(f"{hub}/api/models/{repo}/auth-check", token)
            if date := headers.get("date"):
                skew = round(access.now() - parsedate_to_datetime(date).timestamp(), 1)
    except SparkbookError as error:  # HF_ENDPOINT is no address, or holds a password
        return {"hub": seen.Hub(token=place, offline=str(error))}
    except HTTPError as error:
        return {
            "hub": seen.Hub(
                token=place,
                valid=valid,
                access=codes,
                offline=f"{hub} can't be reached: {type(error).__name__}",
            )
        }
    return {"hub": seen.Hub(token=place, valid=valid, access=codes, skew_s=skew)}


def find_token(environ: Mapping[str, str], home: Path) -> tuple[str | None, str | None]:
    """Return where Hugging Face's library takes a token from, and the token (a secret)."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environ.get(name, "").strip():
            return name, environ[name].strip()
    path = environ.get("HF_TOKEN_PATH")
    for file in (
        [Path(path)]
        if path
        else [model_store(environ, home) / "token", home / ".cache" / "huggingface" / "token"]
    ):
        try:
            if text := file.read_text("utf-8").strip():
                return str(file), text
        except (OSError, ValueError):
            continue
    return None, None


def store_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    path = model_store(access.environ, access.home)
    shown = str(path).replace(str(access.home), "~", 1)
    docker = found["docker"].root if docker_answers(found) else None
    free: dict[str, Any] = {
        "free_bytes": _free(path),
        "docker_free_bytes": _free(Path(docker)) if docker and Path(docker).is_dir() else None,
    }
    if not path.is_dir():
        return {"store": seen.Store(path=shown, exists=False, **free)}
    foreign, unfinished, example = 0, 0, None
    for number, file in enumerate(_files(path)):
        if number >= _MOST_FILES:
            break
        unfinished += file.name.endswith(".incomplete")
        try:
            owner = file.lstat().st_uid
        except OSError:
            continue
        if owner != os.getuid() and os.getuid() != 0:
            foreign, example = foreign + 1, example or str(file).replace(str(access.home), "~", 1)
    return {
        "store": seen.Store(
            path=shown,
            exists=True,
            writable=os.access(path, os.W_OK | os.X_OK),
            foreign=foreign,
            example=example,
            unfinished=unfinished,
            **free,
            **_staged(path, want, access.home),
        )
    }


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root) / name


def _free(path: Path) -> int | None:
    """Return bytes free for this user where the folder is, or will be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _staged(store: Path, want: Wanted, home: Path) -> dict[str, Any]:
    """Return the recipe's repositories as they are on the disk: commits, size, files that cannot be
    whole, and a hash to compare nodes by.
    """
    revisions, broken, size, parts = {}, [], 0, []
    for repo, revision in want.repos.items():
        own = want.folders.get(repo)
        folder = local_folder(own, home) if own else snapshot(store, repo, revision)
        if folder is None or not folder.is_dir() or not any(folder.iterdir()):
            continue
        revisions[repo] = local_commit(folder) if own else folder.name
        for file in sorted(path for path in folder.rglob("*") if not path.is_dir()):
            name = file.relative_to(folder).as_posix()
            if name.startswith(".cache/"):
                continue
            if not file.exists() or (file.suffix == ".safetensors" and torn(file)):
                broken.append(name)
                continue
            size += file.stat().st_size
            parts.append(f"{repo}/{name} {file.stat().st_size}")
    digest = (
        hashlib.sha256("\n".join([*parts, *revisions.values()]).encode()).hexdigest()[:16]
        if revisions
        else None
    )
    return {
        "revisions": revisions,
        "broken": broken,
        "staged_gb": round(size / GB, 3),
        "digest": digest,
    }
