"""The `docker run` line, alone or in a shell script around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from sparkbook.errors import SparkbookError
from sparkbook.formats.conversion import Notes
from sparkbook.formats.reading import first_launch
from sparkbook.formats.words import container_words, render
from sparkbook.launch.docker import SWITCHES
from sparkbook.launch.reader import read_script
from sparkbook.recipes.launch import DOCKER_OPTION, Launch
from sparkbook.util.shell_text import assignment, command_line, mark_home, quote

_WIDTH = 100


def write(launch: Launch, foreign: dict[str, list[str]] | None = None) -> str:
    """Return the `docker run` line, over several lines, for bash.

    Args:
        launch: what is started.
        foreign: docker's options that a launch does not hold, as `read` kept them.

    The home folder is left to the shell (`~/vllm`), a variable that is null is passed on
    (`-e HF_TOKEN`).

    Raises:
        SparkbookError: no image, or a request that no option of docker says.
    """
    entry, words = container_words(launch)
    assert launch.image is not None
    named = ["--name", launch.container.name] if launch.container.name else []
    options = _packed([*_options(launch, entry), *_foreign(foreign or {})])
    options += [command_line("-v", mark_home(volume)) for volume in launch.container.volumes]
    for name, value in launch.env.items():
        options.append(
            "-e " + (quote(name) if value is None else assignment(name, value, tilde=False))
        )
    lines = [command_line("docker", "run", "-d", *named), *options, quote(launch.image)]
    if words:
        # Among them may be a script, whose lines stay lines.
        lines.append(render(words, partial(quote, reader="lines"), indent="    "))
    return " \\\n  ".join(lines) + "\n"


def _foreign(foreign: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield docker's options that a launch does not hold, each use on its own."""
    for option, values in foreign.items():
        if not DOCKER_OPTION.fullmatch(option):
            raise SparkbookError(f"foreign.docker: {option!r} is not the name of an option")
        for value in values:
            yield option + _joined(option, value)


def _options(launch: Launch, entry: str | None) -> Iterator[str]:
    container = launch.container
    gpus = f'"{container.gpus}"' if container.gpus and "," in container.gpus else container.gpus
    for option, value in (
        ("gpus", gpus),
        ("runtime", container.runtime),
        ("ipc", container.ipc),
        ("shm-size", container.shm_size),
        ("network", container.network),
        ("restart", container.restart),
        ("user", container.user),
        ("entrypoint", entry),
    ):
        if value is not None:
            yield command_line(f"--{option}", mark_home(value))
    for name, limit in container.ulimits.items():
        yield command_line("--ulimit", f"{name}={limit}")
    for port in container.ports:
        yield command_line("-p", port)


def _packed(options: list[str]) -> list[str]:
    """Return options on as few lines as the width allows."""
    lines: list[str] = []
    for option in options:
        if lines and len(lines[-1]) + len(option) + 5 <= _WIDTH:
            lines[-1] += f" {option}"
        else:
            lines.append(option)
    return lines


def _joined(option: str, value: str) -> str:
    """Return an option's value with what joins it: a switch takes its value after `=`."""
    if value == "":
        return ""
    joint = "=" if option[2:] in SWITCHES else " "
    return f"{joint}{quote(mark_home(value), tilde=joint == ' ')}"


def read(text: str, notes: Notes | None = None) -> Launch:
    """Return the launch that a `docker run` line describes, alone or in a script. Nothing is
    executed; variables come from the text alone.

    Raises:
        SparkbookError: the text starts no container, or one that cannot be read.
    """
    line = read_script(text)
    if line.image is None:
        raise SparkbookError("this text starts a server without a container: expected docker run …")
    return first_launch(line, notes if notes is not None else Notes())
