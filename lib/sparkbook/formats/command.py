"""The command inside another tool's recipe: a shell text with placeholders, an image, an
environment.

eugr, sparkrun and spark-pulse share it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.formats.conversion import Notes
from sparkbook.formats.reading import Reading
from sparkbook.formats.words import before_commands, serve_groups
from sparkbook.launch.server import run_in
from sparkbook.recipes.launch import Launch
from sparkbook.util.documents import mapping, scalar
from sparkbook.util.secret import is_secret
from sparkbook.util.shell_text import mark_home, quote

PARAMETERS = {
    "port": "port",
    "host": "host",
    "tensor-parallel-size": "tensor_parallel",
    "pipeline-parallel-size": "pipeline_parallel",
    "gpu-memory-utilization": "gpu_memory_utilization",
    "max-model-len": "max_model_len",
    "max-num-seqs": "max_num_seqs",
    "max-num-batched-tokens": "max_num_batched_tokens",
    "block-size": "block_size",
}
"""Options of `vllm serve` whose values these tools keep apart, under a name of their own, so that
their users can override them.
"""


def serve_command(
    launch: Launch, parameters: bool = False, doubled: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the command that serves, as one shell text, and the parameters that it names.

    Args:
        launch: what is started.
        parameters: whether to put placeholders for the options of `PARAMETERS`.
        doubled: whether a brace that is no placeholder is doubled.

    Raises:
        SparkbookError: no command line can say what is asked for.
    """
    serve = launch.serve
    if serve.command is not None or launch.entrypoint == "wrapper":
        text = " ".join(_quoted(mark_home(word)) for word in serve.command or [])
        return (text.replace("{", "{{").replace("}", "}}") if doubled else text), {}
    groups = serve_groups(serve)
    first = ["vllm", "serve"]
    if groups and not groups[0][0].startswith("--"):
        first += groups.pop(0)
    before = before_commands(serve)
    whole = " ".join([*before, *(word for group in groups for word in group)])
    defaults: dict[str, Any] = {}

    def shown(word: str) -> str:
        return _doubled(_quoted(word)) if doubled else _quoted(word)

    lines = []
    for group in [first, *groups]:
        option = group[0].removeprefix("--")
        name = (
            PARAMETERS.get(option)
            if parameters and len(group) == 2 and re.fullmatch(r"[\w.:/-]+", group[1], re.ASCII)
            else None
        )
        if name and f"{{{name}}}" not in whole:
            defaults[name] = serve.args[option]
            lines.append(f"{group[0]} {{{name}}}")
        else:
            lines.append(" ".join(shown(word) for word in group))
    commands = [_doubled(command) if doubled else command for command in before]
    return (
        "".join(f"{command} &&\n" for command in commands) + " \\\n  ".join(lines) + "\n",
        defaults,
    )


_quoted = partial(quote, reader="script")
"""What stands in a file is typed by nobody, and some shell or program reads it."""


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def fill(text: str, defaults: Mapping[str, Any], notes: Notes, doubled: bool) -> str:
    """Return the command with its placeholders filled in. One without a value stays, with a note.

    Args:
        text: the template.
        defaults: values by name.
        notes: receives the open ones.
        doubled: whether the template is one of Python's `str.format`, in which a brace of its own
            is doubled.

    Raises:
        SparkbookError: a single brace in a template of `str.format`.
    """

    def value(match: re.Match[str]) -> str:
        if match[0] in ("{{", "}}"):
            return match[0][0]
        name = match[1]
        if name is None:
            near = text[max(0, match.start() - 15) : match.start() + 15]
            raise SparkbookError(
                f"the command holds a single {match[0]} near {near!r}: double it, or name a"
                " placeholder in it"
            )
        if (
            name in defaults
            and not isinstance(defaults[name], dict | list)
            and defaults[name] is not None
        ):
            return scalar(defaults[name], name)
        notes.add(
            "CONV204",
            f"{{{name}}} has no value in defaults and stays as it is.",
            fix=f"Give {name} a default.",
        )
        return match[0]

    pattern = r"\{\{|\}\}|\{([A-Za-z_]\w*)\}|[{}]" if doubled else r"\{([A-Za-z_]\w*)\}"
    return re.sub(pattern, value, text, flags=re.ASCII)


def read_command(reading: Reading, image: str | None, text: str) -> None:
    """Take an image and the command that is run in it.

    Raises:
        SparkbookError: it serves nothing.
    """
    reading.take(run_in(image, text))


def read_env(reading: Reading, value: Any, place: str) -> None:
    """Take the variables of a mapping; a secret is left out.

    Raises:
        SparkbookError: it is no mapping of scalars.
    """
    for name, item in mapping(value, place).items():
        if item is None:
            reading.env[name] = None
            continue
        text = scalar(item, f"{place}.{name}")
        passed = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", text, re.ASCII)
        if is_secret(name, text) or (passed and passed[1] == name):
            reading.env[name] = None
            if not passed:
                reading.notes.add(
                    "CONV206",
                    f"The value of {name} is a secret and was left out.",
                    fix=f"Export {quote(name)} before you start the server.",
                )
        else:
            reading.env[name] = text


def host_container(reading: Reading, who: str, **fields: str | list[str]) -> None:
    """Fill in what a tool adds to its containers by itself, where the recipe says nothing, and
    remembers that it is a guess.
    """
    for name, value in fields.items():
        if name not in reading.container and not (
            name == "network" and reading.container.get("ports")
        ):
            reading.container[name] = value
            reading.notes.guess(f"container.{name}", f"{value}, which {who} sets")


def stated_env(env: Mapping[str, str | None]) -> dict[str, str]:
    """Return the variables that have a value: these formats cannot pass one on."""
    return {name: value for name, value in env.items() if value is not None}


def image_of(launch: Launch, title: str) -> str:
    """Return the image.

    Raises:
        SparkbookError: there is none.
    """
    if launch.image is None:
        raise SparkbookError(
            f"this launch has no image, it runs as a process: a {title} needs one; write it as"
            " shell"
        )
    return launch.image
