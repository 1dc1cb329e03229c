"""The harness itself: nbval, as this project runs it, sees a changed output."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from sparkbook.runner import notebooks

SANITIZE = Path(__file__).parents[1] / "sanitize.cfg"


def nbval(folder: Path, *options: str) -> str:
    """What a strict run over a folder's notebooks says, apart from this project's own settings but
    with its sanitizers.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-rA",
        "--rootdir",
        str(folder),
        "-c",
        "/dev/null",
        "--nbval",
    ]
    command += ["--nbval-sanitize-with", str(SANITIZE), *options]
    notebooks = [str(path) for path in sorted(folder.glob("*.ipynb"))]
    return subprocess.run([*command, *notebooks], capture_output=True, text=True).stdout


def results(said: str, name: str) -> list[str]:
    """What became of each cell of a notebook, as a run says."""
    return re.findall(rf"^(PASSED|FAILED) \S*{name}\.ipynb::", said, re.MULTILINE)


def changed(path: Path, name: str, **fields: str) -> None:
    """Write a notebook again under another name, its fourth cell changed: `source` or `text`."""
    notebook = nbformat.read(path, 4)
    notebook.cells[3].source = fields.get("source", notebook.cells[3].source)
    notebook.cells[3].outputs[0].text = fields.get("text", notebook.cells[3].outputs[0].text)
    nbformat.write(notebook, path.with_name(f"{name}.ipynb"))


@pytest.mark.kernel
def test_a_changed_output_fails_and_the_right_one_passes(notebook: Callable[..., Path]) -> None:
    path = notebook(
        "print('decode', 6 * 7, 'tok/s')", "object()", "print('http://127.0.0.1:%d/v1' % 8123)"
    )
    assert notebooks.execute(path, path) is None
    changed(path, "bad", text="decode 43 tok/s\n")
    said = nbval(path.parent)
    assert results(said, "one") == ["PASSED"] * 4, said
    assert sorted(results(said, "bad")) == ["FAILED", "PASSED", "PASSED", "PASSED"], said
    assert "decode 43 tok/s" in said


AS_BUILT = """
import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location("of_the_project", {conftest!r})
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
ours._built = lambda path: Path({executed!r})  # for each of the notebooks
pytest_addoption, pytest_runtest_setup = ours.pytest_addoption, ours.pytest_runtest_setup
"""


@pytest.mark.kernel
def test_as_built_holds_the_committed_outputs_to_the_builds_run_and_starts_no_kernel(
    notebook: Callable[..., Path], tmp_path: Path
) -> None:
    path = notebook(
        "print('decode', 6 * 7, 'tok/s')", "from pathlib import Path\nPath('ran').touch()\nobject()"
    )
    executed = tmp_path / "executed" / path.name
    assert notebooks.execute(path, executed) is None
    path.write_text(executed.read_text("utf-8"), "utf-8")
    conftest = Path(__file__).parents[2] / "conftest.py"
    (tmp_path / "conftest.py").write_text(
        AS_BUILT.format(conftest=str(conftest), executed=str(executed)), "utf-8"
    )
    (tmp_path / "ran").unlink()

    changed(path, "bad", text="decode 43 tok/s\n")
    changed(path, "edited", source="print('decode', 43, 'tok/s')")
    said = nbval(path.parent, "--as-built")
    assert results(said, "one") == ["PASSED"] * 3, said
    assert sorted(results(said, "bad")) == ["FAILED", "PASSED", "PASSED"], said
    assert "decode 43 tok/s" in said and "the build ran another cell" in said
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("stored", "fresh"),
    [
        ("<Figure size 640x480>", "<Figure size 640x481>"),
        ("port 8000", "port 8001"),
        ("0x12", "0x13"),
        ("12.3 s", "12.4 s"),
    ],
)
def test_the_sanitizers_do_not_hide_a_difference(stored: str, fresh: str) -> None:
    import configparser

    rules = configparser.ConfigParser()
    rules.read(SANITIZE)
    for section in rules.sections():
        stored = re.sub(rules[section]["regex"], rules[section]["replace"], stored)
        fresh = re.sub(rules[section]["regex"], rules[section]["replace"], fresh)
    assert stored != fresh
