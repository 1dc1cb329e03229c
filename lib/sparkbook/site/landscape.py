"""Who publishes what for vLLM on a Spark: sources, container tracks and releases, each row with
where it was seen and when (`book/data/landscape.yaml`).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace
from typing import Literal

from sparkbook.site import book_data


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A place to look something up.

    Attributes:
        name, url: what and where.
        best_for: what it is the best place for.
        mind: what to keep in mind; empty where nothing.
        seen: when it was last read; None: on the day of the survey.
    """

    name: str
    url: str
    best_for: str
    mind: str = ""
    seen: datetime.date | None = None


@dataclass(frozen=True, kw_only=True)
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
    vllm: str | None = None
    good_for: str
    source: str
    seen: datetime.date | None = None


@dataclass(frozen=True, kw_only=True)
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


@dataclass(frozen=True)
class _Landscape:
    survey: datetime.date
    resources: tuple[Resource, ...]
    tracks: tuple[Track, ...]
    releases: tuple[Release, ...]


_FILE = book_data.load("landscape", _Landscape)

RESOURCES = tuple(replace(one, seen=one.seen or _FILE.survey) for one in _FILE.resources)
"""Where to look, best first."""
TRACKS = tuple(replace(one, seen=one.seen or _FILE.survey) for one in _FILE.tracks)
"""Container tracks that a Spark owner can choose from."""
RELEASES = _FILE.releases
"""Releases of 2026 whose date a public source gives; not every release is among them."""
