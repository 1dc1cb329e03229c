"""For the whole run: what runs beside what, and one engine for the notebooks that attach to one, as
`make book` has.

nbval runs each notebook in a kernel of its own; kernels find the engine through the environment,
which they inherit.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from sparkbook.runner.pages import Page

sys.path.insert(0, str(Path(__file__).parent / "tests"))  # for modules that only tests use
pytest_plugins = ["needs"]

# Where the run was started in the background of a script, SIGINT is ignored, and so it would be by
# every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_STARTS = re.compile(r"mark\.(?:browser|docker|kernel|monitor|nvcc|proxies|site|slow|systemd)")
_ENGINE = pytest.StashKey[contextlib.ExitStack]()


class _Rooms(LoadScopeScheduling):
    """Shares the tests out by file among the processes of `-n 2`, and keeps in one process, one
    after the other, what must not run at once.

    That is everything that starts a vLLM (a core and gigabytes each), and everything that looks at
    the one built site.
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


@functools.cache
def _place(file: Path) -> int:
    """Return when a file's turn is: the rooms first, what starts something, and then the rest."""
    if (room := _room(file)) in ("engine", "site"):
        return ("engine", "site").index(room)
    return 2 if _STARTS.search(file.read_text("utf-8")) else 3


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what takes minutes before what takes moments, so that the processes of `-n 2` end
    together.
    """
    items.sort(key=lambda item: _place(item.path))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer | None) -> _Rooms:
    """Return the scheduler. (xdist 3.8's group marks do nothing under pytest 9.2.)"""
    config.option.loadscopereorder = False  # it takes files with few tests for quick ones
    return _Rooms(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make test AS_BUILT=1`."""
    said = (
        "hold the committed outputs to those of the run that `make book` made, for each chapter of"
        " which nothing has changed since"
    )
    parser.addoption("--as-built", action="store_true", help=said)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the first cell of a notebook: where the build's run is asked for, and still good,
    nbval gets it in place of a kernel.

    Else nbval runs the notebook, and one that attaches to an engine gets one, unless one is named
    already.
    """
    if item.path.suffix != ".ipynb":
        return
    if item.config.getoption("as_built") and (executed := _built(item.path)):
        file = item.parent
        if file.kernel is None:  # its own set-up would start one
            file.kernel = _AsBuilt(executed)
            file.setup = file.setup_sanitize_files
    elif not os.environ.get("SPARKBOOK_ENDPOINT") and _attaches(item.path):
        from sparkbook.runner import shared_engine
        from sparkbook.serve import embedded

        stack = item.config.stash[_ENGINE] = contextlib.ExitStack()
        engine = stack.enter_context(embedded.start(shared_engine.RECIPE))
        os.environ.update(engine.environment())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop it."""
    if (stack := session.config.stash.get(_ENGINE, None)) is not None:
        stack.close()


class _AsBuilt:
    """What nbval asks of a kernel, told from a notebook that was run before: each cell's outputs,
    as the messages they came in.
    """

    def __init__(self, executed: Path) -> None:
        self._cells = iter(
            [cell for cell in nbformat.read(executed, 4).cells if cell.cell_type == "code"]
        )
        self._messages: collections.deque[dict[str, Any]] = collections.deque()

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> str:
        cell = next(self._cells)
        assert cell.source == source, "the build ran another cell"
        said = [(output.output_type, output) for output in cell.outputs]
        for kind, content in [*said, ("status", {"execution_state": "idle"})]:
            self._messages.append(
                {"msg_type": kind, "content": content, "parent_header": {"msg_id": cell.id}}
            )
        return cell.id

    def get_message(self, stream: str, timeout: float | None = None) -> dict[str, Any]:
        return self._messages.popleft()

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        pass

    def is_alive(self) -> bool:
        return True

    def stop(self) -> None:
        pass


def _built(path: Path) -> Path | None:
    """The chapter as `make book` ran it; None where it did not, or something has changed since."""
    page = _chapters().get(path)
    return page.out if page and page.is_fresh() else None


@functools.cache
def _chapters() -> dict[Path, Page]:
    from sparkbook.runner import pages, project

    return {page.source: page for page in pages.chapters(project.here(), "auto")}


@functools.cache
def _attaches(path: Path) -> bool:
    from sparkbook.runner import notebooks

    return notebooks.engine_of(path) == "attach"
