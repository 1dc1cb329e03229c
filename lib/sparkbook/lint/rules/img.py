"""IMG: the container image."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sparkbook.lint.case import Case
from sparkbook.lint.family import family
from sparkbook.releases import images
from sparkbook.rules import Edit, Hit

IMG = family("IMG", "the image")

_PULLED = re.compile(
    r"\b(?:docker|podman|nerdctl)\s+(?:image\s+)?pull\s+(?:-\S+\s+)*([^\s;&|'\"]+)"
)
MOVING = re.compile(r"latest.*|.*nightly.*|main|dev|edge|stable")


@IMG.rule(
    "IMG101",
    "floating-tag",
    "warning",
    kind="version-drift",
    source="dynamo issue 14573, https://github.com/ai-dynamo/dynamo/issues/14573",
    fails="docker run --gpus all vllm/vllm-openai:nightly ORG/MODEL",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def floating(case: Case) -> Iterator[Hit]:
    """The tag is pushed again and again, so the same line starts something else next month: other
    flags, other kernels, other numbers. A digest names one image for good. Tags named after a model
    (`gemma4-cu130`) have been overwritten too.
    """
    if case.image is None or case.digest:
        return
    if case.info.moving if case.info else MOVING.fullmatch(case.tag or "latest"):
        local = case.info is not None and case.info.local
        fix = (
            "Note the image's id with each measurement."
            if local
            else "Pin it: IMAGE:TAG@sha256:…, from docker image inspect."
        )
        yield Hit(
            f"The tag of {case.shown_image} moves, and no digest pins it.", case.line.image, fix
        )


@IMG.rule(
    "IMG102",
    "no-digest",
    "info",
    kind="version-drift",
    source=(
        "Blackwellboy minefield, trap 9, https://github.com/Blackwellboy/"
        "model-serving-minefield/blob/main/traps/runtime/09-image-choice-changes-outcome.md"
    ),
    fails="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0@sha256:" + "0" * 64 + " ORG/MODEL",
)
def no_digest(case: Case) -> Iterator[Hit]:
    """A version's tag is rarely moved, but can be. With equal weights three images gave an error,
    an out-of-memory and a working server: the digest belongs to the recipe, and to every number
    measured with it.
    """
    moving = case.info.moving if case.info else MOVING.fullmatch(case.tag or "latest")
    if case.image is not None and not case.digest and not moving:
        yield Hit(
            f"{case.shown_image} is named by tag only.",
            case.line.image,
            "Add its digest: IMAGE:TAG@sha256:….",
        )


@IMG.rule(
    "IMG103",
    "wrong-processor",
    "error",
    kind="arch-image",
    source=(
        "ComfyUI-Nvidia-Docker issue 96,"
        " https://github.com/mmartial/ComfyUI-Nvidia-Docker/issues/96"
    ),
    fails="docker run --gpus all vllm/vllm-openai:v0.28.0-x86_64 ORG/MODEL",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0-aarch64 ORG/MODEL",
)
def wrong_processor(case: Case) -> Iterator[Hit]:
    """A Spark has an Arm processor. An image for amd64 only ends with "exec format error", and with
    a restart policy does so forever.
    """
    platform = case.line.option("platform")
    only = case.info.platforms if case.info and case.info.platforms else None
    amd = re.search(r"(^|[-_.])(x86_64|amd64|x64)([-_.]|$)", case.tag or "")
    if (
        case.image
        and case.spark
        and (amd or (only and "linux/arm64" not in only) or (platform and "arm64" not in platform))
    ):
        yield Hit(
            f"{case.shown_image} is no image for an Arm processor.",
            platform or case.line.image,
            "Take the tag with -aarch64, or one for both.",
        )


@IMG.rule(
    "IMG104",
    "entry-point-doubled",
    "error",
    kind="entrypoint",
    source="vLLM issue 37133, https://github.com/vllm-project/vllm/issues/37133",
    fails="docker run --gpus all vllm/vllm-openai:v0.28.0 vllm serve ORG/MODEL",
    passes="docker run --gpus all nvcr.io/nvidia/vllm:26.09-py3 vllm serve ORG/MODEL",
)
def doubled(case: Case) -> Iterator[Hit]:
    """The official image starts `vllm serve` by itself, so the container runs
    `vllm serve vllm serve MODEL`: "unrecognized arguments: serve MODEL". NVIDIA's NGC image runs
    the command that it is given, and there the two words are needed.
    """
    if case.line.doubled:
        first, second = case.line.doubled
        edits: tuple[Edit, ...] = ()
        if first.start >= 0:
            after = len(case.line.text[second.end :]) - len(
                case.line.text[second.end :].lstrip(" \t")
            )
            edits = (Edit(first.start, second.end + after, ""),)
        if first == second:
            fix = "Write --entrypoint vllm before the image, and the words after vllm behind it."
            yield Hit(
                f"{case.shown_image} starts vllm serve by itself, so 'vllm' is taken for a model.",
                "vllm serve vllm …",
                fix,
            )
            return
        yield Hit(
            f"{case.shown_image} starts vllm serve by itself, and the line says it again.",
            "vllm serve vllm serve …",
            "Delete the words vllm serve, and begin with the model.",
            edits=edits,
        )


@IMG.rule(
    "IMG105",
    "nothing-serves",
    "error",
    kind="entrypoint",
    source="NVIDIA's NGC image has no entry point that serves",
    fails="docker run --gpus all nvcr.io/nvidia/vllm:26.04-py3 --model ORG/MODEL",
    passes="docker run --gpus all nvcr.io/nvidia/vllm:26.04-py3 vllm serve ORG/MODEL",
)
def nothing_serves(case: Case) -> Iterator[Hit]:
    """An image without an entry point of its own runs the words after it as a command. A model or
    an option is none.
    """
    words = case.line.nothing_serves
    if (
        words is not None
        and case.info
        and case.info.entrypoint == "command"
        and re.match(r"-|nothing$|\S+/\S+|vllm ", words)
    ):
        yield Hit(
            f"{case.shown_image} runs the words after it as they are, and '{words}' starts no"
            " server.",
            words,
            "Begin with vllm serve MODEL.",
        )


@IMG.rule(
    "IMG106",
    "known-bug",
    "warning",
    kind="image-too-old",
    source="the image's entry in the releases table, which names its source",
    fails="docker run --gpus all nvcr.io/nvidia/vllm:25.11-py3 vllm serve nvidia/GLM-4.6-NVFP4",
    passes="docker run --gpus all nvcr.io/nvidia/vllm:26.09-py3 vllm serve nvidia/GLM-4.6-NVFP4",
)
def known_bug(case: Case) -> Iterator[Hit]:
    """Something that is known to be wrong with this very image, for what this line does with it."""
    for bug in case.info.bugs if case.info else ():
        wanted = [
            bug.models is None or bug.models in case.known_names,
            bug.method is None or (case.method == bug.method and (case.draft_tokens or 0) >= 5),
            bug.tool_parser is None or case.value("tool-call-parser") == bug.tool_parser,
            bug.env is None
            or any(f"{name}={value}" == bug.env for name, value in case.line.env.items()),
        ]
        if all(wanted) and not (bug.fix == "pin a digest" and case.digest):
            source = images.source(bug.source)
            yield Hit(
                f"{case.shown_image}: {bug.what}.",
                f"{source.title}, {source.url}",
                f"{bug.fix[:1].upper()}{bug.fix[1:]}.",
            )


@IMG.rule(
    "IMG107",
    "release-not-known",
    "info",
    kind="version-drift",
    source="the table of images",
    versioned=True,
    fails="docker run --gpus all example.org/mine:1 vllm serve ORG/MODEL",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def not_known(case: Case) -> Iterator[Hit]:
    """Which vLLM an image holds is not known here, so that what depends on the release is judged by
    an assumption. `--release` says it.
    """
    if (
        case.image is not None
        and case.assumed
        and not (case.info and case.info.contents.get("vllm") is False)
    ):
        yield Hit(
            f"Which vLLM release {case.shown_image} holds is not known exactly.",
            case.line.image,
            "Run `docker run --rm --entrypoint vllm IMAGE --version`, and give it as --release.",
        )


@IMG.rule(
    "IMG108",
    "loader-missing",
    "error",
    kind="dependency",
    source=(
        "NVIDIA forum: Gemma 4 in the vLLM image, https://forums.developer.nvidia.com/t/"
        "how-to-run-gemma-4-nvfp4-in-vllm-docker/365513, and vLLM's own requirements"
    ),
    release=None,
    fails=(
        "docker run --gpus all vllm/vllm-openai:v0.19.0-cu130 ORG/MODEL --load-format"
        " fastsafetensors"
    ),
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL --load-format fastsafetensors",
)
def loader(case: Case) -> Iterator[Hit]:
    """A fast loader is a package of its own. vLLM requires fastsafetensors since 0.20 and
    instanttensor since 0.29; older official images lack them, and the start ends with
    ModuleNotFoundError.
    """
    name = case.value("load-format") or ""
    if (
        name in ("fastsafetensors", "instanttensor")
        and case.image
        and case.holds(name) is False
        and not _installed(case, name)
    ):
        kind = "image-too-old" if case.info and case.info.contents.get(name) is False else None
        yield Hit(
            f"{case.shown_image} lacks {name}.",
            case.shown("load-format"),
            "Use --load-format safetensors, or a newer image.",
            kind=kind,
        )


@IMG.rule(
    "IMG109",
    "ray-missing",
    "error",
    claims="refused",
    kind="ray-missing",
    source=(
        "Nemotron Super on two Sparks, https://corti.com/serving-nemotron-super-120b-with-a-1m-"
        "token-context-on-a-2-node-dgx-spark-cluster/; vLLM's requirements name Ray until 0.17"
    ),
    fails=(
        "docker run --gpus all --ipc=host nvcr.io/nvidia/vllm:26.04-py3 vllm serve ORG/MODEL -tp 2"
        " --distributed-executor-backend ray"
    ),
    passes=(
        "docker run --gpus all --ipc=host nvcr.io/nvidia/vllm:26.04-py3 vllm serve ORG/MODEL -tp 2"
        " --nnodes 2 --node-rank 0 --master-addr 192.0.2.1"
    ),
)
def ray(case: Case) -> Iterator[Hit]:
    """vLLM no longer requires Ray since 0.18, and NVIDIA's images do not bring it. Several machines
    need none: `--nnodes`, `--node-rank` and `--master-addr` spread a model without it.
    """
    if case.ray and case.image and case.holds("ray") is False and not _installed(case, "ray"):
        yield Hit(
            f"{case.shown_image} lacks Ray.",
            case.shown("distributed-executor-backend"),
            "Use --nnodes, --node-rank and --master-addr instead, or an image with Ray.",
        )


@IMG.rule(
    "IMG110",
    "scipy-missing",
    "error",
    kind="dependency",
    source="dgx-spark-playbooks issue 69, https://github.com/NVIDIA/dgx-spark-playbooks/issues/69",
    fails=(
        "docker run --gpus all nvcr.io/nvidia/vllm:26.04-py3 vllm serve"
        " nvidia/Phi-4-multimodal-instruct-NVFP4 --trust-remote-code"
    ),
    passes=(
        "docker run --gpus all nvcr.io/nvidia/vllm:26.04-py3 bash -c 'pip install scipy && vllm"
        " serve nvidia/Phi-4-multimodal-instruct-NVFP4 --trust-remote-code'"
    ),
)
def scipy(case: Case) -> Iterator[Hit]:
    """The processor of Phi-4 multimodal imports scipy, which the images lack: "requires the
    following packages that were not found".
    """
    if (
        case.image
        and case.family
        and case.family.name.startswith("Phi-4")
        and case.holds("scipy") is not True
        and not _installed(case, "scipy")
    ):
        known = case.holds("scipy") is False
        lacks = "lacks" if known else "may lack"
        yield Hit(
            f"{case.family.name} needs scipy, which {case.shown_image} {lacks}.",
            case.model,
            severity="error" if known else "warning",
            fix=(
                "Use bash -c 'pip install scipy && vllm serve …', or an image with scipy built in."
            ),
        )


def _installed(case: Case, name: str) -> bool:
    return any(
        re.search(rf"\b(pip|uv)\b.*\binstall\b.*\b{name}\b", command)
        for command in case.line.before
    )


@IMG.rule(
    "IMG111",
    "not-vllm",
    "error",
    source="the table of images",
    fails="docker run --gpus all nvcr.io/nvidia/pytorch:26.03-py3 vllm serve ORG/MODEL",
    passes="docker run --gpus all nvcr.io/nvidia/vllm:26.04-py3 vllm serve ORG/MODEL",
)
def not_vllm(case: Case) -> Iterator[Hit]:
    """The image holds no vLLM: the command is not found, unless an earlier one installs vLLM."""
    if (
        case.info
        and case.info.contents.get("vllm") is False
        and case.serves
        and not _installed(case, "vllm")
    ):
        yield Hit(
            f"{case.shown_image} holds no vLLM.",
            case.line.image,
            "Take an image with vLLM, such as nvcr.io/nvidia/vllm.",
        )


@IMG.rule(
    "IMG112",
    "transformers-too-old",
    "warning",
    kind="image-too-old",
    source="spark-vllm-docker pull request 157, https://github.com/eugr/spark-vllm-docker/pull/157",
    fails="docker run --gpus all vllm-node vllm serve google/gemma-4-26B-A4B-it",
    passes="docker run --gpus all vllm-node-tf5 vllm serve google/gemma-4-26B-A4B-it",
)
def transformers(case: Case) -> Iterator[Hit]:
    """Gemma 4 needs transformers 5: an image built with 4 says that it "does not recognize this
    architecture". `vllm-node` was built with 4 until the summer of 2026; the recipes of its author
    now start Gemma 4 in it.
    """
    if case.image == "vllm-node" and case.family and case.family.name == "Gemma 4":
        yield Hit(
            "A vllm-node that was built in spring 2026 has transformers 4, which does not know"
            " Gemma 4.",
            case.line.image,
            "Build the image again, or use one built with --tf5: vllm-node-tf5.",
        )


@IMG.rule(
    "IMG113",
    "arguments-hidden",
    "info",
    source="the images' own entry scripts, as their projects describe them",
    fails="qwen3-next-80b-a3b-nvfp4",
    passes="gpt-oss-20b",
)
def hidden(case: Case) -> Iterator[Hit]:
    """The image's own script makes the arguments of vLLM out of variables, so they stand nowhere in
    the line. Image, container and variables are judged; options, parsers, memory and speculation
    are not, and no finding about them means nothing. The engine's log
    shows what was made of it: `non-default args`.
    """
    scripted = case.line.runs == "wrapper" and case.line.entry is None
    # A recipe serves in any case, also where it starts the script by a command of its own.
    if case.contained and case.line.serve is None and (scripted or case.recipe):
        yield Hit(
            f"{case.shown_image} makes vLLM's arguments by a script of its own: options, parsers,"
            " memory and speculation are not judged.",
            ", ".join(
                sorted(name for name in case.line.env if not name.startswith(("HF_", "VLLM_API")))[
                    :8
                ]
            )
            or None,
            "Read `non-default args` in the engine's log, and lint that as a vllm serve line.",
        )


@IMG.rule(
    "IMG114",
    "two-tags",
    "error",
    source=(
        "Docker: the grammar of a reference,"
        " https://github.com/distribution/reference/blob/main/reference.go"
    ),
    fails="docker run --gpus all vllm/vllm-openai:v0.28.0:latest ORG/MODEL",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def two_tags(case: Case) -> Iterator[Hit]:
    """An image has one tag: with two, `docker run` and `docker pull` end with "invalid reference
    format".
    """
    for ref in dict.fromkeys([case.line.image or "", *_PULLED.findall(case.line.text)]):
        if images.TWO_TAGS.search(ref):
            yield Hit(
                f"{ref} has two tags, and Docker takes one.", ref, "Delete all but one of the tags."
            )
