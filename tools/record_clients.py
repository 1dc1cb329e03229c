"""Record how much of what clients send is in the prefix cache: one conversation of three questions
with each, on the embedded engine, by the engine's own counters.

    PYTHONPATH=lib .venv/bin/python tools/record_clients.py [NAME...]

Each client is installed into a throw-away environment and gets the settings that `sparkbook client`
prints (npm, Node and the network are needed). What comes out is
lib/sparkbook/clients/recorded/prefix.json, the table of the chapter on clients. A client that is
not named keeps its record.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "clients"))

from harness import CONTEXT, Installed, long_engine, settings_of
from sparkbook import clients
from sparkbook.metrics import Metrics
from sparkbook.serve.process import ProcessEngine

SENTENCE = "The server keeps the blocks of a prompt that it has read before. "
QUESTIONS = (f"Say ping. {SENTENCE * 30}", "ping", "12*17")
"""The first one is as long as a page, since only whole blocks of a prompt are cached."""
Ask = Callable[[str], object]

PORT = 18993
COUNTERS = {
    "requests": "request_success",
    "tokens": "prefix_cache_queries",
    "cached": "prefix_cache_hits",
}


def counters(engine: ProcessEngine) -> dict[str, int]:
    """Return what the engine has counted since its start."""
    metrics = Metrics.parse(engine.endpoint.metrics_text())
    return {name: int(metrics.value(counter)) for name, counter in COUNTERS.items()}


@contextlib.contextmanager
def library(client: Installed) -> Iterator[Ask]:
    """A library: the history is kept by its caller, as its documentation shows."""
    history: list[dict[str, str]] = []
    with client.driver() as process:
        assert process.stdin and process.stdout

        def ask(question: str) -> None:
            history.append({"role": "user", "content": question})
            print(json.dumps(["chat", [history]]), file=process.stdin, flush=True)
            reply = json.loads(process.stdout.readline())
            history.append({"role": "assistant", "content": reply or ""})

        yield ask


@contextlib.contextmanager
def command(client: Installed, first: str, again: str) -> Iterator[Ask]:
    """A command that keeps the conversation itself."""
    settings, asked = next(iter(client.scripts), ""), []
    if client.client.name == "llm":
        client.shell(settings.partition("\n")[0])  # the key, without the first question
        settings = ""

    def ask(question: str) -> None:
        line = (again if asked else first).replace("QUESTION", f"'{question}'")
        asked.append(question)
        client.shell(f"{settings}\n{line}", CLAUDE_CODE_MAX_OUTPUT_TOKENS="64")

    yield ask


@contextlib.contextmanager
def page(client: Installed) -> Iterator[Ask]:
    """Open WebUI: after an answer its page asks for follow-up questions, after the first one also
    for a title and tags.
    """
    history: list[dict[str, str]] = []
    with client.web_interface(PORT) as web:

        def ask(question: str) -> None:
            body = {"model": client.settings.model}
            history.append({"role": "user", "content": question})
            reply = web.ask("/api/chat/completions", {**body, "messages": history})
            history.append(
                {"role": "assistant", "content": reply["choices"][0]["message"]["content"]}
            )
            tasks = ("title", "tags", "follow_up") if len(history) == 2 else ("follow_up",)
            for task in tasks:
                web.ask(f"/api/v1/tasks/{task}/completions", {**body, "messages": history})

        yield ask


WAYS: dict[str, Callable[[Installed], contextlib.AbstractContextManager[Ask]]] = {
    "openai": library,
    "anthropic": library,
    "litellm": library,
    "langchain": library,
    "llm": lambda it: command(it, "llm -m spark -o max_tokens 64 QUESTION", "llm -c QUESTION"),
    "opencode": lambda it: command(it, "opencode run QUESTION", "opencode run -c QUESTION"),
    "claude-code": lambda it: command(it, "claude -p QUESTION", "claude -p -c QUESTION"),
    "open-webui": page,
}


def record(name: str) -> dict[str, object]:
    """Return the turns of one client, on an engine that nobody has used."""
    with tempfile.TemporaryDirectory() as folder, long_engine(Path(folder)) as engine:
        client = Installed(clients.find(name), settings_of(engine), Path(folder) / name)
        turns = []
        with WAYS[name](client) as ask:
            for question in QUESTIONS:
                before = counters(engine)
                ask(question)
                turns.append({key: now - before[key] for key, now in counters(engine).items()})
                print(name, turns[-1], flush=True)
        return {"package": client.client.tried, "turns": turns}


def main(names: list[str]) -> None:
    """Record the named clients, or all of them."""
    file = clients.RECORDED
    kept = json.loads(file.read_text("utf-8"))["clients"] if file.is_file() else {}
    made = kept | {name: record(name) for name in names or WAYS}
    value = {
        "date": datetime.date.today().isoformat(),
        "engine": "vLLM 0.32.0, CPU build, tiny-dense",
        "context": CONTEXT,
        "questions": QUESTIONS,
        "clients": {name: made[name] for name in WAYS if name in made},
    }
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(value, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
