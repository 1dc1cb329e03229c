"""A fleet of servers that are not there: each candidate has a true speed, and what goes wrong is
said by the test.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkbook import recipes
from sparkbook.bench import BENCH
from sparkbook.bench.load import BenchPlan
from sparkbook.bench.results import Cell, Report, Request, figures
from sparkbook.findings import Finding
from sparkbook.recipes import Recipe
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.engine import EngineError
from sparkbook.tune import space as spaces
from sparkbook.tune.halving import Tuning
from sparkbook.tune.journal import Journal
from sparkbook.tune.measuring import Plans, Starter
from sparkbook.tune.space import Candidate

RECIPE = recipes.load("embedded/tiny-mtp-k1")
SPACE = spaces.read()
LOAD = SPACE.use("users").load


@functools.cache
def candidates(changes: int = 2) -> list[Candidate]:
    """Return what the project's space makes of the recipe, with so many changes at most."""
    use = SPACE.use("users").model_copy(update={"changes": changes})
    space = SPACE.model_copy(update={"uses": {"users": use}})
    return spaces.candidates(space, RECIPE, "users")[0]


@functools.cache
def loaders() -> list[Candidate]:
    """Return two candidates that differ in their start alone."""
    return [
        spaces.changed(RECIPE, {"loader": {"load-format": name}})
        for name in ("fastsafetensors", "instanttensor")
    ]


class Server:
    """What a start gives."""

    def __init__(self, key: str):
        self.key = key
        self.endpoint = Endpoint("http://127.0.0.1:9", key)
        self.running = True
        self.log_file = Path("/nowhere")


@dataclass
class Fleet:
    """Attributes:
    gains: by option and value, the factor of speed; all others are 1.
    changes: options that a candidate changes at most.
    spread: of one prompt's speed, as a share.
    wrong: by key, findings of the gate that each measurement gets.
    dead: keys that do not start.
    start_s: by key, seconds of a start; all others take a minute.
    stop: called with each start's key, before it.
    log: starts and stops.
    """

    gains: dict[str, float] = field(default_factory=dict)
    changes: int = 2
    spread: float = 0.02
    wrong: dict[str, str] = field(default_factory=dict)
    dead: dict[str, str] = field(default_factory=dict)
    start_s: dict[str, float] = field(default_factory=dict)
    stop: Callable[[str, int], None] = lambda _key, _count: None
    factor: Callable[[str, int], float] = lambda _key, _count: 1.0
    log: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    now: float = 0.0

    def key(self, recipe: Recipe) -> str:
        """Return the name of the candidate with this recipe."""
        known = (*candidates(self.changes), *loaders())
        return next(one.key for one in known if one.recipe.serve == recipe.serve)

    @contextlib.contextmanager
    def start(self, recipe: Recipe) -> Iterator[Any]:
        """Start a server."""
        key = self.key(recipe)
        self.stop(key, len(self.log))
        self.now += self.start_s.get(key, 60)
        if key in self.dead:
            raise EngineError(self.dead[key])
        self.log.append(key)
        server = Server(key)
        try:
            yield server
        finally:
            server.running = False

    def speed(self, key: str) -> float:
        """Return the true speed of a candidate, tokens a second."""
        (one,) = (one for one in candidates(self.changes) if one.key == key)
        speed = 100.0
        for change in one.changes.values():
            speed *= self.gains.get(spaces.shown(change), 1.0)
        return speed

    def measure(self, endpoint: Endpoint, plan: BenchPlan, _recipe: Recipe) -> Report:
        """Measure; a second for each request."""
        key = endpoint.model
        count = Counter(self.log)[key]
        rng = random.Random(f"{key} {count} {plan.salt}")
        cells = []
        for name in plan.classes:
            requests = []
            for prompt in plan.prompts(name, plan.requests or 0, salt=None):
                speed = self.speed(key) * self.factor(key, count) * rng.gauss(1, self.spread)
                requests.append(
                    Request(
                        prompt=prompt.id,
                        stamps_s=[0.1, 64 / speed],
                        latency_s=64 / speed,
                        output_tokens=64,
                    )
                )
            cell = Cell(
                prompt_class=name,
                concurrency=plan.concurrency[0],
                figures=figures(requests),
                requests=requests,
            )
            if key in self.wrong:
                rule = self.wrong[key]
                severity = BENCH.rules[rule].severity
                cell.findings = [
                    Finding(rule=rule, severity=severity, message="Something is wrong.")
                ]
            cells.append(cell)
            self.now += len(requests)
        return Report(date="2026-11-29", tool="sparkbook", model=key, cells=cells)

    def tuning(self, journal: Path | None = None, **more: Any) -> Tuning:
        """Return a tuning over this fleet."""
        starter = Starter(self.start, self.measure, self.said.append, lambda: self.now)
        return Tuning(
            candidates(self.changes),
            Plans(RECIPE, LOAD),
            Journal(journal, {"test": 1}),
            starter,
            **more,
        )
