"""Memory of the host and the state of its GPU as a page for Prometheus. Standard library only: it
runs in a container, next to a copy of the sampler that measurements use.

`python _exporter.py PORT [--gpu]` listens on 127.0.0.1. With `--gpu` a page without the GPU is an
error (503), and the program ends when nvidia-smi does: unknown is not healthy. NVML reports no
memory of a GB10 ("Not Supported"), so memory is the kernel's MemAvailable.
"""

from __future__ import annotations

import http.server
import os
import re
import sys
import threading
import time
from pathlib import Path

INTERVAL_S, STALE_S = 2.0, 15.0
HOST = {
    "MemTotal": "sparkbook_memory_total_bytes",
    "MemAvailable": "sparkbook_memory_available_bytes",
    "SwapFree": "sparkbook_swap_free_bytes",
}
GPU = {
    "clock_mhz": "sparkbook_gpu_clock_mhz",
    "power_w": "sparkbook_gpu_power_watts",
    "temperature_c": "sparkbook_gpu_temperature_celsius",
    "gpu_busy": "sparkbook_gpu_busy_ratio",
}
NOT_A_THROTTLE = 0x3
"""Bits of the clock's reasons that slow nothing down: idle, and clocks that a user chose."""


class Latest(dict[int, list[str]]):
    """The newest line of each GPU, and when the last one came."""

    at = float("-inf")

    def __setitem__(self, key: int, value: list[str]) -> None:
        super().__setitem__(key, value)
        self.at = time.monotonic()


def page(meminfo: str, state: dict[str, object]) -> str:
    """Return the page. What is unknown is left out, never zero."""
    sizes = {name: int(kb) for name, kb in re.findall(r"^(\w+):\s+(\d+) kB", meminfo, re.M)}
    values: dict[str, object] = {
        metric: sizes[name] * 1024 for name, metric in HOST.items() if name in sizes
    }
    values |= {metric: state[name] for name, metric in GPU.items() if state.get(name) is not None}
    reasons = state.get("reasons")
    if isinstance(reasons, int):
        values["sparkbook_gpu_throttled"] = int(bool(reasons & ~NOT_A_THROTTLE))
    return "".join(f"# TYPE {name} gauge\n{name} {value}\n" for name, value in values.items())


def main() -> None:
    """Serve the page."""
    from _sampler import gpu, watch_gpu

    port, wanted, latest = int(sys.argv[1]), "--gpu" in sys.argv, Latest()

    def watch() -> None:
        watch_gpu(INTERVAL_S, latest)
        if wanted:
            os._exit(1)  # Docker starts it again

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fresh = time.monotonic() - latest.at < STALE_S
            known = fresh or not wanted
            text = page(Path("/proc/meminfo").read_text("ascii"), gpu(latest) if fresh else {})
            self.send_response(200 if known else 503)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    threading.Thread(target=watch, daemon=True).start()
    http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    main()
