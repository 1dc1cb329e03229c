"""What a conversion gives: the recipe or the text, and the loss report, findings of the family
CONV.

The report of a writer is measured and not declared: what was written is read again, and whatever
does not come back as it was is listed. The report of a reader is what it could not keep, what it
had to choose, and what it guessed. A key that no field of a recipe holds is kept under `foreign`,
by the format's name, and written out again when the recipe goes back to that format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from sparkbook.errors import SparkbookError
from sparkbook.findings import Finding, Findings
from sparkbook.formats.lexer import show
from sparkbook.formats.rules import CONV
from sparkbook.recipes.launch import Launch, Value
from sparkbook.rules import sentence

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe


def finding(
    code: str, message: str, evidence: str | None = None, fix: str | None = None
) -> Finding:
    """An entry of a loss report."""
    return CONV[code].finding(
        sentence(show(message)), evidence and show(evidence), fix and sentence(fix)
    )


@dataclass
class Notes:
    """What a reader has to tell, collected while it reads.

    Attributes:
        found: entries of the report.
        guessed: places in the recipe that the input does not vouch for.
        foreign: what the format says and a recipe has no field for.
    """

    found: list[Finding] = field(default_factory=list)
    guessed: dict[str, str] = field(default_factory=dict)
    foreign: dict[str, Any] = field(default_factory=dict)

    def add(
        self, code: str, message: str, evidence: str | None = None, fix: str | None = None
    ) -> None:
        """Adds an entry, once."""
        entry = finding(code, message, evidence, fix)
        if entry not in self.found:
            self.found.append(entry)

    def keep(
        self,
        data: Mapping[str, Any],
        known: set[str],
        place: str = "",
        into: dict[str, Any] | None = None,
    ) -> None:
        """Keeps every key of a mapping that is not read: a known one is reported as kept aside, any
        other as unknown.

        Args:
            data: what was not read.
            known: keys that the format has.
            place: where the mapping stands, for messages.
            into: where to keep it; left out, at the top of `foreign`.
        """
        aside = []
        for key, value in data.items():
            path = f"{place}.{key}" if place else str(key)
            (self.foreign if into is None else into)[str(key)] = value
            if key in known:
                aside.append(path)
            else:
                self.add(
                    "CONV202",
                    f"{path} is not a key that this format is known to have: kept under foreign",
                )
        if aside:
            has = "has" if len(aside) == 1 else "have"
            self.add(
                "CONV203", f"{', '.join(aside)} {has} no field in a recipe: kept under foreign"
            )

    def guess(self, place: str, value: str) -> None:
        """Remembers that a place of the recipe was filled by guessing."""
        self.guessed[place] = value


@dataclass(frozen=True)
class Conversion:
    """What was read.

    Attributes:
        format: the name of the format.
        recipe: the recipe.
        findings: the loss report.
        text: what was read.
        guessed: places in the recipe that the input does not vouch for, such as
            `model.quantization`.
    """

    format: str
    recipe: Recipe
    findings: Findings
    text: str = field(repr=False, default="")
    guessed: tuple[str, ...] = ()

    @property
    def launch(self) -> Launch:
        """What is started."""
        return self.recipe.launch


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        format: the name of the format.
        text: the written form.
        findings: the loss report.
        lost: places in the recipe that do not come back when the text is read, such as
            `container.volumes`.
    """

    format: str
    text: str
    findings: Findings
    lost: tuple[str, ...] = ()


# ---- from a launch to a recipe

_FAMILIES = (
    ("gpt-oss", "openai"),
    ("nemotron", "nvidia"),
    ("qwen", "qwen"),
    ("qwq", "qwen"),
    ("gemma", "gemma"),
    ("mistral", "mistral"),
    ("mixtral", "mistral"),
    ("ministral", "mistral"),
    ("devstral", "mistral"),
    ("magistral", "mistral"),
    ("llama", "meta"),
    ("muse-", "meta"),
    ("phi-", "microsoft"),
    ("laguna", "poolside"),
)
_QUANTIZATIONS = ("nvfp4", "mxfp4", "fp8", "awq", "gptq", "bf16", "fp32")


