"""A Docker engine, on this host or on another one over SSH: how to reach it, and its images."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkbook.serve.faults import ServeFault, explain
from sparkbook.serve.remote import Tunnel, open_tunnel
from sparkbook.units import format_bytes

if TYPE_CHECKING:
    import docker

TIMEOUT_S = 120


_SOCKET = "/var/run/docker.sock"


@contextlib.contextmanager
def mapped(**figures: object) -> Iterator[None]:
    """Turn what Docker's client raises into a `ServeFault`; `figures` fill in what Docker's text
    may leave out.
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
        address: the address it was reached by; None for the usual socket.
    """

    client: docker.DockerClient
    tunnel: Tunnel | None
    home: str
    user: int = 0
    address: str | None = None

    @property
    def memory(self) -> int | None:
        """Bytes of memory of the engine's host; None if it does not say.

        Raises:
            ServeFault: it does not answer.
        """
        with mapped():
            return self.client.info().get("MemTotal") or None

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
                client = docker.DockerClient(base_url=f"unix://{tunnel.socket}", timeout=TIMEOUT_S)
            else:
                client = docker.from_env(
                    timeout=TIMEOUT_S,
                    environment={**os.environ, **({"DOCKER_HOST": address} if address else {})},
                )
            client.ping()
    except BaseException:
        if tunnel:
            tunnel.close()
        raise
    if tunnel:
        return DockerHost(client, tunnel, tunnel.home, address=address)
    user = 0
    with contextlib.suppress(OSError):
        user = Path((address or _SOCKET).removeprefix("unix://")).stat().st_uid
    return DockerHost(client, None, str(Path.home()), user, address)


def image_present(client: docker.DockerClient, image: str) -> dict[str, Any] | None:
    """Return what the engine knows of an image it has; None where it has none of this name."""
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
    repository, tag = (name, digest) if at else split_tag(name)
    layers: dict[str, tuple[int, int, bool]] = {}
    told_digest, said = digest or None, time.monotonic()
    figures = {
        "platform": platform_of(client),
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


def split_tag(name: str) -> tuple[str, str]:
    head, colon, tag = name.rpartition(":")
    return (head, tag) if colon and "/" not in tag else (name, "latest")


def _layer(
    known: tuple[int, int, bool], status: str, detail: dict[str, int]
) -> tuple[int, int, bool]:
    """Return bytes fetched, bytes in all, and whether it is done, after one event of a layer."""
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


def platform_of(client: docker.DockerClient) -> str:
    with mapped():
        version = client.version()
    return f"{version.get('Os', 'linux')}/{version.get('Arch', 'unknown')}"


def version_of(host: DockerHost) -> str:
    """Return version of the Docker engine.

    Raises:
        ServeFault: it does not answer.
    """
    with mapped():
        return str(host.client.version().get("Version", "unknown"))
