"""A node's part of a tuning over several Sparks: it measures what `crew.Nodes` sends."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, TextIO

from sparkbook.errors import SparkbookError
from sparkbook.recipes import Recipe
from sparkbook.tune import measuring
from sparkbook.tune import space as spaces
from sparkbook.tune.answer import Asking
from sparkbook.tune.crew import Alone, Job
from sparkbook.tune.measuring import Plans, Starter
from sparkbook.tune.space import Load


def work(source: TextIO, out: TextIO) -> None:
    """Measure until the input ends, which stops a server that runs.

    Args:
        source: a line about the recipe and its load, then one for each start.
        out: a line for each outcome, and for what there is to say.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def write(kind: str, value: Any) -> None:
        out.write(json.dumps([kind, value]) + "\n")
        out.flush()

    orders = _Orders(source)
    orders.start()
    try:
        hello = json.loads(orders.next())
        recipe = Recipe.model_validate(hello["recipe"])
        plans = Plans(recipe, Load.model_validate(hello["load"]), hello["seed"])
        say = partial(write, "say")
        starter = Starter(partial(measuring.start, say=say), measuring.measure, say)
        asking = Asking(plans, starter.measure, recipe.capabilities.tools)
        alone = Alone(starter, plans, asking)
        while line := orders.next():
            job = json.loads(line)
            alone.send(None, Job(spaces.changed(recipe, job["changes"]), job["stage"], job["size"]))
            with orders.stoppable():
                outcome = alone.receive()
            write("outcome", outcome.model_dump(mode="json", by_alias=True, exclude_none=True))
    except KeyboardInterrupt:
        return
    except SparkbookError as error:
        write("error", str(error))


class _Orders(threading.Thread):
    """The lines of the input; its end interrupts what runs then, and nothing else."""

    def __init__(self, source: TextIO):
        super().__init__(daemon=True)
        self._source = source
        self._lines: queue.Queue[str] = queue.Queue()
        self._over, self._busy = threading.Event(), threading.Event()

    def run(self) -> None:
        for line in self._source:
            self._lines.put(line)
        self._lines.put("")
        self._over.set()
        if self._busy.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    def next(self) -> str:
        """Wait for the next line; empty: the input has ended."""
        return self._lines.get()

    @contextlib.contextmanager
    def stoppable(self) -> Iterator[None]:
        """Let the end of the input raise KeyboardInterrupt in here."""
        self._busy.set()
        if self._over.is_set():
            raise KeyboardInterrupt
        try:
            yield
        finally:
            self._busy.clear()
