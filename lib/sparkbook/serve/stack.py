"""What to serve, and the exact request to the Docker engine: pure, so that a dry run shows
what a start would send.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.formats.words import container_words
from sparkbook.recipes import Recipe
from sparkbook.recipes.launch import Launch
from sparkbook.recipes.schema import Capabilities
from sparkbook.releases import images
from sparkbook.serve.faults import DOCK, redact
from sparkbook.units import format_bytes, parse_size
from sparkbook.util.shell_text import HOME

LOOPBACK = "127.0.0.1"
KEY = "VLLM_API_KEY"
FIRST_RESTARTS = 3
"""How often an unproven start may be tried again by itself."""
UNGUARDED = (
    "/invocations",
    "/tokenize",
    "/detokenize",
    "/pooling",
    "/metrics",
    "/load",
    "/version",
    "/health",
    "/ping",
)
"""Routes that vLLM 0.32.0 answers without the key, those that a plain chat server has; a test asks
a running server.
"""
LABEL = "sparkbook"
_FRACTIONS = ("GPU_MEMORY_UTILIZATION", "GPU_MEMORY_UTIL")
"""What scripts of images call the share of the memory."""
_POOLING = ("embed", "embedding", "classify", "score", "reward")
"""`--task` of releases before `--runner`."""
_CACHES = ("VLLM_CACHE_ROOT", "FLASHINFER_WORKSPACE_BASE", "TRITON_CACHE_DIR")
"""Variables with folders of compiled kernels: nothing is lost where one begins empty."""
KEPT_FREE = 20
"""One part in so many of the host's memory is kept free, by the watchdog too."""
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""What root in a container may still do: read and write the mounted model store, whose files are
the user's, and run parts of an image as another user. Of Docker's own choice these are left out:
AUDIT_WRITE, FSETID, MKNOD, NET_BIND_SERVICE, NET_RAW, SETFCAP, SETPCAP, SYS_CHROOT
(https://docs.docker.com/engine/containers/run/#runtime-privilege-and-linux-capabilities).
"""


@dataclass(frozen=True)
class Stack:
    """Something to serve: a recipe, or a launch line of one's own.

    Attributes:
        name: what it is called in `status`, `logs` and `stop`; the container's name.
        launch: what is started.
        recipe: the recipe it comes from, if it does.
    """

    name: str
    launch: Launch
    recipe: Recipe | None = None

    @property
    def claims(self) -> Capabilities:
        """What the server is said to be able to do; of a bare launch line nothing is known but
        whether it chats.
        """
        if self.recipe:
            return self.recipe.capabilities
        args = self.launch.serve.args
        pools = args.get("runner") == "pooling" or args.get("task") in _POOLING
        return Capabilities(chat=not pools, structured_output=False)

    @property
    def served(self) -> str:
        """The name that clients put into a request."""
        if self.recipe:
            return self.recipe.served_name
        named = (
            self.launch.serve.args.get("served-model-name")
            or self.launch.env.get("SERVED_MODEL_NAME")
            or self.launch.serve.model
            or ""
        )
        return str(named[0] if isinstance(named, list) else named)


def without_web_pages(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return a server's arguments so that no web page that a browser on the host opens may read its
    answers, unless the arguments name pages. Before 0.32.0, vLLM answers every page, on the routes
    without a key as well.
    """
    return {**args, "allowed-origins": args.get("allowed-origins", "[]")}


def given(source: str | Recipe | Launch, name: str | None = None) -> Stack:
    """Return the stack for whatever `formats.resolve` takes: a recipe's id, a file in any known
    format, the text of a launch line.

    Raises:
        SparkbookError: it is none of these, or its name can't be a container's.
    """
    if name is not None and not re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]*", name):
        raise SparkbookError(
            f"'{name}' can't be a container's name: letters, digits, and _ . - after the first"
        )
    if isinstance(source, Launch):
        return Stack(name or source.container.name or _slug(source.serve.model or "vllm"), source)
    if isinstance(source, Recipe):
        return Stack(name or source.launch.container.name or source.slug, source.launch, source)
    from sparkbook import formats

    read = formats.resolve(source)
    return given(read.recipe if read.format == "recipe" else read.launch, name)


def with_fraction(asked: Stack, fraction: float) -> Stack:
    """The stack with another share of the memory.

    Raises:
        SparkbookError: its image's own script takes none.
    """
    launch = asked.launch
    if launch.serve.command is None:
        args = {**launch.serve.args, "gpu-memory-utilization": fraction}
        args.pop("gpu-memory-utilization-gb", None)
        changed: dict[str, Any] = {"serve": launch.serve.model_copy(update={"args": args})}
    else:
        named = [name for name in _FRACTIONS if name in launch.env]
        if not named:
            raise SparkbookError(
                f"{asked.name} runs its image's own script: nothing is known of a variable that"
                " sets --gpu-memory-utilization"
            )
        changed = {"env": {**launch.env, named[0]: f"{fraction:g}"}}
    return replace(asked, launch=launch.model_copy(update=changed))


