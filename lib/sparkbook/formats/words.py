"""The words of `vllm serve`, and the words after a container's image: written from a launch, and
read back into one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from sparkbook.errors import SparkbookError
from sparkbook.formats.conversion import Notes
from sparkbook.formats.lexer import Token, lex, line_of, literal, passed_on, show
from sparkbook.recipes.launch import (
    SHORT_FLAGS,
    Container,
    EntryPoint,
    Launch,
    Serve,
    Value,
    entrypoint_of,
    is_secret,
    option_name,
)
from sparkbook.util.shell_text import (
    HOME,
    check_writable,
    command_line,
    mark_home,
    quote,
    quote_inside,
)

# Words that belong together and should stay on one line: an option and its value.
Group = list[str]

_REPEATED = {"middleware"}
"""Options that vLLM collects from several uses, where any other option's last use wins."""
_SWITCH = re.compile(
    r"(enable|disable|no)-.*|trust-remote-code|enforce-eager|headless|async-scheduling|language-model-only"
)
"""Options that take no value, so that a word after one of them is the model. Only asked where the
model is not the first word.
"""
_API_SERVER = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
_SHELLS = {"bash", "sh"}
_SERVE_FIRST = re.compile(r"vllm|python[\d.]*|bash|sh|exec|env")


# ---- writing


