"""The bare `vllm serve` line: the same start without a container."""

from __future__ import annotations

from sparkbook.errors import SparkbookError
from sparkbook.formats.lexer import check_writable, mark_home, quote
from sparkbook.formats.words import Reading, before_commands, read_script, render, serve_groups
from sparkbook.recipes.launch import Launch


def write(launch: Launch) -> str:
    """The `vllm serve` line that starts the same server on the host, for bash: `launch.on_host()` is what it says.

    Raises:
        SparkbookError: the launch belongs to an image with a script of its own, which there is none of on the host.
    """
    if launch.entrypoint == "wrapper" or launch.serve.command is not None:
        raise SparkbookError(
            f"{launch.image or 'this launch'} starts a script of its own, which only its image holds: there is no bare vllm serve line; "
            "write it as docker or compose"
        )
    launch = launch.on_host()
    assignments = [f"{name}={quote(mark_home(value))}" for name, value in launch.env.items() if value is not None]
    groups = serve_groups(launch.serve)
    first = ["vllm", "serve", *(groups.pop(0) if groups and not groups[0][0].startswith("--") else [])]
    lines = [*assignments, render([first, *groups])]
    return "".join(f"{command} &&\n" for command in before_commands(launch.serve)) + " \\\n".join(lines) + "\n"


def read(text: str) -> Launch:
    """The launch that a `vllm serve` line describes, with commands before it joined by `&&`. Nothing is executed or expanded.

    Raises:
        SparkbookError: the text does not end in `vllm serve`, or holds something that only a shell can fill in.
    """
    check_writable(text)
    reading = Reading()
    read_script(reading, text, outer=True)
    return reading.launch()
