"""What an engine reports about itself at `/metrics`, as values that can be asked.

Prometheus' text format is read by prometheus-client's own parser. Names are vLLM's, with or without
the `vllm:` prefix and the `_total` ending of counters. A metric that is not there is an error,
never zero: names change between releases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from sparkbook.errors import SparkbookError

_MAX_LINES = 50_000
"""Of vLLM a page has up to 2,000; each line costs more than a kilobyte of memory."""
MINUTE = Path(__file__).parent / "recorded" / "minute.json"
"""A minute of an engine's `/metrics`, recorded by `tools/record_minute.py`."""


@dataclass(frozen=True)
class Histogram:
    """A histogram: cumulative counts of observations at or below each bound.

    Attributes:
        bounds: upper bounds of the buckets, ascending, the last one infinite; in the metric's own
            unit (seconds, tokens).
        cumulative: observations at or below each bound.
        total: sum of all observations.
    """

    bounds: tuple[float, ...]
    cumulative: tuple[float, ...]
    total: float

    @property
    def count(self) -> float:
        """Number of observations."""
        return self.cumulative[-1] if self.cumulative else 0.0

    @property
    def mean(self) -> float | None:
        """Mean of the observations; None without any."""
        return self.total / self.count if self.count else None

    @property
    def per_bucket(self) -> tuple[float, ...]:
        """Observations in each bucket alone."""
        return tuple(
            now - before
            for now, before in zip(self.cumulative, (0.0, *self.cumulative), strict=False)
        )

    def quantile(self, q: float) -> float | None:
        """The q-quantile, interpolated linearly inside its bucket as Prometheus'
        `histogram_quantile` does.

        None where there are no observations; the highest finite bound where the quantile lies
        beyond it.

        Raises:
            SparkbookError: q is not between 0 and 1.
        """
        if not 0 <= q <= 1:
            raise SparkbookError(f"a quantile lies between 0 and 1, and {q} does not")
        if not self.count:
            return None
        rank = q * self.count
        index = next(i for i, seen in enumerate(self.cumulative) if seen >= rank and seen > 0)
        if math.isinf(self.bounds[index]):
            return self.bounds[index - 1] if index else None
        low = self.bounds[index - 1] if index else 0.0
        before = self.cumulative[index - 1] if index else 0.0
        inside = self.cumulative[index] - before
        return low + (self.bounds[index] - low) * ((rank - before) / inside if inside else 1.0)

    def minus(self, earlier: Histogram) -> Histogram:
        """What was observed since an earlier scrape of the same histogram."""
        if earlier.bounds != self.bounds:
            raise SparkbookError(
                "the two histograms have different buckets: they are not of the same metric and"
                " release"
            )
        return Histogram(
            self.bounds,
            tuple(a - b for a, b in zip(self.cumulative, earlier.cumulative, strict=True)),
            self.total - earlier.total,
        )


class Metrics:
    """One scrape of `/metrics`.

    Attributes:
        of_vllm: whether any of its names begins with `vllm:`.
    """

    def __init__(self, families: Iterable[Metric]):
        self._families: dict[str, Metric] = {}
        self.of_vllm = False
        for family in families:
            self.of_vllm |= family.name.startswith("vllm:")
            # Without a `# TYPE` line, as in a scrape that went through grep, the parser makes a
            # family of every series.
            known = self._families.setdefault(family.name.removeprefix("vllm:"), family)
            if known is not family:
                known.samples.extend(family.samples)

    @classmethod
    def parse(cls, text: str) -> Metrics:
        """Read a scrape.

        Raises:
            SparkbookError: it is not Prometheus' text format, or is too long.
        """
        if text.count("\n") > _MAX_LINES:
            raise SparkbookError(f"this /metrics page has more than {_MAX_LINES:,} lines")
        try:
            return cls(text_string_to_metric_families(text))
        except ValueError as error:
            raise SparkbookError(f"this is not a /metrics page: {str(error)[:200]}") from None

    def names(self) -> list[str]:
        """Names of the metrics, sorted, without the `vllm:` prefix; counters without `_total`, and
        without the `_created` gauges.
        """
        return sorted(name for name in self._families if not name.endswith("_created"))

    def help(self, name: str) -> str:
        """The one line that the engine says about a metric."""
        return self._family(name).documentation

    def value(self, name: str, **labels: str) -> float:
        """A gauge's or counter's value, summed over its series that have these labels.

        Raises:
            SparkbookError: there is no such metric, or no series with these labels.
        """
        family = self._family(name)
        if family.type == "histogram":
            raise SparkbookError(f"{name} is a histogram: ask histogram('{name}')")
        found = [
            s.value
            for s in family.samples
            if not s.name.endswith("_created") and labels.items() <= s.labels.items()
        ]
        if not found:
            raise SparkbookError(f"{name} has no series with {labels}")
        return sum(found)

    def labels(self, name: str) -> dict[str, str]:
        """The labels of a metric's first series: `cache_config_info`, whose value is always 1, says
        everything in them.
        """
        return dict(self._family(name).samples[0].labels)

    def by_label(self, name: str, label: str) -> dict[str, float]:
        """A gauge's or counter's values, one for each value of a label."""
        result: dict[str, float] = {}
        for sample in self._family(name).samples:
            if label in sample.labels and not sample.name.endswith("_created"):
                result[sample.labels[label]] = result.get(sample.labels[label], 0.0) + sample.value
        return result

    def histogram(self, name: str) -> Histogram:
        """A histogram, its series added up.

        Raises:
            SparkbookError: there is no such metric, or it is not a histogram.
        """
        family = self._family(name)
        if family.type != "histogram":
            raise SparkbookError(f"{name} is a {family.type}, not a histogram: ask value('{name}')")
        buckets: dict[float, float] = {}
        total = 0.0
        for sample in family.samples:
            if sample.name.endswith("_bucket"):
                bound = float(sample.labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + sample.value
            elif sample.name.endswith("_sum"):
                total += sample.value
        bounds = tuple(sorted(buckets))
        return Histogram(bounds, tuple(buckets[bound] for bound in bounds), total)

    def _family(self, name: str) -> Metric:
        short = name.removeprefix("vllm:")
        family = self._families.get(short) or self._families.get(short.removesuffix("_total"))
        if family is None:
            raise SparkbookError(
                f"the engine has no metric '{name}': {_closest(short, self._families)}"
            )
        return family


def _closest(name: str, known: Mapping[str, object]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"close to it are {', '.join(close)}" if close else "names() lists what it has"
