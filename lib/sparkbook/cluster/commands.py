"""What `sparkbook cluster` does: thin over the rest of this package."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sparkbook.cluster import server, staging
from sparkbook.cluster.cluster_plan import parse_layout
from sparkbook.cluster.fabric import Pair, measure
from sparkbook.cluster.inventory import Inventory, Node, read
from sparkbook.cluster.nodes import Site, look
from sparkbook.cluster.rules import FAB
from sparkbook.cluster.sighting import Seen
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.serve import running, stack
from sparkbook.serve.faults import as_progress
from sparkbook.serve.stack import Stack
from sparkbook.util.shell_text import command_line


@dataclass(frozen=True)
class Report:
    """The answer of `cluster check`: the nodes, what was measured between them, and what was
    found.
    """

    inventory: Inventory
    sites: list[Site]
    pairs: list[Pair]
    findings: Findings

    @property
    def verdict(self) -> str:
        """`ready`, `slow` or `blocked`."""
        return {"error": "blocked", "warning": "slow"}.get(self.findings.worst or "", "ready")

    @property
    def exit_code(self) -> int:
        """1 where it is blocked."""
        return int(self.verdict == "blocked")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            **self.findings.to_dict(verdict=self.verdict),
            "nodes": [site.model_dump(mode="json") for site in self.sites],
            "pairs": [pair.model_dump() for pair in self.pairs],
        }

    @property
    def lines(self) -> list[str]:
        """A line for each node and each pair."""
        text = []
        for site in self.sites:
            number = site.link.speed if site.link else None
            speed = f"{number / 1000:g} Gbit/s" if number else "speed unknown"
            rails = ", ".join(port.name for port in site.rails) or "no RDMA"
            link = f"{site.interface or 'no port'} {site.address or ''} {speed}"
            text.append(
                f"{site.host:<12}"
                f" {site.problem or f'{link}, MTU {site.link.mtu if site.link else None}, {rails}'}"
            )
        for pair in self.pairs:
            parts = (
                [pair.problem]
                if pair.problem
                else [
                    f"round trip {pair.rtt_us:g} µs",
                    f"TCP {pair.tcp_gbit:g} Gbit/s ({pair.tcp_by})",
                ]
            )
            parts += (
                [f"{pair.full_bytes} bytes {'pass' if pair.full else 'do not pass'}"]
                if pair.full is not None
                else []
            )
            if pair.reduce_gbit is not None:
                parts.append(
                    f"all-reduce ({pair.backend}) {pair.reduce_gbit:g} Gbit/s, 8 KiB in"
                    f" {pair.reduce_us:g} µs"
                )
            text.append(f"{pair.a} - {pair.b}: {', '.join(part for part in parts if part)}")
        return text


def check(
    file: str, source: str | None = None, *, reduce: bool = True, seconds: float = 1.0
) -> Report:
    """Look at every node, measure every pair, and judge.

    Args:
        file: the inventory.
        source: what is to be served: its image and model files are compared, and the all-reduce
            runs in its image.
        reduce: also measure an all-reduce.
        seconds: how long TCP is measured for each pair.

    Raises:
        SparkbookError: the inventory or the source can't be used.
    """
    inventory = read(file)
    asked = stack.given(source) if source else None
    image = asked.launch.image if asked else None
    sites = look(
        inventory, image=image, model=staging.model_place(asked) if asked else None, quick=True
    )
    try:
        pairs = measure(inventory, sites, image=image, seconds=seconds, reduce=reduce)
    except SparkbookError:
        pairs = measure(
            inventory, sites, seconds=seconds, reduce=False
        )  # there is no engine here to add tensors with
    return Report(
        inventory,
        sites,
        pairs,
        FAB.judge(Seen(inventory, sites, pairs=pairs)),
    )


@dataclass(frozen=True)
class Wish:
    """What `cluster serve` was asked for."""

    file: str
    source: str
    name: str | None = None
    layout: str | None = None
    backend: str = "native"
    port: int | None = None
    stage: bool = False
    deadline_s: float = 1800.0
    replace: bool = False


def can_replace(wish: Wish, inventory: Inventory, name: str) -> None:
    """Refuse to exchange a server of several ranks node by node, and say what to do instead.

    All ranks of one server, data-parallel ones too, meet once, when they start; vLLM has no way for
    another one to join them.

    Raises:
        SparkbookError: the server runs.
    """
    own = {f"{name}-{node.host}" for node in inventory.nodes if wish.replace}
    if not own or not any(
        row["name"] in own and row["state"] != "stopped" for row in status(wish.file)
    ):
        return
    words = [wish.source, *(("--name", name) if wish.name else ())]
    layout = ("--layout", wish.layout) if wish.layout else ()
    again = command_line("sparkbook", "cluster", "serve", wish.file, *words, *layout)
    alone = [
        command_line("sparkbook", "serve", *words, *where, "--replace")
        for node in inventory.nodes
        for where in [("--host", node.docker) if node.docker else ()]
    ]
    raise SparkbookError(
        f"{name} runs, and its ranks can't be exchanged one by one: vLLM's ranks meet once, when"
        " they start. Nothing was changed. To stop all of it and start again, without an answer in"
        f" between: {command_line('sparkbook', 'cluster', 'stop', wish.file, name)} && {again}\n"
        "Where one node can hold the model, replicas that are servers of their own can be exchanged"
        f" one after the other, with a router before them: {'; then '.join(alone)}"
    )


def plan(wish: Wish) -> tuple[server.ClusterPlan, list[Site], Findings]:
    """Return what `cluster serve` would start; reads the nodes, changes nothing.

    Raises:
        SparkbookError: it can't be spread so.
    """
    inventory, asked = read(wish.file), stack.given(wish.source, wish.name)
    layout = parse_layout(wish.layout) if wish.layout else None
    return server.prepare(
        inventory,
        asked,
        layout=layout,
        backend=wish.backend,
        port=wish.port,
        model=staging.model_place(asked),
    )


def _accepted(wish: Wish, say: Callable[[str], None]) -> tuple[server.ClusterPlan, list[Site]]:
    """Return the plan, once what it warns of is said; an error in it is a `ClusterFault`."""
    planned, sites, notes = plan(wish)
    if notes.worst == "error":
        raise server.ClusterFault(Findings(note for note in notes if note.severity == "error"))
    for note in notes:
        say(as_progress(note))
    return planned, sites


def serve(
    wish: Wish, *, say: Callable[[str], None], show: Callable[[dict[str, Any]], None]
) -> None:
    """Start a server over all nodes and wait until it answers. Containers run on; processes are
    kept, and watched, until they end.

    Raises:
        ClusterFault: a node, the link or a rank prevents it, or failed; nothing is left but
            what `findings` say.
        SparkbookError: it can't be used.
    """
    inventory, asked = read(wish.file), stack.given(wish.source, wish.name)
    can_replace(wish, inventory, asked.name)
    if wish.stage:
        _, left = staging.stage(
            inventory, asked.launch.image, staging.model_place(asked), fetch=_fetch(asked), say=say
        )
        if left.worst == "error":
            raise server.ClusterFault(left)
    planned, sites = _accepted(wish, say)
    served = server.ClusterServer(planned, sites)
    served.start(say)
    try:
        served.wait_ready(deadline_s=wish.deadline_s, progress=say)
        for found in served.differences():
            say(as_progress(found))
        contained = planned.head.launch.image is not None
        named = (wish.file, planned.stack.name)
        show(
            {
                "name": planned.stack.name,
                "layout": str(planned.layout),
                "nodes": ", ".join(site.host for site in sites),
                "url": f"{served.endpoint.url}/v1",
                "model": served.endpoint.model,
                "key": str(served.head.key_file),
                "logs": command_line("sparkbook", "cluster", "logs", *named),
                "stop": (
                    command_line("sparkbook", "cluster", "stop", *named) if contained else "Ctrl-C"
                ),
            }
        )
        if contained:
            return
        while served.fall is None:
            time.sleep(0.3)
        raise served.fall
    except KeyboardInterrupt:
        if served.readiness is None:
            raise
        say("stopping")
    finally:
        if planned.head.launch.image is None or served.readiness is None:
            for finding in served.stop():
                say(f"{finding.message} {finding.fix}")
        else:
            served.leave()


def _fetch(asked: Stack) -> Callable[[], object] | None:
    if asked.recipe is None:
        return None
    from sparkbook import weights

    recipe = asked.recipe
    return lambda: weights.fetch(recipe)


# ---- what runs


@contextlib.contextmanager
def _engines(node: Node) -> Iterator[tuple[Any, str | None]]:
    """Connect to a node's Docker engine, or return why it does not answer. On this machine a node
    without Docker has processes only.
    """
    try:
        with running.engines(node.docker) as (host, notes):
            yield (
                host,
                ((notes[0].evidence or notes[0].message) if host is None and node.ssh else None),
            )
    except SparkbookError as error:
        yield None, str(error)


def _names(node: Node, host: Any) -> list[Any]:
    """Return the servers on a node that are ranks of a cluster: their names end in its host's."""
    return [
        one
        for one in running.status(host)
        if one.name.endswith((f"-{node.host}", f"-{node.host}-ray"))
    ]


