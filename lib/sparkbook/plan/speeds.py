"""Published speeds on DGX Sparks next to what `decode` and `prefill` estimate for them: the fit,
the test, and what a page shows of a recipe.

Three places hold them, each figure with its conditions and source: `measured.yaml` (collected by
hand), `runs.json` (written by `tools/build_runs.py`), and the recipes of the catalogue. Those of
the last two are estimated from their launch lines, as `sparkbook plan` does.

Which half of them a number may be fitted to was decided before an error was looked at, by a hash of
the configuration: the model with its weights, the draft, and the number of Sparks. So no held-out
figure has a relative in the calibration half that differs only by requests, context or prompt. The
salt of the hash is the first number that leaves, by count alone, at least a quarter of the figures
of each kind in each half: one request with and without a draft, 2 to 4 and 8 or more requests,
first tokens of 8k and 32k, and two Sparks.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Literal

from sparkbook import recipes
from sparkbook.errors import SparkbookError
from sparkbook.plan import request
from sparkbook.plan.decode import OWN_HEAD, SPARK, Drafting, Machine, Speed, geometric_length
from sparkbook.plan.evidence import Prefill, Served, drafting, measured, of_setup
from sparkbook.plan.prefill import PREFILL, FirstToken, Rates, first_token, flops
from sparkbook.plan.setup import Setup
from sparkbook.recipes.schema import Source

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe

    Published = recipes.schema.Speed

Group = Literal["calibration", "held out"]
Kind = Literal["decode", "first token"]

CARRIED = "performance"
"""Id of the source of a speed that was measured with the recipe's own line."""


SALT = "1"


