"""The compose file: one service."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.formats.conversion import Notes
from sparkbook.formats.documents import check_text, dump, mapping, parse, scalar, sequence, text_of
from sparkbook.formats.lexer import lex, literal, passed_on, show
from sparkbook.formats.words import Reading, container_words, read_words, set_env
from sparkbook.recipes.launch import Launch, is_secret
from sparkbook.util.shell_text import HOME, check_writable, mark_home

_SAME = {
    "container_name": "name",
    "runtime": "runtime",
    "ipc": "ipc",
    "shm_size": "shm_size",
    "restart": "restart",
    "user": "user",
}
"""Keys of a service that hold a word of the container as it is."""
_KEYS = {
    *_SAME,
    "gpus",
    "image",
    "command",
    "entrypoint",
    "environment",
    "volumes",
    "ports",
    "ulimits",
    "network_mode",
    "networks",
    "deploy",
}
_SERVICE_KEYS = {
    "annotations",
    "attach",
    "blkio_config",
    "build",
    "cap_add",
    "cap_drop",
    "cgroup",
    "cgroup_parent",
    "configs",
    "cpu_count",
    "cpu_percent",
    "cpu_shares",
    "cpus",
    "cpuset",
    "credential_spec",
    "depends_on",
    "develop",
    "device_cgroup_rules",
    "devices",
    "dns",
    "dns_opt",
    "dns_search",
    "domainname",
    "env_file",
    "expose",
    "extends",
    "external_links",
    "extra_hosts",
    "group_add",
    "healthcheck",
    "hostname",
    "init",
    "isolation",
    "label_file",
    "labels",
    "links",
    "logging",
    "mac_address",
    "mem_limit",
    "mem_reservation",
    "mem_swappiness",
    "memswap_limit",
    "models",
    "oom_kill_disable",
    "oom_score_adj",
    "pid",
    "pids_limit",
    "platform",
    "post_start",
    "pre_stop",
    "privileged",
    "profiles",
    "provider",
    "pull_policy",
    "read_only",
    "scale",
    "secrets",
    "security_opt",
    "stdin_open",
    "stop_grace_period",
    "stop_signal",
    "storage_opt",
    "sysctls",
    "tmpfs",
    "tty",
    "userns_mode",
    "uts",
    "volumes_from",
    "working_dir",
}
"""Keys of a service that no field of a recipe holds (Compose specification,
docs.docker.com/reference/compose-file/services).
"""
_FILE_KEYS = {"configs", "secrets", "include", "models", "networks", "volumes"}
_MODES = re.compile(r"host|none|bridge|default|(container|service):.*", re.DOTALL)
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def write(launch: Launch, foreign: dict[str, Any] | None = None) -> str:
    """The compose file.

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
    """Strings as compose has to be given them: it expands a leading `~` by itself in volumes only.
    A command's words are marked already.
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
    """The launch that a compose file describes: of several services, the one that serves.

    Args:
        text: the file.
        notes: where is told what was chosen, filled in and left out.
        env: the variables of the `.env` file that lies beside a compose file. Nothing is read from
            the disk or the environment.

    Raises:
        SparkbookError: the text is no compose file, or no service in it can be read.
    """
    notes = notes if notes is not None else Notes()
    document = parse(text)
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict) or not services:
        raise SparkbookError("this is not a compose file: it has no services")
    found: dict[str, tuple[Notes, Launch]] = {}
    problem: SparkbookError | None = None
    for name, service in services.items():
        try:
            mine = Notes()
            place = _Place(f"services.{name}", mine, env or {})
            if not isinstance(service, dict) or not isinstance(service.get("image"), str):
                raise place.error(
                    "has no image" if isinstance(service, dict) else "is not a mapping"
                )
            found[str(name)] = (mine, _read_service(service, place))
        except SparkbookError as error:
            problem = problem or error
    if not found:
        assert problem is not None
        raise problem
    serving = {
        name: item for name, item in found.items() if item[1].serve.model or item[1].serve.args
    }
    name, (mine, launch) = next(iter((serving or found).items()))
    if len(services) > 1:
        others = [str(other) for other in services if str(other) != name]
        notes.add(
            "CONV205",
            f"of {len(services)} services {name} was taken",
            f"others: {', '.join(others)}",
        )
    for entry in mine.found:
        if entry not in notes.found:
            notes.found.append(entry)
    notes.foreign |= mine.foreign
    rest = {
        str(key): value
        for key, value in document.items()
        if key not in ("services", "version", "name")
    }
    kept: dict[str, Any] = {}
    for key in ("networks", "volumes"):
        # A declaration that says nothing but the name is written again by itself.
        rest[key] = {
            entry: value
            for entry, value in mapping(rest.get(key), key).items()
            if value not in (None, {}, {"external": True}, {"name": entry})
        }
    notes.keep(
        {key: value for key, value in rest.items() if value != {} and not key.startswith("x-")},
        _FILE_KEYS,
        into=kept,
    )
    if kept:
        notes.foreign["file"] = kept
    return launch


class _Place:
    """Where in the file something stands, for messages, and what there is to fill in."""

    def __init__(self, path: str, notes: Notes, env: Mapping[str, str]) -> None:
        self.path, self.notes, self.env = path, notes, env

    def __truediv__(self, key: object) -> _Place:
        return _Place(f"{self.path}.{key}", self.notes, self.env)

    def error(self, message: str) -> SparkbookError:
        return SparkbookError(f"{self.path}: {message}")


def _read_service(service: dict[str, Any], place: _Place) -> Launch:
    reading = Reading(place.notes, image=_word(service["image"], place / "image"))
    kept: dict[str, Any] = {}
    place.notes.keep(
        {key: value for key, value in service.items() if key not in _KEYS},
        _SERVICE_KEYS,
        place.path,
        kept,
    )
    if kept:
        place.notes.foreign["service"] = kept
    for key, name in _SAME.items():
        if service.get(key) is not None:
            reading.container[name] = _word(service[key], place / key)
    if service.get("network_mode") is not None:
        reading.container["network"] = _word(service["network_mode"], place / "network_mode")
    networks = service.get("networks") or []
    if networks := (
        list(networks)
        if isinstance(networks, dict)
        else sequence(networks, f"{place.path}.networks")
    ):
        if len(networks) > 1:
            place.notes.add(
                "CONV210",
                f"{place.path}.networks: a recipe holds one network",
                f"kept: {networks[0]}",
            )
        reading.container["network"] = _word(networks[0], place / "networks")
    for key in ("ports", "volumes"):
        if entries := _list(service.get(key), place / key):
            read_one = _volume if key == "volumes" else _port
            reading.container[key] = [
                text for entry in entries if (text := read_one(entry, place / key)) is not None
            ]
    if limits := _mapping(service.get("ulimits"), place / "ulimits"):
        reading.container["ulimits"] = {
            name: _read_limit(limit, place / "ulimits" / name) for name, limit in limits.items()
        }
    if (deploy := service.get("deploy")) is not None:
        _read_deploy(reading, deploy, place / "deploy")
    if (gpus := service.get("gpus")) is not None:
        _read_gpus(reading, gpus, place / "gpus")
    for name, value in _environment(service.get("environment"), place / "environment"):
        set_env(reading, name if value is None else f"{name}={value}")
    entry = _command(service.get("entrypoint"), place / "entrypoint")
    command = _command(service.get("command"), place / "command") or []
    if entry == []:
        read_words(reading, command, "")
    else:
        read_words(reading, [*(entry or [])[1:], *command], literal(entry[0]) if entry else None)
    return reading.launch()


def _list(value: Any, place: _Place) -> list[Any]:
    return sequence(value, place.path)


def _mapping(value: Any, place: _Place) -> dict[str, Any]:
    return mapping(value, place.path)


def _port(entry: Any, place: _Place) -> str:
    """A published port, from the short or the long syntax."""
    if not isinstance(entry, dict):
        return _word(entry, place)
    if unknown := set(map(str, entry)) - {
        "target",
        "published",
        "host_ip",
        "protocol",
        "mode",
        "name",
        "app_protocol",
    }:
        place.notes.add(
            "CONV202", f"{place.path}.{min(unknown)} is not a key of a port", "left out"
        )
    parts = [
        _word(entry[key], place / key)
        for key in ("host_ip", "published", "target")
        if entry.get(key) is not None
    ]
    protocol = (
        f"/{_word(entry['protocol'], place / 'protocol')}"
        if entry.get("protocol") not in (None, "tcp")
        else ""
    )
    if ":" in parts[0] and len(parts) == 3:
        parts[0] = f"[{parts[0]}]"
    return ":".join(parts) + protocol


def _volume(entry: Any, place: _Place) -> str | None:
    """A volume, from the short or the long syntax."""
    if not isinstance(entry, dict):
        return _word(entry, place, volume=True)
    kind = entry.get("type", "volume")
    if kind not in ("bind", "volume") or entry.get("source") is None or entry.get("target") is None:
        place.notes.add(
            "CONV210",
            f"{place.path}: a mount of type {_word(kind, place)} has no place in a recipe",
            "left out",
        )
        return None
    if other := set(map(str, entry)) - {"type", "source", "target", "read_only"}:
        place.notes.add(
            "CONV210", f"{place.path}: {', '.join(sorted(other))} of a volume is left out"
        )
    mode = ":ro" if entry.get("read_only") is True else ""
    return f"{_word(entry['source'], place / 'source', volume=True)}:{_word(entry['target'], place / 'target')}{mode}"


def _word(value: Any, place: _Place, volume: bool = False) -> str:
    """A string of the file as a launch holds it."""
    text = _marked(value, place)
    try:
        return text if volume and "\0" not in text else literal(text)
    except SparkbookError as error:
        raise place.error(str(error)) from None


_INTERPOLATION = re.compile(r"\$\$|\$([A-Za-z_]\w*)|\$\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", re.ASCII)


def _marked(value: Any, place: _Place) -> str:
    """A string with `$$` made single, variables filled in where the file or its `.env` gives them,
    and the others between marks.
    """
    if not isinstance(value, str | int | float):
        raise place.error(f"expected a text or a number, found {type(value).__name__}")
    text = text_of(value)
    check_writable(text)

    def fill(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match[0] in ("$HOME", "${HOME}"):
            return HOME
        parts = re.fullmatch(
            r"([A-Za-z_]\w*)(?:(:?[-?+])(.*))?", match[1] or match[2] or "", re.DOTALL | re.ASCII
        )
        if not parts:
            return f"\0{match[0]}\0"
        name, kind, rest = parts[1], parts[2] or "", parts[3] or ""
        known = place.env.get(name)
        if (
            known is not None
            and (known or ":" not in kind)
            and "+" not in kind
            and not is_secret(name)
        ):
            place.notes.add(
                "CONV208", f"{place.path}: ${name} was filled in from the environment file"
            )
            return known.replace("\0", "")
        if "-" in kind and rest and "$" not in rest and not is_secret(name):
            place.notes.add("CONV208", f"{place.path}: ${name} was given its default", rest)
            return rest
        return f"\0{match[0]}\0"

    return _INTERPOLATION.sub(fill, text)


def read_env(text: str) -> dict[str, str]:
    """The variables of a `.env` file: `NAME=value` a line, comments and quotes as compose takes
    them.

    Raises:
        SparkbookError: a line that is none of these.
    """
    check_text(text)
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("export ").strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = re.fullmatch(
            r"""([A-Za-z_]\w*)\s*=\s*('[^']*'|"[^"]*"|[^'"#]*?|[^'"\s]\S*?)(\s+#.*)?""",
            stripped,
            re.ASCII,
        )
        if not match:
            raise SparkbookError(f"line {number} of the environment file is not NAME=value")
        value = match[2]
        found[match[1]] = (
            value[1:-1]
            if value[:1] in ("'", '"') and value[-1:] == value[:1] and len(value) > 1
            else value
        )
    return found


