"""Builds lib/sparkbook/logs/sentences.bin: facts about every message that vLLM and what runs with
it can print. The file holds hashes and facts, no text.

    .venv/bin/python tools/build_sentences.py --cache FOLDER           # every source; 6 GB of
    downloads the first time; FOLDER keeps what was read, and the wheels are deleted
    .venv/bin/python tools/build_sentences.py --cache FOLDER --only vllm==0.32.0 --only torch
    .venv/bin/python tools/build_sentences.py --measure FILE
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import build_releases
from sentence_source import Message, Reader, config_fields, read_binary, read_cpp, read_go
from sparkbook.logs import sentences

FORMAT = 1
"""Number of what is kept in the cache; it changes with the readers of sources."""

VLLM = list(build_releases.RELEASES)
CONFIGURATION = ("vllm/config", "vllm/engine/arg_utils")
WHEELS = {
    "cuda": ["nvidia-cuda-runtime==13.0.96"],
    "torch": ["torch==2.13.0"],
    "transformers": ["transformers==5.19.0"],
    "huggingface_hub": ["huggingface_hub==0.36.0", "huggingface_hub==2.4.0"],
    "compressed_tensors": ["compressed-tensors==0.13.0", "compressed-tensors==0.17.0"],
    "xgrammar": ["xgrammar==0.2.8"],
    "ray": ["ray==2.60.0"],
    "flashinfer": ["flashinfer-python==0.7.4"],
    "fastsafetensors": ["fastsafetensors==0.5.0"],
    "safetensors": ["safetensors==0.8.0"],
    "triton": ["triton==3.6.0"],
    "nccl": ["nvidia-nccl-cu13==2.32.3"],
}
"""Package: the wheels that are read for it, oldest first. CUDA's runtime is linked into other
libraries, so it comes first: its messages are its own there, too."""

KERNELS = "vllm==0.33.0"
"""The CUDA build whose binaries are read; which other releases have their messages is unknown."""

REPOSITORIES = {
    "nccl": ("NVIDIA/nccl", "5067397c", "2.30", ()),
    "gloo": ("pytorch/gloo", "70dc360", "2026-04-21", ()),
    "deepgemm": ("deepseek-ai/DeepGEMM", "54e2261", "2.1.1", ("csrc", "deep_gemm")),
    "nvidia-container-toolkit": (
        "NVIDIA/nvidia-container-toolkit",
        "d34b3046",
        "1.20.0",
        ("cmd", "internal", "pkg"),
    ),
    "nvidia-driver": (
        "NVIDIA/open-gpu-kernel-modules",
        "df1c9a3",
        "595.45.04",
        ("src/nvidia/src/kernel", "src/nvidia/src/libraries", "src/nvidia/arch", "kernel-open"),
    ),
}
"""Package: repository on GitHub, commit, release (or date), folders: what no registry has."""

DEBIAN = {
    "docker": ("docker.io", "28.5.2"),
    "containerd": ("containerd", "2.1.9"),
    "runc": ("runc", "1.3.6"),
}
"""Package: Debian's source package, and the release that Debian's newest suite had."""

KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

LIBRARIES = re.compile(
    r"(?:^|/)lib(?:torch_cpu|torch_cuda|torch_python|c10|c10_cuda|cudart|nccl)\.so"
    r"|^vllm/.*\.abi3\.so$"
)
"""Binaries whose strings are read."""
SOURCES = (".py", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc", ".c", ".go")
SPOKEN = re.compile(
    rb"(?:CHECK|ASSERT|ERROR|throw|WARN|LOG|printf|printk)"
    rb'[^;]{0,400}?"[^"\n]*[a-z]+ [a-z]+ [^"\n]*'
)
"""A statement of a C++ source that says something; files without one are left out."""
MAX_SOURCE = 600_000
"""A longer source is made by a program."""
SKIPPED = re.compile(
    r"(?:^|/)(?:tests?|testing|testdata|examples?|docs?|benchmarks?|vendor|contrib|cccl|spdlog|cutlass"
    r"|third_party|third-party|_vendor|thirdparty_files|include/(?:torch|ATen|c10)|plugins"
    r"|generated|rllib|tune|dashboard|train)/|_test\.|_mock\.|/conftest|test_\w+\.py$"
    r"|flashinfer/.*(?:cake|_frost|_block|blackwell_|hopper_|/gdn/|/kda/|/kernel_src/|/prims_ts/)"
    r"|transformers/.*/(?:modeling|modular|convert)_(?!utils)\w+\.py$"
)
"""Files that nobody runs beside vLLM."""

PLAIN_WORDS = 600
SKIPPED_PLAIN = {"site-packages", "test", "tests", "lib2to3", "idlelib", "turtledemo"}
MAX_PLACES = 6
MAX_SPREAD = 3
"""A shingle that more packages share is plain English."""


@dataclass(frozen=True)
class Slice:
    """What one release of one package can say."""

    package: str
    release: str
    messages: list[Message] = field(default_factory=list)


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
            of_release, aliases = self._configuration(release)
            fields |= of_release
            self.aliases |= aliases
        self.fields = frozenset(fields)
        self._known: dict[str, list[Message]] = {}

    def _configuration(self, release: str) -> tuple[set[str], set[tuple[str, str]]]:
        path = self.cache / f"configuration-{release}.{FORMAT}.json"
        if not path.exists():
            fields, aliases = config_fields(self.files(release, CONFIGURATION))
            path.write_text(json.dumps([sorted(fields), sorted(aliases)]), "utf-8")
        fields, aliases = json.loads(path.read_text("utf-8"))
        return set(fields), {(field, option) for field, option in aliases}

    def files(self, release: str, prefix: str | tuple[str, ...] = "") -> dict[str, str]:
        """Return the text of a release's Python files."""
        with zipfile.ZipFile(build_releases.fetch(release, self.cache)) as packed:
            names = sorted(name for name in packed.namelist() if name.startswith(prefix))
            return {name: packed.read(name).decode("utf-8", "replace") for name in names}

    def read(self, release: str) -> Slice:
        """Return the messages of a release; a file that two releases share is parsed once."""
        return kept(Slice("vllm", release), self.cache, lambda: self._read(release))

    def _read(self, release: str) -> list[Message]:
        self._remember(VLLM[max(VLLM.index(release) - 1, 0)])
        messages: list[Message] = []
        for name, text in self.files(release).items():
            if name.startswith("vllm/third_party/"):
                continue
            key = hashlib.sha1(f"{name}\n{text}".encode()).hexdigest()
            if key not in self._known:
                self._known[key] = Reader(module_of(name), self.fields).read(text)
            messages += self._known[key]
        return messages

    def _remember(self, release: str) -> None:
        """Take over what was read of a release's files, if the cache has it."""
        if not _path(Slice("vllm", release), self.cache).exists():
            return
        by_module: dict[str, list[Message]] = defaultdict(list)
        for message in kept(Slice("vllm", release), self.cache, list).messages:
            by_module[message.module].append(message)
        for name, text in self.files(release).items():
            key = hashlib.sha1(f"{name}\n{text}".encode()).hexdigest()
            self._known.setdefault(key, by_module[module_of(name)])


