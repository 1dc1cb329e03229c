"""Options of `vllm serve`, judged by the rest of the line: what an option cannot go with, and words
that are for another program.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkbook.launch.arguments import problem
from sparkbook.lint.case import Case
from sparkbook.lint.rules.flag import FLAG
from sparkbook.rules import Hit


@FLAG.rule(
    "FLAG118",
    "eager-with-graphs",
    "warning",
    kind="flag-conflict",
    source="vLLM's compilation config",
    fails="vllm serve ORG/MODEL --enforce-eager --max-cudagraph-capture-size 512",
    passes="vllm serve ORG/MODEL --enforce-eager",
)
def eager_with_graphs(case: Case) -> Iterator[Hit]:
    """`--enforce-eager` switches CUDA graphs off, so the line's graph options have no effect."""
    for name in ("max-cudagraph-capture-size", "cudagraph-capture-sizes"):
        if case.on("enforce-eager") and name in case.options:
            yield Hit(
                f"--enforce-eager switches CUDA graphs off, so --{name} has no effect.",
                case.shown(name),
                "Drop one of the two.",
                edits=case.drop(case.options[name]),
            )


@FLAG.rule(
    "FLAG119",
    "refused-together",
    "error",
    claims="refused",
    kind="flag-conflict",
    source="vLLM's checks of the serve arguments",
    release="0.32.0",
    fails="vllm serve ORG/MODEL --enable-log-outputs",
    passes="vllm serve ORG/MODEL --enable-log-outputs --enable-log-requests",
)
def refused_together(case: Case) -> Iterator[Hit]:
    """Options that the server checks against each other before it loads anything: outputs are only
    logged where requests are, metrics of each request need the engine's statistics, and the
    keep-alive interval cannot be negative.
    """
    if case.on("enable-log-outputs") and not case.on("enable-log-requests"):
        shown = case.shown("enable-log-outputs")
        yield Hit(
            "--enable-log-outputs needs --enable-log-requests.",
            shown,
            "Add it.",
            edits=case.append("--enable-log-requests"),
        )
    if case.on("enable-per-request-metrics") and case.on("disable-log-stats"):
        shown = case.shown("enable-per-request-metrics")
        yield Hit(
            "--enable-per-request-metrics needs the statistics that --disable-log-stats"
            " switches off.",
            shown,
            "Drop one of the two.",
        )
    if (case.value("sse-keep-alive-interval") or "").startswith("-"):
        yield Hit(
            "--sse-keep-alive-interval cannot be negative.",
            case.shown("sse-keep-alive-interval"),
            "Set it to 0 to switch it off.",
        )


@FLAG.rule(
    "FLAG120",
    "served-name-without-model",
    "error",
    claims="refused",
    source="vLLM's argument parser",
    fails="vllm serve --served-model-name chat ORG/MODEL",
    passes="vllm serve ORG/MODEL --served-model-name chat",
)
def served_name_first(case: Case) -> Iterator[Hit]:
    """Where `--served-model-name` is given, the model has to be the first word: the option takes
    several names, and vLLM refuses to guess where they end.
    """
    words = case.line.serve or []
    first = words[0].text if words else ""
    named = any(given.name in ("model", "config") for given in case.args.options)
    if first.startswith("-") and "served-model-name" in case.options and not named:
        yield Hit(
            "With --served-model-name the model has to come first.",
            first,
            "Write vllm serve MODEL --served-model-name NAME.",
        )


@FLAG.rule(
    "FLAG121",
    "out-of-range",
    "error",
    claims="refused",
    source="vLLM's configuration classes, which check the parsed values",
    fails="vllm serve ORG/MODEL --gpu-memory-utilization 1.5",
    passes="vllm serve ORG/MODEL --gpu-memory-utilization 0.8",
)
def out_of_range(case: Case) -> Iterator[Hit]:
    """A number that vLLM's parser reads and its configuration refuses: no sequences, a negative
    context, a memory fraction above 1. The start ends with a validation error.
    """
    for given in case.args.options:
        if given.option and (wrong := problem(given, given.option)) and wrong[0] == "range":
            yield Hit(f"{wrong[1]}.", given.shown, "Write a number in this range.")


@FLAG.rule(
    "FLAG122",
    "another-program",
    "info",
    source="vLLM-Omni, https://github.com/vllm-project/vllm-omni",
    fails="vllm serve ORG/MODEL --omni --vae-use-tiling",
    passes="vllm serve ORG/MODEL",
)
def another_program(case: Case) -> Iterator[Hit]:
    """vLLM-Omni serves speech, images and video. It is a program of its own next to vLLM and has
    options that vLLM lacks, so the options of such a line are not judged.
    """
    if case.omni:
        shown = case.shown_image if case.image else "--omni"
        yield Hit("vLLM-Omni serves this line; options that vLLM lacks are not judged.", shown)
