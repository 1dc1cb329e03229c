"""The model store: what recipes put on disk, and how a Hugging Face cache is laid out."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sparkbook.checkpoint.bandwidth import bytes_per_token
from sparkbook.recipes import Recipe
from sparkbook.recipes.schema import Model
from sparkbook.units import GB
from sparkbook.util.inside import Inside, UnsafePath, checked
from sparkbook.util.shell_text import USER, command_line, mark_home

KEPT = {
    *("hub", "xet", "assets", "datasets", "modules", "token", "stored_tokens"),
    "sparkbook-files.json",
}
"""Names in a store that Hugging Face's library or this one keeps for itself: no recipe writes
there, for it would replace another model's files, the token, or the checksums of code.
"""


@dataclass(frozen=True)
class Disk:
    """What one checkpoint takes on disk, in GB (10^9 bytes).

    Attributes:
        repo: Hugging Face handle, or a name within this package.
        weights_gb: the weights.
        estimated: whether no source states the size, or a false one: it was worked out from the
            parameters and their formats.
        draft_gb: a draft model in a repository of its own; None without one, or its size is
            not known.
    """

    repo: str
    weights_gb: float
    estimated: bool
    draft_gb: float | None

    @property
    def total_gb(self) -> float:
        """Weights and draft."""
        return self.weights_gb + (self.draft_gb or 0)


def disk_needed(recipes: Iterable[Recipe]) -> list[Disk]:
    """The disk that each checkpoint takes, once for all recipes that serve it, largest first.

    A size that no source states is total parameters times the width of the weights on disk, which
    is too little where layers are kept in a wider format. A model of which neither is known is left
    out.
    """
    found: dict[str, Disk] = {}
    for recipe in recipes:
        model = recipe.model
        weights, draft = _weights_gb(model), recipe.draft
        if weights is None:
            continue
        # A draft given as a path lies inside the target's own repository.
        separate = (
            draft.size_gb if draft and draft.model and not draft.model.startswith("/") else None
        )
        known = found.get(model.repo)
        best = max(
            (size for size in (separate, known.draft_gb if known else None) if size is not None),
            default=None,
        )
        found[model.repo] = Disk(
            model.repo, weights, model.weights_gb is None or model.weights_counted, best
        )
    return sorted(found.values(), key=lambda disk: (-disk.total_gb, disk.repo))


def _weights_gb(model: Model) -> float | None:
    if model.weights_gb is not None:
        return model.weights_gb
    if model.total_params_b is None or model.quantization.format == "unknown":
        return None
    # What vLLM quantizes while loading lies on disk as it was trained.
    on_disk = "bf16" if model.quantization.producer == "vllm" else model.quantization.format
    return bytes_per_token(model.total_params_b, on_disk) / GB


@dataclass(frozen=True)
class Repository:
    """A repository that a recipe reads, and where its files lie.

    Attributes:
        repo: Hugging Face handle.
        revision: the commit or branch that the recipe pins; None: `main`, whatever that is today.
        folder: a folder of its own, as the recipe writes it (`~/vllm/NAME`); None: in the cache of
            the model store.
    """

    repo: str
    revision: str | None = None
    folder: str | None = None


def repositories(recipe: Recipe) -> list[Repository]:
    """What a recipe loads from Hugging Face; nothing for a model that ships with this package.

    A recipe that reads its weights from a folder of its own names it; all others are found in the
    cache under HF_HOME.
    """
    model = recipe.model
    steps = [step for step in recipe.prepare if step.do == "download" and step.repo]
    if steps:
        return [
            Repository(
                step.repo or "", model.revision if step.repo == model.repo else None, step.to
            )
            for step in steps
        ]
    if "/" not in model.repo:
        return []
    found = [Repository(model.repo, model.revision)]
    if recipe.draft and recipe.draft.model and not recipe.draft.model.startswith("/"):
        found.append(Repository(recipe.draft.model))
    return found


def download_lines(recipe: Recipe) -> list[str]:
    """The `hf download` lines that stage a recipe's weights on the host; none for a model that
    ships with this package.
    """
    lines = []
    for one in repositories(recipe):
        options = ["--revision", one.revision] if one.revision else []
        options += ["--local-dir", mark_home(one.folder)] if one.folder else []
        lines.append(command_line("hf", "download", one.repo, *options))
    return lines


def model_store(environ: Mapping[str, str], home: Path | None = None) -> Path:
    """The folder that holds all models on this host: what HF_HOME names, else `~/vllm`."""
    home = home or Path.home()
    chosen = environ.get("HF_HOME") or "~/vllm"
    return home / chosen[2:] if chosen.startswith("~/") else home if chosen == "~" else Path(chosen)


def snapshot(store: Path, repo: str, revision: str | None = None) -> Path | None:
    """The folder of a staged commit in the cache; None where it is not there.

    Args:
        store: the model store; its cache lies in `hub`.
        revision: commit or branch; None: what `main` pointed to when it was last asked for.
    """
    folder = store / cache_name(repo)
    try:
        reference = folder / "refs" / checked(revision or "main")
        commit = reference.read_text("utf-8").strip() if reference.is_file() else revision
        found = folder / "snapshots" / checked(commit or "main")
        return found if found.is_dir() else None
    except (OSError, ValueError, UnsafePath):
        return None


def cache_name(repo: str) -> str:
    """Return a repository's folder in the cache, relative to the store.

    Raises:
        UnsafePath: a handle that no folder can be named after.
    """
    return checked("hub/models--" + repo.replace("/", "--"))


class OutsideStore(UnsafePath):
    """A recipe wants to write where its owner has to allow it."""


def recipe_place(to: str, store: Path, allowed: Sequence[Path] = ()) -> tuple[Inside, str]:
    """Return where a recipe may write what it names as `~/vllm/NAME`: a folder, and a path in it.

    Args:
        to: file or folder, as the recipe writes it.
        store: the model store. The usual one, `~/vllm`, is taken as well.
        allowed: files and folders elsewhere that the owner allows.

    Raises:
        OutsideStore: it is in none of these, or what the store keeps for itself.
        UnsafePath: it is no path that could be allowed.
    """
    checked(to.removeprefix("~/").removeprefix("./").strip("/"))
    path = local_folder(to).absolute()
    for root in (one.expanduser().absolute() for one in allowed):
        if path == root:
            return Inside(path.parent), path.name
        if path.is_relative_to(root):
            return Inside(root), str(path.relative_to(root))
    for root in (store.absolute(), Path.home() / "vllm"):
        if path != root and path.is_relative_to(root):
            name = path.relative_to(root)
            if name.parts[0] not in KEPT:
                return Inside(root), str(name)
    raise OutsideStore(
        f"The recipe writes to {to!a}, which is outside the model store {store} or which the store"
        " keeps for itself."
    )


def local_folder(folder: str, home: Path | None = None) -> Path:
    """A recipe's own folder on this host; its tilde is the user's home."""
    return (home or Path.home()) / folder[2:] if folder.startswith("~/") else Path(folder)


def local_commit(folder: Path) -> str:
    """The commit that a folder of its own was downloaded from, as Hugging Face's library noted it;
    `unknown` where it did not.
    """
    for note in sorted((folder / ".cache" / "huggingface" / "download").rglob("*.metadata")):
        try:
            return note.read_text("utf-8").split()[0]
        except (OSError, ValueError, IndexError):
            continue
    return "unknown"


def torn(file: Path) -> str | None:
    """Why a safetensors file cannot be whole, judged by its header alone; None: nothing speaks
    against it.

    The first 8 bytes are the header's length, then JSON with the offsets of every tensor: the
    largest end is where the file has to end (https://github.com/huggingface/safetensors, "Format").
    This reads kilobytes of gigabytes; a changed byte needs a hash to be seen.
    """
    try:
        with file.open("rb") as stream:
            return torn_stream(stream)
    except OSError as error:
        return f"its header can't be read: {type(error).__name__}"


def torn_stream(stream: BinaryIO) -> str | None:
    """Return what `torn` says of an open file."""
    try:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, 100_000_000):
            return f"its header would be {length} bytes long, the file has {size}"
        header = json.loads(stream.read(length))
        ends = [
            entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"
        ]
        whole = 8 + length + max(ends, default=0)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return f"its header can't be read: {type(error).__name__}"
    return None if whole == size else f"its header lists {whole} bytes, the file has {size}"


def write_cache(
    hub: Path, repo: str, revisions: Mapping[str, Mapping[str, bytes]], main: str
) -> Path:
    """Lay files out as Hugging Face's cache does, and return the repository's folder.

    Contents lie once each under `blobs/`, named by their hash; `snapshots/<commit>/` holds the file
    names as relative links to them; `refs/main` names the commit that the branch pointed to.
    (https://huggingface.co/docs/huggingface_hub/guides/manage-cache)

    Args:
        hub: the `hub` folder under HF_HOME.
        repo: handle of the repository.
        revisions: commit → file name → contents.
        main: the commit that `main` points to.
    """
    from huggingface_hub.file_download import repo_folder_name

    folder = hub / repo_folder_name(repo_id=repo, repo_type="model")
    for kind in ("blobs", "refs", "snapshots"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    (folder / "refs" / "main").write_text(main, "utf-8")
    for commit, files in revisions.items():
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(exist_ok=True)
        for name, contents in files.items():
            blob = folder / "blobs" / hashlib.sha256(contents).hexdigest()
            blob.write_bytes(contents)
            (snapshot / name).symlink_to(Path("../../blobs") / blob.name)
    return folder


@dataclass(frozen=True)
class Mount:
    """The host's side of a volume, before a container is started.

    Attributes:
        host: as the recipe writes it.
        inside: the path in the container.
        exists: where it does not, `docker run -v` makes an empty folder that belongs to root.
        yours: whether it belongs to this user; None where it does not exist.
        writable: whether this user may write to it; None where it does not exist.
    """

    host: str
    inside: str
    exists: bool
    yours: bool | None
    writable: bool | None

    @property
    def todo(self) -> str | None:
        """What to type before the start; None: nothing."""
        if not self.exists:
            return command_line("mkdir", "-p", mark_home(self.host))
        return (
            None if self.yours else command_line("sudo", "chown", "-R", USER, mark_home(self.host))
        )


def mounts(recipe: Recipe, home: Path | None = None) -> list[Mount]:
    """What a recipe mounts, as it is on this host."""
    found = []
    for volume in recipe.container.volumes:
        host, inside = volume.split(":")[:2]
        path = local_folder(host, home)
        exists = path.exists()
        yours = path.stat().st_uid == os.getuid() if exists else None
        found.append(
            Mount(host, inside, exists, yours, os.access(path, os.W_OK) if exists else None)
        )
    return found
