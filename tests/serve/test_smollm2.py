"""The conversion's safety net, with a stand-in for the conversion itself; the real one runs in
test_engine.py.
"""

import errno
import json
import os
import subprocess
import sys

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.serve import smollm2


@pytest.fixture
def converter(monkeypatch):
    """Counts conversions; each writes two small files."""
    runs = []

    def run(folder):
        runs.append(folder)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"weights")

    monkeypatch.setattr(smollm2, "run_converter", run)
    return runs


def test_converts_once(converter, tmp_path):
    said = []
    folder = smollm2.ensure(tmp_path / "m", said.append)
    assert smollm2.ensure(tmp_path / "m", said.append) == folder
    assert len(converter) == 1
    assert "not converted yet" in said[0]
    assert sorted(json.loads((folder / "sparkbook.json").read_text())["sha256"]) == [
        "config.json",
        "model.safetensors",
    ]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda f: (f / "sparkbook.json").unlink(), "half written"),
        (lambda f: (f / "sparkbook.json").write_text("{"), "half written"),
        (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda f: (f / "model.safetensors").write_bytes(b"weightz"), "differs from its checksum"),
    ],
)
def test_damage_is_detected_and_redone(converter, tmp_path, damage, told):
    folder = smollm2.ensure(tmp_path / "m")
    damage(folder)
    assert told in smollm2.damaged(folder)
    smollm2.ensure(folder)
    assert len(converter) == 2
    assert smollm2.damaged(folder) is None


def test_interrupted_conversion_leaves_no_model(monkeypatch, tmp_path):
    def interrupted(folder):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "run_converter", interrupted)
    with pytest.raises(KeyboardInterrupt):
        smollm2.ensure(tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == [".m.lock"]


def test_too_little_room_is_said_before_the_start(converter, monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2, "NEEDED_BYTES", 2**60)
    with pytest.raises(SparkbookError, match=r"has .* free, and the model takes .*SPARKBOOK_CACHE"):
        smollm2.ensure(tmp_path / "m")
    assert not converter


@pytest.fixture
def failing_engine(tmp_path, monkeypatch):
    """An engine environment whose Python runs a line of ours instead of the conversion."""

    def make(line):
        program = tmp_path / "python"
        program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{line}'\n")
        program.chmod(0o755)
        monkeypatch.setenv("SPARKBOOK_ENGINE_PYTHON", str(program))

    return make


def test_failed_conversion_gives_its_last_line(failing_engine, tmp_path):
    failing_engine('raise SystemExit("the converted model answers London")')
    with pytest.raises(
        SparkbookError,
        match=r"could not be converted \(status 1\): the converted model answers London",
    ):
        smollm2.ensure(tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_disk_that_fills_up_while_writing(failing_engine, tmp_path):
    failing_engine(f'raise OSError({errno.ENOSPC}, "{os.strerror(errno.ENOSPC)}")')
    with pytest.raises(SparkbookError, match=r"the disk of .* is full"):
        smollm2.ensure(tmp_path / "m")
    assert not [path for path in tmp_path.iterdir() if "partial" in path.name]


@pytest.mark.slow
def test_two_at_once_convert_once(tmp_path):
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom sparkbook.serve import smollm2\ndef"
        " run(folder):\n    time.sleep(0.5)\n    (folder / 'config.json').write_text('{}')\n   "
        " print('converted')\nsmollm2.run_converter = run\nsmollm2.ensure(Path(sys.argv[1]))"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program, tmp_path / "m"], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert "".join(process.communicate(timeout=60)[0] for process in both).count("converted") == 1
