"""A recipe made to fit a use and a memory: which options change, to what and why.

The planner and the linter decide. What comes out is a recipe that neither calls wrong, with what
they say about it; a test plans and lints every combination again.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sparkbook import checkpoint, lint, recipes
from sparkbook.checkpoint.values import Checkpoint
from sparkbook.findings import Finding
from sparkbook.formats.lines import of_launch
from sparkbook.lint.case import Case
from sparkbook.lint.models import family_of
from sparkbook.plan import memory, request
from sparkbook.plan.memory import MemoryPlan
from sparkbook.plan.setup import Host, Setup
from sparkbook.recipes import Recipe
from sparkbook.recipes.launch import Value
from sparkbook.releases import known_bad
from sparkbook.units import GIB

_DRAFT = "speculative-config"
_PREFIX = "enable-prefix-caching"
_CONTEXT = "max-model-len"
_SEQUENCES = "max-num-seqs"
_FRACTION = "gpu-memory-utilization"

_UNSURE = {"PLAN105"}
"""Warnings of a plan that rests on bounds, as no source gives the sizes; no other option helps."""


@dataclass(frozen=True)
class Use:
    """What a server is for. None leaves what the recipe says.

    Attributes:
        key, title: its name in the data, and for people.
        context: tokens of one conversation.
        least: tokens below which the use is not worth a server.
        sequences: requests at once.
        agent: whether a program calls tools, with long prompts that repeat.
        serves: what the server must be able to do, one of it; empty: anything.
    """

    key: str
    title: str
    context: int | None = None
    least: int = 2048
    sequences: int | None = None
    agent: bool = False
    serves: tuple[str, ...] = ("chat",)


@dataclass(frozen=True)
class Memory:
    """The memory of a Spark, GiB. None: 128 GB, and nothing else runs.

    Attributes:
        key, title, why: its name in the data, for people, and as the reason of a change.
        available_gib: what of it is available before the start.
        memory_gib: what vLLM sees of it.
    """

    key: str
    title: str
    why: str
    available_gib: int | None = None
    memory_gib: float | None = None

    def meant_by(self, recipe: Recipe) -> bool:
        """Return whether the recipe's source ran it on a Spark like this one."""
        if self.available_gib:
            return False
        return self.memory_gib is None or recipe.topology.memory_gb == 64

    @cached_property
    def host(self) -> Host:
        """The same for the planner."""
        return request.host(self.memory_gib, self.available_gib)

    @property
    def options(self) -> str:
        """The same for `sparkbook plan`."""
        size = f" --memory-gib {self.memory_gib:g}" if self.memory_gib else ""
        return size + (f" --available-gib {self.available_gib}" if self.available_gib else "")


_SERVICES = ("embedding", "reranking", "transcription")

USES = (
    Use("chat", "One person, chat", 32_768, 8192, 2),
    Use("agent", "One coding agent", 131_072, 65_536, 4, agent=True),
    Use("team", "Eight people, chat", 32_768, 8192, 8),
    Use("documents", "Long documents", 262_144, 100_000, 1),
    Use("service", "Embedding, reranking, speech to text", serves=_SERVICES),
    Use("recipe", "As its source runs it", serves=()),
)
MEMORIES = (
    Memory("all", "128 GB, nothing else running", "a Spark has 128 GB"),
    Memory("96", "128 GB, 96 GiB available (desktop running)", "96 GiB are available", 96),
    Memory("64", "128 GB, 64 GiB available (second server)", "64 GiB are available", 64),
    Memory("spark64", "64 GB Spark, nothing else running", "a Spark has 64 GB", memory_gib=60.8),
)
"""A Spark of 64 GB is planned with half of what vLLM shows of one of 128 GB: no public log of such
a machine is known.
"""


@dataclass(frozen=True)
class Draft:
    """A recipe on its way to a use: what it has become, and the reason of each change by option."""

    recipe: Recipe
    why: Mapping[str, str] = field(default_factory=dict)

    def option(self, name: str, value: Value | None, why: str) -> Draft:
        """Return it with an option set, or without it (None)."""
        args = dict(self.recipe.serve.args)
        if args.get(name) == value:
            return self
        if value is None:
            del args[name]
        else:
            args[name] = value
        changed: dict[str, object] = {"serve": self.recipe.serve.model_copy(update={"args": args})}
        if name == _DRAFT:
            changed["draft"] = None
        return Draft(self.recipe.model_copy(update=changed), {**self.why, name: why})

    @property
    def drafts(self) -> bool:
        """Whether tokens are drafted by an option of the line."""
        return _DRAFT in self.recipe.serve.args

    @property
    def setup(self) -> Setup:
        """What the planner reads of its launch line."""
        known = _checkpoint(self.recipe.id)
        override = request.Override(look=lambda _name, _revision: known)
        return request.of_case(Case(of_launch(self.recipe.launch, self.recipe)), override)


