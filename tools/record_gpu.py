"""Records what only a vLLM on a GPU can show: the plug-in of the kernels in whole models, options
that claim to change nothing, faults.

    python tools/record_gpu.py MODELS OUT [smoke] [compare] [nvfp4] [few] [faults] [alone]
                                     [speed-NAME [decode] [prefill] [profile]]
    python tools/record_gpu.py MODELS OUT judge

MODELS is what `tools/make_nvfp4_models.py` made. The `vllm` that this Python imports is started as
often as needed, several at a time where speed plays no part, each with its log in OUT. What every
server answered is in OUT as well (`NAME.answers.json`); `judge`, which needs no GPU, holds them
against one another and writes `lossless-h200.jsonl` and `nvfp4-h200.jsonl` of
`lib/sparkbook/bench/recorded`. `tools/record_whole.py` works up what `speed-NAME` left. Nothing is
downloaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from sparkbook import bench
from sparkbook.bench import load, lossless
from sparkbook.bench.equality import Answer
from sparkbook.checkpoint.known import DUMMIES
from sparkbook.errors import SparkbookError
from sparkbook.serve.endpoint import Endpoint

AT_ONCE = 8
SHARED = (
    "--gpu-memory-utilization",
    "0.06",
    "--kv-cache-memory-bytes",
    "2000000000",
    "--max-model-len",
    "2048",
    "--max-num-seqs",
    "16",
)
"""So that eight engines fit one card; the length of the context and the batch play no part in what
is compared.
"""
PLUGIN = {"SPARKBOOK_VLLM_NVFP4": "1"}
NGRAM = (
    "--speculative-config",
    json.dumps({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}),
)


@dataclass(frozen=True)
class Run:
    """One start of vLLM. `name` is its log's; `model` a folder of MODELS or a path; `times`:
    temperatures to ask it at.
    """

    name: str
    model: str
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    times: Sequence[float] = (0.0,)
    shared: Sequence[str] = SHARED


class Engine:
    """A running `vllm serve`; a context manager."""

    def __init__(self, run: Run, models: Path, out: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        model = models / run.model
        traces = str(out / "profile" / run.name)
        args = [word.replace("PROFILE", traces) for word in run.args]
        words = [str(model), "--served-model-name", run.model, *run.shared, *args]
        self.run, self.log = run, out / f"{run.name}.log"
        self.endpoint = Endpoint(f"http://127.0.0.1:{port}", run.model)
        shown = " ".join(f"{k}={v}" for k, v in run.env.items())
        self.log.write_text(
            f"+ {shown + ' ' if shown else ''}vllm serve {shlex.join(words)}\n".replace(
                str(models), "/models"
            )
        )
        environment = {
            **os.environ,
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "NO_COLOR": "1",
            "VLLM_CACHE_ROOT": str(out / "cache" / run.name),
            **run.env,
        }
        command = [
            sys.executable,
            "-m",
            "vllm.entrypoints.cli.main",
            "serve",
            *words,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.started = time.monotonic()

    def ready(self, seconds: float) -> bool:
        """Waits until it answers; False if it has ended or the time is up."""
        while time.monotonic() - self.started < seconds and self.process.poll() is None:
            try:
                if self.endpoint.get("/health", timeout_s=2).is_success:
                    return True
            except SparkbookError:
                time.sleep(0.5)
        return False

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        for how in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, how)
                self.process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


class Recorder:
    """The runs, and where they go."""

    def __init__(self, models: Path, out: Path) -> None:
        self.models, self.out = models, out
        out.mkdir(parents=True, exist_ok=True)

    def say(self, text: str) -> None:
        with (self.out / "story.txt").open("a") as story:
            story.write(f"{datetime.datetime.now(datetime.UTC):%H:%M:%S} {text}\n")
        print(text, flush=True)

    def asked(self, run: Run) -> None:
        """Start, ask at each temperature, stop; what it answered and what the engine told goes to
        OUT.
        """
        with Engine(run, self.models, self.out) as engine:
            if not engine.ready(300):
                self.say(f"{run.name}: did not start ({engine.process.poll()})")
                return
            took = time.monotonic() - engine.started
            try:
                rounds = [lossless.ask(engine.endpoint, each=3, temperature=t) for t in run.times]
            except SparkbookError as error:
                self.say(f"{run.name}: {error}")
                return
            kept = {
                "model": run.model,
                "args": list(run.args),
                "env": dict(run.env),
                "engine": load.engine_name(engine.endpoint),
                "machine": load.machine_name(engine.endpoint),
                "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}",
                "told": told(engine),
                "rounds": [
                    [dataclasses.asdict(answer) for answer in answers] for answers in rounds
                ],
            }
            (self.out / f"{run.name}.answers.json").write_text(json.dumps(kept) + "\n")
            self.say(f"{run.name}: ready after {took:.0f} s, asked; {kept['told']}")

    def together(self, runs: Sequence[Run]) -> None:
        """Several at a time, each a moment after the one before."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for job in [pool.submit(self.asked, run) for run in runs]:
                try:
                    job.result()
                except Exception as error:  # noqa: BLE001 - the others go on
                    self.say(f"{type(error).__name__}: {error}")

    def refused(self, runs: Sequence[Run], at_once: int = AT_ONCE) -> None:
        """Starts that are meant to fail: only the log counts."""

        def one(run: Run) -> None:
            with Engine(run, self.models, self.out) as engine:
                said = (
                    "started all the same"
                    if engine.ready(150)
                    else f"ended with {engine.process.poll()}"
                )
                self.say(f"{run.name}: {said} after {time.monotonic() - engine.started:.0f} s")

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, runs))

    def measured(self, runs: Sequence[Run], parts: Collection[str]) -> None:
        """The servers are started together, those with the plug-in once the others are ready: what
        it measures when it loads is measured on an idle GPU. Then each is measured by turns while
        the rest have nothing to do: within one second the first tokens of one server differ by as
        much as two servers do. Those without drafts are also profiled over a few prompts
        (OUT/profile/NAME: traces of PyTorch's profiler).
        """
        with contextlib.ExitStack() as running:
            engines: list[Engine] = []
            for ours in (False, True):
                started = []
                for place, run in enumerate(run for run in runs if bool(run.env) == ours):
                    # The second server with the plug-in finds what the first one has measured.
                    time.sleep(30 * bool(ours and place))
                    started.append(running.enter_context(Engine(run, self.models, self.out)))
                for engine in started:
                    said = told(engine) if engine.ready(300) else "did not start"
                    took = time.monotonic() - engine.started
                    self.say(f"{engine.run.name}: {said}; after {took:.0f} s")
                engines += started
            plain = [engine for engine in engines if TRACED in engine.run.args]
            drafting = [engine for engine in engines if engine not in plain]
            turns = [("decode", DECODE), ("decode-again", AGAIN)] * ("decode" in parts)
            turns += [(f"prefill-{n}", PREFILL) for n in range(1, 6) if "prefill" in parts]
            turns[:0] = [("warm", WARM)] * bool(turns)
            drafts = [("warm", WARM), ("decode", DRAFTED), ("decode-again", DRAFTED)]
            for servers, each in ((drafting, drafts), (plain, turns)):
                for turn, (name, plan) in enumerate(each):
                    for engine in servers if turn % 2 else reversed(servers):
                        self.measure(engine, name, plan)
            for engine in plain * ("profile" in parts):
                self.profile(engine)

    def profile(self, engine: Engine) -> None:
        """Trace three prompts of each length, and how four and eight requests decode."""
        try:
            engine.endpoint.post("/start_profile", {}, 60)
            bench.measure(engine.endpoint, dataclasses.replace(PREFILL, requests=3))
            bench.measure(engine.endpoint, FEW_STEPS)
            engine.endpoint.post("/stop_profile", {}, 300)
        except SparkbookError as error:
            self.say(f"{engine.run.name} profile: {error}")

    def measure(self, engine: Engine, name: str, plan: bench.BenchPlan) -> None:
        """With the project's own client and its gate."""
        try:
            report = bench.measure(engine.endpoint, plan)
        except SparkbookError as error:
            self.say(f"{engine.run.name} {name}: {error}")
            return
        report.write(self.out / f"{engine.run.name}.{name}.json")
        for cell in report.cells:
            f = cell.figures
            medians = [s and s.median for s in (f.ttft_s, f.tpot_s, f.prefill_tok_s)]
            self.say(
                f"{engine.run.name} {name} c={cell.concurrency}: {f.out_tok_s} and {f.steady_tok_s}"
                f" tok/s; TTFT, TPOT, prefill tok/s {medians}; {cell.verdict}"
                f" {[finding.rule for finding in cell.findings]}"
            )


