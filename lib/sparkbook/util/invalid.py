"""Why a file or a reply is not what it should be, in words for whoever wrote it: the place, what is
wrong there, and what is allowed.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

_BELONGS = {
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "bool": "true or false",
    "list": "a list",
    "tuple": "a list",
    "set": "a list without duplicates",
    "frozen_set": "a list without duplicates",
    "dict": "a mapping",
    "mapping": "a mapping",
    "model": "a mapping",
    "model_attributes": "a mapping",
    "dataclass": "a mapping",
    "date": "a date like 2026-11-28",
    "date_from_datetime": "a date like 2026-11-28",
    "datetime": "a date and time like 2026-11-28T12:00:00Z",
}
"""What belongs at a place, by the first word of pydantic's name of the mistake (`int_parsing`)."""
_MOST_SHOWN = 5


def reason(error: Exception) -> str:
    """Return in half a sentence why values are not what they should be, whatever reading them
    raised.
    """
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        found = list(problems(error))
        left = len(found) - _MOST_SHOWN
        return "; ".join(found[:_MOST_SHOWN] + [f"and {left} more"] * (left > 0))
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}, column {error.colno} is not JSON"
    if isinstance(error, KeyError) and error.args:
        return f"{error.args[0]}: is missing"
    return "its values have another shape"


def problems(
    error: ValidationError,
    value: Any = None,
    model: type[BaseModel] | None = None,
    forms: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield each mistake that pydantic found, as `nodes[1] (spark-2).address: is missing`.

    Args:
        value: what was validated; entries of its lists are named.
        model: what it was validated as; an unknown key is answered with the ones that are allowed.
        forms: what belongs into a field of which pydantic knows a pattern only.
    """
    by_place: dict[str, list[str]] = {}
    for one in error.errors(include_url=False):
        texts = by_place.setdefault(_place(one["loc"], value), [])
        text = _text(one, model, forms or {})
        if text not in texts:
            texts.append(text)
    # Several texts for one place are the alternatives of a union.
    for place, texts in by_place.items():
        yield f"{place}: {', or '.join(texts)}" if place else ", or ".join(texts)


def _place(steps: tuple[int | str, ...], value: Any) -> str:
    place = ""
    for step in steps:
        # The alternatives of a union, and validators
        if step in ("bool", "int", "float", "str") or "[" in str(step):
            continue
        try:
            value = value[step]
        except (LookupError, TypeError):
            value = None
        if isinstance(step, int):
            name = value.get("host") or value.get("name") if isinstance(value, dict) else None
            place += f"[{step}]" + (f" ({name})" if isinstance(name, str) else "")
        else:
            place += f".{step}" if place else step
    return place


def _text(one: Any, model: type[BaseModel] | None, forms: Mapping[str, str]) -> str:
    steps, kind, text = one["loc"], one["type"], one["msg"]
    match kind:
        case "missing":
            return "is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return _no_such_key(steps, model)
        case "json_invalid":
            return f"is not JSON ({one['ctx']['error']})"
        case "value_error" | "assertion_error":
            text = re.sub(r"^(Value error|Assertion failed), ", "", text)
        case "literal_error" | "enum":
            text = f"must be {one['ctx']['expected']}"
        case "string_pattern_mismatch":
            text = "must have the form " + forms.get(str(steps[-1]), str(one["ctx"]["pattern"]))
        case _ if belongs := re.match(r"(\w+?)_(?:type|parsing|from_float|parsing_size)$", kind):
            text = f"must be {_BELONGS.get(belongs[1], text)}"
        case _:
            text = re.sub(r"^[A-Z]\w+ should (be|have) (?:a valid )?", r"must \1 ", text)
            text = text.replace(" after validation", "")
    # A mapping is not shown, nor a variable's value: there may be a secret in it.
    if isinstance(one["input"], dict | list) or "env" in steps:
        return text
    shown = repr(one["input"])
    if shown in text:
        return text
    return f"{text} (got {shown if len(shown) <= 60 else f'{shown[:57]}...'})"


def _no_such_key(steps: tuple[int | str, ...], model: type[BaseModel] | None) -> str:
    allowed = _keys(model, steps[:-1]) if model else []
    if close := difflib.get_close_matches(str(steps[-1]), allowed, n=1):
        return f"no such key; did you mean '{close[0]}'?"
    return "no such key; " + (f"allowed here: {', '.join(allowed)}" if allowed else "remove it")


@functools.lru_cache(maxsize=4)
def _schema(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _keys(model: type[BaseModel], steps: tuple[int | str, ...]) -> list[str]:
    """Return the keys that a model's published JSON Schema has at a place."""
    whole = node = _schema(model)
    for step in steps:
        node = _resolved(node, whole)
        known = node.get("properties", {}).get(step, {})
        node = node.get("items", {}) if isinstance(step, int) else known
    return sorted(_resolved(node, whole).get("properties", {}))


def _resolved(node: dict[str, Any], whole: dict[str, Any]) -> dict[str, Any]:
    for option in node.get("anyOf", []):
        if "$ref" in option:
            node = option
    found: dict[str, Any] = (
        whole["$defs"][node["$ref"].rsplit("/", 1)[-1]] if "$ref" in node else node
    )
    return found
