"""`sparkbook kernels`: the CUDA kernels."""

from __future__ import annotations

from typing import Annotated

import typer

from sparkbook.cli.options import Json
from sparkbook.cli.output import answer, print_json, say
from sparkbook.cli.verbs import group, verb
from sparkbook.errors import SparkbookError

app = group("kernels", "Build, test and time the NVFP4 and FP8 CUDA kernels.")


@verb(app, "build", done="Built.", unusable="No compiler, or a compiler error.")
def build(
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            metavar="TARGET",
            help="sm_90, sm_120f or sm_121f; repeatable [default: this GPU's, or all].",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Rebuild libraries that exist.")] = False,
    as_json: Json = False,
) -> None:
    """Compile the kernels.

    Takes nvcc from CUDA_HOME, PATH, or the wheels of PyPI.
    """
    from sparkbook.kernels import build as builder
    from sparkbook.kernels import library

    builds = [builder.build(name, again=again) for name in target or library.targets_here()]
    if as_json:
        print_json([one.to_dict() for one in builds])
        return
    for one in builds:
        state = "built" if one.fresh else "was there"
        say(f"{one.target}: {one.kernels} kernels, {one.spills} bytes spilled, {state}: {one.path}")


@verb(
    app,
    "test",
    done="All checks pass.",
    bad="A check fails.",
    unusable="No GPU, or no torch.",
)
def test(
    quick: Annotated[bool, typer.Option("--quick", help="Skip the long checks.")] = False,
    as_json: Json = False,
) -> None:
    """Check the kernels on this GPU against a numpy reference."""
    from sparkbook.kernels import selftest

    checks = selftest.run(
        quick=quick, say=lambda check: None if as_json else say(selftest.line(check))
    )
    failed = sum(not check.ok for check in checks)
    rows = {"checks": [check.to_dict() for check in checks], "summary": {"failed": failed}}
    answer(as_json, rows, [])
    if failed:
        raise typer.Exit(1)


@verb(app, "bench", done="Measured.", unusable="No GPU, or no torch.")
def bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure only the ceilings and one product.")
    ] = False,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="File to write the report to as well.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time the kernels on this GPU, next to other libraries."""
    import json

    from sparkbook.kernels import bench as timing
    from sparkbook.util.files import check_place, spared, write_text

    if out:
        check_place(out)
    report = timing.run(quick=quick, say=lambda line: None if as_json else say(line)).to_dict()
    text = json.dumps(report, indent=1) + "\n"
    try:
        if out:
            write_text(out, text)
    except SparkbookError as error:
        raise SparkbookError(spared(text, error)) from None
    finally:
        answer(as_json, report, [])
