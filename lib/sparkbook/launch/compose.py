"""The services of a compose file, each as a launch line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.launch.lexer import lex, show
from sparkbook.launch.line import Line, Remark, Word, by_preference, kept_aside
from sparkbook.launch.server import container
from sparkbook.util.documents import check_text, mapping, parse, scalar, sequence, text_of
from sparkbook.util.secret import is_secret
from sparkbook.util.shell_text import HOME, check_writable

SAME = {
    "container_name": "name",
    "runtime": "runtime",
    "ipc": "ipc",
    "shm_size": "shm-size",
    "restart": "restart",
    "user": "user",
}
"""Keys of a service whose value docker's option with this name takes as it is."""
_JUDGED = {
    "cap_add": "cap-add",
    "devices": "device",
    "hostname": "hostname",
    "mem_limit": "memory",
    "pid": "pid",
    "platform": "platform",
    "security_opt": "security-opt",
}
"""Likewise, but no field of a recipe holds them."""
_SWITCHES = {"privileged": "privileged", "init": "init", "read_only": "read-only", "tty": "tty"}
_READ = {
    *SAME,
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
_SERVICE_KEYS = (
    "annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent configs "
    "cpu_count cpu_percent cpu_shares cpus cpuset credential_spec depends_on develop "
    "device_cgroup_rules devices dns dns_opt dns_search domainname env_file expose extends "
    "external_links extra_hosts group_add healthcheck hostname init isolation label_file labels "
    "links logging mac_address mem_limit mem_reservation mem_swappiness memswap_limit models "
    "oom_kill_disable oom_score_adj pid pids_limit platform post_start pre_stop privileged "
    "profiles provider pull_policy read_only scale secrets security_opt stdin_open "
    "stop_grace_period stop_signal storage_opt sysctls tmpfs tty userns_mode uts volumes_from "
    "working_dir"
)
_KNOWN = set(_SERVICE_KEYS.split())
"""Keys of a service that no field of a recipe holds (Compose specification,
docs.docker.com/reference/compose-file/services).
"""
_DEPLOY = {
    *("endpoint_mode", "labels", "mode", "placement", "replicas", "restart_policy"),
    *("rollback_config", "update_config", "resources.limits"),
    *(f"resources.reservations.{key}" for key in ("cpus", "memory", "pids", "generic_resources")),
}
"""Likewise of its `deploy` (docs.docker.com/reference/compose-file/deploy)."""
_FILE_KNOWN = {"configs", "secrets", "include", "models", "networks", "volumes"}
_PORT_KEYS = {"target", "published", "host_ip", "protocol", "mode", "name", "app_protocol"}
_INTERPOLATION = re.compile(r"\$\$|\$([A-Za-z_]\w*)|\$\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", re.ASCII)
_VARIABLE = re.compile(r"([A-Za-z_]\w*)(?:(:?[-?+])(.*))?", re.DOTALL | re.ASCII)


def read(text: str, env: Mapping[str, str] | None = None) -> Line:
    """Return the launch line of a compose file: of several services, the one that serves, with the
    others in it.

    Args:
        text: the file.
        env: the variables of the `.env` file next to it. Nothing is read from the disk or the
            environment.

    Raises:
        SparkbookError: the text is no compose file, or no service in it can be read.
    """
    document = parse(text)
    services = document.get("services") if isinstance(document, dict) else None
    if not isinstance(services, dict) or not services:
        raise SparkbookError("this is not a compose file: it has no services")
    lines: dict[str, Line] = {}
    problem: SparkbookError | None = None
    for name, service in services.items():
        try:
            lines[str(name)] = _Service(f"services.{name}", text, env or {}).read(service)
        except SparkbookError as error:
            problem = problem or error
    if problem and not lines:
        raise problem
    ordered = by_preference(lines)
    line = ordered[0]
    if len(services) > 1 and not _may_serve(line):
        names = ", ".join(lines)
        raise SparkbookError(f"no service of this compose file starts vLLM: {names}")
    line.others = [other for other in ordered[1:] if other.starts or not line.starts]
    if len(services) > 1:
        chosen = next(name for name, other in lines.items() if other is line)
        others = ", ".join(str(name) for name in services if str(name) != chosen)
        line.remarks.insert(
            0,
            Remark(
                "CONV205", f"Of {len(services)} services, {chosen} was taken.", f"others: {others}"
            ),
        )
    _keep_file(line, document)
    return line


def _may_serve(line: Line) -> bool:
    """Return whether a service may start vLLM: its words or its image say so, or it gets a GPU."""
    words = " ".join([line.image or "", line.entry or "", *(word.text for word in line.words)])
    return line.starts or "vllm" in words or "\0" in words or line.option("gpus") is not None


def _keep_file(line: Line, document: dict[str, Any]) -> None:
    """Keep the keys of the file itself."""
    rest = {
        str(key): value
        for key, value in document.items()
        if key not in ("services", "version", "name") and not str(key).startswith("x-")
    }
    for key in ("networks", "volumes"):
        declared = mapping(rest.pop(key, None), key)
        # A declaration that says nothing but the name is written again by itself.
        plain = {
            entry: value
            for entry, value in declared.items()
            if value not in (None, {}, {"external": True}, {"name": entry})
        }
        if plain:
            rest[key] = plain
    _keep(line, rest, _FILE_KNOWN, "", line.foreign.setdefault("file", {}))
    line.foreign = {key: value for key, value in line.foreign.items() if value != {}}


def _keep(
    line: Line, data: Mapping[str, Any], known: set[str], place: str, into: dict[str, Any]
) -> None:
    """Keep what no field of a recipe holds, and note it: a key that compose lacks is a mistake."""
    into |= {str(key): value for key, value in data.items()}
    for remark in kept_aside(data, known, place):
        if remark.code == "CONV202":
            line.mistakes.append(
                replace(remark, fix="Correct its spelling, or remove it: compose refuses the file.")
            )
        else:
            line.remarks.append(remark)


def read_env(text: str) -> dict[str, str]:
    """Return the variables of a `.env` file: `NAME=value` a line, comments and quotes as compose
    takes them.

    Raises:
        SparkbookError: a line that is none of these.
    """
    check_text(text)
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip().removeprefix("export ").strip()
        if not stripped or stripped.startswith("#"):
            continue
        if array := re.match(r"(\w+)\+?=\(", stripped):
            raise SparkbookError(
                f"line {number}: {array[1]} is a bash array, which compose does not take: write its"
                " words as one value in quotes, and leave the array to the script"
            )
        match = re.fullmatch(
            r"""([A-Za-z_]\w*)\s*=\s*('[^']*'|"[^"]*"|[^'"#]*?|[^'"\s]\S*?)(\s+#.*)?""",
            stripped,
            re.ASCII,
        )
        if not match:
            raise SparkbookError(
                f"line {number} of the environment file is not NAME=value: put quotes around a"
                " value with quotes or # inside, and # before a remark"
            )
        value = match[2]
        quoted = len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]
        values[match[1]] = value[1:-1] if quoted else value
    return values


