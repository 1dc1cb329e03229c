"""What a tuning run has measured, on disk after every start: an interruption keeps all of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from sparkbook.bench import recording
from sparkbook.bench.equality import Answer
from sparkbook.bench.results import Report
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding

TOGETHER = ("short", "longer")
"""How the names of stages begin in which nodes work side by side."""


class Outcome(BaseModel):
    """What one start gave.

    Attributes:
        candidate: its key. stage: which measurement of it. node: where; None: on this machine. The
            three name an outcome.
        seconds: start and measurement together. start_s: the start alone; None if it died.
        report: the measurement; None if the start died.
        rejected: why the measurement does not count, though it was repeated.
        died: why the server ended, in one sentence.
        kv_tokens: tokens that its KV cache holds.
        digest: of the image that ran.
        shape: speed under other loads, and the first token of a long prompt.
        answers: greedy replies; of the baseline two rounds.
        trial: the verdict on the replies, as `bench.lossless.Trial.to_dict` has it.
        tools: what the check of tool calls found; None: not checked.
    """

    model_config = ConfigDict(extra="forbid")

    candidate: str
    stage: str
    node: str | None = None
    seconds: float = Field(ge=0)
    start_s: float | None = None
    report: Report | None = None
    rejected: str | None = None
    died: str | None = None
    kv_tokens: int | None = None
    digest: str | None = None
    shape: Report | None = None
    answers: list[list[Answer]] = Field(default_factory=list)
    trial: dict[str, Any] | None = None
    tools: list[Finding] | None = None

    @property
    def counts(self) -> bool:
        """Whether its speed may be compared."""
        return self.died is None and self.rejected is None and self.report is not None


class Journal:
    """The outcomes so far, by candidate, stage and node. Attributes: `about` says of what."""

    def __init__(self, file: str | Path | None, about: dict[str, Any]):
        """Open a journal, or begin one; without a file it is not kept.

        Raises:
            SparkbookError: the file can't be read, or is about something else.
        """
        self.file = Path(file) if file is not None else None
        self.about = about
        self._outcomes: dict[tuple[str, str, str | None], Outcome] = {}
        if self.file is not None and self.file.exists():
            kept = read(self.file)
            if kept.about != about:
                raise SparkbookError(
                    f"{self.file} is about another recipe, use or load: name another file"
                )
            self._outcomes = kept._outcomes

    def get(self, candidate: str, stage: str, node: str | None = None) -> Outcome | None:
        """Return an outcome, on a node or on whichever; None: there is none yet."""
        if node is not None:
            return self._outcomes.get((candidate, stage, node))
        key = (candidate, stage)
        return next((one for one in self if (one.candidate, one.stage) == key), None)

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome, in place of an earlier one of the same name.

        Raises:
            SparkbookError: the file can't be written.
        """
        self._outcomes[outcome.candidate, outcome.stage, outcome.node] = outcome
        self._keep()

    def _keep(self) -> None:
        if self.file is not None:
            self.write(self.file)

    def write(self, file: str | Path) -> None:
        """Write all of it.

        Raises:
            SparkbookError: the file can't be written.
        """
        rows = (one.model_dump(mode="json", by_alias=True, exclude_none=True) for one in self)
        recording.write(file, self.about, rows)

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self._outcomes.values())

    @property
    def spent_s(self) -> float:
        """Seconds so far, those before an interruption too: of all starts, and where nodes work
        side by side, of the one that took longest.
        """
        seconds: defaultdict[str | None, float] = defaultdict(float)
        for one in self:
            seconds[one.node if one.stage.startswith(TOGETHER) else ""] += one.seconds
        together = [value for node, value in seconds.items() if node != ""]
        return max(together, default=0) + seconds[""]


def read(file: str | Path) -> Journal:
    """Read a journal, of whatever it is about.

    Raises:
        SparkbookError: it can't be read, or is no journal.
    """

    def made(head: dict[str, Any], rest: list[Any]) -> Journal:
        journal = Journal(None, dict(head))
        for row in rest:
            journal.add(Outcome.model_validate(row))
        return journal

    return recording.read(file, "a journal of sparkbook tune", made)
