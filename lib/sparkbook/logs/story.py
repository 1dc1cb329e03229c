"""The story of a start: what happened when, and what the engine resolved.

Numbers are taken with small patterns, one figure each, because sentences drift: in 0.32 KV size and
concurrency share a line that was two before. What is not said stays None: unknown is never zero.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sparkbook.logs import steps
from sparkbook.logs.reader import Event

_NUMBER = r"([\d.,]+)"
_MAX_POINTS = 2_000


@dataclass(frozen=True)
class Phase:
    """One stretch of a start; seconds since the first line that has a time."""

    name: str
    begin_s: float
    end_s: float
    detail: str = ""

    @property
    def seconds(self) -> float:
        """How long it took, in seconds."""
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class Throughput:
    """A line of the engine's own report: tokens per second, requests, cache use as fractions."""

    time_s: float | None
    prompt_tok_s: float
    generation_tok_s: float
    running: int
    waiting: int
    kv_use: float | None = None
    prefix_hits: float | None = None


@dataclass(frozen=True)
class Acceptance:
    """A line of the engine's report on speculation; `rate` and `per_position` are fractions."""

    time_s: float | None
    rate: float
    mean_length: float | None = None
    accepted: int | None = None
    drafted: int | None = None
    per_position: tuple[float, ...] = ()


@dataclass
class Story:
    """What a log says about the engine.

    Attributes:
        release: vLLM's version.
        gpu: the GPU's name, where the log has it.
        args: what was given on the launch line (`non-default args`), resolved to Python values.
        config: the resolved configuration, as text by name.
        architecture, draft_architecture: the classes chosen for model and draft.
        linear_kernel, moe_backend, attention_backend: what computes dense layers, experts,
            attention.
        weights_gib, load_s: memory and seconds of loading.
        kv_gib, kv_tokens, concurrency: the KV cache, and how many requests of full length fit.
        graph_gib, graph_estimate_gib: CUDA graphs as measured and as estimated before.
        starts: how many starts the log holds; the rest describes the last one.
        start_line: the line at which the last one begins.
        stage: the last step of the start that the log shows; seconds since the start in `age_s`.
        ready: whether the API server said that it is up.
        answered: how many requests were answered; `served` of them by generating.
        last_lines: the last line of each process.
    """

    release: str | None = None
    gpu: str | None = None
    model: str | None = None
    args: dict[str, Any] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    architecture: str | None = None
    draft_architecture: str | None = None
    max_model_len: int | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    speculation: str | None = None
    draft_tokens: int | None = None
    linear_kernel: str | None = None
    moe_backend: str | None = None
    attention_backend: str | None = None
    weights_gib: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    autotune_s: float | None = None
    graph_s: float | None = None
    graph_gib: float | None = None
    graph_estimate_gib: float | None = None
    graph_sizes: tuple[int, ...] = ()
    kv_gib: float | None = None
    kv_tokens: int | None = None
    concurrency: float | None = None
    init_s: float | None = None
    equivalent_fraction: float | None = None
    suggested_fraction: float | None = None
    nccl: str | None = None
    starts: int = 0
    start_line: int = 0
    stage: str | None = None
    age_s: float | None = None
    ready: bool = False
    ready_line: int = 0
    answered: int = 0
    served: int = 0
    phases: list[Phase] = field(default_factory=list)
    throughput: list[Throughput] = field(default_factory=list)
    acceptance: list[Acceptance] = field(default_factory=list)
    last_lines: dict[str, str] = field(default_factory=dict)

    @property
    def total_s(self) -> float | None:
        """Seconds from the first line with a time to the last phase's end."""
        return max((phase.end_s for phase in self.phases), default=None)

    @property
    def nvfp4_path(self) -> str:
        """Whether 4-bit weights are computed as such: `native`, `weight-only`, `emulated`,
        `not 4-bit` or `unknown`.
        """
        quantization = (self.quantization or "").lower()
        said = " ".join(filter(None, [self.moe_backend, self.linear_kernel])).lower()
        fp4 = (
            any(word in quantization for word in ("fp4", "modelopt", "compressed")) or "fp4" in said
        )
        if not fp4:
            return "not 4-bit" if self.config else "unknown"
        if not said:
            return "unknown"
        if "marlin" in said or "humming" in said:
            return "weight-only"
        return "emulated" if "emulat" in said else "native"

    def facts(self) -> dict[str, Any]:
        """The facts that are known, by name, ready for JSON."""
        names = (
            "release",
            "gpu",
            "model",
            "architecture",
            "draft_architecture",
            "max_model_len",
            "quantization",
            "kv_cache_dtype",
            "speculation",
            "draft_tokens",
            "linear_kernel",
            "moe_backend",
            "attention_backend",
            "nvfp4_path",
            "weights_gib",
            "load_s",
            "compile_s",
            "autotune_s",
            "graph_s",
            "graph_gib",
            "graph_estimate_gib",
            "kv_gib",
            "kv_tokens",
            "concurrency",
            "init_s",
            "nccl",
            "starts",
            "ready",
        )
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value not in (None, "unknown", {})}


