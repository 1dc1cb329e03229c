"""The value that every reader of launch lines gives: what was written, word by word, mistakes and
all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from sparkbook.errors import SparkbookError
from sparkbook.launch.lexer import passed_on, show
from sparkbook.recipes.names import EntryPoint
from sparkbook.util.shell_text import HOME

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Model, Recipe


_SPREAD = re.compile(r"\0\$(?:[@*]|\{[@*].*\}|\{\w+\[[@*]\].*\})\0", re.DOTALL)


@dataclass(frozen=True)
class Word:
    """A word of a launch line.

    Attributes:
        text: the word without its quotes; what only a shell can fill in is marked
            (`launch.lexer`).
        start, end: its position in the text; -1 where it has none that can be changed.
        place: the key of a document that holds it, such as `services.a.user`.
    """

    text: str
    start: int = -1
    end: int = -1
    place: str = ""

    @property
    def known(self) -> bool:
        """Whether the text is what the program receives: nothing is left for a shell to fill in."""
        return "\0" not in self.text.replace(HOME, "")

    @property
    def spread(self) -> bool:
        """Whether a shell puts any number of words in its place, such as `"$@"` or an array."""
        return bool(_SPREAD.fullmatch(self.text))

    @property
    def shown(self) -> str:
        """The word as it was written."""
        return show(self.text)

    @property
    def value(self) -> str:
        """The word for people and rules: as it was written, with the home folder as `~`."""
        return show(self.text.replace(HOME, "~"))


class DockerOption(NamedTuple):
    """One option of docker.

    Attributes:
        name: long name without dashes.
        value: its value for people and rules; empty for a switch.
        word: the option's own word.
        given: the value as a word, marks included.
    """

    name: str
    value: str
    word: Word
    given: Word


@dataclass(frozen=True)
class Remark:
    """A mistake of a line, or what its reader chose, filled in or left out.

    Attributes:
        code: code of the conversion report; None for a mistake that breaks the line.
        message, evidence, fix: as in a finding.
    """

    code: str | None
    message: str
    evidence: str | None = None
    fix: str | None = None

    def error(self) -> SparkbookError:
        """Return the mistake as an error, in one line."""
        text = self.message.rstrip(".")
        if self.fix:
            text += f": {self.fix[:1].lower()}{self.fix[1:].rstrip('.')}"
        return SparkbookError(f"{text[:1].lower()}{text[1:]}")


@dataclass
class Line:
    """One start of a server, as it was written.

    Attributes:
        form: how it was written: a line of docker, a compose service, or a command of a shell.
        image: image reference; None for a process without a container.
        image_word: the image's word, marks included.
        docker: docker's options in order.
        env: variables: value, or None where the caller's own value is passed on.
        env_words: by variable, the word `NAME=VALUE` that sets it.
        entry: entry point that the line sets; empty where it takes the image's away.
        entry_word: the entry point's word, marks included.
        runs: what the image runs by itself: `command`, `vllm-serve`, `wrapper`.
        words: the words after the image, those of a list as the entry point included.
        serve: the words after `vllm serve`; None where no server is found.
        api_server: whether `python -m` starts the server, and not `vllm serve`.
        doubled: the words `vllm serve` given to an image that adds them by itself.
        nothing_serves: the first words given to an image or an entry point, where they start no
            server.
        setup: shell commands that run before the server, each as one word.
        mistakes: what is wrong with the line.
        spreads: words of the start that only a shell fills in, with any number of words.
        remarks: what the reader chose, filled in or left out.
        foreign: keys of a compose file that no option of docker says.
        recipe: the recipe, where the input is one.
        stated: what another tool's recipe says of the model.
        nodes: machines that another tool's recipe is spread over.
        text: the text that the words' positions refer to.
        others: further launch lines of the same text.
        findings: what the reader of another format reports.
    """

    form: Literal["docker", "compose", "shell"] = "shell"
    image: str | None = None
    image_word: Word | None = None
    docker: list[DockerOption] = field(default_factory=list)
    env: dict[str, str | None] = field(default_factory=dict)
    env_words: dict[str, Word] = field(default_factory=dict)
    entry: str | None = None
    entry_word: Word | None = None
    runs: EntryPoint = "command"
    words: list[Word] = field(default_factory=list)
    serve: list[Word] | None = None
    api_server: bool = False
    doubled: tuple[Word, Word] | None = None
    nothing_serves: str | None = None
    setup: list[Word] = field(default_factory=list)
    mistakes: list[Remark] = field(default_factory=list)
    spreads: list[Word] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    foreign: dict[str, Any] = field(default_factory=dict)
    recipe: Recipe | None = None
    stated: Model | None = None
    nodes: int = 1
    text: str = ""
    others: list[Line] = field(default_factory=list)
    findings: list[Any] = field(default_factory=list)

    @property
    def starts(self) -> bool:
        """Whether the line starts a server, as far as the words show: an image with a script of
        its own does.
        """
        return self.serve is not None or (self.runs == "wrapper" and self.entry is None)

    @property
    def before(self) -> list[str]:
        """The shell commands that run before the server, as they were written."""
        return [word.shown for word in self.setup]

    @property
    def broken(self) -> Remark | None:
        """The first mistake that breaks the line, if any."""
        return next((mistake for mistake in self.mistakes if mistake.code is None), None)

    def option(self, name: str) -> str | None:
        """Return the value of docker's option, the last one given; an empty string for a switch,
        None where it is not given.
        """
        return next((item.value for item in reversed(self.docker) if item.name == name), None)

    def values(self, name: str) -> list[str]:
        """Return every value of docker's option in order."""
        return [item.value for item in self.docker if item.name == name]

    def set_image(self, word: Word) -> None:
        """Take the image."""
        self.image, self.image_word = word.shown, word

    def set_entry(self, word: Word) -> None:
        """Take the entry point."""
        self.entry, self.entry_word = word.value, word

    def add_option(self, name: str, given: Word, word: Word | None = None) -> None:
        """Take one option of docker with its value."""
        self.docker.append(DockerOption(name, given.value, word or given, given))

    def set_env(self, word: Word) -> None:
        """Take `NAME=VALUE` or `NAME`; `NAME=$NAME` passes the caller's own value on, as `NAME`
        alone does.
        """
        marked, equals, value = word.text.partition("=")
        name = show(marked)
        passed = not equals or passed_on(value) == name
        self.env[name] = None if passed else Word(value).value
        self.env_words[name] = Word(marked if passed else word.text, place=word.place)

    def breaks(self, message: str, fix: str) -> None:
        """Note a mistake that breaks the line."""
        self.mistakes.append(Remark(None, message, fix=fix))

    def remark(self, code: str, message: str, evidence: str | None = None) -> None:
        """Note something that the reader chose, filled in or left out, once."""
        entry = Remark(code, message, evidence)
        if entry not in self.remarks:
            self.remarks.append(entry)


