"""1xx: each node by itself."""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.cluster.family import FAB, IFNAMES, RAMSEY, SLOW
from sparkbook.cluster.sighting import Seen, example, gbit, good, links, rdma
from sparkbook.rules import Hit
from sparkbook.util.shell_text import command_line

_RDMA_MTU = 4096

_ADD_ADDRESS = ("sudo", "ip", "addr", "add")
_PAUSE, _PAUSE_ON = ("sudo", "ethtool", "-A"), ("rx", "on", "tx", "on")


@FAB.rule(
    "FAB101",
    "node-unreachable",
    "error",
    source="https://github.com/NVIDIA/dgx-spark-playbooks",
    passes=good,
    fails=lambda: example(b={"problem": "ssh: connect to host spark-2 port 22: No route to host"}),
)
def unreachable(seen: Seen) -> Iterator[Hit]:
    """A node that does not answer can't be looked at, staged or started. `sparkbook` asks over SSH
    without a password, so a key that is not known there looks the same as a machine that is off;
    the words of ssh tell which.
    """
    for node, site in zip(seen.inventory.nodes, seen.sites, strict=True):
        if site.problem:
            how = command_line("ssh", node.ssh, "true") if node.ssh else "its own shell"
            yield Hit(
                f"{node.host} can't be reached.",
                site.problem,
                f"Try by hand: {how}; with a new host:"
                f" {command_line('ssh-copy-id', node.ssh or node.host)}.",
            )


@FAB.rule(
    "FAB102",
    "interface-not-up",
    "error",
    kind="multi-node-interface",
    source=IFNAMES,
    passes=good,
    fails=lambda: example(node={"interface": "enP2p1s0f1np1"}),
)
def interface(seen: Seen) -> Iterator[Hit]:
    """Two Sparks that look alike can name the same port differently, and only one of the names is
    up on each. A name from the other node ends the start with *Unable to find address for* (Gloo),
    or with a worker that never joins.
    """
    for at, (node, site) in enumerate(seen.nodes):
        if twin := [
            other.host
            for _, other in seen.nodes[:at]
            if site.address and other.address == site.address
        ]:
            yield Hit(
                f"{node.host} and {twin[0]} have the same address.",
                str(site.address),
                "Give each node its own address in the inventory.",
            )
        link, here = (
            site.link,
            ", ".join(
                f"{one.name} {'up' if one.up else 'down'} {' '.join(one.addresses)}"
                for one in site.network.links
            ),
        )
        if site.interface and link is None:
            yield Hit(
                f"{node.host} has no port {site.interface}.",
                f"there are {here}",
                "Leave interface out, and it is found by the address.",
            )
        elif link and not link.up:
            yield Hit(
                f"{link.name} of {node.host} is down.",
                f"there are {here}",
                "Plug in the cable, or run"
                f" `{command_line('sudo', 'ip', 'link', 'set', link.name, 'up')}`.",
            )
        elif node.address and node.address not in [
            address for one in site.network.links for address in one.addresses
        ]:
            yield Hit(
                f"{node.host} does not have the address {node.address}.",
                f"there are {here}",
                "Correct the inventory, or run"
                f" `{command_line(*_ADD_ADDRESS, f'{node.address}/24', 'dev', 'PORT')}`.",
            )
        elif link and site.address not in link.addresses:
            yield Hit(
                f"{link.name} of {node.host} has no address {site.address}.",
                f"there are {here}",
                "Name the port that has the address.",
            )


@FAB.rule(
    "FAB103",
    "slow-network-chosen",
    "error",
    kind="multi-node-interface",
    source="https://github.com/eugr/spark-vllm-docker/issues/227",
    passes=good,
    fails=lambda: example(node={"address": "192.168.1.22"}),
)
def slow_network(seen: Seen) -> Iterator[Hit]:
    """The office network is the default route, so Ray, Gloo and NCCL take it unless they are set
    otherwise; the fast link then stays idle. The guide's figure is a factor of 10 to 20 in
    throughput.
    """
    for node, site in seen.nodes:
        link = site.link
        fast = [
            one
            for one in site.network.links
            if one.up
            and one.addresses
            and link
            and (one.speed or 0) >= 4 * (link.speed or one.speed or 1)
        ]
        if link and fast:
            best = max(fast, key=lambda one: one.speed or 0)
            yield Hit(
                f"{node.host} takes part with {link.name} ({gbit(link.speed)}), and {best.name}"
                f" ({gbit(best.speed)}) is up.",
                f"address {site.address}; {best.name} has {', '.join(best.addresses)}",
                f"Give {node.host} the address {best.addresses[0]} in the inventory.",
            )


