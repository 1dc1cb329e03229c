"""A diagnosis for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from sparkbook.logs.judging import short
from sparkbook.units import format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sparkbook.logs.doctor import Diagnosis
    from sparkbook.logs.together import Together


_STYLES = {"healthy": "bold green", "starting": "bold yellow", "cut off": "bold yellow"}


def lines(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    """Yield the verdict, the findings, what the engine resolved, the phases of the start, and after
    a fault the last line of each process.
    """
    story = diagnosis.story
    head = diagnosis.verdict.capitalize()
    shown = diagnosis.headline if diagnosis.healthy else f"{head}: {diagnosis.headline}"
    yield Text(shown, _STYLES.get(diagnosis.verdict, "bold red"))
    for finding in diagnosis.findings:
        yield Text()
        yield finding
    facts = {
        name: value for name, value in story.facts().items() if name not in ("starts", "ready")
    }
    if facts:
        yield Text("\nWhat the engine resolved", "bold")
        for name, value in facts.items():
            shown = f"{value:g}" if isinstance(value, float) else short(str(value), 400)
            yield Text.assemble((f"  {name:<20}", "cyan"), shown)
    if story.phases:
        yield Text("\nThe start", "bold")
        for phase in story.phases:
            took = format_seconds(phase.seconds)
            yield Text(f"  {phase.begin_s:8.1f} s  {phase.name:<16} {took:>10}  {phase.detail}")
    if diagnosis.primary and len(story.last_lines) > 1:
        yield Text("\nLast line of each process", "bold")
        for name, line in story.last_lines.items():
            yield Text(f"  {name:<24} {line}", "dim", overflow="ellipsis", no_wrap=True)


def of_run(run: Together) -> Iterator[RenderableType]:
    """Yield the answer to several logs of one run: the verdict, the findings, and the logs in the
    order in which they fell silent.
    """
    shown = run.headline if run.healthy else f"{run.verdict.capitalize()}: {run.headline}"
    yield Text(shown, _STYLES.get(run.verdict, "bold red"))
    for finding in run.findings:
        yield Text()
        yield finding
    yield Text("\nThe logs, in the order in which they fell silent", "bold")
    for member in run.members:
        what = "only reports it" if member.only_reports else member.diagnosis.verdict
        yield Text.assemble((f"  {member.name:<24}", "cyan"), f" {what}")
