"""The rules of starting, ending and guarding a container as sections of the book, each with an
example that fails and one that passes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from sparkbook.findings import Finding
from sparkbook.formats import docker_run
from sparkbook.host.meminfo import Memory
from sparkbook.rules import section_page
from sparkbook.serve.faults import Fault, explain, faults, filled, how_it_ended
from sparkbook.serve.stack import AS_WRITTEN, Choices, given, request
from sparkbook.serve.watchdog import Limits, Sample, admit, judge
from sparkbook.units import GIB

_LINE = (
    "docker run --gpus all {more}-v ~/vllm:/models:ro -e HF_HOME=/models vllm/vllm-openai:v0.28.0"
    "@sha256:61fc8a896b0a4fbbbdc063bc4b0dbc25ce98e02b5050c24aeb7830ac02039b14"
    " --model openai/gpt-oss-20b"
)
_SAFE = _LINE.format(more="-p 127.0.0.1:8000:8000 ")
_LIMITS = Limits.of_host(121 * GIB)


@dataclass(frozen=True)
class Example:
    """Something that a rule judges, and how it is shown.

    Attributes:
        what: `answer` of the engine, launch `line`, `state` of a container, `trace` of a host, or
            its `memory` before a start.
        value: a text, a launch line, the state, or samples.
        choices: of a launch line.
    """

    what: Literal["answer", "line", "state", "trace", "memory"]
    value: Any
    choices: Choices = AS_WRITTEN

    def __str__(self) -> str:
        if self.what == "state":
            return json.dumps(self.value)
        if self.what == "memory":
            return f"MemAvailable {self.value:g} GiB of 121 GiB, before a start"
        if self.what == "trace":
            return "\n".join(_told(sample) for sample in self.value)
        return f"{self.value}\n(served with --expose)" if self.choices.expose else str(self.value)

    def findings(self) -> list[Finding]:
        """What is said about it."""
        if self.what == "line":
            asked = request(
                given(docker_run.read(self.value), "example"),
                {"VLLM_API_KEY": "x"},
                home="/home/me",
                choices=self.choices,
            )
            return list(asked.notes)
        if self.what == "state":
            found = how_it_ended(self.value, "example", self.value.get("RestartCount", 0))
        elif self.what == "trace":
            found = judge(self.value, _LIMITS)
        elif self.what == "memory":
            found = admit(Memory(121 * GIB, 0, int(self.value * GIB)), _LIMITS)
        else:
            found = explain(self.value) if self.value != _STARTED else None
        return [found] if found else []


def _told(sample: Sample) -> str:
    known = [f"{sample.at_s:5g} s"]
    known += (
        [f"MemAvailable {sample.available / GIB:.1f} GiB"] if sample.available is not None else []
    )
    known += (
        [f"tokens {sample.generated:g}, running {sample.running:g}, {sample.power_w:g} W"]
        if sample.power_w is not None
        else []
    )
    return "  ".join(known)


_STARTED = "204 No Content: the container has started"


def _memory(*gib: float) -> Example:
    return Example("trace", [Sample(n / 2, int(size * GIB)) for n, size in enumerate(gib)])


def _engine(power_w: float) -> Example:
    return Example("trace", [Sample(60.0 * n, None, 1000.0, 1.0, power_w) for n in range(4)])


_RUNNING = Example("state", {"Running": True})
_EXAMPLES: dict[str, tuple[Example, Example]] = {
    "DOCK100": (Example("answer", "something that no rule knows"), Example("answer", _STARTED)),
    "DOCK201": (Example("line", _LINE.format(more="--network host ")), Example("line", _SAFE)),
    "DOCK202": (Example("line", _LINE.format(more="-p 8000:8000 ")), Example("line", _SAFE)),
    "DOCK203": (
        Example("line", _LINE.format(more="-p 8000:8000 "), Choices(expose=True)),
        Example("line", _LINE.format(more="-p 8000:8000 ")),
    ),
    "DOCK204": (
        Example("line", _SAFE.split("@")[0] + " --model openai/gpt-oss-20b"),
        Example("line", _SAFE),
    ),
    "DOCK205": (Example("line", _SAFE.replace(":ro ", " ")), Example("line", _SAFE)),
    # It is said of every container that serves vLLM; what passes is a host without one.
    "DOCK206": (Example("line", _SAFE), Example("answer", _STARTED)),
    "DOCK207": (
        Example("line", _SAFE.replace("-e HF_HOME", "-e HF_TOKEN -e HF_HOME")),
        Example("line", _SAFE),
    ),
    "DOCK208": (
        Example("line", _LINE.format(more="--restart always -p 127.0.0.1:8000:8000 ")),
        Example("line", _SAFE),
    ),
    "DOCK301": (Example("state", {"Running": False, "ExitCode": 137, "OOMKilled": True}), _RUNNING),
    "DOCK302": (
        Example("state", {"Running": False, "ExitCode": 137, "OOMKilled": False}),
        _RUNNING,
    ),
    "DOCK303": (Example("state", {"Running": False, "ExitCode": 139}), _RUNNING),
    "DOCK304": (Example("state", {"Running": False, "ExitCode": 127}), _RUNNING),
    "DOCK305": (Example("state", {"Running": False, "ExitCode": 143}), _RUNNING),
    "DOCK306": (Example("state", {"Running": False, "ExitCode": 1}), _RUNNING),
    "DOCK307": (Example("state", {"Running": True, "RestartCount": 35}), _RUNNING),
    "DOCK401": (_memory(29, 17.5, 6, 4.9), _memory(29, 17.5, 12, 11.8)),
    "DOCK402": (_engine(22), _engine(71)),
    "DOCK403": (Example("memory", 4.0), Example("memory", 100.0)),
}


@dataclass(frozen=True)
class Section:
    """What the book's pages ask of a rule."""

    rule: Fault

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rule, name)

    @property
    def text(self) -> str:
        """What it says and why."""
        return f"{filled(self.rule.title, {})} {self.rule.cause}"

    @property
    def bad(self) -> Callable[[], Example]:
        """Makes the example that fails."""
        return lambda: (
            _EXAMPLES[self.rule.code][0]
            if self.rule.code in _EXAMPLES
            else Example("answer", self.rule.example)
        )

    @property
    def good(self) -> Callable[[], Example]:
        """Makes the example that passes."""
        return lambda: (
            _EXAMPLES[self.rule.code][1]
            if self.rule.code in _EXAMPLES
            else Example("answer", _STARTED)
        )


class Pages:
    """The family of rules, for `sparkbook.site.rule_pages`: one page, a section a rule."""

    prefix = "DOCK"
    title = "Starting, ending and guarding a container"
    intro = (
        "What `sparkbook serve`, `status` and the watchdog report. The Docker engine's messages"
        " come from engines 20.10.24 and 26.1.5, unless the rule names another. Each example was"
        " judged when this page was built."
    )

    @property
    def checks(self) -> dict[str, Section]:
        """The rules by code."""
        return {code: Section(fault) for code, fault in sorted(faults().items())}

    def show(self, example: Example) -> str:
        """The example as text."""
        return str(example)

    def examined(self, example: Example) -> list[Finding]:
        """What is said about an example."""
        return example.findings()

    def page(self, section: Section) -> str:
        """The section of one rule, in Markdown."""
        examples = [
            (title, f"```text\n{self.show(make())}\n```", self.examined(make()))
            for title, make in (("Fails", section.bad), ("Passes", section.good))
        ]
        about = (self.title, section.severity)
        return section_page(
            section.code, section.name, about, section.text, examples, section.source, section.kind
        )


DOCK = Pages()
"""For the list of families in `sparkbook.site.rule_pages`."""
