"""Builds lib/sparkbook/logs/sentences.bin: facts about every message that vLLM and what runs with
it can print. The file holds hashes and facts, no text.

    .venv/bin/python tools/build_sentences.py --cache FOLDER           # every source; hours of
    downloads the first time; FOLDER keeps what was read, and the wheels are deleted
    .venv/bin/python tools/build_sentences.py --cache FOLDER --only vllm==0.32.0 --only torch
    .venv/bin/python tools/build_sentences.py --installed PACKAGE --print
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import build_releases
from sentence_source import Message, Reader, config_fields, read_binary, read_cpp
from sparkbook.logs import sentences

FORMAT = 1
"""Number of what is kept in the cache; it changes with the readers of sources."""

VLLM = [release for release in build_releases.RELEASES if release != "0.33.0"]
CONFIGURATION = ("vllm/config", "vllm/engine/arg_utils")
WHEELS: dict[str, list[str]] = {
    "torch": ["torch==2.13.0"],
    "transformers": ["transformers==5.19.0"],
    "huggingface_hub": ["huggingface_hub==2.4.0"],
    "compressed_tensors": ["compressed-tensors==0.17.0"],
    "xgrammar": ["xgrammar==0.2.8"],
    "ray": ["ray==2.60.0"],
    "flashinfer": ["flashinfer-python==0.7.4"],
    "fastsafetensors": ["fastsafetensors==0.5.0"],
    "safetensors": ["safetensors==0.8.0"],
    "nccl": ["nvidia-nccl-cu13==2.32.3"],
}
"""Package: the wheels that are read for it, oldest first."""

MAX_PLACES = 6
MAX_SPREAD = 3
"""A shingle that more packages share is plain English."""


@dataclass(frozen=True, kw_only=True)
class Slice:
    """What one release of one package can say."""

    package: str
    release: str
    messages: list[Message]


# ---- reading


class Releases:
    """The releases of vLLM.

    Args:
        cache: folder of downloads.

    Attributes:
        fields: configuration fields of all releases.
        aliases: pairs of a field and its option, if the option has another name.
    """

    def __init__(self, cache: Path) -> None:
        self.cache = cache
        fields: set[str] = set()
        self.aliases: set[tuple[str, str]] = set()
        for release in VLLM:
            of_release, aliases = config_fields(self.files(release, CONFIGURATION))
            fields |= of_release
            self.aliases |= aliases
        self.fields = frozenset(fields)
        self._known: dict[str, list[Message]] = {}

    def files(self, release: str, prefix: str | tuple[str, ...] = "") -> dict[str, str]:
        """Return the text of a release's Python files."""
        with zipfile.ZipFile(build_releases.fetch(release, self.cache)) as packed:
            names = sorted(name for name in packed.namelist() if name.startswith(prefix))
            return {name: packed.read(name).decode("utf-8", "replace") for name in names}

    def read(self, release: str) -> Slice:
        """Return the messages of a release; a file that two releases share is parsed once."""
        messages: list[Message] = []
        for name, text in self.files(release).items():
            if name.startswith("vllm/third_party/"):
                continue
            key = hashlib.sha1(f"{name}\n{text}".encode()).hexdigest()
            if key not in self._known:
                self._known[key] = Reader(module_of(name), self.fields).read(text)
            messages += self._known[key]
        return Slice(package="vllm", release=release, messages=messages)


def module_of(name: str) -> str:
    """Return the dotted module of a file."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read_files(package: str, files: Iterable[tuple[str, bytes]]) -> Iterator[Message]:
    """Yield the messages of a package's files: Python, C++, CUDA, binaries."""
    for name, data in files:
        if "/tests/" in name or "/testing/" in name or "/examples/" in name:
            continue
        if name.endswith(".py"):
            yield from Reader(module_of(name), None).read(data.decode("utf-8", "replace"))
        elif name.endswith((".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc")):
            if not any(part in name for part in ("/cccl/", "/spdlog/", "/cutlass/")):
                yield from read_cpp(name, data.decode("utf-8", "replace"))
        elif ".so" in name.rpartition("/")[2]:
            yield from read_binary(name, data)


def wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a wheel that may hold messages."""
    with zipfile.ZipFile(wheel) as packed:
        for name in sorted(packed.namelist()):
            if name.endswith(SUFFIXES) or ".so" in name.rpartition("/")[2]:
                yield name, packed.read(name)


SUFFIXES = (".py", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc")


def installed_files(package: str) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of a package of this environment."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not installed"
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root.parent).as_posix(), path.read_bytes()


def read_wheel(package: str, requirement: str, cache: Path) -> Slice:
    """Return the messages of a wheel; it is deleted, and the cache keeps what was read."""
    kept = cache / f"{requirement}.{FORMAT}.json.gz"
    release = requirement.partition("==")[2]
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            arguments = ("--no-deps", "--no-cache-dir", "-d", folder, requirement)
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", *arguments],
                check=True,
                env={**os.environ, "PIP_FIND_LINKS": ""},
            )
            (wheel,) = Path(folder).glob("*.whl")
            messages = list(read_files(package, wheel_files(wheel)))
        kept.write_bytes(gzip.compress(json.dumps([asdict(m) for m in messages]).encode()))
    rows = json.loads(gzip.decompress(kept.read_bytes()))
    messages = [
        Message(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
        for row in rows
    ]
    return Slice(package=package, release=release, messages=messages)


# ---- merging


@dataclass
class Place:
    """Where a sentence is said, and in which releases."""

    message: Message
    seen: set[int]


def merge(slices: Iterable[Slice], aliases: Iterable[tuple[str, str]] = ()) -> bytes:
    """Return the file's bytes for the slices of each package, oldest release first."""
    known: dict[str, list[str]] = {}
    texts: dict[tuple[str, tuple[str, ...]], dict[tuple[str, str, str], Place]] = {}
    for part in slices:
        releases = known.setdefault(part.package, [])
        releases.append(part.release)
        for message in part.messages:
            key = part.package, _plain(message.pieces)
            places = texts.setdefault(key, {})
            where = message.module, message.function, message.kind
            place = places.setdefault(where, Place(message, set()))
            place.message = message
            place.seen.add(len(releases) - 1)
    return Table(known, aliases).pack(texts)


