"""What runs on this host, whoever started it: containers by their labels, process engines by the
word they leave in their folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.serve import docker_engine, paths
from sparkbook.serve.docker_engine import Found, Host
from sparkbook.serve.endpoint import Endpoint, own_key
from sparkbook.serve.faults import DockerFault
from sparkbook.serve.process import KEY_FILE, LOG_FILE, RECORD, guard_of


class NotThere(SparkbookError):
    """No server of this name was started here, as far as could be asked."""


State = Literal["ready", "starting", "restarting", "stopped", "refuses the key"]


@dataclass(frozen=True)
class Server:
    """A server that was started here.

    Attributes:
        name: what `logs` and `stop` call it.
        target: the engine that runs it: `docker` or `process`.
        recipe: id of its recipe; empty where it has none.
        served: the model's name for clients.
        url: where it answers.
        state: `ready` answers with our key; `starting` runs and does not answer yet.
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
        """For JSON."""
        return {
            **{name: getattr(self, name) for name in self.__dataclass_fields__ if name != "end"},
            "end": self.end.to_dict() if self.end else None,
        }


@dataclass(frozen=True)
class _Process:
    folder: Path
    guard: int
    record: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        return self.folder.name, self.record["recipe"], self.record["name"]


def _processes() -> list[_Process]:
    folders = paths.cache_dir() / "engines"
    found = []
    for folder in sorted(folders.iterdir()) if folders.is_dir() else ():
        if (guard := guard_of(folder)) is not None:
            found.append(_Process(folder, guard, json.loads((folder / RECORD).read_text("utf-8"))))
    return found


@contextlib.contextmanager
def engines(address: str | None = None) -> Iterator[tuple[Host | None, Findings]]:
    """The Docker engine, if one answers, and why not if none does. On a host without Docker, of
    which none was asked, that is no fault.

    Args:
        address: as `docker_engine.reach` takes it.
    """
    try:
        host, notes = docker_engine.reach(address), Findings()
    except DockerFault as fault:
        quiet = (
            fault.finding.rule == "DOCK101" and not address and not os.environ.get("DOCKER_HOST")
        )
        host, notes = (
            None,
            Findings(
                [replace(fault.finding, severity="info") if quiet else fault.finding]
            ),
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


def status(host: Host | None) -> list[Server]:
    """All servers of this user: those in containers first, each kind by name.

    Args:
        host: the Docker engine; None leaves containers out.

    Raises:
        DockerFault: the Docker engine stopped answering.
    """
    servers = [_container(host, found) for found in docker_engine.find(host)] if host else []
    for process in _processes():
        record = process.record
        key = _read(process.folder / KEY_FILE)
        state = _answers(Endpoint(record["url"], record["served"], key))
        servers.append(
            Server(
                process.folder.name,
                "process",
                record["recipe"],
                record["served"],
                record["url"],
                state,
            )
        )
    return servers


def _container(host: Host, found: Found) -> Server:
    end = None
    with docker_engine.mapped(name=found.name):
        seen = host.client.api.inspect_container(found.id)
    end = docker_engine.how_it_ended(seen["State"], found.name, seen["RestartCount"])
    state: State = "stopped"
    if found.state == "restarting":
        state = "restarting"
    elif found.state == "running":
        state = _answers(docker_engine.endpoint_of(host, found, own_key()[0]))
    return Server(
        found.name, "docker", found.recipe, found.served, found.url, state, found.image, end
    )


def _answers(endpoint: Endpoint) -> State:
    try:
        if endpoint.get("/health", timeout_s=3).status_code != 200:
            return "starting"
        return (
            "refuses the key"
            if endpoint.get("/v1/models", timeout_s=3).status_code == 401
            else "ready"
        )
    except SparkbookError:
        return "starting"


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError:
        return ""


def _pick(host: Host | None, name: str) -> Found | _Process:
    """The one server of this name.

    Raises:
        SparkbookError: there is none, or more than one.
    """
    found: list[Found | _Process] = list(docker_engine.find(host, name)) if host else []
    found += [process for process in _processes() if name in process.names]
    if len(found) == 1:
        return found[0]
    known = [one.name for one in (docker_engine.find(host) if host else ())] + [
        process.folder.name for process in _processes()
    ]
    if not found:
        raise NotThere(
            f"no server called '{name}' was started here;"
            f" {'there are ' + ', '.join(known) if known else 'none runs'}"
        )
    names = [one.name if isinstance(one, Found) else one.folder.name for one in found]
    raise SparkbookError(
        f"'{name}' means several servers: {', '.join(names)}; use one of these names"
    )


def stop(host: Host | None, name: str, within_s: float = 40) -> str:
    """Take a server down: its container is removed, its processes end. Its name is returned.

    Raises:
        SparkbookError: there is no such server, or it does not end.
    """
    picked = _pick(host, name)
    if isinstance(picked, Found):
        assert host is not None
        docker_engine.remove(host, picked.id)
        docker_engine.mark_of(picked.name).unlink(missing_ok=True)
        return picked.name
    os.kill(picked.guard, signal.SIGTERM)  # the guard ends the engine's whole group
    deadline = time.monotonic() + within_s
    while guard_of(picked.folder) is not None:
        if time.monotonic() > deadline:
            raise SparkbookError(
                f"{picked.folder.name} did not end within {within_s:.0f} s; its guard is process"
                f" {picked.guard}"
            )
        time.sleep(0.1)
    for left in (KEY_FILE, RECORD):
        (picked.folder / left).unlink(missing_ok=True)
    return picked.folder.name


def logs(host: Host | None, name: str, *, follow: bool = False) -> Iterator[bytes]:
    """What a server printed, in pieces; with `follow`, until it ends. That of a process engine that
    has ended is still there.

    Raises:
        SparkbookError: there is no such server.
    """
    try:
        picked = _pick(host, name)
    except SparkbookError:
        file = paths.cache_dir() / "engines" / name / LOG_FILE
        if "/" in name or not file.is_file():
            raise
        yield file.read_bytes()
        return
    if isinstance(picked, Found):
        assert host is not None
        yield from docker_engine.logs(host, picked, follow=follow)
        return
    with (picked.folder / LOG_FILE).open("rb") as log:
        while True:
            ended = guard_of(picked.folder) is None
            if new := log.read():
                yield new
            elif not follow or ended:
                return
            else:
                time.sleep(0.2)


def endpoint(host: Host | None, name: str) -> Endpoint:
    """Where a server of this name answers, with its key.

    Raises:
        SparkbookError: there is no such server.
    """
    picked = _pick(host, name)
    if isinstance(picked, Found):
        assert host is not None
        return docker_engine.endpoint_of(host, picked, own_key()[0])
    return Endpoint(picked.record["url"], picked.record["served"], _read(picked.folder / KEY_FILE))
