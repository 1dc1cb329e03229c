"""`sparkbook bench`, `advise` and `equal`: measurements of running servers."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import WAIT, Json, between
from sparkbook.cli.output import answer, exit_with, print_json, terminal, wants_bar
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

app = alone()


@verb(app, "bench", done="Measured.", bad="With --require-valid: a row was rejected.")
def bench(
    url: Annotated[
        str, typer.Argument(metavar="URL|FILE", help="A running server, or a file of results.")
    ],
    classes: Annotated[
        str,
        typer.Option(
            help="Prompt classes: code, reasoning, dialogue, prose, json, random, long-4k, …"
        ),
    ] = "code,prose",
    concurrency: Annotated[
        str, typer.Option(help="Requests at a time, one row each.")
    ] = "1,4,8,16",
    rate: Annotated[
        str | None, typer.Option(help="Instead: requests per second, at random moments.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Requests of a row [default: 4 for each at a time, at least 16]."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(callback=WAIT, help="Start no request of a row after this time.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each reply.")] = 128,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 0,
    timeout: Annotated[
        float,
        typer.Option(
            callback=between(0.1, 1e6), help="Seconds of silence after which a request failed."
        ),
    ] = 300.0,
    caching: Annotated[
        bool, typer.Option("--caching", help="Measure the prefix cache: do not salt prompts.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Served model name [default: the server's first].")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Name of this run.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="INPUT", help="What the server runs: rejects speeds that memory rules out."
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="File to write all results to.")
    ] = None,
    as_format: Annotated[
        str,
        typer.Option(
            "--as",
            help="Format of FILE: sparkbook, llama-benchy; of one row: vllm, performance.",
        ),
    ] = "sparkbook",
    tool: Annotated[
        str,
        typer.Option(
            "--with", help="Tool: sparkbook, or vllm (vllm bench serve with random prompts)."
        ),
    ] = "sparkbook",
    tokenizer: Annotated[
        str | None, typer.Option(help="With vllm: the tokenizer [default: the server's model].")
    ] = None,
    require_valid: Annotated[
        bool, typer.Option("--require-valid", help="Exit with 1 unless every row is valid.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a server, and judge whether the numbers are valid.

    The API key is read from VLLM_API_KEY, or from the file that SPARKBOOK_KEY_FILE names (mode
    0600); a server that you started here needs neither. Ctrl-C keeps what was measured.
    """
    from sparkbook.bench import commands

    lists = {"classes": classes, "concurrency": concurrency, "rates": rate}
    plan = {
        "requests": requests,
        "seconds": seconds,
        "max_tokens": max_tokens,
        "seed": seed,
        "caching": caching,
        "label": label,
        "timeout_s": timeout,
        "recipe": recipe,
    }
    if tool == "vllm":
        report = commands.obtain_with_vllm(
            url, lists | plan, model=model, tokenizer=tokenizer, out=out, form=as_format
        )
    elif tool == "sparkbook":
        report = commands.obtain(
            url, lists | plan, model=model, bar=wants_bar(as_json), out=out, form=as_format
        )
    else:
        raise SparkbookError(f"Unknown tool '{tool}'. --with accepts: sparkbook, vllm")
    problem = commands.keep_or_rescue(report, url, out, as_format) if out is not None else None
    if as_json:
        print_json(commands.to_dict(report))
    else:
        commands.show(report, terminal())
    if problem or report.ended:
        raise SparkbookError("; ".join(filter(None, [report.ended, problem])))
    if require_valid and report.verdict != "valid":
        raise typer.Exit(1)


@verb(
    app,
    "advise",
    bad="A measurement was rejected, or a K changes the output.",
)
def advise(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="URL | FILE FILE…",
            help="A server that speculates, or results of 'bench' without and with speculation.",
        ),
    ],
    seconds: Annotated[
        float, typer.Option(callback=WAIT, help="Of a server: seconds to watch it.")
    ] = 30.0,
    draft_cost: Annotated[
        float,
        typer.Option(
            callback=between(0, 100), help="Of a server: cost of a draft token, in plain steps."
        ),
    ] = 0.05,
    verify_cost: Annotated[
        float,
        typer.Option(
            callback=between(0, 100), help="Of a server: cost of a checked token, in plain steps."
        ),
    ] = 0.02,
    as_json: Json = False,
) -> None:
    """Advise whether to use speculative decoding, and with which K.

    A running server shows only its acceptance, so costs are assumed. Measurements without and with
    speculation decide.
    """
    from sparkbook.bench import commands, text
    from sparkbook.serve import attach

    addresses = [source for source in sources if attach.is_address(source)]
    if addresses and len(sources) > 1:
        raise SparkbookError(
            f"{addresses[0]} can't be mixed with files: give one server, or only files of results"
        )
    if addresses:
        rows, basis = commands.advice_of_server(addresses[0], seconds, draft_cost, verify_cost)
        expected = text.Expected(rows, basis, draft_cost, verify_cost)
        answer(as_json, expected.to_dict(), expected.lines())
        return
    advice = commands.advice_of_files(sources)
    findings = advice.findings()
    best = [{"class": name, "concurrency": load, "k": k} for (name, load), k in advice.best.items()]
    summary = findings.to_dict(best=best, schedule=advice.schedule, release=advice.release)
    answer(as_json, summary, [findings])
    exit_with(findings)


@verb(app, "equal", done="The same, or only near-ties differ.", bad="The option changes answers.")
def equal(
    a: Annotated[str, typer.Argument(metavar="URL_A", help="A server without the option.")],
    b: Annotated[str, typer.Argument(metavar="URL_B", help="A server with the option.")],
    option: Annotated[str, typer.Option(help="Name of the option, for the answer.")] = "B",
    each: Annotated[
        int, typer.Option(help="Free replies of each of the four kinds of text.", min=1, max=6)
    ] = 4,
    max_tokens: Annotated[int, typer.Option(help="Tokens of the longest free reply.", min=1)] = 48,
    as_json: Json = False,
) -> None:
    """Test whether an option changes what a server answers.

    Sends greedy requests and small tasks to A, to B, and to A again. Use it for options that claim
    to be lossless: speculation, KV cache dtype, MoE backend, CUDA graphs, prefix caching.
    """
    from sparkbook.bench import commands, text

    trial = commands.equal_servers(
        a, b, option, each=each, max_tokens=max_tokens, bar=wants_bar(as_json)
    )
    summary = {"findings": [], "summary": {"verdict": trial.verdict}, "trial": trial.to_dict()}
    answer(as_json, summary, text.trial(trial, option))
    if trial.verdict == "changed":
        raise typer.Exit(1)
