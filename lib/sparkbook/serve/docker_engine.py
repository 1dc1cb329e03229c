"""The docker engine: a recipe as a container, through Docker's API, on this host or on another one
over SSH.

A start that fails, or is interrupted or killed, leaves no container behind. A start that succeeds
leaves one that outlives whoever started it; `find`, `attach` and `remove` deal with it later.
Containers are known by their labels (`sparkbook.*`), never by guesses.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sparkbook.findings import Finding
from sparkbook.recipes.schema import Capabilities
from sparkbook.serve import abandoned, paths, watchdog
from sparkbook.serve.containers import (
    STOP_S,
    Found,
    endpoint_at,
    find,
    forget,
    inspected,
    key_of,
    listens,
    mark_of,
    remove,
)
from sparkbook.serve.docker_host import DockerHost, image_present, mapped, platform_of, pull, reach
from sparkbook.serve.endpoint import Endpoint, own_key, write_private
from sparkbook.serve.engine import Engine
from sparkbook.serve.faults import DOCK, ServeFault, as_lines, as_progress, how_it_ended
from sparkbook.serve.folders import KEY_FILE, LOG_FILE
from sparkbook.serve.interrupts import held_back
from sparkbook.serve.process import port_is_free
from sparkbook.serve.ready import NotReady, Readiness, wait_ready
from sparkbook.serve.stack import AS_WRITTEN, KEY, LABEL, Choices, Request, Stack, request
from sparkbook.util.shell_text import command_line

if TYPE_CHECKING:
    import docker

_FAILED_STOP_S = 3
"""The same for one that has failed, or was interrupted, before it was ready."""


class DockerEngine(Engine):
    """A container that serves. `stop()` takes it down and removes it; a context manager does so at
    its end.

    Attributes:
        name: the container's name.
        host: the Docker engine.
        request: what it was created from; None for one that was found running.
        already: whether it was up before.
        guard: the watchdog of its start, if it had one.
    """

    def __init__(
        self,
        host: DockerHost,
        container: dict[str, Any],
        endpoint: Endpoint,
        key_file: Path,
        *,
        asked: Request | None,
        already: bool,
    ):
        """Wrap a container that exists; `start` and `attach` make engines.

        Args:
            host: the Docker engine.
            container: the engine's record of the container (`GET /containers/ID/json`).
            endpoint: where the server answers, seen from here.
            key_file: file of the API key.
            asked: what the container was created from.
            already: whether it was up before.
        """
        self.host, self.endpoint, self.key_file, self.request, self.already = (
            host,
            endpoint,
            key_file,
            asked,
            already,
        )
        self.id, self.name = container["Id"], container["Name"].lstrip("/")
        self.guard: watchdog.Watchdog | None = None
        self._removed = False
        mark = mark_of(self.name)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(self.id, "utf-8")
        self.log_file = mark.with_name(LOG_FILE)
        self._log = _LogFollower(host.client, self.id, self.log_file)
        self._log.start()

    def inspect(self) -> dict[str, Any] | None:
        """Return the engine's record of the container; None once it is removed.

        Raises:
            ServeFault: the engine does not answer.
        """
        import docker

        with mapped(name=self.name):
            try:
                return self.host.client.api.inspect_container(self.id)
            except docker.errors.NotFound:
                return None

    @property
    def running(self) -> bool:
        """Whether its first process is still there: a container that was started again has failed
        once already.
        """
        seen = self.inspect()
        alive = bool(
            seen
            and seen["State"]["Running"]
            and not seen["State"]["Restarting"]
            and (self.already or not seen["RestartCount"])
        )
        if not alive:
            self._log.settle()
        return alive

    def listens(self) -> bool:
        """Return whether it is this container that answers at its address.

        Raises:
            Stranger: another program does.
            ServeFault: the engine does not answer.
        """
        seen = self.inspect()
        return seen is not None and listens(self.host, seen)

    @property
    def exit_status(self) -> int | None:
        """Exit status once it has ended; None while it runs, or when it is gone."""
        seen = self.inspect()
        return None if seen is None or seen["State"]["Running"] else int(seen["State"]["ExitCode"])

    def ended(self) -> Finding | None:
        """Return how the container ended, or that it was restarted; None while it runs as it
        should.
        """
        seen = self.inspect()
        return how_it_ended(seen["State"], self.name, seen["RestartCount"]) if seen else None

    def wait_ready(
        self,
        claims: Capabilities | None = None,
        *,
        requests: bool = True,
        deadline_s: float = 1800.0,
        progress: Callable[[str], None] | None = None,
    ) -> Readiness:
        """Wait until it answers a real request. One that was started here and fails to get ready is
        removed; its log file stays.

        Raises:
            NotReady: it ended, failed, or was not ready in time.
            ServeFault: the watchdog stopped it, or Docker itself stopped answering.
        """
        try:
            self.readiness = wait_ready(
                self.endpoint,
                claims,
                process=self,
                requests=requests,
                deadline_s=deadline_s,
                progress=progress,
            )
        except NotReady as error:
            if self.guard and self.guard.finding:
                raise ServeFault(self.guard.finding) from None
            end = None
            with contextlib.suppress(ServeFault):
                end = self.ended()
            if end is None or (end.rule in ("DOCK305", "DOCK306") and error.diagnosis):
                raise
            raise NotReady(
                f"{error.message}\n{as_lines(end)}", error.log_tail, error.stages, error.diagnosis
            ) from None
        return self.readiness

    def prove(self) -> None:
        """Remember that the server has answered, and set its restart policy."""
        if self.request:
            (_proven_folder() / self.request.stack).touch()
            with mapped(name=self.name):
                policy = cast(Any, self.request.restart)  # docker's stubs want their own TypedDict
                self.host.client.api.update_container(self.id, restart_policy=policy)

    def stop(self, grace_s: int = STOP_S) -> None:
        """Stop the server and remove its container; `grace_s` seconds after asking it is killed.
        Calling it again does nothing.
        """
        if not self._removed:
            with held_back():
                remove(self.host, self.id, grace_s)
                self._removed = True
                self._log.stop()
                forget(self.name, self.id)

    def kill(self) -> None:
        """End it at once. Docker does not start a container again that was killed by hand."""
        import docker

        with mapped(name=self.name), contextlib.suppress(docker.errors.NotFound):
            self.host.client.api.kill(self.id, signal="SIGKILL")

    def __repr__(self) -> str:
        return f"<DockerEngine {self.name}: {self.endpoint.model} at {self.endpoint.url}>"


class _LogFollower:
    """Copies a container's output into a file, in a thread, across restarts of the container."""

    def __init__(self, client: docker.DockerClient, container: str, file: Path):
        self._client, self._id, self._file = client, container, file
        self._over = threading.Event()
        self._idle = threading.Event()  # everything printed so far has been written
        self._thread = threading.Thread(target=self._run, name="sparkbook log", daemon=True)
        file.write_bytes(b"")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(timeout=5)

    def settle(self, timeout_s: float = 5.0) -> None:
        """Wait until what a container that has ended printed is in the file."""
        self._idle.wait(timeout_s)

    def _run(self) -> None:
        import docker
        import requests

        last = ""
        while not self._over.is_set():
            try:
                last = self._copy(last)
                self._idle.set()
                if not self._client.api.inspect_container(self._id)["State"]["Running"]:
                    self._over.wait(0.5)
                else:
                    self._idle.clear()
            except docker.errors.NotFound:
                break
            except (docker.errors.DockerException, requests.RequestException, OSError, ValueError):
                self._over.wait(1.0)  # the engine is away: it may come back
        self._idle.set()

    def _copy(self, after: str) -> str:
        """Follow until the container ends; the latest time stamp, after which the next call goes
        on.
        """
        since = int(_seconds(after)) if after else None
        stream = self._client.api.logs(
            self._id, stream=True, follow=True, timestamps=True, since=since
        )
        last = after
        with self._file.open("ab", buffering=0) as out:
            for frame in stream:
                stamp, _, text = frame.partition(b" ")
                time_of_line = stamp.decode("ascii", "replace")
                # Standard output and error are two streams: their stamps may be out of order by a
                # little, and are within one call.
                if time_of_line > after:
                    out.write(text)
                    last = max(last, time_of_line)
        return last