def value_words(value: Value) -> list[str]:
    """The words after an option for this value, the home folder marked; none for a bare flag.

    Raises:
        SparkbookError: a mapping cannot be written as JSON.
    """
    if value is True:
        return []
    if isinstance(value, list):
        return [word for item in value for word in value_words(item)]
    if isinstance(value, dict):
        try:
            return [
                json.dumps(
                    _mark(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False
                ).replace(_JSON_HOME, HOME)
            ]
        except (TypeError, ValueError) as error:
            raise SparkbookError(f"{value!r} cannot be written as JSON: {error}") from None
    return [mark_home(str(value))]


_JSON_HOME = json.dumps(HOME)[1:-1]


def _mark(value: Any) -> Any:
    """A JSON value whose strings have their leading `~` marked."""
    if isinstance(value, dict):
        return {key: _mark(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_mark(item) for item in value]
    return mark_home(value) if isinstance(value, str) else value


def serve_groups(serve: Serve) -> list[Group]:
    """The arguments of `vllm serve`: the model, then each option with its value, in the recipe's
    order.

    Raises:
        SparkbookError: a value that no command line can say, such as a list of which one begins
            with a dash.
    """
    groups: list[Group] = []
    if serve.model is not None:
        model = mark_home(serve.model)
        if serve.model_option or not model or model.startswith("-"):
            groups.append(
                ["--model", model] if model and not model.startswith("-") else [f"--model={model}"]
            )
        else:
            groups.append([model])
    for name, value in serve.args.items():
        words = value_words(value)
        if isinstance(value, list) and name in _REPEATED:
            groups += [_option(name, [word]) for word in words]
        else:
            groups.append(_option(name, words))
    return groups


def _option(name: str, words: list[str]) -> Group:
    if len(words) == 1 and _is_option(words[0]):
        return [f"--{name}={words[0]}"]
    for word in words:
        if _is_option(word):
            raise SparkbookError(
                f"--{name}: '{word}' in a list would be read as an option of its own: no command"
                " line can say this"
            )
    return [f"--{name}", *words]


def _is_option(word: str) -> bool:
    """Whether a word would be taken for an option: it begins with a dash and is no negative number
    (argparse's own rule).
    """
    return word.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", word, re.ASCII)


def container_words(launch: Launch) -> tuple[str | None, list[Group]]:
    """The entry point to set, if any, and the words after the image.

    An image that starts `vllm serve` by itself is not given those two words again; commands to run
    before need a shell instead of it.

    Raises:
        SparkbookError: no image, or the image's own script cannot be told what the launch asks for.
    """
    container, serve = launch.container, launch.serve
    if launch.image is None:
        raise SparkbookError("this launch has no image, it runs as a process: write it as shell")
    check_image(launch.image)
    if serve.command is not None:
        if serve.args or serve.before:
            raise SparkbookError(
                "serve.command gives the words after the image as they are: serve.args and"
                " serve.before go unused"
            )
        return container.entrypoint, [[mark_home(word)] for word in serve.command]
    if launch.entrypoint == "wrapper":
        raise SparkbookError(
            f"{launch.image} starts a script of its own: give its words as serve.command, or its"
            " variables as env"
        )
    entry = None if container.entrypoint is None else PurePosixPath(container.entrypoint).name
    if serve.before:
        script = serve_script(serve)
        if entry is None and launch.entrypoint == "vllm-serve":
            return "bash", [["-lc", script]]
        if entry in _SHELLS:
            return container.entrypoint, [["-lc", script]]
        if entry:
            raise SparkbookError(
                "serve.before needs a shell: set container.entrypoint to bash, or drop it (it is"
                f" {container.entrypoint})"
            )
        return container.entrypoint, [["bash", "-lc", script]]
    groups = serve_groups(serve)
    if entry in _SHELLS:
        return container.entrypoint, [["-lc", serve_script(serve)]]
    if entry == "vllm":
        return container.entrypoint, _prefixed(["serve"], groups)
    if entry is None and launch.entrypoint == "vllm-serve":
        return None, groups
    return container.entrypoint, _prefixed(["vllm", "serve"], groups)


def check_image(image: str) -> None:
    """Refuses what cannot be the name of an image.

    Raises:
        SparkbookError: it is none.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*", image):
        raise SparkbookError(
            f"'{image}' is not the name of an image, such as vllm/vllm-openai:v0.19.0"
        )


def _prefixed(words: list[str], groups: list[Group]) -> list[Group]:
    """The model, where it stands first, goes on the line of the command."""
    if groups and not groups[0][0].startswith("--"):
        return [[*words, *groups[0]], *groups[1:]]
    return [words, *groups]


def serve_script(serve: Serve) -> str:
    """A shell script that runs the commands of `serve.before` and then becomes the server, so that
    signals reach it.
    """
    # The home folder stays marked: it is the caller's, and the caller's shell has to fill it in.
    served = _prefixed(["exec", "vllm", "serve"], serve_groups(serve))
    return " &&\n".join([*before_commands(serve), render(served, quote_inside)])


def before_commands(serve: Serve) -> list[str]:
    """The commands of `serve.before`, each of which must be one complete shell command.

    Raises:
        SparkbookError: one of them is empty, ends in the middle, or holds a comment or several
            commands.
    """
    for command in serve.before:
        try:
            check_writable(command)
            tokens = lex(command)
        except SparkbookError as error:
            raise SparkbookError(f"serve.before: {command!r}: {error}") from None
        complete = (
            tokens
            and not tokens[-1].operator
            and tokens[-1].end == len(command)
            and tokens[0].start == 0
        )
        if not complete or any(token.operator and token.text == "&&" for token in tokens):
            raise SparkbookError(
                f"serve.before: {command!r} is not one complete shell command: give each command an"
                " entry of its own"
            )
    return serve.before


def render(groups: list[Group], quoted: Callable[[str], str] = quote, indent: str = "  ") -> str:
    """Groups of words as one command over several lines, each group on its own."""
    return f" \\\n{indent}".join(" ".join(quoted(word) for word in group) for group in groups)


# ---- reading


@dataclass
class Reading:
    """What has been found on a line so far; `launch()` makes the value of it, and `notes` holds
    what it could not keep.
    """

    notes: Notes = field(default_factory=Notes)
    image: str | None = None
    entrypoint: EntryPoint = "command"
    container: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str | None] = field(default_factory=dict)
    serve: dict[str, Any] = field(default_factory=dict)

    def launch(self) -> Launch:
        """The launch.

        Raises:
            SparkbookError: a value is not one that a launch can hold; the message never shows a
                variable's value.
        """
        self._drop_what_is_no_value()
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
            problems = [
                f"{'.'.join(str(part) for part in e['loc'])}:"
                f" {e['msg'].removeprefix('Value error, ')}"
                for e in error.errors()
            ]
            raise SparkbookError(
                "this is not a launch line that can be used: " + "; ".join(problems)
            ) from None

    def _drop_what_is_no_value(self) -> None:
        """Takes out of the container what a recipe can't hold, and tells of it."""
        for name in list(self.container):
            value = self.container[name]
            if problem := _problem({name: value}):
                good: Any = None
                if isinstance(value, list):
                    good = [item for item in value if not _problem({name: [item]})]
                elif isinstance(value, dict):
                    good = {
                        key: item
                        for key, item in value.items()
                        if not _problem({name: {key: item}})
                    }
                self.container.pop(name)
                if good:
                    self.container[name] = good
                self.notes.add("CONV210", f"container.{name}: {problem}", "left out")
        if self.container.get("network") == "host" and self.container.get("ports"):
            ports = self.container.pop("ports")
            self.notes.add(
                "CONV210",
                "container.ports: docker publishes no port of a container on the host's network",
                ", ".join(ports),
            )
        for name in list(self.env):
            if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
                self.env.pop(name)
                self.notes.add(
                    "CONV210", f"'{name}' is not the name of an environment variable", "left out"
                )


def _problem(container: dict[str, Any]) -> str | None:
    try:
        Container.model_validate(container)
    except ValidationError as error:
        return error.errors()[0]["msg"].removeprefix("Value error, ")
    return None


def set_env(reading: Reading, text: str) -> None:
    """Takes `NAME=VALUE` or `NAME`; `NAME=$NAME` passes the caller's own value on, as `NAME` alone
    does.
    """
    name, equals, value = text.partition("=")
    if not equals or passed_on(value) == name:
        reading.env[literal(name)] = None
    elif is_secret(literal(name)):
        reading.env[name] = None
        reading.notes.add(
            "CONV206",
            f"{name} is a secret and was left out of the recipe",
            fix=f"{command_line('export', name)} before you start the server",
        )
    else:
        reading.env[literal(name)] = literal(value)


def read_words(reading: Reading, words: list[str], entry: str | None) -> None:
    """Takes the words after the image, given the entry point that the line sets.

    Raises:
        SparkbookError: the words are no way to start vLLM in this image.
    """
    assert reading.image is not None
    check_image(reading.image)
    if entry is not None:
        reading.container["entrypoint"] = entry
    reading.entrypoint = entrypoint_of(reading.image)
    name = PurePosixPath(entry).name if entry else entry
    if reading.entrypoint == "wrapper":
        reading.serve = {"command": [literal(word) for word in words]}
    elif name in _SHELLS and not words:
        reading.serve = {"command": []}  # a shell that waits for somebody to type
    elif name in _SHELLS:
        read_shell(reading, words)
        if reading.entrypoint == "vllm-serve" and entry == "bash" and reading.serve.get("before"):
            del reading.container["entrypoint"]
    elif name == "vllm":
        read_command(reading, [name, *words])
    elif name and re.fullmatch(r"python[\d.]*", name):
        # Written back as vllm serve, which needs no entry point of the line's own.
        del reading.container["entrypoint"]
        read_command(reading, [name, *words])
    elif name is None and reading.entrypoint == "vllm-serve":
        read_arguments(reading, words[2:] if words[:2] == ["vllm", "serve"] else words)
    elif words and _SERVE_FIRST.fullmatch(PurePosixPath(words[0]).name):
        read_command(reading, words)
    elif (
        name is None
        and words
        and ("/" in words[0] or words[0].startswith("--"))
        and not words[0].startswith("/")
    ):
        # Not an image whose name tells, but the words are a model and options: it starts vllm serve
        # by itself.
        reading.entrypoint = "vllm-serve"
        read_arguments(reading, words)
    else:
        reading.entrypoint = "wrapper"
        reading.serve = {"command": [literal(word) for word in words]}


def read_command(reading: Reading, words: list[str]) -> None:
    """Takes a whole command: `vllm serve …`, `python -m vllm.entrypoints.openai.api_server …`, or a
    shell that runs one of them.
    """
    if words and words[0] == "exec":
        words = words[1:]
    if words and words[0] == "env":
        words = words[1:]
        while words and re.match(r"[A-Za-z_]\w*=", words[0], re.ASCII):
            set_env(reading, words.pop(0))
    program = PurePosixPath(words[0]).name if words else ""
    if program in _SHELLS:
        read_shell(reading, words[1:])
    elif program == "vllm" and words[1:2] == ["serve"]:
        read_arguments(reading, words[2:])
    elif (
        re.fullmatch(r"python[\d.]*", program)
        and words[1:2] == ["-m"]
        and words[2:3]
        and words[2] in _API_SERVER
    ):
        read_arguments(reading, words[4:] if words[2:4] == [_API_SERVER[1], "serve"] else words[3:])
        reading.serve.pop("model_option", None)
    else:
        shown = show(" ".join(words[:3])) or "nothing"
        raise SparkbookError(
            f"'{shown}' does not start a server that is known here: expected vllm serve MODEL …"
        )


def read_shell(reading: Reading, words: list[str]) -> None:
    """Takes the arguments of a shell: `-lc SCRIPT`, where the script ends in the server."""
    flags = [word for word in words if re.fullmatch(r"-[lcexu]+", word)]
    rest = words[len(flags) :]
    if words[: len(flags)] != flags or not any("c" in flag for flag in flags) or len(rest) != 1:
        raise SparkbookError(
            "a shell is expected to be given -c and one script, such as bash -c 'pip install scipy"
            " && vllm serve MODEL'"
        )
    if (others := rest[0].replace(HOME, "~")) != show(others):
        literal(others)
    read_script(reading, rest[0], outer=False)


def read_script(reading: Reading, script: str, outer: bool) -> None:
    """Takes a shell script: commands to run before, joined by `&&`, and the command that serves.

    Args:
        reading: what is added to.
        script: the script's text.
        outer: whether the caller's own shell runs it, and not a container's.

    Raises:
        SparkbookError: the script does not end in a command that serves.
    """
    commands = _commands(filled(lex(script, outer), script, reading.notes)) or [([], "")]
    at = next((i for i, (tokens, _) in enumerate(commands) if _serves(tokens)), len(commands) - 1)
    before, (served, _), after = commands[:at], commands[at], commands[at + 1 :]
    served, rest = cut(served, script)
    for left in [rest, *(tokens for tokens, _ in after)]:
        if left and left[0].text.startswith("-"):
            raise SparkbookError(
                f"line {line_of(script, left[0].start) - 1} ends the command and more follows: end"
                " it with a backslash"
            )
        if left:
            told = show(" ".join(token.text for token in left if token.text != "\n"))[:60]
            reading.notes.add("CONV209", "what follows the server is left out", told)
    chained: list[str] = []
    assigned: list[str] = []
    joined = True
    for tokens, separator in before:
        words = [token.text for token in tokens]
        if words[0] == "export" and all(_ASSIGNMENT.match(word) for word in words[1:]):
            for word in words[1:]:
                set_env(reading, word)
            continue
        command = script[tokens[0].start : tokens[-1].end]
        if all(_ASSIGNMENT.match(word) for word in words) and not any(
            token.operator for token in tokens
        ):
            assigned.append(command)
            continue
        if HOME in command:
            raise SparkbookError(
                f"'{show(command)}' holds the home folder of your own shell: a command in the"
                " container cannot be told it"
            )
        if any(token.body is not None for token in tokens):
            reading.notes.add(
                "CONV209", "a file written from a here-document is left out", show(command)[:60]
            )
            continue
        chained[len(chained) - (not joined) :] = [
            command if joined else f"{chained[-1]}; {command}"
        ]
        joined = separator == "&&"
    if not joined and chained:
        # After ; or a new line the server starts whether or not that command worked; `true` keeps
        # this meaning in a chain of &&.
        chained[-1] += "; true"
    words = [token.text for token in served]
    while words and _ASSIGNMENT.match(words[0]):
        set_env(reading, words.pop(0))
    read_command(reading, words)
    if chained:
        # Their variables may be the script's own.
        reading.notes.guessed.setdefault("serve.before", "")
        names = {command.split("=")[0] for command in assigned}
        used = [
            command
            for command in assigned
            if any(
                re.search(rf"\$\{{?{re.escape(command.split('=')[0])}\b", other)
                for other in chained
            )
        ]
        if names and used:
            chained = [
                *(command for command in used if not re.search(r"[\n&|;<>()]", command)),
                *chained,
            ]
    if chained:
        reading.serve["before"] = chained


_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=", re.ASCII)
_REDIRECTS = (">", ">>")
_DEFAULT = re.compile(r"\$\{([A-Za-z_]\w*)(:?[-=])(.*)\}", re.DOTALL | re.ASCII)
_PLAIN = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)(?:\[[@*]\])?\})", re.ASCII)
_DECLARE = {"export", "readonly", "local", "declare", "typeset"}


