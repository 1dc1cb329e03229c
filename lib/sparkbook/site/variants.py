"""The catalogue held to its images: each recipe as it was published, what the linter says of that,
and what a clean variant changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sparkbook import lint, plan, recipes
from sparkbook.findings import Finding, Findings
from sparkbook.recipes import Launch, Recipe


@dataclass(frozen=True)
class Held:
    """One recipe and its variants.

    Attributes:
        recipe: as the catalogue has it.
        published: what the linter says of the line as its source published it; of the recipe where
            it was taken over as it stood.
        clean: what it says of the lint-clean variant; None without one.
        changes: what the clean variant changes of the published line, in words.
    """

    recipe: Recipe
    published: lint.Report
    clean: lint.Report | None
    changes: tuple[str, ...]

    @property
    def complaints(self) -> list[Finding]:
        """Errors and warnings about the published line, one a rule."""
        grave = [finding for finding in self.published.findings if finding.severity != "info"]
        return list({finding.rule: finding for finding in grave}.values())

    def links(self, up: str = "../") -> str:
        """Return the complaints' codes, each a link to its rule's section, errors bold; `up` leads
        from the page to the site's root.
        """
        anchors = (f'<a href="{up}{f.why}">{f.rule}</a>' for f in self.complaints)
        marked = (
            f"**{a}**" if f.severity == "error" else a
            for a, f in zip(anchors, self.complaints, strict=True)
        )
        return " ".join(marked)


def held() -> list[Held]:
    """Return every recipe for a Spark, in the catalogue's order."""
    return [_held(recipe) for recipe in recipes.all() if recipe.family != "embedded"]


def triggered_rules(recipe: Recipe) -> list[str]:
    """List the linter's rules that a recipe triggers, as the catalogue has it or as its source
    published it.
    """
    reports = [lint.lint(recipe), lint.lint(variant(recipe, "as-published") or recipe)]
    return list(dict.fromkeys(finding.rule for report in reports for finding in report.findings))


def variant(recipe: Recipe, name: str) -> Recipe | None:
    """Return a variant of a recipe; None where it has none of that name."""
    return recipes.load(f"{recipe.id}@{name}") if recipe.variants.get(name) is not None else None  # type: ignore[call-overload]


def against(recipe: Recipe) -> Findings:
    """Return what speaks against the recipe's line as it is: errors and warnings of the linter and
    of the plan, and every known-bad combination, disputed ones included.
    """
    found = [*lint.lint(recipe).findings]
    if recipe.family != "embedded":
        found += plan.of(recipe.id).findings
    grave = {
        (one.rule, one.message): one
        for one in found
        if one.severity != "info" or one.rule.startswith("BAD")
    }
    return Findings(grave.values())


def _held(recipe: Recipe) -> Held:
    before = variant(recipe, "as-published") or recipe
    after = variant(recipe, "lint-clean")
    changes = tuple(differences(before.launch, after.launch)) if after else ()
    return Held(recipe, lint.lint(before), lint.lint(after) if after else None, changes)


def differences(before: Launch, after: Launch) -> Iterator[str]:
    """Yield each difference of two launches as a line: `gpu-memory-utilization 0.85 → 0.8`."""
    if (
        before.entrypoint == "command"
        and after.entrypoint == "vllm-serve"
        and before.image
        and recipes.entrypoint_of(before.image) != "command"
    ):
        yield "without the words vllm serve"
    yield from _changed({"image": before.image}, {"image": after.image})
    yield from _changed(
        before.container.model_dump(exclude_defaults=True),
        after.container.model_dump(exclude_defaults=True),
    )
    yield from _changed(before.env, after.env)
    yield from _changed(before.serve.args, after.serve.args)


def _changed(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            yield f"without {name}"
        elif name not in before:
            yield f"{name}{_value(after[name], ' ')}"
        elif before[name] != after[name]:
            yield f"{name}{_value(before[name], ' ')} → {_value(after[name])}"


def _value(value: Any, lead: str = "") -> str:
    if value is None:
        return " from the environment" if lead else "from the environment"
    return lead + (", ".join(map(str, value)) if isinstance(value, list) else str(value))
