"""The one engine of the book: chapters with the engine `attach` use it, through the environment."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from sparkbook.errors import SparkbookError
from sparkbook.units import format_seconds

if TYPE_CHECKING:
    from sparkbook.serve.process import ProcessEngine

RECIPE = "embedded/smollm2-135m"
"""The recipe that the engine serves."""


@contextlib.contextmanager
def starting(say: Callable[[str], None]) -> Iterator[Future[ProcessEngine] | None]:
    """Start the book's engine in a thread, since its model may have to be converted first; None if
    an endpoint is named.

    It is stopped at the end, if it was not before.
    """
    if os.environ.get("SPARKBOOK_ENDPOINT"):
        yield None
        return
    # Imported here: two threads that import the same things at the same time get in each other's
    # way.
    import papermill  # noqa: F401

    from sparkbook import recipes
    from sparkbook.serve import embedded

    say(f"engine: starting {RECIPE} …")
    recipe = recipes.load(RECIPE)
    with ThreadPoolExecutor(1, thread_name_prefix="engine") as pool:
        engine = pool.submit(embedded.start, recipe, ready=False)
        try:
            yield engine
        finally:
            if not engine.cancel():
                if not engine.done():
                    say("engine: still starting; it stops as soon as it is up …")
                # Whoever wanted the engine was told why there is none.
                with contextlib.suppress(SparkbookError, OSError):
                    engine.result().stop()


@contextlib.contextmanager
def running(
    say: Callable[[str], None], starting: Future[ProcessEngine] | None = None
) -> Iterator[None]:
    """Run the engine that chapters attach to, and name it to their kernels through the environment.

    An endpoint that the user has named already (`SPARKBOOK_ENDPOINT`) is used as it is.

    Args:
        say: called with a line of progress.
        starting: the engine, if it is already starting.

    Raises:
        SparkbookError: the engine does not start.
    """
    if endpoint := os.environ.get("SPARKBOOK_ENDPOINT"):
        say(f"engine: {endpoint}, named by SPARKBOOK_ENDPOINT")
        yield
        return
    from sparkbook import recipes
    from sparkbook.serve import embedded

    recipe = recipes.load(RECIPE)
    began = time.monotonic()
    try:
        started = starting.result() if starting else embedded.start(recipe, ready=False)
    except OSError as error:  # such as a full disk under the model that is converted
        raise SparkbookError(str(error)) from error
    with started as engine:
        engine.wait_ready(recipe.capabilities)
        say(f"engine: ready; waited {format_seconds(time.monotonic() - began)} for it")
        with _environment(engine.environment()):
            yield
    say("engine: stopped")


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
