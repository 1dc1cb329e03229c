"""Another image for a server that runs: tried, compared with the old one, and taken or not.

The old container is stopped and kept under another name until the new one is taken: to go back is
to start that very container again, with its key, its port and its restart policy. Where the memory
holds both, the new server is tried next to the old one first, which answers meanwhile.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkbook import lint, lock
from sparkbook.bench import compare, load, lossless
from sparkbook.bench.results import Report
from sparkbook.errors import SparkbookError
from sparkbook.recipes.names import entrypoint_of
from sparkbook.releases import images
from sparkbook.serve import (
    attach,
    containers,
    docker_engine,
    docker_host,
    interrupts,
    launcher,
    tool_calls,
)
from sparkbook.serve.containers import Found
from sparkbook.serve.docker_host import DockerHost, mapped
from sparkbook.serve.endpoint import Endpoint, own_key, write_private
from sparkbook.serve.engine import EngineError
from sparkbook.serve.faults import ServeFault
from sparkbook.serve.process import free_port
from sparkbook.serve.stack import KEPT_FREE, KEY, Choices, Stack
from sparkbook.units import format_bytes
from sparkbook.util.files import check_place, write_text
from sparkbook.util.shell_text import command_line

WAYS = ("auto", "together", "swap")
_KEPT = "-before-upgrade"
_TRIED = "-upgrade"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asked for.

    Attributes:
        source: recipe's id or launch line of the server that runs.
        image: the new image.
        name: the server's name, if several run from this source.
        fraction: share of the memory that it was started with, if not the source's.
        lock: file of the stack lock: read if it is there, written when the image is taken.
        way: `together`: the new server next to the old one; `swap`: in its place; `auto`: as the
            memory allows.
        allow_changed: take an image that changes answers.
        slower: percent that it may be slower for sure.
        turns: of the agent that tries the tool calls. requests: of each row of the measurement.
        deadline_s: seconds for each start.
    """

    source: str
    image: str
    name: str | None = None
    fraction: float | None = None
    lock: str | None = None
    way: str = "auto"
    allow_changed: bool = False
    slower: float = 5.0
    turns: int = 10
    requests: int = 16
    deadline_s: float = 1800.0


@dataclass(frozen=True)
class Look:
    """What a server is like. `again` are its replies to the same prompts once more."""

    answers: Sequence[lossless.Answer] = ()
    again: Sequence[lossless.Answer] = ()
    tools: tool_calls.Report | None = None
    speed: Report | None = None


@dataclass
class Outcome:
    """What came of it.

    Attributes:
        reasons: why the image was not taken; empty: it was.
        notes: what else to know.
        figures: what was compared, in words, by the command that compares it.
    """

    old: str
    new: str
    way: str
    reasons: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, str] = field(default_factory=dict)
    lock: str | None = None

    @property
    def taken(self) -> bool:
        """Whether the new image serves now."""
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"taken": self.taken} | {
            name: getattr(self, name) for name in self.__dataclass_fields__
        }

    @property
    def lines(self) -> list[str]:
        """For a terminal."""
        end = f"taken: {self.new}" if self.taken else f"not taken, {self.old} serves as before"
        return [
            *(f"{name:<12} {text}" for name, text in self.figures.items()),
            *(f"note         {text}" for text in self.notes),
            *(f"reason       {text}" for text in self.reasons),
            end + (f"; lock: {self.lock}" if self.lock else ""),
        ]


class _Refused(Exception):
    """The new server is not as good as the old one."""


class NotBack(EngineError):
    """The old server does not serve again."""


# ---- what runs, and what is to run


def _stacks(wanted: Wanted) -> list[Stack]:
    """Return what the running server may be, the likeliest first.

    Raises:
        SparkbookError: there is no image to change, or the wish can't be used.
    """
    if wanted.way not in WAYS:
        raise SparkbookError(f"--way is '{wanted.way}': choose {', '.join(WAYS)}")
    if not wanted.image.strip() or set(wanted.image) & set(" \t\n'\"") or "://" in wanted.image:
        raise SparkbookError(f"--to is '{wanted.image}': write an image, as REPOSITORY:TAG")
    if wanted.lock:
        check_place(Path(wanted.lock).expanduser())
    wish = launcher.Wish(source=wanted.source, name=wanted.name, fraction=wanted.fraction)
    asked, target = launcher.wanted(wish)
    if target != "docker":
        raise SparkbookError(
            f"{asked.name} has no image to change: it runs as a process, with the vLLM that is"
            " installed on this machine"
        )
    known = [asked]
    if wanted.lock and Path(wanted.lock).expanduser().exists():
        locked = lock.read(wanted.lock)
        launch = lock.launch_of(locked)
        if launch.image is None:
            raise SparkbookError(f"the lock {wanted.lock} is about a server without an image")
        if launch.serve.model != asked.launch.serve.model:
            raise SparkbookError(
                f"the lock {wanted.lock} is about {launch.serve.model}, and {wanted.source} serves"
                f" {asked.launch.serve.model}: name its own lock"
            )
        for image in (launch.image, launch.image.partition("@")[0]):
            changed = launch.model_copy(update={"image": image})
            known.insert(0, replace(asked, launch=changed))
    return known


