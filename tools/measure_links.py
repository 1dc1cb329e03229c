"""Measures what a link between two nodes is worth: two network namespaces of this machine joined by
a virtual cable that is held to a rate, one GPU (or half of the CPU) each.

    python tools/measure_links.py measure OUT SHAPE… [--models DIR] [--minutes N] [--ways W]
    python tools/measure_links.py fit OUT

SHAPE is `tiny` (our own model on the CPU engine; tries the whole of it anywhere), `8b` or `30b`:
folders `shape-8b` and `shape-30b` of what `tools/make_nvfp4_models.py` makes, with dummy weights on
two GPUs. The servers of all shapes are started by `sparkbook cluster serve` and `sparkbook serve`,
all at once, and measured one after another by `sparkbook bench`, the most valuable rows first. Each
row is appended to `OUT/links.jsonl` as soon as it is there; a second call skips those, so that a
run that was cut off goes on. `--minutes` ends it in order before a machine is taken away; `--ways
tp,one` starts only some of the servers, where memory or time is short. Needs root, `ip` and `tc`;
the engine is the one that SPARKBOOK_ENGINE_PYTHON names, with a `vllm` next to it.

`fit` holds the model of `sparkbook plan --nodes` against the rows.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from namespaces import HOSTS, TwoNodes, two_nodes
from sparkbook.cluster import fabric, measured_links, nodes

SPARKBOOK = [sys.executable, "-c", "import sys; from sparkbook.cli import main; sys.exit(main())"]
READY_S = 400.0
MEET = 29499
"""Port where the ranks of an all-reduce meet; those of the servers are above it."""
GPU = {
    # NCCL is to believe in two hosts, and to have no other way than the cable.
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
    # One socket moves 20 Gbit/s and is bound by one core: several make a faster link.
    "NCCL_SOCKET_NTHREADS": "4",
    "NCCL_NSOCKS_PERTHREAD": "4",
    "NCCL_DEBUG": "INFO",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
}

VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "tp": ("", {}),
    "pp": ("", {}),
    "tp-eager": (" --enforce-eager", {}),
    "tp-ll": ("", {"NCCL_PROTO": "LL"}),
    "tp-simple": ("", {"NCCL_PROTO": "Simple"}),
    "tp-ray": ("", {}),
}
"""Servers over both nodes: more words of the launch line, and of the environment."""


@dataclass(frozen=True, order=True)
class Link:
    """How the cable is held; None is as it is."""

    gbit: float | None = None
    delay_us: int = 0

    def __str__(self) -> str:
        rate = f"{self.gbit:g} Gbit/s" if self.gbit else "unshaped"
        return rate + (f" + {self.delay_us} µs" if self.delay_us else "")


LINKS = tuple(Link(gbit) for gbit in (25, 10, 100, 50))
"""The cable's rates, the most telling first."""

SLOW = tuple(Link(10, delay) for delay in (100, 20, 50))
"""A cable with more latency."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is served, and how much of it is measured.

    Attributes:
        source: of `sparkbook serve`: a recipe, or words of `vllm serve` after the model.
        ways: the servers of it.
        few, rest: requests at once that are measured first, and later.
        prefill: prompt classes.
    """

    source: str
    gpu: bool
    ways: tuple[str, ...] = (*VARIANTS, "one", "replicas")
    few: tuple[int, ...] = (1, 8, 32)
    rest: tuple[int, ...] = (2, 4, 16)
    prefill: tuple[str, ...] = ("long-512", "long-8k")
    links: tuple[Link, ...] = LINKS
    slow: tuple[Link, ...] = SLOW
    max_tokens: int = 64
    seconds: float = 3.0


_DUMMY = (
    "--load-format dummy --max-model-len 12288 --max-num-seqs 32 --served-model-name m"
    " --gpu-memory-utilization 0.06 --kv-cache-memory-bytes "
)
SHAPES = {
    "tiny": Shape(
        source="embedded/tiny-dense",
        gpu=False,
        ways=("tp", "pp", "one", "replicas"),
        few=(1, 4),
        rest=(2,),
        prefill=("long-200",),
        links=(Link(0.1), Link(1)),
        slow=(Link(1, 50),),
        max_tokens=32,
    ),
    "8b": Shape(source=_DUMMY + "3G", gpu=True),
    "30b": Shape(
        source=_DUMMY + "2G",
        gpu=True,
        ways=("tp", "pp", "one", "replicas"),
    ),
}


