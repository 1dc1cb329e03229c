"""Paths that come from outside: a hub's file names, a recipe's folders, links in a shared store.

`checked` is the gate for every such name. `Inside` opens what lies below a folder one step at a
time and follows no link, so that neither a name nor a link that somebody planted leads out of it.
The folder itself is its owner's choice and may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import threading
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sparkbook.errors import SparkbookError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_FILE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # opening a pipe must not wait for its writer
_LONGEST_PART, _LONGEST = 255, 4000  # bytes; Linux takes 255 and 4096
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, bidi, surrogate and line-end characters
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # such as NFS without its lock service


class UnsafePath(SparkbookError):
    """A path from outside leads out of its folder, or could."""


def checked(name: str) -> str:
    """Return a relative path, `/` between its parts, after looking at it.

    Raises:
        UnsafePath: it is empty, absolute (also as Windows writes that), has `.`, `..` or empty
            parts, a backslash, control characters, or is longer than a file system takes.
    """
    if problem := _problem(name):
        shown = ascii(name if len(name) <= 120 else f"{name[:120]}…")
        raise UnsafePath(f"The path {shown} is refused: {problem}.")
    return name


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if any(unicodedata.category(letter) in _INVISIBLE for letter in name):
        return "it holds a control character"
    if "\\" in name:
        return "it holds a backslash"
    if name.startswith("/") or re.match("[A-Za-z]:", name):
        return "it is absolute"
    parts = name.split("/")
    if ".." in parts:
        return "it holds '..'"
    if "" in parts or "." in parts:
        return "one of its parts is empty or '.'"
    sizes = [len(part.encode()) for part in parts]
    if max(sizes) > _LONGEST_PART or sum(sizes) + len(sizes) > _LONGEST:
        return "it is too long"
    return None


@dataclass(frozen=True)
class Inside:
    """What lies below a folder. Every `name` is relative to it and goes through `checked`.

    All methods raise UnsafePath for a name that is refused or has a link on its way, and OSError
    with the whole path for what the system refuses.
    """

    root: Path

    def path(self, name: str) -> Path:
        """Return the whole path of a name, for showing it."""
        return self.root / checked(name)

    def open(self, name: str) -> BinaryIO:
        """Open a regular file for reading."""
        with self._parent(name) as (folder, last):
            return self._regular(name, os.open(last, os.O_RDONLY | _FILE, dir_fd=folder), "rb")

    def create(self, name: str, *, keep: bool = False) -> BinaryIO:
        """Open a file for reading and writing, and make it and its folders where they are missing.

        A file of another owner, one that has a second name, and anything else than a file is
        removed first and made new: whoever made it could write to it afterwards.

        Args:
            keep: keep the contents of a file that is one's own; else it begins empty.
        """
        with self._parent(name, make=True) as (folder, last):
            if keep and _ours(_lstat(last, folder)):
                file = self._regular(name, os.open(last, os.O_RDWR | _FILE, dir_fd=folder), "r+b")
                if _ours(os.fstat(file.fileno())):
                    return file
                file.close()  # it was exchanged in between
            with contextlib.suppress(FileNotFoundError):
                os.unlink(last, dir_fd=folder)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FILE
            return self._regular(name, os.open(last, flags, 0o666, dir_fd=folder), "r+b")

    def read(self, name: str, most: int = 2**26) -> bytes:
        """Return a file's contents, at most so many bytes of them."""
        with self.open(name) as file:
            return file.read(most)

    def write(self, name: str, data: bytes) -> None:
        """Write a file as a whole: what was there before stays until the new contents are."""
        checked(name)
        folder, slash, last = name.rpartition("/")
        fresh = f"{folder}{slash}.{last[:40]}.{os.getpid()}.{threading.get_ident()}"
        with self.create(fresh) as file:
            file.write(data)
        self.replace(fresh, name)

    def link(self, name: str, target: str) -> None:
        """Make a symbolic link, in the place of a link or a file that has the name."""
        with self._parent(name, make=True) as (folder, last):
            fresh = f".{last[:40]}.{os.getpid()}.{threading.get_ident()}"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=folder)
            os.symlink(target, fresh, dir_fd=folder)
            os.replace(fresh, last, src_dir_fd=folder, dst_dir_fd=folder)

    def replace(self, old: str, new: str) -> None:
        """Give a file another name, below the same folder; a file of that name is gone then."""
        with self._parent(old) as (begin, last), self._parent(new, make=True) as (end, name):
            os.replace(last, name, src_dir_fd=begin, dst_dir_fd=end)

    def remove(self, name: str) -> None:
        """Remove a file, a link, or a folder with all that is in it, where it is there."""
        with contextlib.suppress(FileNotFoundError), self._parent(name) as (folder, last):
            found = _lstat(last, folder)
            if found and stat.S_ISDIR(found.st_mode):
                shutil.rmtree(last, dir_fd=folder)
            else:
                os.unlink(last, dir_fd=folder)

    def lstat(self, name: str) -> os.stat_result | None:
        """Return what a name stands for, a link as itself; None where nothing is there."""
        try:
            with self._parent(name) as (folder, last):
                return _lstat(last, folder)
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int | None:
        """Return a regular file's bytes; None without one."""
        found = self.lstat(name)
        return found.st_size if found and stat.S_ISREG(found.st_mode) else None

    def kept(self, name: str) -> int:
        """Return the bytes of a file that `create` would keep; 0 where it would keep none."""
        found = self.lstat(name)
        return found.st_size if found is not None and _ours(found) else 0

    def target(self, name: str) -> str | None:
        """Return where a link points, as it is written; None where it is no link."""
        found = self.lstat(name)
        if found is None or not stat.S_ISLNK(found.st_mode):
            return None
        with self._parent(name) as (folder, last):
            return os.readlink(last, dir_fd=folder)

    def entries(self, name: str, *, folders: bool = False) -> list[str]:
        """Return the names in a folder, sorted; `folders`: only those of folders. A folder that is
        missing has none.
        """
        names = []
        with (
            contextlib.suppress(FileNotFoundError),
            self._parent(f"{name}/x") as (folder, _),
            os.scandir(folder) as entries,
        ):
            for entry in entries:
                if not folders or entry.is_dir(follow_symlinks=False):
                    names.append(entry.name)
        return sorted(names)

    def files(self, name: str) -> list[str]:
        """Return all that is no folder below a folder, as paths relative to it, sorted. An empty
        name stands for the root.
        """
        paths: list[str] = []
        inside = f"{name}/x" if name else "x"
        with contextlib.suppress(FileNotFoundError), self._parent(inside) as (folder, _):
            for place, _folders, names, _ in os.fwalk(".", dir_fd=folder):
                paths += [f"{place}/{one}".removeprefix("./") for one in names]
        return sorted(paths)

    @contextlib.contextmanager
    def locked(self, name: str, stop: threading.Event | None = None) -> Iterator[None]:
        """Hold a lock file while the block runs, after waiting for whoever holds it. The system
        frees the lock of a process that ends in whatever way.

        Raises:
            KeyboardInterrupt: `stop` was set while waiting.
        """
        import fcntl  # not in a browser, where nothing is locked

        with self._parent(name, make=True) as (folder, last):
            flags = os.O_RDONLY | os.O_CREAT | _FILE
            file = self._regular(name, os.open(last, flags, 0o666, dir_fd=folder), "rb")
        stop = stop or threading.Event()
        with file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if stop.wait(0.1):
                        raise KeyboardInterrupt from None
                except OSError as error:
                    if error.errno not in _NO_LOCKS:
                        raise
                    break
            yield

    @contextlib.contextmanager
    def _parent(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder that holds a name, and give the name's last part."""
        *folders, last = checked(name).split("/")
        if make:
            self.root.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as opened:
            try:
                folder = os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
                opened.callback(os.close, folder)
                for part in folders:
                    folder = _enter(folder, part, make)
                    opened.callback(os.close, folder)
                yield folder, last
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    raise self._refused(name, "a link or no folder is on its way") from None
                error.filename, error.filename2 = str(self.root / name), None
                raise

    def _regular(self, name: str, handle: int, mode: str) -> BinaryIO:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise self._refused(name, "it is no regular file")
        return os.fdopen(handle, mode)  # type: ignore[return-value]

    def _refused(self, name: str, problem: str) -> UnsafePath:
        return UnsafePath(f"The path {str(self.root / name)!a} is refused: {problem}.")


def _enter(folder: int, part: str, make: bool) -> int:
    """Open a folder in a folder, and make it where it is missing and wanted."""
    try:
        return os.open(part, _FOLDER, dir_fd=folder)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=folder)
    return os.open(part, _FOLDER, dir_fd=folder)


def _lstat(name: str, folder: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _ours(found: os.stat_result | None) -> bool:
    """Return whether it is a file that nobody else has under another name or may give rights to."""
    return (
        found is not None
        and stat.S_ISREG(found.st_mode)
        and found.st_nlink == 1
        and found.st_uid == os.geteuid()
    )