def _environment(value: Any, place: _Place) -> list[tuple[str, str | None]]:
    """Variables from either form: a mapping, or a list of `NAME=VALUE` and `NAME`."""
    if isinstance(value, list):
        pairs = [
            (name, text if equals else None)
            for name, equals, text in (scalar(entry, place.path).partition("=") for entry in value)
        ]
    else:
        pairs = list(_mapping(value, place).items())
    result: list[tuple[str, str | None]] = []
    for name, text in pairs:
        marked = None if text is None else _marked(text, place / name)
        result.append((name, None if marked is None or passed_on(marked) == name else marked))
    return result


def _command(value: Any, place: _Place) -> list[str] | None:
    """Words of a command or an entry point, the home folder marked; a string is taken apart as a
    shell would.
    """
    if value is None:
        return None
    if isinstance(value, list):
        return [_marked(word, place) for word in value]
    tokens = lex(_marked(value, place), expand=False)
    if bad := next((token for token in tokens if token.operator and token.text != "\n"), None):
        raise place.error(
            f"{bad.text} joins commands, which compose does not do without a shell: write bash"
            " -c '…'"
        )
    return [token.text for token in tokens if not token.operator]


def _read_limit(limit: Any, place: _Place) -> str:
    if isinstance(limit, dict) and set(limit) == {"soft", "hard"}:
        return f"{limit['soft']}:{limit['hard']}"
    return _word(limit, place)


