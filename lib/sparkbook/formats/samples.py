"""The examples of a conversion's rules: how a page shows one, and what the report contains."""

from __future__ import annotations

import re

from sparkbook import formats
from sparkbook.findings import Finding
from sparkbook.formats.rules import Example
from sparkbook.util.markup import fenced


def show(example: Example) -> str:
    """Return an example as Markdown."""
    text = (
        fenced(example.text) if re.search(r"\s", example.text) else f"The recipe `{example.text}`."
    )
    return f"{text}\n\nWritten with `--to {example.to}`." if example.to else text


def examine(example: Example) -> list[Finding]:
    """Return what the report of an example contains."""
    read = formats.resolve(example.text)
    written = formats.write(read.recipe, example.to).findings if example.to else ()
    return [*read.findings, *written]
