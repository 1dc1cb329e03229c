"""What vLLM said of a recipe, for the recipe's page: recorded answers, none made here."""

from __future__ import annotations

import html
from collections.abc import Iterator

from IPython.display import Markdown

from sparkbook.recipes import Recipe
from sparkbook.releases.answers import Answer, recorded
from sparkbook.units import GIB
from sparkbook.util.tables import table

NOT_ASKED = "vLLM was not asked about this recipe"


def rows(answer: Answer) -> Iterator[tuple[str, str]]:
    """Yield the rows of an answer: what, and what vLLM said."""
    if answer.refused is not None:
        yield "verdict", f"refused: {answer.refused}"
    else:
        yield "verdict", f"accepted, up to the KV cache, on a pretended {answer.judge.machine}"
    for name, (asked, got) in answer.changed.items():
        yield "changed by vLLM", f"--{name.replace('_', '-')}: {asked} becomes {got}"
    if answer.weights_bytes is not None:
        yield "weights", f"{answer.weights_bytes / GIB:.2f} GiB"
    for what, words in (("attention", ("attention",)), ("experts", ("MoE", "Experts"))):
        if names := _backends(answer, words):
            yield f"{what}, backend", ", ".join(names)
    for size in answer.cache.sizes if answer.cache else ():
        if size.tokens is not None and size.concurrency is not None:
            times = f"{size.concurrency:.2f} sequences of {size.context:,} tokens"
            yield f"KV cache of {size.bytes / GIB:.1f} GiB", f"{size.tokens:,} tokens: {times}"
    for line in answer.warnings[:5]:
        yield "warning", line


def _backends(answer: Answer, words: tuple[str, ...]) -> list[str]:
    """Names of the backends of layers whose kind contains one of some words, without repeats."""
    found = [one.backend for one in answer.backends if any(word in one.kind for word in words)]
    return list(dict.fromkeys(found))


def of_recipe(recipe: Recipe) -> Markdown:
    """Return the recorded answer as a table, or the reason why there is none."""
    entry = recorded(recipe.id)
    if entry is None or entry.answer is None:
        reason = (
            entry.reason if entry and entry.reason else "its line is newer than the last asking"
        )
        return Markdown(f"{NOT_ASKED}: {html.escape(reason, quote=False)}.")
    answer = entry.answer
    shown = [[what, html.escape(text, quote=False)] for what, text in rows(answer)]
    if entry.note:
        why = entry.note.removeprefix("the newest here; ")
        another = f"{answer.judge} answered; this image may differ: it was {why}"
        shown.append(["another release", html.escape(another, quote=False)])
    for name, source in answer.files.items():
        shown.append([f"config of {name}", html.escape(source, quote=False)])
    return table(["asked", str(answer.judge)], shown)
