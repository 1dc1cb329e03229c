"""The stack lock: everything that decided how a server ran, as JSON that can be reviewed, compared,
verified and served again.

A lock holds no time and no secret, and its keys come in one order: two locks of the same stack are
the same text. What could not be found out is null.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from sparkbook import recipes
from sparkbook.checkpoint import store
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.host.access import Ran, run
from sparkbook.recipes import Recipe
from sparkbook.recipes.launch import Launch
from sparkbook.rules import Family
from sparkbook.units import format_bytes
from sparkbook.util import invalid, limits
from sparkbook.util.secret import is_secret

FORMAT = "sparkbook-lock/1"
_ORDER = ("format", "recipe", "image", "models", "launch", "engine", "host", "plan", "bench")


LOCK = Family(
    "LOCK",
    "the stack lock",
    "What `sparkbook lock verify` and `lock diff` find, one finding for each section of the lock."
    " Each example is one value of a lock, before and after; they were compared when this page was"
    " built.",
    describe=lambda example: "\n".join(map(str, _example(example))),
    examine=lambda example: judge([one for one in _example(example) if one.before != one.after]),
)
LOCK.load(Path(__file__).with_name("lock.yaml"))


@dataclass(frozen=True)
class Served:
    """What can be asked of a server and its engine; anything may be None.

    Attributes:
        digest: digest of the image in its registry.
        image_id: the image's own id, which an image that was built here has too.
        vllm: version that the server reports.
        docker: version of the Docker engine.
    """

    digest: str | None = None
    image_id: str | None = None
    vllm: str | None = None
    docker: str | None = None


def make(  # noqa: PLR0913 - each is one part of the lock
    launch: Launch,
    recipe: Recipe | None = None,
    *,
    served: Served | None = None,
    folders: Mapping[str, Path] | None = None,
    deep: bool = False,
    runner: Callable[[Sequence[str]], Ran] = run,
    plan: Mapping[str, Any] | None = None,
    bench: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The lock of a stack as it is now.

    Args:
        launch: what is started.
        recipe: the recipe it comes from.
        served: what server and engine report.
        folders: where the files of a model are, by its name, in place of the launch's own.
        deep: hash every file, also those whose name in the cache is their hash already.
        runner: asks the machine; replaced in tests.
        plan, bench: summaries of the memory plan and of a measurement, where there are.
    """
    served = served or Served()
    kernel, machine = runner(["uname", "-r"]), runner(["uname", "-m"])
    return {
        "format": FORMAT,
        "recipe": ({"id": recipe.id, "sha256": fingerprint(recipe)} if recipe else None),
        "image": _image(launch, served),
        "models": {
            name: _files(folder, revision, deep)
            for name, (folder, revision) in _models(launch, recipe, folders or {}).items()
        },
        "launch": _launch(launch),
        "engine": {"vllm": served.vllm, "docker": served.docker},
        "host": {
            "architecture": machine.out if machine.code == 0 else None,
            "kernel": kernel.out if kernel.code == 0 else None,
            **_gpu(
                runner(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
            ),
        },
        "plan": dict(plan) if plan else None,
        "bench": dict(bench) if bench else None,
    }


_OF_A_PLAN = (
    "verdict",
    "release",
    "context",
    "sequences",
    "fraction",
    "kv_dtype",
    "kv_gib",
    "kv_tokens",
)


def planned(source: str, fraction: float | None = None) -> dict[str, Any] | None:
    """Return the memory plan of a stack, with another share of the memory if one is given, in the
    few figures that a lock keeps; None if its checkpoint is unknown.
    """
    from sparkbook import plan

    try:
        summary = plan.of(source, fraction=fraction).to_dict()["summary"]
    except SparkbookError:
        return None
    return {name: summary[name] for name in _OF_A_PLAN}


def _image(launch: Launch, served: Served) -> dict[str, Any] | None:
    if launch.image is None:
        return None
    name, _, pinned = launch.image.partition("@")
    return {"ref": name, "digest": served.digest or pinned or None, "id": served.image_id}


def _launch(launch: Launch) -> dict[str, Any]:
    """The launch without its image; the values of secrets are null already, and this makes sure of
    it.
    """
    data = launch.model_dump(mode="json", exclude={"image"})
    data["env"] = {
        name: None if is_secret(name, value) else value for name, value in data["env"].items()
    }
    return data


def _gpu(asked: Ran) -> dict[str, Any]:
    rows = (
        [line.rsplit(",", 1) for line in asked.out.splitlines() if "," in line]
        if asked.code == 0
        else []
    )
    return {
        "gpus": [name.strip() for name, _ in rows] or None,
        "driver": rows[0][1].strip() if rows else None,
    }


def fingerprint(recipe: Recipe) -> str:
    """Return the SHA-256 of everything that a recipe says."""
    text = json.dumps(recipe.model_dump(mode="json"), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _models(
    launch: Launch, recipe: Recipe | None, given: Mapping[str, Path]
) -> dict[str, tuple[Path | None, str | None]]:
    """Each checkpoint, model and draft, with the folder of its files on this host (None: not found)
    and the commit it is of.
    """
    if given:
        return {name: (folder, _commit(folder)) for name, folder in given.items()}
    found: dict[str, tuple[Path | None, str | None]] = {}
    cache = store.local_folder(
        launch.container.on_host(launch.env.get("HF_HOME") or "~/.cache/huggingface")
    )
    for one in store.repositories(recipe) if recipe else ():
        folder = (
            store.local_folder(one.folder)
            if one.folder
            else store.snapshot(cache, one.repo, one.revision)
        )
        found[one.repo] = (
            folder if folder and folder.is_dir() else None,
            one.revision if one.folder or not folder else folder.name,
        )
    if not found and (model := launch.serve.model):
        folder = Path(launch.container.on_host(model)).expanduser()
        staged = store.snapshot(cache, model) if re.fullmatch(r"[\w.-]+/[\w.-]+", model) else None
        place = folder if folder.is_dir() else staged
        found[model] = (place, staged.name if staged and place == staged else None)
    return found


def _commit(folder: Path) -> str | None:
    return folder.name if re.fullmatch(r"[0-9a-f]{40}", folder.name) else None


def _files(folder: Path | None, revision: str | None, deep: bool) -> dict[str, Any]:
    """Revision, and size and SHA-256 of each file.

    In Hugging Face's cache a large file has its SHA-256 as name: that is taken at its word,
    unless `deep`.
    """
    if folder is None:
        return {"revision": revision, "files": None}
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if not path.is_file() or any(
            part.startswith(".") for part in path.relative_to(folder).parts
        ):
            continue
        real = path.resolve()
        told = real.name if path.is_symlink() and re.fullmatch(r"[0-9a-f]{64}", real.name) else None
        try:
            if told is None or deep:
                with real.open("rb") as content:
                    told = hashlib.file_digest(content, "sha256").hexdigest()
            files[name] = {"bytes": real.stat().st_size, "sha256": told}
        except OSError as error:
            raise SparkbookError(f"{path} can't be read: {error.strerror}") from None
    return {"revision": revision, "files": files}


# ---- text


def unpinned(lock: Mapping[str, Any]) -> list[str]:
    """Return what decides how the server runs and has no fixed content in a lock."""
    image = lock["image"]
    loose = [f"the digest of {image['ref']}"] if image and not image["digest"] else []
    return loose + [
        f"the commit of {name}"
        for name, model in lock["models"].items()
        if not (model["revision"] or model["files"])
    ]


def dumps(lock: Mapping[str, Any]) -> str:
    """The lock as text: sections in their order, what is inside them sorted, so that it can be
    reviewed line by line.
    """
    ordered = {
        name: _sorted(lock[name]) if name != "launch" else lock[name]
        for name in _ORDER
        if name in lock
    }
    return json.dumps(ordered, indent=2, ensure_ascii=False) + "\n"


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True)


class _Recipe(_Strict):
    id: str
    sha256: str


class _Image(_Strict):
    ref: str
    digest: str | None
    id: str | None


class _Lock(_Strict):
    """What a lock is made of, as far as other code relies on it."""

    recipe: _Recipe | None
    image: _Image | None
    models: dict[str, dict[str, Any]]
    launch: dict[str, Any]
    engine: dict[str, str | None]
    host: dict[str, Any]
    plan: dict[str, Any] | None
    bench: dict[str, Any] | None


def read(file: str | Path) -> dict[str, Any]:
    """A lock from its file.

    Raises:
        SparkbookError: it can't be read, or is none.
    """
    path = Path(file).expanduser()
    lock = limits.read_json(path, "the lock")
    if not isinstance(lock, dict) or lock.get("format") != FORMAT:
        raise SparkbookError(
            f'{path} is not a stack lock of this version: it should say "format": "{FORMAT}"'
        )
    if missing := [name for name in _ORDER if name not in lock]:
        raise SparkbookError(f"the lock {path} lacks {', '.join(missing)}")
    try:
        _Lock.model_validate(lock)
    except ValidationError as error:
        raise SparkbookError(f"the lock {path} is damaged: {invalid.reason(error)}") from None
    launch_of(lock)
    return lock


def launch_of(lock: Mapping[str, Any]) -> Launch:
    """What a lock starts: the launch, with its image pinned to the locked digest.

    Raises:
        SparkbookError: it holds no launch that can be used.
    """
    image = lock["image"]
    reference = None
    try:
        if image:
            reference = f"{image['ref']}@{image['digest']}" if image["digest"] else image["ref"]
        return Launch.model_validate({**lock["launch"], "image": reference})
    except (ValidationError, TypeError, KeyError) as error:
        raise SparkbookError(
            f"the lock holds no launch that can be used: {invalid.reason(error)}"
        ) from None


def recipe_of(lock: Mapping[str, Any]) -> Recipe | None:
    """The recipe that a lock names, if it is still there: for what the server is said to be able to
    do.
    """
    try:
        return recipes.load(lock["recipe"]["id"]) if lock["recipe"] else None
    except SparkbookError:
        return None


# ---- comparing


@dataclass(frozen=True)
class Change:
    """One value that differs: where it stands, and what it was and is. A value that is not there is
    None, as one that is not known.
    """

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {shown(self.path, self.before)} → {shown(self.path, self.after)}"


def shown(path: str, value: Any) -> str:
    if value is None:
        return "nothing"
    if path.endswith(".bytes"):
        return format_bytes(value)
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) <= 100 else f"{text[:97]}..."


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    """What differs between two locks, in their order."""
    return [
        change
        for name in _ORDER
        if name != "format"
        for change in _changes(name, before.get(name), after.get(name))
    ]


