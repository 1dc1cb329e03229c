"""Does an option keep what it promises to keep? Its server is held against the one without it, by
three measures:

the greedy replies token by token (`equality`), how far the log-probabilities moved where both had
written the same so far, and a set of small tasks with one right answer each. All three are judged
against the control: the server without the option, asked twice.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sparkbook.bench import equality, prompts, recording
from sparkbook.bench.equality import Answer, Difference, Equality, wilson
from sparkbook.bench.prompts import Prompt
from sparkbook.serve.endpoint import Endpoint

Verdict = Literal["identical", "near-ties", "changed"]

TASK_TOKENS = 16
"""Longest reply to a task: the answer and little more."""


@dataclass(frozen=True)
class Task:
    """A text to complete: two examples of a kind, and a third question with one right answer."""

    prompt: Prompt
    kind: str
    answer: str

    def right(self, reply: str) -> bool:
        """Return whether the first line of a reply is the answer: exactly, but for blanks around
        it; JSON by its value.
        """
        first = reply.strip().split("\n")[0].strip()
        if self.kind != "json":
            return first == self.answer
        try:
            return bool(json.loads(first) == json.loads(self.answer))
        except ValueError:
            return False


_KINDS: dict[
    str, tuple[str, str, str, tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
] = {
    "copy": (
        "Say the word again, and nothing else.",
        "Word",
        "Again",
        (("river", "river"), ("stone", "stone")),
        tuple(
            (w, w)
            for w in (
                "candle",
                "window",
                "garden",
                "mirror",
                "silver",
                "winter",
                "bridge",
                "forest",
            )
        ),
    ),
    "count": (
        "What number comes next?",
        "Numbers",
        "Next",
        (("1, 2, 3", "4"), ("20, 21, 22", "23")),
        tuple((f"{n}, {n + 1}, {n + 2}", str(n + 3)) for n in (3, 5, 8, 12, 17, 24, 36, 51)),
    ),
    "fact": (
        "Answer with one word.",
        "Q",
        "A",
        (("the capital of Spain", "Madrid"), ("the opposite of big", "small")),
        (
            ("the capital of France", "Paris"),
            ("the capital of Italy", "Rome"),
            ("the colour of grass", "green"),
            ("the opposite of hot", "cold"),
            ("the legs of a dog", "four"),
            ("the planet that we live on", "Earth"),
            ("the day after Monday", "Tuesday"),
            ("the capital of Japan", "Tokyo"),
        ),
    ),
    "sum": (
        "Answer with the number only.",
        "Q",
        "A",
        (("1 + 1", "2"), ("2 + 2", "4")),
        tuple(
            (f"{a} + {b}", str(a + b))
            for a, b in ((1, 2), (2, 3), (4, 1), (3, 3), (5, 2), (6, 1), (4, 4), (2, 6))
        ),
    ),
    "json": (
        "Write each line as JSON.",
        "Line",
        "JSON",
        (
            ("Tom is 24 years old", '{"name": "Tom", "age": 24}'),
            ("Ines is 58 years old", '{"name": "Ines", "age": 58}'),
        ),
        tuple(
            (f"{name} is {age} years old", json.dumps({"name": name, "age": age}))
            for name, age in (
                ("Anna", 31),
                ("Omar", 45),
                ("Lucia", 27),
                ("Kenji", 63),
                ("Maria", 19),
                ("Peter", 52),
                ("Nadia", 38),
                ("David", 70),
            )
        ),
    ),
}
"""What to do, the labels of question and answer, two examples, and eight questions of each kind."""


def tasks() -> list[Task]:
    """Return forty small tasks of five kinds. They expose a broken model; they rank no models."""
    made = []
    for kind, (order, question, answer, examples, asked) in _KINDS.items():
        shown = "\n".join(f"{question}: {q}\n{answer}: {a}" for q, a in examples)
        for number, (q, a) in enumerate(asked):
            made.append(
                Task(
                    Prompt(f"{kind}-{number}", f"{order}\n\n{shown}\n{question}: {q}\n{answer}:"),
                    kind,
                    a,
                )
            )
    return made


def texts(each: int = 4) -> list[Prompt]:
    """Return prompts for free replies: code, prose and noise, and questions behind one long common
    beginning, for a prefix cache to find.
    """
    common = prompts.make("long-200", 1, salt=None)[0].text
    ends = (
        "What was measured?",
        "Who came?",
        "Name one number.",
        "Which gate was it?",
        "What happened first?",
        "What was moved?",
    )
    shared = [Prompt(f"shared-{n:03}", f"{common}\n\n{end}") for n, end in enumerate(ends[:each])]
    return [
        p for name in ("code", "prose", "random") for p in prompts.make(name, each, salt=None)
    ] + shared


@dataclass(frozen=True)
class Scores:
    """Tasks solved without (a) and with (b) an option.

    Attributes:
        n: tasks asked of both. both: solved by both. lost: solved by a alone. gained: solved by b
            alone.
    """

    n: int
    both: int
    lost: int
    gained: int

    @property
    def a(self) -> tuple[float, float, float]:
        """Share solved without, with its 95 % interval (Wilson)."""
        return wilson(self.both + self.lost, self.n)

    @property
    def b(self) -> tuple[float, float, float]:
        """Share solved with the option."""
        return wilson(self.both + self.gained, self.n)

    @property
    def difference(self) -> tuple[float, float, float]:
        """b - a, paired, with its 95 % interval (method 10 of Newcombe, Statistics in Medicine 17,
        1998, 2635-2650).
        """
        (pa, la, ua), (pb, lb, ub) = self.a, self.b
        e, f, g, h = self.both, self.gained, self.lost, self.n - self.both - self.gained - self.lost
        product = (e + f) * (g + h) * (e + g) * (f + h)
        excess: float = e * h - f * g
        # The correction of the method: a positive correlation is taken a little smaller than it
        # looks.
        excess = max(excess - self.n / 2, 0) if excess > 0 else excess
        phi = excess / math.sqrt(product) if product else 0.0

        def reach(x: float, y: float) -> float:
            return math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0))

        return (
            pb - pa,
            max(-1.0, pb - pa - reach(pb - lb, ua - pa)),
            min(1.0, pb - pa + reach(ub - pb, pa - la)),
        )

    @property
    def p(self) -> float:
        """Two-sided exact McNemar test of "no difference": a fair coin for each task that one arm
        alone solved.
        """
        apart = self.lost + self.gained
        tail = sum(math.comb(apart, i) for i in range(min(self.lost, self.gained) + 1)) / 2**apart
        return min(1.0, 2 * tail)

    def __str__(self) -> str:
        share, low, high = self.difference
        return (
            f"{self.both + self.lost} and {self.both + self.gained} of {self.n} tasks, "
            f"difference {100 * share:+.0f} points (95 %: {100 * low:+.0f} to {100 * high:+.0f})"
        )


@dataclass(frozen=True)
class Trial:
    """One option against the server without it.

    Attributes:
        option: what was changed. claims: whether it is said to change nothing.
        equality: of the replies; its control is the server without the option, asked twice.
        shift: mean distance (nats) of the log-probability of the same token after the same text;
            control_shift: of the control.
        scores: of the tasks.
        engine: what shows that the option was at work, such as the drafts that it made.
    """

    option: str
    equality: Equality
    shift: float | None
    control_shift: float | None
    scores: Scores
    claims: bool = True
    engine: str = ""

    @property
    def verdict(self) -> Verdict:
        """`changed`: more real differences than the control has, or the tasks' interval holds no 0.
        Else `identical` or `near-ties`.
        """
        _, low, high = self.scores.difference
        if not self.equality.passed or not low <= 0 <= high:
            return "changed"
        return (
            "identical"
            if self.equality.count("identical") == len(self.equality.differences)
            else "near-ties"
        )

    def under(self, near_tie: float) -> Trial:
        """Return the same replies, judged with another limit of a near-tie (nats)."""
        return dataclasses.replace(self, equality=self.equality.under(near_tie))

    @property
    def moved(self) -> str:
        """`shift` in words."""
        mine, its = (
            "unknown" if x is None else f"{x:.4f} nats" for x in (self.shift, self.control_shift)
        )
        return f"log-probabilities by {mine}; of A asked twice by {its}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, and the verdict."""
        control = self.equality.control
        rows = {"differences": _rows(self.equality), "control": _rows(control) if control else None}
        return {
            **dataclasses.asdict(dataclasses.replace(self, equality=Equality(()))),
            "equality": rows,
            "verdict": self.verdict,
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Trial:
        """Return what `to_dict` gave."""
        rows = value["equality"]
        control = (
            Equality(tuple(Difference(**row) for row in rows["control"]))
            if rows["control"] is not None
            else None
        )
        rest = {
            f.name: value[f.name]
            for f in dataclasses.fields(cls)
            if f.name not in ("equality", "scores")
        }
        return cls(
            **rest,
            equality=Equality(tuple(Difference(**row) for row in rows["differences"]), control),
            scores=Scores(**value["scores"]),
        )


def _rows(found: Equality) -> list[dict[str, Any]]:
    return [dataclasses.asdict(difference) for difference in found.differences]


def shift(a: Sequence[Answer], b: Sequence[Answer]) -> float | None:
    """Return how far the log-probability of the same token after the same text moved, on average
    (nats); None where no reply begins alike.
    """
    others, moved = {answer.prompt: answer for answer in b}, []
    for one in a:
        other = others.get(one.prompt)
        for at, (mine, its) in enumerate(
            zip(one.tokens, other.tokens if other else (), strict=False)
        ):
            if mine != its:
                break
            moved.append(abs(one.tops[at][mine] - other.tops[at][its]))  # type: ignore[union-attr]
    return math.fsum(moved) / len(moved) if moved else None


def scores(a: Sequence[Answer], b: Sequence[Answer]) -> Scores:
    """Return the tasks among the replies of two servers."""
    known = {task.prompt.id: task for task in tasks()}
    first, second = (
        {x.prompt: known[x.prompt].right(x.text) for x in answers if x.prompt in known}
        for answers in (a, b)
    )
    pairs = [(first[name], second[name]) for name in first if name in second]
    return Scores(
        len(pairs),
        pairs.count((True, True)),
        pairs.count((True, False)),
        pairs.count((False, True)),
    )


def ask(
    endpoint: Endpoint,
    *,
    each: int = 4,
    max_tokens: int = 48,
    temperature: float = 0.0,
    progress: Callable[[int], None] | None = None,
) -> list[Answer]:
    """Ask a server the texts and the tasks, one at a time.

    Args:
        each: texts of each kind. max_tokens: longest reply to one. temperature: above 0 for a
            control that must fail.
        progress: called with the replies so far.

    Raises:
        SparkbookError: the server does not answer, or gives no log-probabilities.
    """
    free = equality.ask(
        endpoint, texts(each), max_tokens=max_tokens, temperature=temperature, progress=progress
    )
    short = equality.ask(
        endpoint,
        [task.prompt for task in tasks()],
        max_tokens=TASK_TOKENS,
        temperature=temperature,
        stop="\n",
        progress=progress and (lambda done: progress(len(free) + done)),
    )
    return [*free, *short]


def trial(
    option: str,
    without: Sequence[Answer],
    again: Sequence[Answer],
    with_it: Sequence[Answer],
    *,
    claims: bool = True,
    engine: str = "",
) -> Trial:
    """Judge an option by the replies of the server without it, of the same once more, and of the
    server with it.

    Raises:
        SparkbookError: they share no prompt.
    """
    found = equality.compare(without, with_it, again)
    return Trial(
        option,
        found,
        shift(without, with_it),
        shift(without, again),
        scores(without, with_it),
        claims,
        engine,
    )


def compare(
    a: Endpoint,
    b: Endpoint,
    *,
    option: str = "B",
    progress: Callable[[int], None] | None = None,
    **how: Any,
) -> Trial:
    """Ask two running servers, A once more as the control, and judge.

    Args:
        a, b: without and with the option. option: its name. how: as for `ask`.
        progress: called with the replies so far, of all three rounds.

    Raises:
        SparkbookError: a server does not answer, or gives no log-probabilities.
    """
    rounds: list[list[Answer]] = []
    for endpoint in (a, b, a):
        counter = _counting(progress, sum(map(len, rounds))) if progress else None
        rounds.append(ask(endpoint, progress=counter, **how))
    return trial(option, rounds[0], rounds[2], rounds[1])


def _counting(progress: Callable[[int], None], before: int) -> Callable[[int], None]:
    """Return a progress that adds the replies of the rounds before."""
    return lambda done: progress(before + done)


def table(trials: Sequence[Trial]) -> tuple[list[str], list[list[Any]]]:
    """Return header and rows: replies that stayed the same, parted at a near-tie or really;
    log-probabilities; tasks won or lost; the verdict.
    """
    header = [
        "option",
        "same",
        "near-tie",
        "real",
        "moved, nats",
        "tasks, points (95 %)",
        "verdict",
    ]
    rows = []
    for t in trials:
        same, near, real = (t.equality.count(state) for state in ("identical", "near-tie", "real"))
        share, low, high = (100 * x for x in t.scores.difference)
        moved = None if t.shift is None else f"{t.shift:.3f}"
        rows.append(
            [
                t.option,
                same,
                near,
                real,
                moved,
                f"{share:+.0f} ({low:+.0f} to {high:+.0f})",
                t.verdict,
            ]
        )
    return header, rows


@dataclass(frozen=True)
class Record:
    """Trials that were recorded. Attributes: `about` says on which machine, when and with what."""

    about: Mapping[str, str]
    trials: tuple[Trial, ...]

    def write(self, file: str | Path) -> None:
        """Write as JSON, a line for what it is about and one for each trial.

        Raises:
            SparkbookError: the file can't be written.
        """
        recording.write(file, dict(self.about), (t.to_dict() for t in self.trials))

    @classmethod
    def read(cls, file: str | Path) -> Record:
        """Read what `write` wrote.

        Raises:
            SparkbookError: it can't be read, or is not such a file.
        """
        return recording.read(
            file,
            "a recorded comparison of outputs",
            lambda head, rest: cls(dict(head), tuple(Trial.from_dict(row) for row in rest)),
        )


def recorded(name: str = "lossless") -> Record:
    """Return what was recorded: `lossless`, options of the embedded engine
    (`tools/record_lossless.py`); `lossless-h200`, of vLLM 0.24.0 on an H200; `nvfp4-h200`, the
    kernels' plug-in there (`tools/record_gpu.py`).

    Raises:
        SparkbookError: there is no such record.
    """
    return Record.read(Path(__file__).with_name("recorded") / f"{name}.jsonl")
