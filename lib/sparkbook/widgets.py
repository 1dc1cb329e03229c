"""A planner to play with: choose a model and a load, see the memory bar, the verdict, the expected
speed and the launch line.

`answer` is the planner without its controls: a pure function from a choice to what is shown, which
is what tests and other pages use. The controls (`planner`) are ipywidgets. Their state is stored in
the notebook, so the published page shows the last answer without a kernel; to move the controls
with effect, run the notebook.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from sparkbook.checkpoint.values import ZERO, Range
from sparkbook.errors import SparkbookError
from sparkbook.plan.decode import Speed, speed
from sparkbook.plan.evidence import of_setup
from sparkbook.plan.prefill import FirstToken, first_token
from sparkbook.recipes import Launch, Recipe, load
from sparkbook.units import GIB

if TYPE_CHECKING:
    import ipywidgets

    from sparkbook.plan.memory import Plan

CONTEXTS = (4096, 8192, 16384, 32768, 65536, 131072, 262144)
KvType = Literal["bf16", "fp8"]


@dataclass(frozen=True)
class Choice:
    """What the controls are set to.

    Attributes:
        recipe: id of the recipe whose model is planned.
        context: tokens of one sequence.
        sequences: sequences at once.
        kv: type of the KV cache.
        fraction: `--gpu-memory-utilization`.
        others_gib: GiB that other engines and programs hold.
        drafted: drafted tokens a step; 0: no speculative decoding.
    """

    recipe: str
    context: int = 32768
    sequences: int = 4
    kv: KvType = "bf16"
    fraction: float = 0.80
    others_gib: float = 0.0
    drafted: int = 0


@dataclass(frozen=True)
class Answer:
    """What the planner says to a choice.

    Attributes:
        choice: what was asked.
        plan: memory, with its working.
        speed: estimated decode speed of the chosen load; None where the model's bytes are not
            known.
        first: estimated time to the first token of a prompt as long as the context, without a
            prefix cache; None likewise.
        launch: the launch line.
    """

    choice: Choice
    plan: Plan
    speed: Speed | None
    first: FirstToken | None
    launch: str

    @property
    def needed_gib(self) -> Range | None:
        """KV cache that the chosen sequences need, in GiB; None where the model's shape is not
        known.
        """
        one = self.plan.request(self.choice.context)
        return None if one is None else one * self.choice.sequences * (1 / GIB)

    @property
    def verdict(self) -> str:
        """In a sentence: whether it fits, and if not, what would."""
        choice, plan = self.choice, self.plan
        grave = next((finding for finding in plan.findings if finding.severity == "error"), None)
        if grave:
            return f"{plan.verdict.capitalize()}: {grave.message}. Instead: {grave.fix}."
        needed, kv = self.needed_gib, Range(max(plan.kv.low, 0), max(plan.kv.high, 0)) * (1 / GIB)
        if needed is None:
            return "Not known: no source gives the shape of this model's KV cache."
        load = (
            f"{choice.sequences} × {choice.context:,} tokens need {needed:.1f} GiB of KV cache, and"
            f" there are {kv:.1f}"
        )
        if needed.low > kv.high:
            longest, at_once = plan.longest(choice.sequences), plan.sequences(choice.context)
            assert longest is not None and at_once is not None
            instead = f"Possible are {at_once:.0f} of them, or {longest:,.0f} tokens each"
            return f"Fits with fewer or shorter sequences: {load}. {instead}."
        caution = next((finding for finding in plan.findings if finding.rule == "PLAN103"), None)
        if needed.high > kv.low or caution:
            return f"May fit: {load}." + (
                f" {caution.message[0].upper()}{caution.message[1:]}." if caution else ""
            )
        return f"Fits: {load}."

    @property
    def fits(self) -> bool:
        """Whether nothing says that it does not."""
        needed = self.needed_gib
        return self.plan.fits and (needed is None or needed.low * GIB <= self.plan.kv.high)


def answer(choice: Choice) -> Answer:
    """Plan a choice.

    Raises:
        SparkbookError: the recipe does not exist, or a draft is asked for and it has none.
    """
    from sparkbook.plan import request
    from sparkbook.plan.memory import CoTenant, Host, plan

    recipe = load(choice.recipe)
    override = request.Override(
        context=choice.context,
        sequences=choice.sequences,
        kv_dtype="fp8" if choice.kv == "fp8" else "auto",
        fraction=choice.fraction,
    )
    setup = request.read(choice.recipe, override)
    if not choice.drafted:
        setup = replace(setup, method=None, drafted=0, draft_bytes=ZERO, draft_caches=((),))
    elif setup.drafted:
        setup = replace(setup, drafted=choice.drafted)
    else:
        raise SparkbookError(f"'{recipe.id}' has no draft: set drafted tokens to 0")
    others = (CoTenant("others", size=round(choice.others_gib * GIB)),) if choice.others_gib else ()
    known = of_setup(setup)
    return Answer(
        choice=choice,
        plan=plan(setup, Host(cotenants=others)),
        speed=speed(known.reads, choice.sequences, choice.context, known.draft) if known else None,
        first=first_token(known.reads[1], choice.context) if known else None,
        launch=_launch(_with(recipe, choice)),
    )


def models() -> list[str]:
    """Recipes to choose from: one for each repository of the catalogue, the first."""
    from sparkbook.recipes import all as every

    found: dict[str, str] = {}
    for recipe in every():
        if recipe.family != "embedded":
            found.setdefault(recipe.model.repo, recipe.id)
    return list(found.values())


def _with(recipe: Recipe, choice: Choice) -> Recipe:
    """The recipe with the choice's flags on its launch line."""
    args = dict(recipe.serve.args)
    args |= {
        "max-model-len": choice.context,
        "max-num-seqs": choice.sequences,
        "gpu-memory-utilization": choice.fraction,
    }
    args["kv-cache-dtype"] = "fp8" if choice.kv == "fp8" else "auto"
    args.pop("speculative-config", None)
    draft = recipe.draft
    if choice.drafted:
        if draft is None:
            raise SparkbookError(f"'{recipe.id}' has no draft: set drafted tokens to 0")
        draft = draft.model_copy(update={"tokens": choice.drafted})
        said = recipe.serve.args.get("speculative-config")
        base = (
            dict(said)
            if isinstance(said, dict)
            else {"method": draft.method, **({"model": draft.model} if draft.model else {})}
        )
        args["speculative-config"] = {**base, "num_speculative_tokens": choice.drafted}
    serve = recipe.serve.model_copy(update={"args": args})
    return recipe.model_copy(update={"serve": serve, "draft": draft if choice.drafted else None})


