"""Which measuring tool may be trusted: each against a server whose timing is known, and against the
embedded engine's own counters.

    PYTHONPATH=lib .venv/bin/python tools/compare_clients.py --guidellm VENV --aiperf VENV [--only
    TOOL,…] [--keep FOLDER]

The two folders are virtual environments in which `pip install guidellm` and `pip install aiperf`
were run; vLLM's own is the project's `.venv-engine`. What comes out is
lib/sparkbook/bench/recorded/clients.json, the table of the appendix to chapter 10. Nothing else should run
meanwhile.

Against the truth server (tests/bench/truth.py) each tool asks for replies of known length with a
first token after 200 ms and a step of 20 ms, one token a step ("dense") or several, as under
speculation ("spec"). What the server wrote and when is the truth. CPU per chunk is that of all of a
tool's processes: the difference of a long and a short run, so that its start is left out.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkbook.bench import exchange, load
from sparkbook.bench.results import Figures
from sparkbook.metrics import Metrics
from sparkbook.metrics.diagnose import deltas
from sparkbook.serve import embedded, paths
from sparkbook.serve.endpoint import Endpoint

ROOT = Path(__file__).resolve().parents[1]
OUT = Path(exchange.__file__).with_name("recorded") / "clients.json"
TOKENIZER = Path(embedded.TINY_MODELS) / "tiny-dense"
SHAPES: dict[str, dict[str, Any]] = {
    "dense": {"ttft": 0.2, "step": 0.02},
    "spec": {"ttft": 0.2, "step": 0.05, "pattern": [4, 2, 6, 1, 3]},
}
INPUT, OUTPUT, WAVES = 32, 65, {1: 6, 16: 3}
"""Tokens of a prompt and of a reply, and requests of each slot."""


@dataclass(frozen=True)
class Load:
    """So many requests, so many at a time, each reply so long."""

    slots: int
    requests: int
    tokens: int


Tool = Callable[[Endpoint, Load, Path], Path]
"""Measures an endpoint; its files go into a folder, and the one with the result is given back."""


def call(command: list[Any], endpoint: Endpoint, folder: Path) -> None:
    """Run a tool quietly; its output is kept beside its files and shown where it fails."""
    environment = {
        **os.environ,
        "OPENAI_API_KEY": endpoint.api_key or "none",
        "TOKENIZERS_PARALLELISM": "false",
        "COLUMNS": "200",
    }
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        timeout=240,
    )
    (folder / "said.txt").write_text(done.stdout + done.stderr, "utf-8")
    if done.returncode:
        sys.exit(
            f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )


def ours(endpoint: Endpoint, job: Load, folder: Path) -> Path:
    command = [
        sys.executable,
        "-c",
        "from sparkbook.cli import main; main()",
        "bench",
        endpoint.url,
        "--model",
        endpoint.model,
    ]
    command += [
        "--classes",
        "random",
        "--concurrency",
        job.slots,
        "--requests",
        job.requests,
        "--max-tokens",
        job.tokens,
    ]
    call([*command, "--out", folder / "result.json"], endpoint, folder)
    return folder / "result.json"


def vllm(endpoint: Endpoint, job: Load, folder: Path) -> Path:
    command = [
        paths.engine_python().with_name("vllm"),
        "bench",
        "serve",
        "--backend",
        "openai-chat",
        "--base-url",
        endpoint.url,
    ]
    command += [
        "--endpoint",
        "/v1/chat/completions",
        "--model",
        endpoint.model,
        "--tokenizer",
        TOKENIZER,
        "--dataset-name",
        "random",
    ]
    command += [
        "--random-input-len",
        INPUT,
        "--random-output-len",
        job.tokens,
        "--ignore-eos",
        "--temperature",
        "0",
    ]
    command += [
        "--num-prompts",
        job.requests,
        "--max-concurrency",
        job.slots,
        "--num-warmups",
        job.slots,
        "--disable-tqdm",
    ]
    command += [
        "--save-result",
        "--save-detailed",
        "--result-dir",
        folder,
        "--result-filename",
        "result.json",
    ]
    call(command, endpoint, folder)
    return folder / "result.json"


def guidellm(program: Path) -> Tool:
    def measure(endpoint: Endpoint, job: Load, folder: Path) -> Path:
        backend = f"kind=openai_http,target={endpoint.url},model={endpoint.model}"
        command = [
            program,
            "run",
            "--backend",
            backend + (f",api_key={endpoint.api_key}" if endpoint.api_key else ""),
        ]
        command += [
            "--profile",
            f"kind=concurrent,streams={job.slots}",
            "--constraint",
            f"kind=max_requests,count={job.requests}",
        ]
        command += ["--tokenizer", f"kind=hf_auto,model={TOKENIZER}", "--disable-console"]
        command += [
            "--data",
            f"kind=synthetic_text,prompt_tokens={INPUT},output_tokens={job.tokens}",
        ]
        call([*command, "--output", f"kind=json,path={folder / 'result.json'}"], endpoint, folder)
        return folder / "result.json"

    return measure


def aiperf(program: Path) -> Tool:
    def measure(endpoint: Endpoint, job: Load, folder: Path) -> Path:
        command = [
            program,
            "profile",
            "--url",
            endpoint.url,
            "--model",
            endpoint.model,
            "--tokenizer",
            TOKENIZER,
            "--streaming",
        ]
        command += [
            "--endpoint-type",
            "chat",
            "--concurrency",
            job.slots,
            "--request-count",
            job.requests,
            "--ui",
            "none",
        ]
        command += [
            "--synthetic-input-tokens-mean",
            INPUT,
            "--output-tokens-mean",
            job.tokens,
            "--output-tokens-stddev",
            0,
        ]
        # By itself it counts tokens with its tokenizer; what the server says is what the others go
        # by.
        command += [
            "--use-server-token-count",
            "--extra-inputs",
            "ignore_eos:true",
            "--warmup-request-count",
            job.slots,
        ]
        command += ["--output-artifact-dir", folder] + (
            ["--api-key", endpoint.api_key] if endpoint.api_key else []
        )
        call(command, endpoint, folder)
        return folder / "profile_export_aiperf.json"

    return measure


@contextlib.contextmanager
def truth_server(shape: str) -> Iterator[Endpoint]:
    """The server with a known timing, in a process of its own."""
    environment = {**os.environ, "TRUTH_DEFAULT": json.dumps(SHAPES[shape])}
    command = [sys.executable, "-I", ROOT / "tests" / "bench" / "truth.py"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout
        yield Endpoint(f"http://127.0.0.1:{int(process.stdout.readline())}", "truth")
    finally:
        process.kill()
        process.wait()


def written(endpoint: Endpoint, job: Load) -> tuple[dict[str, float], int]:
    """What the truth server did for the last requests of this load: figures, and chunks of all that
    it was asked.
    """
    with urllib.request.urlopen(f"{endpoint.url}/truth") as reply:
        told = json.loads(reply.read())
    last = sorted(
        (one for one in told if sum(one["tokens"]) == job.tokens), key=lambda one: one["begin"]
    )[-job.requests :]
    if len(last) < job.requests:
        sys.exit(
            f"the server was asked for {len(told)} replies, {len(last)} of the wanted length, and"
            f" not for {job.requests}"
        )
    begin, end = min(one["begin"] for one in last), max(one["stamps"][-1] for one in last)
    gaps = [b - a for one in last for a, b in zip(one["stamps"], one["stamps"][1:], strict=False)]
    return {
        "ttft_s": statistics.fmean(one["stamps"][0] - one["begin"] for one in last),
        "tpot_s": statistics.fmean(
            (one["stamps"][-1] - one["stamps"][0]) / (job.tokens - 1) for one in last
        ),
        "step_gap_s": statistics.fmean(gaps),
        "out_tok_s": job.tokens * job.requests / (end - begin),
    }, sum(len(one["stamps"]) for one in told)


def told_by(file: Path) -> dict[str, float | None]:
    """The same figures as the tool's own file tells them; None where it has no such figure."""
    figures: Figures = exchange.read(file).cells[0].figures
    means = {
        name: found.mean if (found := getattr(figures, name)) else None
        for name in ("ttft_s", "tpot_s", "step_gap_s")
    }
    return {**means, "out_tok_s": figures.out_tok_s}


