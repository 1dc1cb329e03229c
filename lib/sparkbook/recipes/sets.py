"""Sets: servers that run side by side on one Spark, in the order of their starts.

>>> from sparkbook.recipes import sets
>>> [server.fraction for server in sets.load("two-chats").servers]
[0.5, 0.25]

A set says which share of the memory each server takes; all else is its recipe's. A test has the
planner check each server beside those that started before it.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, ValidationError, model_validator

from sparkbook.recipes.catalogue import RecipeError
from sparkbook.recipes.launch import Strict
from sparkbook.util import invalid, own_yaml

FOLDER = Path(__file__).parent / "sets"


class Server(Strict):
    """One server of a set."""

    recipe: str
    fraction: float = Field(gt=0, lt=1)
    port: int | None = Field(
        None, ge=1, le=65535, description="where not the recipe's; on the host"
    )
    why: str


class ServerSet(Strict):
    """Servers side by side, in the order of their starts."""

    id: str
    title: str
    summary: str
    servers: list[Server] = Field(min_length=2)

    @model_validator(mode="after")
    def _fractions(self) -> ServerSet:
        if (whole := sum(server.fraction for server in self.servers)) >= 1:
            raise ValueError(f"the fractions add up to {whole:g}, and there is one memory")
        return self


def ids() -> list[str]:
    """Every set's id."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def all() -> list[ServerSet]:
    """Every set."""
    return [load(name) for name in ids()]


def load(name: str) -> ServerSet:
    """The set with this id.

    Raises:
        RecipeError: no such set, or its file is not valid.
    """
    if name not in ids():
        raise RecipeError(f"there is no set '{name}'; there are {', '.join(ids())}")
    try:
        return ServerSet.model_validate(own_yaml.read(FOLDER / f"{name}.yaml"))
    except ValidationError as error:
        raise RecipeError(f"sets/{name}.yaml is not a valid set: {invalid.reason(error)}") from None
