"""Two arms of the same prompts: is B faster than A, by how much, and how sure is that?

The unit is the prompt. For each prompt the ratio of the two arms is taken, so that easy and hard
prompts do not blur each other; the mean of the log ratios is a geometric mean, which treats 2x and
0.5x alike. Its t-interval covers what it claims also for a dozen prompts, where a bootstrap does
not; so the t-interval decides, and the bootstrap and a permutation test stand beside it as a check.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparkbook.bench import stats
from sparkbook.bench.results import Cell, Report, Request
from sparkbook.errors import SparkbookError

ENOUGH = 12
"""Prompts a class below which a comparison is called too small to trust."""

DRIFT = 0.02
"""A machine that changed by less than this share between two blocks of the same arm is taken as
steady.
"""

_EXACT_UP_TO = 14
DRAWS = 10_000
"""Resamples of the bootstrap and choices of signs of the permutation test."""

Figure = Callable[[Request], float | None]

FIGURES: dict[str, Figure] = {
    "decode_tok_s": lambda r: 1 / r.tpot_s if r.tpot_s else None,
    "req_tok_s": lambda r: r.req_tok_s,
    "ttft_s": lambda r: r.ttft_s,
    "latency_s": lambda r: r.latency_s,
}
"""What can be compared, one value a request. For the two times, a ratio below 1 is better."""


@dataclass(frozen=True)
class Comparison:
    """B over A, prompt by prompt.

    Attributes:
        n: prompts in both arms.
        ratio: geometric mean of B / A.
        interval: 95 % t-interval of it; None for a single prompt.
        bootstrap: 95 % percentile bootstrap over prompts (10,000 draws), as a check.
        p: two-sided sign-flip permutation test of "no difference"; exact up to 14 prompts, else
            10,000 draws.
        drift: A's second block over its first, as a comparison of its own; None without one.
    """

    n: int
    ratio: float
    interval: tuple[float, float] | None
    bootstrap: tuple[float, float] | None
    p: float
    drift: Comparison | None = None

    @property
    def steady(self) -> bool:
        """Whether the machine stayed the same: the two blocks of A agree, or differ by less than 2
        %.
        """
        if self.drift is None:
            return True
        low, high = self.drift.interval or (self.drift.ratio, self.drift.ratio)
        return low <= 1 <= high or abs(math.log(self.drift.ratio)) <= DRIFT

    @property
    def sure(self) -> bool:
        """Whether there are enough prompts, on a steady machine, and the interval holds no 1."""
        return bool(
            self.n >= ENOUGH
            and self.steady
            and self.interval
            and not self.interval[0] <= 1 <= self.interval[1]
        )

    def __str__(self) -> str:
        low, high = self.interval or (float("nan"), float("nan"))
        text = f"{self.ratio:.3f}x (95 %: {low:.3f} to {high:.3f}, n = {self.n}, p = {self.p:.4f})"
        if self.n < ENOUGH:
            text += f", fewer than {ENOUGH} prompts"
        if self.steady or self.drift is None:
            return text
        return f"{text}, and the machine changed by {self.drift.ratio - 1:+.1%} meanwhile"


def paired(
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Comparison:
    """Compare two arms.

    Args:
        a, b: values of each prompt, above 0; several values of a prompt are one by their geometric
            mean.
        seed, draws: of the bootstrap and of the permutations.

    Raises:
        SparkbookError: no prompt is in both arms, or a value is not above 0.
    """
    shared = [prompt for prompt in a if prompt in b and a[prompt] and b[prompt]]
    if not shared:
        raise SparkbookError(
            "the two arms share no prompt with a result: run the same classes with the same seed in"
            " both"
        )
    return _compare([_log_mean(b[p], p) - _log_mean(a[p], p) for p in shared], seed, draws=draws)


def _log_mean(values: Sequence[float], prompt: str) -> float:
    if any(not value > 0 or math.isinf(value) for value in values):
        raise SparkbookError(f"prompt {prompt} has a value that is not above 0: {min(values)}")
    return math.fsum(map(math.log, values)) / len(values)


def _compare(
    logs: Sequence[float], seed: int, drift: Comparison | None = None, draws: int = DRAWS
) -> Comparison:
    interval = stats.mean_interval(logs)
    bootstrap = None
    if len(logs) > 1:
        import numpy as np

        rng = np.random.default_rng(seed)
        values = np.asarray(logs)
        means = values[rng.integers(0, len(logs), (draws, len(logs)))].mean(axis=1)
        bootstrap = (
            float(np.exp(np.quantile(means, 0.025))),
            float(np.exp(np.quantile(means, 0.975))),
        )
    return Comparison(
        n=len(logs),
        ratio=math.exp(math.fsum(logs) / len(logs)),
        interval=(math.exp(interval[0]), math.exp(interval[1])) if interval else None,
        bootstrap=bootstrap,
        p=_permutation(logs, seed, draws),
        drift=drift,
    )


def _permutation(logs: Sequence[float], seed: int, draws: int) -> float:
    """Return how often a random choice of signs gives a mean at least as far from 0. The observed
    choice counts as one of them.
    """
    import numpy as np

    values = np.asarray(logs)
    if len(logs) <= _EXACT_UP_TO:
        signs = np.array(list(itertools.product((1, -1), repeat=len(logs))))
        extra = 0
    else:
        signs = np.random.default_rng(seed).choice((1, -1), (draws, len(logs)))
        extra = 1
    # A tie must count although its sum was rounded otherwise.
    far = np.abs(signs @ values) >= abs(values.sum()) * (1 - 1e-12) - 1e-15
    return float((far.sum() + extra) / (len(signs) + extra))


def values(cells: Sequence[Cell], figure: str = "decode_tok_s") -> dict[str, list[float]]:
    """Return one figure of every good request, by prompt.

    Raises:
        SparkbookError: there is no such figure.
    """
    if figure not in FIGURES:
        raise SparkbookError(
            f"there is no figure '{figure}' to compare; there are {', '.join(FIGURES)}"
        )
    found: dict[str, list[float]] = {}
    for cell in cells:
        for request in cell.requests:
            value = FIGURES[figure](request) if request.error is None else None
            if value is not None:
                found.setdefault(request.prompt, []).append(value)
    return found


@dataclass(frozen=True)
class Row:
    """The two arms under one class and load."""

    prompt_class: str
    load: str
    comparison: Comparison


def arms(
    a: Sequence[Report], b: Sequence[Report], figure: str = "decode_tok_s", *, seed: int = 0
) -> list[Row]:
    """Compare two arms under every class and load that both have.

    Args:
        a, b: the blocks of each arm, in the order in which they ran. With two blocks of A (as in
            A-B-B-A) the second is held against the first, so that a machine that changed meanwhile
            is noticed.
        figure: one of `FIGURES`.

    Raises:
        SparkbookError: the arms share no class and load.
    """
    loads = [key for key in _cells(a) if key in _cells(b)]
    if not loads:
        raise SparkbookError("the two measurements share no prompt class under the same load")
    rows = []
    for key in loads:
        left, right = values(_cells(a)[key], figure), values(_cells(b)[key], figure)
        blocks = [values(cells, figure) for report in a if (cells := _cells([report]).get(key))]
        drift = None
        if len(blocks) > 1 and set(blocks[0]) & set(blocks[-1]):
            drift = paired(blocks[0], blocks[-1], seed=seed)
        shared = [p for p in left if p in right]
        if not shared:
            raise SparkbookError(
                f"{key[0]} {key[1]}: the two measurements share no prompt: use the same seed in"
                " both"
            )
        logs = [_log_mean(right[p], p) - _log_mean(left[p], p) for p in shared]
        rows.append(Row(*key, _compare(logs, seed, drift)))
    return rows


def _cells(reports: Sequence[Report]) -> dict[tuple[str, str], list[Cell]]:
    found: dict[tuple[str, str], list[Cell]] = {}
    for report in reports:
        for cell in report.cells:
            found.setdefault((cell.prompt_class, cell.load), []).append(cell)
    return found
