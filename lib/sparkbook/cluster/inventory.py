"""The inventory: which machines there are, how each is reached, and what is to be known of each of
them.

Two Sparks that look alike differ in the name of the port that is up, in its adapter's name and in
the index of its address. So nothing of that kind is one value for all nodes: what a node does not
say of itself is read on that node (`sparkbook.cluster.nodes`).
"""

from __future__ import annotations

import ipaddress
import itertools
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, field_validator, model_validator

from sparkbook.errors import SparkbookError
from sparkbook.recipes.launch import Env, Strict, check_plain
from sparkbook.util import documents, invalid, limits

SPARK_GBIT = 200.0
"""Rate of a Spark's QSFP port in Gbit/s (ConnectX-7; NVIDIA DGX Spark user guide,
https://docs.nvidia.com/dgx/dgx-spark/).
"""


class Node(Strict):
    """One machine of the cluster.

    Attributes:
        docker: how its Docker engine is reached: `ssh://user@host`, or None for the one here.
    """

    host: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="the node's name, in messages and container names",
    )
    ssh: str | None = Field(
        None,
        pattern=r"^([\w.-]+@)?[A-Za-z0-9][\w.-]*(:\d{1,5})?$",
        description="user@host[:port]; left out: the machine this runs on",
    )
    via: list[str] = Field(
        default_factory=list,
        description=(
            "words before each command of a node on this machine, such as [ip, netns, exec,"
            " spark-b]"
        ),
    )
    address: str | None = Field(
        None, description="IP on the fast network; left out: that of the fastest port that is up"
    )
    interface: str | None = Field(
        None, description="port of the fast network; left out: the one that has the address"
    )
    hca: str | None = Field(
        None, description="NCCL_IB_HCA; left out: the RDMA devices that are active on this node"
    )
    gid_index: int | None = Field(
        None, ge=0, description="NCCL_IB_GID_INDEX; left out: the index of the address on this node"
    )
    store: str = Field("~/vllm", description="folder of the model store on the node")
    gpus: int = Field(1, gt=0, description="GPUs in the node; a Spark has one")
    env: Env = Field(
        default_factory=dict, description="environment of the server on this node alone"
    )

    @field_validator("address")
    @classmethod
    def _address(cls, address: str | None) -> str | None:
        try:
            return str(ipaddress.ip_address(address)) if address is not None else None
        except ValueError:
            raise ValueError(f"'{address}' is not an IP address, such as 192.168.100.1") from None

    @model_validator(mode="after")
    def _one_way(self) -> Node:
        if self.ssh and self.via:
            raise ValueError("ssh reaches another machine, via runs on this one: give one of them")
        return self

    @property
    def docker(self) -> str | None:
        """Address of its Docker engine, as `sparkbook.serve.docker_host.reach` takes it; None:
        the one here.
        """
        return f"ssh://{self.ssh}" if self.ssh else None

    @property
    def local(self) -> bool:
        """Whether it is the machine this runs on."""
        return self.ssh is None


class Inventory(Strict):
    """The nodes in the order of their ranks: the first is the head, which answers the clients."""

    name: str = Field(default="cluster", pattern=r"^[a-z0-9][a-z0-9.-]*$")
    link_gbit: float = Field(
        default=SPARK_GBIT,
        gt=0,
        description="what the link between two nodes can carry, in Gbit/s",
    )
    master_port: int = Field(
        default=29501,
        ge=1,
        le=65535,
        description="port of the head on which the ranks meet",
    )
    ray_port: int = Field(default=6379, ge=1, le=65535, description="port of Ray's head")
    nodes: list[Node] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _printable(cls, data: Any) -> Any:
        if isinstance(data, dict):
            check_plain(data, printable=True)
        return data

    @model_validator(mode="after")
    def _all_different(self) -> Inventory:
        for what, values in (
            ("host", [node.host for node in self.nodes]),
            ("address", [node.address for node in self.nodes if node.address]),
            ("ssh target", [node.ssh for node in self.nodes if node.ssh]),
        ):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(
                    f"the {what} {', '.join(twice)} belongs to two nodes: each node needs its own"
                )
        bare = [node.host for node in self.nodes if node.local and not node.via]
        if len(bare) > 1:
            raise ValueError(
                f"{' and '.join(bare)} would both be this machine: say with ssh how the others are"
                " reached"
            )
        if len({node.gpus for node in self.nodes}) > 1:
            raise ValueError(
                "nodes with different numbers of GPUs can't share a model: vLLM wants the same"
                " number on each"
            )
        return self

    @property
    def head(self) -> Node:
        """The node of rank 0."""
        return self.nodes[0]

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    def node(self, host: str) -> Node:
        """Return the node of this name.

        Raises:
            SparkbookError: there is none.
        """
        for node in self.nodes:
            if node.host == host:
                return node
        raise SparkbookError(
            f"'{host}' is not in the inventory {self.name}: there are"
            f" {', '.join(n.host for n in self.nodes)}"
        )


class Layout(Strict):
    """How a model is spread: tensor parallel × pipeline parallel GPUs for one replica, and that
    many replicas.
    """

    tensor: int = Field(default=1, gt=0)
    pipeline: int = Field(default=1, gt=0)
    data: int = Field(default=1, gt=0)

    @property
    def gpus(self) -> int:
        """GPUs it needs."""
        return self.tensor * self.pipeline * self.data

    def __str__(self) -> str:
        parts = [
            f"{name}={size}"
            for name, size in (("TP", self.tensor), ("PP", self.pipeline), ("DP", self.data))
            if size > 1
        ]
        return " ".join(parts) or "one GPU"


def parse(text: str, where: str = "the inventory") -> Inventory:
    """Return an inventory out of YAML or JSON.

    Raises:
        SparkbookError: it is none; the message names the place and what belongs there.
    """
    with limits.naming(where):
        value = documents.parse(text)
    if not isinstance(value, dict):
        raise SparkbookError(
            f"{where} holds no inventory: write 'nodes:' and under it a list with 'host:' for each"
            " machine"
        )
    try:
        return Inventory.model_validate(value)
    except ValidationError as error:
        raise SparkbookError(
            f"{where} is no inventory: "
            + "; ".join(itertools.islice(invalid.problems(error, value, Inventory, _FORMS), 5))
        ) from None
    except SparkbookError as error:
        raise SparkbookError(f"{where} is no inventory: {error}") from None
    except RecursionError:
        raise SparkbookError(
            f"{where} is no inventory: it is nested too deeply, or an alias is inside its own"
            " anchor"
        ) from None


_FORMS = {
    "host": "a name of letters, digits, and - _ .",
    "name": "a name of small letters, digits, - and .",
    "ssh": "write user@host, or user@host:port",
}


def read(file: str | Path) -> Inventory:
    """Return an inventory from a file.

    Raises:
        SparkbookError: there is no such file, or it holds no inventory.
    """
    return parse(limits.read_text(file, "the inventory"), str(file))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of an inventory."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Inventory.model_json_schema(),
    }
