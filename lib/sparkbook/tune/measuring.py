"""One start of a candidate: the server, its measurement, and whether that may be believed."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from sparkbook import logs
from sparkbook.bench import load, prompts, sweep, telemetry
from sparkbook.bench.load import BenchPlan
from sparkbook.bench.results import Report
from sparkbook.errors import SparkbookError
from sparkbook.formats.lines import of_launch
from sparkbook.lint.case import Case
from sparkbook.metrics import Metrics
from sparkbook.plan import request
from sparkbook.recipes import Recipe
from sparkbook.serve import containers, interrupts, launcher, stack
from sparkbook.serve.docker_engine import DockerEngine
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.engine import Engine, EngineError
from sparkbook.serve.faults import ServeFault
from sparkbook.serve.ready import NotReady
from sparkbook.tune.journal import Outcome
from sparkbook.tune.space import Candidate, Load

Say = Callable[[str], None]
Start = Callable[[Recipe], AbstractContextManager[Engine]]
"""Starts a recipe's server; leaving the context stops it."""
Measure = Callable[[Endpoint, BenchPlan, Recipe], Report]

UNLIKE = frozenset({"BENCH104", "BENCH111"})
"""Warnings of the gate with which a speed can't be compared with another: the clock changed, or
something else was at work.
"""
LONG_TOKENS = 8000
LOADS = (1, 8, 32)
"""What the answer shows besides the speed that was tuned for: the first token of a prompt of so
many tokens, and the speed of so many requests at a time.
"""
_FEWEST = 12
_LONGEST = 4
"""Times the shortest run that the longest one has of requests."""


class Died(SparkbookError):
    """A server did not start, or ended under load; the message says why in one sentence."""


def start(recipe: Recipe, say: Say = lambda _line: None) -> AbstractContextManager[Engine]:
    """Start a recipe's server with the memory guard on. See `launcher.guarded`."""
    return launcher.guarded(stack.given(recipe), say=say)


def measure(endpoint: Endpoint, plan: BenchPlan, recipe: Recipe) -> Report:
    """Measure a server, with the machine looked at four times a second.

    Raises:
        SparkbookError: as `load.measure`.
    """
    setup = None
    with contextlib.suppress(SparkbookError):  # of such a model nothing is known
        setup = request.of_case(Case(of_launch(recipe.launch, recipe), None), request.Override())
    return load.measure(endpoint, plan, source=telemetry.Live(endpoint, 0.25), setup=setup)


