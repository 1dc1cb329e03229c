"""From a launch line as it was written to the launch that a recipe holds.

A line may hold what a launch cannot: it is left out with a note, or refused.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from sparkbook import releases
from sparkbook.errors import SparkbookError
from sparkbook.formats.conversion import Notes
from sparkbook.formats.words import REPEATED, check_image
from sparkbook.launch.arguments import Given, parse
from sparkbook.launch.docker import OPTIONS, SWITCHES
from sparkbook.launch.lexer import literal, passed_on, show
from sparkbook.launch.line import DockerOption, Line, Word
from sparkbook.launch.release import release_of
from sparkbook.launch.server import PROGRAM, SHELLS, program_of
from sparkbook.recipes.launch import DOCKER_OPTION, Container, Launch, Value
from sparkbook.recipes.names import SHORT_FLAGS, EntryPoint, option_name
from sparkbook.util import invalid
from sparkbook.util.secret import by_name, is_secret
from sparkbook.util.shell_text import HOME, quote

_FIELDS = {
    "name": "name",
    "gpus": "gpus",
    "runtime": "runtime",
    "ipc": "ipc",
    "shm-size": "shm_size",
    "network": "network",
    "restart": "restart",
    "user": "user",
}
"""By docker's option, the container's field that it fills."""
_LISTS = {"publish": "ports", "volume": "volumes"}
_OF_THE_MOMENT = {"detach", "rm", "interactive", "tty", "help"}
"""How the container is attached and whether it is kept: choices of the moment, which no launch
holds.
"""


@dataclass
class Reading:
    """A launch in the making.

    Attributes:
        notes: what the launch cannot hold, and what was chosen.
        image, entrypoint, container, env, serve: the fields of the launch.
    """

    notes: Notes = field(default_factory=Notes)
    image: str | None = None
    entrypoint: EntryPoint = "command"
    container: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str | None] = field(default_factory=dict)
    serve: dict[str, Any] = field(default_factory=dict)

    def launch(self) -> Launch:
        """Return the launch.

        Raises:
            SparkbookError: a value is not one that a launch can hold; the message never shows a
                variable's value.
        """
        self._drop_invalid()
        data = {
            "image": self.image,
            "entrypoint": self.entrypoint,
            "container": self.container,
            "env": self.env,
            "serve": self.serve,
        }
        try:
            return Launch.model_validate(data)
        except ValidationError as error:
            raise SparkbookError(
                f"this is not a launch line that can be used: {invalid.reason(error)}"
            ) from None

    def _drop_invalid(self) -> None:
        """Take out of the container what a recipe cannot hold, and note it."""
        for name in list(self.container):
            value = self.container[name]
            if not (problem := _problem(name, value)):
                continue
            valid: Any = None
            if isinstance(value, list):
                valid = [item for item in value if not _problem(name, [item])]
            elif isinstance(value, dict):
                valid = {k: item for k, item in value.items() if not _problem(name, {k: item})}
            self.container.pop(name)
            if valid:
                self.container[name] = valid
            self.notes.add("CONV210", f"container.{name} was left out: {problem}.")
        if self.container.get("network") == "host" and self.container.get("ports"):
            self.notes.add(
                "CONV210",
                "container.ports was left out: docker publishes no port of a container on the"
                " host's network.",
                ", ".join(self.container.pop("ports")),
            )
        for name in list(self.env):
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                self.env.pop(name)
                self.notes.add(
                    "CONV210",
                    f"'{name}' was left out: it is not the name of an environment variable.",
                )

    def take(self, line: Line) -> None:
        """Take a line.

        Raises:
            SparkbookError: the line is broken, holds what only a shell can fill in, or is no way
                to start vLLM.
        """
        if broken := line.broken:
            raise broken.error()
        for remark in [*line.mistakes, *line.remarks]:
            assert remark.code is not None
            self.notes.add(remark.code, remark.message, remark.evidence, remark.fix)
        if line.image_word is not None:
            self.image = _literal(line.image_word)
            check_image(self.image)
        for option in line.docker:
            self._option(option, keep=line.form != "compose")
        for word in line.spreads:
            _literal(word)
        for word in line.env_words.values():
            self._variable(word)
        if line.form == "compose":
            self.notes.foreign |= line.foreign
        self._start(line)

    def _option(self, option: DockerOption, keep: bool) -> None:
        """Take one option of docker; a compose file keeps its own keys aside."""
        name = option.name
        if name in _FIELDS:
            self.container[_FIELDS[name]] = _literal(option.given)
        elif name in _LISTS:
            self.container.setdefault(_LISTS[name], []).append(_literal(option.given))
        elif name == "ulimit":
            limit, _, value = _literal(option.given).partition("=")
            self.container.setdefault("ulimits", {})[limit] = value
        elif keep and name not in _OF_THE_MOMENT:
            spelled = f"--{name}" if len(name) > 1 else f"-{name}"
            if not DOCKER_OPTION.fullmatch(spelled):
                raise SparkbookError(
                    f"'{show(spelled)}' is not an option of docker run: a name has letters, digits,"
                    " dashes and dots"
                )
            self.notes.foreign.setdefault(spelled, []).append(_literal(option.given))
            if name in OPTIONS | SWITCHES:
                shown = option.value[:60] if option.value and name != "env-file" else None
                self.notes.add(
                    "CONV203",
                    f"docker's option {spelled} is kept under foreign: a recipe has no field for"
                    " it.",
                    shown,
                )

    def _variable(self, word: Word) -> None:
        """Take `NAME=VALUE` or `NAME`; a secret's value is left out."""
        marked, equals, value = word.text.partition("=")
        name = _literal(Word(marked, place=word.place))
        self.env[name] = None
        if equals and is_secret(name, value):
            self.notes.add(
                "CONV206",
                f"The value of {name} is a secret and was left out.",
                fix=f"Export {quote(name)} before you start the server.",
            )
        elif equals:
            self.env[name] = _literal(Word(value, place=word.place))

    def _start(self, line: Line) -> None:
        """Take the entry point and the words after the image."""
        self.entrypoint = line.runs
        entry = None if line.entry_word is None else _literal(line.entry_word)
        program = program_of(entry) if entry else entry
        if entry is not None:
            self.container["entrypoint"] = entry
        if line.serve is None or line.runs == "wrapper":
            # The words for an image with a script of its own are kept as they are.
            self._script(line, program)
            return
        if program and PROGRAM.fullmatch(program) and program.startswith("python"):
            # Written back as vllm serve, which needs no entry point of the line's own.
            del self.container["entrypoint"]
        self.arguments(line.serve, release_of(line)[0], line.api_server)
        if line.setup:
            self._setup(line)
            if line.runs == "vllm-serve" and entry == "bash":
                del self.container["entrypoint"]

    def _script(self, line: Line, program: str | None) -> None:
        """Take the words of a script of the image; refuse those that start nothing known."""
        first = program or (program_of(line.words[0].text) if line.words else "")
        waits = program in SHELLS and not line.words
        model = line.nothing_serves or ""
        refused = (
            line.image is None
            or line.doubled
            or (line.runs != "wrapper" and re.match(r"-|[\w.-]+/", model))
        )
        if not waits and (refused or (line.runs != "wrapper" and PROGRAM.fullmatch(first))):
            raise SparkbookError(
                f"'{line.nothing_serves or 'vllm'}' does not start a server that is known here:"
                " expected vllm serve MODEL …"
            )
        if not waits:
            self.entrypoint = "wrapper"
        self.serve = {"command": [_literal(word) for word in line.words]}

    def _setup(self, line: Line) -> None:
        # Their variables may be the script's own.
        self.notes.guessed.setdefault("serve.before", "")
        for word in line.setup:
            if HOME in word.text:
                raise SparkbookError(
                    f"'{word.shown}' holds the home folder of your own shell, which a command in"
                    " the container does not know: write the path out"
                )
        self.serve["before"] = [_literal(Word(f".{word.text}"))[1:] for word in line.setup]

    def arguments(self, words: list[Word], release: str, api_server: bool = False) -> None:
        """Take the arguments of `vllm serve`.

        Args:
            words: the words after `vllm serve`.
            release: the vLLM release that reads them.
            api_server: whether the API server's module reads them, which takes no model as a word.

        Raises:
            SparkbookError: a word is neither an option, its value nor the model.
        """
        parsed = parse(words, releases.get(release))
        surplus = {id(word) for given in parsed.options for word in given.surplus}
        for word in parsed.spreads:
            _literal(word)
        for word in parsed.extra:
            if id(word) not in surplus and word is not parsed.second_model:
                raise SparkbookError(f"'{word.shown}' is not an option of vllm serve: remove it")
        if parsed.second_model is not None:
            self.notes.add(
                "CONV207",
                "The model is given twice: --model was taken, and vLLM refuses the other.",
                parsed.second_model.shown,
            )
        args: dict[str, Value] = {}
        for given in parsed.options:
            if given.name == "model" and not given.key:
                if len(given.values) + len(given.surplus) != 1:
                    raise SparkbookError("--model takes one model")
            else:
                self._argument(given, args)
        if parsed.model is not None:
            self.serve["model"] = _literal(parsed.model)
        if parsed.model_option and not api_server:
            self.serve["model_option"] = True
        self.serve["args"] = args

    def _argument(self, given: Given, args: dict[str, Value]) -> None:
        """Take one option of `vllm serve`."""
        name = _name(given)
        words = [*given.values, *given.surplus]
        if words and given.option and by_name(given.option.name):
            name = given.option.name  # also under the beginning of its name
        if name == "api-key" and words:
            self.env["VLLM_API_KEY"] = None
            if passed_on(words[0].text) != "VLLM_API_KEY":
                self.notes.add(
                    "CONV206",
                    "The value of --api-key is a secret and was left out.",
                    fix="Export VLLM_API_KEY instead.",
                )
            return
        if any(is_secret(name, word.text) for word in words):
            self.notes.add("CONV206", f"The value of --{name} is a secret and was left out.")
            return
        value: Value = [_value(word) for word in words] if words else True
        if value == [""]:
            self.notes.add("CONV210", f"--{name} was left out: its value is empty.")
            return
        if name in args and name in REPEATED:
            value = [*_as_list(args[name]), *_as_list(value)]
        elif name in args:
            self.notes.add(
                "CONV207", f"--{name} is given twice: the last one was taken, as vLLM takes it."
            )
        args[name] = value


