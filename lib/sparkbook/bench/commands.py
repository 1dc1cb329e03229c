"""What `sparkbook bench` does between its options and the library: read lists, draw the bar, print
the tables.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkbook.bench import exchange, gate, load, result_tables, vllm_bench
from sparkbook.bench.results import Report
from sparkbook.errors import SparkbookError
from sparkbook.findings import Findings
from sparkbook.plan import request
from sparkbook.serve import attach
from sparkbook.serve.endpoint import Endpoint
from sparkbook.util.files import check_place, spared, write_text

if TYPE_CHECKING:
    from rich.console import Console

    from sparkbook.bench.advise import Advice
    from sparkbook.bench.lossless import Trial


def obtain(
    source: str,
    options: dict[str, Any],
    *,
    model: str | None = None,
    bar: bool = False,
    out: str | None = None,
    form: str = "sparkbook",
) -> Report:
    """Measure a server at an address, or read a file of an earlier measurement.

    Args:
        source: an address, or a file that `exchange.read` knows: ours, or another tool's.
        options: fields of `load.BenchPlan`; lists as words with commas. `recipe`: what the server
            was started with, as `plan.request.read` takes it.
        model: the served name; the first that the server lists where it is not given.
        bar: draw a progress bar on standard error.
        out, form: where and how the result will be kept: what is wrong with them is said before the
            measurement, not after it.

    Raises:
        SparkbookError: an option can't be used, or nothing answers.
    """
    _check_form(form)
    options = dict(options)
    recipe = options.pop("recipe", None)
    if not source.startswith(("http://", "https://")):
        if recipe:
            raise SparkbookError(
                f"--recipe can't be used with a result file: '{source}' was judged when it was"
                " measured"
            )
        if not Path(source).is_file():
            raise SparkbookError(
                f"'{source}' is neither an address such as http://127.0.0.1:8000 nor a result file"
            )
        report = exchange.read(source)
        _check_target(out, form, len(report.cells))
        return report
    plan = load.BenchPlan(
        **{
            **options,
            "classes": _words(options["classes"], str, "classes"),
            "concurrency": _words(options["concurrency"], int, "concurrency"),
            "rates": _words(options["rates"] or "", float, "rate"),
        }
    )
    _check_target(out, form, sum(1 for _ in plan.rows()))
    setup = request.read(recipe) if recipe else None
    endpoint = _server(source, model)
    with _bar(bar) as progress:
        return load.measure(endpoint, plan, progress=progress, setup=setup)


def _server(url: str, model: str | None = None) -> Endpoint:
    endpoint = attach.server(url, model or "")
    if endpoint.model:
        return endpoint
    names = endpoint.served_models()
    if not names:
        raise SparkbookError(f"{endpoint.url} serves no model")
    return Endpoint(endpoint.url, names[0], endpoint.api_key)


def _asking(progress: load.Progress, total: int, done: int) -> None:
    progress("asking A, B and A again", done, total)


def equal_servers(
    a: str, b: str, option: str, *, each: int, max_tokens: int, bar: bool = False
) -> Trial:
    """Compare what two servers answer; see `lossless.compare`.

    Raises:
        SparkbookError: an address is none, or a server does not answer or gives no
            log-probabilities.
    """
    from sparkbook.bench import lossless

    a, b = (attach.server(url).url for url in (a, b))  # no address: said before one is asked
    first, second = _server(a), _server(b)
    total = 3 * (len(lossless.texts(each)) + len(lossless.tasks()))
    with _bar(bar) as progress:
        report_progress = functools.partial(_asking, progress, total) if progress else None
        return lossless.compare(
            first, second, option=option, progress=report_progress, each=each, max_tokens=max_tokens
        )


def obtain_with_vllm(
    url: str,
    options: dict[str, Any],
    *,
    model: str | None = None,
    tokenizer: str | None = None,
    out: str | None = None,
    form: str = "sparkbook",
) -> Report:
    """Let `vllm bench serve` measure a server, a run for each number of requests at a time, and
    import its rows.

    Args:
        url: the server's address.
        options: `concurrency` (words with commas), `requests` of a row and `max_tokens` of a reply.
            Its prompts are random tokens.
        tokenizer: folder or name; what the server says of its model where it is not given.
        out, form: as for `obtain`.

    Raises:
        SparkbookError: an option can't be used, nothing answers, vLLM is not installed, or its
            benchmark fails.
    """
    from sparkbook.serve import paths

    if not url.startswith(("http://", "https://")):
        raise SparkbookError(
            f"'{url}' is no address such as http://127.0.0.1:8000: vllm bench serve measures a"
            " running server"
        )
    unused = [
        f"--{name}"
        for name, option in (
            ("rate", "rates"),
            ("seconds", "seconds"),
            ("caching", "caching"),
            ("recipe", "recipe"),
        )
        if options.get(option)
    ]
    if unused:
        raise SparkbookError(
            f"{', '.join(unused)} can't be used with vllm bench serve: it runs so many requests, so"
            " many at a time"
        )
    loads = _words(options["concurrency"], int, "concurrency")
    if not loads or min(loads) < 1:
        raise SparkbookError(
            "give at least one number of requests at a time, such as --concurrency 1,4"
        )
    _check_target(out, form, len(loads))
    endpoint = _server(url, model)
    if tokenizer is None:
        tokenizer = endpoint.root_of_model() or endpoint.model
    if tokenizer.startswith("/") and not Path(tokenizer).is_dir():
        raise SparkbookError(
            f"the server's model is in {tokenizer}, which is not on this machine: name its"
            " tokenizer with --tokenizer"
        )
    command = [str(paths.engine_python().with_name("vllm"))]
    # One request of our own first: a server that answers otherwise than a chat is told at once and
    # in words.
    latency = load.probe(endpoint, float(options.get("timeout_s") or 300))
    whole: Report | None = None
    for slots in loads:
        count = options.get("requests") or max(4 * slots, 16)
        # Ten times what the requests would take one by one at the pace of the first, which was
        # cold, and the start of vLLM itself.
        limit = 300 + 10 * latency * count * max(1.0, options["max_tokens"] / load.PROBE_TOKENS)
        try:
            found = vllm_bench.run_vllm_bench(
                endpoint,
                command=command,
                tokenizer=tokenizer,
                prompts=count,
                concurrency=slots,
                output_len=options["max_tokens"],
                limit_s=limit,
            )
        except (SparkbookError, KeyboardInterrupt) as error:
            if whole is None:
                raise
            whole.interrupted, whole.ended = (
                isinstance(error, KeyboardInterrupt),
                str(error) or None,
            )
            break
        whole = (
            found
            if whole is None
            else whole.model_copy(update={"cells": [*whole.cells, *found.cells]})
        )
    assert whole is not None
    whole.label = options.get("label")
    whole.notes.append(
        "Measured by vllm bench serve with random prompts: classes and seed were not used."
    )
    gate.compare_rows(whole)
    return whole


def _words(text: str, kind: type, name: str) -> list[Any]:
    try:
        return [kind(word.strip()) for word in text.split(",") if word.strip()]
    except ValueError:
        raise SparkbookError(
            f"--{name} is '{text}'; write numbers with commas, such as 1,4,8"
        ) from None


@contextlib.contextmanager
def _bar(wanted: bool) -> Iterator[load.Progress | None]:
    """Return a progress bar, one task for each row. It draws in this process; the client is another
    one.
    """
    if not wanted:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as drawing:
        tasks: dict[str, Any] = {}

        def progress(text: str, done: int, total: int | None) -> None:
            if text not in tasks:
                tasks[text] = drawing.add_task(text, total=total)
            drawing.update(tasks[text], completed=done)

        yield progress


FORMS = ("sparkbook", "vllm", "llama-benchy", "performance")


def _check_target(out: str | None, form: str, rows: int) -> None:
    """Check that a result with so many rows can be written in this form at this place, before it is
    measured.

    Raises:
        SparkbookError: it can't.
    """
    _check_form(form)
    if out is None:
        return
    if form in ("vllm", "performance"):
        _one_row(form, rows)
    check_place(out)


def _check_form(form: str) -> None:
    if form not in FORMS:
        raise SparkbookError(f"there is no form '{form}'; there are {', '.join(FORMS)}")


def _one_row(form: str, rows: int) -> None:
    if rows != 1:
        name = "vLLM's file" if form == "vllm" else "performance.yaml"
        raise SparkbookError(
            f"{name} holds one row and this measurement has {rows}: choose one class and one load"
        )


def keep_or_rescue(report: Report, source: str, file: str, form: str) -> str | None:
    """Keep a report, as `keep` does. Where that fails, keep what was just measured whole in a
    temporary file: it can't be measured again.

    Args:
        source: what `obtain` was given.

    Returns:
        What went wrong; None where nothing did.
    """
    try:
        keep(report, file, form)
    except SparkbookError as error:
        if not source.startswith(("http://", "https://")):
            return str(error)
        return spared(report.to_json(), error, "sparkbench-")
    return None


def keep(report: Report, file: str, form: str) -> None:
    """Write a report: `sparkbook` (all of it), `vllm` (a report of one row), `llama-benchy`, or
    `performance` (NVIDIA's performance.yaml: one row that passed the gate).

    Raises:
        SparkbookError: the form is unknown, does not fit, or the file can't be written.
    """
    if form == "sparkbook":
        report.write(file)
        return
    if form == "vllm":
        _one_row(form, len(report.cells))
        value = exchange.to_vllm(report, report.cells[0])
    elif form == "llama-benchy":
        value = exchange.to_llama_benchy(report)
    elif form == "performance":
        import yaml

        _one_row(form, len(report.cells))
        value = exchange.to_performance(
            report,
            report.cells[0],
            {
                "system": {"label": report.machine or "unknown"},
                "software": {"engine": report.engine or "unknown"},
            },
        )
    else:
        raise SparkbookError(f"there is no form '{form}'; there are {', '.join(FORMS)}")
    text = (
        yaml.safe_dump(value, sort_keys=False)
        if form == "performance"
        else json.dumps(value, ensure_ascii=False) + "\n"
    )
    write_text(file, text)


def to_dict(report: Report) -> dict[str, Any]:
    """Return the answer of `--json`: findings as every verb gives them, and the report without its
    single requests.
    """
    findings = Findings(f for cell in report.cells for f in cell.findings)
    rest = report.model_dump(
        mode="json",
        by_alias=True,
        exclude_none=True,
        exclude={"cells": {"__all__": {"requests", "findings"}}, "cold": {"text"}},
    )
    return {**findings.to_dict(verdict=report.verdict, rows=len(report.cells)), "report": rest}


def show(report: Report, console: Console) -> None:
    """Print the tables of a report and, under them, why rows did not pass."""
    from rich.table import Table
    from rich.text import Text

    about = ", ".join(filter(None, [report.model, report.engine, report.machine, report.date]))
    console.print(Text(about, "bold"))
    if report.cold:
        first = report.cold.ttft_s
        console.print(
            Text(
                (
                    f"first request: {first:.2f} s to the first token, in no figure below"
                    if first
                    else ""
                ),
                "dim",
            )
        )
    styles = {"valid": "green", "suspect": "yellow", "invalid": "bold red"}
    for header, rows in (result_tables.by_concurrency(report), result_tables.by_context(report)):
        if not rows:
            continue
        grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        for place, name in enumerate(header):
            grid.add_column(name, justify="left" if isinstance(rows[0][place], str) else "right")
        for row in rows:
            cells = [
                Text("–" if v is None else f"{v:,.1f}" if isinstance(v, float) else str(v))
                for v in row[:-1]
            ]
            grid.add_row(*cells, Text(row[-1], styles[row[-1]]))
        console.print(grid)
        console.print()
    rows_of: dict[tuple[str, str], list[str]] = {}
    found = Findings(finding for cell in report.cells for finding in cell.findings)
    for cell in report.cells:
        for finding in cell.findings:
            rows_of.setdefault((finding.rule, finding.message), []).append(
                f"{cell.prompt_class} {cell.load}"
            )
    for finding in found:
        # A finding that several rows share is printed once.
        if names := rows_of.pop((finding.rule, finding.message), []):
            console.print(finding)
            console.print(Text(f"        {'rows':<8} {', '.join(names)}", "dim"))
    for note in report.notes:
        console.print(Text(note, "dim"))
    state = "stopped early; " if report.interrupted or report.ended else ""
    console.print(Text(f"{state}{report.verdict}", styles[report.verdict]))


def advice_of_files(files: Sequence[str]) -> Advice:
    """Advise from result files, some without and some with speculation.

    Raises:
        SparkbookError: a file can't be read, or nothing can be compared.
    """
    from sparkbook.bench import advise

    return advise.advise(*advise.sort([Report.read(file) for file in files]))


def advice_of_server(
    url: str, seconds: float, draft_cost: float, verify_cost: float
) -> tuple[list[tuple[int, float, float]], str]:
    """Return what acceptance alone lets expect: rows of K, tokens per step and speed-up, and what
    they rest on.

    Args:
        url: a running server that speculates. If it makes no draft within the time, its counters
            since the start are taken.
        seconds: between two scrapes.
        draft_cost, verify_cost: of one draft token, as shares of a step without speculation.

    Raises:
        SparkbookError: nothing answers, or the server does not speculate.
    """
    from sparkbook.bench import advise
    from sparkbook.metrics import Metrics
    from sparkbook.metrics.deltas import deltas

    before, after = attach.scrapes(attach.server(url), seconds)
    change = deltas(before, after, seconds)
    since = f"in the last {seconds:g} s"
    if not change.drafts:
        change, since = (
            deltas(Metrics.parse(""), after, seconds),
            "since its start, other prompts included",
        )
    if not change.drafts:
        raise SparkbookError(
            f"{url} made no drafts: it runs without speculation, or nobody asked it anything yet"
        )
    costs = advise.Costs(draft=draft_cost, verify=verify_cost)
    rows = advise.expected(change.per_position, costs, max(len(change.per_position), 8))
    positions = ", ".join(f"{share:.0%}" for share in change.per_position)
    return rows, f"{change.drafts:,.0f} drafts {since}; acceptance by position {positions}"
