"""The `sparkbook` command: words for people and JSON for machines over what the library answers. No logic lives here.

Each group of verbs is one `typer.Typer` below, added to `app`. What a verb needs is imported inside it, so that the command starts at once.
Exit codes: 0, or 2 where the input cannot be used; a verb that judges exits with 1 where its judgement is bad.
"""

from __future__ import annotations

import enum
import json
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparkbook.errors import SparkbookError

if TYPE_CHECKING:
    from rich.console import Console

    from sparkbook.recipes import Recipe

app = typer.Typer(
    name="sparkbook",
    help="Serve language models with vLLM on a DGX Spark: recipes, launch lines and what is known about them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]


def main() -> None:
    """Runs the command and exits. What the user can set right is one line on standard error and exit code 2, never a traceback."""
    try:
        app()  # typer itself ends quietly where the reader of a pipe has gone
    except SparkbookError as error:
        typer.echo(f"sparkbook: {error}", err=True)
    except OSError as error:
        # Such as a full disk behind the standard output, which Python would complain of again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        typer.echo(f"sparkbook: {error}", err=True)
    sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"sparkbook {version('sparkbook')}")
        raise typer.Exit


@app.callback()
def _root(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    pass


def _console() -> Console:
    """The terminal. Into a pipe or a file each line stays one line, so that grep and cut find it whole."""
    from rich.console import Console

    console = Console(highlight=False)
    # COLUMNS=0 and the like would leave room for nothing.
    return Console(highlight=False, width=max(console.width, 20)) if console.is_terminal else Console(highlight=False, width=1000)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


# ---- recipes

recipes_app = typer.Typer(help="What is known about serving each model, and how it is started.", no_args_is_help=True)
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
    family: Annotated[str | None, typer.Option(help="Only this family, such as qwen or gemma.")] = None,
    as_json: Json = False,
) -> None:
    """List the catalogue."""
    from sparkbook import recipes

    found = recipes.all()
    if family is not None:
        families = sorted({recipe.family for recipe in found})
        if family not in families:
            raise SparkbookError(f"there is no recipe of the family '{family}'; families are {', '.join(families)}")
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
    """A table where it fits on whole lines; where it does not, model and image go on lines of their own under each id."""
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
    if table.__rich_measure__(console, console.options.update(max_width=1000)).maximum <= console.width:
        console.print(table)
        return
    for name, model, quantization, size, image, status in cells:
        console.print(Text(name, "bold"), Text(f"{quantization}, {size} GB, {status}", "dim"), sep="  ", overflow="fold")
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
        raise SparkbookError(f"--as {as_.value} gives text to paste and --json gives the recipe as JSON: leave one of them out")
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
            what = step.command or " ".join(filter(None, [step.do, step.repo or step.url, f"to {step.to}" if step.to else ""]))
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
        item(f"[{source.id}]", " ".join(filter(None, [source.title, source.url, f"({source.date})" if source.date else ""])))


def _facts(recipe: Recipe) -> list[tuple[str, str]]:
    """Labels and texts; what is not known is left out."""
    model = recipe.model
    size = [f"{model.total_params_b:g}B parameters"] if model.total_params_b else []
    size += [f"{model.active_params_b:g}B active"] if model.active_params_b else []
    size += [f"{model.weights_gb:g} GB of weights"] if model.weights_gb else []
    context = [f"{model.context.native} tokens"] if model.context.native else []
    context += [f"{model.context.extended} extended"] if model.context.extended else []
    draft = recipe.draft
    facts = [
        ("model", model.repo + (f" @ {model.revision}" if model.revision else "")),
        ("publisher", model.publisher),
        ("design", ", ".join(filter(None, [model.design, model.architecture]))),
        ("size", ", ".join(size)),
        ("quantization", " by ".join(filter(None, [model.quantization.format, model.quantization.producer]))),
        ("context", ", ".join(context)),
        ("modalities", ", ".join(model.modalities)),
        ("licence", ", ".join(filter(None, [model.licence, "gated" if model.gated else ""]))),
        ("draft", draft and ", ".join(filter(None, [draft.method, draft.model, f"{draft.tokens} tokens a step"]))),
        ("image", recipe.image.ref if recipe.image else "none: runs as a process"),
        ("digest", (recipe.image.digest or "not pinned") if recipe.image else None),
        ("vLLM", recipe.image.vllm if recipe.image else None),
        ("served as", recipe.served_name),
        ("port", str(recipe.launch.port)),
        ("able to", ", ".join(name.replace("_", " ") for name, able in recipe.capabilities if able)),
        ("guide", recipe.guide_section),
    ]
    return [(label, text) for label, text in facts if text]


