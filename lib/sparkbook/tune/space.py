"""What may be tried: the options of `space.yaml`, and the candidates that follow for a recipe."""

from __future__ import annotations

import datetime
import functools
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sparkbook import recipes
from sparkbook.bench.sweep import with_args
from sparkbook.errors import SparkbookError
from sparkbook.recipes import Recipe
from sparkbook.recipes.schema import Image
from sparkbook.releases import images
from sparkbook.util import documents, invalid, limits

FILE = Path(__file__).with_name("space.yaml")
BASELINE = "baseline"
"""Key of the candidate that changes nothing."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Load(_Entry):
    """What a candidate is measured with.

    Attributes:
        classes: of prompts, as `bench.prompts` knows them.
        concurrency: requests at a time. max_tokens: length of a reply.
        shared: tokens with which all prompts begin alike, for the prefix cache to find; 0: none.
    """

    classes: tuple[str, ...] = Field(min_length=1)
    concurrency: int = Field(ge=1, le=1000)
    max_tokens: int = Field(ge=1)
    shared: int = Field(0, ge=0)


class Use(_Entry):
    """What a server is tuned for.

    Attributes:
        text: in words.
        changes: options that a candidate may change at once.
        load: what it is measured with.
    """

    text: str
    changes: int = Field(ge=1, le=6)
    load: Load


class Source(_Entry):
    """Where it is said that an option may help, and when that was read."""

    url: str = Field(pattern=r"^https://\S+$")
    date: datetime.date


class Option(_Entry):
    """One thing that may be changed.

    Attributes:
        why: why it may help. source: who says so.
        values: changes of the recipe's arguments, of which a candidate takes one at most.
        needs: an option that the recipe has to have.
        image: only recipes that run in an image.
        mixture: only models with experts.
        uses: only for these uses; empty: for all.
        lossless: whether answers stay as they are.
        start: whether it changes how long a start takes, and nothing else.
        only: by argument, the values that a recipe may have; None: it does not have the argument.
        catalogue: take the other images of the catalogue as values too.
    """

    why: str
    source: Source
    values: tuple[dict[str, Any], ...] = ()
    needs: str | None = None
    image: bool = False
    mixture: bool = False
    uses: tuple[str, ...] = ()
    lossless: bool = True
    start: bool = False
    only: dict[str, tuple[str | None, ...]] = Field(default_factory=dict)
    catalogue: bool = False

    @model_validator(mode="after")
    def _something(self) -> Option:
        if not self.values and not self.catalogue:
            raise ValueError("it has no values")
        return self

    def why_not(self, recipe: Recipe, use: str) -> str | None:
        """Return why it does not apply to a recipe; None: it does."""
        if self.uses and use not in self.uses:
            return f"not for the use '{use}'"
        if self.needs and self.needs not in recipe.serve.args:
            return f"the recipe has no {self.needs}"
        if self.image and recipe.image is None:
            return "the embedded engine has no GPU"
        if self.mixture and not recipe.model.mixture_of_experts:
            return "the model has no experts"
        for name, values in self.only.items():
            if (own := recipe.serve.args.get(name)) not in values:
                return f"the recipe has --{name} {own}"
        return None


class Space(_Entry):
    """All that may be tried."""

    uses: dict[str, Use]
    options: dict[str, Option]

    @model_validator(mode="after")
    def _known_uses(self) -> Space:
        for name, option in self.options.items():
            if unknown := set(option.uses) - set(self.uses):
                raise ValueError(f"{name} is for {', '.join(sorted(unknown))}, which is no use")
        return self

    def use(self, name: str) -> Use:
        """Return a use by its name.

        Raises:
            SparkbookError: there is no such use.
        """
        if name not in self.uses:
            raise SparkbookError(f"Unknown use '{name}'. --for accepts: {', '.join(self.uses)}")
        return self.uses[name]

    @property
    def lossy(self) -> dict[str, bool]:
        """By option, whether it may change answers."""
        return {name: not option.lossless for name, option in self.options.items()}

    def of_start(self, candidate: Candidate) -> bool:
        """Return whether a candidate changes how long a start takes, and nothing else."""
        return any(self.options[name].start for name in candidate.changes)


@dataclass(frozen=True)
class Candidate:
    """The recipe with some options changed.

    Attributes:
        recipe: what would be started.
        changes: by option, the changed arguments; empty: the baseline.
    """

    recipe: Recipe
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)

    @functools.cached_property
    def key(self) -> str:
        """Its name: the changes in words; the same in every run."""
        words = [shown(change) for change in self.changes.values()]
        return " ".join(words) or BASELINE

    def contains(self, other: Candidate) -> bool:
        """Return whether it makes all changes of another candidate, and more."""
        mine, its = self.changes, other.changes
        return len(its) < len(mine) and all(mine.get(name) == its[name] for name in its)

    @property
    def image(self) -> str | None:
        """The image that it changes to; None: the recipe's stays."""
        return next((one["image"] for one in self.changes.values() if "image" in one), None)


