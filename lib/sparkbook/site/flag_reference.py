"""The options that matter on a Spark: when each was there, its default, what it costs, and the
rules that watch it.

Lives and defaults come out of the releases table, the rules out of the rules themselves; only what
an option does and costs is written by hand (`book/data/flags.yaml`).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from sparkbook import releases
from sparkbook.lint import RULES
from sparkbook.releases import changelog
from sparkbook.site import book_data


@dataclass(frozen=True)
class Text:
    """What is written about an option.

    Attributes:
        means: what it does, a sentence.
        costs: what it does to memory and speed on a Spark; None for an option that the flag
            reference leaves out.
    """

    means: str
    costs: str | None = None


TEXTS = book_data.load("flags", dict[str, Text])
"""Option without dashes: what is written about it, in the order of the reference."""


@dataclass(frozen=True)
class ReferenceRow:
    """One option, as the flag reference shows it.

    Attributes:
        name: long name without dashes.
        life: when it was there.
        default: its default in the release asked for, in words; None where that release does not
            have it, or has none.
        cost: what it costs on a Spark.
        rules: codes of the rules that watch it.
    """

    name: str
    life: str
    default: str | None
    cost: str
    rules: tuple[str, ...]


def flags(release: str) -> list[ReferenceRow]:
    """Return the options that matter on a Spark.

    Raises:
        ReleaseError: the table does not know the release.
    """
    known = releases.get(release)
    return [
        ReferenceRow(
            name,
            releases.said(releases.presence("options", name)),
            _default(known, name),
            text.costs,
            watching(name),
        )
        for name, text in TEXTS.items()
        if text.costs
    ]


def _default(release: releases.Release, name: str) -> str | None:
    if name not in release.options:
        return None
    default = release.options[name].default
    if default is None or isinstance(default, dict) or default == "":
        return "chosen at start" if release.options[name].optional or default is None else "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def watching(name: str) -> tuple[str, ...]:
    """Return the codes of the rules whose text or failing example names an option."""
    spelled = re.compile(rf"--(no-)?{re.escape(name)}(?![\w-])")
    return tuple(
        code
        for code, rule in RULES.items()
        if spelled.search(rule.text) or spelled.search(rule.fails) or spelled.search(rule.passes)
    )


def history(name: str) -> list[tuple[str, str]]:
    """List an option's changes by release: `("0.20.0", "default 0.9, now 0.92")`."""
    changes = []
    for before, after in itertools.pairwise(releases.lives("options", name)):
        change = releases.Change("options", name, "changed", before.value, after.value)
        changes.append((after.since, changelog.explain(change).partition(": ")[2]))
    return changes
