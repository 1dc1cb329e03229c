"""What is started: the part of a recipe that a launch line can say.

A `Launch` is what `sparkbook.formats` writes as a `docker run` line, a compose file or a bare
`vllm serve` line, and reads back. Everything else in a recipe (facts, figures, warnings) is about
the model, not about the start.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from sparkbook.errors import SparkbookError
from sparkbook.recipes.names import EntryPoint, option_name
from sparkbook.units import parse_size
from sparkbook.util.printable import CONTROL
from sparkbook.util.secret import is_secret, without_secrets
from sparkbook.util.texts import each_text


class Strict(BaseModel):
    """A model that refuses keys it does not know, so that a misspelt key is an error and not a
    silent default.
    """

    model_config = ConfigDict(extra="forbid")


def _may_be_port(value: Any) -> bool:
    return (isinstance(value, int) and 1 <= value <= 65535) or (
        isinstance(value, str) and re.search(r"[{$]", value) is not None
    )


def check_plain(value: Any, printable: bool = False) -> None:
    """A `ValueError` for a number that is none anywhere in a value, and where it has to be
    `printable`, for a text with control characters.

    Line breaks and tabs are text; other control characters, and the marks that turn the direction
    of writing, may move a cursor or hide letters.
    """
    if isinstance(value, dict):
        for pair in value.items():
            check_plain(pair, printable)
    elif isinstance(value, list | tuple):
        for item in value:
            check_plain(item, printable)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError("a number is NaN or infinite")
    elif printable and isinstance(value, str) and (found := CONTROL.search(value)):
        raise ValueError(f"a text holds the control character U+{ord(found[0]):04X}")


Value = bool | int | float | str | list[Any] | dict[str, Any]
"""Value of a serve argument: `true` for a bare flag, a mapping for JSON, a list for words."""


_REPOSITORY = re.compile(r"[A-Za-z0-9_.~/][A-Za-z0-9_.~/@+=-]*")


def check_repository(text: str) -> str:
    """The name of a model, if it is a hub id or a path of plain characters; a `ValueError` if not.
    It goes into addresses, folder names and commands.
    """
    if not _REPOSITORY.fullmatch(text):
        raise ValueError(
            "a model is named by its hub id, such as openai/gpt-oss-20b, or by a path: letters,"
            " digits and . _ - / ~ @ + ="
        )
    return text


DOCKER_OPTION = re.compile(r"-[A-Za-z0-9]|--[A-Za-z0-9][A-Za-z0-9.-]*")
"""The name of an option of `docker run`, as a recipe keeps it under `foreign`."""


def check_docker_options(options: Any) -> None:
    """A `ValueError` for options of docker, kept from another format, that could be read as
    something else: a key that is no option's name, or values that are no list of texts.
    """
    if not isinstance(options, dict):
        raise ValueError("docker: options are a mapping of names to lists of values")
    for option, values in options.items():
        if not isinstance(option, str) or not DOCKER_OPTION.fullmatch(option):
            raise ValueError(
                f"docker: {str(option)[:60]!r} is not the name of an option: write one or two"
                " dashes, then letters, digits, dashes and dots"
            )
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ValueError(f"docker: {option}: values are a list of texts, one for each use")


def canonical(value: Value) -> Value:
    """The one form of a serve argument's value, so that what a command line says and what a recipe
    says compare equal.

    A command line knows only words: `"8"` and `8`, `["a"]` and `"a"` are the same there, and a word
        in braces is JSON.
    """
    if isinstance(value, list):
        return canonical(value[0]) if len(value) == 1 else [canonical(item) for item in value]
    if not isinstance(value, str):
        return value
    if re.fullmatch(r"-?(0|[1-9]\d*)", value):
        return int(value)
    if re.fullmatch(r"-?\d+(\.\d+)?(e[+-]?\d+)?", value, re.ASCII) and repr(float(value)) == value:
        return float(value)
    if value[:1] in "{[" and value:
        try:
            loaded = json.loads(value)
        except ValueError:
            return value
        return loaded if isinstance(loaded, dict) else value
    return value


class Container(Strict):
    """How the container is run. Ports are published on loopback unless a recipe says otherwise."""

    name: str | None = Field(None, pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_.-]*$")
    gpus: str | None = Field(None, description="`--gpus`: `all`, or a list of devices")
    runtime: str | None = Field(None, description="container runtime, such as `nvidia`")
    ipc: str | None = Field(
        None, description="`host` shares the host's memory segments, which vLLM's workers use"
    )
    shm_size: str | None = Field(None, description="size of /dev/shm, such as `16g`")
    network: str | None = Field(
        None, description="`host`, or a network's name; left out: a bridge with published ports"
    )
    restart: str | None = Field(None, pattern=r"^(no|always|unless-stopped|on-failure(:\d+)?)$")
    ports: list[str] = Field(
        default_factory=list, description="`ADDRESS:HOST:CONTAINER`, as docker's `-p`"
    )
    volumes: list[str] = Field(
        default_factory=list,
        description="`HOST:CONTAINER` or `HOST:CONTAINER:ro`, as docker's `-v`",
    )
    ulimits: dict[str, str] = Field(
        default_factory=dict, description="limit: `SOFT` or `SOFT:HARD`"
    )
    user: str | None = None
    entrypoint: str | None = Field(None, description="replaces the image's own entry point")

    @field_validator("ports")
    @classmethod
    def _ports(cls, ports: list[str]) -> list[str]:
        for port in ports:
            if not re.fullmatch(
                r"((\d+\.){3}\d+:|\[[0-9a-f:]+\]:)?\d{1,9}:\d{1,9}(/(tcp|udp))?", port, re.ASCII
            ):
                raise ValueError(
                    f"'{port}' is not a published port: write ADDRESS:HOST:CONTAINER, such as"
                    " 127.0.0.1:8000:8000"
                )
            numbers = port.partition("/")[0].rsplit("]:", 1)[-1].split(":")[-2:]
            if not all(1 <= int(number) <= 65535 for number in numbers):
                raise ValueError(
                    f"'{port[:60]}' is not a published port: a port is a number from 1 to 65535"
                )
        return ports

    @field_validator("volumes")
    @classmethod
    def _volumes(cls, volumes: list[str]) -> list[str]:
        for volume in volumes:
            if not re.fullmatch(r"[^:]+:/[^:]*(:(ro|rw|z|Z))?", volume):
                raise ValueError(
                    f"'{volume}' is not a volume: write HOST:CONTAINER, such as ~/vllm:/models, or"
                    " HOST:CONTAINER:ro"
                )
        return volumes

    @field_validator("ulimits")
    @classmethod
    def _ulimits(cls, ulimits: dict[str, str]) -> dict[str, str]:
        for name, limit in ulimits.items():
            if not re.fullmatch(r"[a-z]+", name) or not re.fullmatch(
                r"(-1|\d+)(:(-1|\d+))?", limit, re.ASCII
            ):
                raise ValueError(
                    f"'{name}: {limit}' is not a limit: write SOFT or SOFT:HARD in numbers, such as"
                    " memlock: '-1:-1'"
                )
        return ulimits

    @field_validator("shm_size")
    @classmethod
    def _shm_size(cls, size: str | None) -> str | None:
        try:
            parse_size(size or 0)
        except SparkbookError as error:
            raise ValueError(str(error)) from None
        return size

    @model_validator(mode="after")
    def _host_network_publishes_nothing(self) -> Container:
        if self.network == "host" and self.ports:
            raise ValueError("network: host leaves nothing to publish: drop ports, or network")
        return self

    def on_host(self, path: str) -> str:
        """The host's name of a path inside the container, through the volumes; unchanged where no
        volume holds it.
        """
        mounts = [volume.split(":")[:2] for volume in self.volumes]
        for host, inside in sorted(mounts, key=lambda mount: -len(mount[1])):
            if path == inside or path.startswith(inside.rstrip("/") + "/"):
                return host + path[len(inside.rstrip("/")) :]
        return path


class Serve(Strict):
    """The `vllm serve` command: the model and its arguments, in order."""

    model: str | None = Field(
        None, description="handle or path to serve; left out where the recipe's model.repo is meant"
    )
    model_option: bool = Field(
        False, description="give the model as `--model X` instead of as the first word"
    )
    args: dict[str, Value] = Field(
        default_factory=dict, description="option without dashes: value; `true` for a bare flag"
    )
    before: list[str] = Field(
        default_factory=list, description="shell commands to run in the container before serving"
    )
    command: list[str] | None = Field(
        None,
        description="for an image with a wrapper script: the words after the image, as they are",
    )

    @field_validator("args")
    @classmethod
    def _args(cls, args: dict[str, Value]) -> dict[str, Value]:
        result: dict[str, Value] = {}
        for given, value in args.items():
            if not re.fullmatch(r"[a-zA-Z][\w.-]*", given, re.ASCII):
                raise ValueError(
                    f"'{given}' is not an option: write its long name without dashes, such as"
                    " max-model-len"
                )
            name = option_name(given)
            if name in result:
                raise ValueError(f"{name} is given twice")
            if value is False:
                raise ValueError(
                    f"{name}: false is not a value on a command line: leave it out, or write"
                    f" no-{name}: true"
                )
            if isinstance(value, list) and any(
                item is None or isinstance(item, bool | list) for item in value
            ):
                raise ValueError(
                    f"{name}: a list holds the words after the option: strings, numbers or mappings"
                )
            result[name] = canonical(value) if value != [] else ""
            if result[name] == "":
                raise ValueError(f"{name}: an option needs a value, or true for a bare flag")
            # A placeholder that nobody has filled in yet is the linter's matter.
            if name == "port" and not _may_be_port(result[name]):
                raise ValueError(
                    f"port: {str(value)[:40]} is not a port: write a number from 1 to 65535"
                )
            if without_secrets({name: value}) != {name: value}:
                variable = "HF_TOKEN" if name == "hf-token" else "VLLM_API_KEY"
                raise ValueError(
                    f"{name} is a secret and must not be in a recipe: leave it out, and write"
                    f" {variable}: null under env"
                    if name in ("api-key", "hf-token")
                    else f"{name} holds a secret, which must not be in a recipe: leave it out"
                )
        return result


def check_env(env: dict[str, str | None]) -> dict[str, str | None]:
    """The environment variables, if every name is one and no secret is written out; a `ValueError`
    (never with a value in it) if not.
    """
    for name, value in env.items():
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"'{name}' is not the name of an environment variable")
        if value is not None and is_secret(name, value):
            raise ValueError(
                f"{name} holds a secret, which must not be in a recipe: write null, and it is taken"
                " from the caller's environment"
            )
    return env


Env = Annotated[dict[str, str | None], AfterValidator(check_env)]
"""Environment of the server; null passes the caller's own value on."""


