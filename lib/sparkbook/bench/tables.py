"""The tables in which speeds are usually told, from reports: header and rows, for `sparkbook.tables.table` or a terminal.

Their form is that of the published DFlash figures (https://github.com/AEON-7/vllm-dflash): by prompt class, by concurrency, by context,
and one mode against another. tok/s and times carry their definition in the header; a row that the gate did not pass says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sparkbook.bench.results import Cell, Report, Summary

Table = tuple[list[str], list[list[Any]]]


def by_class(report: Report, concurrency: int = 1) -> Table:
    """Prompt class × decode speed and TPOT of a single request."""
    header = ["Prompt class", "decode tok/s (1/TPOT, median)", "95 % CI", "TPOT p50, ms", "tokens a step", "n", "Verdict"]
    rows = []
    for cell in report.cells:
        if cell.concurrency == concurrency:
            f = cell.figures
            speed = f.decode_tok_s
            rows.append(
                [cell.prompt_class, _median(speed), _interval(speed), _median(f.tpot_s, 1000), f.tok_per_step, f.completed, cell.verdict]
            )
    return header, rows


def by_concurrency(report: Report, prompt_class: str | None = None) -> Table:
    """Concurrency × aggregate, median of a request, TTFT and TPOT."""
    header = [
        "Class",
        "Load",
        "out_tok_s (whole run)",
        "steady_tok_s",
        "req tok/s, median",
        "TTFT p50, ms",
        "TTFT p90, ms",
        "TPOT p50, ms",
        "n",
        "Verdict",
    ]
    rows = []
    for cell in report.cells:
        if prompt_class in (None, cell.prompt_class):
            f = cell.figures
            times = [_median(f.ttft_s, 1000), f.ttft_s and f.ttft_s.p90 * 1000, _median(f.tpot_s, 1000)]
            rows.append(
                [cell.prompt_class, cell.load, f.out_tok_s, f.steady_tok_s, _median(f.req_tok_s), *times, f.completed, cell.verdict]
            )
    return header, rows


def by_context(report: Report) -> Table:
    """Context × prefill and decode: the rows of the `long-` classes."""
    header = [
        "Context, tokens",
        "prefill tok/s (prompt/TTFT)",
        "decode tok/s (1/TPOT)",
        "step, ms",
        "tokens a step",
        "TTFT p50, ms",
        "n",
        "Verdict",
    ]
    rows = []
    for cell in report.cells:
        if cell.context is not None:
            f = cell.figures
            inputs = [r.prompt_tokens for r in cell.requests if r.prompt_tokens]
            tokens = round(sum(inputs) / len(inputs)) if inputs else cell.context
            rows.append(
                [
                    tokens,
                    _median(f.prefill_tok_s),
                    _median(f.decode_tok_s),
                    _median(f.step_gap_s, 1000),
                    f.tok_per_step,
                    _median(f.ttft_s, 1000),
                    f.completed,
                    cell.verdict,
                ]
            )
    return header, rows


def modes(reports: Sequence[Report]) -> Table:
    """The same rows in several modes, such as TurboQuant off, capture_only and hybrid; the last against the first in percent.

    The quantity is `out_tok_s` above one request, decode speed for one. A paired comparison is worth more than this difference.
    """
    names = [report.label or report.tool for report in reports]
    header = ["Class", "Load", *[f"{name}, tok/s" for name in names], f"Δ {names[-1]} vs {names[0]}, %", "Verdict"]
    rows = []
    for cell in reports[0].cells:
        others = [_same(report, cell) for report in reports]
        if all(other is not None for other in others):
            found = [other for other in others if other is not None]
            speeds = [_median(c.figures.decode_tok_s) if c.concurrency == 1 else c.figures.out_tok_s for c in found]
            first, last = speeds[0], speeds[-1]
            delta = 100 * (last / first - 1) if first and last else None
            worst = Report(date="", tool="", model="", cells=found).verdict
            rows.append([cell.prompt_class, cell.load, *speeds, delta, worst])
    return header, rows


def _same(report: Report, cell: Cell) -> Cell | None:
    return next(
        (c for c in report.cells if (c.prompt_class, c.concurrency, c.rate) == (cell.prompt_class, cell.concurrency, cell.rate)), None
    )


def _median(summary: Summary | None, factor: float = 1.0) -> float | None:
    return summary.median * factor if summary else None


def _interval(summary: Summary | None) -> str | None:
    ends = summary and (summary.median_ci or summary.mean_ci)
    return f"{ends[0]:.1f} to {ends[1]:.1f}" if ends else None
