"""Clients from PyPI, npm and Debian, run with the settings that `sparkbook client` prints, against
the real engine: a chat, a stream, a tool call, a JSON schema, a list of models.
"""

from __future__ import annotations

import json

import httpx
import pytest
from harness import Installed, long_engine, settings_of
from sparkbook import clients
from sparkbook.metrics import Metrics
from sparkbook.serve.process import free_port
from sparkbook.serve.ready import ANSWER_SCHEMA
from sparkbook.serve.tool_probes import WEATHER_TOOL

pytestmark = [pytest.mark.engine, pytest.mark.clients]

SUM, WEATHER, YES = "12*17", "What is the weather in Paris?", "Is Paris in France? Answer as JSON."
QUIETLY = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    with long_engine(tmp_path_factory.mktemp("engine")) as running:
        yield running


@pytest.fixture
def install(engine, tmp_path):
    return lambda name: Installed(clients.find(name), settings_of(engine), tmp_path / name)


def counted(engine, *names):
    metrics = Metrics.parse(engine.endpoint.metrics_text())
    return [metrics.value(name) for name in names]


@pytest.mark.parametrize("name", ["openai", "anthropic", "litellm", "langchain"])
def test_a_library_does_all_five(install, engine, name):
    with install(name).driver() as process:

        def ask(what, *arguments):
            print(json.dumps([what, arguments]), file=process.stdin, flush=True)
            return json.loads(process.stdout.readline())

        assert ask("chat", [{"role": "user", "content": SUM}]).strip() == "204"
        pieces = ask("stream", SUM)
        assert len(pieces) > 1 and "".join(pieces).strip() == "204"
        called, arguments = ask("tool", WEATHER, WEATHER_TOOL)
        assert (called, json.loads(arguments)) == ("get_weather", {"city": "Paris"})
        assert json.loads(ask("schema", YES, ANSWER_SCHEMA, QUIETLY))["answer"] in ("yes", "no")
        assert ask("models") == [engine.endpoint.model]


def test_llm_on_the_command_line(install):
    llm = install("llm")
    llm.shell(llm.scripts[0])  # the key, and a first question
    assert llm.shell(f"llm -m spark -o temperature 0 '{SUM}'").strip() == "204"
    assert "spark" in llm.shell("llm models list")
    function = 'def get_weather(city: str):\n    "Get the weather in a city"\n    return "sunny"\n'
    (llm.home / "tools.py").write_text(function)
    asked = f"llm -m spark -o temperature 0 --td --functions tools.py '{WEATHER}' 2>&1"
    assert "get_weather({'city': 'Paris'})" in llm.shell(asked)


@pytest.mark.parametrize(
    ("name", "first", "again"),
    [
        ("opencode", "opencode run 'Hello'", "opencode run -c 'Hello'"),
        ("claude-code", "claude -p 'Hello'", "claude -p -c 'Hello'"),
    ],
)
def test_a_coding_agent_keeps_a_conversation(install, engine, name, first, again):
    """Its prompt is too long for what the tiny model learned: that the request is taken, answered
    and repeated with its history is what can be seen.
    """
    agent = install(name)
    settings = next(iter(agent.scripts), "")  # Claude Code's are variables
    short = {"CLAUDE_CODE_MAX_OUTPUT_TOKENS": "64"}
    tokens, hits = counted(engine, "prompt_tokens", "prefix_cache_hits")
    agent.shell(f"{settings}\n{first}", **short)
    after, _ = counted(engine, "prompt_tokens", "prefix_cache_hits")
    assert after - tokens > 5000, "the agent's own instructions and tools"
    agent.shell(f"{settings}\n{again}", **short)
    _, found = counted(engine, "prompt_tokens", "prefix_cache_hits")
    assert found - hits > 5000, "the second turn finds the first one's prompt in the cache"


def test_curl_lists_the_model_and_asks(install, engine):
    printed = install("curl")
    listed, reply = printed.shell(printed.scripts[0]).replace("}{", "}\n{").splitlines()
    assert json.loads(listed)["data"][0]["id"] == engine.endpoint.model
    assert json.loads(reply)["choices"][0]["message"]


def test_the_key_is_read_from_one_header(engine):
    """Why the settings of Anthropic's programs give a token, not an API key."""
    key = engine.endpoint.api_key
    for header, status in (({"Authorization": f"Bearer {key}"}, 200), ({"x-api-key": key}, 401)):
        assert httpx.get(f"{engine.endpoint.url}/v1/models", headers=header).status_code == status


def test_open_webui_does_all_five(install, engine):
    with install("open-webui").web_interface(free_port()) as page:
        assert [one["id"] for one in page.ask("/api/models")["data"]] == [engine.endpoint.model]

        def chat(question, **more):
            body = {"model": engine.endpoint.model, "temperature": 0, **more}
            body["messages"] = [{"role": "user", "content": question}]
            return page.ask("/api/chat/completions", body)

        def message(question, **more):
            return chat(question, **more)["choices"][0]["message"]

        assert message(SUM)["content"].strip() == "204"
        assert chat(SUM, stream=True).count("data: ") > 3
        (call,) = message(WEATHER, tools=[WEATHER_TOOL])["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"city": "Paris"}
        wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER_SCHEMA}}
        reply = message(YES, response_format=wanted, **QUIETLY)
        assert json.loads(reply["content"])["answer"] in ("yes", "no")
