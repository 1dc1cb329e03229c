"""Settings of the programs that talk to a server: chat interfaces, coding agents, libraries.

`clients.yaml` has one entry for each, with the address and date of the page that it follows. A
template holds `{{base_url}}` and the like; `Client.blocks` fills them in, quoted for whoever reads
the block. No block holds the API key: each reads it from its file, or says where it goes.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from sparkbook.errors import SparkbookError
from sparkbook.util import own_yaml
from sparkbook.util.shell_text import quote

FILE = Path(__file__).with_name("clients.yaml")
RECORDED = Path(__file__).parent / "recorded" / "prefix.json"
"""How much of each client's prompts the prefix cache had, by `tools/record_clients.py`."""

Syntax = Literal["shell", "json", "yaml", "python", "text"]
_NAME = re.compile(r"\{\{(\w+)\}\}")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What every client needs to know.

    Attributes:
        url: address of the server, without a path.
        model: the served model's name.
        key_file: file that holds the API key where the client runs.
        context: the longest prompt and reply together, in tokens.
    """

    url: str
    model: str
    key_file: str
    context: int = 131072

    def __post_init__(self) -> None:
        """Raises `SparkbookError` for a value that no quoting keeps in its place."""
        for what, text in (("model's name", self.model), ("key file's name", self.key_file)):
            if not text.isprintable() or set(text) & {'"', "'", "\\", "`", "$"}:
                raise SparkbookError(
                    f"the {what} holds a quote, $ or \\, which settings can't hold"
                )

    def values(self) -> dict[str, str | int]:
        """Return the names that a template may hold."""
        parts = urlsplit(self.url)
        return {
            "base_url": f"{self.url}/v1",
            "root_url": self.url,
            "port": parts.port or (443 if parts.scheme == "https" else 80),
            "model": self.model,
            "key_file": self.key_file,
            "context": self.context,
            "output": min(8192, self.context // 4),
        }


@dataclass(frozen=True, kw_only=True)
class Block:
    """A piece of settings.

    Attributes:
        text: what to type, or the file's content.
        syntax: who reads it, which decides how values are quoted; `text`: a person.
        title: what it is for.
        file: the file that it belongs into; None: nothing is written.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    text: str
    syntax: Syntax
    title: str
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class Client:
    """A program, and how it is pointed at a server.

    Attributes:
        name: what the user types.
        title: the program's name.
        api: the path of the server that it uses.
        source, date: the page that the settings follow, and when it was read.
        install: how it is installed; None where every machine has it.
        tried: name and version of the package that the tests run; None: it was not run here.
        templates: its settings.
        tools: whether it does nothing useful without tool calls.
        slash: whether it takes a model's name that has a slash.
        notes: what to know, a sentence or two each.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    name: str
    title: str
    api: str
    source: str
    date: date
    install: str | None = None
    tried: str | None = None
    templates: tuple[Block, ...]
    tools: bool = False
    slash: bool = True
    notes: tuple[str, ...] = ()

    def objections(self, model: str, tools: bool) -> list[str]:
        """Return why it will not work with a server, by its model's name and whether it makes tool
        calls.
        """
        found = []
        if "/" in model and not self.slash:
            found.append(
                f"{self.title} takes no model with a slash in its name, such as {model}: serve it"
                " with another --served-model-name"
            )
        if self.tools and not tools:
            found.append(
                f"{self.title} needs tool calls, and the launch line has no tool parser: choose"
                " another recipe with sparkbook start --use agent"
            )
        return found

    def blocks(self, settings: Settings) -> list[Block]:
        """Return its settings for a server."""
        values = settings.values()
        return [
            Block(
                text=_filled(one.text, values, one.syntax),
                syntax=one.syntax,
                title=one.title,
                file=one.file,
            )
            for one in self.templates
        ]

    def to_dict(self, settings: Settings) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "client": self.name,
            "title": self.title,
            "settings": settings.values(),
            "blocks": [
                {"title": one.title, "file": one.file, "syntax": one.syntax, "text": one.text}
                for one in self.blocks(settings)
            ],
            "install": self.install,
            "tried": self.tried,
            "notes": list(self.notes),
            "source": self.source,
            "date": self.date.isoformat(),
        }


def _filled(template: str, values: dict[str, str | int], syntax: Syntax) -> str:
    """Return a template with its names filled in. In JSON, YAML and Python a name stands between
    double quotes; in a shell it is a word or a part of one.
    """

    def value(match: re.Match[str]) -> str:
        text = str(values[match[1]])
        if syntax == "shell":
            return quote(text)
        return text if syntax == "text" else json.dumps(text)[1:-1]

    return _NAME.sub(value, template)


@functools.cache
def every() -> dict[str, Client]:
    """Return all clients by name, in the order of the file."""
    from pydantic import TypeAdapter

    entries = TypeAdapter(list[Client]).validate_python(own_yaml.read(FILE))
    return {client.name: client for client in entries}


def find(name: str) -> Client:
    """Return a client by its name.

    Raises:
        SparkbookError: there is none.
    """
    if client := every().get(name):
        return client
    raise SparkbookError(f"Unknown client '{name}'. There are: {', '.join(every())}")


def prefix_rows() -> tuple[dict[str, Any], list[str], list[list[Any]]]:
    """Return the record of the prefix cache: where and when it was made, and a table with a row
    for each client. The counters are the engine's own.
    """
    record = json.loads(RECORDED.read_text("utf-8"))
    head = ["client", "requests", "first prompt, tokens", "later prompts, tokens", "from the cache"]
    rows = []
    for name, run in record["clients"].items():
        first, *later = run["turns"]
        asked, hit = (sum(turn[key] for turn in later) for key in ("tokens", "cached"))
        requests = sum(turn["requests"] for turn in run["turns"])
        rows.append([name, requests, f"{first['tokens']:,}", f"{asked:,}", f"{hit / asked:.1%}"])
    return record, head, rows
