"""A running engine, looked at again and again: one list of panels, drawn in a notebook and written
for Grafana.

>>> from sparkbook import dashboard
>>> dashboard.Dashboard(endpoint)  # in a notebook: start, stop, six panels  # doctest: +SKIP
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sparkbook.errors import SparkbookError
from sparkbook.metrics import MINUTE, Histogram, Metrics
from sparkbook.metrics.deltas import deltas
from sparkbook.serve.endpoint import Endpoint
from sparkbook.util import invalid, limits

if TYPE_CHECKING:
    from sparkbook.plots.style import Chart

RECORDED = MINUTE
"""A minute of the embedded engine."""


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        kind: gauges as they are; rates of counters; quantiles of a histogram; acceptance by
            position; for `promql`, the queries are the metrics.
        metrics: vLLM's names without `vllm:` and `_total`. unit: Grafana's name of the unit.
    """

    title: str
    kind: Literal["gauge", "rate", "quantiles", "positions", "promql"]
    metrics: tuple[str, ...]
    unit: str

    def queries(self) -> list[tuple[str, str]]:
        """PromQL and legend of each line."""
        window = "[$__rate_interval]"
        if self.kind == "promql":
            return [(query, "") for query in self.metrics]
        if self.kind == "gauge":
            return [(f"vllm:{name}", f"{name} {{{{instance}}}}") for name in self.metrics]
        if self.kind == "rate":
            return [
                (f"sum by (instance) (rate(vllm:{name}_total{window}))", name)
                for name in self.metrics
            ]
        if self.kind == "quantiles":
            bucket = f"sum by (le) (rate(vllm:{self.metrics[0]}_bucket{window}))"
            return [(f"histogram_quantile({q}, {bucket})", f"p{q * 100:g}") for q in (0.5, 0.9)]
        accepted, drafts = self.metrics
        share = (
            f"sum by (position) (rate(vllm:{accepted}_total{window})) / on () group_left"
            f" sum(rate(vllm:{drafts}_total{window}))"
        )
        return [(share, "position {{position}}")]


PANELS = (
    Panel("KV cache in use", "gauge", ("kv_cache_usage_perc",), "percentunit"),
    Panel("Requests", "gauge", ("num_requests_running", "num_requests_waiting"), "short"),
    Panel("Tokens per second", "rate", ("generation_tokens", "prompt_tokens"), "short"),
    Panel("Time to first token", "quantiles", ("time_to_first_token_seconds",), "s"),
    Panel("Gap between outputs (ITL)", "quantiles", ("inter_token_latency_seconds",), "s"),
    Panel(
        "Accepted drafts by position",
        "positions",
        ("spec_decode_num_accepted_tokens_per_pos", "spec_decode_num_drafts"),
        "percentunit",
    ),
)


HOST_PANELS = (
    Panel("Firing alerts", "promql", ('ALERTS{alertstate="firing"}',), "short"),
    Panel(
        "Memory: available and total",
        "promql",
        ("sparkbook_memory_available_bytes", "sparkbook_memory_total_bytes"),
        "bytes",
    ),
    Panel("GPU power", "promql", ("sparkbook_gpu_power_watts",), "watt"),
    Panel("GPU temperature", "promql", ("sparkbook_gpu_temperature_celsius",), "celsius"),
    Panel("GPU clock (SM)", "promql", ("sparkbook_gpu_clock_mhz * 1e6",), "hertz"),
)
"""What `sparkbook monitor up` adds: its exporter's metrics of the machine, and its alerts."""


