"""Findings about a whole log: what no single line shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from sparkbook.findings import Finding
from sparkbook.logs.judging import short
from sparkbook.logs.story import Story
from sparkbook.logs.verdict import Verdict
from sparkbook.rules import Family, Hit
from sparkbook.units import format_seconds

if TYPE_CHECKING:
    from sparkbook.logs.reports import Report
    from sparkbook.releases.known_bad import Combination

STATES = Family(
    "LOG9",
    "faults that no single line shows",
    "What `sparkbook diagnose` works out from a whole log. Each example was read when this page was"
    " built.",
    samples="sparkbook.logs.samples",
)

_PREFIX = "(APIServer pid=1) INFO 11-02 09:{minute:02}:{second:02} [loggers.py:259] "
_REPORT = (
    "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: {rate} tokens/s,"
    " Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%, Prefix cache hit rate: 0.0%"
)


def _reports(rates: Iterable[float]) -> str:
    """Throughput lines ten seconds apart."""
    lines = (
        (_PREFIX + _REPORT).format(minute=i // 6, second=i % 6 * 10, rate=rate)
        for i, rate in enumerate(rates)
    )
    return "\n".join(lines)


_TRACEBACK = """\
Traceback (most recent call last):
  File "/opt/app/mixer.py", line 7, in blend
