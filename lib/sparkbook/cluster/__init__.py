"""Several Sparks: an inventory of nodes, the check of the fabric between them, staging, and one
server over all of them.

>>> from sparkbook import cluster
>>> first = "{host: spark-1, address: 192.168.100.1}"
>>> second = "{host: spark-2, ssh: me@spark-2, address: 192.168.100.2}"
>>> pair = cluster.parse(f"nodes: [{first}, {second}]")
>>> [node.docker for node in pair.nodes]
[None, 'ssh://me@spark-2']

What vLLM 0.32.0 does over two nodes without a GPU (its CPU build, Gloo, run by this project on
2026-11-28):

- Tensor parallelism (`--nnodes 2`, TP=2) serves; its answers are those of one node.
- Pipeline parallelism (PP=2) gets ready, and `/health` says 200; the first request ends the second
  rank with `AssertionError` in `sync_and_gather_intermediate_tensors`
  (`assert self.intermediate_tensors is not None`), and the head with a `KeyError` a second later.
  That is why readiness here needs a real request. On GPUs another runner does this step, and PP=2
  serves (0.24.0, two H200s).
- A killed worker, or a cut link, leaves `/health` at 200. With the worker dead the next request
  fails at once; with the link cut it hangs.
- Ray (`--backend ray`): Ray's cluster of two nodes comes up, then vLLM ends with
  `ValueError: current platform cpu does not support ray.` On two H200s of one host (0.24.0) its
  workers start, and the second ends with an `IndexError`, for its GPU is number 1 of the host.
- A headless rank does not end with the head: whoever starts the ranks has to end each of them.
"""

from sparkbook.cluster.inventory import Inventory, Layout, Node, parse, read, schema

__all__ = ["Inventory", "Layout", "Node", "parse", "read", "schema"]