def status(file: str) -> list[dict[str, Any]]:
    """Return every rank on every node: name, host and state. A headless rank that runs says
    `running`; a node that is not reached, `unreachable`.

    Raises:
        SparkbookError: the inventory can't be used.
    """
    inventory, rows = read(file), []
    for number, node in enumerate(inventory.nodes):
        with _engines(node) as (host, problem):
            if problem:
                rows.append(
                    {
                        "name": None,
                        "host": node.host,
                        "state": "unreachable",
                        "url": None,
                        "end": problem,
                    }
                )
                continue
            for one in _names(node, host):
                # A rank without an API server listens nowhere, whoever else does at its address.
                headless = number and one.state in ("starting", "port taken")
                state = "running" if headless else one.state
                end = one.end.message if one.end else None
                rows.append(
                    {
                        "name": one.name,
                        "host": node.host,
                        "state": state,
                        "url": one.url if number == 0 else None,
                        "end": end,
                    }
                )
    return rows


def stop(file: str, name: str) -> tuple[list[str], Findings]:
    """Take down all ranks of a server. A node that is not reached stops none of the others; what is
    left there is said.

    Raises:
        SparkbookError: the inventory can't be used, or no node has such a server.
    """
    inventory, stopped, left = read(file), [], []
    for node in reversed(inventory.nodes):
        with _engines(node) as (host, problem):
            if problem:
                left.append((node.host, f"{name}-{node.host}", problem))
                continue
            for one in _names(node, host):
                if one.name in (f"{name}-{node.host}", f"{name}-{node.host}-ray"):
                    try:
                        stopped.append(running.stop(host, one.name))
                    except SparkbookError as error:
                        left.append((node.host, one.name, str(error)))
    if not stopped and not left:
        raise SparkbookError(
            f"No node of {inventory.name} runs '{name}'. To list what runs:"
            f" {command_line('sparkbook', 'cluster', 'status', file)}"
        )
    sites = [Site(host=node.host) for node in inventory.nodes]
    judged = FAB.judge(Seen(inventory, sites, left=tuple(left)))
    return stopped, Findings(finding for finding in judged if finding.rule == "FAB501")