def told(engine: Engine) -> str:
    """What the engine's log and metrics tell of the options."""
    log = engine.log.read_text("utf-8", "replace")
    text = engine.endpoint.metrics_text()

    def counted(name: str) -> float:
        return sum(
            float(value)
            for value in re.findall(rf"^vllm:{name}_total(?:{{.*}})? (\S+)$", text, re.M)
        )

    found = [
        *(
            f"attention {x}"
            for x in re.findall(
                r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend", log
            )[:1]
        ),
        *(f"experts {x}" for x in re.findall(r"Using '?([\w ]+?)'? (?:\w+ )?MoE backend", log)[:1]),
        *(f"linear {x}" for x in re.findall(r"Using (\w+) for NVFP4 GEMM", log)[:1]),
        *(f"KV cache {x}" for x in re.findall(r"Using (\S+) data type to store kv cache", log)[:1]),
        "graphs " + ("captured" if "Graph capturing finished" in log else "none"),
        "torch.compile "
        + (
            "took " + took[0]
            if (took := re.findall(r"torch\.compile took ([\d.]+ s)", log))
            else "off"
        ),
        f"drafts {counted('spec_decode_num_drafts'):.0f}",
        f"tokens found in the prefix cache {counted('prefix_cache_hits'):.0f}",
    ]
    return "; ".join(map(str, found))


