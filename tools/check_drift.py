"""What has moved since the book was written: one report, for a person or for a scheduled run.

    make check-drift                                    # or: .venv/bin/python tools/check_drift.py
    --out report.md .venv/bin/python tools/check_drift.py --no-notebooks

Is there a vLLM release on the package index that the releases table does not know, and what did it
change? Which recipe of the catalogue has an error or a warning under it that it had not before?
Which recipe of others is new, changed, or not accepted? Which link is not well formed? Which pinned
package has a known vulnerability (the bills of materials are written to _build/sbom)? Which
notebook gives other outputs than the committed ones? Exit code: 0 nothing moved, 1 something did, 2
a question could not be asked.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent))

import audit
import build_releases
from packaging.version import InvalidVersion, Version
from sparkbook import lint, recipes, releases, upstream
from sparkbook.errors import SparkbookError
from sparkbook.releases.changelog import explain

ROOT = Path(__file__).parents[1]
WITH_LINKS = ("README.md", "book/**/*.md", "notebooks/*.ipynb", "lib/sparkbook/**/*.yaml")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the report here too")
    parser.add_argument(
        "--cache",
        type=Path,
        help="folder that keeps downloaded releases (default: a temporary one)",
    )
    parser.add_argument("--no-notebooks", action="store_true", help="do not run the notebooks")
    given = parser.parse_args(argv)
    report, moved, unasked = ["# Drift"], 0, 0
    before = releases.newest()
    with tempfile.TemporaryDirectory() as folder:
        questions = {
            "vLLM's releases": lambda: new_releases(given.cache or Path(folder)),
            "Findings that the newest release brings": lambda: catalogue(before),
            "Links": lambda: links(ROOT),
            "Bills of materials": lambda: [] if audit.bills() else ["none was written"],
            "Known vulnerabilities, Python": audit.python_vulnerabilities,
            "Known vulnerabilities, npm": audit.npm_vulnerabilities,
            **{f"Recipes of {peer}": partial(peers, peer) for peer in upstream.PEERS},
        }
        if not given.no_notebooks:
            questions["Notebooks"] = notebooks
        for title, ask in questions.items():
            print(f"{title} …", file=sys.stderr, flush=True)
            report += ["", f"## {title}", ""]
            try:
                found = list(ask())
            except (subprocess.SubprocessError, SparkbookError, OSError) as error:
                report.append(f"Could not be asked: {error}")
                unasked += 1
                continue
            moved += len(found)
            report += [f"- {line}" for line in found] or ["Nothing moved."]
    text = "\n".join(report) + "\n"
    print(text, end="")
    if given.out:
        given.out.write_text(text, "utf-8")
    return 2 if unasked else 1 if moved else 0


def new_releases(cache: Path) -> Iterator[str]:
    """Releases that the table does not know. The newest is read, and from then on the table of this
    process has it.
    """
    news = unknown(published(), releases.known())
    for version in news[:-1]:
        yield f"vLLM {version} is not in the table"
    if not news:
        return
    newest, before = news[-1], releases.newest()
    found = build_releases.extract(build_releases.Source(build_releases.fetch(newest, cache)))
    learn(newest, found, build_releases.requirements(newest, cache))
    yield (
        f"vLLM {newest} is not in the table: add it to RELEASES in tools/build_releases.py and run"
        " that script"
    )
    for change in releases.diff(before, newest):
        yield f"{newest}, {change.category}, {change.change}: {explain(change)}"


def published() -> list[str]:
    """Every final release of vLLM on the package index.

    Raises:
        subprocess.SubprocessError: the index does not answer.
    """
    command = [
        sys.executable,
        "-m",
        "pip",
        "index",
        "versions",
        "vllm",
        "--disable-pip-version-check",
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    listed = re.search(r"Available versions: (.*)", done.stdout)
    return listed[1].replace(" ", "").split(",") if listed else []


def unknown(versions: Iterable[str], known: list[str]) -> list[str]:
    """Return final releases newer than the newest known one, oldest first."""
    newest, found = Version(known[-1]), []
    for text in versions:
        try:
            version = Version(text)
        except InvalidVersion:
            continue
        if version > newest and not (version.is_prerelease or version.is_devrelease):
            found.append(version)
    return [str(version) for version in sorted(set(found))]


def learn(release: str, found: dict[str, dict[str, object]], needs: dict[str, str]) -> None:
    """Add a release to the table of this process; the file stays as it is."""
    build_releases.append(releases.table(), release, found, needs)


def catalogue(before: str) -> Iterator[str]:
    """Errors and warnings that a recipe has under the newest release, and had not under an earlier
    one.
    """
    for recipe in recipes.all():
        earlier, now = (
            {
                (f.rule, f.severity): f.message
                for f in lint.lint(recipe, release=release).findings
                if f.severity in ("error", "warning")
            }
            for release in (before, releases.newest())
        )
        for (rule, severity), message in now.items():
            if (rule, severity) not in earlier:
                yield f"{recipe.id}: {severity} {rule}: {message}"


def peers(place: str) -> Iterator[str]:
    """Recipes of others that are new, start something else than ours, or are not accepted."""
    for found in upstream.compare(place, recipes.all()):
        if found.state != "same" or found.errors:
            yield "; ".join(found.lines())


def links(root: Path) -> Iterator[str]:
    """Addresses that no browser could open as they stand. Nothing is asked of the net."""
    for pattern in WITH_LINKS:
        for path in sorted(root.glob(pattern)):
            text = path.read_text("utf-8")
            if path.suffix == ".ipynb":
                text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
            for url in dict.fromkeys(re.findall(r"""https?://[^\s<>"'`)\]}|\\]+""", text)):
                if fault := malformed(url.rstrip(".,;:!?*")):
                    yield f"{path.relative_to(root)}: {url}: {fault}"


def malformed(url: str) -> str:
    """What is wrong with the form of an address; empty where nothing is. A machine's own addresses
    and placeholders are right.
    """
    try:
        parts = urlsplit(url)
        if re.fullmatch(r"localhost|[\d.]+|[A-Z_$-]+|spark.*", parts.netloc.rsplit(":", 1)[0]):
            return ""
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        return str(error)
    if parts.scheme != "https":
        return "not https"
    return "" if re.fullmatch(r"([a-z0-9-]+\.)+[a-z]+", host) else f"'{host}' is no host"


def notebooks() -> Iterator[str]:
    """Committed notebooks whose outputs a fresh run does not give."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "--nbval",
        "notebooks",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False
    )
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    yield from failed
    if done.returncode and not failed:
        raise SparkbookError(
            "the notebooks could not be run: " + " ".join(done.stdout.splitlines()[-3:])
        )


if __name__ == "__main__":
    sys.exit(main())
