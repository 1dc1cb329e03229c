"""The harness itself: nbval, as this project runs it, sees a changed output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from sparkbook.runner import notebooks

SANITIZE = Path(__file__).parents[1] / "sanitize.cfg"


def nbval(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A strict run over one notebook, apart from this project's own settings but with its
    sanitizers.
    """
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(path.parent),
        "-c",
        "/dev/null",
        "--nbval",
    ]
    return subprocess.run(
        [*command, "--nbval-sanitize-with", str(SANITIZE), *options, str(path)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.kernel
def test_a_changed_output_fails_and_the_right_one_passes(notebook: Callable[..., Path]) -> None:
    path = notebook(
        "print('decode', 6 * 7, 'tok/s')", "object()", "print('http://127.0.0.1:%d/v1' % 8123)"
    )
    assert notebooks.execute(path, path) is None
    good = nbval(path)
    assert good.returncode == 0, good.stdout
    assert "4 passed" in good.stdout

    changed = nbformat.read(path, 4)
    changed.cells[3].outputs[0].text = "decode 43 tok/s\n"
    nbformat.write(changed, path)
    bad = nbval(path)
    assert bad.returncode == 1, bad.stdout
    assert "1 failed, 3 passed" in bad.stdout
    assert "decode 43 tok/s" in bad.stdout


AS_BUILT = """
import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location("of_the_project", {conftest!r})
ours = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ours)
ours._built = lambda path: Path({executed!r})
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

    good = nbval(path, "--as-built")
    assert good.returncode == 0 and "3 passed" in good.stdout, good.stdout
    assert not (tmp_path / "ran").exists()
    changed = nbformat.read(path, 4)
    changed.cells[3].outputs[0].text = "decode 43 tok/s\n"
    nbformat.write(changed, path)
    bad = nbval(path, "--as-built")
    assert "1 failed, 2 passed" in bad.stdout and "decode 43 tok/s" in bad.stdout, bad.stdout
    changed.cells[3].source = "print('decode', 43, 'tok/s')"
    nbformat.write(changed, path)
    assert "the build ran another cell" in nbval(path, "--as-built").stdout
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
    import re

    rules = configparser.ConfigParser()
    rules.read(SANITIZE)
    for section in rules.sections():
        stored = re.sub(rules[section]["regex"], rules[section]["replace"], stored)
        fresh = re.sub(rules[section]["regex"], rules[section]["replace"], fresh)
    assert stored != fresh
