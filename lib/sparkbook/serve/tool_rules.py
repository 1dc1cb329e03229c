"""TOOL: what can be wrong with a reply to a request with tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from sparkbook.rules import Family, Hit
from sparkbook.serve.tool_probes import BATTERY, ONE, STREAMED, Arguments, Reply, looks_like_a_call

_DOCS = "https://docs.vllm.ai/en/latest/features/tool_calling/"
_API = "https://platform.openai.com/docs/api-reference/chat/object"
_STREAM = "https://platform.openai.com/docs/api-reference/chat-streaming"
_REPORT = "https://github.com/NVIDIA/dgx-spark-playbooks/issues/89"

_, _, PARALLEL, NESTED, _, NONE = BATTERY


def call(arguments: str | Arguments, name: str = "get_weather", id_: str | None = "a") -> Any:
    """Return a call as a server sends it."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": text}}


RIGHT = Reply(probe=ONE, message={"tool_calls": [call({"city": "Paris"})]}, finish="tool_calls")
"""A reply that is right."""


def _with(*calls: Any, **changes: Any) -> Reply:
    return replace(RIGHT, message={"tool_calls": list(calls)}, **changes)


def _said(text: str, key: str = "content", finish: str = "stop") -> Reply:
    return replace(RIGHT, message={key: text}, finish=finish)


def _shown(reply: Reply) -> str:
    if reply.error:
        return f"HTTP {reply.status}: {reply.error}"
    shape = {"finish_reason": reply.finish, "message": reply.message}
    return "\n".join(filter(None, [json.dumps(shape, indent=1), reply.broken]))


TOOL = Family(
    "TOOL",
    "tool calls",
    "What `sparkbook check-tools` finds, and the readiness check of a recipe that claims tools. An"
    " error is the server's fault; a warning may be the model's. Each example is a reply to the"
    " question for the weather in Paris, unless it says otherwise.",
    describe=_shown,
)


@TOOL.rule(
    "TOOL101",
    "refused",
    "error",
    kind="tool-parser",
    source=_DOCS,
    fails=Reply(
        probe=ONE,
        status=400,
        error='"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be'
        " set",
    ),
    passes=RIGHT,
)
def refused(reply: Reply) -> Iterator[Hit]:
    """The server refuses a request with tools. Without `--enable-auto-tool-choice` and
    `--tool-call-parser`, vLLM refuses all of them. A request in an agent's loop may also be longer
    than `--max-model-len`, or the chat template may not know the role `tool`. Or
    something else than vLLM answers at the address, and not with a chat completion.
    """
    if not reply.error:
        return
    if 200 <= reply.status < 300:
        yield Hit(
            "The server's answer to a request with tools is no chat completion.",
            reply.error,
            "Check that the address is a vLLM server's, without a path or a proxy that answers"
            " for it.",
        )
        return
    fix = "Read what the server says; its log has the whole of it."
    if "tool-call-parser" in reply.error:
        fix = "Add --enable-auto-tool-choice and the model's --tool-call-parser to the launch line."
    elif "context length" in reply.error or "max_model_len" in reply.error:
        fix = "Set a larger --max-model-len, or give check-tools fewer --turns."
    yield Hit(
        f"The server answers a request with tools with HTTP {reply.status}.", reply.error, fix
    )


@TOOL.rule(
    "TOOL102",
    "call-as-text",
    "error",
    kind="tool-parser",
    source=_DOCS,
    fails=lambda: _said('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}'),
    passes=RIGHT,
)
def call_as_text(reply: Reply) -> Iterator[Hit]:
    """The model wrote a call, and the client gets it as text: the parser does not know the model's
    form. An agent shows the text to its user and stops. A call whose JSON is broken is the model's
    fault, and a warning: no parser can take it.
    """
    if reply.calls or not (part := looks_like_a_call(reply.text("content"), reply.probe.schemas)):
        return
    if _is_broken(reply.text("content")):
        fix = "Ask a larger model, or one made for tools, if it happens often."
        yield Hit("The model writes a call that is no JSON.", part, fix, "warning")
    else:
        yield Hit(
            "The call arrives as text.",
            part,
            "Set the --tool-call-parser that belongs to the model; its recipe names it.",
        )


