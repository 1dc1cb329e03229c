"""The claims register: what the documents that this book starts from say, in our words, and what
became of it.

One file a document in `book/claims/`. A figure stands there once; chapters draw it:

    >>> from sparkbook.register import claims
    >>> print(claims.figure("guide-bandwidth"))
    273 GB/s

In a chapter's prose a figure is a link, `[273 GB/s](../book/claims/guide.yaml#guide-bandwidth)`:
`write_figures` puts the register's words into it, and on the site it leads to the claim's row.

A claim that can be executed has tests, or a chapter's cell that reports it through `check`. What
was reported stands in the executed notebook itself, as data beside the cell's output: the notebooks
are the record of what was executed.
"""

from __future__ import annotations

import datetime
import functools
import html
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sparkbook.errors import SparkbookError
from sparkbook.releases.images import Source
from sparkbook.util import own_yaml

FOLDER = "book/claims"
PAGE = "generated/claims"
"""The register's page on the site, without its ending."""

RUNS = "18_claims"
"""The chapter that executes every claim whose tests stand in the register."""

MIME = "application/vnd.sparkbook.claims+json"
"""What `check` leaves in the executed notebook: a list of `{id, verdict}`."""

Verdict = Literal["holds", "expired", "false", "not-testable"]
VERDICTS: tuple[Verdict, ...] = ("holds", "expired", "false", "not-testable")
LINK = re.compile(
    r"\[(?P<text>[^\]\[]*)\]\(\.\./book/claims/(?P<file>[\w-]+)\.yaml#(?P<id>[\w-]+)\)"
)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Figure(_Strict):
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
        if isinstance(self.value, str) and not _is_point(self.value):
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


class Symbol(_Strict):
    """A name in one category of the releases table."""

    category: str
    name: str


class Default(_Strict):
    """The default of an option."""

    option: str
    is_: Any = Field(alias="is")


class Sum(_Strict):
    """A calculation with the source's own figures: `273 / 15` is 18.2, within a share of it."""

    of: str
    gives: float
    within: float = 0.01


class Kept(_Strict):
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


class Counted(_Strict):
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


class Lint(_Strict):
    """A line, or a recipe's id, and a rule that the linter finds in it."""

    line: str
    rule: str


class Shape(_Strict):
    """Numbers of a model's config, by the config's keys; `layers.KIND` counts the layers of a kind."""

    model: str
    is_: dict[str, Any] = Field(alias="is", min_length=1)


class Scores(_Strict):
    """A recipe's table of scores: no score differs between the first two series by more points than
    this.
    """

    recipe: str
    within: float


class Image(_Strict):
    """What the facts about an image say of one thing in it."""

    ref: str
    vllm: str | None = None
    has: str | None = None
    lacks: str | None = None
    platform: str | None = None


class Test(_Strict):
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
        return [name for name in _RUNNERS if getattr(self, name) is not None]


class Tests(_Strict):
    """What the claim comes to under the release of its time, and under the newest one that is
    known.

    Attributes:
        only_refutes: failing would show that the claim is false, passing shows nothing: a speed
            that memory allows may still be wrong.
    """

    only_refutes: bool = False
    then: list[Test] = Field(default_factory=list)
    now: list[Test] = Field(min_length=1)


class Claim(_Strict):
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
        """A figure may be written `273 GB/s`, and several as `name: 273 GB/s`."""
        if isinstance(value, dict):
            value = [{"name": name, **_read_figure(text)} for name, text in value.items()]
        return [_read_figure(one) if not isinstance(one, dict | Figure) else one for one in value]

    @model_validator(mode="after")
    def _sound(self) -> Claim:
        if self.executable != (self.executed_by is not None):
            raise ValueError(
                f"{self.id}: what is executable names the chapter that executes it, and only that"
            )
        if self.test and self.verdict == "not-testable" and not self.test.only_refutes:
            raise ValueError(f"{self.id}: what was executed has a verdict")
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
    """Name and value of each setting; of JSON those of its keys."""
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
        raise ValueError(f"'{text}' is no figure: write '273 GB/s', '25 to 60 s' or '3×'")
    value: Any = match["value"]
    if re.fullmatch(r"-?\d+", value):
        value = int(value)
    elif re.fullmatch(r"-?\d+\.\d+", value):
        # A figure keeps the digits that its source has: 64.0 is not 64.
        value = float(value) if str(float(value)) == value else value
    return {"value": value, "unit": (match["unit"] or "").strip()}


class Register(_Strict):
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


