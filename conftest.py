"""For the whole run: one engine for the notebooks that attach to it, as `make book` has.

nbval runs each notebook in a kernel of its own; they find the engine through the environment, which kernels inherit.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

_ENGINE = pytest.StashKey[contextlib.ExitStack]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the engine if a collected notebook attaches to one, and none is named already."""
    if session.config.option.collectonly or os.environ.get("SPARKBOOK_ENDPOINT"):
        return
    paths = {item.path for item in session.items if item.path.suffix == ".ipynb"}
    if any(_attaches(path) for path in paths):
        from sparkbook.book.build import BOOK_ENGINE
        from sparkbook.serve import embedded

        stack = session.config.stash[_ENGINE] = contextlib.ExitStack()
        engine = stack.enter_context(embedded.start(BOOK_ENGINE))
        os.environ.update(engine.environment())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop it."""
    if (stack := session.config.stash.get(_ENGINE, None)) is not None:
        stack.close()


def _attaches(path: Path) -> bool:
    from sparkbook.book import notebooks

    return notebooks.engine_of(path) == "attach"