def _seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp[:19] + "+00:00").timestamp()


def attach(host: DockerHost, found: Found, asked: Request | None = None) -> DockerEngine:
    """Return the engine object of a container that runs already.

    Raises:
        ServeFault: the engine does not answer.
    """
    key, file = key_of(found.name, found.id)
    endpoint = endpoint_at(host, found.url, found.served, key)
    return DockerEngine(host, inspected(host, found), endpoint, file, asked=asked, already=True)


def prepare(
    stack: Stack,
    host_home: str | None = None,
    choices: Choices = AS_WRITTEN,
    key: str | None = None,
    memory: int | None = None,
) -> Request:
    """Return what would be sent to start a stack; nothing is sent, and no engine is needed.

    Args:
        stack: what to serve.
        host_home: home folder on the engine's host; None means this user's.
        choices: what differs from the recipe.
        key: the API key; None takes this user's own, which is made if there is none yet.
        memory: bytes of the host's memory, for the container's limit.

    Raises:
        SparkbookError: Docker has no setting for what the launch asks for.
    """
    environment = {**os.environ, KEY: key or own_key()[0]}
    home = host_home or str(Path.home())
    return request(stack, environment, home=home, choices=choices, memory=memory)


def start(  # noqa: PLR0913 - each is a flag of `sparkbook serve`
    stack: Stack,
    *,
    host: DockerHost | None = None,
    choices: Choices = AS_WRITTEN,
    replace: bool = False,
    watch: bool | None = None,
    floor: int | None = None,
    ready: bool = True,
    requests: bool = True,
    deadline_s: float = 1800.0,
    progress: Callable[[str], None] | None = None,
) -> DockerEngine:
    """Serve a stack with Docker, and wait until it has answered. The same stack that is up already
    is found, not started again.

    Args:
        stack: what to serve.
        host: the Docker engine; None connects to the usual one.
        choices: what differs from the recipe.
        replace: take down what holds the name or the port, if it is one of ours.
        watch: whether a watchdog guards the start; None: only until this stack has been ready once.
        floor: the watchdog's floor in bytes of MemAvailable.
        ready: wait until it has answered.
        requests: False waits without sending a request, so that the first one is still to come.
        deadline_s: seconds for the wait.
        progress: called with a line for each step.

    Raises:
        ServeFault: Docker can't do it, something else holds name or port, or the watchdog stepped
            in.
        NotReady: the server ended, or was not ready in time.
        SparkbookError: the launch can't be used.
    """
    say = progress or (lambda _line: None)
    own = host is None
    host = host or reach()
    try:
        choices = replace_fields(choices, watched=ready)
        asked = prepare(stack, host.home, choices, memory=host.memory)
        for note in asked.notes:
            say(as_progress(note))
        with contextlib.ExitStack() as until_over:
            engine = _already(host, asked, replace, say)
            if engine is None:
                mark = until_over.enter_context(abandoned.guarded(host))
                engine = launch(host, asked, stack, watch, floor, say, mark)
            try:
                if ready:
                    with engine.guard or contextlib.nullcontext():
                        engine.wait_ready(
                            stack.claims,
                            requests=requests,
                            deadline_s=deadline_s,
                            progress=progress,
                        )
                    engine.prove()
            except BaseException:
                if not engine.already:
                    _clean(engine)
                raise
    except BaseException:
        if own:
            host.close()
        raise
    return engine


