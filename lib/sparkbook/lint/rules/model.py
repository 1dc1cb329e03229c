"""MODEL: the model, its parsers, its draft."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from sparkbook import releases
from sparkbook.lint.case import Case
from sparkbook.lint.family import family
from sparkbook.rules import Hit
from sparkbook.util.shell_text import command_line, quote

MODEL = family("MODEL", "the model, its parsers and its draft")

REGISTRY = "vLLM's model registry, read out of each release"
PARSERS = "vLLM's registries of parsers, read out of each release"


@MODEL.rule(
    "MODEL101",
    "architecture-not-in-release",
    "error",
    claims="refused",
    kind="image-too-old",
    source=REGISTRY,
    release="0.18.0",
    versioned=True,
    fails="vllm serve nvidia/Gemma-4-31B-IT-NVFP4",
    passes="vllm serve Qwen/Qwen3.5-35B-A3B",
)
def architecture(case: Case) -> Iterator[Hit]:
    """The release does not have the model's architecture: the start ends with "model type … not
    recognized" or "architectures … are not supported". The architecture is the recipe's, or that of
    the family which the name shows.
    """
    name = case.recipe.model.architecture if case.recipe else None
    name = name or (case.family.architecture if case.family else None)
    if not name or (case.info and case.info.fork) or case.release.has("architectures", name):
        return
    spans = releases.presence("architectures", name)
    if spans:
        yield Hit(
            f"vLLM {case.version} does not know {name}, which is there {releases.said(spans)}.",
            case.model or name,
            f"Take an image with vLLM {spans[-1][0]} or later.",
        )


@MODEL.rule(
    "MODEL102",
    "tool-parser-unknown",
    "error",
    claims="refused",
    kind="tool-parser",
    source=PARSERS,
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --enable-auto-tool-choice --tool-call-parser qwen4_coder",
    passes="vllm serve ORG/MODEL --enable-auto-tool-choice --tool-call-parser qwen3_coder",
)
def tool_parser(case: Case) -> Iterator[Hit]:
    """A tool-call parser that this release does not have. The line parses; the server dies while it
    starts: "invalid tool call parser".
    """
    name = case.value("tool-call-parser")
    if (
        name
        and "tool-parser-plugin" not in case.options
        and not case.release.has("tool_parsers", name)
    ):
        yield Hit(*_no_parser(case, "tool-call-parser", "tool_parsers", name))


@MODEL.rule(
    "MODEL103",
    "reasoning-parser-unknown",
    "error",
    claims="refused",
    kind="reasoning-parser",
    source=PARSERS,
    release="0.32.0",
    versioned=True,
    fails="vllm serve nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 --reasoning-parser nano_v3",
    passes="vllm serve nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 --reasoning-parser nemotron_v3",
)
def reasoning_parser(case: Case) -> Iterator[Hit]:
    """A reasoning parser that this release does not have. Some, such as `nano_v3` and `super_v3`,
    were never built in: they come as a plug-in file next to the checkpoint, and need
        `--reasoning-parser-plugin`.
    """
    name = case.value("reasoning-parser")
    if (
        name
        and "reasoning-parser-plugin" not in case.options
        and not case.release.has("reasoning_parsers", name)
    ):
        yield Hit(*_no_parser(case, "reasoning-parser", "reasoning_parsers", name))


def _usual(case: Case, category: str) -> Sequence[str]:
    """Return the parsers of the model's family, the best first."""
    if not case.family:
        return ()
    return case.family.tools if category == "tool_parsers" else case.family.reasoning


def _built_in(case: Case, category: str) -> str | None:
    """Return the family's parser that this release has."""
    usual = _usual(case, category)
    return next((name for name in usual if case.release.has(category, name)), None)


def _advised(case: Case, verb: str, option: str, category: str) -> str:
    """Return the advice to use the family's parser, or a release that has it."""
    if name := _built_in(case, category):
        return f"{verb} --{option} {name}."
    name = _usual(case, category)[0]
    spans = releases.said(releases.presence(category, name))
    return f"Take another image: releases {spans} have --{option} {name}."


