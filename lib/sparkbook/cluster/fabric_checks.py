"""What is wrong between several Sparks: one family of checks over what was read, measured, and
seen while a server ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sparkbook.cluster.fabric import Pair
from sparkbook.cluster.inventory import Inventory, Node
from sparkbook.cluster.nodes import Site, placed
from sparkbook.cluster.ranks import Judged, RankState, first_fallen
from sparkbook.rules import Family, Hit

_RDMA_MTU, _SMALL_RTT_US = 4096, 500.0
_ENOUGH = {"iperf3": 0.4, "nccl": 0.35, "python": 0.05}
"""Share of the link's rate below which a measurement is called slow. NVIDIA's guide shows 93 to 97
Gbit/s on each half of a Spark's port (https://github.com/NVIDIA/dgx-spark-playbooks/pull/108,
2026-08-24); a Python process fills far less than that by itself.
"""


@dataclass(frozen=True)
class Seen:
    """What the checks look at.

    Attributes:
        inventory, sites: the nodes as they were described, and as they are.
        pairs: what was measured between them.
        ranks: the ranks of a server, when one was seen to fall or not to get ready.
        cut: hosts that the head's node had no way to.
        waiting: what a server was still waiting for at its deadline.
        left: (host, name, why) of ranks that could not be taken down.
    """

    inventory: Inventory
    sites: Sequence[Site]
    pairs: Sequence[Pair] = ()
    ranks: Sequence[RankState] = ()
    cut: tuple[str, ...] = ()
    waiting: str | None = None
    left: tuple[tuple[str, str, str], ...] = ()

    @cached_property
    def nodes(self) -> list[tuple[Node, Site]]:
        """Nodes that answered."""
        return [
            (node, site)
            for node, site in zip(self.inventory.nodes, self.sites, strict=True)
            if site.problem is None
        ]

    @cached_property
    def first(self) -> Judged | None:
        """The rank that fell first."""
        return first_fallen(self.ranks)


# ---- examples: two Sparks put together from public reports, and what is changed about them


def example(
    b: dict[str, Any] | None = None,
    node: dict[str, Any] | None = None,
    both: dict[str, Any] | None = None,
    **seen: Any,
) -> Seen:
    """Two Sparks in good order, with changes.

    Args:
        b: of what the second one turned out to be.
        node: of its entry in the inventory.
        both: of what both turned out to be.
        seen: of what was measured or ran.
    """
    from sparkbook.host.machine import recorded

    network = recorded("healthy").network
    assert network is not None
    nodes, sites = [], []
    for number in (1, 2):
        text = (
            network.model_dump_json()
            .replace("192.168.100.1", f"192.168.100.{number}")
            .replace("192.168.1.20", f"192.168.1.2{number}")
        )
        entry = Node(
            host=f"spark-{number}",
            ssh=None if number == 1 else "me@spark-2",
            **({"address": f"192.168.100.{number}"} | (node or {}) if number == 2 else {}),
        )
        base = Site(
            host=entry.host,
            network=type(network).model_validate_json(text),
            kernel="6.17.0-1032-nvidia",
            memlock_bytes=-1,
            remove_ipc=False,
            infiniband=True,
            cma_total_kb=65536,
            cma_free_kb=61440,
            pause=True,
            image="sha256:1111",
            model="6f1c0b6a5d7e4f32",
            revision="2222",
        )
        base = Site.model_validate(
            base.model_dump() | (both or {}) | (b or {} if number == 2 else {})
        )
        # What is given as the port or address is what the node uses; the rest is found as on a real
        # one.
        nodes.append(entry)
        sites.append(base if base.problem or base.interface else placed(entry, base))
    return Seen(Inventory(nodes=nodes), sites, **seen)


def _described(seen: Seen) -> str:
    lines = []
    for node, site in zip(seen.inventory.nodes, seen.sites, strict=True):
        told = node.model_dump(exclude_defaults=True, exclude={"host", "ssh"})
        lines.append(
            f"{node.host}: "
            + (", ".join(f"{name} {value}" for name, value in told.items()) or "no fields given")
        )
        if site.problem:
            lines.append(f"  {site.problem}")
            continue
        lines += [
            f"  {link.name:<14} {'up' if link.up else 'down':<5} {_gbit(link.speed)}, mtu"
            f" {link.mtu}, {', '.join(link.addresses) or '-'}"
            + (
                f", pause frames {'on' if site.pause else 'off'}"
                if link.name == site.interface and site.pause is not None
                else ""
            )
            for link in site.network.links
        ]
        lines += [
            f"  {port.name:<14} {'ACTIVE' if port.active else 'DOWN':<6} of {port.link}, active_mtu"
            f" {port.mtu}, GIDs {port.gids}"
            for port in site.network.rdma
        ]
        lines.append(
            f"  kernel {site.kernel}, CmaTotal {site.cma_total_kb} kB, CmaFree {site.cma_free_kb}"
            f" kB, /dev/infiniband {'there' if site.infiniband else 'missing'}, memlock"
            f" {site.memlock_bytes}, RemoveIPC {'yes' if site.remove_ipc else 'no'}"
        )
        lines.append(f"  image {site.image}, model files {site.model} (revision {site.revision})")
    for pair in seen.pairs:
        told = pair.model_dump(exclude_none=True, exclude={"a", "b"})
        lines.append(
            f"{pair.a} to {pair.b}: " + ", ".join(f"{name} {value}" for name, value in told.items())
        )
    for state in seen.ranks:
        how = "runs" if state.running else f"ended with status {state.exit_status}"
        lines.append(f"rank {state.number} on {state.host}: {state.unreachable or how}")
        lines += [f"  {line}" for line in state.tail(3)]
    lines += [f"no way from the head to {host}" for host in seen.cut]
    lines += [seen.waiting] if seen.waiting else []
    lines += [f"{host}: {name} is not taken down: {why}" for host, name, why in seen.left]
    return "\n".join(lines)


FAB = Family(
    "FAB",
    "Several Sparks",
    intro=(
        "What `sparkbook check --cluster` and `sparkbook serve --cluster` report about the nodes,"
        " the network between them, and a server that runs over them. The examples are two Sparks"
        " put together from public reports, with what is changed about the second."
    ),
    describe=_described,
)
_GUIDE = "https://github.com/mark-ramsey-ri/vllm-dgx-spark"
_IFNAMES = "https://github.com/vllm-project/vllm/pull/40991"
_DEGRADED = "https://github.com/NVIDIA/dgx-spark-playbooks/pull/108"
_SLOW = "https://huggingface.co/LibertAIDAI/GLM-5.3-Flash-NVFP4/discussions/5"
_RAMSEY = "https://github.com/mark-ramsey-ri/vllm-dgx-spark/blob/main/improvements.md"


def good() -> Seen:
    """Two Sparks in good order."""
    return example()


# ---- 1xx: each node by itself


@FAB.rule(
    "FAB101",
    "node-unreachable",
    "error",
    source="https://github.com/NVIDIA/dgx-spark-playbooks",
    passes=good,
    fails=lambda: example(b={"problem": "ssh: connect to host spark-2 port 22: No route to host"}),
)
def unreachable(seen: Seen) -> Iterator[Hit]:
    """A node that does not answer can't be checked, staged or started. `sparkbook` asks over SSH
    without a password, so a key that is not known there looks the same as a machine that is off;
    ssh's message shows which.
    """
    for node, site in zip(seen.inventory.nodes, seen.sites, strict=True):
        if site.problem:
            how = f"ssh {node.ssh} true" if node.ssh else "its own shell"
            yield Hit(
                f"{node.host} can't be reached.",
                site.problem,
                f"Try by hand: {how}; with a new host: ssh-copy-id {node.ssh or node.host}.",
            )


@FAB.rule(
    "FAB102",
    "interface-not-up",
    "error",
    kind="multi-node-interface",
    source=_IFNAMES,
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
                f"Plug in the cable, or run `sudo ip link set {link.name} up`.",
            )
        elif node.address and node.address not in [
            address for one in site.network.links for address in one.addresses
        ]:
            yield Hit(
                f"{node.host} does not have the address {node.address}.",
                f"there are {here}",
                f"Correct the inventory, or run `sudo ip addr add {node.address}/24 dev PORT`.",
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
    """The office network is the default route, so Ray, Gloo and NCCL take it unless they are told
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
                f"{node.host} takes part with {link.name} ({_gbit(link.speed)}), and {best.name}"
                f" ({_gbit(best.speed)}) is up.",
                f"address {site.address}; {best.name} has {', '.join(best.addresses)}",
                f"Give {node.host} the address {best.addresses[0]} in the inventory.",
            )


