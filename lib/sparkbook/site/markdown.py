"""Text for the pages that the build writes."""

from __future__ import annotations

import re

_OPTION_OR_VARIABLE = re.compile(
    r"(?<![\w-])--[a-z][\w-]*(?:\.\w+)*(?!\w)|(?<![\w/.$-])[A-Z][A-Z0-9]*_[A-Z0-9_]+\b"
)


def marked(text: str) -> str:
    """Return a text as Markdown that shows it literally, with options and environment variables
    as code, whether their author marked them or not.
    """
    pieces = text.split("`")
    for i in range(0, len(pieces), 2):
        plain = pieces[i].replace("<", "&lt;").replace("*", "\\*")
        pieces[i] = _OPTION_OR_VARIABLE.sub(r"`\g<0>`", plain)
    return "`".join(pieces)