def _no_parser(case: Case, option: str, category: str, name: str) -> tuple[str, str, str]:
    spans = releases.presence(category, name)
    built_in = _built_in(case, category)
    close = difflib.get_close_matches(name, list(case.release.names(category)), n=1)
    if spans:
        fix = f"Take another image: releases {releases.said(spans)} have it."
    elif built_in:
        fix = (
            f"Write --{option} {built_in}, which is built in; or name the plug-in file that"
            f" brings {quote(name)}."
        )
    else:
        fix = (
            f"Write {close[0]}."
            if close
            else "Choose one that"
            f" `{command_line('sparkbook', 'releases', 'show', case.version)}` lists."
        )
    return (
        f"vLLM {case.version} has no {option.replace('-', ' ')} '{name}'.",
        case.shown(option),
        fix,
    )


@MODEL.rule(
    "MODEL104",
    "tools-without-parser",
    "error",
    claims="refused",
    kind="tool-parser",
    source="vLLM's checks of the serve arguments",
    fails="vllm serve ORG/MODEL --enable-auto-tool-choice",
    passes="vllm serve ORG/MODEL --enable-auto-tool-choice --tool-call-parser hermes",
)
def tools_without_parser(case: Case) -> Iterator[Hit]:
    """`--enable-auto-tool-choice` needs `--tool-call-parser`: the server refuses to start without
    it.
    """
    if case.on("enable-auto-tool-choice") and "tool-call-parser" not in case.options:
        usual = _built_in(case, "tool_parsers")
        yield Hit(
            "--enable-auto-tool-choice needs --tool-call-parser.",
            case.shown("enable-auto-tool-choice"),
            f"Add --tool-call-parser {usual or 'NAME, the parser of the model’s family'}.",
            edits=case.append(f"--tool-call-parser {usual}") if usual else (),
        )


@MODEL.rule(
    "MODEL105",
    "parser-without-tools",
    "warning",
    kind="tool-parser",
    source="inference-atlas pull request 13, https://github.com/0xBakeer/inference-atlas/pull/13",
    fails="vllm serve ORG/MODEL --tool-call-parser gemma4",
    passes="vllm serve ORG/MODEL --tool-call-parser gemma4 --enable-auto-tool-choice",
)
def parser_without_tools(case: Case) -> Iterator[Hit]:
    """A tool-call parser alone does nothing: a request with `tool_choice: auto` is answered with
    400, "requires --enable-auto-tool-choice and --tool-call-parser to be set".
    """
    if "tool-call-parser" in case.options and not case.on("enable-auto-tool-choice"):
        yield Hit(
            "--tool-call-parser does nothing without --enable-auto-tool-choice.",
            case.shown("tool-call-parser"),
            "Add --enable-auto-tool-choice.",
            edits=case.append("--enable-auto-tool-choice"),
        )


@MODEL.rule(
    "MODEL106",
    "not-the-models-tool-parser",
    "warning",
    kind="tool-parser",
    source=(
        "spark-vllm-docker issue 128, https://github.com/eugr/spark-vllm-docker/issues/128, and the"
        " models' own recipes"
    ),
    confidence="medium",
    fails=(
        "vllm serve Qwen/Qwen3.5-35B-A3B --reasoning-parser qwen3 --enable-auto-tool-choice"
        " --tool-call-parser hermes"
    ),
    passes=(
        "vllm serve Qwen/Qwen3.5-35B-A3B --reasoning-parser qwen3 --enable-auto-tool-choice"
        " --tool-call-parser qwen3_coder"
    ),
)
def other_tool_parser(case: Case) -> Iterator[Hit]:
    """A tool-call parser of another family. The server starts, and tool calls come out as text or
    not at all.
    """
    name, family = case.value("tool-call-parser"), case.family
    same = {"qwen3_coder": {"qwen3_xml", "qwen3_json"}, "openai": {"gptoss"}}
    if name and family and family.tools and case.release.has("tool_parsers", name):
        fitting = set(family.tools) | set().union(*(same.get(tool, set()) for tool in family.tools))
        if name not in fitting:
            yield Hit(
                f"{family.name} does not write tool calls as '{name}' reads them.",
                case.shown("tool-call-parser"),
                _advised(case, "Use", "tool-call-parser", "tool_parsers"),
            )