def kept_aside(data: Iterable[object], known: set[str], place: str = "") -> Iterable[Remark]:
    """Yield a remark for each key that nothing reads: unknown ones one by one, known ones together.

    Args:
        data: the keys.
        known: keys that the format has.
        place: the path of the mapping, for messages.
    """
    aside = []
    for key in data:
        path = f"{place}.{key}" if place else str(key)
        if key in known:
            aside.append(path)
        else:
            yield Remark(
                "CONV202", f"The key {path} is not one of this format; it is kept under foreign."
            )
    if aside:
        keys, verb, them = ("key", "is", "it") if len(aside) == 1 else ("keys", "are", "them")
        yield Remark(
            "CONV203",
            f"The {keys} {', '.join(aside)} {verb} kept under foreign: a recipe has no field for"
            f" {them}.",
        )


def by_preference(lines: Mapping[str, Line] | list[Line]) -> list[Line]:
    """Return the lines of one text, the one that is meant first.

    A script often starts a database or looks at the driver before: a line that gives a server its
    arguments comes first, then one that starts a server, then one with vLLM in the image's name.
    """
    items = list(lines.values()) if isinstance(lines, Mapping) else lines
    return sorted(
        items, key=lambda line: (not line.serve, not line.starts, "vllm" not in (line.image or ""))
    )
