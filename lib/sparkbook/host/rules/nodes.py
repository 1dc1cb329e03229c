"""What has to be the same on all nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from sparkbook.host.family import HOST, HostRule
from sparkbook.host.machine import Machine, Rdma
from sparkbook.rules import Hit


@HOST.rule(
    "HOST090",
    "images-differ",
    "error",
    nodes=True,
    kind="version-drift",
    source="https://github.com/Blackwellboy/model-serving-minefield/blob/main/traps/runtime/145-docker-run-implicit-pull-inside-launch-timeout.md",
    fix="Pull by digest on every node.",
    fails={
        "image": {
            "digests": [
                "vllm/vllm-openai@sha256:9999999999999999999999999999999999999999999999999999999999999999"
            ]
        }
    },
    passes={},
)
def images_differ(what: str, values: str) -> Iterator[Hit]:
    """The same tag can be another image on each node, depending on when it was pulled. Ranks of
    different vLLMs hang or fail.
    """
    yield Hit(f"The nodes have different {what}.", values)


@HOST.rule(
    "HOST091",
    "model-files-differ",
    "error",
    nodes=True,
    kind="download-corrupt",
    source="https://github.com/MiaAI-Lab/Qwen3.8-Flash-Next-Dual-DGX-Sparks/issues/30",
    fix=(
        "Run `sparkbook weights verify` on every node, then copy with `rsync -a` from one that"
        " is whole."
    ),
    fails={"store": {"digest": "9c1185a5c5e9fc54"}},
    passes={},
)
def model_files_differ(what: str, values: str) -> Iterator[Hit]:
    """Every node reads its own copy of the weights. They are compared by the names and sizes of all
    files and the commit.
    """
    yield Hit(f"The nodes have different {what}.", values)


@HOST.rule(
    "HOST092",
    "nodes-differ",
    "warning",
    nodes=True,
    kind="version-drift",
    source="https://github.com/MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks/issues/47",
    fix="Update all of them to the same state.",
    fails={"system": {"kernel": "6.17.0-1014-nvidia"}},
    passes={},
)
def nodes_differ(what: str, values: str) -> Iterator[Hit]:
    """Nodes with different drivers or kernels differ in free memory and in faults, and the slowest
    sets the pace.
    """
    yield Hit(f"The nodes have different {what}.", values)


@HOST.rule(
    "HOST093",
    "mtus-differ",
    "warning",
    nodes=True,
    kind="multi-node-rdma",
    confidence="medium",
    source="https://github.com/0xSero/local-ai-registry/pull/55",
    fix="Run `sudo ip link set DEVICE mtu 9000` on every node.",
    fails={
        "network": {
            "rdma": [{"name": "rocep1s0f0", "active": True, "link": "enp1s0f0np0", "mtu": 1024}]
        }
    },
    passes={},
)
def mtus_differ(what: str, values: str) -> Iterator[Hit]:
    """Both ends of a link need the same MTU, or large packets are lost: small tests pass and the
    first real transfer hangs.
    """
    yield Hit(f"The ends of the fast link have different {what}.", values)


@HOST.rule(
    "HOST094",
    "interface-names-differ",
    "info",
    nodes=True,
    kind="multi-node-interface",
    source="https://github.com/vllm-project/vllm/pull/40991",
    fix="Let the launcher derive the name from each node's own address.",
    fails={
        "network": {
            "rdma": [{"name": "rocep1s0f1", "active": True, "link": "enp1s0f1np1", "mtu": 4096}]
        }
    },
    passes={},
)
def interface_names_differ(what: str, values: str) -> Iterator[Hit]:
    """What is called enp1s0f0np0 on one node can be enP2p1s0f1np1 on the other."""
    yield Hit(
        f"The fast links have different {what}: set the variables for each node, not once for all.",
        values,
    )


class Comparison(NamedTuple):
    """One check between nodes.

    Attributes:
        name: as the report shows it.
        what: the thing that has to be the same, in the plural.
        rule: the rule that is broken if it is not.
        value: of one machine, or None where it is not known.
    """

    name: str
    what: str
    rule: HostRule
    value: Callable[[Machine], str | None]


def _image(machine: Machine) -> str | None:
    digests = machine.image.digests if machine.image else []
    return min(digest.split("@")[-1] for digest in digests)[:19] if digests else None


def _active(machine: Machine) -> list[Rdma]:
    return [port for port in machine.network.rdma if port.active] if machine.network else []


def _mtu(machine: Machine) -> str | None:
    mtus = sorted({port.mtu for port in _active(machine) if port.mtu})
    return "/".join(map(str, mtus)) or None


def _links(machine: Machine) -> str | None:
    return "/".join(port.link for port in _active(machine) if port.link) or None


COMPARISONS = (
    Comparison("image on every node", "images", images_differ, _image),
    Comparison(
        "weights on every node",
        "model files",
        model_files_differ,
        lambda machine: machine.store.digest if machine.store else None,
    ),
    Comparison("driver on every node", "drivers", nodes_differ, lambda m: m.gpu.driver),
    Comparison("kernel on every node", "kernels", nodes_differ, lambda m: m.system.kernel),
    Comparison("MTU on every node", "MTUs", mtus_differ, _mtu),
    Comparison("interface names", "names", interface_names_differ, _links),
)