def compilation(**how: object) -> tuple[str, str]:
    """`--compilation-config` with these fields."""
    return "--compilation-config", json.dumps(how)


SMOKE = (
    Run("nvfp4-plugin", "nvfp4", env=PLUGIN, times=(0.0, 0.0)),
    Run("moe-nvfp4-plugin", "moe-nvfp4", env=PLUGIN, times=(0.0, 0.0)),
    Run("nvfp4-marlin", "nvfp4", times=(0.0, 0.0)),
    Run("moe-nvfp4-marlin", "moe-nvfp4", times=(0.0, 0.0)),
    Run("bf16", "bf16", times=(0.0, 0.0, 0.7)),
    Run("moe-bf16", "moe-bf16", times=(0.0, 0.0)),
)
NVFP4 = (
    Run("nvfp4-emulation", "nvfp4", ("--linear-backend", "emulation")),
    Run("nvfp4-plugin-eager", "nvfp4", ("--enforce-eager",), PLUGIN),
    Run("nvfp4-plugin-ngram", "nvfp4", NGRAM, PLUGIN),
    Run("nvfp4-ct-plugin", "nvfp4-ct", env=PLUGIN),
    Run("nvfp4-ct-marlin", "nvfp4-ct", times=(0.0, 0.0)),
    Run("moe-nvfp4-emulation", "moe-nvfp4", ("--moe-backend", "emulation")),
    Run("moe-nvfp4-plugin-eager", "moe-nvfp4", ("--enforce-eager",), PLUGIN),
    Run("moe-nvfp4-plugin-ngram", "moe-nvfp4", NGRAM, PLUGIN),
    Run("moe-nvfp4-ct-plugin", "moe-nvfp4-ct", env=PLUGIN),
    Run("moe-nvfp4-ct-marlin", "moe-nvfp4-ct", times=(0.0, 0.0)),
)
EIGHT = ("--max-num-batched-tokens", "8", "--max-num-seqs", "8")
"""Prompts are read eight tokens at a time, so that the kernels for few tokens do the whole work."""
FEW = (
    Run("nvfp4-marlin-8", "nvfp4", EIGHT, times=(0.0, 0.0)),
    Run("nvfp4-plugin-8", "nvfp4", EIGHT, PLUGIN),
    Run("moe-nvfp4-marlin-8", "moe-nvfp4", EIGHT, times=(0.0, 0.0)),
    Run("moe-nvfp4-plugin-8", "moe-nvfp4", EIGHT, PLUGIN),
    Run("moe-nvfp4-emulation-8", "moe-nvfp4", ("--moe-backend", "emulation", *EIGHT)),
)
LOSSLESS = (
    Run("bf16-eager", "bf16", ("--enforce-eager",)),
    Run("bf16-no-graphs", "bf16", compilation(cudagraph_mode="NONE")),
    Run("bf16-no-compile", "bf16", compilation(mode=0, cudagraph_mode="FULL_DECODE_ONLY")),
    Run("bf16-piecewise", "bf16", compilation(cudagraph_mode="PIECEWISE")),
    Run("bf16-O1", "bf16", ("-O1",)),
    Run("bf16-triton-attention", "bf16", ("--attention-backend", "TRITON_ATTN")),
    Run("bf16-flex-attention", "bf16", ("--attention-backend", "FLEX_ATTENTION")),
    Run("bf16-no-prefix", "bf16", ("--no-enable-prefix-caching",)),
    Run("bf16-no-async", "bf16", ("--no-async-scheduling",)),
    Run("bf16-ngram", "bf16", NGRAM),
    Run("bf16-batch-invariant", "bf16", env={"VLLM_BATCH_INVARIANT": "1"}),
    Run("bf16-kv-fp8", "bf16", ("--kv-cache-dtype", "fp8")),
    Run("bf16-float16", "bf16", ("--dtype", "float16")),
    Run("bf16-weights-fp8", "bf16", ("--quantization", "fp8")),
    Run("moe-bf16-eager", "moe-bf16", ("--enforce-eager",)),
    Run("moe-fp8", "moe-bf16", ("--quantization", "fp8"), times=(0.0, 0.0)),
    Run("moe-fp8-triton", "moe-bf16", ("--quantization", "fp8", "--moe-backend", "triton")),
    Run("moe-fp8-marlin", "moe-bf16", ("--quantization", "fp8", "--moe-backend", "marlin")),
    Run("moe-fp8-cutlass", "moe-bf16", ("--quantization", "fp8", "--moe-backend", "cutlass")),
)
FAULTS = (
    Run("fault-context", "bf16", ("--max-model-len", "16384")),
    Run("fault-attention-name", "bf16", ("--attention-backend", "FLASH_ATTENTION")),
    Run("fault-attention-mla", "bf16", ("--attention-backend", "FLASHMLA")),
    Run("fault-attention-flashinfer", "bf16", ("--attention-backend", "FLASHINFER")),
    Run("fault-flashinfer-sampler", "bf16", env={"VLLM_USE_FLASHINFER_SAMPLER": "1"}),
    Run("fault-moe-backend", "moe-nvfp4", ("--moe-backend", "flashinfer_cutlass")),
    Run("fault-moe-backend-name", "moe-nvfp4", ("--moe-backend", "triton")),
    Run("fault-moe-deepgemm", "moe-bf16", ("--quantization", "fp8", "--moe-backend", "deep_gemm")),
    Run("fault-linear-backend", "nvfp4", ("--linear-backend", "cutlass")),
    Run("fault-quantization", "bf16", ("--quantization", "modelopt")),
    Run("fault-quantization-other", "nvfp4", ("--quantization", "awq")),
    Run("fault-two-gpus", "bf16", ("--tensor-parallel-size", "2")),
    Run("fault-kv-nvfp4", "bf16", ("--kv-cache-dtype", "nvfp4")),
    Run("fault-kv-turboquant", "bf16", ("--kv-cache-dtype", "turboquant_4bit_nc")),
    Run("fault-no-gpu", "bf16", env={"CUDA_VISIBLE_DEVICES": ""}),
    Run(
        "fault-memory-taken",
        "bf16",
        ("--gpu-memory-utilization", "0.99"),
        shared=("--max-model-len", "2048"),
    ),
    Run("fault-vocabulary", "bad-vocabulary"),
    Run("fault-cut-off", "bad-cut-off"),
    Run("fault-ct-as-modelopt", "nvfp4-ct", ("--quantization", "modelopt_fp4")),
    Run(
        "fault-draft",
        "bf16",
        ("--speculative-config", json.dumps({"method": "mtp", "num_speculative_tokens": 2})),
    ),
)
ALONE = (
    Run(
        "fault-out-of-memory",
        "bad-too-large",
        ("--load-format", "dummy"),
        shared=("--max-model-len", "2048"),
    ),
    Run(
        "fault-kv-too-small",
        "shape-30b",
        ("--load-format", "dummy", "--gpu-memory-utilization", "0.125"),
        shared=(),
    ),
)
WHOLE = (
    "--load-format",
    "dummy",
    "--max-model-len",
    "8192",
    "--max-num-seqs",
    "32",
    "--gpu-memory-utilization",
    "0.06",
    "--kv-cache-memory-bytes",
    "6000000000",
)
TRACED = "--profiler-config"
TRACES = json.dumps(
    {"profiler": "torch", "torch_profiler_dir": "PROFILE", "torch_profiler_with_stack": False}
)
SPEED = {
    f"speed-{size}{how}": tuple(
        Run(f"speed-{size}{how}-{name}", f"shape-{size}", args, env, shared=WHOLE)
        # The second server with Marlin shows how much two of a kind differ.
        for name, env in (("plugin", PLUGIN), ("marlin", {}), ("again", {}))
        if not how or name != "again"
    )
    for size in DUMMIES
    for how, args in (
        ("", (TRACED, TRACES)),
        ("-ngram", NGRAM),
    )
}
Trial = tuple[str, str, str, bool]
"""The change, the run without it, the run with it, and whether it should change nothing."""
TRIALS: dict[str, tuple[Trial, ...]] = {
    "lossless-h200.jsonl": (
        ("eager: no graphs, no torch.compile", "bf16", "bf16-eager", True),
        ("no CUDA graphs", "bf16", "bf16-no-graphs", True),
        ("no torch.compile", "bf16", "bf16-no-compile", True),
        ("graphs piecewise only", "bf16", "bf16-piecewise", True),
        ("optimization level 1", "bf16", "bf16-O1", True),
        ("attention by Triton", "bf16", "bf16-triton-attention", True),
        ("attention by FlexAttention", "bf16", "bf16-flex-attention", True),
        ("no prefix caching", "bf16", "bf16-no-prefix", True),
        ("no asynchronous scheduling", "bf16", "bf16-no-async", True),
        ("n-gram drafts, K = 4", "bf16", "bf16-ngram", True),
        ("batch-invariant kernels", "bf16", "bf16-batch-invariant", True),
        ("experts: eager", "moe-bf16", "moe-bf16-eager", True),
        ("FP8 experts: Triton by name", "moe-fp8", "moe-fp8-triton", True),
        ("FP8 experts: Marlin", "moe-fp8", "moe-fp8-marlin", True),
        ("FP8 experts: CUTLASS", "moe-fp8", "moe-fp8-cutlass", True),
        ("KV cache in fp8", "bf16", "bf16-kv-fp8", True),
        ("float16 for bfloat16", "bf16", "bf16-float16", False),
        ("weights in fp8", "bf16", "bf16-weights-fp8", False),
        ("temperature 0.7", "bf16", "bf16@2", False),
    ),
    "nvfp4-h200.jsonl": (
        ("plug-in", "nvfp4-marlin", "nvfp4-plugin", True),
        ("plug-in, eager", "nvfp4-plugin", "nvfp4-plugin-eager", True),
        ("plug-in, n-gram drafts, K = 4", "nvfp4-plugin", "nvfp4-plugin-ngram", True),
        ("plug-in, compressed-tensors", "nvfp4-ct-marlin", "nvfp4-ct-plugin", True),
        ("plug-in, prompts by eights", "nvfp4-marlin-8", "nvfp4-plugin-8", True),
        ("W4A4 emulated", "nvfp4-marlin", "nvfp4-emulation", False),
        ("experts: plug-in", "moe-nvfp4-marlin", "moe-nvfp4-plugin", True),
        ("experts: plug-in, eager", "moe-nvfp4-plugin", "moe-nvfp4-plugin-eager", True),
        (
            "experts: plug-in, n-gram drafts, K = 4",
            "moe-nvfp4-plugin",
            "moe-nvfp4-plugin-ngram",
            True,
        ),
        (
            "experts: plug-in, compressed-tensors",
            "moe-nvfp4-ct-marlin",
            "moe-nvfp4-ct-plugin",
            True,
        ),
        ("experts: plug-in, prompts by eights", "moe-nvfp4-marlin-8", "moe-nvfp4-plugin-8", True),
        (
            "experts: plug-in, against the emulation",
            "moe-nvfp4-emulation",
            "moe-nvfp4-plugin",
            False,
        ),
        (
            "experts: W4A4 emulated, prompts by eights",
            "moe-nvfp4-marlin-8",
            "moe-nvfp4-emulation-8",
            False,
        ),
        ("experts: W4A4 emulated", "moe-nvfp4-marlin", "moe-nvfp4-emulation", False),
        ("NVFP4 for bfloat16", "bf16", "nvfp4-marlin", False),
        ("experts: NVFP4 for bfloat16", "moe-bf16", "moe-nvfp4-marlin", False),
    ),
}
DECODE = bench.BenchPlan(
    classes=("prose",),
    concurrency=(1, 2, 4, 8, 16, 32),
    seconds=4,
    max_tokens=128,
    waves=2,
    keep_text=False,
    # Dummy weights repeat themselves, and a mixture would read the same few experts for all.
    extra={"temperature": 1.0},
)
PARTS = ("decode", "prefill", "profile")
"""What is measured of a speed-… server; all of it unless some are named."""
AGAIN = dataclasses.replace(DECODE, concurrency=(8, 4))
WARM = dataclasses.replace(DECODE, concurrency=(4,), waves=1)
"""Of each server before anything counts: what was measured first was slower by 4 to 7 %."""
DRAFTED = dataclasses.replace(DECODE, concurrency=(1, 2, 3, 4, 8), extra={})
PREFILL = bench.BenchPlan(
    classes=("prose", "long-512", "long-4k"),
    concurrency=(1,),
    requests=12,
    max_tokens=2,
    waves=1,
    keep_text=False,
)

