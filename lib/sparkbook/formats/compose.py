"""The compose file: one service."""

from __future__ import annotations

import re
from typing import Any

import yaml

from sparkbook.errors import SparkbookError
from sparkbook.formats.lexer import HOME, check_writable, lex, literal, mark_home, passed_on, show
from sparkbook.formats.words import Reading, container_words, read_words
from sparkbook.recipes.launch import Launch

_SAME = {"container_name": "name", "runtime": "runtime", "ipc": "ipc", "shm_size": "shm_size", "restart": "restart", "user": "user"}
"""Keys of a service that hold a word of the container as it is."""
_KEYS = {*_SAME, "image", "command", "entrypoint", "environment", "volumes", "ports", "ulimits", "network_mode", "networks", "deploy"}
_MODES = re.compile(r"host|none|bridge|default|(container|service):.*", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class _Dumper(yaml.SafeDumper):
    """Block style, lists indented under their key, and whatever looks like a number quoted: readers differ in what they take for one."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _string(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = None
    if "\n" in text and re.fullmatch(r"[!-~](?:[ -~]|\n)*[!-~]", text):
        style = "|"
    elif (
        not text.isprintable()
        or re.match(r"[-+.]?[0-9]|[-+]?\.(inf|nan)", text, re.IGNORECASE)
        or text.lower() in ("y", "n", "yes", "no", "on", "off")
    ):
        style = '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _string)


def write(launch: Launch) -> str:
    """The compose file.

    A dollar is doubled, so that compose leaves it alone; the home folder is `${HOME}`; a variable that is null is passed on.

    Raises:
        SparkbookError: the launch has no image, or asks for GPUs in a way that compose cannot say.
    """
    entry, words = container_words(launch)
    container = launch.container
    service: dict[str, Any] = {"image": launch.image}
    for key, name in _SAME.items():
        if (value := getattr(container, name)) is not None:
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
    if named := [name for volume in container.volumes if _NAMED.fullmatch(name := volume.split(":")[0])]:
        # Declared under its own name: compose would put the project's name before it, and docker's volume would be another one.
        top["volumes"] = {name: {"name": name} for name in named}
    document = {"services": {container.name or "vllm": {key: _escape(value, key) for key, value in service.items()}}, **top}
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def _escape(value: Any, key: str = "") -> Any:
    """Strings as compose has to be given them: it expands a leading `~` by itself in volumes only. A command's words are marked already."""
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
        raise SparkbookError(f"container.gpus: '{gpus}' has no counterpart in a compose file: use all, a number, or device=0,1")
    return {**device, "capabilities": ["gpu"]}


def read(text: str) -> Launch:
    """The launch that a compose file with one service describes. Nothing is expanded.

    Raises:
        SparkbookError: the text is no compose file, has several services, or holds a key or a value that a launch cannot keep.
    """
    check_writable(text)
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise SparkbookError(f"this is not YAML{where}: {getattr(error, 'problem', None) or error}") from None
    except ValueError as error:
        raise SparkbookError(f"this is not YAML: {error}") from None
    except RecursionError:
        raise SparkbookError("this YAML is nested too deeply to be a compose file") from None
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict) or not services:
        raise SparkbookError("this is not a compose file: it has no services")
    if len(services) > 1:
        raise SparkbookError(f"this compose file has {len(services)} services ({', '.join(map(str, services))}): keep the one that serves")
    if unknown := sorted(str(key) for key in set(document) - {"services", "version", "name", "networks", "volumes"}):
        raise SparkbookError(f"the compose key {unknown[0]} is not one that a recipe can keep: take it out")
    [(name, service)] = services.items()
    if not isinstance(service, dict) or not isinstance(service.get("image"), str):
        raise SparkbookError(f"services.{name} has no image")
    if unknown := sorted(str(key) for key in set(service) - _KEYS):
        raise SparkbookError(f"services.{name}: the key {unknown[0]} is not one that a recipe can keep: take it out")
    return _read_service(service, _Place(f"services.{name}"))


