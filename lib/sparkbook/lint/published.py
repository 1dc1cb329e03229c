"""Launch lines as they were published, judged beside the recipes that took their place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from sparkbook import lint, recipes
from sparkbook.formats import FORMATS

FILE = Path(__file__).parent / "published.yaml"


@dataclass(frozen=True)
class Published:
    """One published line and what became of it.

    Attributes:
        recipe: id of the recipe.
        line: the line as it was published, put together from the recipe and the recorded differences.
        before, after: what the linter says of the line, and of the recipe.
    """

    recipe: str
    line: str
    before: lint.Report
    after: lint.Report

    @property
    def cured(self) -> list[str]:
        """Codes of the rules that spoke about the line and no longer speak about the recipe."""
        left = {finding.rule for finding in self.after.findings}
        return list(dict.fromkeys(finding.rule for finding in self.before.findings if finding.rule not in left))


def published() -> list[Published]:
    """Every published line of which the differences are recorded."""
    data = yaml.safe_load(FILE.read_text("utf-8"))
    result = []
    for entry in data["lines"]:
        recipe = recipes.load(entry["recipe"])
        line = _line(recipe, entry)
        result.append(Published(recipe.id, line, lint.lint(line), lint.lint(recipe)))
    return result


def _line(recipe: recipes.Recipe, entry: dict[str, object]) -> str:
    launch = recipe.launch
    env = {name: value for name, value in launch.env.items() if name != "VLLM_API_KEY"}
    env |= entry.get("env", {})  # type: ignore[arg-type]
    container = launch.container.model_copy(update={"ports": ["8000:8000"]})
    text = FORMATS["docker"].write(launch.model_copy(update={"env": env, "container": container}))
    image = launch.image or ""
    return text.replace(f" {image} \\\n  ", f" {image} \\\n  vllm serve ", 1) if entry.get("doubled") else text
