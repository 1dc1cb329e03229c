"""The arguments of `vllm serve`, read as argparse would read them in one release."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from sparkbook.lint.reading import Word
from sparkbook.releases import Option, Release
from sparkbook.util.shell_text import command_line

_NUMBER = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)
_HUMAN = re.compile(r"\s*(\d+(?:\.\d+)?)([kKmMgGtT])\s*")


@dataclass
class Given:
    """One option as it was given.

    Attributes:
        word: the option's word; `words` are the option's word and its values'.
        name: spelling with dashes, without a value or a key.
        key: for `--config.key value`, the key.
        option: what it means in the release; None where it means nothing there.
        negated: whether it is the `--no-` form.
        values: the words after it that belong to it.
        inline: whether the value is joined by `=`.
    """

    word: Word
    name: str
    key: str = ""
    option: Option | None = None
    negated: bool = False
    values: list[Word] = field(default_factory=list)
    inline: bool = False

    @property
    def words(self) -> list[Word]:
        """Every word of it."""
        return [self.word] if self.inline else [self.word, *self.values]

    @property
    def value(self) -> str | None:
        """The value, where there is exactly one and it is known."""
        return self.values[0].text if len(self.values) == 1 and self.values[0].known else None

    @property
    def shown(self) -> str:
        """As it stood."""
        return " ".join(word.shown for word in self.words)

    @property
    def pasted(self) -> str:
        """To be pasted into a line."""
        return command_line(*(word.shown for word in self.words))


@dataclass
class Arguments:
    """The arguments: options, the model, and words that belong to nothing."""

    options: list[Given] = field(default_factory=list)
    model: Word | None = None
    extra: list[Word] = field(default_factory=list)


def is_option(word: Word) -> bool:
    """Whether argparse takes a word for an option: it begins with a dash, is no negative number,
    and has no blank in its name.
    """
    return (
        word.text.startswith("-")
        and len(word.text) > 1
        and not _NUMBER.fullmatch(word.text)
        and " " not in word.text.partition("=")[0]
    )


def parse(words: list[Word], release: Release) -> Arguments:
    """Takes the words after `vllm serve` apart."""
    result = Arguments()
    shorts = {
        alias: option
        for option in release.options.values()
        for alias in option.aliases
        if not alias.startswith("--")
    }
    rest = list(words)
    first_chunk = True
    while rest:
        word = rest.pop(0)
        if not is_option(word):
            if result.model is None and first_chunk:
                result.model = word
                first_chunk = False
            else:
                result.extra.append(word)
            continue
        item = _option(word, release, shorts)
        result.options.append(item)
        if item.inline or (
            item.option is not None and not item.option.takes_value and not item.key
        ):
            continue
        limit = (
            1
            if item.option is not None and (item.option.nargs in (None, "?") or item.key)
            else len(rest)
        )
        while rest and not is_option(rest[0]) and len(item.values) < limit:
            item.values.append(rest.pop(0))
        if item.name == "model" and item.values:
            result.model = result.model or item.values[0]
            first_chunk = False
    return result


def _option(word: Word, release: Release, shorts: dict[str, Option]) -> Given:
    text = word.text
    if match := re.fullmatch(r"-O(=?)(.*)", text, re.DOTALL):
        found = release.resolve("optimization-level")
        option = found[0] if found else shorts.get("-O")
        values = [Word(match[2])] if match[2] else []
        return Given(
            word,
            "optimization-level" if found else "O",
            option=option,
            values=values,
            inline=bool(match[2]),
        )
    head, equals, value = text.partition("=")
    inline = [Word(value, word.start, word.end)] if equals else []
    if not text.startswith("--"):
        short, dot, key = head.partition(".")
        return Given(
            word,
            short[1:],
            key if dot else "",
            shorts.get(short),
            values=inline,
            inline=bool(equals),
        )
    name, dot, key = head[2:].partition(".")
    name = name.replace("_", "-")
    found = release.resolve(name)
    option, negated = found if found else (None, False)
    return Given(word, name, key if dot else "", option, negated, inline, bool(equals))


def problem(item: Given, option: Option) -> tuple[str, str] | None:
    """Why argparse would refuse an option's values: `("count" | "type" | "choice", sentence)`; None
    where it would not.
    """
    shown = f"--{item.name}"
    if not option.takes_value:
        return ("count", f"{shown} is a switch and takes no value") if item.values else None
    if not item.values:
        return None if option.nargs == "?" else ("count", f"{shown} needs a value")
    if isinstance(option.nargs, int) and len(item.values) != option.nargs:
        return "count", f"{shown} needs {option.nargs} values"
    if item.key:
        return None
    for word in item.values:
        if word.known and (wrong := _refused(word.text, option, shown)):
            return wrong
    return None


def _refused(text: str, option: Option, shown: str) -> tuple[str, str] | None:
    if option.optional and text in ("", "None"):
        return None
    try:
        converted = _convert(text, option.type)
    except ValueError as error:
        return "type", f"{shown} {text}: {error}"
    if option.choices is not None and converted not in option.choices:
        return (
            "choice",
            (
                f"{shown} {text}: not one of"
                f" {', '.join(str(choice) for choice in option.choices if choice is not None)}"
            ),
        )
    return None


def _convert(text: str, kind: str) -> Any:
    """The value as argparse's type makes it.

    Raises:
        ValueError: it is none; the message says what is expected.
    """
    match kind:
        case "int":
            return _number(text, int, "a whole number")
        case "float":
            return _number(text, float, "a number")
        case "human_int" | "human_int_or_auto":
            if kind.endswith("auto") and (text.strip() == "-1" or text.strip().lower() == "auto"):
                return -1
            if match := _HUMAN.fullmatch(text):
                if "." in match[1] and match[2].isupper():
                    raise ValueError(
                        f"no fraction before {match[2]}, which counts in powers of two; write"
                        f" {match[2].lower()}"
                    )
                return 1
            return _number(text, int, "a whole number such as 65536 or 64k")
        case "json":
            return _json(text)
        case "json_or_str":
            return _json(text) if re.fullmatch(r"(?s)\s*{.*}\s*", text) else text
    if kind.startswith("object:") and not isinstance(_json(_plain_numbers(text)), dict):
        raise ValueError("expected a JSON object in braces")
    return text


def _number(text: str, kind: Any, expected: str) -> Any:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"expected {expected}") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"this is not JSON ({error})") from None


def _plain_numbers(text: str) -> str:
    """JSON with bare numbers such as 80m made plain, as vLLM does."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    parts[::2] = [re.sub(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", "1", part) for part in parts[::2]]
    return "".join(parts)
