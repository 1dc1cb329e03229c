"""One server over several nodes: all ranks started in order, waited for as a whole, watched, and
taken down together.

A rank that falls takes the server with it, mostly without a word: the head's `/health` says 200
until the next request. So all ranks and the link between them are watched, and the first one to
fall is named, with what every rank printed last.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sparkbook.cluster.cluster_plan import ClusterPlan, Rank, plan
from sparkbook.cluster.inventory import Inventory, Layout, Node
from sparkbook.cluster.nodes import Runner, Site, look, run_on
from sparkbook.cluster.ranks import RankState
from sparkbook.cluster.rules import FAB
from sparkbook.cluster.sighting import Seen
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.logs.together import differences
from sparkbook.serve import (
    abandoned,
    containers,
    docker_engine,
    docker_host,
    embedded,
    folders,
    paths,
)
from sparkbook.serve.docker_host import DockerHost
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.engine import Engine, EngineError
from sparkbook.serve.faults import ServeFault, as_lines
from sparkbook.serve.process import ProcessEngine
from sparkbook.serve.ready import NotReady, Readiness, wait_ready
from sparkbook.serve.stack import Choices, Stack
from sparkbook.util.shell_text import command_line

_TEARDOWN_S = 60.0
_LINK_S = 1.0
"""Seconds between two looks at the link."""
_LINK_MISSES = 3
"""Looks that must fail one after another before a link is called cut."""
_FAILED = b"WorkerProc hit an exception"
"""What vLLM prints when a step failed in a worker. Only rank 0 passes it on: another one goes on to
the next step, and all wait for each other until a timeout of half an hour (vLLM 0.32.0,
`WorkerProc.worker_busy_loop`).
"""
_TAIL = 64_000
_PORT_S = 10.0
"""Seconds between two looks at the port where the ranks meet, until the server is ready."""
_PORT_MISSES = 2
_JOIN_S = 600.0
"""For nodes that hang: one that can't join gives up by itself, and is named at once."""
_JOIN_LOOK_S = 10.0
"""Seconds that a program counts the nodes before it is looked whether all daemons still run."""
_COUNT = """
import ray, time
ray.init(address={address!r}, logging_level="error")
end = time.monotonic() + {look_s}
while True:
    alive = sum(node["Alive"] for node in ray.nodes())
    if alive >= {nodes} or time.monotonic() > end:
        break
    time.sleep(0.2)
print(alive)
"""
"""One driver that waits: each one loads Ray anew and makes every node start workers for it."""
_SETTLE_S = 2.0
"""Seconds that the other ranks get to say what they saw, before all of them are ended."""


class ClusterFault(EngineError):
    """The server over several nodes could not be started, or fell.

    Attributes:
        findings: what happened, the primary one first.
        tails: the last lines of each rank.
    """

    def __init__(self, findings: Findings, tails: dict[str, list[str]] | None = None):
        self.findings, self.tails = findings, tails or {}
        lines = [as_lines(finding) for finding in findings]
        for name, tail in self.tails.items():
            lines.append(f"the last lines of {name}:")
            lines += [f"    {line}" for line in tail or ["(it printed nothing)"]]
        super().__init__("\n".join(lines))


