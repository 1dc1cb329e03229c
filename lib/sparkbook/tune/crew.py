"""Who measures: this machine alone, or the nodes of an inventory, one candidate at a time each.

On every node runs a `sparkbook tune --worker`, which measures what it reads, a line of JSON each.
So a node's server is started, guarded and looked at on that node. A worker whose standard input
ends stops its server: that is how Ctrl-C, and the end of this process, reach it.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sparkbook.cluster.inventory import Inventory, Node
from sparkbook.cluster.nodes import words_on
from sparkbook.errors import SparkbookError
from sparkbook.serve.engine import Engine
from sparkbook.tune.journal import Outcome
from sparkbook.tune.measuring import Plans, Starter
from sparkbook.tune.space import Candidate
from sparkbook.util.shell_text import script_line

ASKED = "final 0"
"""The stage in which a running server is asked more than its speed."""
_TEARDOWN_S = 120.0
"""For workers to stop their servers."""


@dataclass(frozen=True)
class Job:
    """One start. Attributes: `size` of the run; None: it is started and not measured."""

    candidate: Candidate
    stage: str
    size: int | None


class Crew(Protocol):
    """Who takes jobs: each node one at a time. Attributes: `nodes` by name."""

    @property
    def nodes(self) -> Sequence[str | None]: ...

    def send(self, node: str | None, job: Job) -> None:
        """Give a node a job."""
        ...

    def receive(self) -> Outcome:
        """Wait for the next outcome."""
        ...


@dataclass
class Alone:
    """This machine."""

    starter: Starter
    plans: Plans
    finalist: Callable[[Engine, Outcome], None] | None
    nodes: Sequence[str | None] = (None,)
    _jobs: list[Job] = field(default_factory=list)

    def send(self, _node: str | None, job: Job) -> None:
        """Keep the job for `receive`."""
        self._jobs.append(job)

    def receive(self) -> Outcome:
        """Do the job."""
        job = self._jobs.pop()
        plan = None if job.size is None else self.plans.run(job.size)
        more = self.finalist if job.stage == ASKED else None
        return self.starter.once(job.candidate, job.stage, plan, more)


def program(node: Node) -> list[str]:
    """Return the words that run a worker on a node, from here: over SSH the `sparkbook` of a login
    there.
    """
    worker = ["tune", "RECIPE", "--for", "USE", "--worker"]
    if node.ssh is None:
        code = "from sparkbook.cli import main; main()"
        return words_on(node, [sys.executable, "-c", code, *worker])
    return words_on(node, ["bash", "-lc", script_line("exec", "sparkbook", *worker)])


class Nodes:
    """The nodes of an inventory; a context manager that starts the workers and ends them."""

    def __init__(
        self,
        inventory: Inventory,
        plans: Plans,
        say: Callable[[str], None],
        words: Callable[[Node], list[str]] = program,
    ):
        """`words` run a worker on a node."""
        self.inventory, self.plans, self.say, self._words = inventory, plans, say, words
        self.nodes: Sequence[str | None] = [node.host for node in inventory.nodes]
        self._workers: dict[str, subprocess.Popen[str]] = {}
        self._lines: queue.Queue[tuple[str, str]] = queue.Queue()

    def __enter__(self) -> Nodes:
        recipe = self.plans.recipe
        hello = {"load": self.plans.load.model_dump(mode="json"), "seed": self.plans.seed}
        try:
            for node in self.inventory.nodes:
                # In a session of its own: Ctrl-C reaches it once, by the end of its input.
                worker = subprocess.Popen(
                    self._words(node),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                self._workers[node.host] = worker
                threading.Thread(target=self._read, args=(node.host, worker), daemon=True).start()
                own = recipe.model_copy(update={"env": {**recipe.env, **node.env}})
                sent = own.model_dump(mode="json", by_alias=True)
                self._write(node.host, hello | {"recipe": sent})
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers.values():
            with contextlib.suppress(OSError):
                worker.stdin.close()  # type: ignore[union-attr]
        for host, worker in self._workers.items():
            try:
                worker.wait(_TEARDOWN_S)
            except subprocess.TimeoutExpired:
                self.say(f"{host}: the worker did not end; look for its server: sparkbook status")
                worker.kill()
                worker.wait()

    def _read(self, host: str, worker: subprocess.Popen[str]) -> None:
        assert worker.stdout is not None
        with worker.stdout as lines:
            for line in lines:
                self._lines.put((host, line))
        self._lines.put((host, ""))

    def _write(self, host: str, value: Any) -> None:
        stdin = self._workers[host].stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # `receive` says that it has ended
            stdin.write(json.dumps(value) + "\n")
            stdin.flush()

    def send(self, node: str | None, job: Job) -> None:
        """Give a node a job."""
        value = {"changes": job.candidate.changes, "stage": job.stage, "size": job.size}
        self._write(str(node), value)

    def receive(self) -> Outcome:
        """Wait for the next outcome.

        Raises:
            SparkbookError: a node can't measure, or its worker has ended.
        """
        while True:
            host, line = self._lines.get()
            if not line:
                status = self._workers[host].wait()
                raise SparkbookError(
                    f"{host}: the worker ended with status {status}; it needs the same sparkbook as"
                    " here"
                )
            try:
                kind, value = json.loads(line)
            except (ValueError, TypeError):
                kind, value = "say", line.rstrip()
            if kind == "outcome":
                return Outcome.model_validate(value | {"node": host})
            if kind == "error":
                raise SparkbookError(f"{host}: {value}")
            self.say(f"{host}: {value}")
