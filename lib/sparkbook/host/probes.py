"""The probes: they ask the machine what it is, and change nothing.

Every probe takes its ways to the machine (`Access`) as an argument, so that a test hands it
recorded answers. One that fails is noted in `Machine.unread` and stops none of the others. Only
`run=True` starts something: one container on the GPU, which is removed again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkbook.checkpoint.store import repositories
from sparkbook.errors import SparkbookError
from sparkbook.host.access import Access, last_line
from sparkbook.host.docker_probes import docker_probe, image_probe, registry_probe, smoke_probe
from sparkbook.host.gpu_probes import gpu_probe, kernel_log_probe, python_probe
from sparkbook.host.machine import Machine, Wanted
from sparkbook.host.network_probes import network_probe
from sparkbook.host.store_probes import hub_probe, store_probe
from sparkbook.host.system_probes import (
    limits_probe,
    memory_probe,
    port_probe,
    processes_probe,
    system_probe,
    time_probe,
)
from sparkbook.recipes import Recipe


def wanted(recipe: Recipe | None) -> Wanted:
    """Return what a recipe asks of a machine."""
    if recipe is None:
        return Wanted()
    launch, container = recipe.launch, recipe.container
    sizes = [recipe.model.weights_gb, recipe.draft.size_gb if recipe.draft else None]
    known = [size for size in sizes if size is not None]
    fraction = launch.serve.args.get("gpu-memory-utilization")
    published = [int(port.split("/")[0].rsplit(":", 2)[-2]) for port in container.ports]
    return Wanted(
        recipe=recipe.id,
        image=recipe.image.ref if recipe.image else None,
        digest=recipe.image.digest if recipe.image else None,
        port=published[0] if published else launch.port,
        utilization=float(fraction) if isinstance(fraction, int | float) else None,
        repos={one.repo: one.revision for one in repositories(recipe)},
        folders={one.repo: one.folder for one in repositories(recipe) if one.folder},
        gated=recipe.model.gated,
        weights_gb=sum(known) if known else None,
        shm_size=container.shm_size,
        ipc_host=container.ipc == "host",
        runtime=container.runtime,
        memlock="memlock" in container.ulimits,
        nodes=recipe.topology.nodes,
    )


Probe = Callable[[Access, Wanted, dict[str, Any]], dict[str, Any]]


PROBES: dict[str, Probe] = {
    "system": system_probe,
    "gpu": gpu_probe,
    "kernel_log": kernel_log_probe,
    "memory": memory_probe,
    "processes": processes_probe,
    "docker": docker_probe,
    "image": image_probe,
    "smoke": smoke_probe,
    "registry": registry_probe,
    "hub": hub_probe,
    "store": store_probe,
    "port": port_probe,
    "limits": limits_probe,
    "time": time_probe,
    "python": python_probe,
    "network": network_probe,
}
"""Every probe, in the order in which they are made: a later one sees what an earlier one found."""


def look(
    recipe: Recipe | None = None,
    access: Access | None = None,
    *,
    run: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Machine:
    """Read this machine.

    Args:
        recipe: what it is to serve; without it, what belongs to a model is not asked.
        access: the ways to the machine.
        run: also start a container on the GPU from the recipe's image, with five seconds of load,
            and remove it.
        progress: called with the name of each probe.
    """
    from docker.errors import DockerException
    from httpx import HTTPError

    access, want = access or Access(), wanted(recipe)
    found: dict[str, Any] = {"wanted": want}
    seconds: dict[str, float] = {}
    unread: dict[str, str] = {}
    for name, probe in PROBES.items():
        if name == "smoke" and not run:
            continue
        if progress:
            progress(name)
        begin = access.clock()
        try:
            found |= probe(access, want, found)
        except (
            OSError,
            ValueError,
            LookupError,
            DockerException,
            HTTPError,
            SparkbookError,
        ) as error:
            unread[name] = f"it could not be read: {last_line(str(error))[:200]}"
        seconds[name] = round(access.clock() - begin, 3)
    messages = found.pop("kernel_messages", None)
    system = found["system"].model_copy(update={"kernel_messages": messages})
    return Machine(**{**found, "system": system, "seconds": seconds, "unread": unread})
