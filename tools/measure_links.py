"""Measures what a link between two nodes is worth: two network namespaces of this machine joined by
a virtual cable that is held to a rate, one GPU (or half of the CPU) each.

    python tools/measure_links.py measure OUT SHAPE [--models DIR] [--minutes N] [--ways W]
    python tools/measure_links.py fit OUT

SHAPE is `tiny` (our own model on the CPU engine; tries the whole of it anywhere), `8b` or `30b`:
folders `shape-8b` and `shape-30b` of what `tools/make_nvfp4_models.py` makes, with dummy weights on
two GPUs. The servers are started by `sparkbook cluster serve` and `sparkbook serve`, all at once,
and measured one after another by `sparkbook bench`, the most valuable rows first. Each row is
appended to `OUT/links.jsonl` as soon as it is there; a second call skips those, so that a run that
was cut off goes on. `--minutes` ends it in order before a machine is taken away; `--ways tp,one`
starts only some of the servers, where memory or time is short (`tp-eager`, `tp-ll` and `tp-simple`
are started only where they are named). Needs root, `ip`
and `tc`; the engine is the one that SPARKBOOK_ENGINE_PYTHON names, with a `vllm` next to it.

`fit` holds the model of `sparkbook plan --nodes` (a step is the reading of half the weights, plus
two all-reduces a layer) against the rows: its three numbers are found on one half of the rows and
checked on the other.
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

import numpy as np
import yaml
from namespaces import HOSTS, TwoNodes, two_nodes
from sparkbook.cluster import fabric, nodes

SPARKBOOK = [sys.executable, "-c", "import sys; from sparkbook.cli import main; sys.exit(main())"]
READY_S = 400.0
GPU = {
    # NCCL is to believe in two hosts, and to have no other way than the cable.
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
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


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is served, and how much of it is measured.

    Attributes:
        source: of `sparkbook serve`: a recipe, or words of `vllm serve` after the model.
        layers, hidden: of the model, for its all-reduces.
        few, rest: requests at once that are measured first, and later.
        prefill: prompt classes. links: the cable's rates, the most telling first.
    """

    source: str
    gpu: bool
    layers: int
    hidden: int
    few: tuple[int, ...] = (1, 8, 32)
    rest: tuple[int, ...] = (2, 4, 16)
    prefill: tuple[str, ...] = ("long-512", "long-8k")
    links: tuple[Link, ...] = (
        *(Link(gbit) for gbit in (25, 10, 100, 50)),
        *(Link(100, delay) for delay in (50, 20, 100)),
    )
    max_tokens: int = 64
    seconds: float = 5.0


_DUMMY = (
    "--load-format dummy --max-model-len 12288 --max-num-seqs 32 --served-model-name m"
    " --gpu-memory-utilization 0.06 --kv-cache-memory-bytes "
)
SHAPES = {
    "tiny": Shape(
        source="embedded/tiny-dense",
        gpu=False,
        layers=3,
        hidden=128,
        few=(1, 4),
        rest=(2,),
        prefill=("long-200",),
        links=(Link(0.1), Link(1), Link(1, 50)),
        max_tokens=32,
    ),
    "8b": Shape(source=_DUMMY + "8G", gpu=True, layers=36, hidden=4096),
    "30b": Shape(source=_DUMMY + "6G", gpu=True, layers=48, hidden=2048),
}


@dataclass(frozen=True)
class Step:
    """One row to measure. `way` is one of `VARIANTS`, one, replicas, or all-reduce."""

    way: str
    link: Link
    requests: int = 1
    prompts: str = "code"

    @property
    def key(self) -> str:
        """What a row is found by."""
        return json.dumps([self.way, asdict(self.link), self.requests, self.prompts])


