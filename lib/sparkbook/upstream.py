"""Other people's recipes, as they are now: fetched, converted, judged, and compared with the
catalogue and with what was taken over before. Nothing is written until one is named.

A place is a folder, a GitHub repository (`OWNER/NAME` or its address, read as an archive over
HTTPS), the address of a `.tar.gz`, or a repository that `git` can clone. What comes is not trusted:
an archive, a file and their number have bounds, and a name leaves no folder.
"""

from __future__ import annotations

import datetime
import fnmatch
import io
import re
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from sparkbook import formats, lint, recipes
from sparkbook.errors import SparkbookError
from sparkbook.formats.conversion import Conversion, changes, leaves
from sparkbook.formats.lines import of_launch
from sparkbook.lint.case import Case
from sparkbook.plan import memory, request
from sparkbook.recipes import Recipe
from sparkbook.recipes.schema import Source
from sparkbook.util import limits

State = Literal["new", "changed", "same", "not readable"]

PEERS = {
    "NVIDIA/local-ai-inference-recipes": "models/*/dgx-spark*/*/vllm/*recipe.yaml",
    "eugr/spark-vllm-docker": "recipes/*.yaml",
    "spark-arena/recipe-registry": "*-recipes/*.yaml",
}
"""Repositories that publish recipes for a Spark, and where in them (`*` takes folders too)."""

MAX_ARCHIVE = 64_000_000
"""Bytes of a repository's archive, packed and unpacked."""
MAX_RECIPE = 1_000_000
MAX_FILES = 2000
_WAIT_S = 120.0
_PLACES = ("image.ref", "image.digest", "serve", "env", "draft")
"""What makes two recipes different: what is started, not what is said of it."""
_TAKEN = "taken over from "


@dataclass(frozen=True)
class Found:
    """One recipe of a place, judged.

    Attributes:
        file: its path there.
        state: `new`: no recipe of ours cites the file; `changed`: one does, and starts something
            else; `same`; `not readable`.
        recipe: what was read; None if it can't be read.
        text: as it was read.
        known: id of our recipe that cites it.
        differs: what it starts differently, in words.
        errors: what the linter and the plan have against it.
        reason: why it can't be read.
    """

    file: str
    state: State
    recipe: Recipe | None = None
    text: str = field(default="", repr=False)
    known: str | None = None
    differs: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    reason: str | None = None

    @property
    def id(self) -> str:
        """The recipe's id; the file's path if there is none."""
        return self.recipe.id if self.recipe else self.file

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "id": self.id,
            "file": self.file,
            "state": self.state,
            "known": self.known,
            "differs": list(self.differs),
            "errors": list(self.errors),
            "reason": self.reason,
        }

    def lines(self) -> Iterator[str]:
        """Yield what a person reads."""
        of = f" (our {self.known})" if self.known else ""
        longer = "no longer" if self.known else "not"
        verdict = f"{longer} accepted" if self.errors else "accepted"
        yield f"{self.state}: {self.id}{of}, {self.reason or verdict}: {self.file}"
        yield from (f"  differs: {one}" for one in self.differs)
        yield from (f"  {one}" for one in self.errors)


# ---- reading a place


def files(place: str) -> dict[str, bytes]:
    """Return every YAML file of a place, by its path there.

    Raises:
        SparkbookError: the place can't be read, or exceeds a bound.
    """
    if Path(place).expanduser().is_dir():
        return dict(_folder(Path(place).expanduser()))
    if re.fullmatch(r"[A-Za-z0-9][\w-]*/[\w.-]+", place):
        place = f"https://github.com/{place}"
    if github := re.fullmatch(r"https://github\.com/([\w-]+/[\w.-]+?)(?:\.git)?/?", place):
        return _archive(f"https://github.com/{github[1]}/archive/HEAD.tar.gz")
    if re.match(r"https?://", place) and place.endswith((".tar.gz", ".tgz")):
        return _archive(place)
    if re.match(r"(https?|ssh|file)://|[\w.-]+@[\w.-]+:", place):
        return _cloned(place)
    raise SparkbookError(
        f"'{place}' is neither a folder nor a repository: give a folder, OWNER/NAME, or an address"
    )


def _folder(folder: Path) -> Iterator[tuple[str, bytes]]:
    count = 0
    for path in sorted(folder.rglob("*.yaml")):
        if path.is_symlink() or not path.is_file() or ".git" in path.relative_to(folder).parts:
            continue
        count += 1
        if count > MAX_FILES:
            raise SparkbookError(f"{folder} has more than {MAX_FILES:,} YAML files")
        yield path.relative_to(folder).as_posix(), limits.read_bytes(path, most=MAX_RECIPE)


