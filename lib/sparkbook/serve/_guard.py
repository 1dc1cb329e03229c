"""The parent of an engine's processes: it ends them all on request, and when whoever started them
is gone.

Run as a program, with the standard library only, so that it costs a few MB:

    python -I -S _guard.py LIFELINE_FD GRACE_S COMMAND [ARGUMENT ...]

LIFELINE_FD is the reading end of a pipe whose writing end only the starter holds. When it closes,
by `stop()` or because the starter died (a notebook's kernel that was killed runs no clean-up of its
own), the command's process group gets SIGTERM and, GRACE_S seconds later, SIGKILL. The guard is a
child subreaper: descendants that left the group come back to it as orphans and are killed too. The
kernel kills the command should the guard itself be killed. Exit status: the command's own, 128 +
the signal's number where a signal ended it.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
libc = ctypes.CDLL(None, use_errno=True)


def orphans() -> list[int]:
    """Return the children of this process, read from the kernel."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123 (pathlib costs start-up time here)
        return [int(pid) for pid in file.read().split()]


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def wait_for_end(leader: subprocess.Popen, lifeline: int, woken: int) -> None:
    """Return when the command has ended by itself, the lifeline was closed, or the guard was asked
    to stop.
    """
    while leader.poll() is None:
        readable, _, _ = select.select([lifeline, woken], [], [])
        if lifeline in readable and not os.read(lifeline, 1):
            return
        if woken in readable and signal.SIGTERM in os.read(woken, 64):
            return


def end(leader: subprocess.Popen, grace_s: float) -> None:
    """End the whole group: politely, then not; then whatever descends from it."""
    if leader.poll() is None:
        signal_group(leader.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while leader.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    signal_group(leader.pid, signal.SIGKILL)
    leader.wait()
    while left := orphans():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def main() -> int:
    lifeline, grace_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leader = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    wait_for_end(leader, lifeline, woken)
    end(leader, grace_s)
    return leader.returncode if leader.returncode >= 0 else 128 - leader.returncode


if __name__ == "__main__":
    sys.exit(main())