def _launch(recipe: Recipe) -> str:
    """The start as a docker line; where an image starts by a script of its own, which takes no
    flags, the `vllm serve` line.
    """
    from sparkbook.formats import FORMATS

    if recipe.image and recipe.launch.entrypoint != "wrapper" and recipe.serve.command is None:
        return FORMATS["docker"].write(recipe.launch)
    serve = recipe.serve.model_copy(update={"command": None, "model": recipe.model.repo})
    return FORMATS["shell"].write(Launch(entrypoint="command", serve=serve))


_COLOURS = ("#3b6fb6", "#e08214", "#3f8f4f", "#8d5fa8", "#7f7f7f", "#b3423a")
_LEFT = "#8c96a3"


def bar_html(found: Answer) -> str:
    """The memory bar and its legend as HTML that follows the page's colours; read aloud, it is one
    sentence.

    Ranges are drawn at their middle.
    """
    total = found.plan.host.total / GIB
    parts = [
        (name, size * (1 / GIB), _COLOURS[i % len(_COLOURS)])
        for i, (name, size) in enumerate(found.plan.parts)
    ]
    left = total - sum(size.middle for _, size, _ in parts)
    if left > 0:
        parts.append(("left to the system", Range.of(left), _LEFT))
    whole = max(total, sum(size.middle for _, size, _ in parts))
    told = ", ".join(f"{name} {size:.1f}" for name, size, _ in parts)
    block = "display:inline-block"
    pieces = "".join(
        f'<span title="{html.escape(name)} {size:.1f} GiB"'
        f' style="{block};height:1.6rem;width:{100 * size.middle / whole:.2f}%;'
        f'background:{colour}"></span>'
        for name, size, colour in parts
    )
    legend = " ".join(
        '<span style="white-space:nowrap;margin-right:1em"><span'
        f' style="{block};width:0.8em;height:0.8em;background:{colour}"></span> {html.escape(name)}'
        f" {size:.1f}</span>"
        for name, size, colour in parts
    )
    label = f"Memory in GiB: {html.escape(told)}"
    return (
        f'<div role="img" aria-label="{label}"'
        f' style="font-size:0;line-height:0;white-space:nowrap">{pieces}</div><div'
        f' style="line-height:1.6;margin-top:0.4em">{legend} GiB of {total:.1f}</div>'
    )


