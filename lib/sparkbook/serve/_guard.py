"""The parents of an engine's processes: they end them all on request, and when whoever started them
is gone.

Run as a program, with the standard library only, so that it costs a few MB:

    python -I -S _guard.py LIFELINE_FD GRACE_S COMMAND [ARGUMENT ...]

LIFELINE_FD is the reading end of a pipe whose writing end only the starter holds. When it closes,
by `stop()` or because the starter died (a notebook's kernel that was killed runs no clean-up of its
own), the command's process group gets SIGTERM and, GRACE_S seconds later, SIGKILL.

There are three processes: the guard, which the starter knows, and its children, the keeper, which
starts the command, and the reaper. Guard and keeper are child subreapers; each of the three is in a
process group of its own. Whoever is left ends the rest:

- guard killed: the kernel sends SIGTERM to the keeper, which ends the command's group, and then
  kills the descendants that left the group and came back to it as orphans.
- keeper killed: the kernel kills the command. Its descendants come to the guard as orphans, which
  kills them.
- both killed at once: the kernel kills the command and closes the last writing end of the reaper's
  pipe. The reaper kills the command's control group (cgroup v2), where the guard could make one;
  elsewhere all processes of the command's session, and those whose standard output is the
  command's log.

What the command leaves when it is killed goes with it: its files in shared memory, which the guard
notes while it runs, and its sockets, which have a folder of their own (VLLM_RPC_BASE_PATH).

While the guard ends the command its name is `stopping`. Exit status: the command's own, 128 + the
signal's number where a signal ended it.
"""

import contextlib
import ctypes
import os
import select
import signal
import stat
import subprocess
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
HEARD = (signal.SIGTERM, signal.SIGCHLD)
ROUNDS = 200
LOOK_S = 5.0
"""Seconds between two looks at what the command has in shared memory."""
SHARED = "/dev/shm/"
OPENMP = "__KMP_REGISTERED_LIB_"
ANYBODYS = ("psm_", "sem.mp-", "torch_", "nccl-", OPENMP)
"""How Python, PyTorch, NCCL and OpenMP begin the names of their files there. What a user shares
with an engine under another name stays.
"""
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


def control_group() -> str | None:
    """Make a control group for the command and return its folder; None where there is no cgroup v2,
    or this user may not make one.
    """
    try:
        with open("/proc/self/mounts") as file:  # noqa: PTH123
            mounts = [line.split()[1] for line in file if line.split()[2] == "cgroup2"]
        with open("/proc/self/cgroup") as file:  # noqa: PTH123
            own = [line.strip()[3:] for line in file if line.startswith("0::")]
        parent = f"{mounts[0]}{own[0].rstrip('/')}"
        for name in os.listdir(parent):  # noqa: PTH208
            # Left by a guard that was killed together with its reaper.
            if name.startswith("sparkbook-") and not os.path.exists(f"/proc/{name[10:]}"):  # noqa: PTH110
                with contextlib.suppress(OSError):
                    os.rmdir(f"{parent}/{name}")  # noqa: PTH106
        folder = f"{parent}/sparkbook-{os.getpid()}"
        os.mkdir(folder)  # noqa: PTH102
        return folder
    except (OSError, IndexError):
        return None


def write(file: str, text: str) -> None:
    with contextlib.suppress(OSError), open(file, "w") as opened:  # noqa: PTH123
        opened.write(text)


