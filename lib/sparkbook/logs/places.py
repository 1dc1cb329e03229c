"""Where a message comes from: the part of vLLM, or the library, that a file or a module belongs to,
with what switches it off. The table is `places.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from sparkbook.logs.reader import Event
from sparkbook.util import own_yaml

FILE = Path(__file__).with_name("places.yaml")
_NATIVE = re.compile(r"([\w./-]+\.(?:hpp|cuh|cu|cpp|cc|h))[:(]\d+")
_MENTION = re.compile(r"([\w.-]+/[\w./-]+\.py)(?::\d+|\", line \d+)")
_CLASS = re.compile(r"^\s*((?:[A-Za-z_]\w*\.)+)[A-Z]\w*\s*:", re.MULTILINE)
PASSES_ON = frozenset({"executor", "api-server", "worker", "platform", "torch", "transformers"})
"""Parts that often only pass on what a part further in or near them raised."""


class Part(BaseModel):
    """A part of vLLM, or a library that it calls.

    Attributes:
        title: what it is, as a part of a sentence.
        paths: regular expressions; a file, or the module of an exception class, belongs to the
        first
            part with one that it contains.
        switch: what switches the part off or replaces it, as an instruction.
        collect: what to look at next.
        kind: the problem's name in the taxonomy, where faults of this part are of one kind.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[a-z-]+$")
    title: str
    paths: tuple[str, ...] = Field(min_length=1)
    switch: str
    collect: tuple[str, ...] = Field(min_length=1)
    kind: str | None = None

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Its paths as one expression."""
        return re.compile("|".join(self.paths), re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """Where a message comes from.

    Attributes:
        part: the part that it belongs to.
        where: the file, with the function if it is known.
    """

    part: Part
    where: str


@cache
def parts() -> tuple[Part, ...]:
    """Return all parts, the more definite ones first."""
    return tuple(TypeAdapter(list[Part]).validate_python(own_yaml.read(FILE)))


def part_of(path: str) -> Part | None:
    """Return the part that a file or a module belongs to."""
    inside = re.sub(r"^.*?(?:site|dist)-packages/", "", path)
    return next((part for part in parts() if part.pattern.search(inside)), None)


def place_of(event: Event, near: Sequence[str] = ()) -> Place | None:
    """Return where an event comes from: the C++ file of an assertion, the innermost frame that
    belongs to a part, the module of the exception's class, or a file named near it.

    Args:
        near: texts of lines next to the event.
    """
    native = [match[1] for match in _NATIVE.finditer(event.text)]
    frames = [
        (path, frame) for path, frame in zip(event.paths, event.frames, strict=False) if frame
    ][::-1]
    classes = [match[1].rstrip(".") for match in _CLASS.finditer(event.text)]
    mentions = [match[1] for text in (event.text, *near) for match in _MENTION.finditer(text)]
    candidates = [
        *((path, path) for path in native),
        *frames,
        *((name, name) for name in classes if "." in name or name == "tvm"),
        *((path, path) for path in mentions[::-1]),
        *([(event.line.where, event.line.where)] if event.line.where else []),
    ]
    return _best(candidates)


def _best(candidates: Iterable[tuple[str, str]]) -> Place | None:
    """Return the first candidate with a part; one that only passes on gives way to a later one that
    does not.
    """
    passing = None
    for path, where in candidates:
        part = part_of(path) or part_of(where)  # a file of all kernels: its function tells
        if part is None:
            continue
        if part.name not in PASSES_ON:
            return Place(part, where)
        passing = passing or Place(part, where)
    return passing