def _plain(pieces: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(" ".join(sentences.words(piece)) for piece in pieces)


class Table:
    """The columns of the file, while they are filled."""

    def __init__(self, known: dict[str, list[str]], aliases: Iterable[tuple[str, str]]) -> None:
        self.known = known
        self.aliases = sorted(aliases)
        self.numbers: dict[str, dict[object, int]] = defaultdict(dict)
        self.columns: dict[str, list[int]] = {name: [] for name in sentences.COLUMNS}

    def number(self, table: str, value: object) -> int:
        """Return the number of a value in one of the tables of names."""
        return self.numbers[table].setdefault(value, len(self.numbers[table]))

    def pack(self, texts: dict[tuple[str, tuple[str, ...]], dict]) -> bytes:
        """Return the file's bytes."""
        owners: dict[int, list[int]] = defaultdict(list)
        spread: dict[int, set[str]] = defaultdict(set)
        for number, ((package, pieces), places) in enumerate(sorted(texts.items())):
            for value in sentences.shingles(pieces):
                owners[value].append(number)
                spread[value].add(package)
            self._sentence(package, pieces, places)
        kept = {
            value: numbers
            for value, numbers in owners.items()
            if len(numbers) <= sentences.MAX_OWNERS and len(spread[value]) <= MAX_SPREAD
        }
        self._shingles(kept)
        names = {table: list(values) for table, values in self.numbers.items()}
        names["releases"] = self.known  # type: ignore[assignment]
        names["aliases"] = self.aliases
        return sentences.pack(names, self.columns)

    def _sentence(self, package: str, pieces: tuple[str, ...], places: dict[tuple, Place]) -> None:
        columns = self.columns
        newest = max(max(place.seen) for place in places.values())
        every = set().union(*(place.seen for place in places.values()))
        last = [place for place in places.values() if newest in place.seen][:MAX_PLACES]
        columns["packages"].append(self.number("packages", package))
        columns["words"].append(min(255, sum(len(piece.split()) for piece in pieces)))
        columns["places"].append(len(last))
        for place in last:
            message = place.message
            columns["modules"].append(self.number("modules", message.module))
            columns["functions"].append(self.number("functions", message.function))
            columns["kinds"].append(sentences.KINDS.index(message.kind))
            columns["spans"].append(self.number("spans", spans(every)))
            columns["conditions"].append(self.number("fields", message.conditions))
            columns["named"].append(self.number("fields", message.named))

    def _shingles(self, owners: dict[int, list[int]]) -> None:
        columns = self.columns
        per_bucket = Counter(value >> 16 for value in owners for _ in owners[value])
        columns["counts"] = [per_bucket[bucket] for bucket in range(1 << 16)]
        for value in sorted(owners):
            for number in owners[value]:
                columns["hashes"].append(value & 0xFFFF)
                columns["owners"].append(number & 0xFFFF)
                columns["owners_high"].append(number >> 16)


def spans(seen: set[int]) -> tuple[tuple[int, int], ...]:
    """Return the runs of numbers in a set: first and last of each."""
    runs: list[list[int]] = []
    for number in sorted(seen):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return tuple((first, last) for first, last in runs)


def slices(vllm: Releases, cache: Path, only: list[str] | None) -> Iterator[Slice]:
    """Yield every slice, oldest release of a package first."""
    for release in VLLM:
        if only is None or "vllm" in only or f"vllm=={release}" in only:
            yield vllm.read(release)
    for package, requirements in WHEELS.items():
        for requirement in requirements:
            if only is None or package in only:
                yield read_wheel(package, requirement, cache)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True, help="folder for what was read")
    parser.add_argument("--only", action="append", help="a package, or vllm==RELEASE")
    parser.add_argument("--out", type=Path, default=sentences.DATA)
    given = parser.parse_args()
    given.cache.mkdir(parents=True, exist_ok=True)

    vllm = Releases(given.cache)

    def told() -> Iterator[Slice]:
        for part in slices(vllm, given.cache, given.only):
            print(part.package, part.release, len(part.messages), file=sys.stderr, flush=True)
            yield part

    data = merge(told(), vllm.aliases)
    given.out.write_bytes(data)
    opened = sentences.unpack(data)
    numbers = {
        "bytes": len(data),
        "sentences": len(opened.columns["packages"]),
        "places": len(opened.columns["modules"]),
        "shingles": len(opened.columns["hashes"]),
    }
    print(json.dumps(numbers), file=sys.stderr)


if __name__ == "__main__":
    main()
