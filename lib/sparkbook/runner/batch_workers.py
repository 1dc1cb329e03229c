"""Where a batch's notebooks run: processes of this machine, or tasks of a Ray cluster. And what
runs there: `run_job`.

Both ends meet in `run_job`, which a node calls with a job as plain data; it needs this library and
nothing of the checkout.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from queue import Empty, Queue
from types import FrameType
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.runner import notebooks, shared_engine
from sparkbook.runner.batch import Job, Result, library_id, secret_values

RESOURCE = "spark"
"""The Ray resource that says how many notebooks a node runs at a time:
`ray start --resources '{"spark": 1}'`.
"""

_GRACE_S = 20.0


def run_job(job: dict[str, Any]) -> dict[str, Any]:
    """Run one notebook here, in a folder of its own that is gone afterwards. Secrets of this node
    do not leave it.

    Args:
        job: a `Job` as plain data.

    Returns:
        A `Result` as plain data; `node` is the host's name.
    """
    began, clock = _now(), time.monotonic()
    text: str | None = None
    with tempfile.TemporaryDirectory(prefix="sparkbook-") as folder:
        source, out = Path(folder) / "notebook.ipynb", Path(folder) / "executed.ipynb"
        source.write_text(job["text"], "utf-8")
        cell, error = None, None
        try:
            attach = (
                not job["plan"]
                and notebooks.read(source)["metadata"].get("sparkbook", {}).get("engine")
                == "attach"
            )
            with shared_engine.running(lambda _: None) if attach else contextlib.nullcontext():
                failure = notebooks.execute(source, out, job["values"], plan=job["plan"])
            if failure:
                cell, error = failure.cell or None, str(failure)
        except SparkbookError as problem:
            error = str(problem)
        except Exception as problem:  # noqa: BLE001 - a node that can't run notebooks (no kernel, a full disk) is to say so, not to be lost
            error = f"{type(problem).__name__}: {first_line(problem)}"
        if out.is_file():
            text = out.read_text("utf-8")
    for secret in secret_values():
        # In a notebook's JSON a secret may stand escaped.
        text = text and text.replace(json.dumps(secret)[1:-1], "***")
        error = error and error.replace(secret, "***")
    outcome = "failed" if error else "done"
    return asdict(
        Result(
            job["name"],
            socket.gethostname(),
            outcome,
            began,
            _now(),
            round(time.monotonic() - clock, 3),
            error,
            cell,
            text,
        )
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def made(jobs: int, ray: str | None, say: Callable[[str], None]) -> Local | OnRay:
    """Make workers on the Ray cluster at an address, or on this machine. From then on SIGTERM ends
    this process as Ctrl-C does.

    Raises:
        SparkbookError: as `OnRay`.
    """

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    workers = OnRay(ray, say) if ray else Local(jobs)
    signal.signal(signal.SIGTERM, interrupt)  # after ray.init, which sets a handler of its own
    return workers


# ---- this machine


class Local:
    """A process a notebook, some at a time. A process that dies takes its own notebook with it and
    no other.
    """

    def __init__(self, jobs: int) -> None:
        self._slots, self._name = jobs, socket.gethostname()
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._ended: Queue[Result] = Queue()

    def nodes(self) -> dict[str, int]:
        """Return this machine alone."""
        return {self._name: self._slots}

    def start(self, job: Job, node: str) -> None:
        """Start a process and a thread that waits for it. A session of its own keeps the terminal's
        Ctrl-C from it.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        self._processes[job.name] = process
        threading.Thread(target=self._follow, args=(job, node, process), daemon=True).start()

    def _follow(self, job: Job, node: str, process: subprocess.Popen[str]) -> None:
        assert process.stdin and process.stdout and process.stderr
        errors: list[str] = []
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()), daemon=True)  # type: ignore[union-attr]
        reader.start()
        # A process that is gone already shows in what it answers. The pipe stays open: its end
        # tells the process that this one is gone.
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(asdict(job)) + "\n")
            process.stdin.flush()
        answer = process.stdout.read()
        code = process.wait()
        reader.join()
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        process.stderr.close()
        try:
            self._ended.put(Result(**json.loads(answer)))
        except ValueError:
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            last = (errors[0].strip().splitlines() or ["no output"])[-1]
            self._ended.put(
                Result(
                    job.name, node, "lost", error=f"the notebook's process ended with {how}: {last}"
                )
            )

    def finished(self, timeout: float) -> list[Result]:
        """Return what has ended."""
        found = []
        with contextlib.suppress(Empty):
            found.append(self._ended.get(timeout=timeout))
            while True:
                found.append(self._ended.get_nowait())
        for result in found:
            self._processes.pop(result.job, None)
        return found

    def stop(self) -> None:
        """Interrupt what runs, and kill what has not ended after a while; its kernel then ends by
        itself.
        """
        running = [process for process in self._processes.values() if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _GRACE_S
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()


def _main() -> int:
    """Return the process that `Local` starts: a job on standard input, a result on standard output.

    When the input ends before the job does, whoever started this is gone: it interrupts itself, and
    leaves if that does not help.
    """
    job = json.loads(sys.stdin.readline())
    # What a library prints must not get between the result and its reader.
    answer, sys.stdout = sys.stdout, sys.stderr
    threading.Thread(target=_leave_when_alone, daemon=True).start()
    try:
        result = run_job(job)
    except KeyboardInterrupt:
        return 130
    json.dump(result, answer)
    answer.flush()
    return 0


def _leave_when_alone() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(_GRACE_S)
    os._exit(130)


# ---- a Ray cluster


class OnRay:
    """A Ray task a notebook, on the nodes that have the resource `spark`.

    Ray itself does not begin a task again here (`max_retries=0`): which node a notebook has had is
    this program's to know.
    """

    def __init__(self, address: str, say: Callable[[str], None]) -> None:
        """Connect, and ask every node for its library.

        Args:
            address: of the head, `192.0.2.1:6379`, or `auto` on a machine of the cluster.
            say: for what is wrong with a node.

        Raises:
            SparkbookError: ray is not installed, there is no such cluster, no node has the
                resource, or none has this library.
        """
        # Ray reports usage to its makers unless told not to.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except ImportError:
            raise SparkbookError(
                "ray is not installed here: uv pip install 'sparkbook[ray]', the same version as on"
                " the nodes"
            ) from None
        self._ray, self._say = ray, say
        _need_listener(address)
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except Exception as error:  # noqa: BLE001 - ray raises whatever its transport does
            raise SparkbookError(
                f"no Ray cluster answers at {address}: {first_line(error)}"
            ) from None
        self._library = library_id()
        self._fit: dict[str, bool] = {}
        self._names: dict[str, str] = {}
        self._running: dict[Any, tuple[str, str]] = {}
        self._run = ray.remote(max_retries=0, num_cpus=1, resources={RESOURCE: 1})(run_job)
        try:
            if not self._sparks():
                raise SparkbookError(
                    f"no node of the cluster has the resource '{RESOURCE}': start each with ray"
                    f" start … --resources '{{\"{RESOURCE}\": 1}}'"
                )
            if not self.nodes():
                raise SparkbookError(
                    f"no node has this library ({self._library}): install the same one everywhere,"
                    " then start again"
                )
        except BaseException:
            self.stop()
            raise

    def _sparks(self) -> dict[str, int]:
        """Return the living nodes with the resource, by Ray's id; their names are kept as well."""
        found = {}
        try:
            alive = [
                node
                for node in self._ray.nodes()
                if node["Alive"] and int(node["Resources"].get(RESOURCE, 0))
            ]
        except Exception as error:  # noqa: BLE001 - ray raises whatever its transport does
            raise SparkbookError(
                f"the head of the cluster is gone ({first_line(error)}): start it, and the same"
                " line resumes"
            ) from None
        hosts = [node["NodeManagerHostname"] for node in alive]
        for node in alive:
            host, address = node["NodeManagerHostname"], node["NodeManagerAddress"]
            # Two raylets of one host are told apart by their addresses.
            self._names.setdefault(
                node["NodeID"], host if hosts.count(host) == 1 else f"{host} ({address})"
            )
            found[node["NodeID"]] = int(node["Resources"][RESOURCE])
        return found

    def nodes(self) -> dict[str, int]:
        """Return those that have this library; a new one is asked first."""
        sparks = self._sparks()
        self._ask([node for node in sparks if node not in self._fit])
        return {self._names[node]: slots for node, slots in sparks.items() if self._fit.get(node)}

    def _ask(self, nodes: list[str]) -> None:
        """Ask nodes for their library. The question travels as code, so that a node without the
        library can answer it.
        """

        def library() -> str:
            try:
                from sparkbook.runner.batch import library_id

                return library_id()
            except Exception as error:  # noqa: BLE001 - whatever keeps the library from loading is the answer
                return f"none that works ({type(error).__name__}: {error})"

        ask = self._ray.remote(max_retries=0, num_cpus=0)(library)
        asked = {node: ask.options(scheduling_strategy=self._on(node)).remote() for node in nodes}
        for node, answer in asked.items():
            try:
                found = self._ray.get(answer, timeout=60)
            except Exception as error:  # noqa: BLE001 - the node may have gone since
                self._say(
                    f"{self._names[node]} does not answer and is not used: {first_line(error)}"
                )
                self._fit[node] = False
                continue
            self._fit[node] = found == self._library
            if found != self._library:
                self._say(
                    f"{self._names[node]} is not used: its sparkbook is {found}, here it is"
                    f" {self._library}; install the same one"
                )

    def _on(self, node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return NodeAffinitySchedulingStrategy(node, soft=False)

    def start(self, job: Job, node: str) -> None:
        """Submit a task that runs on this node or not at all."""
        # Ray's id of the newest node of this name: a machine that came back has a new one.
        where = [key for key, name in self._names.items() if name == node][-1]
        task = self._run.options(scheduling_strategy=self._on(where), name=job.name).remote(
            asdict(job)
        )
        self._running[task] = (job.name, node)

    def finished(self, timeout: float) -> list[Result]:
        """Return what has ended; a task whose node or process is gone is lost."""
        if not self._running:
            time.sleep(timeout)
            return []
        ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=timeout)
        more, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
        found = []
        for task in dict.fromkeys([*ended, *more]):
            name, node = self._running.pop(task)
            try:
                found.append(Result(**{**self._ray.get(task), "node": node}))
            except Exception as error:  # noqa: BLE001 - of what kind matters little: there is no result
                found.append(Result(name, node, "lost", error=first_line(error)))
        return found

    def stop(self) -> None:
        """Cancel what runs, gently and then not, and leave the cluster."""
        with contextlib.suppress(Exception):  # the cluster may be what broke
            for task in self._running:
                self._ray.cancel(task, force=False)
            _, left = (
                self._ray.wait(
                    list(self._running), num_returns=len(self._running), timeout=_GRACE_S
                )
                if self._running
                else ([], [])
            )
            for task in left:
                self._ray.cancel(task, force=True)
        self._ray.shutdown()


def _need_listener(address: str) -> None:
    """Check that the head listens: Ray tries for minutes to reach a head that is not there.

    Raises:
        SparkbookError: nothing listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host and address == "auto":
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError, OverflowError) as error:
        raise SparkbookError(
            f"no Ray cluster answers at {address} ({error}): give the head's HOST:6379, or auto"
        ) from None


def first_line(error: BaseException) -> str:
    """Return the first line with something on it."""
    return next(
        (line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__
    )


if __name__ == "__main__":
    sys.exit(_main())
