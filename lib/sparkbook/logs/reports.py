"""Public reports of people who serve models with vLLM, in our own words, and the search for those
that resemble a text.

People edit `reports/*.yaml`, one file for each repository that the reports come from.
`tools/build_reports.py` checks the files and writes `reports.json`, which is what this module
reads. SQLite's full-text index (FTS5) ranks the reports by BM25.

>>> from sparkbook.logs import reports
>>> reports.similar("ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'")[0].kind
'arch-ptxas'
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sparkbook import rules
from sparkbook.errors import SparkbookError
from sparkbook.util import invalid, own_yaml

if TYPE_CHECKING:
    import sqlite3

FOLDER = Path(__file__).with_name("reports")
FILE = Path(__file__).with_name("reports.json")
SCHEMA_FILE = Path(__file__).with_name("reports.schema.json")

_RELEASE = r"^([a-z][a-z_-]* )?\d+(\.\d+)+[a-z0-9.]*$"


class Report(BaseModel):
    """One public report: an issue, a pull request, a forum thread or a page.

    Attributes:
        id: the repository in short and the number, such as `vllm-42738`; a word in place of a
            number for a page.
        url: its address.
        date: day of the report (`2026-05-14`), or the month or year where no more is known.
        title: what happened, in one line.
        symptom: what its author saw, with error names, error numbers and operators as logs print
            them.
        says: literal pieces of the log, a few words each, such as `CUDA error: an illegal memory
            access was encountered`. They weigh most in the search.
        kind: the problem's name in the taxonomy (`kinds.yaml`).
        cause: what the thread names as the cause; None: not known.
        fix: what helped, as the thread states it; None: not known.
        since, until: first and last release in which it was seen. A vLLM release (`0.24.0`), or
            another package and its release (`flashinfer 0.6.4`).
        fixed_in: the first release with the repair.
        models, options, gpus: checkpoints or families, options or variables of the launch line,
            and GPUs of the report.
        state: `open`, `closed` (also: merged), or `disputed` (its cause or fix is contradicted);
            None: a page, or not known.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9]+([.-][a-z0-9]+)+$")
    url: str = Field(pattern=r"^https://\S+$")
    date: str = Field(pattern=r"^20\d\d(-\d\d(-\d\d)?)?$")
    title: str = Field(min_length=8, max_length=140)
    symptom: str = Field(min_length=8)
    says: tuple[str, ...] = ()
    kind: str
    cause: str | None = None
    fix: str | None = None
    since: str | None = Field(None, pattern=_RELEASE)
    until: str | None = Field(None, pattern=_RELEASE)
    fixed_in: str | None = Field(None, pattern=_RELEASE)
    models: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()
    state: Literal["open", "closed", "disputed"] | None = None

    @field_validator("date", mode="before")
    @classmethod
    def _day(cls, value: object) -> object:
        return value.isoformat() if isinstance(value, datetime.date) else value

    @field_validator("kind")
    @classmethod
    def _known_kind(cls, value: str) -> str:
        if value not in rules.kinds():
            raise ValueError(f"'{value}' is no kind of kinds.yaml")
        return value


def read(folder: Path = FOLDER) -> tuple[Report, ...]:
    """Read the reports that people edit, sorted by their ids.

    Raises:
        SparkbookError: an entry is not valid, or an id occurs twice.
    """
    found: dict[str, Report] = {}
    for file in sorted(folder.glob("*.yaml")):
        for number, entry in enumerate(own_yaml.read(file) or (), 1):
            try:
                report = Report.model_validate(entry)
            except ValidationError as error:
                where = entry.get("id", f"entry {number}") if isinstance(entry, dict) else number
                raise SparkbookError(f"{file.name}: {where}: {invalid.reason(error)}") from None
            if report.id in found:
                raise SparkbookError(f"{file.name}: the id {report.id} occurs twice.")
            found[report.id] = report
    return tuple(found[id] for id in sorted(found))


def as_json(reports: Iterable[Report]) -> str:
    """Return the text of `reports.json`: one report a line."""
    lines = (
        json.dumps(report.model_dump(exclude_defaults=True), ensure_ascii=False)
        for report in reports
    )
    return "[\n" + ",\n".join(lines) + "\n]\n"


def json_schema() -> str:
    """Return the JSON Schema of a file in `reports/`."""
    schema = Report.model_json_schema()
    whole: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Public reports",
        "type": "array",
        "items": schema,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


@cache
def every() -> tuple[Report, ...]:
    """Return all reports, sorted by their ids."""
    return tuple(map(Report.model_validate, json.loads(FILE.read_text("utf-8"))))


