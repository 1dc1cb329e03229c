"""Will it fit, and how fast can it be: a plan from a launch line and facts about its checkpoint,
before anything is downloaded.

    >>> from sparkbook import plan
    >>> plan.of("gpt-oss-120b").verdict
    'may fit'

Memory stands in `memory` and `kv`, speed in `decode` and `prefill`, the comparison with an engine's
log in `reconcile`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkbook.plan.memory import Calibration, MemoryPlan, plan
    from sparkbook.plan.setup import CoTenant, Host, Setup, together

__all__ = ["Calibration", "CoTenant", "Host", "MemoryPlan", "Setup", "of", "plan", "together"]


def of(
    source: str, host: Host | None = None, calibration: Calibration | None = None, **override: Any
) -> MemoryPlan:
    """The plan for what a user names: a recipe's id, a file, or a launch line.

    Args:
        source: the input.
        host: the machine; left out, a Spark.
        calibration: what this machine's engines have shown.
        override: fields of `sparkbook.plan.request.Override`, such as `context`.

    Raises:
        SparkbookError: the input cannot be used.
    """
    from sparkbook.plan import memory, request

    return memory.plan(request.read(source, request.Override(**override)), host, calibration)


def __getattr__(name: str) -> Any:
    """Load the arithmetic of memory when it is first asked for."""
    if name in __all__:
        from sparkbook.plan import memory, setup

        return getattr(setup if hasattr(setup, name) else memory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
