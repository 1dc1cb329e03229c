"""FLAG: options of `vllm serve`."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from itertools import pairwise

from sparkbook import releases
from sparkbook.launch.arguments import Given, problem
from sparkbook.lint.case import MOST_SUGGESTED, Case
from sparkbook.lint.family import family
from sparkbook.lint.rules.flag_names import FOREIGN, OF_FORKS, SUCCESSORS
from sparkbook.rules import Hit

FLAG = family("FLAG", "options of vllm serve")

TABLE = "vLLM's own argument parser, read out of each release"


def unknown(case: Case) -> Iterator[Given]:
    """Options that the release does not know; those of vLLM-Omni are not vLLM's to refuse."""
    if case.omni:
        return iter(())
    return (given for given in case.args.options if given.option is None)


def _ambiguous(case: Case, name: str) -> list[str]:
    return [option for option in case.release.options if option.startswith(name)]


@FLAG.rule(
    "FLAG101",
    "unknown-option",
    "error",
    claims="refused",
    source=TABLE,
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --max-model-length 65536",
    passes="vllm serve ORG/MODEL --max_model_len 65536",
)
def unknown_option(case: Case) -> Iterator[Hit]:
    """An option that no release of vLLM has: `vllm serve` prints `unrecognized arguments` and ends
    before it loads anything.

    Underscores are not a mistake: vLLM takes them for dashes. A beginning of a name that only one
        option has is accepted too. An image that may hold a fork of vLLM may have the option: ask
        it.
    """
    spellings = [
        *case.release.options,
        *(f"no-{o.name}" for o in case.release.options.values() if o.negatable),
    ]
    for number, given in enumerate(unknown(case)):
        if (
            given.name in FOREIGN
            or given.name in SUCCESSORS
            or releases.presence("options", given.name)
        ):
            continue
        if len(given.name) < 2 or _ambiguous(case, given.name):
            continue
        if case.forked:
            yield Hit(
                f"--{given.name} is in no release of vLLM: {case.shown_image} is {case.forked}.",
                given.shown,
                f"Ask the image: {case.asked}.",
                severity="info",
            )
            continue
        if given.name in OF_FORKS:
            yield Hit(
                f"--{given.name} is not in vLLM {case.version}: it is an option of"
                f" {OF_FORKS[given.name]}.",
                given.shown,
                f"Start that build, and ask it: {case.asked}.",
                severity="warning",
            )
            continue
        compared = spellings if number < MOST_SUGGESTED else ()
        close = difflib.get_close_matches(given.name, compared, n=1, cutoff=0.75)
        hint = (
            f"Write --{close[0]}."
            if close
            else f"Take it out; if you start a fork of vLLM, ask it: {case.asked}."
        )
        edits = case.rename(given, close[0]) if close and not given.key else ()
        yield Hit(
            f"--{given.name} is no option of vLLM {case.version}.", given.shown, hint, edits=edits
        )


@FLAG.rule(
    "FLAG102",
    "removed-option",
    "error",
    claims="refused",
    kind="removed-flag",
    source=(
        "vLLM pull request 35060, https://github.com/vllm-project/vllm/pull/35060, and the parser"
        " of each release"
    ),
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --speculative-disable-by-batch-size 32",
    passes="vllm serve ORG/MODEL --max-num-seqs 4",
)
def removed_option(case: Case) -> Iterator[Hit]:
    """An option that older releases had, or that guides still teach, and that this release no
    longer knows: the start ends with `unrecognized arguments`.

    The best known one switched speculation off above a batch size. Nothing has read it since 0.10;
    its successor is a key of `--speculative-config` that maps ranges of the batch size to a number
    of draft tokens.
    """
    for given in unknown(case):
        spans = releases.presence("options", given.name)
        older = [
            until for _, until in spans if until and not releases.at_least(until, case.version)
        ]
        if given.name in SUCCESSORS and not spans:
            when = f"is in no release from {releases.known()[0]} on"
        elif older:
            when = f"went away after {older[-1]}"
        else:
            continue
        successor = SUCCESSORS.get(
            given.name, "see what the release offers: sparkbook releases show"
        )
        yield Hit(
            f"--{given.name} {when}.",
            given.shown,
            f"Take it out; in its place: {successor}.",
            edits=case.drop(given),
        )