def _changed(stack: Stack, wanted: Wanted) -> Stack:
    """Return a stack with the new image, started as that image has to be: one that runs
    `vllm serve` by itself is not given these words, and one that is known to run any command is.
    """
    entry, known = entrypoint_of(wanted.image), images.find(wanted.image)
    kept = "wrapper" in (entry, stack.launch.entrypoint) or (entry == "command" and not known)
    changes = {"image": wanted.image} | ({} if kept else {"entrypoint": entry})
    return replace(stack, launch=stack.launch.model_copy(update=changes))


def _running(
    host: DockerHost, wanted: Wanted, known: Sequence[Stack]
) -> tuple[Found, Stack, Choices]:
    """Return the server that runs, and the stack and the choices that it was started with.

    Raises:
        SparkbookError: none runs, several do, or it runs otherwise than the source says.
    """
    first = known[0]
    names = {wanted.name} if wanted.name else {first.name, first.recipe.id if first.recipe else ""}
    ours = [one for one in containers.find(host) if names & ({one.name, one.recipe} - {""})]
    for one in ours:
        if (name := one.name.removesuffix(_KEPT)) != one.name:
            raise SparkbookError(
                f"an upgrade was cut off, and {one.name} is the old server. Go back to it with:"
                f" {command_line('sparkbook', 'stop', name)} (if it runs);"
                f" {command_line('docker', 'rename', one.name, name)} &&"
                f" {command_line('docker', 'start', name)}. Or remove it:"
                f" {command_line('docker', 'rm', one.name)}"
            )
    found = [one for one in ours if one.state == "running"]
    if len(found) != 1:
        runs = " and ".join(one.name for one in found) or "nothing"
        raise SparkbookError(
            f"{runs} runs as {wanted.name or first.name}: an upgrade needs the one server that"
            " runs. Start it with `sparkbook serve`, or name it with --name"
        )
    (old,) = found
    for stack in known:
        for expose, offline, always, read_only in itertools.product((False, True), repeat=4):
            choices = Choices(
                port=old.port if stack.launch.container.network != "host" else None,
                expose=expose,
                offline=offline,
                restart_always=always,
                read_only=read_only,
            )
            named = replace(stack, name=old.name)
            asked = docker_engine.prepare(named, host.home, choices, "hidden", host.memory)
            if asked.stack == old.stack:
                return old, named, choices
    raise SparkbookError(
        f"{old.name} runs with other settings than {wanted.source} has: give the line that it was"
        " started with, its share with --gpu-memory-utilization, or its lock with --lock"
    )


def _room(host: DockerHost, wanted: Wanted, new: Stack) -> tuple[str, str]:
    """Return whether the new server is tried next to the old one or in its place, and why."""
    import psutil

    from sparkbook.plan import memory, request

    if wanted.way != "auto":
        return wanted.way, "as you asked"
    if host.remote or new.launch.container.network == "host":
        return "swap", "the server is on another host, or shares the host's network"
    free = psutil.virtual_memory()
    try:
        setup = request.read(wanted.source)
        if wanted.fraction is not None:
            setup = replace(setup, fraction=wanted.fraction)
        needed = memory.plan(setup).engine.high
    except (SparkbookError, AttributeError):
        return "swap", "its memory can't be planned"
    words = f"it needs {format_bytes(int(needed))}, {format_bytes(free.available)} are available"
    return "together" if needed + free.total / KEPT_FREE <= free.available else "swap", words


# ---- what it is like