@FAB.rule(
    "FAB104",
    "link-below-its-rate",
    "warning",
    kind="multi-node-rdma",
    source=SLOW,
    passes=good,
    fails=lambda: example(
        b=links({"enp1s0f0np0": {"speed": 1000}, "enP2p1s0f0np0": {"up": False, "addresses": []}})
    ),
)
def link_rate(seen: Seen) -> Iterator[Hit]:
    """Tensor parallelism exchanges data for every layer of every token: over 1 GbE four Sparks gave
    5 to 7 tokens/s. A link that came up at less than its rate mostly has the wrong cable, or a
    switch port that was not set.
    """
    for node, site in seen.nodes:
        if (
            site.link
            and site.link.speed
            and site.link.speed < 0.9 * 1000 * seen.inventory.link_gbit
        ):
            yield Hit(
                f"{site.link.name} of {node.host} runs at {gbit(site.link.speed)} of"
                f" {seen.inventory.link_gbit:g}.",
                f"address {site.address}",
                "Look at cable and switch port (ethtool); over a slow network use pipeline"
                " parallelism (--layout pp=2), or set link_gbit.",
            )


@FAB.rule(
    "FAB105",
    "one-rail-of-two",
    "warning",
    kind="multi-node-rdma",
    source=RAMSEY,
    passes=good,
    confidence="medium",
    fails=lambda: example(b=rdma({"roceP2p1s0f0": {"active": False}})),
)
def rails(seen: Seen) -> Iterator[Hit]:
    """One QSFP port of a Spark is wired to two PCIe links and shows as two devices, each good for
    about half of the 200 Gbit/s. With one of them down, or without an address, NCCL has half the
    bandwidth.
    """
    for node, site in seen.nodes:
        twins = [
            port
            for port in site.network.rdma
            if _twin(port.name) in {_twin(up.name) for up in site.rails}
        ]
        if down := [port.name for port in twins if not port.active]:
            yield Hit(
                f"{node.host} has one of two rails: {', '.join(down)} is down.",
                f"up: {', '.join(port.name for port in site.rails)}",
                "Bring up the port next to it, with an address of another subnet (ibdev2netdev"
                " shows the pairs).",
            )


def _twin(name: str) -> str:
    """Return what the two devices of one QSFP port have in common: rocep1s0f0 and roceP2p1s0f0 are
    both function 0.
    """
    return name[-2:]


@FAB.rule(
    "FAB106",
    "gid-index",
    "error",
    kind="multi-node-rdma",
    source="https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/30",
    passes=good,
    fails=lambda: example(node={"gid_index": 5}),
)
def gid(seen: Seen) -> Iterator[Hit]:
    """Which index holds the RoCE v2 address depends on how many addresses the port has: 3 on one
    pair of Sparks, 5 on another. With a wrong one NCCL does not come up.
    """
    for node, site in seen.nodes:
        for port in site.rails if node.gid_index is not None else ():
            entry = port.gids.get(node.gid_index or 0, "empty")
            if port.name in site.hcas and not (entry.startswith("RoCE v2") and "." in entry):
                right = [
                    str(number)
                    for number, text in sorted(port.gids.items())
                    if text.startswith("RoCE v2") and "." in text
                ]
                yield Hit(
                    f"Index {node.gid_index} is not a RoCE v2 address of {port.name} on"
                    f" {node.host}.",
                    f"index {node.gid_index}: {entry}; usable: {', '.join(right) or 'none'}",
                    "Leave gid_index out: it is looked up on each node.",
                )


@FAB.rule(
    "FAB107",
    "hca-not-active",
    "error",
    kind="multi-node-rdma",
    source="https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/pull/10",
    passes=good,
    fails=lambda: example(node={"hca": "rocep1s0f0,rocep1s0f1"}),
)
def hca(seen: Seen) -> Iterator[Hit]:
    """One list of adapters for all nodes names devices that are absent or down on some of them;
    NCCL then falls back to a wrong address and fails with *invalid usage* in `ncclCommInitRank`.
    """
    for node, site in seen.nodes:
        active = [port.name for port in site.rails]
        wrong = [
            name
            for name in (node.hca or "").split(",")
            if name and name.split(":")[0] not in active
        ]
        if wrong:
            yield Hit(
                f"{', '.join(wrong)} is not active on {node.host}.",
                f"active: {', '.join(active) or 'none'}",
                "Leave hca out.",
            )