@dataclass(frozen=True)
class Step:
    """Rows to measure in one call of the client: numbers of requests times classes of prompts.

    Attributes:
        shape: of `SHAPES`; "" for an all-reduce, which is the link's own.
        way: one of `VARIANTS`, one, replicas, or all-reduce.
    """

    shape: str
    way: str
    link: Link
    requests: tuple[int, ...] = (1,)
    prompts: tuple[str, ...] = ("code",)

    def key(self, requests: int, prompts: str) -> str:
        """Return what a row is found by."""
        return json.dumps([self.shape, self.way, asdict(self.link), requests, prompts])

    @property
    def keys(self) -> list[str]:
        """Of all its rows."""
        return [self.key(*one) for one in itertools.product(self.requests, self.prompts)]


def steps(name: str) -> Iterator[list[Step]]:
    """Yield what to measure of a shape, the most valuable first, in groups that are measured by
    turns with another shape's.
    """
    shape, whole = SHAPES[name], Link()

    def tokens(way: str, link: Link, requests: tuple[int, ...]) -> list[Step]:
        """One call of the client; two replicas must be asked at the same time, call by call."""
        if way == "replicas":
            return [Step(name, way, link, (count,)) for count in requests]
        return [Step(name, way, link, requests)]

    def prompts(way: str, link: Link) -> Step:
        return Step(name, way, link, (1,), shape.prefill)

    for way in ("tp", "one", "replicas"):
        yield tokens(way, whole, shape.few)
    yield [*tokens("pp", whole, shape.few), *tokens("pp", shape.links[0], shape.few)]
    yield [prompts(way, whole) for way in ("tp", "one", "pp")]
    yield [prompts(way, shape.links[0]) for way in ("tp", "pp")]
    for link in (shape.links[0], *shape.slow[:1], *shape.links[1:]):
        yield tokens("tp", link, shape.few)
    for way in VARIANTS:
        if way not in ("tp", "pp"):
            yield tokens(way, whole, shape.few)
    for link in shape.slow[1:]:
        yield tokens("tp", link, shape.few)
    for way in ("tp", "one", "replicas"):
        yield tokens(way, whole, shape.rest)
    for link in shape.links:
        yield tokens("tp", link, shape.rest)
    yield [prompts("tp", link) for link in shape.links[1:]]


def order(names: Sequence[str]) -> Iterator[Step]:
    """Yield all steps of several shapes, the link itself before its users."""
    links = [link for name in names for link in (Link(), *SHAPES[name].links, *SHAPES[name].slow)]
    for link in dict.fromkeys(links):
        yield Step("", "all-reduce", link)
    for group in itertools.zip_longest(*(steps(name) for name in names)):
        yield from (step for one in group if one for step in one)


@dataclass
class Server:
    """A server that was started by the command.

    Attributes:
        via: words that lead to the node where it answers.
    """

    name: str
    process: subprocess.Popen[str]
    via: tuple[str, ...] = ()
    told: dict[str, Any] = field(default_factory=dict)
    ready_s: float | None = None

    def listen(self) -> None:
        """Read until it says that it is ready; what runs in a thread."""
        begin, text = time.monotonic(), ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            text += line
            with contextlib.suppress(ValueError):
                self.told = json.loads(text)
                self.ready_s = round(time.monotonic() - begin, 1)

    def wait(self, until: float) -> None:
        """Wait until it is ready, has ended, or time is up."""
        while not self.told and self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)


