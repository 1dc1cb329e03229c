"""From a new machine to a first answer: check, fetch, serve, ask, and the settings of a client.

The steps are what the verbs of the same names do. Each can be left out, and each starts where an
earlier run stopped: weights that are here are not fetched again, a server that runs is not started
again: the same line again resumes a start that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkbook import clients, host, recipes, weights
from sparkbook.checkpoint.store import repositories
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.serve import attach, launcher, running, tool_calls
from sparkbook.serve.endpoint import Endpoint, key_in
from sparkbook.serve.paths import state_dir
from sparkbook.serve.stream import stream_chat
from sparkbook.serve.tool_probes import ONE
from sparkbook.units import GIB

if TYPE_CHECKING:
    from sparkbook.plan.memory import MemoryPlan
    from sparkbook.recipes import Recipe

STEPS = ("check", "fetch", "serve", "ask")
USES = {
    "chat": "chats in a browser or a terminal",
    "agent": "a coding agent, which needs tool calls",
    "any": "anything",
}
QUESTION = "Say hello in one sentence."


class StepFailed(SparkbookError):
    """A step, or the plan of the memory before them, found what has to be set right first.
    `findings` says what and how.
    """

    def __init__(self, step: str, findings: Findings, message: str = ""):
        self.step, self.findings = step, findings
        super().__init__(
            message
            or f"the step {step} failed. Set it right and give the same line again: what is done is"
            f" not done again. To leave the step out: --skip {step}"
        )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asked for.

    Attributes:
        recipe: id or file.
        client: the client whose settings are printed; None: none.
        skip: steps to leave out.
        memory_gib: memory available for the server; None: as the machine has it.
        port: as `sparkbook serve` takes it; only a server there then counts as running already.
        deadline_s: as `sparkbook serve` takes it.
    """

    recipe: str
    client: str | None = None
    skip: tuple[str, ...] = ()
    memory_gib: float | None = None
    port: int | None = None
    deadline_s: float = 1800.0


@dataclass
class Started:
    """What came of it.

    Attributes:
        steps: each step and its outcome in a few words.
        server: what `sparkbook serve` prints of a server that is ready.
        answer: the reply to the first question; `call`: the first tool call.
        settings: for the client.
    """

    steps: dict[str, str] = field(default_factory=dict)
    server: dict[str, Any] = field(default_factory=dict)
    answer: str = ""
    call: str = ""
    settings: clients.Settings | None = None

    def to_dict(self, client: str | None) -> dict[str, Any]:
        """Return plain values for JSON."""
        shown = clients.find(client).to_dict(self.settings) if client and self.settings else None
        return {
            "steps": self.steps,
            "server": self.server,
            "answer": self.answer,
            "call": self.call,
            "client": shown,
        }


def candidates(use: str, memory_gib: float | None = None) -> list[tuple[Recipe, MemoryPlan]]:
    """Return the recipes for one Spark that suit a use and fit the memory or may fit, each with the
    plan of the line that is served: the newest source first, and of one day the fastest.

    Raises:
        SparkbookError: an unknown use, no such memory, or nothing fits.
    """
    from sparkbook.plan import request

    if use not in USES:
        raise SparkbookError(f"--use is '{use}': choose {', '.join(USES)}")
    most = request.host(None, memory_gib).total / GIB
    found = []
    for recipe in recipes.all():
        able = recipe.capabilities.chat and (recipe.capabilities.tools or use != "agent")
        if recipe.image is None or recipe.successor or recipe.topology.nodes > 1 or not able:
            continue
        size = most * recipe.topology.memory_gb / 128
        if memory_gib is not None and memory_gib > size:
            continue  # a Spark that has so much is not the one that it is for
        planned, _ = _line(recipe.id, memory_gib)
        if planned.verdict in ("fits", "may fit"):
            found.append((recipe, planned))
    if not found:
        raise SparkbookError(
            f"no recipe for {use} fits" + f" {memory_gib:g} GiB" * (memory_gib is not None)
        )
    return sorted(found, key=lambda pair: (_age(pair[0]), -(speed_of(pair[1]) or 0), pair[0].id))


def speed_of(planned: MemoryPlan) -> float | None:
    """Return the estimated decode speed of one request, tok/s; None where it is not known."""
    return planned.decode[0].tok_s if planned.decode else None


def _age(recipe: Recipe) -> int:
    """Return how old the newest source is: a number that is smaller for newer ones."""
    return -max((source.date.toordinal() for source in recipe.sources if source.date), default=0)


