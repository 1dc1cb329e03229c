"""Docker, the containers that serve, and whether the recipe's image runs on the GPU. Only `smoke`
starts something: one container, which is removed again.
"""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

from sparkbook.host import machine as seen
from sparkbook.host.access import TIMEOUT_S, Access, last_line, version_in
from sparkbook.host.gpu_probes import watch
from sparkbook.host.machine import Wanted
from sparkbook.units import format_bytes

_SERVER = re.compile(r"vllm|sglang|\bnim\b|tensorrt-?llm|llama\.?cpp", re.IGNORECASE)


def docker_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    from docker.errors import DockerException

    asked = access.runner(["docker", "--version"])
    client_version = version_in(asked.out) if asked.code == 0 else None
    try:
        client = access.docker()
        version, info = client.version(), client.info()
        every = client.containers.list(all=True, ignore_removed=True)
        containers = [_container(access, one) for one in every if _serves(one)]
    except (DockerException, OSError) as error:
        return {"docker": seen.Docker(client=client_version, error=last_line(str(error))[:300])}
    return {
        "docker": seen.Docker(
            client=client_version,
            version=version.get("Version"),
            api=version.get("ApiVersion"),
            api_min=version.get("MinAPIVersion"),
            architecture=info.get("Architecture"),
            runtimes=sorted(info.get("Runtimes") or {}),
            root=info.get("DockerRootDir"),
            cdi=sorted({str(device.get("ID")) for device in info.get("DiscoveredDevices") or []}),
            containers=containers,
            published={one.attrs["Name"].lstrip("/"): out for one in every if (out := _out(one))},
            ufw=_ufw(access),
        )
    }


def _out(container: Any) -> list[str]:
    """Return the addresses that a container publishes to others than this machine."""
    ports = (container.attrs.get("NetworkSettings") or {}).get("Ports") or {}
    addresses = {
        f"[{one['HostIp']}]:{one['HostPort']}"
        if ":" in one["HostIp"]
        else f"{one['HostIp'] or '0.0.0.0'}:{one['HostPort']}"
        for bindings in ports.values()
        for one in bindings or ()
        if not one["HostIp"].startswith("127.") and one["HostIp"] != "::1"
    }
    return sorted(addresses)


def _ufw(access: Access) -> bool | None:
    """Return whether ufw is on, from its file, which everyone may read."""
    text = access.text("etc/ufw/ufw.conf")
    return None if text is None else bool(re.search(r"^ENABLED=yes\b", text, re.M | re.I))


def _serves(container: Any) -> bool:
    attrs = container.attrs
    return bool(
        _SERVER.search(
            f"{attrs['Config'].get('Image', '')} {attrs.get('Name', '')}"
            f" {' '.join(attrs['Config'].get('Labels') or {})}"
        )
    )


def _container(access: Access, container: Any) -> seen.Container:
    attrs = container.attrs
    state, policy = attrs["State"], attrs["HostConfig"].get("RestartPolicy") or {}
    restart, most = policy.get("Name") or "no", policy.get("MaximumRetryCount")
    stopped = None
    if state["Status"] in ("exited", "dead"):
        stopped = access.now() - _moment(state.get("FinishedAt", ""))
    return seen.Container(
        name=attrs["Name"].lstrip("/"),
        image=attrs["Config"]["Image"],
        state=state["Status"],
        restart=f"{restart}:{most}" if most else restart,
        restarts=attrs.get("RestartCount", 0),
        exit_code=state.get("ExitCode", 0),
        error=state.get("Error", ""),
        stopped_s=None if stopped is None or stopped < 0 else round(stopped, 1),
        rights=_rights(attrs["HostConfig"]),
    )


def _rights(host: dict[str, Any]) -> str:
    """Return what a container may do on its host, out of its `HostConfig`."""
    if host.get("Privileged"):
        return "privileged"
    added, dropped = set(host.get("CapAdd") or ()), set(host.get("CapDrop") or ())
    names = " ".join(sorted(name.removeprefix("CAP_") for name in added))
    if "ALL" in dropped:
        capabilities = f"capabilities {names or 'none'}"
    else:
        without = f" without {' '.join(sorted(dropped))}" if dropped else ""
        capabilities = f"Docker's capabilities{without}{' and ' + names if names else ''}"
    limit = host.get("Memory") or 0
    options = host.get("SecurityOpt") or ()
    guarded = any(one in ("no-new-privileges", "no-new-privileges:true") for one in options)
    filters = [one.partition("=")[2] for one in options if one.startswith("seccomp")]
    seccomp = "no seccomp" if "unconfined" in filters else "own seccomp" if filters else "seccomp"
    return ", ".join(
        (
            capabilities,
            "no-new-privileges" if guarded else "new privileges allowed",
            seccomp,
            "read-only root" if host.get("ReadonlyRootfs") else "writable root",
            f"memory limit {format_bytes(limit)} without CUDA's" if limit else "no memory limit",
        )
    )


