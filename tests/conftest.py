"""What tests of several rooms start: the stand-in for vLLM, which is up in a moment, and vLLM's own
parser.
"""

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
    vllm.write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).parent / "serve" / "stand_in.py"}"'
        ' "$@"\n'
    )
    vllm.chmod(0o755)
    monkeypatch.setenv("SPARKBOOK_ENGINE_PYTHON", str(programs / "python"))


@pytest.fixture(scope="session")
def real_parser():
    """vLLM's own parser, started once for all tests that ask it (ten seconds)."""
    sys.path.insert(0, str(Path(__file__).parent / "releases"))
    from asked_parser import RealParser

    parser = RealParser()
    yield parser
    parser.close()
