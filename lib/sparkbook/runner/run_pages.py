"""Run notebooks: what is stale in the order in which it disturbs least, and the committed ones in
place.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import psutil

from sparkbook.errors import SparkbookError
from sparkbook.runner import notebooks, shared_engine
from sparkbook.runner.notebooks import Failure
from sparkbook.runner.pages import Page, Target, select
from sparkbook.runner.project import Project
from sparkbook.units import format_seconds

PAGES_AT_ONCE = 2
"""How many pages that measure nothing run side by side."""

_GRACE_S = 15.0


class BuildLocked(SparkbookError):
    """Another build is at work on this checkout."""


@dataclass
class Outcome:
    """What a build did.

    Attributes:
        failures: page → why it did not run to its end.
        problems: what is wrong with the site: a warning, a link that leads nowhere, a page that is
            missing.
        ran, fresh: how many pages were run, and how many were still good.
        site: the site's folder, where one was published.
    """

    failures: dict[str, Failure] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    ran: int = 0
    fresh: int = 0
    site: Path | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong."""
        return not self.failures and not self.problems


def refresh(project: Project, only: str | None = None, out: TextIO | None = None) -> Outcome:
    """Run the committed notebooks again with their defaults, in place, the template among them.

    Raises:
        BuildLocked, SparkbookError, KeyboardInterrupt: as `build`.
    """
    with locked(project):
        sources = sorted((project.root / "notebooks").glob("[!.]*.ipynb"))
        wanted = select(
            [
                Page(
                    path.stem,
                    path,
                    path,
                    {},
                    notebooks.engine_of(path),
                    "",
                    measures=notebooks.measures(path),
                )
                for path in sources
            ],
            only,
        )
        outcome = Outcome()
        run_all(wanted, "auto", outcome, Progress(len(wanted), out or sys.stdout), record=False)
        return outcome


@contextlib.contextmanager
def locked(project: Project) -> Iterator[None]:
    """Keep other builds out of this checkout. The lock goes with the process, however it ends.

    Raises:
        BuildLocked: another process holds it.
    """
    project.build.mkdir(parents=True, exist_ok=True)
    with (project.build / ".lock").open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            raise BuildLocked(
                f"process {holder} is already building the book: wait for it, or stop it"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


class Progress:
    """One line a page."""

    def __init__(self, total: int, out: TextIO) -> None:
        self._total, self._out, self._done = total, out, 0

    def line(self, page: Page, text: str) -> None:
        self._done += 1
        self.say(f"[{self._done:>{len(str(self._total))}}/{self._total}] {page.name} … {text}")

    def say(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def run_all(
    stale: list[Page], target: Target, outcome: Outcome, progress: Progress, *, record: bool = True
) -> None:
    """Run the pages that can share the machine, several at a time; then those that measure an
    engine, one at a time.

    The engine that chapters attach to starts during the first part.
    """
    attached = [page for page in stale if page.engine == "attach" and target != "plan"]
    alone = [page for page in stale if page.measures and page not in attached]
    # A start takes longest, so chapters that start an engine begin; the many short pages then fill
    # up whichever core is free.
    company = sorted(
        (page for page in stale if page not in attached and page not in alone),
        key=lambda page: page.engine == "none",
    )
    runner = _Runner(target, outcome, progress, record)
    with shared_engine.starting(progress.say) if attached else contextlib.nullcontext() as starting:
        runner.run(company, PAGES_AT_ONCE)
        if attached:
            try:
                with shared_engine.running(progress.say, starting):
                    runner.run(attached, at_once=1)
            except (SparkbookError, OSError) as error:
                for page in attached:
                    if page.name not in runner.finished:
                        runner.give_up(page, Failure(0, "", f"the engine did not start: {error}"))
    runner.run(alone, at_once=1)


class _Runner:
    """Runs notebooks in threads, so that Ctrl-C reaches this one, which then stops the kernels."""

    def __init__(self, target: Target, outcome: Outcome, progress: Progress, record: bool) -> None:
        self._target, self._outcome, self._progress, self._record = (
            target,
            outcome,
            progress,
            record,
        )
        self.finished: set[str] = set()
        self._stop = threading.Event()

    def run(self, todo: list[Page], at_once: int) -> None:
        if not todo:
            return
        at_once = min(at_once, len(todo))
        # Imported here once: two threads that import it at the same time get in each other's way.
        import papermill  # noqa: F401

        with ThreadPoolExecutor(at_once, thread_name_prefix="page") as pool:
            futures: dict[Future[tuple[Failure | None, float]], Page] = {}
            try:
                futures = {pool.submit(self._run_one, page, at_once == 1): page for page in todo}
                waiting = set(futures)
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._report(futures[future], *future.result())
            except BaseException:
                self._stop.set()
                for future in futures:
                    future.cancel()
                _stop_kernels(lambda: all(future.done() for future in futures))
                raise

    def _run_one(self, page: Page, bar: bool) -> tuple[Failure | None, float]:
        began = time.monotonic()
        page.forget()
        show = bar and sys.stderr.isatty() and not notebooks.in_ci()
        plan = self._target == "plan"
        failure = notebooks.execute(
            page.source, page.out, page.values, plan=plan, progress=show, stop=self._stop
        )
        return failure, time.monotonic() - began

    def _report(self, page: Page, failure: Failure | None, seconds: float) -> None:
        self.finished.add(page.name)
        self._outcome.ran += 1
        if failure:
            self._outcome.failures[page.name] = failure
            self._progress.line(page, f"FAILED after {format_seconds(seconds)}")
            self._progress.say(f"        {failure}")
            return
        if self._record:
            page.remember()
        self._progress.line(page, format_seconds(seconds))

    def give_up(self, page: Page, failure: Failure) -> None:
        """Publish a page that could not start: its text, with a note and without outputs."""
        import nbformat

        self.finished.add(page.name)
        self._outcome.failures[page.name] = failure
        self._progress.line(page, "FAILED, not started")
        self._progress.say(f"        {failure}")
        if page.out == page.source:
            return
        page.forget()
        notebook = notebooks.without_outputs(nbformat.from_dict(notebooks.read(page.source)))
        notebook.cells.insert(1, nbformat.v4.new_markdown_cell(notebooks.failure_note(failure)))
        notebooks.normalise(notebook)
        page.out.parent.mkdir(parents=True, exist_ok=True)
        page.out.write_text(nbformat.writes(notebook), "utf-8")


def _stop_kernels(finished: Callable[[], bool]) -> None:
    """Interrupt the kernels that this process started, so that what their cells hold open is
    closed; then end them.

    Kernels run in process groups of their own, so the terminal's Ctrl-C does not reach them.
    """
    deadline = time.monotonic() + _GRACE_S
    interrupted: set[int] = set()
    while not finished():
        late = time.monotonic() > deadline
        for kernel in _kernels():
            # One may only now come up, in a thread that was starting it.
            with contextlib.suppress(psutil.Error):
                if late:
                    kernel.kill()
                elif kernel.pid not in interrupted:
                    kernel.send_signal(signal.SIGINT)
                    interrupted.add(kernel.pid)
        time.sleep(0.1)


def _kernels() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any("ipykernel" in word for word in child.cmdline()):
                found.append(child)
    return found
