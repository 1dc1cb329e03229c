"""The servers that run in Docker."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.host.family import check
from sparkbook.host.machine import Container, Machine
from sparkbook.host.rules.docker import needs_engine
from sparkbook.rules import Hit
from sparkbook.util.shell_text import command_line

_MANY_RESTARTS = 3

_UPDATE = ("docker", "update", "--restart", "unless-stopped")


@check("servers in Docker", probe="docker")
def servers(machine: Machine) -> str:
    needs_engine(machine)
    return "; ".join(map(_seen, machine.docker.containers)) or "none"


def _seen(container: Container) -> str:
    rights = f" ({container.rights})" if container.state == "running" and container.rights else ""
    return f"{container.name} {container.state}{rights}"


def _loops(container: Container) -> bool:
    return container.state == "restarting" or container.restarts >= _MANY_RESTARTS


@servers.rule(
    "HOST032",
    "restart-loop",
    "warning",
    kind="restart-loop",
    source="https://github.com/eugr/spark-vllm-docker/issues/257",
    fails={
        "docker": {
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm/vllm-openai:v0.28.0",
                    "state": "restarting",
                    "restart": "unless-stopped",
                    "restarts": 35,
                    "exit_code": 1,
                }
            ]
        }
    },
    passes={
        "docker": {
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm/vllm-openai:v0.28.0",
                    "state": "exited",
                    "restart": "on-failure:3",
                    "restarts": 2,
                    "exit_code": 1,
                }
            ]
        }
    },
)
def restart_loop(machine: Machine) -> Iterator[Hit]:
    """A server that fails and is started again and again loses memory with every round: after some
    35 of them a Spark could not be reached any more.
    """
    for one in filter(_loops, machine.docker.containers):
        yield Hit(
            f"The container {one.name} was restarted {one.restarts} times: each failed start can"
            " cost memory"
            " that does not come back.",
            f"restart policy {one.restart}, exit code {one.exit_code}",
            f"Stop it: `{command_line('docker', 'update', '--restart', 'no', one.name)};"
            f" {command_line('docker', 'stop', one.name)}`.",
        )


@servers.rule(
    "HOST033",
    "container-left-behind",
    "info",
    source="https://github.com/NVIDIA/NemoClaw/issues/8685",
    fails={
        "docker": {
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm/vllm-openai:v0.28.0",
                    "state": "created",
                    "exit_code": 128,
                    "error": "port is already allocated",
                }
            ]
        }
    },
)
def container_left_behind(machine: Machine) -> Iterator[Hit]:
    """When `docker run` fails at its start (exit code 125), the container stays in the state
    `created` and keeps its name; the next run is refused for that reason.
    """
    for one in machine.docker.containers:
        if one.state == "created" and one.error and not _loops(one):
            yield Hit(
                f"A failed start left the container {one.name} behind.",
                one.error[:200],
                f"Remove it: `{command_line('docker', 'rm', one.name)}`.",
            )


@servers.rule(
    "HOST031",
    "no-restart-policy",
    "info",
    kind="restart-policy",
    source="https://github.com/NVIDIA/NemoClaw/issues/4886",
    fails={
        "docker": {
            "containers": [
                {"name": "vllm", "image": "vllm/vllm-openai:v0.28.0", "state": "running"}
            ]
        }
    },
    passes={
        "docker": {
            "containers": [
                {
                    "name": "vllm",
                    "image": "vllm/vllm-openai:v0.28.0",
                    "state": "running",
                    "restart": "unless-stopped",
                }
            ]
        }
    },
)
def no_restart_policy(machine: Machine) -> Iterator[Hit]:
    """Without a restart policy a server is gone after the machine was restarted. `unless-stopped`
    is for recipes that have proven themselves; on one that fails, it multiplies the damage.
    """
    for one in machine.docker.containers:
        if one.state == "running" and one.restart == "no" and not _loops(one):
            yield Hit(
                f"The container {one.name} has no restart policy: it does not start again when the"
                " machine restarts.",
                fix=(
                    "Set one when the server has proven itself:"
                    f" `{command_line(*_UPDATE, one.name)}`."
                ),
            )


@check("published ports", probe="docker")
def published(machine: Machine) -> str:
    needs_engine(machine)
    ufw = {True: "on", False: "off", None: "not installed"}[machine.docker.ufw]
    seen = "; ".join(f"{name} {' '.join(out)}" for name, out in machine.docker.published.items())
    return f"{seen or 'none beyond loopback'}; ufw {ufw}"


@published.rule(
    "HOST038",
    "published-past-firewall",
    "warning",
    source="https://docs.docker.com/engine/network/packet-filtering-firewalls/#docker-and-ufw",
    fix=(
        "Publish it on loopback (`-p 127.0.0.1:8000:8000`; `sparkbook serve` does so without"
        " --expose), and let a proxy answer the network: `sparkbook proxy`."
    ),
    fails={"docker": {"published": {"vllm": ["0.0.0.0:8000"]}, "ufw": True}},
    passes={"docker": {"published": {}, "ufw": True}},
)
def published_past_firewall(machine: Machine) -> Iterator[Hit]:
    """Docker sends what arrives at a published port to the container before ufw's rules see it:
    `ufw deny 8000` does not close the port, and `ufw status` does not show that it is open. Only
    the address that the port is published on, and the chain `DOCKER-USER`, decide who reaches it.
    Without ufw the same port is open, and nobody expects otherwise: then it is a note.
    """
    for name, addresses in machine.docker.published.items():
        past = "past ufw" if machine.docker.ufw else "to the network"
        yield Hit(
            f"The container {name} publishes {', '.join(addresses)} {past}.",
            severity=None if machine.docker.ufw else "info",
        )
