"""The bare `vllm serve` line: the same start without a container."""

from __future__ import annotations

from sparkbook.errors import SparkbookError
from sparkbook.formats.conversion import Notes
from sparkbook.formats.reading import first_launch
from sparkbook.formats.words import before_commands, render, serve_groups
from sparkbook.launch.reader import read_script
from sparkbook.recipes.launch import Launch
from sparkbook.util.shell_text import assignment


def write(launch: Launch) -> str:
    """Return the `vllm serve` line that starts the same server on the host, for bash:
    `launch.on_host()` is what it says.

    Raises:
        SparkbookError: the launch belongs to an image with a script of its own, which there is none
            of on the host.
    """
    if launch.entrypoint == "wrapper" or launch.serve.command is not None:
        raise SparkbookError(
            f"{launch.image or 'this launch'} starts a script of its own, which only its image"
            " holds: there is no bare vllm serve line; write it as docker or compose"
        )
    launch = launch.on_host()
    assignments = [
        assignment(name, value) for name, value in launch.env.items() if value is not None
    ]
    groups = serve_groups(launch.serve)
    first = [
        "vllm",
        "serve",
        *(groups.pop(0) if groups and not groups[0][0].startswith("--") else []),
    ]
    lines = [*assignments, render([first, *groups])]
    return (
        "".join(f"{command} &&\n" for command in before_commands(launch.serve))
        + " \\\n".join(lines)
        + "\n"
    )


def read(text: str, notes: Notes | None = None) -> Launch:
    """Return the launch that a `vllm serve` or `python -m` line describes, with the commands before
    it. Nothing is executed.

    Raises:
        SparkbookError: nothing in the text serves, or it holds something that only a shell can
            fill in.
    """
    line = read_script(text)
    if line.image is not None:
        raise SparkbookError("this text starts a container: expected vllm serve …")
    return first_launch(line, notes if notes is not None else Notes())
