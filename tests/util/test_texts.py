"""Texts inside a value of JSON."""

from __future__ import annotations

from sparkbook.util.texts import each_text


def test_only_texts_change_and_names_and_numbers_stay() -> None:
    value = {"a": ["a", 1, {"b": "a"}], "c": None, "d": True, "e": "a"}
    want = {"a": ["A", 1, {"b": "A"}], "c": None, "d": True, "e": "A"}
    assert each_text(value, str.upper) == want and each_text("a", str.upper) == "A"
    assert value["e"] == "a" and each_text(1.5, str.upper) == 1.5
