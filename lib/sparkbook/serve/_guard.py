"""The parents of an engine's processes: they end them all on request, and when whoever started them
is gone.

Run as a program, with the standard library only, so that it costs a few MB:

    python -I -S _guard.py LIFELINE_FD GRACE_S COMMAND [ARGUMENT ...]

LIFELINE_FD is the reading end of a pipe whose writing end only the starter holds. When it closes,
by `stop()` or because the starter died (a notebook's kernel that was killed runs no clean-up of its
own), the command's process group gets SIGTERM and, GRACE_S seconds later, SIGKILL.

There are two processes: the guard, which the starter knows, and its child, the keeper, which starts
the command. Each is a child subreaper in a process group of its own, and outlives the other just
long enough to end what is left:

- guard killed: the kernel sends SIGTERM to the keeper, which ends the command's group, and then
  kills the descendants that left the group and came back to it as orphans.
- keeper killed: the kernel kills the command. Its descendants come to the guard as orphans, which
  kills them.

Who kills both at once leaves the command's descendants to themselves. While the guard ends the
command its name is `stopping`. Exit status: the command's own, 128 + the signal's number where a
signal ended it.
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
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
HEARD = (signal.SIGTERM, signal.SIGCHLD)
libc = ctypes.CDLL(None, use_errno=True)


def hear() -> int:
    """Return the reading end of a pipe that gets the number of each signal of `HEARD`."""
    woken, waker = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    for number in HEARD:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HEARD)
    return woken


def signals_in(woken: int) -> bytes:
    """Return the numbers of the signals that came since the last call."""
    with contextlib.suppress(BlockingIOError):
        return os.read(woken, 64)
    return b""


def signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_orphans() -> None:
    """Kill all children of this process, and those that become its children by that."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123 (pathlib costs start-up time here)
            left = [int(pid) for pid in file.read().split()]
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def keep(command: list[str], grace_s: float) -> int:
    """Run the command until it ends by itself or SIGTERM asks for its end, and leave nothing of it:
    what the keeper does. Return the command's exit status.
    """
    woken = hear()
    leader = subprocess.Popen(
        command,
        start_new_session=True,
        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
    )
    while leader.poll() is None:
        select.select([woken], [], [])
        if signal.SIGTERM in signals_in(woken):
            break
    if leader.poll() is None:
        signal_group(leader.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while leader.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
    signal_group(leader.pid, signal.SIGKILL)
    leader.wait()
    kill_orphans()
    return leader.returncode if leader.returncode >= 0 else 128 - leader.returncode


def guard(keeper: int, lifeline: int) -> int:
    """Hand the starter's end, and SIGTERM, on to the keeper, and see to what it leaves. Return its
    exit status.
    """
    woken, asked = hear(), False
    while True:
        ended, status = os.waitpid(keeper, os.WNOHANG)
        if ended:
            kill_orphans()
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        readable, _, _ = select.select([woken] if asked else [woken, lifeline], [], [])
        signals = signals_in(woken)
        over = lifeline in readable and not os.read(lifeline, 1)
        if not asked and (over or signal.SIGTERM in signals):
            asked = True
            libc.prctl(PR_SET_NAME, b"stopping", 0, 0, 0)
            os.kill(keeper, signal.SIGTERM)


def main() -> int:
    lifeline, grace_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Until each of the two has a pipe of its own for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    first = os.getpid()
    keeper = os.fork()
    if keeper:
        return guard(keeper, lifeline)
    os.close(lifeline)
    os.setsid()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # A guard that was killed before the line above gives no signal.
    return keep(command, grace_s) if os.getppid() == first else 1


if __name__ == "__main__":
    sys.exit(main())
