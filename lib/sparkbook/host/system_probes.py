"""The system: memory, processes, limits, its clock, and who listens at the port."""

from __future__ import annotations

import contextlib
import getpass
import grp
import os
import platform
import re
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkbook.host import machine as seen
from sparkbook.host.access import Access, number_in
from sparkbook.host.machine import Wanted


def system_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    release = dict(
        re.findall(r'^(\w+)="?([^"\n]*)"?$', access.text("etc/os-release") or "", re.MULTILINE)
    )
    user = access.environ.get("USER") or getpass.getuser()
    groups = []
    for number in sorted({os.getgid(), *os.getgroups()}):
        try:
            groups.append(grp.getgrgid(number).gr_name)
        except KeyError:
            continue
    system = seen.System(
        architecture=platform.machine(),
        kernel=access.text("proc/sys/kernel/osrelease") or platform.release(),
        os=release.get("PRETTY_NAME"),
        user=user,
        uid=os.getuid(),
        groups=groups,
    )
    return {"system": system, "name": socket.gethostname()}


def memory_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    meminfo = access.text("proc/meminfo")
    if meminfo is None:
        return {}
    reserve = access.text("proc/sys/vm/min_free_kbytes")
    memory = seen.MemorySeen(
        meminfo=meminfo,
        min_free_kbytes=int(reserve) if reserve and reserve.isdigit() else None,
        blocks_2mib=_blocks(access.text("proc/buddyinfo")),
    )
    _ = memory.memory  # a text without MemTotal is not kept
    return {"memory": memory}


def _blocks(buddyinfo: str | None, page: int | None = None) -> int | None:
    """Return free blocks of 2 MiB, larger ones counted as several: column n of /proc/buddyinfo
    counts free blocks of 2^n pages.
    """
    rows = [
        [int(word) for word in line.split() if word.isdigit()]
        for line in re.sub(r"^.*zone\s+\S+", "", buddyinfo or "", flags=re.M).splitlines()
    ]
    if not any(rows):
        return None
    order = (2 * 2**20 // (page or resource.getpagesize())).bit_length() - 1
    return sum(
        count << (power - order)
        for row in rows
        for power, count in enumerate(row)
        if power >= order
    )


def processes_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    asked = access.runner(
        ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    )
    rows = (
        [line.split(",") for line in asked.out.splitlines() if line.count(",") == 1]
        if asked.code == 0
        else []
    )
    held = {int(pid): number_in(size) for pid, size in rows if pid.strip().isdigit()}
    pids = sorted(int(path.name) for path in (access.root / "proc").glob("[0-9]*"))
    named = [pid for pid in pids if pid not in held and _name(access, pid).startswith("VLLM::")]
    processes = []
    for pid in sorted([*held, *named]):
        status = re.search(r"^PPid:\s*(\d+)", access.text(f"proc/{pid}/status") or "", re.MULTILINE)
        parent = int(status[1]) if status else None
        processes.append(
            seen.Process(
                pid=pid,
                name=_name(access, pid),
                parent=parent,
                parent_name=_name(access, parent) if parent else None,
                gpu_mib=held.get(pid),
            )
        )
    return {"processes": processes}


def _name(access: Access, pid: int) -> str:
    """Return a process's name: the first word of its command line, which vLLM sets, and never more:
    the rest may hold a secret.
    """
    words = (access.text(f"proc/{pid}/cmdline") or "").split("\0")
    first = words[0].split()[0] if words[0].split() else access.text(f"proc/{pid}/comm") or "?"
    name = first if first.startswith("VLLM::") else Path(first).name
    # An interpreter is called by the script that it runs.
    script = Path(words[1]).name if name.startswith("python") and len(words) > 1 else ""
    return script if script == "vllm" else name


def port_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    inodes = set()
    for name in ("proc/net/tcp", "proc/net/tcp6"):
        for line in (access.text(name) or "").splitlines()[1:]:
            words = line.split()
            # State 0A is LISTEN; the port is the part after the colon, in hexadecimal.
            if (
                len(words) > 9
                and words[3] == "0A"
                and int(words[1].rsplit(":", 1)[1], 16) == want.port
            ):
                inodes.add(words[9])
    return {
        "port": seen.Port(
            number=want.port, owner=_owner(access, want.port, inodes) if inodes else None
        )
    }


def _owner(access: Access, port: int, inodes: set[str]) -> str:
    """Return who listens: the container that publishes the port, else the process that holds the
    socket, as far as this user may see it.
    """
    from docker.errors import DockerException

    try:
        for one in access.docker().containers.list(ignore_removed=True):
            published = [
                entry
                for entries in (one.attrs["NetworkSettings"].get("Ports") or {}).values()
                for entry in entries or []
            ]
            if any(entry.get("HostPort") == str(port) for entry in published):
                return f"the container {one.name}"
    except (DockerException, OSError, LookupError):
        pass
    sockets = {f"socket:[{inode}]" for inode in inodes}
    for folder in sorted((access.root / "proc").glob("[0-9]*/fd")):
        if any(target in sockets for target in _links(folder)):
            return f"{_name(access, int(folder.parent.name))} (pid {folder.parent.name})"
    return "another user's program"


def _links(folder: Path) -> Iterator[str]:
    """Yield where a process's open files lead; those that this user may not see, or that are closed
    meanwhile, are left out.
    """
    try:
        files = sorted(folder.iterdir())
    except OSError:
        return
    for file in files:
        with contextlib.suppress(OSError):
            yield str(file.readlink())


def limits_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    shm = access.root / "dev/shm"
    space = os.statvfs(shm) if shm.is_dir() else None
    system = found["system"]
    logind = (access.root / "run/systemd/system").is_dir()
    lines = [access.text("etc/systemd/logind.conf") or ""]
    lines += [
        access.text(f"etc/systemd/logind.conf.d/{path.name}") or ""
        for path in sorted((access.root / "etc/systemd/logind.conf.d").glob("*.conf"))
    ]
    said = re.findall(r"^\s*RemoveIPC\s*=\s*(\w+)", "\n".join(lines), re.MULTILINE)
    earlyoom = None
    for folder in (access.root / "proc").glob("[0-9]*"):
        words = (access.text(f"proc/{folder.name}/cmdline") or "").split("\0")
        if Path(words[0]).name == "earlyoom":
            earlyoom = " ".join(words[1:]).strip()
    hard = {
        name: resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
        for name in ("MEMLOCK", "NOFILE")
    }
    return {
        "limits": seen.Limits(
            shm_bytes=space.f_blocks * space.f_frsize if space else None,
            shm_free_bytes=space.f_bavail * space.f_frsize if space else None,
            memlock_bytes=hard["MEMLOCK"],
            nofile=hard["NOFILE"] if hard["NOFILE"] > 0 else None,
            remove_ipc=(
                (not said or said[-1].lower() in ("yes", "true", "1", "on")) if logind else None
            ),
            linger=(
                (access.root / "var/lib/systemd/linger" / system.user).exists() if logind else None
            ),
            earlyoom=earlyoom,
        )
    }


def time_probe(access: Access, want: Wanted, found: dict[str, Any]) -> dict[str, Any]:
    asked = access.runner(["timedatectl", "show", "--property=NTPSynchronized", "--value"])
    return {
        "time": seen.Time(
            synchronized=asked.out == "yes" if asked.code == 0 and asked.out else None
        )
    }
