"""Results in the formats of other tools: written and read.

What another tool's file does not say stays unknown here, and what ours does not say is left out
there. The same word means different things in them
(https://docs.vllm.ai/en/latest/benchmarking/cli/, https://github.com/eugr/llama-benchy), so each
figure is carried to the one of the same meaning: vLLM's "ITL" is the time of a step (`step_gap_s`),
that of GuideLLM and aiperf is `tpot_s`, llama-benchy's "tg" is `decode_tok_s`.
"""

from __future__ import annotations

import datetime
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sparkbook.bench import gate, stats
from sparkbook.bench.results import (
    FEW_FOR_P99,
    Cell,
    Engine,
    Figures,
    Report,
    Request,
    Summary,
    figures,
)
from sparkbook.errors import SparkbookError
from sparkbook.util import invalid, limits

_QUANTITIES = {"ttft": "ttft_s", "tpot": "tpot_s", "itl": "step_gap_s", "e2el": "latency_s"}


def to_vllm(report: Report, cell: Cell) -> dict[str, Any]:
    """Return one row as `vllm bench serve --save-result --save-detailed` writes it; milliseconds
    where its names end in `_ms`.

    Raises:
        SparkbookError: the row has no figures.
    """
    f = cell.figures
    if not f.completed or not f.duration_s:
        raise SparkbookError(
            f"{cell.prompt_class} {cell.load} has no replies: there is nothing to export"
        )
    good = [r for r in cell.requests if r.error is None]
    result: dict[str, Any] = {
        "date": report.date.replace("-", "").replace("T", "-").replace(":", "").removesuffix("Z"),
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": cell.label or report.label,
        "model_id": report.model,
        "tokenizer_id": None,
        "num_prompts": f.completed + f.failed,
        "request_rate": cell.rate if cell.rate is not None else "inf",
        "burstiness": 1.0,
        "max_concurrency": cell.concurrency,
        "duration": f.duration_s,
        "completed": f.completed,
        "failed": f.failed,
        "total_input_tokens": f.input_tokens,
        "total_output_tokens": f.output_tokens,
        "request_throughput": f.completed / f.duration_s,
        "output_throughput": f.out_tok_s,
        "total_token_throughput": (
            (f.input_tokens + f.output_tokens) / f.duration_s
            if f.input_tokens and f.output_tokens
            else None
        ),
        "input_lens": [r.prompt_tokens for r in good],
        "output_lens": [r.output_tokens for r in good],
        "ttfts": [r.ttft_s for r in good],
        "itls": [r.step_gaps_s for r in good],
        "latencies": [r.latency_s for r in good],
        "start_times": [r.start_s for r in good],
        "generated_texts": [r.text or "" for r in good],
        "errors": [r.error or "" for r in cell.requests],
    }
    for theirs, ours in _QUANTITIES.items():
        values = _values(cell, ours)
        if values:
            result |= {
                f"mean_{theirs}_ms": 1000 * statistics.fmean(values),
                f"median_{theirs}_ms": 1000 * statistics.median(values),
                f"std_{theirs}_ms": 1000 * _spread(values),
                f"p99_{theirs}_ms": 1000 * stats.quantile(values, 0.99),
            }
    if (engine := cell.engine) and engine.drafts and engine.acceptance is not None:
        result |= {
            "spec_decode_acceptance_rate": 100 * engine.acceptance,
            "spec_decode_acceptance_length": engine.mean_length,
            "spec_decode_num_drafts": engine.drafts,
            "spec_decode_draft_tokens": engine.drafted,
            "spec_decode_accepted_tokens": engine.accepted,
            "spec_decode_per_position_acceptance_rates": engine.per_position,
        }
    return result


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation; of times that are no numbers there is none."""
    return statistics.pstdev(values) if all(map(math.isfinite, values)) else math.nan


def _values(cell: Cell, name: str) -> list[float]:
    good = [r for r in cell.requests if r.error is None]
    if name == "step_gap_s":
        return [gap for r in good for gap in r.step_gaps_s]
    return [value for r in good if (value := getattr(r, name)) is not None]


def from_vllm(value: dict[str, Any]) -> Report:
    """Return a file of `vllm bench serve --save-result`. With `--save-detailed` its requests come
    along.

    Its warm-up, the machine's state and the cached share are unknown, and the gate says so.

    Raises:
        SparkbookError: it is not such a file.
    """
    try:
        completed = int(value["completed"])
        cell = Cell(
            prompt_class="imported",
            concurrency=value.get("max_concurrency"),
            label=value.get("label"),
            rate=(
                None if value.get("request_rate") in ("inf", None) else float(value["request_rate"])
            ),
            figures=Figures(
                completed=completed,
                failed=int(value.get("failed") or 0),
                duration_s=float(value["duration"]),
                input_tokens=value.get("total_input_tokens"),
                output_tokens=value.get("total_output_tokens"),
                out_tok_s=float(value["output_throughput"]),
            ),
        )
        cell.requests = _vllm_requests(value)
        if cell.requests:
            stated, cell.figures = cell.figures, figures(cell.requests, None)
            cell.figures.duration_s, cell.figures.out_tok_s = stated.duration_s, stated.out_tok_s
        for theirs, ours in _QUANTITIES.items():
            if getattr(cell.figures, ours) is None and f"mean_{theirs}_ms" in value:
                setattr(cell.figures, ours, _stated(value, theirs, completed))
        if value.get("spec_decode_num_drafts"):
            cell.engine = Engine(
                drafts=value["spec_decode_num_drafts"],
                drafted=value["spec_decode_draft_tokens"],
                accepted=value["spec_decode_accepted_tokens"],
                acceptance=value["spec_decode_acceptance_rate"] / 100,
                mean_length=value["spec_decode_acceptance_length"],
                per_position=value.get("spec_decode_per_position_acceptance_rates") or [],
            )
        date = str(value["date"])
        report = Report(
            date=f"{date[:4]}-{date[4:6]}-{date[6:8]}",
            tool="vllm bench serve",
            model=str(value["model_id"]),
            cells=[cell],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SparkbookError(
            f"this is not a result of `vllm bench serve`: {invalid.reason(error)}"
        ) from None
    gate.stamp(cell, gate.judge(gate.Seen(cell)))
    return report


def _vllm_requests(value: dict[str, Any]) -> list[Request]:
    """Return requests of a detailed file. Its `itls` are gaps between events; the tokens of an
    event are not in it.
    """
    ttfts, gaps, lengths = (
        value.get("ttfts") or [],
        value.get("itls") or [],
        value.get("output_lens") or [],
    )
    if not ttfts or len(ttfts) != len(gaps) or len(ttfts) != len(lengths):
        return []
    inputs, starts, texts = (
        value.get("input_lens") or [],
        value.get("start_times") or [],
        value.get("generated_texts") or [],
    )
    errors = value.get("errors") or []
    first = min(starts, default=0.0)
    requests = []
    for n, (ttft, steps, length) in enumerate(zip(ttfts, gaps, lengths, strict=True)):
        stamps = [ttft]
        for gap in steps:
            stamps.append(stamps[-1] + gap)
        requests.append(
            Request(
                prompt=f"imported-{n:03}",
                start_s=starts[n] - first if n < len(starts) else 0.0,
                ttft_s=ttft,
                latency_s=stamps[-1],
                stamps_s=stamps,
                prompt_tokens=inputs[n] if n < len(inputs) else None,
                output_tokens=length,
                count_from="usage",
                text=texts[n] if n < len(texts) else None,
                error=(errors[n] or None) if n < len(errors) else None,
            )
        )
    return requests


def _stated(value: dict[str, Any], name: str, count: int) -> Summary:
    """Return a summary of which only mean, median and perhaps p99 are known: the other places hold
    what bounds them.
    """
    mean, median = value[f"mean_{name}_ms"] / 1000, value[f"median_{name}_ms"] / 1000
    p99 = value.get(f"p99_{name}_ms")
    top = p99 / 1000 if p99 is not None else max(mean, median)
    return Summary(
        n=count,
        mean=mean,
        median=median,
        p90=top,
        p99=top if p99 is not None and count >= 100 else None,
        low=0.0,
        high=top,
    )


def to_llama_benchy(report: Report) -> dict[str, Any]:
    """Return a report as llama-benchy's JSON: throughputs in tok/s, times in ms, each with mean,
    standard deviation and values.
    """
    runs = []
    for cell in report.cells:
        good = [r for r in cell.requests if r.error is None]
        if not good or cell.concurrency is None:
            continue
        run: dict[str, Any] = {
            "concurrency": cell.concurrency,
            "context_size": cell.context or 0,
            "prompt_size": round(
                statistics.fmean([r.prompt_tokens for r in good if r.prompt_tokens] or [0])
            ),
            "response_size": round(
                statistics.fmean([r.output_tokens for r in good if r.output_tokens] or [0])
            ),
            "is_context_prefill_phase": False,
            "pp_req_throughput": _metric(
                [r.prompt_tokens / r.ttft_s for r in good if r.prompt_tokens and r.ttft_s]
            ),
            "tg_throughput": _metric([cell.figures.steady_tok_s or cell.figures.out_tok_s]),
            "tg_req_throughput": _metric([1 / r.tpot_s for r in good if r.tpot_s]),
            "ttfr": _metric([r.ttfr_s * 1000 for r in good if r.ttfr_s is not None]),
            "e2e_ttft": _metric([r.ttft_s * 1000 for r in good if r.ttft_s is not None]),
        }
        runs.append({name: value for name, value in run.items() if value is not None})
    return {
        "version": f"sparkbook {report.schema_}",
        "timestamp": report.date,
        "latency_mode": "none",
        "latency_ms": 0.0,
        "model": report.model,
        "prefix_caching_enabled": any(cell.caching for cell in report.cells),
        "max_concurrency": max((cell.concurrency or 0 for cell in report.cells), default=0),
        "benchmarks": runs,
    }


def _metric(values: Sequence[float | None]) -> dict[str, Any] | None:
    found = [value for value in values if value is not None]
    return (
        {"mean": statistics.fmean(found), "std": _spread(found), "values": found} if found else None
    )


def from_llama_benchy(value: dict[str, Any]) -> Report:
    """Return a file of `llama-benchy --format json`.

    Its `tg_throughput` counts from the first token on, so it is `steady_tok_s` here, never
    `out_tok_s`.

    Raises:
        SparkbookError: it is not such a file.
    """
    try:
        cells = []
        for run in value["benchmarks"]:
            rates = _benchy(run.get("tg_req_throughput") or run.get("tg_throughput"))
            count = rates.n if rates else 0
            found = Figures(
                completed=count,
                decode_tok_s=rates,
                ttfr_s=_benchy(run.get("ttfr"), 0.001),
                ttft_s=_benchy(run.get("e2e_ttft"), 0.001),
            )
            found.tpot_s = Summary.of(
                [1 / v for v in (run.get("tg_req_throughput") or {}).get("values", []) if v]
            )
            found.prefill_tok_s = _benchy(run.get("pp_req_throughput") or run.get("pp_throughput"))
            total = _benchy(run.get("tg_throughput"))
            found.steady_tok_s = total.mean if total else None
            cells.append(
                Cell(
                    prompt_class="imported",
                    concurrency=run["concurrency"],
                    context=run["context_size"] or None,
                    max_tokens=run["response_size"],
                    figures=found,
                )
            )
        report = Report(
            date=str(value["timestamp"]),
            tool=f"llama-benchy {value['version']}",
            model=str(value["model"]),
            cells=cells,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SparkbookError(
            f"this is not a result of llama-benchy: {invalid.reason(error)}"
        ) from None
    return _judged(report)


def _benchy(metric: dict[str, Any] | None, factor: float = 1.0) -> Summary | None:
    return (
        Summary.of([v * factor for v in metric["values"]])
        if metric and metric.get("values")
        else None
    )


def from_guidellm(value: dict[str, Any]) -> Report:
    """Return a file of `guidellm run --output kind=json`; one row for each of its benchmarks.

    Its "inter token latency" is `tpot_s` here: (last token - first token) / (tokens - 1). Its "time
    per output token" holds the first token too, latency / tokens, which is 1 / `req_tok_s` here.
    Events are counted there and not timed, so `step_gap_s` stays unknown.

    Raises:
        SparkbookError: it is not such a file.
    """
    try:
        cells = []
        for run in value["benchmarks"]:
            metrics, strategy = run["metrics"], run["config"]["strategy"]

            def stated(
                name: str, factor: float = 0.001, metrics: dict[str, Any] = metrics
            ) -> Summary | None:
                found = metrics[name]["successful"]
                return _places(
                    found["count"],
                    found["mean"],
                    found["percentiles"],
                    found["min"],
                    found["max"],
                    factor,
                )

            totals, rate = (
                metrics["request_totals"],
                metrics["output_tokens_per_second"]["successful"]["mean"],
            )
            words = metrics["output_token_count"]["successful"]
            # Where it kept all requests: the events that held tokens. Its own count of iterations
            # has the role and the end in it.
            kept = [
                request["info"]["timings"]["token_iterations"]
                for request in run["requests"].get("successful") or ()
            ]
            figures_ = Figures(
                completed=totals["successful"],
                failed=totals["errored"],
                duration_s=run["duration"],
                out_tok_s=rate or None,
                input_tokens=round(metrics["prompt_token_count"]["successful"]["total_sum"]),
                output_tokens=round(words["total_sum"]),
                ttft_s=stated("time_to_first_token_ms"),
                tpot_s=stated("inter_token_latency_ms"),
                latency_s=stated("request_latency", 1.0),
            )
            figures_.decode_tok_s = _inverse(
                figures_.tpot_s,
                metrics["inter_token_latency_ms"]["successful"]["percentiles"],
                0.001,
            )
            if len(kept) == figures_.completed < sum(kept):
                figures_.tok_per_step = (words["total_sum"] - len(kept)) / (sum(kept) - len(kept))
            slots = strategy.get("streams") or (1 if strategy["type_"] == "synchronous" else None)
            cells.append(
                Cell(
                    prompt_class="imported",
                    concurrency=slots,
                    rate=None if slots else strategy.get("rate"),
                    max_tokens=round(words["max"]) if words["count"] else None,
                    figures=figures_,
                )
            )
        first = datetime.datetime.fromtimestamp(value["benchmarks"][0]["start_time"], datetime.UTC)
        report = Report(
            date=first.strftime("%Y-%m-%dT%H:%M:%SZ"),
            tool=f"GuideLLM {value['metadata']['guidellm_version']}",
            model=str(value["benchmarks"][0]["config"]["backend"].get("model") or "unknown"),
            cells=cells,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise SparkbookError(f"this is not a result of GuideLLM: {invalid.reason(error)}") from None
    return _judged(report)


def from_aiperf(value: dict[str, Any]) -> Report:
    """Return a file `profile_export_aiperf.json` of `aiperf profile --streaming`, whose times are
    milliseconds.

    Its "inter token latency" is `tpot_s` here, its "inter chunk latency" `step_gap_s`. It counts
    tokens with a tokenizer of its own unless it is run with `--use-server-token-count`: text that
    came in pieces may make another number.

    Raises:
        SparkbookError: it is not such a file.
    """
    try:

        def stated(name: str) -> Summary | None:
            found = value.get(name)
            if found and found["unit"] != "ms":
                raise ValueError(f"{name} in {found['unit']}")
            return (
                _places(found["count"], found["avg"], found, found["min"], found["max"], 0.001)
                if found
                else None
            )

        def one(name: str) -> float | None:
            return value[name]["avg"] if name in value else None

        load: dict[str, Any] = next(
            (
                phase
                for phase in value["input_config"]["phases"]
                if not phase.get("exclude_from_results")
            ),
            {},
        )
        errors = one("error_request_count") or 0
        figures_ = Figures(
            completed=round(value["request_count"]["avg"]),
            failed=round(errors),
            duration_s=one("benchmark_duration"),
            input_tokens=_whole(one("total_isl")),
            output_tokens=_whole(one("total_osl")),
            out_tok_s=one("output_token_throughput"),
            ttft_s=stated("time_to_first_token"),
            ttfo_s=stated("time_to_first_output_token"),
            tpot_s=stated("inter_token_latency"),
            step_gap_s=stated("inter_chunk_latency"),
            latency_s=stated("request_latency"),
        )
        figures_.decode_tok_s = _inverse(
            figures_.tpot_s, value.get("inter_token_latency") or {}, 0.001
        )
        if figures_.step_gap_s and figures_.output_tokens:
            figures_.tok_per_step = (
                figures_.output_tokens - figures_.completed
            ) / figures_.step_gap_s.n
        length = value.get("output_sequence_length")
        cell = Cell(
            prompt_class="imported",
            concurrency=load.get("concurrency"),
            rate=load.get("rate"),
            max_tokens=round(length["max"]) if length else None,
            figures=figures_,
        )
        report = Report(
            date=f"{value['start_time'][:19]}Z",
            tool=f"aiperf {value['aiperf_version']}",
            model=str(value["input_config"]["models"]["items"][0]["name"]),
            cells=[cell],
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as error:
        raise SparkbookError(f"this is not a result of aiperf: {invalid.reason(error)}") from None
    return _judged(report)


def _places(
    n: int, mean: float, places: dict[str, Any], low: float, high: float, factor: float
) -> Summary | None:
    """Return a summary from percentiles that another tool has worked out."""
    if not n:
        return None
    p25, p50, p75, p90, p99 = (
        places[name] * factor for name in ("p25", "p50", "p75", "p90", "p99")
    )
    return Summary(
        n=n,
        mean=mean * factor,
        median=p50,
        p90=p90,
        p99=p99 if n >= FEW_FOR_P99 else None,
        low=low * factor,
        high=high * factor,
        iqr_share=(p75 - p25) / p50 if p50 and n > 3 else None,
    )


def _inverse(times: Summary | None, places: dict[str, Any], factor: float) -> Summary | None:
    """Return speeds from times, and from the percentiles that the tool reports.

    A percentile of 1 / x is 1 / the opposite one of x: the median of the speeds is 1 / median,
    their p90 is 1 / p10. The mean, which is not 1 / mean, stands in by its bound.
    """
    if times is None or not times.low:
        return None
    p10 = places.get("p10")
    return Summary(
        n=times.n,
        mean=1 / times.mean,
        median=1 / times.median,
        p90=1 / (p10 * factor) if p10 else None,
        low=1 / times.high,
        high=1 / times.low,
    )


def _whole(number: float | None) -> int | None:
    return None if number is None else round(number)


def _judged(report: Report) -> Report:
    """Return what the gate says of another tool's rows: what they do not tell is unknown."""
    for cell in report.cells:
        gate.stamp(cell, gate.judge(gate.Seen(cell)))
    gate.compare_rows(report)
    return report