@FLAG.rule(
    "FLAG103",
    "option-too-new",
    "error",
    claims="refused",
    kind="image-too-old",
    source=TABLE,
    release="0.19.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --spec-method mtp",
    passes="vllm serve ORG/MODEL --max-num-seqs 4",
)
def option_too_new(case: Case) -> Iterator[Hit]:
    """An option that only later releases have: the image is too old for the line."""
    for given in unknown(case):
        later = [
            since
            for since, _ in releases.presence("options", given.name)
            if not releases.at_least(case.version, since)
        ]
        if later:
            yield Hit(
                f"--{given.name} came with {later[0]}.",
                given.shown,
                f"Take an image with vLLM {later[0]} or later, or leave it out.",
            )


@FLAG.rule(
    "FLAG104",
    "wrong-choice",
    "error",
    claims="refused",
    source=TABLE,
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --kv-cache-dtype fp7",
    passes="vllm serve ORG/MODEL --kv-cache-dtype fp8",
)
def wrong_choice(case: Case) -> Iterator[Hit]:
    """A value that is not among those that this release accepts: the parser refuses it at once.

    Values come and go: KV-cache dtypes, MoE and linear backends grew with almost every release.
    """
    for given in case.args.options:
        if given.option and (wrong := problem(given, given.option)) and wrong[0] == "choice":
            text = given.values[0].shown
            close = difflib.get_close_matches(
                text, [str(c) for c in given.option.choices or ()], n=1
            )
            since = [
                life.since
                for life in releases.lives("options", given.option.name)
                if text in (life.value.get("choices") or [])
            ]
            hint = (
                f"Take an image with vLLM {since[0]} or later, which has {text}."
                if since and not releases.at_least(case.version, since[0])
                else None
            )
            hint = hint or (f"Write {close[0]}." if close else "Choose one of them.")
            yield Hit(f"{wrong[1]}.", given.shown, hint)


@FLAG.rule(
    "FLAG105",
    "wrong-type",
    "error",
    claims="refused",
    source=TABLE,
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --max-num-seqs four",
    passes="vllm serve ORG/MODEL --max-model-len 64k",
)
def wrong_type(case: Case) -> Iterator[Hit]:
    """A value that cannot be read: a word where a number belongs, or JSON that is broken (often
    because the shell took its quotes).
    """
    for given in case.args.options:
        if given.option and (wrong := problem(given, given.option)) and wrong[0] == "type":
            json = given.option.type.startswith(("json", "object"))
            fix = (
                "Put the JSON in single quotes, its names in double ones."
                if json
                else "Write the number."
            )
            yield Hit(f"{wrong[1]}.", given.shown, fix, kind="launcher-quoting" if json else None)


@FLAG.rule(
    "FLAG106",
    "value-missing-or-needless",
    "error",
    claims="refused",
    source=TABLE,
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --max-model-len --port 8000",
    passes="vllm serve ORG/MODEL --enable-prefix-caching --port 8000",
)
def value_count(case: Case) -> Iterator[Hit]:
    """An option without the value that it needs, or a switch with one
    (`--enable-prefix-caching=true`).
    """
    for given in case.args.options:
        if given.option and (wrong := problem(given, given.option)) and wrong[0] == "count":
            yield Hit(
                f"{wrong[1]}.",
                given.shown,
                (
                    "Give it alone; --no-NAME switches it off."
                    if given.values
                    else "Write the value after it."
                ),
            )


@FLAG.rule(
    "FLAG107",
    "given-twice",
    "warning",
    source=TABLE,
    fails="vllm serve ORG/MODEL --max-num-seqs 4 --max-num-seqs 8",
    passes="vllm serve ORG/MODEL --max-num-seqs 8",
)
def given_twice(case: Case) -> Iterator[Hit]:
    """An option given twice. The last one counts, without an error, so an edit of the first changes
    nothing.
    """
    several: dict[str, list[Given]] = {}
    for given in case.args.options:
        if given.option and not given.key and not given.option.repeated:
            several.setdefault(given.option.name, []).append(given)
    for name, each in several.items():
        again = [(one, after) for one, after in pairwise(each) if one.negated == after.negated]
        if again:
            last_but_one, last = again[-1]
            times = "twice" if len(again) == 1 else f"{len(again) + 1:,} times"
            yield Hit(
                f"--{name} is given {times}; the last one counts.",
                f"{last_but_one.shown} … {last.shown}",
                f"Keep one: {last.pasted}.",
                edits=tuple(edit for one, _ in again for edit in case.drop(one)),
            )


