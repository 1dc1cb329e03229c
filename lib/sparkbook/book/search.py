"""What the search page needs to recognize a pasted line of a log: the signatures, as a script that the page loads (`_static/search.js`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable


def script(flags: Iterable[str]) -> str:
    """`_static/signatures.js`: patterns and addresses of all signatures, and the names of the flags that have a page."""
    from sparkbook.logs.signatures import signatures

    known = [
        {
            "id": signature.id,
            "title": _plain(signature.title),
            "fix": _plain(signature.fix),
            "address": signature.address,
            "pattern": [in_script(pattern) for pattern in signature.pattern],
            "also": [in_script(pattern) for pattern in signature.also],
            "unless": [in_script(pattern) for pattern in signature.unless],
            "example": signature.example,
        }
        for signature in signatures()
    ]
    data = json.dumps({"signatures": known, "flags": sorted(flags)}, ensure_ascii=False, separators=(",", ":"))
    return f"window.sparkbookSignatures = {data};\n"


def in_script(pattern: str) -> str:
    """A regular expression of Python as JavaScript writes it: named groups are the one difference in what the signatures use."""
    return re.sub(r"\(\?P<(\w+)>", r"(?:", pattern)


def _plain(text: str) -> str:
    return re.sub(r"\{([a-z_0-9]+)\}", "…", text)
