"""What a log shows as a whole, by its evidence: healthy only if something says so.

A ready line or answered requests are evidence of health, if nothing that went wrong comes after
them. Everything else is one of the other verdicts; which one depends on who wrote the log and on
what its last lines say.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from sparkbook.logs.judging import Judged
from sparkbook.logs.story import Story

Verdict = Literal[
    "healthy",
    "starting",
    "stopped",
    "cut off",
    "fault",
    "fault, cause unknown",
    "slow",
    "stuck",
    "client error",
    "docker",
    "kernel log",
    "download",
    "empty",
]
MEANINGS: dict[Verdict, str] = {
    "healthy": "The engine is up: its log says so, and nothing went wrong since.",
    "starting": "The start is under way; nothing is wrong so far.",
    "stopped": "Somebody stopped the engine before it was ready.",
    "cut off": "The log shows neither that the engine is up nor why it is not.",
    "fault": "Something went wrong, and the cause is known.",
    "fault, cause unknown": "Something went wrong; who said it, where, and when is known.",
    "slow": "The engine works more slowly than it should.",
    "stuck": "The engine waits for something that does not come.",
    "client error": "The server refused a request; the client has to change it.",
    "docker": "The container engine speaks, not vLLM.",
    "kernel log": "The kernel or the driver speaks, not vLLM.",
    "download": "A download or an installation speaks, not vLLM.",
    "empty": "There is no line in it.",
}
"""Every verdict, and what it means."""

_STUCK = frozenset({"multi-node-hang", "hang-health-ok", "loader-hang"})
_SLOW = frozenset({"slow-load", "thermal-throttle", "power-throttle"})
_QUEUES = frozenset({"silent-slow"})
_DOCKER = frozenset({"docker-permission", "nvidia-runtime", "registry-auth"})
_DOWNLOAD = frozenset({"gated-download", "download-corrupt"})
_BY: dict[str, Verdict] = {
    "client": "client error",
    "docker": "docker",
    "kernel": "kernel log",
    "systemd": "kernel log",
    "download": "download",
}


def of_fault(primary: Judged, engine: bool, unknown: bool) -> Verdict:
    """Return the verdict on a log with a fault.

    Args:
        engine: whether the log has lines of vLLM itself.
        unknown: whether no signature and no vocabulary explains the fault.
    """
    if not engine:
        kind = primary.finding.kind
        if primary.by == "client":
            return "client error"
        if kind in _DOCKER:
            return "docker"
        if kind in _DOWNLOAD:
            return "download"
        if primary.by in _BY:
            return _BY[primary.by]
    return "fault, cause unknown" if unknown else "fault"


def without_fault(
    story: Story, warned: Set[str | None], *, stopped: bool, refused: bool, speaker: str
) -> Verdict:
    """Return the verdict on a log without a fault.

    Args:
        warned: the kinds of its warnings.
        stopped: whether the engine was ordered to stop.
        refused: whether more requests were refused than answered.
        speaker: who wrote most of the log, as `Line.source` has it.
    """
    if warned & _STUCK:
        return "stuck"
    if refused:
        return "client error"
    if warned & _QUEUES:
        return "slow"
    if is_up(story):
        return "healthy"
    if warned & _SLOW:
        return "slow"
    if stopped:
        return "stopped"
    if story.starts or story.stage == "begin":
        return "starting"
    return _BY.get(speaker, "cut off")


def is_up(story: Story) -> bool:
    """Whether the log has evidence that the engine serves: of its last start, if it has several."""
    return story.ready or (story.answered > 0 and story.starts <= 1)