def logs(file: str, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield what each rank printed, with its name.

    Raises:
        SparkbookError: the inventory can't be used, or no node has such a server.
    """
    inventory, found = read(file), False
    for node in inventory.nodes:
        with _engines(node) as (host, problem):
            try:
                pieces = b"".join(running.logs(host, f"{name}-{node.host}"))
            except SparkbookError as error:
                pieces = f"({problem or error})\n".encode()
            else:
                found = True
            yield f"{name}-{node.host}", pieces
    if not found:
        raise SparkbookError(f"no node of {inventory.name} has a log of '{name}'")


def diagnose(file: str, name: str) -> tuple[Findings, dict[str, list[str]]]:
    """Return which rank fell first, from the logs of all of them, and the last lines of each."""
    from sparkbook.cluster.ranks import RankState
    from sparkbook.logs.states import fell_silent, ranks_differ
    from sparkbook.logs.together import together

    inventory, states, texts = read(file), [], {}
    alive = {row["name"]: row["state"] for row in status(file)}
    for number, (node, (rank, text)) in enumerate(
        zip(inventory.nodes, logs(file, name), strict=True)
    ):
        texts[rank] = text
        up = alive.get(rank) in ("ready", "running", "starting")
        states.append(RankState(number, node.host, text, up, None))
    seen = Seen(inventory, [Site(host=node.host) for node in inventory.nodes], ranks=states)
    said = together(texts).findings
    found = Findings(
        [
            *(one for one in said if one.rule == ranks_differ.code),
            *(finding for finding in FAB.judge(seen) if finding.rule.startswith("FAB4")),
            *(one for one in said if one.rule == fell_silent.code),
        ]
    )
    return found, {f"{state.host} (rank {state.number})": state.tail() for state in states}
