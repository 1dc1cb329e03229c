"""Combinations of release, model, options, GPU, driver and kernel that public reports name as bad
(`known_bad.yaml`): what happens, who reported it, and what to use instead.

The linter says so before the start, the log doctor after it.

>>> from sparkbook.releases import known_bad
>>> options = {"kv-cache-dtype": "auto"}
>>> model = "deepseek-ai/DeepSeek-V4-Flash"
>>> found = known_bad.matching(release="0.27.0", model=model, options=options, gpu="GB10")
>>> [one.name for one in found]
['deepseek-v4-deepgemm-layout', 'deepseek-v4-kv-auto']
"""

from __future__ import annotations

import datetime
import json
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sparkbook import releases, rules
from sparkbook.errors import SparkbookError
from sparkbook.util import own_yaml

FILE = Path(__file__).with_name("known_bad.yaml")
SCHEMA_FILE = Path(__file__).with_name("known_bad.schema.json")

_RELEASE = r"^\d+\.\d+\.\d+$"
_DATE = r"^20\d\d-\d\d(-\d\d)?$"
_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_NUMBER = re.compile(r"(<=|>=|<|>)\s*(\d+(?:\.\d+)*)")


class Source(BaseModel):
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

    def __str__(self) -> str:
        return f"{self.url} ({self.date})"


class Combination(BaseModel):
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
    driver: str | None = Field(None, pattern=rf"^{_NUMBER.pattern}$")
    kernel: str | None = None
    instead: str = Field(pattern=r"^[A-Z].*\.$")
    disputed: str | None = None
    sources: tuple[Source, ...] = Field(min_length=1)
    fails: str | None = None
    passes: str | None = None
    release: str | None = Field(None, pattern=_RELEASE)

    def __hash__(self) -> int:
        return hash(self.code)

    @model_validator(mode="after")
    def _complete(self) -> Combination:
        if self.kind not in rules.kinds():
            raise ValueError(f"'{self.kind}' is no kind of kinds.yaml")
        if not (self.models or self.options or self.environment or self.image or self.kernel):
            raise ValueError("it names no model, option, variable, image or kernel")
        if bool(self.fails) != bool(self.passes):
            raise ValueError("it has one example of two")
        return self

    @property
    def last(self) -> str | None:
        """The last release that it applies to; None: it still does."""
        if self.fixed_in is None:
            return self.until
        older = [one for one in releases.known() if not releases.at_least(one, self.fixed_in)]
        return older[-1] if older else self.until

    @property
    def sentence(self) -> str:
        """What happens, with what speaks against it, as one sentence."""
        doubt = f" (disputed: {self.disputed})" if self.disputed else ""
        return f"{self.title}: {self.symptom}{doubt}."

    def holds(self, facts: Facts) -> bool:
        """Return whether all conditions hold for what is known of a server."""
        return (
            self._release_holds(facts.release)
            and self._model_holds(facts.model)
            and _all_hold(self.options, facts.options)
            and _all_hold(self.environment, facts.environment)
            and (self.image is None or bool(re.search(self.image, facts.image or "")))
            and (not self.gpus or bool(set(map(_plain, self.gpus)) & facts.gpus))
            and (self.driver is None or _version_holds(self.driver, facts.driver))
            and (self.kernel is None or bool(re.match(self.kernel, facts.kernel or "")))
        )

    def _release_holds(self, release: str | None) -> bool:
        if release is None:
            return not (self.since or self.until or self.fixed_in)
        return (
            (self.since is None or releases.at_least(release, self.since))
            and (self.until is None or releases.at_least(self.until, release))
            and (self.fixed_in is None or not releases.at_least(release, self.fixed_in))
        )

    def _model_holds(self, model: str | None) -> bool:
        return not self.models or any(re.search(one, (model or "").lower()) for one in self.models)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a server, in the form that conditions are compared with: `options` with
    dashes and the keys of JSON options, `gpus` with the families of the GPU.
    """

    release: str | None
    model: str | None
    options: Mapping[str, str]
    environment: Mapping[str, str]
    image: str | None
    gpus: frozenset[str]
    driver: str | None
    kernel: str | None


class Known(TypedDict, total=False):
    """What may be known of a server.

    Attributes:
        release: a vLLM release; None: not known, so that only combinations of every release fit.
        model: handle, path or several names of the model.
        options: options of `vllm serve` by name, with or without dashes; None or True for a flag. A
            JSON option is text or a mapping.
        environment: environment variables.
        gpu: name of the GPU, such as `NVIDIA GB10`.
        driver: version of the NVIDIA driver.
        kernel: version of the Linux kernel, as `uname -r` prints it.
        image: the container image.
    """

    release: str | None
    model: str | None
    options: Mapping[str, Any]
    environment: Mapping[str, str | None]
    gpu: str | None
    driver: str | None
    kernel: str | None
    image: str | None


def matching(**known: Unpack[Known]) -> list[Combination]:
    """Return the known-bad combinations that everything that is known fits, errors first."""
    given = facts(**known)
    order = {"error": 0, "warning": 1, "info": 2}
    found = [one for one in combinations() if one.holds(given)]
    return sorted(found, key=lambda one: order[one.severity])


def facts(**known: Unpack[Known]) -> Facts:
    """Return what is known in the form that conditions are compared with."""
    options: dict[str, str] = {}
    for name, value in known.get("options", {}).items():
        options.update(_flat(name.lstrip("-").replace("_", "-"), value))
    gpu = known.get("gpu")
    return Facts(
        release=known.get("release"),
        model=known.get("model"),
        options=options,
        environment={name: value or "" for name, value in known.get("environment", {}).items()},
        image=known.get("image"),
        gpus=frozenset(_families(gpu)) if gpu else frozenset(),
        driver=known.get("driver"),
        kernel=known.get("kernel"),
    )


@cache
def combinations() -> tuple[Combination, ...]:
    """Return the whole table, in the order of its codes."""
    return read(FILE)


def read(file: Path) -> tuple[Combination, ...]:
    """Read a table.

    Raises:
        SparkbookError: an entry is not valid, or a code or name occurs twice.
    """
    found: dict[str, Combination] = {}
    for number, entry in enumerate(own_yaml.read(file)["combinations"], 1):
        try:
            one = Combination.model_validate(entry)
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(str(part) for part in problem["loc"])
            where = entry.get("code", f"entry {number}") if isinstance(entry, dict) else number
            raise SparkbookError(f"{file.name}: {where}: {key}: {problem['msg']}") from None
        for unique in (one.code, one.name):
            if unique in found:
                raise SparkbookError(f"{file.name}: {unique} occurs twice.")
            found[unique] = one
    return tuple(sorted(dict.fromkeys(found.values()), key=lambda one: one.code))


def json_schema() -> str:
    """Return the JSON Schema of the table."""
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Known-bad combinations",
        "type": "object",
        "required": ["combinations"],
        "properties": {
            "models": {"type": "object"},
            "combinations": {"type": "array", "items": {"$ref": "#/$defs/Combination"}},
        },
        "additionalProperties": False,
    }
    one = Combination.model_json_schema()
    whole["$defs"] = {**one.pop("$defs"), "Combination": one}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield an option, and the keys of a JSON value as options of their own."""
    if name.startswith("no-") and value is None:
        yield name.removeprefix("no-"), "false"
        return
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            yield name, value
            return
    if isinstance(value, Mapping):
        yield name, "given"
        for key, item in value.items():
            yield from _flat(f"{name}.{key}", item)
    elif value is None or isinstance(value, bool):
        yield name, "false" if value is False else "true"
    else:
        yield name, str(value)


