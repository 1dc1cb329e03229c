"""A model for the stand-in engine, and a recipe-like launch for it."""

import pytest
from sparkbook.recipes import Launch, Serve


@pytest.fixture
def stand_in(stand_in_engine, tmp_path, monkeypatch):
    """A model folder; processes started while this fixture lives run the stand-in instead of vLLM."""
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return model


@pytest.fixture
def launch():
    return Launch(serve=Serve(args={"served-model-name": "small", "max-model-len": 1024}))
