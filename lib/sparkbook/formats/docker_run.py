"""The `docker run` line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkbook.errors import SparkbookError
from sparkbook.formats.lexer import check_writable, lex, line_of, literal, mark_home, quote, show
from sparkbook.formats.words import Group, Reading, container_words, read_words, render, set_env, stray
from sparkbook.recipes.launch import Launch

_WIDTH = 100

# docker's option: the container's field that it fills
_FIELDS = {
    "name": "name", "gpus": "gpus", "runtime": "runtime", "ipc": "ipc", "shm-size": "shm_size", "network": "network", "net": "network",
    "restart": "restart", "user": "user",
}  # fmt: skip
_LISTS = {"publish": "ports", "volume": "volumes"}
_SHORT = {"e": "env", "v": "volume", "p": "publish", "u": "user", "d": "detach", "i": "interactive", "t": "tty"}
_SWITCHES = {"detach", "rm", "interactive", "tty"}
"""How the container is attached and whether it is kept: choices of the moment and no part of a launch."""


def write(launch: Launch) -> str:
    """The `docker run` line, over several lines, for bash.

    The home folder is left to the shell (`~/vllm`), a variable that is null is passed on (`-e HF_TOKEN`).

    Raises:
        SparkbookError: the launch has no image, or asks for something that docker cannot be told.
    """
    entry, words = container_words(launch)
    assert launch.image is not None
    head = "docker run -d" + (f" --name {quote(launch.container.name)}" if launch.container.name else "")
    options = [*_packed(_options(launch, entry)), *(f"-v {quote(mark_home(volume))}" for volume in launch.container.volumes)]
    for name, value in launch.env.items():
        options.append(f"-e {name}" if value is None else f"-e {name}={quote(mark_home(value), tilde=False)}")
    lines = [head, *options, quote(launch.image), *([render(words, indent="    ")] if words else [])]
    return " \\\n  ".join(lines) + "\n"


def _options(launch: Launch, entry: str | None) -> Iterator[str]:
    container = launch.container
    gpus = f'"{container.gpus}"' if container.gpus and "," in container.gpus else container.gpus
    for option, value in (("gpus", gpus), ("runtime", container.runtime), ("ipc", container.ipc), ("shm-size", container.shm_size),
                          ("network", container.network), ("restart", container.restart), ("user", container.user),
                          ("entrypoint", entry)):  # fmt: skip
        if value is not None:
            yield f"--{option} {quote(mark_home(value))}"
    for name, limit in container.ulimits.items():
        yield f"--ulimit {quote(f'{name}={limit}')}"
    for port in container.ports:
        yield f"-p {quote(port)}"


def _packed(options: Iterator[str]) -> list[str]:
    """Options on as few lines as the width allows."""
    lines: list[str] = []
    for option in options:
        if lines and len(lines[-1]) + len(option) + 5 <= _WIDTH:
            lines[-1] += f" {option}"
        else:
            lines.append(option)
    return lines


def read(text: str) -> Launch:
    """The launch that a `docker run` line describes. Nothing is executed or expanded.

    Raises:
        SparkbookError: the text is no single `docker run` line, or holds an option or a value that a launch cannot keep.
    """
    check_writable(text)
    tokens = lex(text)
    while tokens and tokens[0].operator and tokens[0].text == "\n":
        tokens.pop(0)
    while tokens and tokens[-1].operator and tokens[-1].text in ("\n", ";"):
        tokens.pop()
    if bad := next((token for token in tokens if token.operator), None):
        raise SparkbookError(stray(text, bad))
    words = [token.text for token in tokens]
    if words[:1] == ["sudo"]:
        words = words[1:]
    for start in (["docker", "run"], ["docker", "container", "run"]):
        if words[: len(start)] == start:
            return _read_run(words[len(start) :])
    where = f" in line {line_of(text, tokens[0].start)}" if tokens else ""
    raise SparkbookError(f"expected docker run …, found '{show(' '.join(words[:3])) or 'nothing'}'{where}")


def _read_run(words: Group) -> Launch:
    reading = Reading()
    entry = None
    rest = list(words)
    while rest and rest[0].startswith("-"):
        for option, value in _split(rest):
            if option == "env":
                set_env(reading, value)
            elif option == "entrypoint":
                entry = literal(value)
            elif option == "ulimit":
                name, _, limit = literal(value).partition("=")
                reading.container.setdefault("ulimits", {})[name] = limit
            elif option in _LISTS:
                reading.container.setdefault(_LISTS[option], []).append(literal(value))
            elif option == "gpus":
                # docker reads this value as CSV, so a list of devices stands in double quotes of its own.
                reading.container["gpus"] = re.sub(r'^"(.*)"$', r"\1", literal(value))
            else:
                reading.container[_FIELDS[option]] = literal(value)
    if not rest:
        raise SparkbookError("docker run: the image is missing")
    reading.image = literal(rest[0])
    read_words(reading, rest[1:], entry)
    return reading.launch()


def _split(rest: Group) -> Iterator[tuple[str, str]]:
    """Takes the next option off the words, with its value; switches, which a launch does not keep, yield nothing.

    Raises:
        SparkbookError: an option that a launch cannot keep, or one without its value.
    """
    word = rest.pop(0)
    if word.startswith("--"):
        option, joined, value = word[2:].partition("=")
        spelled = f"--{option}"
    else:
        letters = word[1:]
        while letters and _SHORT.get(letters[0]) in _SWITCHES:
            letters = letters[1:]
        if not letters and len(word) > 1:
            return
        option, value = _SHORT.get(letters[:1], ""), letters[1:].removeprefix("=")
        joined, spelled = value, f"-{letters[:1]}"
    if option in _SWITCHES:
        return
    if option not in {"env", "entrypoint", "ulimit", *_LISTS, *_FIELDS}:
        raise SparkbookError(f"docker's option {show(spelled)} is not one that a recipe can keep: take it out")
    if not joined:
        if not rest:
            raise SparkbookError(f"docker's option {spelled} lacks its value")
        value = rest.pop(0)
    yield option, value