def _all_hold(conditions: Mapping[str, str], values: Mapping[str, str]) -> bool:
    return all(_holds(condition, values.get(name)) for name, condition in conditions.items())


def _holds(condition: str, value: str | None) -> bool:
    """Return whether a value is what a condition wants; None: the option is not given."""
    if condition.startswith("not "):
        return not _holds(condition.removeprefix("not "), value)
    if condition == "absent":
        return value is None
    if value is None or (condition == "given" and value == "false"):
        return False
    if condition == "given":
        return True
    if match := _NUMBER.fullmatch(condition):
        number = re.match(r"\d+(?:\.\d+)?", value)
        return bool(number and _COMPARE[match[1]](float(number[0]), float(match[2])))
    return bool(re.fullmatch(condition, value, re.IGNORECASE))


def _version_holds(condition: str, version: str | None) -> bool:
    match, number = _NUMBER.fullmatch(condition), re.match(r"\d+(?:\.\d+)*", version or "")
    if not match or not number:
        return False
    left, right = (tuple(map(int, one.split("."))) for one in (number[0], match[2]))
    return bool(_COMPARE[match[1]](left, right))


_GPU_FAMILIES = {
    r"gb10|sm_?121": ("gb10", "sm_121", "sm_12x", "blackwell"),
    r"rtx (pro|50|60)|50[6789]0|sm_?120": ("sm_120", "sm_12x", "blackwell"),
    r"b200|b300|gb200|gb300|sm_?10[03]": ("sm_100", "blackwell"),
    r"h100|h200|h20|sm_?90": ("sm_90", "h100", "h200", "h20"),
}


def _families(gpu: str) -> Iterator[str]:
    """Yield a GPU's name and the families that it belongs to, in lower case."""
    name = gpu.lower()
    yield _plain(name)
    for pattern, families in _GPU_FAMILIES.items():
        if re.search(rf"\b({pattern})", name):
            # Of the names, only its own; of the families, all.
            yield from (one for one in families if "_" in one or one in name or one == "blackwell")


def _plain(name: str) -> str:
    return name.lower().removeprefix("nvidia ").strip()
