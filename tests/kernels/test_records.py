"""What was measured of the kernels, and the goals: the reports against what `kernels/VERSIONS.md`
says of them.
"""

from __future__ import annotations

import json
import re

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.kernels import build, records

REPORTS = records.load()
SAID = (build.sources() / "VERSIONS.md").read_text("utf-8")


def goal(words: str) -> records.Goal:
    (found,) = [one for one in records.GOALS if one.words.startswith(words)]
    return found


def test_a_report_is_read_card_by_card() -> None:
    assert list(REPORTS) == ["H100", "H200"]
    for card, report in REPORTS.items():
        assert (
            card in report.machine["gpu"]
            and report.title == f"{card}, kernels of version {report.version}"
        )
        for row in report.rows:
            assert row["of_copy"] == pytest.approx(row["gb_s"] / report.copy_gb_s, abs=0.001)
    assert (
        REPORTS["H200"].us("fp4_gemv pdl", "4096x4096") == 5.57
        and REPORTS["H100"].share("fp4_gemv", "8192x28672") == 0.935
    )
    with pytest.raises(
        SparkbookError, match="'read probe' of 4096x4096 with 0 tokens was not measured on the H100"
    ):
        REPORTS["H100"].us("read probe", "4096x4096", 0)


def test_the_versions_are_those_that_the_journal_names() -> None:
    assert f"`results/h100.json`, the run of version {REPORTS['H100'].version}" in SAID
    assert f"`results/h200.json` is version {REPORTS['H200'].version}'s" in SAID
    dated = {row["what"] for row in REPORTS["H200"].rows if "measured" in row}
    assert dated == {"bitsandbytes fp4", "humming NVFP4"}


def test_a_report_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(build, "sources", lambda: tmp_path)
    with pytest.raises(SparkbookError, match=r"h100\.json can't be read"):
        records.load()


@pytest.mark.parametrize(
    ("words", "h100", "h200"),
    [
        ("132 MB", "yes", "no"),
        ("66 MB", "no", "no"),
        ("33 to 38 MB", "with pdl", "no"),
        ("9.4 MB", "no", "no"),
        ("experts", "no", "no"),
        ("four tokens", "no", "no"),
        ("2:4", "in part", "in part"),
        ("8192²", "no", "with pdl"),
    ],
)
def test_which_goals_were_reached(words: str, h100: str, h200: str) -> None:
    assert [goal(words).verdict(report) for report in REPORTS.values()] == [h100, h200]


def test_the_goals_figures_are_those_of_the_journal() -> None:
    first, second = SAID.split("# On an H200")
    for words, line in (
        ("132 MB", "93.5 %; pdl 94.6 %"),
        ("66 MB", "81.1 %; pdl 87.6 %"),
        ("9.4 MB", "40.0 %; pdl 49.9 %"),
    ):
        assert goal(words).figures(REPORTS["H100"]).replace("\N{NO-BREAK SPACE}", " ") == line
        row = next(row for row in first.splitlines() if row.startswith(f"| {words}"))
        assert all(figure in row for figure in re.findall(r"[\d.]+ %", line))
    assert goal("2:4").figures(REPORTS["H200"]) == "0.97 to 1.40×" and "2:4 0.97 to 1.40x" in second
    assert (
        goal("8192²").figures(REPORTS["H200"]) == "1.44×; pdl 1.68×"
        and "1.44x the best library at 8192², 1.68x with" in second
    )


def test_the_reasons_figures_are_measured() -> None:
    assert (
        goal("9.4 MB").why.count("58 %") == 1
        and round(100 * REPORTS["H200"].share("read probe", "4096x4096", 0)) == 58
    )
    assert (
        "23 of 40 µs before version 9" in goal("132 MB").why
        and round(REPORTS["H200"].us("fp4_gemv", "8192x28672")) == 37
    )
    assert "23 us of it at 132 MB" in SAID
    assert (
        "since version 6 14.4 µs on the H200, version 5 took 16.7" in goal("experts").why
        and "experts (Qwen3-Next) 16.7" in SAID
    )
    assert round(REPORTS["H200"].us("moe_decode", "Qwen3-Next-80B-A3B"), 1) == 14.4
    assert goal("experts").why.endswith("version 10: 12.0")
    assert round(REPORTS["H200"].us("marlin_moe", "Qwen3-Next-80B-A3B"), 1) == 12.0
    assert [round(report.us("humming NVFP4", "8192x8192")) for report in REPORTS.values()] == [
        20,
        20,
    ]