def slug(text: str) -> str:
    """A recipe's id made of any text."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "recipe"


def _family(repo: str) -> str:
    return next((family for part, family in _FAMILIES if part in repo.lower()), "other")


def _quantization(repo: str, args: Mapping[str, Value]) -> str:
    told = f"{args.get('quantization', '')} {repo}".lower()
    if "gpt-oss" in told:
        return "mxfp4"
    if "modelopt_fp4" in told:
        return "nvfp4"
    return next((name for name in _QUANTIZATIONS if name in told), "unknown")


def draft_of(args: Mapping[str, Value]) -> dict[str, Any] | None:
    """The draft that `--speculative-config` describes, where it says enough."""
    config = args.get("speculative-config")
    if not isinstance(config, dict):
        return None
    method, tokens, model = (
        config.get("method"),
        config.get("num_speculative_tokens"),
        config.get("model"),
    )
    if method is None and model is not None:
        method = "draft_model"
    methods = ("mtp", "dflash", "ngram", "draft_model", "eagle3", "suffix")
    if (
        method not in methods
        or not isinstance(tokens, int)
        or isinstance(tokens, bool)
        or tokens < 1
    ):
        return None
    return {
        "method": method,
        "tokens": tokens,
        **({"model": model} if isinstance(model, str) else {}),
    }


def build(
    name: str,
    title: str,
    text: str,
    launch: Launch,
    notes: Notes,
    facts: Mapping[str, Any] | None = None,
) -> Conversion:
    """A conversion out of a launch and what else the input says.

    Args:
        name: the format's name.
        title: the format's title, for the recipe's source.
        text: what was read.
        launch: what is started.
        notes: the reader's notes; guesses are added.
        facts: fields of the recipe that the input states: they go before guesses. Nested:
            `{"model": {"repo": …}}`.

    Raises:
        SparkbookError: what was read makes no valid recipe.
    """
    from sparkbook.recipes.schema import Recipe

    if launch.serve.command == [] and re.search(
        r"(^|/)(ba)?sh$", launch.container.entrypoint or ""
    ):
        raise SparkbookError(
            "this starts a container with a shell that waits, and no server: add the vllm serve"
            " line that is typed there"
        )
    facts = dict(facts or {})
    serve, args = launch.serve, launch.serve.args
    given = serve.model or launch.env.get("MODEL") or launch.env.get("VLLM_MODEL")
    model = dict(facts.pop("model", None) or {})
    repo = model.get("repo") or given
    if repo is None:
        if serve.command is None and launch.entrypoint != "wrapper":
            raise SparkbookError(
                "no model is named: vLLM would serve a default of its own; name the one that is"
                " meant"
            )
        repo = "unknown"
        notes.guess("model.repo", "not named by the input")
    elif not model.get("repo") and (given or "").startswith(("/", "~", ".")):
        repo = given.rstrip("/").rsplit("/", 1)[-1] or "unknown"
        notes.guess("model.repo", f"{repo}, the last part of the path {given}")
    if "quantization" not in model:
        model["quantization"] = {"format": _quantization(f"{repo} {given or ''}", args)}
        notes.guess(
            "model.quantization",
            f"{model['quantization']['format']}, from the name and --quantization",
        )
    last = repo.rstrip("/").rsplit("/", 1)[-1]
    for key, guess in (
        ("id", slug(facts.get("title") or last)),
        ("title", last),
        ("family", _family(repo)),
        ("summary", f"Read from a {title}."),
    ):
        if not facts.get(key):
            facts[key] = guess
            notes.guess(key, guess)
    image = None
    if launch.image is not None:
        ref, _, digest = launch.image.partition("@")
        image = {
            "ref": ref,
            **({"digest": digest} if digest else {}),
            **(facts.pop("image", None) or {}),
        }
        if re.search(r":(latest|nightly)$|^[^:]*$", ref) and not digest:
            image["moving"] = True
        from sparkbook.recipes.launch import entrypoint_of

        if entrypoint_of(ref) != launch.entrypoint:
            image["entrypoint"] = launch.entrypoint
    facts.pop("image", None)
    for key, value in (
        ("draft", draft_of(args)),
        ("capabilities", _capabilities(args)),
        ("topology", _topology(args)),
    ):
        if value and key not in facts:
            facts[key] = value
            notes.guess(key, "from the options of vllm serve")
    serve_data = serve.model_dump()
    if serve.model == repo:
        serve_data["model"] = None
    if "sources" not in facts:
        facts["sources"] = [{"id": "input", "title": f"{title[:1].upper()}{title[1:]}, as given"}]
        notes.guessed.setdefault("sources", "")
    data = {
        **facts,
        "model": {"repo": repo, **model},
        "image": image,
        "serve": serve_data,
        "env": launch.env,
        "container": launch.container.model_dump(),
        "foreign": {name: notes.foreign} if notes.foreign else {},
    }
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        problems = [
            f"{'.'.join(str(part) for part in e['loc'])}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        ]
        raise SparkbookError(
            f"this {title} makes no valid recipe: " + "; ".join(problems)
        ) from None
    told = [f"{place}: {value}" for place, value in notes.guessed.items() if value]
    if told:
        notes.add(
            "CONV201",
            f"{len(told)} things that the input does not say were guessed",
            "; ".join(told),
            "set what is wrong in the recipe",
        )
    return Conversion(name, recipe, Findings(notes.found), text, tuple(notes.guessed))


def _capabilities(args: Mapping[str, Value]) -> dict[str, bool]:
    able = {"tools": "enable-auto-tool-choice" in args, "reasoning": "reasoning-parser" in args}
    return {name: True for name, value in able.items() if value}


def _topology(args: Mapping[str, Value]) -> dict[str, int]:
    found = {}
    for name, option in (
        ("nodes", "nnodes"),
        ("tensor_parallel", "tensor-parallel-size"),
        ("pipeline_parallel", "pipeline-parallel-size"),
    ):
        value = args.get(option)
        if isinstance(value, int) and not isinstance(value, bool) and value > 1:
            found[name] = value
    return found


# ---- what does not come back

_NESTED = {
    "model",
    "image",
    "container",
    "serve",
    "draft",
    "benchmarks",
    "capabilities",
    "topology",
    "env",
    "foreign",
}
_START = ("image.ref", "image.digest", "image.entrypoint", "container", "serve", "env", "foreign")


def leaves(recipe: Recipe) -> dict[str, Any]:
    """A recipe's fields that are not at their default, by place: `container.volumes`,
    `serve.args.port`, `env.HF_TOKEN`.
    """
    found: dict[str, Any] = {}
    for key, value in recipe.model_dump(mode="json", exclude_defaults=True).items():
        if key not in _NESTED or not isinstance(value, dict):
            found[key] = value
            continue
        for name, item in value.items():
            if key == "serve" and name == "args":
                found |= {f"serve.args.{option}": word for option, word in item.items()}
            elif item is not None or key == "env":
                found[f"{key}.{name}"] = item
    found.setdefault(
        "serve.model",
        recipe.serve.model or (None if recipe.serve.command is not None else recipe.model.repo),
    )
    return found


Change = Literal["lost", "changed", "added"]


def changes(before: Recipe, after: Recipe) -> dict[str, Change]:
    """Places at which two recipes differ, and how, in the order of the first."""
    one, two = leaves(before), leaves(after)
    found: dict[str, Change] = {
        place: "changed" if place in two else "lost"
        for place in one
        if place not in two or two[place] != one[place]
    }
    return found | {place: "added" for place in two if place not in one}


def report(name: str, title: str, text: str, before: Recipe, back: Conversion) -> Written:
    """The loss report of a written form: what reading it again doesn't give back.

    Args:
        name, title: of the format.
        text: what was written.
        before: the recipe that was written.
        back: what reading the text gives.
    """
    found: list[Finding] = []
    facts: list[str] = []
    lost: list[str] = []
    one, two = leaves(before), leaves(back.recipe)
    for place, change in changes(before, back.recipe).items():
        lost.append(place)
        if not place.startswith(_START):
            facts.append(place)
        elif change == "lost":
            found.append(
                finding(
                    "CONV101", f"the {title} has no place for {place}", _shown(place, one[place])
                )
            )
        elif change == "changed":
            found.append(
                finding(
                    "CONV102",
                    f"the {title} says {place} differently",
                    f"{_shown(place, one[place])} becomes {_shown(place, two[place])}",
                )
            )
        else:
            found.append(finding("CONV102", f"the {title} adds {place}", _shown(place, two[place])))
    vouched = [place for place in facts if place not in back.guessed or place in one]
    if vouched:
        found.append(
            finding(
                "CONV103",
                f"the {title} leaves {len(vouched)} facts behind",
                ", ".join(vouched),
                "keep the recipe beside it",
            )
        )
    return Written(name, text, Findings(found), tuple(lost))


def _shown(place: str, value: Any) -> str:
    """A value for a report; a variable's is not shown."""
    if place.startswith("env."):
        return "passed on from the caller" if value is None else "set"
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