_COLUMNS = {"says": 4.0, "title": 2.0, "symptom": 2.0, "cause": 1.0, "about": 1.0}
"""What is searched, and how much a word there weighs."""
_MAX_WORDS = 80
_CANDIDATES = 40
_COMMON = 0.12
"""A word in more than this part of the reports (`vllm`, `error`) is not searched for."""
_PIECE, _PIECE_WEIGHT = 0.65, 7.0
"""A report is similar if one line has so much of a piece that the report quotes: this part of the
piece's words, each weighted by its rarity, and this weight at least.
"""
_NAME, _FEW = 14, 6
"""A name of so many letters with an underscore, in at most so many reports, is enough by itself."""
_WINDOW = 32
"""Words of a line that are looked at together."""
_LINE, _LINE_WORDS = 0.5, 4
"""Or if a line's words are the report's: this part of them by weight, and so many words at least.
`tests/logs/test_reports.py` measures both on logs of other programs.
"""

_NOISE = re.compile(
    r"""
    \b\d{4}-\d\d-\d\d[T\ ]?                  # dates
    | \b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\S*     # times
    | \b0x[0-9a-f]+\b                        # addresses
    | \b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,}\b    # digests
    | \b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b   # IP addresses
    | \((?:EngineCore|Worker|APIServer|VllmWorker)[^)]*\)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_PATH = re.compile(r"(?:[\w.~-]*/)+(?=[\w.-]+)")
_NUMBERED = re.compile(
    r"\b(errno|xid|exit code|exit status|exit|signal|status|code|http|error code|error)"
    r"(?:[\s:=(]*|\ \([^)]*\):\ )(\d{1,5})\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*[A-Za-z0-9]|\d+\.\d+(?=\.\d)")
_CAMEL = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_STOP = frozenset(
    re.findall(
        r"\w+",
        """
    a about after again all also an and any are as at be because been before but by can could did
    do does down during each for from had has have how if in into is it its just more most no not
    now of off on one only or other our out over so some such than that the their them then there
    these they this to too under up use used using very was we were what when where which while
    who will with without you your
    file line info warning debug python site dist packages lib usr local opt home root py most
    recent call last traceback self args kwargs return def none true false
    """,
    )
)


def words(text: str, *, parts: bool = True) -> Iterator[str]:
    """Yield the words of a text that the search compares, in lower case.

    Times, addresses and folders are left out; `Errno 98` becomes one word; a name made of several
    words (`ncclSystemError`, `gpu_memory_utilization`) counts whole and, with `parts`, in parts.
    """
    text = _PATH.sub(" ", _NOISE.sub(" ", text))
    for name, number in _NUMBERED.findall(text):
        yield re.sub(r"\W+", "_", name.lower()) + number
    for word in _WORD.findall(text.replace("-", "_")):
        whole = word.lower().strip("_")
        if whole in _STOP or len(whole) < 2:
            continue
        yield whole
        if parts and ("_" in word or not (word.islower() or word.istitle() or word.isupper())):
            pieces = (part.lower() for part in _CAMEL.findall(word))
            yield from (part for part in pieces if len(part) > 2 and part not in _STOP)


def _row(report: Report) -> list[str]:
    texts = {
        "says": "\n".join(report.says),
        "title": report.title,
        "symptom": report.symptom,
        "cause": report.cause or "",
        "about": " ".join([*report.models, *report.options, *report.gpus]),
    }
    return [" ".join(words(texts[column])) for column in _COLUMNS]


@cache
def database() -> sqlite3.Connection | None:
    """Return the index of all reports, in memory; None where Python has no SQLite with FTS5."""
    try:
        import sqlite3

        index = sqlite3.connect(":memory:", check_same_thread=False)
        index.execute(
            f"CREATE VIRTUAL TABLE report USING fts5({', '.join(_COLUMNS)},"
            " tokenize=\"unicode61 tokenchars '_'\")"
        )
        index.execute("CREATE VIRTUAL TABLE word USING fts5vocab(report, row)")
    except (ImportError, sqlite3.Error):
        return None
    marks = ", ".join("?" * len(_COLUMNS))
    index.executemany(f"INSERT INTO report VALUES ({marks})", map(_row, every()))
    return index


_WEIGHTY = re.compile(
    r"error|exception|fail|fatal|cannot|can't|could not|unable|unknown|invalid|unsupported|not "
    r"|hang|no available|kill|abort|\bassert|refused|denied|missing|timeout|timed out"
    r"|\bwarn(ing)?\b|xid|nvrm|oom|critical",
    re.IGNORECASE,
)
_INFO = re.compile(r"\bINFO\b|\d(it|B)/s[\],]|\?it/s\]")
"""A line that reports progress; without a weighty word it is not searched for."""
_WHOLE = 40
"""A text of at most so many lines is searched for whole; of a longer one the weighty lines are."""


def similar(text: str, *, kind: str | None = None, limit: int = 3) -> list[Report]:
    """Return the reports that resemble a text, the most similar first; often none.

    Args:
        text: a line of a log, several, or a whole log.
        kind: the problem's name, where it is known; reports of the same kind come first.
        limit: at most so many.
    """
    return [report for report, _ in scored(text, kind=kind)[:limit]]


def scored(text: str, *, kind: str | None = None) -> list[tuple[Report, float]]:
    """Return the reports that resemble a text, each with its score: `similar` without a limit."""
    lines = [line for line in text.splitlines() if _WEIGHTY.search(line) or not _INFO.search(line)]
    if len(lines) > _WHOLE:
        lines = [line for line in lines[:-10] if _WEIGHTY.search(line)] + lines[-10:]
    windows = {window for line in lines for window in _windows(line)}
    found = []
    for number, score in _ranked(frozenset(words("\n".join(lines)))):
        report = every()[number]
        likeness = max(_likeness(number, window) for window in windows)
        if likeness:
            factor = 1.5 if kind and report.kind == kind else 1
            found.append((report, score * likeness * factor))
    return sorted(found, key=lambda pair: (-pair[1], pair[0].id))


def _windows(line: str) -> Iterator[frozenset[str]]:
    """Yield the words of a line; of a long one, such as a printed configuration, those that are
    close together.
    """
    every_word = list(words(line, parts=False))
    for start in range(0, max(1, len(every_word) - _WINDOW // 2), _WINDOW // 2):
        yield frozenset(every_word[start : start + _WINDOW])


def _ranked(given: frozenset[str]) -> list[tuple[int, float]]:
    """Return the number and BM25 score of the reports that share words with a text, best first."""
    index = database()
    most = max(2, round(_COMMON * len(every())))
    rarest = sorted((_count(word), word) for word in given if 0 < _count(word) <= most)
    if index is None or not rarest:
        return []
    rows = index.execute(
        f"SELECT rowid, -bm25(report, {', '.join(map(str, _COLUMNS.values()))}) AS score"
        " FROM report WHERE report MATCH ? ORDER BY score DESC, rowid LIMIT ?",
        (" OR ".join(f'"{word}"' for _, word in rarest[:_MAX_WORDS]), _CANDIDATES),
    )
    return [(rowid - 1, score) for rowid, score in rows]


def _likeness(number: int, line: frozenset[str]) -> float:
    """Return how much of a quoted piece of a report, or of a line, is in the other, from 0 to 1; 0
    where it may be chance.
    """
    pieces, whole = _words_of(number)
    shares = [0.0]
    for piece in pieces:
        both = piece & line
        share = _weight(both) / _weight(piece) if piece else 0
        if share >= _PIECE and (_weight(both) >= _PIECE_WEIGHT or any(map(_unmistakable, both))):
            shares.append(share)
    shared_words = whole & line
    share = _weight(shared_words) / _weight(line) if line else 0
    if share >= _LINE and len(shared_words) >= _LINE_WORDS:
        shares.append(share)
    return max(shares)


def _unmistakable(word: str) -> bool:
    """Return whether a word is a long name of code that few reports have."""
    return len(word) >= _NAME and "_" in word and _count(word) <= _FEW


@lru_cache(maxsize=8192)
def _weight(words: frozenset[str]) -> float:
    """Return the weight of words: the rarer in the reports, the more; most if in none."""
    return sum(math.log(1 + len(every()) / (_count(word) or 0.5)) for word in words)


@cache
def _counts() -> dict[str, int]:
    index = database()
    return dict(index.execute("SELECT term, doc FROM word")) if index else {}


def _count(word: str) -> int:
    """Return how many reports have a word."""
    return _counts().get(word, 0)


@cache
def _words_of(number: int) -> tuple[tuple[frozenset[str], ...], frozenset[str]]:
    """Return the words of each quoted piece of a report, and of the whole report."""
    report = every()[number]
    pieces = tuple(frozenset(words(piece, parts=False)) for piece in report.says)
    return pieces, frozenset(" ".join(_row(report)).split())
