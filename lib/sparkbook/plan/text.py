"""A plan for a terminal: the memory bar, the table, the working. Pure text, with rich's styles; the
same at any width of 80 or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from sparkbook.checkpoint.values import Range
from sparkbook.plan.memory import COUNTS, MemoryPlan
from sparkbook.plan.reconcile import Reconciliation
from sparkbook.units import GIB

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 60
_COLOURS = {
    "weights": "blue",
    "draft": "cyan",
    "working memory": "yellow",
    "CUDA graphs": "magenta",
    "KV cache": "green",
}
_MARKS = {"weights": "█", "draft": "▓", "working memory": "▒", "CUDA graphs": "░", "KV cache": "■"}
_STYLES = {"fits": "bold green", "may fit": "bold yellow", "not known": "bold yellow"}


def gib(size: Range, digits: int = 1) -> str:
    """Bytes in GiB."""
    return f"{size * (1 / GIB):.{digits}f}"


def bar(plan: MemoryPlan) -> Text:
    """The memory bar, one mark for a sixtieth of the machine; ranges are drawn at their middle."""
    text, total = Text("["), plan.host.total
    at = 0.0
    drawn = 0
    for name, size in plan.parts:
        at += size.middle
        upto = min(round(at / total * WIDTH), WIDTH)
        if upto > drawn:
            text.append(_MARKS.get(name, "□") * (upto - drawn), _COLOURS.get(name, "red"))
            drawn = upto
    text.append("·" * (WIDTH - drawn), "dim")
    return text.append(f"] {total / GIB:.2f} GiB")


def answer(
    plan: MemoryPlan, compared: Reconciliation | None = None, explain: bool = False
) -> Iterator[RenderableType]:
    """Yield the plan, its findings, and the comparison with a log."""
    yield from lines(plan, explain)
    for finding in plan.findings:
        yield Text()
        yield finding
    if compared:
        yield Text("\nCompared with the log", "bold")
        yield from reconciled(compared)
        yield compared.findings


def lines(plan: MemoryPlan, explain: bool = False) -> Iterator[Text]:
    """Yield the plan, line by line."""
    setup = plan.setup
    yield Text.assemble(
        (setup.checkpoint.name, "bold"),
        (f", vLLM {setup.release}: ", "dim"),
        (plan.verdict, _STYLES.get(plan.verdict, "bold red")),
    )
    yield from _asked(plan)
    if setup.shards * setup.stages > 1:
        yield Text(f"Sizes are those of one of {setup.shards * setup.stages} machines.", "dim")
    if setup.checkpoint.source:
        yield Text(f"Checkpoint: {setup.checkpoint.source}", "dim")
    yield Text()
    yield bar(plan)
    for name, size in plan.parts:
        yield Text.assemble(
            ("  " + _MARKS.get(name, "□") + " ", _COLOURS.get(name, "red")),
            f"{name:<22}{gib(size):>18} GiB",
        )
    yield Text(f"  · {'left to the system':<22}{gib(_left(plan)):>18} GiB")
    yield Text()
    tokens, concurrency, needed = plan.tokens, plan.concurrency, plan.needed
    if tokens is None or concurrency is None or needed is None:
        yield Text(
            "The size of this model's KV cache is unknown, so no context can be planned.", "yellow"
        )
    else:
        yield Text(
            f"  one sequence of {setup.context:,} tokens takes {gib(needed, 2)} GiB of"
            f" {gib(plan.kv, 2)} GiB of KV cache"
        )
        yield Text(f"  KV cache size {tokens:,.0f} tokens, maximum concurrency {concurrency:.2f}x")
        yield Text()
        yield Text(f"  {'sequences at once':<20}{'longest context, tokens':>28}", "bold")
        for count in COUNTS:
            longest = plan.longest(count)
            assert longest is not None
            shown = "none" if longest.high < 1 else f"{longest:,.0f}"
            yield Text(f"  {count:<20}{shown:>28}")
        yield Text()
        yield from _ask(plan)
    yield from _fitting(plan)
    yield from _speed(plan)
    if explain:
        yield Text()
        yield Text("The working", "bold")
        yield from (Text(f"  {line}") for line in plan.working_out())


def _asked(plan: MemoryPlan) -> Iterator[Text]:
    """Who said what, where vLLM was asked."""
    said = plan.said
    if said is None:
        return
    if said.failed is not None:
        yield Text(f"{said.judge} gave no answer ({said.failed}): our figures count.", "yellow")
    elif said.weights_bytes is not None:
        yield Text(
            f"Weights and KV cache: {said.judge}, asked. Working memory and CUDA graphs stay"
            " ranges: only a start measures them; speed is an estimate.",
            "dim",
        )


def _fitting(plan: MemoryPlan) -> Iterator[Text]:
    """Which line fits the machine, if it is another than this one."""
    total, changed = gib(Range.of(plan.host.total), 2), plan.fitting()
    if changed:
        shown = " ".join(f"--{name} {value}" for name, value in changed.items())
        yield Text(f"  fits these {total} GiB with {shown}", "bold")
    elif changed is None:
        yield Text(f"  no line surely fits these {total} GiB", "bold")


def _speed(plan: MemoryPlan) -> Iterator[Text]:
    """Estimated speed, with its interval."""
    if not plan.decode:
        return
    yield Text()
    yield Text(f"  {'requests at once':<20}{'decode, tok/s together (estimate)':>36}", "bold")
    for speed in plan.decode:
        decode = f"{speed.tok_s:.3g}, from {speed.low:.3g} to {speed.high:.3g}"
        yield Text(f"  {speed.concurrency:<20}{decode:>36}")
    yield Text(f"  with {plan.decode[0].context:,} tokens of context each", "dim")
    yield from _published(plan)
    for first in plan.first_token or ():
        cached = f" with {first.cached:,} in the prefix cache" if first.cached else ""
        yield Text(f"  first token after a prompt of {first.prompt:,} tokens{cached}: {first}")


def _published(plan: MemoryPlan) -> Iterator[Text]:
    """The published speeds of one request, at most three."""
    for one in [one for one in plan.published if one.concurrency == 1][:3]:
        line = "this line" if one.own_line else one.setup or "another line"
        yield Text.assemble(("  published: ", "bold"), str(one), (f"; {line}", "dim"))


def _left(plan: MemoryPlan) -> Range:
    return Range.of(plan.host.total) - plan.host.held - plan.engine


def _ask(plan: MemoryPlan) -> Iterator[Text]:
    """What to type."""
    smallest, largest = plan.fraction_for(), plan.largest_fraction
    wanted = min(plan.setup.sequences, 16)
    each = plan.fraction_for(wanted)
    host = "a typical host" if plan.host.available is None else "this host"
    if smallest is None:
        yield Text("  no --gpu-memory-utilization is sure to hold one sequence of this length")
    elif smallest > largest:
        yield Text(
            f"  one sequence needs --gpu-memory-utilization {smallest:.2f}, and {host} can"
            f" spare {largest:.2f}"
        )
    else:
        yield Text(
            f"  --gpu-memory-utilization {smallest:.2f} (enough for one sequence) to"
            f" {largest:.2f} (the most {host} can spare)"
        )
        if each is not None and each <= largest and wanted > 1:
            yield Text(f"  {wanted} such sequences at once need {each:.2f} or more")
    room = (
        plan.host.free_for_engine.low
        - (plan.weights + plan.draft + plan.working + plan.graphs).high
    )
    sizes = {count: plan.kv_bytes_for(count) for count in range(1, wanted + 1)}
    if fitting := [
        (count, size) for count, size in sizes.items() if size is not None and size <= room
    ]:
        count, size = fitting[-1]
        yield Text(
            f"  or --kv-cache-memory-bytes {math.ceil(size / 2**20)}M for {count} such"
            f" sequence{'s' * (count > 1)}"
        )


def reconciled(found: Reconciliation) -> Iterator[Text]:
    """Predicted and logged, line by line."""
    yield Text(f"  {'':<22}{'predicted':>26}{'logged':>14}", "bold")
    for row in found.rows:
        digits = 0 if row.unit == "tokens" else 2
        predicted = "not known" if row.predicted is None else f"{row.predicted:,.{digits}f}"
        logged = "not logged" if row.logged is None else f"{row.logged:,.{digits}f}"
        mark, style = {True: ("in range", "green"), False: ("outside", "yellow"), None: ("", "")}[
            row.inside
        ]
        yield Text.assemble(
            f"  {row.name:<22}{predicted:>26}{logged:>14} {row.unit:<7}", (mark, style)
        )
    if found.working is not None:
        yield Text(f"  context and activations, by the log: {found.working / GIB:.2f} GiB")
