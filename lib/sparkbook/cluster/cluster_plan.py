"""What is started where: the layout of the model over the nodes, and each rank's own launch. Pure,
so that a dry run shows it all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sparkbook.cluster.inventory import Inventory, Layout, Node
from sparkbook.cluster.nodes import Site
from sparkbook.errors import SparkbookError
from sparkbook.recipes.launch import Launch
from sparkbook.serve.stack import Stack
from sparkbook.util.shell_text import script_line

BACKENDS = ("native", "ray")
_SPREAD = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")
_DATA_PORT = 13345


@dataclass(frozen=True)
class Rank:
    """One process or container of the server.

    Attributes:
        number: 0 is the head, which answers the clients.
        node, name: where it runs, and what it is called there.
        launch: what is started.
        instead: in a process engine, what is run in place of vLLM: Ray's daemon.
        rdma: whether its container is to reach the RDMA devices, which NCCL needs for more than the
            memory that it may pin.
    """

    number: int
    node: Node
    name: str
    launch: Launch
    instead: tuple[str, ...] | None = None
    rdma: bool = False

    def docker_line(self) -> str:
        """Return the start of its container as a docker line, to be typed on its node.

        Raises:
            SparkbookError: it is no container.
        """
        from sparkbook.formats import docker_run

        options = {"--device": ["/dev/infiniband"], "--cap-add": ["IPC_LOCK"]} if self.rdma else {}
        return docker_run.write(self.launch, options)


@dataclass(frozen=True)
class ClusterPlan:
    """A server over several nodes.

    Attributes:
        stack: what is served.
        layout: how it is spread.
        ranks: in the order of the nodes. They are started from the last to the first, so that the
            head finds the others waiting.
    """

    stack: Stack
    inventory: Inventory
    layout: Layout
    backend: str
    ranks: tuple[Rank, ...]

    @property
    def head(self) -> Rank:
        """The rank that answers."""
        return next(rank for rank in self.ranks if rank.number == 0 and rank.instead is None)


def layout_of(launch: Launch, inventory: Inventory, wanted: Layout | None = None) -> Layout:
    """Return how a model is spread over a cluster: as wanted, else as the launch says, else tensor
    parallel over all GPUs.

    Raises:
        SparkbookError: it does not use exactly the GPUs that there are.
    """
    values = [launch.serve.args.get(name, 1) for name in _SPREAD]
    sizes = [size for size in values if isinstance(size, int) and size > 0]
    given = (
        Layout(tensor=sizes[0], pipeline=sizes[1], data=sizes[2])
        if len(sizes) == len(_SPREAD)
        else Layout()
    )
    layout = wanted or (given if given.gpus > 1 else Layout(tensor=inventory.gpus))
    if layout.gpus != inventory.gpus:
        raise SparkbookError(
            f"{layout} needs {layout.gpus} GPUs and {inventory.name} has {inventory.gpus} on"
            f" {len(inventory.nodes)} nodes: choose another layout, such as tp={inventory.gpus}, or"
            " an inventory with as many"
        )
    if layout.data > 1 and layout.tensor * layout.pipeline != inventory.nodes[0].gpus:
        raise SparkbookError(
            f"{layout}: with replicas, each must fill one node ({inventory.nodes[0].gpus} GPUs);"
            " replicas of several nodes are servers of their own, each with its own inventory"
        )
    return layout


def parse_layout(text: str) -> Layout:
    """Return a layout from `tp=2,pp=1,dp=1`.

    Raises:
        SparkbookError: it is none.
    """
    found = re.fullmatch(r"(?:(?:tp|pp|dp)=[1-9]\d{0,3})(?:,(?:tp|pp|dp)=[1-9]\d{0,3}){0,2}", text)
    pairs = [part.split("=") for part in text.split(",")] if found else []
    if not pairs or len({name for name, _ in pairs}) < len(pairs):
        raise SparkbookError(f"'{text}' is no layout: write tp=2, or tp=2,pp=2, or dp=2")
    sizes = {name: int(size) for name, size in pairs}
    return Layout(tensor=sizes.get("tp", 1), pipeline=sizes.get("pp", 1), data=sizes.get("dp", 1))


def plan(
    inventory: Inventory,
    stack: Stack,
    sites: Sequence[Site],
    *,
    layout: Layout | None = None,
    backend: str = "native",
    port: int | None = None,
) -> ClusterPlan:
    """Return what is started on each node.

    Args:
        inventory, sites: the nodes, and what they turned out to be. A node that was not looked at
            takes part with what the inventory says.
        stack: what to serve.
        layout: None takes the launch's own, or tensor parallelism over all GPUs.
        backend: `native` (vLLM's own ranks) or `ray`.
        port: port of the head for clients.

    Raises:
        SparkbookError: it can't be spread so.
    """
    if backend not in BACKENDS:
        raise SparkbookError(
            f"'{backend}' is not a way to start a cluster: choose {' or '.join(BACKENDS)}"
        )
    if len(inventory.nodes) < 2:
        raise SparkbookError(
            f"the inventory {inventory.name} has one node: on that node, use sparkbook serve"
        )
    spread = layout_of(stack.launch, inventory, layout)
    if backend == "ray" and spread.data > 1:
        raise SparkbookError("replicas need no Ray: leave out --backend ray")
    head = sites[0].address or inventory.head.address
    if head is None:
        raise SparkbookError(
            f"the address of the head is not known: give {inventory.head.host} an address in the"
            " inventory"
        )
    make = _ray if backend == "ray" else _native
    ranks = []
    for number, (node, site) in enumerate(zip(inventory.nodes, sites, strict=True)):
        base = _base(stack, node, site, port)
        made = make(inventory, stack, node, number, base, spread, head)
        ranks += [
            replace(rank, rdma=bool(rank.launch.image) and site.infiniband is not False)
            for rank in made
        ]
    return ClusterPlan(stack, inventory, spread, backend, tuple(ranks))


def _base(stack: Stack, node: Node, site: Site, port: int | None) -> Launch:
    """Return the stack's launch as one node of a cluster runs it: the host's network, access to
    RDMA, and the node's own names.
    """
    launch = stack.launch
    args = {name: value for name, value in launch.serve.args.items() if name not in _SPREAD}
    args["port"] = port or launch.port
    env = {**launch.env, **site.environment(), **node.env}
    container = launch.container
    if launch.image:
        pinned = {} if site.infiniband is False else {"memlock": "-1"}  # RDMA pins memory
        container = container.model_copy(
            update={
                "network": "host",
                "ports": [],
                "ipc": container.ipc or "host",
                "ulimits": {**container.ulimits, **pinned},
                "name": None,
            }
        )
    serve = launch.serve.model_copy(update={"args": args})
    return launch.model_copy(update={"serve": serve, "env": env, "container": container})


def _with(launch: Launch, env: dict[str, str] | None = None, **args: object) -> Launch:
    serve = launch.serve.model_copy(
        update={
            "args": {
                **launch.serve.args,
                **{name.replace("_", "-"): value for name, value in args.items()},
            }
        }
    )
    return launch.model_copy(update={"serve": serve, "env": {**launch.env, **(env or {})}})


def _sizes(spread: Layout) -> dict[str, int]:
    named = {"tensor_parallel_size": spread.tensor, "pipeline_parallel_size": spread.pipeline}
    return {name: size for name, size in named.items() if size > 1}


def _apart(base: Launch) -> dict[str, str]:
    """Return the variable that puts the engine into a process of its own, if the launch keeps it in
    the API server, which works with one process only.
    """
    return (
        {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
        if "VLLM_ENABLE_V1_MULTIPROCESSING" in base.env
        else {}
    )


def _native(
    inventory: Inventory,
    stack: Stack,
    node: Node,
    number: int,
    base: Launch,
    spread: Layout,
    head: str,
) -> list[Rank]:
    if spread.data > 1:
        per_node = node.gpus // (spread.tensor * spread.pipeline)
        args: dict[str, object] = {
            "data_parallel_size": spread.data,
            "data_parallel_size_local": per_node,
            "data_parallel_address": head,
            "data_parallel_rpc_port": _DATA_PORT,
        }
        if number:
            args |= {"data_parallel_start_rank": number * per_node}
    else:
        args = {
            "distributed_executor_backend": "mp",
            "nnodes": len(inventory.nodes),
            "node_rank": number,
            "master_addr": head,
            "master_port": inventory.master_port,
        }
    args |= {
        name: size
        for name, size in (
            ("tensor_parallel_size", spread.tensor),
            ("pipeline_parallel_size", spread.pipeline),
        )
        if size > 1
    }
    if number:
        args["headless"] = True
    launch = _with(base, _apart(base), **args)
    if number:
        rest = {
            name: value for name, value in launch.serve.args.items() if name not in ("port", "host")
        }
        launch = launch.model_copy(update={"serve": launch.serve.model_copy(update={"args": rest})})
    return [Rank(number, node, f"{stack.name}-{node.host}", launch)]


def _ray(
    inventory: Inventory,
    stack: Stack,
    node: Node,
    number: int,
    base: Launch,
    spread: Layout,
    head: str,
) -> list[Rank]:
    # Ray takes weights and KV cache in the unified memory for the host's and would kill the workers
    # at 95 %. A node that joins asks every two seconds whether the head is there, and would give up
    # after twenty times: fewer than a busy head takes.
    env = {"RAY_memory_monitor_refresh_ms": "0", "RAY_NUM_REDIS_GET_RETRIES": "300"}
    own = base.env.get("VLLM_HOST_IP") or node.address or head
    daemon = [
        "start",
        "--head",
        f"--node-ip-address={own}",
        f"--port={inventory.ray_port}",
        "--include-dashboard=false",
    ]
    if number:
        daemon = ["start", f"--address={head}:{inventory.ray_port}", f"--node-ip-address={own}"]
    name = f"{stack.name}-{node.host}"
    base = _with(base, env)
    serving = _with(
        base,
        {"RAY_ADDRESS": f"{head}:{inventory.ray_port}", **_apart(base)},
        distributed_executor_backend="ray",
        **_sizes(spread),
    )
    if base.image is None:
        ranks = [Rank(number, node, f"{name}-ray", base, ("ray", *daemon, "--block"))]
        return [Rank(0, node, name, serving), *ranks] if number == 0 else ranks
    if number == 0:
        program = (
            'import ray,time; ray.init(address="auto"); \nwhile sum(n["Alive"] for n'
            f" in ray.nodes()) < {len(inventory.nodes)}: time.sleep(1)"
        )
        wait = script_line("python3", "-c", program)
        serve = serving.serve.model_copy(
            update={"before": [*serving.serve.before, script_line("ray", *daemon), wait]}
        )
        return [Rank(0, node, name, serving.model_copy(update={"serve": serve}))]
    script = script_line("exec", "ray", *daemon, "--block")
    container = base.container.model_copy(update={"entrypoint": "bash"})
    serve = base.serve.model_copy(update={"args": {}, "before": [], "command": ["-lc", script]})
    return [
        Rank(number, node, name, base.model_copy(update={"serve": serve, "container": container}))
    ]