def test_our_four_bit_products_are_the_fastest() -> None:
    for report in REPORTS.values():
        for shape in ("4096x4096", "8192x8192", "8192x28672"):
            mine = min(report.us(records.OURS + pdl, shape) for pdl in ("", " pdl"))
            assert all(mine < report.us(other, shape) for other in records.LIBRARIES)


def test_the_other_libraries_gain_nothing_from_the_faster_memory() -> None:
    for shape in ("4096x4096", "8192x8192", "8192x28672"):
        for what in records.LIBRARIES:
            assert REPORTS["H200"].us(what, shape) == pytest.approx(
                REPORTS["H100"].us(what, shape), rel=0.04
            )
        for what in (records.OURS, f"{records.OURS} pdl", *records.LIBRARIES):
            assert REPORTS["H200"].share(what, shape) < REPORTS["H100"].share(what, shape)


def test_the_table_has_a_row_a_goal() -> None:
    rows = records.goals(REPORTS)
    assert (
        len(rows) == len(records.GOALS)
        and rows[0][1].startswith("**yes**: 93.5")
        and rows[-1][2] == "**with pdl**: 1.44×; pdl 1.68×"
    )


def test_a_report_of_somebody_else_is_read_by_its_rows(tmp_path) -> None:
    file = build.sources() / "results" / "h200.json"
    assert records.times(str(file))["fp4_gemv pdl", "4096x4096", 1] == 5.57
    stopped = tmp_path / "stopped.json"
    stopped.write_text('{"stopped": "RuntimeError"}', "utf-8")
    assert records.times(str(stopped)) == {}
    row = '{"rows": [{"what": "a", "shape": "b", "tokens": 1, "us": %s}]}'
    wrong = [row % us for us in ("null", '"x"', "NaN", "-1", "0")]
    for text in ("[]", "{}", '{"rows": [{"what": 1}]}', "no json", "[" * 100000, *wrong):
        stopped.write_text(text, "utf-8")
        with pytest.raises(SparkbookError, match=r"stopped\.json is no report of the kernels"):
            records.times(str(stopped))


@pytest.mark.parametrize("size", records.MODELS)
def test_a_whole_models_speeds_are_those_of_the_journal(size: str) -> None:
    header, rows = records.whole_model(size)
    said = SAID.split("## Both shapes, version 10")[1].split(f"\n| {size.upper()}")[1]
    for arm in ("Marlin", "plug-in", "ratio"):
        line = next(line for line in said.splitlines() if line.startswith(f"| {arm} |"))
        values = [row[header.index(arm)].split(" (")[0] for row in rows]
        assert line.startswith(f"| {arm} | {' | '.join(values[:6])} | {', '.join(values[6:])} ")
        assert all(row[header.index(arm)].partition("(")[2][:-1] in line for row in rows[6:])
        if arm == "ratio":
            shown = f"| {' | '.join(values[:6])} | {', '.join(values[6:])} |"
            assert shown in (build.sources() / "README.md").read_text("utf-8")


@pytest.mark.parametrize("size", records.MODELS)
def test_the_plugin_is_never_slower_and_gains_at_one_request(size: str) -> None:
    data = json.loads((build.sources() / "results" / f"whole-{size}-h200.json").read_text("utf-8"))
    rows = zip(*(data["arms"][arm]["decode"] for arm in ("plugin", "marlin")), strict=True)
    ratios = {ours["requests"]: ours["tok_s"] / marlin["tok_s"] for ours, marlin in rows}
    assert list(ratios) == [1, 2, 4, 8, 16, 32] and min(ratios.values()) >= 0.98
    assert ratios[1] >= 1.05


def test_the_drafts_speeds_are_those_of_the_journal() -> None:
    said = SAID.split("**Drafts** (n-gram, four tokens, 8B, each server")[1]
    for requests, *cells in records.drafts()[1]:
        assert f"| {requests} ({5 * int(requests)}) | {' | '.join(cells)} |" in said


@pytest.mark.parametrize("text", ["{}", "[]", '{"rows": [{}]}', "no json"])
def test_a_damaged_report_of_a_card_is_told(tmp_path, monkeypatch, text: str) -> None:
    (tmp_path / "results").mkdir()
    for card in records.CARDS:
        (tmp_path / "results" / f"{card.lower()}.json").write_text(text, "utf-8")
    monkeypatch.setattr(build, "sources", lambda: tmp_path)
    with pytest.raises(SparkbookError, match=r"h100\.json can't be read"):
        records.load()
