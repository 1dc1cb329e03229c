"""The flag reference, made from the table and the rules."""

import pytest
from sparkbook import releases
from sparkbook.site import flag_reference as reference


def test_every_option_of_the_reference_is_one_or_was_taught_as_one():
    known = releases.get("0.32.0")
    assert [
        name for name, text in reference.TEXTS.items() if text.costs and name not in known.options
    ] == ["speculative-disable-by-batch-size"]


def test_lives_and_defaults_come_from_the_table():
    old, new = (
        {flag.name: flag for flag in reference.flags(version)} for version in ("0.19.0", "0.32.0")
    )
    assert (old["gpu-memory-utilization"].default, new["gpu-memory-utilization"].default) == (
        "0.9",
        "0.92",
    )
    assert old["linear-backend"].default is None and new["linear-backend"].life == "since 0.22.0"
    assert new["speculative-disable-by-batch-size"].life.startswith("in no release")
    assert (
        new["max-num-seqs"].default == "chosen at start" and new["enforce-eager"].default == "false"
    )


def test_the_rules_that_watch_an_option():
    assert {"MEM101", "MEM102", "MEM103"} <= set(reference.watching("gpu-memory-utilization"))
    assert "FLAG102" in reference.watching("speculative-disable-by-batch-size")
    assert reference.watching("no-such-option") == ()


@pytest.mark.parametrize(
    ("name", "release", "words"), [("gpu-memory-utilization", "0.20.0", "default 0.9, now 0.92")]
)
def test_the_history_of_an_option(name, release, words):
    assert (release, words) in reference.history(name)
