"""Nothing of the five source documents is lost: outline, mapping and pages hold together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sparkbook.register import coverage
from sparkbook.runner.project import here
from sparkbook.site import coverage_page

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = os.environ.get("SPARKBOOK_DOCUMENTS", "")
"""Folder with the source documents, where they are at hand; they are not part of the project."""


def test_every_item_has_a_home_that_is_there_or_a_reason() -> None:
    assert list(coverage_page.problems(here())) == []


def test_every_document_has_items_of_its_kinds() -> None:
    found = {(item.document, item.kind) for item in coverage.outline(ROOT)}
    assert {document for document, _ in found} == set(coverage.TITLES)
    assert {kind for _, kind in found} == set(coverage.KINDS)
    assert len(coverage.outline(ROOT)) > 450


def test_the_page_says_so() -> None:
    text = coverage_page.page(here())
    assert " 0 missing" in text
    assert "guide/option" not in text
    assert "<td>--max-num-seqs</td>" in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"home": "notebooks/99_none"}, "there is no page notebooks/99_none"),
        ({"home": "book/intro"}, "the name does not occur on book/intro"),
        ({"items": ["guide/option/--no-such"]}, "matches nothing"),
    ],
)
def test_a_wrong_mapping_is_found(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object], problem: str
) -> None:
    entry = coverage.Entry(
        items=["guide/option/--max-num-seqs"], home="notebooks/08_flags"
    ).model_copy(update=change)
    mapping = [entry, *coverage.entries(ROOT)]
    monkeypatch.setattr(coverage_page, "entries", lambda _: mapping)
    assert any(problem in found for found in coverage_page.problems(here()))


@pytest.mark.parametrize(
    ("document", "kind", "name", "found"),
    [
        ("guide", "figure", "2/273 GB/s", True),
        ("guide", "figure", "2/274 GB/s", False),
        ("guide", "figure", "13.5/273 GB/s", False),  # not what that section says
        ("gemma4", "figure", "6/3,105 tok/s", True),
        ("gemma4", "figure", "2/273 GB/s", False),
        ("guide", "setting", "7.1.1/--max-model-len=65536", True),
        ("guide", "setting", "7.1.1/--max-model-len=65537", False),
        ("guide", "setting", "7.1.1/num_speculative_tokens=3", True),
        ("thread", "figure", "turbo-kv-types/41.61", True),
    ],
)
def test_a_figure_and_a_setting_have_a_claim_of_their_document_and_section(
    document: str, kind: str, name: str, found: bool
) -> None:
    assert bool(coverage.claims_with(coverage.Item(document, kind, name))) is found


def test_a_figure_without_a_claim_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        coverage_page, "outline", lambda _: [coverage.Item("guide", "figure", "2/999 GB/s")]
    )
    assert "guide/figure/2/999 GB/s has no home in this book" in list(
        coverage_page.problems(here())
    )


def test_an_item_that_nothing_maps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        coverage_page, "outline", lambda _: [coverage.Item("guide", "variable", "NEW_ONE")]
    )
    assert "guide/variable/NEW_ONE has no home in this book" in list(coverage_page.problems(here()))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools/extract_outline.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(
    not DOCUMENTS, reason="SPARKBOOK_DOCUMENTS names no folder with the source documents"
)
def test_the_committed_outline_is_that_of_the_documents() -> None:
    assert run(DOCUMENTS).stdout == (ROOT / coverage.OUTLINE).read_text("utf-8")


def test_the_tool_says_what_is_missing(tmp_path: Path) -> None:
    done = run(str(tmp_path))
    assert done.returncode == 1
    assert "guide-vllm-on-dgx-spark.md" in done.stderr


def test_an_outline_of_a_small_document() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from extract_outline import outline
    finally:
        sys.path.pop(0)
    text = """## 3. Storing

Run `vllm serve Qwen/Some-Model --port 8000` with -e HF_HOME=/models.

| Flag | Use |
|---|---|
| `--a-b` | one two |
| other words that go on and on | x |

```bash
# not a heading
```
#### 3.1 Deeper
"""
    assert outline("small", text) == [
        "section/3",
        "model/Qwen/Some-Model",
        "option/--port",
        "variable/HF_HOME",
        "setting/3/--port=8000",
        "setting/3/HF_HOME=/models",
        "row/3/a-b",
        "option/--a-b",
        "row/3/other-words-that-go-on",
        "section/3.1",
    ]


def test_figures_and_settings_of_lines() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from extract_outline import figures, settings
    finally:
        sys.path.pop(0)
    text = (
        "About **128 GB** at ~273 GB/s, 10–15 min, 3,105 t/s and 85.6%, on sm_121 with vLLM ≥"
        " 0.21.0 (2026-04-05, #38837, §7.1)"
    )
    assert figures(text, False) == [
        "128 GB",
        "273 GB/s",
        "10 to 15 min",
        "3,105 tok/s",
        "85.6 %",
        "0.21.0",
    ]
    assert figures("| c=4 | 181.47 | Qwen3.6-35B-A3B | 35B / 3B | https://x.y/9.5 |", False) == [
        "181.47",
        "35 B",
        "3 B",
    ]
    line = """vllm serve m --max-model-len 65536 --kv-cache-dtype=fp8 -e MAX_NUM_SEQS=4 '{"method":"mtp","num_speculative_tokens":3}'"""
    assert settings(line, True) == [
        "--max-model-len=65536",
        "--kv-cache-dtype=fp8",
        "MAX_NUM_SEQS=4",
        "method=mtp",
        "num_speculative_tokens=3",
    ]
    assert settings(
        "leave out `--quantization` for `gptq`; lower --gpu-memory-utilization to 0.80, or to"
        " --gpu-memory-utilization 0.7",
        False,
    ) == ["--gpu-memory-utilization=0.7"]
