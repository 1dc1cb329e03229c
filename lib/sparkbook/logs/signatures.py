"""What logs are known to say: the signatures of `signatures.yaml`, checked and ready to be matched.

A signature names a mechanism, not a sentence: wording drifts from release to release, so patterns
hold on to the few words that the mechanism needs and to the numbers. `words` says which word
(letters only, lower case) must be in a line before its pattern is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator

from sparkbook.errors import SparkbookError
from sparkbook.findings import Severity
from sparkbook.util import own_yaml

Role = Literal["cause", "consequence", "state", "noise"]
FILE = Path(__file__).with_name("signatures.yaml")


class Signature(BaseModel):
    """One thing that logs say, and what is known about it.

    Attributes:
        id: code of the rule, `LOG` and three digits.
        name: short name.
        kind: the problem's name in the project's taxonomy.
        role: `cause` (ends or spoils a run by itself), `consequence` (an echo: the cause is
            elsewhere), `state` (said of a run that works), `noise` (looks bad, means nothing).
        words: one of these must be among the words of an event before the patterns are tried.
        pattern: regular expressions (case ignored); one of them must be found. Named groups become
            figures.
        also: every one of these must be found as well, in the text or the frames of the traceback.
        unless: none of these may be found there.
        figures: name of the function in `figures.py` that works out numbers, and may change or
            withdraw the judgement.
        title, cause, fix: texts; `{name}` stands for a group or a figure.
        collect: what to look at next, where the log alone can't settle it.
        example: a log in which it is found; `passing`: one, as close as can be, in which it is not.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str = Field(pattern=r"^LOG\d{3}$")
    name: str = Field(pattern=r"^[a-z0-9-]+$")
    kind: str | None
    severity: Severity = "error"
    role: Role = "cause"
    words: tuple[str, ...] = Field(min_length=1)
    pattern: tuple[str, ...] = Field(min_length=1)
    also: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    figures: str | None = None
    title: str
    cause: str
    fix: str
    collect: tuple[str, ...] = ()
    source: str
    since: str | None = None
    until: str | None = None
    confidence: Literal["high", "medium", "low"] = "high"
    example: str
    passing: str

    @property
    def address(self) -> str:
        """Where its section stands in the site."""
        return f"rules/{self.id[:4].lower()}.html#{self.id.lower()}"

    @field_validator("words", "pattern", "also", "unless", "collect", mode="before")
    @classmethod
    def _one_or_many(cls, value: object) -> object:
        return (value,) if isinstance(value, str) else value

    @field_validator("words")
    @classmethod
    def _plain_words(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [word for word in value if not re.fullmatch(r"[a-z]+", word)]:
            raise ValueError(
                f"words are letters only and lower case, these are not: {', '.join(wrong)}"
            )
        return value

    @cached_property
    def _compiled(
        self,
    ) -> tuple[
        tuple[re.Pattern[str], ...], tuple[re.Pattern[str], ...], tuple[re.Pattern[str], ...]
    ]:
        return (
            tuple(re.compile(p, re.IGNORECASE) for p in self.pattern),
            tuple(re.compile(p, re.IGNORECASE) for p in self.also),
            tuple(re.compile(p, re.IGNORECASE) for p in self.unless),
        )

    def search(self, text: str, context: str = "") -> re.Match[str] | None:
        """Look for the signature in a text; `context` (frames, neighbours) counts for `also` and
        `unless` only.
        """
        patterns, also, unless = self._compiled
        match = next((found for pattern in patterns if (found := pattern.search(text))), None)
        if match is None:
            return None
        whole = f"{text}\n{context}" if context else text
        if any(not pattern.search(whole) for pattern in also) or any(
            pattern.search(whole) for pattern in unless
        ):
            return None
        return match

    @property
    def words_as_bytes(self) -> frozenset[bytes]:
        """`words` as the reader has them."""
        return frozenset(word.encode() for word in self.words)


class Signatures(tuple[Signature, ...]):
    """All signatures, in the order of the file: of two that fit the same line, the one that stands
    first is meant.
    """

    @cached_property
    def by_word(self) -> dict[bytes, list[Signature]]:
        """Signatures by each of their words."""
        index: dict[bytes, list[Signature]] = {}
        for signature in self:
            for word in signature.words_as_bytes:
                index.setdefault(word, []).append(signature)
        return index

    @cached_property
    def order(self) -> dict[str, int]:
        """Place of each signature in the file, by its code."""
        return {signature.id: place for place, signature in enumerate(self)}

    @property
    def words(self) -> set[str]:
        """Every word that one of them waits for."""
        return {word for signature in self for word in signature.words}

    def candidates(self, words: Iterable[bytes]) -> list[Signature]:
        """Those that wait for one of these words, in the order of the file."""
        found: dict[str, Signature] = {}
        for word in words:
            for signature in self.by_word.get(word, ()):
                found[signature.id] = signature
        return sorted(found.values(), key=lambda signature: self.order[signature.id])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            for signature in self:
                if key in (signature.id, signature.name):
                    return signature
            raise SparkbookError(
                f"there is no signature '{key}'; `sparkbook.logs.signatures()` lists them"
            )
        return super().__getitem__(key)


def load(file: Path = FILE) -> Signatures:
    """Read and check a file of signatures.

    Raises:
        SparkbookError: an entry is not complete, a pattern is not a regular expression, or a code
            comes twice.
    """
    try:
        entries = own_yaml.read(file)
        found = Signatures(Signature.model_validate(entry) for entry in entries)
        for signature in found:
            _ = signature._compiled
    except (OSError, ValueError, TypeError, yaml.YAMLError, re.error) as error:
        raise SparkbookError(f"{file.name}: {error}") from None
    for field in ("id", "name"):
        values = [getattr(signature, field) for signature in found]
        if twice := sorted({value for value in values if values.count(value) > 1}):
            raise SparkbookError(f"{file.name}: {field} {', '.join(twice)} comes twice")
    return found


@cache
def signatures() -> Signatures:
    """The signatures that come with the library."""
    return load()