@MODEL.rule(
    "MODEL107",
    "qwen3-xml-misreads",
    "warning",
    kind="tool-parser",
    source="NemoClaw pull request 6551, https://github.com/NVIDIA/NemoClaw/pull/6551",
    until="0.23.0",
    release="0.23.0",
    fails=(
        "vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --enable-auto-tool-choice --tool-call-parser"
        " qwen3_xml"
    ),
    passes=(
        "vllm serve nvidia/Qwen3.6-35B-A3B-NVFP4 --enable-auto-tool-choice --tool-call-parser"
        " qwen3_coder"
    ),
)
def qwen3_xml(case: Case) -> Iterator[Hit]:
    """Up to 0.23 `qwen3_xml` was a parser of its own that stumbled over this model's calls ("Error
    when parsing XML elements"). From 0.24 on `qwen3_xml` and `qwen3_coder` are the same class.
    """
    if (
        case.value("tool-call-parser") == "qwen3_xml"
        and case.family
        and case.family.name.startswith("Qwen3.5")
    ):
        yield Hit(
            "qwen3_xml misreads tool calls of this model.",
            case.shown("tool-call-parser"),
            "Use --tool-call-parser qwen3_coder.",
        )


@MODEL.rule(
    "MODEL108",
    "not-the-models-reasoning-parser",
    "warning",
    kind="reasoning-parser",
    source=(
        "NemoClaw issue 8878, https://github.com/NVIDIA/NemoClaw/issues/8878, and the models' own"
        " recipes"
    ),
    confidence="medium",
    fails="vllm serve nvidia/Nemotron-3.5-Lightning-30B-A3B-NVFP4 --reasoning-parser step3p5",
    passes="vllm serve nvidia/Nemotron-3.5-Lightning-30B-A3B-NVFP4 --reasoning-parser nemotron_v3",
)
def other_reasoning_parser(case: Case) -> Iterator[Hit]:
    """A reasoning parser of another family. The reply comes back empty with finish reason `length`,
    or the thinking is part of the answer.
    """
    name, family = case.value("reasoning-parser"), case.family
    if name and family and family.reasoning and name not in family.reasoning:
        yield Hit(
            f"{family.name} does not think as '{name}' reads it.",
            case.shown("reasoning-parser"),
            _advised(case, "Use", "reasoning-parser", "reasoning_parsers"),
        )


@MODEL.rule(
    "MODEL109",
    "thinking-without-parser",
    "warning",
    kind="reasoning-parser",
    source="spark-vllm-docker issue 128, https://github.com/eugr/spark-vllm-docker/issues/128",
    fails="vllm serve Qwen/Qwen3.5-35B-A3B",
    passes="vllm serve Qwen/Qwen3.5-35B-A3B --reasoning-parser qwen3",
)
def thinks(case: Case) -> Iterator[Hit]:
    """The model thinks before it answers, and without `--reasoning-parser` the thinking is part of
    the answer's content.
    """
    off = (case.json("default-chat-template-kwargs") or {}).get("enable_thinking") is False
    if (
        case.serves
        and case.family
        and case.family.thinks
        and "reasoning-parser" not in case.options
        and not off
    ):
        yield Hit(
            f"{case.family.name} thinks, and without a reasoning parser the thinking is part of the"
            " answer.",
            case.model,
            _advised(case, "Add", "reasoning-parser", "reasoning_parsers"),
            edits=case.append(f"--reasoning-parser {name}")
            if (name := _built_in(case, "reasoning_parsers"))
            else (),
        )


@MODEL.rule(
    "MODEL110",
    "two-nemotron-parsers",
    "info",
    kind="reasoning-parser",
    source="spark-vllm-docker issue 234, https://github.com/eugr/spark-vllm-docker/issues/234",
    fails=(
        "vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4 --reasoning-parser nemotron_v3 "
        "--enable-auto-tool-choice --tool-call-parser qwen3_coder"
    ),
    passes="vllm serve nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4 --reasoning-parser nemotron_v3",
)
def super_v3(case: Case) -> Iterator[Hit]:
    """Nemotron-3-Super ships its own parser, `super_v3`, as a plug-in. The built-in `nemotron_v3`
    is not the same: with it a plain request works, and tools can fail when the reply is streamed.
        Test exactly that before agents depend on it.
    """
    if (
        case.value("reasoning-parser") == "nemotron_v3"
        and "nemotron-3-super" in case.known_names
        and case.on("enable-auto-tool-choice")
    ):
        yield Hit(
            "nemotron_v3 and the model's own super_v3 differ where tools are streamed.",
            case.shown("reasoning-parser"),
            "Test a streamed tool call; if it fails, mount the super_v3 plug-in and name it.",
        )