def verdict_html(found: Answer) -> str:
    """Verdict, speed and first token as HTML."""
    text = f"<p><strong>{'✓' if found.fits else '✗'} {html.escape(found.verdict)}</strong></p>"
    if found.speed is None or found.first is None:
        return f"{text}<p>No estimate of its speed: not all that a step reads is known.</p>"
    return (
        f"{text}<p>Decode: {found.speed}, {found.speed.per_request[1]:.3g} for each request. "
        f"First token of {found.choice.context:,} new tokens: {found.first}.</p>"
    )


def planner(first: Choice | None = None, recipes: Sequence[str] | None = None) -> ipywidgets.VBox:
    """The controls and the live answer.

    Args:
        first: what the controls start with; without, the first model of the catalogue.
        recipes: ids to choose from; without, `models()`.
    """
    import ipywidgets as w

    ids = list(recipes or models())
    state = first or Choice(ids[0])
    if state.recipe not in ids:
        ids.insert(0, state.recipe)
    wide = {"description_width": "9em"}

    def control(kind: Any, description: str, **settings: Any) -> Any:
        return kind(
            description=description,
            style=wide,
            layout=w.Layout(width="32em", max_width="100%"),
            **settings,
        )

    controls = {
        "recipe": control(w.Dropdown, "model", options=ids, value=state.recipe),
        "context": control(
            w.SelectionSlider,
            "context, tokens",
            options=[(f"{n // 1024}k", n) for n in CONTEXTS],
            value=state.context,
        ),
        "sequences": control(w.IntSlider, "sequences", min=1, max=32, value=state.sequences),
        "kv": control(w.Dropdown, "KV cache type", options=["bf16", "fp8"], value=state.kv),
        "fraction": control(
            w.FloatSlider, "memory fraction", min=0.1, max=0.95, step=0.01, value=state.fraction
        ),
        "others_gib": control(
            w.FloatSlider, "others hold, GiB", min=0, max=100, step=1, value=state.others_gib
        ),
        "drafted": control(w.IntSlider, "drafted tokens", min=0, max=15, value=state.drafted),
    }
    bar, verdict, launch = w.HTML(), w.HTML(), w.HTML()

    def update(_: object = None) -> None:
        chosen = replace(state, **{name: box.value for name, box in controls.items()})
        try:
            found = answer(chosen)
        except SparkbookError as problem:
            bar.value, verdict.value, launch.value = "", f"<p>{html.escape(str(problem))}</p>", ""
            return
        bar.value, verdict.value = bar_html(found), verdict_html(found)
        launch.value = (
            f'<pre style="white-space:pre-wrap;line-height:1.35">{html.escape(found.launch)}</pre>'
        )

    for box in controls.values():
        box.observe(update, "value")
    update()
    return w.VBox([*controls.values(), bar, verdict, launch])
