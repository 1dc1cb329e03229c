"""The folder of an engine: its log, its key, and the record that says whose it is.

A start reserves its folder, and with it its port, under one lock of the user's cache: of two starts
at once one gets both, and the other touches nothing. The record names the process that the folder
belongs to, first the starter, then the engine's guard; one that has ended holds nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sparkbook.serve import paths
from sparkbook.serve.engine import EngineError
from sparkbook.serve.identity import ProcessId
from sparkbook.util.files import write_text
from sparkbook.util.shell_text import command_line

RECORD, LOG_FILE, KEY_FILE, CONTAINER = "engine.json", "server.log", "api-key", "container"
"""Files of an engine's folder: whose it is, while it runs; what it printed; its key, while it runs;
the container, where it is one.
"""
_LOGS_KEPT = 20


@dataclass(frozen=True, kw_only=True)
class Record:
    """Whose a folder is.

    Attributes:
        name: the served model's name, as the start gave it.
        recipe: id of the recipe; empty where there is none.
        served: the model's name for clients.
        url: where the engine answers.
        process: the engine's guard, or the starter until there is one.
        guarded: whether `process` is the guard.
    """

    name: str
    recipe: str
    served: str
    url: str
    process: ProcessId
    guarded: bool = False


def path_of(name: str) -> Path:
    """Return where the folder of an engine of this name is, or would be."""
    return paths.cache_dir() / "engines" / name


def all_folders() -> list[Path]:
    """Return the folders of this user's engines, by name, running or not."""
    folders = paths.cache_dir() / "engines"
    return sorted(folders.iterdir()) if folders.is_dir() else []


def holder(folder: Path) -> Record | None:
    """Return whose a folder is; None if it is nobody's, or its process has ended."""
    try:
        fields = json.loads((folder / RECORD).read_text("utf-8"))
        record = Record(**{**fields, "process": ProcessId(**fields["process"])})
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if record.process.alive else None


def running(folder: Path) -> Record | None:
    """Return the record of the engine that runs in a folder; None if none does."""
    record = holder(folder)
    return record if record and record.guarded else None


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Hold this user's engine folders against other starts."""
    with (paths.cache_dir() / "engines.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def reserve(folder: Path, *, name: str, recipe: str, served: str, url: str) -> Record:
    """Make a folder this start's own, and with it the address `url`. The arguments are the fields
    of the record, which is returned.

    Raises:
        EngineError: another engine holds the folder or the port, or the folder can't be made.
    """
    starter = ProcessId.of(os.getpid())
    assert starter is not None
    record = Record(name=name, recipe=recipe, served=served, url=url, process=starter)
    try:
        with _locked():
            for other in {*all_folders(), folder}:
                held = holder(other)
                if held and (other == folder or held.url == record.url):
                    raise EngineError(
                        f"{held.url} is taken by {other.name}, which was started here:"
                        f" {command_line('sparkbook', 'stop', other.name)} ends it, or choose"
                        " another port"
                    )
            _tidy()
            folder.mkdir(parents=True, exist_ok=True)
            for left in (RECORD, LOG_FILE, KEY_FILE):
                (folder / left).unlink(missing_ok=True)
            with (folder / RECORD).open("x", encoding="utf-8") as file:
                file.write(json.dumps(asdict(record)))
            return record
    except OSError as error:
        raise EngineError(
            f"the engine's folder {error.filename} can't be made: {error.strerror}"
        ) from None


def hand_over(folder: Path, record: Record, guard: ProcessId) -> Record:
    """Make a reserved folder the engine's: from now on it is held while its guard lives."""
    record = replace(record, process=guard, guarded=True)
    write_text(folder / RECORD, json.dumps(asdict(record)))
    return record


def release(folder: Path, record: Record) -> None:
    """Remove key and record of an engine that has ended; the log stays. A folder that another start
    has reserved since is left alone.
    """
    with _locked():
        try:
            own = json.loads((folder / RECORD).read_text("utf-8")) == asdict(record)
        except (OSError, ValueError):
            return
        if own:
            for left in (KEY_FILE, RECORD):
                (folder / left).unlink(missing_ok=True)


def sweep() -> None:
    """Remove key and record of engines that ended with nobody left to do it: killed, or before a
    restart of the machine. Their logs stay.
    """
    with _locked():
        for folder in all_folders():
            if (folder / RECORD).exists() and holder(folder) is None:
                for left in (KEY_FILE, RECORD):
                    (folder / left).unlink(missing_ok=True)


def _tidy() -> None:
    """Make room: remove the oldest folders whose engines have ended."""
    old = sorted(all_folders(), key=lambda folder: folder.stat().st_mtime)[:-_LOGS_KEPT]
    for folder in old:
        if holder(folder) is None and not (folder / CONTAINER).exists():
            shutil.rmtree(folder, ignore_errors=True)
