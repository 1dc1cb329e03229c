"""Two nodes on one machine (`tools/namespaces.py`), as tests take them."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import namespaces


@pytest.fixture
def two_nodes(tmp_path, monkeypatch):
    """The two nodes; both namespaces are gone afterwards, with all that ran in them."""
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    with namespaces.two_nodes() as nodes:
        yield nodes
