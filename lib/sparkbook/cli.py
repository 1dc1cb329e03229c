"""The `sparkbook` command: words for people and JSON for machines over what the library answers. No
logic lives here.

Each group of verbs is one `typer.Typer` below, added to `app`. What a verb needs is imported inside
it, so that the command starts at once. Exit codes: 0, or 2 where the input cannot be used; a verb
that judges exits with 1 where its judgement is bad.
"""

from __future__ import annotations

import copy
import enum
import gc
import io
import json
import os
import re
import sys
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer
import typer.core

from sparkbook.errors import SparkbookError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from sparkbook.recipes import Recipe

app = typer.Typer(
    name="sparkbook",
    help=(
        "Serve language models with vLLM on a DGX Spark: recipes, launch lines and what is known"
        " about them."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster", metavar="FILE", help="An inventory of several Sparks: on all its nodes."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


def main() -> None:
    """Runs the command and exits. What the user can set right is one line on standard error and
    exit code 2, never a traceback.
    """
    # What is imported stays for good: looking through it for garbage again and again would take a
    # tenth of the time of a short command.
    gc.set_threshold(100_000, 20, 20)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a sign that the terminal's encoding lacks is shown as "?"
    try:
        _only(sys.argv[1:2])(
            prog_name="sparkbook"
        )  # typer itself ends quietly where the reader of a pipe has gone
    except SparkbookError as error:
        typer.echo(f"sparkbook: {error}", err=True)
    except RecursionError:
        typer.echo(
            "sparkbook: what was given, or what a server answered, is nested too deeply to be read",
            err=True,
        )
    except ArithmeticError as error:
        typer.echo(
            "sparkbook: a number in what was given is too large or too small to reckon with"
            f" ({error})",
            err=True,
        )
    except OSError as error:
        # Such as a full disk behind the standard output, which Python would complain of again when
        # it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"sparkbook: {error}", err=True)
    sys.exit(2)


def _only(named: list[str]) -> typer.Typer:
    """The app with the one verb that is called, where it is named first: making a command of all of
    them takes another tenth.
    """
    chosen = [command for command in app.registered_commands if named == [command.name]]
    if not chosen:
        return app
    one = copy.copy(app)
    one.registered_commands, one.registered_groups = chosen, []
    return one


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sparkbook {version('sparkbook')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass


def _console() -> Console:
    """The terminal. Into a pipe or a file each line stays one line, so that grep and cut find it
    whole.
    """
    from rich.console import Console

    console = Console(highlight=False)
    # COLUMNS=0 and the like would leave room for nothing.
    return (
        Console(highlight=False, width=max(console.width, 20))
        if console.is_terminal
        else Console(highlight=False, width=1000)
    )


def _between(
    low: float, high: float
) -> Callable[[typer.CallbackParam, float | None], float | None]:
    """The check of an option that is a number: typer's own bounds let "not a number" pass."""

    def check(param: typer.CallbackParam, value: float | None) -> float | None:
        if value is not None and not low <= value <= high:
            raise SparkbookError(
                f"{param.opts[0]} is {value:g}: write a number from {low:g} to {high:g}"
            )
        return value

    return check


_WAIT = _between(0, 1e6)


def _standard_input() -> IO[bytes]:
    from sparkbook.formats import standard_input

    return standard_input()


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


# ---- recipes

recipes_app = typer.Typer(
    help="What is known about serving each model, and how it is started.", no_args_is_help=True
)
app.add_typer(recipes_app, name="recipes")


class As(enum.StrEnum):
    """How `recipes show` shows a recipe."""

    facts = "facts"
    docker = "docker"
    compose = "compose"
    shell = "shell"
    recipe = "recipe"
    eugr = "eugr"
    sparkrun = "sparkrun"
    spark_pulse = "spark-pulse"
    nvidia = "nvidia"
    vllm_recipes = "vllm-recipes"
    vllm_recipes_json = "vllm-recipes-json"
    kubernetes = "kubernetes"
    json = "json"


@recipes_app.command("list")
def recipes_list(
    family: Annotated[
        str | None, typer.Option(help="Only this family, such as qwen or gemma.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the catalogue."""
    from sparkbook import recipes

    found = recipes.all()
    if family is not None:
        families = sorted({recipe.family for recipe in found})
        if family not in families:
            raise SparkbookError(
                f"there is no recipe of the family '{family}'; families are {', '.join(families)}"
            )
        found = [recipe for recipe in found if recipe.family == family]
    if as_json:
        _print_json([_row(recipe) for recipe in found])
    else:
        _print_list(_console(), [_row(recipe) for recipe in found])


def _row(recipe: Recipe) -> dict[str, Any]:
    return {
        "id": recipe.id,
        "title": recipe.title,
        "family": recipe.family,
        "model": recipe.model.repo,
        "quantization": recipe.model.quantization.format,
        "weights_gb": recipe.model.weights_gb,
        "image": recipe.image.ref if recipe.image else None,
        "status": recipe.status,
    }


def _print_list(console: Console, rows: list[dict[str, Any]]) -> None:
    """A table where it fits on whole lines; where it does not, model and image go on lines of their
    own under each id.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("ID", "Model", "Quantization"):
        table.add_column(name, no_wrap=True)
    table.add_column("GB", justify="right", no_wrap=True)
    for name in ("Image", "Status"):
        table.add_column(name, no_wrap=True)
    keys = ("id", "model", "quantization", "weights_gb", "image", "status")
    cells = [[_cell(row[key]) for key in keys] for row in rows]
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    if (
        table.__rich_measure__(console, console.options.update(max_width=1000)).maximum
        <= console.width
    ):
        console.print(table)
        return
    for name, model, quantization, size, image, status in cells:
        console.print(
            Text(name, "bold"),
            Text(f"{quantization}, {size} GB, {status}", "dim"),
            sep="  ",
            overflow="fold",
        )
        console.print(Text(f"  model  {model}"), overflow="fold")
        console.print(Text(f"  image  {image}"), overflow="fold")


def _cell(value: str | float | None) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


@recipes_app.command("show")
def recipes_show(
    name: Annotated[str, typer.Argument(metavar="ID", help="Id of a recipe, or a YAML file.")],
    as_: Annotated[As, typer.Option("--as", help="How to show it.")] = As.facts,
    as_json: Json = False,
) -> None:
    """Show one recipe: what is known about it, or its launch line in another form."""
    from sparkbook import recipes

    if as_json and as_ not in (As.facts, As.json):
        raise SparkbookError(
            f"--as {as_.value} gives text to paste and --json gives the recipe as JSON: leave one"
            " of them out"
        )
    recipe = recipes.load(name)
    if as_json or as_ is As.json:
        _print_json(recipe.model_dump(mode="json"))
    elif as_ is As.facts:
        _print_facts(_console(), recipe)
    else:
        from sparkbook.formats import FORMATS

        typer.echo(FORMATS[as_.value].write(recipe), nl=False)


def _print_facts(console: Console, recipe: Recipe) -> None:
    """A recipe for reading: facts, what to know, what turned out wrong, and where it comes from."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    def section(title: str) -> None:
        console.print()
        console.print(Text(title, "bold"))

    def item(mark: str, text: str, source: str | None = None, style: str = "") -> None:
        body = Text.assemble((mark, style), " ", text, (f" [{source}]" if source else "", "dim"))
        console.print(Padding(body, (0, 0, 0, 2)) if console.is_terminal else Text("  ") + body)

    console.print(Text(recipe.title, "bold"), Text(f"({recipe.id}, {recipe.status})", "dim"))
    console.print(Text(recipe.summary))
    console.print()
    for label, text in _facts(recipe):
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(style="cyan", no_wrap=True, width=13)
        table.add_column(overflow="fold")
        table.add_row(label, Text(text))
        console.print(table)
    if recipe.prepare:
        section("Prepare once")
        for step in recipe.prepare:
            what = step.command or " ".join(
                filter(None, [step.do, step.repo or step.url, f"to {step.to}" if step.to else ""])
            )
            item("-", f"{what}: {step.why}")
    if recipe.remarks:
        section("Remarks")
        styles = {"note": "", "warning": "yellow", "caution": "bold red"}
        for remark in recipe.remarks:
            item(f"{remark.level}:", remark.text, remark.source, styles[remark.level])
    if recipe.corrections:
        section("Corrections")
        for correction in recipe.corrections:
            item("claim:", correction.claim)
            item(f"since {correction.date}:", correction.now, correction.source, "yellow")
    if recipe.benchmarks.speed:
        section("Published speed")
        for speed in recipe.benchmarks.speed:
            item("-", _speed(speed), speed.source)
    section("Sources")
    for source in recipe.sources:
        item(
            f"[{source.id}]",
            " ".join(
                filter(None, [source.title, source.url, f"({source.date})" if source.date else ""])
            ),
        )


def _facts(recipe: Recipe) -> list[tuple[str, str]]:
    """Labels and texts; what is not known is left out."""
    model = recipe.model
    size = [f"{model.total_params_b:g}B parameters"] if model.total_params_b else []
    size += [f"{model.active_params_b:g}B active"] if model.active_params_b else []
    size += (
        [f"{model.weights_gb:g} GB of weights" + (" (counted)" * model.weights_counted)]
        if model.weights_gb
        else []
    )
    context = [f"{model.context.native} tokens"] if model.context.native else []
    context += [f"{model.context.extended} extended"] if model.context.extended else []
    draft = recipe.draft
    facts = [
        ("model", model.repo + (f" @ {model.revision}" if model.revision else "")),
        ("publisher", model.publisher),
        ("design", ", ".join(filter(None, [model.design, model.architecture]))),
        ("size", ", ".join(size)),
        (
            "quantization",
            " by ".join(filter(None, [model.quantization.format, model.quantization.producer])),
        ),
        ("context", ", ".join(context)),
        ("modalities", ", ".join(model.modalities)),
        ("licence", ", ".join(filter(None, [model.licence, "gated" if model.gated else ""]))),
        (
            "draft",
            draft
            and ", ".join(
                filter(None, [draft.method, draft.model, f"{draft.tokens} tokens a step"])
            ),
        ),
        ("image", recipe.image.ref if recipe.image else "none: runs as a process"),
        ("digest", (recipe.image.digest or "not pinned") if recipe.image else None),
        ("vLLM", recipe.image.vllm if recipe.image else None),
        ("served as", recipe.served_name),
        ("port", str(recipe.launch.port)),
        (
            "able to",
            ", ".join(name.replace("_", " ") for name, able in recipe.capabilities if able),
        ),
        ("guide", recipe.guide_section),
    ]
    return [(label, text) for label, text in facts if text]


def _speed(speed: Any) -> str:
    """One published speed in words; only what its source says."""
    figures = {
        "decode {} tok/s": speed.decode_tok_s,
        "up to {} tok/s": speed.decode_tok_s_max,
        "aggregate {} tok/s": speed.aggregate_tok_s,
        "prefill {} tok/s": speed.prefill_tok_s,
        "TTFT {} ms": speed.ttft_ms,
        "TPOT {} ms": speed.tpot_ms,
        "acceptance {}": speed.acceptance,
        "{} tokens a step": speed.acceptance_length,
    }
    said = [text.format(f"{value:g}") for text, value in figures.items() if value is not None]
    about = [
        speed.configuration,
        speed.prompt_class,
        f"concurrency {speed.concurrency}",
        speed.machine,
    ]
    return f"{', '.join(said) or speed.note or 'no figure'} ({', '.join(filter(None, about))})"


@recipes_app.command("validate")
def recipes_validate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Recipe files.")],
    as_json: Json = False,
) -> None:
    """Check recipe files; exit with 2 if one of them is not a valid recipe."""
    from pathlib import Path

    from sparkbook import recipes

    problems: dict[str, str | None] = {}
    for file in files:
        try:
            recipes.load(Path(file))
            problems[file] = None
        except recipes.RecipeError as error:
            problems[file] = str(error)
    if as_json:
        _print_json(
            [
                {"file": file, "valid": problem is None, "problem": problem}
                for file, problem in problems.items()
            ]
        )
    else:
        for file, problem in problems.items():
            typer.echo(problem or f"{file} is a valid recipe", err=problem is not None)
    if any(problems.values()):
        raise typer.Exit(2)


@recipes_app.command("schema")
def recipes_schema() -> None:
    """Print the JSON Schema of a recipe."""
    from sparkbook import recipes

    typer.echo(recipes.json_schema(), nl=False)


# ---- releases

releases_app = typer.Typer(
    help="What each vLLM release accepts, and what changed between two.", no_args_is_help=True
)
app.add_typer(releases_app, name="releases")


@releases_app.command("list")
def releases_list(as_json: Json = False) -> None:
    """List the releases that are known."""
    from sparkbook import releases

    if as_json:
        _print_json(releases.known())
    else:
        typer.echo("\n".join(releases.known()))


@releases_app.command("show")
def releases_show(
    version: Annotated[str, typer.Argument(metavar="V", help="A release such as 0.32.0.")],
    category: Annotated[
        str | None, typer.Option(help="Every name of one category, such as options or envs.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a release accepts."""
    from rich.text import Text

    from sparkbook import releases
    from sparkbook.releases import changelog

    release = releases.get(version)
    if category is not None and category not in releases.CATEGORIES:
        raise SparkbookError(
            f"there is no category '{category}'; there are {', '.join(releases.CATEGORIES)}"
        )
    if as_json:
        _print_json(release.names(category) if category else changelog.to_dict(release.version))
        return
    console = _console()
    if category is not None:
        for name, value in release.names(category).items():
            console.print(
                Text(": ".join(filter(None, [name, changelog.describe(category, value)]))),
                soft_wrap=True,
            )
        return
    console.print(Text(f"vLLM {release.version}", "bold"))
    console.print(
        Text(
            "  requires "
            + ", ".join(f"{name} {version}" for name, version in release.requires.items())
        ),
        soft_wrap=True,
    )
    for name, title in releases.CATEGORIES.items():
        console.print(Text(f"  {len(release.names(name)):4} {title} (--category {name})"))


@releases_app.command("diff")
def releases_diff(
    before: Annotated[str, typer.Argument(metavar="V1", help="The release that you come from.")],
    after: Annotated[str, typer.Argument(metavar="V2", help="The release that you go to.")],
    as_json: Json = False,
) -> None:
    """What changed from one release to another, as a changelog."""
    import dataclasses

    from rich.text import Text

    from sparkbook import releases
    from sparkbook.releases import changelog

    if as_json:
        _print_json([dataclasses.asdict(change) for change in releases.diff(before, after)])
        return
    console = _console()
    sections = changelog.changelog(before, after)
    if not sections:
        console.print(f"vLLM {after} accepts what {before} does.")
    for title, lines in sections:
        console.print(Text(f"{title} ({len(lines)})", "bold"))
        for line in lines:
            console.print(Text(f"  {line}"), soft_wrap=True)


# ---- lint


@app.command("lint")
def lint(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A recipe's id, a recipe, compose or text file, or - for standard input.",
        ),
    ],
    release: Annotated[
        str | None, typer.Option(help="vLLM release to judge against, if not the one in the image.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(help="Codes of rules to be silent about, with commas.")
    ] = None,
    fix: Annotated[
        bool,
        typer.Option(
            "--fix",
            help=(
                "Repair what can be repaired mechanically, in the file itself, and print the"
                " difference."
            ),
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Judge a recipe or a launch line against a vLLM release; exit with 1 if something in it cannot
    work.
    """
    from sparkbook import lint as linter

    codes = [
        code.strip().upper() for text in ignore or [] for code in text.split(",") if code.strip()
    ]
    report = linter.lint(source, release, codes)
    difference = None
    if fix:
        report, difference = _fix(source, report, release, codes)
    if as_json:
        _print_json(report.to_dict() | ({} if difference is None else {"diff": difference}))
    else:
        typer.echo(difference or "", nl=False)
        console = _console()
        told = f", {report.assumed}" if report.assumed else ""
        console.print(f"Judged as vLLM {report.release}{told}.", style="dim", soft_wrap=True)
        console.print(report.findings)
        for code, reason in report.suppressed:
            console.print(f"ignored {code}: {reason}", style="dim", soft_wrap=True)
    if report.findings.worst == "error":
        raise typer.Exit(1)


def _fix(source: str, report: Any, release: str | None, codes: list[str]) -> tuple[Any, str]:
    """The report on the repaired text, and what changed; a file is written, standard input and a
    text on the command line are not.
    """
    from sparkbook import formats
    from sparkbook import lint as linter

    if not report.text:
        raise SparkbookError(
            "--fix repairs a text with a launch line; a recipe has to be changed by hand"
        )
    fixed, again = linter.repair(report, release, codes)
    path = formats.file_of(source) if source != "-" else None
    if fixed != report.text and path is not None and path.is_file():
        from sparkbook.util.files import write_text

        write_text(path, fixed)
    return again, linter.difference(
        report.text, fixed, source if source != "-" else "standard input"
    )


# ---- convert


@app.command("convert")
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help=(
                "A recipe's id, a file in any known format, a launch line, or - for standard input."
            ),
        ),
    ],
    to: Annotated[
        str,
        typer.Option("--to", metavar="FORMAT", help="The format to write; 'list' names them all."),
    ],
    env_file: Annotated[
        str | None,
        typer.Option("--env-file", metavar="FILE", help="The .env file of a compose file."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a recipe in another format. The text goes to standard output, the report of what was
    lost to standard error.
    """
    from sparkbook import formats
    from sparkbook.findings import Findings
    from sparkbook.formats import compose

    if to == "list":
        for format_ in formats.FORMATS.values():
            typer.echo(f"{format_.name:<18} {format_.title}")
        return
    if to not in formats.FORMATS:
        raise SparkbookError(f"there is no format '{to}'; there are {', '.join(formats.FORMATS)}")
    env = compose.read_env(formats.file_text(env_file)) if env_file else None
    read = formats.resolve(source, env)
    written = formats.write(read.recipe, to)
    if as_json:
        summary = {
            "from": read.format,
            "to": to,
            "read": len(read.findings),
            "written": len(written.findings),
        }
        _print_json(
            {
                "text": written.text,
                **Findings([*read.findings, *written.findings]).to_dict(**summary),
            }
        )
        return
    typer.echo(written.text, nl=False)
    from rich.console import Console

    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 1000)
    for title, findings in (
        (f"Read as {formats.FORMATS[read.format].title}:", read.findings),
        (f"Written as {formats.FORMATS[to].title}:", written.findings),
    ):
        if findings:
            console.print(title, style="bold")
            console.print(findings)


# ---- plan


@app.command("plan")
def plan(
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help=(
                "A recipe's id, a recipe, compose or text file, a launch line, or - for standard"
                " input."
            ),
        ),
    ],
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of one sequence, instead of the line's --max-model-len."),
    ] = None,
    seqs: Annotated[
        int | None, typer.Option(min=1, help="Sequences at once, instead of --max-num-seqs.")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Type of the KV cache, such as fp8.")] = None,
    fraction: Annotated[
        float | None, typer.Option(help="Instead of the line's --gpu-memory-utilization.")
    ] = None,
    memory_gib: Annotated[
        float | None, typer.Option(help="Memory that vLLM sees, GiB; left out, a Spark's 121.63.")
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
        typer.Option(help="What else runs: a fraction or a size, [NAME=]0.42 or [NAME=]32GiB."),
    ] = None,
    release: Annotated[
        str | None, typer.Option(help="vLLM release, if not the one in the image.")
    ] = None,
    hub: Annotated[
        bool,
        typer.Option(
            "--hub", help="Read the checkpoint's headers from the Hugging Face hub; no weights."
        ),
    ] = False,
    log: Annotated[
        str | None, typer.Option(metavar="FILE", help="An engine's log to compare with the plan.")
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="This machine's figures: used, and with --log updated."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show the working.")] = False,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=2, help="Also say what so many Sparks would give, and how to share the model out."
        ),
    ] = None,
    fabric: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="With --nodes: the measured network, JSON; else a healthy one."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say before the download whether it fits and for which context. Exit 0 fits or may fit, 1 does
    not, 2 unusable input.
    """
    from pathlib import Path

    from sparkbook.plan import memory, reconcile, request

    if fabric and not nodes:
        raise SparkbookError("--fabric goes with --nodes, such as --nodes 2")
    if nodes and (log or calibration or explain):
        raise SparkbookError(
            "--nodes answers by itself: leave out --log, --calibration and --explain"
        )
    kept = Path(calibration) if calibration else None
    if kept and log is None and not kept.exists():
        raise SparkbookError(f"there is no calibration {kept}: a plan with --log makes one")
    known = reconcile.load_calibration(kept) if kept else None
    override = request.Override(context, seqs, kv_dtype, fraction, release, hub)
    setup, host = (
        request.read(source, override),
        request.host(memory_gib, available_gib, tuple(cotenant or ()), _text(meminfo)),
    )
    found = memory.plan(setup, host, known)
    compared = None
    if log is not None:
        from sparkbook import logs

        try:
            compared = reconcile.reconcile(found, logs.diagnose(Path(log)).story)
            if kept:
                reconcile.save_calibration(kept, compared.calibration)
        except OSError as error:
            raise SparkbookError(f"{error.filename}: {error.strerror}") from None
    if nodes:
        from sparkbook.cluster import advice

        link = advice.read_link(Path(fabric)) if fabric else advice.NOMINAL
        advised = advice.advise(setup, link, nodes, host)
        if as_json:
            _print_json({**found.to_dict(), "cluster": advised.to_dict()})
        else:
            for line in advised.lines():
                _console().print(line)
        if not any(held.possible for held in advised.memory.values()):
            raise typer.Exit(1)
        return
    if as_json:
        answer = found.to_dict()
        if compared:
            answer["reconciled"] = compared.to_dict()
        _print_json(answer)
    else:
        _print_plan(_console(), found, compared, explain)
    if not found.fits:
        raise typer.Exit(1)


def _text(file: str | None) -> str | None:
    from pathlib import Path

    try:
        return Path(file).read_text("utf-8", errors="replace") if file else None
    except OSError as error:
        raise SparkbookError(f"{file} can't be read: {error.strerror}") from None


def _print_plan(console: Console, found: Any, compared: Any, explain: bool) -> None:
    from sparkbook.plan import text

    for line in text.lines(found, explain):
        console.print(line, soft_wrap=True)
    for finding in found.findings:
        console.print()
        console.print(finding)
    if compared:
        console.print("\nBeside the log", style="bold")
        for line in text.reconciled(compared):
            console.print(line, soft_wrap=True)
        console.print(compared.findings)


# ---- record


@app.command("record")
def record(
    out: Annotated[
        str, typer.Argument(metavar="OUT", help="A folder or a .tar.gz that is not there yet.")
    ],
    log: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="An engine's log, or -; may be repeated."),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="A running server: its metrics and its release.")
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A scrape of /metrics; may be repeated."),
    ] = None,
    host: Annotated[bool, typer.Option(help="Also what 'check' sees of this machine.")] = True,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", help="A further word to take out; may be repeated."),
    ] = None,
) -> None:
    """Bundle what this machine said, without secrets and names, to become test data. Look through
    it before you give it away.
    """
    from pathlib import Path

    from sparkbook import bundle as recorder

    def read(path: str) -> str:
        return (_standard_input().read() if path == "-" else Path(path).read_bytes()).decode(
            "utf-8", errors="replace"
        )

    def look() -> dict[str, Any]:
        from sparkbook import host as machine

        return machine.check(machine.look()).to_dict()

    scraped, release = recorder.served(url) if url else ({}, None)
    files = recorder.record(
        Path(out),
        logs=recorder.named(log or (), read),
        metrics=recorder.named(metrics or (), read) | scraped,
        host=look if host else None,
        release=release,
        scrubber=recorder.Scrubber.of_this_machine(also or ()),
    )
    typer.echo("\n".join([f"{out}:", *(f"  {name}" for name in files)]))


# ---- diagnose


@app.command("diagnose")
def diagnose(
    log: Annotated[
        str, typer.Argument(metavar="LOG|-", help="A log file, or - for standard input.")
    ],
    facts: Annotated[
        str | None,
        typer.Option(
            "--facts",
            metavar="FILE",
            help="Facts about the host: JSON, /proc/meminfo, or lines name: value.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a log tells: what went wrong and what to do, or that all is well. Exit 0 healthy, 1
    a fault found, 2 unusable.
    """
    from pathlib import Path

    from sparkbook import logs

    try:
        known = (
            logs.parse_facts(Path(facts).read_text(encoding="utf-8", errors="replace"))
            if facts
            else None
        )
        diagnosis = logs.diagnose(_standard_input() if log == "-" else Path(log), known)
    except OSError as error:
        raise SparkbookError(f"{error.filename or log} can't be read: {error.strerror}") from None
    if diagnosis.verdict == "empty":
        raise SparkbookError(
            f"{'standard input' if log == '-' else log} is empty: there is nothing to diagnose"
        )
    if not diagnosis.known:
        raise SparkbookError(
            f"{'standard input' if log == '-' else log} does not look like a log of vLLM (no line"
            " of it is known)"
        )
    if as_json:
        _print_json(diagnosis.to_dict())
    else:
        _print_diagnosis(_console(), diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _print_diagnosis(console: Console, diagnosis: Any) -> None:
    from rich.text import Text

    from sparkbook.units import format_seconds

    console.print(Text(diagnosis.headline, "bold red" if diagnosis.primary else "bold green"))
    for finding in diagnosis.findings:
        console.print()
        console.print(finding)
    story = diagnosis.story
    if facts := {
        name: value for name, value in story.facts().items() if name not in ("starts", "ready")
    }:
        console.print()
        console.print(Text("What the engine resolved", "bold"))
        for name, value in facts.items():
            console.print(
                Text.assemble(
                    (f"  {name:<20}", "cyan"),
                    f"{value:g}" if isinstance(value, float) else str(value),
                )
            )
    if story.phases:
        console.print()
        console.print(Text("The start", "bold"))
        for phase in story.phases:
            console.print(
                Text(
                    f"  {phase.begin_s:8.1f} s  {phase.name:<16}"
                    f" {format_seconds(phase.seconds):>10}  {phase.detail}"
                )
            )
    if diagnosis.primary and len(story.last_lines) > 1:
        console.print()
        console.print(Text("Last line of each process", "bold"))
        for name, line in story.last_lines.items():
            console.print(Text(f"  {name:<24} {line}", "dim"), overflow="ellipsis", no_wrap=True)


# ---- metrics


@app.command("metrics")
def metrics(
    source: Annotated[
        str,
        typer.Argument(
            metavar="URL|BEFORE",
            help="A running server, or the file of an earlier scrape of /metrics.",
        ),
    ],
    after: Annotated[
        str | None, typer.Argument(metavar="AFTER", help="The file of a later scrape.")
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            callback=_WAIT, help="Seconds between the two scrapes; of a server, how long to wait."
        ),
    ] = 10.0,
    power: Annotated[
        float | None,
        typer.Option(callback=_between(0, 1e5), help="The GPU's power in that time, W."),
    ] = None,
    clock: Annotated[
        float | None,
        typer.Option(callback=_between(0, 1e5), help="The GPU's SM clock in that time, MHz."),
    ] = None,
    query: Annotated[
        list[str] | None,
        typer.Option(help="A metric that a dashboard asks for in vain; may be repeated."),
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(help="The engine's vLLM release; of a running server, what it says itself."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge an engine by two scrapes of its metrics. Exit 0 healthy, 1 a fault found, 2 unusable."""
    import dataclasses
    import time

    from sparkbook.metrics import Metrics
    from sparkbook.metrics.diagnose import Telemetry, diagnose_metrics

    if release:
        from sparkbook import releases

        release = releases.get(release).version
    address = source.rstrip("/").removesuffix("/metrics")

    def scrape() -> Metrics:
        from sparkbook.serve.endpoint import Endpoint, key_from_environment

        return Metrics.parse(Endpoint(address, api_key=key_from_environment()).metrics_text())

    if source.startswith(("http://", "https://")):
        earlier = scrape()
        time.sleep(max(seconds, 0.1))
        later = scrape()
        release = release or _served_release(address)
    elif after is None:
        _want_address(source)
        raise SparkbookError(
            "one file is one scrape: give a second file, or the URL of a running server"
        )
    else:
        earlier, later = _scraped(source), _scraped(after)
    for name, scraped in ((source, earlier), (after or source, later)):
        if not scraped.of_vllm:
            raise SparkbookError(
                f"{name} does not look like the metrics of vLLM: no name in it begins with vllm:"
            )
    change, findings = diagnose_metrics(
        earlier,
        later,
        seconds,
        Telemetry(power_w=power, clock_mhz=clock),
        tuple(query or ()),
        release,
    )
    if as_json:
        figures = dataclasses.asdict(change)
        _print_json(
            findings.to_dict(
                deltas=figures, acceptance=change.acceptance, mean_length=change.mean_length
            )
        )
    else:
        _console().print(findings)
    if findings.worst == "error":
        raise typer.Exit(1)


def _scraped(file: str) -> Any:
    """A scrape of /metrics in a file."""
    from pathlib import Path

    from sparkbook.metrics import Metrics

    try:
        return Metrics.parse(Path(file).read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise SparkbookError(f"{file} can't be read: {error.strerror}") from None
    except SparkbookError as error:
        raise SparkbookError(f"{file}: {error}") from None


def _want_address(source: str) -> None:
    """Refuses an address without its scheme, which would be taken for a file that is not there."""
    if re.fullmatch(r"[\w.-]+:\d+(/.*)?", source) and not os.path.exists(source):  # noqa: PTH110
        raise SparkbookError(f"{source} is no file; if a server is meant, write http://{source}")


def _served_release(address: str) -> str | None:
    """The vLLM release that a server says it is, where the table knows it."""
    import contextlib

    from sparkbook import releases
    from sparkbook.serve.endpoint import Endpoint

    with contextlib.suppress(SparkbookError, ValueError, AttributeError):
        return releases.get(str(Endpoint(address).get("/version").json()["version"])).version
    return None


# ---- check


@app.command("check")
def check(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]", help="Id of the recipe that this host is to serve, or a file."
        ),
    ] = None,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Also start a container on the GPU from its image, with 5 s of load."
        ),
    ] = False,
    probes: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Judge what 'check --json' read elsewhere; given several times: nodes that work"
                " together."
            )
        ),
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Say whether this host is ready to serve, and what to do. Exit 0 ready (slow counts as ready),
    1 blocked, 2 unusable.
    """
    from pathlib import Path

    if cluster:
        if run or probes:
            raise SparkbookError(
                "--cluster looks at the nodes of an inventory: leave out --run and --probes"
            )
        return _check_cluster(cluster, recipe, as_json)

    from sparkbook import formats, host

    if probes and (recipe or run):
        raise SparkbookError("--probes judges what was read before: leave out RECIPE and --run")
    try:
        machines = [
            host.read_machine(Path(file).read_text("utf-8", errors="replace"), file)
            for file in probes or []
        ]
    except OSError as error:
        raise SparkbookError(f"{error.filename} can't be read: {error.strerror}") from None
    if len(machines) > 1:
        report = host.check_nodes(machines)
    else:
        report = host.check(
            machines[0]
            if machines
            else host.look(formats.resolve(recipe).recipe if recipe else None, run=run)
        )
    if as_json:
        _print_json(report.to_dict())
    else:
        _print_check(_console(), report)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


def _check_cluster(file: str, recipe: str | None, as_json: bool) -> None:
    """A line for each node and pair, what was found, and the verdict."""
    from sparkbook.cluster import commands

    report = commands.check(file, recipe)
    if as_json:
        _print_json(report.to_dict())
    else:
        typer.echo("\n".join(report.lines))
        _console().print(report.findings)
        typer.echo(report.verdict)
    if report.exit_code:
        raise typer.Exit(report.exit_code)


_VERDICT_STYLE = {"ready": "green", "slow": "yellow", "blocked": "bold red", "not judged": "dim"}


def _print_check(console: Console, report: Any) -> None:
    """A line for each check, then what was found, then the verdict."""
    from rich.text import Text

    for result in report.results:
        seconds = "" if result.seconds is None else f"{result.seconds:.2f} s"
        node = f"{result.node}  " if result.node else ""
        line = Text.assemble(
            (f"{result.verdict:<10}", _VERDICT_STYLE[result.verdict]),
            f"  {seconds:>7}  {node}{result.name:<22}  ",
            (result.saw, "dim"),
        )
        console.print(line, overflow="fold")
    for finding in report.findings:
        console.print()
        console.print(finding)
    console.print()
    console.print(Text(report.verdict, _VERDICT_STYLE[report.verdict]))


# ---- weights

weights_app = typer.Typer(
    help="Weights in the model store: fetch, verify, prune.", no_args_is_help=True
)
app.add_typer(weights_app, name="weights")

RecipeId = Annotated[str, typer.Argument(metavar="ID", help="Id of a recipe, or a YAML file.")]
Store = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="The model store, if not what HF_HOME names, or ~/vllm."),
]


def _folder(store: str | None) -> Any:
    from pathlib import Path

    return None if store is None else Path(store).expanduser()


@weights_app.command("fetch")
def weights_fetch(
    name: RecipeId,
    store: Store = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Files at once.")] = 8,
    unpinned: Annotated[
        bool,
        typer.Option(
            "--unpinned", help="Also fetch code that no source gives a checksum of; note it."
        ),
    ] = False,
    allow_outside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Let the recipe write to this file or folder outside the store. Repeatable.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Download what a recipe reads. Goes on with what was begun. Exit 0 all there, 1 refused or
    failed, 2 unusable.
    """
    from pathlib import Path

    from sparkbook import recipes, weights
    from sparkbook.units import format_bytes, format_seconds

    recipe = recipes.load(name)
    try:
        fetched = weights.fetch(
            recipe,
            _folder(store),
            workers=workers,
            unpinned=unpinned,
            allow_outside=[Path(path) for path in allow_outside or ()],
            progress=not as_json and sys.stderr.isatty(),
        )
    except weights.WeightsError as error:
        _weights_failed(error, as_json)
    except KeyboardInterrupt:
        typer.echo("sparkbook: stopped; the next fetch goes on from here", err=True)
        raise typer.Exit(130) from None
    if as_json:
        staged = [
            {
                "repo": one.repo,
                "commit": one.commit,
                "folder": str(one.folder),
                "files": one.files,
                "bytes": one.bytes,
                "downloaded": one.downloaded,
            }
            for one in fetched.staged
        ]
        _print_json(
            fetched.findings.to_dict(
                seconds=fetched.seconds,
                staged=staged,
                prepared=[str(path) for path in fetched.prepared],
            )
        )
    else:
        for one in fetched.staged:
            size = (
                f"{format_bytes(one.bytes)} in {one.files} files, {format_bytes(one.downloaded)} of"
                " them now"
            )
            typer.echo(f"{one.repo} at {one.commit[:12]}: {size}")
            typer.echo(f"  {one.folder}")
        for path in fetched.prepared:
            typer.echo(f"{path}")
        typer.echo(f"done in {format_seconds(fetched.seconds)}")
        if fetched.findings:
            _console().print(fetched.findings)
    if fetched.findings:
        raise typer.Exit(1)


def _weights_failed(error: Any, as_json: bool) -> None:
    from sparkbook.findings import Findings

    findings = Findings([error.finding])
    if as_json:
        _print_json(findings.to_dict())
    else:
        _console().print(findings)
    raise typer.Exit(1) from None


@weights_app.command("verify")
def weights_verify(name: RecipeId, store: Store = None, as_json: Json = False) -> None:
    """Hash every file of a recipe's weights; needs no network. Exit 0 whole, 1 damaged or missing."""
    from sparkbook import recipes, weights
    from sparkbook.units import format_bytes, format_seconds

    try:
        seen = weights.verify(
            recipes.load(name), _folder(store), progress=not as_json and sys.stderr.isatty()
        )
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    if as_json:
        _print_json(
            seen.findings.to_dict(
                files=seen.files, bytes=seen.bytes, unknown=list(seen.unknown), seconds=seen.seconds
            )
        )
    else:
        typer.echo(
            f"{seen.files} files, {format_bytes(seen.bytes)}, in {format_seconds(seen.seconds)}"
        )
        if seen.unknown:
            typer.echo(f"no hash is known of {', '.join(seen.unknown)}")
        _console().print(seen.findings)
    if seen.findings.worst == "error":
        raise typer.Exit(1)


@weights_app.command("prune")
def weights_prune(
    store: Store = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Remove them; without it they are only listed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List what the store does not need: beginnings of downloads, and commits that were left
    behind.
    """
    from sparkbook import recipes, weights
    from sparkbook.units import format_bytes

    found = weights.prune(recipes.all(), _folder(store))
    if as_json:
        _print_json(
            {
                "paths": [{"path": str(path), "why": why} for path, why in found.paths],
                "bytes": found.bytes,
                "removed": yes,
            }
        )
    else:
        for path, why in found.paths:
            typer.echo(f"{path}: {why}")
        typer.echo(
            f"{format_bytes(found.bytes)} {'freed' if yes else 'would be freed: give --yes'}"
            if found.paths
            else "nothing to prune"
        )
    if yes:
        try:
            found.remove()
        except weights.WeightsError as error:
            _weights_failed(error, as_json)


# ---- serve: the life of a server


@app.command("serve")
def serve_(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="ID|INPUT", help="A recipe's id, or the file or text of a launch line."
        ),
    ] = None,
    target: Annotated[str, typer.Option(help="auto, docker or process.")] = "auto",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print what would be sent to Docker, or run; start nothing."
        ),
    ] = False,
    locked: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Serve what a stack lock says, with its digest."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the container.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port on the host.")] = None,
    host: Annotated[
        str | None, typer.Option(help="Docker engine elsewhere, such as ssh://user@spark-2.")
    ] = None,
    expose: Annotated[
        bool, typer.Option("--expose", help="Keep the launch line's address instead of loopback.")
    ] = False,
    offline: Annotated[
        bool, typer.Option("--offline", help="Mount the model store read-only; download nothing.")
    ] = False,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Take down what holds name or port, if it was started here."
        ),
    ] = False,
    restart_always: Annotated[
        bool,
        typer.Option("--restart-always", help="Once it answers: start again always, also at boot."),
    ] = False,
    watchdog: Annotated[
        bool | None,
        typer.Option(
            help="Guard the start; without the option: until this stack has answered once."
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Stay and guard it; Ctrl-C ends the watch, not the server."),
    ] = False,
    floor: Annotated[
        str | None, typer.Option(help="Memory that the watchdog keeps free, such as 8GiB.")
    ] = None,
    deadline: Annotated[
        float, typer.Option(callback=_WAIT, help="Seconds to wait until it answers.")
    ] = 1800.0,
    cluster: Cluster = None,
    layout: Annotated[
        str | None, typer.Option(help="With --cluster, how the model is spread: tp=2, pp=2, dp=2.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="With --cluster: native (vLLM's own ranks) or ray.")
    ] = "native",
    stage: Annotated[
        bool,
        typer.Option(
            "--stage", help="With --cluster: first put image and model files on every node."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a server and wait until it has answered a real request. A process stays in the
    foreground; a container runs on.
    """
    from sparkbook.serve import launcher

    if cluster:
        if (
            source is None
            or locked
            or host
            or expose
            or offline
            or replace
            or restart_always
            or watch
        ):
            raise SparkbookError(
                "--cluster takes what to serve, and of the options --name, --port, --layout,"
                " --backend, --stage, --deadline"
            )
        return _serve_cluster(
            cluster, source, name, layout, backend, port, stage, deadline, dry_run, as_json
        )
    if layout or stage or backend != "native":
        raise SparkbookError("--layout, --backend and --stage go with --cluster")

    wish = launcher.Wish(
        source=source,
        locked=locked,
        target=target,
        name=name,
        host=host,
        port=port,
        expose=expose,
        offline=offline,
        restart_always=restart_always,
        replace=replace,
        watchdog=watchdog,
        watch=watch,
        floor=floor,
        deadline_s=deadline,
    )
    if dry_run:
        plan = launcher.plan(wish)
        if as_json:
            _print_json(plan.to_dict())
        else:
            typer.echo(plan.text)
            _console().print(plan.notes)
        return
    _ended(
        lambda: launcher.serve(
            wish, say=lambda line: typer.echo(line, err=True), show=_shown(as_json)
        )
    )


def _serve_cluster(
    file: str,
    source: str,
    name: str | None,
    layout: str | None,
    backend: str,
    port: int | None,
    stage: bool,
    deadline: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    from sparkbook.cluster import commands, server

    wish = commands.Wish(file, source, name, layout, backend, port, stage, deadline)
    if not dry_run:
        return _ended(
            lambda: commands.serve(
                wish, say=lambda line: typer.echo(line, err=True), show=_shown(as_json)
            )
        )
    planned, _, notes = commands.plan(wish)
    if as_json:
        _print_json(
            {
                "layout": planned.layout.model_dump(),
                "backend": backend,
                "ranks": server.shown(planned),
                **notes.to_dict(),
            }
        )
    else:
        typer.echo(server.shown_text(planned))
        _console().print(notes)


def _shown(as_json: bool) -> Any:
    """Prints a server that is ready."""

    def show(answer: dict[str, Any]) -> None:
        if as_json:
            _print_json(answer)
        else:
            typer.echo(
                "\n".join(
                    f"{label:<8} {text}" for label, text in answer.items() if text is not None
                )
            )

    return show


def _ended(act: Any) -> None:
    """Runs what starts or ends a server: exit code 1 where the server failed, 130 after Ctrl-C,
    which leaves nothing behind.
    """
    from sparkbook.serve.engine import EngineError
    from sparkbook.serve.faults import ServeFault
    from sparkbook.serve.ready import NotReady

    try:
        act()
    except (EngineError, NotReady, ServeFault) as error:
        typer.echo(f"sparkbook: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        typer.echo("sparkbook: interrupted", err=True)
        raise typer.Exit(130) from None


@app.command("status")
def status(
    host: Annotated[
        str | None, typer.Option(help="Docker engine elsewhere, such as ssh://user@spark-2.")
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """List the servers that were started here. Exit 0 all are ready, 1 one is not, 2 Docker can't
    be asked.
    """
    from rich.text import Text

    if cluster:
        from sparkbook.cluster import commands

        rows = commands.status(cluster)
        if as_json:
            _print_json({"ranks": rows})
        else:
            told = [
                f"{row['state']:<12} {row['host']:<12} "
                + "  ".join(row[k] for k in ("name", "url", "end") if row[k])
                for row in rows
            ]
            typer.echo("\n".join(told) or "No rank runs on any node.")
        if any(row["state"] not in ("ready", "running") for row in rows):
            raise typer.Exit(1)
        return

    from sparkbook.serve import running

    with running.engines(host) as (docker, notes):
        servers = running.status(docker)
    if as_json:
        _print_json(
            {
                "servers": [server.to_dict() for server in servers],
                **notes.to_dict(servers=len(servers)),
            }
        )
    else:
        console = _console()
        if not servers:
            console.print("No server was started here.")
        for server in servers:
            style = "green" if server.state == "ready" else "bold red"
            about = (
                f"  {server.name}  {server.served} at {server.url} "
                f" ({', '.join(filter(None, [server.target, server.recipe]))})"
            )
            console.print(Text.assemble((f"{server.state:<10}", style), about), soft_wrap=True)
            if server.end:
                console.print(server.end)
        if notes.worst == "error":
            console.print(notes)
    if notes.worst == "error":
        raise typer.Exit(2)
    if any(server.state != "ready" for server in servers):
        raise typer.Exit(1)


@app.command("logs")
def logs_(
    name: Annotated[
        str, typer.Argument(metavar="NAME|ID", help="A server's name, or its recipe's id.")
    ],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until it ends.")] = False,
    diagnosis: Annotated[
        bool,
        typer.Option(
            "--diagnose", help="Say what the log tells; exit 1 where it tells of a fault."
        ),
    ] = False,
    host: Annotated[
        str | None, typer.Option(help="Docker engine elsewhere, such as ssh://user@spark-2.")
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Print what a server printed, or what it means."""
    from sparkbook import logs
    from sparkbook.serve import running

    if cluster:
        return _cluster_logs(cluster, name, follow, diagnosis, as_json)
    if (follow and diagnosis) or (as_json and not diagnosis):
        raise SparkbookError(
            "--diagnose judges the log as it is, without --follow; --json goes with --diagnose"
        )
    with running.engines(host) as (docker, _):
        pieces = running.logs(docker, name, follow=follow)
        if not diagnosis:
            try:
                for piece in pieces:
                    sys.stdout.buffer.write(piece)
                    sys.stdout.buffer.flush()
            except KeyboardInterrupt:
                raise typer.Exit(130) from None
            return
        told = logs.diagnose(b"".join(pieces).decode("utf-8", "replace"))
    if as_json:
        _print_json(told.to_dict())
    else:
        _print_diagnosis(_console(), told)
    if not told.healthy:
        raise typer.Exit(1)


def _cluster_logs(file: str, name: str, follow: bool, diagnosis: bool, as_json: bool) -> None:
    """What every rank printed, or which of them fell first."""
    from sparkbook.cluster import commands

    if follow or (as_json and not diagnosis):
        raise SparkbookError(
            "--cluster shows the logs as they are, without --follow; --json goes with --diagnose"
        )
    if not diagnosis:
        for rank, text in commands.logs(file, name):
            typer.echo(f"==> {rank} <==")
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        return
    found, tails = commands.diagnose(file, name)
    if as_json:
        _print_json(found.to_dict(tails=tails))
    else:
        _console().print(found)
        for rank, lines in tails.items():
            typer.echo("\n".join([f"==> {rank} <==", *lines]))
    if found.worst == "error":
        raise typer.Exit(1)


@app.command("stop")
def stop(
    name: Annotated[
        str, typer.Argument(metavar="NAME|ID", help="A server's name, or its recipe's id.")
    ],
    host: Annotated[
        str | None, typer.Option(help="Docker engine elsewhere, such as ssh://user@spark-2.")
    ] = None,
    cluster: Cluster = None,
    as_json: Json = False,
) -> None:
    """Take a server down: its processes end, its container is removed. Weights and logs of
    processes stay.
    """
    from sparkbook.serve import running

    if cluster:
        from sparkbook.cluster import commands

        names, left = commands.stop(cluster, name)
        if as_json:
            _print_json({"stopped": names, **left.to_dict()})
        else:
            typer.echo("\n".join(f"{one} is stopped" for one in names))
            if left:
                _console().print(left)
        if left:
            raise typer.Exit(1)
        return

    with running.engines(host) as (docker, _):
        stopped = running.stop(docker, name)
    if as_json:
        _print_json({"stopped": stopped})
    else:
        typer.echo(f"{stopped} is stopped")


# ---- lock


class _Lock(typer.core.TyperGroup):
    """`lock ID` is `lock make ID`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["make", *args])


lock_app = typer.Typer(
    help=(
        "The stack lock: what decided how a server runs, to review, compare and serve again. 'lock"
        " ID' makes one."
    ),
    no_args_is_help=True,
)
app.add_typer(lock_app, name="lock", cls=_Lock)


@lock_app.command("make")
def lock_make(
    source: Annotated[
        str, typer.Argument(metavar="ID|INPUT", help="A recipe's id, or a launch line.")
    ],
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="File to write; else it is printed."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the running server, where it is not the recipe's.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Hash every weight file, also those named by their hash.")
    ] = False,
    bench: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A result of `sparkbook bench` to write down with it."),
    ] = None,
) -> None:
    """Lock a stack as it runs now, with its memory plan; what a server that is down can't tell is
    null.
    """
    from pathlib import Path

    from sparkbook import lock
    from sparkbook.serve import launcher

    measured = None
    if bench:
        from sparkbook.bench.results import Report

        measured = Report.read(bench).summary()
    text = lock.dumps(
        launcher.lock_of(source, name=name, deep=deep, plan=_planned(source), bench=measured)
    )
    if output:
        from sparkbook.util.files import write_text

        write_text(Path(output).expanduser(), text)
    else:
        typer.echo(text, nl=False)


def _planned(source: str) -> dict[str, Any] | None:
    """The plan in the few figures that a lock keeps; None where nothing is known of the checkpoint."""
    from sparkbook import plan

    try:
        summary = plan.of(source).to_dict()["summary"]
    except SparkbookError:
        return None
    return {
        key: summary[key]
        for key in (
            "verdict",
            "release",
            "context",
            "sequences",
            "fraction",
            "kv_dtype",
            "kv_gib",
            "kv_tokens",
        )
    }


@lock_app.command("verify")
def lock_verify(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The lock.")],
    name: Annotated[
        str | None, typer.Option(help="Name of the running server, where it is not the recipe's.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Hash every weight file, also those named by their hash.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what has moved since a lock was made. Exit 0 nothing, 1 something, 2 unusable."""
    from sparkbook.serve import launcher

    _print_moved(*launcher.verify(file, name=name, deep=deep), as_json)


@lock_app.command("diff")
def lock_diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A lock.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another lock.")],
    as_json: Json = False,
) -> None:
    """Say how two locks differ. Exit 0 not at all, 1 they do, 2 unusable."""
    from sparkbook import lock

    changes = lock.diff(lock.read(before), lock.read(after))
    _print_moved(changes, lock.judge(changes), as_json)


def _print_moved(changes: Any, findings: Any, as_json: bool) -> None:
    if as_json:
        moved = [
            {"path": change.path, "before": change.before, "after": change.after}
            for change in changes
        ]
        _print_json({"changes": moved, **findings.to_dict()})
    else:
        for change in changes:
            typer.echo(str(change))
        _console().print(findings)
    if findings:
        raise typer.Exit(1)


# ---- kernels

kernels_app = typer.Typer(
    help="The project's NVFP4 and FP8 CUDA kernels: build, check and time them.",
    no_args_is_help=True,
)
app.add_typer(kernels_app, name="kernels")


@kernels_app.command("build")
def kernels_build(
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="sm_90, sm_120f or sm_121f; may be repeated. Without: this GPU's, or all.",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also where the library is there already.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compile the kernels with nvcc from CUDA_HOME, PATH or PyPI's wheels. Exit 0 built, 2 no
    compiler or an error of it.
    """
    from sparkbook.kernels import build, library

    targets = list(target or [])
    if not targets:
        try:
            targets = [library.target_for()]
        except SparkbookError:
            targets = list(build.TARGETS)
    done = [build.build(name, again=again) for name in targets]
    if as_json:
        _print_json([b.to_dict() for b in done])
        return
    for b in done:
        typer.echo(
            f"{b.target}: {b.kernels} kernels, {b.spills} bytes spilled,"
            f" {'built' if b.fresh else 'was there'}: {b.path}"
        )


@kernels_app.command("test")
def kernels_test(
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the long checks, as under compute-sanitizer.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the kernels on this machine's GPU against the numpy reference. Exit 0 all hold, 1 one
    does not, 2 no GPU or no torch.
    """
    from sparkbook.kernels import selftest

    done = selftest.run(
        quick=quick, say=lambda one: None if as_json else typer.echo(selftest.line(one))
    )
    if as_json:
        _print_json(
            {
                "checks": [one.to_dict() for one in done],
                "summary": {"failed": sum(not one.ok for one in done)},
            }
        )
    if not all(one.ok for one in done):
        raise typer.Exit(1)


@kernels_app.command("bench")
def kernels_bench(
    quick: Annotated[
        bool, typer.Option("--quick", help="Only the ceilings and one product.")
    ] = False,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the report to a file too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time the kernels on this machine's GPU beside what else is there. Exit 0 measured, 2 no GPU
    or no torch.
    """
    from sparkbook.kernels import bench

    report = bench.run(
        quick=quick, say=lambda line: None if as_json else typer.echo(line)
    ).to_dict()
    if out:
        from sparkbook.util.files import write_text

        write_text(out, json.dumps(report, indent=1) + "\n")
    if as_json:
        _print_json(report)


# ---- bench


@app.command("bench")
def bench(
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL|FILE", help="A running server; or a result file, also another tool's."
        ),
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
        str | None, typer.Option(help="Requests per second instead, at random moments (open loop).")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help="Requests of a row; if not given, four for each at a time, at least 16."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(callback=_WAIT, help="Begin no request of a row later than this."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each reply.")] = 128,
    seed: Annotated[int, typer.Option(help="Chooses the prompts.")] = 0,
    timeout: Annotated[
        float,
        typer.Option(
            callback=_between(0.1, 1e6),
            help="Seconds of silence after which a request is given up.",
        ),
    ] = 300.0,
    caching: Annotated[
        bool, typer.Option("--caching", help="Measure the prefix cache: send prompts unsalted.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Served name; asked for if not given.")] = None,
    label: Annotated[str | None, typer.Option(help="Name of this run, such as a mode.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="INPUT",
            help="What the server runs: no speed above what a Spark's memory allows is believed.",
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Keep the whole result here.")
    ] = None,
    as_format: Annotated[
        str,
        typer.Option(
            "--as", help="Form of FILE: sparkbook, llama-benchy; one row: vllm, performance."
        ),
    ] = "sparkbook",
    tool: Annotated[
        str,
        typer.Option(
            "--with", help="Who measures: sparkbook, or vllm (`vllm bench serve`, random prompts)."
        ),
    ] = "sparkbook",
    tokenizer: Annotated[
        str | None,
        typer.Option(help="With vllm: the model's tokenizer, if the server does not name it."),
    ] = None,
    require_valid: Annotated[
        bool, typer.Option("--require-valid", help="Exit with 1 unless every row passes the gate.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a server, and say whether the numbers may be believed. Exit 0; 1 rejected
    (--require-valid); 2 unusable.

    The API key is read from VLLM_API_KEY, or a 0600 file that SPARKBOOK_KEY_FILE names. Ctrl-C
    keeps what was measured.
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
        bar = not as_json and sys.stderr.isatty()
        report = commands.obtain(url, lists | plan, model=model, bar=bar, out=out, form=as_format)
    else:
        raise SparkbookError(f"nobody here measures with '{tool}'; --with takes sparkbook or vllm")
    problem = commands.keep_or_rescue(report, url, out, as_format) if out is not None else None
    if as_json:
        _print_json(commands.to_dict(report))
    else:
        commands.show(report, _console())
    if problem or report.ended:
        raise SparkbookError("; ".join(filter(None, [report.ended, problem])))
    if require_valid and report.verdict != "valid":
        raise typer.Exit(1)


@app.command("equal")
def equal(
    a: Annotated[str, typer.Argument(metavar="URL_A", help="A running server without the option.")],
    b: Annotated[str, typer.Argument(metavar="URL_B", help="One with it.")],
    option: Annotated[str, typer.Option(help="Name of what was changed, for the answer.")] = "B",
    each: Annotated[
        int, typer.Option(help="Free replies of each of the four kinds of text.", min=1, max=6)
    ] = 4,
    max_tokens: Annotated[int, typer.Option(help="Longest free reply.", min=1)] = 48,
    as_json: Json = False,
) -> None:
    """Say whether an option changes what a server answers: greedy replies and small tasks, A
    against B, and A against itself.

    For whatever claims to be lossless: speculation, KV cache dtype, MoE backend, CUDA graphs,
        prefix caching. Exit 0 the same, or but for
    near-ties; 1 changed; 2 unusable. The API key of both is read as by `bench`.
    """
    from sparkbook.bench import commands

    trial = commands.equal_servers(
        a, b, option, each=each, max_tokens=max_tokens, bar=not as_json and sys.stderr.isatty()
    )
    if as_json:
        _print_json(
            {"findings": [], "summary": {"verdict": trial.verdict}, "trial": trial.to_dict()}
        )
    else:
        for line in (
            f"{option}: {trial.verdict}",
            f"replies: {trial.equality}",
            f"tasks:   {trial.scores}",
            f"moved:   {trial.moved}",
        ):
            _console().print(line, highlight=False, markup=False)
    if trial.verdict == "changed":
        raise typer.Exit(1)


@app.command("monitor")
def monitor(
    form: Annotated[
        str,
        typer.Argument(
            metavar="grafana | prometheus", help="A dashboard to import, or a scrape configuration."
        ),
    ],
    server: Annotated[
        list[str] | None,
        typer.Option(help="For Prometheus: HOST:PORT of a server; may be given again."),
    ] = None,
) -> None:
    """Write a Grafana dashboard or a Prometheus configuration for vLLM servers, from the panels
    that the book's live view draws.
    """
    from sparkbook import dashboard

    if form == "grafana":
        _print_json(dashboard.grafana())
    elif form == "prometheus":
        typer.echo(dashboard.prometheus(server or ["127.0.0.1:8000"]), nl=False)
    else:
        raise SparkbookError(f"there is no form '{form}'; there are grafana and prometheus")


@app.command("advise")
def advise(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="URL | FILE FILE…",
            help="A running server that speculates; or results of `bench` without and with it.",
        ),
    ],
    seconds: Annotated[
        float, typer.Option(callback=_WAIT, help="Of a server: how long to watch.")
    ] = 30.0,
    draft_cost: Annotated[
        float,
        typer.Option(
            callback=_between(0, 100),
            help="Of a server: making one draft, as a share of a step without.",
        ),
    ] = 0.05,
    verify_cost: Annotated[
        float,
        typer.Option(
            callback=_between(0, 100), help="Of a server: checking one more token, likewise."
        ),
    ] = 0.02,
    as_json: Json = False,
) -> None:
    """Say whether speculative decoding is worth it, with which K, up to which concurrency.

    Of a server only the acceptance is known, so costs have to be assumed; measurements of both ways
    decide. Exit 0; 1 a measurement was rejected by the gate or a K changes the output; 2 unusable.
    """
    from sparkbook.bench import commands

    if len(sources) == 1 and sources[0].startswith(("http://", "https://")):
        rows, basis = commands.advice_of_server(sources[0], seconds, draft_cost, verify_cost)
        best = max(rows, key=lambda row: row[2])
        if as_json:
            named = [
                dict(zip(("k", "tokens_per_step", "speed_up"), row, strict=True)) for row in rows
            ]
            _print_json(
                {"findings": [], "summary": {"basis": basis, "expected": named, "best": best[0]}}
            )
            return
        _console().print(basis)
        for k, tokens, gain in rows:
            _console().print(
                f"  K = {k:<2}  {tokens:5.2f} tokens a step  {gain:5.2f} times as"
                f" fast{'   <' if k == best[0] else ''}"
            )
        _console().print(
            f"expected, with {draft_cost:g} a draft and {verify_cost:g} a checked token; measure"
            " both ways to be sure"
        )
        return
    for source in sources:
        _want_address(source)
        if source.startswith(("http://", "https://")):
            raise SparkbookError(
                f"{source} stands among files: give one server alone, or only files of results"
            )
    advice = commands.advice_of_files(sources)
    findings = advice.findings()
    if as_json:
        best = [{"class": name, "concurrency": c, "k": k} for (name, c), k in advice.best.items()]
        _print_json(findings.to_dict(best=best, schedule=advice.schedule, release=advice.release))
    else:
        _console().print(findings)
    if findings.worst == "error":
        raise typer.Exit(1)


# ---- book


@app.command("book")
def book(
    notebooks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NOTEBOOK]...",
            help="Chapters such as 06_launch, or files; none: the whole book.",
        ),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=V1,V2", help="Every value in turn."),
    ] = None,
    matrix: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="YAML: 'notebook' and 'parameters', each with its values."
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="Where results go. The same again: what is missing is run."
        ),
    ] = "_build/batch",
    jobs: Annotated[int, typer.Option(min=1, help="Notebooks at a time on this machine.")] = 1,
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Ray cluster to run on, HOST:6379 or auto."),
    ] = None,
    target: Annotated[str, typer.Option(help="auto, or plan: start no engine.")] = "auto",
    attempts: Annotated[
        int, typer.Option(min=1, help="How often a notebook is begun at most.")
    ] = 3,
    as_json: Json = False,
) -> None:
    """Run notebooks here or on the Sparks of a Ray cluster, and collect them. Exit 0 all done, 1
    some are not, 2 unusable, 130 Ctrl-C.
    """
    from pathlib import Path

    from sparkbook.runner import batch, batch_workers

    if target not in ("auto", "plan"):
        raise SparkbookError(f"--target is auto or plan, not '{target}'")
    todo = batch.jobs(
        notebooks or [], batch.assignments(parameter or []), matrix_file=matrix, target=target
    )
    try:
        outcome = batch.run(
            todo,
            Path(to),
            lambda: batch_workers.made(jobs, ray, lambda text: typer.echo(text, err=True)),
            attempts=attempts,
        )
    except KeyboardInterrupt:
        typer.echo(
            f"interrupted: nothing is left running, and what was collected is in {to}", err=True
        )
        raise typer.Exit(130) from None
    if as_json:
        _print_json(outcome.to_dict())
    else:
        for name, why in outcome.failed.items():
            typer.echo(f"FAILED {name}: {why}")
        typer.echo(
            f"{len(outcome.done)} done, {outcome.kept} of them before, {len(outcome.failed)} not:"
            f" {Path(to) / batch.MANIFEST}"
        )
    if not outcome.ok:
        raise typer.Exit(1)