def _clean(engine: DockerEngine) -> None:
    """Remove what a failed start left; where Docker itself is away, say what is left to do."""
    try:
        engine.stop(grace_s=_FAILED_STOP_S)
    except ServeFault as fault:
        raise ServeFault(
            replace_fields(
                fault.finding,
                fix=(
                    f"{fault.finding.fix} The container {engine.name} is still there:"
                    f" {command_line('sparkbook', 'stop', engine.name)}."
                ),
            )
        ) from None


def _proven_folder() -> Path:
    folder = paths.state_dir() / "proven"
    folder.mkdir(exist_ok=True)
    return folder


def _already(
    host: DockerHost,
    asked: Request,
    replace: bool,
    say: Callable[[str], None],
) -> DockerEngine | None:
    """Return the engine if the same stack is up. What blocks it is named, or, with `replace`,
    removed if it is ours.
    """
    for other in find(host):
        same_port = other.holds and other.port == asked.port
        if other.name != asked.name and not same_port:
            continue
        same = other.stack == asked.body["Labels"][f"{LABEL}.stack"]
        if other.name == asked.name and same and other.state == "running":
            say(f"{asked.name} is up already, with this very configuration: {other.url}")
            return attach(host, other, asked)
        if other.holds and not replace:
            raise ServeFault(_held(other, asked, same_port))
        say(f"removing {other.name}, {other.state}")
        remove(host, other.id)
    _check_strangers(host, asked)
    return None


def _held(other: Found, asked: Request, same_port: bool) -> Finding:
    """Return that a container of ours holds the name or the port of a start."""
    what = f"{other.name} (recipe {other.recipe})" if other.recipe else other.name
    own_name = other.name == asked.name
    how = {
        "created": "was created and does not run yet: another start may be under way",
        "paused": "is paused, and holds its memory",
        "restarting": "is being restarted",
    }.get(other.state, "is up")
    differs = other.stack != asked.body["Labels"][f"{LABEL}.stack"]
    how += " with another configuration" if own_name and differs else ""
    how += "" if own_name else f" on port {other.port}"
    finding = DOCK["DOCK104" if same_port else "DOCK105"].finding(
        evidence=f"{what} {how}: {other.url}", port=other.port, name=other.name
    )
    resume = command_line("docker", "unpause", other.name)
    stop = command_line("sparkbook", "stop", other.name)
    fix = f"Resume it with `{resume}`, or run" if other.state == "paused" else "Run"
    port = "" if own_name else ", or choose another --port"
    return replace_fields(finding, fix=f"{fix} `{stop}`, or add --replace to do so now{port}.")


