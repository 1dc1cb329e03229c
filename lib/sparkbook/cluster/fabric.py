"""The network between two nodes, measured: does a packet of full size pass, how fast is TCP, and
how fast is an all-reduce.

The measurements need Python on both nodes and nothing else; where iperf3 is on both, it measures
TCP instead, since one Python process does not fill a fast link. What was measured is a value, which
`sparkbook.cluster.rules` judges.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from sparkbook.cluster.inventory import Inventory, Node
from sparkbook.cluster.nodes import Runner, Site, run_on, words_on
from sparkbook.recipes.launch import Strict

LATENCY_BYTES = 8192
"""Size of the small message: 4096 values of 16 bits, one token's hidden state."""


class Pair(Strict):
    """What the network between two nodes can do. None is not measured; rates in Gbit/s, times in
    µs.

    Attributes:
        problem: why nothing passes, or why a node could not take part.
        full_bytes, full: size of the largest packet that should pass unfragmented, and whether it
            came back.
        lost: share of 1000 small packets that did not come back.
        rtt_us: median round trip of a small TCP message.
        tcp_gbit, tcp_by: rate, and what measured it.
        reduce_gbit: bus bandwidth of a large all-reduce: bytes × 2(n−1)/n per second.
        reduce_us: median time of an all-reduce of 8 KiB. reduce_table: (bytes, µs) of every size
            that was measured, 8 KiB to 256 MiB (8 MiB without a GPU).
        backend, transport: `nccl` or `gloo`; NCCL's own word for its way: `IB` or `Socket`.
        reduce_problem: why there was no all-reduce.
    """

    a: str
    b: str
    problem: str | None = None
    full_bytes: int | None = None
    full: bool | None = None
    lost: float | None = None
    rtt_us: float | None = None
    tcp_gbit: float | None = None
    tcp_by: str | None = None
    reduce_gbit: float | None = None
    reduce_us: float | None = None
    reduce_table: list[list[float]] | None = None
    backend: str | None = None
    transport: str | None = None
    reduce_problem: str | None = None


_PROBE = r"""
import json, socket, statistics, sys, threading, time
role, address, peer, port, size, seconds = sys.argv[1:7]
port, size, seconds, streams = int(port), int(size), float(seconds), 4
def whole(s, n):
    while n:
        got = s.recv(n)
        if not got: raise OSError("closed")
        n -= len(got)
def udp(bind):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER = IP_PMTUDISC_DO: never fragment
    s.bind((bind, 0)); s.settimeout(1.0)
    return s
if role == "serve":
    listener = socket.create_server((address, 0), backlog=16)
    echo = udp(address)
    print(json.dumps([listener.getsockname()[1], echo.getsockname()[1]]), flush=True)
    def answers():
        while True:
            try:
                data, sender = echo.recvfrom(65536)
                echo.sendto(data, sender)
            except OSError: pass
    threading.Thread(target=answers, daemon=True).start()
    def take(s):
        kind = s.recv(1)
        try:
            while kind == b"r":
                whole(s, 64); s.sendall(b"y" * 64)
            while s.recv(1 << 20): pass
        except OSError: pass
    listener.settimeout(30)
    try:
        while True:
            s, _ = listener.accept()
            threading.Thread(target=take, args=(s,), daemon=True).start()
    except OSError: pass
else:
    tcp, datagram = port >> 16, port & 65535
    found = {}
    def connect(): return socket.create_connection((peer, tcp), timeout=4, source_address=(address, 0))
    try:
        s = connect(); s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1); s.sendall(b"r")
        times = []
        for _ in range(100):
            begin = time.perf_counter(); s.sendall(b"x" * 64); whole(s, 64); times.append(time.perf_counter() - begin)
        found["rtt_us"] = round(statistics.median(times) * 1e6, 1)
    except OSError as error:
        print(json.dumps({"problem": f"{type(error).__name__}: {error}"})); sys.exit()
    u = udp(address); found["full_bytes"] = size; found["full"] = False
    for _ in range(2):
        try:
            u.sendto(b"x" * (size - 28), (peer, datagram))  # 28: headers of IPv4 and UDP
            found["full"] = len(u.recv(65536)) == size - 28
            break
        except OSError: pass
    u.settimeout(0.3); answers = 0
    for _ in range(20):
        try:
            for _ in range(50): u.sendto(b"x" * 32, (peer, datagram))
            for _ in range(50): u.recv(2048); answers += 1
        except OSError: pass
    found["lost"] = round(1 - answers / 1000, 4)
    sent = [0] * streams
    def send(i):
        block = bytes(1 << 20)
        try:
            s = connect(); s.sendall(b"w"); end = time.perf_counter() + seconds
            while time.perf_counter() < end: s.sendall(block); sent[i] += len(block)
        except OSError: pass
    threads = [threading.Thread(target=send, args=(i,)) for i in range(streams)]
    begin = time.perf_counter(); [t.start() for t in threads]; [t.join() for t in threads]
    found["tcp_gbit"] = round(sum(sent) * 8 / (time.perf_counter() - begin) / 1e9, 3)
    print(json.dumps(found))
"""  # noqa: E501 - a program sent to a node, in one piece