@FLAG.rule(
    "FLAG108",
    "deprecated-option",
    "warning",
    source=TABLE,
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --disable-cascade-attn",
    passes="vllm serve ORG/MODEL --enforce-eager",
)
def deprecated_option(case: Case) -> Iterator[Hit]:
    """An option that vLLM itself calls deprecated in this release: it still parses, and a later
    image will refuse it.
    """
    for given in [] if case.forked else case.args.options:
        if given.option and given.option.deprecated:
            yield Hit(
                f"--{given.option.name} is deprecated: {given.option.deprecated.rstrip('.')}.",
                given.shown,
                "Leave it out.",
            )


@FLAG.rule(
    "FLAG109",
    "equals-default",
    "info",
    source=TABLE,
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --port 8000",
    passes="vllm serve ORG/MODEL --port 8080",
)
def equals_default(case: Case) -> Iterator[Hit]:
    """A value that is the default of this release anyway. It does no harm, and pins the value
    against a later default.
    """
    for given in case.args.options:
        if (
            given.option is None
            or given.key
            or given.option.default is None
            or given.option.name == "model"
        ):
            continue
        text = None if given.option.type == "bool" else given.value
        same = (
            (not given.negated) is given.option.default
            if given.option.type == "bool"
            else text == _text(given.option.default)
        )
        if same:
            yield Hit(
                f"{given.shown} is the default.",
                given.shown,
                "Leave it out, unless it is meant to outlive a new default.",
            )


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@FLAG.rule(
    "FLAG110",
    "chunked-prefill-is-on",
    "info",
    kind="default-changed",
    source="vLLM on DGX Spark, https://vlaicu.io/posts/dgx-vllm/, and vLLM's engine arguments",
    fails="vllm serve ORG/MODEL --enable-chunked-prefill",
    passes="vllm serve ORG/MODEL --no-enable-chunked-prefill",
)
def chunked_prefill(case: Case) -> Iterator[Hit]:
    """`--enable-chunked-prefill` says nothing new: chunked prefill is on by default, so leaving the
    option out does not switch it off.

    A guide reports mixture-of-experts models with state-space layers to be nine times slower with
    it; that has one source, and NVIDIA's later recipes for such models keep it on. Whoever wants it
    off writes `--no-enable-chunked-prefill` and measures both.
    """
    if case.on("enable-chunked-prefill"):
        yield Hit(
            "Chunked prefill is on by default; leaving --enable-chunked-prefill out would not"
            " switch it off.",
            case.shown("enable-chunked-prefill"),
            "Write --no-enable-chunked-prefill to switch it off, and measure both.",
        )


@FLAG.rule(
    "FLAG111",
    "extra-words",
    "error",
    claims="refused",
    source=TABLE,
    fails="vllm serve ORG/MODEL and more --port 8080",
    passes="vllm serve ORG/MODEL --port 8080",
)
def extra_words(case: Case) -> Iterator[Hit]:
    """Words that belong to no option: `vllm serve` takes one model and refuses the rest."""
    if case.args.extra:
        words = " ".join(word.shown for word in case.args.extra)
        yield Hit(
            f"'{words}' belongs to no option.",
            words,
            "Take it out, or quote a value that holds blanks.",
        )


@FLAG.rule(
    "FLAG112",
    "on-and-off",
    "warning",
    kind="flag-conflict",
    source=TABLE,
    fails="vllm serve ORG/MODEL --enable-prefix-caching --no-enable-prefix-caching",
    passes="vllm serve ORG/MODEL --no-enable-prefix-caching",
)
def on_and_off(case: Case) -> Iterator[Hit]:
    """A switch and its `--no-` form on one line. The last one counts."""
    seen: dict[str, Given] = {}
    for given in case.args.options:
        if given.option and given.option.negatable:
            other = seen.get(given.option.name)
            if other and other.negated != given.negated:
                yield Hit(
                    f"{other.shown} and {given.shown} contradict each other; the last one counts.",
                    f"{other.shown} … {given.shown}",
                    f"Keep {given.pasted}.",
                    edits=case.drop(other),
                )
            seen[given.option.name] = given


