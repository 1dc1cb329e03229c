"""The rules, one module a family, in the order in which findings of one severity are told: what
stops the start at once comes first.
"""

from __future__ import annotations

import importlib

_MODULES = ("img", "flag", "model", "quant", "spec", "run", "env", "mem", "spark")


def load() -> None:
    """Imports every module of rules, which registers them in `sparkbook.lint.rule.RULES`."""
    for name in _MODULES:
        importlib.import_module(f"sparkbook.lint.rules.{name}")
