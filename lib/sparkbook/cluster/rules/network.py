"""3xx: what was measured between nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkbook.cluster.fabric import Pair
from sparkbook.cluster.family import DEGRADED, FAB, IFNAMES, SLOW
from sparkbook.cluster.sighting import Seen, example
from sparkbook.rules import Hit

_SMALL_RTT_US = 500.0
_ENOUGH = {"iperf3": 0.4, "nccl": 0.35, "python": 0.05}
"""Share of the link's rate below which a measurement is called slow. NVIDIA's guide shows 93 to 97
Gbit/s on each half of a Spark's port (https://github.com/NVIDIA/dgx-spark-playbooks/pull/108,
2026-08-24); a Python process fills far less than that by itself.
"""

_LOST = 0.002
"""Of 1000 packets, two may fall to a busy host; a good cable loses none."""


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
    source=IFNAMES,
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
                "Check that both addresses are in one subnet: `ip -br addr`, `ip route get"
                " ADDRESS`, `sudo ufw status`.",
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
    source=DEGRADED,
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
    source=SLOW,
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
                    "Name a recipe whose image is on the nodes."
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
    source=SLOW,
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
    source=DEGRADED,
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


@FAB.rule(
    "FAB308",
    "packets-lost",
    "warning",
    kind="multi-node-rdma",
    source="two network namespaces of this project, one of which drops packets at random",
    passes=_good_pair,
    fails=lambda: _measured(lost=0.011),
)
def lossy(seen: Seen) -> Iterator[Hit]:
    """Small packets that go out and do not come back. TCP sends them again, so nothing fails: each
    step that meets a loss waits for it, and RDMA over Ethernet loses most of its rate. No rank ever
    says so.
    """
    for pair in seen.pairs:
        if pair.lost is not None and pair.lost > _LOST:
            yield Hit(
                f"Between {pair.a} and {pair.b}, {pair.lost:.1%} of the packets are lost.",
                "1000 packets of 32 bytes, there and back",
                "Reseat or change the cable; compare `ethtool -S PORT | grep -E 'err|drop'` before"
                " and after on both nodes; look at flow control (FAB109) and at firewalls.",
            )


@FAB.rule(
    "FAB309",
    "measured-next-to-others",
    "warning",
    source="two H200s of one host with NCCL over TCP, measured here on 2026-11-29: 8 KiB took"
    " 134 µs next to nine idle servers, with more sockets, and 92 µs with nothing running"
    " (`cluster/recorded/links-h200.jsonl`)",
    confidence="medium",
    passes=_good_pair,
    fails=lambda: example(
        b={"gpu_processes": 2},
        pairs=[Pair(a="spark-1", b="spark-2", reduce_us=48.0, backend="nccl", transport="IB")],
    ),
)
def next_to_others(seen: Seen) -> Iterator[Hit]:
    """An all-reduce that is measured while a server runs, even one that has nothing to do, can be
    slower than the same inside a server that has the nodes to itself. `plan --fabric` would count
    too much for the network.
    """
    busy = {site.host: site.gpu_processes for _, site in seen.nodes if site.gpu_processes}
    if busy and any(pair.reduce_us for pair in seen.pairs):
        shown = " and ".join(f"{count} on {host}" for host, count in busy.items())
        yield Hit(
            f"Processes used the GPU while the network was measured: {shown}.",
            "nvidia-smi --query-compute-apps=pid",
            "Stop what runs there, and measure again before `plan --fabric`.",
        )