@TOOL.rule(
    "TOOL103",
    "call-in-reasoning",
    "error",
    kind="tool-parser",
    source=_REPORT,
    fails=lambda: _said('I call <tool_call>{"name": "get_weather"}', "reasoning"),
    passes=RIGHT,
)
def call_in_reasoning(reply: Reply) -> Iterator[Hit]:
    """The call is inside of what the model thinks: the reasoning parser did not find the thought's
    end, and took everything for a thought.
    """
    if not reply.calls and (part := looks_like_a_call(reply.reasoning, {})):
        yield Hit(
            "The call is lost in the reasoning.",
            part,
            "Set the --reasoning-parser that belongs to the model, or turn thinking off.",
        )


@TOOL.rule(
    "TOOL104",
    "arguments-not-json",
    "error",
    source=_API,
    fails=lambda: _with(call('{"city": "Par')),
    passes=RIGHT,
)
def arguments_not_json(reply: Reply) -> Iterator[Hit]:
    """The arguments are no JSON object. A reply that was cut off at `max_tokens` looks the same;
    its finish reason is then `length`.
    """
    for one in reply.calls:
        if _arguments(one) is None and reply.finish != "length":
            yield Hit(
                f"The arguments of {_name(one)} are no JSON object.",
                str(one["function"].get("arguments"))[:120],
                "Use a newer image, or another --tool-call-parser. With speculative decoding, try"
                " once without.",
            )


@TOOL.rule(
    "TOOL105",
    "call-repeated",
    "error",
    source="https://github.com/NVIDIA/dgx-spark-playbooks/pull/92",
    fails=lambda: _with(call({"city": "Paris"}), call({"city": "Paris"}, id_="b")),
    passes=RIGHT,
)
def call_repeated(reply: Reply) -> Iterator[Hit]:
    """The same call comes twice in one reply: an agent acts twice."""
    texts = [json.dumps([_name(one), _arguments(one)], sort_keys=True) for one in reply.calls]
    for text in sorted({text for text in texts if texts.count(text) > 1}):
        yield Hit(
            "One reply holds the same call twice.",
            text,
            "Use a newer image. If the launch line has both speculative decoding and a prefix"
            " cache, try once without speculation.",
        )


@TOOL.rule(
    "TOOL106",
    "no-id",
    "error",
    source=_API,
    fails=lambda: _with(call({"city": "Paris"}, id_=None)),
    passes=RIGHT,
)
def no_id(reply: Reply) -> Iterator[Hit]:
    """Each call needs an id of its own: the tool's result is sent back under it."""
    ids = [one.get("id") for one in reply.calls]
    if len({one for one in ids if one}) < len(ids):
        yield Hit(
            "A call has no id, or two calls have the same.",
            f"ids {ids}",
            "Use a newer image, or another --tool-call-parser.",
        )


@TOOL.rule(
    "TOOL107",
    "finish-reason",
    "error",
    source=_API,
    fails=lambda: replace(RIGHT, finish="stop"),
    passes=RIGHT,
)
def finish_reason(reply: Reply) -> Iterator[Hit]:
    """A reply with calls ends with the finish reason `tool_calls`. Several agents read only that,
    and stop at `stop`.
    """
    if reply.calls and reply.finish not in ("tool_calls", "length"):
        yield Hit(
            f"A reply with calls has the finish reason {reply.finish}.",
            f"finish_reason {reply.finish}",
            "Use a newer image, or another --tool-call-parser.",
        )