def look(
    endpoint: Endpoint,
    stack: Stack,
    wanted: Wanted,
    *,
    twice: bool = False,
    say: Callable[[str], None] = lambda _line: None,
) -> Look:
    """Ask a server what the comparison needs. One that does not chat was tried by its readiness.

    Raises:
        SparkbookError: it does not answer, or gives no log-probabilities.
    """
    if not stack.claims.chat:
        return Look()
    say("equal: greedy replies and small tasks")
    answers = lossless.ask(endpoint)
    again = lossless.ask(endpoint) if twice else ()
    tools = None
    if stack.claims.tools:
        say("check-tools")
        tools = tool_calls.check(endpoint, turns=wanted.turns)
    say("bench")
    context = attach.context_of(endpoint)[1] or 0
    classes = ("code", "long-4k") if context >= 8192 else ("code",)
    plan = load.BenchPlan(classes=classes, concurrency=(1,), requests=wanted.requests)
    speed = load.measure(endpoint, plan)
    if speed.interrupted:
        raise interrupts.Interrupted(signal.SIGINT)
    return Look(answers, again, tools, speed)


def judge(old: Look, new: Look, wanted: Wanted, outcome: Outcome) -> None:
    """Compare two servers: what was compared, notes and reasons go into the outcome."""
    if old.answers:
        trial = lossless.trial(wanted.image, old.answers, old.again, new.answers)
        outcome.figures["equal"] = f"{trial.verdict}: {trial.equality}; tasks: {trial.scores}"
        if trial.verdict == "changed":
            where = outcome.notes if wanted.allow_changed else outcome.reasons
            where.append("answers differ by more than the old server differs from itself (equal)")
    if old.tools and new.tools:
        words = [" ".join(grade.word for grade in one.grades) for one in (old.tools, new.tools)]
        outcome.figures["check-tools"] = " → ".join(words)
        errors = new.tools.findings.errors_since(old.tools.findings)
        outcome.reasons += [f"{error} (check-tools)" for error in errors]
    if old.speed and new.speed:
        _speed(old.speed, new.speed, wanted, outcome)


def _speed(old: Report, new: Report, wanted: Wanted, outcome: Outcome) -> None:
    if "invalid" in (old.verdict, new.verdict):
        outcome.notes.append("speed is not judged: the gate rejected a measurement (bench)")
        return
    most = 1 + wanted.slower / 100
    words = []
    for figure, label in (("decode_tok_s", "decode"), ("ttft_s", "TTFT")):
        for row in compare.arms([old], [new], figure):
            if figure == "ttft_s" and not row.prompt_class.startswith("long"):
                continue  # of a short prompt it is mostly noise
            low, high = row.comparison.interval or (0.0, 2.0)
            words.append(f"{label} {row.prompt_class} {row.comparison.ratio:.3f}x")
            if high < 1 / most or (figure == "ttft_s" and low > most):
                outcome.reasons.append(f"slower for sure: {label} {row.comparison} (bench)")
    outcome.figures["bench"] = ", ".join(words)


# ---- doing it


@contextlib.contextmanager
def _kept(host: DockerHost, old: Found, stack: Stack, wanted: Wanted, say: Any) -> Iterator[None]:
    """Stop the old server and keep it. If what follows fails, start it again."""
    mark, (_, key_file) = containers.mark_of(old.name), containers.key_of(old.name, old.id)
    own = [file for file in (mark, key_file) if file.parent == mark.parent and file.is_file()]
    files = {file: file.read_bytes() for file in own}  # the new server's take their place
    say(f"stopping {old.name}, {old.image}")
    try:
        with interrupts.held_back(), mapped(name=old.name):
            host.client.api.stop(old.id, timeout=40)
            host.client.api.rename(old.id, old.name + _KEPT)
        yield
    except BaseException:
        with interrupts.held_back():
            say(f"going back to {old.image}")
            try:
                engine = _restarted(host, old, files)
                engine.wait_ready(stack.claims, deadline_s=wanted.deadline_s, progress=say)
            except SparkbookError as error:
                status = command_line("docker", "ps", "-a", "--filter", f"id={old.id[:12]}")
                raise NotBack(
                    f"{old.name} did not come back: {error}\nIts container is kept: {status}"
                ) from None
            say(f"{old.name} serves again, from {old.image}")
        raise


def _restarted(
    host: DockerHost, old: Found, files: dict[Path, bytes]
) -> docker_engine.DockerEngine:
    """Start the old container again, under its name and with its key."""
    with mapped(name=old.name):
        if containers.inspected(host, old)["Name"] != f"/{old.name}":
            host.client.api.rename(old.id, old.name)
        for file, content in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_private(file, content.decode())
        engine = docker_engine.attach(host, old)
        if not engine.running:
            engine.printed()  # what it printed before says nothing of this start
        host.client.api.start(old.id)
    return engine


@contextlib.contextmanager
def _same_key(endpoint: Endpoint) -> Iterator[None]:
    """Let servers that are started here have the key of a server that runs."""
    before = os.environ.get(KEY)
    if own_key()[0] != endpoint.api_key:
        os.environ[KEY] = endpoint.api_key
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(KEY, None)
        else:
            os.environ[KEY] = before