def fraction_in(words: Iterable[str]) -> float | None:
    """Return the share of the memory that a command line, or a variable among its words, gives."""
    names = "|".join(_FRACTIONS)
    pattern = rf"(?m)(?:--gpu-memory-utilization[=\s]|^(?:{names})=)(\d*\.?\d+)\b"
    match = re.search(pattern, "\n".join(words))
    return float(match[1]) if match else None


def _slug(text: str) -> str:
    return (
        re.sub(r"[^a-zA-Z0-9_.-]+", "-", text.rstrip("/").rsplit("/", 1)[-1]).strip("-.") or "vllm"
    )


@dataclass(frozen=True)
class Choices:
    """What the user chooses in addition to the recipe.

    Attributes:
        port: port of the host; None takes the launch line's.
        expose: keep the launch line's own address, instead of loopback.
        offline: mount the model store read-only and let the server download nothing.
        restart_always: once it has answered, let Docker start it again always, also after a reboot.
        read_only: make the container's root file system read-only. Without it, that is done where
            the image is known to allow it.
        watched: whether the start is waited for. Then a first failure is the end: a restart would
            only hide it.
    """

    port: int | None = None
    expose: bool = False
    offline: bool = False
    restart_always: bool = False
    read_only: bool = False
    watched: bool = True


AS_WRITTEN = Choices()
"""Nothing but the recipe."""


@dataclass(frozen=True)
class Request:
    """The request to the Docker engine.

    Attributes:
        name: the container's name.
        body: the body of `POST /containers/create`, secrets included: it is never printed,
            `shown()` is.
        host, port: where the server will answer on the engine's host.
        notes: what the user should know of it.
        restart: the restart policy that the container is given once it has answered.
    """

    name: str
    body: dict[str, Any] = field(repr=False)
    host: str
    port: int
    notes: Findings
    restart: dict[str, Any]

    @property
    def image(self) -> str:
        """The image's reference, as it is pulled and created from."""
        return self.body["Image"]

    @property
    def stack(self) -> str:
        """A fingerprint of all that decides what runs: two requests with the same one start the
        same server. Secrets don't take part.
        """
        shown = self.shown()
        shown["Labels"], shown["HostConfig"]["RestartPolicy"] = None, self.restart
        shown["HostConfig"].pop("Memory", None)  # the host's, and an update of it changes nothing
        return hashlib.sha256(json.dumps([self.name, shown], sort_keys=True).encode()).hexdigest()[
            :16
        ]

    def shown(self) -> dict[str, Any]:
        """Return the body with `***` for every secret."""
        body = copy.deepcopy(self.body)
        body["Env"] = redact(body["Env"])
        return body

    def calls(self) -> list[tuple[str, dict[str, Any] | None]]:
        """Return the calls of a start in order: method and path, and the body with secrets hidden.
        An image that is there is not fetched.
        """
        name, at, digest = self.image.partition("@")
        head, _, tag = (name, "", digest) if at else name.rpartition(":")
        calls = [
            (f"POST /images/create?fromImage={head}&tag={tag}", None),
            (f"POST /containers/create?name={self.name}", self.shown()),
            (f"POST /containers/{self.name}/start", None),
        ]
        if self.body["HostConfig"]["RestartPolicy"] != self.restart:
            calls.append((f"POST /containers/{self.name}/update", {"RestartPolicy": self.restart}))
        return calls