@functools.cache
def registers(folder: Path | None = None) -> dict[str, Register]:
    """Every file of the register by its name, read once.

    Raises:
        SparkbookError: a file is not in order, or an id stands twice.
    """
    if folder is None:
        from sparkbook.runner.project import here

        folder = here().root / FOLDER
    found: dict[str, Register] = {}
    seen: dict[str, str] = {}
    for path in sorted(folder.glob("*.yaml")):
        try:
            found[path.stem] = Register.model_validate(own_yaml.read(path))
        except (yaml.YAMLError, ValueError) as error:
            raise SparkbookError(f"{FOLDER}/{path.name}: {error}") from None
        for claim in found[path.stem].claims:
            if claim.id in seen:
                raise SparkbookError(
                    f"{FOLDER}/{path.name}: {claim.id} stands in {seen[claim.id]} as well"
                )
            seen[claim.id] = path.name
    return found


def every() -> list[Claim]:
    """Every claim, document by document."""
    return [claim for register in registers().values() for claim in register.claims]


def get(name: str) -> Claim:
    """The claim with this id.

    Raises:
        SparkbookError: there is none.
    """
    if name in (known := _by_id()):
        return known[name]
    raise SparkbookError(f"no claim is called '{name}': the ids stand in {FOLDER}/")


@functools.cache
def _by_id() -> dict[str, Claim]:
    return {claim.id: claim for claim in every()}