class ClusterServer:
    """The ranks of a server, from `start` until `stop`. Use it as a context manager.

    Attributes:
        plan: what was started.
        engines: the running ranks by name, in the order in which they were started.
        readiness: the timed stages of the start, once it is ready.
        fall: why it fell; None while all is well.
    """

    def __init__(
        self,
        planned: ClusterPlan,
        sites: Sequence[Site],
        *,
        run: Runner = run_on,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.plan, self.sites, self._run, self._clock = planned, list(sites), run, clock
        self.engines: dict[str, Engine] = {}
        self.readiness: Readiness | None = None
        self.fall: ClusterFault | None = None
        self._hosts: dict[str, DockerHost] = {}
        self._marks: dict[str, str] = {}
        self._until_over = contextlib.ExitStack()
        self._lost: dict[str, str] = {}
        self._ended: dict[str, int] = {}
        self._misses: dict[str, int] = {}
        self._shut: dict[str, int] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    # ---- start

    def start(self, say: Callable[[str], None] = lambda _line: None) -> None:
        """Start every rank: the last node first, the head last, so that it finds the others
        waiting. Of a Ray cluster Ray's head is first.

        Raises:
            ClusterFault, EngineError, ServeFault: one can't be started; nothing is left of the
                others.
        """
        ranks = sorted(
            self.plan.ranks,
            key=lambda rank: (rank.instead is None, rank.number if rank.instead else -rank.number),
        )
        if self.plan.backend == "ray" and ranks[0].instead is None:
            ranks.sort(
                key=lambda rank: rank.number
            )  # containers: the head's begins with Ray's head, which the others join
        try:
            for rank in ranks:
                if rank.instead is None and ranks[0].instead is not None:
                    self._joined(say)  # (the head's container waits for the others by itself)
                say(f"starting {rank.name} on {rank.node.host}")
                self.engines[rank.name] = self._engine(rank)
            self._thread = threading.Thread(
                target=self._watch, name="sparkbook cluster", daemon=True
            )
            self._thread.start()
        except BaseException:
            self.stop()
            raise

    def _engine(self, rank: Rank) -> Engine:
        stack = self.plan.stack
        if rank.launch.image is None:
            launch = rank.launch.on_host()
            model: Path | str = launch.serve.model or ""
            if stack.recipe and stack.recipe.image is None:
                model = embedded.model_folder(stack.recipe.model.repo)
            elif Path(model).expanduser().is_dir():
                model = Path(model).expanduser()
            return ProcessEngine(
                launch,
                model,
                name=stack.served,
                port=rank.launch.port if rank.number == 0 and rank.instead is None else None,
                via=rank.node.via,
                instead=rank.instead,
                folder=folders.path_of(rank.name),
                grace_s=4,
                recipe=stack.recipe.id if stack.recipe else "",
            )
        host = self._host(rank.node)
        named = Stack(rank.name, rank.launch, stack.recipe)
        asked = docker_engine.prepare(named, host.home, Choices(), memory=host.memory)
        site = self.sites[self.plan.inventory.nodes.index(rank.node)]
        for found in containers.find(host, rank.name):
            if found.state == "running":
                raise EngineError(
                    f"{rank.name} already runs on {rank.node.host}. To stop it:"
                    f" {command_line('sparkbook', 'cluster', 'stop', 'FILE', stack.name)}"
                )
            containers.remove(host, found.id)
        asked = replace(asked, body=with_rdma(asked.body) if site.infiniband else asked.body)
        # A start that is killed leaves no container on any node.
        if rank.node.host not in self._marks:
            mark = self._until_over.enter_context(abandoned.guarded(host))
            self._marks[rank.node.host] = mark
        return docker_engine.launch(
            host, asked, named, False, None, lambda _line: None, self._marks[rank.node.host]
        )

    def _host(self, node: Node) -> DockerHost:
        if node.host not in self._hosts:
            self._hosts[node.host] = docker_host.reach(node.docker)
        return self._hosts[node.host]

    def _joined(self, say: Callable[[str], None]) -> None:
        """Wait until Ray's head counts all nodes."""
        nodes = self.plan.inventory.nodes
        inventory = self.plan.inventory
        address = f"{self.sites[0].address or inventory.head.address}:{inventory.ray_port}"
        code = _COUNT.format(address=address, nodes=len(nodes), look_s=_JOIN_LOOK_S)
        deadline, seen = self._clock() + _JOIN_S, "nothing yet"
        while self._clock() < deadline:
            for name, engine in self.engines.items():
                if not engine.running:
                    raise EngineError(
                        f"{name} ended with status {engine.exit_status}", engine.tail()
                    )
            asked = self._run(nodes[0], [str(paths.engine_python()), "-c", code])
            seen = (asked.out.strip().splitlines() or [asked.err[-200:]])[-1]
            if seen == str(len(nodes)):
                say(f"Ray counts {seen} nodes")
                return
        raise EngineError(f"Ray's head counts {seen} of {len(nodes)} nodes after {_JOIN_S:.0f} s")

    @property
    def head(self) -> Engine:
        """The engine that answers."""
        return self.engines[self.plan.head.name]

    @property
    def endpoint(self) -> Endpoint:
        """Where it answers."""
        return self.head.endpoint

    def wait_ready(
        self,
        *,
        requests: bool = True,
        deadline_s: float = 1800.0,
        progress: Callable[[str], None] | None = None,
    ) -> Readiness:
        """Wait until the whole answers a real request: one token needs every rank.

        Raises:
            ClusterFault: a rank fell, a node or the link was lost, or it was not ready in time;
                everything is taken down.
        """
        try:
            self.readiness = wait_ready(
                self.endpoint,
                self.plan.stack.claims,
                process=self,
                requests=requests,
                deadline_s=deadline_s,
                progress=progress,
            )
        except NotReady as error:
            # The head's own words are one rank's: what the others said, and who was first, is known
            # a moment later.
            within_s = 1.0 if error.message.startswith("not ready") else 12.0
            cause = self.settled(within_s) or self._late(error)
            self.stop()
            raise cause from None
        except BaseException:
            self.stop()
            raise
        if fault := self.look():  # a rank that fell between two looks of the watch
            self.stop()
            raise fault
        return self.readiness

    def _late(self, error: NotReady) -> ClusterFault:
        states = self.states()
        seen = Seen(self.plan.inventory, self.sites, ranks=states, waiting=error.message)
        return ClusterFault(_fall_findings(seen), _tails(states))

    # ---- while it runs

    @property
    def running(self) -> bool:
        """Whether every rank is there and the link carries."""
        return self.fall is None and not self._over.is_set()

    @property
    def exit_status(self) -> int | None:
        """Of the head."""
        with contextlib.suppress(ServeFault):
            return self.head.exit_status
        return None

    def listens(self) -> bool:
        """Return whether it is the head that listens at its address; raises `Stranger` where
        another program does.
        """
        return self.head.listens()

    def tail(self, lines: int = 15) -> list[str]:
        """Return the head's last lines."""
        return self.head.tail(lines)

    def printed(self) -> bytes:
        """Return nothing: the watch judges the logs of all ranks together."""
        return b""

    def settled(self, within_s: float = 12.0) -> ClusterFault | None:
        """Return the fall, if one comes within this time."""
        deadline = self._clock() + within_s
        while self.fall is None and self._clock() < deadline and not self._over.wait(0.1):
            pass
        return self.fall

    def states(self) -> list[RankState]:
        """Return every rank as it is now."""
        states = []
        for rank in self.plan.ranks:
            engine = self.engines.get(rank.name)
            if engine is None:
                continue
            running, status = True, None
            if rank.node.host not in self._lost:
                try:
                    running = engine.running
                    status = None if running else engine.exit_status
                except ServeFault as fault:
                    self._lost[rank.node.host] = fault.finding.evidence or fault.finding.message
            if not running:
                self._ended.setdefault(rank.name, len(self._ended))
            log = b""
            with contextlib.suppress(OSError):
                log = engine.log_file.read_bytes()
            states.append(
                RankState(
                    rank.number,
                    rank.node.host,
                    log,
                    running,
                    status,
                    self._lost.get(rank.node.host),
                    self._ended.get(rank.name),
                )
            )
        return states

    def differences(self) -> list[Finding]:
        """Return in what the ranks differ, though they must not; vLLM itself may serve so."""
        return _different(self.states())

    def look(self) -> ClusterFault | None:
        """Return one look at every rank; the fall, if this look found one."""
        with self._lock:
            if (
                self.fall is None
                and (self._gone() or self._over.is_set())
                and not self._over.is_set()
            ):
                self._over.wait(_SETTLE_S)
                self.fall = self._judge()
            return self.fall

    def _gone(self) -> bool:
        for rank in self.plan.ranks:
            engine = self.engines.get(rank.name)
            try:
                if engine is not None and not engine.running:
                    self._ended.setdefault(rank.name, len(self._ended))
            except ServeFault as fault:
                self._lost[rank.node.host] = fault.finding.evidence or fault.finding.message
        return bool(
            self._ended or self._lost or self._link_cut() or self._blocked() or self._failed()
        )

    def _link_cut(self) -> list[str]:
        return [host for host, misses in self._misses.items() if misses >= _LINK_MISSES]

    def _failed(self) -> list[str]:
        """Return the ranks other than the head in which a step failed."""
        found = []
        for rank in self.plan.ranks:
            engine = self.engines.get(rank.name)
            if engine is None or not rank.number:
                continue
            with contextlib.suppress(OSError), engine.log_file.open("rb") as log:
                log.seek(max(log.seek(0, 2) - _TAIL, 0))
                found += [rank.name] if _FAILED in log.read() else []
        return found

    def _blocked(self) -> list[str]:
        return [host for host, misses in self._shut.items() if misses >= _PORT_MISSES]

    def _watch(self) -> None:
        looked = asked = self._clock()
        while not self._over.wait(0.25):
            with contextlib.suppress(SparkbookError, OSError):
                if self._clock() - looked >= _LINK_S:
                    self._look_at_links()
                    looked = self._clock()
                if self.readiness is None and self._clock() - asked >= _PORT_S:
                    self._look_at_port()
                    asked = self._clock()
                if self.look():
                    for engine in self.engines.values():
                        with contextlib.suppress(SparkbookError):
                            engine.kill()
                    return

    def _look_at_links(self) -> None:
        """Ask the head's node for a way to each of the others. A refused connection is an answer as
        well.
        """
        head = self.sites[0]
        for node, site in list(zip(self.plan.inventory.nodes, self.sites, strict=True))[1:]:
            if head.address is None or site.address is None or not self.plan.inventory.head.local:
                continue
            words = ["python3", "-c", _REACH, head.address, site.address, "9"]
            asked = self._run(self.plan.inventory.head, words)
            self._misses[node.host] = self._misses.get(node.host, 0) + 1 if asked.code == 3 else 0

    def _look_at_port(self) -> None:
        """Ask each of the other nodes for the port of the head where the ranks meet. Refused means
        that nobody listens yet; a firewall gives no answer.
        """
        head, port = self.sites[0].address, str(self.plan.inventory.master_port)
        if self.plan.backend == "ray" or self.plan.layout.data > 1:
            return  # they meet elsewhere
        for node, site in list(zip(self.plan.inventory.nodes, self.sites, strict=True))[1:]:
            if head is None or site.address is None or self._misses.get(node.host):
                continue
            asked = self._run(node, ["python3", "-c", _REACH, site.address, head, port])
            self._shut[node.host] = self._shut.get(node.host, 0) + 1 if asked.code == 3 else 0

    def _judge(self) -> ClusterFault:
        states = self.states()
        seen = Seen(
            self.plan.inventory,
            self.sites,
            ranks=states,
            cut=tuple(self._link_cut()),
            blocked=tuple(self._blocked()),
        )
        return ClusterFault(_fall_findings(seen), _tails(states))

    # ---- end

    def stop(self) -> Findings:
        """End every rank on every node, all at once; what could not be reached is said, with what
        is left there.
        """
        self._over.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(timeout=15)
        left: dict[str, str] = {}

        def end(name: str, engine: Engine) -> None:
            try:
                engine.stop()
            except SparkbookError as error:
                left[name] = str(error).splitlines()[0]

        threads = [
            threading.Thread(target=end, args=item, daemon=True) for item in self.engines.items()
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _TEARDOWN_S
        for thread, name in zip(threads, self.engines, strict=True):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                left.setdefault(name, f"no answer in {_TEARDOWN_S:.0f} s")
        self._until_over.close()
        for host in self._hosts.values():
            with contextlib.suppress(SparkbookError, OSError):
                host.close()
        self._hosts.clear()
        names = {rank.name: rank.node.host for rank in self.plan.ranks}
        seen = Seen(
            self.plan.inventory,
            self.sites,
            left=tuple((names[name], name, why) for name, why in sorted(left.items())),
        )
        return Findings(finding for finding in FAB.judge(seen) if finding.rule == "FAB501")

    def leave(self) -> None:
        """Let containers run on, and close the way to their engines."""
        self._over.set()
        if self._thread:
            self._thread.join(timeout=15)
        self._until_over.close()
        for host in self._hosts.values():
            with contextlib.suppress(SparkbookError, OSError):
                host.close()

    def __enter__(self) -> ClusterServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_REACH = """
import errno, socket, sys
own, other, port = sys.argv[1:]
try:
    socket.create_connection((other, int(port)), timeout=2, source_address=(own, 0)).close()
except ConnectionRefusedError: pass
except OSError as error:
    print(error); sys.exit(3)
"""


def _tails(states: Sequence[RankState]) -> dict[str, list[str]]:
    """Return the last lines of every rank; of a rank with Ray's daemon, the rank's own."""
    tails: dict[str, list[str]] = {}
    for state in states:
        tails.setdefault(f"{state.host} (rank {state.number})", state.tail())
    return tails


def _fall_findings(seen: Seen) -> Findings:
    """Return what is said of a fall: of the ranks, not of what was known of the nodes before."""
    said = [finding for finding in FAB.judge(seen) if finding.rule.startswith("FAB4")]
    return Findings([*_different(seen.ranks), *said])


def _different(states: Sequence[RankState]) -> list[Finding]:
    """Return in what the ranks differ, though they must not."""
    return differences({f"rank {state.number} on {state.host}": state.log for state in states})


def with_rdma(body: dict) -> dict:
    """Return a container's body with access to the RDMA devices, which NCCL needs: the device,
    IPC_LOCK, memory that may be pinned.
    """
    host = dict(body["HostConfig"])
    device = {
        "PathOnHost": "/dev/infiniband",
        "PathInContainer": "/dev/infiniband",
        "CgroupPermissions": "rwm",
    }
    host["Devices"] = [*host.get("Devices", ()), device]
    host["CapAdd"] = sorted({*host.get("CapAdd", ()), "IPC_LOCK"})
    limits = [limit for limit in host.get("Ulimits", ()) if limit["Name"] != "memlock"]
    host["Ulimits"] = [*limits, {"Name": "memlock", "Soft": -1, "Hard": -1}]
    return {**body, "HostConfig": host}


def prepare(
    inventory: Inventory,
    stack: Stack,
    *,
    layout: Layout | None = None,
    backend: str = "native",
    port: int | None = None,
    model: str | None = None,
    run: Runner = run_on,
) -> tuple[ClusterPlan, list[Site], Findings]:
    """Look at the nodes, judge them, and plan the ranks. Nothing is started.

    Raises:
        SparkbookError: it can't be spread so.
    """
    sites = look(inventory, image=stack.launch.image, model=model, run=run, quick=True)
    notes = FAB.judge(Seen(inventory, sites))
    return plan(inventory, stack, sites, layout=layout, backend=backend, port=port), sites, notes


def shown(planned: ClusterPlan) -> list[dict]:
    """Return each rank's start, as a dry run shows it: the container's request, or the command."""
    from sparkbook.formats import shell

    steps = []
    for rank in planned.ranks:
        step: dict = {"rank": rank.number, "node": rank.node.host, "name": rank.name}
        if rank.launch.image:
            asked = docker_engine.prepare(
                Stack(rank.name, rank.launch, planned.stack.recipe), "~", Choices(), key="hidden"
            )
            step["calls"] = [
                {"call": call, "body": body}
                for call, body in replace(asked, body=with_rdma(asked.body)).calls()
            ]
        elif rank.instead:
            step["command"] = " ".join(rank.instead)
        else:
            step["command"] = shell.write(rank.launch).rstrip("\n")
        steps.append(step)
    return steps


def shown_text(planned: ClusterPlan, notes: Sequence[Finding] = ()) -> str:
    """`shown` for people."""
    lines = [f"{planned.layout} over {len(planned.inventory.nodes)} nodes, {planned.backend}"]
    for step in shown(planned):
        lines.append(f"\n# rank {step['rank']} on {step['node']}: {step['name']}")
        for call in step.get("calls", ()):
            lines.append(
                call["call"]
                + (
                    ""
                    if call["body"] is None
                    else "\n" + json.dumps(call["body"], indent=2, ensure_ascii=False)
                )
            )
        lines += [step["command"]] if "command" in step else []
    return "\n".join([*lines, *(as_lines(note) for note in notes)])
