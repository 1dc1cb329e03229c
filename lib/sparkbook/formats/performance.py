"""`performance.yaml` of NVIDIA/local-ai-inference-recipes, version 1: what was measured with a
recipe, on what.

`Performance` is the neutral value in the middle. A benchmark's results become one with
`Performance(...)` and go out with `write`; `read` takes NVIDIA's files in, and `speeds` makes the
rows of a recipe out of one.

    >>> profile = Profile("chat", Workload(input_tokens=512, output_tokens=128, concurrency=1, requests=20), Results(decode_tok_s=41.5))
    >>> text = write(Performance(measured_at="2026-11-28", profiles=(profile,)))
    >>> read(text).profiles[0].results.decode_tok_s
    41.5
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError
from sparkbook.util.documents import dump, mapping, optional, parse, scalar, sequence

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Speed


@dataclass(frozen=True)
class Workload:
    """What was asked of the server. Token counts are of one request; `None` is not known.

    Attributes:
        input_tokens: prompt tokens meant; `input_tokens_min`, `_max`, `_total` are what the
            requests really had.
        context_tokens: the server's context length.
        output_tokens: tokens generated.
        concurrency: requests at once.
        requests, warmup_requests: measured requests, and those before that were not.
        dataset, profile: where the prompts come from.
    """

    input_tokens: int | None = None
    context_tokens: int | None = None
    dataset: str | None = None
    profile: str | None = None
    input_tokens_min: int | None = None
    input_tokens_max: int | None = None
    input_tokens_total: int | None = None
    output_tokens: int | None = None
    concurrency: int | None = None
    requests: int | None = None
    warmup_requests: int | None = None


@dataclass(frozen=True)
class Results:
    """Means over the measured requests: tokens a second, and milliseconds from sending a request to
    its last token.
    """

    prefill_tok_s: float | None = None
    decode_tok_s: float | None = None
    e2e_latency_ms: float | None = None


@dataclass(frozen=True)
class Profile:
    """One workload and its results."""

    id: str
    workload: Workload = field(default_factory=Workload)
    results: Results = field(default_factory=Results)


@dataclass(frozen=True)
class System:
    """The machine."""

    label: str | None = None
    accelerator: str | None = None
    accelerator_count: int | None = None
    operating_system: str | None = None
    os_version: str | None = None
    driver_version: str | None = None
    cuda_version: str | None = None


@dataclass(frozen=True)
class Software:
    """What ran: vLLM's version, the checkpoint's commit, the image's digest."""

    backend_version: str | None = None
    model_revision: str | None = None
    runtime_revision: str | None = None


@dataclass(frozen=True)
class Performance:
    """What was measured with one recipe.

    Attributes:
        measured_at: day, as YYYY-MM-DD.
        profiles: workloads and results.
        harness, harness_version: the benchmark tool.
        recipe_sha256: of the `recipe.yaml` that was measured (`recipe_hash`).
        launch_id: which of the recipe's launches; `default` where it has one.
        status: of the recipe, in NVIDIA's words (`optimized`, `experimental`).
        system, software: on what.
        foreign: keys that this reader does not know, by their place; written out again.
    """

    measured_at: str | None = None
    profiles: tuple[Profile, ...] = ()
    harness: str | None = None
    harness_version: str | None = None
    recipe_sha256: str | None = None
    launch_id: str = "default"
    status: str = "experimental"
    system: System = field(default_factory=System)
    software: Software = field(default_factory=Software)
    foreign: dict[str, Any] = field(default_factory=dict)


_RESULTS = {
    "prefill_tokens_per_second_mean": "prefill_tok_s",
    "decode_tokens_per_second_mean": "decode_tok_s",
    "e2e_latency_ms_mean": "e2e_latency_ms",
}


def recipe_hash(text: str) -> str:
    """Return the hash that binds a measurement to the text of its `recipe.yaml`."""
    return hashlib.sha256(text.encode()).hexdigest()