def figure(name: str, which: str | None = None) -> Figure:
    """A claim's figure, for a chapter to draw; `which` names one of several.

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


# What can be executed
# -----------------------------------------------------------------------------------------------------------------


def _release(test: Test, release: str) -> Any:
    from sparkbook import releases

    return releases.get(test.release or release)


def _option(test: Test, release: str) -> tuple[bool, str]:
    known = _release(test, release)
    held = known.accepts(test.option)
    return held, f"vLLM {known.version} {'knows' if held else 'does not know'} --{test.option}"


def _env(test: Test, release: str) -> tuple[bool, str]:
    known = _release(test, release)
    held = test.env in known.envs
    return held, f"vLLM {known.version} {'reads' if held else 'does not read'} {test.env}"


def _symbol(test: Test, release: str) -> tuple[bool, str]:
    known, symbol = _release(test, release), test.symbol
    assert symbol
    held = known.has(symbol.category, symbol.name)
    return (
        held,
        (
            f"{symbol.name} is {'' if held else 'not '}among the"
            f" {symbol.category.replace('_', ' ')} of vLLM {known.version}"
        ),
    )


def _default(test: Test, release: str) -> tuple[bool, str]:
    known, wanted = _release(test, release), test.default
    assert wanted
    value = known.option(wanted.option).default
    return (
        value == wanted.is_,
        f"--{wanted.option} is {value} in vLLM {known.version} if it is not given",
    )


def _requires(test: Test, release: str) -> tuple[bool, str]:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    known, wanted = _release(test, release), Requirement(test.requires or "")
    (exact,) = [part.version for part in wanted.specifier]
    admitted = known.requires.get(wanted.name, "")
    held = wanted.name in known.requires and SpecifierSet(
        "" if admitted == "*" else admitted
    ).contains(exact)
    return (
        held,
        (
            f"vLLM {known.version} {'admits' if held else 'does not admit'} {wanted.name} {exact}"
            f" ({admitted or 'not required'})"
        ),
    )


def _lint(test: Test, release: str) -> tuple[bool, str]:
    from sparkbook import lint, recipes

    asked = test.lint
    assert asked
    source: Any = recipes.load(asked.line) if asked.line in recipes.ids() else asked.line
    report = lint.lint(source, release=test.release or release)
    found = [finding for finding in report.findings if finding.rule == asked.rule]
    return (
        bool(found),
        (
            f"{asked.rule} under vLLM {report.release}:"
            f" {found[0].message if found else 'nothing found'}"
        ),
    )


def _clean(test: Test, release: str) -> tuple[bool, str]:
    from sparkbook import lint, recipes

    asked = test.clean or ""
    known = asked.partition("@")[0] in recipes.ids()
    source: Any = recipes.load(asked) if known else asked
    report = lint.lint(source, release=test.release or release)
    wrong = [finding for finding in report.findings if finding.severity == "error"]
    said = "; ".join(f"{finding.rule}: {finding.message}" for finding in wrong) or "no error"
    return (
        not wrong,
        f"{f'the line of {asked}' if known else 'the line'} under vLLM {report.release}: {said}",
    )


def _shape(test: Test, _release_: str) -> tuple[bool, str]:
    from sparkbook.checkpoint import known

    asked = test.shape
    assert asked
    entries = known.facts()["checkpoints"]
    if asked.model not in entries:
        raise SparkbookError(f"nothing is written down of the checkpoint '{asked.model}'")
    name = entries[asked.model]["shape"]
    config: dict[str, Any] = dict(known.shape(name))
    for kind, count in known.facts()["shapes"][name]["config"].get("layer_counts", {}).items():
        config[f"layers.{kind}"] = count
    found = {key: config.get(key) for key in asked.is_}
    return (
        found == asked.is_,
        (
            f"the config of {asked.model}:"
            f" {', '.join(f'{key} {value}' for key, value in found.items())}"
        ),
    )


def _scores(test: Test, _release_: str) -> tuple[bool, str]:
    from sparkbook import recipes

    asked = test.scores
    assert asked
    rows = [
        row
        for table in recipes.load(asked.recipe).benchmarks.accuracy
        for row in table.rows
        if len(row.values) > 1
    ]
    apart = {row.label: round((row.values[1] or 0) - (row.values[0] or 0), 6) for row in rows}
    label = max(apart, key=lambda key: abs(apart[key]))
    return (
        abs(apart[label]) <= asked.within,
        f"{len(apart)} scores; the greatest difference is {apart[label]:+g} points ({label})",
    )


def _image(test: Test, _release_: str) -> tuple[bool, str]:
    from packaging.specifiers import SpecifierSet

    from sparkbook.releases import images

    asked = test.image
    assert asked
    info = images.find(asked.ref)
    if info is None:
        raise SparkbookError(f"nothing is known about the image {asked.ref}")
    if any(
        register.source.url == images.source(info.source).url for register in registers().values()
    ):
        raise SparkbookError(
            f"what is known about {asked.ref} was taken from the documents themselves: that proves"
            " nothing"
        )
    if asked.vllm:
        inside = info.vllm or info.vllm_range
        held = bool(inside) and (
            info.vllm == asked.vllm
            or (not info.vllm and SpecifierSet(info.vllm_range or "").contains(asked.vllm))
        )
        return held, f"{asked.ref} holds vLLM {inside or 'of an unknown release'}"
    if asked.platform:
        return (
            asked.platform in (info.platforms or ()),
            f"{asked.ref} can be pulled for {', '.join(info.platforms or ('nothing known',))}",
        )
    name = asked.has or asked.lacks or ""
    known = info.contents.get(name)
    held = (known is False) if asked.lacks else bool(known)
    said = {
        None: f"nothing is known of {name} in",
        False: f"{name} is not in",
        True: f"{name} is in",
    }
    return held, f"{said.get(known if isinstance(known, bool | None) else True)} {asked.ref}"


def _counted(test: Test, _release_: str) -> tuple[bool, str]:
    from sparkbook.checkpoint import known

    asked = test.counted
    assert asked
    checkpoint = known.load(asked.model)
    if asked.gb is not None:
        counted, claimed, what = checkpoint.bytes, asked.gb, "GB"
    elif asked.active_b is not None:
        reads = checkpoint.reads
        assert reads
        counted, claimed, what = reads.active, asked.active_b, "B active parameters"
    else:
        counted, claimed, what = checkpoint.params, asked.total_b or 0.0, "B parameters"
    low, high = counted.low / 1e9, counted.high / 1e9
    held = low * (1 - asked.within) <= claimed <= high * (1 + asked.within)
    span = f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"
    return held, f"counted from the shape: {span} {what}, claimed {claimed:g}"


def _sum(test: Test, _release_: str) -> tuple[bool, str]:
    asked = test.sum
    assert asked
    value = _calculate(asked.of)
    held = abs(value - asked.gives) <= asked.within * abs(asked.gives)
    return held, f"{asked.of} = {value:.4g}, claimed {asked.gives:g}"


def _fits(test: Test, _release_: str) -> tuple[bool, str]:
    from sparkbook import plan

    planned = plan.of(test.fits or "")
    return planned.fits, f"the plan for {test.fits}: {planned.verdict}"


_RUNNERS: dict[str, Callable[[Test, str], tuple[bool, str]]] = {
    "option": _option,
    "env": _env,
    "symbol": _symbol,
    "default": _default,
    "requires": _requires,
    "lint": _lint,
    "clean": _clean,
    "image": _image,
    "counted": _counted,
    "shape": _shape,
    "sum": _sum,
    "scores": _scores,
    "fits": _fits,
}


def _calculate(text: str) -> float:
    """A calculation with + - * / and parentheses, nothing else.

    Raises:
        SparkbookError: something else is in it.
    """
    import ast
    import operator

    signs: dict[type, Callable[[float, float], float]] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.Pow: operator.pow,
    }

    def value(node: ast.expr) -> float:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return float(node.value)
        if isinstance(node, ast.BinOp) and type(node.op) in signs:
            return signs[type(node.op)](value(node.left), value(node.right))
        raise SparkbookError(f"'{text}' is no plain calculation")

    return value(ast.parse(text, mode="eval").body)


def run(test: Test, release: str) -> tuple[bool, str]:
    """Execute one test: whether it came out as the claim has it, and what was found."""
    (subject,) = test.subjects
    held, evidence = _RUNNERS[subject](test, release)
    return held != test.absent, evidence


@dataclass(frozen=True)
class Outcome:
    """What executing a claim gave.

    Attributes:
        claim: the claim.
        verdict: what follows from the execution.
        evidence: what was found, then and now.
    """

    claim: Claim
    verdict: Verdict
    evidence: tuple[str, ...]


class Outcomes:
    """Outcomes as a table, and as data that stays in the executed notebook."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)

    def __repr__(self) -> str:
        return "\n".join(f"{one.claim.id}: {one.verdict}" for one in self.outcomes)

    def __add__(self, other: Outcomes) -> Outcomes:
        return Outcomes([*self.outcomes, *other.outcomes])

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        rows = [
            (
                _code_text(one.claim.statement),
                verdict_badge(one.verdict),
                "<br>".join(_code_text(line) for line in one.evidence),
            )
            for one in self.outcomes
        ]
        return {
            "text/plain": repr(self),
            "text/html": _table(("claim", "verdict", "what was found"), rows),
            MIME: [{"id": one.claim.id, "verdict": one.verdict} for one in self.outcomes],
        }


