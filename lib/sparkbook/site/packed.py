"""Python for the pages that run the command in the reader's browser (Pyodide): the planner, and the
page that takes a log or a launch line.

What such a page loads when the reader asks for it, all from the site itself: Python (Pyodide, from
npm), and the archives that are packed here: the part of this library that the command needs, and
the libraries that it needs in turn, with their licenses. The compiled half of pydantic is its own
build for the browser (`vendor`). `_static/page.js` has the button, `_static/page-worker.mjs` runs
Python in its own thread, `in_page` calls the command.
"""

from __future__ import annotations

import importlib.metadata
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.runner.project import Project

LIBRARY = (
    "__init__.py",
    "cli/__init__.py",
    "cli/options.py",
    "cli/output.py",
    "cli/planning.py",
    "cli/verbs.py",
    "errors.py",
    "findings.py",
    "rules.py",
    "util/*.py",
    "units.py",
    "site/__init__.py",
    "site/in_page.py",
    "checkpoint/*",
    "cluster/__init__.py",
    "cluster/advice.py",
    "cluster/all_reduce.py",
    "cluster/inventory.py",
    "cluster/published.yaml",
    "formats/*",
    "host/__init__.py",
    "host/meminfo.py",
    "host/spark.py",
    "launch/*.py",
    "lint/*.py",
    "lint/rules/*.py",
    "plan/*",
    "recipes/*.py",
    "recipes/catalogue/*.yaml",
    "releases/*.py",
    "releases/*.yaml",
    "releases/table.json",
)
DOCTOR = (
    "cli/diagnosis.py",
    "cli/lint.py",
    "host/*.py",
    "host/rules/*.py",
    "kinds.yaml",
    "logs/*.py",
    "logs/places.yaml",
    "logs/reports.json",
    "logs/sentences.bin",
    "logs/signatures.yaml",
    "logs/vocabulary.yaml",
    "recipes/catalogue/embedded/*.yaml",
    "site/pasted.py",
)
OWN = {"library": LIBRARY, "doctor": DOCTOR}
"""Archive: its files of this library, below `sparkbook`. The planner loads the first one, the page
that diagnoses both. A test follows the command and says what is missing.
"""

OTHERS = (
    "annotated-doc",
    "annotated-types",
    "packaging",
    "pydantic",
    "pydantic-core",
    "PyYAML",
    "rich",
    "shellingham",
    "typer",
    "typing-extensions",
    "typing-inspection",
)
"""Distributions that come along, as they are installed here: pure Python, and `pydantic-core`'s
Python half.
"""

PYODIDE = """\
The pages that run the command do so in Pyodide, which is under the Mozilla Public License 2.0
(https://www.mozilla.org/MPL/2.0/); its source is at https://github.com/pyodide/pyodide.
Pyodide contains CPython and its standard library, which are under the Python Software
Foundation License (https://docs.python.org/3/license.html). library.zip and doctor.zip contain this
book's own library (Apache-2.0) and the following."""

_LEFT_OUT = ("pydantic/v1/", "pydantic/mypy.py", "pydantic/_hypothesis_plugin.py")
_OF_A_LICENSE = ("licen", "copying", "notice")
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Sizes:
    """Bytes that a reader's browser loads, uncompressed.

    Attributes:
        planner: to run the planner.
        doctor: to answer what the reader pastes.
    """

    planner: int
    doctor: int


def write(project: Project, folder: Path) -> Sizes:
    """Write the archives and the licenses next to them, for the site.

    Args:
        project: the checkout, whose `vendor` has been made.
        folder: the `_static/planner` that Sphinx reads.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {}
    for name, archive in pack(project.vendor / "wasm").items():
        (folder / f"{name}.zip").write_bytes(archive)
        sizes[name] = len(archive)
    texts = [PYODIDE, *(f"{name}\n\n{text}" for name, text in _licenses())]
    (folder / "LICENSES.txt").write_text(f"\n\n{'=' * 100}\n".join(texts), "utf-8")
    came = sum(path.stat().st_size for path in (project.vendor / "site" / "planner").iterdir())
    return Sizes(came + sizes["library"], came + sum(sizes.values()))


def pack(wasm: Path) -> dict[str, bytes]:
    """Return the archives of `OWN`, the same for the same files: sorted, and with one date.

    Args:
        wasm: the folder with the unpacked build of `pydantic-core` for the browser.

    Raises:
        SparkbookError: one of the libraries is not installed, or that build is not there.
    """
    compiled = sorted(wasm.rglob("*.so"))
    if not compiled:
        raise SparkbookError(
            "pydantic-core's build for the browser is not there: run 'make book', which fetches it"
        )
    archives = {name: dict(_own(patterns)) for name, patterns in OWN.items()}
    first, *later = archives.values()
    for files in later:
        for name in first.keys() & files.keys():
            del files[name]
    first |= dict(_installed())
    first |= {path.relative_to(wasm).as_posix(): path for path in compiled}
    return {name: _zipped(files) for name, files in archives.items()}


def _zipped(files: Mapping[str, Path]) -> bytes:
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name].read_bytes())
    return held.getvalue()


def _own(patterns: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yield files of this library: name in the archive, and the file."""
    library = Path(__file__).resolve().parents[1]
    for pattern in patterns:
        for path in library.glob(pattern):
            if path.is_file() and path.suffix in (".py", ".yaml", ".json", ".bin"):
                yield f"sparkbook/{path.relative_to(library).as_posix()}", path


def _installed() -> Iterator[tuple[str, Path]]:
    """Yield the other libraries' Python files."""
    for name in OTHERS:
        for file in _distribution(name).files or ():
            inside = file.as_posix()
            if file.suffix == ".py" and ".." not in file.parts and not inside.startswith(_LEFT_OUT):
                yield inside, Path(str(file.locate()))


def _licenses() -> Iterator[tuple[str, str]]:
    """Yield name and version of each library that comes along, with the text of its license."""
    for name in OTHERS:
        distribution = _distribution(name)
        for file in distribution.files or ():
            if ".dist-info" in str(file) and any(
                word in file.name.lower() for word in _OF_A_LICENSE
            ):
                yield (
                    f"{name} {distribution.version}, {file.name}",
                    Path(str(file.locate())).read_text("utf-8", errors="replace"),
                )


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise SparkbookError(
            f"{name} is not installed, which the pages that run the command need: run 'make book'"
        ) from None