def enter(group: str | None) -> None:
    """Prepare the command's process: it dies with the keeper, and is in the control group."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if group:
        write(f"{group}/cgroup.procs", "0")


def left_of(session: int) -> list[int]:
    """Return the processes of a session, and those whose standard output is this process's own, if
    that is a file.
    """
    log, left = os.fstat(1), []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):  # noqa: PTH208
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123
                state, _, _, its_session, *_ = file.read().rpartition(")")[2].split()
            if pid == os.getpid() or state in "ZX":
                continue
            output = os.stat(f"/proc/{pid}/fd/1")  # noqa: PTH116
            same = stat.S_ISREG(log.st_mode) and os.path.samestat(output, log)
            if same or int(its_session) == session:
                left.append(pid)
    return left


def reap(reading: int, group: str | None) -> int:
    """Wait until guard and keeper are gone, and end what they left: what the reaper does."""
    told = b""
    while part := os.read(reading, 64):
        told += part
    if group:
        write(f"{group}/cgroup.kill", "1")
    for _ in range(ROUNDS):
        left = left_of(int(told or b"-1"))
        if not left:
            break
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    leave(group)
    return 0


def leave(group: str | None) -> None:
    """Remove the control group, once the processes that were killed have left it."""
    for _ in range(ROUNDS):
        if not group or not os.path.isdir(group):  # noqa: PTH112
            return
        with contextlib.suppress(OSError):
            os.rmdir(group)  # noqa: PTH106
            return
        time.sleep(0.05)


def make_own(folder: str) -> str:
    """Make a folder of sockets and return it. What is there already is somebody else's, perhaps a
    link to what must not be removed: then "", and the command has its sockets where it wants.
    """
    try:
        os.mkdir(folder, 0o700)  # noqa: PTH102
    except OSError:
        return ""
    return folder


def remove(folder: str) -> None:
    """Remove a folder of sockets that `make_own` made."""
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            os.unlink(f"{folder}/{name}")  # noqa: PTH108
        os.rmdir(folder)  # noqa: PTH106


def descendants() -> set[int]:
    """Return the ids of the processes below this one."""
    below, ask = set(), [os.getpid()]
    while ask:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{ask[-1]}/task"):  # noqa: PTH208
                with open(f"/proc/{ask[-1]}/task/{thread}/children") as file:  # noqa: PTH123
                    ask[:0] = children = [int(pid) for pid in file.read().split()]
                    below |= set(children)
        ask.pop()
    return below


class Shared:
    """The files in shared memory of the processes below this one: what they map, by inode, since a
    semaphore is renamed once it is mapped; and what OpenMP names after them.
    """

    def __init__(self) -> None:
        self.before, self.own = set(self.names()), set[tuple[str, int]]()

    def names(self) -> list[str]:
        with contextlib.suppress(OSError):
            return [name for name in os.listdir(SHARED) if name.startswith(ANYBODYS)]  # noqa: PTH208
        return []

    def look(self) -> None:
        """Note what they have now."""
        for pid in descendants():
            self.own.add((f"{OPENMP}{pid}_{os.getuid()}", 0))
            with contextlib.suppress(OSError), open(f"/proc/{pid}/maps") as file:  # noqa: PTH123
                words = [line.split() for line in file if SHARED in line]
                self.own |= {(device, int(inode)) for _, _, _, device, inode, *_ in words}

    def remove(self) -> None:
        """Remove what they left."""
        # What has a process's number in its name is that process's, or was left by an older one.
        older = self.before - {name for name, _ in self.own}
        for name in set(self.names()) - older:
            with contextlib.suppress(OSError):
                found = os.stat(SHARED + name)  # noqa: PTH116
                device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
                if {(name, 0), (device, found.st_ino)} & self.own:
                    os.unlink(SHARED + name)  # noqa: PTH108


def keep(command: list[str], grace_s: float, reaper: int, group: str | None) -> int:
    """Run the command until it ends by itself or SIGTERM asks for its end, and leave nothing of it:
    what the keeper does. Return the command's exit status.
    """
    woken = hear()
    leader = subprocess.Popen(command, start_new_session=True, preexec_fn=lambda: enter(group))
    os.write(reaper, str(leader.pid).encode())
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
    woken, asked, own = hear(), False, Shared()
    while True:
        ended, status = os.waitpid(keeper, os.WNOHANG)
        if ended:
            kill_orphans()
            own.remove()
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        readable, _, _ = select.select([woken] if asked else [woken, lifeline], [], [], LOOK_S)
        own.look()
        signals = signals_in(woken)
        over = lifeline in readable and not os.read(lifeline, 1)
        if not asked and (over or signal.SIGTERM in signals):
            asked = True
            libc.prctl(PR_SET_NAME, b"stopping", 0, 0, 0)
            os.kill(keeper, signal.SIGTERM)


def main() -> int:
    lifeline, grace_s, command = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
    if sockets := make_own(f"/tmp/sparkbook-{os.getpid()}"):
        os.environ.setdefault("VLLM_RPC_BASE_PATH", sockets)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Until each of the two has a pipe of its own for them.
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)
    first, group = os.getpid(), control_group()
    reading, writing = os.pipe()  # guard and keeper hold the writing end
    if not os.fork():
        os.close(lifeline)
        os.close(writing)
        os.setsid()
        libc.prctl(PR_SET_NAME, b"reaper", 0, 0, 0)
        return reap(reading, group)
    os.close(reading)
    keeper = os.fork()
    if keeper:
        status = guard(keeper, lifeline)
        leave(group)
        if sockets:
            remove(sockets)
        return status
    os.close(lifeline)
    os.setsid()
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    # A guard that was killed before the line above gives no signal.
    return keep(command, grace_s, writing, group) if os.getppid() == first else 1


if __name__ == "__main__":
    sys.exit(main())
