"""Lines with a style, for a terminal and for a pipe: nothing of rich is imported to make one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

NARROWEST = 24
"""Columns that a body needs: with fewer, it goes on below its head."""


@dataclass(frozen=True)
class Styled:
    """A line.

    Attributes:
        text: what it says.
        style: rich's, such as `bold` or `dim`.
    """

    text: str
    style: str = ""

    def __str__(self) -> str:
        return self.text

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self.text, self.style)


@dataclass(frozen=True)
class Hanging:
    """A line that a terminal wraps next to its head. A word that is too long, such as an address,
    stays whole: a broken one can't be opened.

    Attributes:
        head: texts with their styles.
        body: what is wrapped. style: its style.
    """

    head: tuple[tuple[str, str], ...]
    body: str
    style: str = ""

    def __str__(self) -> str:
        return "".join(text for text, _ in self.head) + self.body

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        head, room, lines = Text.assemble(*self.head), options.max_width, [self.body]
        indent = head.cell_len if room - head.cell_len >= NARROWEST else 2
        if options.is_terminal:
            lines = _wrapped(self.body, room - indent, head.cell_len - indent)
        body = Text(("\n" + " " * indent).join(lines), self.style)
        yield Text.assemble(head, body, overflow="ignore", no_wrap=True)


def _wrapped(text: str, room: int, used: int) -> list[str]:
    """Wrap a text to a width, whose first line has `used` columns less."""
    wrapper = textwrap.TextWrapper(
        room,
        initial_indent=" " * used,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )
    lines = [line for part in text.splitlines() or [""] for line in wrapper.wrap(part) or [""]]
    return [lines[0][used:], *lines[1:]]
