"""The embedded engine: a real vLLM on the CPU with a small model, for every machine that is not a
Spark.

with embedded.start("embedded/smollm2-135m") as engine:
    engine.endpoint.client().chat.completions.create(...)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sparkbook import checkpoint, recipes
from sparkbook.errors import SparkbookError
from sparkbook.recipes import Recipe
from sparkbook.serve import smollm2
from sparkbook.serve.process import ProcessEngine

DEFAULT = "embedded/smollm2-135m"
TINY_MODELS = checkpoint.MODELS


def model_folder(name: str, progress: Callable[[str], None] | None = None) -> Path:
    """Return the folder of a model that this project brings along; SmolLM2 is converted on its
    first use.

    Raises:
        SparkbookError: there is no such model, or it can't be converted.
    """
    if name == smollm2.NAME:
        return smollm2.ensure(progress=progress)
    folder = TINY_MODELS / name
    if folder.parent == TINY_MODELS and (folder / "config.json").is_file():
        return folder
    known = [smollm2.NAME, *sorted(path.name for path in TINY_MODELS.glob("*/") if path.is_dir())]
    raise SparkbookError(
        f"'{name}' is not a model that comes with this project; these do: {', '.join(known)}"
    )


def start(
    recipe: str | Recipe = DEFAULT,
    *,
    port: int | None = None,
    ready: bool = True,
    requests: bool = True,
    deadline_s: float = 300.0,
    progress: Callable[[str], None] | None = None,
    folder: Path | None = None,
) -> ProcessEngine:
    """Start the engine of an embedded recipe, and wait until it has answered.

    Args:
        recipe: the recipe or its id.
        port: a free port is chosen when None.
        ready: wait until it has answered what the recipe claims; False returns at once.
        requests: False waits without sending a request, so that the first one is still to come.
        deadline_s: seconds for the wait.
        progress: called with a line for each stage.
        folder: where log and key go.

    Raises:
        SparkbookError: not an embedded recipe, or the engine's environment or model is missing.
        EngineError, NotReady: the start failed; the message ends with the log's last lines.
    """
    recipe = recipes.load(recipe) if isinstance(recipe, str) else recipe
    if recipe.image is not None:
        raise SparkbookError(
            f"{recipe.id} runs in the container {recipe.image.ref}; the embedded engine serves"
            " embedded/... recipes"
        )
    launch = recipe.launch.model_copy(deep=True)
    speculative = launch.serve.args.get("speculative-config")
    if isinstance(speculative, dict) and "model" in speculative:
        speculative["model"] = str(model_folder(speculative["model"], progress))
    engine = ProcessEngine(
        launch,
        model_folder(recipe.model.repo, progress),
        name=recipe.served_name,
        port=port,
        folder=folder,
        recipe=recipe.id,
    )
    if ready:
        engine.wait_ready(
            recipe.capabilities, requests=requests, deadline_s=deadline_s, progress=progress
        )
    return engine


@contextlib.contextmanager
def together(
    wanted: Sequence[str | Recipe], *, requests: bool = True
) -> Iterator[list[ProcessEngine]]:
    """Start several engines side by side. Each costs its memory and, while idle, next to no CPU.

    Args:
        wanted: recipes or their ids, in the order in which the engines are given. requests: as for
            `start`.

    Raises:
        SparkbookError, EngineError, NotReady: as `start` does; those that already run are stopped.
    """
    with contextlib.ExitStack() as running:
        loaded = [recipes.load(recipe) if isinstance(recipe, str) else recipe for recipe in wanted]
        engines = [running.enter_context(start(recipe, ready=False)) for recipe in loaded]
        for recipe, engine in zip(loaded, engines, strict=True):
            engine.wait_ready(recipe.capabilities, requests=requests)
        yield engines
