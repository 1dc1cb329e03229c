"""Text from outside on its way to a terminal: what would move the cursor, change colors or turn the
direction of writing is shown as an escape, and passwords in addresses as `***`.
"""

from __future__ import annotations

import json
import re

from sparkbook.util.secret import without_passwords

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters but tab and line feed, and marks that break or turn the line."""
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


def printable(text: str) -> str:
    r"""Return a text in which each control character is written out, such as `\x1b`."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], without_passwords(text))


def printable_json(text: str) -> str:
    """Return the same JSON with each control character written as JSON writes it."""
    return CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], without_passwords(text))


def without_colors(text: str) -> str:
    """Return what a program printed without its colors, and with plain line ends."""
    return _COLORS.sub("", text).replace("\r\n", "\n")