def _path(part: Slice, cache: Path) -> Path:
    return cache / f"{part.package}-{part.release}.{FORMAT}.json.gz"


def kept(part: Slice, cache: Path, read: Callable[[], list[Message]]) -> Slice:
    """Return a slice with its messages, from the cache if they were read before."""
    path = _path(part, cache)
    if not path.exists():
        rows = [asdict(message) for message in read()]
        path.write_bytes(gzip.compress(json.dumps(rows).encode(), 5))
    for row in json.loads(gzip.decompress(path.read_bytes())):
        part.messages.append(
            Message(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
        )
    return part


def module_of(name: str) -> str:
    """Return the dotted module of a file."""
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def read_files(files: Iterable[tuple[str, bytes]]) -> Iterator[Message]:
    """Yield the messages of a package's files: Python, C++, CUDA, Go, binaries."""
    for name, data in files:
        if name.endswith(".py"):
            yield from Reader(module_of(name), None).read(data.decode("utf-8", "replace"))
        elif name.endswith(".go"):
            yield from read_go(name, data.decode("utf-8", "replace"))
        elif name.endswith(SOURCES):
            if len(data) < MAX_SOURCE and SPOKEN.search(data):
                yield from read_cpp(name, data.decode("utf-8", "replace"))
        else:
            yield from read_binary(name, data)


def is_read(name: str) -> bool:
    """Return whether a file of a package may hold messages."""
    if SKIPPED.search(name):
        return False
    return name.endswith(SOURCES) or LIBRARIES.search(name) is not None


def wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a wheel that may hold messages."""
    with zipfile.ZipFile(wheel) as packed:
        for name in sorted(filter(is_read, packed.namelist())):
            yield name, packed.read(name)


def installed_files(package: str) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of a package of this environment."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None, f"{package} is not installed"
    root = Path(spec.origin).parent
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root.parent).as_posix(), path.read_bytes()


def read_wheel(
    part: Slice, requirement: str, cache: Path, wanted: Callable[[str], bool] = lambda name: True
) -> Slice:
    """Return a slice with the messages of a wheel, which is deleted."""

    def read() -> list[Message]:
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            arguments = ("--no-deps", "--no-cache-dir", "-d", folder, requirement)
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", *arguments],
                check=True,
                env={**os.environ, "PIP_FIND_LINKS": ""},
            )
            (wheel,) = Path(folder).glob("*.whl")
            return list(read_files(file for file in wheel_files(wheel) if wanted(file[0])))

    return kept(part, cache, read)


def git(repository: Path, *words: str) -> bytes:
    """Return what git prints."""
    command = ["git", f"--git-dir={repository}", *words]
    return subprocess.run(command, check=True, capture_output=True).stdout


def read_repository(package: str, cache: Path, clones: Path | None) -> Slice:
    """Return the messages of a repository.

    Args:
        package: key of `REPOSITORIES`.
        cache: folder for a clone.
        clones: folder that has clones, as `OWNER+NAME/repo`; None clones it from GitHub.
    """
    name, commit, release, folders = REPOSITORIES[package]

    def read() -> list[Message]:
        repository = (clones or cache) / name.replace("/", "+") / "repo"
        if not repository.exists():
            source = f"https://github.com/{name}"
            subprocess.run(["git", "clone", "-q", "--bare", source, str(repository)], check=True)
        listed = (
            git(repository, "ls-tree", "-r", "--name-only", commit, *folders).decode().splitlines()
        )
        names = [name for name in listed if is_read(name)]
        return list(
            read_files((name, git(repository, "show", f"{commit}:{name}")) for name in names)
        )

    return kept(Slice(package, release), cache, read)


def read_debian(package: str, cache: Path) -> Slice:
    """Return the messages of a Debian source package, of Debian's newest suite."""
    name, release = DEBIAN[package]

    def read() -> list[Message]:
        folder = cache / "debian"
        for inner in ("lists/partial", "archives/partial", f"source-{package}"):
            (folder / inner).mkdir(parents=True, exist_ok=True)
        # Where this machine's own packages come from.
        sites = subprocess.check_output(
            ["apt-get", "indextargets", "--format", "$(SITE)"], text=True
        )
        pool = sites.split()[0]
        (folder / "sources.list").write_text(f"deb-src [signed-by={KEYRING}] {pool} sid main\n")
        apt = ["apt-get", "-q"]
        for option in (
            f"Dir::Etc::sourcelist={folder}/sources.list",
            "Dir::Etc::sourceparts=/dev/null",
            f"Dir::State::lists={folder}/lists",
            f"Dir::Cache={folder}",
            "APT::Sandbox::User=root",
        ):
            apt += ["-o", option]
        subprocess.run([*apt, "update"], check=True)
        # apt fails if Debian's packaging is missing; the source itself is enough here.
        fetch = [*apt, "source", "--download-only", "--only-source", name]
        subprocess.run(fetch, cwd=folder / f"source-{package}", check=False)
        archives = sorted((folder / f"source-{package}").glob(f"*_{release}*.orig*.tar.xz"))
        assert archives, f"Debian has another release of {name} than {release}"
        return [m for archive in archives for m in read_files(archive_files(archive))]

    return kept(Slice(package, release), cache, read)


def archive_files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a source archive that may hold messages, without the archive's folder."""
    with tarfile.open(archive) as packed:
        for member in packed:
            name = re.sub(r"^[\w.+-]*-[0-9a-f]{7}/", "", member.name.partition("/")[2])
            if member.isfile() and is_read(name):
                content = packed.extractfile(member)
                assert content is not None
                yield name, content.read()


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
        if part.release:
            releases.append(part.release)
        for message in part.messages:
            key = part.package, _plain(message.pieces)
            if part.package != "cuda" and ("cuda", key[1]) in texts:
                continue
            places = texts.setdefault(key, {})
            where = message.module, message.function, message.kind
            place = places.setdefault(where, Place(message, set()))
            place.message = message
            if part.release:
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
        names["plain"] = plain_words()
        return sentences.pack(names, self.columns)

    def _sentence(self, package: str, pieces: tuple[str, ...], places: dict[tuple, Place]) -> None:
        columns = self.columns
        every = set().union(*(place.seen for place in places.values()))
        last = [p for p in places.values() if not every or max(every) in p.seen]
        sources = [place for place in places.values() if place.message.function]
        if sources and not any(place.message.function for place in last):
            last = sources[-1:]  # a binary does not say which function has a string
        last = sorted(last, key=_order)[:MAX_PLACES]
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


def _order(place: Place) -> tuple[bool, str, str, str]:
    message = place.message
    elsewhere = sentences.is_elsewhere(message.module)
    return elsewhere, message.module, message.function, message.kind


def plain_words() -> list[str]:
    """Return the most frequent words of the texts in Python's own library."""
    count: Counter[str] = Counter()
    for path in sorted(Path(ast.__file__).parent.rglob("*.py")):
        if SKIPPED_PLAIN.isdisjoint(path.parts):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found = sentences.words(node.value)
                    count.update(set(found) if len(found) > 3 else ())
    return sorted(word for word, _ in count.most_common(PLAIN_WORDS))


def spans(seen: set[int]) -> tuple[tuple[int, int], ...]:
    """Return the runs of numbers in a set: first and last of each."""
    runs: list[list[int]] = []
    for number in sorted(seen):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return tuple((first, last) for first, last in runs)


def slices(vllm: Releases, given: argparse.Namespace) -> Iterator[Slice]:
    """Yield every slice, oldest release of a package first (a repository before its wheel)."""
    cache = given.cache

    def wanted(*names: str) -> bool:
        return given.only is None or not set(names).isdisjoint(given.only)

    for release in VLLM:
        if wanted("vllm", f"vllm=={release}"):
            yield vllm.read(release)
    for package, requirements in WHEELS.items():
        if package in REPOSITORIES and wanted(package):
            yield read_repository(package, cache, given.clones)
        for requirement in requirements if wanted(package) else ():
            release = requirement.partition("==")[2]
            yield read_wheel(Slice(package, release), requirement, cache)
    if wanted("kernels"):
        yield read_wheel(Slice("vllm", ""), KERNELS, cache, lambda name: not name.endswith(".py"))
    for package in REPOSITORIES:
        if package not in WHEELS and wanted(package):
            yield read_repository(package, cache, given.clones)
    for package in filter(wanted, DEBIAN):
        yield read_debian(package, cache)


def measure(file: Path) -> None:
    """Print how many lines of a file some sentence takes: of other programs' lines, all falsely."""
    lines = file.read_text("utf-8", "replace").splitlines()
    taken = [(line, found[0]) for line in lines if (found := sentences.lookup(line, limit=1))]
    for line, sentence in taken:
        print(f"{sentence.weight:.2f} {sentence.package} {sentence.module}: {line[:120]}")
    print(f"{len(taken)} of {len(lines)} lines")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cache", type=Path, default=Path("sentences"), help="folder for what was read"
    )
    parser.add_argument("--clones", type=Path, help="folder with bare clones, OWNER+NAME/repo")
    parser.add_argument("--only", action="append", help="a package, or vllm==RELEASE")
    parser.add_argument("--out", type=Path, default=sentences.DATA)
    parser.add_argument(
        "--measure", type=Path, help="count the lines of this file that a sentence takes, and stop"
    )
    given = parser.parse_args()
    if given.measure:
        measure(given.measure)
        return
    given.cache.mkdir(parents=True, exist_ok=True)

    vllm = Releases(given.cache)

    def told() -> Iterator[Slice]:
        for part in slices(vllm, given):
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