def execute(claim: Claim) -> Outcome:
    """Execute a claim's tests: under the release of its time, then under the newest one.

    `holds`: all of today's come out; `not-testable` if they could only have refuted the claim.
        `expired`: those of its time did, today's do
    not. `false`: neither.

    Raises:
        SparkbookError: the claim has no tests.
    """
    from sparkbook import releases

    if claim.test is None:
        raise SparkbookError(
            f"claim {claim.id} has no tests: {claim.executed_by or 'nothing'} executes it"
        )
    (register,) = [
        one for one in registers().values() if any(mine.id == claim.id for mine in one.claims)
    ]
    newest = releases.table()["releases"][-1]
    then = [run(test, register.release) for test in claim.test.then]
    now = [run(test, newest) for test in claim.test.now]
    if all(held for held, _ in now):
        verdict: Verdict = "not-testable" if claim.test.only_refutes else "holds"
    elif then and all(held for held, _ in then):
        verdict = "expired"
    else:
        verdict = "false"
    return Outcome(claim, verdict, tuple(dict.fromkeys(evidence for _, evidence in [*then, *now])))


def check(name: str, held: bool | None = None, evidence: str = "") -> Outcomes:
    """Execute a claim, or report that a cell of a chapter did, and hold the outcome to the
    register's verdict.

    Args:
        name: the claim's id.
        held: what the cell found: whether it is as the claim says. None: execute the claim's own
            tests.
        evidence: the cell's words for what it found.

    Raises:
        SparkbookError: the outcome is not the verdict that the register has.
    """
    claim = get(name)
    outcome = (
        execute(claim)
        if held is None
        else Outcome(claim, _of_cell(claim, held), (evidence,) if evidence else ())
    )
    if outcome.verdict != claim.verdict:
        said = "; ".join(outcome.evidence)
        raise SparkbookError(
            f"claim {name}: the register says '{claim.verdict}', the execution gave"
            f" '{outcome.verdict}' ({said})"
        )
    return Outcomes([outcome])


def _of_cell(claim: Claim, held: bool) -> Verdict:
    """A cell may have found no more than that the claim is possible: then it stays not testable."""
    if held:
        return "not-testable" if claim.verdict == "not-testable" else "holds"
    return claim.verdict if claim.verdict in ("expired", "false") else "false"


def check_document(name: str) -> Outcomes:
    """Execute every claim of a document whose tests stand in the register.

    Raises:
        SparkbookError: there is no such document, or an outcome is not the register's verdict.
    """
    if name not in registers():
        raise SparkbookError(f"no document is called '{name}'; there are {', '.join(registers())}")
    return Outcomes(
        [
            one
            for claim in registers()[name].claims
            if claim.test
            for one in check(claim.id).outcomes
        ]
    )


