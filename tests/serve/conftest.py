"""An engine environment whose `vllm` is the stand-in, and a recipe-like launch for it."""

import sys
from pathlib import Path

import pytest
from sparkbook.recipes import Launch, Serve


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A model folder; processes started while this fixture lives run the stand-in instead of vLLM."""
    programs = tmp_path / "engine" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    vllm = programs / "vllm"
    vllm.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{Path(__file__).with_name("stand_in.py")}" "$@"\n')
    vllm.chmod(0o755)
    monkeypatch.setenv("SPARKBOOK_ENGINE_PYTHON", str(programs / "python"))
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return model


@pytest.fixture
def launch():
    return Launch(serve=Serve(args={"served-model-name": "small", "max-model-len": 1024}))