def filled(
    tokens: list[Token], text: str, notes: Notes, variables: dict[str, list[str]] | None = None
) -> list[Token]:
    """A script's tokens with the variables filled in that the script itself sets, or gives a
    default. Nothing is run.

    A value is known where it is written out: `NAME=value`, an array, or a default in
        `${NAME:-default}`. What comes from a command or
    from the caller stays marked. An assignment inside a branch or a loop counts as made.

    Args:
        tokens: of the script, from `lex`.
        text: the script.
        notes: where it is told what was filled in.
        variables: values that are known before, each the words it stands for; added to.
    """
    known: dict[str, list[str]] = {} if variables is None else variables
    result: list[Token] = []
    at, fresh = 0, True
    while at < len(tokens):
        token = tokens[at]
        at += 1
        if token.operator:
            fresh = token.text not in ("<", ">", ">>", "<<<")
            result.append(token)
            continue
        words = _expand(token, text, known, notes)
        if fresh and len(words) == 1 and (match := _ASSIGNMENT.match(words[0])):
            name = match[0][:-1]
            if (
                words[0] == match[0]
                and at < len(tokens)
                and tokens[at].operator
                and tokens[at].text == "("
                and tokens[at].start == token.end
            ):
                values: list[str] = []
                at += 1
                while at < len(tokens) and not (tokens[at].operator and tokens[at].text == ")"):
                    if not tokens[at].operator:
                        values += _expand(tokens[at], text, known, notes)
                    at += 1
                at += 1
                known[name] = values
                end = tokens[min(at, len(tokens)) - 1].end
                result.append(Token(words[0], token.start, end))
                continue
            if passed_on(words[0][len(match[0]) :]) != name:
                known[name] = [words[0][len(match[0]) :]]
        elif token.text not in _DECLARE:
            fresh = False
        result += [Token(word, token.start, token.end) for word in words]
    return result


