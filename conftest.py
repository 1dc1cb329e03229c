"""For the whole run: what runs beside what, and one engine for the notebooks that attach to one, as `make book` has.

nbval runs each notebook in a kernel of its own; kernels find the engine through the environment, which they inherit.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Where the run was started in the background of a script, SIGINT is ignored, and so it would be by every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_ENGINE = pytest.StashKey[contextlib.ExitStack]()


class _Rooms(LoadScopeScheduling):
    """Shares the tests out by file among the processes of `-n 2`, and keeps in one process, one after the other, what must not run at once.

    That is everything that starts a vLLM (a core and gigabytes each), and everything that looks at the one built site.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return _room(self.config.rootpath / file)


@functools.cache
def _room(file: Path) -> str:
    if file.suffix == ".ipynb":
        return "engine"
    source = file.read_text("utf-8")
    if "mark.engine" in source or "mark.cluster" in source:
        return "engine"
    return "site" if "small_book" in source or "small_site" in source else file.as_posix()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer | None) -> _Rooms:
    """(The group marks of xdist 3.8 do nothing under pytest 9.2, whose node ids can't be changed.)"""
    return _Rooms(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start the engine before the first cell of a notebook that attaches to one, unless one is named already."""
    if item.path.suffix != ".ipynb" or os.environ.get("SPARKBOOK_ENDPOINT") or not _attaches(item.path):
        return
    from sparkbook.book.build import BOOK_ENGINE
    from sparkbook.serve import embedded

    stack = item.config.stash[_ENGINE] = contextlib.ExitStack()
    engine = stack.enter_context(embedded.start(BOOK_ENGINE))
    os.environ.update(engine.environment())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop it."""
    if (stack := session.config.stash.get(_ENGINE, None)) is not None:
        stack.close()


@functools.cache
def _attaches(path: Path) -> bool:
    from sparkbook.book import notebooks

    return notebooks.engine_of(path) == "attach"