class Checks:
    """The claims of a document that the cells of one chapter check, and what they found.

    >>> checks = Checks("nvfp4")
    >>> checks({"nvfp4-cores": (True, "OMMA for sm_121f")})
    nvfp4-cores: holds
    """

    def __init__(self, document: str) -> None:
        """Raises SparkbookError if there is no such document."""
        if document not in registers():
            raise SparkbookError(
                f"no document is called '{document}'; there are {', '.join(registers())}"
            )
        self.claims = {claim.id: claim for claim in registers()[document].claims}
        self.verdicts: dict[str, Verdict] = {}

    def __call__(self, found: Mapping[str, tuple[bool, str]]) -> Outcomes:
        """Takes what a cell found of some claims: whether it is as claimed, and the cell's words
        for it; see `check`.

        Raises:
            SparkbookError: a claim is not the document's, or the verdict that follows is not the
                register's.
        """
        if foreign := [name for name in found if name not in self.claims]:
            raise SparkbookError(f"the document has no claim {', '.join(foreign)}")
        outcomes = Outcomes(
            [
                one
                for name, (held, evidence) in found.items()
                for one in check(name, held, evidence).outcomes
            ]
        )
        self.verdicts |= {one.claim.id: one.verdict for one in outcomes.outcomes}
        return outcomes

    @property
    def unchecked(self) -> list[str]:
        """Executable claims without tests of their own that no cell has checked."""
        return [
            name
            for name, claim in self.claims.items()
            if claim.executable and not claim.test and name not in self.verdicts
        ]

    def summary(self, title: str) -> Any:
        """Every claim that the chapter uses and whose source's title begins so: its verdict,
        whether a cell or a source gave it, how.
        """
        from IPython.display import HTML

        chapters = {self.claims[name].executed_by for name in self.verdicts}
        rows = [
            (
                _code_text(claim.statement),
                verdict_badge(claim.verdict),
                "cell" if name in self.verdicts else "read",
                _linked(claim.check),
            )
            for name, claim in self.claims.items()
            if claim.source.title.startswith(title) and chapters.intersection(claim.where)
        ]
        return HTML(_table(("claim", "verdict", "by", "how"), rows))


# What was executed
# ---------------------------------------------------------------------------------------------------------------------


def reported(notebook: dict[str, Any]) -> dict[str, str]:
    """The claims that an executed notebook reports: id to verdict."""
    found: dict[str, str] = {}
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            for entry in output.get("data", {}).get(MIME, []):
                found[entry["id"]] = entry["verdict"]
    return found


def unreported(
    notebooks: dict[str, dict[str, Any]], claims: Iterable[Claim] | None = None
) -> list[str]:
    """What is wrong with the record: executable claims that the chapter named does not report, or
    with another verdict.

    Args:
        notebooks: executed notebooks by name (`18_claims`).
        claims: those to look for; all.
    """
    problems = []
    for claim in every() if claims is None else claims:
        if claim.executable:
            said = (
                reported(notebooks[claim.executed_by or ""])
                if claim.executed_by in notebooks
                else {}
            )
            if claim.id not in said:
                problems.append(
                    f"claim {claim.id} is executable, and {claim.executed_by} did not report it in"
                    " this build"
                )
            elif said[claim.id] != claim.verdict:
                problems.append(
                    f"claim {claim.id}: the register says {claim.verdict}, {claim.executed_by}"
                    f" reported {said[claim.id]}"
                )
    return problems


# Figures in chapters
# -------------------------------------------------------------------------------------------------------------------

_UNITS = (
    r"tok/s|tokens/s|t/s|[GTM]B/s|Gb/s|[KMGT]i?B|TFLOPS?|%|minutes?|min|seconds?|m?s|GPUs?|times|×"
)
_FIGURE = re.compile(
    r"(?<![\w.#/-])(?P<value>\d[\d,]*(?:\.\d+)?(?:(?: to | of |–|-| or"
    rf" )\d[\d,]*(?:\.\d+)?)?)(?P<space>[ -]?)(?P<unit>{_UNITS})(?![\w/])"
)
_NOT_PROSE = re.compile(r"`[^`\n]*`|\$[^$]+\$|^>.*$|^\s*\|?[\s|:-]+\|?$", re.MULTILINE)


def strays(text: str) -> Iterator[tuple[str, str]]:
    """The figures with a unit in a piece of prose that say nothing of where they come from, each
    with its line.

    A figure is accounted for if it is drawn from the register, or its paragraph, list item or table
    row links to a source of its own; the register's documents are none, since what comes from them
    is drawn. Code, formulas and quotations (`>`) are no prose.
    """
    documents = tuple({claim.source.url: None for claim in every()})
    fenced = False
    for block in re.split(r"\n\s*\n|\n(?=\s*[-*|] ?)|\n(?=\d+\. )|(?<=\n)(?=```)", text):
        marks = len(re.findall(r"^```|^:::", block, re.MULTILINE))
        if fenced or block.lstrip().startswith("```"):
            fenced ^= marks % 2 == 1
            continue
        prose = _NOT_PROSE.sub(" ", LINK.sub(" ", block))
        if any(not url.startswith(documents) for url in re.findall(r"\]\((https?:[^)\s]+)", prose)):
            continue
        for match in _FIGURE.finditer(prose):
            yield match[0], " ".join(block.split())


