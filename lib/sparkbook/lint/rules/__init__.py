"""The rules of the linter, one module a family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import cast

from sparkbook.lint.family import LintRule
from sparkbook.lint.rules import flag_context as flag_context  # its rules register with FLAG
from sparkbook.lint.rules import run_reach as run_reach  # its rules register with RUN
from sparkbook.lint.rules.bad import BAD
from sparkbook.lint.rules.env import ENV
from sparkbook.lint.rules.flag import FLAG
from sparkbook.lint.rules.img import IMG
from sparkbook.lint.rules.mem import MEM
from sparkbook.lint.rules.model import MODEL
from sparkbook.lint.rules.quant import QUANT
from sparkbook.lint.rules.run import RUN
from sparkbook.lint.rules.spark import SPARK
from sparkbook.lint.rules.spec import SPEC

FAMILIES = (IMG, FLAG, MODEL, QUANT, SPEC, BAD, RUN, ENV, MEM, SPARK)
"""In the order in which findings of one severity are listed: what stops the start at once comes
first.
"""


class _Rules(Mapping[str, LintRule]):
    """The rules by code. A table of rules is read when a rule is first asked for."""

    def __getitem__(self, code: str) -> LintRule:
        for family in FAMILIES:
            if code in family.rules:
                return cast("LintRule", family.rules[code])
        raise KeyError(code)

    def __iter__(self) -> Iterator[str]:
        for family in FAMILIES:
            yield from family.rules

    def __len__(self) -> int:
        return sum(len(family.rules) for family in FAMILIES)


RULES = _Rules()
"""Every rule of the linter by its code, in that order."""


def every() -> Iterator[LintRule]:
    """Yield the rules in the order of `RULES`, without a search for each code."""
    for family in FAMILIES:
        yield from cast("Iterable[LintRule]", family.rules.values())
