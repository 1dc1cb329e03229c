"""What other programs say: the names and sentences of CUDA, NCCL, the kernel, Docker, Python, pip
and others, from `vocabulary.yaml`.

These vocabularies are finite, and each has a primary source. One rule of the family LOG7 is one
program's vocabulary; an entry of it says what a form means, what it means for vLLM on a Spark, and
what to do. A form is written as the program prints it: `…` stands for anything, `{name}` for one
word that the entry's texts may use.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal

from sparkbook.logs.judging import by_likelihood
from sparkbook.logs.reader import Event
from sparkbook.rules import Family, Rule, filled, plain, read, sentence
from sparkbook.util.markup import cell

FILE = Path(__file__).with_name("vocabulary.yaml")
Speaker = Literal[
    "cuda", "nccl", "kernel", "systemd", "docker", "python", "shell", "client", "download", "vllm"
]
"""Who says it; a diagnosis names its verdict after some of them."""

_GAP = re.compile(r"…|\{([a-z]\w*)\}")
_WORD = re.compile(r"(?<![A-Za-z…])[A-Za-z]{2,}(?![A-Za-z…])")
_EVERYDAY = frozenset(
    re.findall(
        r"\w+",
        """
    info post get http ok chat completions health models metrics loggers logger engine avg prompt
    throughput tokens generation running reqs waiting gpu kv cache usage prefix hit rate request
    received params mean acceptance length accepted drafted per position draft apiserver pid api
    server added sampling temperature max none true false
    """,
    )
)
"""Words of the lines that a serving engine prints again and again: a form that waited for one of
them would have them all looked at closely.
"""
_LONGEST = 4_000


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One form, or several that mean the same.

    Attributes:
        says: the forms, as the program prints them.
        means: what it means, a sentence without capital and full stop.
        spark: what it means for vLLM on a Spark, where that is more.
        do: what to do, beginning with a verb.
        collect: what to look at next.
        kind: the problem's name in the taxonomy.
        exact: it is more definite than any signature that fits the same line.
        generic: it only narrows the cause down, so whatever else is known comes first.
        likely: causes by likelihood, where there are several, each with the check that tells it
            apart.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    says: str | tuple[str, ...]
    means: str
    do: str
    spark: str = ""
    collect: str | tuple[str, ...] = ()
    kind: str | None = None
    exact: bool = False
    generic: bool = False
    likely: tuple[str, ...] = ()

    @cached_property
    def forms(self) -> tuple[str, ...]:
        """The forms, also where there is one."""
        return (self.says,) if isinstance(self.says, str) else self.says

    @cached_property
    def wanted(self) -> tuple[str, ...]:
        """What to look at next, as a list."""
        return (self.collect,) if isinstance(self.collect, str) else self.collect

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """The forms as regular expressions."""
        return tuple(_pattern(form) for form in self.forms)

    @property
    def words(self) -> tuple[str, ...]:
        """Of each form one word, in lower case: without it the form is not there."""
        return tuple(_rarest(form) for form in self.forms)

    @property
    def example(self) -> str:
        """A line that has the first form."""
        return _GAP.sub(lambda gap: "x" if gap[1] else "y", self.forms[0])

    def search(self, text: str) -> dict[str, str] | None:
        """Return the words that a text has for the names in the form; None without the form."""
        for pattern in self.patterns:
            if match := pattern.search(text):
                return {
                    name: value.rstrip(".:") for name, value in match.groupdict().items() if value
                }
        return None


@dataclass(frozen=True, kw_only=True, eq=False)
class Vocabulary(Rule):
    """What one program says.

    Attributes:
        by: who says it.
        entries: the forms, the more definite ones first.
    """

    by: Speaker
    entries: tuple[Entry, ...]
    passes: Any = field(default="INFO:     Application startup complete.")

    @property
    def table(self) -> str:
        """Its entries, as a table in Markdown."""
        rows = [
            f"| {'<br>'.join(map(_long_code, one.forms))}"
            f" | {cell(sentence(' '.join(filter(None, [_full(one.means), one.spark]))))}"
            f" | {cell(one.do)} |"
            for one in self.entries
        ]
        head = "| what is printed | what it means | what to do |\n|---|---|---|\n"
        return plain(head + "\n".join(rows))


def _long_code(form: str) -> str:
    """Return a form as code that breaks where the table's column ends."""
    return f'<code class="sb-long">{html.escape(form).replace("|", "&#124;")}</code>'