def grafana(panels: Sequence[Panel] = PANELS, source_uid: str | None = None) -> dict[str, Any]:
    """Return a dashboard for Grafana.

    Args:
        panels: what it shows.
        source_uid: its data source; None lets the user choose one on import.
    """
    source = {"type": "prometheus", "uid": source_uid or "${DS_PROMETHEUS}"}
    drawn = [
        {
            "id": number + 1,
            "title": panel.title,
            "type": "timeseries",
            "datasource": source,
            "gridPos": {"x": 12 * (number % 2), "y": 8 * (number // 2), "w": 12, "h": 8},
            "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
            "targets": [
                {
                    "refId": "AB"[place],
                    "expr": expression,
                    "legendFormat": legend,
                    "datasource": source,
                }
                for place, (expression, legend) in enumerate(panel.queries())
            ],
        }
        for number, panel in enumerate(panels)
    ]
    wanted = {
        "name": "DS_PROMETHEUS",
        "label": "Prometheus",
        "type": "datasource",
        "pluginId": "prometheus",
        "pluginName": "Prometheus",
    }
    return {
        **({} if source_uid else {"__inputs": [wanted]}),
        "title": "vLLM on a Spark",
        "uid": "sparkbook-vllm",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "panels": drawn,
    }


def prometheus(targets: Sequence[str] = ("127.0.0.1:8000",)) -> str:
    """Return a Prometheus configuration that scrapes these servers, without a key."""
    import yaml

    return yaml.safe_dump({"scrape_configs": [scrape_job(targets)]}, sort_keys=False)


def scrape_job(targets: Sequence[str]) -> dict[str, Any]:
    """Return Prometheus' job that scrapes these servers.

    Args:
        targets: HOST:PORT, which is what Prometheus wants; of a URL, scheme and path are left out.

    Raises:
        SparkbookError: a target is empty, or asks for TLS.
    """
    for target in targets:
        if target.strip().lower().startswith("https:"):
            raise SparkbookError(f"'{target}' uses TLS: give the server's own HOST:PORT")
    targets = [target.strip().rpartition("://")[2].partition("/")[0] for target in targets]
    if not all(targets):
        raise SparkbookError("a server has no name: give HOST:PORT, such as 127.0.0.1:8000")
    return {
        "job_name": "vllm",
        "scrape_interval": "5s",
        "metrics_path": "/metrics",
        "static_configs": [{"targets": list(targets)}],
    }


@dataclass(frozen=True)
class Look:
    """What happened between two scrapes. Unknown is None.

    Attributes:
        t_s: since the first scrape. kv_use: 0 to 1.
        ttft, itl: observations of this interval by upper bound in seconds; empty buckets are left
            out.
        per_position: share of drafts accepted at each position; empty without drafts.
    """

    t_s: float
    kv_use: float | None
    running: float | None
    waiting: float | None
    generation_tok_s: float | None
    ttft: dict[str, float]
    itl: dict[str, float]
    per_position: tuple[float, ...] = ()


def look(before: Metrics, after: Metrics, seconds: float, t_s: float) -> Look:
    """Two scrapes as one look.

    Raises:
        SparkbookError: the engine restarted between them.
    """
    change = deltas(before, after, seconds)

    def grown(name: str) -> dict[str, float]:
        if name not in after.names() or name not in before.names():
            return {}
        new: Histogram = after.histogram(name).minus(before.histogram(name))
        return {
            f"{bound:g}": count
            for bound, count in zip(new.bounds, new.per_bucket, strict=True)
            if count
        }

    return Look(
        round(t_s, 2),
        change.kv_use,
        change.running,
        change.waiting,
        round(change.generation_tok_s, 1) if change.generation_tok_s is not None else None,
        grown("time_to_first_token_seconds"),
        grown("inter_token_latency_seconds"),
        tuple(round(p, 3) for p in change.per_position),
    )


def watch(
    endpoint: Endpoint, interval_s: float = 1.0, *, stop: threading.Event | None = None
) -> Iterator[Look]:
    """Looks, one every `interval_s` seconds, until `stop` is set.

    Raises:
        SparkbookError: nothing answers, or the engine restarted.
    """
    stop = stop or threading.Event()
    begin = last = time.monotonic()
    before = Metrics.parse(endpoint.metrics_text())
    if not {name for panel in PANELS for name in panel.metrics}.intersection(before.names()):
        raise SparkbookError(
            f"{endpoint.url}/metrics has none of the metrics looked at: is this a vLLM server?"
        )
    while not stop.wait(interval_s):
        after, now = Metrics.parse(endpoint.metrics_text()), time.monotonic()
        yield look(before, after, now - last, now - begin)
        before, last = after, now


def write(looks: Sequence[Look], file: str | Path, **about: str) -> None:
    """Keep looks as JSON, with where they were taken.

    Raises:
        SparkbookError: the file can't be written.
    """
    from sparkbook.util.files import write_text

    write_text(file, json.dumps({**about, "looks": [asdict(one) for one in looks]}) + "\n")


def read(file: str | Path = RECORDED) -> tuple[dict[str, str], list[Look]]:
    """What `write` kept: where it was taken, and the looks.

    Raises:
        SparkbookError: it can't be read.
    """
    try:
        kept = limits.read_json(file)
        looks = [
            Look(**{**row, "per_position": tuple(row["per_position"])}) for row in kept.pop("looks")
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SparkbookError(
            f"{file} is not a recording of looks: {invalid.reason(error)}"
        ) from None
    return kept, looks


class Dashboard:
    """Show the panels in a notebook with a start-stop button; keeps the last `keep` looks."""

    def __init__(self, endpoint: Endpoint | str, interval_s: float = 1.0, keep: int = 120):
        import ipywidgets

        self.endpoint = (
            Endpoint(endpoint.rstrip("/").removesuffix("/v1"))
            if isinstance(endpoint, str)
            else endpoint
        )
        self.interval_s, self.keep = interval_s, keep
        self.looks: list[Look] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.button = ipywidgets.ToggleButton(description="Start", icon="play")
        self.said = ipywidgets.Label(f"{self.endpoint.url}: not watched")
        self.image = ipywidgets.Image(format="svg+xml", layout={"max_width": "100%"})
        self.button.observe(lambda change: self.start() if change["new"] else self.stop(), "value")
        self.box = ipywidgets.VBox([ipywidgets.HBox([self.button, self.said]), self.image])

    def start(self) -> None:
        """Watch until `stop`."""
        if self._thread and self._thread.is_alive():
            return
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.button.value, self.button.description = True, "Stop"

    def stop(self) -> None:
        """Stop watching; what was seen stays."""
        self._stop.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(timeout=10)
        self.button.value, self.button.description = False, "Start"

    def _run(self) -> None:
        from sparkbook.plots.dashboard import panels

        try:
            for one in watch(self.endpoint, self.interval_s, stop=self._stop):
                self.looks = [*self.looks, one][-self.keep :]
                self._draw(panels(self.looks, self.endpoint.url))
        except SparkbookError as error:
            self.said.value = str(error)
            self._stop.set()

    def _draw(self, chart: Chart) -> None:
        self.image.value = chart.svg.encode()
        self.said.value = f"{self.endpoint.url}: {len(self.looks)} looks"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        return self.box._repr_mimebundle_(**kwargs)