def group(configuration: str) -> Group:
    """Return the half that a configuration belongs to, by the first byte of its salted SHA-256: an
    even one calibrates.
    """
    even = hashlib.sha256(f"{SALT} {configuration}".encode()).digest()[0] % 2 == 0
    return "calibration" if even else "held out"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A published speed, and what is needed to estimate it.

    Attributes:
        configuration: model with its weights, draft, Sparks.
        value: tokens a second of all requests together, or seconds to the first token.
        concurrency: requests at once.
        context: tokens behind each of them while it decodes, or the prompt's.
        setup: in words.
        served: what a step reads.
        chunk: tokens that prefill computes in one step.
        length: tokens a step that the draft brought, where the source lets one tell.
        perhaps: a draft that the source neither states nor rules out.
        explained: what explains a large error, where that is written next to the figure.
    """

    id: str
    configuration: str
    kind: Kind
    value: float
    concurrency: int
    context: int
    setup: str
    source: Source
    served: Served
    chunk: int = 8192
    length: float | None = None
    perhaps: Drafting | None = None
    explained: str | None = None

    @property
    def note(self) -> str | None:
        """What explains a large error."""
        return self.explained or measured().notes.get(self.id)

    @property
    def group(self) -> Group:
        """The half that it belongs to."""
        return group(self.configuration)

    @property
    def label(self) -> str:
        """Its id with the number of requests."""
        requests = f"x{self.concurrency}"
        return self.id if self.id.endswith(requests) else f"{self.id} × {self.concurrency}"

    @property
    def plain(self) -> bool:
        """One request at a time, one token a step, one Spark."""
        alone = self.concurrency == self.served.shards * self.served.stages == 1
        return self.kind == "decode" and alone and self.served.draft is None

    @property
    def gigabytes(self) -> float:
        """Gigabytes (10^9 bytes) of weights, KV cache and state in one likely step, without the
        draft's own.
        """
        reads, draft = self.served.reads[1], self.served.draft
        per_sequence = reads.kv(self.context) + 2 * reads.state
        tokens = self.concurrency * (1 + (draft.tokens if draft else 0))
        return (reads.weights(tokens) + self.concurrency * per_sequence) / 1e9

    @property
    def flop_s(self) -> float:
        """FLOP/s behind a first token, over all Sparks, by the count of `prefill.flops`."""
        return flops(self.served.reads[1], self.context) / self.value

    def estimate(self, machine: Machine = SPARK, rates: Rates = PREFILL) -> Speed | FirstToken:
        """What the model says for it."""
        if self.kind == "first token":
            spread = self.served.on(machine)
            return first_token(
                self.served.reads[1], self.context, chunk=self.chunk, machine=spread, rates=rates
            )
        found = self.served.speed(self.concurrency, self.context, machine)
        if self.perhaps:
            other = replace(self.served, draft=self.perhaps)
            high = other.speed(self.concurrency, self.context, machine).high
            found = replace(found, high=max(found.high, high))
        return found


@dataclass(frozen=True)
class Outcome:
    """A published figure next to its estimate."""

    figure: Figure
    estimate: Speed | FirstToken

    @property
    def likely(self) -> float:
        """The estimate, in the figure's unit."""
        e = self.estimate
        return e.tok_s if isinstance(e, Speed) else e.seconds

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of its interval."""
        e = self.estimate
        return (e.low, e.high) if isinstance(e, Speed) else (e.low_s, e.high_s)

    @property
    def error(self) -> float:
        """Estimate over published figure, less one: above 0 where the estimate is too high."""
        return self.likely / self.figure.value - 1

    @property
    def holds(self) -> bool:
        """Whether the interval holds the published figure."""
        low, high = self.bounds
        return low <= self.figure.value <= high


@cache
def all_figures() -> tuple[Figure, ...]:
    """Every published figure that the model covers, in the order of its place."""
    return (*_collected(), *_runs(), *_carried())


def outcomes(machine: Machine = SPARK, rates: Rates = PREFILL) -> list[Outcome]:
    """Every figure with its estimate."""
    return [Outcome(figure, figure.estimate(machine, rates)) for figure in all_figures()]


def median_error(of: Sequence[Outcome]) -> float:
    """Median of the absolute errors."""
    return median(abs(outcome.error) for outcome in of)


def held_share(of: Sequence[Outcome]) -> float:
    """Share of figures that their intervals hold."""
    return sum(outcome.holds for outcome in of) / len(of)


# ---- where figures are from


def _configuration(name: str, weights: str, draft: tuple[str, int] | None, sparks: int = 1) -> str:
    drafted = f"{draft[0]} {draft[1]}" if draft else "no draft"
    return f"{name} {weights}, {drafted}, {sparks} Spark{'s' * (sparks > 1)}"


def _collected() -> Iterator[Figure]:
    """Yield the figures of `measured.yaml`."""
    data = measured()
    for row in (*data.covered, *data.further):
        shape = data.models[row.model]
        use = (row.draft.use, row.draft.tokens) if row.draft else None
        yield Figure(
            id=row.id,
            configuration=_configuration(row.model, row.weights or "", use),
            kind="decode",
            value=row.tok_s,
            concurrency=row.concurrency,
            context=row.context or data.unstated_context,
            setup=row.setup,
            source=data.source(row),
            served=Served(
                shape.reads(row.weights or "", row.kv_factor), drafting(shape, row.draft)
            ),
            length=row.draft.length if row.draft else None,
            perhaps=drafting(shape, row.perhaps),
            explained=row.note,
        )
    for number, prefill in enumerate(data.prefills, 1):
        yield _collected_prefill(number, prefill)


def _collected_prefill(number: int, prefill: Prefill) -> Figure:
    data = measured()
    shape = data.models[prefill.model]
    return Figure(
        id=f"prefill-{number:02}",
        configuration=_configuration(prefill.model, prefill.weights, None),
        kind="first token",
        value=prefill.prompt / prefill.tok_s,
        concurrency=1,
        context=prefill.prompt,
        setup=prefill.setup,
        source=data.source(prefill),
        served=Served(shape.reads(prefill.weights), None),
    )


def _of_line(setup: Setup, served: Served) -> str:
    """Return the configuration of a launch line, named as `measured.yaml` names it."""
    name = setup.checkpoint.name
    model, weights = measured().serves.get(name, (name, ""))
    use = (setup.method or "", setup.drafted) if setup.drafted else None
    return _configuration(model, weights, use, served.shards * served.stages)


@cache
def runs() -> list[dict[str, Any]]:
    """Return the configurations of `runs.json`."""
    data: list[dict[str, Any]] = json.loads(
        Path(__file__).with_name("runs.json").read_text("utf-8")
    )
    return data


def run_source(one: dict[str, Any], file: str) -> Source:
    """Where a run of `runs.json` is from."""
    return Source.model_validate(
        {
            "id": one["id"],
            "title": f"inference-atlas, configuration {one['id']}",
            "url": f"https://github.com/0xBakeer/inference-atlas/blob/main/{file}",
            "date": one["date"],
        }
    )


def _runs() -> Iterator[Figure]:
    """Yield the figures of `runs.json` whose model is known. More requests than `--max-num-seqs`
    wait in a queue: they are left out.
    """
    for one in runs():
        setup = request.read(one["line"], request.Override(release=_release(one["version"])))
        served = of_setup(setup)
        if served is None:
            continue
        configuration = _of_line(setup, served)
        for run in one["runs"]:
            if run["concurrency"] > setup.sequences:
                continue
            prefill = run["kind"] == "prefill"
            name = f"{one['id'][:4]}{'-prefill' * prefill}-{run['prompt']}x{run['concurrency']}"
            yield Figure(
                id=f"{configuration.split()[0].split('/')[-1].lower()}-{name}",
                configuration=configuration,
                kind="first token" if prefill else "decode",
                value=(
                    run["ttft_ms"] / 1000 if prefill else 1000 * run["concurrency"] / run["tpot_ms"]
                ),
                concurrency=run["concurrency"],
                context=run["prompt"] if prefill else run["prompt"] + run["output"] // 2,
                setup=f"{setup.checkpoint.name}, vLLM {one['version'].split('.dev')[0]}",
                source=run_source(one, run["file"]),
                served=served,
                chunk=setup.batched,
                # One request: each gap between two outputs is a step.
                length=(
                    run["itl_ms"] / run["tpot_ms"]
                    if served.draft and run["concurrency"] == 1 and not prefill
                    else None
                ),
            )


def _release(version: str) -> str | None:
    """Return the release that a build is of or before; None where its version does not tell."""
    from sparkbook import releases

    plain = version.split(".dev")[0].split("rc")[0]
    return plain if plain in releases.known() else None


def _carried() -> Iterator[Figure]:
    """Yield the speeds that were measured with the very lines of the catalogue's recipes."""
    seen = set()
    for recipe in recipes.all():
        if recipe.topology.memory_gb < 128:  # its figures are those of the line for 128 GB
            continue
        for row in recipe.benchmarks.speed:
            url = recipe.source(row.source).url
            if row.source != CARRIED or url in seen or not row.prompt_tokens:
                continue
            setup = request.read(recipe.id)
            served = of_setup(setup)
            if served is None:
                continue
            seen.add(url)
            prompt = row.prompt_tokens
            found: list[tuple[Kind, str, float, int]] = []
            if row.decode_tok_s:
                behind = prompt + (row.output_tokens or 0) // 2
                found.append(("decode", recipe.id, row.decode_tok_s * row.concurrency, behind))
            if row.prefill_tok_s:
                name = f"{recipe.id}-prefill"
                found.append(("first token", name, prompt / row.prefill_tok_s, prompt))
            for kind, name, value, context in found:
                yield Figure(
                    id=name,
                    configuration=_of_line(setup, served),
                    kind=kind,
                    value=value,
                    concurrency=row.concurrency,
                    context=context,
                    setup=f"{recipe.id}: {row.configuration}",
                    source=recipe.source(row.source),
                    served=served,
                    chunk=setup.batched,
                )