def _cloned(address: str) -> dict[str, bytes]:
    """Return the files of a repository's newest commit."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["git", "-c", "core.symlinks=false", "clone", "--quiet", "--depth", "1"]
        ran = limits.run([*words, "--", address, folder], timeout_s=_WAIT_S)
        if ran.code:
            reason = (ran.err.splitlines() or ["git gave no reason"])[-1]
            raise SparkbookError(f"{address} can't be cloned: {reason}")
        return dict(_folder(Path(folder)))


def _archive(address: str) -> dict[str, bytes]:
    """Return the files of an archive, without the folder that holds them all."""
    import httpx

    try:
        with (
            httpx.Client(follow_redirects=True, timeout=_WAIT_S) as client,
            client.stream("GET", address) as reply,
        ):
            reply.raise_for_status()
            packed = b""
            for part in reply.iter_bytes():
                packed += part
                if len(packed) > MAX_ARCHIVE:
                    raise SparkbookError(f"{address} has more than {MAX_ARCHIVE / 1e6:g} MB")
    except httpx.HTTPError as error:
        raise SparkbookError(f"{address} can't be read: {error or type(error).__name__}") from None
    found: dict[str, bytes] = {}
    left = MAX_ARCHIVE
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r|gz") as archive:
            for member in archive:
                left -= member.size
                if left < 0 or len(found) >= MAX_FILES:
                    raise SparkbookError(f"{address} holds more than such a repository does")
                parts = PurePosixPath(member.name).parts[1:]
                stream = archive.extractfile(member) if member.isreg() else None
                if stream and parts and parts[-1].endswith(".yaml"):
                    found["/".join(parts)] = limits.read_stream(
                        stream, member.name, most=MAX_RECIPE
                    )
    except (tarfile.TarError, EOFError, OSError) as error:
        raise SparkbookError(f"{address} is no .tar.gz archive: {error}") from None
    return found


# ---- judging what was read


def compare(place: str, ours: Sequence[Recipe]) -> list[Found]:
    """Return every recipe of a place, judged and compared with ours.

    Args:
        place: as for `files`.
        ours: recipes, of which the first that cites a file counts.

    Raises:
        SparkbookError: the place can't be read, or holds no recipe.
    """
    pattern = PEERS.get(_peer(place) or "", "*")
    citing = _cited(ours)
    found = [
        one
        for name, content in files(place).items()
        if fnmatch.fnmatch(name, pattern) and (one := _judged(name, content, citing)) is not None
    ]
    if not found:
        raise SparkbookError(f"{place} holds no recipe of a format that is known")
    return found


def _peer(place: str) -> str | None:
    named = place.removeprefix("https://github.com/").removesuffix(".git").strip("/")
    return named if named in PEERS else None


def _cited(ours: Sequence[Recipe]) -> dict[str, Recipe]:
    """Return our recipes by the path of each file that they cite."""
    found: dict[str, Recipe] = {}
    for recipe in ours:
        for source in recipe.sources:
            path = re.search(r"/blob/[^/]+/(.+\.yaml)$", source.url or "")
            path = path or re.fullmatch(rf"{_TAKEN}(.+\.yaml)", source.title)
            if path:
                found.setdefault(path[1], recipe)
    return found


def ours(folder: Path) -> list[Recipe]:
    """Return what a place is compared with: what was taken over into a folder, then the catalogue.

    Raises:
        SparkbookError: a file of the folder is no recipe.
    """
    taken = [recipes.load(path) for path in sorted(folder.glob("*.yaml"))]
    return [*taken, *recipes.all()]


def _judged(file: str, content: bytes, citing: Mapping[str, Recipe]) -> Found | None:
    """Return a file's recipe with what is to be said of it; None for a file of another kind."""
    known = citing.get(file)
    try:
        text = content.decode("utf-8")
        name = formats.detect(text)
    except (UnicodeDecodeError, SparkbookError):
        return Found(file, "not readable", reason="of no known format") if known else None
    try:
        read = formats.read(text, name)
    except SparkbookError as error:
        reason = " ".join(str(error).split())
        ours = known.id if known else None
        return Found(file, "not readable", None, text, ours, reason=reason)
    errors = (*_errors(read), *_plan(read))
    common: dict[str, Any] = {"recipe": read.recipe, "text": text, "errors": errors}
    if known is None:
        return Found(file, "new", **common)
    here, there = leaves(known), leaves(read.recipe)
    differs = tuple(
        f"{at}: {here.get(at, 'nothing')} here, {there.get(at, 'nothing')} there"
        for at, change in changes(known, read.recipe).items()
        # What we add to every recipe (caches, a key, a digest) they need not have.
        if at.startswith(_PLACES if change != "lost" else "serve")
        and not (at.endswith("parallel-size") and there.get(at) == 1)
    )
    return Found(file, "changed" if differs else "same", known=known.id, differs=differs, **common)


def _errors(read: Conversion) -> Iterator[str]:
    for finding in lint.lint(read.recipe).findings:
        if finding.severity == "error":
            yield f"{finding.rule}: {finding.message}"


def _plan(read: Conversion) -> Iterator[str]:
    """Yield why it does not fit; nothing where too little is known of the model."""
    try:
        line = of_launch(read.recipe.launch, read.recipe)
        planned = memory.plan(request.of_case(Case(line), request.Override()))
    except SparkbookError:
        return
    if planned.verdict == "does not fit":
        yield f"plan: {planned.verdict}"


def named(found: Sequence[Found], name: str) -> Found:
    """Return the recipe with an id, or the file's path if several have that id.

    Raises:
        SparkbookError: there is none, or several have it.
    """
    matching = [one for one in found if name in (one.id, one.file)]
    if len(matching) > 1:
        paths = ", ".join(one.file for one in matching)
        raise SparkbookError(f"several recipes have the id {name}: name one by its path: {paths}")
    if not matching:
        raise SparkbookError(f"no recipe there has the id {name}")
    return matching[0]


def take(found: Found, folder: Path) -> Path:
    """Write a recipe into a folder, in this book's own form; return the file.

    Raises:
        SparkbookError: it can't be read, the file is there, or can't be written.
    """
    if found.recipe is None:
        raise SparkbookError(f"{found.file} can't be taken over: {found.reason}")
    path = folder / f"{found.recipe.id.replace('/', '-')}.yaml"
    source = Source(id="taken", title=f"{_TAKEN}{found.file}", date=datetime.date.today())
    kept = [one for one in found.recipe.sources if one.id != source.id]
    recipe = found.recipe.model_copy(update={"sources": [*kept, source]})
    text = formats.write(recipe, "recipe").text
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise SparkbookError(f"{path} is there already: rename or remove it first") from None
    except OSError as error:
        raise SparkbookError(f"{path} can't be written: {error.strerror}") from None
    return path
