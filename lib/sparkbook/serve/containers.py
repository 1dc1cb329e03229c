"""Containers that this project started: find, look into, remove. They are known by their labels
(`sparkbook.*`), never by guesses.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.serve import folders, identity
from sparkbook.serve.docker_host import TIMEOUT_S, DockerHost, mapped, split_tag
from sparkbook.serve.endpoint import Endpoint, key_in, own_key
from sparkbook.serve.folders import CONTAINER, KEY_FILE
from sparkbook.serve.interrupts import held_back
from sparkbook.serve.stack import LABEL

STOP_S = 15
"""Seconds between asking a server to end and killing it; vLLM needs 2 to 4."""


ENDED = ("removing", "exited", "dead")
"""Docker's words for a container that runs no more."""


_PORT_HOLDERS = {"docker-proxy", "dockerd", "rootlesskit", "slirp4netns"}
"""Programs of Docker, rootless Docker among them, that bind a published port."""


_LISTENERS = "cat /proc/net/tcp /proc/net/tcp6; readlink /proc/[0-9]*/fd/*"
"""Run in a container on the host's network: what listens there, and the container's own sockets."""


_MOST_LISTENERS = 1 << 22  # bytes of its answer


def mark_of(name: str) -> Path:
    """Return the file that marks a container of ours, next to the copy of its log: while it is
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


def key_of(name: str, container: str) -> tuple[str, Path]:
    """Return the key of a container of ours and the key's file: the one that its start kept, else
    this user's own.
    """
    mark = mark_of(name)
    with contextlib.suppress(OSError):
        file = mark.with_name(KEY_FILE)
        if mark.read_text("utf-8") == container and file.is_file():
            return key_in(file, str(file)), file
    return own_key()


@dataclass(frozen=True)
class Found:
    """A container of ours.

    Attributes:
        id, name: the container's.
        recipe: id of the recipe; empty for a launch line of one's own.
        stack: fingerprint of what it was started with.
        served: the served model's name.
        url: where it answers on its host.
        state: Docker's word: created, running, paused, restarting, removing, exited or dead.
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
    def holds(self) -> bool:
        """Whether it holds its name and its port, or is about to: a container that has only been
        created may be a start under way.
        """
        return self.state not in ENDED

    @property
    def port(self) -> int:
        """The port on its host."""
        return int(self.url.rsplit(":", 1)[1])


def find(host: DockerHost, name: str | None = None) -> list[Found]:
    """Return our containers on a host, by name; `name` is a container's name or a recipe's id.

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


def remove(host: DockerHost, container: str, grace_s: int = STOP_S) -> None:
    """Stop a container, whatever its state, and remove it; one that is gone already is no error.
    Ctrl-C waits until it is done.

    Raises:
        ServeFault: the engine does not answer.
    """
    import docker

    with held_back(), mapped(name=container[:12]), contextlib.suppress(docker.errors.NotFound):
        with contextlib.suppress(docker.errors.APIError):
            host.client.api.unpause(container)  # one that is paused gets no signal
        with contextlib.suppress(docker.errors.APIError):
            host.client.api.stop(container, timeout=grace_s)
        try:
            host.client.api.remove_container(container, force=True, v=True)
        except docker.errors.APIError as error:
            if "already in progress" not in str(error.explanation):
                raise
            host.client.api.wait(container, condition="removed", timeout=TIMEOUT_S)


def inspected(host: DockerHost, found: Found) -> dict[str, Any]:
    """Return the engine's record of a container of ours.

    Raises:
        ServeFault: the engine does not answer, or the container is gone.
    """
    with mapped(name=found.name):
        return host.client.api.inspect_container(found.id)


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
        if host.remote:
            tables, own = _sockets_in(host, container["Id"])
            return identity.listens(url, lambda: own, tables)
        # Asked after the tables were read: a server that binds its port in between is no stranger.
        return identity.listens(url, lambda: _sockets_in(host, container["Id"])[1])
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
    """Return where a container of ours answers, seen from here, with its key."""
    return endpoint_at(host, found.url, found.served, key_of(found.name, found.id)[0])


def endpoint_at(host: DockerHost, url: str, served: str, key: str) -> Endpoint:
    """Return the endpoint as it is reached from here: over SSH through a tunnel of its own."""
    return Endpoint(
        host.tunnel.forward(int(url.rsplit(":", 1)[1])) if host.tunnel else url, served, key
    )


def logs(host: DockerHost, found: Found, *, follow: bool = False) -> Iterator[bytes]:
    """Yield what a container of ours printed; with `follow`, until it ends.

    Raises:
        ServeFault: the engine does not answer.
    """
    with mapped(name=found.name):
        if follow:
            yield from host.client.api.logs(found.id, stream=True, follow=True)
        else:
            yield host.client.api.logs(found.id)


def digest_of(host: DockerHost, found: Found) -> tuple[str | None, str]:
    """Return the digest of a container's image in its registry's terms (None for one built here),
    and the image's own id.

    Raises:
        SparkbookError: the engine does not answer, or the image is gone.
    """
    with mapped(name=found.name):
        image = host.client.api.inspect_image(host.client.api.inspect_container(found.id)["Image"])
    name = split_tag(found.image.partition("@")[0])[0]
    digests = sorted(entry.partition("@") for entry in image.get("RepoDigests") or [])
    own = [
        digest
        for repository, _, digest in digests
        if repository.removeprefix("docker.io/") == name.removeprefix("docker.io/")
    ]
    return (own[0] if own else None), image["Id"]
