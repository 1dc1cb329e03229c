"""The case base of public reports: its files are valid, what is built from them is current, and the
search finds what resembles a text and nothing else.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

import pytest
import yaml
from sparkbook.errors import SparkbookError
from sparkbook.logs import reports
from sparkbook.logs.recordings import recorded

ROOT = Path(__file__).resolve().parents[2]
ENTRY = {
    "id": "vllm-1",
    "url": "https://github.com/vllm-project/vllm/issues/1",
    "date": "2026-11-01",
    "title": "The engine stops at the start",
    "symptom": "EngineCore ends with an error.",
    "kind": "oom-load",
}

KNOWN = [
    ("(EngineCore pid=85) ERROR 06-23 18:39:58 [core.py:1229] ValueError: Backend TORCH_SDPA must be registered before use.", "eugr-298"),
    ("spark-2:281:281 [0] misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "deepseek-v4-1-flash-dgx-sparks-14"),
    ("AttributeError: Layer mtp.layers.3.mlp.experts has no parameter 'w2_weight_scale_inv'", "qwen3-8-flash-next-nvfp4-dgx-spark-3"),
    ("RuntimeError: Assertion error (csrc/apis/layout.hpp:59): Unknown SF transformation", "deepgemm-372"),
    ("tvm.error.InternalError: Check failed: num_tokens > 64 (5 vs. 64) : Decode (num_tokens <= 64)", "vllm-50720"),
    ("The decoder prompt contains a(n) image item with length 700, which exceeds the pre-allocated encoder cache size 512.", "vllm-34040"),
    ("AssertionError: DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got auto", "vllm-54233"),
    ("vllm: error: unrecognized arguments: --gdn-decode-kernel b12x", "eugr-385"),
]  # fmt: skip
NOTHING = [
    "",
    "hello",
    "The quick brown fox jumps over the lazy dog while seven wizards brew a potion.",
    "Nov 28 10:00:01 host systemd[1]: Started Daily apt download activities.",
    "npm WARN deprecated glob@7.2.3: Glob versions prior to v9 are no longer supported",
    "[nginx] 2026/11/28 10:00:01 192.0.2.7 GET /index.html 200 612",
    "E: Unable to locate package libreoffice-writer-nonsense",
    "TypeError: Cannot read properties of undefined (reading 'map') at Array.forEach",
    "org.postgresql.util.PSQLException: FATAL: password authentication failed for user",
]


def test_the_built_files_are_current() -> None:
    assert reports.FILE.read_text("utf-8") == reports.as_json(reports.read()), (
        "run: python tools/build_reports.py"
    )
    assert reports.SCHEMA_FILE.read_text("utf-8") == reports.json_schema()


def test_reading_the_built_file_gives_the_reports() -> None:
    assert reports.every() == reports.read()


def test_every_file_fits_the_published_schema() -> None:
    import jsonschema

    schema = json.loads(reports.SCHEMA_FILE.read_text("utf-8"))
    for file in reports.FOLDER.glob("*.yaml"):
        entries = yaml.load(file.read_text("utf-8"), yaml.BaseLoader)  # dates stay text
        jsonschema.validate(entries, schema)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "bad-luck"}, "no kind"),
        ({"date": "May 2026"}, "date"),
        ({"url": "vllm/1"}, "url"),
        ({"fixed_in": "soon"}, "fixed_in"),
        ({"guess": "the driver"}, "guess"),
    ],
)
def test_an_entry_that_is_not_valid_is_named(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    (tmp_path / "vllm.yaml").write_text(yaml.safe_dump([ENTRY | change]), "utf-8")
    with pytest.raises(SparkbookError, match=rf"vllm.yaml: vllm-1: .*{message}"):
        reports.read(tmp_path)


def test_an_id_is_given_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump([ENTRY]), "utf-8")
    (tmp_path / "b.yaml").write_text(yaml.safe_dump([ENTRY]), "utf-8")
    with pytest.raises(SparkbookError, match="vllm-1 occurs twice"):
        reports.read(tmp_path)


def test_no_report_contains_a_private_path_or_key() -> None:
    text = reports.FILE.read_text("utf-8")
    for private in ("/home/", "/Users/", "hf_", "nvapi-", "Bearer "):
        lines = [line for line in text.splitlines() if private in line]
        assert [line for line in lines if private != "hf_" or "hf_token=" in line] == []


@pytest.mark.parametrize(("text", "id"), KNOWN, ids=[id for _, id in KNOWN])
def test_a_known_text_finds_its_report(text: str, id: str) -> None:
    assert reports.similar(text)[0].id == id


def test_a_line_is_found_in_a_long_log() -> None:
    noise = "\n".join(
        f"(EngineCore pid=1) INFO 09-10 10:17:{n:02} [a.py:1] step {n}" for n in range(60)
    )
    log = f"{noise}\n{KNOWN[2][0]}\n{noise}"
    assert reports.similar(log)[0].id == KNOWN[2][1]


def test_a_line_of_a_healthy_start_finds_none() -> None:
    for name in ("h100-moe", "gb10-fragment"):
        for line in recorded(name).splitlines():
            if " INFO " in line:
                assert {one.kind for one in reports.similar(line)} <= {"benign-noise"}, line


def test_lines_of_another_program_find_none() -> None:
    """The standard library's own sources stand for whatever a log may contain."""
    sources = [argparse.__file__, subprocess.__file__]
    lines = [line for file in sources for line in Path(file).read_text("utf-8").splitlines()]
    assert len(lines) > 4000
    wrong = [line for line in lines if reports.similar(line)]
    assert len(wrong) <= len(lines) / 1000, wrong


