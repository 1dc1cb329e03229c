"""What each vLLM release accepts: options, environment variables, parsers, architectures, backends,
metrics and routes.

The facts are in `table.json`, which `tools/build_releases.py` reads out of vLLM's own releases.
It is loaded when it is first asked.

    >>> from sparkbook import releases
    >>> releases.get("0.32.0").accepts("max-model-len")
    True
    >>> releases.get("0.32.0").option("gpu-memory-utilization").default
    0.92
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError

TABLE = Path(__file__).parent / "table.json"

CATEGORIES = {
    "options": "options of vllm serve",
    "envs": "environment variables",
    "architectures": "model architectures",
    "reasoning_parsers": "reasoning parsers",
    "tool_parsers": "tool-call parsers",
    "quantization": "quantization methods",
    "kv_cache_dtypes": "KV-cache dtypes",
    "attention_backends": "attention backends",
    "moe_backends": "MoE backends",
    "linear_backends": "linear backends",
    "load_formats": "load formats",
    "spec_methods": "speculative methods",
    "config_keys": "keys of the JSON configs",
    "metrics": "metrics",
    "routes": "API routes",
}
"""The table's categories, in the order in which a changelog lists them."""


class ReleaseError(SparkbookError):
    """A vLLM release that the table does not know."""


@dataclass(frozen=True)
class Option:
    """One option of `vllm serve` in one release.

    Attributes:
        name: long name without dashes.
        type: `bool`, `int`, `float`, `str`, `json`, `json_or_str`, `human_int` (takes `64k`),
            `human_int_or_auto`, or `object:CLASS` (JSON that becomes that config class).
        choices: the values that the parser accepts; None where any value of the type parses.
        suggested: values that the option is meant for, where the parser accepts others too.
        default: as JSON; `{"object": CLASS}` is an instance with its own defaults, None is none or
            one chosen at start.
        nargs: argparse's: `+` several words, `?` an optional one, a number so many.
        negatable: whether `--no-NAME` exists.
        aliases: other option strings, dashes included.
        deprecated: what vLLM says about it, where it is deprecated.
        group: the group of the help text.
        repeated: whether several uses add up.
        optional: whether the word `None` (or nothing) is accepted as a value.
    """

    name: str
    type: str = "str"
    choices: tuple[Any, ...] | None = None
    suggested: tuple[Any, ...] = ()
    default: Any = None
    nargs: str | int | None = None
    negatable: bool = False
    aliases: tuple[str, ...] = ()
    deprecated: str | None = None
    group: str = ""
    repeated: bool = False
    optional: bool = False

    @property
    def takes_value(self) -> bool:
        """Whether a word may follow the option."""
        return self.type != "bool"


@dataclass(frozen=True)
class Life:
    """A span of releases in which a symbol was there, unchanged.

    Attributes:
        since: first release.
        until: last release; None where it is still there in the newest one that is known.
        value: what is known about it, as in the table.
    """

    since: str
    until: str | None
    value: Any


@dataclass(frozen=True)
class Change:
    """One difference between two releases.

    Attributes:
        category: key of `CATEGORIES`.
        name: the symbol.
        change: `added`, `removed` or `changed`.
        before, after: what the table says of it in each release.
    """

    category: str
    name: str
    change: str
    before: Any = None
    after: Any = None


class Release:
    """What one vLLM release accepts."""

    def __init__(self, version: str, index: int, table: Mapping[str, Any]) -> None:
        self.version = version
        self.index = index
        self._table = table
        self._slices: dict[str, dict[str, Any]] = {}

    def __repr__(self) -> str:
        return f"<Release {self.version}>"

    def names(self, category: str) -> dict[str, Any]:
        """Every symbol of a category that this release has, with what the table says of it."""
        if category not in self._slices:
            self._slices[category] = {
                name: life[2]
                for name, lives in self._table[category].items()
                for life in lives
                if life[0] <= self.index <= life[1]
            }
        return self._slices[category]

    def has(self, category: str, name: str) -> bool:
        """Whether this release has a symbol."""
        return name in self.names(category)

    def accepts(self, option: str) -> bool:
        """Whether `vllm serve` knows an option of this name, `no-` forms and aliases included
        (dashes or underscores).
        """
        return self.resolve(option) is not None

    def resolve(self, option: str) -> tuple[Option, bool] | None:
        """The option that a spelling means, and whether it is its `no-` form; None where there is
        none.

        An abbreviation counts, as in argparse, if only one option begins with it.
        """
        name = option.replace("_", "-")
        spellings = self._spellings()
        if name in spellings:
            return spellings[name]
        meant = [found for spelling, found in spellings.items() if spelling.startswith(name)]
        return meant[0] if name and len(meant) == 1 else None

    def option(self, name: str) -> Option:
        """The option with this long name.

        Raises:
            SparkbookError: this release has none.
        """
        found = self.names("options").get(name.replace("_", "-"))
        if found is None:
            raise SparkbookError(f"vLLM {self.version} has no option --{name}")
        return _option(name.replace("_", "-"), found)

    @functools.cached_property
    def options(self) -> dict[str, Option]:
        """Every option by its long name."""
        return {name: _option(name, value) for name, value in self.names("options").items()}

    def _spellings(self) -> dict[str, tuple[Option, bool]]:
        if not hasattr(self, "_spelled"):
            spelled: dict[str, tuple[Option, bool]] = {}
            for option in self.options.values():
                for name in (
                    option.name,
                    *(alias[2:] for alias in option.aliases if alias.startswith("--")),
                ):
                    spelled[name] = (option, False)
                    if option.negatable:
                        spelled[f"no-{name}"] = (option, True)
            self._spelled = spelled
        return self._spelled

    @property
    def requires(self) -> dict[str, str]:
        """What the CUDA build asks for: `python`, `torch`, `transformers`, `flashinfer`, …"""
        return dict(self._table["requires"][self.index])

    @property
    def envs(self) -> dict[str, Any]:
        """Environment variables with their defaults."""
        return self.names("envs")

    @property
    def architectures(self) -> dict[str, str]:
        """Architecture in a checkpoint's config: vLLM's module that serves it."""
        return self.names("architectures")

    @property
    def reasoning_parsers(self) -> list[str]:
        """Names of the built-in reasoning parsers."""
        return list(self.names("reasoning_parsers"))

    @property
    def tool_parsers(self) -> list[str]:
        """Names of the built-in tool-call parsers."""
        return list(self.names("tool_parsers"))

    @property
    def metrics(self) -> dict[str, str]:
        """Metric without the `vllm:` in front: its type."""
        return self.names("metrics")

    @property
    def routes(self) -> dict[str, list[str]]:
        """Path of the HTTP API: its methods."""
        return self.names("routes")

    def config_keys(self, option: str) -> dict[str, list[str] | None]:
        """Keys of a JSON option such as `speculative-config`, with the values allowed where they
        are closed.
        """
        head = f"{option}."
        return {
            name.removeprefix(head): value if isinstance(value, list) else None
            for name, value in self.names("config_keys").items()
            if name.startswith(head)
        }