@functools.cache
def _checkpoint(recipe: str) -> Checkpoint:
    """Return what is known of a recipe's weights, which no option changes."""
    return checkpoint.of_recipe(recipes.load(recipe))


@dataclass(frozen=True)
class Tailored:
    """A recipe that fits a use and a memory.

    Attributes:
        recipe: with its options changed.
        plan: for that memory.
        findings: of the plan and the linter, most serious first, each once.
        changes: option as it is now, its value in the recipe, and the reason.
    """

    recipe: Recipe
    plan: MemoryPlan
    findings: tuple[Finding, ...]
    changes: tuple[tuple[str, str, str], ...]

    @property
    def warned(self) -> bool:
        """Whether anything speaks against the line: a warning, or a known-bad combination; that a
        size is only known in bounds does not.
        """
        return any(
            one.rule not in _UNSURE and (one.severity != "info" or bad(one))
            for one in self.findings
        )

    @property
    def caches(self) -> str | None:
        """Why the line keeps no prefix cache; None if it does."""
        args = self.recipe.serve.args
        if args.get(f"no-{_PREFIX}") or args.get(_PREFIX) is False:
            return "the recipe's source switches it off"
        if args.get(_PREFIX) or not _recurrent(self.plan.setup):
            return None
        return "vLLM leaves it off for models with recurrent layers unless the line asks for it"


@dataclass(frozen=True)
class Refused:
    """Why a recipe is not offered for a use and a memory."""

    why: str


def bad(finding: Finding) -> bool:
    """Return whether a finding is a known-bad combination."""
    return finding.rule.startswith("BAD")


def tailored(recipe: Recipe, use: Use) -> Iterator[Tailored | Refused]:
    """Yield what becomes of a recipe for a use, for each of `MEMORIES`."""
    start = for_use(recipe, use)
    if isinstance(start, Refused):
        yield from (start for _ in MEMORIES)
        return
    starts = [start, start.option(_DRAFT, None, "")] if start.drafts else [start]
    ways = [(one, one.setup) for one in map(_below_known_bad, starts)]
    judged: dict[str, tuple[Finding, ...]] = {}
    for place in MEMORIES:
        yield _for_memory(ways, use, place, judged)


def _below_known_bad(start: Draft) -> Draft:
    """Return it with a fraction below that of a known-bad combination, if it is one."""
    for one in lint.lint(start.recipe).findings:
        condition = _options(one.rule).get(_FRACTION) if bad(one) else None
        if condition and (least := re.fullmatch(r">=?(0\.\d+)", condition)):
            below = round(float(least[1]) - 0.01, 2)
            return start.option(_FRACTION, below, f"{one.rule}: {one.message}")
    return start


def for_use(recipe: Recipe, use: Use) -> Draft | Refused:
    """Return a recipe with the options of a use, or why it has none.

    A recipe whose image starts vLLM with a script of its own can't be changed, and is offered as
    its source runs it.
    """
    start = Draft(recipe)
    if use.serves and not any(getattr(recipe.capabilities, name) for name in use.serves):
        return Refused(f"not for {' or '.join(use.serves)}")
    if use.context is None or use.sequences is None:
        return start
    if recipe.launch.entrypoint == "wrapper" or recipe.serve.command is not None:
        return Refused("a script in its image sets the options")
    native = start.setup.most or recipe.model.context.native
    context = min(use.context, native or use.context)
    if context < use.least:
        return Refused(f"its context ends at {context:,} tokens; this use needs {use.least:,}")
    limit = use.title.lower() if context == use.context else "the model's longest context"
    start = start.option(_CONTEXT, context, limit)
    start = start.option(_SEQUENCES, use.sequences, use.title.lower())
    return _for_agent(start) if use.agent else start


def _for_agent(start: Draft) -> Draft | Refused:
    """Return it with what a coding agent needs: tool calls, thinking kept apart, a prefix cache."""
    args, family = start.recipe.serve.args, family_of(start.recipe.model.repo)
    if "tool-call-parser" not in args:
        if family is None or not family.tools:
            return Refused("no tool-call parser of vLLM is known for it, so an agent gets no calls")
        why = "an agent calls tools"
        start = start.option("enable-auto-tool-choice", True, why)
        start = start.option("tool-call-parser", family.tools[0], why)
        able = start.recipe.capabilities.model_copy(update={"tools": True})
        start = replace(start, recipe=start.recipe.model_copy(update={"capabilities": able}))
    if "reasoning-parser" not in args and family is not None and family.thinks:
        why = "keeps the thinking out of the answer"
        start = start.option("reasoning-parser", family.reasoning[0], why)
    if _PREFIX not in args and f"no-{_PREFIX}" not in args and _recurrent(start.setup):
        why = "an agent sends its whole conversation each time; vLLM leaves the cache off otherwise"
        start = start.option(_PREFIX, True, why)
    return start


def _recurrent(setup: Setup) -> bool:
    return any(cache.recurrent for cache in setup.caches)