RuntimeError: the blender is out of fruit"""
_BATCH = """\
(APIServer pid=1) INFO 11-02 09:00:00 [utils.py:233] non-default args: \
{{'model': 'some/model', 'max_num_seqs': {sequences}, \
'speculative_config': {{'method': 'mtp', 'num_speculative_tokens': 3}}}}
(EngineCore pid=2) INFO 11-02 09:00:09 [core.py:109] \
Initializing a V1 LLM engine (v0.32.0) with config: \
model='some/model', \
speculative_config=SpeculativeConfig(method='mtp', model='some/model', num_spec_tokens=3), \
compilation_config={{'cudagraph_capture_sizes': [1, 2, 4, 8, 16, 32, 64]}}"""


@STATES.rule(
    "LOG900",
    "unknown-fault",
    "error",
    confidence="low",
    source="this log",
    fails=lambda: _TRACEBACK,
    passes=lambda: "INFO:     Application startup complete.",
)
def unknown_fault(said: str, evidence: str, about: str = "", advice: str = "") -> Iterator[Hit]:
    """The end of a traceback, an exception, a crash, an ERROR line, an exit status or a refusal of
    the command line that no signature knows. The first such message is quoted. The finding adds
    what is known of it: which part of vLLM or which library says it, in which function, under which
    condition, and which options switch that part off. Nothing is guessed about the cause. A known
    fault that came before it, or close behind it, is reported instead.
    """
    yield Hit(
        f"A fault that no signature knows: {said.rstrip(' .:')}.{about}",
        evidence=evidence,
        fix=(
            f"{advice}Read this message first; it is the earliest fault in the log. Collect next:"
            " the 50 lines before it, the launch line, the release, and search the project's issues"
            " for its words without numbers and paths."
        ),
    )


@STATES.rule(
    "LOG901",
    "hang-while-healthy",
    "warning",
    kind="hang-health-ok",
    confidence="medium",
    source="https://github.com/eugr/spark-vllm-docker/issues/260",
    fails=lambda: _reports([31.0, 30.5, *[0.0] * 7]),
    passes=lambda: _reports([31.0, 0.0, 0.0, 30.5, 29.8, 30.1]),
)
def hang_while_healthy(story: Story) -> Iterator[Hit]:
    """Six throughput reports in a row, a minute in all, show running requests and neither a prompt
    token nor a generated one. The HTTP server is another process and goes on answering `/health`
    with 200, so no supervisor restarts the engine. A shorter silence may be a long prompt.
    """
    stuck = 0
    for point in story.throughput:
        stuck = (
            stuck + 1
            if point.running > 0 and point.generation_tok_s == 0 and point.prompt_tok_s == 0
            else 0
        )
    if stuck >= 6:
        yield Hit(
            f"The engine's last {stuck} reports show running requests and not one token: it hangs,"
            " though /health may still say 200.",
            evidence=(
                f"Running: {story.throughput[-1].running}, generation 0.0 tokens/s, {stuck} reports"
                " in a row"
            ),
            fix=(
                "Compare generation_tokens_total over a minute and look at the GPU's power;"
                " restart the engine if tokens stand still. Stop-gap: --compilation-config"
                ' \'{"cudagraph_mode":"PIECEWISE"}\'.'
            ),
        )


@STATES.rule(
    "LOG902",
    "batch-beyond-the-graphs",
    "info",
    kind="silent-slow",
    source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/runtime/130-cudagraph-clamp-runs-top-shape-eager.md",
    fails=lambda: _BATCH.format(sequences=24),
    passes=lambda: _BATCH.format(sequences=16),
)
def batch_beyond_the_graphs(story: Story) -> Iterator[Hit]:
    """With K draft tokens a step of S requests handles S × (K + 1) tokens. Where that is more than
    the largest size captured, the fullest
    batch runs without a CUDA graph: nothing fails, and the server is slowest when it is busiest.
    """
    sequences, tokens = story.args.get("max_num_seqs"), story.draft_tokens
    if story.graph_sizes and isinstance(sequences, int) and tokens:
        needed, largest = sequences * (tokens + 1), max(story.graph_sizes)
        if needed > largest:
            yield Hit(
                f"A full batch is decoded without a CUDA graph: {sequences} requests x ({tokens} +"
                f" 1) tokens = {needed}, captured up to {largest}.",
                evidence=f"cudagraph_capture_sizes up to {largest}",
                fix=(
                    "Choose max-num-seqs and draft tokens so that their product fits"
                    f" ({largest // (tokens + 1)} requests here), or raise"
                    " --max-cudagraph-capture-size."
                ),
            )


@STATES.rule(
    "LOG913",
    "served-one-at-a-time",
    "warning",
    kind="silent-slow",
    confidence="medium",
    source="https://github.com/intel/llm-scaler/issues/391 (2026-04-29)",
    fails=lambda: _reports([5.4] * 3).replace("Waiting: 0", "Waiting: 14"),
    passes=lambda: _reports([5.4] * 3).replace("Waiting: 0", "Waiting: 3"),
)
def served_one_at_a_time(story: Story) -> Iterator[Hit]:
    """The last three throughput reports show one or two requests running, and at least four times
    as many waiting for them: the engine works, and its clients wait. More of them would run if
    the engine were allowed more at once, or if the KV cache had room for the next one's context.
    """
    points = story.throughput[-3:]
    if len(points) < 3 or not all(
        0 < point.running <= 2 and point.waiting >= 4 * point.running for point in points
    ):
        return
    last, most = points[-1], story.args.get("max_num_seqs")
    use = f", with {last.kv_use:.0%} of the KV cache in use" if last.kv_use is not None else ""
    only = f" (--max-num-seqs is {most})" if isinstance(most, int) else ""
    yield Hit(
        f"{last.waiting} requests wait behind {last.running} in the last three reports{use}: the"
        f" engine serves almost one at a time{only}.",
        evidence=(
            f"Running: {last.running}, Waiting: {last.waiting}, generation"
            f" {last.generation_tok_s} tokens/s"
        ),
        fix=(
            "Raise --max-num-seqs if it is as low as the number that runs. Otherwise the next"
            " context does not fit: compare the line `Maximum concurrency` of the start, then"
            " shorten --max-model-len or the prompts, or give the KV cache more (--kv-cache-dtype"
            " fp8, --kv-cache-memory-bytes)."
        ),
    )


_STEPS = {
    "begin": ("reads its options and the checkpoint's config", "the resolved configuration"),
    "config resolved": ("starts its processes", "the loading of the weights"),
    "ranks meet": ("waits for the other ranks", "the loading of the weights"),
    "ranks met": ("prepares the model", "the loading of the weights"),
    "load begins": ("loads the weights", "the line `Model loading took`"),
    "draft begins": ("loads the draft model", "the line `Model loading took`"),
    "loaded": ("compiles and measures memory", "the size of the KV cache"),
    "compile begins": ("compiles the model", "the line `torch.compile took`"),
    "compiled": ("measures memory", "the size of the KV cache"),
    "autotune begins": ("tunes kernels", "the size of the KV cache"),
    "autotune ends": ("measures memory", "the size of the KV cache"),
    "warm-up begins": ("warms up", "the capture of CUDA graphs"),
    "KV cache": ("captures CUDA graphs or warms up", "the line `init engine took`"),
    "capture begins": ("captures CUDA graphs", "the line `Graph capturing finished`"),
    "captured": ("warms up", "the line `init engine took`"),
    "initialized": ("starts the API server", "the line `Application startup complete`"),
}
"""What an engine does after each step of its start that a log can show, and what comes next."""

_BEGUN = """\
(APIServer pid=1) INFO 11-28 10:00:00 [api_utils.py:347] non-default args: {'model': 'some/model'}
(EngineCore pid=9) INFO 11-28 10:00:41 [gpu_model_runner.py:5100] Starting to load model
some/model"""
_READY = "INFO:     Application startup complete."
_ORDER = (
    "(APIServer pid=1) INFO 11-28 10:01:00 [launcher.py:100] [shutdown] API server: shutdown"
    " triggered"
)


@STATES.rule(
    "LOG903",
    "start-under-way",
    "info",
    source="https://docs.vllm.ai/en/latest/usage/troubleshooting/",
    fails=lambda: _BEGUN,
    passes=lambda: f"{_BEGUN}\n{_READY}",
)
def start_under_way(story: Story, last: str) -> Iterator[Hit]:
    """A start that has not come to its ready line, without a word of what is wrong. The finding
    says what the engine does now, for how long the log shows it, and what usually comes next. The
    log alone cannot show whether the process still lives: the kernel kills without a word in its
    log.
    """
    does, then = _STEPS.get(story.stage or "begin", _STEPS["begin"])
    age_s = story.age_s or 0.0
    age = f" {format_seconds(age_s)} into the start" if age_s > 0 else ""
    yield Hit(
        f"The engine is not ready{age}: it {does}; {then} usually comes next.",
        evidence=last,
        fix=(
            "Wait while new lines come. If the process is gone, look at its exit code (docker"
            " inspect) and at the kernel's log (journalctl -k): 137 means that it was killed from"
            " outside."
        ),
    )


@STATES.rule(
    "LOG904",
    "stopped-before-ready",
    "info",
    source="https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/launcher.py",
    fails=lambda: f"{_BEGUN}\n{_ORDER}",
    passes=lambda: f"{_BEGUN}\n{_READY}\n{_ORDER}",
)
def stopped_before_ready(story: Story, last: str) -> Iterator[Hit]:
    """The engine got a signal to stop before it was ready. Its log has no other fault. A time limit
    of a supervisor or of a health check does this as well as a person.
    """
    does, _ = _STEPS.get(story.stage or "begin", _STEPS["begin"])
    yield Hit(
        f"Somebody stopped the engine before it was ready, at the step where it {does}.",
        evidence=last,
        fix=(
            "Check what stopped it: docker stop, Ctrl-C, or a health check or supervisor whose time"
            " limit is shorter than this start."
        ),
    )


UNKNOWN_STATE = (
    "The log ends before the engine is ready, and no line says why: its state is unknown."
)


@STATES.rule(
    "LOG905",
    "cut-off",
    "warning",
    confidence="medium",
    source="this log",
    fails=lambda: (
        "(EngineCore pid=9) INFO 11-28 10:02:11 [kv_cache_utils.py:2327] GPU KV cache size:"
        " 897,664 tokens"
    ),
    passes=lambda: _READY,
)
def cut_off(story: Story, last: str, progress: str = "") -> Iterator[Hit]:
    """The log begins after the start and ends without a ready line, an answered request or a
    reason. That is an excerpt, or the process ended without a word. The finding says what was under
    way, as the log's last step or a progress bar shows it, and shows the last sign of life.
    """
    does = progress or (f"The engine {_STEPS[story.stage][0]}" if story.stage in _STEPS else "")
    yield Hit(
        f"{does}, and the log ends there: whether the engine comes up is unknown."
        if does
        else UNKNOWN_STATE,
        evidence=last,
        fix=(
            "Collect the whole log, from the launch line to the last line of every process (docker"
            " logs NAME > vllm.log 2>&1), and the exit code of the container."
        ),
    )


@STATES.rule(
    "LOG906",
    "unknown-warning",
    "warning",
    confidence="low",
    source="this log",
    fails=lambda: (
        "(EngineCore pid=9) WARNING 11-28 10:02:11 [mixer.py:7] The blender has one cup for two"
        " guests."
    ),
    passes=lambda: _READY,
)
def unknown_warning(said: str, evidence: str, about: str, count: int) -> Iterator[Hit]:
    """In a log that does not show a healthy engine: the first warning that no signature knows."""
    times = f" ({count} times)" if count > 1 else ""
    yield Hit(
        f"A warning that no signature knows{times}: {said.rstrip(' .:')}.{about}",
        evidence=evidence,
        fix="Read it before you look further; it may name the option or the limit that matters.",
    )


@STATES.rule(
    "LOG907",
    "recovered",
    "info",
    confidence="medium",
    source="this log",
    fails=lambda: f"{_BEGUN}\nValueError: the blender is out of fruit\n{_READY}",
    passes=lambda: f"{_BEGUN}\n{_READY}",
)
def recovered(said: str, evidence: str) -> Iterator[Hit]:
    """An error or a traceback that no signature knows, in a start that was ready all the same."""
    yield Hit(
        f"The start went on after an error that no signature knows: {said.rstrip(' .:')}.",
        evidence=evidence,
        fix="Ignore it, unless a feature that you use is missing.",
    )


_LOST = f"""\
{_BEGUN}
(Worker_TP0 pid=9) ERROR 11-28 10:05:00 [x.py:1] RuntimeError: Connection closed by peer"""
_NGRAM = """\
(APIServer pid=1) INFO 11-28 10:00:00 [api_utils.py:347] non-default args: {'model': \
'nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4', 'speculative_config': {'method': 'ngram'}}
(EngineCore pid=9) ERROR 11-28 10:02:00 [mixer.py:7] RuntimeError: the blender is out of fruit"""


@STATES.rule(
    "LOG908",
    "similar-report",
    "info",
    confidence="low",
    source="https://github.com/vllm-project/vllm/issues",
    fails=lambda: (
        "AssertionError: DeepseekV4 fp8_ds_mla layout only supports fp8 kv-cache, got auto"
    ),
    passes=lambda: _READY,
)
def similar_report(report: Report) -> Iterator[Hit]:
    """A public report that resembles the lines of weight of the log, as the search in the project's
    table of reports ranks them; up to three are shown. That another person's log looked alike is no
    proof of the same cause.
    """
    cause = f" Its cause: {_plain_end(report.cause)}." if report.cause else ""
    fixed = f" Fixed in {report.fixed_in}." if report.fixed_in else ""
    yield Hit(
        f"A similar report ({report.date}): {_plain_end(report.title)}.{cause}{fixed}",
        evidence=report.url,
        fix=f"Compare it with your log; what helped there: {_plain_end(report.fix)}."
        if report.fix
        else "Compare it with your log; it names no remedy.",
        kind=report.kind,
        source=report.url,
    )


@STATES.rule(
    "LOG909",
    "known-bad-combination",
    "info",
    confidence="medium",
    source="https://github.com/vllm-project/vllm/issues",
    fails=lambda: _NGRAM,
    passes=lambda: _BEGUN,
)
def known_combination(one: Combination) -> Iterator[Hit]:
    """The log of a fault, or one that does not show a healthy engine, has a combination of release,
    model and options that public reports name as bad (see the BAD rules). It may be the cause.
    """
    yield Hit(
        f"The log has a combination that is known to be bad. {one.sentence}",
        evidence=f"{one.code}: {one.name}",
        fix=one.instead,
        kind=one.kind,
        source=one.sources[0].url,
        since=one.since,
    )


@STATES.rule(
    "LOG910",
    "order-of-silence",
    "info",
    source="several logs of one run",
    fails=lambda: {"rank0.log": _LOST, "rank1.log": _BEGUN},
    passes=lambda: {"rank0.log": _READY, "rank1.log": _READY},
)
def fell_silent(order: str, name: str, evidence: str, has_cause: bool) -> Iterator[Hit]:
    """Of several logs of one run (`sparkbook diagnose rank0.log rank1.log journal.txt
    inspect.json`): which fell silent first, on one clock, and which only report it. Without a fault
    of its own, the rank that fell silent first was ended from outside.
    """
    if has_cause:
        yield Hit(order, evidence=evidence, fix="Look into that log first; the others follow it.")
        return
    yield Hit(
        f"{order} {name} ends without a cause: a process was killed there, or the node failed.",
        evidence=evidence,
        fix=(
            "Look at journalctl -k and at the memory guard's log of that node at that time, and at"
            " the exit code of its container (137: killed from outside)."
        ),
        severity="error",
        kind="killed-by-watchdog",
    )


_SHORTER = (
    "(MainProcess pid=9) INFO 11-28 10:00:00 [model.py:2152] Using max model len 512\n"
    "(MainProcess pid=9) INFO 11-28 10:00:01 [serve.py:224] Launching vLLM (v0.31.0) headless"
    " multiproc executor"
)
_HEAD = (
    "(APIServer pid=1) INFO 11-28 10:00:00 [model.py:2152] Using max model len 1024\n"
    "(EngineCore pid=2) INFO 11-28 10:00:01 [core.py:133] Initializing a V1 LLM engine (v0.31.0)"
    " with config: model='some/model'"
)


@STATES.rule(
    "LOG911",
    "ranks-differ",
    "error",
    kind="version-drift",
    source="vLLM 0.32.0, runs of this project in which one rank was started differently",
    fails=lambda: {"rank0.log": _HEAD, "rank1.log": _SHORTER},
    passes=lambda: {"rank0.log": _HEAD, "rank1.log": _SHORTER.replace("512", "1024")},
)
def ranks_differ(what: str, values: Iterable[tuple[str, str]]) -> Iterator[Hit]:
    """The ranks of one server were started with another model, release or length. vLLM does not
    compare them: another length serves until a long request comes, another model answers with
    nonsense, another release or shape fails in words about something else.
    """
    listed = [f"{name} has {value}" for name, value in values]
    yield Hit(
        f"The ranks differ in {what}: {', '.join(listed)}.",
        evidence="; ".join(listed),
        fix="Start every rank with the same image, model and options; only --node-rank, --headless"
        " and the addresses of the node differ.",
    )


@STATES.rule(
    "LOG912",
    "rank-never-began",
    "error",
    kind="multi-node-hang",
    source="vLLM 0.32.0, a run of this project whose second rank was not started",
    fails=lambda: {"rank0.log": _BEGUN, "rank1.log": ""},
    passes=lambda: {"rank0.log": _READY, "rank1.log": _READY},
)
def never_began(name: str, waits: str) -> Iterator[Hit]:
    """The log of one rank is empty, and another one waits. It never says for whom: it waits ten
    minutes, and then reports a timeout of its own.
    """
    yield Hit(
        f"{name} is empty: that rank never began, and {waits} waits for it.",
        evidence=f"{name}: no line",
        fix="Look at what starts that rank: whether its command, image and folder are there, and"
        " what its service or container says (systemctl status, docker ps -a).",
    )


def _plain_end(text: str | None) -> str:
    return " ".join((text or "").split()).rstrip(" .")


_BAR = re.compile(r"([A-Za-z][\w .,()/-]{2,80}):\s+(\d{1,2})% ?(?:Completed|\|)")


def of_verdict(verdict: Verdict, story: Story, line: int, tail: str) -> list[Finding]:
    """Return what explains a verdict that rests on no fault.

    Args:
        line: the number of the last line.
        tail: the last line's message, the last sign of life.
    """
    last = f"line {line}: {short(tail, 200)}"
    if verdict == "starting":
        return list(start_under_way.findings(story, last))
    if verdict == "stopped":
        return list(stopped_before_ready.findings(story, last))
    bars = _BAR.findall(tail)
    progress = "'{}' is at {} %".format(*bars[-1]) if bars else ""
    return list(cut_off.findings(story, last, progress)) if verdict == "cut off" else []


def of_story(story: Story) -> list[Finding]:
    """What the checks say about a running engine's story."""
    return [
        *hang_while_healthy.findings(story),
        *served_one_at_a_time.findings(story),
        *batch_beyond_the_graphs.findings(story),
    ]