def typed(code: str) -> Iterator[tuple[str, str]]:
    """The numbers in a cell's code that are figures of the register, typed instead of drawn, each
    with the claim.

    Only numbers with a point and three digits that say something: 64.0 is a figure; 64, 0.85 and
    1000.0 may be anything.
    """
    import ast

    points = {
        one.number: claim.id
        for claim in every()
        for one in claim.figures
        if isinstance(one.value, int | float) or _is_point(one.value)
    }
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a magic line: no Python
        return
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, float)
            and node.value in points
        ):
            digits = repr(node.value).replace(".", "").lstrip("0")
            if len(digits) > 2 and digits.strip("0") != "1":
                yield ast.unparse(node), points[node.value]


def _is_point(text: str) -> bool:
    return re.fullmatch(r"\d+\.\d+", text) is not None


_CLAIM_NOTE = re.compile(r"= (?P<value>[\d_.]+)  # .*\(claim (?P<id>[\w.-]+)\)$")


class Exempt(_Strict):
    """Figures of a chapter that need not be drawn, and why."""

    chapter: str
    figures: list[str]
    reason: str


def exempt(path: Path | None = None) -> list[Exempt]:
    """What `book/figures.yaml` lists."""
    from sparkbook.runner.project import here

    path = path or here().root / "book" / "figures.yaml"
    return [Exempt.model_validate(entry) for entry in own_yaml.read(path)]


def unaccounted(
    name: str, notebook: dict[str, Any], exempted: Iterable[Exempt]
) -> tuple[list[str], set[str]]:
    """The figures of a chapter that come from nowhere, and the exemptions that it used.

    A parameter, which has to be a plain literal, names its claim in the comment:
    `= 273.0  # … (claim guide-bandwidth)`.
    """
    excused = {text for entry in exempted if entry.chapter == name for text in entry.figures}
    problems, used = [], set()
    for number, cell in enumerate(notebook["cells"]):
        found: list[tuple[str, str]] = []
        if cell["cell_type"] == "markdown":
            problems += [
                f"{name}, cell {number}: {problem}" for problem in wrong_links(cell["source"])
            ]
            found = list(strays(cell["source"]))
        elif "parameters" in cell["metadata"].get("tags", []):
            for line in cell["source"].splitlines():
                if note := _CLAIM_NOTE.search(line):
                    numbers = [
                        one.number
                        for one in get(note["id"]).figures
                        if not isinstance(one.value, str) or _is_point(one.value)
                    ]
                    if float(note["value"]) not in numbers:
                        problems.append(
                            f"{name}, cell {number}: {note['value']} is not the figure of"
                            f" {note['id']}"
                        )
                else:
                    found += list(typed(line))
        else:
            found = list(typed(cell["source"]))
        for text, line in found:
            if text in excused:
                used.add(text)
            else:
                problems.append(
                    f"{name}, cell {number}: '{text}' comes from nowhere ({line[:100]})"
                )
    return problems, used


def write_figures(text: str) -> str:
    """The text with every drawn figure in the register's words.

    A link that names a figure of several: `…/dflash.yaml#dflash-code-c1`; where the claim has more
        than one figure, the text in the
    brackets has to be one of them and is left.
    """

    def one(match: re.Match[str]) -> str:
        claim = get(match["id"])
        if len(claim.figures) == 1:
            return match[0].replace(f"[{match['text']}]", f"[{claim.figure}]", 1)
        return match[0]

    return LINK.sub(one, text)


def wrong_links(text: str) -> list[str]:
    """Drawn figures that are not in the register, or not in its words."""
    problems = []
    for match in LINK.finditer(text):
        try:
            claim = get(match["id"])
        except SparkbookError as error:
            problems.append(str(error))
            continue
        if match["file"] not in registers() or claim not in registers()[match["file"]].claims:
            problems.append(f"{claim.id} does not stand in {match['file']}.yaml")
        if claim.figures and match["text"] not in [str(one) for one in claim.figures]:
            problems.append(
                f"'{match['text']}' is drawn from {claim.id}, which says"
                f" {', '.join(map(str, claim.figures))}"
            )
    return problems