# ---- what a page shows


@dataclass(frozen=True)
class Shown:
    """A published speed of a recipe, as a page shows it.

    Attributes:
        tok_s: decode of one request, tokens a second; of a range its lower end.
        concurrency: requests at once.
        prompt: tokens of the prompt; None where the source does not say.
        first_token_s: seconds until the first token; None where the source does not say.
        own_line: whether it was measured with the recipe's own line.
        setup: what differs from it, in words.
        source: where it is from.
    """

    tok_s: float
    concurrency: int
    prompt: int | None
    first_token_s: float | None
    own_line: bool
    setup: str
    source: Source

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self) | {"source": self.source.model_dump(mode="json")}

    def __str__(self) -> str:
        requests = f"{self.concurrency} request{'s' * (self.concurrency > 1)}"
        prompt = f", prompt of {self.prompt:,} tokens" if self.prompt else ""
        date = f", {self.source.date}" if self.source.date else ""
        return f"{self.tok_s:.3g} tok/s each ({requests}{prompt}; {self.source.title}{date})"


def published(recipe: Recipe) -> list[Shown]:
    """Return what others measured of a recipe on as many Sparks: one request first, then its own
    line before others, then the newest.
    """
    found = sorted(
        (*_recipe_speeds(recipe), *_run_speeds(recipe)),
        key=lambda one: str(one.source.date or ""),
        reverse=True,
    )
    return sorted(found, key=lambda one: (one.concurrency, not one.own_line))


