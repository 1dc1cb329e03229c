"""Runs the embedded engine for a while under mixed load, and breaks something again and again.

    python tools/soak.py --minutes 30 --seed 1 --report tests/data/soak/seed-1.json

The server is `sparkbook serve embedded/tiny-dense`, on loopback. Each step breaks one thing, drawn
with the seed, while clients stream, complete, call tools and hang up; a third of the kills comes
while the engine starts. After each step `status` must say what is so within `WITHIN_S`; where the
server has ended, no process, no key and no record of it may be left, its log is kept, and each
request has exactly one outcome. Results of `sparkbook bench` are written all along: the file is
always a whole one. A violation is printed and is in the report; the exit status is 1 then.

A full disk is a tmpfs of the tool's own and needs root. A clock step is one of the wall clock as
the product's processes see it, by a library of 30 lines in front of libc (needs gcc). Without them
these steps are left out, and the report names them.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import ctypes
import json
import mmap
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sparkbook.bench import exchange
from sparkbook.errors import SparkbookError
from sparkbook.serve import folders, running
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.identity import ProcessId
from sparkbook.serve.process import free_port

WITHIN_S = 10.0
START_S = 300.0
END_S = 40.0
"""An engine has 10 s to end by itself, and its guard some more to kill it."""
RECIPE = "embedded/tiny-dense"
COMMAND = str(Path(sys.executable).with_name("sparkbook"))
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
static volatile long *shift;
static long seconds(void) {
  if (!shift) {
    int file = open(getenv("SOAK_CLOCK"), O_RDONLY);
    shift = mmap(0, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
  }
  return *shift;
}
int clock_gettime(clockid_t clock, struct timespec *at) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, at);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) at->tv_sec += seconds();
  return status;
}
int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return at ? *at = now.tv_sec : now.tv_sec;
}
"""


