"""Measure what Caddy and nginx add to each piece of a stream, with the configuration that
`sparkbook proxy` writes. Needs caddy, nginx and openssl.

    .venv/bin/python tools/bench_proxy.py [PIECES]
"""

from __future__ import annotations

import http.client
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "proxy"))

from real_proxy import LIMIT_S, running, upstream
from sparkbook import proxy


def delays(connection: http.client.HTTPConnection, key: str, pieces: int) -> list[float]:
    """Return the seconds from the server's writing of each piece to its reading here."""
    headers = {"Authorization": f"Bearer {key}"}
    connection.request("POST", f"/v1/timed?pieces={pieces}", b"{}", headers)
    reply = connection.getresponse()
    found = []
    while line := reply.readline():
        if line.startswith(b"data: "):
            found.append(time.perf_counter() - float(line[6:]))
    connection.close()
    return found


def show(name: str, seconds: list[float]) -> None:
    """Print a row of the table."""
    ordered = sorted(seconds)
    median, late = statistics.median(ordered), ordered[int(len(ordered) * 0.99)]
    print(f"{name:<8} {median * 1e3:8.3f} ms {late * 1e3:8.3f} ms")


def main() -> None:
    """Print a table."""
    pieces = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print(f"a piece of a stream, of {pieces:,}, 2 ms apart\n{'':<8} {'median':>11} {'99 %':>11}")
    with upstream() as behind:
        host = behind.url.removeprefix("http://")
        plain = http.client.HTTPConnection(host, timeout=LIMIT_S)
        show("direct", delays(plain, "none", pieces))
        for kind in proxy.KINDS:
            wanted = proxy.Wanted(kind=kind, host="localhost", upstream=behind.url)
            with tempfile.TemporaryDirectory() as folder, running(wanted, Path(folder)) as front:
                show(kind, delays(front.connect(), front.keys["alice"], pieces))


if __name__ == "__main__":
    main()