def launch_of(line: Line, notes: Notes) -> Launch:
    """Return the launch that a line describes.

    Args:
        line: the line.
        notes: receives what the launch cannot hold.

    Raises:
        SparkbookError: no launch can be made of the line.
    """
    reading = Reading(notes)
    reading.take(line)
    return reading.launch()


def first_launch(line: Line, notes: Notes) -> Launch:
    """Return the launch of a line, or of the first of the others in its text that makes one.

    Raises:
        SparkbookError: none makes one; the reason is the first line's.
    """
    problem: SparkbookError | None = None
    for candidate in [line, *line.others]:
        mine = Notes(guessed=dict(notes.guessed))
        try:
            launch = launch_of(candidate, mine)
        except SparkbookError as error:
            problem = problem or error
            continue
        for entry in mine.entries:
            if entry not in notes.entries:
                notes.entries.append(entry)
        notes.guessed |= mine.guessed
        notes.foreign |= mine.foreign
        if candidate is not line:
            notes.add(
                "CONV205",
                f"The first start could not be read; the one with {launch.image} was taken.",
                str(problem),
            )
        return launch
    assert problem is not None
    raise problem


def _problem(name: str, value: Any) -> str | None:
    """Return why a container's field cannot hold a value."""
    try:
        Container.model_validate({name: value})
    except ValidationError as error:
        return next(invalid.problems(error)).partition(": ")[2]
    return None