@TOOL.rule(
    "TOOL108",
    "stream-broken",
    "error",
    source=_STREAM,
    fails=lambda: replace(RIGHT, probe=STREAMED, broken="a piece of a call has no index"),
    passes=lambda: replace(RIGHT, probe=STREAMED),
)
def stream_broken(reply: Reply) -> Iterator[Hit]:
    """The stream can't be put together: each piece of a call needs its index, the first one the
    function's name, and the stream ends with `[DONE]`.
    """
    if reply.broken:
        yield Hit(
            "The streamed reply can't be put together.",
            reply.broken,
            "Use a newer image, or another --tool-call-parser; a proxy in between must not change"
            " the stream.",
        )


@TOOL.rule(
    "TOOL109",
    "thinking-in-content",
    "error",
    source="https://docs.vllm.ai/en/latest/features/reasoning_outputs/",
    fails=lambda: _said("<think>I should call get_weather.</think> Sunny."),
    passes=RIGHT,
)
def thinking_in_content(reply: Reply) -> Iterator[Hit]:
    """What the model thinks arrives in the answer's text, tags and all: an agent takes it for the
    answer, and sends it back with every later turn.
    """
    text = reply.text("content")
    tags = ["<think>", "[THINK]"]
    if "chat_template_kwargs" not in reply.probe.more:
        tags.append("</think>")  # where thinking is off, a tag that opens nothing is a slip
    if tag := next((tag for tag in tags if tag in text), None):
        yield Hit(
            f"The text of the answer holds {tag}.",
            text[:120],
            "Set the --reasoning-parser that belongs to the model.",
        )


@TOOL.rule(
    "TOOL201",
    "no-call",
    "warning",
    source=_DOCS,
    fails=lambda: _said("It is sunny in Paris."),
    passes=RIGHT,
)
def no_call(reply: Reply) -> Iterator[Hit]:
    """A call is asked for, and the model answers with text. Small models do; of a model that is
    made for agents, the chat template may leave the tools out.
    """
    probe = reply.probe
    if not probe.wanted or reply.error or reply.calls:
        return
    if looks_like_a_call(reply.text("content"), probe.schemas) or looks_like_a_call(
        reply.reasoning, {}
    ):
        return
    yield Hit(
        "The model makes no call.",
        repr(reply.text("content")[:120]),
        "Ask again; if it is always so, look at the model's chat template and card.",
    )


@TOOL.rule(
    "TOOL202",
    "call-missing",
    "warning",
    source=_DOCS,
    fails=lambda: replace(RIGHT, probe=PARALLEL),
    passes=lambda: _with(call({"city": "Paris"}), call({"city": "Tokyo"}, id_="b"), probe=PARALLEL),
)
def call_missing(reply: Reply) -> Iterator[Hit]:
    """Fewer calls than were asked for at once: an agent needs a turn more for each."""
    if 0 < len(reply.calls) < len(reply.probe.wanted):
        yield Hit(
            f"{len(reply.calls)} of {len(reply.probe.wanted)} parallel calls came.",
            _list(reply),
            "Expect one turn per call from this model.",
        )


@TOOL.rule(
    "TOOL203",
    "unknown-function",
    "warning",
    source=_DOCS,
    fails=lambda: _with(call({"city": "Paris"}, "weather")),
    passes=RIGHT,
)
def unknown_function(reply: Reply) -> Iterator[Hit]:
    """The call names a function that the request does not declare."""
    for one in reply.calls:
        if _name(one) not in reply.probe.schemas:
            yield Hit(
                f"The call names {_name(one)!r}, which was not declared.",
                _list(reply),
                "Look at how the chat template shows the tools to the model.",
            )


