"""Engines that answer: started as a process here, or attached to where one runs already.

>>> from sparkbook import serve
>>> server = serve.connect("embedded/smollm2-135m", target="plan")   # doctest: +SKIP
"""

from sparkbook.serve.connection import PlanOnly, Server, connect
from sparkbook.serve.endpoint import Endpoint
from sparkbook.serve.engine import Engine, EngineError
from sparkbook.serve.process import ProcessEngine
from sparkbook.serve.ready import Readiness, wait_ready
from sparkbook.serve.stream import Streamed, stream_chat
from sparkbook.serve.warmup import WarmUp, warm_up

__all__ = [
    "Endpoint",
    "Engine",
    "EngineError",
    "PlanOnly",
    "ProcessEngine",
    "Readiness",
    "Server",
    "Streamed",
    "WarmUp",
    "connect",
    "stream_chat",
    "wait_ready",
    "warm_up",
]
