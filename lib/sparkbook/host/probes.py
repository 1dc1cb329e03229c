"""The probes: they ask the machine what it is, and change nothing.

Every probe takes its ways to the machine (`Access`) as an argument, so that a test hands it
recorded answers. One that fails is noted in `Machine.unread` and stops none of the others. Only
`run=True` starts something: one container on the GPU, which is removed again.
"""

from __future__ import annotations

import contextlib
import getpass
import grp
import hashlib
import json
import os
import platform
import re
import resource
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from sparkbook.checkpoint.store import (
    local_commit,
    local_folder,
    model_store,
    repositories,
    snapshot,
    torn,
)
from sparkbook.errors import SparkbookError
from sparkbook.host import machine as seen
from sparkbook.host.machine import Machine, Wanted
from sparkbook.recipes import Recipe
from sparkbook.units import GB
from sparkbook.util import limits, origins
from sparkbook.util.limits import Ran

_TIMEOUT_S, _HUB_TIMEOUT_S = 20, 6
_MOST_FILES = 200_000
_NETWORK_ENV = (
    "GLOO_SOCKET_IFNAME",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "VLLM_HOST_IP",
)
_SERVER = re.compile(r"vllm|sglang|\bnim\b|tensorrt-?llm|llama\.?cpp", re.IGNORECASE)


def run(command: Sequence[str]) -> Ran:
    """Run a command that only asks, and wait for it."""
    ran = limits.run(command, timeout_s=_TIMEOUT_S)
    return ran._replace(out=ran.out.strip())


def connect() -> Any:
    """A client of the Docker engine that DOCKER_HOST names, or of the local one; the API's version
    is negotiated.
    """
    import docker

    return docker.from_env(timeout=_TIMEOUT_S)


def get(url: str, token: str | None) -> tuple[int, Mapping[str, str]]:
    """Status and headers of a web address; the token goes to its origin only."""
    import httpx

    with (
        httpx.Client(timeout=_HUB_TIMEOUT_S) as client,
        origins.get(client, url, home=url, token=token, headers={}) as answer,
    ):
        return answer.status_code, answer.headers


@dataclass(frozen=True)
class Access:
    """The ways to a machine.

    Attributes:
        runner: runs a command.
        docker: connects to the Docker engine.
        get: asks a web address for its status and headers.
        root: where `/proc`, `/sys` and `/etc` lie.
        home: the user's.
        clock, now, sleep: seconds that only go forward, seconds since 1970, and waiting.
    """

    runner: Callable[[Sequence[str]], Ran] = run
    docker: Callable[[], Any] = connect
    get: Callable[[str, str | None], tuple[int, Mapping[str, str]]] = get
    root: Path = Path("/")
    home: Path = field(default_factory=Path.home)
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def text(self, path: str) -> str | None:
        """A file's contents, without the blanks around them; None where it can't be read."""
        try:
            return (self.root / path).read_text("utf-8", errors="replace").strip()
        except OSError:
            return None


def wanted(recipe: Recipe | None) -> Wanted:
    """What a recipe asks of a machine."""
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


_PROBES: dict[str, Callable[[Access, Wanted, dict[str, Any]], dict[str, Any]]] = {}
_Probe = Callable[[Access, Wanted, dict[str, Any]], dict[str, Any]]


def _probe(name: str) -> Callable[[_Probe], _Probe]:
    def register(function: _Probe) -> _Probe:
        _PROBES[name] = function
        return function

    return register


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
    for name, probe in _PROBES.items():
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
            unread[name] = f"it could not be read: {_last_line(str(error))[:200]}"
        seconds[name] = round(access.clock() - begin, 3)
    messages = found.pop("kernel_messages", None)
    system = found["system"].model_copy(update={"kernel_messages": messages})
    return Machine(**{**found, "system": system, "seconds": seconds, "unread": unread})


def _last_line(text: str) -> str:
    return next(reversed(text.strip().splitlines()), "it gave no reason")


def _version(text: str) -> str | None:
    found = re.search(r"\d+(\.\d+)+", text)
    return found[0] if found else None