def _refusals(old: Stack, new: Stack) -> list[str]:
    """Return what the new image refuses of the line, and the old one does not."""
    before, after = (lint.lint(stack.launch).findings for stack in (old, new))
    return [f"{error} (lint)" for error in after.errors_since(before)]


def run(wanted: Wanted, *, say: Callable[[str], None]) -> Outcome:
    """Try the image, and take it if it is as good as the old one. Whatever fails, and at Ctrl-C,
    the old server serves again.

    Raises:
        SparkbookError: the wish can't be used; nothing was changed.
        ServeFault: Docker does not answer, or has not the image; nothing was changed.
        NotBack: the old server did not come back.
    """
    known = _stacks(wanted)
    host = docker_host.reach()
    try:
        old, stack, choices = _running(host, wanted, known)
        new = _changed(stack, wanted)
        if docker_engine.prepare(new, host.home, choices, "hidden").image == old.image:
            raise SparkbookError(f"{old.name} runs from {wanted.image} already")
        way, why = _room(host, wanted, new)
        outcome = Outcome(old.image, wanted.image, way)
        outcome.reasons += _refusals(stack, new)
        if outcome.reasons:
            return outcome
        if docker_host.image_present(host.client, wanted.image) is None:
            docker_host.pull(host.client, wanted.image, say)
        place = "next to" if way == "together" else "in place of"
        say(f"the new server is tried {place} the old one: {why}")
        endpoint = containers.endpoint_of(host, old)
        say(f"asking {old.image}")
        before = look(endpoint, new, wanted, twice=True, say=say)
        with _same_key(endpoint):
            try:
                _replace(host, (old, new, choices), wanted, before, outcome, say)
            except _Refused:
                pass
            except NotBack:
                raise
            except SparkbookError as error:
                if interrupts.behind(error):
                    raise
                outcome.reasons.append(str(error))
        if outcome.taken:
            try:
                containers.remove(host, old.id)
            except ServeFault as fault:
                outcome.notes.append(str(fault))
        return outcome
    finally:
        host.close()


def _replace(
    host: DockerHost,
    parts: tuple[Found, Stack, Choices],
    wanted: Wanted,
    before: Look,
    outcome: Outcome,
    say: Callable[[str], None],
) -> None:
    """Start the new server, compare it, and put it in the place of the old one."""
    old, new, choices = parts

    def start(stack: Stack, choices: Choices) -> docker_engine.DockerEngine:
        return docker_engine.start(
            stack, host=host, choices=choices, deadline_s=wanted.deadline_s, progress=say
        )

    def compared(engine: docker_engine.DockerEngine) -> None:
        say(f"asking {wanted.image}")
        judge(before, look(engine.endpoint, new, wanted, say=say), wanted, outcome)
        if outcome.reasons:
            raise _Refused

    if outcome.way == "together":
        trial = start(
            replace(new, name=new.name + _TRIED), replace(choices, port=free_port(), expose=False)
        )
        try:
            compared(trial)
        finally:
            trial.stop()
    with _kept(host, old, new, wanted, say):
        engine = start(new, choices)
        try:
            if outcome.way == "swap":
                compared(engine)
            if wanted.lock:
                made = launcher.lock_of(new, name=new.name, planned=wanted.source)
                write_text(Path(wanted.lock).expanduser(), lock.dumps(made))
                outcome.lock = wanted.lock
        except BaseException:
            engine.stop()
            raise


def dry(wanted: Wanted) -> list[str]:
    """Return what an upgrade would do, as lines. Docker is not asked.

    Raises:
        SparkbookError: the wish can't be used.
    """
    old = _stacks(wanted)[0]
    new = _changed(old, wanted)
    plan = docker_engine.prepare(new, None, Choices(), "hidden")
    head = f"old: {old.launch.image}, new: {wanted.image}"
    if refused := [f"refused: {one}" for one in _refusals(old, new)]:
        return [head, *refused, "nothing is pulled or started: the old server serves as before"]
    return [
        head,
        "1. pull the new image; the old server answers meanwhile",
        "2. ask the old server: equal (twice), check-tools, bench",
        "3. start the new one next to it if the memory allows, else stop the old one and keep it",
        "4. ask the new server the same, and compare",
        "5. as good: take it, remove the old container"
        + (f", write {wanted.lock}" if wanted.lock else "")
        + ". Else, or at Ctrl-C: start the old container again",
        *(call for call, _ in plan.calls()),
    ]
