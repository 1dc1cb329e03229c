"""Tool calling: the battery against a server that is right, and against servers that are wrong in
one way each; what readiness takes from it; and the real engine.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from sparkbook.errors import SparkbookError
from sparkbook.serve import embedded, tool_calls
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.tool_probes import BATTERY, ONE, STREAMED, Probe, agent
from sparkbook.serve.tool_rules import TOOL, call

TURNS = 50
ASKED = [*BATTERY, *agent(3), *agent(12), *agent(TURNS)]
PROBES = {json.dumps([list(probe.messages), probe.more]): probe for probe in ASKED}
Twist = Callable[[dict[str, Any], Probe], None]


def right(probe: Probe) -> dict[str, Any]:
    """The choice of a server that does everything right."""
    calls = [call(given, name, f"c{n}") for n, (name, given) in enumerate(probe.wanted)]
    message = {"role": "assistant", "content": None if calls else "Hello."}
    if not probe.more:
        message["reasoning"] = "I need the weather."
    if calls:
        message["tool_calls"] = calls
    return {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}


def events(choice: dict[str, Any]) -> list[dict[str, Any]]:
    """The same in pieces: of each call first the name, then the arguments in two halves."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for key in ("reasoning", "content"):
        if choice["message"].get(key):
            deltas.append({key: choice["message"][key]})
    for index, one in enumerate(choice["message"].get("tool_calls", ())):
        text = one["function"]["arguments"] or ""
        head = {**one, "index": index, "function": {**one["function"], "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        for half in (text[:7], text[7:]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": half}}]})
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    return [*chunks, {"choices": [{"delta": {}, "finish_reason": choice["finish_reason"]}]}]


