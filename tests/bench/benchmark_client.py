"""How near the measuring client comes to the truth, and what it costs, beside other clients in the
same run.

    python tests/bench/benchmark_client.py [--llama-benchy PROGRAM --tokenizer FOLDER] [--engine]

Goals: TTFT bias <= 2 ms mean and <= 5 ms p99 on a burst of 16, TPOT and tok/s within 0.1 % of the
truth at 1, 16 and 64 requests at a time, <= 100 µs of CPU a chunk and below every other client, >=
8,000 chunks a second on one core; with --engine, TPOT and TTFT within 2 % of what an embedded vLLM
counts itself. A busy machine shows: each part is repeated and the best and the median run are
printed.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from sparkbook import bench, recipes
from sparkbook.bench import client, load, prompts, stats
from sparkbook.bench.results import agreement, figures
from sparkbook.bench.telemetry import Live
from sparkbook.serve import embedded

HERE = Path(__file__).parent
SHAPES = {
    "dense": {"ttft": 0.2, "step": 0.02},
    "spec": {"ttft": 0.2, "step": 0.05, "pattern": [4, 2, 6, 1, 3]},
}
SWEEP = (
    (1, "dense", 64, 6),
    (1, "spec", 64, 6),
    (16, "dense", 64, 4),
    (16, "spec", 96, 4),
    (64, "dense", 64, 3),
)
"""Requests at a time, shape, tokens a reply, waves."""


class Truth:
    """The truth server in its own process; `default` is what it does for a client that cannot say."""

    def __init__(self, default=None):
        self.environment = {**os.environ, "TRUTH_DEFAULT": json.dumps(default or {})}

    def __enter__(self):
        command = [sys.executable, "-I", HERE / "truth.py"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=self.environment
        )
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def told(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/truth") as reply:
            return json.loads(reply.read())

    def job(self, count, slots, tokens, truth):
        bodies = [
            json.dumps(
                {
                    "messages": [{"role": "user", "content": f"request {n}"}],
                    "max_tokens": tokens,
                    "stream": True,
                    "return_token_ids": True,
                    "stream_options": {"include_usage": True},
                    "truth": truth,
                }
            )
            for n in range(count)
        ]
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "tls": False,
            "path": "/v1/chat/completions",
            "bodies": bodies,
            "slots": slots,
        }


def accuracy(truth, slots, shape, tokens, waves):
    """Biases of one run: TTFT (ms, mean and p99), TPOT (%, mean of requests), out_tok_s (%), step
    gap p99 (ms).
    """
    truth.told()
    with load.Worker() as worker:
        worker.run(
            truth.job(slots, slots, 4, {"ttft": 0.01, "step": 0.001})
        )  # the client is warm, too
        truth.told()
        outcome = worker.run(truth.job(waves * slots, slots, tokens, SHAPES[shape]))
    real = {entry["prompt"]: entry for entry in truth.told()}
    names = [prompts.Prompt(f"request {n}", "") for n in range(waves * slots)]
    found = load.requests_of(outcome, names, False)
    assert len(found) == len(real) and not any(r.error for r in found)
    ttft, tpot, gaps = [], [], []
    for request in found:
        entry = real[request.prompt]
        ttft.append(1000 * (request.ttft_s - (entry["stamps"][0] - entry["begin"])))
        tpot.append(
            request.tpot_s / ((entry["stamps"][-1] - entry["stamps"][0]) / (tokens - 1)) - 1
        )
        gaps += [1000 * (b - a) for a, b in zip(entry["stamps"], entry["stamps"][1:], strict=False)]
    begin, end = min(e["begin"] for e in real.values()), max(e["stamps"][-1] for e in real.values())
    rate = figures(found, slots).out_tok_s / (tokens * len(found) / (end - begin)) - 1
    mine = [1000 * gap for request in found for gap in request.step_gaps_s]
    return (
        statistics.fmean(ttft),
        stats.quantile(ttft, 0.99),
        100 * statistics.fmean(tpot),
        100 * rate,
        stats.quantile(mine, 0.99) - stats.quantile(gaps, 0.99),
    )


class Bare(asyncio.Protocol):
    """The least that a client can do that parses as it reads: no errors, no framing but `data:`
    lines.
    """

    def __init__(self):
        self.stamps, self.buffer, self.finished = [], b"", None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        now = time.monotonic()
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            if line.startswith(b"data: "):
                if line.startswith(b"data: [DONE]"):
                    self.finished.set_result(None)
                elif (choices := json.loads(line[6:])["choices"]) and choices[0]["delta"].get(
                    "content"
                ):
                    self.stamps.append(now)


async def bare(job):
    loop = asyncio.get_running_loop()
    lanes = [
        (await loop.create_connection(Bare, job["host"], job["port"]))[1]
        for _ in range(job["slots"])
    ]
    cpu = time.process_time()
    left = iter(job["bodies"])

    async def lane(connection):
        for text in left:
            body = text.encode()
            connection.finished = loop.create_future()
            connection.transport.write(
                b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s"
                % (job["path"].encode(), len(body), body)
            )
            await connection.finished

    await asyncio.gather(*(lane(connection) for connection in lanes))
    spent = time.process_time() - cpu
    return spent, sum(len(connection.stamps) for connection in lanes)


async def with_httpx(job):
    import httpx

    url = f"http://{job['host']}:{job['port']}{job['path']}"
    left, chunks = iter(job["bodies"]), 0
    async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as asking:

        async def lane():
            nonlocal chunks
            for body in left:
                async with asking.stream("POST", url, content=body) as reply:
                    async for line in reply.aiter_lines():
                        if (
                            line.startswith("data: {")
                            and (choices := json.loads(line[6:])["choices"])
                            and choices[0]["delta"].get("content")
                        ):
                            chunks += 1

        cpu = time.process_time()
        await asyncio.gather(*(lane() for _ in range(job["slots"])))
        return time.process_time() - cpu, chunks


def in_a_process(kind, truth, arguments):
    """CPU seconds and chunks of a client in a fresh process."""
    command = [
        sys.executable,
        __file__,
        "--only",
        kind,
        "--port",
        str(truth.port),
        "--job",
        json.dumps(arguments),
    ]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(told.stdout)


def only(kind, port, arguments):
    truth = Truth()
    truth.port = port
    job = truth.job(**arguments)
    if kind == "sparkbook":
        outcome = asyncio.run(client.run(job))
        print(
            json.dumps(
                [
                    outcome["cpu_s"] + outcome["parse_cpu_s"],
                    outcome["events"] - len(outcome["records"]) * 2,
                ]
            )
        )
    else:
        print(json.dumps(asyncio.run({"bare": bare, "httpx": with_httpx}[kind](job))))


def benchy(truth, program, tokenizer, tokens):
    """CPU seconds of llama-benchy for three runs of 16 requests."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [
        program,
        "--base-url",
        f"http://127.0.0.1:{truth.port}/v1",
        "--model",
        "truth",
        "--tokenizer",
        tokenizer,
    ]
    command += [
        "--pp",
        "16",
        "--tg",
        str(tokens),
        "--depth",
        "0",
        "--runs",
        "3",
        "--concurrency",
        "16",
    ]
    command += ["--latency-mode", "none", "--skip-coherence", "--no-adapt-prompt", "--no-warmup"]
    subprocess.run(
        command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


LONG = bench.BenchPlan(classes=("prose",), concurrency=(1,), requests=3, max_tokens=400, waves=1)
"""Long replies: what separates client and engine is when the first and the last event are
delivered, some milliseconds each, however long the time between them is.
"""
QUEUE = bench.BenchPlan(classes=("prose",), concurrency=(8,), requests=24, max_tokens=96, waves=2)
"""Eight at a time for an engine that runs two: the wait for the first token is long beside what the
server adds to it.
"""


def beside_the_engine(repeat):
    """Print by how much the client's times are apart from the engine's own."""
    print("\nclient against engine, %   (median of runs; best in brackets)")
    for name in ("embedded/tiny-dense", "embedded/tiny-dense-ngram"):
        recipe = recipes.load(name)
        serve = recipe.serve.model_copy(update={"args": {**recipe.serve.args, "max-num-seqs": 2}})
        with embedded.start(recipe.model_copy(update={"serve": serve}), requests=False) as engine:
            for plan, figure in ((LONG, "tpot_s"), (QUEUE, "ttft_s")):
                runs = []
                for _ in range(repeat):
                    source = Live(engine.endpoint, 0.25)
                    (cell,) = bench.measure(engine.endpoint, plan, source=source).cells
                    runs.append(100 * agreement(cell)[figure].apart)
                best = min(runs, key=abs)
                print(f"{name:<26} {figure:<6} {statistics.median(runs):+6.2f} [{best:+.2f}]")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama-benchy")
    parser.add_argument("--tokenizer", default="")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--only")
    parser.add_argument("--port", type=int)
    parser.add_argument("--job")
    options = parser.parse_args()
    if options.only:
        only(options.only, options.port, json.loads(options.job))
        return
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
    with Truth() as truth:
        print(
            "\nbias: mean TTFT ms | p99 TTFT ms | TPOT % | out_tok_s % | p99 step gap ms   (median"
            " of runs; best in brackets)"
        )
        for slots, shape, tokens, waves in SWEEP:
            runs = [accuracy(truth, slots, shape, tokens, waves) for _ in range(options.repeat)]
            cells = [
                f"{statistics.median(column):8.3f} [{min(column, key=abs):.3f}]"
                for column in zip(*runs, strict=True)
            ]
            print(f"c={slots:<3} {shape:<6}", *cells)
        paced = {"count": 48, "slots": 16, "tokens": 400, "truth": {"ttft": 0.05, "step": 0.005}}
        print(
            "\nCPU of the client, µs a chunk, 16 streams of 200 chunks/s each   (median of runs;"
            " best in brackets)"
        )
        for kind in ("sparkbook", "bare", "httpx"):
            runs = [
                1e6 * cpu / chunks
                for cpu, chunks in (in_a_process(kind, truth, paced) for _ in range(options.repeat))
            ]
            print(f"{kind:<14} {statistics.median(runs):6.1f} [{min(runs):.1f}]")
        if options.llama_benchy:
            runs = []
            with Truth(paced["truth"]) as fixed:
                for _ in range(options.repeat):
                    # The difference of a long and a short run leaves its start-up out.
                    short, long = (
                        benchy(fixed, options.llama_benchy, options.tokenizer, tokens)
                        for tokens in (1, 401)
                    )
                    runs.append(1e6 * (long - short) / (3 * 16 * 400))
            print(f"{'llama-benchy':<14} {statistics.median(runs):6.1f} [{min(runs):.1f}]")
        rush = {"count": 64, "slots": 16, "tokens": 1000, "truth": {"ttft": 0.0, "step": 0.0}}
        runs = [
            chunks / cpu
            for cpu, chunks in (
                in_a_process("sparkbook", truth, rush) for _ in range(options.repeat)
            )
        ]
        print(
            f"\nback to back: {statistics.median(runs):,.0f} chunks a second of one core"
            f" [{max(runs):,.0f}]"
        )
    if options.engine:
        beside_the_engine(options.repeat)


if __name__ == "__main__":
    main()
