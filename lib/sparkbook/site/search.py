"""What the search page needs to recognize a pasted line of a log and the names of flags, rules and
recipes: a script that the page loads (`_static/search.js`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from sparkbook import recipes
from sparkbook.logs.signatures import signatures
from sparkbook.rules import every, plain


def script(flags: Iterable[str], models: Mapping[str, str]) -> str:
    """`_static/signatures.js`: patterns and addresses of all signatures, and the names of
    everything else that has a page.

    Args:
        flags: the flags that have a page.
        models: id and page of each recipe.
    """
    known = [
        {
            "id": signature.code,
            "title": plain(signature.title),
            "fix": plain(signature.fix),
            "address": signature.address,
            "pattern": [in_script(pattern) for pattern in signature.pattern],
            "also": [in_script(pattern) for pattern in signature.also],
            "unless": [in_script(pattern) for pattern in signature.unless],
            "example": signature.fails,
        }
        for signature in signatures()
    ]
    loaded = [(recipes.load(name), page) for name, page in models.items()]
    answers = {
        "signatures": known,
        "flags": sorted(flags),
        "codes": {one.code: [plain(one.heading), one.address] for one in every()},
        "recipes": [
            [recipe.title, page, f"{recipe.id} {recipe.model.repo}"] for recipe, page in loaded
        ],
    }
    data = json.dumps(answers, ensure_ascii=False, separators=(",", ":"))
    return f"window.sparkbookSignatures = {data};\n"


def in_script(pattern: str) -> str:
    """Return a regular expression of Python as JavaScript writes it: named groups are the one
    difference in what the signatures use.
    """
    return re.sub(r"\(\?P<(\w+)>", r"(?:", pattern)
