"""After the start: what the engine's log says beside what the plan said, why they differ, and what
this machine's next plans take over.

    working memory = total * fraction - weights - KV cache - CUDA graphs

is what a log shows of context and activations together; kept in a calibration file, it replaces the
general bounds from then on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkbook.checkpoint.values import Range
from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.plan.memory import Calibration, Plan, finding
from sparkbook.units import GIB

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


def reconcile(plan: Plan, story: Story) -> Reconciliation:
    """Compares a plan with what a log told.

    Raises:
        SparkbookError: the log holds none of the figures: it is no engine's log, or the start did
            not come that far.
    """
    if story.weights_gib is None and story.kv_gib is None and story.kv_tokens is None:
        raise SparkbookError(
            "the log says nothing of weights or KV cache: give the log of a start that came as far"
            " as 'Available KV cache'"
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
    findings = Findings(_explain(plan, story, rows, for_memory, working, graphs))
    return Reconciliation(rows, for_memory, working, findings, calibration)


def _mean(old: Any, samples: int, new: float | None) -> Any:
    """The mean of what was known and one more sample; the old one where there is none."""
    if new is None:
        return old
    return new if old is None or samples == 0 else (old * samples + new) / (samples + 1)


def _explain(
    plan: Plan,
    story: Story,
    rows: tuple[Row, ...],
    for_memory: Range | None,
    working: float | None,
    graphs: float | None,
) -> Iterator[Finding]:
    if graphs is not None and graphs < 0:
        held = ""
        if plan.requested is not None:
            held = (
                f"; the engine grows to {(plan.requested - graphs * GIB) / GIB:.1f} of"
                f" {plan.host.total / GIB:.1f} GiB"
            )
        honest = (
            f"; without it the cache would have {story.kv_gib + graphs:.1f} GiB"
            if story.kv_gib is not None
            else ""
        )
        yield finding(
            "PLAN110",
            f"the estimate of CUDA graphs is {graphs:g} GiB, so the KV cache has {-graphs:g} GiB"
            f" too many{held}{honest}",
            f"Estimated CUDA graph memory: {graphs:g} GiB total",
            "--kv-cache-memory-bytes with a size that fits, or"
            " VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 and a lower fraction",
        )
    weights, cache, tokens, _ = rows
    if story.max_model_len and story.max_model_len != plan.setup.context:
        yield finding(
            "PLAN111",
            f"the engine runs with {story.max_model_len:,} tokens of context, the plan has"
            f" {plan.setup.context:,}: no match",
            fix=f"plan with --context {story.max_model_len}",
        )
    if weights.inside is False:
        assert weights.predicted is not None
        yield finding(
            "PLAN111",
            f"weights: {weights.logged:.2f} GiB logged, {weights.predicted:.2f} predicted",
            None,
            "layers that are in another format than written down, or repacked while loading; the"
            " headers tell (--hub)",
        )
    if cache.inside is False and not (graphs is not None and graphs < 0):
        assert cache.predicted is not None and cache.logged is not None
        told = "because of the weights" if weights.inside is False else "by context and activations"
        more = (
            f"; context and activations take {working / GIB:.2f} GiB" if working is not None else ""
        )
        yield finding(
            "PLAN111",
            f"KV cache: {cache.logged:.2f} GiB logged, {cache.predicted:.2f} predicted:"
            f" {told}{more}",
        )
    if (
        for_memory is not None
        and story.kv_tokens is not None
        and not for_memory.low - 1 <= story.kv_tokens <= for_memory.high + 1
    ):
        off = story.kv_tokens / for_memory.middle - 1
        yield finding(
            "PLAN111",
            f"pages: {story.kv_tokens:,} tokens logged, {for_memory:,.0f} for the logged memory"
            f" ({off:+.1%})",
            None,
            "another cache type, block size, prefix caching or draft than planned for",
        )
    elif tokens.inside is False and for_memory is not None:
        yield finding(
            "PLAN111",
            "the tokens differ only because the memory does: the pages agree",
            severity="info",
        )


def with_log(plan: Plan, log: Path, calibration: Path | None = None) -> Reconciliation:
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
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        if must_exist:
            raise SparkbookError(
                f"No calibration file {path}. To make one, give --log as well"
            ) from None
        return Calibration()
    except (OSError, ValueError) as error:
        raise SparkbookError(
            f"{path} is no calibration file:"
            f" {getattr(error, 'strerror', None) or 'it is not JSON'}; name another file"
        ) from None
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
