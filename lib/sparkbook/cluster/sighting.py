"""What the rules of several Sparks look at, and the Sparks of their examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sparkbook.cluster.fabric import Pair
from sparkbook.cluster.inventory import Inventory, Node
from sparkbook.cluster.nodes import Site, placed
from sparkbook.cluster.ranks import Judged, RankState, first_fallen


@dataclass(frozen=True)
class Seen:
    """What the checks look at.

    Attributes:
        inventory, sites: the nodes as they were described, and as they are.
        pairs: what was measured between them.
        ranks: the ranks of a server, when one was seen to fall or not to get ready.
        cut: hosts that the head's node had no way to.
        blocked: hosts that reach the head's node, but not the port where the ranks meet.
        waiting: what a server was still waiting for at its deadline.
        left: (host, name, why) of ranks that could not be taken down.
    """

    inventory: Inventory
    sites: Sequence[Site]
    pairs: Sequence[Pair] = ()
    ranks: Sequence[RankState] = ()
    cut: tuple[str, ...] = ()
    blocked: tuple[str, ...] = ()
    waiting: str | None = None
    left: tuple[tuple[str, str, str], ...] = ()

    @cached_property
    def nodes(self) -> list[tuple[Node, Site]]:
        """Nodes that could be looked at."""
        return [
            (node, site)
            for node, site in zip(self.inventory.nodes, self.sites, strict=True)
            if site.problem is None
        ]

    @cached_property
    def first(self) -> Judged | None:
        """The rank that fell first."""
        return first_fallen(self.ranks)


def example(
    b: dict[str, Any] | None = None,
    node: dict[str, Any] | None = None,
    both: dict[str, Any] | None = None,
    **seen: Any,
) -> Seen:
    """Return two Sparks in good order, with changes.

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
            gpu_processes=0,
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


def described(seen: Seen) -> str:
    lines = []
    for node, site in zip(seen.inventory.nodes, seen.sites, strict=True):
        values = node.model_dump(exclude_defaults=True, exclude={"host", "ssh"})
        lines.append(
            f"{node.host}: "
            + (", ".join(f"{key} {value}" for key, value in values.items()) or "nothing said of it")
        )
        if site.problem:
            lines.append(f"  {site.problem}")
            continue
        lines += [
            f"  {link.name:<14} {'up' if link.up else 'down':<5} {gbit(link.speed)}, mtu"
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
            + (f", {site.gpu_processes} processes on the GPU" if site.gpu_processes else "")
        )
        lines.append(f"  image {site.image}, model files {site.model} (revision {site.revision})")
    for pair in seen.pairs:
        values = pair.model_dump(exclude_none=True, exclude={"a", "b"})
        lines.append(
            f"{pair.a} to {pair.b}: " + ", ".join(f"{key} {value}" for key, value in values.items())
        )
    for state in seen.ranks:
        how = "runs" if state.running else f"ended with status {state.exit_status}"
        lines.append(f"rank {state.number} on {state.host}: {state.unreachable or how}")
        lines += [f"  {line}" for line in state.tail(3)]
    lines += [f"no way from the head to {host}" for host in seen.cut]
    lines += [f"no way from {host} to the port where the ranks meet" for host in seen.blocked]
    lines += [seen.waiting] if seen.waiting else []
    lines += [f"{host}: {name} is not taken down: {why}" for host, name, why in seen.left]
    return "\n".join(lines)


def gbit(speed: int | None) -> str:
    return f"{speed / 1000:g} Gbit/s" if speed else "speed unknown"


def good() -> Seen:
    """Return two Sparks in good order."""
    return example()


def links(change: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return a change of ports by name, of the second Spark."""
    network = example().sites[1].network
    links = [link.model_dump() | change.get(link.name, {}) for link in network.links]
    return {"network": network.model_dump() | {"links": links}}


def rdma(change: dict[str, dict[str, Any]]) -> dict[str, Any]:
    network = example().sites[1].network
    return {
        "network": (
            network.model_dump()
            | {"rdma": [port.model_dump() | change.get(port.name, {}) for port in network.rdma]}
        )
    }
