"""What logs are known to say: the signatures of `signatures.yaml`, checked and ready to be matched.

A signature names a mechanism, not a sentence: wording drifts from release to release, so patterns
hold on to the few words that the mechanism needs and to the numbers. `words` says which word
(letters only, lower case) must be in a line before its pattern is tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from sparkbook.errors import SparkbookError
from sparkbook.rules import Family, Rule, plain, read

Role = Literal["cause", "consequence", "state", "noise"]
_ROLES: dict[Role, str] = {
    "cause": "a fault by itself",
    "consequence": "an echo of a fault elsewhere",
    "state": "reported by a running engine",
    "noise": "looks bad, means nothing",
}
FILE = Path(__file__).with_name("signatures.yaml")


@dataclass(frozen=True, kw_only=True, eq=False)
class Signature(Rule):
    """One thing that logs contain, and what is known about it. `fails` is a log in which it is
    found; `passes` one, as close as can be, in which it is not. `title`, `text` and `fix` may name
    groups and figures as `{name}`; the finding's message is title and text together.

    Attributes:
        role: `cause` (ends or spoils a run by itself), `consequence` (an echo: the cause is
            elsewhere), `state` (reported by a run that works), `noise` (looks bad, means nothing).
        words: one of these must be among the words of an event before the patterns are tried.
        also: every one of these must be found as well, in the text or the frames of the traceback.
        unless: none of these may be found there.
        figures: name of the function in `figures.py` that works out numbers, and may change or
            withdraw the judgement.
        keep: `worst`: of several lines, judge the one that is worst by `figures`.
        likely: causes by likelihood, where one message has several, each with the check that tells
            it apart.
        collect: what to look at next, where the log alone can't settle it.
        late: it names no mechanism, so anything more definite in the same log comes before it.
        broad: it fits many causes, so a vocabulary's more definite form of the same line comes
        first. any_level: it is a fault even in a line that is logged as INFO or DEBUG.
        stops: the engine was ordered to stop; what its parts report afterwards is no fault.
        echo: of a process: only reports that another one `failed`, or `vanished` without a word.
        lost: of a rank: only reports that another one is gone; with `no-answer` only if its words
            are those of a connection.
    """

    title: str = field()
    fix: str = field()
    kind: str | None = field()
    role: Role = "cause"
    words: tuple[str, ...]
    pattern: tuple[str, ...] = field()
    also: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    figures: str | None = None
    keep: Literal["first", "worst"] = "first"
    likely: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    late: bool = False
    any_level: bool = False
    stops: bool = False
    echo: Literal["failed", "vanished"] | None = None
    lost: Literal["always", "no-answer"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pattern or not self.words:
            raise ValueError(f"{self.code} needs a pattern and the words in front of it")
        if wrong := [word for word in self.words if not re.fullmatch(r"[a-z]+", word)]:
            raise ValueError(
                f"words are letters only and lower case, these are not: {', '.join(wrong)}"
            )

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

    @property
    def heading(self) -> str:
        """Its title, with dots in place of figures."""
        return plain(self.title)

    @property
    def about(self) -> tuple[str, ...]:
        """What pages show under the heading."""
        return (*super().about, _ROLES[self.role])

    @property
    def patterns(self) -> tuple[str, ...]:
        """The conditions on a text, for its page."""
        also = (f"and: /{pattern}/" for pattern in self.also)
        unless = (f"not: /{pattern}/" for pattern in self.unless)
        return (*super().patterns, *also, *unless)

    def match(self, text: str, context: str = "") -> re.Match[str] | None:
        """Look for the signature in a text; `context` (frames, neighbors) counts for `also` and
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
        return {signature.code: place for place, signature in enumerate(self)}

    @property
    def words(self) -> set[str]:
        """Every word that one of them waits for."""
        return {word for signature in self for word in signature.words}

    def candidates(self, words: Iterable[bytes]) -> list[Signature]:
        """Those that wait for one of these words, in the order of the file."""
        found: dict[str, Signature] = {}
        for word in words:
            for signature in self.by_word.get(word, ()):
                found[signature.code] = signature
        return sorted(found.values(), key=lambda signature: self.order[signature.code])

    def get(self, code: str) -> Signature | None:
        """The signature of a code; None for a code of another family."""
        place = self.order.get(code)
        return None if place is None else self[place]

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            for signature in self:
                if key in (signature.code, signature.name):
                    return signature
            raise SparkbookError(
                f"There is no signature '{key}'; `sparkbook.logs.signatures()` lists them."
            )
        return super().__getitem__(key)


def load(file: Path = FILE) -> Signatures:
    """Read and check a file of signatures.

    Raises:
        SparkbookError: an entry is not complete, a pattern is not a regular expression, or a code
            or name is given twice.
    """
    found = Signatures(read(file, Signature))
    for signature in found:
        try:
            _ = signature._compiled
        except re.error as error:
            raise SparkbookError(f"{file.name}: {signature.code}: {error}") from None
    return found


@cache
def signatures() -> Signatures:
    """The signatures that come with the library."""
    return load()


def _family(prefix: str, title: str) -> Family:
    family = Family(
        prefix,
        title,
        "What `sparkbook diagnose` recognizes in a log. Each example was read when this page was"
        " built.",
        type=Signature,
        samples="sparkbook.logs.samples",
    )
    family.load(lambda: (one for one in signatures() if one.prefix == prefix))
    return family


LOG1 = _family("LOG1", "memory")
LOG2 = _family("LOG2", "architecture, tool chain and libraries")
LOG3 = _family("LOG3", "options, models and downloads")
LOG4 = _family("LOG4", "container engine and host")
LOG5 = _family("LOG5", "several processes, several nodes, hangs")
LOG6 = _family("LOG6", "a running engine, and lines that only look bad")
