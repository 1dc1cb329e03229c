"""Prompts by class: what is asked decides how fast a speculating engine answers, so a speed without
its class says little.

All texts are the project's own. A prompt is made from a template and a seeded choice of its parts,
so a class has hundreds of different prompts and the same seed always gives the same ones. A salt
is at the very front: a prefix cache matches from the beginning, so a salted prompt is never
found in it.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkbook.errors import SparkbookError
from sparkbook.util import own_yaml


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Attributes:
        id: class and number, such as `code-007`; the unit of statistics, and what pairs two arms of
            a comparison.
        text: the user's message, with its salt.
    """

    id: str
    text: str


_REPORT = (
    (
        "On day {n} the survey party measured a depth of {a} metres at marker {b} and found {c}"
        " traces of the old canal."
    ),
    (
        "Entry {n}: the wind came from the {d}, {a} crates were moved to store {b}, and {c} of them"
        " had to be opened again."
    ),
    (
        "In the ledger of week {n} the clerk wrote down {a} visitors, {b} letters and a bill of {c}"
        " crowns for the {d} gate."
    ),
    (
        "Station {n} reported {a} units at half past {b}, then nothing for {c} minutes, then the"
        " usual signal from the {d}."
    ),
)
_QUESTION = (
    "Read this record and then summarize what happened at the four gates, in the order of the"
    " days.\n\n"
)
_WORDS = ("north", "south", "east", "west")

_BY_HEART = (
    "What is speculative decoding?",
    "What is a KV cache?",
    "What is unified memory?",
    "Write a binary search in Python with type hints.",
    "Explain quantum computing briefly.",
    "Write a haiku about GPUs.",
    "Count to ten.",
    "Who are you?",
    "What is the capital of France?",
    "What is the capital of Italy?",
    "What is the capital of Japan?",
    "12*17",
)

CLASSES = ("code", "reasoning", "dialogue", "prose", "json", "random")
"""Classes with short prompts. `long-4k`, `long-16k` and so on: prompts of about so many tokens."""


def make(
    name: str, count: int, *, seed: int = 0, salt: str | None = "", chars_per_token: float = 4.0
) -> list[Prompt]:
    """Make prompts of a class.

    Args:
        name: one of `CLASSES`, or `long-` and a number of tokens such as `long-16k` (k = 1,000) or
            `long-500`.
        count: how many. Where a class has fewer different ones they come again, each time with
            another salt.
        seed: chooses them; the same seed gives the same prompts.
        salt: joins the seed in the text at the front. None leaves it away, so that caching can be
            measured.
        chars_per_token: of the model's tokenizer, for the length of long prompts.

    Raises:
        SparkbookError: there is no such class.
    """
    return own(
        name,
        list(
            itertools.islice(_writer(name, chars_per_token)(random.Random(f"{name}/{seed}")), count)
        ),
        count,
        seed,
        salt,
    )


def own(
    name: str, texts: Sequence[str], count: int, seed: int = 0, salt: str | None = ""
) -> list[Prompt]:
    """Return prompts from texts of your own, in their order; where there are fewer than `count`,
    they come again, each with another salt.

    Raises:
        SparkbookError: there is no text.
    """
    if not texts:
        raise SparkbookError(f"the prompt class '{name}' has no text")
    bodies, prompts = texts[:count], []
    for number in range(count):
        mark = ""
        if salt is not None:
            digest = hashlib.sha256(f"{seed}/{salt}/{name}/{number}".encode()).hexdigest()
            # Words of their own: no two salts share more than a token or two at the front.
            mark = f"[{digest[:4]} {digest[4:8]} {digest[8:12]}] "
        prompts.append(
            Prompt(f"{name}-{number % len(bodies):03}", mark + bodies[number % len(bodies)])
        )
    return prompts


def familiar() -> dict[str, list[str]]:
    """Return texts for the project's tiny models, which know little: a dozen chats by heart, and
    lines of Python's library to be continued.
    """
    import bisect
    import heapq
    import inspect
    import queue
    import shlex
    import textwrap

    rng, code = random.Random("familiar"), []
    for module in itertools.islice(itertools.cycle((bisect, heapq, queue, shlex, textwrap)), 16):
        lines = inspect.getsource(module).splitlines()
        begin = rng.randrange(20, len(lines) - 28)
        code.append("Continue this code:\n" + "\n".join(lines[begin : begin + 8]))
    return {"chat": list(_BY_HEART), "code": code}


def edits(count: int = 16) -> list[str]:
    """Return functions to be copied with one name changed: replies that repeat their prompt, which
    is where drafts by n-grams pay.
    """
    words = ("total", "count", "price", "score", "width", "depth", "speed", "power")
    bodies = (
        (
            "def {w}_of(items):\n    {w} = 0\n    for item in items:\n        {w} = {w} +"
            " item.{w}\n    return {w}"
        ),
        (
            "def max_{w}(items):\n    best = None\n    for item in items:\n        if best is None"
            " or item.{w} > best.{w}:\n            best = item\n    return best"
        ),
    )
    made = [
        "Copy this Python code exactly, but call the function"
        f" {word}_b{number}:\n\n```python\n{body.format(w=word)}\n```"
        for number, body in enumerate(bodies)
        for word in words
    ]
    return made[:count]


def context_tokens(name: str) -> int | None:
    """Return tokens that a long class aims at; None for the others.

    Raises:
        SparkbookError: the number is not one.
    """
    if not name.startswith("long-"):
        return None
    text = name.removeprefix("long-")
    number = text.removesuffix("k")
    if not number.isdigit() or not int(number):
        raise SparkbookError(
            f"'{name}' is not a class: write long- and a number of tokens, such as long-4k or"
            " long-500"
        )
    return int(number) * (1000 if text.endswith("k") else 1)


def _writer(name: str, chars_per_token: float) -> Callable[[random.Random], Iterator[str]]:
    if (tokens := context_tokens(name)) is not None:
        return lambda rng: _long(rng, round(tokens * chars_per_token))
    if name == "random":
        return _noise
    known = own_yaml.read(Path(__file__).with_name("prompts.yaml"))
    if name not in known:
        raise SparkbookError(
            f"there is no prompt class '{name}'; there are {', '.join(CLASSES)}, and long-4k,"
            " long-16k, …"
        )
    return lambda rng: _filled(rng, known[name]["template"], known[name]["parts"])


def _filled(rng: random.Random, template: str, parts: dict[str, list[str]]) -> Iterator[str]:
    """Yield every combination once, in an order that the seed chooses."""
    combinations = list(itertools.product(*parts.values()))
    rng.shuffle(combinations)
    for chosen in combinations:
        yield template.format(**dict(zip(parts, chosen, strict=True)))


def _noise(rng: random.Random) -> Iterator[str]:
    """Yield letters without meaning: the control, since nothing can be guessed of them."""
    while True:
        yield " ".join(
            "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 9)))
            for _ in range(60)
        )


def _long(rng: random.Random, characters: int) -> Iterator[str]:
    while True:
        lines, size = [], len(_QUESTION)
        for n in itertools.count(1):
            line = rng.choice(_REPORT).format(
                n=n,
                a=rng.randint(2, 900),
                b=rng.randint(1, 12),
                c=rng.randint(2, 59),
                d=rng.choice(_WORDS),
            )
            size += len(line) + 1
            if size > characters:
                break
            lines.append(line)
        yield _QUESTION + "\n".join(lines)
