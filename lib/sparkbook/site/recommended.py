"""Which recipe first: what others recommend for a Spark (`book/data/recommended.yaml`), who wrote a
recipe, and when.
"""

from __future__ import annotations

import datetime
import functools
from dataclasses import dataclass

from sparkbook.recipes import Recipe, names
from sparkbook.recipes.schema import Source
from sparkbook.site import book_data


@dataclass(frozen=True)
class Recommendation:
    """A recipe that somebody recommends: who and why, where that is written, when it was read."""

    recipe: str
    who: str
    why: str
    url: str
    date: datetime.date


@functools.cache
def recommended() -> tuple[Recommendation, ...]:
    """Return all of them, the first first."""
    return tuple(book_data.load("recommended", list[Recommendation]))


_PUBLISHERS = {
    "guide": "F. Vlaicu's guide",
    "nvidia": "NVIDIA",
    "script": "NVIDIA",
    "eugr": "eugr",
    "arena": "Spark Arena",
    "recipes": "vLLM recipes",
    "atlas": "inference-atlas",
    "owner": "eugr",
    "avarok": "Avarok",
    "aeon": "AEON-7",
}
"""Who publishes the launch line, by the id of a recipe's source; the guide only where its section
is named.
"""


def line_source(recipe: Recipe) -> tuple[str, Source]:
    """Return who published a recipe's launch line, and the source that says so."""
    known = {source.id: source for source in recipe.sources}
    if recipe.guide_section is None:
        known.pop("guide", None)
    for name, who in _PUBLISHERS.items():
        if name in known:
            return who, known[name]
    first = recipe.sources[0]
    return first.title, first


def order(recipe: Recipe, memory_gb: int = 128) -> tuple[bool, int, int, bool, int, int, float]:
    """Return where a recipe belongs in a list: obsolete ones last, one Spark before several, models
    that are recommended first, with the recipe for this memory first, then the newest source and
    the highest published speed.
    """
    place = [one.recipe for one in recommended()]
    models = [names.model_of(one) for one in place]
    model = names.model_of(recipe.id)
    source, figure = line_source(recipe)[1], recipe.benchmarks.best
    return (
        recipe.successor is not None,
        recipe.topology.nodes,
        models.index(model) if model in models else len(models),
        recipe.topology.memory_gb != memory_gb,
        place.index(recipe.id) if recipe.id in place else len(place),
        -(source.date.toordinal() if source.date else 0),
        -((figure and figure.best_tok_s) or 0),
    )
