"""What runs on this host, whoever started it: containers by their labels, process engines by the
word they leave in their folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.serve import containers, docker_host, folders, identity, pulse
from sparkbook.serve.containers import Found
from sparkbook.serve.docker_host import DockerHost
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.faults import ServeFault, how_it_ended
from sparkbook.serve.folders import KEY_FILE, LOG_FILE, Record
from sparkbook.serve.identity import ProcessId, Stranger
from sparkbook.util.shell_text import command_line


class NotThere(SparkbookError):
    """No server of this name was started here, as far as could be asked."""


State = Literal[
    "ready",
    "frozen",
    "starting",
    "created",
    "paused",
    "restarting",
    "stopping",
    "stopped",
    "refuses the key",
    "port taken",
]
_DOCKER: dict[str, State] = {
    "created": "created",
    "running": "starting",
    "paused": "paused",
    "restarting": "restarting",
    "removing": "stopping",
    "exited": "stopped",
    "dead": "stopped",
}
"""The state for each of Docker's words; a container that runs is asked further."""


@dataclass(frozen=True)
class Server:
    """A server that was started here.

    Attributes:
        name: what `logs` and `stop` call it.
        target: the engine that runs it: `docker` or `process`.
        recipe: id of its recipe; empty where it has none.
        served: the model's name for clients.
        url: where it answers.
        state: `ready` answers with our key, and its engine works; `frozen`: it answers, but its
            engine does nothing; `starting` runs and does not answer yet; `created`: a container
            that does not run yet; `port taken` runs, but another program listens at its address.
        image: what its container was created from; None for a process.
        end: how it ended, or what is wrong with it.
    """

    name: str
    target: Literal["docker", "process"]
    recipe: str
    served: str
    url: str
    state: State
    image: str | None = None
    end: Finding | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__ if name != "end"},
            "end": self.end.to_dict() if self.end else None,
        }


@dataclass(frozen=True)
class _Process:
    folder: Path
    record: Record

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def names(self) -> tuple[str, ...]:
        return self.name, self.record.recipe, self.record.name

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.record.url, self.record.served, _read(self.folder / KEY_FILE))

    def listens(self) -> bool:
        return identity.listens(self.record.url, self.record.process.sockets)


def _processes() -> list[_Process]:
    return [
        _Process(folder, record)
        for folder in folders.all_folders()
        if (record := folders.running(folder))
    ]


@contextlib.contextmanager
def engines(address: str | None = None) -> Iterator[tuple[DockerHost | None, Findings]]:
    """Connect to the Docker engine, or return why none answers. On a host without Docker, if none
    was asked for, that is no fault.

    Args:
        address: as `docker_host.reach` takes it.
    """
    try:
        host, notes = docker_host.reach(address), Findings()
    except ServeFault as fault:
        quiet = (
            fault.finding.rule == "DOCK101" and not address and not os.environ.get("DOCKER_HOST")
        )
        host, notes = (
            None,
            Findings([replace(fault.finding, severity="info") if quiet else fault.finding]),
        )
    try:
        yield host, notes
    except NotThere as error:
        if notes.worst == "error":
            raise SparkbookError(
                f"Docker can't be asked ({notes[0].rule}), so it is not known whether this is so:"
                f" {error}"
            ) from None
        raise
    finally:
        if host:
            host.close()


def status(host: DockerHost | None) -> list[Server]:
    """Return all servers of this user: those in containers first, each kind by name.

    Args:
        host: the Docker engine; None leaves containers out.

    Raises:
        ServeFault: the Docker engine stopped answering.
    """
    folders.sweep()
    servers = [_container(host, found) for found in containers.find(host)] if host else []
    for process in _processes():
        record = process.record
        ends = record.process.name == "stopping"
        state: State = "stopping" if ends else _answers(process.endpoint, process.listens)
        servers.append(
            Server(
                process.name,
                "process",
                record.recipe,
                record.served,
                record.url,
                state,
                end=_frozen(state, process.name),
            )
        )
    return servers


def _container(host: DockerHost, found: Found) -> Server:
    record = containers.inspected(host, found)
    end = how_it_ended(record["State"], found.name, record["RestartCount"])
    state = _DOCKER.get(record["State"]["Status"], "stopped")
    if state == "starting":
        state = _answers(
            containers.endpoint_of(host, found), lambda: containers.listens(host, record)
        )
    elif state == "created" and end:
        state = "stopped"  # Docker could not start it
    return Server(
        found.name,
        "docker",
        found.recipe,
        found.served,
        found.url,
        state,
        found.image,
        _frozen(state, found.name) or end,
    )


def _frozen(state: State, name: str) -> Finding | None:
    return pulse.judge(token=False, moved=False, name=name) if state == "frozen" else None