FEW_STEPS = dataclasses.replace(
    PREFILL, classes=("prose",), concurrency=(4, 8), requests=8, max_tokens=16
)


def broken_models(models: Path) -> None:
    """Folders whose start has to fail: another vocabulary than the weights', a file cut off, a
    shape that no card holds.
    """
    for name, change, size in (
        ("bad-vocabulary", {"vocab_size": 49280}, None),
        ("bad-cut-off", {}, 100_000_000),
    ):
        folder = models / name
        if folder.exists():
            continue
        folder.mkdir()
        for file in (models / "bf16").iterdir():
            if file.name == "config.json":
                config = json.loads(file.read_text()) | change
                (folder / file.name).write_text(json.dumps(config))
            elif file.suffix == ".safetensors" and size:
                (folder / file.name).write_bytes(file.read_bytes()[:size])
            else:
                (folder / file.name).symlink_to(file)
    folder = models / "bad-too-large"
    if not folder.exists():
        folder.mkdir()
        for file in (models / "shape-8b").iterdir():
            if file.name != "config.json":
                (folder / file.name).symlink_to(file)
        config = json.loads((models / "shape-8b" / "config.json").read_text())
        del config["quantization_config"]
        config |= {
            "hidden_size": 8192,
            "intermediate_size": 28672,
            "num_hidden_layers": 100,
            "num_attention_heads": 64,
        }
        (folder / "config.json").write_text(json.dumps(config))


