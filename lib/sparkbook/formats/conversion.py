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
from sparkbook.findings import Finding, Findings, Severity
from sparkbook.formats.lexer import show
from sparkbook.recipes.launch import Launch, Value

if TYPE_CHECKING:
    from sparkbook.recipes.schema import Recipe


@dataclass(frozen=True)
class Code:
    """One kind of entry in a loss report.

    Attributes:
        code: stable code.
        name: its name in words with dashes.
        severity: of its findings.
        text: what it means and what to do, in Markdown.
        bad: an input whose report holds it.
        good: one whose report doesn't.
        to: for a writer's entry, the format that both are written in.
    """

    code: str
    name: str
    severity: Severity
    text: str
    bad: str
    good: str
    to: str | None = None

    @property
    def family(self) -> str:
        """Letters of the code."""
        return "CONV"

    @property
    def address(self) -> str:
        """Where the page stands in the site."""
        return f"rules/conv.html#{self.code.lower()}"

    @property
    def source(self) -> str:
        """Where what it says comes from."""
        return SOURCE


SOURCE = "The reader's own record, and the written text read again."

_RUN = "docker run --gpus all {} vllm/vllm-openai:v0.19.0 openai/gpt-oss-20b"
CODES: dict[str, Code] = {
    code.code: code
    for code in (
        Code(
            "CONV101",
            "part-of-the-start-lost",
            "warning",
            "The target format has no place for something that the start depends on: an option of"
            " the container, a volume, a command that runs before. The written form starts a"
            " different server. Set it where the target's tool lets you, or choose another target.",
            _RUN.format("-v ~/models:/models:ro"),
            _RUN.format("--ipc host --network host"),
            to="eugr",
        ),
        Code(
            "CONV102",
            "said-differently",
            "warning",
            "The target format says the same thing in another way, so that reading it gives another"
            " value: a bare `vllm serve` line binds to loopback, for instance, and names the host's"
            " paths. Check that the new value is what you mean.",
            _RUN.format("-p 9000:8000") + " --host 0.0.0.0",
            "vllm serve openai/gpt-oss-20b --host 127.0.0.1",
            to="shell",
        ),
        Code(
            "CONV103",
            "facts-left-behind",
            "info",
            "The target format holds the start and none of what is known about it: sources,"
            " figures, remarks, the size of the weights. Keep the recipe beside the written form.",
            "gpt-oss-20b",
            _RUN.format(""),
            to="docker",
        ),
        Code(
            "CONV201",
            "guessed",
            "info",
            "The input does not say it, a recipe needs it, and so it was guessed: the family and"
            " the quantization from the model's name, the container's options from what the"
            " format's own launcher adds. Put right what is wrong.",
            "vllm serve openai/gpt-oss-20b",
            "gpt-oss-20b",
        ),
        Code(
            "CONV202",
            "unknown-key",
            "warning",
            "The input has a key that its format is not known to have. It may be misspelt, or newer"
            " than this reader. It is kept under `foreign` and has no effect.",
            "services: {a: {image: 'vllm/vllm-openai:v0.19.0', command: [m], comand: [x]}}",
            "services: {a: {image: 'vllm/vllm-openai:v0.19.0', command: [m]}}",
        ),
        Code(
            "CONV203",
            "kept-aside",
            "info",
            "The input says something that its own format knows and a recipe has no field for. It"
            " is kept under `foreign`, goes out again to the same format, and is lost in any"
            " other.",
            _RUN.format("--cap-add IPC_LOCK"),
            _RUN.format("--ipc host"),
        ),
        Code(
            "CONV204",
            "open-placeholder",
            "warning",
            "A placeholder of the input has no value there, so it stands in the recipe as it is."
            " The engine would be given the braces. Give it a default, or write the value.",
            "{recipe_version: '1', name: x, container: vllm-node, command: 'vllm serve m --port"
            " {port}'}",
            "{recipe_version: '1', name: x, container: vllm-node, defaults: {port: 8000}, command:"
            " 'vllm serve m --port {port}'}",
        ),
        Code(
            "CONV205",
            "one-of-several",
            "info",
            "The input holds several starts: containers in a script, services, variants of a model."
            " One was chosen, and the finding names it and the others. Cut the input down to choose"
            " another.",
            "docker run redis:7\ndocker run --gpus all vllm/vllm-openai:v0.19.0 openai/gpt-oss-20b",
            _RUN.format(""),
        ),
        Code(
            "CONV206",
            "secret-left-out",
            "warning",
            "A secret stood in the input. It is not carried over: the recipe passes the variable on"
            " from the caller's environment. If the input was ever shared, revoke the secret.",
            _RUN.format("-e HF_TOKEN=hf_notarealtoken"),
            _RUN.format("-e HF_TOKEN"),
        ),
        Code(
            "CONV207",
            "given-twice",
            "warning",
            "An option is given twice. The last one was taken, as vLLM takes it. Delete the other.",
            "vllm serve openai/gpt-oss-20b --port 8000 --port 9000",
            "vllm serve openai/gpt-oss-20b --port 9000",
        ),
        Code(
            "CONV208",
            "filled-in",
            "info",
            "A variable was filled in from the input itself: from a line before, an environment"
            " file or a default such as `${PORT:-8000}`. Your own shell may hold another value.",
            "PORT=8000\nvllm serve openai/gpt-oss-20b --port $PORT",
            "vllm serve openai/gpt-oss-20b --port 8000",
        ),
        Code(
            "CONV209",
            "left-out",
            "warning",
            "The input does something beside the start, such as pulling an image or waiting for the"
            " port, that a recipe has no place for. It is left out.",
            "docker pull vllm/vllm-openai:v0.19.0\n" + _RUN.format(""),
            _RUN.format(""),
        ),
        Code(
            "CONV210",
            "value-not-kept",
            "warning",
            "The input holds a value that a recipe can't, such as a port without its host side. It"
            " is left out; the finding says why.",
            _RUN.format("-p 8000"),
            _RUN.format("-p 8000:8000"),
        ),
    )
}
"""Every code of the loss reports."""


