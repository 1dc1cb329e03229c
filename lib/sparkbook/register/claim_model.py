"""What the claims register consists of: claims, their figures, and the tests that decide them."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sparkbook.errors import SparkbookError
from sparkbook.releases.images import Source

RUNS = "18_claims"
"""The chapter that executes every claim whose tests are in the register."""

Verdict = Literal["holds", "expired", "false", "not-testable"]
VERDICTS: tuple[Verdict, ...] = ("holds", "expired", "false", "not-testable")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Figure(Strict):
    """A figure as its source has it.

    Attributes:
        value: a number, or the source's words for a range (`25 to 60`).
        unit: as the chapters write it; empty for a bare count.
        name: which one, where a claim has several.
    """

    value: float | int | str
    unit: str = ""
    name: str = ""

    @property
    def number(self) -> float:
        """The value as a number.

        Raises:
            SparkbookError: it is a range.
        """
        if isinstance(self.value, str) and not is_point(self.value):
            raise SparkbookError(f"'{self}' is a range, not one number: use its ends")
        return float(self.value)

    @property
    def ends(self) -> tuple[float, float]:
        """Lower and upper end of a range; twice the number of a figure that is none."""
        found = [
            float(part.replace(",", ""))
            for part in re.findall(r"\d[\d,]*(?:\.\d+)?", str(self.value))
        ]
        return min(found), max(found)

    def __str__(self) -> str:
        value = self.value if isinstance(self.value, str) else f"{self.value:,}"
        return f"{value}{'' if self.unit in ('', '×') else ' '}{self.unit}"


class Symbol(Strict):
    """A name in one category of the releases table."""

    category: str
    name: str


class Default(Strict):
    """The default of an option."""

    option: str
    is_: Any = Field(alias="is")


class Sum(Strict):
    """A calculation with the source's own figures: `273 / 15` is 18.2, within a share of it."""

    of: str
    gives: float
    within: float = 0.01


class Kept(Strict):
    """Where the catalogue keeps a figure as well: a dotted path into a recipe, and its value. A
    test holds the two together; that a recipe says what the document says proves nothing about it.
    """

    recipe: str
    path: str
    is_: Any = Field(alias="is")

    @property
    def value(self) -> Any:
        """What the recipe has there."""
        from sparkbook import recipes

        value: Any = recipes.load(self.recipe)
        for part in self.path.split("."):
            value = (
                value[part]
                if isinstance(value, dict)
                else value[int(part)]
                if isinstance(value, list | tuple)
                else getattr(value, part)
            )
        return value


class Counted(Strict):
    """Parameters (10^9) or bytes (10^9) of a checkpoint, against those counted from the shape in
    its config.

    `within` is the share by which the figure may lie outside what was counted, which is a range
    where formats are not known.
    """

    model: str
    total_b: float | None = None
    active_b: float | None = None
    gb: float | None = None
    within: float = 0.03


class Lint(Strict):
    """A line, or a recipe's id, and a rule that the linter finds in it."""

    line: str
    rule: str


class Shape(Strict):
    """Numbers of a model's config by its keys; `layers.KIND` counts the layers of a kind."""

    model: str
    is_: dict[str, Any] = Field(alias="is", min_length=1)


class Scores(Strict):
    """A recipe's table of scores: no score differs between the first two series by more points than
    this.
    """

    recipe: str
    within: float


class Image(Strict):
    """What the facts about an image say of one thing in it."""

    ref: str
    vllm: str | None = None
    has: str | None = None
    lacks: str | None = None
    platform: str | None = None


class Test(Strict):
    """One thing to execute, put as the claim puts it. Exactly one subject."""

    release: str | None = Field(
        None, description="vLLM release; left out: the document's own, or the newest"
    )
    absent: bool = Field(False, description="the claim is that it is not so")
    option: str | None = None
    env: str | None = None
    symbol: Symbol | None = None
    default: Default | None = None
    requires: str | None = Field(
        None, description="a requirement that the release's CUDA build admits: transformers==5.5.0"
    )
    lint: Lint | None = None
    clean: str | None = Field(
        None, description="a line, or a recipe's id, in which the linter finds no error"
    )
    image: Image | None = None
    counted: Counted | None = None
    shape: Shape | None = None
    sum: Sum | None = None
    scores: Scores | None = None
    fits: str | None = Field(None, description="a recipe that the plan lets into a Spark's memory")

    @model_validator(mode="after")
    def _one(self) -> Test:
        if len(self.subjects) != 1:
            raise ValueError(
                f"a test has one subject, this one has {', '.join(self.subjects) or 'none'}"
            )
        return self

    @property
    def subjects(self) -> list[str]:
        """Names of the fields that are given."""
        return [
            name
            for name in type(self).model_fields
            if name not in ("release", "absent") and getattr(self, name) is not None
        ]


class Tests(Strict):
    """What the claim comes to under the release of its time, and under the newest one that is
    known.

    Attributes:
        only_refutes: failing would show that the claim is false, passing shows nothing: a speed
            that memory allows may still be wrong.
    """

    only_refutes: bool = False
    then: list[Test] = Field(default_factory=list)
    now: list[Test] = Field(min_length=1)


