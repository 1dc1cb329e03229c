"""Rules of the gate: 1xx the machine, 2xx the engine, 3xx the method, 4xx impossible figures."""

from sparkbook.bench.family import BENCH

from sparkbook.bench.rules import machine, engine, method, possible  # isort: skip

__all__ = ["BENCH", "engine", "machine", "method", "possible"]
