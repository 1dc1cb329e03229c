"""The signals that end a start: Ctrl-C, a request to end, a terminal that was closed. All three
mean the same.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(KeyboardInterrupt):
    """One of `ENDS` has come; `number` says which."""

    def __init__(self, number: int):
        self.number = number
        super().__init__(signal.Signals(number).name)


def behind(error: BaseException | None) -> KeyboardInterrupt | None:
    """Return the interruption in whose clean-up an error was raised; None if it has another
    reason.
    """
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return error
        error = error.__context__
    return None


def _heard() -> list[signal.Signals]:
    """Return those that are not ignored: `nohup` ignores SIGHUP, and it stays so. Only the main
    thread gets signals, and only there can they be held back.
    """
    if threading.current_thread() is not threading.main_thread():
        return []
    return [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Raise `Interrupted` at the first of `ENDS`. From then on all are ignored, until the process
    ends, so that none cuts the clean-up short.
    """
    heard = _heard()
    before = {number: signal.getsignal(number) for number in heard}
    came = False

    def first(number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted(number)

    for number in heard:
        signal.signal(number, first)
    try:
        yield
    finally:
        if not came:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Hold `ENDS` back during a clean-up; what came meanwhile comes at its end."""
    heard = _heard()
    late: list[int] = []
    before = {number: signal.getsignal(number) for number in heard}
    for number in heard:
        signal.signal(number, lambda number, _frame: late.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if late:
            signal.raise_signal(late[0])