def _recipe_speeds(recipe: Recipe) -> Iterator[Shown]:
    """Yield the speeds that a recipe carries."""
    nodes = recipe.topology.nodes
    machine = "DGX Spark" if nodes == 1 else f"{nodes} × DGX Spark"
    for row in recipe.benchmarks.speed:
        if row.machine != machine or not row.decode_tok_s:
            continue
        first_s = row.ttft_ms / 1000 if row.ttft_ms else None
        if first_s is None and row.prefill_tok_s and row.prompt_tokens:
            first_s = row.prompt_tokens / row.prefill_tok_s
        yield Shown(
            row.decode_tok_s,
            row.concurrency,
            row.prompt_tokens,
            first_s,
            row.source == CARRIED or not row.configuration,
            row.configuration or "",
            recipe.source(row.source),
        )


def _run_speeds(recipe: Recipe) -> Iterator[Shown]:
    """Yield the runs of `runs.json` that served a recipe's checkpoint with its draft."""
    if recipe.topology.nodes > 1:
        return
    draft = (recipe.draft.method, recipe.draft.tokens) if recipe.draft else None
    for one in runs():
        words = one["line"].split()
        if words[2] != recipe.model.repo or _draft_of(one["line"]) != draft:
            continue
        first = {
            run["prompt"]: run["ttft_ms"] / 1000 for run in one["runs"] if run["kind"] == "prefill"
        }
        for run in one["runs"]:
            yield Shown(
                1000 / run["tpot_ms"],
                run["concurrency"],
                run["prompt"],
                first.get(run["prompt"]),
                False,
                f"{one['image']}, vLLM {one['version']}",
                run_source(one, run["file"]),
            )


def _draft_of(line: str) -> tuple[str, int] | None:
    """Return the method and the tokens of a line's draft."""
    words = shlex.split(line)
    if "--speculative-config" not in words:
        return None
    config = json.loads(words[words.index("--speculative-config") + 1])
    return config["method"], config["num_speculative_tokens"]


# ---- the fit


@dataclass(frozen=True)
class Fit:
    """The numbers that are fitted.

    Attributes:
        machine: overhead, the speed of verifying attention, and the scatter.
        rates: of prefill, with their scatter.
        own_head: chance that the next token of a model's own prediction head is accepted.
    """

    machine: Machine
    rates: Rates
    own_head: float