def _literal(word: Word) -> str:
    """Return a word's value as a launch holds it.

    Raises:
        SparkbookError: only a shell can fill it in.
    """
    try:
        return literal(word.text)
    except SparkbookError as error:
        raise SparkbookError(f"{word.place}: {error}" if word.place else str(error)) from None


def _name(given: Given) -> str:
    """Return an option's name as a recipe writes it.

    Raises:
        SparkbookError: it cannot be the name of one.
    """
    if given.word.text.startswith("-O"):
        return "optimization-level"
    name = f"{given.name}.{given.key}" if given.key else given.name
    known = given.word.text.startswith("--") or given.option or given.name in SHORT_FLAGS
    if not known or not re.fullmatch(r"[A-Za-z][\w.-]*\+?", name, re.ASCII):
        raise SparkbookError(f"'{given.word.shown}' is not an option of vllm serve")
    return option_name(name)


def _as_list(value: Value) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _value(word: Word) -> Value:
    """Return an argument's value; in JSON each string may begin with the home folder."""
    if word.text.startswith("{"):
        try:
            return _literal_inside(json.loads(word.text, strict=False))
        except ValueError:
            pass
    return _literal(word)


def _literal_inside(value: Any) -> Any:
    if isinstance(value, dict):
        return {literal(f".{key}")[1:]: _literal_inside(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal_inside(item) for item in value]
    return literal(value) if isinstance(value, str) else value
