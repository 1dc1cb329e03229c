"""The table of known-bad combinations: valid, with its schema; conditions hold when they should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from sparkbook import releases, rules
from sparkbook.errors import SparkbookError
from sparkbook.releases import known_bad, known_bad_schema

ENTRY = {
    "code": "BAD999",
    "name": "example",
    "title": "An option with another",
    "symptom": "the start fails",
    "kind": "oom-load",
    "severity": "error",
    "options": {"load-format": "given"},
    "instead": "Use neither.",
    "sources": [{"url": "https://github.com/vllm-project/vllm/issues/1", "date": "2026-11-01"}],
}


def table(folder: Path, *changes: dict[str, object]) -> tuple[known_bad.Combination, ...]:
    file = folder / "known_bad.yaml"
    file.write_text(yaml.safe_dump({"combinations": [ENTRY | one for one in changes]}), "utf-8")
    return known_bad_schema.read(file)


def holds(folder: Path, changes: dict[str, object], **known: object) -> bool:
    (one,) = table(folder, changes)
    return one.holds(known_bad.facts(**known))  # type: ignore[arg-type]


def names(**known: object) -> list[str]:
    return [one.name for one in known_bad.matching(**known)]  # type: ignore[arg-type]


def test_the_published_schema_is_current_and_the_table_fits_it() -> None:
    import jsonschema

    text = known_bad.SCHEMA_FILE.read_text("utf-8")
    assert text == known_bad_schema.json_schema()
    jsonschema.validate(
        yaml.load(known_bad.FILE.read_text("utf-8"), yaml.BaseLoader), json.loads(text)
    )


def test_sixty_combinations_with_dated_sources() -> None:
    found = known_bad.combinations()
    assert [one.code for one in known_bad_schema.read(known_bad.FILE)] == [
        one.code for one in found
    ]
    assert len(found) >= 60 and all(one.sources for one in found)
    assert all(source.date >= "2025" for one in found for source in one.sources)


def test_releases_are_known_ones() -> None:
    known = {*releases.known(), "0.9.2"}
    for one in known_bad.combinations():
        assert {one.since, one.until, one.fixed_in, one.release} - {None} <= known, one.code
        if one.since and one.last:
            assert releases.at_least(one.last, one.since), one.code


def test_what_a_line_can_show_is_a_rule_of_the_linter() -> None:
    shown = {one.code for one in known_bad.combinations() if one.fails}
    assert set(rules.family("BAD").rules) == shown and len(shown) >= 55


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "bad-luck"}, "no kind"),
        ({"severity": "fatal"}, "severity"),
        ({"options": {}}, "names no model"),
        ({"fails": "vllm serve"}, "one example of two"),
        ({"sources": []}, "sources"),
        ({"instead": "neither"}, "instead"),
        ({"since": "soon"}, "since"),
        ({"driver": "580"}, "driver"),
    ],
)
def test_an_entry_that_is_not_valid_is_named(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    with pytest.raises(SparkbookError, match=rf"BAD999: .*{message}"):
        table(tmp_path, change)


def test_a_code_and_a_name_are_given_once(tmp_path: Path) -> None:
    with pytest.raises(SparkbookError, match="BAD999 occurs twice"):
        table(tmp_path, {}, {"name": "other"})
    with pytest.raises(SparkbookError, match="example occurs twice"):
        table(tmp_path, {}, {"code": "BAD998"})


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ("given", "auto", True),
        ("given", None, True),
        ("given", False, False),
        ("absent", "auto", False),
        (">1", "2", True),
        (">1", "1", False),
        (">=0.85", "0.9", True),
        (">0.8", "0.75", False),
        ("<4", "many", False),
        ("fp8.*", "FP8_E4M3", True),
        ("fp8.*", "auto", False),
        ("not fp8.*", "auto", True),
        ("not fp8.*", "fp8", False),
        ("not >1", "1", True),
    ],
)
def test_a_condition_on_an_option(
    tmp_path: Path, condition: str, value: object, expected: bool
) -> None:
    change = {"options": {"an-option": condition}}
    for name in ("an-option", "--an-option", "an_option"):
        assert holds(tmp_path, change, options={name: value}) is expected


def test_conditions_on_an_option_that_is_not_given(tmp_path: Path) -> None:
    for condition, expected in (("given", False), ("absent", True), ("not 1", True), (">1", False)):
        assert holds(tmp_path, {"options": {"an-option": condition}}) is expected


def test_keys_of_a_json_option_and_negated_flags(tmp_path: Path) -> None:
    change = {"options": {"speculative-config.method": "mtp"}}
    for value in ('{"method": "mtp"}', {"method": "mtp"}):
        assert holds(tmp_path, change, options={"speculative_config": value})
    assert not holds(tmp_path, change, options={"speculative-config": "{method"})
    off = {"options": {"async-scheduling": "false"}}
    assert holds(tmp_path, off, options={"no-async-scheduling": None})
    assert not holds(tmp_path, off, options={"async-scheduling": None})


@pytest.mark.parametrize(
    ("change", "release", "expected"),
    [
        ({}, None, True),
        ({"since": "0.24.0"}, None, False),
        ({"since": "0.24.0"}, "0.23.0", False),
        ({"since": "0.24.0"}, "0.24.0", True),
        ({"until": "0.24.0"}, "0.24.0", True),
        ({"until": "0.24.0"}, "0.25.0", False),
        ({"fixed_in": "0.24.0"}, "0.23.0", True),
        ({"fixed_in": "0.24.0"}, "0.24.0", False),
    ],
)
def test_a_release(
    tmp_path: Path, change: dict[str, object], release: str | None, expected: bool
) -> None:
    assert holds(tmp_path, change, release=release, options={"load-format": "auto"}) is expected


def test_the_last_release_before_a_repair(tmp_path: Path) -> None:
    assert table(tmp_path, {"fixed_in": "0.28.0"})[0].last == "0.27.1"


@pytest.mark.parametrize(
    ("wanted", "gpu", "expected"),
    [
        ("GB10", "NVIDIA GB10", True),
        ("sm_12x", "NVIDIA GB10", True),
        ("sm_12x", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", True),
        ("GB10", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", False),
        ("sm_120", "NVIDIA GB10", False),
        ("blackwell", "NVIDIA B200", True),
        ("H100", "NVIDIA H200", False),
        ("sm_90", "NVIDIA H20", True),
        ("sm_12x", None, False),
    ],
)
def test_a_gpu(tmp_path: Path, wanted: str, gpu: str | None, expected: bool) -> None:
    assert holds(tmp_path, {"gpus": [wanted]}, gpu=gpu, options={"load-format": "x"}) is expected


def test_driver_kernel_and_image(tmp_path: Path) -> None:
    given = {"load-format": "auto"}
    old = {"driver": "<590.48"}
    assert holds(tmp_path, old, driver="580.159.03", options=given)
    assert not holds(tmp_path, old, driver="590.48.01", options=given)
    assert not holds(tmp_path, old, options=given)
    assert "kernel-rdma-7-0-0-1019" in names(kernel="7.0.0-1019-nvidia")
    assert names(kernel="6.17.0-1032-nvidia") == [] == names()
    assert names(image="vllm/vllm-openai:cu130-nightly") == ["cu130-nightly"]


def test_errors_come_first() -> None:
    found = known_bad.matching(
        release="0.29.0",
        model="nvidia/Qwen3.8-Flash-Next-NVFP4",
        options={"moe-backend": "flashinfer_b12x", "gpu_memory_utilization": "0.8"},
        gpu="NVIDIA GB10",
    )
    order = [one.severity for one in found]
    assert order == sorted(order, key=["error", "warning", "info"].index) and "error" in order
    assert {"b12x-512-experts", "flash-next-memory-029"} <= {one.name for one in found}


def test_an_ordinary_server_fits_none() -> None:
    assert names(
        release="0.32.0",
        model="openai/gpt-oss-20b",
        options={"max-model-len": "32768", "gpu-memory-utilization": "0.8"},
        gpu="NVIDIA GB10",
        driver="580.159.03",
        kernel="6.17.0-1032-nvidia",
    ) == []  # fmt: skip
