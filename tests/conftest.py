"""An engine environment whose `vllm` is the stand-in, which is up in a moment."""

import sys
from pathlib import Path

import pytest


@pytest.fixture
def stand_in_engine(tmp_path, monkeypatch):
    """Processes started while this fixture lives run the stand-in instead of vLLM."""
    programs = tmp_path / "engine" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    vllm = programs / "vllm"
    vllm.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).parent / "serve" / "stand_in.py"}" "$@"\n')
    vllm.chmod(0o755)
    monkeypatch.setenv("SPARKBOOK_ENGINE_PYTHON", str(programs / "python"))