def judge(out: Path, folder: Path) -> None:
    """Every comparison whose two runs were recorded, into `folder`. A run asked once is its own
    control: nothing differs.
    """

    def kept(name: str) -> tuple[dict, list[list[Answer]]]:
        read = json.loads((out / f"{name.split('@')[0]}.answers.json").read_text())
        rounds = [
            [Answer(**{**a, "tokens": tuple(a["tokens"]), "tops": tuple(a["tops"])}) for a in one]
            for one in read["rounds"]
        ]
        return read, rounds

    for file, wanted in TRIALS.items():
        trials, first = [], None
        for option, without, with_it, claims in wanted:
            try:
                (base, before), (other, after) = kept(without), kept(with_it)
            except OSError as error:
                print(f"{option}: {Path(str(error.filename)).name} is not there")
                continue
            first = first or base
            answers = after[int(with_it.partition("@")[2] or 0)]
            again = before[1] if len(before) > 1 else before[0]
            trials.append(
                lossless.trial(
                    option, before[0], again, answers, claims=claims, engine=other["told"]
                )
            )
            one = trials[-1]
            print(
                f"{option}: {one.verdict}: {one.equality}; {one.scores}; {one.moved}; {one.engine}"
            )
        if first:
            about = {
                "model": "SmolLM2-135M-Instruct",
                **{k: first[k] for k in ("engine", "machine", "date")},
                "without": first["told"],
            }
            lossless.Record(about, tuple(trials)).write(folder / file)


def main(models: Path, out: Path, wanted: Sequence[str]) -> None:
    """What is asked for, in this order."""
    recorder = Recorder(models, out)
    if "judge" in wanted:
        judge(out, Path(lossless.__file__).with_name("recorded"))
        return
    if {"faults", "alone"} & set(wanted):
        broken_models(models)
    if "smoke" in wanted:
        recorder.together(SMOKE)
    if "compare" in wanted:
        recorder.together([*NVFP4, *LOSSLESS])
    if "nvfp4" in wanted:
        recorder.together(NVFP4)
    if "few" in wanted:
        recorder.together(FEW)
    if "faults" in wanted:
        recorder.refused(FAULTS)
    speed = [run for name, runs in SPEED.items() for run in runs if {name, run.name} & set(wanted)]
    if speed:
        recorder.measured(speed, set(PARTS) & set(wanted) or PARTS)
    if "alone" in wanted:
        recorder.refused(ALONE, 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
