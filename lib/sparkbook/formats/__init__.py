"""Writers and readers of launches: one module a format, each with `write(launch) -> str` and `read(text) -> Launch`.

    >>> from sparkbook import formats, recipes
    >>> launch = recipes.load("gpt-oss-120b").launch
    >>> formats.FORMATS["docker"].read(formats.FORMATS["docker"].write(launch)) == launch
    True
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparkbook.formats import compose, docker_run, shell
from sparkbook.recipes.launch import Launch


@dataclass(frozen=True)
class Format:
    """One way to write a launch down.

    Attributes:
        name: what `--as` and `--to` call it.
        title: what it is, for people.
        write: the text; a `SparkbookError` where the format cannot say what the launch asks for.
        read: the launch; a `SparkbookError` where the text is not one, or holds what a launch cannot keep.
    """

    name: str
    title: str
    write: Callable[[Launch], str]
    read: Callable[[str], Launch]


FORMATS: dict[str, Format] = {
    format.name: format
    for format in (
        Format("docker", "docker run line", docker_run.write, docker_run.read),
        Format("compose", "compose file", compose.write, compose.read),
        Format("shell", "vllm serve line, without a container", shell.write, shell.read),
    )
}

__all__ = ["FORMATS", "Format"]