def _changes(path: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in [*before, *(key for key in after if key not in before)]:
            yield from _changes(f"{path}.{key}", before.get(key), after.get(key))
    elif before != after:
        yield Change(path, before, after)


def judge(changes: Sequence[Change], *, unknown: bool = True) -> Findings:
    """Findings for what moved, one a section.

    Args:
        changes: from the lock to what is there now.
        unknown: whether a value that is not known now counts as moved; False leaves out what can't
            be asked, as of a server that is down.
    """
    by_section: dict[str, list[Change]] = {}
    for change in changes:
        if (
            change.after is None
            and not unknown
            and change.path.split(".")[0] in ("image", "engine", "models", "plan", "bench")
        ):
            continue
        by_section.setdefault(change.path.split(".")[0], []).append(change)
    rules = {rule.name: rule for rule in LOCK.rules.values()}
    findings = []
    for section, moved in by_section.items():
        more = f"; {len(moved) - 4} more" if len(moved) > 4 else ""
        evidence = "; ".join(str(change) for change in moved[:4]) + more
        values = f"{len(moved)} {'value' if len(moved) == 1 else 'values'}"
        findings.append(rules[section].finding(evidence=evidence, values=values))
    return Findings(findings)


def _example(values: Mapping[str, Sequence[Any]]) -> list[Change]:
    """The values of a rule's example, as they were locked and as they are now."""
    return [Change(path, before, after) for path, (before, after) in values.items()]