def _speed(speed: Any) -> str:
    """One published speed in words; only what its source says."""
    figures = {
        "decode {} tok/s": speed.decode_tok_s, "up to {} tok/s": speed.decode_tok_s_max, "aggregate {} tok/s": speed.aggregate_tok_s,
        "prefill {} tok/s": speed.prefill_tok_s, "TTFT {} ms": speed.ttft_ms, "TPOT {} ms": speed.tpot_ms,
        "acceptance {}": speed.acceptance, "{} tokens a step": speed.acceptance_length,
    }  # fmt: skip
    said = [text.format(f"{value:g}") for text, value in figures.items() if value is not None]
    about = [speed.configuration, speed.prompt_class, f"concurrency {speed.concurrency}", speed.machine]
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
        _print_json([{"file": file, "valid": problem is None, "problem": problem} for file, problem in problems.items()])
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

releases_app = typer.Typer(help="What each vLLM release accepts, and what changed between two.", no_args_is_help=True)
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
    category: Annotated[str | None, typer.Option(help="Every name of one category, such as options or envs.")] = None,
    as_json: Json = False,
) -> None:
    """Show what a release accepts."""
    from rich.text import Text

    from sparkbook import releases
    from sparkbook.releases import changelog

    release = releases.get(version)
    if category is not None and category not in releases.CATEGORIES:
        raise SparkbookError(f"there is no category '{category}'; there are {', '.join(releases.CATEGORIES)}")
    if as_json:
        _print_json(release.names(category) if category else changelog.to_dict(release.version))
        return
    console = _console()
    if category is not None:
        for name, value in release.names(category).items():
            console.print(Text(": ".join(filter(None, [name, changelog.describe(category, value)]))), soft_wrap=True)
        return
    console.print(Text(f"vLLM {release.version}", "bold"))
    console.print(Text("  requires " + ", ".join(f"{name} {version}" for name, version in release.requires.items())), soft_wrap=True)
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
    source: Annotated[str, typer.Argument(metavar="INPUT", help="A recipe's id, a recipe, compose or text file, or - for standard input.")],
    release: Annotated[str | None, typer.Option(help="vLLM release to judge against, if not the one in the image.")] = None,
    ignore: Annotated[list[str] | None, typer.Option(help="Codes of rules to be silent about, with commas.")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Repair what can be repaired mechanically, and print the difference.")] = False,
    as_json: Json = False,
) -> None:
    """Judge a recipe or a launch line against a vLLM release; exit with 1 if something in it cannot work."""
    from sparkbook import lint as linter

    codes = [code.strip().upper() for text in ignore or [] for code in text.split(",") if code.strip()]
    report = linter.lint(source, release, codes)
    if fix:
        report = _fix(source, report, release, codes)
    if as_json:
        _print_json(report.to_dict())
    else:
        console = _console()
        told = f", {report.assumed}" if report.assumed else ""
        console.print(f"Judged as vLLM {report.release}{told}.", style="dim", soft_wrap=True)
        console.print(report.findings)
        for code, reason in report.suppressed:
            console.print(f"ignored {code}: {reason}", style="dim", soft_wrap=True)
    if report.findings.worst == "error":
        raise typer.Exit(1)


def _fix(source: str, report: Any, release: str | None, codes: list[str]) -> Any:
    """Repairs a text and prints what changed; a file is written, standard input and a text on the command line are only shown."""
    from pathlib import Path

    from sparkbook import lint as linter

    if not report.text:
        raise SparkbookError("--fix repairs a text with a launch line; a recipe has to be changed by hand")
    fixed, again = linter.repair(report, release, codes)
    typer.echo(linter.difference(report.text, fixed, source if source != "-" else "standard input"), nl=False, err=False)
    path = Path(os.path.expanduser(source))  # noqa: PTH111 (leaves alone what it can't expand)
    if fixed != report.text and source != "-" and not any(char.isspace() for char in source) and path.is_file():
        path.write_text(fixed, "utf-8")
    return again


# ---- convert


@app.command("convert")
def convert(
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A recipe's id, a file in any known format, a launch line, or - for standard input.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="The format to write; 'list' names them all.")],
    env_file: Annotated[str | None, typer.Option("--env-file", metavar="FILE", help="The .env file of a compose file.")] = None,
    as_json: Json = False,
) -> None:
    """Write a recipe in another format. The text goes to standard output, the report of what was lost to standard error."""
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
        summary = {"from": read.format, "to": to, "read": len(read.findings), "written": len(written.findings)}
        _print_json({"text": written.text, **Findings([*read.findings, *written.findings]).to_dict(**summary)})
        return
    typer.echo(written.text, nl=False)
    from rich.console import Console

    console = Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else 1000)
    for title, findings in ((f"Read as {formats.FORMATS[read.format].title}:", read.findings),
                            (f"Written as {formats.FORMATS[to].title}:", written.findings)):  # fmt: skip
        if findings:
            console.print(title, style="bold")
            console.print(findings)