def steps(shape: Shape) -> Iterator[Step]:
    """Yield what to measure, the most valuable first."""
    whole = Link()
    for link in (whole, *shape.links):
        yield Step("all-reduce", link)
    for way in ("tp", "one", "replicas"):
        yield from (Step(way, whole, count) for count in shape.few)
    for link in (link for link in shape.links if not link.delay_us):
        yield from (Step("tp", link, count) for count in shape.few)
    for way in ("tp", "one", "replicas"):
        yield from (Step(way, whole, count) for count in shape.rest)
    for way, link in (("tp", whole), ("one", whole), ("tp", shape.links[0])):
        yield from (Step(way, link, 1, name) for name in shape.prefill)
    for link in (whole, shape.links[0]):
        yield from (Step("pp", link, count) for count in shape.few)
        yield from (Step("pp", link, 1, name) for name in shape.prefill)
    for way in ("tp-eager", "tp-ll", "tp-simple"):
        yield from (Step(way, whole, count) for count in shape.few)
    for link in (link for link in shape.links if link.delay_us):
        yield from (Step("tp", link, count) for count in shape.few)
    for link in (link for link in shape.links if not link.delay_us):
        yield from (Step("tp", link, count) for count in shape.rest)


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

    def ready(self, until: float) -> bool:
        """Wait until it is ready, has ended, or time is up."""
        while not self.told and self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        return bool(self.told)


