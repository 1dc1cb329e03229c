"""The model store: what recipes put on disk, and how a Hugging Face cache is laid out."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkbook.bandwidth import bytes_per_token
from sparkbook.recipes import Recipe
from sparkbook.recipes.schema import Model
from sparkbook.units import GB


@dataclass(frozen=True)
class Disk:
    """What one checkpoint takes on disk, in GB (10^9 bytes).

    Attributes:
        repo: Hugging Face handle, or a name within this package.
        weights_gb: the weights.
        estimated: whether no source states the size, and it was worked out from the parameters.
        draft_gb: a draft model in a repository of its own; None where there is none, or its size is not known.
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

    A size that no source states is total parameters times the width of the weights on disk, which is too little where layers are kept in a
    wider format. A model of which neither is known is left out.
    """
    found: dict[str, Disk] = {}
    for recipe in recipes:
        model = recipe.model
        weights, draft = _weights_gb(model), recipe.draft
        if weights is None:
            continue
        # A draft given as a path lies inside the target's own repository.
        separate = draft.size_gb if draft and draft.model and not draft.model.startswith("/") else None
        known = found.get(model.repo)
        best = max((size for size in (separate, known and known.draft_gb) if size is not None), default=None)
        found[model.repo] = Disk(model.repo, weights, model.weights_gb is None, best)
    return sorted(found.values(), key=lambda disk: (-disk.total_gb, disk.repo))


def _weights_gb(model: Model) -> float | None:
    if model.weights_gb is not None:
        return model.weights_gb
    if model.total_params_b is None:
        return None
    # What vLLM quantizes while loading lies on disk as it was trained.
    on_disk = "bf16" if model.quantization.producer == "vllm" else model.quantization.format
    return bytes_per_token(model.total_params_b, on_disk) / GB


def download_lines(recipe: Recipe) -> list[str]:
    """The `hf download` lines that stage a recipe's weights on the host; none for a model that ships with this package.

    A recipe that reads its weights from a folder of its own names it; all others are found in the cache under HF_HOME.
    """
    steps = [step for step in recipe.prepare if step.do == "download" and step.repo]
    if steps:
        # A tilde stays bare, so that the shell expands it.
        return [f"hf download {step.repo}" + (f" --local-dir {step.to}" if step.to else "") for step in steps]
    if "/" not in recipe.model.repo:
        return []
    revision = f" --revision {shlex.quote(recipe.model.revision)}" if recipe.model.revision else ""
    lines = [f"hf download {recipe.model.repo}{revision}"]
    if recipe.draft and recipe.draft.model and not recipe.draft.model.startswith("/"):
        lines.append(f"hf download {recipe.draft.model}")
    return lines


def write_cache(hub: Path, repo: str, revisions: Mapping[str, Mapping[str, bytes]], main: str) -> Path:
    """Lay files out as Hugging Face's cache does, and return the repository's folder.

    Contents lie once each under `blobs/`, named by their hash; `snapshots/<commit>/` holds the file names as relative links to them;
    `refs/main` names the commit that the branch stood at. (https://huggingface.co/docs/huggingface_hub/guides/manage-cache)

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