def read(file: str | Path) -> Report:
    """Return a result file of ours, `vllm bench serve`, llama-benchy, GuideLLM or aiperf.

    Raises:
        SparkbookError: it can't be read, or is none of them.
    """
    value = limits.read_json(file)
    try:
        return _read(value, file)
    except ArithmeticError as error:
        raise SparkbookError(f"{file}: a number in it is out of range ({error})") from None


def _read(value: Any, file: str | Path) -> Report:
    if isinstance(value, dict) and "output_throughput" in value:
        return from_vllm(value)
    if isinstance(value, dict) and "aiperf_version" in value:
        return from_aiperf(value)
    if isinstance(value, dict) and "benchmarks" in value:
        return from_guidellm(value) if "metadata" in value else from_llama_benchy(value)
    return Report.read(file)


def to_performance(report: Report, cell: Cell, identity: dict[str, Any]) -> dict[str, Any]:
    """Return one row as NVIDIA's `performance.yaml` (schema_version 1,
    https://github.com/NVIDIA/local-ai-inference-recipes).

    Args:
        report, cell: the measurement; only a valid row at one request is published in that file.
        identity: what a measurement does not know: `recipe_sha256`, `launch_id`, `system`,
            `software`.

    Raises:
        SparkbookError: the row is not valid.
    """
    if cell.verdict != "valid":
        raise SparkbookError(
            f"{cell.prompt_class} {cell.load} is {cell.verdict}: performance.yaml is for numbers"
            " that passed the gate"
        )
    f = cell.figures
    inputs = [r.prompt_tokens for r in cell.requests if r.error is None and r.prompt_tokens]
    workload = {
        "input_tokens": cell.context or (round(statistics.fmean(inputs)) if inputs else None),
        "dataset": f"sparkbook {cell.prompt_class}",
        "input_tokens_min": min(inputs, default=None),
        "input_tokens_max": max(inputs, default=None),
        "input_tokens_total": sum(inputs) or None,
        "output_tokens": cell.max_tokens,
        "concurrency": cell.concurrency,
        "requests": f.completed,
        "warmup_requests": (
            len(cell.warm_up.ttfts_s) * (cell.concurrency or 1) if cell.warm_up else None
        ),
    }
    results = {
        "prefill_tokens_per_second_mean": f.prefill_tok_s and round(f.prefill_tok_s.mean, 2),
        "decode_tokens_per_second_mean": f.decode_tok_s and round(f.decode_tok_s.mean, 2),
        "e2e_latency_ms_mean": f.latency_s and round(1000 * f.latency_s.mean, 2),
    }
    known = {
        name: {k: v for k, v in part.items() if v is not None}
        for name, part in (("workload", workload), ("results", results))
    }
    return {
        "schema_version": 1,
        "status": "optimized",
        "recipe_sha256": identity.get("recipe_sha256"),
        "launch_id": identity.get("launch_id", "default"),
        "measured_at": report.date[:10],
        "harness": {"name": report.tool, "version": report.schema_},
        "system": identity.get("system", {}),
        "software": identity.get("software", {}),
        "profiles": [{"id": f"{cell.prompt_class}-c{cell.concurrency}", **known}],
    }
