"""The docker engine: a recipe as a container, through Docker's API, on this host or on another one
over SSH.

A start that fails, or is interrupted, leaves no container behind. A start that succeeds leaves one
that outlives whoever started it; `find`, `attach` and `remove` deal with it later. Containers are
known by their labels (`sparkbook.*`), never by guesses.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding
from sparkbook.recipes.schema import Capabilities
from sparkbook.serve import folders, identity, paths, watchdog
from sparkbook.serve.endpoint import Endpoint, key_in, own_key, write_private
from sparkbook.serve.engine import Engine
from sparkbook.serve.faults import DOCK, ServeFault, explain, how_it_ended, told
from sparkbook.serve.folders import CONTAINER, KEY_FILE, LOG_FILE
from sparkbook.serve.process import port_is_free
from sparkbook.serve.ready import NotReady, Readiness, wait_ready
from sparkbook.serve.remote import Tunnel, open_tunnel
from sparkbook.serve.stack import AS_WRITTEN, KEY, LABEL, Choices, Request, Stack, request
from sparkbook.units import format_bytes
from sparkbook.util.shell_text import command_line

if TYPE_CHECKING:
    import docker

_TIMEOUT_S = 120
_STOP_S = 15
"""Seconds between asking a server to end and killing it; vLLM needs 2 to 4."""
_FAILED_STOP_S = 3
"""The same for one that has failed, or was interrupted, before it was ready."""
_SOCKET = "/var/run/docker.sock"
_PORT_HOLDERS = {"docker-proxy", "dockerd", "rootlesskit", "slirp4netns"}
"""Programs of Docker, rootless Docker among them, that bind a published port."""
_LISTENERS = "cat /proc/net/tcp /proc/net/tcp6; readlink /proc/[0-9]*/fd/*"
"""Run in a container on the host's network: what listens there, and the container's own sockets."""
_MOST_LISTENERS = 1 << 22  # bytes of its answer


@contextlib.contextmanager
def mapped(**figures: object) -> Iterator[None]:
    """Turns what Docker's client raises into a `ServeFault`; `figures` name what the engine's
    words may not.
    """
    import docker
    import requests

    try:
        yield
    except docker.errors.DockerException as error:
        raise ServeFault(
            explain(str(getattr(error, "explanation", None) or error), **figures)
        ) from None
    except (requests.RequestException, OSError) as error:
        raise ServeFault(explain(f"{type(error).__name__}: {error}", **figures)) from None


@dataclass
class DockerHost:
    """A Docker engine and where it is.

    Attributes:
        client: docker-py's client for it.
        tunnel: the SSH tunnel to it; None for this host.
        home: the home folder there, for `~` in volumes.
        user: id of the user that the engine runs as on this host.
    """

    client: docker.DockerClient
    tunnel: Tunnel | None
    home: str
    user: int = 0

    @property
    def remote(self) -> bool:
        """Whether it is another host."""
        return self.tunnel is not None

    def close(self) -> None:
        """Close the connection, and the tunnel."""
        self.client.close()
        if self.tunnel:
            self.tunnel.close()


def reach(address: str | None = None) -> DockerHost:
    """Connect to a Docker engine.

    Args:
        address: `ssh://user@host`, `unix://…` or `tcp://…`; None asks `DOCKER_HOST`, then the usual
            socket.

    Raises:
        ServeFault: it does not answer, or may not be asked.
    """
    import docker

    address = address or os.environ.get("DOCKER_HOST") or None
    tunnel = open_tunnel(address) if address and address.startswith("ssh://") else None
    try:
        with mapped():
            if tunnel:
                client = docker.DockerClient(base_url=f"unix://{tunnel.socket}", timeout=_TIMEOUT_S)
            else:
                client = docker.from_env(
                    timeout=_TIMEOUT_S,
                    environment={**os.environ, **({"DOCKER_HOST": address} if address else {})},
                )
            client.ping()
    except BaseException:
        if tunnel:
            tunnel.close()
        raise
    if tunnel:
        return DockerHost(client, tunnel, tunnel.home)
    user = 0
    with contextlib.suppress(OSError):
        user = Path((address or _SOCKET).removeprefix("unix://")).stat().st_uid
    return DockerHost(client, None, str(Path.home()), user)


def image_present(client: docker.DockerClient, image: str) -> dict[str, Any] | None:
    """What the engine knows of an image it has; None where it has none of this name."""
    import docker

    with mapped():
        try:
            return client.api.inspect_image(image)
        except docker.errors.ImageNotFound:
            return None


def pull(
    client: docker.DockerClient,
    image: str,
    progress: Callable[[str], None] | None = None,
    every_s: float = 2.0,
) -> str | None:
    """Fetch an image, and say every few seconds how far it is.

    Args:
        client: the engine.
        image: reference; with a digest, exactly that one is fetched.
        progress: called with a line.
        every_s: seconds between two lines.

    Returns:
        The digest that the registry reported.

    Raises:
        ServeFault: it can't be fetched.
    """
    say = progress or (lambda _line: None)
    name, at, digest = image.partition("@")
    repository, tag = (name, digest) if at else _split_tag(name)
    layers: dict[str, tuple[int, int, bool]] = {}
    told_digest, said = digest or None, time.monotonic()
    figures = {
        "platform": _platform(client),
        "registry": name.split("/")[0] if "." in name.split("/")[0] else "docker.io",
    }
    say(f"pulling {image}")
    with mapped(**figures):
        events = client.api.pull(repository, tag=tag, stream=True, decode=True)
        try:
            for event in events:
                if text := event.get("error"):
                    raise ServeFault(explain(text, **figures))
                status, layer = event.get("status", ""), event.get("id")
                if status.startswith("Digest: "):
                    told_digest = status.removeprefix("Digest: ")
                if layer and re.fullmatch(r"[0-9a-f]{12}", layer):
                    layers[layer] = _layer(
                        layers.get(layer, (0, 0, False)), status, event.get("progressDetail") or {}
                    )
                if time.monotonic() - said >= every_s:
                    said = time.monotonic()
                    say(_how_far(layers))
        finally:
            events.close()
    say(
        f"{_how_far(layers)}, digest {told_digest}"
        if layers
        else f"it is here, digest {told_digest}"
    )
    return told_digest


def _split_tag(name: str) -> tuple[str, str]:
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")


def _layer(
    known: tuple[int, int, bool], status: str, detail: dict[str, int]
) -> tuple[int, int, bool]:
    """Bytes fetched, bytes in all, and whether it is done, after one event of a layer."""
    current, total, done = known
    if status == "Downloading":
        return detail.get("current", current), detail.get("total", total), done
    if status in ("Download complete", "Verifying Checksum", "Extracting"):
        return total, total, done
    return current, total, done or status in ("Pull complete", "Already exists")


def _how_far(layers: dict[str, tuple[int, int, bool]]) -> str:
    done = sum(finished for _, _, finished in layers.values())
    fetched, total = (sum(layer[i] for layer in layers.values()) for i in (0, 1))
    sizes = f", {format_bytes(fetched)} of {format_bytes(total)} known so far" if total else ""
    return f"{done} of {len(layers)} layers{sizes}"


def _platform(client: docker.DockerClient) -> str:
    with mapped():
        version = client.version()
    return f"{version.get('Os', 'linux')}/{version.get('Arch', 'unknown')}"


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
        """Of a container that exists; `start` and `attach` make these.

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
        """Whether it is this container that answers at its address.

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
        """How the container ended, or that it was restarted; None while it runs as it should."""
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
                f"{error.message}\n{told(end)}", error.log_tail, error.stages, error.diagnosis
            ) from None
        return self.readiness

    def prove(self) -> None:
        """It has answered: remember that, and give it the restart policy for what comes now."""
        if self.request:
            (_proven_folder() / self.request.stack).touch()
            with mapped(name=self.name):
                policy = cast(Any, self.request.restart)  # docker's stubs want their own TypedDict
                self.host.client.api.update_container(self.id, restart_policy=policy)

    def stop(self, grace_s: int = _STOP_S) -> None:
        """Stop the server and remove its container; `grace_s` seconds after asking it is killed.
        Calling it again does nothing.
        """
        if not self._removed:
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


def mark_of(name: str) -> Path:
    """The file that marks a container of ours, next to the copy of its log: while it is
    there, the log is not tidied away.
    """
    return folders.path_of(f"docker-{name}") / CONTAINER


def forget(name: str, container: str) -> None:
    """Remove the mark and the key of a container that is gone; its log stays. A container that has
    its name by now keeps its own.
    """
    mark = mark_of(name)
    with contextlib.suppress(OSError):
        if mark.read_text("utf-8") == container:
            mark.unlink()
            mark.with_name(KEY_FILE).unlink(missing_ok=True)


def _key_of(name: str, container: str) -> tuple[str, Path]:
    """Return the key of a container of ours and the key's file: the one that its start kept, else
    this user's own.
    """
    mark = mark_of(name)
    with contextlib.suppress(OSError):
        file = mark.with_name(KEY_FILE)
        if mark.read_text("utf-8") == container and file.is_file():
            return key_in(file, str(file)), file
    return own_key()


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


# ---- what is there


@dataclass(frozen=True)
class Found:
    """A container of ours.

    Attributes:
        id, name: the container's.
        recipe: id of the recipe; empty for a launch line of one's own.
        stack: fingerprint of what it was started with.
        served: the served model's name.
        url: where it answers on its host.
        state: Docker's word: running, restarting, exited, created, …
        image: the reference it was created from.
    """

    id: str
    name: str
    recipe: str
    stack: str
    served: str
    url: str
    state: str
    image: str

    @property
    def port(self) -> int:
        """The port on its host."""
        return int(self.url.rsplit(":", 1)[1])


def find(host: DockerHost, name: str | None = None) -> list[Found]:
    """Our containers on a host, by name; `name` is a container's name or a recipe's id.

    Raises:
        ServeFault: the engine does not answer.
    """
    with mapped():
        listed = host.client.api.containers(all=True, filters={"label": f"{LABEL}.stack"})
    found = []
    for entry in listed:
        labels = {key.removeprefix(f"{LABEL}."): value for key, value in entry["Labels"].items()}
        ours = Found(
            entry["Id"],
            entry["Names"][0].lstrip("/") if entry["Names"] else entry["Id"][:12],
            labels.get("recipe", ""),
            labels["stack"],
            labels.get("served", ""),
            labels.get("url", ""),
            entry["State"],
            entry["Image"],
        )
        if name is None or name in (ours.name, ours.recipe):
            found.append(ours)
    return sorted(found, key=lambda one: one.name)


def remove(host: DockerHost, container: str, grace_s: int = _STOP_S) -> None:
    """Stop a container and remove it; one that is gone already is no error. Ctrl-C waits until it
    is done.

    Raises:
        ServeFault: the engine does not answer.
    """
    import docker

    with _uninterrupted(), mapped(name=container[:12]), contextlib.suppress(docker.errors.NotFound):
        with contextlib.suppress(docker.errors.APIError):
            host.client.api.stop(container, timeout=grace_s)
        try:
            host.client.api.remove_container(container, force=True, v=True)
        except docker.errors.APIError as error:
            if "already in progress" not in str(error.explanation):
                raise
            host.client.api.wait(container, condition="removed", timeout=_TIMEOUT_S)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Clean-up that a second Ctrl-C must not cut short. Only the main thread can hold it back, and
    only there does it arrive.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def inspected(host: DockerHost, found: Found) -> dict[str, Any]:
    """Return the engine's record of a container of ours.

    Raises:
        ServeFault: the engine does not answer, or the container is gone.
    """
    with mapped(name=found.name):
        return host.client.api.inspect_container(found.id)


def attach(host: DockerHost, found: Found, asked: Request | None = None) -> DockerEngine:
    """The engine object of a container that runs already.

    Raises:
        ServeFault: the engine does not answer.
    """
    key, file = _key_of(found.name, found.id)
    endpoint = _endpoint(host, found.url, found.served, key)
    return DockerEngine(host, inspected(host, found), endpoint, file, asked=asked, already=True)


def listens(host: DockerHost, container: dict[str, Any]) -> bool:
    """Return whether it is a container that answers at its address.

    A published port is Docker's: it is bound as long as the container runs, and of another host
    only the tunnel leads there. On the host's network the socket must be the container's.

    Args:
        host: the Docker engine.
        container: its record of the container.

    Raises:
        Stranger: another program answers.
        ServeFault: the engine does not answer.
    """
    if not container["State"]["Running"]:
        return False
    url = container["Config"]["Labels"][f"{LABEL}.url"]
    if container["HostConfig"]["NetworkMode"] == "host":
        tables, own = _sockets_in(host, container["Id"])
        return identity.listens(url, lambda: own, tables if host.remote else None)
    published = container["NetworkSettings"]["Ports"] or {}
    port = url.rpartition(":")[2]
    if not any(at["HostPort"] == port for bound in published.values() for at in bound or ()):
        return False
    if not host.remote:
        identity.listens(url, lambda: _of_docker(host, url))  # none: the kernel forwards the port
    return True


def _of_docker(host: DockerHost, url: str) -> set[int]:
    """Return the inodes of the sockets at an address that Docker holds. Who is not root sees the
    user of a socket, not the program.
    """
    inodes = set()
    for listener in identity.listening(url):
        names = set(identity.holders(listener).values())
        if listener.uid == host.user and (not names or names & _PORT_HOLDERS):
            inodes.add(listener.inode)
    return inodes


def _sockets_in(host: DockerHost, container: str) -> tuple[str, set[int]]:
    """Return the socket tables of a container's network, and the inodes of the container's own
    sockets: who is not root may not read them from outside.

    Raises:
        ServeFault: the engine does not answer.
        SparkbookError: the image has not the programs for it.
    """
    output = b""
    with mapped(name=container[:12]):
        asked = host.client.api.exec_create(container, ["sh", "-c", _LISTENERS], stderr=False)
        for piece in host.client.api.exec_start(asked["Id"], stream=True):
            output += piece
            if len(output) > _MOST_LISTENERS:
                break
        status = host.client.api.exec_inspect(asked["Id"])["ExitCode"]
    if status in (126, 127):
        raise SparkbookError(
            "Cannot check whether this container owns the server on the host's network: its image"
            " has no sh, cat or readlink."
        )
    tables = output.decode("utf-8", "replace")
    return tables, {int(inode) for inode in re.findall(r"^socket:\[(\d+)\]$", tables, re.M)}


def endpoint_of(host: DockerHost, found: Found) -> Endpoint:
    """Where a container of ours answers, seen from here, with its key."""
    return _endpoint(host, found.url, found.served, _key_of(found.name, found.id)[0])


def _endpoint(host: DockerHost, url: str, served: str, key: str) -> Endpoint:
    """The endpoint as it is reached from here: over SSH through a tunnel of its own."""
    return Endpoint(
        host.tunnel.forward(int(url.rsplit(":", 1)[1])) if host.tunnel else url, served, key
    )


# ---- a start


def prepare(
    stack: Stack,
    host_home: str | None = None,
    choices: Choices = AS_WRITTEN,
    key: str | None = None,
) -> Request:
    """What would be sent to start a stack; nothing is sent, and no engine is needed.

    Args:
        stack: what to serve.
        host_home: home folder on the engine's host; None means this user's.
        choices: what differs from the recipe.
        key: the API key; None takes this user's own, which is made if there is none yet.

    Raises:
        SparkbookError: Docker has no setting for what the launch asks for.
    """
    environment = {**os.environ, KEY: key or own_key()[0]}
    return request(stack, environment, home=host_home or str(Path.home()), choices=choices)


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
        asked = prepare(stack, host.home, replace_fields(choices, watched=ready))
        for note in asked.notes:
            say(f"{note.severity}: {note.message} ({note.rule})")
        engine = _already(host, asked, replace, say) or launch(
            host, asked, stack, watch, floor, say
        )
        try:
            if ready:
                with engine.guard or contextlib.nullcontext():
                    engine.wait_ready(
                        stack.claims, requests=requests, deadline_s=deadline_s, progress=progress
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
        same_port = other.state in ("running", "restarting") and other.port == asked.port
        if other.name != asked.name and not same_port:
            continue
        if (
            other.name == asked.name
            and other.stack == asked.body["Labels"][f"{LABEL}.stack"]
            and other.state == "running"
        ):
            say(f"{asked.name} is up already, with this very configuration: {other.url}")
            return attach(host, other, asked)
        if other.state in ("running", "restarting") and not replace:
            what = f"{other.name} (recipe {other.recipe})" if other.recipe else other.name
            how = (
                "with another configuration"
                if other.name == asked.name
                else f"on port {other.port}"
            )
            finding = DOCK["DOCK104" if same_port else "DOCK105"].finding(
                evidence=f"{what} is up {how}: {other.url}", port=other.port, name=other.name
            )
            port = "" if other.name == asked.name else ", or choose another --port"
            stop = command_line("sparkbook", "stop", other.name)
            fix = f"Run `{stop}`, or add --replace to do so now{port}."
            raise ServeFault(replace_fields(finding, fix=fix))
        say(f"removing {other.name}, {other.state}")
        remove(host, other.id)
    _check_strangers(host, asked)
    return None


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
) -> DockerEngine:
    """Pull, create, start what was asked for. Whatever goes wrong, and whenever Ctrl-C comes, no
    container is left.
    """
    if not host.remote:
        for mount in asked.body["HostConfig"].get("Mounts", ()):
            if mount["Type"] == "bind" and not Path(mount["Source"]).exists():
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
    platform = _platform(host.client)
    if (
        image
        and (built := f"{image.get('Os', 'linux')}/{image.get('Architecture', '')}") != platform
    ):
        raise ServeFault(
            DOCK["DOCK109"].finding(
                evidence=f"the image is {built}, the host {platform}", platform=platform
            )
        )
    mark = secrets.token_hex(8)
    body = {**asked.body, "Labels": {**asked.body["Labels"], f"{LABEL}.start": mark}}
    try:
        with mapped(port=asked.port, name=asked.name, platform=platform):
            created = host.client.api.create_container_from_config(body, asked.name)
            say(f"starting {asked.name} from {asked.image}")
            host.client.api.start(created["Id"])
            container = host.client.api.inspect_container(created["Id"])
        endpoint = _endpoint(host, asked.body["Labels"][f"{LABEL}.url"], stack.served, key)
        if os.environ.get(KEY):
            # The next start may have another one: this container's stays with its log.
            key_file = mark_of(asked.name).with_name(KEY_FILE)
            key_file.parent.mkdir(parents=True, exist_ok=True)
            write_private(key_file, key)
        engine = DockerEngine(host, container, endpoint, key_file, asked=asked, already=False)
    except BaseException:
        _remove_marked(host, mark)
        raise
    engine.guard = guard
    return engine


def _remove_marked(host: DockerHost, mark: str) -> None:
    """Remove the container of a start that failed, known by its mark: the answer with its id may
    never have arrived.
    """
    with contextlib.suppress(ServeFault), _uninterrupted():
        for _ in range(3):
            with mapped():
                left = host.client.api.containers(
                    all=True, filters={"label": f"{LABEL}.start={mark}"}
                )
            for entry in left:
                remove(host, entry["Id"], grace_s=2)
            if left:
                return
            time.sleep(0.2)  # an interrupted request may still be under way inside the engine


def logs(host: DockerHost, found: Found, *, follow: bool = False) -> Iterator[bytes]:
    """What a container of ours printed; with `follow`, until it ends.

    Raises:
        ServeFault: the engine does not answer.
    """
    with mapped(name=found.name):
        if follow:
            yield from host.client.api.logs(found.id, stream=True, follow=True)
        else:
            yield host.client.api.logs(found.id)


def version_of(host: DockerHost) -> str:
    """Version of the Docker engine.

    Raises:
        ServeFault: it does not answer.
    """
    with mapped():
        return str(host.client.version().get("Version", "unknown"))


def digest_of(host: DockerHost, found: Found) -> tuple[str | None, str]:
    """Digest of the image that a container runs, in its registry's terms (None for one built here),
    and the image's own id.

    Raises:
        SparkbookError: the engine does not answer, or the image is gone.
    """
    with mapped(name=found.name):
        image = host.client.api.inspect_image(host.client.api.inspect_container(found.id)["Image"])
    name = _split_tag(found.image.partition("@")[0])[0]
    digests = sorted(entry.partition("@") for entry in image.get("RepoDigests") or [])
    own = [
        digest
        for repository, _, digest in digests
        if repository.removeprefix("docker.io/") == name.removeprefix("docker.io/")
    ]
    return (own[0] if own else None), image["Id"]