def read(text: str) -> Performance:
    """Return the measurements in a `performance.yaml`.

    Raises:
        SparkbookError: it is none, or of a version that is not known.
    """
    data = mapping(parse(text), "the file")
    if data.get("schema_version") != 1 or "profiles" not in data:
        raise SparkbookError(
            "this is no performance.yaml of version 1: it needs schema_version: 1 and profiles"
        )
    foreign: dict[str, Any] = {}
    profiles = []
    for index, entry in enumerate(sequence(data.get("profiles"), "profiles")):
        place = f"profiles[{index}]"
        profile = mapping(entry, place)
        workload = _part(
            Workload,
            mapping(profile.get("workload"), f"{place}.workload"),
            f"{place}.workload",
            foreign,
        )
        named = {
            _RESULTS.get(key, key): value
            for key, value in mapping(profile.get("results"), f"{place}.results").items()
        }
        results = _part(Results, named, f"{place}.results", foreign)
        foreign |= {
            f"{place}.{key}": value
            for key, value in profile.items()
            if key not in ("id", "workload", "results")
        }
        profiles.append(Profile(scalar(profile.get("id"), f"{place}.id"), workload, results))
    harness = mapping(data.get("harness"), "harness")
    top = {
        "schema_version",
        "profiles",
        "harness",
        "system",
        "software",
        "measured_at",
        "recipe_sha256",
        "launch_id",
        "status",
    }
    foreign |= {key: value for key, value in data.items() if key not in top}
    foreign |= {
        f"harness.{key}": value for key, value in harness.items() if key not in ("name", "version")
    }
    return Performance(
        optional(data.get("measured_at"), "measured_at"),
        tuple(profiles),
        optional(harness.get("name"), "harness.name"),
        optional(harness.get("version"), "harness.version"),
        optional(data.get("recipe_sha256"), "recipe_sha256"),
        optional(data.get("launch_id"), "launch_id") or "default",
        optional(data.get("status"), "status") or "experimental",
        _part(System, mapping(data.get("system"), "system"), "system", foreign),
        _part(Software, mapping(data.get("software"), "software"), "software", foreign),
        foreign,
    )


def _part(kind: Any, data: dict[str, Any], place: str, foreign: dict[str, Any]) -> Any:
    """Return a dataclass out of a mapping; what it does not know goes to `foreign`."""
    values: dict[str, Any] = {}
    types = {item.name: str(item.type) for item in dataclasses.fields(kind)}
    for key, value in data.items():
        if key not in types:
            foreign[f"{place}.{key}"] = value
        elif value is not None and "str" in types[key]:
            values[key] = scalar(value, f"{place}.{key}")
        elif value is not None:
            if isinstance(value, bool) or not isinstance(
                value, int if "int" in types[key] else int | float
            ):
                raise SparkbookError(f"{place}.{key}: expected a number, found {value!r}")
            values[key] = value
    return kind(**values)


def write(performance: Performance) -> str:
    """Return the measurements as a `performance.yaml`; what is not known is left out."""
    names = {field_: key for key, field_ in _RESULTS.items()}

    def stated(value: Any) -> dict[str, Any]:
        return {
            names.get(key, key): item
            for key, item in dataclasses.asdict(value).items()
            if item is not None
        }

    harness = {"name": performance.harness, "version": performance.harness_version}
    data: dict[str, Any] = {
        "schema_version": 1,
        "status": performance.status,
        "recipe_sha256": performance.recipe_sha256,
        "launch_id": performance.launch_id,
        "measured_at": performance.measured_at,
        "harness": {key: value for key, value in harness.items() if value is not None},
        "system": stated(performance.system),
        "software": stated(performance.software),
        "profiles": [
            {
                "id": profile.id,
                "workload": stated(profile.workload),
                "results": stated(profile.results),
            }
            for profile in performance.profiles
        ],
    }
    for place, value in performance.foreign.items():
        _put(data, place, value)
    return dump({key: value for key, value in data.items() if value not in (None, {})})


def _put(data: dict[str, Any], place: str, value: Any) -> None:
    """Put a kept key back where it was: `profiles[0].workload.x`."""
    import re

    target: Any = data
    match = re.fullmatch(r"profiles\[(\d+)\]\.(?:(workload|results)\.)?(.+)", place, re.DOTALL)
    if match:
        target = data["profiles"][int(match[1])]
        target, key = (target[match[2]], match[3]) if match[2] else (target, match[3])
    elif (parts := place.split(".", 1))[0] in ("harness", "system", "software") and len(parts) == 2:
        target, key = data[parts[0]], parts[1]
    else:
        key = place
    target[key] = value


def speeds(performance: Performance, source: str) -> list[Speed]:
    """Return the measurements as rows of a recipe's `benchmarks.speed`.

    Args:
        performance: what was measured.
        source: id of the source that the recipe lists.
    """
    from sparkbook.recipes.schema import Speed

    try:
        date = datetime.date.fromisoformat(performance.measured_at or "")
    except ValueError:
        date = None
    rows = []
    for profile in performance.profiles:
        work, results = profile.workload, profile.results
        rows.append(
            Speed(
                configuration=profile.id,
                prompt_class=work.profile,
                concurrency=work.concurrency or 1,
                context_tokens=work.context_tokens or None,
                prompt_tokens=work.input_tokens or None,
                output_tokens=work.output_tokens or None,
                decode_tok_s=results.decode_tok_s or None,
                prefill_tok_s=results.prefill_tok_s or None,
                machine=performance.system.label or "not stated",
                date=date,
                source=source,
            )
        )
    return rows