class Load:
    """Clients of the server, until `stop`. Each request gets one outcome."""

    def __init__(self, dice: random.Random):
        self.sent: collections.Counter[str] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.endpoint: Endpoint | None = None
        self._lock, self._over = threading.Lock(), threading.Event()
        kinds = (self._stream, self._complete, self._tools, self._hang_up)
        self._threads = [
            threading.Thread(target=self._run, args=(kind, random.Random(dice.random())))
            for kind in kinds
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, kind: Callable[[Endpoint, random.Random], None], dice: random.Random) -> None:
        name = kind.__name__.strip("_")
        while not self._over.wait(dice.uniform(0.1, 1.0)):
            endpoint = self.endpoint
            if endpoint is None:
                continue
            with self._lock:
                self.sent[name] += 1
            try:
                kind(endpoint, dice)
                outcome = "answered"
            except AssertionError as error:
                outcome = "wrong"
                self.wrong.append(f"{name}: {error}")
            except Exception as error:  # noqa: BLE001 - a server that is broken fails in many ways
                outcome = f"failed: {type(error).__name__}"
            with self._lock:
                self.outcomes[outcome] += 1

    def _stream(self, endpoint: Endpoint, dice: random.Random) -> None:
        tokens = dice.randint(1, 60)
        reply = endpoint.client(20.0).completions.create(
            model=endpoint.model, prompt="def f(", max_tokens=tokens, stream=True,
            stream_options={"include_usage": True}, extra_body={"ignore_eos": True},
        )  # fmt: skip
        chunks = list(reply)
        if any(choice.finish_reason == "abort" for one in chunks for choice in one.choices):
            raise ConnectionAbortedError
        usage = [chunk.usage for chunk in chunks if chunk.usage]
        assert len(usage) == 1 and usage[0].completion_tokens == tokens, f"{usage} for {tokens}"

    def _complete(self, endpoint: Endpoint, dice: random.Random) -> None:
        wish = {"model": endpoint.model, "prompt": "12*17", "max_tokens": dice.randint(1, 30)}
        reply = endpoint.post("/v1/completions", {**wish, "ignore_eos": True}, 20.0)
        reply.raise_for_status()
        made, finish = reply.json()["usage"]["completion_tokens"], reply.json()["choices"][0]
        if finish["finish_reason"] == "abort":  # vLLM's word for what it cut off as it ended
            raise ConnectionAbortedError
        assert made == wish["max_tokens"], f"{made} tokens for {wish['max_tokens']}"

    def _tools(self, endpoint: Endpoint, dice: random.Random) -> None:
        text = dice.choice(["ping", "12*17", "What is the weather in Paris?", "x" * 3000])
        body = {"model": endpoint.model, "messages": [{"role": "user", "content": text}]}
        reply = endpoint.post("/v1/chat/completions", {**body, "max_tokens": 40}, 20.0)
        if reply.status_code >= 500:  # of an engine that is being broken
            raise ConnectionError
        wrong = reply.status_code != 200 and len(text) < 1000
        assert not wrong, f"status {reply.status_code} for {text!r}"

    def _hang_up(self, endpoint: Endpoint, dice: random.Random) -> None:
        body = json.dumps(
            {"model": endpoint.model, "prompt": "a", "max_tokens": 200, "stream": True}
        )
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {endpoint.api_key}"
        )
        head += f"\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", int(endpoint.url.rsplit(":")[-1])), 10) as one:
            one.sendall((head + body).encode()[: dice.choice((40, 10_000))])
            if dice.random() < 0.5:
                one.recv(dice.randint(1, 400))
            if dice.random() < 0.5:  # a reset in place of an end
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Soak:
    """The server, what is broken of it, and what came of it."""

    def __init__(self, work: Path, seed: int):
        self.dice, self.work = random.Random(seed), work
        self.cache = work / "cache"
        self.port, self.result = free_port(), work / "result.json"
        self.starter: subprocess.Popen[bytes] | None = None
        self.seen: set[ProcessId] = set()
        self.steps: list[dict[str, object]] = []
        self.violations: list[str] = []
        self.clock: mmap.mmap | None = None
        self.load = Load(self.dice)
        self.bench: subprocess.Popen[bytes] | None = None

    # ---- the server

    def start(self) -> None:
        with (self.work / "serve.txt").open("ab") as out:
            self.starter = subprocess.Popen(
                [COMMAND, "serve", RECIPE, "--port", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def record(self) -> folders.Record | None:
        records = [folders.running(folder) for folder in folders.all_folders()]
        return next((record for record in records if record), None)

    def tree(self) -> list[ProcessId]:
        """The processes of the engine, the guard first; all are remembered."""
        record = self.record()
        pids = record.process.tree() if record else []
        found = [one for pid in pids if (one := ProcessId.of(pid))]
        self.seen.update(found)
        return found

    def named(self, which: str) -> list[ProcessId]:
        """Processes of the engine by their part."""
        tree = self.tree()
        if which == "starter":
            one = ProcessId.of(self.starter.pid) if self.starter else None
            return [one] if one else []
        if which == "core":
            return [one for one in tree if "EngineCor" in one.name]
        children = {one: children_of(one.pid) for one in tree}
        below = [one for one in tree[1:] if one.pid in children_of(tree[0].pid)]
        keepers = [one for one in below if children[one]]
        return {
            "guard": tree[:1],
            "keeper": keepers,
            "reaper": [one for one in below if not children[one]],
            "server": [one for one in tree for keeper in keepers if one.pid in children[keeper]],
        }[which]

    def states(self) -> list[str]:
        self.tree()
        return [server.state for server in running.status(None)]

    def wait(self, wanted: list[str], within_s: float = WITHIN_S) -> tuple[float | None, list[str]]:
        """Wait until `status` says what is wanted; seconds, or None, and what it said at last."""
        began = time.monotonic()
        while True:
            states = self.states()
            took = time.monotonic() - began
            if states == wanted or (wanted == [] and states == ["stopping"] and within_s < END_S):
                return took, states
            if took > within_s:
                return None, states
            time.sleep(0.2)

    def expect(self, what: str, wanted: list[str]) -> None:
        took, states = self.wait(wanted)
        if took is None:
            self.violate(f"{what}: status says {states} after {WITHIN_S:g} s, not {wanted}")
        self.steps[-1].setdefault("status_s", []).append(took and round(took, 2))  # type: ignore[attr-defined]
        if states == ["stopping"] and self.wait([], END_S)[0] is None:
            self.violate(f"{what}: it still stops after {END_S:g} s more")
        if wanted == []:
            self.check_nothing_left(what)

    def violate(self, text: str) -> None:
        print("VIOLATION", text, flush=True)
        self.violations.append(text)
        self.steps[-1]["violation"] = text

    def check_nothing_left(self, what: str) -> None:
        """No process, key or record is left of a server that has ended; its log is."""
        self.load.endpoint = None
        assert self.starter is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.starter.wait(WITHIN_S)
        if self.starter.poll() is None:
            self.violate(f"{what}: `sparkbook serve` is still there")
            self.starter.kill()
        self.starter.wait()
        deadline = time.monotonic() + WITHIN_S
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.2)
        if left:
            self.violate(f"{what}: left are {left}")
            for one in self.seen:
                one.signal(signal.SIGKILL)
        for folder in folders.all_folders():
            names = {file.name for file in folder.iterdir()}
            if not names <= {folders.LOG_FILE}:
                self.violate(f"{what}: the folder holds {sorted(names)}")
        self.seen.clear()

    def left(self) -> list[str]:
        """Processes of the server that still run: those seen, and any that writes to its log."""
        names = [f"{one.name} ({one.pid})" for one in self.seen if one.alive]
        for file in Path("/proc").glob("[0-9]*/fd/1"):
            with contextlib.suppress(OSError):
                if str(file.readlink()).startswith(str(self.cache)):
                    names.append(f"process {file.parts[2]}")
        return names

    # ---- what goes wrong

    def kill(self, number: int, *whom: str) -> None:
        """Signal processes at once: each is frozen first, so that none sees another's end."""
        victims = [one for which in whom for one in self.named(which)]
        if number == signal.SIGKILL:
            for one in victims:
                one.signal(signal.SIGSTOP)
        for one in victims:
            one.signal(number)
        if whom == ("reaper",):
            self.expect("reaper killed", ["ready"])
        else:
            self.expect(f"{signal.Signals(number).name} to {' and '.join(whom)}", [])

    def stop(self) -> None:
        subprocess.run([COMMAND, "stop", RECIPE], capture_output=True, check=False, timeout=60)
        self.expect("sparkbook stop", [])

    def freeze(self) -> None:
        for one in self.named("core"):
            one.signal(signal.SIGSTOP)
        self.expect("frozen core", ["frozen"])
        if self.dice.random() < 0.4:
            self.steps[-1]["then"] = "stopped"
            return self.stop()
        for one in self.named("core"):
            one.signal(signal.SIGCONT)
        return self.expect("thawed core", ["ready"])

    def second_start(self) -> None:
        done = subprocess.run(
            [COMMAND, "serve", RECIPE, "--port", str(self.port)],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        if done.returncode != 1 or "Traceback" in done.stderr:
            self.violate(f"second start on the port: {done.returncode} {done.stderr[-300:]}")
        self.expect("second start on the port", ["ready"])

    def many_connections(self) -> None:
        with contextlib.ExitStack() as held:
            for _ in range(200):
                with contextlib.suppress(OSError):
                    held.enter_context(socket.create_connection(("127.0.0.1", self.port), 5))
            self.expect("200 silent connections", ["ready"])
        self.expect("200 connections cut", ["ready"])

    def full_disk(self) -> None:
        filler = self.cache / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                pass
        try:
            self.expect("full disk", ["ready"])
            if self.dice.random() < 0.4:
                self.steps[-1]["then"] = "stopped and started"
                self.stop()
                self.start()  # its old log made a little room: it may get ready, or fail
                assert self.starter is not None
                end = time.monotonic() + START_S
                while self.starter.poll() is None and time.monotonic() < end:
                    if self.states() == ["ready"]:
                        break
                    time.sleep(0.5)
                if self.starter.poll() not in (None, 1, 2):
                    self.violate(f"start on a full disk: status {self.starter.poll()}")
                if self.starter.poll() is not None:
                    self.expect("failed start on a full disk", [])
        finally:
            filler.unlink()

    def step_clock(self) -> None:
        assert self.clock is not None
        step = self.dice.choice((-86_400, -3_600, -5, -1, 1, 5, 3_600, 86_400))
        self.steps[-1]["seconds"] = step
        self.clock[:8] = struct.pack("l", struct.unpack("l", self.clock[:8])[0] + step)
        self.expect(f"clock step of {step} s", ["ready"])

    def faults(self) -> dict[str, Callable[[], None]]:
        kills = ("starter", "guard", "keeper", "reaper", "server", "core", "guard keeper")
        faults = {
            f"kill -9 {names}": (lambda names=names: self.kill(signal.SIGKILL, *names.split()))
            for names in kills
        }
        for end in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            faults[f"{end.name} to the starter"] = lambda end=end: self.kill(end, "starter")
        faults |= {"stop": self.stop, "frozen core": self.freeze}
        faults |= {"second start": self.second_start, "cut connections": self.many_connections}
        if self.cache.is_mount():
            faults["full disk"] = self.full_disk
        if self.clock:
            faults["clock step"] = self.step_clock
        return faults

    # ---- the run

    def run(self, minutes: float) -> None:
        end = time.monotonic() + 60 * minutes
        bag: list[str] = []
        while time.monotonic() < end:
            bag = bag or self.dice.sample(sorted(self.faults()), len(self.faults()))
            name = bag.pop()
            self.steps.append(
                {"fault": name, "at_s": round(60 * minutes - (end - time.monotonic()))}
            )
            if self.starter is None or self.starter.poll() is not None:
                self.start()
            early = self.dice.random() < 0.33 and name.startswith(("kill", "SIG", "stop"))
            early = early and "reaper" not in name and "core" not in name
            if early and self.states() != ["ready"]:
                self.steps[-1]["while"] = "starting"
                self.wait(["starting"], 30)
                time.sleep(self.dice.uniform(0, 8))
            else:
                took, states = self.wait(["ready"], START_S)
                if took is None:
                    self.violate(f"not ready after {START_S:g} s: {states}")
                    self.kill(signal.SIGKILL, "starter")
                    continue
                self.load.endpoint = running.endpoint(None, RECIPE)
                self.measure()
                time.sleep(self.dice.uniform(2, 6))
            self.faults()[name]()
            self.check_result()
            print(json.dumps(self.steps[-1]), flush=True)
        self.steps.append({"fault": "end"})
        if self.starter and self.starter.poll() is None:
            self.kill(signal.SIGTERM, "starter")

    def measure(self) -> None:
        """Run a short measurement over and over; it may be cut off by what comes next."""
        if self.bench is None or self.bench.poll() is not None:
            words = ["bench", self.load.endpoint.url, "--requests", "3", "--max-tokens", "16"]
            with (self.work / "bench.txt").open("ab") as out:
                self.bench = subprocess.Popen(
                    [COMMAND, *words, "--out", str(self.result)], stdout=out, stderr=out,
                    stdin=subprocess.DEVNULL,
                )  # fmt: skip

    def check_result(self) -> None:
        if self.result.exists():
            try:
                exchange.read(self.result)
            except SparkbookError as error:
                self.violate(f"a measurement is broken: {error}")

    def report(self, seed: int, minutes: float) -> dict[str, object]:
        self.load.stop()
        if self.bench:
            self.bench.kill()
            self.bench.wait()
        load = self.load
        if sum(load.sent.values()) != sum(load.outcomes.values()):
            self.violations.append("a request has no outcome")
        self.violations += load.wrong
        # The last lines of the engine's log, which may hold one, are indented.
        printed = (self.work / "serve.txt").read_text("utf-8", "replace")
        for found in re.finditer(r"^Traceback.*(?:\n .*)*(?:\n.*){0,3}", printed, re.M):
            self.violations.append(f"`sparkbook serve` printed a traceback: {found[0]}")
        every = {"full disk", "clock step"} | set(self.faults())
        faults = collections.Counter(step["fault"] for step in self.steps[:-1])
        waits = [s for step in self.steps for s in step.get("status_s", []) if s is not None]  # type: ignore[attr-defined]
        return {
            "seed": seed, "minutes": minutes, "recipe": RECIPE,
            "faults": dict(sorted(faults.items())),
            "left_out": sorted(every - set(self.faults())),
            "while_starting": sum(step.get("while") == "starting" for step in self.steps),
            "status": {"checks": len(waits), "slowest_s": max(waits, default=None)},
            "requests": dict(sorted(load.sent.items())),
            "outcomes": dict(sorted(load.outcomes.items())),
            "violations": self.violations, "steps": self.steps,
        }  # fmt: skip


def children_of(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").glob("*"):
        with contextlib.suppress(OSError):
            found += map(int, (thread / "children").read_text().split())
    return found


@contextlib.contextmanager
def workplace(megabytes: int = 48) -> Iterator[Path]:
    """A folder of this run's own, with the cache on a small disk if that can be made."""
    work = Path(tempfile.mkdtemp(prefix="soak-"))
    cache = work / "cache"
    cache.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "soak", str(cache)]
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        yield work
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(cache)], check=False)
        shutil.rmtree(work, ignore_errors=True)