@pytest.mark.parametrize("text", NOTHING)
def test_another_programs_text_finds_none(text: str) -> None:
    assert reports.similar(text) == []


def test_reports_of_the_same_kind_come_first() -> None:
    text = f"{KNOWN[5][0]} {KNOWN[7][0]}"
    plain = {report.id: (report.kind, score) for report, score in reports.scored(text)}
    kinds = {kind for kind, _ in plain.values()}
    assert len(kinds) > 1
    for kind in kinds:
        for report, score in reports.scored(text, kind=kind):
            factor = 1.5 if report.kind == kind else 1
            assert score == pytest.approx(plain[report.id][1] * factor)


def test_limit() -> None:
    assert len(reports.similar(KNOWN[5][0] + KNOWN[7][0] + KNOWN[3][0], limit=2)) == 2


def test_without_sqlite_there_are_no_similar_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "database", lambda: None)
    assert reports.similar(KNOWN[0][0]) == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("OSError: [Errno 98] Address in use", {"errno98", "errno", "oserror", "error", "address"}),
        ("NVRM: Xid (PCI:000f:01:00): 31", {"nvrm", "xid", "xid31", "pci"}),
        ("2026-11-28 10:17:39 0x7f3a2b NCCL", {"nccl"}),
        ("/usr/lib/vllm/csrc/layout.hpp:59", {"layout", "hpp"}),
        ("--kv-cache-dtype fp8", {"kv_cache_dtype", "cache", "dtype", "fp8"}),
        ("exit code 137", {"exit_code137", "exit", "code"}),
    ],
)  # fmt: skip
def test_words_of_a_log(text: str, kept: set[str]) -> None:
    assert set(reports.words(text)) == kept


def test_lines_that_no_report_was_written_for() -> None:
    """Lines kept back from everything: most find reports, and most of those are of their kind."""
    file = ROOT / "tests" / "data" / "logs" / "unseen.yaml"
    lines = yaml.safe_load(file.read_text("utf-8"))
    answers = [(one["kind"], reports.similar(one["line"])) for one in lines]
    answered = [(kind, found) for kind, found in answers if found]
    right = [kind for kind, found in answered if kind in {report.kind for report in found}]
    assert len(answered) >= 0.6 * len(lines) and len(right) >= 0.75 * len(answered)