def _answers(endpoint: Endpoint, listens: Callable[[], bool]) -> State:
    """Return the state of a server that runs. Only the server itself is asked, with its key."""
    try:
        if not listens() or endpoint.get("/health", timeout_s=3).status_code != 200:
            return "starting"
        if endpoint.get("/v1/models", timeout_s=3).status_code == 401:
            return "refuses the key"
        return pulse.look(endpoint)
    except Stranger:
        return "port taken"
    except SparkbookError:
        return "starting"


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError:
        return ""


def _pick(host: DockerHost | None, name: str) -> Found | _Process:
    """Return the one server of this name.

    Raises:
        SparkbookError: there is none, or more than one.
    """
    found: list[Found | _Process] = list(containers.find(host, name)) if host else []
    found += [process for process in _processes() if name in process.names]
    if len(found) == 1:
        return found[0]
    known = [one.name for one in [*(containers.find(host) if host else ()), *_processes()]]
    if not found:
        raise NotThere(
            f"no server called '{name}' was started here;"
            f" {'there are ' + ', '.join(known) if known else 'none runs'}"
        )
    names = [one.name for one in found]
    raise SparkbookError(
        f"'{name}' means several servers: {', '.join(names)}; use one of these names"
    )


def _gone(process: ProcessId, within_s: float) -> bool:
    """Wait for the end of a process, and return whether it has come."""
    deadline = time.monotonic() + within_s
    while process.alive and time.monotonic() < deadline:
        time.sleep(0.1)
    return not process.alive


def stop(host: DockerHost | None, name: str, within_s: float = 40) -> str:
    """Take a server down: its container is removed, its processes end. Its name is returned.

    Raises:
        SparkbookError: there is no such server, or it does not end.
    """
    picked = _pick(host, name)
    if isinstance(picked, Found):
        assert host is not None
        containers.remove(host, picked.id)
        containers.forget(picked.name, picked.id)
        return picked.name
    guard = picked.record.process
    guard.signal(signal.SIGTERM)  # the guard ends all of the engine
    if not _gone(guard, within_s):
        guard.kill_descendants()
        if not _gone(guard, 5):
            guard.signal(signal.SIGKILL)  # frozen: it can't end by itself
    if not _gone(guard, 5):
        raise SparkbookError(
            f"{picked.name} does not end; its guard is process {guard.pid}. Look at its state with:"
            f" {command_line('ps', '-o', 'stat,wchan,cmd', '-p', guard.pid)}"
        )
    folders.release(picked.folder, picked.record)
    return picked.name


def logs(host: DockerHost | None, name: str, *, follow: bool = False) -> Iterator[bytes]:
    """Yield what a server printed, in pieces; with `follow`, until it ends. The log of a server
    that has ended is still there, under its whole name.

    Raises:
        SparkbookError: there is no such server.
    """
    try:
        picked = _pick(host, name)
    except SparkbookError:
        kept = [folders.path_of(name) / LOG_FILE, containers.mark_of(name).with_name(LOG_FILE)]
        file = next((file for file in kept if file.is_file()), None)
        if "/" in name or file is None:
            raise
        yield file.read_bytes()
        return
    if isinstance(picked, Found):
        assert host is not None
        yield from containers.logs(host, picked, follow=follow)
        return
    with (picked.folder / LOG_FILE).open("rb") as log:
        while True:
            ended = not picked.record.process.alive
            if new := log.read():
                yield new
            elif not follow or ended:
                return
            else:
                time.sleep(0.2)


def endpoint(host: DockerHost | None, name: str) -> Endpoint:
    """Return where a server of this name answers, with its key.

    Raises:
        SparkbookError: there is no such server, or it does not listen.
        Stranger: another program listens at its address.
    """
    picked = _pick(host, name)
    if isinstance(picked, Found):
        assert host is not None
        ours = containers.listens(host, containers.inspected(host, picked))
        address = containers.endpoint_of(host, picked)
    else:
        ours, address = picked.listens(), picked.endpoint
    if not ours:
        raise SparkbookError(f"{picked.name} does not listen at {address.url} yet")
    return address


def words(host: DockerHost | None, name: str) -> list[str]:
    """Return the command line, and a container's variables, of a server that runs; nothing where
    no one server of this name does.
    """
    import psutil

    try:
        picked = _pick(host, name)
    except SparkbookError:
        return []
    if isinstance(picked, Found):
        assert host is not None
        config = containers.inspected(host, picked)["Config"]
        found = [*(config["Cmd"] or ()), *(config["Env"] or ())]
        return found if picked.state == "running" else []
    with contextlib.suppress(psutil.Error):
        return psutil.Process(picked.record.process.pid).cmdline()
    return []


def key_file(host: DockerHost | None, name: str) -> Path:
    """Return the file that holds the key of a server of this name.

    Raises:
        SparkbookError: there is no such server.
    """
    picked = _pick(host, name)
    if isinstance(picked, Found):
        return containers.key_of(picked.name, picked.id)[1]
    return picked.folder / KEY_FILE
