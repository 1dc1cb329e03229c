"""The releases that can be asked: what is here, what is not, and what an installer leaves behind."""

import json
from pathlib import Path

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.oracle import engines
from sparkbook.oracle.engines import Engine


@pytest.fixture(autouse=True)
def embedded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("SPARKBOOK_CACHE", str(tmp_path))
    engine = Engine("0.32.0", Path("/usr/bin/python3"))
    monkeypatch.setattr(engines, "embedded", lambda: engine)
    return engine


def fetched(packages: list[str], folder: Path, python: Path) -> None:
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm" / "_C.abi3.so").write_text("compiled")
    (folder / "vllm" / "version.py").write_text(packages[0])


def test_a_release_is_added_listed_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_fetch", fetched)
    added = engines.add("v0.24")
    assert added.version == "0.24.0" and not added.embedded
    assert [engine.version for engine in engines.available()] == ["0.24.0", "0.32.0"]
    assert not list((added.folder or Path()).rglob("*.so")), "compiled libraries are not kept"
    assert added.folders[1].name == "transformers-5.8"
    engines.remove("0.24.0")
    assert [engine.version for engine in engines.available()] == ["0.32.0"]


def test_a_fetch_that_was_cut_off_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    (engines.home() / "0.28.0" / "vllm").mkdir(parents=True)
    assert [engine.version for engine in engines.available()] == ["0.32.0"]
    monkeypatch.setattr(engines, "_fetch", fetched)
    engine = engines.add("0.28.0")
    assert json.loads((engines.home() / "0.28.0" / engines.MARK).read_text()) == {
        "vllm": "0.28.0",
        "with": [],
    }
    assert engine.folders == (engines.home() / "0.28.0",)


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.10.2", "older than 0.11.0"),
        ("new", "not a vLLM version"),
        ("../x", "not a vLLM version"),
    ],
)
def test_what_cannot_be_added_says_so(version: str, words: str) -> None:
    with pytest.raises(SparkbookError, match=words):
        engines.add(version)


def test_the_embedded_engine_stays() -> None:
    assert engines.add("0.32.0").embedded
    with pytest.raises(SparkbookError, match="it stays"):
        engines.remove("0.32.0")


def test_a_release_that_is_not_here_names_the_command() -> None:
    with pytest.raises(SparkbookError, match=r"sparkbook engines add 0\.25\.1"):
        engines.find("0.25.1")
