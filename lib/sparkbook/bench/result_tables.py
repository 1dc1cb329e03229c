"""The tables in which speeds are usually shown, from reports: header and rows, for
`sparkbook.util.tables.table` or a terminal.

Their form is that of the published DFlash figures (https://github.com/AEON-7/vllm-dflash): by
prompt class, by concurrency, by context, and one mode against another. tok/s and times carry their
definition in the header; a row that the gate did not pass says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkbook.bench.results import Cell, Report, Summary
from sparkbook.errors import SparkbookError
from sparkbook.util import invalid, limits

if TYPE_CHECKING:
    from sparkbook.bench.sweep import Sweep
    from sparkbook.recipes.schema import Speed

Table = tuple[list[str], list[list[Any]]]


def by_class(report: Report, concurrency: int = 1) -> Table:
    """Return a table: prompt class × decode speed and TPOT of a single request."""
    header = [
        "Prompt class",
        "decode tok/s (1/TPOT, median)",
        "95 % CI",
        "TPOT p50, ms",
        "tokens a step",
        "n",
        "Verdict",
    ]
    rows = []
    for cell in report.cells:
        if cell.concurrency == concurrency:
            f = cell.figures
            speed = f.decode_tok_s
            rows.append(
                [
                    cell.prompt_class,
                    _median(speed),
                    _interval(speed),
                    _median(f.tpot_s, 1000),
                    f.tok_per_step,
                    f.completed,
                    cell.verdict,
                ]
            )
    return header, rows


def by_concurrency(report: Report, prompt_class: str | None = None) -> Table:
    """Return a table: concurrency × aggregate, median of a request, TTFT and TPOT."""
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
            times = [
                _median(f.ttft_s, 1000),
                f.ttft_s and f.ttft_s.p90 and f.ttft_s.p90 * 1000,
                _median(f.tpot_s, 1000),
            ]
            rows.append(
                [
                    cell.prompt_class,
                    cell.load,
                    f.out_tok_s,
                    f.steady_tok_s,
                    _median(f.req_tok_s),
                    *times,
                    f.completed,
                    cell.verdict,
                ]
            )
    return header, rows


def by_context(report: Report) -> Table:
    """Return a table: context × prefill and decode, from the rows of the `long-` classes."""
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


def clients(file: str | Path | None = None) -> tuple[dict[str, Any], Table]:
    """Compare measuring tools on a server with known timing, recorded with
    `tools/compare_clients.py`: each tool's figure less the truth.

    Returns:
        Date, machine and versions; and the table. CPU is that of all of a tool's processes, of the
        runs for which it was taken.

    Raises:
        SparkbookError: the file can't be read, or is something else.
    """
    file = file or Path(__file__).with_name("recorded") / "clients.json"
    try:
        kept = limits.read_json(file)
        rows = []
        for row in kept["rows"]:
            true, measured = row["truth"], row["told"]

            def share(
                name: str, true: dict[str, Any] = true, measured: dict[str, Any] = measured
            ) -> str | None:
                return (
                    None
                    if measured.get(name) is None or not true.get(name)
                    else f"{100 * (measured[name] / true[name] - 1):+.1f}"
                )

            rows.append(
                [
                    row["tool"],
                    row["shape"],
                    row["slots"],
                    f"{1000 * (measured['ttft_s'] - true['ttft_s']):+.1f}",
                    share("tpot_s"),
                    share("step_gap_s"),
                    share("out_tok_s"),
                    row.get("cpu_us_a_chunk") and round(row["cpu_us_a_chunk"]),
                ]
            )
        about = {name: kept[name] for name in ("date", "machine", "versions")}
    except OSError as error:
        raise SparkbookError(f"{file} can't be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SparkbookError(
            f"{file} is not a comparison of measuring tools: {invalid.reason(error)}"
        ) from None
    header = [
        "tool",
        "server",
        "at a time",
        "TTFT, ms",
        "TPOT, %",
        "step, %",
        "tok/s, %",
        "CPU, µs a chunk",
    ]
    return about, (header, rows)


def modes(reports: Sequence[Report]) -> Table:
    """Return the same rows in several modes, such as TurboQuant off, capture_only and hybrid; the
    last against the first in percent.

    The quantity is `out_tok_s` above one request, decode speed for one. A paired comparison is
    worth more than this difference.
    """
    names = [report.label or report.tool for report in reports]
    header = [
        "Class",
        "Load",
        *[f"{name}, tok/s" for name in names],
        f"Δ {names[-1]} vs {names[0]}, %",
        "Verdict",
    ]
    rows = []
    for cell in reports[0].cells:
        others = [_same(report, cell) for report in reports]
        if all(other is not None for other in others):
            found = [other for other in others if other is not None]
            speeds = [
                _median(c.figures.decode_tok_s) if c.concurrency == 1 else c.figures.out_tok_s
                for c in found
            ]
            first, last = speeds[0], speeds[-1]
            delta = 100 * (last / first - 1) if first and last else None
            worst = Report(date="", tool="", model="", cells=found).verdict
            rows.append([cell.prompt_class, cell.load, *speeds, delta, worst])
    return header, rows


def speculation(found: Sweep, concurrency: int = 1) -> Table:
    """Return a table: prompt class × drafts a step, with the speed, what was accepted, and the
    paired gain over no speculation with its 95 % interval.

    tok/s is 1/TPOT, medians over prompts. Acceptance is accepted / drafted; the length is 1 +
    accepted / drafts, over the steps that had a draft; tokens a step are the client's, over all
    steps.
    """
    header = [
        "Class",
        "K",
        "tok/s",
        "TPOT, ms",
        "accepted, %",
        "length",
        "tokens a step",
        "times as fast (95 %)",
        "Verdict",
    ]
    rows: list[list[Any]] = []
    advice = found.advice()
    arms = [
        (0, found.off[0]),
        *((k, report) for k, reports in found.arms.items() for report in reports),
    ]
    for name in advice.classes:
        for k, report in arms:
            for cell in (
                c for c in report.cells if (c.prompt_class, c.concurrency) == (name, concurrency)
            ):
                f, engine = cell.figures, cell.engine
                figures: list[Any] = [None, None, None]
                if k:
                    case = advice.case(k, name, concurrency)
                    assert case is not None  # every arm of the sweep has its case
                    gain = case.comparison
                    low, high = gain.interval or (math.nan, math.nan)
                    figures = [
                        100 * engine.acceptance if engine and engine.acceptance else None,
                        engine and engine.mean_length,
                        f"{gain.ratio:.2f} ({low:.2f} to {high:.2f})",
                    ]
                length = figures[1] and f"{figures[1]:.2f}"
                steps = f.tok_per_step and f"{f.tok_per_step:.2f}"
                rows.append(
                    [
                        name,
                        k or "off",
                        _median(f.decode_tok_s),
                        _median(f.tpot_s, 1000),
                        figures[0],
                        length,
                        steps,
                        figures[2],
                        cell.verdict,
                    ]
                )
    return header, rows


def published(speeds: Sequence[Speed]) -> dict[str, Table]:
    """Return the same four forms from figures that others published: `class`, `concurrency`,
    `context` and `modes`, those for which there are any.

    Where several configurations are given, the first three forms are of the first one.
    """
    names = list(dict.fromkeys(s.configuration for s in speeds))
    words = [(name or "as it comes").split("=")[-1] for name in names]
    first = [s for s in speeds if s.configuration == names[0]] if names else []
    loaded = [
        c
        for c in dict.fromkeys(s.prompt_class for s in first)
        if any(s.concurrency > 1 for s in first if s.prompt_class == c)
    ]
    made: dict[str, Table] = {
        "class": (
            ["Prompt class", "tok/s", "TPOT, ms", "TTFT, ms"],
            [
                [s.prompt_class, s.decode_tok_s, s.tpot_ms, s.ttft_ms]
                for s in first
                if s.concurrency == 1 and not s.context_tokens
            ],
        ),
        "concurrency": (
            ["Class", "Requests at a time", "tok/s in all", "tok/s of one", "TTFT, ms", "TPOT, ms"],
            [
                [
                    s.prompt_class,
                    s.concurrency,
                    s.aggregate_tok_s or s.decode_tok_s,
                    s.decode_tok_s,
                    s.ttft_ms,
                    s.tpot_ms,
                ]
                for name in loaded
                for s in first
                if s.prompt_class == name
            ],
        ),
        "context": (
            ["Context, tokens", "decode tok/s", "TTFT, ms", "TPOT, ms"],
            [
                [s.context_tokens, s.decode_tok_s, s.ttft_ms, s.tpot_ms]
                for s in first
                if s.context_tokens
            ],
        ),
        "modes": (
            [
                "Class",
                "Requests at a time",
                "Context, tokens",
                *(f"{word}, tok/s" for word in words),
                f"Δ {words[-1]} vs {words[0]}, %" if words else "Δ",
            ],
            _mode_rows(speeds, names) if len(names) > 1 else [],
        ),
    }
    return {name: _known_columns(header, rows) for name, (header, rows) in made.items() if rows}


def _known_columns(header: list[str], rows: list[list[Any]]) -> Table:
    """Remove the columns in which nothing is known."""
    kept = [i for i in range(len(header)) if any(row[i] is not None for row in rows)]
    return [header[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _mode_rows(speeds: Sequence[Speed], names: Sequence[str | None]) -> list[list[Any]]:
    rates = {
        (s.prompt_class, s.concurrency, s.context_tokens, s.configuration): (
            s.aggregate_tok_s or s.decode_tok_s
        )
        for s in speeds
    }
    rows = []
    for key in dict.fromkeys(key[:3] for key in rates):
        values = [rates.get((*key, name)) for name in names]
        first, last = values[0], values[-1]
        rows.append([*key, *values, 100 * (last / first - 1) if first and last else None])
    return rows


def _same(report: Report, cell: Cell) -> Cell | None:
    return next(
        (
            c
            for c in report.cells
            if (c.prompt_class, c.concurrency, c.rate)
            == (cell.prompt_class, cell.concurrency, cell.rate)
        ),
        None,
    )


def _median(summary: Summary | None, factor: float = 1.0) -> float | None:
    return summary.median * factor if summary else None


def _interval(summary: Summary | None) -> str | None:
    ends = summary and (summary.median_ci or summary.mean_ci)
    return f"{ends[0]:.1f} to {ends[1]:.1f}" if ends else None
