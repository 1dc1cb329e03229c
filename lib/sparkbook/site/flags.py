"""A page for each option of `vllm serve` that a recipe uses: what it does, its life in vLLM's
releases, and everything that speaks of it.

Lives, types, values and defaults come out of the releases table; uses out of the recipes' launch
lines as the linter reads them; the rest is found by looking for the option's name. Only what an
option does stands here in words, what it costs in `sparkbook.lint.reference`.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkbook.errors import SparkbookError

if TYPE_CHECKING:
    from sparkbook.recipes import Recipe

MEANS = {
    "async-scheduling": "Prepares the next step while the GPU computes this one.",
    "attention-backend": "Names the kernels that compute attention.",
    "cpu-offload-gb": (
        "Keeps so many GiB of the weights in the host's memory, and moves them to the GPU in each"
        " step."
    ),
    "default-chat-template-kwargs": (
        "Arguments for the chat template where a request brings none, such as whether the model"
        " thinks."
    ),
    "distributed-executor-backend": (
        "How the workers are run: in this process (`uni`), as processes (`mp`), over machines by"
        " Ray (`ray`)."
    ),
    "dtype": "The type in which unquantized weights and activations are computed.",
    "enable-auto-tool-choice": "Lets the model decide by itself whether it calls a tool.",
    "enable-chunked-prefill": (
        "Cuts a long prompt into pieces, so that other requests go on decoding meanwhile."
    ),
    "enable-expert-parallel": (
        "Gives each GPU whole experts of a mixture-of-experts model, instead of a slice of each."
    ),
    "enable-prefix-caching": (
        "Keeps the KV cache of prompts, so that a common beginning is computed once."
    ),
    "enforce-eager": "Runs each step without CUDA graphs and without compiling.",
    "gpu-memory-utilization": (
        "The share of the GPU's memory that weights, activations and KV cache may take together."
    ),
    "hf-overrides": (
        "Changes values of the checkpoint's `config.json` at start, such as the scaling of its"
        " positions."
    ),
    "host": (
        "The address that the server listens on. In a container it is `0.0.0.0`; what the host"
        " publishes is docker's `-p`."
    ),
    "kv-cache-dtype": "The type in which keys and values are kept.",
    "kv-cache-memory-bytes": "The size of the KV cache in bytes.",
    "linear-backend": "Names the kernels that multiply quantized matrices.",
    "load-format": "Says how the weights are read from the disk.",
    "mamba-ssm-cache-dtype": "The type in which the state of Mamba layers is kept between tokens.",
    "max-cudagraph-capture-size": (
        "The largest number of tokens in a step for which a CUDA graph is recorded."
    ),
    "max-model-len": "The longest conversation, prompt and answer together, in tokens.",
    "max-num-batched-tokens": "The most tokens that one step computes, over all requests.",
    "max-num-seqs": "The most requests that are computed at once; further ones wait.",
    "model": (
        "The checkpoint to serve. With `vllm serve` it is the first word; the option is the older"
        " spelling."
    ),
    "moe-backend": "Names the kernels that compute the experts of a mixture-of-experts model.",
    "override-generation-config": (
        "Values that take the place of those in the checkpoint's `generation_config.json`."
    ),
    "port": "The port that the server listens on.",
    "quantization": "The method by which the weights were quantized.",
    "reasoning-parser": (
        "Takes the model's thinking out of the answer and returns it in a field of its own."
    ),
    "reasoning-parser-plugin": (
        "A Python file that brings a reasoning parser of its own; `--reasoning-parser` then"
        " names it."
    ),
    "revision": (
        "The commit, branch or tag of the model's repository that is served; left out: `main`,"
        " whatever that is today."
    ),
    "served-model-name": "The name by which clients ask for the model.",
    "speculative-config": (
        "Lets a draft propose tokens that the model checks in one step: method, draft model, number"
        " of tokens, as JSON."
    ),
    "speculative-disable-by-batch-size": "Was meant to switch speculation off under load.",
    "structured-outputs-config": (
        "Chooses, as JSON, the library that holds answers to a grammar, and how."
    ),
    "tensor-parallel-size": "Over how many GPUs each matrix is cut.",
    "tool-call-parser": (
        "Turns what the model writes when it calls a tool into the API's `tool_calls`."
    ),
    "trust-remote-code": "Allows Python code from the model's repository to run.",
}
"""Option: what it does, in a sentence."""


@dataclass
class Flag:
    """What is known about one option.

    Attributes:
        name: long name without dashes.
        uses: recipe and the words of its line.
        rules: codes of the linter's rules that watch it.
        signatures: codes of the log signatures that name it.
    """

    name: str
    uses: list[tuple[Recipe, str]] = field(default_factory=list)
    rules: tuple[str, ...] = ()
    signatures: tuple[str, ...] = ()

    @property
    def means(self) -> str:
        """What it does.

        Raises:
            SparkbookError: nobody has written it yet.
        """
        if self.name not in MEANS:
            raise SparkbookError(
                f"a recipe uses --{self.name}, and nothing says what it does: add a sentence to"
                " MEANS in book/flags.py"
            )
        return MEANS[self.name]


def flags(ids: Iterable[str]) -> dict[str, Flag]:
    """Every option that one of these recipes uses, and those that the flag reference names, by
    name.
    """
    from sparkbook import recipes
    from sparkbook.formats.lines import of_launch
    from sparkbook.lint import reference
    from sparkbook.lint.case import Case

    found = {name: Flag(name) for name in reference.COSTS}
    for recipe in map(recipes.load, ids):
        for given in Case(of_launch(recipe.launch, recipe)).args.options:
            if given.option is not None:
                found.setdefault(given.option.name, Flag(given.option.name)).uses.append(
                    (recipe, given.shown)
                )
    for name, flag in found.items():
        flag.rules = reference.watching(name)
        flag.signatures = tuple(
            code for code, named in _named_by_signatures().items() if name in named
        )
    return dict(sorted(found.items()))


@functools.cache
def _named_by_signatures() -> dict[str, set[str]]:
    """Options that each log signature names in its texts or its example."""
    from sparkbook.logs.signatures import signatures

    return {
        s.id: set(_names("\n".join([s.title, s.cause, s.fix, *s.collect, s.example])))
        for s in signatures()
    }


def _names(text: str) -> list[str]:
    """The options that a text names, without the dashes, as `max-model-len`."""
    return [
        name.removeprefix("no-")
        for name in re.findall(r"(?<![\w-])--([a-z][a-z0-9-]*[a-z0-9])", text.replace("_", "-"))
    ]


def page(flag: Flag, chapters: Iterable[tuple[str, str, str]]) -> str:
    """The page of one option, in Markdown.

    Args:
        flag: the option.
        chapters: address below the site's root without ending, title and text of each page that may
            explain it.
    """
    from sparkbook import releases
    from sparkbook.lint import RULES, reference
    from sparkbook.logs.signatures import signatures
    from sparkbook.releases import changelog
    from sparkbook.rules import marked

    presence = releases.presence("options", flag.name)
    parts = [f"# `--{flag.name}`", _badges(flag), flag.means]
    if flag.name in reference.COSTS:
        parts.append(f"**On a Spark:** {reference.COSTS[flag.name]}.")
    rows = [("Releases", releases.said(presence))]
    if lives := releases.lives("options", flag.name):
        last = lives[-1]
        newest = last.until or releases.newest()
        option = releases.get(newest).option(flag.name)
        rows.append((f"In vLLM {newest}", changelog.describe("options", last.value)))
        default = (
            "chosen at start"
            if option.default is None or isinstance(option.default, dict)
            else str(option.default)
        )
        rows += [
            ("Default", default or "empty"),
            ("Group of the help text", option.group or "none"),
        ]
        if spellings := [*option.aliases, *([f"--no-{flag.name}"] if option.negatable else [])]:
            rows.append(("Also", " ".join(f"`{name}`" for name in spellings)))
        if option.deprecated:
            rows.append(("Deprecated", option.deprecated))
    facts = "".join(
        f'<tr><th scope="row">{html.escape(name)}</th><td>{_code(text)}</td></tr>'
        for name, text in rows
    )
    parts.append(
        f'<div class="sb-scroll"><table class="table sb-facts"><tbody>{facts}</tbody></table></div>'
    )
    if history := reference.history(flag.name):
        told = "\n".join(f"| {since} | {_cell(marked(words))} |" for since, words in history)
        parts += ["## What moved", f"| since | change |\n|---|---|\n{told}"]
    parts.append("## In the recipes")
    if flag.uses:
        lines = "\n".join(
            f"| {_link(recipe.title, f'models/{recipe.slug}.html')} | `{_cell(words)}` |"
            for recipe, words in flag.uses
        )
        parts.append(f"| recipe | as its line has it |\n|---|---|\n{lines}")
    else:
        parts.append("No recipe of this book gives it.")
    if flag.rules:
        items = "\n".join(
            f"- {_link(code, RULES[code].address)}: {RULES[code].name}" for code in flag.rules
        )
        parts.append(f"## Rules that watch it\n\n{items}")
    if flag.signatures:
        items = "\n".join(
            f"- {_link(code, signature_address(code))}: {_plain(signatures()[code].title)}"
            for code in flag.signatures
        )
        parts.append(f"## Logs that name it\n\n{items}")
    if explained := [
        (place, title) for place, title, text in chapters if flag.name in _names(text)
    ]:
        parts.append(
            "## Chapters that speak of it\n\n"
            + "\n".join(f"- {{doc}}`{title} <../{place}>`" for place, title in explained)
        )
    return "\n\n".join(parts) + "\n"


def _badges(flag: Flag) -> str:
    from sparkbook import releases
    from sparkbook.site import record

    known = releases.known()
    recipes = len({recipe.id for recipe, _ in flag.uses})
    return record.badge_line(
        [
            ("taken on", f"vLLM's own releases, {known[0]} to {known[-1]}"),
            ("built", record.MADE),
            ("recipes", str(recipes or "none")),
            ("rules", str(len(flag.rules) or "none")),
            ("log signatures", str(len(flag.signatures) or "none")),
        ]
    )


def of_recipe(recipe: Recipe, known: dict[str, Flag]) -> str:
    """For a recipe's page: the options of its line and the rules that speak of it or of the line
    that its source published, by name.
    """
    from sparkbook.site.rule_pages import speaking_of

    mine = [
        f"`--{flag.name}`"
        for flag in known.values()
        if any(user.id == recipe.id for user, _ in flag.uses)
    ]
    told = [("Flags of this line", mine), ("Rules that speak of it", speaking_of(recipe))]
    return "\n\n".join(f"**{title}:** {', '.join(names)}." for title, names in told if names)


def index(known: dict[str, Flag]) -> str:
    """The page that lists all of them."""
    counted = [
        (f.name, _cell(f.means), len({recipe.id for recipe, _ in f.uses}), len(f.rules))
        for f in known.values()
    ]
    rows = "\n".join(
        f"| [`--{name}`]({name}) | {means} | {uses} | {rules} |"
        for name, means, uses, rules in counted
    )
    intro = (
        "Every option of `vllm serve` that a recipe of this book uses, each with a page: what it"
        " does, since and until which release, its default and its values, the recipes, the rules,"
        " the log signatures and the chapters that speak of it."
    )
    return (
        f"# Flags, one by one\n\n{intro}\n\n| flag | what it does | recipes | rules"
        f" |\n|---|---|--:|--:|\n{rows}\n"
    )


def pages(
    known: dict[str, Flag], chapters: Iterable[tuple[str, str, str]]
) -> Iterator[tuple[str, str]]:
    """Name (without ending) and Markdown of each page, the list of them first."""
    chapters = list(chapters)
    yield "index", index(known)
    for flag in known.values():
        yield flag.name, page(flag, chapters)


def signature_address(code: str) -> str:
    """Where a log signature's section stands in the site."""
    return f"rules/{code[:4].lower()}.html#{code.lower()}"


def _link(text: str, address: str) -> str:
    return f'<a href="../{address}">{html.escape(text)}</a>'


def _code(text: str) -> str:
    """A text as HTML, with what stands in backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _plain(text: str) -> str:
    return html.escape(re.sub(r"\{([a-z_0-9]+)\}", "…", text))


def _cell(text: Any) -> str:
    """A text in a cell of a Markdown table."""
    return str(text).replace("|", "\\|").replace("\n", " ")
