"""The rules of the linter, one module a family."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping
from typing import cast

from sparkbook.lint.family import LintRule
from sparkbook.lint.rules.env import ENV
from sparkbook.lint.rules.flag import FLAG
from sparkbook.lint.rules.img import IMG
from sparkbook.lint.rules.mem import MEM
from sparkbook.lint.rules.model import MODEL
from sparkbook.lint.rules.quant import QUANT
from sparkbook.lint.rules.run import RUN
from sparkbook.lint.rules.spark import SPARK
from sparkbook.lint.rules.spec import SPEC

FAMILIES = (IMG, FLAG, MODEL, QUANT, SPEC, RUN, ENV, MEM, SPARK)
"""In the order in which findings of one severity are listed: what stops the start at once comes
first.
"""

# A ChainMap iterates over its last map first.
RULES = cast("Mapping[str, LintRule]", ChainMap(*(one.rules for one in reversed(FAMILIES))))
"""Every rule of the linter by its code, in that order."""