def spent() -> float:
    """CPU seconds of the processes that were started from here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def against_truth(name: str, tool: Tool, shape: str, keep: Path) -> list[dict[str, Any]]:
    """Rows of one tool: 1 and 16 requests at a time; CPU per chunk from a second run at 16 with
    short replies.
    """
    rows = []
    cost: list[tuple[float, int]] = []
    jobs = [Load(1, WAVES[1], OUTPUT), Load(16, 16 * WAVES[16], OUTPUT)]
    for job in [*jobs, Load(16, 16 * WAVES[16], 2)] if shape == "dense" else jobs:
        folder = keep / f"{name}-{shape}-c{job.slots}-{job.tokens}"
        folder.mkdir()
        with truth_server(shape) as endpoint:
            before = spent()
            file = tool(endpoint, job, folder)
            cpu = spent() - before  # the server is not in it: it has not ended yet
            real, chunks = written(endpoint, job)
        if job.slots > 1:
            cost.append((cpu, chunks))
        if job.tokens == OUTPUT:
            rows.append(
                {
                    "tool": name,
                    "shape": shape,
                    "slots": job.slots,
                    "truth": real,
                    "told": told_by(file),
                }
            )
            print(name, shape, job.slots, rows[-1]["truth"], rows[-1]["told"], flush=True)
    if len(cost) == 2:
        (long, many), (short, few) = cost
        rows[-1]["cpu_us_a_chunk"] = round(1e6 * (long - short) / (many - few), 1)
        print(name, shape, rows[-1]["cpu_us_a_chunk"], "µs a chunk", flush=True)
    return rows


def against_engine(name: str, tool: Tool, endpoint: Endpoint, keep: Path) -> list[dict[str, Any]]:
    """The same against the embedded engine: its own counters over the tool's run, warm-up included
    where the tool sends one.
    """
    rows = []
    for slots in (1, 16):
        job = Load(slots, slots * WAVES[slots], OUTPUT)
        folder = keep / f"{name}-engine-c{slots}"
        folder.mkdir()
        before, begin = Metrics.parse(endpoint.metrics_text()), time.monotonic()
        file = tool(endpoint, job, folder)
        change = deltas(before, Metrics.parse(endpoint.metrics_text()), time.monotonic() - begin)
        made = (change.generation_tokens or 0) - (change.first_tokens or 0)
        real = {
            "ttft_s": change.ttft_s,
            "tpot_s": change.decode_s / made if change.decode_s and made else None,
        }
        rows.append(
            {"tool": name, "shape": "engine", "slots": slots, "truth": real, "told": told_by(file)}
        )
        print(name, "engine", slots, real, rows[-1]["told"], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--guidellm", type=Path)
    parser.add_argument("--aiperf", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--against", default="dense,spec,engine")
    parser.add_argument("--keep", type=Path, help="where the tools' own files stay")
    given = parser.parse_args()
    tools: dict[str, tuple[Tool, Path | None]] = {
        "sparkbook": (ours, None),
        "vllm bench serve": (vllm, paths.engine_python().parent),
    }
    if given.guidellm:
        tools["GuideLLM"] = (guidellm(given.guidellm / "bin" / "guidellm"), given.guidellm / "bin")
    if given.aiperf:
        tools["aiperf"] = (aiperf(given.aiperf / "bin" / "aiperf"), given.aiperf / "bin")
    wanted = {name: tools[name] for name in (given.only.split(",") if given.only else tools)}
    keep = given.keep or Path(tempfile.mkdtemp(prefix="compare-"))
    keep.mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = []
    for shape in given.against.split(","):
        if shape != "engine":
            for name, (tool, _) in wanted.items():
                rows += against_truth(name, tool, shape, keep)
            continue
        with embedded.start("embedded/tiny-dense") as engine:
            for name, (tool, _) in wanted.items():
                rows += against_engine(name, tool, engine.endpoint, keep)
    kept = json.loads(OUT.read_text("utf-8")) if OUT.is_file() else {"versions": {}, "rows": []}
    new = {(row["tool"], row["shape"], row["slots"]): row for row in rows}
    old = [row for row in kept["rows"] if (row["tool"], row["shape"], row["slots"]) not in new]
    about = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "machine": load.machine_name(Endpoint("http://127.0.0.1:1")),
        "versions": (
            kept["versions"] | {name: version(name, folder) for name, (_, folder) in wanted.items()}
        ),
        "rows": sorted(
            [*old, *rows],
            key=lambda row: (
                list(SHAPES | {"engine": 0}).index(row["shape"]),
                row["slots"],
                row["tool"],
            ),
        ),
    }
    OUT.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    if not given.keep:
        shutil.rmtree(keep)


def version(name: str, folder: Path | None) -> str:
    """The version of a tool that is installed in an environment."""
    package = {"vllm bench serve": "vllm", "sparkbook": "sparkbook"}.get(name, name.lower())
    python = folder / "python" if folder else Path(sys.executable)
    told = "import importlib.metadata as m, sys; names = [sys.argv[1], sys.argv[1] + '-cpu']\n"
    told += "print(next(d.version for n in names for d in m.distributions(name=n)))"
    return subprocess.run(
        [python, "-c", told, package], capture_output=True, text=True, check=True
    ).stdout.strip()


if __name__ == "__main__":
    main()