def on_site(text: str, up: str = "../", seen: set[str] | None = None) -> str:
    """Prose with its drawn figures as links to the claims' rows.

    Args:
        text: Markdown.
        up: way to the site's root.
        seen: claims that the page has drawn before; the first figure of each claim gets an address,
            which the claim's row links to.
    """

    def one(match: re.Match[str]) -> str:
        address = ""
        if seen is not None and match["id"] not in seen:
            seen.add(match["id"])
            address = f'id="from-{match["id"]}" '
        return (
            f'<a {address}class="sb-claim"'
            f' href="{up}{PAGE}.html#{match["id"]}">{html.escape(match["text"])}</a>'
        )

    return LINK.sub(one, text)


@functools.cache
def drawn() -> dict[str, list[str]]:
    """The chapters whose prose draws a figure of a claim, by the claim's id."""
    from sparkbook.runner import notebooks
    from sparkbook.runner.project import here

    found: dict[str, list[str]] = {}
    for path in here().chapters():
        text = "\n".join(
            cell["source"]
            for cell in notebooks.read(path)["cells"]
            if cell["cell_type"] == "markdown"
        )
        for name in dict.fromkeys(match["id"] for match in LINK.finditer(text)):
            found.setdefault(name, []).append(path.stem)
    return found


def used_by(place: str) -> list[Claim]:
    """The claims that a chapter or a recipe's page (`models/…`) uses."""
    return [
        claim for claim in every() if place in claim.where or place in drawn().get(claim.id, ())
    ]


def uses(place: str, up: str = "../") -> str:
    """The claims that a page uses, as a folded list for its end; empty where there is none."""
    found = used_by(place)
    if not found:
        return ""
    address = f"{up}{PAGE}.html"
    items = "".join(
        f'<li><a href="{address}#{claim.id}">{claim.id}</a> {verdict_badge(claim.verdict)}'
        f" {_code_text(claim.statement)}</li>"
        for claim in found
    )
    return (
        f'<details class="sb-uses"><summary>{len(found)} claims of the register that this page'
        f" uses</summary><ul>{items}</ul></details>"
    )


# The page ------------------------------------------------------------------------------------------------------------------------------


def _code_text(text: str) -> str:
    """Escaped, with `code` in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table for a cell's output; head and rows are HTML."""
    top = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        '<div class="sb-scroll"><table'
        f' class="table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def verdict_badge(verdict: str) -> str:
    """The verdict as a coloured word."""
    return f'<span class="sb-verdict sb-verdict-{verdict}">{verdict.replace("-", " ")}</span>'


def counts(claims: Iterable[Claim]) -> dict[Verdict, int]:
    """How many claims have which verdict."""
    kept = list(claims)
    return {verdict: sum(1 for claim in kept if claim.verdict == verdict) for verdict in VERDICTS}


def register_page() -> str:
    """The register as a page: one table that can be sorted and filtered, a row a claim, with an
    address each.
    """
    kept = every()
    words = {
        "holds": "hold",
        "not-testable": "can't be tested here",
        "expired": "have expired",
        "false": "were false",
    }
    said = ", ".join(f"{count} {words[verdict]}" for verdict, count in counts(kept).items())
    executed = sum(1 for claim in kept if claim.executable)
    lines = [
        "# Claims register",
        "",
        (
            "What the documents that this book starts from say, in our words, and what became of"
            f" it: {len(kept)} claims, {said}. {executed} of them are executed whenever this book"
            f" is built ({{doc}}`../notebooks/{RUNS}` and the chapters named). *Holds*: checked,"
            " and so. *Expired*: was so at the time, is no longer. *False*: was not so. *Not"
            " testable*: not without a Spark, or not at all; such a figure is shown as what its"
            " source says, and where a check could refute it, it passed."
        ),
        "",
        "The documents:",
        "",
        "```{raw} html",
        "<ul>",
    ]
    documents: dict[str, list[Claim]] = {}
    for claim in kept:
        documents.setdefault(document(claim), []).append(claim)
    for name, found in documents.items():
        source, date = found[0].source, max(claim.date for claim in found)
        link = f'<a href="{html.escape(source.url)}">{html.escape(source.title)}</a>'
        lines.append(
            f'<li id="source-{name}"><code>{name}</code>: {link}, {source.date}: {len(found)}'
            f" claims, checked on {date}"
        )
    places = {
        place: f"p{number}"
        for number, place in enumerate(
            sorted({place for claim in kept for place in _places(claim)})
        )
    }
    head = ["Claim", "Verdict", "Figures", "How checked", "Executed", "Source", "Used in"]
    top = "".join(f'<th scope="col">{text}' for text in head)
    table = (
        '<div class="sb-scroll"><table class="table sb-table sb-record sb-claims"'
        ' data-example="false gemma">'
    )
    table += f"<thead><tr>{top}</thead><tbody>"
    fields = {
        "verdict": {verdict: verdict.replace("-", " ") for verdict in VERDICTS},
        "document": {name: name for name in documents},
        "page": {short: place for place, short in places.items()},
    }
    # No closing tags in the table, and short classes: HTML needs no more, and the page stays light.
    return "\n".join(
        [
            *lines,
            "</ul>",
            _selects(fields),
            table,
            *(_row(claim, places) for claim in kept),
            "</table></div>",
            "```",
            "",
        ]
    )