@MODEL.rule(
    "MODEL111",
    "remote-code-needed",
    "error",
    source="Phi-4 multimodal's model card: custom processor",
    release="0.19.0",
    fails="vllm serve nvidia/Phi-4-multimodal-instruct-NVFP4",
    passes="vllm serve nvidia/Phi-4-multimodal-instruct-NVFP4 --trust-remote-code",
)
def remote_code_needed(case: Case) -> Iterator[Hit]:
    """The checkpoint brings Python of its own (a processor, a tokenizer), which vLLM only runs with
    `--trust-remote-code`.
    """
    if case.serves and case.family and case.family.remote_code and not case.on("trust-remote-code"):
        yield Hit(
            f"{case.family.name} needs --trust-remote-code.",
            case.model,
            "Add --trust-remote-code.",
            edits=case.append("--trust-remote-code"),
        )


@MODEL.rule(
    "MODEL112",
    "remote-code-trusted",
    "info",
    source="Hugging Face: trust_remote_code runs Python from the repository",
    fails="vllm serve openai/gpt-oss-20b --trust-remote-code",
    passes="vllm serve openai/gpt-oss-20b",
)
def remote_code(case: Case) -> Iterator[Hit]:
    """`--trust-remote-code` runs Python from the model's repository, whatever its next commit
    holds. vLLM serves these models with code of its own; where the option is needed,
    `--revision COMMIT` says which code.
    """
    if (
        case.on("trust-remote-code")
        and not (case.family and case.family.remote_code)
        and "revision" not in case.options
    ):
        built_in = case.family is not None and case.family.architecture is not None
        needless = ", which vLLM does not need for this model" if built_in else ""
        yield Hit(
            f"--trust-remote-code runs Python from the model's repository{needless}.",
            case.shown("trust-remote-code"),
            "Leave it out; if the start then asks for it, add it with --revision COMMIT.",
            edits=case.drop(case.options["trust-remote-code"]) if built_in else (),
        )


@MODEL.rule(
    "MODEL113",
    "file-not-mounted",
    "warning",
    kind="template-missing",
    source=(
        "GLM-5.3-Flash recipe issue 20,"
        " https://github.com/tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark/issues/20"
    ),
    fails=(
        "docker run --gpus all -v ~/vllm:/models vllm/vllm-openai:v0.28.0 /models/m --chat-template"
        " /templates/chat.jinja"
    ),
    passes=(
        "docker run --gpus all -v ~/vllm:/models vllm/vllm-openai:v0.28.0 /models/m --chat-template"
        " /models/chat.jinja"
    ),
)
def not_mounted(case: Case) -> Iterator[Hit]:
    """A file that an option names has to exist inside the container: a path that no volume covers
    is not there, unless the image brings it. A template is often in a recipe's repository and not
    in the checkpoint.
    """
    if not case.contained:
        return
    volumes = [
        volume.split(":")[1].rstrip("/")
        for volume in case.line.values("volume")
        if volume.count(":") >= 1
    ]
    paths = [
        (name, case.value(name) or "")
        for name in ("chat-template", "reasoning-parser-plugin", "tool-parser-plugin", "tokenizer")
    ]
    paths += [("model", case.model)] if case.serves else []
    for _name, path in paths:
        own = not path.startswith("/") or path.startswith(
            ("/usr/", "/opt/", "/vllm-workspace/", "/workspace/")
        )
        if not own and not any(
            path == volume or path.startswith(f"{volume}/") for volume in volumes
        ):
            folder = re.sub(r"/[^/]*$", "", path) or "/"
            yield Hit(
                f"No volume covers {path}.",
                path,
                f"Add {command_line('-v', f'FOLDER:{folder}')}, or put the file below a volume.",
            )