class _Place:
    """Where in the file something stands, for messages."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __truediv__(self, key: object) -> _Place:
        return _Place(f"{self.path}.{key}")

    def error(self, message: str) -> SparkbookError:
        return SparkbookError(f"{self.path}: {message}")


def _read_service(service: dict[str, Any], place: _Place) -> Launch:
    reading = Reading(image=_word(service["image"], place / "image"))
    for key, name in _SAME.items():
        if service.get(key) is not None:
            reading.container[name] = _word(service[key], place / key)
    if service.get("network_mode") is not None:
        reading.container["network"] = _word(service["network_mode"], place / "network_mode")
    if networks := list(service.get("networks") or []):
        if len(networks) > 1:
            raise (place / "networks").error("a launch knows one network: keep one")
        reading.container["network"] = _word(networks[0], place / "networks")
    for key in ("ports", "volumes"):
        if entries := _list(service.get(key), place / key):
            reading.container[key] = [_word(entry, place / key, volume=key == "volumes") for entry in entries]
    if limits := _mapping(service.get("ulimits"), place / "ulimits"):
        reading.container["ulimits"] = {name: _read_limit(limit, place / "ulimits" / name) for name, limit in limits.items()}
    if (deploy := service.get("deploy")) is not None:
        reading.container["gpus"] = _read_devices(deploy, place / "deploy")
    for name, value in _environment(service.get("environment"), place / "environment"):
        reading.env[name] = value
    entry = _command(service.get("entrypoint"), place / "entrypoint")
    command = _command(service.get("command"), place / "command") or []
    if entry == []:
        read_words(reading, command, "")
    else:
        read_words(reading, [*(entry or [])[1:], *command], literal(entry[0]) if entry else None)
    return reading.launch()


def _list(value: Any, place: _Place) -> list[Any]:
    if not isinstance(value, list | None):
        raise place.error("expected a list")
    return value or []


def _mapping(value: Any, place: _Place) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise place.error("expected a mapping")
    return {str(key): item for key, item in (value or {}).items()}


def _word(value: Any, place: _Place, volume: bool = False) -> str:
    """A string of the file as a launch holds it."""
    text = _marked(value, place)
    try:
        return text if volume and "\0" not in text else literal(text)
    except SparkbookError as error:
        raise place.error(str(error)) from None


def _marked(value: Any, place: _Place) -> str:
    """A string with `$$` made single and what compose would fill in between marks."""
    if isinstance(value, dict):
        raise place.error("the long syntax is not read: write it as one string")
    if not isinstance(value, str | int | float):
        raise place.error(f"expected a string, found {type(value).__name__}")
    text = str(value).lower() if isinstance(value, bool) else str(value)
    check_writable(text)

    def fill(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return HOME if match[0] in ("$HOME", "${HOME}") else f"\0{match[0]}\0"

    return re.sub(r"\$\$|\$[A-Za-z_]\w*|\$\{[^}]*\}", fill, text)


def _environment(value: Any, place: _Place) -> list[tuple[str, str | None]]:
    """Variables from either form: a mapping, or a list of `NAME=VALUE` and `NAME`."""
    if isinstance(value, list):
        pairs = [(name, text if equals else None) for name, equals, text in (str(entry).partition("=") for entry in value)]
    else:
        pairs = list(_mapping(value, place).items())
    result: list[tuple[str, str | None]] = []
    for name, text in pairs:
        passed = text is None or passed_on(_marked(text, place / name)) == name
        result.append((name, None if passed else _word(text, place / name)))
    return result


def _command(value: Any, place: _Place) -> list[str] | None:
    """Words of a command or an entry point, the home folder marked; a string is taken apart as a shell would."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_marked(word, place) for word in value]
    tokens = lex(_marked(value, place), expand=False)
    if bad := next((token for token in tokens if token.operator and token.text != "\n"), None):
        raise place.error(f"{bad.text} joins commands, which compose does not do without a shell: write bash -c '…'")
    return [token.text for token in tokens if not token.operator]


def _read_limit(limit: Any, place: _Place) -> str:
    if isinstance(limit, dict) and set(limit) == {"soft", "hard"}:
        return f"{limit['soft']}:{limit['hard']}"
    return _word(limit, place)


def _read_devices(deploy: Any, place: _Place) -> str:
    """`--gpus` out of deploy.resources.reservations.devices.

    Raises:
        SparkbookError: anything else stands under deploy.
    """
    try:
        ((resources, reservations),) = deploy.items()
        ((reserved, devices),) = reservations.items()
        ((kind, [device]),) = devices.items()
        assert (resources, reserved, kind) == ("resources", "reservations", "devices")
        assert set(device) <= {"driver", "count", "device_ids", "capabilities"}
        assert device.get("driver", "nvidia") == "nvidia" and device.get("capabilities") == ["gpu"]
        assert not ("count" in device and "device_ids" in device)
    except (AttributeError, AssertionError, ValueError, TypeError):
        raise place.error("only resources.reservations.devices with one nvidia device and capabilities [gpu] is read") from None
    if "device_ids" in device:
        return "device=" + ",".join(_word(item, place / "device_ids") for item in _list(device["device_ids"], place / "device_ids"))
    return show(_word(device.get("count", "all"), place / "count"))