def known(client: str | None, skip: Iterable[str]) -> clients.Client | None:
    """Return the client of this name.

    Raises:
        SparkbookError: there is none, or a step to leave out is none.
    """
    for step in skip:
        if step not in STEPS:
            raise SparkbookError(f"--skip is '{step}': the steps are {', '.join(STEPS)}")
    return clients.find(client) if client else None


def checked(wanted: Wanted) -> Recipe:
    """Return the recipe, after a look at everything that can be wrong with the wish itself.

    Raises:
        SparkbookError: something is.
    """
    client = known(wanted.client, wanted.skip)
    recipe = recipes.load(wanted.recipe)
    if client and not recipe.capabilities.chat:
        raise SparkbookError(
            f"{client.title} uses {client.api}, and {recipe.id} does not chat: it is for"
            f" {_service(recipe)}. Leave --client out"
        )
    return recipe


def _objections(wanted: Wanted, recipe: Recipe) -> list[str]:
    """Return why the client will not work with the server, a warning each."""
    if not wanted.client:
        return []
    client = clients.find(wanted.client)
    found = client.objections(recipe.served_name, recipe.capabilities.tools)
    return [f"warning: {one}" for one in found]


def _service(recipe: Recipe) -> str:
    """Return what a server that does not chat is for, and was asked before it was called ready."""
    names = ("embedding", "reranking", "transcription")
    return ", ".join(name for name in names if getattr(recipe.capabilities, name))


def wish_of(wanted: Wanted, recipe: Recipe) -> tuple[launcher.Wish, str]:
    """Return what `serve` is asked for, and what the plan says of it. Where only a smaller share of
    the memory fits, it is that.

    Raises:
        StepFailed: no share fits.
        SparkbookError: it is not for one machine.
    """
    launcher.wanted(launcher.Wish(source=wanted.recipe))  # refuses what no server here can serve
    share, verdict = None, "not planned: it runs on the CPU"
    if recipe.image is not None:
        planned, share = _line(wanted.recipe, wanted.memory_gib)
        verdict = planned.verdict
        if share is not None:
            verdict = f"{verdict}; served with --gpu-memory-utilization {share:g}"
        if not planned.fits:
            raise StepFailed(
                "memory",
                planned.findings,
                f"the memory does not suffice for {recipe.id}, so nothing was fetched or started."
                " Give it more (stop what else runs), or choose another: without a recipe, the"
                " same line lists those that fit",
            )
    wish = launcher.Wish(
        source=wanted.recipe,
        port=wanted.port,
        fraction=share,
        deadline_s=wanted.deadline_s,
    )
    return wish, verdict


def _line(source: str, memory_gib: float | None) -> tuple[MemoryPlan, float | None]:
    """Return the plan of the line that is served, and its share of the memory where that is another
    than the recipe's.
    """
    from sparkbook.plan import memory, request

    setup = request.read(source)
    planned = memory.plan(setup, request.host(None, memory_gib, total=setup.total))
    changed = planned.fitting()
    if not changed or "max-model-len" in changed:
        return planned, None
    share = float(changed["gpu-memory-utilization"])
    return replace(planned, setup=replace(setup, fraction=share)), share


def dry(wanted: Wanted) -> Iterator[tuple[str, list[str]]]:
    """Yield each step with what it would do, as lines. Nothing is started, sent or written.

    Raises:
        SparkbookError: it can't be done.
    """
    recipe = checked(wanted)
    wish, verdict = wish_of(wanted, recipe)
    planned = launcher.plan(wish)
    steps = {
        "check": [f"reads this machine, changes nothing. Memory: {verdict}"],
        "fetch": _fetches(recipe),
        "serve": [planned.text],
        "ask": _asks(recipe),
    }
    for step, lines in steps.items():
        yield step, ["left out: --skip"] if step in wanted.skip else lines
    if wanted.client:
        from sparkbook.clients import text
        from sparkbook.plan import request

        address = f"http://127.0.0.1:{wanted.port or recipe.launch.port}"
        key = str(state_dir() / "api-key")
        settings = clients.Settings(
            url=address,
            model=recipe.served_name,
            key_file=key,
            context=request.read(wanted.recipe).context,
        )
        shown = [str(line) for line in text.lines(clients.find(wanted.client), settings)]
        yield "client", [*_objections(wanted, recipe), *shown]


def _asks(recipe: Recipe) -> list[str]:
    if not recipe.capabilities.chat:
        return [f"nothing more: serve itself tries {_service(recipe)}"]
    tool = f"POST /v1/chat/completions with a tool: {ONE.messages[0]['content']}"
    return [f"POST /v1/chat/completions: {QUESTION}"] + [tool] * recipe.capabilities.tools


