"""Texts inside a value of JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Return the same value with each text in it changed; names of fields and numbers stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: each_text(item, change) for name, item in value.items()}
    return [each_text(item, change) for item in value] if isinstance(value, list) else value