def shown(change: dict[str, Any]) -> str:
    """Return a change as words of a launch line; an argument that is only removed has a `no`."""
    words = []
    for name, value in change.items():
        if value is None:
            words += [] if len(change) > 1 else [f"without --{name}"]
        elif value is True:
            words.append(f"--{name}")
        elif name == "image":
            words.append(f"image {value}")
        else:
            words.append(f"--{name} {json.dumps(value) if isinstance(value, dict) else value}")
    return " ".join(words)


def read(file: str | Path | None = None) -> Space:
    """Read a space; None: the project's own.

    Raises:
        SparkbookError: it can't be read, or is no space.
    """
    path = Path(file) if file is not None else FILE
    try:
        with limits.naming(path):
            return Space.model_validate(documents.parse(limits.read_text(path)))
    except ValidationError as error:
        raise SparkbookError(f"{path}: {invalid.reason(error)}") from None


def candidates(
    space: Space, recipe: Recipe, use: str, *, lossy: bool = False
) -> tuple[list[Candidate], dict[str, str]]:
    """Return the baseline and every candidate, those with the fewest changes first; and by option,
    why it is left out whole.

    Args:
        lossy: take options that change answers too.

    Raises:
        SparkbookError: there is no such use, or the recipe's arguments are not those of
            `vllm serve`.
    """
    most = space.use(use).changes
    if recipe.serve.command is not None:
        raise SparkbookError(
            f"{recipe.id} runs its image's own script, whose options can't be changed from here"
        )
    left_out: dict[str, str] = {}
    choices: list[list[tuple[str, dict[str, Any]]]] = []
    alone: list[dict[str, dict[str, Any]]] = []
    for name, option in space.options.items():
        why_not = option.why_not(recipe, use)
        if why_not is None and not option.lossless and not lossy:
            why_not = "it changes answers (--quality near tries it)"
        if why_not is not None:
            left_out[name] = why_not
            continue
        others = [{"image": ref} for ref in catalogue_images()] if option.catalogue else []
        new = [value for value in (*option.values, *others) if not _is_so(recipe, value)]
        if option.start:
            alone += [{name: value} for value in new]
        else:
            choices.append([(name, value) for value in new])
    found = [Candidate(recipe)]
    for count in range(1, most + 1):
        for several in itertools.combinations(choices, count):
            found += [changed(recipe, dict(one)) for one in itertools.product(*several)]
    return found + [changed(recipe, one) for one in alone], left_out


@functools.cache
def catalogue_images() -> dict[str, Image]:
    """Return the images of the catalogue that hold one known release, under a tag that stays; no
    forks, and none that is built on the machine.
    """
    found = {}
    for recipe in recipes.all():
        image = recipe.image
        if image is None or image.moving or not (image.vllm or "").startswith("=="):
            continue
        info = images.find(image.ref)
        if info and not (info.moving or info.fork or info.local):
            found[image.ref] = image
    return found


def changed(recipe: Recipe, changes: dict[str, dict[str, Any]]) -> Candidate:
    """Return a recipe with changes by option.

    Raises:
        SparkbookError: a change is of a key of a JSON option that the recipe lacks.
    """
    args = dict(_whole(recipe, changes))
    if ref := args.pop("image", None):
        recipe = recipe.model_copy(update={"image": catalogue_images().get(ref) or Image(ref=ref)})
    return Candidate(with_args(recipe, args), changes)


def _whole(recipe: Recipe, changes: dict[str, dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the changed arguments; a changed key of a JSON option gives the whole option."""
    for change in changes.values():
        for name, value in change.items():
            option, _, key = name.partition(".")
            if not key:
                yield option, value
                continue
            config = recipe.serve.args.get(option)
            if not isinstance(config, dict):
                raise SparkbookError(f"{recipe.id} has no JSON option --{option} to change")
            yield option, {**config, key: value}


_ALIKE = {"load-format": ("auto", "safetensors")}
"""Values that come to the same as none: vLLM looks for safetensors first."""


def _is_so(recipe: Recipe, change: dict[str, Any]) -> bool:
    """Return whether the recipe already says what a change would say."""
    new = changed(recipe, {"": change}).recipe
    return _said(new) == _said(recipe)


def _said(recipe: Recipe) -> tuple[Any, dict[str, Any]]:
    args = {k: v for k, v in recipe.serve.args.items() if v not in _ALIKE.get(k, ())}
    return recipe.image.ref if recipe.image else None, args
