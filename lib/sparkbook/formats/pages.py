"""The pages of the codes that a conversion reports."""

from __future__ import annotations

import re

from sparkbook import formats
from sparkbook.formats.conversion import CODES, Code
from sparkbook.rules import section_page

INTRO = (
    "What `sparkbook convert` tells of a conversion: what the target can't say, what was guessed,"
    " what was left out. Each example was converted when this page was built; what is shown is what"
    " the report said."
)
"""First paragraph of the codes' page."""


def page(code: Code) -> str:
    """The page of one code: what it means, an input whose report holds it and one whose report
    doesn't, and its source.
    """
    told = f", written with `--to {code.to}`" if code.to else ""
    examples = []
    for title, example in (("Reported", code.bad), ("Not reported", code.good)):
        shown = (
            f"```text\n{example}\n```" if re.search(r"\s", example) else f"The recipe `{example}`."
        )
        read = formats.resolve(example)
        found = [*read.findings, *(formats.write(read.recipe, code.to).findings if code.to else ())]
        examples.append((f"{title}{told}", shown, found))
    return section_page(
        code.code, code.name, ("Conversion", code.severity), code.text, examples, code.source
    )


__all__ = ["CODES", "INTRO", "page"]
