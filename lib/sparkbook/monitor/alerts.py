"""What Prometheus watches for. Thresholds that judge elsewhere too are taken from there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkbook.host.spark import STUCK_MHZ
from sparkbook.serve.stack import KEPT_FREE


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert.

    Attributes:
        expr: PromQL; a series in its result is a fault.
        lasts: how long it must hold, as Prometheus writes it.
        summary: what is wrong. fix: what to do.
    """

    name: str
    expr: str
    lasts: str
    summary: str
    fix: str


def _each(metric: str) -> str:
    """A metric of a server, its engines and models added up."""
    return f"sum by (instance) ({metric})"


_RUNNING, _WAITING = _each("vllm:num_requests_running"), _each("vllm:num_requests_waiting")
_TOKENS = " + ".join(
    _each(f"increase(vllm:{kind}_tokens_total[5m])") for kind in ("generation", "prompt")
)

ALERTS = (
    Alert(
        name="Silent",
        expr='up{job=~"vllm|host"} == 0',
        lasts="2m",
        summary="{{ $labels.job }} at {{ $labels.instance }} gives no metrics.",
        fix="sparkbook status",
    ),
    Alert(
        name="MemoryLow",
        expr=f"sparkbook_memory_available_bytes < sparkbook_memory_total_bytes / {KEPT_FREE}",
        lasts="1m",
        summary="{{ $value | humanize1024 }}B of memory are available.",
        fix="Stop a server, or lower its --gpu-memory-utilization.",
    ),
    Alert(
        name="NoProgress",
        # A prompt counts when it has been read, which takes minutes for a long one.
        expr=f"{_RUNNING} > 0 and {_TOKENS} == 0",
        lasts="5m",
        summary="{{ $value }} requests run at {{ $labels.instance }}, and no token is made.",
        fix="sparkbook logs NAME --diagnose",
    ),
    Alert(
        name="ClockStuck",
        expr=(
            f"sparkbook_gpu_clock_mhz < {STUCK_MHZ:g} and sparkbook_gpu_busy_ratio > 0.5"
            " unless sparkbook_gpu_throttled == 1"
        ),
        lasts="2m",
        summary="The GPU is busy at {{ $value }} MHz, and no throttle reason is shown.",
        fix="Shut down, unplug the power supply for a minute, and start again.",
    ),
    Alert(
        name="Queue",
        expr=f"{_WAITING} > 0",
        lasts="5m",
        summary="{{ $value }} requests wait at {{ $labels.instance }}.",
        fix="Send fewer requests at a time, or raise --max-num-seqs if the KV cache has room.",
    ),
    Alert(
        name="KvCacheFull",
        # A full cache alone is no fault: it must hold something up.
        expr=(
            "max by (instance) (vllm:kv_cache_usage_perc) > 0.95 and"
            f" ({_WAITING} > 0 or {_each('increase(vllm:num_preemptions_total[5m])')} > 0)"
        ),
        lasts="2m",
        summary="The KV cache of {{ $labels.instance }} is full, and requests wait for it.",
        fix="Send shorter prompts or fewer at a time, or give the cache more memory.",
    ),
    Alert(
        name="Restarted",
        expr='changes(process_start_time_seconds{job="vllm"}[15m]) > 0',
        lasts="0s",
        summary="{{ $labels.instance }} restarted {{ $value }} times in 15 minutes.",
        fix="sparkbook logs NAME --diagnose",
    ),
)


def rules() -> dict[str, Any]:
    """Return Prometheus' file of rules."""
    listed = [
        {
            "alert": alert.name,
            "expr": alert.expr,
            "for": alert.lasts,
            "annotations": {"summary": alert.summary, "fix": alert.fix},
        }
        for alert in ALERTS
    ]
    return {"groups": [{"name": "sparkbook", "interval": "15s", "rules": listed}]}