@dataclass(frozen=True)
class Plans:
    """What is measured of a recipe's candidates.

    Attributes:
        recipe: the baseline, whose context limits the prompts.
        load: of the use. seed: of the prompts.
    """

    recipe: Recipe
    load: Load
    seed: int = 0

    @property
    def context(self) -> int:
        """Tokens that a request may have."""
        own = self.recipe.serve.args.get("max-model-len")
        return own if isinstance(own, int) else self.recipe.model.context.native or 4096

    @property
    def tiny(self) -> bool:
        """Whether it is a model of the project's own, which knows some texts only."""
        return self.recipe.image is None

    def run(self, size: int) -> BenchPlan:
        """Return the run of a size: 0 is the shortest, each further one is twice as long."""
        least = max(_FEWEST, 2 * self.load.concurrency)
        texts = dict(prompts.familiar()) if self.tiny else {}
        classes = tuple(texts) or self.load.classes
        if self.load.shared:
            texts, classes = {"turn": self._turns(classes, texts)}, ("turn",)
        return BenchPlan(
            classes=classes,
            texts=texts,
            concurrency=(self.load.concurrency,),
            requests=least * min(2**size, _LONGEST),
            max_tokens=min(self.load.max_tokens, self.context // 8),
            caching=bool(self.load.shared),
            seed=self.seed,
            waves=3,
            keep_text=False,
        )

    def _turns(self, classes: tuple[str, ...], texts: dict[str, list[str]]) -> list[str]:
        """Return prompts behind one long common beginning."""
        long = f"long-{min(self.load.shared, self.context // 4)}"
        common = prompts.make(long, 1, seed=self.seed, salt=None)[0].text
        ends = [end for name in classes for end in texts.get(name, ())] or [
            one.text
            for name in classes
            for one in prompts.make(name, _FEWEST * _LONGEST, seed=self.seed, salt=None)
        ]
        return [f"{common}\n\n{end}" for end in ends]

    def shape(self) -> list[BenchPlan]:
        """Return what shows a server's other speeds: requests at a time, and a long prompt."""
        usual = self.run(0)
        same: dict[str, Any] = {
            "max_tokens": usual.max_tokens,
            "seed": self.seed,
            "waves": usual.waves,
            "keep_text": False,
        }
        long = f"long-{min(LONG_TOKENS, self.context // 4)}"
        plans = [
            BenchPlan(
                classes=usual.classes[:1],
                texts=usual.texts,
                concurrency=(many,),
                requests=max(8, 2 * many),
                caching=usual.caching,
                **same,
            )
            for many in LOADS
        ]
        return [*plans, BenchPlan(classes=(long,), concurrency=(1,), requests=4, **same)]


def rejection(report: Report) -> str | None:
    """Return why a measurement can't be compared with others; None: it can."""
    for cell in report.cells:
        for finding in cell.findings:
            if finding.severity == "error" or finding.rule in UNLIKE:
                return f"{finding.rule}: {finding.message}"
    return None if report.cells else "nothing was measured"


@dataclass(frozen=True)
class Starter:
    """What starts candidates and measures them.

    Attributes:
        start, measure: how. say: called with a line about what goes wrong. clock: seconds.
    """

    start: Start = start
    measure: Measure = measure
    say: Say = lambda _line: None
    clock: Callable[[], float] = time.monotonic

    def once(
        self,
        candidate: Candidate,
        stage: str,
        plan: BenchPlan | None,
        more: Callable[[Engine, Outcome], None] | None = None,
    ) -> Outcome:
        """Start a candidate and measure it; a second time if the measurement is rejected.

        Args:
            plan: what is measured; None: the start alone.
            more: adds to the outcome what else is asked of the running server.

        Raises:
            KeyboardInterrupt: Ctrl-C; the server is stopped.
            SparkbookError: no candidate could be started here, such as without Docker.
        """
        begin = self.clock()
        outcome = Outcome(candidate=candidate.key, stage=stage, seconds=0)
        try:
            with _or_died(), self.start(candidate.recipe) as engine:
                outcome.start_s = self.clock() - begin
                with _explained(engine, outcome):
                    outcome.kv_tokens, outcome.digest = _kv_tokens(engine), _digest(engine)
                    if plan is not None:
                        self._measure(engine, candidate, plan, outcome)
                    if more and outcome.counts:
                        more(engine, outcome)
        except Died as death:
            word = "does not start here" if outcome.start_s is None else "ends under load"
            outcome.died = f"{candidate.key} {word}: {death}"
            self.say(outcome.died)
        outcome.seconds = self.clock() - begin
        return outcome

    def _measure(
        self, engine: Engine, candidate: Candidate, plan: BenchPlan, outcome: Outcome
    ) -> None:
        for attempt in ("repeated", "left out"):
            # The same texts for every candidate; a server never sees one twice.
            salted = dataclasses.replace(plan, salt=f"{plan.seed} {attempt}")
            report = self.measure(engine.endpoint, salted, candidate.recipe)
            if report.interrupted:
                raise KeyboardInterrupt
            if report.ended:
                raise SparkbookError(report.ended)
            outcome.report = sweep.thin(report)
            outcome.rejected = rejection(report)
            if outcome.rejected is None:
                return
            self.say(f"{candidate.key}: {attempt}, {outcome.rejected}")


@contextlib.contextmanager
def _or_died() -> Iterator[None]:
    """Turn what a server of this configuration did into `Died`; what any server would have met is
    raised as it is.
    """
    try:
        yield
    except (NotReady, EngineError, ServeFault) as error:
        if interrupts.behind(error) or (death := _death(error)) is None:
            raise
        raise Died(death) from None


def _death(error: NotReady | EngineError | ServeFault) -> str | None:
    """Return why a server ended; None if any server would have met that."""
    if isinstance(error, NotReady):
        primary = error.diagnosis.primary if error.diagnosis else None
        return primary.message if primary else error.message.splitlines()[0]
    if isinstance(error, EngineError):
        return str(error).splitlines()[0]
    of_the_server = error.finding.rule.startswith(("DOCK3", "DOCK401", "DOCK402"))
    return error.finding.message if of_the_server else None


@contextlib.contextmanager
def _explained(engine: Engine, outcome: Outcome) -> Iterator[None]:
    """Turn a failed request into a rejection, or into what the log says if the server ended."""
    try:
        yield
    except SparkbookError as error:
        if engine.running:
            outcome.rejected = str(error).splitlines()[0]
            return
        primary = logs.diagnose(engine.log_file).primary
        raise Died(primary.message if primary else str(error).splitlines()[0]) from None


def _kv_tokens(engine: Engine) -> int | None:
    """Return how many tokens the KV cache holds; None: the server does not say."""
    try:
        labels = Metrics.parse(engine.endpoint.metrics_text()).labels("cache_config_info")
        return int(labels["num_gpu_blocks"]) * int(labels["block_size"])
    except (SparkbookError, KeyError, ValueError):
        return None


def _digest(engine: Engine) -> str | None:
    """Return the digest of the image that runs; None: no image, or built here."""
    if not isinstance(engine, DockerEngine):
        return None
    found = [one for one in containers.find(engine.host) if one.name == engine.name]
    return containers.digest_of(engine.host, found[0])[0] if found else None
