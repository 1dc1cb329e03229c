"""Why values are not what they should be, in words."""

from __future__ import annotations

import ast
import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from sparkbook.util import invalid

LIBRARY = Path(__file__).parents[2] / "lib" / "sparkbook"


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = "x"
    port: int | bool = 1


class Whole(BaseModel):
    model_config = ConfigDict(extra="forbid")
    count: int = Field(1, ge=0)
    text: str = Field("x", min_length=1, pattern="^x")
    share: float = 0.5
    on: bool = True
    day: datetime.date | None = None
    kind: Literal["a", "b"] = "a"
    words: list[str] = Field(default_factory=list, max_length=2)
    env: dict[str, int] = Field(default_factory=dict)
    parts: list[Part] = Field(default_factory=list)

    @field_validator("text")
    @classmethod
    def _no_y(cls, text: str) -> str:
        if "y" in text:
            raise ValueError(f"{text!r} holds a y")
        return text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"count": "many"}, "count: must be a whole number (got 'many')"),
        ({"count": 1.5}, "count: must be a whole number (got 1.5)"),
        ({"count": -1}, "count: must be greater than or equal to 0 (got -1)"),
        ({"text": 3}, "text: must be text (got 3)"),
        ({"text": ""}, "text: must have at least 1 character (got '')"),
        ({"text": "z"}, "text: must have the form ^x (got 'z')"),
        ({"text": "xy"}, "text: 'xy' holds a y"),
        ({"share": []}, "share: must be a number"),
        ({"on": "perhaps"}, "on: must be true or false (got 'perhaps')"),
        ({"day": "soon"}, "day: must be a date like 2026-11-28 (got 'soon')"),
        ({"kind": "c"}, "kind: must be 'a' or 'b' (got 'c')"),
        ({"words": "one"}, "words: must be a list (got 'one')"),
        ({"words": ["a", "b", "c"]}, "words: must have at most 2 items, not 3"),
        ({"env": {"TOKEN": "secret"}}, "env.TOKEN: must be a whole number"),
        ({"parts": [1]}, "parts[0]: must be a mapping (got 1)"),
        ({"parts": [{"prt": 1}]}, "parts[0].prt: no such key; did you mean 'port'?"),
        (
            {"parts": [{"name": "a", "port": "z"}]},
            "parts[0] (a).port: must be a whole number (got 'z'), or must be true or false"
            " (got 'z')",
        ),
        ([], "must be a mapping"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_belongs_there(value: Any, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate(value)
    assert list(invalid.problems(caught.value, value, Whole)) == [text]


def test_an_unknown_key_without_a_model_is_to_be_removed() -> None:
    with pytest.raises(ValidationError) as caught:
        Part.model_validate({"colour": 1})
    assert invalid.reason(caught.value) == "colour: no such key; remove it"


def test_of_many_mistakes_the_first_are_listed() -> None:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate({"words": list(range(2)), "parts": list(range(5))})
    assert invalid.reason(caught.value).endswith("parts[2]: must be a mapping (got 2); and 2 more")


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (lambda: json.loads('{\n"a": }'), "line 2, column 6 is not JSON"),
        (lambda: Whole.model_validate_json("{"), "is not JSON (EOF while parsing an object"),
        (lambda: {}["rows"], "rows: is missing"),
        (lambda: [][0], "its values have another shape"),
        (lambda: float("x"), "its values have another shape"),
    ],
)
def test_whatever_reading_raises(read: Callable[[], Any], text: str) -> None:
    with pytest.raises((ValueError, LookupError)) as caught:
        read()
    assert invalid.reason(caught.value).startswith(text)


def test_no_other_module_prints_what_pydantic_says() -> None:
    own = [
        f"{path.relative_to(LIBRARY)}:{node.lineno}"
        for path in LIBRARY.rglob("*.py")
        if path.name != "invalid.py" and "inside" not in path.parts
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "'msg'"
    ]
    assert own == []