@MODEL.rule(
    "MODEL114",
    "draft-of-another-family",
    "warning",
    kind="spec-decode-acceptance",
    source="the drafts' model cards: a draft is trained for one target",
    confidence="medium",
    fails="vllm serve google/gemma-4-31B-it --spec-method dflash"
    " --spec-model z-lab/Qwen3.5-27B-DFlash --spec-tokens 7",
    passes="vllm serve google/gemma-4-31B-it --spec-method dflash"
    " --spec-model RedHatAI/gemma-4-31B-it-speculator.dflash --spec-tokens 7",
)
def other_draft(case: Case) -> Iterator[Hit]:
    """A draft model proposes what its own target would say. One of another family, or of another
    size, is hardly ever right: acceptance near zero makes the server slower than without it. A line
        holds names and no weights, so family, architecture and size are taken from
    the names; MODEL115 says so where they tell nothing.
    """
    draft = str((case.spec or {}).get("model") or "")
    if not draft or not case.family or case.method in ("ngram", "suffix"):
        return
    from sparkbook.lint.models import family_of

    other = family_of(draft)
    sizes = [
        re.findall(r"(?<![\w.])(\d+(?:\.\d+)?)b(?![a-z])", re.sub(r"[-_/.]", " ", name.lower()))
        for name in (case.model, draft)
    ]
    if other and other.name.split()[0] != case.family.name.split()[0]:
        basis = "by their names"
        if (
            other.architecture
            and case.family.architecture
            and other.architecture != case.family.architecture
        ):
            basis = (
                f"by their names, which stand for {other.architecture} and"
                f" {case.family.architecture}"
            )
        yield Hit(
            f"The draft {draft} is of {other.name}, the model of {case.family.name} (judged"
            f" {basis}).",
            draft,
            "Take the draft that is made for the model.",
        )
    elif (
        case.method in ("dflash", "dspark", "eagle3")
        and sizes[0]
        and sizes[1]
        and sizes[0][0] != sizes[1][0]
    ):
        yield Hit(
            f"The draft {draft} is made for a model of {sizes[1][0]}B, not {sizes[0][0]}B (judged"
            " by the names).",
            draft,
            "Take the draft that is made for the model.",
        )


@MODEL.rule(
    "MODEL115",
    "draft-not-judged",
    "info",
    source="the drafts' model cards: a draft is trained for one target",
    confidence="low",
    fails=(
        "vllm serve my-lab/finetune-27b --spec-method dflash --spec-model my-lab/draft"
        " --spec-tokens 7"
    ),
    passes=(
        "vllm serve google/gemma-4-31B-it --spec-method dflash --spec-model"
        " RedHatAI/gemma-4-31B-it-speculator.dflash --spec-tokens 7"
    ),
)
def draft_not_judged(case: Case) -> Iterator[Hit]:
    """The names of target and draft do not both tell a family, so whether they belong together is
    not judged: no finding of MODEL114 means nothing here. A recipe that names the same draft among
        its facts, with a source, counts as known.
    """
    draft = str((case.spec or {}).get("model") or "")
    if not draft or case.method in ("ngram", "suffix"):
        return
    from sparkbook.lint.models import family_of

    stated = case.recipe.draft.model if case.recipe and case.recipe.draft else None
    if draft == stated or draft == case.model or (case.family and family_of(draft)):
        return
    unknown = " and ".join(
        name
        for name, known in ((case.model or "the model", case.family), (draft, family_of(draft)))
        if not known
    )
    yield Hit(
        f"The linter cannot judge whether the draft {draft} belongs to the model: it does not"
        f" know {unknown}.",
        draft,
        "Look at the draft's card for its target; after the start, an acceptance below 5 % means"
        " that they do not belong together.",
    )


@MODEL.rule(
    "MODEL116",
    "reranker-that-generates",
    "warning",
    kind="flag-conflict",
    source="vLLM 0.32.0, model_executor/models/config.py, and"
    " https://docs.vllm.ai/en/v0.10.2/examples/offline_inference/qwen3_reranker.html; seen in"
    " https://github.com/intel/llm-scaler/issues/361 (2026-04-17)",
    fails="vllm serve Qwen/Qwen3-Reranker-8B",
    passes="vllm serve tomaarsen/Qwen3-Reranker-8B-seq-cls",
)
def reranker(case: Case) -> Iterator[Hit]:
    """Qwen's rerankers are published as models that generate text. As they are, vLLM serves them
    for chat, and /v1/rerank and /v1/score do not exist; with `--runner pooling` alone these compare
    the vectors of two texts, which is not what the model was trained for. `--hf-overrides` makes
    classifiers of them.
    """
    named = re.search(r"(?:^|/)qwen3-(vl-)?reranker-[\d.]+b$", case.model.lower())
    pooled = case.value("runner") == "pooling"
    runner = "" if pooled else "--runner pooling "
    if named and case.lacks("hf-overrides") and case.json("hf-overrides") is None:
        kind = "Qwen3VLForSequenceClassification" if named[1] else "Qwen3ForSequenceClassification"
        yield Hit(
            f"{case.model} is served as an embedding model: /v1/rerank compares vectors."
            if pooled
            else f"{case.model} is served as a model that generates text, without /v1/rerank.",
            case.model,
            f'Add {runner}--hf-overrides \'{{"architectures":["{kind}"],'
            '"classifier_from_token":["no","yes"],"is_original_qwen3_reranker":true}\'.',
        )
