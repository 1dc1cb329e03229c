"""`sparkbook diagnose` and `sparkbook metrics`: what a log and the metrics say about an engine."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import WAIT, Json, between
from sparkbook.cli.output import answer, exit_with, text_of
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError

app = alone()


@verb(
    app,
    "diagnose",
    done="Healthy: the log shows that the engine is up; there may be notes.",
    bad="Anything else: a fault, a start under way, a log that is cut off.",
)
def diagnose(
    log: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG|-...",
            help="A log file, or - for standard input; several logs of one run are put in order.",
        ),
    ],
    facts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Facts about the host: JSON, /proc/meminfo, or lines name: value."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Explain an engine's log: what went wrong, and what to do."""
    from sparkbook import logs
    from sparkbook.logs import named, text

    known = logs.parse_facts(text_of(facts)) if facts else None
    if len(log) > 1:
        run = named.together(log, known)
        answer(as_json, run.to_dict(), text.of_run(run))
        healthy = run.healthy
    else:
        diagnosis = named.diagnose(log[0], known)
        answer(as_json, diagnosis.to_dict(), text.lines(diagnosis))
        healthy = diagnosis.healthy
    if not healthy:
        raise typer.Exit(1)


@verb(app, "metrics", done="Healthy; there may be notes.", bad="There is a fault.")
def metrics(
    source: Annotated[
        str,
        typer.Argument(
            metavar="URL|BEFORE", help="A running server, or a file with an earlier scrape."
        ),
    ],
    after: Annotated[
        str | None, typer.Argument(metavar="AFTER", help="A file with a later scrape.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(callback=WAIT, help="Seconds between the two scrapes.")
    ] = 10.0,
    power: Annotated[
        float | None,
        typer.Option(callback=between(0, 1e5), help="The GPU's power in that time, W."),
    ] = None,
    clock: Annotated[
        float | None,
        typer.Option(callback=between(0, 1e5), help="The GPU's SM clock in that time, MHz."),
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A metric your dashboard queries but the server does not expose; repeatable.",
        ),
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="The engine's vLLM release [default: the server's].")
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge an engine by two scrapes of its metrics.

    The API key is read as `sparkbook bench` reads it.
    """
    import dataclasses

    from sparkbook import releases
    from sparkbook.metrics.diagnose import Telemetry, diagnose_metrics
    from sparkbook.serve import attach

    release = releases.get(release).version if release else None
    if attach.is_address(source):
        endpoint = attach.server(source)
        earlier, later = attach.scrapes(endpoint, seconds)
        release = release or attach.release_of(endpoint)
    elif after is None:
        raise SparkbookError(
            f"{source} is one scrape, and two are needed: give a second file, or a server's URL"
        )
    else:
        earlier, later = attach.scrape_in(source), attach.scrape_in(after)
    for name, scrape in ((source, earlier), (after or source, later)):
        if not scrape.of_vllm:
            raise SparkbookError(f"{name} has no metrics of vLLM: no name starts with vllm:")
    change, findings = diagnose_metrics(
        earlier,
        later,
        seconds,
        Telemetry(power_w=power, clock_mhz=clock),
        tuple(query or ()),
        release,
    )
    summary = {
        "deltas": dataclasses.asdict(change),
        "acceptance": change.acceptance,
        "mean_length": change.mean_length,
    }
    answer(as_json, findings.to_dict(**summary), [findings])
    exit_with(findings)