def _option(name: str, value: Mapping[str, Any]) -> Option:
    given = dict(value)
    for key in ("choices", "suggested", "aliases"):
        if key in given:
            given[key] = tuple(given[key])
    return Option(name=name, **given)


@functools.cache
def table() -> dict[str, Any]:
    """The table as it is stored: for each symbol its lives, `[first, last, value]`, indices into
    `releases`.
    """
    return json.loads(TABLE.read_bytes())


def known() -> list[str]:
    """The releases that the table knows, oldest first."""
    return list(table()["releases"])


def newest() -> str:
    """The newest release that the table knows."""
    return str(table()["releases"][-1])


@functools.cache
def _get(version: str) -> Release:
    releases = table()["releases"]
    return Release(version, releases.index(version), table())


def get(version: str) -> Release:
    """What a release accepts.

    Args:
        version: `0.32.0`, `v0.32.0` or `0.32`; what follows the number (`+cpu`, `.post1`, `rc1`)
            does not count.

    Raises:
        ReleaseError: the table does not know it; the message names the nearest ones.
    """
    wanted = normal(version)
    if wanted in known():
        return _get(wanted)
    raise ReleaseError(
        f"vLLM {version} is not in the releases table ({known()[0]} to {newest()}); the nearest is"
        f" {nearest(version)}"
    )


def normal(version: str) -> str:
    """The release number in a version: `v0.19` is `0.19.0`, `0.32.0+cpu` is `0.32.0`."""
    numbers = _numbers(version)
    return ".".join(str(number) for number in numbers)


@functools.lru_cache(maxsize=1024)
def _numbers(version: str) -> tuple[int, int, int]:
    parts: list[int] = []
    for part in version.removeprefix("v").split("+")[0].split(".")[:3]:
        digits = ""
        for char in part:
            if not char.isdigit():
                break
            digits += char
        if not digits:
            break
        parts.append(int(digits))
    if not parts:
        raise ReleaseError(f"'{version}' is not a vLLM version: write a number such as 0.32.0")
    return tuple([*parts, 0, 0][:3])  # type: ignore[return-value]


def nearest(version: str) -> str:
    """The newest known release that is not newer than this version; the oldest known one if all
    are.
    """
    wanted = _numbers(version)
    older = [release for release in known() if _numbers(release) <= wanted]
    return older[-1] if older else known()[0]


def at_least(version: str, bound: str) -> bool:
    """Whether a version is not older than another."""
    return _numbers(version) >= _numbers(bound)


def lives(category: str, name: str) -> list[Life]:
    """When a symbol was there: its spans, oldest first; none where no known release has it."""
    every = known()
    return [
        Life(every[first], None if last == len(every) - 1 else every[last], value)
        for first, last, value in table()[category].get(name, [])
    ]


def presence(category: str, name: str) -> list[tuple[str, str | None]]:
    """As `lives`, but spans that only differ in what is known of the symbol are one."""
    every = known()
    spans: list[list[int]] = []
    for first, last, _ in table()[category].get(name, []):
        if spans and spans[-1][1] == first - 1:
            spans[-1][1] = last
        else:
            spans.append([first, last])
    return [
        (every[first], None if last == len(every) - 1 else every[last]) for first, last in spans
    ]


def said(spans: Iterable[tuple[str, str | None]]) -> str:
    """Spans in words: `0.11.0 to 0.21.0`, `since 0.24.0`, `in no release from 0.11.0 on`."""
    texts = [
        (
            f"since {since}"
            if until is None
            else f"{since} to {until}"
            if since != until
            else f"{since} only"
        )
        for since, until in spans
    ]
    return ", ".join(texts) or f"in no release from {known()[0]} on"


def names_ever(category: str) -> list[str]:
    """Every symbol of a category that any known release has."""
    return list(table()[category])


def diff(before: str, after: str) -> list[Change]:
    """What changed from one release to another, in the order of `CATEGORIES`.

    Raises:
        ReleaseError: the table does not know one of them.
    """
    old, new = get(before), get(after)
    changes: list[Change] = []
    for category in CATEGORIES:
        was, now = old.names(category), new.names(category)
        for name in sorted({*was, *now}):
            if name not in was:
                changes.append(Change(category, name, "added", None, now[name]))
            elif name not in now:
                changes.append(Change(category, name, "removed", was[name], None))
            elif was[name] != now[name]:
                changes.append(Change(category, name, "changed", was[name], now[name]))
    return changes