class Claim(Strict):
    """One claim of a document.

    Attributes:
        id: short, with the document's key in front.
        statement: what is claimed, in our words.
        source: the document.
        section: where in it.
        figures: its figures.
        line: the recipe that holds the launch line that the claim is about; its settings are the
            claim's.
        settings: other settings that it names, as `--option: value`, `VARIABLE: value` or
            `key: value`.
        scores: the recipe that holds the table of scores that the claim is about; its values are
            the claim's figures.
        check: how it was checked, and what that gave.
        test: what to execute.
        executable: whether something can be executed that decides it.
        executed_by: the chapter whose run reports it.
        kept: where recipes have the same figure.
        verdict: `holds`, `expired` (was so, is no longer), `false`, `not-testable` (not without a
            Spark, or not at all).
        date: when it was checked.
        where: chapters, pages and cells that use it.
    """

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9.]+)+$")
    statement: str
    source: Source
    section: str = ""
    figures: list[Figure] = Field(default_factory=list)
    line: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    scores: str | None = None
    check: str
    test: Tests | None = None
    executable: bool = False
    executed_by: str | None = None
    kept: list[Kept] = Field(default_factory=list)
    verdict: Verdict
    date: datetime.date
    where: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, data: Any) -> Any:
        """`figure:` for a single one; `test:` makes a claim executable, by the chapter of claims if
        no other is named.
        """
        if isinstance(data, dict):
            data = dict(data)
            if "figure" in data:
                data["figures"] = [data.pop("figure")]
            if data.get("test"):
                data.setdefault("executable", True)
                data.setdefault("executed_by", RUNS)
        return data

    @field_validator("figures", mode="before")
    @classmethod
    def _figure_forms(cls, value: Any) -> Any:
        """Return figures in full: one is written `273 GB/s`, several `name: 273 GB/s`."""
        if isinstance(value, dict):
            value = [{"name": name, **_read_figure(text)} for name, text in value.items()]
        return [_read_figure(one) if not isinstance(one, dict | Figure) else one for one in value]

    @model_validator(mode="after")
    def _sound(self) -> Claim:
        if self.executable != (self.executed_by is not None):
            raise ValueError(
                f"{self.id}: an executable claim names the chapter that executes it, and no other"
                " claim does"
            )
        if self.test and self.verdict == "not-testable" and not self.test.only_refutes:
            raise ValueError(f"{self.id}: an executed claim needs a verdict")
        return self

    @property
    def every_figure(self) -> list[Figure]:
        """Its figures, those of its table of scores included."""
        from sparkbook import recipes

        found = list(self.figures)
        for table in recipes.load(self.scores).benchmarks.accuracy if self.scores else []:
            for row in table.rows:
                for series, value in zip(table.series, row.values, strict=True):
                    if value is not None:
                        found.append(
                            Figure(value=value, unit=table.unit, name=f"{row.label}, {series}")
                        )
        return found

    @property
    def every_setting(self) -> list[tuple[str, str]]:
        """Name and value of each setting it names, those of its line included."""
        from sparkbook import recipes

        found = self.stated_settings
        if self.line:
            recipe = recipes.load(self.line)
            found += _settings({f"--{name}": value for name, value in recipe.serve.args.items()})
            found += _settings(recipe.env)
            found += _settings(
                {
                    f"--{name.replace('_', '-')}": value
                    for name, value in recipe.container.model_dump().items()
                }
            )
            for words in (
                recipe.serve.command or [],
                *(str(value).split() for value in recipe.env.values()),
            ):
                words = [word for text in words for word in text.split()]
                found += [
                    (option, value)
                    for option, value in itertools.pairwise(words)
                    if option.startswith("--")
                ]
            for request in recipe.request:
                found += _settings(request.body())
        return list(dict.fromkeys(found))

    @property
    def stated_settings(self) -> list[tuple[str, str]]:
        """The settings that it states itself; a list holds several values of one."""
        values = (
            (name, value if isinstance(value, list) else [value])
            for name, value in self.settings.items()
        )
        return [
            pair for name, several in values for one in several for pair in _settings({name: one})
        ]

    @property
    def figure(self) -> Figure:
        """Its only figure.

        Raises:
            SparkbookError: it has none, or several.
        """
        if len(self.figures) != 1:
            raise SparkbookError(
                f"claim {self.id} has {len(self.figures)} figures: say which,"
                f" claims.figure('{self.id}', NAME)"
            )
        return self.figures[0]


def _settings(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield name and value of each setting; of JSON those of its keys."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _settings(
                {key: "null" if inner is None else inner for key, inner in value.items()}
            )
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif value is not None:
            yield name, ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _read_figure(text: Any) -> dict[str, Any]:
    """`273 GB/s` → value and unit; a range keeps its words."""
    if isinstance(text, int | float):
        return {"value": text}
    match = re.fullmatch(
        r"(?P<value>[~<>−-]?\d[\d,.]*(?: to \d[\d,.]*)?)(?P<unit>×|%| .+)?", str(text)
    )
    if not match:
        raise ValueError(f"'{text}' is not a figure: write '273 GB/s', '25 to 60 s' or '3×'")
    value: Any = match["value"]
    if re.fullmatch(r"-?\d+", value):
        value = int(value)
    elif re.fullmatch(r"-?\d+\.\d+", value):
        # A figure keeps the digits that its source has: 64.0 is not 64.
        value = float(value) if str(float(value)) == value else value
    return {"value": value, "unit": (match["unit"] or "").strip()}


class Register(Strict):
    """One file: a document, and its claims. What a claim leaves out is the document's."""

    source: Source
    release: str = Field(
        description="the vLLM release that the document's claims are about, where a test names none"
    )
    date: datetime.date
    claims: list[Claim]

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        if isinstance(data, dict) and isinstance(data.get("claims"), list):
            shared = {key: data[key] for key in ("source", "date") if key in data}
            data = {
                **data,
                "claims": [
                    {**shared, **claim} if isinstance(claim, dict) else claim
                    for claim in data["claims"]
                ],
            }
        return data


def is_point(text: str) -> bool:
    return re.fullmatch(r"\d+\.\d+", text) is not None
