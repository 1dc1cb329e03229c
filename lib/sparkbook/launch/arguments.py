"""The arguments of `vllm serve`, read as vLLM's own parser reads them in one release."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sparkbook.launch.line import Word
from sparkbook.releases import Option, Release
from sparkbook.util.secret import by_name
from sparkbook.util.shell_text import command_line

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+", re.ASCII)
_HUMAN = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])", re.ASCII)
_SCALE = {
    letter: base**power
    for power, letters in enumerate(("kK", "mM", "gG", "tT"), 1)
    for letter, base in zip(letters, (1000, 1024), strict=True)
}
_SWITCH = re.compile(r"(enable|disable|no)-.*|headless|language-model-only")
"""Options that a release does not know and that take no value, by their names."""
NUMBERS = ("int", "float", "human_int", "human_int_or_auto")
"""Types of options whose value is a number."""


class Bounds(NamedTuple):
    """What vLLM's configuration accepts of a number, apart from its parser.

    Attributes:
        least, most: bounds, both allowed.
        expected: the same in words.
    """

    least: float
    most: float
    expected: str


_COUNT = Bounds(1, math.inf, "1 or more")
BOUNDS: dict[str, Bounds] = {
    **dict.fromkeys(
        (
            "max-num-seqs",
            "max-num-batched-tokens",
            "max-num-scheduled-tokens",
            "tensor-parallel-size",
            "pipeline-parallel-size",
            "data-parallel-size",
            "decode-context-parallel-size",
            "prefill-context-parallel-size",
            "nnodes",
            "block-size",
            "mamba-block-size",
            "kv-cache-memory-bytes",
        ),
        _COUNT,
    ),
    "max-model-len": Bounds(1, math.inf, "1 or more, or auto"),
    "node-rank": Bounds(0, math.inf, "0 or more"),
    "gpu-memory-utilization": Bounds(1e-9, 1, "a fraction above 0, up to 1"),
    "port": Bounds(0, 65535, "a port up to 65535"),
}
"""Bounds of numbers (the fields of vLLM 0.32.0's `CacheConfig`, `ModelConfig`, `ParallelConfig` and
`SchedulerConfig`). A context of 0 passes them, and can serve nothing.
"""


@dataclass
class Given:
    """One option as it was given.

    Attributes:
        word: the option's word.
        name: spelling with dashes, without a value or a key.
        key: for `--config.key value`, the key.
        option: what it means in the release; None where it means nothing there.
        negated: whether it is the `--no-` form.
        values: the words after it that belong to it.
        inline: whether the value is joined by `=`.
        surplus: the words after those, which belong to nothing.
    """

    word: Word
    name: str
    key: str = ""
    option: Option | None = None
    negated: bool = False
    values: list[Word] = field(default_factory=list)
    inline: bool = False
    surplus: list[Word] = field(default_factory=list)

    @property
    def words(self) -> list[Word]:
        """The option's word and its values' words."""
        return [self.word] if self.inline else [self.word, *self.values]

    @property
    def value(self) -> str | None:
        """The value, where there is exactly one and it is known."""
        return self.values[0].text if len(self.values) == 1 and self.values[0].known else None

    @property
    def shown(self) -> str:
        """The option as it was written, a secret's value hidden."""
        return " ".join(self._words)

    @property
    def pasted(self) -> str:
        """The option as words to paste into a line."""
        return command_line(*self._words)

    @property
    def _words(self) -> list[str]:
        if (
            self.values and self.option and by_name(self.option.name)
        ):  # also under the beginning of its name
            return [self.word.shown.partition("=")[0], "***"]
        return [word.shown for word in self.words]


@dataclass
class Arguments:
    """The arguments of one line.

    Attributes:
        options: in order.
        model: the model.
        model_option: whether the model is given as `--model`.
        second_model: the model given as a word where `--model` is given too; vLLM refuses it.
        extra: words that belong to nothing.
        spreads: words that only a shell fills in, with any number of arguments.
    """

    options: list[Given] = field(default_factory=list)
    model: Word | None = None
    model_option: bool = False
    second_model: Word | None = None
    extra: list[Word] = field(default_factory=list)
    spreads: list[Word] = field(default_factory=list)


def is_option(word: Word) -> bool:
    """Return whether argparse takes a word for an option: it begins with a dash, is no negative
    number, and has no blank in its name.
    """
    return (
        word.text.startswith("-")
        and len(word.text) > 1
        and not _NEGATIVE.fullmatch(word.text)
        and " " not in word.text.partition("=")[0]
    )


def parse(words: list[Word], release: Release) -> Arguments:
    """Take the words after `vllm serve` apart."""
    result = Arguments()
    shorts = {
        alias: option
        for option in release.options.values()
        for alias in option.aliases
        if not alias.startswith("--")
    }
    given: Given | None = None
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.spread:
            result.spreads.append(word)
        elif is_option(word):
            given = _option(word, release, shorts)
            result.options.append(given)
            count = 0 if given.inline else _arity(given, result.model is None)
            while (
                at < len(words)
                and not is_option(words[at])
                and not words[at].spread
                and len(given.values) < count
            ):
                given.values.append(words[at])
                at += 1
        elif result.model is None:
            result.model, given = word, None
        else:
            result.extra.append(word)
            if given is not None:
                given.surplus.append(word)
    _model_option(result)
    return result


