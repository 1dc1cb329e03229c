"""A line with a style, for a terminal and for a pipe: nothing of rich is imported to make one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text


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
