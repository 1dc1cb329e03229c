"""What a chapter talks to: a server it attached to, one it started, or, in a plan, none at all."""

from __future__ import annotations

import atexit
import html
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, get_args

from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.formats import shell
from sparkbook.recipes import Recipe
from sparkbook.serve import embedded
from sparkbook.serve.endpoint import ADDRESS_VARIABLE, Endpoint
from sparkbook.serve.engine import Engine

if TYPE_CHECKING:
    import openai

Target = Literal["auto", "docker", "process", "attach", "plan"]


class PlanOnly(SparkbookError):
    """Something needs a running server, and the target is `plan`: nothing was started."""

    def _render_traceback_(self) -> list[str]:
        # IPython prints these lines instead of a traceback: stopping here is what a plan means, not
        # a fault.
        return [f"PlanOnly: {self}"]


class Server:
    """A server and the recipe it was started from.

    Attributes:
        recipe: the recipe.
        endpoint: where it answers; None in a plan.
        started: whether this object started the engine.
    """

    def __init__(self, recipe: Recipe, endpoint: Endpoint | None, engine: Engine | None = None):
        self.recipe, self._endpoint, self._engine = recipe, endpoint, engine

    @property
    def started(self) -> bool:
        """Whether this object started the engine."""
        return self._engine is not None and not self._engine.already

    @property
    def engine(self) -> Engine:
        """The engine that this object started: its log, its processes, the stages of its start.

        Raises:
            PlanOnly: nothing was started.
            SparkbookError: the server was attached to.
        """
        if self._engine is None:
            where = self.endpoint.url
            raise SparkbookError(
                f"the server at {where} was attached to, not started here, so its log is not at"
                " hand: choose target 'process'"
            )
        return self._engine

    @property
    def planned(self) -> bool:
        """Whether this is a plan: nothing was started and nothing answers."""
        return self._endpoint is None

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers.

        Raises:
            PlanOnly: nothing was started.
        """
        if self._endpoint is None:
            raise PlanOnly(
                "the target is 'plan', so nothing was started; choose target 'auto' to run this"
            )
        return self._endpoint

    @property
    def client(self) -> openai.OpenAI:
        """An `openai` client for it."""
        return self.endpoint.client()

    @property
    def model(self) -> str:
        """The served model's name."""
        return self.endpoint.model

    def stop(self) -> None:
        """Stop the engine if this object started it. An attached server keeps running."""
        if self._engine and not self._engine.already:
            self._engine.stop()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<Server {self._state()}>"

    def _state(self) -> str:
        if self._endpoint is None:
            return f"plan for {self.recipe.id}: nothing was started"
        return (
            f"{'started here' if self.started else 'attached'}: {self._endpoint.model} at"
            f" {self._endpoint.url}"
        )

    def _repr_html_(self) -> str:
        if self._endpoint is not None:
            how = "started here" if self.started else "attached"
            return (
                f"<p><strong>{html.escape(self._endpoint.model)}</strong> at"
                f" <code>{html.escape(self._endpoint.url)}</code>, {how}.</p>"
            )
        line = html.escape(shell.write(self.recipe.launch))
        return (
            f"<p><strong>Plan only: nothing was run.</strong> {html.escape(self.recipe.id)} would"
            f" be started by:</p><pre>{line}</pre>"
        )


def connect(
    recipe_id: str = embedded.DEFAULT,
    target: str = "auto",
    *,
    own: bool = False,
    requests: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Server:
    """Return a server for a chapter.

    Args:
        recipe_id: the recipe to serve.
        target: `auto` attaches to the server named by `SPARKBOOK_ENDPOINT` and, where none is
            named, starts the recipe: one with an image in Docker on a Spark, one without in the
                embedded engine. `docker` and `process` always start one, but `docker` finds the
                same
            stack where it is up already; `attach` only attaches; `plan` starts nothing.
        own: with `auto`, start a server also where `SPARKBOOK_ENDPOINT` names one.
        requests: False leaves a started engine without a request, so that the first one is still to
            come.
        progress: called with a line for each stage of a start.

    What is started here ends with this process at the latest.

    Raises:
        SparkbookError: an unknown target, nothing to attach to, or a recipe that the engine can't
            serve.
        EngineError, NotReady, ServeFault: the start failed.
    """
    if target not in get_args(Target):
        raise SparkbookError(
            f"'{target}' is not a target; choose one of {', '.join(get_args(Target))}"
        )
    recipe = recipes.load(recipe_id)
    if target == "plan":
        return Server(recipe, None)
    if target == "attach" or (target == "auto" and not own):
        if endpoint := Endpoint.from_environment():
            return Server(recipe, endpoint)
        if target == "attach":
            raise SparkbookError(
                f"nothing to attach to: set {ADDRESS_VARIABLE} to the server's address, such as"
                " http://127.0.0.1:8000"
            )
    engine: Engine
    if target == "docker" or (target == "auto" and recipe.image is not None and on_spark()):
        from sparkbook.serve import docker_engine, stack

        engine = docker_engine.start(stack.given(recipe), requests=requests, progress=progress)
    elif recipe.image is not None:
        raise SparkbookError(
            f"{recipe.id} runs in a container, on a Spark: choose target 'docker' there; elsewhere"
            " 'plan' shows how it would be started, and with"
            f" {ADDRESS_VARIABLE}=http://HOST:{recipe.launch.port} target 'attach' uses one that"
            " runs"
        )
    else:
        engine = embedded.start(recipe, requests=requests, progress=progress)
    if not engine.already:
        atexit.register(engine.stop)
    return Server(recipe, engine.endpoint, engine)


def on_spark() -> bool:
    """Return whether this host's GPU is a GB10."""
    from sparkbook.host.access import run

    asked = run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return asked.code == 0 and "GB10" in asked.out