MEET_S = 180.0
"""That the two ranks of an all-reduce get to start, to meet and to add up."""

_REDUCE = r"""
import json, os, statistics, time, datetime
import torch, torch.distributed as dist
cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo", timeout=datetime.timedelta(seconds=60))
def run(count, rounds):
    x = torch.zeros(count, dtype=torch.bfloat16 if cuda else torch.float32, device="cuda" if cuda else "cpu")
    times = []
    for n in range(rounds + 3):
        if cuda: torch.cuda.synchronize()
        begin = time.perf_counter(); dist.all_reduce(x)
        if cuda: torch.cuda.synchronize()
        if n >= 3: times.append(time.perf_counter() - begin)
    return x.numel() * x.element_size(), statistics.median(times)
table, large = [], 256 * 2**20 if cuda else 8 * 2**20
for size in [2**power for power in range(13, 28, 2) if 2**power < large] + [large]:
    size, spent = run(size // (2 if cuda else 4), 30 if size < 2**20 else 10 if cuda else 4)
    table.append((size, round(spent * 1e6, 1)))
n = dist.get_world_size()
if dist.get_rank() == 0:
    print(json.dumps({"reduce_gbit": round(size * 2 * (n - 1) / n / spent * 8e-9, 3), "reduce_us": table[0][1],
                      "reduce_table": table, "backend": "nccl" if cuda else "gloo"}), flush=True)
dist.destroy_process_group()
"""  # noqa: E501 - a program sent to a node, in one piece


def measure(
    inventory: Inventory,
    sites: Sequence[Site],
    *,
    image: str | None = None,
    seconds: float = 1.0,
    reduce: bool = True,
    run: Runner = run_on,
) -> list[Pair]:
    """Measure every pair of nodes, one after another, so that they don't disturb each other.

    Args:
        inventory, sites: the nodes.
        image: run the all-reduce in a container of it, with the GPUs; None: in the engine's
            environment, on the CPU, for nodes on this machine only.
        seconds: how long TCP is measured.
        reduce: also measure an all-reduce.
        run: the way to a node.
    """
    pairs = []
    for (a, there), (b, here) in combinations(zip(inventory.nodes, sites, strict=True), 2):
        pair = _network(a, there, b, here, seconds, run)
        if reduce and pair.problem is None:
            pair = pair.model_copy(update=_all_reduce(inventory, a, there, b, here, image))
        pairs.append(pair)
    return pairs


