"""What the pinned packages are, and which known vulnerabilities they have.

    python tools/audit.py            # both; the bills of materials go to _build/sbom

`make check-drift` asks the same. The bills of materials are CycloneDX, made offline from the pins.
Vulnerabilities are asked of PyPI's database by pip-audit and of the npm registry by npm. A package
without an answer is not clean: both questions end with an error then.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.site import vendor
from sparkbook.util import limits

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "_build"
PINS = {
    "book": "requirements.txt",
    "torch": "requirements-torch.txt",
    "engine": "requirements-engine.txt",
}
_TIMEOUT_S = 900


def bills(folder: Path = BUILD / "sbom") -> list[Path]:
    """Write a bill of materials for each set of pins and for the site's scripts; the files.

    Raises:
        SparkbookError: a tool can't be installed or failed, or a pin is missing in its bill.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, pins in PINS.items():
        files.append(folder / f"{name}.cdx.json")
        _run([_tool("cyclonedx-py"), "requirements", ROOT / pins, "--of", "JSON", "-o", files[-1]])
        _check_bill(files[-1], pinned(ROOT / pins))
    files.append(folder / "npm.cdx.json")
    bill = _run([*_npm(), "sbom", "--sbom-format", "cyclonedx", "--package-lock-only"], cwd=ROOT)
    files[-1].write_text(bill.stdout, "utf-8")
    lock = json.loads((ROOT / "package-lock.json").read_text("utf-8"))["packages"]
    _check_bill(files[-1], {place.rpartition("node_modules/")[2] for place in lock if place})
    return files


def pinned(file: Path) -> set[str]:
    """Return the names of the packages that a file pins."""
    lines = file.read_text("utf-8").splitlines()
    return {line.partition("==")[0].partition("[")[0] for line in lines if "==" in line}


def _check_bill(file: Path, wanted: set[str]) -> None:
    listed = {_name(part) for part in limits.read_json(file, "the bill").get("components", ())}
    if missing := {name.lower() for name in wanted} - listed:
        raise SparkbookError(f"{file} lacks {', '.join(sorted(missing)[:5])}")


def _name(component: dict[str, Any]) -> str:
    group = component.get("group")
    return f"{group}/{component['name']}".lower() if group else component["name"].lower()


def python_vulnerabilities() -> Iterator[str]:
    """Yield the known vulnerabilities of the pinned Python packages.

    Raises:
        SparkbookError: PyPI gave no answer about one of them.
    """
    BUILD.mkdir(exist_ok=True)
    for pins in PINS.values():
        # The vulnerabilities of PyTorch's own builds are those of the version on PyPI.
        file = BUILD / pins
        file.write_text((ROOT / pins).read_text("utf-8").replace("+cpu", ""), "utf-8")
        words = [_tool("pip-audit"), "-r", file, "--require-hashes", "--disable-pip"]
        done = _run([*words, "--format", "json", "--progress-spinner", "off"], fine=(0, 1))
        yield from of_python(done.stdout, pins, done.stderr)


def npm_vulnerabilities() -> Iterator[str]:
    """Yield the known vulnerabilities of the site's scripts.

    Raises:
        SparkbookError: the npm registry gave no answer.
    """
    done = _run([*_npm(), "audit", "--package-lock-only", "--json"], fine=(0, 1), cwd=ROOT)
    yield from of_npm(done.stdout)


def of_python(report: str, pins: str, said: str = "") -> Iterator[str]:
    """Yield what pip-audit reports; `said` is what it printed next to it.

    Raises:
        SparkbookError: it has no report, or skipped a package: pip-audit itself calls that clean.
    """
    try:
        found = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        raise SparkbookError(f"{pins}: pip-audit has no report: {_last(said or report)}") from None
    skipped = [one for one in found if "skip_reason" in one]
    if skipped or not found:
        reason = skipped[0]["skip_reason"] if skipped else "it lists no package"
        raise SparkbookError(
            f"{pins}: {len(skipped)} of {len(found)} packages were not asked about: {reason}"
        )
    for one in found:
        for known in one["vulns"]:
            fixed = ", ".join(known.get("fix_versions", ())) or "no release"
            yield f"{pins}: {one['name']} {one['version']}: {known['id']}, fixed in {fixed}"


def of_npm(report: str) -> Iterator[str]:
    """Yield what `npm audit --json` reports.

    Raises:
        SparkbookError: the registry gave no answer.
    """
    try:
        found = json.loads(report)
        names = found["vulnerabilities"]
    except (ValueError, KeyError, TypeError):
        message = report
        if isinstance(reply := _json(report), dict):
            message = reply.get("message") or reply.get("error", {}).get("summary") or report
        raise SparkbookError(f"npm audit has no report: {_last(str(message))}") from None
    for name, one in names.items():
        for known in one["via"]:
            if isinstance(known, dict):  # else the name of the package that it comes from
                what = f"{known['severity']}: {known['title']}"
                yield f"package-lock.json: {name} {known['range']}: {what}"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it printed nothing"])[-1][:300]


def _tool(name: str) -> Path:
    """Return a program of requirements-audit.txt, from an environment that is made at first use."""
    programs, pins = BUILD / "audit" / "bin", ROOT / "requirements-audit.txt"
    stamp = BUILD / "audit" / ".installed"
    if not stamp.exists() or stamp.read_bytes() != pins.read_bytes():
        uv = Path(sys.executable).with_name("uv")
        _run(
            [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, BUILD / "audit"]
        )
        into = ["--quiet", "--python", programs / "python"]
        _run([uv, "pip", "install", *into, "--require-hashes", "-r", pins])
        stamp.write_bytes(pins.read_bytes())
    return programs / name


def _npm() -> list[str | Path]:
    node = vendor.node()
    return [node, node.parents[1] / "lib/node_modules/npm/bin/npm-cli.js"]


def _run(
    words: Sequence[str | Path], fine: Sequence[int] = (0,), cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, words)),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
        cwd=cwd,
    )
    if done.returncode not in fine:
        raise SparkbookError(f"{Path(words[0]).name} failed: {_last(done.stderr or done.stdout)}")
    return done


def main() -> int:
    for file in bills():
        print(file)
    status = 0
    for ask in (python_vulnerabilities, npm_vulnerabilities):
        try:
            found = list(ask())
        except SparkbookError as error:
            print(f"Not asked: {error}")
            status = 2
            continue
        print("\n".join(found) or "No known vulnerability; every package was asked about.")
        status = max(status, int(bool(found)))
    return status


if __name__ == "__main__":
    sys.exit(main())
