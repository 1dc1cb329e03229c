"""What `sparkbook tune` does between its options and the library."""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from sparkbook import recipes
from sparkbook.bench import recording
from sparkbook.cluster import inventory
from sparkbook.errors import SparkbookError
from sparkbook.formats import own
from sparkbook.recipes import Recipe
from sparkbook.serve import docker_host, paths
from sparkbook.serve.faults import ServeFault
from sparkbook.tune import answer, measuring, without_start
from sparkbook.tune import space as spaces
from sparkbook.tune.answer import Answer, Asking
from sparkbook.tune.crew import Nodes
from sparkbook.tune.halving import Tuning
from sparkbook.tune.journal import Journal, read
from sparkbook.tune.measuring import Plans, Starter
from sparkbook.tune.space import Space
from sparkbook.tune.without_start import Pruned, Say
from sparkbook.util.files import write_text

QUALITIES = ("same", "near")


@dataclass(frozen=True)
class Wish:
    """What the user asked for; the fields are the options of `sparkbook tune`."""

    source: str
    use: str
    quality: str = "same"
    space: str | None = None
    release: str | None = None
    image: str | None = None
    hours: float = 8.0
    journal: str | None = None
    cluster: str | None = None
    seed: int = 0

    @property
    def near(self) -> bool:
        """Whether options may be tried that change answers."""
        return self.quality == "near"


def pruned(wish: Wish, say: Say) -> tuple[Recipe, Space, Pruned]:
    """Return the recipe, what may be tried, and what is left of it without a start.

    Raises:
        SparkbookError: an option can't be used, or vLLM refuses the recipe as it is.
    """
    if wish.quality not in QUALITIES:
        raise SparkbookError(
            f"Unknown quality '{wish.quality}'. --quality accepts: {', '.join(QUALITIES)}"
        )
    if wish.release and wish.image:
        raise SparkbookError("--release and --image can't be used together: an image has its own")
    space, recipe = spaces.read(wish.space), recipes.load(wish.source)
    if recipe.topology.nodes > 1:
        raise SparkbookError(f"{recipe.id} is for {recipe.topology.nodes} Sparks: tune one of one")
    found, left_out = spaces.candidates(space, recipe, wish.use, lossy=wish.near)
    ask = without_start.asker(found[0], wish.release, wish.image, say)
    refs = {str(one.recipe.launch.image) for one in found if one.image}
    rest = without_start.prune(found, ask, wish.release, _here(wish, refs))
    rest.options = left_out
    return recipe, space, rest


def _here(wish: Wish, refs: set[str]) -> set[str] | None:
    """Return those of some images that are on this machine, or on all nodes; None: a Docker engine
    does not answer.
    """
    nodes = inventory.read(wish.cluster).nodes if wish.cluster else ()
    for address in {node.docker for node in nodes} or {None} if refs else ():
        try:
            host = docker_host.reach(address)
        except ServeFault:
            return None
        with contextlib.closing(host):
            refs = {ref for ref in refs if docker_host.image_present(host.client, ref)}
    return refs


def journal_of(wish: Wish, recipe: Recipe, space: Space) -> Journal:
    """Return the journal of a wish: the one that it names, or its own in the user's state folder.

    Raises:
        SparkbookError: it can't be read, or is about something else.
    """
    about = {
        "recipe": recipe.id,
        "launch": recipe.launch.model_dump(mode="json", exclude_defaults=True),
        "use": wish.use,
        "load": space.use(wish.use).load.model_dump(mode="json"),
        "seed": wish.seed,
    }
    if wish.cluster:
        about["nodes"] = [node.host for node in inventory.read(wish.cluster).nodes]
    mark = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
    file = wish.journal or paths.state_dir() / "tune" / f"{recipe.slug}-{wish.use}-{mark}.jsonl"
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    return Journal(file, about)


def tune(wish: Wish, say: Say) -> tuple[Pruned, Answer, Journal]:
    """Measure what is worth a start, and answer.

    Args:
        say: called with a line for each step.

    Raises:
        SparkbookError: it can't be done here.
        KeyboardInterrupt: Ctrl-C; the same wish goes on later.
    """
    recipe, space, left = pruned(wish, say)
    say(f"{len(left.left)} candidates are left")
    journal = journal_of(wish, recipe, space)
    say(f"journal: {journal.file}")
    plans = Plans(recipe, space.use(wish.use).load, wish.seed)
    loaders = [one for one in left.left if space.of_start(one)]
    with contextlib.ExitStack() as over:
        crew = None
        if wish.cluster:
            crew = over.enter_context(Nodes(inventory.read(wish.cluster), plans, say))
        tuning = Tuning(
            [one for one in left.left if one not in loaders],
            plans,
            journal,
            Starter(partial(measuring.start, say=say), say=say),
            budget_s=3600 * wish.hours,
            loaders=loaders,
            crew=crew,
        )
        return left, measured(tuning, space, near=wish.near), journal


def measured(tuning: Tuning, space: Space, *, near: bool = False) -> Answer:
    """Run a tuning, and answer."""
    tools = tuning.plans.recipe.capabilities.tools
    tuning.finalist = Asking(tuning.plans, tuning.starter.measure, tools)
    tuning.run()
    return answer.finish(tuning, lossy=space.lossy, near=near)


def recorded() -> tuple[dict[str, Any], Answer, Journal]:
    """Return a run on the embedded engine that was recorded with `tools/record_tuning.py`: what was
    left of the space (`Pruned.to_dict`), the answer, and what it rests on. Starts nothing.

    Raises:
        SparkbookError: the recording lacks a measurement.
    """
    journal = read(Path(__file__).with_name("recorded") / "tiny-mtp.jsonl")
    about, recipe = journal.about, recipes.load(journal.about["recipe"])
    space = Space.model_validate(about["space"])
    candidates = [spaces.changed(recipe, one["changes"]) for one in about["pruned"]["left"]]
    named = {one.key: one for one in candidates}

    def start(recipe: Recipe) -> NoReturn:
        raise SparkbookError(f"the recording has no measurement of {recipe.serve.args}")

    tuning = Tuning(
        candidates,
        Plans(recipe, space.use(about["use"]).load, about["seed"]),
        journal,
        Starter(start),
        unstarted=about["unstarted"],
        best=[named[key] for key in about["best"]],
    )
    return about["pruned"], answer.finish(tuning, lossy=space.lossy), journal


def benchmark() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return how near the tuner came to the best of that space, as `tools/bench_tune.py` wrote it:
    what was measured, and a row for each seed.
    """
    file = Path(__file__).with_name("recorded") / "benchmark.jsonl"
    return recording.read(file, "a benchmark of the tuner", lambda head, rest: (head, rest))


def keep(found: Answer, use: str, out: str) -> None:
    """Write the winner as a recipe.

    Raises:
        SparkbookError: there is no winner, or the file can't be written.
    """
    write_text(out, own.write(answer.recipe(found, use)))
