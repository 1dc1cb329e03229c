"""The pages of the codes that a conversion reports."""

from __future__ import annotations

import re

from sparkbook import formats
from sparkbook.formats.conversion import CODES, Code
from sparkbook.rules import section_page

INTRO = (
    "What `sparkbook convert` reports: what the target format cannot contain, what was guessed, and"
    " what was left out. The examples were converted when this page was built."
)
"""First paragraph of the codes' page."""


def page(code: Code) -> str:
    """Return the page of one code: what it means, an input whose report holds it and one whose
    report doesn't, and its source.
    """
    suffix = f", written with `--to {code.to}`" if code.to else ""
    examples = []
    for title, example in (("Reported", code.bad), ("Not reported", code.good)):
        shown = (
            f"```text\n{example}\n```" if re.search(r"\s", example) else f"The recipe `{example}`."
        )
        read = formats.resolve(example)
        entries = [
            *read.findings,
            *(formats.write(read.recipe, code.to).findings if code.to else ()),
        ]
        examples.append((f"{title}{suffix}", shown, entries))
    return section_page(
        code.code, code.name, ("Conversion", code.severity), code.text, examples, code.source
    )


__all__ = ["CODES", "INTRO", "page"]