FITTED = Fit(SPARK, PREFILL, OWN_HEAD[1])
"""The numbers that are in use."""


def calibrate() -> Fit:
    """Return the fitted numbers, from the calibration half alone.

    Each is the value with the least mean error of the configurations that show it, one after
    another until nothing moves: the overhead of a layer (steps of 0.01 ms) those without a draft,
    or whose tokens a step are known; the speed of verifying attention (5 GB/s) those with a draft
    behind 2,048 tokens or more; the chance of an own head (0.01) those that draft with it; the
    three rates of prefill (5 TFLOP/s) the first tokens. A scatter is what nine of ten figures are
    within, in steps of 0.05.
    """
    mine = [figure for figure in all_figures() if figure.group == "calibration"]
    decode = [figure for figure in mine if figure.kind == "decode"]
    first = [figure for figure in mine if figure.kind == "first token"]
    known = [_known_length(f) for f in decode if f.length or not f.served.draft]
    behind = [f for f in decode if f.served.draft and f.context >= 2048]
    headed = [f for f in decode if ", mtp " in f.configuration]
    fit = Fit(replace(SPARK, scatter=0.0), replace(PREFILL, scatter=0.0), OWN_HEAD[1])
    before = None
    while fit != before:
        before = fit
        machine, rates, head = fit.machine, fit.rates, fit.own_head
        machine = min(
            (replace(machine, overhead_s=n / 100 / 1000) for n in range(2, 41)),
            key=partial(_off, known, rates=rates, head=head),
        )
        machine = min(
            (replace(machine, verify_kv_gb_s=5.0 * n) for n in range(2, 47)),
            key=partial(_off, behind, rates=rates, head=head),
        )
        head = min(
            (n / 100 for n in range(50, 100)),
            key=partial(_off, headed, machine, rates),
        )
        for name in ("wide", "narrow", "routed"):
            rates = min(
                (replace(rates, **{name: 5e12 * n}) for n in range(2, 41)),
                key=partial(_off, first, machine, head=1.0),
            )
        fit = Fit(machine, rates, head)
    return Fit(
        replace(fit.machine, scatter=_scatter(decode, fit)),
        replace(fit.rates, scatter=_scatter(first, fit)),
        fit.own_head,
    )


def _known_length(figure: Figure) -> Figure:
    """Return the figure with the tokens a step that its draft brought."""
    return _with_length(figure, (figure.length,) * 3) if figure.length else figure


def _with_length(figure: Figure, length: tuple[float, float, float]) -> Figure:
    draft = figure.served.draft
    assert draft is not None
    return replace(figure, served=replace(figure.served, draft=replace(draft, length=length)))


def _with_chance(figure: Figure, chance: float) -> Figure:
    """Return the figure as it is with another chance of an own head."""
    draft = figure.served.draft
    if draft is None or ", mtp " not in figure.configuration:
        return figure
    low, _, high = draft.length
    if low == high:  # known
        return figure
    length = geometric_length(chance, draft.tokens)
    return _with_length(figure, (min(low, length), length, max(high, length)))


def _off(of: Sequence[Figure], machine: Machine, rates: Rates, head: float) -> float:
    """Return the mean absolute error, each configuration counted once."""
    errors: dict[str, list[float]] = {}
    for figure in of:
        estimate = _with_chance(figure, head).estimate(machine, rates)
        errors.setdefault(figure.configuration, []).append(abs(Outcome(figure, estimate).error))
    return mean(mean(some) for some in errors.values())


def _scatter(of: Sequence[Figure], fit: Fit) -> float:
    """Return the least margin that lets the intervals hold nine of ten, in steps of 0.05."""
    for step in range(1, 41):
        margin = step / 20
        numbers = replace(fit.machine, scatter=margin), replace(fit.rates, scatter=margin)
        if held_share([Outcome(one, one.estimate(*numbers)) for one in of]) >= 0.9:
            return margin
    raise SparkbookError("no margin holds nine of ten calibration figures")
