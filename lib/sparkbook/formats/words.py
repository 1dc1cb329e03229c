"""The words of `vllm serve`, and the words after a container's image, written from a launch."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from sparkbook.errors import SparkbookError
from sparkbook.launch.arguments import is_option
from sparkbook.launch.lexer import lex
from sparkbook.launch.line import Word
from sparkbook.launch.server import SHELLS
from sparkbook.util.shell_text import HOME, check_writable, mark_home, quote, quote_inside
from sparkbook.util.texts import each_text

if TYPE_CHECKING:
    from sparkbook.recipes.launch import Launch, Serve, Value

# Words that belong together and should stay on one line: an option and its value.
Group = list[str]

REPEATED = {"middleware"}
"""Options that vLLM collects from several uses, where any other option's last use wins."""


def value_words(value: Value) -> list[str]:
    """Return the words after an option for this value, the home folder marked; none for a bare
    flag.

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
                    each_text(value, mark_home),
                    ensure_ascii=False,
                    separators=(",", ":"),
                    allow_nan=False,
                ).replace(_JSON_HOME, HOME)
            ]
        except (TypeError, ValueError) as error:
            raise SparkbookError(f"{value!r} cannot be written as JSON: {error}") from None
    return [mark_home(str(value))]


_JSON_HOME = json.dumps(HOME)[1:-1]


def serve_groups(serve: Serve) -> list[Group]:
    """Return the arguments of `vllm serve`: the model, then each option with its value, in the
    recipe's order.

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
        if isinstance(value, list) and name in REPEATED:
            groups += [_option(name, [word]) for word in words]
        else:
            groups.append(_option(name, words))
    return groups


def _option(name: str, words: list[str]) -> Group:
    if len(words) == 1 and is_option(Word(words[0])):
        return [f"--{name}={words[0]}"]
    for word in words:
        if is_option(Word(word)):
            raise SparkbookError(
                f"--{name}: '{word}' in a list would be read as an option of its own: no command"
                " line can say this"
            )
    return [f"--{name}", *words]


def container_words(launch: Launch) -> tuple[str | None, list[Group]]:
    """Return the entry point to set, if any, and the words after the image.

    An image that starts `vllm serve` by itself is not given those two words again; commands to run
    before need a shell instead of it.

    Raises:
        SparkbookError: no image, or the launch asks for something that the image's own script does
            not take.
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
        if entry in SHELLS:
            return container.entrypoint, [["-lc", script]]
        if entry:
            raise SparkbookError(
                "serve.before needs a shell: set container.entrypoint to bash, or drop it (it is"
                f" {container.entrypoint})"
            )
        return container.entrypoint, [["bash", "-lc", script]]
    groups = serve_groups(serve)
    if entry in SHELLS:
        return container.entrypoint, [["-lc", serve_script(serve)]]
    if entry == "vllm":
        return container.entrypoint, _prefixed(["serve"], groups)
    if entry is None and launch.entrypoint == "vllm-serve":
        return None, groups
    return container.entrypoint, _prefixed(["vllm", "serve"], groups)


def check_image(image: str) -> None:
    """Refuse what cannot be the name of an image.

    Raises:
        SparkbookError: it is none.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:/@-]*", image):
        raise SparkbookError(
            f"'{image}' is not the name of an image, such as vllm/vllm-openai:v0.19.0"
        )


def _prefixed(words: list[str], groups: list[Group]) -> list[Group]:
    """Return the groups with the command before the model, where the model is the first word."""
    if groups and not groups[0][0].startswith("--"):
        return [[*words, *groups[0]], *groups[1:]]
    return [words, *groups]


def serve_script(serve: Serve) -> str:
    """Return a shell script that runs the commands of `serve.before` and then becomes the server,
    so that signals reach it.
    """
    # The home folder stays marked: it is the caller's, and the caller's shell has to fill it in.
    served = _prefixed(["exec", "vllm", "serve"], serve_groups(serve))
    return " &&\n".join([*before_commands(serve), render(served, quote_inside)])


def before_commands(serve: Serve) -> list[str]:
    """Return the commands of `serve.before`, each of which must be one complete shell command.

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
    """Return groups of words as one command over several lines, each group on its own."""
    return f" \\\n{indent}".join(" ".join(quoted(word) for word in group) for group in groups)