def _gbit(speed: int | None) -> str:
    return f"{speed / 1000:g} Gbit/s" if speed else "speed unknown"


@FAB.rule(
    "FAB104",
    "link-below-its-rate",
    "warning",
    kind="multi-node-rdma",
    source=_SLOW,
    passes=good,
    fails=lambda: example(
        b=_links({"enp1s0f0np0": {"speed": 1000}, "enP2p1s0f0np0": {"up": False, "addresses": []}})
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
                f"{site.link.name} of {node.host} runs at {_gbit(site.link.speed)} of"
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
    source=_RAMSEY,
    passes=good,
    confidence="medium",
    fails=lambda: example(b=_rdma({"roceP2p1s0f0": {"active": False}})),
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
    """What the two devices of one QSFP port have in common: rocep1s0f0 and roceP2p1s0f0 are both
    function 0.
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
            told = port.gids.get(node.gid_index or 0, "empty")
            if port.name in site.hcas and not (told.startswith("RoCE v2") and "." in told):
                right = [
                    str(number)
                    for number, text in sorted(port.gids.items())
                    if text.startswith("RoCE v2") and "." in text
                ]
                yield Hit(
                    f"Index {node.gid_index} is not a RoCE v2 address of {port.name} on"
                    f" {node.host}.",
                    f"index {node.gid_index}: {told}; usable: {', '.join(right) or 'none'}",
                    "Leave gid_index out: sparkbook finds it on each node.",
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
    fails=lambda: example(b=_rdma({"rocep1s0f0": {"mtu": 1024}})),
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
    source=_RAMSEY,
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
                f"Run `sudo ethtool -A {site.interface} rx on tx on`; on the switch too.",
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


# ---- 2xx: what must be the same


def _odd(values: dict[str, str]) -> str:
    """Who differs from most, with the values."""
    counts = sorted(
        values.values(),
        key=lambda value: (-list(values.values()).count(value), list(values.values()).index(value)),
    )
    return ", ".join(host for host, value in values.items() if value != counts[0])


@FAB.rule(
    "FAB201",
    "images-differ",
    "error",
    kind="version-drift",
    passes=good,
    fails=lambda: example(b={"image": "sha256:9999"}),
    source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/runtime/145-docker-run-implicit-pull-inside-launch-timeout.md",
)
def images(seen: Seen) -> Iterator[Hit]:
    """The same tag can be another image on each node, depending on when it was pulled. Ranks of
    different vLLMs fail or hang.
    """
    known = {
        site.host: site.image for _, site in seen.nodes if site.image and site.image != "not there"
    }
    if len(set(known.values())) > 1:
        yield Hit(
            f"{_odd(known)} has another image.",
            _each(known),
            "Name the image by its digest, and pull it on every node: sparkbook lock writes it.",
        )


@FAB.rule(
    "FAB202",
    "model-files-differ",
    "error",
    kind="download-corrupt",
    passes=good,
    fails=lambda: example(b={"model": "9c1185a5c5e9fc54", "revision": "3333"}),
    source="https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/30",
)
def models(seen: Seen) -> Iterator[Hit]:
    """Every rank reads its own copy of the weights. Ranks with different revisions answer with
    nonsense, or fail when they load.
    """
    known = {
        site.host: f"{site.model} (revision {site.revision or 'unknown'})"
        for _, site in seen.nodes
        if site.model and site.model != "not there"
    }
    if len(set(known.values())) > 1:
        yield Hit(
            f"{_odd(known)} has other model files.",
            _each(known),
            "Serve --stage copies them from the head over the fast link and compares hashes.",
        )


@FAB.rule(
    "FAB203",
    "not-staged",
    "warning",
    kind="download-corrupt",
    passes=good,
    fails=lambda: example(b={"model": "not there"}),
    source=_GUIDE,
)
def staged(seen: Seen) -> Iterator[Hit]:
    """A node without the model's files or the image fetches them while the others wait for it, and
    the others give up first.
    """
    for what, attribute in (("image", "image"), ("model files", "model")):
        if missing := [
            site.host for _, site in seen.nodes if getattr(site, attribute) == "not there"
        ]:
            yield Hit(
                f"{', '.join(missing)} lacks the {what}.",
                "not there",
                "Serve --stage puts image and files on every node.",
            )


@FAB.rule(
    "FAB204",
    "ends-differ",
    "warning",
    kind="multi-node-rdma",
    source="https://github.com/0xSero/local-ai-registry/pull/55",
    passes=good,
    confidence="medium",
    fails=lambda: example(b=_links({"enp1s0f0np0": {"mtu": 1500}})),
)
def mtus(seen: Seen) -> Iterator[Hit]:
    """Both ends of a link need the same MTU, or large packets are lost: small tests pass, and the
    first real transfer hangs.
    """
    known = {site.host: str(site.link.mtu) for _, site in seen.nodes if site.link and site.link.mtu}
    if len(set(known.values())) > 1:
        yield Hit(
            f"The MTU of {_odd(known)} is another one.",
            _each(known),
            "Run `sudo ip link set PORT mtu 9000` on every node.",
        )


def _each(values: dict[str, str]) -> str:
    return ", ".join(f"{host}: {value}" for host, value in values.items())


# ---- 3xx: what was measured


def _measured(**values: Any) -> Seen:
    return example(
        pairs=[
            Pair(
                a="spark-1",
                b="spark-2",
                full_bytes=9000,
                full=True,
                rtt_us=25.0,
                tcp_gbit=95.0,
                tcp_by="iperf3, 8 streams",
            ).model_copy(update=values)
        ]
    )


def _good_pair() -> Seen:
    return _measured(reduce_gbit=150.0, reduce_us=40.0, backend="nccl", transport="IB")


@FAB.rule(
    "FAB301",
    "no-way-between",
    "error",
    kind="multi-node-interface",
    source=_IFNAMES,
    passes=_good_pair,
    fails=lambda: example(
        pairs=[Pair(a="spark-1", b="spark-2", problem="TimeoutError: timed out")]
    ),
)
def no_way(seen: Seen) -> Iterator[Hit]:
    """From the address of one node to that of the other nothing passes: a cable, a subnet, a
    firewall, or a port that is down.
    """
    for pair in seen.pairs:
        if pair.problem:
            yield Hit(
                f"There is no way from {pair.a} to {pair.b}.",
                pair.problem,
                "Check that both addresses are in one subnet: `ip -br addr`,"
                " `ip route get ADDRESS`,"
                " `sudo ufw status`.",
            )


@FAB.rule(
    "FAB302",
    "large-packets-lost",
    "error",
    kind="multi-node-rdma",
    source="https://github.com/0xSero/local-ai-registry/pull/55",
    passes=_good_pair,
    fails=lambda: _measured(full=False),
)
def full_packets(seen: Seen) -> Iterator[Hit]:
    """A packet as large as the interfaces allow does not come back when it may not be fragmented.
    Something between the nodes, mostly a
    switch, carries less: connections open, and the first large transfer hangs.
    """
    for pair in seen.pairs:
        if pair.full is False:
            yield Hit(
                f"Packets of {pair.full_bytes} bytes do not pass between {pair.a} and {pair.b}.",
                "sent with don't-fragment, no answer",
                "Set the switch to jumbo frames, or the MTU of both ends to what passes.",
            )


@FAB.rule(
    "FAB303",
    "tcp-slow",
    "warning",
    kind="multi-node-rdma",
    source=_DEGRADED,
    passes=_good_pair,
    confidence="medium",
    fails=lambda: _measured(tcp_gbit=12.9),
)
def tcp(seen: Seen) -> Iterator[Hit]:
    """TCP gets far less than the link can carry. About 1 or 10 Gbit/s of 200 is the wrong
    interface; about 13 is a ConnectX-7 that started badly, though the link says 200 (power off at
    the mains, cable out, start again); about 2.5 over a switch is missing flow control.
    """
    for pair in seen.pairs:
        share = _ENOUGH["iperf3" if (pair.tcp_by or "").startswith("iperf3") else "python"]
        if pair.tcp_gbit is not None and pair.tcp_gbit < share * seen.inventory.link_gbit / (
            2 if share == _ENOUGH["iperf3"] else 1
        ):
            factor = seen.inventory.link_gbit / max(pair.tcp_gbit, 1e-3)
            yield Hit(
                f"TCP between {pair.a} and {pair.b} has {pair.tcp_gbit:g} of"
                f" {seen.inventory.link_gbit:g} Gbit/s, {factor:.0f} times less.",
                f"{pair.tcp_by}",
                "Look at the interface (FAB103), flow control (FAB109) and MTU; then cut the power"
                " of both and start again.",
            )


@FAB.rule(
    "FAB304",
    "slow-round-trip",
    "warning",
    kind="multi-node-rdma",
    source=_SLOW,
    passes=_good_pair,
    confidence="medium",
    fails=lambda: _measured(rtt_us=20000.0),
)
def latency(seen: Seen) -> Iterator[Hit]:
    """Each layer of each token waits for one or two small exchanges, so half a millisecond of round
    trip costs a model of 60 layers more than 30 ms a token. A cable takes some tens of µs; more is
    a detour, Wi-Fi, or a host that is busy.
    """
    for pair in seen.pairs:
        if pair.rtt_us is not None and pair.rtt_us > _SMALL_RTT_US:
            yield Hit(
                f"A round trip between {pair.a} and {pair.b} takes {pair.rtt_us / 1000:.3g} ms.",
                f"median of 100: {pair.rtt_us:g} µs",
                "Find the detour (traceroute, tc qdisc show); with it, use pipeline parallelism or"
                " two replicas.",
            )


@FAB.rule(
    "FAB305",
    "no-all-reduce",
    "error",
    kind="multi-node-rdma",
    source="https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks/issues/14",
    passes=_good_pair,
    fails=lambda: _measured(
        reduce_problem="NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory"
    ),
)
def no_reduce(seen: Seen) -> Iterator[Hit]:
    """The two nodes reach each other and can't add up a tensor. With *ibv_reg_mr … Cannot allocate
    memory* RDMA can't pin memory: the container's memlock, or the kernel (FAB110). With *invalid
    usage* the list of adapters or the GID index is another node's.
    """
    for pair in seen.pairs:
        if pair.reduce_problem:
            unmeasured = pair.reduce_problem.startswith("no image")
            yield Hit(
                f"{'No all-reduce was measured' if unmeasured else 'An all-reduce fails'} between"
                f" {pair.a} and {pair.b}.",
                pair.reduce_problem,
                (
                    "Name a recipe with an image that is on the nodes."
                    if unmeasured
                    else "Look at memlock, FAB106, FAB107 and FAB110."
                ),
                severity="info" if unmeasured else None,
            )


@FAB.rule(
    "FAB306",
    "nccl-over-tcp",
    "error",
    kind="multi-node-rdma",
    source=_SLOW,
    passes=_good_pair,
    fails=lambda: _measured(reduce_gbit=18.0, reduce_us=190.0, backend="nccl", transport="Socket"),
)
def over_tcp(seen: Seen) -> Iterator[Hit]:
    """NCCL found no RDMA device it could use and goes over sockets: `NET/Socket` in its log, where
    `NET/IB` should stand. Bandwidth falls and, worse for tokens, latency grows.
    """
    rdma = all(site.rails for _, site in seen.nodes)
    for pair in seen.pairs:
        if pair.backend == "nccl" and pair.transport == "Socket" and rdma:
            yield Hit(
                f"NCCL goes over TCP between {pair.a} and {pair.b}.",
                "NET/Socket",
                "Give the container the device (FAB111) and drop NCCL_IB_DISABLE.",
            )


@FAB.rule(
    "FAB307",
    "all-reduce-slow",
    "warning",
    kind="multi-node-rdma",
    source=_DEGRADED,
    passes=_good_pair,
    confidence="medium",
    fails=lambda: _measured(reduce_gbit=22.0, reduce_us=60.0, backend="nccl", transport="IB"),
)
def reduce_rate(seen: Seen) -> Iterator[Hit]:
    """The all-reduce over RDMA has a small part of the link's rate: one rail of two (FAB105), small
    packets (FAB108), missing flow control (FAB109), or an adapter that started badly (FAB303).
    """
    for pair in seen.pairs:
        if (
            pair.backend == "nccl"
            and pair.transport != "Socket"
            and (pair.reduce_gbit or 1e9) < _ENOUGH["nccl"] * seen.inventory.link_gbit
        ):
            yield Hit(
                f"An all-reduce between {pair.a} and {pair.b} has {pair.reduce_gbit:g} of"
                f" {seen.inventory.link_gbit:g} Gbit/s.",
                "bus bandwidth of 256 MiB",
                "Look at both rails, MTU and flow control, in this order.",
            )


# ---- 4xx: a server over several nodes


def _ran(*ranks: RankState, **seen: Any) -> Seen:
    return example(ranks=ranks, **seen)


_AT = "11-28 10:00:0"
_RESET = (
    f"(Worker_TP0 pid=1) ERROR {_AT}9 [multiproc_executor.py:1063] RuntimeError:"
    " [gloo/transport/tcp/pair.cc:537] Read error [192.168.100.2]:6269: Connection reset by peer\n"
).encode()
_UP = f"(APIServer pid=1) INFO {_AT}0 [launcher.py:1] Application startup complete.\n".encode()


def _good_ranks() -> Seen:
    return _ran(RankState(0, "spark-1", _UP), RankState(1, "spark-2", _UP))


@FAB.rule(
    "FAB401",
    "rank-failed",
    "error",
    source="vLLM 0.32.0, a run of this project with --nnodes 2 and pipeline parallelism",
    passes=_good_ranks,
    fails=lambda: _ran(
        RankState(0, "spark-1", _RESET, False, 1),
        RankState(
            1,
            "spark-2",
            f"(Worker_TP1 pid=2) ERROR {_AT}8 [x.py:1] torch.OutOfMemoryError: CUDA out of memory."
            " Tried to allocate 2 GiB\n".encode(),
            False,
            1,
        ),
    ),
)
def rank_failed(seen: Seen) -> Iterator[Hit]:
    """When one rank fails, all fail, each with words of its own. The one with a cause of its own
    that came first is the one to look at; a lost connection on another node is its consequence.
    """
    first = seen.first
    if first and first.own and first.diagnosis.primary:
        fault = first.diagnosis.primary
        yield Hit(
            f"Rank {first.state.number} on {first.state.host} fell first: {fault.message}",
            f"{fault.rule}, {fault.evidence}",
            fault.fix or "Read the last lines of that rank.",
            kind=fault.kind,
        )


@FAB.rule(
    "FAB402",
    "rank-vanished",
    "error",
    kind="multi-node-hang",
    source="vLLM 0.32.0, a run of this project whose second rank was killed",
    passes=_good_ranks,
    fails=lambda: _ran(
        RankState(0, "spark-1", _RESET, True),
        RankState(
            1,
            "spark-2",
            f"(MainProcess pid=2) ERROR {_AT}8 [multiproc_executor.py:315] Worker proc VllmWorker-1"
            " died unexpectedly\n".encode(),
            False,
            1,
        ),
    ),
)
def rank_vanished(seen: Seen) -> Iterator[Hit]:
    """A rank ended without a fault of its own: it was killed, by the kernel for want of memory, by
    a watchdog, or by hand. The head's `/health` goes on saying 200 until the next request finds the
    other rank gone.
    """
    first = seen.first
    if first and not first.own and not first.state.unreachable and not seen.cut:
        state = first.state
        if first.weight[0] >= 3:
            fault = first.diagnosis.primary
            message = fault.message if fault else "its log does not say why."
            yield Hit(
                f"Rank {state.number} on {state.host} lost the others: {message}",
                fault.evidence if fault else None,
                "Look at the memory (MemAvailable, swap) and NCCL's version of each node.",
                kind=fault.kind if fault else None,
            )
            return
        status = "" if state.exit_status is None else f", status {state.exit_status}"
        yield Hit(
            f"Rank {state.number} on {state.host} vanished first{status}, without a fault of its"
            " own.",
            (
                first.diagnosis.primary.evidence
                if first.diagnosis.primary
                else "its log ends without an error"
            ),
            f"Run `sudo dmesg | grep -i -E 'oom|killed'` and `free -h` on {state.host}; a memory"
            " guard may have ended it.",
        )


@FAB.rule(
    "FAB403",
    "node-lost",
    "error",
    kind="multi-node-hang",
    source="https://github.com/vllm-project/vllm/issues/41725",
    passes=_good_ranks,
    fails=lambda: _ran(
        RankState(0, "spark-1", _UP), RankState(1, "spark-2", _UP, unreachable="No route to host")
    ),
)
def node_lost(seen: Seen) -> Iterator[Hit]:
    """A node does not answer any more: power, kernel, or the network by which it is managed. The
    other ranks wait for it until a timeout of minutes.
    """
    for state in seen.ranks:
        if state.unreachable and not (seen.first and seen.first.own):
            yield Hit(
                f"{state.host} does not answer any more (rank {state.number}).",
                state.unreachable,
                f"Look at {state.host} itself; then start again.",
            )


@FAB.rule(
    "FAB404",
    "link-cut",
    "error",
    kind="multi-node-interface",
    source="vLLM 0.32.0, a run of this project whose link was taken down",
    passes=_good_ranks,
    fails=lambda: _ran(
        RankState(0, "spark-1", _UP), RankState(1, "spark-2", _UP), cut=("spark-2",)
    ),
)
def link_cut(seen: Seen) -> Iterator[Hit]:
    """All ranks are alive and the head's node has no way to another one on the fast network: a
    cable, a switch, a port that was taken down.
    No rank says so: a step that began before waits for minutes, and `/health` goes on saying 200.
    """
    if seen.cut and not (seen.first and seen.first.own):
        yield Hit(
            f"The link between {seen.inventory.head.host} and {', '.join(seen.cut)} is cut.",
            "no way in three looks of up to 2 s",
            "Look at cable, switch and ip -br link on both; then start again.",
        )


@FAB.rule(
    "FAB405",
    "not-ready-in-time",
    "error",
    kind="multi-node-hang",
    source=_IFNAMES,
    passes=_good_ranks,
    fails=lambda: _ran(
        RankState(0, "spark-1", b""),
        RankState(1, "spark-2", b""),
        waiting="not ready after 300 s: still waiting for port",
    ),
)
def not_ready(seen: Seen) -> Iterator[Hit]:
    """At its deadline the server waits still: mostly one rank waits for another that never joined.
    What each rank said last tells which.
    """
    if seen.waiting and not seen.first and not seen.cut:
        last = "; ".join(
            f"rank {state.number} on {state.host}: {(state.tail(1) or ['nothing'])[0][:160]}"
            for state in seen.ranks
        )
        yield Hit(
            f"The server did not get ready: {seen.waiting.splitlines()[0]}.",
            last,
            "Compare what each rank said last; a longer --deadline, if all still load.",
        )


@FAB.rule(
    "FAB501",
    "left-behind",
    "error",
    source="https://github.com/NVIDIA/dgx-spark-playbooks",
    passes=_good_ranks,
    fails=lambda: example(left=(("spark-2", "example-spark-2", "no answer in 60 s"),)),
)
def left_behind(seen: Seen) -> Iterator[Hit]:
    """All other ranks were taken down; this one's node could not be reached, and it holds its
    memory until it is.
    """
    for host, name, why in seen.left:
        yield Hit(
            f"{name} could not be taken down: {host} was not reached.",
            why,
            f"Run `docker rm -f {name}` on {host} when it is back.",
        )


def _links(change: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A change of ports by name, of the second Spark."""
    network = example().sites[1].network
    links = [link.model_dump() | change.get(link.name, {}) for link in network.links]
    return {"network": network.model_dump() | {"links": links}}


def _rdma(change: dict[str, dict[str, Any]]) -> dict[str, Any]:
    network = example().sites[1].network
    return {
        "network": (
            network.model_dump()
            | {"rdma": [port.model_dump() | change.get(port.name, {}) for port in network.rdma]}
        )
    }