def _arity(given: Given, model_may_follow: bool) -> float:
    """Return how many of the words after an option are its values."""
    if given.option is None:
        # A word after what looks like a switch is more likely the model.
        return 0 if model_may_follow and _SWITCH.fullmatch(given.name) else math.inf
    if given.key or given.option.nargs in (None, "?"):
        return 1 if given.key or given.option.takes_value else 0
    return math.inf if given.option.takes_value else 0


def _model_option(result: Arguments) -> None:
    """Take `--model X`, which vLLM moves to the front: a model given as a word is then surplus."""
    for given in result.options:
        if given.name == "model" and given.values and not given.key:
            if result.model is not None and not result.model_option:
                result.second_model = result.model
                result.extra.insert(0, result.model)
            result.model, result.model_option = given.values[0], True


def _option(word: Word, release: Release, shorts: dict[str, Option]) -> Given:
    text = word.text
    if match := re.fullmatch(r"-O(=?)(.*)", text, re.DOTALL):
        resolved = release.resolve("optimization-level")
        option = resolved[0] if resolved else shorts.get("-O")
        return Given(
            word,
            "optimization-level" if resolved else "O",
            option=option,
            values=[Word(match[2])] if match[2] else [],
            inline=bool(match[2]),
        )
    head, equals, value = text.partition("=")
    inline = [Word(value, word.start, word.end)] if equals else []
    if not text.startswith("--"):
        short, dot, key = head.partition(".")
        key = key if dot else ""
        option = shorts.get(short)
        return Given(word, short[1:], key, option, values=inline, inline=bool(equals))
    name, dot, key = head[2:].partition(".")
    name = name.replace("_", "-")
    resolved = release.resolve(name)
    option, negated = resolved if resolved else (None, False)
    return Given(word, name, key if dot else "", option, negated, inline, bool(equals))


def problem(item: Given, option: Option) -> tuple[str, str] | None:
    """Return why vLLM refuses an option's values; None where it does not.

    Returns:
        What is wrong (`count`, `type`, `choice` or `range`), and a sentence without its full stop.
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
        if word.known and (refusal := refused(word.text, option, shown)):
            return refusal
    return None


def refused(text: str, option: Option, shown: str) -> tuple[str, str] | None:
    """Return why vLLM refuses one value of an option, as `problem` does.

    Args:
        text: the value.
        option: the option in the release.
        shown: what the message calls it.
    """
    if option.optional and text in ("", "None"):
        return None
    try:
        value = converted(text, option.type)
    except ValueError as error:
        return "type", f"{shown} {text}: {error}"
    if option.choices is not None and value not in option.choices:
        choices = ", ".join(str(choice) for choice in option.choices if choice is not None)
        return "choice", f"{shown} {text}: not one of {choices}"
    bounds = BOUNDS.get(option.name)
    if bounds is None or not isinstance(value, int | float):
        return None
    automatic = option.type == "human_int_or_auto" and value == -1
    # NaN lies in no bounds.
    if automatic or bounds.least <= value <= bounds.most:
        return None
    return "range", f"{shown} {text}: expected {bounds.expected}"


def converted(text: str, kind: str) -> Any:
    """Return an option's value as vLLM's parser makes it: `64k` is 64,000, `64K` is 65,536.

    Raises:
        ValueError: it is none; the message says what is expected.
    """
    match kind:
        case "int":
            return _number(text, int, "a whole number")
        case "float":
            return _number(text, float, "a number")
        case "human_int" | "human_int_or_auto":
            return _human(text.strip(), kind.endswith("auto"))
        case "json":
            return _json(text)
        case "json_or_str":
            return _json(text) if re.fullmatch(r"(?s)\s*{.*}\s*", text) else text
    if kind.startswith("object:") and not isinstance(_json(_plain_numbers(text)), dict):
        raise ValueError("expected a JSON object in braces")
    return text


def _human(text: str, automatic: bool) -> int:
    """Return a number of people, such as 25.6k, as vLLM's `human_readable_int` reads it."""
    if automatic and (text == "-1" or text.lower() == "auto"):
        return -1
    match = _HUMAN.fullmatch(text)
    if match is None:
        return _number(text, int, "a whole number such as 65536 or 64k")
    number, suffix = match.groups()
    if suffix.islower():
        try:
            return int(float(number) * _SCALE[suffix])
        except OverflowError:
            raise ValueError("expected a number that a computer can count to") from None
    if "." in number:
        raise ValueError(
            f"no fraction before {suffix}, which counts in powers of two; write {suffix.lower()}"
        )
    return int(number) * _SCALE[suffix]


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
    """Return JSON with bare numbers such as 80m made plain, as vLLM does."""
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    parts[::2] = [re.sub(r"\b\d+(?:\.\d+)?[kKmMgGtT]\b", "1", part) for part in parts[::2]]
    return "".join(parts)
