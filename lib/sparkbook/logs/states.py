"""Findings about a whole log: what no single line shows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sparkbook.findings import Finding
from sparkbook.logs.story import Story
from sparkbook.rules import Family, Hit

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
def unknown_fault(said: str, evidence: str) -> Iterator[Hit]:
    """The end of a traceback, an exception, a crash or a refusal of the command line that no
    signature knows. The first such message is quoted, and nothing is guessed about its cause. A
    known fault that came before it, or close behind it, is reported instead.
    """
    yield Hit(
        f"A fault that no signature knows: {said}.",
        evidence=evidence,
        fix=(
            "Read this message first; it is the earliest fault in the log. Collect next: the 50"
            " lines before it, the launch line, the release, and search the project's issues for"
            " its words without numbers and paths."
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


def of_story(story: Story) -> list[Finding]:
    """What the checks say about a running engine's story."""
    return [*hang_while_healthy.findings(story), *batch_beyond_the_graphs.findings(story)]
