"""What `sparkbook serve` and `sparkbook lock` do: from a wish to a server that answers, on either
engine.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook import lock
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.formats import shell
from sparkbook.serve import (
    containers,
    docker_engine,
    docker_host,
    embedded,
    running,
    stack,
    watchdog,
)
from sparkbook.serve.engine import Engine, EngineError
from sparkbook.serve.faults import ServeFault, as_lines
from sparkbook.serve.process import ProcessEngine
from sparkbook.serve.stack import Choices, Stack
from sparkbook.units import parse_size
from sparkbook.util.shell_text import command_line

_TARGETS = ("auto", "docker", "process")


@dataclass(frozen=True)
class Wish:
    """What the user asked for; the fields are the options of `sparkbook serve`."""

    source: str | None = None
    locked: str | None = None
    target: str = "auto"
    name: str | None = None
    host: str | None = None
    port: int | None = None
    expose: bool = False
    offline: bool = False
    read_only: bool = False
    restart_always: bool = False
    replace: bool = False
    watchdog: bool | None = None
    watch: bool = False
    floor: str | None = None
    fraction: float | None = None
    deadline_s: float = 1800.0

    @property
    def choices(self) -> Choices:
        """What differs from the recipe."""
        return Choices(
            port=self.port,
            expose=self.expose,
            offline=self.offline,
            read_only=self.read_only,
            restart_always=self.restart_always,
        )


@dataclass(frozen=True)
class DryRun:
    """What would be done.

    Attributes:
        target: the engine.
        calls: what would be sent to Docker, in order; of a process, the command.
        notes: what to know of it.
    """

    target: str
    calls: list[tuple[str, Any]]
    notes: Findings

    @property
    def text(self) -> str:
        """For people."""
        return "\n".join(
            call if body is None else f"{call}\n{json.dumps(body, indent=2, ensure_ascii=False)}"
            for call, body in self.calls
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "target": self.target,
            "calls": [{"call": call, "body": body} for call, body in self.calls],
            **self.notes.to_dict(),
        }


def wanted(wish: Wish) -> tuple[Stack, str]:
    """Return what is to be served, and with which engine.

    Raises:
        SparkbookError: it can't be read, or the engine can't serve it.
    """
    if wish.target not in _TARGETS:
        raise SparkbookError(
            f"'{wish.target}' is not a target; choose one of {', '.join(_TARGETS)}"
        )
    if (wish.source is None) == (wish.locked is None):
        raise SparkbookError(
            "name either something to serve (a recipe's id or a launch line) or a lock with"
            " --locked"
        )
    if wish.host is not None and "://" not in wish.host:
        raise SparkbookError(
            f"--host is '{wish.host}': write ssh://USER@HOST, unix://SOCKET or tcp://HOST:PORT"
        )
    if wish.floor is not None:
        parse_size(wish.floor)  # said before anything is looked at
    if wish.locked is not None:
        locked = lock.read(wish.locked)
        launch, recipe = lock.launch_of(locked), lock.recipe_of(locked)
        asked = stack.given(
            launch, wish.name or launch.container.name or (recipe.slug if recipe else None)
        )
        asked = Stack(asked.name, launch, recipe)
    else:
        asked = stack.given(wish.source or "", wish.name)
    if wish.fraction is not None:
        asked = stack.with_fraction(asked, wish.fraction)
    if asked.recipe and asked.recipe.topology.nodes > 1:
        raise SparkbookError(
            f"{asked.recipe.id} is for {asked.recipe.topology.nodes} Sparks: "
            + command_line("sparkbook", "cluster", "serve", "FILE", asked.recipe.id)
        )
    target = wish.target if wish.target != "auto" else "docker" if asked.launch.image else "process"
    if target == "docker" and asked.launch.image is None:
        raise SparkbookError(f"{asked.name} has no image: it runs as a process (--target process)")
    if target == "process" and asked.launch.image is not None:
        raise SparkbookError(
            f"{asked.name} runs in the container {asked.launch.image}: --target docker"
        )
    of_containers = (wish.host, wish.restart_always, wish.expose, wish.offline, wish.read_only)
    if target == "process" and any(of_containers):
        raise SparkbookError(
            "--host, --expose, --offline, --read-only and --restart-always are about containers"
        )
    return asked, target


def plan(wish: Wish) -> DryRun:
    """Return what `serve` would do; nothing is started, and no Docker engine is needed.

    Raises:
        SparkbookError: it can't be done.
    """
    import psutil

    asked, target = wanted(wish)
    if target == "process":
        return DryRun(target, [(shell.write(asked.launch).rstrip("\n"), None)], Findings())
    memory = psutil.virtual_memory().total
    # The key is not made for a dry run: what stands here is hidden anyway.
    request = docker_engine.prepare(asked, None, wish.choices, key="hidden", memory=memory)
    return DryRun(target, list(request.calls()), request.notes)


def serve(
    wish: Wish, *, say: Callable[[str], None], show: Callable[[dict[str, Any]], None]
) -> None:
    """Start what was asked for and wait until it answers. Returns with a container running on; a
    process is kept until it ends.

    Args:
        wish: what was asked for.
        say: called with a line for each step.
        show: called once, with what to know of the server that is ready.

    Raises:
        SparkbookError: it can't be used.
        EngineError, NotReady, ServeFault: it failed; nothing is left of it.
    """
    asked, target = wanted(wish)
    if wish.locked:
        _check_files(wish, say)
    floor = parse_size(wish.floor) if wish.floor else None
    if target == "docker":
        host = docker_host.reach(wish.host)
        try:
            server = docker_engine.start(
                asked,
                host=host,
                choices=wish.choices,
                replace=wish.replace,
                watch=wish.watchdog,
                floor=floor,
                deadline_s=wish.deadline_s,
                progress=say,
            )
            stop = command_line("sparkbook", "stop", server.name)
            try:
                show(_answer(asked, server, target) | {"stop": stop})
                if wish.watch:
                    # Its memory is another host's: here only its end can be seen.
                    _watch(server, floor, say, guard=not host.remote)
            except KeyboardInterrupt:
                say(f"{server.name} is still running. Stop it with: {stop}")
        finally:
            host.close()
        return
    engine = _process(asked, wish, floor, say)
    with engine:
        try:
            show(_answer(asked, engine, target) | {"stop": "Ctrl-C"})
            _watch(engine, floor, say, guard=wish.watch)
        except KeyboardInterrupt:
            say("stopping")


@contextlib.contextmanager
def guarded(
    asked: Stack,
    *,
    floor: int | None = None,
    deadline_s: float = 1800.0,
    say: Callable[[str], None] = lambda _line: None,
) -> Iterator[Engine]:
    """Start a server, wait until it answers, guard the host's memory meanwhile and from then on,
    and stop the server at the end of the context.

    Args:
        floor: bytes of MemAvailable that the guard keeps free; None: the usual share.
        deadline_s: seconds to wait until it answers.
        say: called with a line for each step.

    Raises:
        SparkbookError: it can't be started, or it was running before: it is not ours to stop.
        EngineError, NotReady, ServeFault: it failed, or the guard stopped it; nothing is left.
    """
    with contextlib.ExitStack() as over:
        engine: Engine
        if asked.launch.image:
            host = docker_host.reach(None)
            over.callback(host.close)
            engine = docker_engine.start(
                asked, host=host, watch=True, floor=floor, deadline_s=deadline_s, progress=say
            )
            if engine.already:
                raise SparkbookError(f"{engine.name} is running already: stop it first")
        else:
            engine = _process(asked, Wish(deadline_s=deadline_s), floor, say)
        over.enter_context(engine)
        dog = over.enter_context(watchdog.guard(engine.kill, engine.endpoint, floor))
        try:
            yield engine
        except SparkbookError:
            if dog.finding:
                raise ServeFault(dog.finding) from None
            raise


def _answer(asked: Stack, engine: Engine, target: str) -> dict[str, Any]:
    return {
        "name": engine.name,
        "target": target,
        "recipe": asked.recipe.id if asked.recipe else None,
        "url": f"{engine.endpoint.url}/v1",
        "model": engine.endpoint.model,
        "key": str(engine.key_file),
        "log": str(engine.log_file),
        "already": "already running" if engine.already else None,
    }


def _process(
    asked: Stack, wish: Wish, floor: int | None, say: Callable[[str], None]
) -> ProcessEngine:
    if asked.recipe and asked.recipe.image is None:
        # The launch is the stack's: a lock's may differ from what the recipe says by now.
        recipe = asked.recipe.model_copy(
            update={"serve": asked.launch.serve, "env": asked.launch.env}
        )
        engine = embedded.start(recipe, port=wish.port, ready=False, progress=say)
    else:
        model = asked.launch.serve.model or ""
        place = Path(model).expanduser()
        engine = ProcessEngine(
            asked.launch.on_host(),
            place if place.is_dir() else model,
            name=asked.served,
            port=wish.port,
        )
    guard = None
    try:
        guard = (
            watchdog.guard(engine.kill, engine.endpoint, floor)
            if wish.watchdog is not False
            else None
        )
        if guard:
            guard.start()
        engine.wait_ready(asked.claims, deadline_s=wish.deadline_s, progress=say)
    except SparkbookError:
        if guard and guard.finding:
            raise ServeFault(guard.finding) from None
        raise
    finally:
        if guard:
            guard.stop()
        if engine.readiness is None:
            engine.stop()
    return engine


def _watch(
    engine: Engine, floor: int | None, say: Callable[[str], None], *, guard: bool = True
) -> None:
    """Wait until a server ends, with or without a watchdog. Ctrl-C is left to the caller.

    Raises:
        ServeFault: the watchdog stopped it.
        EngineError: it ended by itself.
    """
    dog = watchdog.guard(engine.kill, engine.endpoint, floor) if guard else None
    with dog or contextlib.nullcontext():
        if dog:
            say(f"watching {engine.endpoint.url}, Ctrl-C ends the watch")
        while engine.running:
            time.sleep(0.5)
    if dog and dog.finding:
        raise ServeFault(dog.finding)
    raise EngineError(f"the server ended with status {engine.exit_status}", engine.tail())


def _check_files(wish: Wish, say: Callable[[str], None]) -> None:
    """Refuse to serve a lock whose model files have changed."""
    assert wish.locked is not None
    locked = lock.read(wish.locked)
    now = lock.make(lock.launch_of(locked), lock.recipe_of(locked), folders=_folders(locked))
    changed = [change for change in lock.diff(locked, now) if change.path.startswith("models.")]
    # A file that is not here yet is fetched by the server; one that is another than locked is not
    # to be served.
    if moved := [
        change for change in changed if change.before is not None and change.after is not None
    ]:
        raise SparkbookError(
            "not started, the lock is about other files:\n" + as_lines(lock.judge(moved)[0])
        )
    if changed:
        say(
            f"{len(changed)} locked values about the model's files can't be checked here, such as"
            f" {changed[0].path}"
        )


def _folders(locked: dict[str, Any]) -> dict[str, Path] | None:
    """Return where the files of a lock's models lie, if they ship with this project."""
    recipe = lock.recipe_of(locked)
    if recipe is None or recipe.image is not None:
        return None
    names = [
        recipe.model.repo,
        *([recipe.draft.model] if recipe.draft and recipe.draft.model else []),
    ]
    return {name: embedded.model_folder(name) for name in names}