def request(
    stack: Stack,
    secrets: Mapping[str, str],
    *,
    home: str,
    choices: Choices = AS_WRITTEN,
    memory: int | None = None,
) -> Request:
    """Return the request with which the Docker engine starts a stack.

    Args:
        stack: what to serve.
        secrets: the caller's environment, with the API key; only variables that the launch passes
            on are taken from it.
        home: the home folder on the engine's host, for `~`.
        choices: what differs from the recipe.
        memory: bytes of the host's memory, of which the container may use all but the share that
            the watchdog keeps free; None sets no limit.

    Raises:
        SparkbookError: no image, or an option that Docker does not have.
    """
    notes: list[Finding] = []
    launch = _offline(stack.launch) if choices.offline else stack.launch
    host, port, inside = _published(launch, choices, notes)
    container = launch.container
    if launch.serve.command is None:
        args = without_web_pages(launch.serve.args)
        if container.network == "host":
            # No port is published that could be bound to an address: the server itself has to
            # listen there.
            args["host"] = host
        serve = launch.serve.model_copy(update={"args": args})
        launch = launch.model_copy(update={"serve": serve})
    entry, groups = container_words(launch)

    def at_home(word: str) -> str:
        return word.replace(HOME, home)

    command = [at_home(word) for group in groups for word in group]
    restart = (
        {"Name": "unless-stopped"}
        if choices.restart_always
        else {"Name": "on-failure", "MaximumRetryCount": FIRST_RESTARTS}
    )
    host_config: dict[str, Any] = {
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges"],
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
        "RestartPolicy": {"Name": "no"} if choices.watched else restart,
    }
    body: dict[str, Any] = {"Image": pinned_reference(launch.image or ""), "Cmd": command or None}
    if entry is not None:
        body["Entrypoint"] = [at_home(entry)]
    if container.user:
        body["User"] = container.user
    if container.network == "host":
        notes.append(DOCK["DOCK201"].finding())
    else:
        body["ExposedPorts"] = {inside: {}}
        host_config["PortBindings"] = {inside: [{"HostIp": host, "HostPort": str(port)}]}
    mounts, binds = _mounts(container.volumes, home, launch.env)
    host_config |= _root(launch.image, choices, mounts, binds)
    host_config |= _memory(memory, notes)
    host_config |= {"Mounts": mounts} if mounts else {}
    host_config |= {"Binds": binds} if binds else {}
    for key, value in (
        ("IpcMode", container.ipc),
        ("NetworkMode", container.network),
        ("Runtime", container.runtime),
    ):
        if value is not None:
            host_config[key] = value
    if container.shm_size:
        host_config["ShmSize"] = parse_size(container.shm_size)
    if container.gpus:
        host_config["DeviceRequests"] = [_gpus(container.gpus)]
    if container.ulimits:
        host_config["Ulimits"] = [_ulimit(name, limit) for name, limit in container.ulimits.items()]
    body["Env"] = _environment(launch, secrets, home, notes)
    body["HostConfig"] = host_config
    body["Labels"] = {
        f"{LABEL}.name": stack.name,
        f"{LABEL}.recipe": stack.recipe.id if stack.recipe else "",
        f"{LABEL}.served": stack.served,
        f"{LABEL}.url": f"http://{host if host not in ('0.0.0.0', '::') else LOOPBACK}:{port}",
    }
    notes += _policies(stack, launch, choices)
    answer = Request(stack.name, body, host, port, Findings(notes), restart)
    body["Labels"][f"{LABEL}.stack"] = answer.stack
    return answer


def pinned_reference(image: str) -> str:
    """Return the reference that is pulled: where there is a digest it alone decides, and the tag
    before it is left out.
    """
    name, at, digest = image.partition("@")
    return (
        f"{re.sub(r':[^/:]+$', '', name)}@{digest}"
        if at
        else name
        if re.search(r":[^/]+$", name)
        else f"{name}:latest"
    )


def _published(launch: Launch, choices: Choices, notes: list[Finding]) -> tuple[str, int, str]:
    """Return address and port on the host, and the port inside (`8000/tcp`)."""
    own = str(launch.serve.args.get("port", launch.env.get("PORT") or 8000))
    address, port, inside = "0.0.0.0", own, own
    if launch.container.ports:
        *before, port, inside = re.sub(r"/(tcp|udp)$", "", launch.container.ports[0]).rsplit(":", 2)
        address = before[0].strip("[]") if before else "0.0.0.0"
    elif launch.container.network == "host":
        address = str(launch.serve.args.get("host", "0.0.0.0"))
    if address not in (LOOPBACK, "::1", "localhost"):
        # An image's own script decides where it listens: in the host's network nothing holds it to
        # loopback.
        if choices.expose or (
            launch.container.network == "host" and launch.serve.command is not None
        ):
            notes.append(DOCK["DOCK203"].finding(address=f"{address}:{choices.port or port}"))
        else:
            if launch.container.ports or launch.container.network == "host":
                notes.append(
                    DOCK["DOCK202"].finding(
                        now=LOOPBACK, was=address if address != "0.0.0.0" else "every address"
                    )
                )
            address = LOOPBACK
    if choices.port and launch.container.network == "host":
        raise SparkbookError(
            "with network: host the server's own --port is the host's: change that one instead of"
            " --port"
        )
    return address, choices.port or int(port), f"{inside}/tcp"