def _expand(token: Token, text: str, known: dict[str, list[str]], notes: Notes) -> list[str]:
    """The words that a token becomes. Unquoted, a value is split at its blanks, as a shell splits
    it.
    """
    parts = token.text.split("\0")
    if len(parts) == 1:
        return [token.text]
    spelled = text[token.start : token.end]
    alone = len(parts) == 3 and not parts[0] and not parts[2]
    quoted = '"' in spelled
    result = ""
    for index, part in enumerate(parts):
        if index % 2 == 0:
            result += part
            continue
        value = _value_of(part, known, notes)
        if value is not None and "[" not in part:
            value = value[:1] or [""]
        if len(result) + sum(map(len, value or ())) > 100_000:
            raise SparkbookError(
                f"line {line_of(text, token.start)} grows beyond 100 kB when its variables are"
                " filled in"
            )
        if value is None:
            result += f"\0{part}\0"
        elif alone and "[" in part:
            return value
        elif alone and not quoted and re.search(r"\s", value[0]):
            return value[0].split() or [""]
        else:
            result += " ".join(value)
    return [result]


def _value_of(spelled: str, known: dict[str, list[str]], notes: Notes) -> list[str] | None:
    """The words that an expansion stands for, or None where only a shell knows."""
    if spelled == "$HOME":
        return None
    if (match := _PLAIN.fullmatch(spelled)) and (name := match[1] or match[2]) in known:
        notes.add("CONV208", f"${name} was filled in from a line before")
        return known[name]
    if match := _DEFAULT.fullmatch(spelled):
        name, kind, default = match.groups()
        if name in known and (known[name] != [""] or ":" not in kind):
            notes.add("CONV208", f"${name} was filled in from a line before")
            return known[name]
        if not default or is_secret(name):
            return None
        try:
            words = [token.text for token in lex(default) if not token.operator]
        except SparkbookError:
            return None
        value = " ".join(words)
        if "\0" in value.replace(HOME, ""):
            return None
        notes.add("CONV208", f"${name} was given its default", default)
        if "=" in kind:
            known[name] = [value]
        return [value]
    return None


