"""Which program says this line: vLLM's own sentences, and those of what runs with it.

`sentences.bin` holds facts about every message that the programs can print: who prints it, in which
function, in which releases, under which condition. It holds no text. A message is recognized by
hashes of its shingles (runs of four words; two words on each side of a value), so part of a message
is enough. `tools/build_sentences.py` writes the file.

>>> from sparkbook.logs import sentences
>>> line = "ValueError: To serve at least one request with the models's max seq len (8192), 1 GiB"
>>> sentences.lookup(line)[0].package
'vllm'
"""

from __future__ import annotations

import functools
import json
import re
import struct
import sys
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from sparkbook import releases

DATA = Path(__file__).parent / "sentences.bin"
MAGIC = b"SPKSENT1"

KINDS = ("raise", "assert", "error", "warning", "info", "text")
"""How a program says a sentence; `text` is a string that it hands on, or one of a binary."""

COLUMNS = {
    "counts": "B",  # shingles for each value of a hash's upper 16 bits
    "hashes": "H",  # lower 16 bits of each hash, sorted
    "owners": "H",  # lower 16 bits of the number of the sentence that has the shingle
    "owners_high": "B",
    "packages": "B",  # for each sentence: its package, its words, its number of places
    "words": "B",
    "places": "B",
    "modules": "H",  # for each place
    "functions": "H",
    "kinds": "B",
    "spans": "H",
    "conditions": "H",
    "named": "H",
}
"""Columns of the file and their types (`array`), in order."""

LONGEST_VALUE = 3
"""Words that a value inside a message may have."""
MAX_WORDS = 120
"""Words of a line that are compared."""
MAX_CHARACTERS = 4000
MIN_WEIGHT = 1.0
"""A match that weighs less is none. CONTRIBUTING.md says how this was measured."""
HINTED = 0.6
"""The same, if the caller knows the package."""
MIN_WEIGHT_HERE = 0.3
"""The same, if the line names the file that says the sentence, as in `[core.py:123]`."""
PLAINNESS = (0.13, 0.33, 0.53, 0.67)
"""What a vote is worth if so many of the match's words are rare ones."""
MAX_OWNERS = 24
"""A shingle that more sentences share than this recognizes nothing."""

_ELSEWHERE = re.compile(r"rocm|xpu|tpu|\bamd\b|aiter|hpu")
"""Modules for hardware that is no Spark: they come last among places that say the same."""
_URL = re.compile(r"\bhttps?://\S+")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_']*")
_WHERE = re.compile(r"^.{0,120}?\[(?P<file>[\w./-]+\.(?:py|cpp|cc|cu|cuh|h|hpp)):\d+\]\s*")
_FIELD = re.compile(r"\w+(?:\.\w+)*")


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A message that a program can print, and what is known about it.

    Attributes:
        package: `vllm`, `torch`, `transformers`, `nccl`, `docker`, ...
        module: dotted module, source file or binary; empty if unknown.
        function: function or method, with its class; empty if unknown.
        kind: one of `KINDS`.
        releases: releases of the package that have this sentence, as `(first, last)`; last is None
            if the newest release that was read has it.
        condition_fields: configuration fields in the conditions around it.
        options: options of `vllm serve` that these fields, its values or its words name.
        weight: how sure the match is; 1 is just enough.
    """

    package: str
    module: str
    function: str
    kind: str
    releases: tuple[tuple[str, str | None], ...]
    condition_fields: tuple[str, ...]
    options: tuple[str, ...]
    weight: float


@dataclass(frozen=True, kw_only=True)
class Index:
    """The file, open."""

    names: dict[str, Any]
    columns: dict[str, Sequence[int]]
    offsets: list[int] = field(repr=False)
    first_place: list[int] = field(repr=False)
    plain: frozenset[str] = field(repr=False)


# ---- words and shingles


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, without addresses; numbers and signs are none."""
    return [word.lower() for word in _WORD.findall(_URL.sub(" ", text))]


def shingle(before: Sequence[str], after: Sequence[str] = ()) -> int:
    """Return the hash of a run of words, or of the words on both sides of a value."""
    text = " ".join(before) + (" * " + " ".join(after) if after else "")
    return zlib.crc32(text.encode())


