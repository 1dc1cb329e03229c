"""The machine: everything that the probes read, as one value.

A `Machine` is what the checks judge. It is made by `sparkbook.host.probes.look` on the machine
itself, or read back from a file: the probes of any machine can be kept, sent and judged elsewhere.
What could not be found out is None: unknown is neither zero nor a fault. Nothing in here is a
secret: of a token only where it was found and whether it was accepted.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from sparkbook.errors import SparkbookError
from sparkbook.host.meminfo import Memory, parse_meminfo
from sparkbook.recipes.launch import Strict
from sparkbook.util import documents, invalid, limits, own_yaml

RECORDED = Path(__file__).with_name("recorded.yaml")


class Section(Strict):
    """One probe's answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Wanted(Section):
    """What the machine is asked to do, taken from a recipe; without a recipe only the defaults are
    known.

    Attributes:
        utilization: `--gpu-memory-utilization`.
        repos: the repositories that it loads, with a revision or null for `main`.
        folders: those in a folder of their own instead of in the cache.
        weights_gb: their size on disk in GB (10^9 bytes), as far as a source states it.
        nodes: Sparks that it is spread over.
    """

    recipe: str | None = None
    image: str | None = None
    digest: str | None = None
    port: int = 8000
    utilization: float | None = None
    repos: dict[str, str | None] = Field(default_factory=dict)
    folders: dict[str, str] = Field(default_factory=dict)
    gated: bool | None = None
    weights_gb: float | None = None
    shm_size: str | None = None
    ipc_host: bool = False
    runtime: str | None = None
    memlock: bool = False
    nodes: int = 1


class System(Section):
    """Architecture, operating system, user.

    Attributes:
        kernel_messages: lines of the kernel's log about the GPU's driver; None where it may
            not be read.
    """

    architecture: str
    kernel: str
    os: str | None = None
    user: str = "$USER"
    uid: int | None = None
    groups: list[str] = Field(default_factory=list)
    kernel_messages: list[str] | None = None


class Gpu(Section):
    """What the NVIDIA driver says. `memory` is the text that nvidia-smi shows for the memory;
    `cuda` is the newest CUDA it can run.
    """

    names: list[str] = Field(default_factory=list)
    capability: str | None = None
    driver: str | None = None
    cuda: str | None = None
    memory: str | None = None
    temperature_c: float | None = None
    error: str | None = None


class Load(Section):
    """The GPU while something runs on it; the largest of the samples.

    Attributes:
        by: what made it work: `a short load`, or the engine that was running.
        seconds: how long it was watched.
    """

    by: str
    seconds: float
    utilization: float
    clock_mhz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None


class MemorySeen(Section):
    """`/proc/meminfo` as text, and two settings with it.

    Attributes:
        min_free_kbytes: `vm.min_free_kbytes`.
        blocks_2mib: free blocks of 2 MiB and more, from `/proc/buddyinfo`.
    """

    meminfo: str
    min_free_kbytes: int | None = None
    blocks_2mib: int | None = None

    @property
    def memory(self) -> Memory:
        """The text, read."""
        return parse_meminfo(self.meminfo)


class Process(Section):
    """A process that holds GPU memory, or one of vLLM's.

    Attributes:
        parent: pid of its parent; 1 where that has ended.
        parent_name: its parent's name.
        gpu_mib: what it holds, in MiB; None where the driver does not say.
    """

    pid: int
    name: str
    parent: int | None = None
    parent_name: str | None = None
    gpu_mib: float | None = None


class Container(Section):
    """A container that looks like a model server. `state` and `restart` are Docker's words.

    Attributes:
        rights: what it may do on its host, in a few words.
    """

    name: str
    image: str
    state: str
    restart: str = "no"
    restarts: int = 0
    exit_code: int = 0
    error: str = ""
    stopped_s: float | None = None
    rights: str = ""


class Docker(Section):
    """The Docker engine. `error` is why it does not answer; `api` and `api_min` the versions of its
    API that it speaks; `published` the addresses, other than loopback, that each container that
    runs publishes; `ufw` whether that firewall is on, None where it is not installed.
    """

    client: str | None = None
    version: str | None = None
    error: str | None = None
    api: str | None = None
    api_min: str | None = None
    architecture: str | None = None
    runtimes: list[str] = Field(default_factory=list)
    cdi: list[str] = Field(default_factory=list)
    root: str | None = None
    containers: list[Container] = Field(default_factory=list)
    published: dict[str, list[str]] = Field(default_factory=dict)
    ufw: bool | None = None


class Image(Section):
    """The recipe's image as the engine has it. `cuda` is the CUDA version that the image was built
    with.
    """

    present: bool
    architecture: str | None = None
    digests: list[str] = Field(default_factory=list)
    cuda: str | None = None


class Smoke(Section):
    """A container that was started on the GPU from the recipe's image.

    Attributes:
        ok: whether it ended well.
        output: the last lines that it or Docker wrote.
        ptxas: version of the `ptxas` that Triton finds in it.
        torch_cuda: CUDA that its torch was built with.
        archs: GPU targets that its torch holds code for, such as `sm_120`.
    """

    ok: bool
    output: str = ""
    ptxas: str | None = None
    torch_cuda: str | None = None
    archs: list[str] = Field(default_factory=list)


class Registry(Section):
    """Registries that Docker's own configuration holds a login for. Names only."""

    logins: list[str] = Field(default_factory=list)
    store: bool = False


class Hub(Section):
    """Hugging Face's hub.

    Attributes:
        token: where a token was found; None where there is none.
        valid: whether the hub knows it.
        access: HTTP status that each repository answers with.
        offline: why the hub was not asked.
        skew_s: how far this clock is ahead of the hub's, in seconds.
    """

    token: str | None = None
    valid: bool | None = None
    access: dict[str, int] = Field(default_factory=dict)
    offline: str | None = None
    skew_s: float | None = None


