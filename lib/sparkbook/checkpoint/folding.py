"""Short forms of long lists of module names.

A quantized checkpoint lists each module by name, up to 22,000 of them, which differ in numbers
only:

    >>> fold_names(["layers.0.mlp", "layers.1.mlp", "layers.3.mlp", "lm_head"])
    ['layers.<0-1,3>.mlp', 'lm_head']

A name may have several such places. Each combination of their numbers is meant.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from typing import Any

_LEAST = 12
"""Names in a list or an object from which on it is folded."""

_NUMBER = re.compile(r"(?:(?<=\.)|^)(?:0|[1-9]\d*)(?=\.|$)")
_PLACE = re.compile(r"<([\d,-]+)>")
_NAMES, _VALUES = "<names>", "<values>"


def fold_names(names: Iterable[str]) -> list[str]:
    """Names in their short form, sorted."""
    groups: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for name in names:
        places = tuple(_NUMBER.findall(name))
        groups.setdefault(tuple(_NUMBER.split(name)), set()).add(places)
    found = []
    for parts, numbers in groups.items():
        for places in _products(numbers):
            found.append(
                "".join(itertools.chain(*itertools.zip_longest(parts, places, fillvalue="")))
            )
    return sorted(found)


def _products(numbers: set[tuple[str, ...]]) -> Iterable[tuple[str, ...]]:
    """Rows of numbers as products of ranges, the last column folded first."""
    width = len(next(iter(numbers)))
    folded = set(numbers)
    for column in reversed(range(width)):
        merged: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
        for row in folded:
            merged.setdefault((row[:column], row[column + 1 :]), []).append(int(row[column]))
        folded = {
            (*before, _ranges(sorted(found)), *after) for (before, after), found in merged.items()
        }
    return sorted(folded)


def _ranges(numbers: list[int]) -> str:
    """Sorted numbers as `<0-3,7>`; one alone stays as it is."""
    if len(numbers) == 1:
        return str(numbers[0])
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return "<" + ",".join(f"{a}-{b}" if a != b else str(a) for a, b in runs) + ">"


def unfold_names(names: Iterable[str]) -> list[str]:
    """Names written out again."""
    found = []
    for name in names:
        parts = _PLACE.split(name)
        choices = [[part] if i % 2 == 0 else _numbers(part) for i, part in enumerate(parts)]
        found += ["".join(combination) for combination in itertools.product(*choices)]
    return found


def _numbers(ranges: str) -> list[str]:
    found: list[str] = []
    for run in ranges.split(","):
        first, _, last = run.partition("-")
        found += [str(number) for number in range(int(first), int(last or first) + 1)]
    return found


def fold(value: Any) -> Any:
    """JSON with its long lists of names, and its objects that are keyed by them, in short form."""
    if isinstance(value, list):
        if len(value) >= _LEAST and _are_names(value):
            return {_NAMES: fold_names(value)}
        return [fold(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if len(value) >= _LEAST and _are_names(value) and any("." in name for name in value):
        groups: dict[str, list[str]] = {}
        for name, inner in value.items():
            groups.setdefault(json.dumps(inner, sort_keys=True), []).append(name)
        return {
            _VALUES: [[fold(json.loads(text)), fold_names(group)] for text, group in groups.items()]
        }
    return {key: fold(inner) for key, inner in value.items()}


def _are_names(values: Iterable[Any]) -> bool:
    """Whether these are different names, none with a mark that a short form has."""
    found = list(values)
    return all(isinstance(name, str) and "<" not in name for name in found) and len(
        set(found)
    ) == len(found)


def unfold(value: Any) -> Any:
    """JSON as it was before `fold`, up to order."""
    if isinstance(value, list):
        return [unfold(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if _NAMES in value:
        return unfold_names(value[_NAMES])
    if _VALUES in value:
        return {
            name: unfold(inner) for inner, names in value[_VALUES] for name in unfold_names(names)
        }
    return {key: unfold(inner) for key, inner in value.items()}
