"""What an executed notebook was made from, as one hash: when it is still the same, the notebook
need not run again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

from sparkbook.runner import notebooks
from sparkbook.runner.project import Project

_BUILDERS = ("runner", "register", "site")
"""The packages that build the book. A chapter does not depend on them unless its code imports them.
"""

_FROM_ROOM = re.compile(rf"from sparkbook\.({'|'.join(_BUILDERS)}) import (\([\w\s,]+\)|[\w ,]+)")
_OF_ROOM = re.compile(rf"sparkbook\.({'|'.join(_BUILDERS)})\.(\w+)")
_REQUIREMENTS = ("requirements.txt", "requirements-torch.txt", "requirements-engine.txt")


class Fingerprints:
    """Hashes of one state of a checkout; what several pages share is read once."""

    def __init__(self, project: Project, library: Path | None = None) -> None:
        """`library`: the package's folder; left out, the one that this code belongs to."""
        self._project = project
        self._library = library or Path(__file__).resolve().parents[1]

    def chapter(self, source: Path, values: dict[str, Any], target: str) -> str:
        """Return the hash of a chapter. It may use anything in the library, the catalogue included,
        and what else its cells name.
        """
        written = self._source(source)
        text = "\n".join("".join(source) for _, source, _ in written[1])
        claims = self._claims if "claims" in json.dumps(written) else ""
        kernels = self._kernels if "kernels" in text else ""
        return _digest(
            "chapter",
            written,
            values,
            target,
            self._code,
            self._catalogue,
            self._pins,
            claims,
            self._data,
            kernels,
            self._modules(text),
        )

    def model_page(self, recipe: Any, values: dict[str, Any], target: str) -> str:
        """Return the hash of a recipe's page: the template, the library's code, and this one recipe
        with everything it extends.
        """
        data = recipe.model_dump(mode="json")
        return _digest(
            "model",
            self._source(self._project.template),
            values,
            target,
            self._code,
            data,
            self._pins,
        )

    @staticmethod
    def _source(path: Path) -> Any:
        """Return what an author writes in a notebook: no outputs, no counts."""
        notebook = notebooks.read(path)
        return [
            notebook["metadata"],
            [[cell["cell_type"], cell["source"], cell["metadata"]] for cell in notebook["cells"]],
        ]

    @cached_property
    def _code(self) -> str:
        """Everything in the package but the catalogue, and but the part that builds the book, of
        which pages see only `present`.
        """
        skip = [self._library / name for name in ("recipes/catalogue", *_BUILDERS)]
        files = [
            path
            for path in _files(self._library)
            if not any(path.is_relative_to(folder) for folder in skip)
        ]
        return _hash_files([*files, *(self._library / "site").glob("present.py")], self._library)

    def _modules(self, text: str) -> str:
        """Return the modules of the part that builds the book which a text imports."""
        names = {
            f"{room}/{name}"
            for room, listed in _FROM_ROOM.findall(text)
            for name in re.findall(r"\w+", listed)
        } | {f"{room}/{name}" for room, name in _OF_ROOM.findall(text)}
        paths = (self._library / f"{name}.py" for name in names)
        return _hash_files([path for path in paths if path.is_file()], self._library)

    @cached_property
    def _kernels(self) -> str:
        """The CUDA sources and what was measured of them, for the chapters that compile or draw
        them.
        """
        folder = self._project.root / "kernels"
        return tree(folder) if folder.is_dir() else ""

    @cached_property
    def _claims(self) -> str:
        """The claims register, of those chapters that draw from it."""
        folder = self._project.root / "book" / "claims"
        return _digest(
            _hash_files(folder.glob("*.yaml"), folder),
            _hash_files((self._library / "register").glob("*.py"), self._library),
        )

    @cached_property
    def _data(self) -> str:
        """The content of chapters that is kept as data."""
        folder = self._project.root / "book" / "data"
        return _hash_files(folder.glob("*.yaml"), folder)

    @cached_property
    def _catalogue(self) -> str:
        folder = self._library / "recipes" / "catalogue"
        return _hash_files(_files(folder), folder)

    @cached_property
    def _pins(self) -> str:
        return _hash_files(
            [path for name in _REQUIREMENTS if (path := self._project.root / name).exists()],
            self._project.root,
        )


def tree(folder: Path) -> str:
    """Hash of every file's name and content below a folder."""
    return _hash_files(_files(folder), folder)


def text(content: str) -> str:
    """Hash of a text."""
    return _digest(content)


def _files(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    ]


def _hash_files(paths: Iterable[Path], base: Path) -> str:
    hashes = {
        path.relative_to(base).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }
    return _digest(sorted(hashes.items()))


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
