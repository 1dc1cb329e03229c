"""The network between Sparks, on one of them."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.host.family import Unknown, check
from sparkbook.host.machine import Machine, Network
from sparkbook.rules import Hit
from sparkbook.util.shell_text import command_line, export_line

_FAST_MBIT = 100_000
_IFNAMES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def _network(machine: Machine) -> Network:
    if machine.network is None:
        raise Unknown("it was not read")
    if machine.wanted.nodes < 2 and not machine.network.env:
        raise Unknown("one Spark needs no other: name a recipe for several")
    return machine.network


@check("interfaces", probe="network")
def interfaces(machine: Machine) -> str:
    links = [link for link in _network(machine).links if link.up]
    return ", ".join(f"{link.name} {link.speed or '?'} Mbit/s" for link in links) or "none is up"


def _state(network: Network, variable: str, name: str) -> str | None:
    """Return why a variable names an interface that is of no use; None: it is one that is up."""
    # NCCL takes the names as beginnings: enp1 means enp1s0f0np0 as well.
    prefix = variable.startswith("NCCL")
    there = [
        link
        for link in network.links
        if link.name == name or (prefix and link.name.startswith(name))
    ]
    if any(link.up for link in there):
        return None
    return "is down" if there else "does not exist"


@interfaces.rule(
    "HOST080",
    "interface-not-here",
    "error",
    kind="multi-node-interface",
    source="https://github.com/vllm-project/vllm/pull/40991",
    fix="Set it on each node to the name that ip -br address shows for the fast link.",
    fails={"wanted": {"nodes": 2}, "network": {"env": {"GLOO_SOCKET_IFNAME": "enP2p1s0f1np1"}}},
    passes={
        "wanted": {"nodes": 2},
        "network": {"env": {"GLOO_SOCKET_IFNAME": "enp1s0f0np0", "VLLM_HOST_IP": "192.168.100.1"}},
    },
)
def interface_not_here(machine: Machine) -> Iterator[Hit]:
    """Two Sparks that look alike can name the same port differently, so `NCCL_SOCKET_IFNAME`,
    `GLOO_SOCKET_IFNAME` and `TP_SOCKET_IFNAME` are set for each node.
    """
    network = _network(machine)
    for variable in _IFNAMES:
        value = network.env.get(variable, "")
        if value.startswith("^"):
            continue
        for name in filter(None, value.lstrip("=").split(",")):
            state = _state(network, variable, name)
            if state:
                yield Hit(
                    f"{variable} names {name}, which {state} on {machine.name}.",
                    f"here: {', '.join(sorted(link.name for link in network.links))}",
                )


@interfaces.rule(
    "HOST081",
    "address-of-the-slow-network",
    "warning",
    kind="multi-node-interface",
    source="https://github.com/eugr/spark-vllm-docker/issues/227",
    fails={"wanted": {"nodes": 2}},
    passes={"wanted": {"nodes": 2}, "network": {"env": {"VLLM_HOST_IP": "192.168.100.1"}}},
)
def address_of_the_slow_network(machine: Machine) -> Iterator[Hit]:
    """Without a word to the contrary Ray and vLLM take the address of the default route, which is
    the office network. The fast link then stays idle, or the nodes never find each other.
    """
    network = _network(machine)
    address = network.env.get("VLLM_HOST_IP")
    fast: set[str] = set()
    for link in network.links:
        if (link.speed or 0) >= _FAST_MBIT:
            fast.update(link.addresses)
    default = next((link for link in network.links if link.name == network.default), None)
    slow_default = default is not None and (default.speed or 0) < _FAST_MBIT
    if fast and address not in fast and (address or slow_default):
        taken = address or ", ".join(default.addresses if default else [])
        yield Hit(
            f"{machine.name} is known to the others as {taken}, an address of the slow network.",
            f"fast: {', '.join(sorted(fast))}",
            f"Run `{export_line('VLLM_HOST_IP', sorted(fast)[0])}` (Ray: --node-ip-address).",
        )


@check("fast link", probe="network")
def fast_link(machine: Machine) -> str:
    network = _network(machine)
    if machine.wanted.nodes < 2:
        raise Unknown("one Spark needs no other")
    fast = [link for link in network.links if link.up and (link.speed or 0) >= _FAST_MBIT]
    return ", ".join(f"{link.name} {(link.speed or 0) / 1000:.0f} Gbit/s" for link in fast) or (
        "none"
    )


@fast_link.rule(
    "HOST085",
    "no-fast-link",
    "error",
    kind="multi-node-rdma",
    source="https://huggingface.co/LibertAIDAI/GLM-5.3-Flash-NVFP4/discussions/5",
    fix=(
        "Plug in the QSFP cable and look at ibdev2netdev; over a slow network use pipeline"
        " parallelism."
    ),
    fails={
        "wanted": {"nodes": 2},
        "network": {
            "links": [
                {
                    "name": "enP7s7",
                    "up": True,
                    "speed": 1000,
                    "mtu": 1500,
                    "addresses": ["192.168.1.20"],
                },
                {"name": "enp1s0f0np0", "up": False, "mtu": 1500},
            ]
        },
    },
    passes={"wanted": {"nodes": 2}, "network": {"env": {"VLLM_HOST_IP": "192.168.100.1"}}},
)
def no_fast_link(machine: Machine) -> Iterator[Hit]:
    """Tensor parallelism exchanges data for every layer. Over 1 GbE four Sparks gave 5 to 7
    tokens/s.
    """
    if fast_link.look(machine) != "none":
        return
    network = _network(machine)
    ports = [port.link for port in network.rdma]
    seen = ", ".join(
        f"{link.name} {'up' if link.up else 'down'} {link.speed or '?'} Mbit/s"
        for link in network.links
        if link.name in ports
    )
    yield Hit(f"{machine.name} has no fast link that is up.", seen or "no RDMA port")


@check("RDMA ports", probe="network")
def rdma(machine: Machine) -> str:
    ports = _network(machine).rdma
    return (
        ", ".join(f"{p.name} ==> {p.link or '?'} ({'up' if p.active else 'down'})" for p in ports)
        or "none"
    )


@rdma.rule(
    "HOST082",
    "hca-not-here",
    "error",
    kind="multi-node-rdma",
    source="https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/pull/10",
    fix="Set NCCL_IB_HCA on each node to the ports that ibdev2netdev shows as Up, or leave it out.",
    fails={
        "wanted": {"nodes": 2},
        "network": {
            "env": {"NCCL_IB_HCA": "rocep1s0f0,rocep1s0f1", "VLLM_HOST_IP": "192.168.100.1"}
        },
    },
    passes={
        "wanted": {"nodes": 2},
        "network": {
            "env": {"NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0", "VLLM_HOST_IP": "192.168.100.1"}
        },
    },
)
def hca_not_here(machine: Machine) -> Iterator[Hit]:
    """One list of adapters for all nodes names ports that are absent or down on some, and NCCL
    falls back to a wrong address: `invalid usage` from `ncclCommInitRank`.
    """
    # ^name: all but it; =name: exactly; a number after a colon is the port.
    ports = _network(machine).rdma
    value = _network(machine).env.get("NCCL_IB_HCA", "")
    if value.startswith("^"):
        return
    exact = value.startswith("=")
    for word in filter(None, value.lstrip("=").split(",")):
        name = word.split(":")[0]
        there = [p for p in ports if p.name == name or (not exact and p.name.startswith(name))]
        if any(port.active for port in there):
            continue
        state = "is down" if there else "does not exist"
        active = ", ".join(sorted(port.name for port in ports if port.active)) or "none"
        yield Hit(
            f"NCCL_IB_HCA names {name}, which {state} on {machine.name}.", f"active: {active}"
        )


def _is_roce_v2(gid: str) -> bool:
    return gid.startswith("RoCE v2") and "." in gid


@rdma.rule(
    "HOST083",
    "gid-index",
    "error",
    kind="multi-node-rdma",
    source="https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/30",
    fix=(
        "Leave NCCL_IB_GID_INDEX out, or look it up on each node under"
        " /sys/class/infiniband/*/ports/1/gids."
    ),
    fails={
        "wanted": {"nodes": 2},
        "network": {"env": {"NCCL_IB_GID_INDEX": "5", "VLLM_HOST_IP": "192.168.100.1"}},
    },
    passes={
        "wanted": {"nodes": 2},
        "network": {"env": {"NCCL_IB_GID_INDEX": "3", "VLLM_HOST_IP": "192.168.100.1"}},
    },
)
def gid_index(machine: Machine) -> Iterator[Hit]:
    """Which index holds the RoCE v2 address depends on how many addresses each port has: 3 on one
    pair of Sparks, 5 on another.
    """
    index = _network(machine).env.get("NCCL_IB_GID_INDEX", "")
    if not index.isdigit():
        return
    for port in _network(machine).rdma:
        gid = port.gids.get(int(index), "empty")
        if not port.active or _is_roce_v2(gid):
            continue
        usable = [str(number) for number, one in sorted(port.gids.items()) if _is_roce_v2(one)]
        yield Hit(
            f"NCCL_IB_GID_INDEX={index} is not a RoCE v2 address of {port.name} on {machine.name}.",
            f"index {index}: {gid}; usable: {', '.join(usable) or 'none'}",
        )


@check("MTU", probe="network")
def mtu(machine: Machine) -> str:
    active = [port for port in _network(machine).rdma if port.active]
    if not active:
        raise Unknown("no RDMA port is active")
    return ", ".join(f"{port.name} {port.mtu}" for port in active)


@mtu.rule(
    "HOST084",
    "small-packets",
    "warning",
    kind="multi-node-rdma",
    confidence="low",
    source="https://github.com/0xSero/local-ai-registry/pull/55",
    fails={
        "wanted": {"nodes": 2},
        "network": {
            "env": {"VLLM_HOST_IP": "192.168.100.1"},
            "rdma": [
                {
                    "name": "rocep1s0f0",
                    "active": True,
                    "link": "enp1s0f0np0",
                    "mtu": 1024,
                    "gids": {3: "RoCE v2 192.168.100.1"},
                }
            ],
        },
    },
    passes={"wanted": {"nodes": 2}, "network": {"env": {"VLLM_HOST_IP": "192.168.100.1"}}},
)
def small_packets(machine: Machine) -> Iterator[Hit]:
    """An interface with an MTU of 1500 leaves RoCE an `active_mtu` of 1024. A four-node setup in
    that state had 40 % less prefill than published; that this is the cause was not proven.
    """
    network = _network(machine)
    mtus = {link.name: link.mtu for link in network.links}
    active = [port for port in network.rdma if port.active]
    small = []
    for port in active:
        outer = mtus.get(port.link or "")
        if (port.mtu is not None and port.mtu < 4096) or (outer is not None and outer < 9000):
            small.append(
                f"{port.name}: active_mtu {port.mtu}, {port.link}: mtu"
                f" {'?' if outer is None else outer}"
            )
    if small:
        device = active[0].link or "DEVICE"
        yield Hit(
            f"The fast link of {machine.name} carries small packets.",
            "; ".join(small),
            f"Run `{command_line('sudo', 'ip', 'link', 'set', device, 'mtu', 9000)}` on both ends.",
        )