class _Service:
    """Reads one service.

    Args:
        place: its path in the file, for messages.
        text: the file.
        env: the variables that are filled in.
    """

    def __init__(self, place: str, text: str, env: Mapping[str, str]) -> None:
        self.place, self.env = place, env
        self.line = Line(form="compose", text=text)

    def read(self, service: Any) -> Line:
        """Return the service's line.

        Raises:
            SparkbookError: it has no image, or a value of another kind than compose takes.
        """
        if not isinstance(service, dict) or not isinstance(service.get("image"), str):
            what = "has no image" if isinstance(service, dict) else "is not a mapping"
            raise SparkbookError(f"{self.place}: {what}")
        line = self.line
        line.set_image(self._word(service["image"], "image"))
        rest = {key: value for key, value in service.items() if key not in _READ}
        _keep(line, rest, _KNOWN, self.place, line.foreign.setdefault("service", {}))
        self._options(service)
        self._network(service)
        self._mounts(service)
        for name, limit in self._mapping(service, "ulimits").items():
            self._add("ulimit", f"{name}={_limit(limit)}", f"ulimits.{name}")
        if service.get("deploy") is not None:
            self._deploy(service["deploy"])
        if service.get("gpus") is not None:
            self._gpus(service["gpus"], "gpus")
        self._environment(service.get("environment"))
        self._command(service)
        return line

    def _options(self, service: dict[str, Any]) -> None:
        for key, option in SAME.items():
            if service.get(key) is not None:
                self._add(option, service[key], key)
        for key, option in _JUDGED.items():
            values = service.get(key)
            for value in values if isinstance(values, list) else [values]:
                if isinstance(value, str | int | float):
                    self._add(option, value, key)
        for key, option in _SWITCHES.items():
            if service.get(key) is True:
                self.line.add_option(option, Word(""))

    def _network(self, service: dict[str, Any]) -> None:
        if service.get("network_mode") is not None:
            self._add("network", service["network_mode"], "network_mode")
        value = service.get("networks") or []
        networks = (
            list(value) if isinstance(value, dict) else sequence(value, f"{self.place}.networks")
        )
        if len(networks) > 1:
            self.line.remark(
                "CONV210",
                f"{self.place}.networks: a recipe holds one network.",
                f"kept: {networks[0]}",
            )
        if networks:
            self._add("network", networks[0], "networks")

    def _mounts(self, service: dict[str, Any]) -> None:
        for entry in sequence(service.get("ports"), f"{self.place}.ports"):
            self.line.add_option("publish", self._port(entry))
        for entry in sequence(service.get("volumes"), f"{self.place}.volumes"):
            if (word := self._volume(entry)) is not None:
                self.line.add_option("volume", word)

    def _add(self, option: str, value: Any, key: str) -> None:
        self.line.add_option(option, self._word(value, key))

    def _mapping(self, service: dict[str, Any], key: str) -> dict[str, Any]:
        return mapping(service.get(key), f"{self.place}.{key}")

    def _word(self, value: Any, key: str) -> Word:
        """Return a scalar of the file with `$$` made single, and variables filled in or marked."""
        place = f"{self.place}.{key}"
        if not isinstance(value, str | int | float):
            raise SparkbookError(
                f"{place}: expected a text or a number, found {type(value).__name__}"
            )
        text = text_of(value)
        check_writable(text)
        return Word(
            _INTERPOLATION.sub(lambda match: self._variable(match, place), text), place=place
        )

    def _variable(self, match: re.Match[str], place: str) -> str:
        if match[0] == "$$":
            return "$"
        if match[0] in ("$HOME", "${HOME}"):
            return HOME
        parts = _VARIABLE.fullmatch(match[1] or match[2] or "")
        if not parts or is_secret(parts[1]):
            return f"\0{match[0]}\0"
        name, kind, default = parts[1], parts[2] or "", parts[3] or ""
        value = self.env.get(name)
        if value is not None and (value or ":" not in kind) and "+" not in kind:
            self.line.remark(
                "CONV208", f"{place}: ${name} was filled in from the environment file."
            )
            return value.replace("\0", "")
        if "-" in kind and default and "$" not in default:
            self.line.remark(
                "CONV208", f"{place}: ${name} was filled in with its default.", default
            )
            return default
        return f"\0{match[0]}\0"

    def _port(self, entry: Any) -> Word:
        """Return a published port, from the short or the long syntax."""
        if not isinstance(entry, dict):
            return self._word(entry, "ports")
        for key in sorted(set(map(str, entry)) - _PORT_KEYS):
            self.line.mistakes.append(
                Remark("CONV202", f"{self.place}.ports.{key} is not a key of a port.", "left out")
            )
        parts = [
            self._word(entry[key], f"ports.{key}").text
            for key in ("host_ip", "published", "target")
            if entry.get(key) is not None
        ]
        protocol = entry.get("protocol") or "tcp"
        suffix = "" if protocol == "tcp" else f"/{self._word(protocol, 'ports.protocol').text}"
        if len(parts) == 3 and ":" in parts[0]:
            parts[0] = f"[{parts[0]}]"
        return Word(":".join(parts) + suffix, place=f"{self.place}.ports")

    def _volume(self, entry: Any) -> Word | None:
        """Return a volume, from the short or the long syntax."""
        if not isinstance(entry, dict):
            return self._mounted(entry, "volumes")
        place = f"{self.place}.volumes"
        kind = entry.get("type", "volume")
        source, target = entry.get("source"), entry.get("target")
        if kind not in ("bind", "volume") or source is None or target is None:
            self.line.remark(
                "CONV210",
                f"{place}: a recipe has no place for a mount of type"
                f" {self._word(kind, 'volumes').shown}.",
                "left out",
            )
            return None
        if other := set(map(str, entry)) - {"type", "source", "target", "read_only"}:
            self.line.remark(
                "CONV210", f"{place}: {', '.join(sorted(other))} of a volume is left out."
            )
        mode = ":ro" if entry.get("read_only") is True else ""
        head = self._mounted(source, "volumes.source").text
        return Word(f"{head}:{self._word(target, 'volumes.target').text}{mode}", place=place)

    def _mounted(self, value: Any, key: str) -> Word:
        """Return the source of a volume, in which compose expands a leading `~` by itself."""
        word = self._word(value, key)
        if word.text.startswith("~/"):
            return Word(HOME + word.text[1:], place=word.place)
        if word.text == HOME or word.text.startswith(f"{HOME}:"):
            return Word("~" + word.text.removeprefix(HOME), place=word.place)
        return word

    def _environment(self, value: Any) -> None:
        """Take variables from either form: a mapping, or a list of `NAME=VALUE` and `NAME`."""
        place = f"{self.place}.environment"
        pairs: list[tuple[str, Any]]
        if isinstance(value, list):
            pairs = []
            for entry in value:
                name, equals, text = scalar(entry, place).partition("=")
                pairs.append((name, text if equals else None))
        else:
            pairs = list(mapping(value, place).items())
        for name, item in pairs:
            if item is None:
                self.line.set_env(Word(name, place=f"{place}.{name}"))
            else:
                word = self._word(item, f"environment.{name}")
                self.line.set_env(Word(f"{name}={word.text}", place=word.place))

    def _command(self, service: dict[str, Any]) -> None:
        entry = self._words(service.get("entrypoint"), "entrypoint")
        if entry is not None:
            self.line.set_entry(entry[0] if entry else Word(""))
            self.line.words = entry[1:]
        container(self.line, self._words(service.get("command"), "command") or [])

    def _words(self, value: Any, key: str) -> list[Word] | None:
        """Return the words of a command or an entry point; a string is taken apart as a shell
        would.
        """
        if value is None:
            return None
        if isinstance(value, list):
            return [self._word(word, key) for word in value]
        place = f"{self.place}.{key}"
        tokens = lex(self._word(value, key).text, expand=False)
        joining = next((token for token in tokens if token.operator and token.text != "\n"), None)
        if joining:
            self.line.breaks(
                f"{place}: {joining.text} joins commands, which only a shell does.",
                "Write bash -c '…'.",
            )
        return [Word(token.text, place=place) for token in tokens if not token.operator]

    def _deploy(self, deploy: Any) -> None:
        """Take the GPUs out of deploy.resources.reservations.devices, and keep the rest."""
        place = f"{self.place}.deploy"
        resources = mapping(mapping(deploy, place).get("resources"), f"{place}.resources")
        reservations = mapping(resources.get("reservations"), f"{place}.resources.reservations")
        rest = {key: value for key, value in deploy.items() if key != "resources"}
        for prefix, part, nested in (
            ("resources", resources, "reservations"),
            ("resources.reservations", reservations, "devices"),
        ):
            rest |= {f"{prefix}.{key}": value for key, value in part.items() if key != nested}
        _keep(self.line, rest, _DEPLOY, place, self.line.foreign.setdefault("deploy", {}))
        if reservations.get("devices") is not None:
            self._gpus(reservations["devices"], "deploy.resources.reservations.devices")

    def _gpus(self, devices: Any, key: str) -> None:
        if devices == "all":
            self.line.add_option("gpus", Word("all"))
            return
        place = f"{self.place}.{key}"
        for index, entry in enumerate(sequence(devices, place)):
            device = mapping(entry, place)
            capabilities = sequence(device.get("capabilities"), f"{place}.capabilities")
            others = capabilities and "gpu" not in map(str, capabilities)
            if index > 0 or device.get("driver", "nvidia") != "nvidia" or others:
                self.line.remark(
                    "CONV210",
                    f"{place}: a recipe holds one request for nvidia GPUs; the others are left"
                    " out.",
                )
                continue
            self._device(device, capabilities, key)

    def _device(self, device: dict[str, Any], capabilities: list[Any], key: str) -> None:
        place = f"{self.place}.{key}"
        own = ("driver", "count", "device_ids", "capabilities")
        extra = {name: value for name, value in device.items() if name not in own}
        if capabilities not in (["gpu"], []):
            extra["capabilities"] = capabilities
        if extra:
            _keep(self.line, extra, set(extra), place, self.line.foreign.setdefault("devices", {}))
        if device.get("device_ids") is None:
            count = self._word(device.get("count", "all"), f"{key}.count")
            self.line.add_option("gpus", Word(show(count.text), place=count.place))
            return
        ids = sequence(device["device_ids"], f"{place}.device_ids")
        words = [self._word(item, f"{key}.device_ids").text for item in ids]
        self.line.add_option("gpus", Word("device=" + ",".join(words), place=place))


def _limit(limit: Any) -> str:
    """Return a limit as docker's option takes it."""
    if isinstance(limit, dict) and set(limit) == {"soft", "hard"}:
        return f"{limit['soft']}:{limit['hard']}"
    return text_of(limit)
