"""Texts of the project as HTML and Markdown."""

from __future__ import annotations

import html
import re

_CODE = re.compile(r"`([^`]+)`")
_FIELD = re.compile(r"\{[a-z_0-9]+\}")
_ADDRESS = re.compile(r"https://[^\s)]+[^\s).,;:]")


def code(text: str) -> str:
    """Return a text as HTML: escaped, with `code` in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", html.escape(text))


def linked(text: str) -> str:
    """Return a text as `code` does, with its addresses as links."""
    return _ADDRESS.sub(
        lambda match: f'<a href="{match[0]}">{match[0].removeprefix("https://")}</a>', code(text)
    )


def literal(text: str) -> str:
    """Return a text for Markdown in which nothing is markup, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>&|$~#!^])", r"\\\1", " ".join(text.split()))


def fence(text: str, character: str = "`", least: int = 3) -> str:
    """Return a fence that no line of a text can close: longer than every run of its character."""
    runs = re.findall(f"{re.escape(character)}+", text)
    return character * max(least, 1 + max(map(len, runs), default=0))


def fenced(text: str, language: str = "text") -> str:
    """Return a text as a code block of Markdown, whatever the text holds."""
    body = text.strip()
    marks = fence(body)
    return f"{marks}{language}\n{body}\n{marks}"


def directive(name: str, argument: str, body: str) -> str:
    """Return a MyST directive around Markdown, whatever the Markdown holds."""
    marks = fence(body, ":")
    return f"{marks}{{{name}}} {' '.join(argument.split())}".rstrip() + f"\n{body}\n{marks}"


def cell(text: object) -> str:
    """Return a text for a cell of a Markdown table; a bar would end the cell, also inside code."""
    return str(text).replace("|", "\\|").replace("\n", " ")


def without_fields(text: str) -> str:
    """Return a template for readers: `…` in the place of each `{name}`, which a log would fill."""
    return _FIELD.sub("…", text)


def capital(text: str) -> str:
    """Return a text as the start of a sentence; a name such as vLLM or cuBLAS stays as it is."""
    word = re.match(r"[a-z]+(?![\w-])", text)
    return text[:1].upper() + text[1:] if word else text
