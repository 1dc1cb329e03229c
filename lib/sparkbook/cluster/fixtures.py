"""Nodes and pairs as `sparkbook cluster check` found them once, kept to be judged again."""

from __future__ import annotations

import json
from importlib.resources import files

from sparkbook.cluster.fabric import Pair
from sparkbook.cluster.inventory import Inventory
from sparkbook.cluster.nodes import Site
from sparkbook.cluster.sighting import Seen
from sparkbook.errors import SparkbookError

NAMES = ("two-namespaces", "two-namespaces-slow")
"""Two network namespaces of one machine joined by a virtual cable: as they are, and with one end
held to 200 Mbit/s (`tools/record_namespaces.sh`).
"""


def recorded(name: str) -> Seen:
    """Return a recording, as the checks take it.

    Raises:
        SparkbookError: there is none of this name.
    """
    if name not in NAMES:
        raise SparkbookError(f"there is no recording '{name}'; there are {', '.join(NAMES)}")
    kept = json.loads(
        files("sparkbook.cluster").joinpath("recorded", f"{name}.json").read_text("utf-8")
    )
    sites, pairs = (
        [Site.model_validate(one) for one in kept["nodes"]],
        [Pair.model_validate(one) for one in kept["pairs"]],
    )
    return Seen(Inventory.model_validate(kept["inventory"]), sites, pairs=pairs)