def shingles(pieces: Sequence[str]) -> set[int]:
    """Return the hashes that recognize a message.

    Args:
        pieces: its text between its values.
    """
    hashes: set[int] = set()
    split = [words(piece) for piece in pieces]
    for piece in split:
        if len(piece) == 3:
            hashes.add(shingle(piece))
        hashes.update(shingle(piece[at : at + 4]) for at in range(len(piece) - 3))
    for left, right in pairwise(split):
        if len(left[-2:]) + len(right[:2]) > 2:
            hashes.add(shingle(left[-2:], right[:2]))
    return hashes


def _line_shingles(line: list[str]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield each hash of a line that a message may have, and the words that it rests on."""
    for at in range(len(line)):
        for size in (4, 3):
            if at + size <= len(line):
                yield shingle(line[at : at + size]), tuple(range(at, at + size))
        for gap in range(LONGEST_VALUE + 1):
            for left, right in ((2, 2), (1, 2), (2, 1)):
                start, end = at + left + gap, at + left + gap + right
                if end <= len(line):
                    rest = tuple(range(start, end))
                    yield (
                        shingle(line[at : at + left], line[start:end]),
                        (*range(at, at + left), *rest),
                    )


# ---- the file


def pack(names: dict[str, Any], columns: dict[str, Sequence[int]]) -> bytes:
    """Return the file's bytes: a header, the names, then each column. Little-endian."""
    parts = []
    for name, code in COLUMNS.items():
        column = array(code, columns[name])
        if sys.byteorder == "big":
            column.byteswap()
        parts.append(column.tobytes())
    text = zlib.compress(json.dumps(names, separators=(",", ":")).encode(), 9)
    head = struct.pack(f"<{len(parts) + 1}I", len(text), *map(len, parts))
    return MAGIC + head + text + b"".join(parts)


def unpack(data: bytes) -> Index:
    """Return the file's content. The columns are not copied."""
    size = len(COLUMNS) + 1
    lengths = struct.unpack_from(f"<{size}I", data, len(MAGIC))
    at = len(MAGIC) + 4 * size
    names = json.loads(zlib.decompress(data[at : at + lengths[0]]))
    at += lengths[0]
    columns: dict[str, Sequence[int]] = {}
    for (name, code), length in zip(COLUMNS.items(), lengths[1:], strict=True):
        column = array(code, data[at : at + length])
        if sys.byteorder == "big":
            column.byteswap()
        columns[name] = column
        at += length
    return Index(
        names=names,
        columns=columns,
        offsets=list(accumulate(columns["counts"], initial=0)),
        first_place=list(accumulate(columns["places"], initial=0)),
        plain=frozenset(names["plain"]),
    )


@functools.cache
def index() -> Index:
    """Return the file's content, read at the first call."""
    return unpack(DATA.read_bytes())


def _owners(opened: Index, value: int) -> list[int]:
    """Return the sentences that have a shingle."""
    high, low = divmod(value, 1 << 16)
    start, end = opened.offsets[high], opened.offsets[high + 1]
    hashes = opened.columns["hashes"]
    at = bisect_left(hashes, low, start, end)
    owners = []
    while at < end and hashes[at] == low:
        owners.append(opened.columns["owners"][at] | opened.columns["owners_high"][at] << 16)
        at += 1
    return owners


# ---- the answer


@dataclass(kw_only=True)
class Match:
    """How a line agrees with a sentence.

    Attributes:
        votes: sum over shingles, each worth less the more sentences share it.
        covered: places of the line's words that agree.
    """

    votes: float = 0.0
    covered: set[int] = field(default_factory=set)


def lookup(line: str, *, package: str | None = None, limit: int = 3) -> list[Sentence]:
    """Return the sentences that a line is, best first; none if no program is known to say it.

    Best is what agrees with most of the line; of equals, what the newest release has.

    Args:
        line: a line of a log, or what somebody quotes of it.
        package: search only this package's sentences.
        limit: length of the answer at most.
    """
    opened = index()
    where = _WHERE.match(line[:MAX_CHARACTERS])
    file = Path(where["file"]).stem if where else ""
    said = words(line[where.end() if where else 0 :][:MAX_CHARACTERS])[:MAX_WORDS]
    ranked = []
    for owner, match in _matches(opened, said, package).items():
        weight = _weight(opened, owner, match, said)
        place = opened.first_place[owner]
        module = opened.names["modules"][opened.columns["modules"][place]]
        here = _stem(module) == file
        if weight >= (MIN_WEIGHT_HERE if here else HINTED if package else MIN_WEIGHT):
            spans = opened.names["spans"][opened.columns["spans"][place]]
            newest = spans[-1][1] if spans else -1
            near = here, not is_elsewhere(module)
            ranked.append((round(match.votes, 1), near, newest, weight, owner))
    answers: list[Sentence] = []
    for *_, weight, owner in sorted(ranked, reverse=True)[:limit]:
        answers += _places(opened, owner, round(weight, 3), file)
    return answers[:limit]


def _matches(opened: Index, said: list[str], package: str | None) -> dict[int, Match]:
    matches: dict[int, Match] = {}
    seen: set[int] = set()
    for value, positions in _line_shingles(said):
        owners = _owners(opened, value) if value not in seen else []
        seen.add(value)  # what a line repeats counts once
        for owner in owners:
            if package in (None, opened.names["packages"][opened.columns["packages"][owner]]):
                match = matches.setdefault(owner, Match())
                match.votes += len(owners) ** -0.5
                match.covered.update(positions)
    return matches


def _weight(opened: Index, owner: int, match: Match, said: list[str]) -> float:
    """Return how sure a match is: its votes, less for a small part of the line and of the sentence,
    and less if the words are plain English.
    """
    matched = len(match.covered)
    shares = matched / max(opened.columns["words"][owner], matched) + matched / len(said)
    rare = {said[place] for place in match.covered} - opened.plain
    return match.votes * shares * PLAINNESS[min(len(rare), len(PLAINNESS) - 1)]


def _places(opened: Index, owner: int, weight: float, file: str) -> list[Sentence]:
    """Return the places that say a sentence; those in the file that the line names come first."""
    columns, names = opened.columns, opened.names
    package = names["packages"][columns["packages"][owner]]
    answers = []
    for place in range(opened.first_place[owner], opened.first_place[owner + 1]):
        fields = names["fields"][columns["conditions"][place]]
        answers.append(
            Sentence(
                package=package,
                module=names["modules"][columns["modules"][place]],
                function=names["functions"][columns["functions"][place]],
                kind=KINDS[columns["kinds"][place]],
                releases=_spans(
                    names["releases"].get(package, []), names["spans"][columns["spans"][place]]
                ),
                condition_fields=tuple(fields),
                options=options([*fields, *names["fields"][columns["named"][place]]]),
                weight=weight,
            )
        )
    return sorted(answers, key=lambda sentence: _stem(sentence.module) != file)


def is_elsewhere(module: str) -> bool:
    """Return whether a module is for hardware that is no Spark."""
    return _ELSEWHERE.search(module) is not None


def _stem(module: str) -> str:
    """Return the file's name in a dotted module or a source file, without its ending."""
    return Path(module).stem if "/" in module else module.rpartition(".")[2]


def _spans(known: list[str], spans: list[list[int]]) -> tuple[tuple[str, str | None], ...]:
    return tuple(
        (known[first], None if last == len(known) - 1 else known[last]) for first, last in spans
    )


@functools.cache
def _by_field() -> dict[str, str]:
    """Map configuration fields to options: `max_model_len`, `speculative_config.method`."""
    keys = {name.replace("-", "_"): f"--{name}" for name in releases.names_ever("config_keys")}
    by_key = {name.rpartition(".")[2]: option for name, option in keys.items()}
    longer = {name: option for name, option in by_key.items() if "_" in name}
    plain = {name.replace("-", "_"): f"--{name}" for name in releases.names_ever("options")}
    aliases = {name: plain[target] for name, target in index().names["aliases"] if target in plain}
    return {**longer, **keys, **aliases, **plain}


def options(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the options of `vllm serve` that set these fields, in their order."""
    known = _by_field()
    json_options = {name.partition(".")[0] for name in known if "." in name}
    found = []
    for name in fields:
        owner, _, last = name.rpartition(".")
        if name in known:
            found.append(known[name])
        elif owner not in json_options and last in known:
            found.append(known[last])
    return tuple(dict.fromkeys(found))
