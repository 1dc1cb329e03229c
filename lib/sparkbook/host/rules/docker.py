"""The Docker engine: whether it answers, to whom, and whether it can give containers the GPU."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.findings import Severity
from sparkbook.host.family import Unknown, check, version
from sparkbook.host.machine import Machine
from sparkbook.rules import Hit
from sparkbook.util.shell_text import command_line

GPU_API = (1, 40)
"""The first version of Docker's API with device requests, which `--gpus` is (Docker Engine API
version history, v1.40).
"""

NEWEST_CLIENT_API = (1, 44)
"""The API version that a client must reach at least where the engine sets its own minimum, as
engine 29 does.
"""

_DENIED = "permission denied"


def needs_docker(machine: Machine) -> None:
    """Raise `Unknown` for a recipe that runs without a container."""
    if machine.wanted.recipe is not None and machine.wanted.image is None:
        raise Unknown(f"{machine.wanted.recipe} runs without a container")


def needs_engine(machine: Machine) -> None:
    """Raise `Unknown` where no container is needed, or no engine answers."""
    needs_docker(machine)
    if machine.docker.version is None:
        raise Unknown("the Docker engine does not answer")


def _severity(machine: Machine) -> Severity | None:
    """Return a note where nothing needs a container."""
    needed = machine.is_spark or machine.wanted.image or machine.gpu.error
    return None if needed else "info"


@check("docker engine", probe="docker")
def engine(machine: Machine) -> str:
    docker = machine.docker
    needs_docker(machine)
    if docker.version:
        return f"engine {docker.version}"
    if docker.client is None:
        return "no docker command"
    if _DENIED in (docker.error or "").lower():
        return "no permission"
    return "no answer" + (", and nothing here needs it" if _severity(machine) else "")


@engine.rule(
    "HOST004",
    "no-docker",
    "error",
    source="https://docs.nvidia.com/dgx/dgx-spark/nvidia-container-runtime-for-docker.html",
    fix="Install Docker, which is part of DGX OS.",
    fails={"docker": {"client": None, "version": None}},
)
def no_docker(machine: Machine) -> Iterator[Hit]:
    """Recipes run in containers, and DGX OS brings Docker along. A recipe that runs as a process
    does not need it.
    """
    if machine.docker.version is None and machine.docker.client is None:
        yield Hit("There is no docker command.", severity=_severity(machine))


def _silent(machine: Machine) -> bool:
    return machine.docker.version is None and machine.docker.client is not None


@engine.rule(
    "HOST005",
    "docker-permission",
    "error",
    kind="docker-permission",
    source="https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/multi-agent-chatbot/README.md",
    fails={
        "docker": {
            "version": None,
            "error": "permission denied while trying to connect to the Docker daemon socket",
        }
    },
)
def docker_permission(machine: Machine) -> Iterator[Hit]:
    """The engine's socket belongs to the group `docker`, and a new group counts from the next login
    on. `newgrp` changes one shell only; a notebook's kernel has to be started again from a new
    login. Members of the group can become root.
    """
    if _silent(machine) and _DENIED in (machine.docker.error or "").lower():
        user = machine.system.user
        yield Hit(
            f"The user {user} may not talk to the Docker engine.",
            machine.docker.error,
            f"Run `{command_line('sudo', 'usermod', '-aG', 'docker', user)}`, then log in again; a"
            " notebook needs Jupyter restarted too.",
            _severity(machine),
        )


@engine.rule(
    "HOST006",
    "docker-silent",
    "error",
    source="https://docs.docker.com/engine/daemon/troubleshoot/",
    fix="Start it: `sudo systemctl start docker`.",
    fails={
        "docker": {
            "version": None,
            "error": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock",
        }
    },
)
def docker_silent(machine: Machine) -> Iterator[Hit]:
    """The docker command is there, and no engine answers it. It was not started, has ended, or
    DOCKER_HOST names another place.
    """
    if _silent(machine) and _DENIED not in (machine.docker.error or "").lower():
        yield Hit(
            "The Docker engine does not answer.",
            machine.docker.error,
            severity=_severity(machine),
        )


@check("docker group", probe="docker")
def group(machine: Machine) -> str:
    needs_engine(machine)
    if "docker" in machine.system.groups:
        return "in the group"
    if machine.system.uid == 0:
        return "root"
    return "reached without the group (rootless, ssh or a socket of its own)"


@check("docker API", probe="docker")
def api(machine: Machine) -> str:
    needs_engine(machine)
    if version(machine.docker.api) is None:
        raise Unknown("the engine does not report its API version")
    return f"{machine.docker.api_min or '?'} to {machine.docker.api}"


@api.rule(
    "HOST030",
    "docker-api",
    "error",
    source="https://docs.docker.com/reference/api/engine/version-history/",
    fix="Update Docker.",
    fails={"docker": {"api": "1.39"}},
    passes={"docker": {"api": "1.52", "api_min": "1.44"}},
)
def docker_api(machine: Machine) -> Iterator[Hit]:
    """A GPU is asked for by a device request, which Docker's API has since version 1.40 (engine
    19.03). Engine 29 in turn refuses clients that speak less than 1.44.
    """
    docker = machine.docker
    newest, oldest = version(docker.api), version(docker.api_min)
    if newest and newest < GPU_API:
        yield Hit(
            f"This Docker engine (API {docker.api}) is too old to give a container a GPU.",
            f"API {docker.api}, needed 1.40",
        )
    elif oldest and oldest > NEWEST_CLIENT_API:
        yield Hit(
            f"This Docker engine refuses clients older than API {docker.api_min}.",
            f"API {docker.api_min} at least",
            severity="info",
        )


@check("GPU runtime", probe="docker")
def runtime(machine: Machine) -> str:
    needs_engine(machine)
    if not machine.gpu.names:
        raise Unknown("no NVIDIA GPU answers")
    return ", ".join([*machine.docker.runtimes, *machine.docker.cdi]) or "none"


def _lacks_runtime(machine: Machine) -> bool:
    wanted = machine.wanted.runtime
    return bool(wanted) and wanted not in machine.docker.runtimes


@runtime.rule(
    "HOST034",
    "unknown-runtime",
    "error",
    kind="nvidia-runtime",
    source="https://github.com/NVIDIA/dgx-spark-playbooks/blob/main/nvidia/nim-llm/README.md",
    fix=(
        "Run `sudo nvidia-ctk runtime configure --runtime=docker; sudo systemctl restart"
        " docker`, or use --gpus all instead."
    ),
    fails={"wanted": {"runtime": "nvidia"}, "docker": {"runtimes": ["runc"]}},
    passes={"wanted": {"runtime": "nvidia"}},
)
def unknown_runtime(machine: Machine) -> Iterator[Hit]:
    """`--runtime nvidia` wants an entry in Docker's configuration, which `--gpus all` does not.
    Docker says `unknown or invalid runtime name`.
    """
    if _lacks_runtime(machine):
        yield Hit(
            f"The recipe needs the runtime {machine.wanted.runtime}, which Docker does not know.",
            f"runtimes: {runtime.look(machine)}",
        )


@runtime.rule(
    "HOST007",
    "no-gpu-runtime",
    "warning",
    kind="nvidia-runtime",
    source="https://github.com/NVIDIA/xr-ai/blob/main/docs/source/guides/troubleshooting.md",
    fix=(
        "Run `sudo apt install nvidia-container-toolkit; sudo nvidia-ctk runtime configure"
        " --runtime=docker; sudo systemctl restart docker`."
    ),
    fails={"docker": {"runtimes": ["io.containerd.runc.v2", "runc"]}},
    passes={"docker": {"runtimes": ["runc"], "cdi": ["nvidia.com/gpu=all"]}},
)
def no_gpu_runtime(machine: Machine) -> Iterator[Hit]:
    """`--gpus all` ends with `could not select device driver "" with capabilities: [[gpu]]` where
    the NVIDIA container toolkit is missing or Docker was not restarted after it was installed.
    Engine 29 words it `failed to discover GPU vendor from CDI`.
    """
    docker = machine.docker
    known = "nvidia" in docker.runtimes or any("nvidia" in device for device in docker.cdi)
    if not known and not _lacks_runtime(machine):
        yield Hit(
            "Docker lists neither the runtime nvidia nor a CDI device of NVIDIA's.",
            f"runtimes: {runtime.look(machine)}",
        )
