"""A set of servers on one Spark: each is planned next to those before it, and started once they
have answered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.recipes import sets
from sparkbook.recipes.sets import ServerSet
from sparkbook.serve import launcher
from sparkbook.serve.launcher import DryRun, Wish
from sparkbook.util.shell_text import command_line


def with_fractions(chosen: ServerSet, fractions: Mapping[str, float]) -> ServerSet:
    """The set with other shares of the memory, by recipe.

    Raises:
        SparkbookError: a recipe is not in the set, or the shares make more than the memory.
    """
    names = [server.recipe for server in chosen.servers]
    if unknown := [name for name in fractions if name not in names]:
        raise SparkbookError(
            f"{unknown[0]} is not in the set {chosen.id}, which has {', '.join(names)}"
        )
    servers = [
        server.model_copy(update={"fraction": fractions.get(server.recipe, server.fraction)})
        for server in chosen.servers
    ]
    if (whole := sum(server.fraction for server in servers)) >= 1:
        raise SparkbookError(
            f"the fractions of {chosen.id} add up to {whole:g}, and there is one memory"
        )
    return chosen.model_copy(update={"servers": servers})


def check(chosen: ServerSet) -> list[str]:
    """What the planner says of each server next to those before it, a line each.

    Raises:
        SparkbookError: one does not fit.
    """
    from sparkbook.plan import memory, request

    lines: list[str] = []
    before: list[str] = []
    for server in chosen.servers:
        setup = request.read(server.recipe, request.Override(fraction=server.fraction))
        planned = memory.plan(setup, request.host(cotenants=tuple(before)))
        if not planned.fits:
            why = next((finding.message for finding in planned.findings), "")
            beside = " next to " + " and ".join(before) if before else ""
            raise SparkbookError(
                f"not started: {server.recipe} with {server.fraction:g} does not fit{beside}. {why}"
            )
        lines.append(f"{server.recipe} with {server.fraction:g}: {planned.verdict}. {server.why}")
        before.append(f"{server.recipe}={server.fraction:g}")
    return lines


def wishes(wish: Wish, fractions: Mapping[str, float]) -> tuple[ServerSet, list[Wish]]:
    """The set that a wish names, and a wish for each of its servers.

    Raises:
        SparkbookError: the wish has options that are about one server, or there is no such set.
    """
    if wish.locked or wish.name or wish.port or wish.watch:
        raise SparkbookError("--locked, --name, --port and --watch are about one server, not a set")
    if wish.target == "process":
        raise SparkbookError("a set is served in containers: leave out --target process")
    chosen = with_fractions(sets.load(wish.source or ""), fractions)
    return chosen, [
        replace(wish, source=server.recipe, port=server.port, fraction=server.fraction)
        for server in chosen.servers
    ]


def plan(wish: Wish, fractions: Mapping[str, float]) -> DryRun:
    """What `serve` would do, server after server.

    Raises:
        SparkbookError: as `serve`.
    """
    chosen, each = wishes(wish, fractions)
    check(chosen)
    dry = [launcher.plan(one) for one in each]
    return DryRun(
        "docker",
        [call for one in dry for call in one.calls],
        Findings([note for one in dry for note in one.notes]),
    )


def serve(
    wish: Wish,
    fractions: Mapping[str, float],
    *,
    say: Callable[[str], None],
    show: Callable[[dict[str, Any]], None],
) -> None:
    """Start the servers of a set, each once the one before has answered. Where one fails, those
    before it stay.

    Raises:
        SparkbookError: it can't be used, or does not fit.
        EngineError, NotReady, ServeFault: a server failed.
    """
    chosen, each = wishes(wish, fractions)
    for line in check(chosen):
        say(line)
    started: list[str] = []

    def showing(facts: dict[str, Any]) -> None:
        started.append(facts["name"])
        show(facts)

    try:
        for one in each:
            launcher.serve(one, say=say, show=showing)
    finally:
        if 0 < len(started) < len(each):
            stop = "; ".join(command_line("sparkbook", "stop", name) for name in started)
            say(f"still running: {', '.join(started)}. To stop them: {stop}")