@TOOL.rule(
    "TOOL204",
    "arguments-against-schema",
    "warning",
    source=_DOCS,
    fails=lambda: _with(
        call({"title": "Review", "time": "9:30", "people": []}, "plan_meeting"), probe=NESTED
    ),
    passes=lambda: _with(call(NESTED.wanted[0][1], "plan_meeting"), probe=NESTED),
)
def arguments_against_schema(reply: Reply) -> Iterator[Hit]:
    """The arguments are JSON, and do not follow the declared schema, such as an object that is
    written as a string. The example's request asks for nested arguments.
    """
    for one in reply.calls:
        schema, arguments = reply.probe.schemas.get(_name(one)), _arguments(one)
        if schema and arguments is not None and (wrong := _against(arguments, schema, "arguments")):
            yield Hit(
                f"The arguments of {_name(one)} do not follow their schema.",
                wrong,
                "Try another --tool-call-parser: some give every value back as a string. `strict`"
                " in the function's declaration makes vLLM enforce the schema.",
            )


@TOOL.rule(
    "TOOL205",
    "wrong-arguments",
    "warning",
    source=_DOCS,
    fails=lambda: _with(call({"city": "London"})),
    passes=RIGHT,
)
def wrong_arguments(reply: Reply) -> Iterator[Hit]:
    """The call is well formed, and not the one that was asked for."""
    wanted = [json.dumps(one, sort_keys=True).lower() for one in reply.probe.wanted]
    for one in reply.calls:
        schema, arguments = reply.probe.schemas.get(_name(one)), _arguments(one)
        if not wanted or not schema or arguments is None or _against(arguments, schema, ""):
            continue
        if json.dumps([_name(one), arguments], sort_keys=True).lower() not in wanted:
            yield Hit(
                f"{_name(one)} is called with other arguments than asked for.",
                f"{json.dumps(arguments)}, not {wanted[0]}",
                "Ask a larger model, or one made for tools, if it happens often.",
            )


@TOOL.rule(
    "TOOL206",
    "call-not-wanted",
    "warning",
    source=_DOCS,
    fails=lambda: replace(RIGHT, probe=NONE),
    passes=lambda: replace(_said("Hello."), probe=NONE),
)
def call_not_wanted(reply: Reply) -> Iterator[Hit]:
    """No call is wanted, and the model makes one. The example's request is to say hello."""
    if reply.calls and not reply.probe.wanted:
        yield Hit(
            "The model makes a call that nobody asked for.",
            _list(reply),
            "Send `tool_choice` none for turns without tools.",
        )


def _name(one: dict[str, Any]) -> str:
    return str(one["function"].get("name"))


def _arguments(one: dict[str, Any]) -> Arguments | None:
    """Return a call's arguments; None where they are no JSON object."""
    try:
        value = json.loads(one["function"].get("arguments"))
    except (ValueError, TypeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_broken(text: str) -> bool:
    """Return whether a text has a call in JSON that can't be read."""
    start = text.find("{", text.find("<tool_call>"))
    if "<tool_call>" not in text or not text[:start].rstrip().endswith("<tool_call>"):
        return False
    try:
        json.JSONDecoder().raw_decode(text[start:])
    except (ValueError, RecursionError):
        return True
    return False


def _list(reply: Reply) -> str:
    return ", ".join(f"{_name(one)}({one['function'].get('arguments')})" for one in reply.calls)


_TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
}


def _against(value: Any, schema: dict[str, Any], where: str) -> str | None:
    """Return where a value leaves its schema, in words; None: it follows it. Knows what the
    battery's schemas use.
    """
    kind = schema.get("type")
    if kind and (not isinstance(value, _TYPES[kind]) or isinstance(value, bool)):
        return f"{where} is {json.dumps(value)[:60]}, not of the type {kind}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} is {json.dumps(value)[:60]}, not one of {schema['enum']}"
    if kind == "object":
        missing = [name for name in schema["required"] if name not in value]
        if missing:
            return f"{where} has no {missing[0]}"
        parts = [
            (value[key], one, key) for key, one in schema["properties"].items() if key in value
        ]
    else:
        parts = [(item, schema["items"], "item") for item in value] if kind == "array" else []
    inside = (_against(part, one, f"{where}.{key}") for part, one, key in parts)
    return next(filter(None, inside), None)