def _read_deploy(reading: Reading, deploy: Any, place: _Place) -> None:
    """`--gpus` out of deploy.resources.reservations.devices; whatever else stands under deploy is
    kept aside.
    """
    rest: dict[str, Any] = {}
    resources = mapping(mapping(deploy, place.path).get("resources"), f"{place.path}.resources")
    reservations = mapping(resources.get("reservations"), f"{place.path}.resources.reservations")
    rest |= {key: value for key, value in deploy.items() if key != "resources"}
    rest |= {f"resources.{key}": value for key, value in resources.items() if key != "reservations"}
    rest |= {
        f"resources.reservations.{key}": value
        for key, value in reservations.items()
        if key != "devices"
    }
    devices = sequence(reservations.get("devices"), f"{place.path}.resources.reservations.devices")
    _read_gpus(reading, devices, place / "resources" / "reservations" / "devices")
    place.notes.keep(rest, set(rest), place.path, reading.notes.foreign.setdefault("deploy", {}))
    if not reading.notes.foreign["deploy"]:
        del reading.notes.foreign["deploy"]


def _read_gpus(reading: Reading, devices: Any, place: _Place) -> None:
    if devices == "all":
        reading.container["gpus"] = "all"
        return
    for index, entry in enumerate(sequence(devices, place.path)):
        device = mapping(entry, place.path)
        capabilities = sequence(device.get("capabilities"), f"{place.path}.capabilities")
        if (
            index > 0
            or device.get("driver", "nvidia") != "nvidia"
            or (capabilities and "gpu" not in map(str, capabilities))
        ):
            place.notes.add(
                "CONV210",
                f"{place.path}: a recipe holds one request for nvidia GPUs: the others are"
                " left out",
            )
            continue
        extra = {
            key: value
            for key, value in device.items()
            if key not in ("driver", "count", "device_ids", "capabilities")
        }
        if capabilities not in (["gpu"], []):
            extra["capabilities"] = capabilities
        if extra:
            place.notes.add(
                "CONV203",
                f"{place.path}: {', '.join(extra)} has no field in a recipe: kept under foreign",
            )
            place.notes.foreign["devices"] = extra
        if device.get("device_ids") is not None:
            reading.container["gpus"] = "device=" + ",".join(
                _word(item, place / "device_ids")
                for item in _list(device["device_ids"], place / "device_ids")
            )
        else:
            reading.container["gpus"] = show(_word(device.get("count", "all"), place / "count"))