def _network(a: Node, one: Site, b: Node, two: Site, seconds: float, run: Runner) -> Pair:
    pair = Pair(a=a.host, b=b.host)
    for site in (one, two):
        if site.problem or site.address is None:
            return pair.model_copy(
                update={
                    "problem": f"{site.host}: {site.problem or 'no address on the fast network'}"
                }
            )
    mtu = min((site.link.mtu or 1500 for site in (one, two) if site.link), default=1500)
    base = ["python3", "-c", _PROBE]
    server = subprocess.Popen(
        words_on(b, [*base, "serve", str(two.address), "-", "0", "0", "0"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None and server.stderr is not None
        line = server.stdout.readline()
        if not line:
            return pair.model_copy(update={"problem": f"{b.host}: {_last(server.stderr.read())}"})
        tcp, datagram = json.loads(line)
        ran = run(
            a,
            [
                *base,
                "ask",
                str(one.address),
                str(two.address),
                str(tcp << 16 | datagram),
                str(mtu),
                str(seconds),
            ],
        )
        try:
            found = json.loads(ran.out)
        except ValueError:
            return pair.model_copy(update={"problem": f"{a.host}: {_last(ran.err)}"})
        if "problem" in found:
            return pair.model_copy(update=found)
        found["tcp_by"] = "4 sockets of one Python process"
        return pair.model_copy(update=found | _iperf(a, one, b, two, seconds, run))
    finally:
        server.kill()
        server.communicate()


def _iperf(a: Node, one: Site, b: Node, two: Site, seconds: float, run: Runner) -> dict:
    """Return the rate by iperf3 with 8 streams, where both nodes have it."""
    if any(run(node, ["sh", "-c", "command -v iperf3"]).code for node in (a, b)):
        return {}
    server = subprocess.Popen(
        words_on(b, ["iperf3", "-s", "-1", "-B", str(two.address), "-p", "5299"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(5):
            ran = run(
                a,
                [
                    "iperf3",
                    "-c",
                    str(two.address),
                    "-B",
                    str(one.address),
                    "-p",
                    "5299",
                    "-P",
                    "8",
                    "-t",
                    f"{seconds:.0f}",
                    "-J",
                ],
            )
            try:
                rate = json.loads(ran.out)["end"]["sum_received"]["bits_per_second"] / 1e9
                return {"tcp_gbit": round(rate, 3), "tcp_by": "iperf3, 8 streams"}
            except (ValueError, LookupError, TypeError):
                continue
        return {}
    finally:
        server.kill()
        server.wait()


def _all_reduce(
    inventory: Inventory, a: Node, one: Site, b: Node, two: Site, image: str | None
) -> dict:
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": str(one.address),
        "MASTER_PORT": str(inventory.master_port),
        "NCCL_DEBUG": "INFO",
    }
    started: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as files:
        outputs = [files.enter_context(tempfile.TemporaryFile()) for _ in (a, b)]
        files.callback(_end, started)
        for rank, (node, site) in enumerate(((a, one), (b, two))):
            env = {
                **site.environment(),
                **{k: v for k, v in node.env.items() if v is not None},
                **shared,
                "RANK": str(rank),
            }
            words = _in_container(image, env, site) if image else _in_process(env)
            if words is None or (image is None and not node.local):
                return {
                    "reduce_problem": (
                        "no image was named, and the engine's environment is on this machine alone"
                    )
                }
            started.append(
                subprocess.Popen(
                    words_on(node, words),
                    stdin=subprocess.DEVNULL,
                    stdout=outputs[rank],
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        if not _met(started):
            return {"reduce_problem": f"the ranks did not meet within {MEET_S:.0f} s"}
        _end(started)
        texts = []
        for file in outputs:
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
        return read_reduce(texts)


def _met(ranks: Sequence[subprocess.Popen[bytes]]) -> bool:
    """Wait until both ranks have ended, or one has failed: the other waits for it in vain."""
    for _ in range(round(MEET_S / 0.1)):
        ended = [rank.poll() for rank in ranks]
        if any(ended) or None not in ended:
            return True
        time.sleep(0.1)
    return False


def _end(ranks: Sequence[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        rank.kill()
        rank.wait()


def read_reduce(outputs: Sequence[str]) -> dict:
    """Return the figures out of what the ranks printed; NCCL's transport with them, or the first
    line that says why there are none.
    """
    text = "\n".join(outputs)
    found = next(
        (json.loads(line) for line in outputs[0].splitlines() if line.startswith('{"reduce_gbit"')),
        None,
    )
    if "NET/IB" in text or "via NET/Socket" in text or "NET/Socket : Using" in text:
        transport = "IB" if "NET/IB : Using" in text or "via NET/IB" in text else "Socket"
    else:
        transport = None
    if found is None:
        lines = [line.strip() for line in text.splitlines()]
        fatal = [
            line
            for line in lines
            if any(word in line for word in ("NCCL WARN", "Error", "error", "not found"))
        ]
        return {
            "reduce_problem": (fatal or [line for line in lines if line] or ["no output"])[
                -1 if not fatal else 0
            ][:300]
        }
    return {**found, "transport": transport}


def _in_container(image: str, env: dict[str, str], site: Site) -> list[str]:
    words = [
        "docker",
        "run",
        "--rm",
        "--network",
        "host",
        "--ipc",
        "host",
        "--gpus",
        "all",
        "--entrypoint",
        "python3",
    ]
    if site.infiniband:
        words += ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK", "--ulimit", "memlock=-1"]
    for name, value in env.items():
        words += ["-e", f"{name}={value}"]
    return [*words, image, "-c", _REDUCE]


def _in_process(env: dict[str, str]) -> list[str] | None:
    from sparkbook.serve import paths

    python = paths.engine_python()
    keep = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(Path.home()),
        "OMP_NUM_THREADS": "1",
    }
    program = shutil.which("env") or "env"
    return [
        program,
        "-i",
        *(f"{name}={value}" for name, value in {**keep, **env}.items()),
        str(python),
        "-c",
        _REDUCE,
    ]


def _last(text: str) -> str:
    return next(reversed([line for line in text.strip().splitlines() if line.strip()]), "no output")