_GPU = r"\bNVIDIA (GB10|GB\d00|[HB]\d00|L40S?|A100|RTX PRO \d+|GeForce RTX \d+)\b"
_VERSION = (
    r"(?:vLLM\b[^\n]{0,40}?|\u2588[^\w\n]{0,8})\bversion:? v?(\d+\.\d+\.\d+\S*)"
    r"|\bvllm==(\d+\.\d+\.\d+\S*)"
)
"""vLLM says its own version, or draws its name before it; numbers of CUDA and of drivers look the
same.
"""


def _number(text: str) -> float:
    """A figure as printed; of something like 1.2.3, what can be read from its beginning."""
    match = re.match(r"-?\d*\.?\d+", text.replace(",", ""))
    return min(max(float(match[0]), -1e18), 1e18) if match else 0.0


def _first(pattern: str, text: str, convert: Callable[[str], Any] = _number) -> Any:
    """The first group that took part, converted; None without one or it is no number."""
    if match := re.search(pattern, text, re.IGNORECASE):
        value = next((group for group in match.groups() if group is not None), None)
        try:
            return None if value is None else convert(value)
        except ValueError:
            return None
    return None


def _int(text: str) -> int:
    return int(_number(text))


_OTHERS = frozenset({"kernel", "docker", "systemd", "tensorrt-llm"})
"""Programs next to vLLM, whose lines are no facts about it."""

WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    version non initializing resolved using selected loading took torch compile autotuning graph
    graphs capturing profiling kv startup throughput specdecoding equivalent starting server
    warming dynamo drafter explicitly initial capture nccl init overriding warmup nvidia
    world_size world
    """,
    )
)
"""The words of lines that the story is made of."""


class Teller:
    """Builds a `Story` from events, one after the other."""

    def __init__(self) -> None:
        self.story = Story()
        self._zero: float | None = None
        self._now: float | None = None
        self._number = 0
        self._announced = False
        self._again = False
        self._marks: dict[str, float] = {}
        self._phases: dict[str, Phase] = {}
        self._details: dict[str, str] = {}
        self._kernels: dict[str, str] = {}

    def tell(self, event: Event) -> None:
        """Take in one event."""
        if event.is_traceback or event.line.source in _OTHERS:
            return
        text = event.flat if "\n" in event.text else event.text
        # Lines that were skipped as repetitions come at the end: they don't start anything.
        again = self._again = event.number < self._number
        self._number = max(event.number, self._number)
        self._set_clock(event.time_s)
        self._identity(event.words, text, again)
        for words, read in self._READERS:
            if event.words & words:
                read(self, text)
        self._milestones(event, text)

    def _set_clock(self, time_s: float | None) -> None:
        """Take over the time of an event, seconds of the year, where it has one."""
        if time_s is None:
            return
        # A log that runs over New Year: the clock of the year has gone back to its start.
        if self._now is not None and time_s < self._now - 180 * 86400:
            time_s += 366 * 86400
        self._now = time_s
        if self._zero is None:
            self._zero = time_s

    def _identity(self, words: Set[bytes], text: str, again: bool) -> None:
        """Read what starts: release, arguments, config and architecture."""
        story = self.story
        if b"version" in words and (found := _first(_VERSION, text, str)):
            story.release = story.release or found
            if "API server version" in text and not again:
                self._begin(self._number)
                self._announced, story = True, self.story
            self._mark("begin")
        if b"nvidia" in words and (gpu := _first(_GPU, text, str)):
            story.gpu = gpu
        if b"non" in words and (args := _first(r"non-default args: (\{.*\})", text, str)):
            if not again and not self._announced:
                self._begin(self._number)
                story = self.story
            self._announced = False
            story.args = _literal(args)
            story.model = story.model or _text(
                story.args.get("model") or story.args.get("model_tag")
            )
        if b"initializing" in words and (
            match := re.search(
                r"Initializing an? .*?LLM engine \(v?(\S+?)\) with config: (.*)", text
            )
        ):
            story.release = match[1]
            self._config(match[2])
            self._mark("config resolved")
        if b"resolved" in words and (name := _first(r"resolved architecture:? (\w+)", text, str)):
            if story.architecture is None:
                story.architecture = name
            elif name != story.architecture:
                story.draft_architecture = name

    def _milestones(self, event: Event, text: str) -> None:
        """Read the lines that end a part of the start, and the reports of a running engine."""
        words, story = event.words, self.story
        if b"init" in words and (seconds := _first(rf"init engine .*?took {_NUMBER} s", text)):
            story.init_s = seconds
            self._mark("initialized")
        if b"nccl" in words and (
            version := _first(r"nccl(?:==| version )(\d+\.\d+\.\d+)", text, str)
        ):
            story.nccl = version
        if b"startup" in words and re.search(r"application startup complete", text, re.IGNORECASE):
            story.ready, story.ready_line = True, event.number
            self._mark("ready")
        if b"throughput" in words:
            self._report(text)

    def _begin(self, line: int) -> None:
        """A new start: forget what the one before resolved, keep counts and the curves."""
        story = self.story
        story.starts += 1
        story.start_line = line
        if story.starts > 1:
            self.story = Story(
                release=story.release,
                gpu=story.gpu,
                starts=story.starts,
                start_line=line,
                throughput=story.throughput,
                acceptance=story.acceptance,
            )
            self._marks, self._phases, self._zero = {}, {}, self._now
        self._mark("begin")

    def _mark(self, name: str) -> None:
        if not self._again:
            self.story.stage = name
        if self._now is not None and self._zero is not None:
            self._marks.setdefault(name, self._now - self._zero)

    def _phase(self, name: str, seconds: float | None, detail: str = "") -> None:
        """A phase that ended now and took `seconds`."""
        if self._now is None or self._zero is None or seconds is None:
            return
        end = self._now - self._zero
        self._phases[name] = Phase(name, end - seconds, end, detail)

    def _config(self, text: str) -> None:
        story = self.story
        story.config = dict(
            re.findall(r"(\w+)=('[^']*'|\{[^}]*\}|\[[^\]]*\]|\w+\([^)]*\)|[^,\s]+)", text[:20_000])
        )
        model = story.config.get("model", "").strip("'")
        story.model = model or story.model
        story.max_model_len = _first(r"max_seq_len=(\d+)", text, _int) or story.max_model_len
        quantization = _first(r"\bquantization=([\w'-]+)", text, lambda t: t.strip("'"))
        story.quantization = story.quantization if quantization in (None, "None") else quantization
        story.kv_cache_dtype = (
            _first(r"kv_cache_dtype=([\w']+)", text, lambda t: t.strip("'")) or story.kv_cache_dtype
        )
        if match := re.search(
            r"speculative_config=SpeculativeConfig\(method='?(\w+).*?num_spec_tokens=(\d+)", text
        ):
            story.speculation, story.draft_tokens = match[1], int(match[2])
        if sizes := _first(r"cudagraph_capture_sizes'?\W{1,3}\[([\d, ]+)\]", text, str):
            story.graph_sizes = tuple(int(n) for n in sizes.replace(" ", "").split(",") if n)

    def _choices(self, text: str) -> None:
        story = self.story
        if found := _first(r"using max model len (\d+)", text, _int):
            story.max_model_len = story.max_model_len or found
        if found := _first(
            r"using '?(\w+)'? attention backend|using (\w+) backend\b(?! out)|using (Flash\w+)"
            r" backend",
            text,
            str,
        ):
            story.attention_backend = story.attention_backend or found
        if found := _first(r"using '?([\w -]{1,60}?)'? (?:\w+ )?moe backend", text, str):
            story.moe_backend = found
        if found := _first(
            r"using (\w+) for NVFP4 GEMM|selected (\w+) for \w+|using"
            r" (\w*(?:Kernel|LinearMethod)) for",
            text,
            str,
        ):
            story.linear_kernel = story.linear_kernel or found

    def _begins(self, text: str) -> None:
        for pattern, name in steps.BEGINS:
            if re.search(pattern, text, re.IGNORECASE):
                self._mark(name)

    def _loading(self, text: str) -> None:
        story = self.story
        if (gib := _first(rf"model loading took {_NUMBER} GiB", text)) is not None:
            story.weights_gib = gib
            story.load_s = _first(rf"and {_NUMBER} sec", text)
            self._phase("weights", story.load_s, f"{gib:g} GiB")
            self._mark("loaded")
        elif (seconds := _first(rf"loading weights took {_NUMBER} sec", text)) is not None:
            name = "draft" if "draft begins" in self._marks else "weights"
            if name == "weights":
                story.load_s = story.load_s or seconds
            self._phase(name, seconds)
            self._mark("loaded")

    def _compiling(self, text: str) -> None:
        story = self.story
        if (
            seconds := _first(
                rf"torch\.compile took {_NUMBER} s|torch\.compile takes {_NUMBER} s", text
            )
        ) is not None:
            story.compile_s = (story.compile_s or 0.0) + seconds
            self._phase("compile" if "compile" not in self._phases else "compile (draft)", seconds)
            self._mark("compiled")
        if re.search(r"autotuning process ends", text, re.IGNORECASE):
            self._mark("autotune ends")
            if "autotune begins" in self._marks:
                story.autotune_s = self._marks["autotune ends"] - self._marks["autotune begins"]
                self._phase("autotune", story.autotune_s)
        if (seconds := _first(rf"profiling/warmup run took {_NUMBER} s", text)) is not None:
            self._phase("profiling run", seconds)
        if (
            re.search(r"warming up done", text, re.IGNORECASE)
            and "warm-up begins" in self._marks
            and self._zero is not None
        ):
            self._phase("warm-up", (self._now or 0.0) - self._zero - self._marks["warm-up begins"])

    def _graphs(self, text: str) -> None:
        story = self.story
        if (gib := _first(r"estimated CUDA graph memory:? (-?[\d.]+)", text)) is not None:
            story.graph_estimate_gib = gib
        if match := re.search(
            r"graph capturing finished in ([\d.]+) sec\w*, took (-?[\d.]+) GiB", text, re.IGNORECASE
        ):
            story.graph_s, story.graph_gib = _number(match[1]), _number(match[2])
            self._phase("graph capture", story.graph_s, f"{story.graph_gib:g} GiB")
            self._mark("captured")

    def _kv(self, text: str) -> None:
        story = self.story
        if (
            gib := _first(
                r"available KV cache memory:? (-?[\d.]+) GiB|reserved ([\d.]+) GiB memory for KV",
                text,
            )
        ) is not None:
            story.kv_gib = gib
        if (gib := _first(r"explicitly set \(([\d.]+)/", text)) is not None:
            story.kv_gib = gib
        if (tokens := _first(rf"KV cache size:? {_NUMBER} tokens", text, _int)) is not None:
            story.kv_tokens = tokens
            self._mark("KV cache")
        if (
            times := _first(
                rf"maximum concurrency for {_NUMBER} tokens per request:? [\d.]+x", text, str
            )
        ) is not None:
            story.concurrency = _first(r"per request:? ([\d.]+)x", text)
            story.max_model_len = story.max_model_len or _int(times)
        if match := re.search(
            r"utilization=([\d.]+) is equivalent to \S*?utilization=([\d.]+)", text
        ):
            story.equivalent_fraction = _number(match[2])
            story.suggested_fraction = _first(
                r"increase (?:--gpu-memory-utilization|\.\.\.)?\s*to ([\d.]+)", text
            )
            story.args.setdefault("gpu_memory_utilization", _number(match[1]))

    def _report(self, text: str) -> None:
        story = self.story
        if match := re.search(
            r"prompt throughput: ([\d.]+) tokens/s, .*?generation throughput: ([\d.]+) tokens/s,"
            r" Running: (\d+) reqs, Waiting: (\d+)",
            text,
        ):
            kv, hits = (
                _first(r"KV cache usage: ([\d.]+)%", text),
                _first(r"Prefix cache hit rate: ([\d.]+)%", text),
            )
            story.throughput.append(
                Throughput(
                    self._now,
                    _number(match[1]),
                    _number(match[2]),
                    int(match[3]),
                    int(match[4]),
                    None if kv is None else kv / 100,
                    None if hits is None else hits / 100,
                )
            )
            del story.throughput[:-_MAX_POINTS]
        if (rate := _first(r"acceptance rate:? ([\d.]+) ?%", text)) is not None:
            positions = _first(r"per-position acceptance rate:? ([\d., ]+)", text, str) or ""
            story.acceptance.append(
                Acceptance(
                    self._now,
                    rate / 100,
                    _first(r"mean acceptance length:? ([\d.]+)", text),
                    _first(r"accepted:? (\d+) tokens", text, _int),
                    _first(r"drafted:? (\d+) tokens", text, _int),
                    tuple(float(p) for p in re.findall(r"\d+\.\d+", positions)),
                )
            )
            del story.acceptance[:-_MAX_POINTS]

    def finish(self) -> Story:
        """The story, its phases in order and without gaps that nobody explains."""
        story, marks = self.story, self._marks
        if self._now is not None and self._zero is not None:
            story.age_s = self._now - self._zero
        phases = dict(self._phases)

        def span(name: str, begin: str, end: str, detail: str = "") -> None:
            if (
                name not in phases
                and begin in marks
                and end in marks
                and marks[end] >= marks[begin]
            ):
                phases[name] = Phase(name, marks[begin], marks[end], detail)

        span("config", "begin", "config resolved")
        span("process start", "config resolved", "load begins")
        span("weights", "load begins", "loaded")
        if story.kv_tokens is not None and "KV cache" in marks:
            phases["KV cache"] = Phase(
                "KV cache", marks["KV cache"], marks["KV cache"], f"{story.kv_tokens} tokens"
            )
        if story.init_s is not None and "initialized" in marks:
            end = marks["initialized"]
            known = [
                p.end_s
                for n, p in phases.items()
                if n
                in (
                    "compile",
                    "compile (draft)",
                    "profiling run",
                    "autotune",
                    "graph capture",
                    "warm-up",
                )
            ]
            begin = max(
                [end - story.init_s, *[k for k in known if k <= end], marks.get("KV cache", 0.0)]
            )
            phases["engine warm-up"] = Phase("engine warm-up", min(begin, end), end)
        if "ready" in marks:
            begin = max(
                (p.end_s for p in phases.values() if p.end_s <= marks["ready"]), default=0.0
            )
            phases["API server"] = Phase("API server", begin, marks["ready"])
        # A fragment may begin in the middle of a phase, whose length is told only at its end.
        early = min([0.0, *(phase.begin_s for phase in phases.values())])
        moved = (
            Phase(p.name, p.begin_s - early, p.end_s - early, p.detail) for p in phases.values()
        )
        story.phases = sorted(moved, key=lambda phase: (phase.begin_s, phase.end_s))
        return story

    _READERS: ClassVar[tuple[tuple[Set[bytes], Callable[[Teller, str], None]], ...]] = (
        (frozenset({b"using", b"selected"}), _choices),
        (steps.WORDS, _begins),
        (frozenset({b"loading", b"took", b"starting", b"drafter"}), _loading),
        (
            frozenset(b"torch dynamo compile autotuning profiling warming warmup initial".split()),
            _compiling,
        ),
        (frozenset({b"graph", b"graphs", b"capturing"}), _graphs),
        (frozenset({b"kv", b"explicitly", b"equivalent"}), _kv),
    )
    """Words of a line, and what reads the lines with one of them."""


def _literal(text: str) -> dict[str, Any]:
    """A dictionary as Python prints it; empty where it is cut off or holds objects that are no
    literals.
    """
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        pairs = re.findall(r"'(\w+)': ('[^']*'|-?[\d.]+|True|False|None)", text[:20_000])
        value = {}
        for name, raw in pairs:
            try:
                value[name] = ast.literal_eval(raw)
            except (ValueError, SyntaxError):
                value[name] = raw
    return {str(k): v for k, v in value.items()} if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