@contextmanager
def server(twist: Twist = lambda _choice, _probe: None) -> Iterator[Endpoint]:
    """A server that is right but for one thing."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, text: str, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self):
            self.answer(json.dumps({"data": [{"id": "fake"}]}))

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert body["model"] == "fake" and body["temperature"] == 0
            fixed = ("model", "temperature", "max_tokens", "messages", "tools")
            more = {key: value for key, value in body.items() if key not in fixed}
            probe = PROBES[json.dumps([body["messages"], more])]
            choice = copy.deepcopy(right(probe))
            twist(choice, probe)
            if "refuse" in choice:
                return self.answer(json.dumps({"error": {"message": choice["refuse"]}}), 400)
            change = choice.pop("chunks", lambda _chunks: None)
            if not probe.streams:
                return self.answer(json.dumps({"choices": [choice]}))
            chunks = events(choice)
            change(chunks)
            lines = [json.dumps(one) for one in chunks] + ["[DONE]"] * ("cut" not in choice)
            return self.answer("".join(f"data: {line}\n\n" for line in lines))

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield Endpoint(f"http://127.0.0.1:{running.server_port}", "fake")
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def calls(change: Callable[[dict[str, Any]], None]) -> Twist:
    """Each call is changed."""

    def twist(choice, _probe):
        for one in choice["message"].get("tool_calls", ()):
            change(one)

    return twist


def instead(text: str, key: str = "content") -> Twist:
    """A text in place of the calls."""

    def twist(choice, _probe):
        if choice["message"].pop("tool_calls", None):
            choice["message"][key], choice["finish_reason"] = text, "stop"

    return twist


def arguments(text: str) -> Twist:
    return calls(lambda one: one["function"].update(arguments=text))


def refuse(text: str) -> Twist:
    return lambda choice, _probe: choice.update(refuse=text)


def twice(choice, _probe):
    if made := choice["message"].get("tool_calls"):
        made += [{**one, "id": f"{one['id']}b"} for one in made]


def stopped(choice, _probe):
    choice["finish_reason"] = "stop"


def eager(choice, probe):
    if not probe.wanted:
        choice["message"]["tool_calls"] = [call({"city": "Paris"})]
        choice["finish_reason"] = "tool_calls"


def one_at_a_time(choice, _probe):
    del choice["message"].get("tool_calls", [])[1:]


def without_index(chunks):
    for chunk in chunks:
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
            piece.pop("index")


def without_name(chunks):
    for chunk in chunks:
        for piece in chunk["choices"][0]["delta"].get("tool_calls", ()):
            piece["function"].pop("name", None)


same_ids = calls(lambda one: one.update(id="same"))


def against_schema(one):
    wrong = {"title": one["id"], "time": "9:30", "people": [], "city": 7, "path": 7}
    one["function"]["arguments"] = json.dumps(wrong)


def elsewhere(one):
    one["function"]["arguments"] = one["function"]["arguments"].replace("Paris", "Rome")


AS_TEXT = (
    '<tool_call>{"name": "x"}',
    "<function=x>",
    "[TOOL_CALLS] [",
    'get_weather(city="Paris")',
)
WRONG: list[tuple[str, Twist]] = [
    ("TOOL101", refuse('"auto" tool choice requires --enable-auto-tool-choice')),
    *(("TOOL102", instead(text)) for text in AS_TEXT[:3]),
    ("TOOL103", instead('<tool_call>{"name": "get_weather"', "reasoning")),
    ("TOOL104", arguments('{"city": "Par')),
    ("TOOL104", arguments('["Paris"]')),
    ("TOOL104", calls(lambda one: one["function"].update(arguments=None))),
    ("TOOL105", twice),
    ("TOOL106", calls(lambda one: one.update(id=None))),
    ("TOOL106", same_ids),
    ("TOOL107", stopped),
    ("TOOL108", lambda choice, _: choice.update(cut=True)),
    ("TOOL108", lambda choice, _: choice.update(chunks=without_index)),
    ("TOOL108", lambda choice, _: choice.update(chunks=without_name)),
    ("TOOL109", instead("<think>I call it.</think>It is sunny.")),
    ("TOOL201", instead("It is sunny.")),
    ("TOOL202", one_at_a_time),
    ("TOOL203", calls(lambda one: one["function"].update(name="weather"))),
    ("TOOL204", calls(against_schema)),
    ("TOOL205", calls(elsewhere)),
    ("TOOL206", eager),
]


def test_a_server_that_is_right_passes_every_probe_and_every_turn():
    with server() as endpoint:
        report = tool_calls.check(endpoint, turns=TURNS)
    assert [grade.word for grade in report.grades] == ["pass"] * (len(BATTERY) + 1)
    assert report.grades[-1].asked == report.grades[-1].right == TURNS
    assert not report.findings and report.to_dict()["summary"]["asked"] == len(BATTERY) + TURNS


@pytest.mark.parametrize(("code", "twist"), WRONG)
def test_a_server_that_is_wrong_in_one_way_is_found(code, twist):
    with server(twist) as endpoint:
        report = tool_calls.check(endpoint, turns=3)
    found = {finding.rule for finding in report.findings}
    assert code in found, found
    severity = TOOL[code].severity
    assert report.findings.worst == severity, "what only the model does wrong is no error"
    assert any(
        grade.word == {"error": "fail", "warning": "weak"}[severity] for grade in report.grades
    )


def test_there_is_a_wrong_server_for_each_rule():
    assert {code for code, _ in WRONG} == set(TOOL.rules)


def test_a_call_in_pythons_form_is_a_call_as_text():
    with server(instead(AS_TEXT[3])) as endpoint:
        (finding,) = TOOL.judge(tool_calls.ask(endpoint, ONE))
    assert finding.rule == "TOOL102" and finding.evidence == AS_TEXT[3]


def test_a_call_whose_json_is_broken_is_the_models_fault():
    with server(instead('<tool_call>\n{"name": "get_')) as endpoint:
        report = tool_calls.check(endpoint, turns=0)
    assert {finding.rule for finding in report.findings} == {"TOOL102"}
    assert report.findings.worst == "warning"
    with server(instead("I think.</think>Hello.")) as endpoint:
        grades = tool_calls.check(endpoint, turns=0).grades
    words = {grade.probe: grade.word for grade in grades}
    assert words["one call"] == "weak" and words["a call after reasoning"] == "fail"


def test_the_agents_turns_are_one_finding_with_its_first_turn():
    def tired(choice, probe):
        if probe.name in ("agent, turn 7", "agent, turn 9"):
            instead("Done.")(choice, probe)

    with server(tired) as endpoint:
        report = tool_calls.check(endpoint, turns=12)
    grade = report.grades[-1]
    assert (grade.right, grade.asked, grade.word) == (10, 12, "weak")
    assert grade.findings[0].evidence == "2 of 12, first agent, turn 7: 'Done.'"


def test_an_agent_whose_history_is_refused_ends_early():
    def small(choice, probe):
        if len(probe.messages) > 5:
            choice["refuse"] = "This model's maximum context length is 8 tokens"

    with server(small) as endpoint:
        report = tool_calls.check(endpoint, turns=TURNS)
    assert report.grades[-1].asked == 5 and "--turns" in report.findings[0].fix


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"choices": []}', '{"choices": [7]}', '{"choices": [{"message": 7}]}', "<p>"],
)
def test_a_reply_of_another_shape_is_refused_and_no_crash(text, monkeypatch):
    import httpx

    monkeypatch.setattr(Endpoint, "post", lambda *_: httpx.Response(200, text=text))
    reply = tool_calls.ask(Endpoint("http://127.0.0.1:9", "x"), ONE)
    (finding,) = TOOL.judge(reply)
    assert finding.rule == "TOOL101" and "is no chat completion" in finding.message
    assert "200" not in finding.message and finding.evidence
    streamed = tool_calls.ask(Endpoint("http://127.0.0.1:9", "x"), STREAMED)
    assert {finding.rule for finding in TOOL.judge(streamed)} == {"TOOL108", "TOOL201"}


def test_readiness_takes_a_weak_model_and_no_wrong_server():
    with server(calls(lambda one: one["function"].update(arguments='{"city": "Rome"}'))) as weak:
        assert tool_calls.ready(weak, 60) == (
            'calls get_weather({"city": "Rome"}), streamed too',
            (),
        )
    for code, twist in WRONG:
        if code.startswith("TOOL1") and twist is not same_ids:  # there is one call
            with server(twist) as endpoint:
                assert code in {one.rule for one in tool_calls.ready(endpoint, 60)[1]}, code
    with server(instead("It is sunny.")) as silent:
        assert tool_calls.ready(silent, 60)[1][0].rule == "TOOL201"


def test_nobody_there_is_an_error():
    with pytest.raises(SparkbookError, match="does not answer"):
        tool_calls.check(Endpoint("http://127.0.0.1:9", "x"))


@pytest.mark.engine
def test_the_real_engine_serves_calls_and_the_tiny_model_is_weak():
    with embedded.start("embedded/tiny-dense") as engine:
        report = tool_calls.check(engine.endpoint, turns=2)
    words = {grade.probe: grade.word for grade in report.grades}
    assert words["one call"] == words["streamed arguments"] == "pass"
    assert words["a call after reasoning"] == "pass"
    assert "fail" not in words.values(), report.findings


@pytest.mark.engine
def test_the_real_engine_without_a_parser_refuses():
    from sparkbook import recipes

    recipe = recipes.load("embedded/tiny-dense")
    args = {
        key: value
        for key, value in recipe.serve.args.items()
        if key not in ("enable-auto-tool-choice", "tool-call-parser")
    }
    bare = recipe.model_copy(update={"serve": recipe.serve.model_copy(update={"args": args})})
    with embedded.start(bare, requests=False) as engine:
        report = tool_calls.check(engine.endpoint, turns=0)
    assert report.findings[0].rule == "TOOL101" and "tool-call-parser" in report.findings[0].fix