INTRO = (
    "What `sparkbook convert` tells of a conversion: what the target can't say, what was guessed,"
    " what was left out. Each example was converted when this page was built; what is shown is what"
    " the report said."
)
"""First paragraph of the codes' page."""


def page(code: Code) -> str:
    """The page of one code: what it means, an input whose report holds it and one whose report
    doesn't, and its source.
    """
    from sparkbook import formats
    from sparkbook.checks import section_page

    told = f", written with `--to {code.to}`" if code.to else ""
    examples = []
    for title, example in (("Reported", code.bad), ("Not reported", code.good)):
        shown = (
            f"```text\n{example}\n```" if re.search(r"\s", example) else f"The recipe `{example}`."
        )
        read = formats.resolve(example)
        found = [*read.findings, *(formats.write(read.recipe, code.to).findings if code.to else ())]
        examples.append((f"{title}{told}", shown, found))
    return section_page(
        code.code, code.name, ("Conversion", code.severity), code.text, examples, code.source
    )


def finding(
    code: str, message: str, evidence: str | None = None, fix: str | None = None
) -> Finding:
    """An entry of a loss report."""
    entry = CODES[code]
    return Finding(
        rule=code,
        severity=entry.severity,
        message=show(message),
        evidence=evidence and show(evidence),
        fix=fix,
        why=entry.address,
        source=SOURCE,
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
        # A recipe names a model in plain characters; what is served keeps the path as it is.
        last = given.rstrip("/").rsplit("/", 1)[-1]
        repo = re.sub(r"[^A-Za-z0-9_.@+=-]+", "-", last).strip("-~") or "unknown"
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
            f"{'.'.join(str(part) for part in e['loc']) or 'recipe'}:"
            f" {e['msg'].removeprefix('Value error, ')}"
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