def cut(tokens: list[Token], text: str) -> tuple[list[Token], list[Token]]:
    """One command's words without redirections, and what follows an operator that ends it.

    Raises:
        SparkbookError: a `<`, which most often is a placeholder.
    """
    words: list[Token] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if not token.operator:
            words.append(token)
        elif token.text in _REDIRECTS:
            if words and words[-1].text.isdigit() and words[-1].end == token.start:
                words.pop()
            if at + 1 < len(tokens) and tokens[at + 1].operator and tokens[at + 1].text == "&":
                at += 1
            at += 1
        elif token.text in ("<", "<<<"):
            raise SparkbookError(stray(text, token))
        elif token.body is None:
            return words, tokens[at:]
        at += 1
    return words, []


def _serves(tokens: list[Token]) -> bool:
    """Whether a command starts a server, or a shell or a program that may."""
    words = [token.text for token in tokens if not token.operator]
    while words and (words[0] in ("exec", "env") or _ASSIGNMENT.match(words[0])):
        words.pop(0)
    program = PurePosixPath(words[0]).name if words else ""
    return (
        (program == "vllm" and words[1:2] == ["serve"])
        or (
            program.startswith("python")
            and words[1:2] == ["-m"]
            and words[2:3] != []
            and words[2] in _API_SERVER
        )
        or (program in _SHELLS and any("vllm" in word for word in words[1:]))
    )


