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

import json
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from sparkbook import releases
from sparkbook.util import own_yaml

FILE = Path(__file__).with_name("known_bad.yaml")
SCHEMA_FILE = Path(__file__).with_name("known_bad.schema.json")

_COMPARE = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
VERSION_CONDITION = r"(<=|>=|<|>)\s*(\d+(?:\.\d+)*)"
"""The form of a condition on a version."""

_NUMBER = re.compile(VERSION_CONDITION)


@dataclass(frozen=True)
class Source:
    """A public report: its address, and its day or month."""

    url: str
    date: str

    def __str__(self) -> str:
        return f"{self.url} ({self.date})"


@dataclass(frozen=True, kw_only=True, eq=False)
class Combination:
    """One known-bad combination, with the fields of `known_bad_schema.Entry`. Every condition that
    it states has to hold; a condition on something that is not known does not hold.
    """

    code: str
    name: str
    title: str
    symptom: str
    kind: str
    severity: Literal["error", "warning", "info"]
    since: str | None = None
    until: str | None = None
    fixed_in: str | None = None
    models: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    kernel: str | None = None
    instead: str
    disputed: str | None = None
    sources: tuple[Source, ...]
    fails: str | None = None
    passes: str | None = None
    release: str | None = None

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
    """Return the whole table, in the order of its codes; a test checks its entries."""
    entries = own_yaml.read(FILE)["combinations"]
    return tuple(sorted(map(combination, entries), key=lambda one: one.code))


def combination(entry: Mapping[str, Any]) -> Combination:
    """Return an entry of the table as a value."""
    sources = tuple(Source(one["url"], str(one["date"])) for one in entry["sources"])
    several = {key: tuple(entry.get(key, ())) for key in ("models", "gpus")}
    return Combination(**{**entry, **several, "sources": sources})


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
