"""Nodes and pairs as `sparkbook cluster check` found them once, kept to be judged again."""

from __future__ import annotations

import json
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Fault:
    """A fault that was provoked between two namespaces, with a real vLLM (CPU build, Gloo) over
    both (`tools/provoke_two_nodes.py`).

    Attributes:
        name, about: what was done.
        client_s: seconds until a client that was being served learned of it; None where it was not
            hurt, or there was none.
        ended_s: seconds until `cluster serve` had ended, with a word about it in `serve`.
        status: state of each node's rank within 10 s; empty where none runs any more.
        diagnose: what `sparkbook diagnose` says first of the two logs.
        left: what was left on the nodes after `cluster stop`; None where it was not recorded with
            the clean-up of today.
    """

    name: str
    about: str
    at: str
    ready_s: float | None
    client_s: float | None
    ended_s: float | None
    status: dict[str, str]
    status_right: bool | None
    serve: str | None
    verdict: str
    diagnose: str | None
    left: dict[str, list[str]] | None

    @property
    def said(self) -> str | None:
        """What the library says first: `cluster serve`, or `diagnose` of the logs; None of a server
        that goes on.
        """
        return self.serve or (None if self.verdict == "healthy" else self.diagnose)


def faults() -> list[Fault]:
    """Return the faults that were provoked, as recorded."""
    text = files("sparkbook.cluster").joinpath("recorded", "faults.json").read_text("utf-8")
    return [Fault(**one) for one in json.loads(text)]
