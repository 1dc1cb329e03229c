"""The few statistics that a measurement needs, in closed form: no tables to trust, no package to
install.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from sparkbook.errors import SparkbookError


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile, linear between order statistics (type 7 of Hyndman and Fan, NumPy's
    default).

    Raises:
        SparkbookError: there are no values.
    """
    if not values:
        raise SparkbookError("no values, no quantile")
    ordered = sorted(values)
    place = (len(ordered) - 1) * q
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@functools.lru_cache(
    maxsize=1024
)  # one measurement asks for the same few over and over, 20 ms each
def t_quantile(p: float, df: float) -> float:
    """Return the p-quantile of Student's t with df degrees of freedom, by bisection of its
    distribution function.

    The distribution function is 1 - I(df/(df+t²); df/2, 1/2)/2 for t >= 0 (Abramowitz and Stegun
    26.7.1).
    """
    if p < 0.5:
        return -t_quantile(1 - p, df)
    low, high = 0.0, 1.0
    while _t_cdf(high, df) < p:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, df: float) -> float:
    return 1 - 0.5 * _beta(df / (df + t * t), df / 2, 0.5)


def _beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (Abramowitz and
    Stegun 26.5.8).
    """
    if x <= 0 or x >= 1:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1) / (a + b + 2):
        return 1 - _beta(1 - x, b, a)
    front = (
        math.exp(
            math.lgamma(a + b)
            - math.lgamma(a)
            - math.lgamma(b)
            + a * math.log(x)
            + b * math.log1p(-x)
        )
        / a
    )
    fraction = 1.0
    for m in range(200, 0, -1):  # from the inside out
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        fraction = 1 + even / (1 + odd / fraction)
    first = -(a + b) * x / (a + 1)
    return front / (1 + first / fraction)


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return the t-interval of the mean; None for fewer than two values. The values are one a
    prompt: tokens of one text are not independent.
    """
    n = len(values)
    if n < 2:
        return None
    mean = math.fsum(values) / n
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = t_quantile(0.5 + level / 2, n - 1) * deviation / math.sqrt(n)
    return mean - half, mean + half


def median_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Return the interval between two order statistics that holds the median with at least this
    probability; None for too few values (< 6).
    """
    ordered, n = sorted(values), len(values)
    cumulative, below = 0.0, -1
    for k in range(n // 2):
        cumulative += (
            math.comb(n, k) * 0.5**n if n < 1000 else math.exp(_log_choose(n, k) - n * math.log(2))
        )
        if cumulative > (1 - level) / 2:
            break
        below = k
    return (ordered[below], ordered[n - 1 - below]) if below >= 0 else None


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def by_prompt(pairs: Iterable[tuple[str, float]]) -> list[float]:
    """Return one mean value for each prompt, in the order in which prompts first appear."""
    groups: dict[str, list[float]] = {}
    for prompt, value in pairs:
        groups.setdefault(prompt, []).append(value)
    return [math.fsum(values) / len(values) for values in groups.values()]
