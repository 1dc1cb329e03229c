"""The claims register as it is kept: one file a document in `book/claims/`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

import yaml

from sparkbook.errors import SparkbookError
from sparkbook.register.claim_model import VERDICTS, Claim, Figure, Register, Verdict
from sparkbook.runner.project import here
from sparkbook.util import own_yaml

FOLDER = "book/claims"
PAGE = "generated/claims"
"""The register's page on the site, without its ending."""


@functools.cache
def registers(folder: Path | None = None) -> dict[str, Register]:
    """Return every file of the register by its name, read once.

    Raises:
        SparkbookError: a file is not in order, or an id stands twice.
    """
    if folder is None:
        folder = here().root / FOLDER
    found: dict[str, Register] = {}
    files: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            found[path.stem] = Register.model_validate(own_yaml.read(path))
        except (yaml.YAMLError, ValueError) as error:
            raise SparkbookError(f"{FOLDER}/{path.name}: {error}") from None
        for claim in found[path.stem].claims:
            if claim.id in files:
                raise SparkbookError(
                    f"{FOLDER}/{path.name}: {claim.id} is also in {files[claim.id]}"
                )
            files[claim.id] = path.name
    return found


def every() -> list[Claim]:
    """Return every claim, document by document."""
    return [claim for register in registers().values() for claim in register.claims]


def get(name: str) -> Claim:
    """Return the claim with this id.

    Raises:
        SparkbookError: there is none.
    """
    if name in (known := _by_id()):
        return known[name]
    raise SparkbookError(f"no claim is called '{name}': the ids are in {FOLDER}/")


@functools.cache
def _by_id() -> dict[str, Claim]:
    return {claim.id: claim for claim in every()}


def figure(name: str, which: str | None = None) -> Figure:
    """Return a claim's figure, for a chapter to draw; `which` names one of several.

    Raises:
        SparkbookError: there is no such claim, or no such figure.
    """
    claim = get(name)
    if which is None:
        return claim.figure
    for one in claim.figures:
        if one.name == which:
            return one
    raise SparkbookError(
        f"claim {name} has no figure '{which}'; it has"
        f" {', '.join(one.name for one in claim.figures)}"
    )


def counts(claims: Iterable[Claim]) -> dict[Verdict, int]:
    """Return how many claims have which verdict."""
    kept = list(claims)
    return {verdict: sum(1 for claim in kept if claim.verdict == verdict) for verdict in VERDICTS}


def document(claim: Claim) -> str:
    """Return the document that a claim is from, as the outline calls it; the forum's thread shares
    a file with a README.
    """
    if claim.source.title.startswith("NVIDIA forum"):
        return "thread"
    return next(name for name, register in registers().items() if register.source == claim.source)