class Measurement:
    """All servers of the shapes on two nodes, and the rows as they come."""

    def __init__(self, made: TwoNodes, names: Sequence[str], out: Path, models: Path):
        self.made, self.names, self.out, self.models = made, names, out, models
        self.file = out / "links.jsonl"
        self.servers: dict[tuple[str, str], Server] = {}
        self.done = {row["key"] for row in read(self.file)}
        self.gpu = SHAPES[names[0]].gpu
        self.environment = os.environ | {"SPARKBOOK_CACHE": str(out / "cache")}

    def source(self, name: str, more: str = "") -> str:
        """Return what `serve` takes: a recipe, or a file with a launch line."""
        if not self.gpu:
            return SHAPES[name].source
        file = self.out / f"{name}{more.replace(' ', '')}.txt"
        model = self.models.resolve() / f"shape-{name}"
        file.write_text(f"vllm serve {model} {SHAPES[name].source}{more}\n", "utf-8")
        return str(file)

    def environment_of(self, number: int) -> dict[str, str]:
        """Return what a node's ranks get besides."""
        own = {"CUDA_VISIBLE_DEVICES": str(number), "NCCL_HOSTID": HOSTS[number]}
        return {**GPU, **own} if self.gpu else {}

    def inventory(self, name: str, way: str, port: int) -> Path:
        """Write the inventory of one server: each has a port of its own where its ranks meet."""
        env = VARIANTS[way][1]
        pair = self.made.inventory(env=self.environment_of(1) | env)
        pair = pair.model_copy(update={"name": f"{name}-{way}", "master_port": port})
        text = pair.model_dump(exclude_defaults=True, mode="json")
        text["nodes"][0]["env"] = self.environment_of(0) | env
        file = self.out / f"{name}-{way}.yaml"
        file.write_text(yaml.safe_dump(text), "utf-8")
        return file

    def start(self, ways: Sequence[str]) -> None:
        """Start the servers at once: they answer one after another, and cost nothing when idle."""
        ports = itertools.count(8000, 2)
        for name in self.names:
            own = [way for way in SHAPES[name].ways if way in ways]
            for way in (way for way in own if way in VARIANTS):
                port = next(ports)
                file = self.inventory(name, way, 29501 + 10 * (port - 8000))
                words = ["cluster", "serve", str(file), self.source(name, VARIANTS[way][0])]
                words += ["--backend", "ray"] if way == "tp-ray" else []
                self._start(name, way, [*words, "--layout", f"{way[:2]}=2"], port)
            alone = ("one", "two") if "replicas" in own else ("one",) if "one" in own else ()
            for number, way in enumerate(alone):
                via = tuple(self.made.via) if number else ()
                words = ["serve", self.source(name), "--target", "process"]
                env = self.environment_of(number)
                self._start(name, way, words, next(ports), via, env)

    def _start(
        self,
        name: str,
        way: str,
        words: Sequence[str],
        port: int,
        via: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        more = ["--name", f"{name}-{way}", "--port", str(port), "--json"]
        more += ["--deadline", str(READY_S)]
        with (self.out / f"{name}-{way}.err").open("a") as errors:
            process = subprocess.Popen(
                [*via, *SPARKBOOK, *words, *more],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**self.environment, **(env or {})},
            )
        self.servers[name, way] = server = Server(f"{name}-{way}", process, via)
        threading.Thread(target=server.listen, daemon=True).start()

    def shaped(self, link: Link) -> bool:
        """Hold the cable; whether it could be held so."""
        self.made.unshape()
        # Without netem, and without the compiler that makes up for it, there is no delay.
        with contextlib.suppress(subprocess.CalledProcessError, FileNotFoundError):
            if link.gbit:
                self.made.shape(link.gbit, link.delay_us)
            return True
        return False

    def add(self, step: Step, row: dict[str, Any]) -> None:
        """Append a row."""
        requests, prompts = row.pop("requests", 1), row.pop("prompts", "code")
        about = {"shape": step.shape, "key": step.key(requests, prompts), "way": step.way}
        about |= {"link": asdict(step.link), "requests": requests, "prompts": prompts}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(about | row) + "\n")
        names = ("tok_s", "ttft_s", "verdict", "problem", "points")
        short = {name: row[name] for name in names if row.get(name)}
        now = time.strftime("%H:%M:%S")
        print(now, step.shape, step.way, step.link, requests, prompts, short, flush=True)

    def run(self, ways: Sequence[str], until: float) -> None:
        """Measure what is missing until time is up, once all servers are ready: what starts
        disturbs the others.
        """
        for server in self.servers.values():
            server.wait(until)
        for step in order(self.names):
            own = step.way == "all-reduce" or step.way in SHAPES[step.shape].ways
            if self.done.issuperset(step.keys) or not own or step.way not in ways:
                continue
            if time.monotonic() > until:
                return
            if not self.shaped(step.link):
                self.add(step, {"problem": "the cable could not be held so"})
            elif step.way == "all-reduce":
                self.add(step, self.all_reduce())
            else:
                names = ("one", "two") if step.way == "replicas" else (step.way,)
                served = [self.servers[step.shape, name] for name in names]
                unready = [one.name for one in served if not one.told]
                if not unready:
                    for found in self.bench(step, served):
                        self.add(step, found)
                elif time.monotonic() < until:  # else it is for the next call to measure
                    self.add(step, {"problem": f"{unready[0]} is not ready"})

    def all_reduce(self) -> dict[str, Any]:
        """Measure an all-reduce of many sizes between the nodes, as `cluster check` does."""
        inventory = self.made.inventory(env=self.environment_of(1))
        inventory = inventory.model_copy(update={"master_port": MEET})
        inventory.nodes[0].env.update(self.environment_of(0))
        pair = fabric.measure(inventory, nodes.look(inventory), seconds=0.5)[0]
        found = pair.model_dump(exclude_none=True)
        why = found.get("problem") or found.get("reduce_problem")
        row = {"points": found.pop("reduce_table", None), "pair": found}
        return row | ({"problem": why} if why else {})

    def bench(self, step: Step, served: Sequence[Server]) -> Iterator[dict[str, Any]]:
        """Measure the rows of a step; of two servers, half of the requests each, at the same
        time.
        """
        shape = SHAPES[step.shape]
        at_once = [max(count // len(served), 1) for count in step.requests]
        running, files = [], []
        for server in served[: max(step.requests)]:
            file = self.out / f"bench-{server.name}.json"
            file.unlink(missing_ok=True)
            words = ["bench", server.told["url"].removesuffix("/v1")]
            words += ["--classes", ",".join(step.prompts)]
            words += ["--concurrency", ",".join(map(str, at_once))]
            words += ["--max-tokens", str(shape.max_tokens if step.prompts == ("code",) else 8)]
            words += ["--seconds", str(shape.seconds), "--out", str(file)]
            env = self.environment | {"SPARKBOOK_KEY_FILE": server.told["key"]}
            words = [*server.via, *SPARKBOOK, *words]
            with (self.out / "bench.err").open("a") as errors:
                running.append(
                    subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, stderr=errors)
                )
            files.append(file)
        for one in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                one.wait(180)
            one.kill()
        if not all(file.is_file() for file in files):
            yield {"problem": "bench wrote no result"}
            return
        measured = [json.loads(file.read_text("utf-8"))["cells"] for file in files]
        for cells in zip(*measured, strict=True):
            first = cells[0]["figures"]
            yield {
                "requests": sum(cell["concurrency"] for cell in cells),
                "prompts": cells[0]["prompt_class"],
                "tok_s": round(sum(c["figures"].get("out_tok_s") or 0.0 for c in cells), 2),
                **{
                    name: (first.get(name) or {}).get("median")
                    for name in ("tpot_s", "ttft_s", "prefill_tok_s")
                },
                "verdict": [cell["verdict"] for cell in cells],
                "rules": sorted({one["rule"] for cell in cells for one in cell["findings"]}),
                "ready_s": [one.ready_s for one in served],
            }

    def stop(self) -> None:
        """End all servers in order."""
        for server in self.servers.values():
            server.process.terminate()
        for server in self.servers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.process.wait(40)
            server.process.kill()


def read(file: Path) -> list[dict[str, Any]]:
    """Return the rows of a recording; a line that was cut off is none."""
    rows = []
    for line in file.read_text("utf-8").splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows


def fit(rows: Sequence[dict[str, Any]]) -> None:
    """Print how near the model of `sparkbook plan --nodes` comes, with nothing fitted and with
    three numbers found on half of the rows (`sparkbook.cluster.measured_links`).
    """
    recording = measured_links.read(rows)
    numbers, others = recording.fitted()
    for title, checked in (("nothing fitted", recording.checked()), (f"{numbers}", others)):
        held = sum(one.holds for one in checked)
        print(f"{title}: {held} of {len(checked)} rows within the limits")
        for one in checked:
            row, link = one.row, Link(one.row.gbit)
            print(
                f"  {row.shape} {link} {row.requests}: {row.step_s * 1e3:.2f} ms {one.error:+.0%}"
            )


def main() -> None:
    """Measure, or fit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("measure", "fit"))
    parser.add_argument("out", type=Path)
    parser.add_argument("shape", nargs="*")
    parser.add_argument("--models", type=Path, default=Path())
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--ways", default=",".join(["all-reduce", "one", "replicas", *VARIANTS]))
    asked = parser.parse_args()
    if asked.verb == "fit":
        fit(read(asked.out / "links.jsonl"))
        return
    if not asked.shape or not set(asked.shape) <= set(SHAPES):
        parser.error(f"name one or more shapes of {', '.join(SHAPES)}")
    until = time.monotonic() + asked.minutes * 60
    asked.out.mkdir(parents=True, exist_ok=True)
    ways = asked.ways.split(",")
    with two_nodes(mtu=9000) as made:
        measurement = Measurement(made, asked.shape, asked.out.resolve(), asked.models)
        try:
            measurement.start(ways)
            measurement.run(ways, until)
        finally:
            measurement.stop()


if __name__ == "__main__":
    main()