def _check_faster(host: DockerHost, asked: Request, error: BaseException) -> None:
    """Raise that another start was faster, if that is why this one failed: Docker's own advice is
    to remove the container by hand.
    """
    if isinstance(error, ServeFault) and error.finding.rule == "DOCK105":
        for other in find(host, asked.name):
            raise ServeFault(_held(other, asked, False)) from None


def _check_strangers(host: DockerHost, asked: Request) -> None:
    """Refuse a port or a name that somebody else holds, before anything is pulled or made."""
    with mapped():
        listed = host.client.api.containers(all=True)
    for entry in listed:
        name = entry["Names"][0].lstrip("/") if entry["Names"] else entry["Id"][:12]
        if name == asked.name:
            raise ServeFault(
                DOCK["DOCK105"].finding(
                    evidence=f"{entry['Image']}, {entry['Status']}; not started by this launcher",
                    name=name,
                )
            )
        if any(port.get("PublicPort") == asked.port for port in entry.get("Ports") or []):
            raise ServeFault(
                DOCK["DOCK104"].finding(
                    evidence=f"the container {name} publishes it ({entry['Image']})",
                    port=asked.port,
                )
            )
    if not host.remote and not port_is_free(
        asked.port, asked.host if asked.host != "::" else "0.0.0.0"
    ):
        raise ServeFault(
            DOCK["DOCK104"].finding(
                evidence=f"something on this host listens on {asked.host}:{asked.port}",
                port=asked.port,
            )
        )


def launch(
    host: DockerHost,
    asked: Request,
    stack: Stack,
    watch: bool | None,
    floor: int | None,
    say: Callable[[str], None],
    mark: str | None = None,
) -> DockerEngine:
    """Pull, create, start what was asked for. Whatever goes wrong, and whenever Ctrl-C comes, no
    container is left.
    """
    if not host.remote:
        mounts = asked.body["HostConfig"].get("Mounts", ())
        for mount in (one for one in mounts if one["Type"] == "bind"):
            place = Path(mount["Source"])
            if "BindOptions" in mount:
                place.mkdir(parents=True, exist_ok=True)  # the user's, where Docker makes it root's
            elif not place.exists():
                raise ServeFault(
                    DOCK["DOCK111"].finding(
                        evidence=f"mounted at {mount['Target']}", path=mount["Source"]
                    )
                )
    key, key_file = own_key()
    guard = None
    if watch or (watch is None and not (_proven_folder() / asked.stack).exists()):
        if host.remote:
            say("no watchdog: it reads this host's memory, and the server runs on another")
        else:
            # Asked before anything is pulled: a host without memory is not to be started on. It
            # gets to act once there is an engine.
            guard = watchdog.guard(
                lambda: engine.kill(),
                Endpoint(asked.body["Labels"][f"{LABEL}.url"], stack.served, key),
                floor,
            )
    image = image_present(host.client, asked.image)
    if image is None:
        pull(host.client, asked.image, say)
        image = image_present(host.client, asked.image)
    platform = platform_of(host.client)
    if (
        image
        and (built := f"{image.get('Os', 'linux')}/{image.get('Architecture', '')}") != platform
    ):
        raise ServeFault(
            DOCK["DOCK109"].finding(
                evidence=f"the image is {built}, the host {platform}", platform=platform
            )
        )
    mark = mark or secrets.token_hex(8)
    body = {**asked.body, "Labels": {**asked.body["Labels"], f"{LABEL}.start": mark}}
    try:
        with mapped(port=asked.port, name=asked.name, platform=platform):
            created = host.client.api.create_container_from_config(body, asked.name)
            say(f"starting {asked.name} from {asked.image}")
            host.client.api.start(created["Id"])
            container = host.client.api.inspect_container(created["Id"])
        endpoint = endpoint_at(host, asked.body["Labels"][f"{LABEL}.url"], stack.served, key)
        if os.environ.get(KEY):
            # The next start may have another one: this container's stays with its log.
            key_file = mark_of(asked.name).with_name(KEY_FILE)
            key_file.parent.mkdir(parents=True, exist_ok=True)
            write_private(key_file, key)
        engine = DockerEngine(host, container, endpoint, key_file, asked=asked, already=False)
    except BaseException as error:
        with contextlib.suppress(ServeFault):
            abandoned.remove_marked(host, mark)
        _check_faster(host, asked, error)
        raise
    engine.guard = guard
    return engine
