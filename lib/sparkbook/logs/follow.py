"""A log that is still being written: so that a fatal line ends a wait, with its diagnosis, instead
of the deadline.
"""

from __future__ import annotations

from sparkbook.logs.doctor import Diagnosis, Doctor
from sparkbook.logs.facts import Facts
from sparkbook.logs.signatures import signatures


class Follower:
    """Judges a log as it grows. Whoever owns the engine reads its output and gives the bytes;
    nothing here reads or waits.

    >>> follower = Follower()
    >>> follower.fault(b"INFO 11-28 10:00:00 [x.py:1] loading\\nOSError: [Errno 98] Address al")
    >>> follower.fault(b"ready in use\\n", ended=True).primary.kind
    'port-in-use'
    """

    def __init__(self, facts: Facts | None = None):
        self._doctor = Doctor(facts)
        self._rest = b""

    def fault(self, new: bytes, *, ended: bool = False) -> Diagnosis | None:
        """Take in what was printed since the last call; the diagnosis, once there is a fault that
        no start survives.

        Args:
            new: the bytes printed since; may end in the middle of a line.
            ended: whether the engine is gone. Only then are echoes of a fault, and what no
                signature knows, taken as the answer: while it lives, its own words may still come.
        """
        whole, newline, rest = (self._rest + new).rpartition(b"\n")
        if ended:
            whole, newline, rest = whole + newline + rest, b"", b""
        self._rest = rest
        if whole:
            self._doctor.feed(whole + newline, more=not ended)
        if ended or not new:
            # Nothing has come since the last look: whatever was waiting for its end has it.
            self._doctor.flush()
        diagnosis = self._doctor.diagnosis()
        primary = diagnosis.primary
        if primary is None:
            return None
        signature = signatures().get(primary.rule)
        settled = primary.kind is not None and not (signature and signature.echo == "vanished")
        return diagnosis if ended or settled else None

    def diagnosis(self) -> Diagnosis:
        """What the log says so far."""
        return self._doctor.diagnosis()
