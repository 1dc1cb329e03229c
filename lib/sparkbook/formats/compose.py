"""The compose file: one service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.formats.conversion import Notes
from sparkbook.formats.reading import first_launch
from sparkbook.formats.words import container_words
from sparkbook.launch import compose
from sparkbook.launch.compose import read_env
from sparkbook.recipes.launch import Launch
from sparkbook.util.documents import dump
from sparkbook.util.shell_text import HOME, mark_home

_MODES = re.compile(r"host|none|bridge|default|(container|service):.*", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def write(launch: Launch, foreign: dict[str, Any] | None = None) -> str:
    """Return the compose file.

    A dollar is doubled, so that compose leaves it alone; the home folder is `${HOME}`; a variable
    that is null is passed on.

    Args:
        launch: what is started.
        foreign: keys of the service and of the file that a launch does not hold, as `read` kept
            them.

    Raises:
        SparkbookError: the launch has no image, or asks for GPUs in a way that compose cannot say.
    """
    entry, words = container_words(launch)
    container = launch.container
    service: dict[str, Any] = {"image": launch.image}
    for key, option in compose.SAME.items():
        if (value := getattr(container, option.replace("-", "_"))) is not None:
            service[key] = value
    top: dict[str, Any] = {}
    if container.network is not None and _MODES.fullmatch(container.network):
        service["network_mode"] = container.network
    elif container.network is not None:
        service["networks"] = [container.network]
        top["networks"] = {container.network: {"external": True}}
    service |= {"ports": container.ports, "volumes": container.volumes, "environment": launch.env}
    service["ulimits"] = {name: _limit(limit) for name, limit in container.ulimits.items()}
    if entry is not None:
        service["entrypoint"] = [entry] if entry else ""
    service["command"] = [word for group in words for word in group]
    if container.gpus is not None:
        service["deploy"] = {"resources": {"reservations": {"devices": [_devices(container.gpus)]}}}
    service = {key: value for key, value in service.items() if value not in ([], {})}
    if named := [
        name for volume in container.volumes if _NAMED.fullmatch(name := volume.split(":")[0])
    ]:
        # Declared under its own name: compose would put the project's name before it, and docker's
        # volume would be another one.
        top["volumes"] = {name: {"name": name} for name in named}
    kept = foreign or {}
    service = {key: _escape(value, key) for key, value in service.items()} | dict(
        kept.get("service") or {}
    )
    if "devices" in kept and "deploy" in service:
        service["deploy"]["resources"]["reservations"]["devices"][0] |= kept["devices"]
    return dump(
        {"services": {container.name or "vllm": service}, **top, **dict(kept.get("file") or {})}
    )


def _escape(value: Any, key: str = "") -> Any:
    """Return strings as compose has to be given them: it expands a leading `~` by itself in volumes
    only. A command's words are marked already.
    """
    if isinstance(value, dict):
        return {name: _escape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_escape(item, key) for item in value]
    if not isinstance(value, str):
        return value
    marked = value if key in ("volumes", "command") else mark_home(value)
    return "${HOME}".join(part.replace("$", "$$") for part in marked.split(HOME))


def _limit(limit: str) -> int | dict[str, int]:
    soft, colon, hard = limit.partition(":")
    return {"soft": int(soft), "hard": int(hard)} if colon else int(soft)


def _devices(gpus: str) -> dict[str, Any]:
    device: dict[str, Any] = {"driver": "nvidia"}
    if gpus == "all":
        device["count"] = "all"
    elif re.fullmatch(r"\d+", gpus, re.ASCII):
        device["count"] = int(gpus)
    elif match := re.fullmatch(r"device=([^,=]+(,[^,=]+)*)", gpus):
        device["device_ids"] = match[1].split(",")
    else:
        raise SparkbookError(
            f"container.gpus: '{gpus}' has no counterpart in a compose file: use all, a number, or"
            " device=0,1"
        )
    return {**device, "capabilities": ["gpu"]}


def read(text: str, notes: Notes | None = None, env: Mapping[str, str] | None = None) -> Launch:
    """Return the launch that a compose file describes: of several services, the one that serves.

    Args:
        text: the file.
        notes: receives what was chosen, filled in and left out.
        env: the variables of the `.env` file next to a compose file. Nothing is read from the disk
            or the environment.

    Raises:
        SparkbookError: the text is no compose file, or no service in it can be read.
    """
    return first_launch(compose.read(text, env), notes if notes is not None else Notes())


__all__ = ["read", "read_env", "write"]