def _for_memory(
    ways: list[tuple[Draft, Setup]],
    use: Use,
    place: Memory,
    judged: dict[str, tuple[Finding, ...]],
) -> Tailored | Refused:
    """Return the first way that fits and that nothing calls wrong. `ways`: with the draft, without
    it. `judged` keeps what the linter said.
    """
    refused = Refused("")
    for shorter in (False, True):
        for start, setup in ways:
            own = place.meant_by(start.recipe) and not shorter
            plan = _fitting(setup, use, place, shorter=shorter, own=own)
            if plan is None:
                continue
            found = _with_plan(start, setup, plan, place, refused.why)
            key = found.recipe.serve.model_dump_json()
            if key not in judged:
                judged[key] = tuple(lint.lint(found.recipe).findings)
            wrong = next((one for one in judged[key] if _wrong(one, use)), None)
            if wrong is None:
                return _with_findings(found, judged[key])
            refused = Refused(f"{wrong.rule}: {wrong.message}")
    if refused.why:
        return refused
    return Refused(_too_large(ways[-1][1], place))


def _too_large(setup: Setup, place: Memory) -> str:
    plan = memory.plan(setup, place.host)
    least = plan.weights + plan.working + plan.draft
    if least.low < plan.largest_fraction * plan.host.total < least.high:
        return f"no source gives its sizes, and {place.why}: whether it fits is not known"
    gib = least.low / GIB
    return f"too large: weights and working memory take {gib:.0f} GiB, and {place.why}"


def _wrong(finding: Finding, use: Use) -> bool:
    """Return whether a line with this finding is not printed: an error, or a known-bad
    combination; a disputed one too where it would break an agent's tool calls.
    """
    if finding.severity == "error" or (bad(finding) and finding.severity == "warning"):
        return True
    return use.agent and bad(finding) and _DRAFT in " ".join(_options(finding.rule))


def _options(code: str) -> Mapping[str, str]:
    """Return the options by which a known-bad combination is recognized."""
    return next(one.options for one in known_bad.combinations() if one.code == code)


def _fitting(
    setup: Setup, use: Use, place: Memory, *, shorter: bool, own: bool
) -> MemoryPlan | None:
    """Return the plan with a fraction, or if `shorter` a context, with which it fits. Where sizes
    are only known in bounds, it fits if it does in the middle of them, or if the source ran it
    (`own`).
    """
    plan = memory.plan(setup, place.host)
    safe = min(plan.largest_fraction, setup.fraction)
    fractions = [setup.fraction, safe, plan.largest_fraction]
    fractions = [one for one in dict.fromkeys(fractions) if 0 < one <= 1]
    plans = [replace(plan, setup=replace(setup, fraction=one)) for one in fractions]
    if shorter:
        contexts = [one.safe_context() for one in plans]
        plans = [
            replace(one, setup=replace(one.setup, context=context))
            for one, context in zip(plans, contexts, strict=True)
            if context >= min(use.least, setup.context)
        ]
    surely = (one for one in plans if one.verdict == "fits" and not _warnings(one))
    perhaps = (
        one
        for one in plans
        if one.verdict == "may fit"
        and _warnings(one) <= _UNSURE
        and (own or (one.needed is not None and one.kv.middle >= one.needed.middle))
    )
    return next(surely, None) or next(perhaps, None)


def _warnings(plan: MemoryPlan) -> set[str]:
    return {one.rule for one in plan.findings if one.severity != "info"}


def _with_plan(
    start: Draft, before: Setup, plan: MemoryPlan, place: Memory, without: str
) -> Tailored:
    """Return a recipe with the options of its plan. `without`: why it has no draft any more."""
    setup = plan.setup
    if setup.fraction != before.fraction:
        more = setup.fraction > before.fraction
        why = f"{place.why}; less would not hold the context" if more else place.why
        start = start.option(_FRACTION, setup.fraction, why)
    if setup.context != before.context:
        start = start.option(_CONTEXT, setup.context, f"the longest that surely fits: {place.why}")
    reasons = {**start.why}
    if _DRAFT in reasons:
        reasons[_DRAFT] = without or f"its memory is needed: {place.why}"
    args, own = start.recipe.serve.args, recipes.load(start.recipe.id).serve.args
    changes = tuple(
        (_shown(name, args.get(name)), str(own.get(name, "")) if name != _DRAFT else "", why)
        for name, why in reasons.items()
        if args.get(name) != own.get(name)
    )
    return Tailored(start.recipe, plan, (), changes)


def _shown(name: str, value: Value | None) -> str:
    if value is None:
        return f"without --{name}"
    return f"--{name}" if value is True else f"--{name} {value}"


def _with_findings(found: Tailored, judged: tuple[Finding, ...]) -> Tailored:
    order = ("error", "warning", "info")
    every = {(one.rule, one.message): one for one in (*found.plan.findings, *judged)}
    # A known-bad combination first among the notes: it is about this very line.
    ordered = sorted(every.values(), key=lambda one: (order.index(one.severity), not bad(one)))
    return replace(found, findings=tuple(ordered))
