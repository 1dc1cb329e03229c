"""Looks at the machine and the engine once in a while and prints what it sees, one JSON line a
sample. Standard library only.

It is a process of its own, so that it takes no time from the measuring client:
`python _sampler.py INTERVAL_S [METRICS_URL]`; the API key comes in SPARKBOOK_SAMPLER_KEY. It ends
with its parent.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

FIELDS = (
    "clocks.sm",
    "clocks.max.sm",
    "power.draw",
    "temperature.gpu",
    "utilization.gpu",
    "clocks_event_reasons.active",
)
WHOLE_S, MOST_BYTES = 5.0, 4 * 2**20
"""Of one page of metrics."""
_GAUGE = re.compile(r"^vllm:(num_requests_running|num_requests_waiting)(?:\{[^}]*\})? (\S+)", re.M)


def watch_gpu(interval_s: float, latest: dict[int, list[str]]) -> None:
    """Keep the newest line of each GPU; ends at once where there is no nvidia-smi."""
    command = [
        "nvidia-smi",
        "--query-gpu=index," + ",".join(FIELDS),
        "--format=csv,noheader,nounits",
        f"-lms={int(interval_s * 1000)}",
    ]
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
    except OSError:
        return
    for line in process.stdout or ():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(FIELDS) + 1 and cells[0].isdigit():
            latest[int(cells[0])] = cells[1:]


def number(text: str) -> float | None:
    """Return a number, or None for what nvidia-smi does not tell (`[N/A]`, `[Not Supported]`)."""
    try:
        return float(text)
    except ValueError:
        return None


def gpu(latest: dict[int, list[str]]) -> dict[str, object]:
    """Return all GPUs as one: the slowest clock, the hottest temperature, the power of all, the
    reasons of any.
    """
    if not latest:
        return {}
    columns = list(zip(*(latest[index] for index in sorted(latest)), strict=True))
    values = [[v for text in column if (v := number(text)) is not None] for column in columns[:-1]]
    names = ("clock_mhz", "clock_max_mhz", "power_w", "temperature_c", "gpu_busy")
    pick: tuple[Callable[[list[float]], float], ...] = (min, max, sum, max, max)
    found = {
        name: choose(column) if column else None
        for name, choose, column in zip(names, pick, values, strict=True)
    }
    found["gpu_busy"] = found["gpu_busy"] / 100 if found["gpu_busy"] is not None else None
    bits = 0
    for text in columns[-1]:
        bits |= int(text, 16) if text.startswith("0x") else 0
    return {
        **found,
        "reasons": bits if any(text.startswith("0x") for text in columns[-1]) else None,
    }


def host(state: dict[str, float]) -> dict[str, object]:
    """Return memory, swapping since the start, and the share of CPU time in use since the last
    sample.
    """
    try:
        memory = dict(re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M))
        pages = dict(re.findall(r"^(pswpin|pswpout) (\d+)", Path("/proc/vmstat").read_text(), re.M))
        cpu = [int(v) for v in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return {}
    total, idle = sum(cpu), cpu[3] + cpu[4]
    spent = total - state.get("total", total)
    busy = 1 - (idle - state["idle"]) / spent if spent > 0 else None
    state.update(total=total, idle=idle)
    swapped = sum(map(int, pages.values())) * os.sysconf("SC_PAGE_SIZE") / 2**20 if pages else None
    return {
        "available_gib": round(int(memory["MemAvailable"]) / 2**20, 3),
        "swapped_mib": swapped,
        "cpu_busy": busy,
    }


def engine(url: str, key: str) -> dict[str, object]:
    """Return requests that run and wait; nothing where no such page comes: one bad look is not the
    end of looking.
    """
    found: dict[str, float] = {}
    try:
        with OPENER.open(
            urllib.request.Request(url, headers={"Authorization": f"Bearer {key}"} if key else {}),
            timeout=WHOLE_S,
        ) as reply:
            # The timeout is the longest silence: a page that comes byte by byte would hold up all
            # other looks.
            page, until = bytearray(), time.monotonic() + WHOLE_S
            while part := reply.read1(65536):
                page += part
                if len(page) > MOST_BYTES or time.monotonic() > until:
                    return {}  # of a page that was cut, the last number may be cut as well
            if reply.length:
                return {}
        for name, value in _GAUGE.findall(page.decode("utf-8", "replace")):
            short = name.removeprefix("num_requests_")
            found[short] = found.get(short, 0.0) + float(value)
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return dict(found)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: urllib would send the key along, whoever is there."""

    def redirect_request(self, *_: object) -> None:
        return None


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def main() -> None:
    """Sample until the parent is gone."""
    interval = float(sys.argv[1])
    url = sys.argv[2] if len(sys.argv) > 2 else ""
    key = os.environ.pop("SPARKBOOK_SAMPLER_KEY", "")
    local = "--remote" not in sys.argv
    latest: dict[int, list[str]] = {}
    if local:
        threading.Thread(target=watch_gpu, args=(interval, latest), daemon=True).start()
    state: dict[str, float] = {}
    parent = os.getppid()
    while os.getppid() == parent:
        seen = {
            "t_s": time.monotonic(),
            **(gpu(latest) if local else {}),
            **(host(state) if local else {}),
        }
        if url:
            seen.update(engine(url, key))
        print(json.dumps(seen), flush=True)  # noqa: T201
        time.sleep(interval)


if __name__ == "__main__":
    main()