def _mounts(
    volumes: list[str], home: str, env: Mapping[str, str | None]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return volumes as mounts, which unlike `-v` fail where the host's folder is missing; only
    that of a cache is made. SELinux labels only exist as binds.
    """
    mounts: list[dict[str, Any]] = []
    binds: list[str] = []
    cached = [f"{env.get(name)}/" for name in _CACHES]
    for volume in volumes:
        source, target, mode = (*volume.split(":"), "rw")[:3]
        source = home + source[1:] if source == "~" or source.startswith("~/") else source
        if mode in ("z", "Z"):
            binds.append(f"{source}:{target}:{mode}")
            continue
        named = re.fullmatch(r"[a-zA-Z0-9][\w.-]*", source)
        path = (
            source
            if named
            else str(Path(source))
            if source.startswith("/")
            else str(Path(source).absolute())
        )
        mounts.append(
            {
                "Type": "volume" if named else "bind",
                "Source": path,
                "Target": target,
                "ReadOnly": mode == "ro",
            }
        )
        if not named and any(place.startswith(f"{target.rstrip('/')}/") for place in cached):
            mounts[-1]["BindOptions"] = {"CreateMountpoint": True}
    return mounts, binds


def _root(
    image: str | None, choices: Choices, mounts: list[dict[str, Any]], binds: list[str]
) -> dict[str, Any]:
    """Return the setting for a read-only root file system where there is to be one, and add the
    folders that a server writes to then: volumes without a name, which begin with what the image
    has there, and end with the container.
    """
    info = images.find(image or "")
    if not choices.read_only and (info is None or info.root != "read-only"):
        return {}
    used = {mount["Target"] for mount in mounts} | {bind.split(":")[1] for bind in binds}
    written = info.writes if info else images.WRITES
    mounts += [{"Type": "volume", "Target": place} for place in written if place not in used]
    return {"ReadonlyRootfs": True}


def _memory(memory: int | None, notes: list[Finding]) -> dict[str, Any]:
    """Return the setting for the limit on a host with so many bytes."""
    if memory is None:
        return {}
    limit = memory - memory // KEPT_FREE
    notes.append(DOCK["DOCK209"].finding(limit=format_bytes(limit)))
    return {"Memory": limit}


def _gpus(text: str) -> dict[str, Any]:
    """docker's `--gpus` as a device request: `all`, a number, or `device=0,1`."""
    request: dict[str, Any] = {
        "Driver": "",
        "Count": 0,
        "DeviceIDs": None,
        "Capabilities": [["gpu"]],
        "Options": {},
    }
    if text == "all":
        return {**request, "Count": -1}
    if re.fullmatch(r"\d+", text, re.ASCII):
        return {**request, "Count": int(text)}
    if match := re.fullmatch(r"device=([\w.:,/=-]+)", text):
        return {**request, "DeviceIDs": match[1].split(",")}
    raise SparkbookError(f"--gpus '{text}' is not understood: write all, a number, or device=0,1")


def _ulimit(name: str, limit: str) -> dict[str, Any]:
    soft, _, hard = limit.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}


def _environment(
    launch: Launch, secrets: Mapping[str, str], home: str, notes: list[Finding]
) -> list[str]:
    """Return `NAME=VALUE` entries, the API key among them; null takes the caller's value."""
    values: dict[str, str] = {}
    for name, value in {**launch.env, KEY: None}.items():
        taken = (
            secrets.get(name)
            if value is None
            else home + value[1:]
            if value == "~" or value.startswith("~/")
            else value
        )
        if taken:
            values[name] = taken
        elif value is None:
            notes.append(DOCK["DOCK207"].finding(name=name))
    return [f"{name}={value}" for name, value in values.items()]


def _offline(launch: Launch) -> Launch:
    """Return the launch with a model store that the server can only read. What transformers wants
    to write goes to the container's own /tmp.
    """
    home = launch.env.get("HF_HOME")
    volumes = [
        (
            re.sub(r":rw$", "", v) + ":ro"
            if home and _target(v) == home.rstrip("/") and not v.endswith(":ro")
            else v
        )
        for v in launch.container.volumes
    ]
    container = launch.container.model_copy(update={"volumes": volumes})
    quiet = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_MODULES_CACHE": "/tmp/hf-modules",
    }
    return launch.model_copy(update={"container": container, "env": {**launch.env, **quiet}})


def _target(volume: str) -> str:
    return volume.split(":")[1].rstrip("/")


def _policies(stack: Stack, launch: Launch, choices: Choices) -> list[Finding]:
    """Return what to know about pinning, the key, the store and restarts."""
    notes = []
    if launch.image and "@" not in launch.image:
        notes.append(
            DOCK["DOCK204"].finding(
                image=launch.image,
                pin="`sparkbook lock` writes the digest, `serve --locked` uses it",
            )
        )
    home = launch.env.get("HF_HOME")
    for volume in launch.container.volumes:
        if home and _target(volume) == home.rstrip("/") and not volume.endswith(":ro"):
            notes.append(DOCK["DOCK205"].finding(folder=volume.split(":")[0]))
    asked = launch.container.restart
    if asked in ("always", "unless-stopped") and not choices.restart_always:
        notes.append(DOCK["DOCK208"].finding(now=f"on-failure:{FIRST_RESTARTS}", was=asked))
    notes.append(DOCK["DOCK206"].finding(routes=", ".join(UNGUARDED)))
    return notes
