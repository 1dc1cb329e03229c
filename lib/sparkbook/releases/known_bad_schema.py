"""The form of `known_bad.yaml`: checks an entry, and gives the JSON Schema of the table. A command
that judges a launch line reads the table without it.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sparkbook import rules
from sparkbook.errors import SparkbookError
from sparkbook.releases.known_bad import VERSION_CONDITION, Combination, combination
from sparkbook.util import invalid, own_yaml

_RELEASE = r"^\d+\.\d+\.\d+$"
_DATE = r"^20\d\d-\d\d(-\d\d)?$"


class Report(BaseModel):
    """A public report.

    Attributes:
        url: its address.
        date: day of the report, or the month.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(pattern=r"^https://\S+$")
    date: str = Field(pattern=_DATE)

    @field_validator("date", mode="before")
    @classmethod
    def _day(cls, value: object) -> object:
        return value.isoformat() if isinstance(value, datetime.date) else value


class Entry(BaseModel):
    """One known-bad combination. Every condition that it states has to hold; a condition on
    something that is not known doesn't hold.

    Attributes:
        code: the linter's rule, such as `BAD101`.
        name: its name in words with dashes.
        title: the combination, as the start of a sentence.
        symptom: what happens, as the rest of that sentence.
        kind: the problem's name in the taxonomy (`kinds.yaml`).
        severity: `error` (does not start or serve), `warning` (fails or answers wrongly under some
            load), `info` (slower, or rare).
        since, until: first and last vLLM release in which it was seen.
        fixed_in: the first release with the repair.
        models: regular expressions; one must be found in the model's name, in lower case.
        options: by the name of an option of `vllm serve`, or a key of a JSON option
            (`speculative-config.method`), what its value must be: `given`, `absent`, a comparison
            (`>1`), a regular expression of the whole value, or `not ` before one of these.
        environment: the same for environment variables.
        image: a regular expression of the image's name and tag.
        gpus: GPUs or families of them (`GB10`, `sm_120`, `sm_12x`, `H100`).
        driver: a comparison with the driver's version, such as `<590.48`.
        kernel: a regular expression of the start of the Linux kernel's version.
        instead: what to use, as a sentence that starts with a verb.
        disputed: what speaks against it; None where nothing does.
        sources: the reports, the most telling first.
        fails, passes: a launch line with the combination, and one as close as can be without it;
            None where a launch line can't show it.
        release: the release that the two lines are judged against; left out, the newest.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str = Field(pattern=r"^BAD\d{3}$")
    name: str = Field(pattern=r"^[a-z0-9-]+$")
    title: str = Field(min_length=8)
    symptom: str = Field(min_length=8)
    kind: str
    severity: Literal["error", "warning", "info"]
    since: str | None = Field(None, pattern=_RELEASE)
    until: str | None = Field(None, pattern=_RELEASE)
    fixed_in: str | None = Field(None, pattern=_RELEASE)
    models: tuple[str, ...] = ()
    options: dict[str, str] = {}
    environment: dict[str, str] = {}
    image: str | None = None
    gpus: tuple[str, ...] = ()
    driver: str | None = Field(None, pattern=rf"^{VERSION_CONDITION}$")
    kernel: str | None = None
    instead: str = Field(pattern=r"^[A-Z].*\.$")
    disputed: str | None = None
    sources: tuple[Report, ...] = Field(min_length=1)
    fails: str | None = None
    passes: str | None = None
    release: str | None = Field(None, pattern=_RELEASE)

    @model_validator(mode="after")
    def _complete(self) -> Entry:
        if self.kind not in rules.kinds():
            raise ValueError(f"'{self.kind}' is no kind of kinds.yaml")
        if not (self.models or self.options or self.environment or self.image or self.kernel):
            raise ValueError("it names no model, option, variable, image or kernel")
        if bool(self.fails) != bool(self.passes):
            raise ValueError("it has one example of two")
        return self


def read(file: Path) -> tuple[Combination, ...]:
    """Read a table, and check it.

    Raises:
        SparkbookError: an entry is not valid, or a code or name occurs twice.
    """
    found: dict[str, Combination] = {}
    for number, entry in enumerate(own_yaml.read(file)["combinations"], 1):
        _check(entry, file.name, number)
        one = combination(entry)
        for unique in (one.code, one.name):
            if unique in found:
                raise SparkbookError(f"{file.name}: {unique} occurs twice.")
            found[unique] = one
    return tuple(sorted(dict.fromkeys(found.values()), key=lambda one: one.code))


def _check(entry: object, file: str, number: int) -> None:
    """Check one entry of the table.

    Raises:
        SparkbookError: it is not valid.
    """
    try:
        Entry.model_validate(entry)
    except ValidationError as error:
        where = entry.get("code", f"entry {number}") if isinstance(entry, dict) else number
        raise SparkbookError(f"{file}: {where}: {invalid.reason(error)}") from None


def json_schema() -> str:
    """Return the JSON Schema of the table."""
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Known-bad combinations",
        "type": "object",
        "required": ["combinations"],
        "properties": {
            "models": {"type": "object"},
            "combinations": {"type": "array", "items": {"$ref": "#/$defs/Entry"}},
        },
        "additionalProperties": False,
    }
    one = Entry.model_json_schema()
    whole["$defs"] = {**one.pop("$defs"), "Entry": one}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