@_probe("system")
def _system(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    release = dict(
        re.findall(r'^(\w+)="?([^"\n]*)"?$', access.text("etc/os-release") or "", re.MULTILINE)
    )
    user = access.environ.get("USER") or getpass.getuser()
    groups = []
    for number in sorted({os.getgid(), *os.getgroups()}):
        try:
            groups.append(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    system = seen.System(
        architecture=platform.machine(),
        kernel=access.text("proc/sys/kernel/osrelease") or platform.release(),
        os=release.get("PRETTY_NAME"),
        user=user,
        uid=os.getuid(),
        groups=groups,
    )
    return {"system": system, "name": socket.gethostname()}


@_probe("gpu")
def _gpu(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    ask = "--query-gpu=name,compute_cap,driver_version,memory.total,temperature.gpu"
    asked = access.runner(["nvidia-smi", ask, "--format=csv,noheader"])
    if asked.code == 127:
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in asked.out.splitlines()]
    rows = [row for row in rows if len(row) == 5]
    if asked.code or not rows:
        return {"gpu": seen.Gpu(error=_last_line(asked.err or asked.out)[:200])}
    header = re.search(r"CUDA Version:\s*([\d.]+)", access.runner(["nvidia-smi"]).out)
    first = rows[0]
    gpu = seen.Gpu(
        names=[row[0] for row in rows],
        capability=first[1],
        driver=first[2],
        memory=first[3],
        temperature_c=_number(first[4]),
        cuda=header[1] if header else None,
    )
    sample = _sample(access)
    busy = sample is not None and sample.utilization >= 50
    return {
        "gpu": gpu,
        "load": _watch(access, "the program that runs there", 3, 0.5) if busy else None,
    }


def _number(text: str) -> float | None:
    found = re.match(r"\s*(-?\d+(\.\d+)?)", text)
    return float(found[1]) if found else None


def _sample(access: Access) -> seen.Load | None:
    """The GPU at this moment."""
    asked = access.runner(
        [
            "nvidia-smi",
            "--query-gpu=utilization.gpu,clocks.sm,power.draw,temperature.gpu",
            "--format=csv,noheader,nounits",
        ]
    )
    cells = [_number(cell) for cell in (asked.out.splitlines() or [""])[0].split(",")]
    if asked.code or len(cells) != 4 or cells[0] is None:
        return None
    return seen.Load(
        by="",
        seconds=0,
        utilization=cells[0],
        clock_mhz=cells[1],
        power_w=cells[2],
        temperature_c=cells[3],
    )


def _watch(
    access: Access, by: str, seconds: float, step_s: float, going: Callable[[], bool] = lambda: True
) -> seen.Load | None:
    """Return the largest of several samples, taken until the time is over or the load ends."""
    begin, samples = access.clock(), []
    while access.clock() - begin < seconds and going():
        if sample := _sample(access):
            samples.append(sample)
        access.sleep(step_s)
    if not samples:
        return None

    def most(name: str) -> float | None:
        return max(
            (value for sample in samples if (value := getattr(sample, name)) is not None),
            default=None,
        )

    return seen.Load(
        by=by,
        seconds=round(access.clock() - begin, 1),
        utilization=most("utilization") or 0,
        clock_mhz=most("clock_mhz"),
        power_w=most("power_w"),
        temperature_c=most("temperature_c"),
    )


@_probe("kernel_log")
def _kernel_log(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    asked = access.runner(["dmesg"])
    if asked.code:
        return {}
    wrong = re.compile(r"NVRM: Xid|NV_ERR_NO_MEMORY|NVRM.*out of memory", re.IGNORECASE)
    return {
        "kernel_messages": [line[:300] for line in asked.out.splitlines() if wrong.search(line)][
            -20:
        ]
    }


@_probe("memory")
def _memory(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    meminfo = access.text("proc/meminfo")
    if meminfo is None:
        return {}
    reserve = access.text("proc/sys/vm/min_free_kbytes")
    memory = seen.MemorySeen(
        meminfo=meminfo,
        min_free_kbytes=int(reserve) if reserve and reserve.isdigit() else None,
        blocks_2mib=_blocks(access.text("proc/buddyinfo")),
    )
    _ = memory.memory  # a text without MemTotal is not kept
    return {"memory": memory}


def _blocks(buddyinfo: str | None, page: int | None = None) -> int | None:
    """Free blocks of 2 MiB, larger ones counted as several: column n of /proc/buddyinfo counts free
    blocks of 2^n pages.
    """
    rows = [
        [int(word) for word in line.split() if word.isdigit()]
        for line in re.sub(r"^.*zone\s+\S+", "", buddyinfo or "", flags=re.M).splitlines()
    ]
    if not any(rows):
        return None
    order = (2 * 2**20 // (page or resource.getpagesize())).bit_length() - 1
    return sum(
        count << (power - order)
        for row in rows
        for power, count in enumerate(row)
        if power >= order
    )


@_probe("processes")
def _processes(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    asked = access.runner(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    )
    rows = (
        [line.split(",") for line in asked.out.splitlines() if line.count(",") == 1]
        if asked.code == 0
        else []
    )
    held = {int(pid): _number(size) for pid, size in rows if pid.strip().isdigit()}
    pids = sorted(int(path.name) for path in (access.root / "proc").glob("[0-9]*"))
    named = [pid for pid in pids if pid not in held and _name(access, pid).startswith("VLLM::")]
    processes = []
    for pid in sorted([*held, *named]):
        status = re.search(r"^PPid:\s*(\d+)", access.text(f"proc/{pid}/status") or "", re.MULTILINE)
        parent = int(status[1]) if status else None
        processes.append(
            seen.Process(
                pid=pid,
                name=_name(access, pid),
                parent=parent,
                parent_name=_name(access, parent) if parent else None,
                gpu_mib=held.get(pid),
            )
        )
    return {"processes": processes}


def _name(access: Access, pid: int) -> str:
    """A process's name: the first word of its command line, which vLLM sets, and never more: the
    rest may hold a secret.
    """
    words = (access.text(f"proc/{pid}/cmdline") or "").split("\0")
    first = words[0].split()[0] if words[0].split() else access.text(f"proc/{pid}/comm") or "?"
    name = first if first.startswith("VLLM::") else Path(first).name
    # An interpreter is called by the script that it runs.
    script = Path(words[1]).name if name.startswith("python") and len(words) > 1 else ""
    return script if script == "vllm" else name


@_probe("docker")
def _docker(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    from docker.errors import DockerException

    asked = access.runner(["docker", "--version"])
    client_version = _version(asked.out) if asked.code == 0 else None
    try:
        client = access.docker()
        version, info = client.version(), client.info()
        containers = [
            _container(access, one)
            for one in client.containers.list(all=True, ignore_removed=True)
            if _serves(one)
        ]
    except (DockerException, OSError) as error:
        return {"docker": seen.Docker(client=client_version, error=_last_line(str(error))[:300])}
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
        )
    }


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
    )


def _moment(text: str) -> float:
    """Seconds since 1970 of Docker's time stamps, which have nanoseconds; far away where it can't
    be read.
    """
    import datetime

    try:
        return datetime.datetime.fromisoformat(
            re.sub(r"\.\d+", "", text).replace("Z", "+00:00")
        ).timestamp()
    except ValueError:
        return 0.0


@_probe("image")
def _image(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    from docker.errors import ImageNotFound

    if want.image is None or not _answers(found):
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


def _answers(found: dict[str, Any]) -> bool:
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


@_probe("smoke")
def _smoke(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
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

        load = _watch(access, "a short load", 120, 0.5, going)
        ended = not going()
        code = container.wait(timeout=_TIMEOUT_S)["StatusCode"] if ended else 124
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


@_probe("registry")
def _registry(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
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


@_probe("hub")
def _hub(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    from httpx import HTTPError

    if not want.repos:
        return {}
    place, token = find_token(access.environ, access.home)
    if access.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return {"hub": seen.Hub(token=place, offline="HF_HUB_OFFLINE is set")}
    hub = (access.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    valid, skew, codes = None, None, {}
    try:
        if token:
            status, _ = access.get(f"{hub}/api/whoami-v2", token)
            valid = True if status == 200 else False if status == 401 else None
        for repo in want.repos:
            codes[repo], headers = access.get(f"{hub}/api/models/{repo}/auth-check", token)
            if date := headers.get("date"):
                skew = round(access.now() - parsedate_to_datetime(date).timestamp(), 1)
    except SparkbookError as error:  # HF_ENDPOINT is no address, or holds a password
        return {"hub": seen.Hub(token=place, offline=str(error))}
    except HTTPError as error:
        return {
            "hub": seen.Hub(
                token=place,
                valid=valid,
                access=codes,
                offline=f"{hub} can't be reached: {type(error).__name__}",
            )
        }
    return {"hub": seen.Hub(token=place, valid=valid, access=codes, skew_s=skew)}


def find_token(environ: Mapping[str, str], home: Path) -> tuple[str | None, str | None]:
    """Return where Hugging Face's library takes a token from, and the token (a secret)."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environ.get(name, "").strip():
            return name, environ[name].strip()
    path = environ.get("HF_TOKEN_PATH")
    for file in (
        [Path(path)]
        if path
        else [model_store(environ, home) / "token", home / ".cache" / "huggingface" / "token"]
    ):
        try:
            if text := file.read_text("utf-8").strip():
                return str(file), text
        except (OSError, ValueError):
            continue
    return None, None


@_probe("store")
def _store(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    path = model_store(access.environ, access.home)
    shown = str(path).replace(str(access.home), "~", 1)
    docker = found["docker"].root if _answers(found) else None
    free: dict[str, Any] = {
        "free_bytes": _free(path),
        "docker_free_bytes": _free(Path(docker)) if docker and Path(docker).is_dir() else None,
    }
    if not path.is_dir():
        return {"store": seen.Store(path=shown, exists=False, **free)}
    foreign, unfinished, example = 0, 0, None
    for number, file in enumerate(_files(path)):
        if number >= _MOST_FILES:
            break
        unfinished += file.name.endswith(".incomplete")
        try:
            owner = file.lstat().st_uid
        except OSError:
            continue
        if owner != os.getuid() and os.getuid() != 0:
            foreign, example = foreign + 1, example or str(file).replace(str(access.home), "~", 1)
    return {
        "store": seen.Store(
            path=shown,
            exists=True,
            writable=os.access(path, os.W_OK | os.X_OK),
            foreign=foreign,
            example=example,
            unfinished=unfinished,
            **free,
            **_staged(path, want, access.home),
        )
    }


def _files(folder: Path) -> Iterator[Path]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield Path(root) / name


def _free(path: Path) -> int | None:
    """Bytes free for this user where the folder is, or will be."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _staged(store: Path, want: Wanted, home: Path) -> dict[str, Any]:
    """The recipe's repositories as they are on the disk: commits, size, files that cannot be whole,
    and a hash to compare nodes by.
    """
    revisions, broken, size, parts = {}, [], 0, []
    for repo, revision in want.repos.items():
        own = want.folders.get(repo)
        folder = local_folder(own, home) if own else snapshot(store, repo, revision)
        if folder is None or not folder.is_dir() or not any(folder.iterdir()):
            continue
        revisions[repo] = local_commit(folder) if own else folder.name
        for file in sorted(path for path in folder.rglob("*") if not path.is_dir()):
            name = file.relative_to(folder).as_posix()
            if name.startswith(".cache/"):
                continue
            if not file.exists() or (file.suffix == ".safetensors" and torn(file)):
                broken.append(name)
                continue
            size += file.stat().st_size
            parts.append(f"{repo}/{name} {file.stat().st_size}")
    digest = (
        hashlib.sha256("\n".join([*parts, *revisions.values()]).encode()).hexdigest()[:16]
        if revisions
        else None
    )
    return {
        "revisions": revisions,
        "broken": broken,
        "staged_gb": round(size / GB, 3),
        "digest": digest,
    }


@_probe("port")
def _port(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    inodes = set()
    for name in ("proc/net/tcp", "proc/net/tcp6"):
        for line in (access.text(name) or "").splitlines()[1:]:
            words = line.split()
            # State 0A is LISTEN; the port is the part after the colon, in hexadecimal.
            if (
                len(words) > 9
                and words[3] == "0A"
                and int(words[1].rsplit(":", 1)[1], 16) == want.port
            ):
                inodes.add(words[9])
    return {
        "port": seen.Port(
            number=want.port, owner=_owner(access, want.port, inodes) if inodes else None
        )
    }


def _owner(access: Access, port: int, inodes: set[str]) -> str:
    """Who listens: the container that publishes the port, else the process that holds the socket,
    as far as this user may see it.
    """
    from docker.errors import DockerException

    try:
        for one in access.docker().containers.list():
            published = [
                entry
                for entries in (one.attrs["NetworkSettings"].get("Ports") or {}).values()
                for entry in entries or []
            ]
            if any(entry.get("HostPort") == str(port) for entry in published):
                return f"the container {one.name}"
    except (DockerException, OSError, LookupError):
        pass
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for folder in sorted((access.root / "proc").glob("[0-9]*/fd")):
        if any(target in sockets for target in _links(folder)):
            return f"{_name(access, int(folder.parent.name))} (pid {folder.parent.name})"
    return "another user's program"


def _links(folder: Path) -> Iterator[str]:
    """Where a process's open files lead; those that this user may not see, or that are closed
    meanwhile, are left out.
    """
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return
    for file in files:
        with contextlib.suppress(OSError):
            yield str(file.readlink())


@_probe("limits")
def _limits(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    shm = access.root / "dev/shm"
    space = os.statvfs(shm) if shm.is_dir() else None
    system = found["system"]
    logind = (access.root / "run/systemd/system").is_dir()
    lines = [access.text("etc/systemd/logind.conf") or ""]
    lines += [
        access.text(f"etc/systemd/logind.conf.d/{path.name}") or ""
        for path in sorted((access.root / "etc/systemd/logind.conf.d").glob("*.conf"))
    ]
    said = re.findall(r"^\s*RemoveIPC\s*=\s*(\w+)", "\n".join(lines), re.MULTILINE)
    earlyoom = None
    for folder in (access.root / "proc").glob("[0-9]*"):
        words = (access.text(f"proc/{folder.name}/cmdline") or "").split("\0")
        if Path(words[0]).name == "earlyoom":
            earlyoom = " ".join(words[1:]).strip()
    hard = {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
        for name in ("MEMLOCK", "NOFILE")
    }
    return {
        "limits": seen.Limits(
            shm_bytes=space.f_blocks * space.f_frsize if space else None,
            shm_free_bytes=space.f_bavail * space.f_frsize if space else None,
            memlock_bytes=hard["MEMLOCK"],
            nofile=hard["NOFILE"] if hard["NOFILE"] > 0 else None,
            remove_ipc=(
                (not said or said[-1].lower() in ("yes", "true", "1", "on")) if logind else None
            ),
            linger=(
                (access.root / "var/lib/systemd/linger" / system.user).exists() if logind else None
            ),
            earlyoom=earlyoom,
        )
    }


@_probe("time")
def _time(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    asked = access.runner(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    return {
        "time": seen.Time(
            synchronized=asked.out == "yes" if asked.code == 0 and asked.out else None
        )
    }


# Run by the Python that the `vllm` command belongs to.
_PACKAGES = """
import importlib.metadata as m, json, re
names = {d.metadata["Name"].lower(): d.version for d in m.distributions() if d.metadata["Name"]}
starts = ("vllm", "torch", "triton"), ("nvidia-cu", "flashinfer")
keep = {n: v for n, v in names.items() if n in starts[0] or n.startswith(starts[1])}
try:
    import torch
    import vllm._C
    error = None
except Exception as problem:
    error = f"{type(problem).__name__}: {problem}"
print(json.dumps({"packages": keep, "error": error}))
"""


@_probe("python")
def _python(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    command = shutil.which("vllm", path=access.environ.get("PATH", ""))
    if command is None or not found.get("gpu", seen.Gpu()).names:
        return {}
    with Path(command).open("rb") as script:
        first = script.readline(500).decode("utf-8", "replace")
    interpreter = first[2:].strip() if first.startswith("#!") else "python3"
    asked = access.runner([*interpreter.split(), "-c", _PACKAGES])
    said: dict[str, Any] = (
        json.loads(_last_line(asked.out))
        if asked.code == 0
        else {"packages": {}, "error": _last_line(asked.err)}
    )
    nvcc = access.runner(["nvcc", "--version"])
    nvcc = nvcc if nvcc.code == 0 else access.runner(["/usr/local/cuda/bin/nvcc", "--version"])
    release = re.search(r"release ([\d.]+)", nvcc.out) if nvcc.code == 0 else None
    packages = dict(sorted(said["packages"].items()))
    return {
        "python": seen.Python(
            vllm=packages.get("vllm"),
            packages=packages,
            import_error=said["error"] and said["error"][:300],
            nvcc=release[1] if release else None,
        )
    }


@_probe("network")
def _network(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    addresses: dict[str, list[str]] = {}
    asked = access.runner(["ip", "-j", "address"])
    for link in json.loads(asked.out) if asked.code == 0 and asked.out else []:
        addresses[link["ifname"]] = [
            info["local"] for info in link.get("addr_info", []) if info.get("family") == "inet"
        ]
    links = []
    for folder in sorted((access.root / "sys/class/net").glob("*")):
        name = folder.name
        if name == "lo" or name.startswith(("veth", "br-", "docker")):
            continue
        speed, mtu = (
            access.text(f"sys/class/net/{name}/speed"),
            access.text(f"sys/class/net/{name}/mtu"),
        )
        links.append(
            seen.Link(
                name=name,
                up=access.text(f"sys/class/net/{name}/operstate") == "up",
                mtu=int(mtu) if mtu else None,
                speed=int(speed) if speed and speed.isdigit() else None,
                addresses=addresses.get(name, []),
            )
        )
    routes = [line.split() for line in (access.text("proc/net/route") or "").splitlines()[1:]]
    default = next(
        (words[0] for words in routes if len(words) > 1 and words[1] == "00000000"), None
    )
    env = {name: access.environ[name] for name in _NETWORK_ENV if access.environ.get(name)}
    return {
        "network": seen.Network(links=links, rdma=list(_rdma(access)), default=default, env=env)
    }


def _rdma(access: Access) -> Iterator[seen.Rdma]:
    mtus: dict[str, int] = {}
    device = ""
    for line in access.runner(["ibv_devinfo"]).out.splitlines():
        if found := re.match(r"\s*hca_id:\s*(\S+)", line):
            device = found[1]
        elif found := re.match(r"\s*active_mtu:\s*(\d+)", line):
            mtus.setdefault(device, int(found[1]))
    for folder in sorted((access.root / "sys/class/infiniband").glob("*")):
        base = f"sys/class/infiniband/{folder.name}"
        gids = {}
        for file in sorted(
            (folder / "ports/1/gids").glob("*"), key=lambda path: path.name.zfill(4)
        ):
            gid, kind = (
                access.text(f"{base}/ports/1/gids/{file.name}"),
                access.text(f"{base}/ports/1/gid_attrs/types/{file.name}"),
            )
            if gid and set(gid) > {"0", ":"}:
                gids[int(file.name)] = f"{(kind or '').replace('IB/', '')} {_address(gid)}".strip()
        link = next((path.name for path in sorted((folder / "device/net").glob("*"))), None)
        active = "ACTIVE" in (access.text(f"{base}/ports/1/state") or "")
        yield seen.Rdma(
            name=folder.name, active=active, link=link, mtu=mtus.get(folder.name), gids=gids
        )


def _address(gid: str) -> str:
    """A GID as an address: an IPv4 address is mapped into the last 32 bits."""
    import ipaddress

    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)