def _commands(tokens: list[Token]) -> list[tuple[list[Token], str]]:
    """The commands of a script, each with what separates it from the next: `&&`, `;` or a new line."""
    commands: list[tuple[list[Token], str]] = []
    current: list[Token] = []
    for token in tokens:
        if not token.operator or token.text not in ("&&", ";", "\n"):
            current.append(token)
        elif current and not (token.text == "\n" and current[-1].operator):
            commands.append((current, token.text))
            current = []
        elif token.text != "\n":
            raise SparkbookError(f"a command is missing before {token.text}")
    return [*commands, (current, "")] if current else commands


def stray(text: str, token: Token) -> str:
    """The message for an operator where a launch line should be one command."""
    line = line_of(text, token.start)
    if token.text == "\n":
        return (
            f"line {line} ends the command and more follows: end it with a backslash, or take the"
            " rest away"
        )
    if token.text in "<>":
        return (
            f"{token.text} in line {line} redirects a file; if it is a placeholder, write the"
            " value, else leave it out"
        )
    return f"{token.text} in line {line} joins commands: give the launch line alone"


def read_arguments(reading: Reading, words: list[str]) -> None:
    """Takes the arguments of `vllm serve` by argparse's rules: `--k v`, `--k=v`, `--k v1 v2`, short
    options, underscores for dashes.

    Raises:
        SparkbookError: a word that is neither an option, its value nor the model.
    """
    args: dict[str, Value] = {}
    rest = list(words)
    model = None
    if rest and not _is_option(rest[0]):
        model = rest.pop(0)
    while rest:
        word = rest.pop(0)
        name, inline = _option_of(word)
        values = [inline] if inline is not None else []
        if inline is None:
            while rest and not _is_option(rest[0]):
                values.append(rest.pop(0))
        if (
            model is None
            and values
            and inline is None
            and _SWITCH.fullmatch(name)
            and len(values) == 1
        ):
            model = values.pop()
        if name == "model":
            if len(values) != 1:
                raise SparkbookError("--model takes one model")
            if model is not None:
                reading.notes.add(
                    "CONV207", "the model is given twice: --model was taken, as vLLM takes it"
                )
            model, reading.serve["model_option"] = values[0], True
        elif name == "api-key" and values:
            reading.env["VLLM_API_KEY"] = None
            if passed_on(values[0]) != "VLLM_API_KEY":
                reading.notes.add(
                    "CONV206",
                    "--api-key is a secret and was left out of the recipe",
                    fix="export VLLM_API_KEY instead",
                )
        elif inline == "":
            reading.notes.add("CONV210", f"--{name}= has no value", "left out")
        else:
            value = [_value(text) for text in values] if values else True
            if value == [""]:
                reading.notes.add("CONV210", f"--{name} is given an empty value", "left out")
                continue
            if name in args and name in _REPEATED:
                value = [*_as_list(args[name]), *_as_list(value)]
            elif name in args:
                reading.notes.add(
                    "CONV207", f"--{name} is given twice: the last was taken, as vLLM takes it"
                )
            args[name] = value
    if model is not None:
        reading.serve["model"] = literal(model)
    reading.serve["args"] = args


def _as_list(value: Value) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _value(text: str) -> Value:
    """An argument's value; in JSON each string may begin with the home folder."""
    if text.startswith("{"):
        try:
            return _literal_inside(json.loads(text, strict=False))
        except ValueError:
            pass
    return literal(text)


def _literal_inside(value: Any) -> Any:
    if isinstance(value, dict):
        return {literal(f".{key}")[1:]: _literal_inside(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_literal_inside(item) for item in value]
    return literal(value) if isinstance(value, str) else value


def _option_of(word: str) -> tuple[str, str | None]:
    """Long name of an option, and its value where one is joined to it with `=`."""
    if match := re.fullmatch(r"-O=?(\d)?", word):
        return "optimization-level", match[1]
    match = re.fullmatch(r"(--?)([A-Za-z][\w.-]*\+?)(?:=(.*))?", word, re.DOTALL | re.ASCII)
    if not match or (match[1] == "-" and match[2] not in SHORT_FLAGS):
        raise SparkbookError(f"'{show(word)}' is not an option of vllm serve")
    return (
        option_name(match[2])
        if match[1] == "--" and match[2] not in SHORT_FLAGS
        else SHORT_FLAGS.get(match[2], match[2])
    ), match[3]