# ---- diagnose


@app.command("diagnose")
def diagnose(
    log: Annotated[str, typer.Argument(metavar="LOG|-", help="A log file, or - for standard input.")],
    facts: Annotated[
        str | None, typer.Option("--facts", metavar="FILE", help="Facts about the host: JSON, /proc/meminfo, or lines name: value.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a log tells: what went wrong and what to do, or that all is well. Exit 0 healthy, 1 a fault found, 2 unusable."""
    from pathlib import Path

    from sparkbook import logs

    try:
        known = logs.parse_facts(Path(facts).read_text(encoding="utf-8", errors="replace")) if facts else None
        diagnosis = logs.diagnose(sys.stdin.buffer if log == "-" else Path(log), known)
    except OSError as error:
        raise SparkbookError(f"{error.filename or log} can't be read: {error.strerror}") from None
    if diagnosis.verdict == "empty":
        raise SparkbookError(f"{'standard input' if log == '-' else log} is empty: there is nothing to diagnose")
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
    if facts := {name: value for name, value in story.facts().items() if name not in ("starts", "ready")}:
        console.print()
        console.print(Text("What the engine resolved", "bold"))
        for name, value in facts.items():
            console.print(Text.assemble((f"  {name:<20}", "cyan"), f"{value:g}" if isinstance(value, float) else str(value)))
    if story.phases:
        console.print()
        console.print(Text("The start", "bold"))
        for phase in story.phases:
            console.print(Text(f"  {phase.begin_s:8.1f} s  {phase.name:<16} {format_seconds(phase.seconds):>10}  {phase.detail}"))
    if diagnosis.primary and len(story.last_lines) > 1:
        console.print()
        console.print(Text("Last line of each process", "bold"))
        for name, line in story.last_lines.items():
            console.print(Text(f"  {name:<24} {line}", "dim"), overflow="ellipsis", no_wrap=True)


# ---- metrics


@app.command("metrics")
def metrics(
    source: Annotated[str, typer.Argument(metavar="URL|BEFORE", help="A running server, or the file of an earlier scrape of /metrics.")],
    after: Annotated[str | None, typer.Argument(metavar="AFTER", help="The file of a later scrape.")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds between the two scrapes; of a server, how long to wait.")] = 10.0,
    power: Annotated[float | None, typer.Option(help="The GPU's power in that time, W.")] = None,
    clock: Annotated[float | None, typer.Option(help="The GPU's SM clock in that time, MHz.")] = None,
    query: Annotated[list[str] | None, typer.Option(help="A metric that a dashboard asks for in vain; may be repeated.")] = None,
    as_json: Json = False,
) -> None:
    """Judge an engine by two scrapes of its metrics. Exit 0 healthy, 1 a fault found, 2 unusable."""
    import dataclasses
    import time
    from pathlib import Path

    from sparkbook.metrics import Metrics
    from sparkbook.metrics_doctor import Telemetry, diagnose_metrics

    def scrape() -> Metrics:
        import httpx

        from sparkbook.serve.endpoint import Endpoint

        address = source.rstrip("/").removesuffix("/metrics")
        try:
            return Metrics.parse(Endpoint(address, api_key=os.environ.get("VLLM_API_KEY", "")).metrics_text())
        except httpx.HTTPStatusError as error:
            raise SparkbookError(f"{address}/metrics answers {error.response.status_code}: is this a vLLM server?") from None

    if source.startswith(("http://", "https://")):
        earlier = scrape()
        time.sleep(max(seconds, 0.1))
        later = scrape()
    elif after is None:
        raise SparkbookError("one file is one scrape: give a second file, or the URL of a running server")
    else:
        try:
            earlier, later = (Metrics.parse(Path(file).read_text(encoding="utf-8", errors="replace")) for file in (source, after))
        except OSError as error:
            raise SparkbookError(f"{error.filename} can't be read: {error.strerror}") from None
    change, findings = diagnose_metrics(earlier, later, seconds, Telemetry(power_w=power, clock_mhz=clock), tuple(query or ()))
    if as_json:
        figures = dataclasses.asdict(change)
        _print_json(findings.to_dict(deltas=figures, acceptance=change.acceptance, mean_length=change.mean_length))
    else:
        _console().print(findings)
    if findings.worst == "error":
        raise typer.Exit(1)
