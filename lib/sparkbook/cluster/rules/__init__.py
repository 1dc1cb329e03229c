"""The rules of several Sparks: over what was looked at, measured, and seen while a server ran."""

from sparkbook.cluster.family import FAB

from sparkbook.cluster.rules import node, same, network, server  # isort: skip

__all__ = ["FAB", "network", "node", "same", "server"]
