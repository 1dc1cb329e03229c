"""The harness itself: nbval, as this project runs it, sees a changed output."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from sparkbook.book import notebooks

SANITIZE = Path(__file__).parents[1] / "sanitize.cfg"


def nbval(path: Path) -> subprocess.CompletedProcess[str]:
    """A strict run over one notebook, apart from this project's own settings but with its sanitizers."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(path.parent), "-c", "/dev/null", "--nbval"]
    return subprocess.run([*command, "--nbval-sanitize-with", str(SANITIZE), str(path)], capture_output=True, text=True, check=False)


@pytest.mark.kernel
def test_a_changed_output_fails_and_the_right_one_passes(notebook: Callable[..., Path]) -> None:
    path = notebook("print('decode', 6 * 7, 'tok/s')", "object()", "print('http://127.0.0.1:%d/v1' % 8123)")
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


@pytest.mark.parametrize(
    ("stored", "fresh"),
    [("<Figure size 640x480>", "<Figure size 640x481>"), ("port 8000", "port 8001"), ("0x12", "0x13"), ("12.3 s", "12.4 s")],
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