@FLAG.rule(
    "FLAG113",
    "mamba-block-size-without-prefix-cache",
    "error",
    claims="refused",
    kind="flag-conflict",
    source=(
        "AEON-7 issue 12,"
        " https://github.com/AEON-7/Qwen3.6-27B-AEON-Ultimate-Uncensored-DFlash/issues/12"
    ),
    fails="vllm serve ORG/MODEL --no-enable-prefix-caching --mamba-block-size 256",
    passes="vllm serve ORG/MODEL --mamba-block-size 256",
)
def mamba_block_size(case: Case) -> Iterator[Hit]:
    """`--mamba-block-size` only works with prefix caching; with it switched off the engine refuses
    to start.
    """
    if "mamba-block-size" in case.options and case.off("enable-prefix-caching"):
        yield Hit(
            "--mamba-block-size needs prefix caching, which --no-enable-prefix-caching"
            " switches off.",
            case.shown("mamba-block-size"),
            "Drop one of the two.",
            edits=case.drop(case.options["mamba-block-size"]),
        )


@FLAG.rule(
    "FLAG114",
    "option-of-another-program",
    "error",
    claims="refused",
    kind="launcher-quoting",
    source=TABLE,
    fails="docker run vllm/vllm-openai:v0.28.0 ORG/MODEL --gpus all",
    passes="docker run --gpus all vllm/vllm-openai:v0.28.0 ORG/MODEL",
)
def foreign_option(case: Case) -> Iterator[Hit]:
    """An option of docker, llama.cpp, SGLang or a launcher's script among the arguments of
    `vllm serve`, which refuses it.
    """
    for given in unknown(case):
        if given.name in FOREIGN and not releases.presence("options", given.name):
            yield Hit(
                f"--{given.name} is an option of {FOREIGN[given.name]}.",
                given.shown,
                "Move it, or take it out.",
            )


@FLAG.rule(
    "FLAG115",
    "ambiguous-or-short",
    "error",
    claims="refused",
    source=TABLE,
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --max 4",
    passes="vllm serve ORG/MODEL -tp 1",
)
def ambiguous_option(case: Case) -> Iterator[Hit]:
    """A beginning that several options have in common, or a short option that does not exist: the
    parser refuses both.
    """
    for given in unknown(case):
        many = _ambiguous(case, given.name)
        if not given.word.text.startswith("--"):
            yield Hit(
                f"{given.word.shown} is no short option of vllm serve.",
                given.shown,
                "Write the long name.",
            )
        elif (
            given.name
            and many
            and given.name not in FOREIGN
            and given.name not in SUCCESSORS
            and not releases.presence("options", given.name)
        ):
            yield Hit(
                f"--{given.name} could be {', '.join(f'--{name}' for name in many[:3])}.",
                given.shown,
                "Write the whole name.",
            )


@FLAG.rule(
    "FLAG116",
    "no-model",
    "warning",
    source="vLLM's model config: the default is Qwen/Qwen3-0.6B",
    fails="vllm serve --port 8080",
    passes="vllm serve ORG/MODEL --port 8080",
)
def no_model(case: Case) -> Iterator[Hit]:
    """No model is named. vLLM then serves its default, a small Qwen3, without a word."""
    if case.serves and case.args.model is None and "config" not in case.options:
        yield Hit(
            "The line names no model, so vLLM serves Qwen/Qwen3-0.6B.",
            None,
            "Write the model after vllm serve.",
        )


@FLAG.rule(
    "FLAG117",
    "abbreviated",
    "info",
    source=TABLE,
    release="0.32.0",
    versioned=True,
    fails="vllm serve ORG/MODEL --gpu-memory-util 0.8",
    passes="vllm serve ORG/MODEL --gpu-memory-utilization 0.8",
)
def abbreviated(case: Case) -> Iterator[Hit]:
    """The beginning of an option's name is accepted as long as no other option begins with it; a
    later release may add one that does.
    """
    for given in case.args.options:
        if given.option is None or not given.word.text.startswith("--"):
            continue
        whole = {given.option.name, *(alias[2:] for alias in given.option.aliases)}
        if given.name.removeprefix("no-") not in whole and given.name not in whole:
            name = f"no-{given.option.name}" if given.negated else given.option.name
            edits = () if given.key else case.rename(given, name)
            yield Hit(
                f"--{given.name} is short for --{name}.",
                given.shown,
                f"Write --{name}.",
                edits=edits,
            )