def lock_of(
    source: str | Stack,
    *,
    name: str | None = None,
    deep: bool = False,
    planned: str | None = None,
    bench: dict | None = None,
) -> dict[str, Any]:
    """Return the lock of a stack, with what its running server reports, and its share of the
    memory.

    Args:
        source: a recipe's id, a launch line, or the stack itself.
        name: name of the running server; None takes the stack's.
        deep: hash every weight file.
        planned: the recipe's id or launch line, for the memory plan that the lock is to hold.
        bench: a measurement's summary.

    Raises:
        SparkbookError: it can't be read.
    """
    asked = source if isinstance(source, Stack) else stack.given(source)

    def plan(fraction: float | None) -> dict | None:
        return lock.planned(planned, fraction) if planned else None

    return _now(asked, name, deep, plan, bench)


def _now(
    asked: Stack,
    name: str | None,
    deep: bool,
    plan: Callable[[float | None], dict | None],
    bench: dict | None,
) -> dict[str, Any]:
    served = lock.Served()
    with running.engines() as (host, _):
        asked, fraction = _as_it_runs(host, name, asked)
        found = containers.find(host, name or asked.name) if host and asked.launch.image else []
        digest, image_id = containers.digest_of(host, found[0]) if host and found else (None, None)
        docker = docker_host.version_of(host) if host and asked.launch.image else None
        served = lock.Served(digest, image_id, _version(host, name, asked), docker)
    folders = None
    if asked.recipe and asked.recipe.image is None:
        names = [
            asked.recipe.model.repo,
            *(
                [asked.recipe.draft.model]
                if asked.recipe.draft and asked.recipe.draft.model
                else []
            ),
        ]
        folders = {one: embedded.model_folder(one) for one in names}
    return lock.make(
        asked.launch,
        asked.recipe,
        served=served,
        folders=folders,
        deep=deep,
        plan=plan(fraction),
        bench=bench,
    )


