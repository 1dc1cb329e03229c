"""4xx and 5xx: a server over several nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sparkbook.cluster.family import FAB, IFNAMES
from sparkbook.cluster.ranks import RankState, judge
from sparkbook.cluster.sighting import Seen, example
from sparkbook.rules import Hit
from sparkbook.util.shell_text import command_line


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
        others = [judge(one) for one in seen.ranks if one is not state]
        # What only one rank reports is about a process of its own.
        if first.weight[0] >= 3 and any(one.weight[0] < 5 for one in others):
            primary = first.diagnosis.primary
            yield Hit(
                f"Rank {state.number} on {state.host} lost the others:"
                f" {primary.message if primary else 'it gives no reason.'}",
                primary.evidence if primary else None,
                "Look at the memory (MemAvailable, swap) and NCCL's version of each node.",
                kind=primary.kind if primary else None,
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
    source=IFNAMES,
    passes=_good_ranks,
    fails=lambda: _ran(
        RankState(0, "spark-1", b""),
        RankState(1, "spark-2", b""),
        waiting="not ready after 300 s: still waiting for port",
    ),
)
def not_ready(seen: Seen) -> Iterator[Hit]:
    """At its deadline the server still waits: mostly one rank waits for another that never joined.
    The last line of each rank shows which.
    """
    if seen.waiting and not seen.first and not seen.cut and not seen.blocked:
        silent = [one for one in seen.ranks if not one.log.strip()]
        if silent and len(silent) < len(seen.ranks):
            who = ", ".join(f"rank {one.number} on {one.host}" for one in silent)
            yield Hit(
                f"The server did not get ready: {who} never printed a line, and the others wait.",
                seen.waiting.splitlines()[0],
                "Look at what starts that rank: its command, its image, its container.",
            )
            return
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
    "FAB406",
    "port-blocked",
    "error",
    kind="multi-node-interface",
    source="vLLM 0.32.0, a run of this project with a firewall in front of the head",
    passes=_good_ranks,
    fails=lambda: _ran(
        RankState(0, "spark-1", b""), RankState(1, "spark-2", b""), blocked=("spark-2",)
    ),
)
def port_blocked(seen: Seen) -> Iterator[Hit]:
    """The nodes reach each other, but not the port on which the ranks meet: a firewall drops it. No
    rank says so for ten minutes.
    """
    if seen.blocked and not seen.cut and not (seen.first and seen.first.own):
        head, port = seen.inventory.head.host, seen.inventory.master_port
        yield Hit(
            f"{', '.join(seen.blocked)} reaches {head}, but not its port {port}.",
            "no answer, and no refusal, in two looks",
            f"Open the fast network's port on {head}: `sudo ufw allow in on PORT-OF-THE-CABLE`, or"
            f" look at `sudo iptables -L -n` for what drops TCP {port}.",
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
            f"Run `{command_line('docker', 'rm', '-f', name)}` on {host} when it is back.",
        )
