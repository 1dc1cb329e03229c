"""What a conversion gives: the recipe or the text, and the loss report, findings of the family
CONV.

The report of a writer is measured and not declared: what was written is read again, and whatever
does not come back as it was is listed. The report of a reader is what it could not keep, what it
had to choose, and what it guessed. A key that no field of a recipe holds is kept under `foreign`,
by the format's name, and written out again when the recipe goes back to that format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sparkbook.findings import Finding, Findings
from sparkbook.formats.rules import CONV
from sparkbook.launch.lexer import show
from sparkbook.launch.line import kept_aside
from sparkbook.rules import sentence

if TYPE_CHECKING:
    from sparkbook.recipes.launch import Launch
    from sparkbook.recipes.schema import Recipe


def finding(
    code: str, message: str, evidence: str | None = None, fix: str | None = None
) -> Finding:
    """Return an entry of a loss report."""
    return CONV[code].finding(
        sentence(show(message)), evidence and show(evidence), fix and sentence(fix)
    )


@dataclass
class Notes:
    """The notes of a reader, collected while it reads.

    Attributes:
        entries: of the report.
        guessed: places in the recipe that the input does not vouch for.
        foreign: what the format says and a recipe has no field for.
    """

    entries: list[Finding] = field(default_factory=list)
    guessed: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, Any] = field(default_factory=dict)

    def add(
        self, code: str, message: str, evidence: str | None = None, fix: str | None = None
    ) -> None:
        """Add an entry, once."""
        entry = finding(code, message, evidence, fix)
        if entry not in self.entries:
            self.entries.append(entry)

    def keep(
        self,
        data: Mapping[str, Any],
        known: set[str],
        place: str = "",
        into: dict[str, Any] | None = None,
    ) -> None:
        """Keep every key of a mapping that is not read: a known one is reported as kept aside, any
        other as unknown.

        Args:
            data: what was not read.
            known: keys that the format has.
            place: the path of the mapping, for messages.
            into: where to keep it; left out, at the top of `foreign`.
        """
        (self.foreign if into is None else into).update(
            {str(key): value for key, value in data.items()}
        )
        for remark in kept_aside(data, known, place):
            self.add(str(remark.code), remark.message)

    def guess(self, place: str, value: str) -> None:
        """Remember that a place of the recipe was filled by guessing."""
        self.guessed[place] = value


@dataclass(frozen=True)
class Conversion:
    """What was read.

    Attributes:
        format: the name of the format.
        recipe: the recipe.
        findings: the loss report.
        text: what was read.
        guessed: places in the recipe that the input does not vouch for, such as
            `model.quantization`.
    """

    format: str
    recipe: Recipe
    findings: Findings
    text: str = field(repr=False, default="")
    guessed: tuple[str, ...] = ()

    @property
    def launch(self) -> Launch:
        """What is started."""
        return self.recipe.launch


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        format: the name of the format.
        text: the written form.
        findings: the loss report.
        lost: places in the recipe that do not come back when the text is read, such as
            `container.volumes`.
    """

    format: str
    text: str
    findings: Findings
    lost: tuple[str, ...] = ()


_NESTED = {
    "model",
    "image",
    "container",
    "serve",
    "draft",
    "benchmarks",
    "capabilities",
    "topology",
    "env",
    "foreign",
}
_START = ("image.ref", "image.digest", "image.entrypoint", "container", "serve", "env", "foreign")


def leaves(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe's fields that are not at their default, by place: `container.volumes`,
    `serve.args.port`, `env.HF_TOKEN`.
    """
    places: dict[str, Any] = {}
    for key, value in recipe.model_dump(mode="json", exclude_defaults=True).items():
        if key not in _NESTED or not isinstance(value, dict):
            places[key] = value
            continue
        for name, item in value.items():
            if key == "serve" and name == "args":
                places |= {f"serve.args.{option}": word for option, word in item.items()}
            elif item is not None or key == "env":
                places[f"{key}.{name}"] = item
    places.setdefault(
        "serve.model",
        recipe.serve.model or (None if recipe.serve.command is not None else recipe.model.repo),
    )
    return places


Change = Literal["lost", "changed", "added"]


def changes(before: Recipe, after: Recipe) -> dict[str, Change]:
    """Return places at which two recipes differ, and how, in the order of the first."""
    one, two = leaves(before), leaves(after)
    differences: dict[str, Change] = {
        place: "changed" if place in two else "lost"
        for place in one
        if place not in two or two[place] != one[place]
    }
    return differences | {place: "added" for place in two if place not in one}


def _gone(before: Any, after: Any) -> Any:
    """Return those of several volumes or options that are not there any more."""
    several = isinstance(before, list) and isinstance(after, list)
    return [one for one in before if one not in after] if several else None


def report(name: str, title: str, text: str, before: Recipe, back: Conversion) -> Written:
    """Return the loss report of a written form: what reading it again doesn't give back.

    Args:
        name, title: of the format.
        text: what was written.
        before: the recipe that was written.
        back: what reading the text gives.
    """
    entries: list[Finding] = []
    facts: list[str] = []
    lost: list[str] = []
    one, two = leaves(before), leaves(back.recipe)
    for place, change in changes(before, back.recipe).items():
        lost.append(place)
        gone = one[place] if change == "lost" else _gone(one.get(place), two.get(place))
        if not place.startswith(_START):
            facts.append(place)
        elif change == "lost" or gone:
            entries.append(
                finding("CONV101", f"The {title} has no place for {place}.", _shown(place, gone))
            )
        elif change == "changed":
            entries.append(
                finding(
                    "CONV102",
                    f"The {title} writes {place} differently.",
                    f"{_shown(place, one[place])} becomes {_shown(place, two[place])}",
                )
            )
        else:
            entries.append(
                finding("CONV102", f"The {title} adds {place}.", _shown(place, two[place]))
            )
    vouched = [place for place in facts if place not in back.guessed or place in one]
    if vouched:
        entries.append(
            finding(
                "CONV103",
                f"The {title} leaves out {len(vouched)} facts.",
                ", ".join(vouched),
                "Keep the recipe together with it.",
            )
        )
    return Written(name, text, Findings(entries), tuple(lost))


def _shown(place: str, value: Any) -> str:
    """Return a value for a report; a variable's is not shown."""
    if place.startswith("env."):
        return "passed on from the caller" if value is None else "set"
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