class Store(Section):
    """The model store: the folder that HF_HOME names, or ~/vllm.

    Attributes:
        foreign: how many of its files belong to somebody else, with one of them as an example.
        staged_gb: what of the recipe's weights is there already, in GB.
        broken: files whose size contradicts their own header, or whose hash is not what it should
            be.
        revisions: repository → commit that is staged.
        digest: hash over names and sizes of the recipe's files, to compare nodes with.
    """

    path: str
    exists: bool
    writable: bool | None = None
    free_bytes: int | None = None
    foreign: int = 0
    example: str | None = None
    staged_gb: float = 0
    unfinished: int = 0
    broken: list[str] = Field(default_factory=list)
    revisions: dict[str, str] = Field(default_factory=dict)
    digest: str | None = None
    docker_free_bytes: int | None = None


class Port(Section):
    """Who listens on the recipe's port; None: nobody."""

    number: int
    owner: str | None = None


class Limits(Section):
    """Limits of this user. Sizes in bytes; -1 is unlimited.

    Attributes:
        shm_bytes, shm_free_bytes: `/dev/shm`.
        memlock_bytes, nofile: hard limits.
        remove_ipc: logind's RemoveIPC, which is on unless it is switched off.
        linger: whether the user's services outlive the session.
        earlyoom: its arguments; None where it does not run.
    """

    shm_bytes: int | None = None
    shm_free_bytes: int | None = None
    memlock_bytes: int | None = None
    nofile: int | None = None
    remove_ipc: bool | None = None
    linger: bool | None = None
    earlyoom: str | None = None


class Time(Section):
    """Whether the clock is kept by a time server."""

    synchronized: bool | None = None


class Python(Section):
    """vLLM installed on the host itself, without a container. `packages` are those that matter,
    with their versions.
    """

    vllm: str | None = None
    packages: dict[str, str] = Field(default_factory=dict)
    nvcc: str | None = None
    import_error: str | None = None


class Link(Section):
    """A network interface. `speed` is in Mbit/s."""

    name: str
    up: bool
    speed: int | None = None
    mtu: int | None = None
    addresses: list[str] = Field(default_factory=list)


class Rdma(Section):
    """A port of an RDMA adapter.

    Attributes:
        link: the network interface it belongs to, as `ibdev2netdev` shows it.
        gids: index → its type and address, `RoCE v2 192.168.100.1`; empty ones left out.
    """

    name: str
    active: bool
    link: str | None = None
    mtu: int | None = None
    gids: dict[int, str] = Field(default_factory=dict)


class Network(Section):
    """Interfaces, RDMA ports, and the variables by which NCCL, Gloo, Ray and vLLM choose among
    them.
    """

    links: list[Link] = Field(default_factory=list)
    rdma: list[Rdma] = Field(default_factory=list)
    default: str | None = None
    env: dict[str, str] = Field(default_factory=dict)


class Machine(Section):
    """One machine.

    Attributes:
        name: host name, to tell nodes apart.
        seconds: how long each probe took.
        unread: probes that could not be made, and why.
    """

    name: str = "this machine"
    system: System
    wanted: Wanted = Field(default_factory=Wanted)
    gpu: Gpu = Field(default_factory=Gpu)
    load: Load | None = None
    memory: MemorySeen | None = None
    processes: list[Process] = Field(default_factory=list)
    docker: Docker = Field(default_factory=Docker)
    image: Image | None = None
    smoke: Smoke | None = None
    registry: Registry | None = None
    hub: Hub | None = None
    store: Store | None = None
    port: Port | None = None
    limits: Limits | None = None
    time: Time | None = None
    python: Python | None = None
    network: Network | None = None
    seconds: dict[str, float] = Field(default_factory=dict)
    unread: dict[str, str] = Field(default_factory=dict)

    @property
    def is_spark(self) -> bool:
        """Whether a GB10 is in it."""
        return any("GB10" in name for name in self.gpu.names)

    def changed(self, change: dict[str, Any]) -> Machine:
        """Return this machine with some values replaced; null sets a value back to its default,
        mostly "not known".

        Raises:
            SparkbookError: the change names something that no probe reads.
        """
        return _validated(merged(self.model_dump(), change), "the change")


def merged(base: Any, change: Any) -> Any:
    """Return a mapping with another laid over it, level by level; null takes an entry away,
    everything else is replaced.
    """
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    kept = dict(base) if isinstance(base, dict) else {}
    for key, value in change.items():
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = merged(kept.get(key), value)
    return kept


def read_machine(text: str, where: str) -> Machine:
    """Return a machine out of YAML or JSON: the probes alone, or the answer of `sparkbook check
    --json`.

    Raises:
        SparkbookError: the text holds no machine.
    """
    with limits.naming(where):
        value = documents.parse(text)
    if isinstance(value, dict) and "probes" in value:
        value = value["probes"]
    return _validated(value, where)


def _validated(value: Any, where: str) -> Machine:
    try:
        return Machine.model_validate(value)
    except ValidationError as error:
        raise SparkbookError(
            f"{where} is not what the probes of a machine look like: {invalid.reason(error)}"
        ) from None


@functools.cache
def _recorded() -> dict[str, Any]:
    return own_yaml.read(RECORDED)


def recorded(name: str = "healthy") -> Machine:
    """Return a machine from public reports, to judge before one has a Spark: see `recorded.yaml`.

    Raises:
        SparkbookError: there is none of this name.
    """
    machines = _recorded()
    if name not in machines:
        raise SparkbookError(
            f"no machine '{name}' is recorded; there are {', '.join(sorted(machines))}"
        )
    return _validated(machines[name], f"the recorded machine '{name}'")