def own_clock(work: Path) -> mmap.mmap | None:
    """Put a clock that can be stepped in front of all processes that this one starts."""
    source, library, shift = work / "clock.c", work / "clock.so", work / "clock"
    source.write_text(SHIM)
    compiler = shutil.which("gcc") or shutil.which("cc")
    words = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    if not compiler or subprocess.run(words, check=False).returncode:
        return None
    shift.write_bytes(bytes(ctypes.sizeof(ctypes.c_long)))
    os.environ["LD_PRELOAD"] = str(library)
    os.environ["SOAK_CLOCK"] = str(shift)
    with shift.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path)
    given = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGHUP):  # ignored where a shell starts this with `&`
        signal.signal(number, signal.default_int_handler)
    with workplace() as work:
        os.environ |= {
            "SPARKBOOK_CACHE": str(work / "cache"),
            "SPARKBOOK_STATE": str(work / "state"),
        }
        os.environ |= {"DOCKER_HOST": f"unix://{work}/no-docker"}
        os.environ.pop("VLLM_API_KEY", None)
        soak = Soak(work, given.seed)
        soak.clock = own_clock(work)
        try:
            soak.run(given.minutes)
        finally:
            report = soak.report(given.seed, given.minutes)
            for one in soak.seen:
                one.signal(signal.SIGKILL)
    if given.report:
        given.report.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(json.dumps({key: value for key, value in report.items() if key != "steps"}, indent=1))
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
