"""The examples of rules about containers: how a page shows one, and what is found in it.

An example in `faults.yaml` is an answer of the Docker engine, or one of: `line`, a launch line
(with `expose`, served so; with `memory`, on a host with so many bytes); `state`, a container's;
`available_gib`, a host's memory each half second; `before_start_gib`, the same before a start;
`silent_at_w`, the power of a GPU while requests run and no token comes; `asked`, whether an engine
made the token that it was asked for, and whether its counters moved.
"""

from __future__ import annotations

import json
from typing import Any

from sparkbook.findings import Finding
from sparkbook.formats import docker_run
from sparkbook.host.meminfo import Memory
from sparkbook.serve import pulse
from sparkbook.serve.faults import DOCK, explain, how_it_ended
from sparkbook.serve.stack import AS_WRITTEN, Choices, given, request
from sparkbook.serve.watchdog import Limits, Sample, admit, judge
from sparkbook.units import GIB
from sparkbook.util.markup import fenced

_LIMITS = Limits.of_host(121 * GIB)
_TOTAL = 121 * GIB

Example = str | dict[str, Any]


def show(example: Example) -> str:
    """Return an example as Markdown."""
    return fenced(_text(example))


def _text(example: Example) -> str:
    if isinstance(example, str):
        return example
    if "line" in example:
        expose = "\n(served with --expose)" if example.get("expose") else ""
        memory = example.get("memory")
        return (
            example["line"]
            + expose
            + (f"\n(on a host with {memory / GIB:g} GiB)" if memory else "")
        )
    if "state" in example:
        return json.dumps(example["state"])
    if "asked" in example:
        token, moved = example["asked"]["token"], example["asked"]["moved"]
        return (
            f"asked for one token: {'made' if token else 'none within 5 s'};"
            f" counters: {'moved' if moved else 'the same before and after'}"
        )
    if "before_start_gib" in example:
        return f"MemAvailable {example['before_start_gib']:g} GiB of 121 GiB, before a start"
    return "\n".join(map(_look, _samples(example)))


def _look(sample: Sample) -> str:
    parts = [f"{sample.at_s:5g} s"]
    if sample.available is not None:
        parts.append(f"MemAvailable {sample.available / GIB:.1f} GiB")
    if sample.power_w is not None:
        parts.append(
            f"tokens {sample.generated:g}, running {sample.running:g}, {sample.power_w:g} W"
        )
    return "  ".join(parts)


def _samples(example: dict[str, Any]) -> list[Sample]:
    if "silent_at_w" in example:
        return [Sample(60.0 * n, None, 1000.0, 1.0, example["silent_at_w"]) for n in range(4)]
    sizes = example["available_gib"]
    return [Sample(n / 2, int(size * GIB)) for n, size in enumerate(sizes)]


def examine(example: Example) -> list[Finding]:
    """Return what is found in an example."""
    if isinstance(example, str):
        passing = example == DOCK["DOCK100"].passes
        return [] if passing else [explain(example)]
    if "line" in example:
        choices = Choices(expose=True) if example.get("expose") else AS_WRITTEN
        read = given(docker_run.read(example["line"]), "example")
        secrets, memory = {"VLLM_API_KEY": "x"}, example.get("memory")
        asked = request(read, secrets, home="/home/me", choices=choices, memory=memory)
        return list(asked.notes)
    if "state" in example:
        state = example["state"]
        found = how_it_ended(state, "example", state.get("RestartCount", 0))
    elif "asked" in example:
        found = pulse.judge(**example["asked"], name="example")
    elif "before_start_gib" in example:
        found = admit(Memory(_TOTAL, 0, int(example["before_start_gib"] * GIB)), _LIMITS)
    else:
        found = judge(_samples(example), _LIMITS)
    return [found] if found else []
