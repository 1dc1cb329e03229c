"""The rules of the host check, one module for each part of the machine, in the order of the
report.
"""

from sparkbook.host.family import CHECKS, HOST

from sparkbook.host.rules import (  # isort: skip
    system,
    gpu,
    memory,
    docker,
    image,
    containers,
    weights,
    limits,
    python,
    network,
    nodes,
)

__all__ = [
    "CHECKS",
    "HOST",
    "containers",
    "docker",
    "gpu",
    "image",
    "limits",
    "memory",
    "network",
    "nodes",
    "python",
    "system",
    "weights",
]
