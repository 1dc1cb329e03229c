"""What every engine can do: be watched, waited for, read and stopped. Two start one themselves,
`process` and `docker`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from sparkbook.errors import SparkbookError
from sparkbook.recipes.schema import Capabilities
from sparkbook.serve.endpoint import ADDRESS_VARIABLE, KEY_FILE_VARIABLE, Endpoint
from sparkbook.serve.ready import Readiness, wait_ready


class EngineError(SparkbookError):
    """The engine could not be started, or ended by itself. `log_tail` holds the last lines it
    printed.
    """

    def __init__(self, message: str, log_tail: list[str] | None = None):
        self.log_tail = log_tail or []
        lines = "".join(f"\n    {line}" for line in self.log_tail)
        super().__init__(message + (f"\nthe last lines of its log:{lines}" if lines else ""))


class Engine:
    """A running engine. Use it as a context manager, or call `stop()`.

    Attributes:
        name: what `sparkbook status`, `logs` and `stop` call it.
        endpoint: where it answers.
        log_file: what it prints, from its first line on.
        key_file: the API key, readable by its owner alone.
        readiness: the timed stages of the start, once `wait_ready` has returned.
        already: whether it was up before it was asked for.
    """

    name: str
    endpoint: Endpoint
    log_file: Path
    key_file: Path
    readiness: Readiness | None = None
    already = False
    _read = 0  # how far `printed` has read the log

    @property
    def running(self) -> bool:
        """Whether it is still there."""
        raise NotImplementedError

    def listens(self) -> bool:
        """Return whether it is this engine that listens at its address.

        Raises:
            Stranger: another program does.
        """
        raise NotImplementedError

    @property
    def exit_status(self) -> int | None:
        """Exit status, 128 + N after signal N; None while the engine runs."""
        raise NotImplementedError

    def stop(self) -> None:
        """End it and wait until it is gone. Calling it again does nothing."""
        raise NotImplementedError

    def kill(self) -> None:
        """End it at once, without asking: what a watchdog does."""
        raise NotImplementedError

    @property
    def port(self) -> int:
        """The port it answers on."""
        return int(self.endpoint.url.rsplit(":", 1)[1])

    def printed(self) -> bytes:
        """Return what it printed since the last call."""
        with contextlib.suppress(OSError), self.log_file.open("rb") as log:
            log.seek(self._read)
            new = log.read()
            self._read += len(new)
            return new
        return b""

    def tail(self, lines: int = 15) -> list[str]:
        """Return the last lines of the log that say something."""
        with contextlib.suppress(OSError):
            text = (
                self.log_file.read_bytes()[-64_000:].decode("utf-8", "replace").replace("\r", "\n")
            )
            return [line.rstrip() for line in text.splitlines() if line.strip()][-lines:]
        return []

    def wait_ready(
        self,
        claims: Capabilities | None = None,
        *,
        requests: bool = True,
        deadline_s: float = 300.0,
        progress: Callable[[str], None] | None = None,
    ) -> Readiness:
        """Wait until it answers a real request; see `sparkbook.serve.ready.wait_ready`. An engine
        that fails to get ready is stopped.
        """
        try:
            self.readiness = wait_ready(
                self.endpoint,
                claims,
                process=self,
                requests=requests,
                deadline_s=deadline_s,
                progress=progress,
            )
        except BaseException:
            self.stop()
            raise
        return self.readiness

    def environment(self) -> dict[str, str]:
        """Return the variables with which another process, such as a kernel, attaches to it."""
        return {ADDRESS_VARIABLE: self.endpoint.url, KEY_FILE_VARIABLE: str(self.key_file)}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
