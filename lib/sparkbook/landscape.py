"""Who publishes what for vLLM on a Spark: sources, container tracks and releases, each row with
where it was seen and when.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Literal

_SURVEY = datetime.date(2026, 11, 27)


@dataclass(frozen=True)
class Resource:
    """A place to look something up.

    Attributes:
        name, url: what and where.
        best_for: what it is the best place for.
        mind: what to keep in mind; empty where nothing.
        seen: when it was last read.
    """

    name: str
    url: str
    best_for: str
    mind: str = ""
    seen: datetime.date = _SURVEY


RESOURCES: tuple[Resource, ...] = (
    Resource(
        "NVIDIA local-ai-inference-recipes",
        "https://github.com/NVIDIA/local-ai-inference-recipes",
        "measured launch lines for one to four Sparks",
        "some images are moving tags; the digest stands in the performance file only",
    ),
    Resource(
        "NVIDIA dgx-spark-playbooks",
        "https://github.com/NVIDIA/dgx-spark-playbooks",
        "set-up steps, model table, multi-Spark cabling",
        "names three different image tags on one page",
    ),
    Resource(
        "vLLM Recipes",
        "https://recipes.vllm.ai/",
        "a launch command for any model, with a machine-readable form",
        "verified on GB10 for a few models only; no measured results",
    ),
    Resource(
        "vLLM blog: vLLM on the DGX Spark",
        "https://vllm.ai/blog/2026-06-01-vllm-dgx-spark",
        "why each flag matters on unified memory",
        "of June 2026: check environment variables against your release",
    ),
    Resource(
        "eugr/spark-vllm-docker",
        "https://github.com/eugr/spark-vllm-docker",
        "new models on GB10 within days; clusters without Ray",
        "the tag latest moves: pin a dated nightly by digest",
    ),
    Resource(
        "sparkrun and Spark Arena",
        "https://github.com/spark-arena/sparkrun",
        "one command for many engines; shared benchmark results",
        "sends usage statistics unless told not to",
    ),
    Resource(
        "AEON-7/vllm-ultimate-dgx-spark",
        "https://github.com/AEON-7/vllm-ultimate-dgx-spark",
        "speculative decoding, with acceptance by kind of text",
        "successor of vllm-dflash; built for its own models",
    ),
    Resource(
        "mark-ramsey-ri/vllm-dgx-spark",
        "https://github.com/mark-ramsey-ri/vllm-dgx-spark",
        "simple scripts for one to several Sparks",
        "still on NGC 26.04, that is vLLM 0.19",
    ),
    Resource(
        "NGC catalogue: vLLM",
        "https://catalog.ngc.nvidia.com/orgs/nvidia/containers/vllm",
        "NVIDIA's monthly container and its tags",
        "one or more releases behind vLLM's own",
    ),
    Resource(
        "DeepWiki: vLLM on Spark",
        "https://deepwiki.com/NVIDIA/dgx-spark-playbooks/4.2-vllm",
        "an overview to read first",
        "generated from the playbooks; not a source for flags",
        datetime.date(2026, 6, 20),
    ),
)
"""Where to look, best first."""


@dataclass(frozen=True)
class Track:
    """A line of container images that runs on a Spark.

    Attributes:
        name: the track.
        image: an image of it, with tag.
        vllm: vLLM release inside; None where the tag moves.
        good_for: when to take it.
        source, seen: evidence that it runs on GB10, or that it exists.
    """

    name: str
    image: str
    vllm: str | None
    good_for: str
    source: str
    seen: datetime.date = _SURVEY


_RECIPES = "https://github.com/NVIDIA/local-ai-inference-recipes"
_NGC = "https://catalog.ngc.nvidia.com/orgs/nvidia/containers/vllm"
_VLLM = "https://github.com/vllm-project/vllm/releases"

TRACKS: tuple[Track, ...] = (
    Track(
        "stable",
        "vllm/vllm-openai:v0.28.0",
        "0.28.0",
        "the default: a release that stays what it is",
        _RECIPES,
    ),
    Track(
        "NGC", "nvcr.io/nvidia/vllm:26.08-py3", "0.27.1", "NVIDIA's own build, with support", _NGC
    ),
    Track(
        "NGC",
        "nvcr.io/nvidia/vllm:26.09-py3",
        "0.29.0",
        "NVIDIA's own build, newer (CUDA 13.4.1)",
        _NGC,
    ),
    Track(
        "nightly",
        "vllm/vllm-openai:nightly",
        None,
        "a model too new for any release; pin the digest",
        "https://docs.vllm.ai/",
    ),
    Track(
        "eugr",
        "eugr/spark-vllm:latest",
        None,
        "GB10 patches ahead of the releases; pin a dated tag",
        "https://github.com/eugr/spark-vllm-docker",
    ),
)
"""Container tracks that a Spark owner can choose from."""


@dataclass(frozen=True)
class Release:
    """A release and when it was out.

    Attributes:
        track: whose release.
        name: tag or version.
        vllm: vLLM version inside.
        date: the day it came out, or the first day it was seen in public.
        precision: `day`: came out on that day; `by`: was out by then, at the latest.
        source: where the date is from.
    """

    track: Literal["vLLM", "NGC"]
    name: str
    vllm: str
    date: datetime.date
    precision: Literal["day", "by"]
    source: str


RELEASES: tuple[Release, ...] = (
    Release(
        "vLLM",
        "0.19.1",
        "0.19.1",
        datetime.date(2026, 4, 21),
        "by",
        "https://github.com/docker/model-runner/pull/876",
    ),
    Release(
        "vLLM",
        "0.22.1",
        "0.22.1",
        datetime.date(2026, 6, 5),
        "by",
        "https://github.com/vllm-project/vllm-metal/pull/425",
    ),
    Release(
        "vLLM",
        "0.23.0",
        "0.23.0",
        datetime.date(2026, 6, 22),
        "by",
        "https://github.com/IntelLabs/DeepMath/pull/22",
    ),
    Release("vLLM", "0.24.0", "0.24.0", datetime.date(2026, 6, 29), "day", _VLLM),
    Release(
        "vLLM",
        "0.27.1",
        "0.27.1",
        datetime.date(2026, 8, 13),
        "by",
        "https://github.com/vllm-project/vllm-metal/pull/603",
    ),
    Release(
        "vLLM",
        "0.28.0",
        "0.28.0",
        datetime.date(2026, 8, 27),
        "by",
        "https://github.com/mudler/LocalAI/pull/11752",
    ),
    Release("vLLM", "0.30.0", "0.30.0", datetime.date(2026, 9, 26), "by", _VLLM),
    Release("vLLM", "0.31.0", "0.31.0", datetime.date(2026, 10, 5), "day", _VLLM),
    Release("vLLM", "0.33.0", "0.33.0", datetime.date(2026, 11, 1), "day", _VLLM),
    Release("NGC", "26.04-py3", "0.19.0", datetime.date(2026, 4, 30), "by", _NGC),
    Release("NGC", "26.08-py3", "0.27.1", datetime.date(2026, 8, 31), "by", _NGC),
    Release("NGC", "26.09-py3", "0.29.0", datetime.date(2026, 9, 23), "day", _NGC),
)
"""Releases of 2026 whose date a public source gives; not every release is among them."""