def _moment(text: str) -> float:
    """Return seconds since 1970 of Docker's time stamps, which have nanoseconds; far away where it
    can't be read.
    """
    import datetime

    try:
        return datetime.datetime.fromisoformat(
            re.sub(r"\.\d+", "", text).replace("Z", "+00:00")
        ).timestamp()
    except ValueError:
        return 0.0


def image_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    from docker.errors import ImageNotFound

    if want.image is None or not docker_answers(found):
        return {}
    try:
        image = access.docker().images.get(want.image)
    except ImageNotFound:
        return {"image": seen.Image(present=False)}
    environment = dict(
        entry.split("=", 1)
        for entry in (image.attrs.get("Config") or {}).get("Env") or []
        if "=" in entry
    )
    return {
        "image": seen.Image(
            present=True,
            architecture=image.attrs.get("Architecture"),
            digests=sorted(image.attrs.get("RepoDigests") or []),
            cuda=environment.get("CUDA_VERSION"),
        )
    }


def docker_answers(found: dict[str, Any]) -> bool:
    return "docker" in found and found["docker"].version is not None


# Run inside the recipe's image: says what its torch can do, then multiplies matrices for some
# seconds.
_LOAD = """
import json, os, re, subprocess, time
import torch
cuda = torch.cuda
said = {"torch": torch.version.cuda, "archs": cuda.get_arch_list(), "gpu": cuda.get_device_name()}
ptxas = os.environ.get("TRITON_PTXAS_PATH")
try:
    import triton
    beneath = os.path.dirname(triton.__file__)
    ptxas = ptxas or os.path.join(beneath, "backends", "nvidia", "bin", "ptxas")
    text = subprocess.run([ptxas, "--version"], capture_output=True, text=True).stdout
    said["ptxas"] = re.search(r"release ([0-9.]+)", text).group(1)
except Exception as error:
    said["ptxas_error"] = str(error)
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
end = time.monotonic() + 5
while time.monotonic() < end:
    for _ in range(20):
        a @ a
    torch.cuda.synchronize()
print("SPARKBOOK", json.dumps(said))
"""


def smoke_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    from docker.errors import APIError, DockerException
    from docker.types import DeviceRequest

    image: seen.Image | None = found.get("image")
    if want.image is None or image is None or not image.present:
        return {}
    client, container = access.docker(), None
    gpu = DeviceRequest(count=-1, capabilities=[["gpu"]])
    try:
        container = client.containers.create(
            want.image,
            entrypoint=["python3"],
            command=["-c", _LOAD],
            device_requests=[gpu],
            network_mode="none",
            labels={"sparkbook.check": "smoke"},
        )
        container.start()

        def going() -> bool:
            container.reload()
            return container.status == "running"

        load = watch(access, "a short load", 120, 0.5, going)
        ended = not going()
        code = container.wait(timeout=TIMEOUT_S)["StatusCode"] if ended else 124
        output = container.logs(tail=50).decode("utf-8", "replace")
    except APIError as error:
        return {"smoke": seen.Smoke(ok=False, output=(error.explanation or str(error))[-2000:])}
    finally:
        if container is not None:
            with contextlib.suppress(DockerException):
                container.remove(force=True)
    line = re.search(r"^SPARKBOOK (\{.*\})$", output, re.MULTILINE)
    said = json.loads(line[1]) if line else {}
    shown = f"GPU 0: {said['gpu']}" if said else output[-2000:]
    smoke = seen.Smoke(
        ok=code == 0,
        output=shown,
        ptxas=said.get("ptxas"),
        torch_cuda=said.get("torch"),
        archs=said.get("archs") or [],
    )
    return {"smoke": smoke, **({"load": load} if load else {})}


def registry_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    folder = Path(access.environ.get("DOCKER_CONFIG") or access.home / ".docker")
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        config = {}
    # Only the names are read. An entry without contents says that the login lies in the credential
    # store.
    auths, store = (
        config.get("auths") or {},
        bool(config.get("credsStore") or config.get("credHelpers")),
    )
    logins = sorted(
        re.sub(r"^https?://|/v\d/?$|/$", "", name)
        for name, entry in auths.items()
        if entry or store
    )
    return {"registry": seen.Registry(logins=logins, store=store)}