@dataclass(frozen=True)
class Known:
    """An entry that was recognized.

    Attributes:
        rule: the vocabulary it belongs to.
        values: the words that the text has for the names in the form.
    """

    rule: Vocabulary
    entry: Entry
    values: Mapping[str, str]

    @property
    def means(self) -> str:
        """What it means, as sentences."""
        parts = (sentence(self.entry.means), self.entry.spark)
        text = " ".join(filter(None, parts)) + by_likelihood(self.entry.likely)
        return filled(text, dict(self.values))

    @property
    def do(self) -> str:
        """What to do, as sentences."""
        return filled(self.entry.do, dict(self.values))


def _rarest(form: str) -> str:
    """Return the longest word of a form that the reports of a serving engine do not have."""
    words = [word.lower() for word in _WORD.findall(_GAP.sub("…", form))]
    return max(words, key=lambda word: (word not in _EVERYDAY, len(word)), default="")


def _full(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def _pattern(form: str) -> re.Pattern[str]:
    """Return the regular expression of a form; spaces of any width, letters of either case."""
    pieces, end, names = [], 0, set()
    for gap in _GAP.finditer(form):
        pieces.append(_literal(form[end : gap.start()]))
        if gap[1] and gap[1] not in names:
            names.add(gap[1])
            pieces.append(rf"(?P<{gap[1]}>[^\s'\"`,;()]+)")
        else:
            pieces.append(r"[^\n]{0,160}?")
        end = gap.end()
    pieces.append(_literal(form[end:]))
    begin = r"(?<!\w)" if re.match(r"\w", form) else ""
    close = r"(?!\w)" if re.search(r"\w$", form) else ""
    return re.compile(f"{begin}{''.join(pieces)}{close}", re.IGNORECASE)


def _literal(text: str) -> str:
    return r"\s+".join(re.escape(part) for part in re.split(r"\s+", text))


class Vocabularies(tuple[Vocabulary, ...]):
    """All vocabularies, in the order of the file."""

    @cached_property
    def by_word(self) -> dict[bytes, list[tuple[Vocabulary, Entry]]]:
        """Entries by the longest word of each of their forms."""
        index: dict[bytes, list[tuple[Vocabulary, Entry]]] = {}
        for rule in self:
            for entry in rule.entries:
                for word in dict.fromkeys(entry.words):
                    index.setdefault(word.encode(), []).append((rule, entry))
        return index

    @cached_property
    def words(self) -> frozenset[str]:
        """Every word that one of them waits for."""
        return frozenset(word.decode() for word in self.by_word)

    @cached_property
    def exact_words(self) -> frozenset[bytes]:
        """The words of the forms that come before signatures."""
        return frozenset(
            word.encode()
            for rule in self
            for entry in rule.entries
            if entry.exact
            for word in entry.words
        )

    def search(self, event: Event) -> Known | None:
        """Return the entry that an event has; of several the most definite."""
        words = event.words & self.by_word.keys()
        if not words:
            return None
        text = event.text[:_LONGEST]
        texts = (text, event.flat[:_LONGEST]) if "\n" in text else (text,)
        found = (known for word in words for known in self._of(word, texts))
        order = {id(rule): place for place, rule in enumerate(self)}
        return min(
            found,
            key=lambda one: (
                not one.entry.exact,
                one.entry.generic,
                order[id(one.rule)],
                one.rule.entries.index(one.entry),
            ),
            default=None,
        )

    def _of(self, word: bytes, texts: tuple[str, ...]) -> Iterator[Known]:
        for rule, entry in self.by_word[word]:
            for text in texts:
                if (values := entry.search(text)) is not None:
                    yield Known(rule, entry, values)
                    break


def load(file: Path = FILE) -> Vocabularies:
    """Read and check a file of vocabularies.

    Raises:
        SparkbookError: an entry is not complete, or a code or name is given twice.
    """
    return Vocabularies(read(file, Vocabulary))


@cache
def vocabularies() -> Vocabularies:
    """The vocabularies that come with the library."""
    return load()


LOG7 = Family(
    "LOG7",
    "what other programs say",
    "The names and sentences of the programs around vLLM, which `sparkbook diagnose` reads where no"
    " signature fits. Each table is one program's vocabulary.",
    type=Vocabulary,
    samples="sparkbook.logs.samples",
)
LOG7.load(vocabularies)
