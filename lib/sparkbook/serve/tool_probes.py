"""What a server is asked about tool calls, and what a reply is: values, without a server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

Arguments = dict[str, Any]
Call = tuple[str, Arguments]

WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
"""The one tool that the embedded models know."""

_PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "role": {"enum": ["host", "guest"]}},
    "required": ["name", "role"],
}
_MEETING_TOOL = {
    "type": "function",
    "function": {
        "name": "plan_meeting",
        "description": "Put a meeting into the calendar",
        "parameters": {
            "type": "object",
            "properties": {
                "title": {"type": "string"},
                "time": {
                    "type": "object",
                    "properties": {"hour": {"type": "integer"}, "minutes": {"type": "integer"}},
                    "required": ["hour", "minutes"],
                },
                "people": {"type": "array", "items": _PERSON},
            },
            "required": ["title", "time", "people"],
        },
    },
}
_READ_TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Read a text file of the project",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string"}},
            "required": ["path"],
        },
    },
}
_QUIETLY = {"chat_template_kwargs": {"enable_thinking": False}}


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A request, and what a right reply has.

    Attributes:
        name: what is tried, in words.
        messages, tools: of the request.
        wanted: the calls that the request asks for, in any order; empty: none.
        more: further fields of the body.
    """

    name: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = (WEATHER_TOOL,)
    wanted: tuple[Call, ...] = ()
    more: dict[str, Any] = field(default_factory=lambda: dict(_QUIETLY))

    @property
    def streams(self) -> bool:
        """Whether the reply comes in pieces."""
        return bool(self.more.get("stream"))

    def body(self, model: str) -> dict[str, Any]:
        """Return the request's body; greedy, so that a server is judged on the same text."""
        fixed = {"model": model, "temperature": 0, "max_tokens": 1024}
        return fixed | {"messages": list(self.messages), "tools": list(self.tools)} | self.more

    @property
    def schemas(self) -> dict[str, dict[str, Any]]:
        """Return the declared parameters by the function's name."""
        return {tool["function"]["name"]: tool["function"]["parameters"] for tool in self.tools}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came back.

    Attributes:
        probe: what was asked.
        status: HTTP status.
        message: the assistant's message; of a stream, its pieces put together.
        finish: the finish reason.
        error: the server's words, where it refused.
        broken: what is wrong with the stream, in words.
    """

    probe: Probe
    status: int = 200
    message: dict[str, Any] = field(default_factory=dict)
    finish: str | None = None
    error: str = ""
    broken: str = ""

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Return the calls that have the shape of one."""
        calls = self.message.get("tool_calls")
        calls = calls if isinstance(calls, list) else []
        return [one for one in calls if isinstance(one, dict) and "function" in one]

    def text(self, key: str) -> str:
        """Return a text of the message; empty where it has none."""
        value = self.message.get(key)
        return value if isinstance(value, str) else ""

    @property
    def reasoning(self) -> str:
        """What the model thought; releases before 0.12 call the field `reasoning_content`."""
        return self.text("reasoning") or self.text("reasoning_content")


def _user(text: str) -> tuple[dict[str, Any], ...]:
    return ({"role": "user", "content": text},)


ONE = Probe(
    name="one call",
    messages=_user("What is the weather in Paris?"),
    wanted=(("get_weather", {"city": "Paris"}),),
)
STREAMED = replace(ONE, name="streamed arguments", more={**_QUIETLY, "stream": True})
_MEETING = (
    "plan_meeting",
    {
        "title": "Review",
        "time": {"hour": 9, "minutes": 30},
        "people": [{"name": "Ana", "role": "host"}, {"name": "Ben", "role": "guest"}],
    },
)
BATTERY = (
    ONE,
    STREAMED,
    Probe(
        name="two parallel calls",
        messages=_user("What is the weather in Paris and in Tokyo? Ask for both cities at once."),
        wanted=(("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Tokyo"})),
    ),
    Probe(
        name="nested arguments",
        messages=_user(
            "Plan a meeting with the title Review at 9:30. Ana is the host and Ben is a guest."
        ),
        tools=(_MEETING_TOOL,),
        wanted=(_MEETING,),
    ),
    replace(ONE, name="a call after reasoning", more={}),
    Probe(name="no call wanted", messages=_user("Say hello. Do not use a tool.")),
)
"""The probes of one request."""


def agent(turns: int) -> Iterator[Probe]:
    """Yield the turns of an agent. The script is fixed: each turn's history holds the calls that
    should have been made, so that one wrong reply does not spoil the rest.
    """
    messages = _user(
        f"The project has {turns} notes, notes/1.txt to notes/{turns}.txt. Read them one by one, in"
        " order, one call at a time."
    )
    for turn in range(1, turns + 1):
        arguments = {"path": f"notes/{turn}.txt"}
        yield Probe(
            name=f"agent, turn {turn}",
            messages=messages,
            tools=(_READ_TOOL,),
            wanted=(("read_file", arguments),),
        )
        called = {"name": "read_file", "arguments": json.dumps(arguments)}
        call = {"id": f"call_{turn}", "type": "function", "function": called}
        messages += (
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": f"Note {turn} of {turns}."},
        )


_MARKS = re.compile(
    r"<tool_call|<function[=_ ]|\[TOOL_CALLS\]|<\|python_tag\|>|<\|tool_call|<\|channel\|>"
    r"|\{\s*\"name\"\s*:\s*\"[\w.-]+\"\s*,\s*\"(?:arguments|parameters)\""
)


def looks_like_a_call(text: str, names: dict[str, Any]) -> str | None:
    """Return the part of a text that is a call in some model's own form."""
    match = _MARKS.search(text)
    if match is None and names:
        match = re.search(rf"\b(?:{'|'.join(map(re.escape, names))})\s*\(", text)
    return text[match.start() : match.start() + 80] if match else None