def document(claim: Claim) -> str:
    """The document that a claim is from, as the outline calls it; the forum's thread shares a file
    with a README.
    """
    if claim.source.title.startswith("NVIDIA forum"):
        return "thread"
    return next(name for name, register in registers().items() if register.source == claim.source)


def _selects(fields: Mapping[str, Mapping[str, str]]) -> str:
    """A choice for each field, by the class that its rows have. The style sheet hides the other
    rows, so it works without a script.
    """
    rules, selects = [], []
    for field, choices in fields.items():
        options = "".join(
            f'<option value="{value}">{html.escape(text)}</option>'
            for value, text in choices.items()
        )
        selects.append(
            f'<label>{field.capitalize()} <select class="sb-by-{field}"><option'
            f' value="">all</option>{options}</select></label>'
        )
        rules += [
            f'body:has(.sb-by-{field} [value="{value}"]:checked) .sb-claims tbody'
            f" tr:not(.{value}){{display:none}}"
            for value in choices
        ]
    return (
        f'<style>{"".join(rules)}</style><form class="sb-narrow" aria-label="Narrow the'
        f' register">{"".join(selects)}</form>'
    )


def _places(claim: Claim) -> list[str]:
    """The pages that use a claim and are in this book."""
    return [
        place
        for place in dict.fromkeys([*claim.where, *drawn().get(claim.id, ())])
        if _exists(place)
    ]


def _row(claim: Claim, places: Mapping[str, str]) -> str:
    shown = [html.escape(f"{one.name}: {one}" if one.name else str(one)) for one in claim.figures]
    shown += [
        f"<code>{html.escape(name)} {html.escape(value)}</code>"
        for name, value in claim.stated_settings
    ]
    for recipe, what in ((claim.line, "line"), (claim.scores, "scores")):
        if recipe:
            name = recipe.partition("@")[0]
            shown.append(f'<a href="../models/{name}.html">{what} of {name}</a>')
    ran = (
        f'<a href="../notebooks/{claim.executed_by}.html">{claim.executed_by}</a>'
        if claim.executed_by
        else "no"
    )
    used = (
        ", ".join(
            f'<a href="../{_home(place)}.html{_from(claim, place)}">{html.escape(place)}</a>'
            for place in _places(claim)
        )
        or "–"
    )
    name = document(claim)
    cells = [
        f'<a href="#{claim.id}"><code>{claim.id}</code></a><p>{_code_text(claim.statement)}',
        verdict_badge(claim.verdict),
        "<br>".join(shown) or "–",
        _linked(claim.check),
        ran,
        (
            f'<a href="#source-{name}">{name}</a>{html.escape(f", {claim.section}" if claim.section else "")}'
        ),
        used,
    ]
    classes = [claim.verdict, name, *(places[place] for place in _places(claim))]
    return f'<tr id="{claim.id}" class="{" ".join(classes)}"><td>{"<td>".join(cells)}'


def _from(claim: Claim, place: str) -> str:
    """The place in a chapter that draws the claim's figure."""
    return f"#from-{claim.id}" if place in drawn().get(claim.id, ()) else ""


def _home(place: str) -> str:
    return place if "/" in place else f"notebooks/{place}"


@functools.cache
def _exists(place: str) -> bool:
    """Whether the page of a place is in this book: a chapter or a recipe's page."""
    from sparkbook import recipes
    from sparkbook.runner.project import here

    if place.startswith("models/"):
        return place.removeprefix("models/") in recipes.ids()
    return (here().root / "notebooks" / f"{place}.ipynb").is_file()


def _linked(text: str) -> str:
    """Escaped, with code and with addresses as links."""
    return re.sub(
        r"https://[^\s)]+[^\s).,;:]",
        lambda match: f'<a href="{match[0]}">{match[0].removeprefix("https://")}</a>',
        _code_text(text),
    )