def _names(name: str | None, asked: Stack) -> list[str]:
    """Return what a running server of the stack may be called."""
    return [name] if name else [asked.name, *([asked.recipe.id] if asked.recipe else [])]


def _as_it_runs(
    host: docker_host.DockerHost | None, name: str | None, asked: Stack
) -> tuple[Stack, float | None]:
    """Return the stack with the share of the memory that its running server has, and the share;
    None if the image's own script decides.
    """
    launch = asked.launch
    words = [f"--gpu-memory-utilization {launch.serve.args.get('gpu-memory-utilization')}"]
    own = stack.fraction_in([*words, *(f"{key}={value}" for key, value in launch.env.items())])
    if own is None and launch.serve.command is not None:
        return asked, None
    for known in _names(name, asked):
        share = stack.fraction_in(running.words(host, known))
        if share not in (None, own):
            return stack.with_fraction(asked, share), share
    return asked, own


def _version(host: docker_host.DockerHost | None, name: str | None, asked: Stack) -> str | None:
    """Return the vLLM version that the running server reports; None where none answers."""
    for known in _names(name, asked):
        try:
            return str(running.endpoint(host, known).get("/version").json()["version"])
        except (SparkbookError, ValueError, KeyError, TypeError):
            continue
    return None


def verify(
    file: str, *, name: str | None = None, deep: bool = False
) -> tuple[list[lock.Change], Findings]:
    """Return what has moved since a lock was made: the changes, and what they mean.

    Raises:
        SparkbookError: the lock can't be used.
    """
    locked = lock.read(file)
    recipe = lock.recipe_of(locked)
    # A recipe that is as it was locked has nothing to say of a lock with another image.
    same = recipe is None or lock.fingerprint(recipe) == locked["recipe"]["sha256"]
    launch = lock.launch_of(locked) if same or recipe is None else recipe.launch
    container = launch.container.name or (recipe.slug if recipe else None)
    now = _now(
        Stack(stack.given(launch, container).name, launch, recipe),
        name,
        deep,
        lambda _fraction: locked["plan"],
        locked["bench"],
    )
    changes = lock.diff(locked, now)
    return changes, lock.judge(changes, unknown=False)