class Launch(Strict):
    """Everything that a launch line says."""

    image: str | None = Field(
        None, description="image with tag or digest; None for a process without a container"
    )
    entrypoint: EntryPoint = "command"
    container: Container = Field(default_factory=Container)
    env: Env = Field(
        default_factory=dict, description="variable: value; null passes the caller's own value on"
    )
    serve: Serve = Field(default_factory=Serve)

    @property
    def port(self) -> int:
        """The port a client on the host talks to (vLLM's own default: 8000).

        Raises:
            SparkbookError: what is given as the port is no number, such as a placeholder that
                nothing filled in.
        """
        if self.container.ports:
            return int(self.container.ports[0].split("/")[0].split(":")[-2])
        port = self.serve.args.get("port", self.env.get("PORT") or 8000)
        if isinstance(port, bool) or not re.fullmatch(r"\d{1,5}", str(port), re.ASCII):
            raise SparkbookError(f"'{port}' is not a port: write a number up to 65535")
        return int(str(port))

    def on_host(self) -> Launch:
        """The same start without a container: paths through the volumes, the port that was
        published, bound to loopback.

        A process inherits its caller's environment, so variables that a container has to be handed
        (null) need no mention.
        """
        args = {
            # a draft model's path is inside a JSON value
            name: each_text(value, self.container.on_host)
            for name, value in self.serve.args.items()
        }
        if args.get("host", "0.0.0.0") in ("0.0.0.0", "::"):
            args["host"] = "127.0.0.1"
        if self.container.ports and self.port != int(
            self.container.ports[0].split("/")[0].split(":")[-1]
        ):
            args["port"] = self.port
        model = self.serve.model and self.container.on_host(self.serve.model)
        env = {
            name: self.container.on_host(value)
            for name, value in self.env.items()
            if value is not None
        }
        return Launch(
            env=env,
            serve=self.serve.model_copy(
                update={"args": args, "model": model, "before": list(self.serve.before)}
            ),
        )