class Measurement:
    """All servers of one shape on two nodes, and the rows as they come."""

    def __init__(self, made: TwoNodes, shape: Shape, out: Path, models: Path | None, name: str):
        self.made, self.shape, self.out = made, shape, out
        self.file = out / "links.jsonl"
        self.servers: dict[str, Server] = {}
        self.done = {row["key"] for row in read(self.file) if row["shape"] == name}
        self.name = name
        self.models = models or Path()
        self.environment = os.environ | {"SPARKBOOK_CACHE": str(out / "cache")}

    def source(self, more: str = "") -> str:
        """Return what `serve` takes: a recipe, or a file with a launch line."""
        if not self.shape.gpu:
            return self.shape.source
        file = self.out / f"{self.name}{more.replace(' ', '')}.txt"
        model = self.models.resolve() / f"shape-{self.name}"
        file.write_text(f"vllm serve {model} {self.shape.source}{more}\n", "utf-8")
        return str(file)

    def environment_of(self, number: int) -> dict[str, str]:
        """Return what a node's ranks get besides."""
        own = {"CUDA_VISIBLE_DEVICES": str(number), "NCCL_HOSTID": HOSTS[number]}
        return {**GPU, **own} if self.shape.gpu else {}

    def inventory(self, way: str, port: int) -> Path:
        """Write the inventory of one server: each has a port of its own where its ranks meet."""
        env = VARIANTS[way][1]
        pair = self.made.inventory(env=self.environment_of(1) | env)
        pair = pair.model_copy(update={"name": way, "master_port": port})
        text = pair.model_dump(exclude_defaults=True, mode="json")
        text["nodes"][0]["env"] = self.environment_of(0) | env
        file = self.out / f"{way}.yaml"
        file.write_text(yaml.safe_dump(text), "utf-8")
        return file

    def start(self, ways: Sequence[str]) -> None:
        """Start the servers at once: they answer one after another, and cost nothing when idle."""
        for place, way in enumerate(way for way in VARIANTS if way in ways):
            file, source = self.inventory(way, 29501 + 10 * place), self.source(VARIANTS[way][0])
            words = ["cluster", "serve", str(file), source, "--layout", f"{way[:2]}=2"]
            self._start(way, words, 8000 + place)
        wanted = ("one", "two") if "replicas" in ways else ("one",) if "one" in ways else ()
        for number, way in enumerate(wanted):
            via = tuple(self.made.via) if number else ()
            words = ["serve", self.source(), "--target", "process"]
            self._start(way, words, 8010 + number, via, self.environment_of(number))

    def _start(
        self,
        way: str,
        words: Sequence[str],
        port: int,
        via: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        more = ["--name", f"m-{way}", "--port", str(port), "--json", "--deadline", str(READY_S)]
        with (self.out / f"{way}.err").open("a") as errors:
            process = subprocess.Popen(
                [*via, *SPARKBOOK, *words, *more],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**self.environment, **(env or {})},
            )
        self.servers[way] = Server(way, process, via)
        threading.Thread(target=self.servers[way].listen, daemon=True).start()

    def shaped(self, link: Link) -> bool:
        """Hold the cable; whether the delay could be made."""
        self.made.unshape()
        return self.made.shape(link.gbit, link.delay_us) if link.gbit else not link.delay_us

    def add(self, step: Step, row: dict[str, Any]) -> None:
        """Append a row."""
        row = {"shape": self.name, "key": step.key, **asdict(step), **row}
        with self.file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        short = {
            name: row.get(name) for name in ("tok_s", "ttft_s", "verdict", "problem", "points")
        }
        print(
            f"{self.name} {step.way} {step.link} {step.requests} {step.prompts}: {short}",
            flush=True,
        )

    def run(self, ways: Sequence[str], until: float) -> None:
        """Measure what is missing until time is up."""
        for step in steps(self.shape):
            if step.key in self.done or step.way not in ways or time.monotonic() > until:
                continue
            made = self.shaped(step.link)
            row: dict[str, Any] = {"delay_made": made} if step.link.delay_us else {}
            if not made:
                self.add(step, row | {"problem": "this kernel has no netem: no delay can be made"})
                continue
            if step.way == "all-reduce":
                row |= self.all_reduce()
            else:
                names = ("one", "two") if step.way == "replicas" else (step.way,)
                served = [self.servers[name] for name in names]
                unready = [one.name for one in served if not one.ready(until)]
                if unready and time.monotonic() > until:
                    continue  # to be measured by the next call
                row |= (
                    {"problem": f"{unready[0]} is not ready"}
                    if unready
                    else self.bench(step, served)
                )
            self.add(step, row)

    def all_reduce(self) -> dict[str, Any]:
        """Measure an all-reduce of many sizes between the nodes, as `cluster check` does."""
        inventory = self.made.inventory(env=self.environment_of(1))
        inventory = inventory.model_copy(update={"master_port": 29541})
        inventory.nodes[0].env.update(self.environment_of(0))
        pair = fabric.measure(inventory, nodes.look(inventory), seconds=0.5)[0]
        found = pair.model_dump(exclude_none=True)
        return {"points": found.pop("reduce_table", None), "pair": found}

    def bench(self, step: Step, served: Sequence[Server]) -> dict[str, Any]:
        """Measure a row; of two servers, half of the requests each, at the same time."""
        at_once = max(step.requests // len(served), 1)
        running, files = [], []
        for server in served[: step.requests]:
            file = self.out / f"bench-{server.name}.json"
            file.unlink(missing_ok=True)
            words = ["bench", server.told["url"].removesuffix("/v1"), "--classes", step.prompts]
            words += ["--concurrency", str(at_once), "--requests", str(max(3 * at_once, 4))]
            tokens = self.shape.max_tokens if step.prompts == "code" else 8
            words += ["--max-tokens", str(tokens), "--seconds", str(self.shape.seconds)]
            env = self.environment | {"SPARKBOOK_KEY_FILE": server.told["key"]}
            words = [*server.via, *SPARKBOOK, *words, "--out", str(file)]
            running.append(subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL))
            files.append(file)
        for one in running:
            one.wait(180)
        if not all(file.is_file() for file in files):
            return {"problem": "bench wrote no result"}
        cells = [json.loads(file.read_text("utf-8"))["cells"][0] for file in files]
        rates = [cell["figures"].get("out_tok_s") or 0.0 for cell in cells]
        first = cells[0]["figures"]
        return {
            "tok_s": round(sum(rates), 2),
            "tpot_s": (first.get("tpot_s") or {}).get("median"),
            "ttft_s": (first.get("ttft_s") or {}).get("median"),
            "prefill_tok_s": (first.get("prefill_tok_s") or {}).get("median"),
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


# ---- the model of `plan --nodes` against the rows


def all_reduce_s(points: Sequence[tuple[int, float]], size: float) -> float:
    """Return seconds of an all-reduce from measured (bytes, µs): a straight line between the two
    sizes around it, the last two beyond.
    """
    at = next((n for n in range(1, len(points)) if points[n][0] >= size), len(points) - 1)
    (low, left), (high, right) = points[at - 1], points[at]
    value = left + (right - left) * (size - low) / (high - low)
    return max(value, points[0][1] if size <= points[0][0] else 0.0) * 1e-6


def _no_less_than_zero(terms: np.ndarray) -> np.ndarray:
    """Return the numbers, none below zero, with which the terms of every row come nearest to 1."""
    best, least = np.zeros(terms.shape[1]), np.inf
    for used in itertools.product((False, True), repeat=terms.shape[1]):
        chosen = np.array(used)
        values = np.zeros(len(used))
        values[chosen] = np.linalg.lstsq(terms[:, chosen], np.ones(len(terms)), rcond=None)[0]
        error = float(((terms @ values - 1) ** 2).sum())
        if values.min() >= 0 and error < least:
            best, least = values, error
    return best


def fit(rows: Sequence[dict[str, Any]], shape: Shape) -> dict[str, Any]:
    """Find the model's three numbers on every second row of tensor parallelism, and check them on
    the others.

    A step of n requests takes `split` × the step of one node + `fixed` + `unhidden` × the time of
    two all-reduces a layer and one more, each of hidden size × n × 2 bytes. `plan --nodes` says
    split = 1/2 of what is read, fixed = the rest of a layer, unhidden = 1.

    Returns:
        The numbers, how many of the rows the gate calls valid, and for each row that was left out:
        requests, link, measured and estimated step time, and the error.
    """
    tables = {
        json.dumps(row["link"]): row["points"]
        for row in rows
        if row["way"] == "all-reduce" and row.get("points")
    }
    decode = [row for row in rows if row["prompts"] == "code" and row.get("tok_s")]
    alone = {
        row["requests"]: row["requests"] / row["tok_s"] for row in decode if row["way"] == "one"
    }
    points = []
    for row in decode:
        table = tables.get(json.dumps(row["link"]))
        if row["way"] != "tp" or table is None or row["requests"] not in alone:
            continue
        requests = row["requests"]
        spent = (2 * shape.layers + 1) * all_reduce_s(table, shape.hidden * 2 * requests)
        points.append((row, [alone[requests], 1.0, spent], requests / row["tok_s"]))
    points.sort(key=lambda one: (one[0]["requests"], one[1][2]))
    known, other = points[::2], points[1::2]
    if len(known) < 3 or not other:
        return {"problem": f"{len(points)} rows of tensor parallelism: at least 5 are needed"}
    terms = np.array([terms for _, terms, _ in known])
    step_s = np.array([step for _, _, step in known])
    # Relative errors count: each row is divided by what was measured.
    found = _no_less_than_zero(terms / step_s[:, None])
    checked = []
    for row, terms_of_row, measured in other:
        estimated = float(np.dot(found, terms_of_row))
        checked.append(
            {
                "requests": row["requests"],
                "link": str(Link(**row["link"])),
                "measured_ms": round(measured * 1e3, 2),
                "estimated_ms": round(estimated * 1e3, 2),
                "error": round(estimated / measured - 1, 3),
            }
        )
    names = ("split", "fixed_s", "unhidden")
    limits = [0.15 if one["requests"] == 1 else 0.2 for one in checked]
    held = [abs(one["error"]) <= limit for one, limit in zip(checked, limits, strict=True)]
    numbers = {name: round(float(value), 5) for name, value in zip(names, found, strict=True)}
    valid = sum(row.get("verdict", ["valid"]) == ["valid"] for row, _, _ in points)
    return {
        **numbers,
        "fitted": len(known),
        "valid": f"{valid} of {len(points)}",
        "checked": checked,
        "held": f"{sum(held)} of {len(held)}",
    }


def main() -> None:
    """Measure, or fit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("verb", choices=("measure", "fit"))
    parser.add_argument("out", type=Path)
    parser.add_argument("shape", choices=sorted(SHAPES), nargs="?")
    parser.add_argument("--models", type=Path)
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--ways", default="all-reduce,tp,one,replicas,pp")
    asked = parser.parse_args()
    if asked.verb == "fit":
        rows = read(asked.out / "links.jsonl")
        for name in sorted({row["shape"] for row in rows}):
            mine = [row for row in rows if row["shape"] == name]
            print(name, json.dumps(fit(mine, SHAPES[name]), indent=1))
        return
    until = time.monotonic() + asked.minutes * 60
    asked.out.mkdir(parents=True, exist_ok=True)
    with two_nodes(mtu=9000) as made:
        measurement = Measurement(
            made, SHAPES[asked.shape], asked.out.resolve(), asked.models, asked.shape
        )
        try:
            measurement.start(asked.ways.split(","))
            measurement.run(asked.ways.split(","), until)
        finally:
            measurement.stop()


if __name__ == "__main__":
    main()
