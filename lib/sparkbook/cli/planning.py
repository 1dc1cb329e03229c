"""`sparkbook plan`: will it fit, and how fast can it be."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from sparkbook.cli.options import Input, Json
from sparkbook.cli.output import answer, text_of
from sparkbook.cli.verbs import alone, verb
from sparkbook.errors import SparkbookError
from sparkbook.host.spark import TOTAL_GIB

if TYPE_CHECKING:
    from sparkbook.checkpoint.values import Checkpoint

app = alone()


@verb(app, "plan", done="It fits, or may fit.", bad="It does not fit.")
def plan(
    source: Input,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a sequence [default: --max-model-len's].")
    ] = None,
    seqs: Annotated[
        int | None, typer.Option(min=1, help="Sequences at once [default: --max-num-seqs's].")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Type of the KV cache, such as fp8.")] = None,
    fraction: Annotated[
        float | None, typer.Option(help="Instead of the line's --gpu-memory-utilization.")
    ] = None,
    memory_gib: Annotated[
        float | None,
        typer.Option(help=f"Memory that vLLM sees, GiB [default: {TOTAL_GIB}, a Spark]."),
    ] = None,
    available_gib: Annotated[
        float | None, typer.Option(help="MemAvailable before the start, GiB.")
    ] = None,
    meminfo: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The host's /proc/meminfo, instead of the two sizes."),
    ] = None,
    cotenant: Annotated[
        list[str] | None,
        typer.Option(metavar="[NAME=]SIZE", help="What else runs, such as 0.42 or db=32GiB."),
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="vLLM release [default: the image's].")
    ] = None,
    hub: Annotated[
        bool, typer.Option("--hub", help="Read the checkpoint's headers on Hugging Face.")
    ] = False,
    offline: Annotated[
        bool,
        typer.Option(
            "--offline", help="On a Spark: don't ask Hugging Face for the model's config files."
        ),
    ] = False,
    log: Annotated[
        str | None, typer.Option(metavar="FILE", help="An engine's log to compare with the plan.")
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="This machine's figures to use; --log updates them."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the working.")] = False,
    nodes: Annotated[
        int | None, typer.Option(min=2, help="Also plan for this number of Sparks.")
    ] = None,
    fabric: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="With --nodes: the measured network, JSON [default: a healthy one].",
        ),
    ] = None,
    ask: Annotated[
        bool, typer.Option("--ask", help="Ask vLLM itself: exact weights and KV cache.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Plan memory and speed before you download anything."""
    from pathlib import Path

    from sparkbook.plan import memory, reconcile, request, text

    if hub and offline:
        raise SparkbookError("--hub asks Hugging Face, and --offline forbids it: give one of them")
    if fabric and not nodes:
        raise SparkbookError("--fabric needs --nodes, such as --nodes 2")
    if nodes and (log or calibration or explain):
        raise SparkbookError("--nodes can't be used with --log, --calibration or --explain")
    if ask and source == "-":
        raise SparkbookError("--ask reads the input twice: give a file instead of standard input")
    kept = Path(calibration) if calibration else None
    known = reconcile.load_calibration(kept, must_exist=log is None) if kept else None
    look = _looker(offline)
    override = request.Override(context, seqs, kv_dtype, fraction, release, hub, look)
    setup = request.read(source, override)
    host = request.host(
        memory_gib,
        available_gib,
        tuple(cotenant or ()),
        text_of(meminfo) if meminfo else None,
        setup.total,
    )
    planned = memory.plan(setup, host, known)
    if ask:
        from dataclasses import replace

        from sparkbook import oracle

        planned = replace(planned, said=oracle.ask_plan(source, planned, release))
    if nodes:
        from sparkbook.cluster import advice, all_reduce

        link = all_reduce.read_link(Path(fabric)) if fabric else all_reduce.NOMINAL
        advised = advice.advise(setup, link, nodes, host)
        answer(as_json, planned.to_dict() | {"cluster": advised.to_dict()}, advised.lines())
        fits = advised.possible
    else:
        compared = reconcile.with_log(planned, Path(log), kept) if log else None
        logged = {"reconciled": compared.to_dict()} if compared else {}
        answer(as_json, planned.to_dict() | logged, text.answer(planned, compared, explain))
        fits = planned.fits
    if not fits:
        raise typer.Exit(1)


def _looker(offline: bool) -> Callable[[str, str | None], Checkpoint | None] | None:
    """Return what looks for a checkpoint's own files on a Spark; None elsewhere, so that a plan
    made anywhere else rests on what is written down.
    """
    import os
    import shutil

    if shutil.which("nvidia-smi") is None:
        return None
    from sparkbook.serve.connection import on_spark

    if not on_spark():
        return None
    from sparkbook.checkpoint.look import look

    return lambda name, revision: look(name, revision, environ=os.environ, hub=not offline)
