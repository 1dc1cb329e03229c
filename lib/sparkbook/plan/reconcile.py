"""After the start: what the engine's log says next to what the plan said, why they differ, and what
this machine's next plans take over.

    working memory = total * fraction - weights - KV cache - CUDA graphs

is what a log shows of context and activations together; kept in a calibration file, it replaces the
general bounds from then on.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkbook.checkpoint.values import Range
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.plan.memory import Calibration, MemoryPlan
from sparkbook.plan.rules import of_log
from sparkbook.units import GIB
from sparkbook.util import limits

if TYPE_CHECKING:
    from sparkbook.logs.story import Story

ROUNDING = 0.005 * GIB
"""A log rounds GiB to two decimals."""


@dataclass(frozen=True)
class Row:
    """One figure: predicted (a range) and logged, in the log's unit; None where either does not
    say.
    """

    name: str
    predicted: Range | None
    logged: float | None
    unit: str

    @property
    def ratio(self) -> float | None:
        """Logged over predicted, the middle of the range."""
        if (
            self.predicted is None
            or self.logged is None
            or not self.predicted.known
            or self.predicted.middle == 0
        ):
            return None
        return self.logged / self.predicted.middle

    @property
    def inside(self) -> bool | None:
        """Whether the logged figure lies in the predicted range, but for the log's rounding."""
        if self.predicted is None or self.logged is None:
            return None
        slack = 0.0051 if self.unit in ("GiB", "x") else 1.0
        return self.predicted.low - slack <= self.logged <= self.predicted.high + slack


class Logged(NamedTuple):
    """What the rules compare: a plan, and what the log of its start shows.

    Attributes:
        rows, tokens_for_memory, working: see `Reconciliation`.
        graphs: the engine's estimate of CUDA graphs in GiB.
    """

    plan: MemoryPlan
    story: Story
    rows: tuple[Row, ...]
    tokens_for_memory: Range | None
    working: float | None
    graphs: float | None


@dataclass(frozen=True)
class Reconciliation:
    """Predicted and logged, side by side.

    Attributes:
        rows: weights, KV cache, its tokens and the maximum concurrency.
        tokens_for_memory: tokens that the plan's pages give for the logged KV memory: tells a
            difference in memory from one in pages.
        working: bytes of context and activations that the log implies; None where it does not say
            enough.
        findings: differences and their explanation.
        calibration: for the next plans on this machine.
    """

    rows: tuple[Row, ...]
    tokens_for_memory: Range | None
    working: float | None
    findings: Findings
    calibration: Calibration

    def to_dict(self) -> dict[str, Any]:
        """The shape of `--json`."""
        return self.findings.to_dict(
            rows=[
                {
                    "name": r.name,
                    "unit": r.unit,
                    "predicted": (
                        None if r.predicted is None else [r.predicted.low, r.predicted.high]
                    ),
                    "logged": r.logged,
                    "inside": r.inside,
                }
                for r in self.rows
            ],
            calibration=asdict(self.calibration),
        )


def reconcile(plan: MemoryPlan, story: Story) -> Reconciliation:
    """Compares a plan with a log.

    Raises:
        SparkbookError: the log holds none of the figures: it is no engine's log, or the start did
            not come that far.
    """
    if story.weights_gib is None and story.kv_gib is None and story.kv_tokens is None:
        raise SparkbookError(
            "the log does not report weights or KV cache: give the log of a start that reached"
            " 'Available KV cache'"
        )
    gib = 1 / GIB
    predicted_weights = (plan.weights + plan.draft) * gib
    rows = (
        Row("weights", predicted_weights if plan.weights.known else None, story.weights_gib, "GiB"),
        Row(
            "KV cache",
            plan.kv * gib if plan.kv.known and plan.kv.low > -1e18 else None,
            story.kv_gib,
            "GiB",
        ),
        Row("KV tokens", plan.tokens, story.kv_tokens, "tokens"),
        Row("maximum concurrency", plan.concurrency, story.concurrency, "x"),
    )
    for_memory = None
    if story.kv_gib is not None and plan.pages and story.kv_gib > 0:
        around = (max(story.kv_gib * GIB - ROUNDING, 0), story.kv_gib * GIB + ROUNDING)
        for_memory = Range.hull(pages.tokens(end) for pages in plan.pages for end in around)
    graphs = story.graph_estimate_gib
    working = None
    if story.weights_gib is not None and story.kv_gib is not None and plan.requested is not None:
        taken = (graphs or 0.0) if plan.graphs_counted else 0.0
        working = plan.requested - (story.weights_gib + story.kv_gib + taken) * GIB
    old = plan.calibration
    honest = graphs is None or graphs >= 0
    calibration = old
    if honest:
        ratio = rows[0].ratio if plan.weights.known else None
        captured = story.graph_gib if story.graph_gib is not None else graphs
        calibration = Calibration(
            weights=_mean(old.weights, old.samples, old.weights * ratio if ratio else None),
            working=_mean(old.working, old.samples, working if working and working > 0 else None),
            graphs=_mean(old.graphs, old.samples, captured * GIB if captured is not None else None),
            samples=old.samples + 1,
        )
    findings = of_log(Logged(plan, story, rows, for_memory, working, graphs))
    return Reconciliation(rows, for_memory, working, findings, calibration)


def _mean(old: Any, samples: int, new: float | None) -> Any:
    """The mean of what was known and one more sample; the old one where there is none."""
    if new is None:
        return old
    return new if old is None or samples == 0 else (old * samples + new) / (samples + 1)


def with_log(plan: MemoryPlan, log: Path, calibration: Path | None = None) -> Reconciliation:
    """Compare a plan with an engine's log file, and keep what this machine showed.

    Args:
        calibration: the file to update; None keeps nothing.

    Raises:
        SparkbookError: a file can't be used, or the log holds none of the figures.
    """
    from sparkbook import logs

    try:
        compared = reconcile(plan, logs.diagnose(log).story)
        if calibration:
            save_calibration(calibration, compared.calibration)
    except OSError as error:
        raise SparkbookError(f"{error.filename} can't be used: {error.strerror}") from None
    return compared


def load_calibration(path: Path, *, must_exist: bool = False) -> Calibration:
    """Return the calibration in a file; the general figures if there is no file.

    Raises:
        SparkbookError: the file is no calibration, or must exist and does not.
    """
    if not path.exists():
        if must_exist:
            raise SparkbookError(f"No calibration file {path}. To make one, give --log as well")
        return Calibration()
    try:
        data = limits.read_json(path, "the calibration")
    except SparkbookError as error:
        raise SparkbookError(f"{error}; name another file") from None
    try:
        found = Calibration(
            **{name: data[name] for name in ("weights", "working", "graphs", "samples")}
        )
        numbers = [
            value
            for value in (found.weights, found.working, found.graphs, found.samples)
            if value is not None
        ]
        if (
            not all(isinstance(value, int | float) and value >= 0 for value in numbers)
            or not 0.1 < found.weights < 10
        ):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        raise SparkbookError(
            f"{path} is no calibration file: it lacks a figure, or one cannot be; name another file"
        ) from None
    return found


def save_calibration(path: Path, calibration: Calibration) -> None:
    """Writes a calibration for `load_calibration`."""
    from sparkbook.util.files import write_text

    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(asdict(calibration), indent=2) + "\n")