@FAB.rule(
    "FAB108",
    "small-rdma-packets",
    "warning",
    kind="multi-node-rdma",
    source="https://github.com/0xSero/local-ai-registry/pull/55",
    passes=good,
    confidence="low",
    fails=lambda: example(b=rdma({"rocep1s0f0": {"mtu": 1024}})),
)
def rdma_mtu(seen: Seen) -> Iterator[Hit]:
    """An interface with an MTU of 1500 leaves RoCE an `active_mtu` of 1024. Four Sparks in that
    state had 40 % less prefill than published; that this was the cause is not proven.
    """
    for node, site in seen.nodes:
        small = [
            f"{port.name}: {port.mtu}"
            for port in site.rails
            if port.mtu is not None and port.mtu < _RDMA_MTU
        ]
        if small:
            yield Hit(
                f"RDMA packets of {node.host} are small.",
                "active_mtu " + ", ".join(small),
                "Run `sudo ip link set PORT mtu 9000` on every node.",
            )


@FAB.rule(
    "FAB109",
    "no-flow-control",
    "warning",
    kind="multi-node-rdma",
    source=RAMSEY,
    passes=good,
    confidence="medium",
    fails=lambda: example(b={"pause": False}),
)
def flow_control(seen: Seen) -> Iterator[Hit]:
    """RoCE resends a whole window for one lost packet, so a switch without flow control leaves
    little of the link: about 2.5 of 200 Gbit/s were reported, with an MTU of 1500. On a direct
        cable it matters less.
    """
    for node, site in seen.nodes:
        if site.pause is False:
            yield Hit(
                f"Pause frames are off on {site.interface} of {node.host}.",
                "ethtool -a",
                f"Run `{command_line(*_PAUSE, site.interface, *_PAUSE_ON)}`; on the switch too.",
            )


@FAB.rule(
    "FAB110",
    "kernel-keeps-cma",
    "error",
    kind="multi-node-rdma",
    passes=good,
    source="https://github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/259",
    fails=lambda: example(
        b={"kernel": "7.0.0-1019-nvidia", "cma_total_kb": 0, "cma_free_kb": 940604}
    ),
)
def kernel_cma(seen: Seen) -> Iterator[Hit]:
    """Some 7.0 kernels keep memory for kexec handover that RDMA then can't pin:
    `ibv_reg_mr … Cannot allocate memory`, with memory free, ports active and memlock unlimited. The
    sign is a `CmaFree` greater than `CmaTotal`.
    """
    for node, site in seen.nodes:
        if (
            site.cma_free_kb is not None
            and site.cma_total_kb is not None
            and site.cma_free_kb > site.cma_total_kb
        ):
            yield Hit(
                f"The kernel of {node.host} can't register memory for RDMA.",
                f"{site.kernel}: CmaTotal {site.cma_total_kb} kB, CmaFree {site.cma_free_kb} kB",
                "Boot with kho=off (where kexec_crash_size is 0), or boot a 6.17 kernel.",
            )


@FAB.rule(
    "FAB111",
    "container-without-rdma",
    "error",
    kind="multi-node-docker",
    passes=good,
    source="https://corti.com/serving-nemotron-super-120b-with-a-1m-token-context-on-a-2-node-dgx-spark-cluster/",
    fails=lambda: example(b={"infiniband": False}),
)
def rdma_device(seen: Seen) -> Iterator[Hit]:
    """A container talks RDMA only with `/dev/infiniband`, the capability IPC_LOCK and an unlimited
    memlock, on every node. `serve --cluster` adds all three where the node has the device; where it
    has adapters but no device, the modules are not loaded.
    """
    for node, site in seen.nodes:
        if site.network.rdma and site.infiniband is False:
            names = ", ".join(port.name for port in site.network.rdma)
            yield Hit(
                f"{node.host} has RDMA adapters and no /dev/infiniband.",
                names,
                "Run `sudo modprobe ib_uverbs rdma_ucm`, and at every boot.",
            )


@FAB.rule(
    "FAB112",
    "remove-ipc",
    "warning",
    kind="host-ipc",
    source="https://github.com/eugr/spark-vllm-docker/issues/352",
    passes=good,
    fails=lambda: example(b={"remove_ipc": True}),
)
def remove_ipc(seen: Seen) -> Iterator[Hit]:
    """systemd-logind removes a user's objects in `/dev/shm` when the last session ends. A rank that
    was started over SSH, with the host's IPC, loses them when that connection closes:
    `SemLock … FileNotFoundError`, minutes after a healthy start.
    """
    if hosts := [node.host for node, site in seen.nodes if site.remove_ipc and node.ssh]:
        yield Hit(
            f"The service logind removes shared memory at logout on {', '.join(hosts)}.",
            "RemoveIPC=yes",
            "Set RemoveIPC=no in logind.conf, or run `loginctl enable-linger $USER`.",
        )