def _fetches(recipe: Recipe) -> list[str]:
    if recipe.image is None:
        return ["nothing: the model ships with this package"]
    sizes = {repo.repo: repo.revision or "its newest commit" for repo in repositories(recipe)}
    size = f", about {recipe.model.weights_gb:g} GB" if recipe.model.weights_gb else ""
    return [f"{repo} ({revision}){size}" for repo, revision in sizes.items()]


def run(
    wanted: Wanted,
    *,
    say: Callable[[str], None],
    show: Callable[[Started], None],
    bar: bool = False,
) -> None:
    """Take the steps. A server in a container keeps running afterwards; one that is a process runs
    until Ctrl-C.

    Args:
        wanted: what the user asked for.
        say: called with a line for each thing that happens.
        show: called once, with what came of it, when the server has answered.
        bar: draw a progress bar for the download.

    Raises:
        StepFailed: a step found what has to be set right.
        SparkbookError, EngineError, NotReady, ServeFault: as the verbs raise them.
    """
    recipe = checked(wanted)
    wish, verdict = wish_of(wanted, recipe)
    for objection in _objections(wanted, recipe):
        say(objection)
    name = _ready(recipe, wanted.port) or (recipe.id if "serve" in wanted.skip else None)
    facts = _facts(name) if name else None
    left = wanted.skip if facts is None else (*wanted.skip, "check", "fetch", "serve")
    started = Started(steps={step: "left out" for step in STEPS if step in left})
    if facts is not None:
        say(f"{recipe.id} runs at {facts['url']}")
        show(_asked(wanted, started, facts, say))
        return
    if "check" not in left:
        say("check: reading this machine")
        report = host.check(host.look(recipe))
        started.steps["check"] = f"{report.headline}; memory: {verdict}"
        say(f"check: {started.steps['check']}")
        if report.exit_code:
            raise StepFailed("check", report.findings)
    if "fetch" not in left:
        started.steps["fetch"] = _fetch(recipe, bar)
        say(f"fetch: {started.steps['fetch']}")
    launcher.serve(wish, say=say, show=lambda ready: show(_asked(wanted, started, ready, say)))


def _ready(recipe: Recipe, port: int | None) -> str | None:
    """Return the name of the recipe's server that is ready, at this port if one is given."""
    with running.engines() as (docker, _):
        servers = running.status(docker)
    return next(
        (
            one.name
            for one in servers
            if one.recipe == recipe.id
            and one.state == "ready"
            and port in (None, urlsplit(one.url).port)
        ),
        None,
    )


def _fetch(recipe: Recipe, bar: bool) -> str:
    if recipe.image is None:
        return "nothing to fetch: the model ships with this package"
    try:
        fetched = weights.fetch(recipe, progress=bar)
    except weights.WeightsError as error:
        raise StepFailed("fetch", Findings([error.finding])) from None
    if fetched.findings:
        raise StepFailed("fetch", fetched.findings)
    return f"{fetched.downloaded / GIB:.1f} GiB came, all files are here"


def _facts(name: str) -> dict[str, Any]:
    """Return what to know of a server that runs already."""
    with running.engines() as (docker, _):
        endpoint = running.endpoint(docker, name)
        key = str(running.key_file(docker, name))
    return {"url": f"{endpoint.url}/v1", "model": endpoint.model, "key": key}


def _asked(
    wanted: Wanted, started: Started, facts: dict[str, Any], say: Callable[[str], None]
) -> Started:
    """Ask the server that is ready, and note what it is like."""
    started.steps.setdefault("serve", facts.get("already") or "it answers")
    started.server = facts
    url, key = facts["url"].removesuffix("/v1"), facts["key"]
    endpoint = Endpoint(url, facts["model"], key_in(Path(key), key))
    recipe = recipes.load(wanted.recipe)
    if not recipe.capabilities.chat:
        started.steps.setdefault("ask", f"serve tried {_service(recipe)}")
        return started
    if "ask" not in wanted.skip:
        say(f"ask: {QUESTION}")
        started.answer = stream_chat(endpoint, QUESTION, max_tokens=128).text.strip()
        started.steps["ask"] = "answered"
        if recipe.capabilities.tools:
            reply = tool_calls.ask(endpoint, ONE)
            graded = tool_calls.grade([reply], ONE.name)
            if graded.word == "fail" or not reply.calls:
                raise StepFailed("ask", graded.findings)
            function = reply.calls[0]["function"]
            started.call = f"{function['name']}({function['arguments']})"
            started.steps["ask"] = "answered, and called a tool"
    context = attach.context_of(endpoint)[1]
    started.settings = clients.Settings(
        url=url, model=endpoint.model, key_file=key, **({"context": context} if context else {})
    )
    return started
